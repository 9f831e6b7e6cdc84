//! State columns: one typed value per slot, updated in place, gathered into Arrow arrays.
//!
//! A slot is the number of a row of a state table. Operators update the typed vectors directly,
//! in one tight loop per column; Arrow arrays are made only for output and snapshots. The layouts
//! are few: everything that fits 64 bits as an integer (dates and times too) is an `i64`.
//!
//! ```text
//! slot      0   1   2   3
//! values  [ 7   0   9   1 ]      gather([2, 0]) ─▶ Arrow [9, 7]
//! valid   [ t   f   t   t ]      store([1], [5]) ◀─ Arrow [5]
//! ```

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, concat};
use arrow::datatypes::*;
use millpond_core::{Error, Result};

/// Runs `$body` with `$t` as the Arrow type behind an integer-like data type (integers, dates,
/// times, timestamps, durations); `$other` for every other type.
#[macro_export]
macro_rules! for_integer_type {
    ($data_type:expr, $t:ident => $body:expr, _ => $other:expr) => {
        $crate::for_integer_type!(@arms $data_type, $t, $body, $other,
            [Int8, Int8Type], [Int16, Int16Type], [Int32, Int32Type], [Int64, Int64Type],
            [UInt8, UInt8Type], [UInt16, UInt16Type], [UInt32, UInt32Type], [UInt64, UInt64Type],
            [Date32, Date32Type], [Date64, Date64Type];
            [Time32, Second, Time32SecondType], [Time32, Millisecond, Time32MillisecondType],
            [Time64, Microsecond, Time64MicrosecondType], [Time64, Nanosecond, Time64NanosecondType],
            [Duration, Second, DurationSecondType], [Duration, Millisecond, DurationMillisecondType],
            [Duration, Microsecond, DurationMicrosecondType], [Duration, Nanosecond, DurationNanosecondType];
            [Second, TimestampSecondType], [Millisecond, TimestampMillisecondType],
            [Microsecond, TimestampMicrosecondType], [Nanosecond, TimestampNanosecondType])
    };
    (@arms $data_type:expr, $t:ident, $body:expr, $other:expr,
        $([$plain:ident, $plain_type:ident]),*;
        $([$unit_kind:ident, $unit:ident, $unit_type:ident]),*;
        $([$stamp:ident, $stamp_type:ident]),*) => {
        match $data_type {
            $(::arrow::datatypes::DataType::$plain => {
                type $t = ::arrow::datatypes::$plain_type;
                $body
            })*
            $(::arrow::datatypes::DataType::$unit_kind(::arrow::datatypes::TimeUnit::$unit) => {
                type $t = ::arrow::datatypes::$unit_type;
                $body
            })*
            $(::arrow::datatypes::DataType::Timestamp(::arrow::datatypes::TimeUnit::$stamp, _) => {
                type $t = ::arrow::datatypes::$stamp_type;
                $body
            })*
            _ => $other,
        }
    };
}

/// Values of one column, one per slot.
#[derive(Debug)]
pub struct StateColumn {
    data_type: DataType,
    /// The values; what stands at an invalid slot has no meaning.
    pub values: StateValues,
    /// Which slots hold a value; `None` for a column that is never NULL.
    pub valid: Option<Vec<bool>>,
}

/// The layouts of a state column.
#[derive(Debug)]
pub enum StateValues {
    /// Integers, dates, times, timestamps; unsigned 64-bit integers by their bits.
    I64(Vec<i64>),
    /// Floats of both widths.
    F64(Vec<f64>),
    /// Decimals of up to 38 digits, unscaled.
    I128(Vec<i128>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings and binary strings.
    Bytes(ByteStrings),
    /// Anything else: arrays of length one; `None` is NULL.
    Arrays(Vec<Option<ArrayRef>>),
}

/// Byte strings by slot, and how much they take.
#[derive(Debug, Default)]
pub struct ByteStrings {
    values: Vec<Box<[u8]>>,
    /// Of all values, with what an allocation costs.
    bytes: usize,
}

/// What the allocator needs for a string beside its bytes.
const ALLOCATION_BYTES: usize = 16;

/// Arrays that are looked at to estimate the size of all.
const ARRAYS_MEASURED: usize = 256;

impl ByteStrings {
    /// Puts a value into a slot.
    pub fn set(&mut self, slot: usize, value: &[u8]) {
        let bytes = |value: &[u8]| if value.is_empty() { 0 } else { value.len() + ALLOCATION_BYTES };
        let old = std::mem::replace(&mut self.values[slot], value.into());
        self.bytes = self.bytes - bytes(&old) + bytes(value);
    }

    /// Grows to `slots` slots, with empty strings in the new ones.
    fn resize(&mut self, slots: usize) {
        self.values.resize_with(slots, Box::default);
    }
}

impl std::ops::Index<usize> for ByteStrings {
    type Output = [u8];

    fn index(&self, slot: usize) -> &[u8] {
        &self.values[slot]
    }
}

impl StateColumn {
    /// An empty column of a field's type; new slots are NULL if the field is nullable, else zero.
    pub fn new(field: &Field) -> Self {
        let data_type = field.data_type().clone();
        let values = StateValues::of(&data_type);
        let valid = field.is_nullable().then(Vec::new);
        Self { data_type, values, valid }
    }

    /// The Arrow type that it gathers into.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Grows to `slots` slots, with the default in the new ones.
    pub fn resize(&mut self, slots: usize) {
        match &mut self.values {
            StateValues::I64(values) => values.resize(slots, 0),
            StateValues::F64(values) => values.resize(slots, 0.0),
            StateValues::I128(values) => values.resize(slots, 0),
            StateValues::Bool(values) => values.resize(slots, false),
            StateValues::Bytes(values) => values.resize(slots),
            StateValues::Arrays(values) => values.resize(slots, None),
        }
        if let Some(valid) = &mut self.valid {
            valid.resize(slots, false);
        }
    }

    /// Puts a slot back to the default, before another row takes it.
    pub fn reset(&mut self, slot: u32) {
        let slot = slot as usize;
        match &mut self.values {
            StateValues::I64(values) => values[slot] = 0,
            StateValues::F64(values) => values[slot] = 0.0,
            StateValues::I128(values) => values[slot] = 0,
            StateValues::Bool(values) => values[slot] = false,
            StateValues::Bytes(values) => values.set(slot, &[]),
            StateValues::Arrays(values) => values[slot] = None,
        }
        if let Some(valid) = &mut self.valid {
            valid[slot] = false;
        }
    }

    /// Whether a slot holds a value.
    pub fn is_valid(&self, slot: u32) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid[slot as usize])
    }

    /// The values at `slots` as an Arrow array of the column's type.
    pub fn gather(&self, slots: &[u32]) -> Result<ArrayRef> {
        let at = || slots.iter().map(|slot| *slot as usize);
        let nulls = self.nulls(slots);
        match &self.values {
            StateValues::I64(values) => {
                gather_integers(&self.data_type, at().map(|slot| values[slot]), nulls)
            }
            StateValues::F64(values) if self.data_type == DataType::Float32 => {
                let values: Vec<f32> = at().map(|slot| values[slot] as f32).collect();
                Ok(Arc::new(Float32Array::new(values.into(), nulls)))
            }
            StateValues::F64(values) => {
                let values: Vec<f64> = at().map(|slot| values[slot]).collect();
                Ok(Arc::new(Float64Array::new(values.into(), nulls)))
            }
            StateValues::I128(values) => {
                let values: Vec<i128> = at().map(|slot| values[slot]).collect();
                Ok(Arc::new(
                    Decimal128Array::new(values.into(), nulls).with_data_type(self.data_type.clone()),
                ))
            }
            StateValues::Bool(values) => {
                let values = at().map(|slot| values[slot]).collect();
                Ok(Arc::new(BooleanArray::new(values, nulls)))
            }
            StateValues::Bytes(values) => {
                let values = slots.iter().map(|slot| self.is_valid(*slot).then(|| &values[*slot as usize]));
                gather_bytes(&self.data_type, values)
            }
            StateValues::Arrays(values) => {
                gather_arrays(&self.data_type, at().map(|slot| values[slot].clone()))
            }
        }
    }

    /// Writes the values of an array, one per slot of `slots`.
    ///
    /// Errors: *Corrupt* for an array that cannot be this column's.
    pub fn store(&mut self, slots: &[u32], array: &ArrayRef) -> Result<()> {
        assert_eq!(slots.len(), array.len(), "one value per slot");
        let array = if array.data_type() == &self.data_type {
            array.clone()
        } else {
            cast(array, &self.data_type).map_err(|_| {
                Error::corrupt(format!(
                    "a state column of {} where {} is due",
                    array.data_type(),
                    self.data_type
                ))
            })?
        };
        self.store_valid(slots, &array)?;
        let at = || slots.iter().map(|slot| *slot as usize).enumerate();
        match &mut self.values {
            StateValues::I64(values) => for_integer_type!(&self.data_type, T => {
                let array = array.as_primitive::<T>();
                at().for_each(|(row, slot)| values[slot] = array.value(row) as i64);
            }, _ => return Err(mismatch(&self.data_type))),
            StateValues::F64(values) if self.data_type == DataType::Float32 => {
                let array = array.as_primitive::<Float32Type>();
                at().for_each(|(row, slot)| values[slot] = f64::from(array.value(row)));
            }
            StateValues::F64(values) => {
                let array = array.as_primitive::<Float64Type>();
                at().for_each(|(row, slot)| values[slot] = array.value(row));
            }
            StateValues::I128(values) => {
                let array = array.as_primitive::<Decimal128Type>();
                at().for_each(|(row, slot)| values[slot] = array.value(row));
            }
            StateValues::Bool(values) => {
                let array = array.as_boolean();
                at().for_each(|(row, slot)| values[slot] = array.value(row));
            }
            StateValues::Bytes(values) => {
                let binary = bytes_of(&array)?;
                at().for_each(|(row, slot)| values.set(slot, binary.value(row)));
            }
            StateValues::Arrays(values) => {
                at().for_each(|(row, slot)| {
                    values[slot] = (!array.is_null(row)).then(|| array.slice(row, 1));
                });
            }
        }
        Ok(())
    }

    /// Bytes of its slots.
    pub fn bytes(&self) -> usize {
        let valid = self.valid.as_ref().map_or(0, Vec::capacity);
        valid
            + match &self.values {
                StateValues::I64(values) => values.capacity() * 8,
                StateValues::F64(values) => values.capacity() * 8,
                StateValues::I128(values) => values.capacity() * 16,
                StateValues::Bool(values) => values.capacity(),
                StateValues::Bytes(values) => values.values.capacity() * size_of::<Box<[u8]>>(),
                StateValues::Arrays(values) => values.capacity() * size_of::<Option<ArrayRef>>(),
            }
    }

    /// Bytes of values outside the column's slots, estimated: strings and arrays.
    pub fn payload(&self) -> usize {
        match &self.values {
            StateValues::Bytes(values) => values.bytes,
            StateValues::Arrays(values) => {
                // A look at some of them: what an array takes is found by a walk over its parts.
                let step = values.len().div_ceil(ARRAYS_MEASURED).max(1);
                let some = values.iter().step_by(step).flatten();
                step * some
                    .map(|array| array.to_data().get_slice_memory_size().unwrap_or(0) + 256)
                    .sum::<usize>()
            }
            StateValues::I64(_) | StateValues::F64(_) | StateValues::I128(_) | StateValues::Bool(_) => 0,
        }
    }

    /// The integers, to be read.
    pub fn i64s(&self) -> &[i64] {
        match &self.values {
            StateValues::I64(values) => values,
            _ => panic!("a column of {} holds no 64-bit integers", self.data_type),
        }
    }

    /// The integers, to be changed in place.
    pub fn i64s_mut(&mut self) -> &mut [i64] {
        match &mut self.values {
            StateValues::I64(values) => values,
            _ => panic!("a column of {} holds no 64-bit integers", self.data_type),
        }
    }

    /// The floats, to be read.
    pub fn f64s(&self) -> &[f64] {
        match &self.values {
            StateValues::F64(values) => values,
            _ => panic!("a column of {} holds no floats", self.data_type),
        }
    }

    /// The floats, to be changed in place.
    pub fn f64s_mut(&mut self) -> &mut [f64] {
        match &mut self.values {
            StateValues::F64(values) => values,
            _ => panic!("a column of {} holds no floats", self.data_type),
        }
    }

    /// The wide integers, to be read.
    pub fn i128s(&self) -> &[i128] {
        match &self.values {
            StateValues::I128(values) => values,
            _ => panic!("a column of {} holds no wide integers", self.data_type),
        }
    }

    /// The wide integers, to be changed in place.
    pub fn i128s_mut(&mut self) -> &mut [i128] {
        match &mut self.values {
            StateValues::I128(values) => values,
            _ => panic!("a column of {} holds no wide integers", self.data_type),
        }
    }

    /// The truth values, to be read.
    pub fn bools(&self) -> &[bool] {
        match &self.values {
            StateValues::Bool(values) => values,
            _ => panic!("a column of {} holds no truth values", self.data_type),
        }
    }

    /// The truth values, to be changed in place.
    pub fn bools_mut(&mut self) -> &mut [bool] {
        match &mut self.values {
            StateValues::Bool(values) => values,
            _ => panic!("a column of {} holds no truth values", self.data_type),
        }
    }

    fn nulls(&self, slots: &[u32]) -> Option<NullBuffer> {
        let valid = self.valid.as_ref()?;
        let nulls: NullBuffer = slots.iter().map(|slot| valid[*slot as usize]).collect();
        (nulls.null_count() > 0).then_some(nulls)
    }

    fn store_valid(&mut self, slots: &[u32], array: &ArrayRef) -> Result<()> {
        match &mut self.valid {
            Some(valid) => {
                for (row, slot) in slots.iter().enumerate() {
                    valid[*slot as usize] = array.is_valid(row);
                }
                Ok(())
            }
            None if array.null_count() > 0 => {
                Err(Error::corrupt("NULL in a state column that is never NULL"))
            }
            None => Ok(()),
        }
    }
}

impl StateValues {
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Float32 | DataType::Float64 => Self::F64(Vec::new()),
            DataType::Decimal128(_, _) => Self::I128(Vec::new()),
            DataType::Boolean => Self::Bool(Vec::new()),
            DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Self::Bytes(ByteStrings::default()),
            other => for_integer_type!(other, T => { let _: Option<T>; Self::I64(Vec::new()) },
                _ => Self::Arrays(Vec::new())),
        }
    }
}

/// An array of an integer-like type from 64-bit values.
pub(crate) fn gather_integers(
    data_type: &DataType,
    values: impl Iterator<Item = i64>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    for_integer_type!(data_type, T => {
        let values: Vec<<T as ArrowPrimitiveType>::Native> = values.map(|value| value as _).collect();
        Ok(Arc::new(PrimitiveArray::<T>::new(values.into(), nulls).with_data_type(data_type.clone())))
    }, _ => Err(mismatch(data_type)))
}

fn gather_bytes<'a>(
    data_type: &DataType,
    values: impl Iterator<Item = Option<&'a [u8]>>,
) -> Result<ArrayRef> {
    match data_type {
        DataType::Utf8 => Ok(Arc::new(StringArray::from(texts(values)?))),
        DataType::LargeUtf8 => Ok(Arc::new(LargeStringArray::from(texts(values)?))),
        DataType::Utf8View => Ok(Arc::new(StringViewArray::from_iter(texts(values)?))),
        DataType::Binary => Ok(Arc::new(BinaryArray::from_iter(values))),
        DataType::LargeBinary => Ok(Arc::new(LargeBinaryArray::from_iter(values))),
        DataType::BinaryView => Ok(Arc::new(BinaryViewArray::from_iter(values))),
        DataType::FixedSizeBinary(size) => {
            Ok(Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *size)?))
        }
        other => Err(mismatch(other)),
    }
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<Vec<Option<&'a str>>> {
    let text =
        |bytes| std::str::from_utf8(bytes).map_err(|_| Error::internal("a string in state is not UTF-8"));
    values.map(|value| value.map(text).transpose()).collect()
}

fn gather_arrays(data_type: &DataType, values: impl Iterator<Item = Option<ArrayRef>>) -> Result<ArrayRef> {
    let values: Vec<ArrayRef> =
        values.map(|value| value.unwrap_or_else(|| new_null_array(data_type, 1))).collect();
    if values.is_empty() {
        return Ok(new_empty_array(data_type));
    }
    let parts: Vec<&dyn Array> = values.iter().map(|value| value.as_ref()).collect();
    Ok(concat(&parts)?)
}

fn bytes_of(array: &ArrayRef) -> Result<BinaryArray> {
    Ok(match array.data_type() {
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().iter().collect(),
        DataType::Utf8View => array.as_string_view().iter().map(|text| text.map(str::as_bytes)).collect(),
        DataType::BinaryView => array.as_binary_view().iter().collect(),
        _ => cast(array, &DataType::Binary)?.as_binary::<i32>().clone(),
    })
}

fn mismatch(data_type: &DataType) -> Error {
    Error::internal(format!("a state column of {data_type} in the wrong layout"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(array: ArrayRef) {
        let mut column = StateColumn::new(&Field::new("c", array.data_type().clone(), true));
        column.resize(array.len() + 2);
        let slots: Vec<u32> = (0..array.len() as u32).map(|slot| slot + 2).rev().collect();
        column.store(&slots, &array).unwrap();
        assert_eq!(&column.gather(&slots).unwrap(), &array);
        assert_eq!(column.gather(&[0]).unwrap().null_count(), 1, "a new slot is NULL");
        column.reset(slots[0]);
        assert!(!column.is_valid(slots[0]));
    }

    #[test]
    fn every_layout_gives_back_what_was_stored() {
        round_trip(Arc::new(Int8Array::from(vec![Some(-1), None, Some(3)])));
        round_trip(Arc::new(UInt64Array::from(vec![u64::MAX, 0])));
        round_trip(Arc::new(Date32Array::from(vec![Some(-1), None])));
        round_trip(Arc::new(Time32MillisecondArray::from(vec![5])));
        round_trip(Arc::new(TimestampMicrosecondArray::from(vec![Some(7), None]).with_timezone("UTC")));
        round_trip(Arc::new(Float32Array::from(vec![Some(1.5), None])));
        round_trip(Arc::new(Float64Array::from(vec![f64::MAX, -0.5])));
        round_trip(Arc::new(
            Decimal128Array::from(vec![Some(i128::MAX), None]).with_precision_and_scale(38, 2).unwrap(),
        ));
        round_trip(Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])));
        round_trip(Arc::new(StringArray::from(vec![Some("a"), None, Some("")])));
        round_trip(Arc::new(StringViewArray::from(vec![Some("long enough for a view buffer"), None])));
        round_trip(Arc::new(BinaryArray::from(vec![Some(&b"\xff"[..]), None])));
        round_trip(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None])));
    }
}
