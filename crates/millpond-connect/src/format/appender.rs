//! Columns that grow from text: one typed buffer per column, chosen once per reader.
//!
//! A CSV decoder hands over a column of cells at a time ([`Appender::run`]), so that the choice
//! of the type is made once per run and the loop inside is typed; a JSON decoder appends value by
//! value.

use std::sync::Arc;

use arrow::array::builder::{BooleanBufferBuilder, NullBufferBuilder};
use arrow::array::{ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, PrimitiveArray, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use millpond_core::{Error, Result};

use super::scalar::{self, Zone, trim};

/// Where a cell's text stands: in the block or, with its quotes undone, in the scratch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    start: u32,
    length: u32,
}

const NULL_LENGTH: u32 = u32::MAX;
const IN_SCRATCH: u32 = 1 << 31;

impl Cell {
    pub(crate) const NULL: Cell = Cell { start: 0, length: NULL_LENGTH };

    #[inline]
    pub(crate) fn in_block(start: usize, length: usize) -> Self {
        Self { start: start as u32, length: length as u32 }
    }
    pub(crate) fn in_scratch(start: usize, length: usize) -> Self {
        Self { start: start as u32 | IN_SCRATCH, length: length as u32 }
    }
    pub(crate) fn is_null(self) -> bool {
        self.length == NULL_LENGTH
    }
}

/// The bytes that cells point into.
#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) block: &'a [u8],
    pub(crate) scratch: &'a [u8],
    /// Whether the block is known to be UTF-8.
    pub(crate) is_utf8: bool,
    /// A text that means NULL even within quotes, for other types than text.
    pub(crate) null_literal: Option<&'a [u8]>,
}

impl<'a> Texts<'a> {
    #[inline]
    pub(crate) fn of(&self, cell: Cell) -> &'a [u8] {
        let (from, start) = match cell.start & IN_SCRATCH {
            0 => (self.block, cell.start as usize),
            _ => (self.scratch, (cell.start & !IN_SCRATCH) as usize),
        };
        &from[start..start + cell.length as usize]
    }
}

/// A column under construction.
pub(crate) trait Appender: Send {
    /// Appends the value of a text; `false`: it is none, and nothing was appended.
    fn text(&mut self, text: &[u8], is_utf8: bool) -> bool;
    /// Appends NULL.
    fn null(&mut self);
    /// Whether blanks and emptiness are values.
    fn keeps_blanks(&self) -> bool {
        false
    }
    /// The column so far; the appender is empty again.
    fn finish(&mut self) -> Result<ArrayRef>;
    /// Appends every `width`th cell; the indices of unreadable ones go to `unreadable`, and NULL
    /// into the column.
    fn run(&mut self, texts: Texts<'_>, cells: &[Cell], width: usize, unreadable: &mut Vec<u32>) {
        for (row, cell) in cells.iter().step_by(width).enumerate() {
            if cell.is_null() {
                self.null();
            } else if !self.text(texts.of(*cell), texts.is_utf8) {
                if !means_null(self.keeps_blanks(), texts, *cell) {
                    unreadable.push(row as u32);
                }
                self.null();
            }
        }
    }
}

/// Writers that quote everything quote their NULLs too.
#[cold]
fn means_null(keeps_blanks: bool, texts: Texts<'_>, cell: Cell) -> bool {
    let text = trim(texts.of(cell));
    !keeps_blanks && (text.is_empty() || Some(text) == texts.null_literal)
}

/// An appender for a scalar type; instants without an offset are read in `zone`.
///
/// Errors: *Invalid* for a type that text cannot give.
pub(crate) fn appender(data_type: &DataType, zone: Zone) -> Result<Box<dyn Appender>> {
    Ok(match data_type {
        DataType::Int8 => primitive::<Int8Type>(data_type, |text| narrow(whole(text))),
        DataType::Int16 => primitive::<Int16Type>(data_type, |text| narrow(whole(text))),
        DataType::Int32 => primitive::<Int32Type>(data_type, |text| narrow(whole(text))),
        DataType::Int64 => primitive::<Int64Type>(data_type, whole),
        DataType::Float32 => primitive::<Float32Type>(data_type, |text| scalar::float(trim(text))),
        DataType::Float64 => primitive::<Float64Type>(data_type, |text| scalar::float(trim(text))),
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            primitive::<Decimal128Type>(data_type, move |text| scalar::decimal(trim(text), precision, scale))
        }
        DataType::Date32 => primitive::<Date32Type>(data_type, |text| scalar::date(trim(text))),
        DataType::Time32(_) | DataType::Time64(_) => time_appender(data_type)?,
        DataType::Timestamp(unit, _) => timestamp_appender(data_type, *unit, zone),
        DataType::Boolean => Box::new(Booleans::default()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Box::new(Strings::of(data_type)),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            Box::new(Binaries(Strings::of(data_type)))
        }
        other => {
            let name = scalar::type_name(other);
            return Err(Error::invalid(format!("text formats cannot read the type {name}")));
        }
    })
}

#[inline]
fn whole(text: &[u8]) -> Option<i64> {
    scalar::integer(text).or_else(|| scalar::integer(trim(text)))
}

#[inline]
fn narrow<T: TryFrom<i64>>(value: Option<i64>) -> Option<T> {
    T::try_from(value?).ok()
}

fn time_appender(data_type: &DataType) -> Result<Box<dyn Appender>> {
    let small = |unit| move |text: &[u8]| narrow::<i32>(scalar::time_of_day(trim(text), unit));
    let large = |unit| move |text: &[u8]| scalar::time_of_day(trim(text), unit);
    Ok(match data_type {
        DataType::Time32(TimeUnit::Second) => {
            primitive::<Time32SecondType>(data_type, small(TimeUnit::Second))
        }
        DataType::Time32(TimeUnit::Millisecond) => {
            primitive::<Time32MillisecondType>(data_type, small(TimeUnit::Millisecond))
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            primitive::<Time64MicrosecondType>(data_type, large(TimeUnit::Microsecond))
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            primitive::<Time64NanosecondType>(data_type, large(TimeUnit::Nanosecond))
        }
        other => return Err(Error::internal(format!("a time of type {other}"))),
    })
}

fn timestamp_appender(data_type: &DataType, unit: TimeUnit, zone: Zone) -> Box<dyn Appender> {
    match unit {
        TimeUnit::Second => times::<TimestampSecondType>(data_type, unit, zone),
        TimeUnit::Millisecond => times::<TimestampMillisecondType>(data_type, unit, zone),
        TimeUnit::Microsecond => times::<TimestampMicrosecondType>(data_type, unit, zone),
        TimeUnit::Nanosecond => times::<TimestampNanosecondType>(data_type, unit, zone),
    }
}

fn times<T: ArrowPrimitiveType<Native = i64>>(
    data_type: &DataType,
    unit: TimeUnit,
    zone: Zone,
) -> Box<dyn Appender> {
    match data_type {
        DataType::Timestamp(_, Some(_)) => {
            primitive::<T>(data_type, move |text| scalar::instant(trim(text), unit, zone))
        }
        _ => primitive::<T>(data_type, move |text| scalar::timestamp(trim(text), unit)),
    }
}

struct Primitives<T: ArrowPrimitiveType, P> {
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    data_type: DataType,
    parse: P,
}

fn primitive<T: ArrowPrimitiveType>(
    data_type: &DataType,
    parse: impl Fn(&[u8]) -> Option<T::Native> + Send + 'static,
) -> Box<dyn Appender> {
    Box::new(Primitives::<T, _> {
        values: Vec::new(),
        nulls: NullBufferBuilder::new(0),
        data_type: data_type.clone(),
        parse,
    })
}

impl<T: ArrowPrimitiveType, P: Fn(&[u8]) -> Option<T::Native> + Send> Appender for Primitives<T, P> {
    #[inline]
    fn text(&mut self, text: &[u8], _: bool) -> bool {
        let Some(value) = (self.parse)(text) else { return false };
        self.values.push(value);
        self.nulls.append_non_null();
        true
    }
    #[inline]
    fn null(&mut self) {
        self.values.push(T::Native::default());
        self.nulls.append_null();
    }
    fn finish(&mut self) -> Result<ArrayRef> {
        let capacity = self.values.len();
        let values = std::mem::replace(&mut self.values, Vec::with_capacity(capacity));
        let array = PrimitiveArray::<T>::try_new(values.into(), self.nulls.finish())?;
        Ok(Arc::new(array.with_data_type(self.data_type.clone())))
    }
}

struct Booleans {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Default for Booleans {
    fn default() -> Self {
        Self { values: BooleanBufferBuilder::new(0), nulls: NullBufferBuilder::new(0) }
    }
}

impl Appender for Booleans {
    fn text(&mut self, text: &[u8], _: bool) -> bool {
        let Some(value) = scalar::boolean(trim(text)) else { return false };
        self.values.append(value);
        self.nulls.append_non_null();
        true
    }
    fn null(&mut self) {
        self.values.append(false);
        self.nulls.append_null();
    }
    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(BooleanArray::new(self.values.finish(), self.nulls.finish())))
    }
}

/// Text (and, decoded, bytes): all values behind each other.
struct Strings {
    offsets: Vec<i32>,
    values: Vec<u8>,
    nulls: NullBufferBuilder,
    data_type: DataType,
}

impl Strings {
    fn of(data_type: &DataType) -> Self {
        Self {
            offsets: vec![0],
            values: Vec::new(),
            nulls: NullBufferBuilder::new(0),
            data_type: data_type.clone(),
        }
    }
    /// Readers end a batch long before 2 GiB of text.
    #[inline]
    fn close(&mut self) {
        self.offsets.push(i32::try_from(self.values.len()).expect("a batch is bounded in bytes"));
    }
    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let mut offsets = Vec::with_capacity(self.offsets.len());
        offsets.push(0);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut self.offsets, offsets)));
        let values = Vec::with_capacity(self.values.len());
        (offsets, Buffer::from_vec(std::mem::replace(&mut self.values, values)))
    }
    fn as_declared(&self, array: ArrayRef) -> Result<ArrayRef> {
        match array.data_type() == &self.data_type {
            true => Ok(array),
            false => Ok(arrow::compute::cast(&array, &self.data_type)?),
        }
    }
}

impl Appender for Strings {
    #[inline]
    fn text(&mut self, text: &[u8], is_utf8: bool) -> bool {
        if !is_utf8 && std::str::from_utf8(text).is_err() {
            return false;
        }
        self.values.extend_from_slice(text);
        self.close();
        self.nulls.append_non_null();
        true
    }
    #[inline]
    fn null(&mut self) {
        self.close();
        self.nulls.append_null();
    }
    fn keeps_blanks(&self) -> bool {
        true
    }
    fn finish(&mut self) -> Result<ArrayRef> {
        let (offsets, values) = self.take();
        let array = StringArray::try_new(offsets, values, self.nulls.finish())?;
        self.as_declared(Arc::new(array))
    }
}

struct Binaries(Strings);

impl Appender for Binaries {
    fn text(&mut self, text: &[u8], _: bool) -> bool {
        let readable = scalar::base64(trim(text), &mut self.0.values);
        if readable {
            self.0.close();
            self.0.nulls.append_non_null();
        }
        readable
    }
    fn null(&mut self) {
        self.0.null();
    }
    fn keeps_blanks(&self) -> bool {
        true
    }
    fn finish(&mut self) -> Result<ArrayRef> {
        let (offsets, values) = self.0.take();
        let array = BinaryArray::try_new(offsets, values, self.0.nulls.finish())?;
        self.0.as_declared(Arc::new(array))
    }
}
