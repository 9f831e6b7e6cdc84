//! Keys, their stable hash, and key groups.
//!
//! `key_group = stable_hash(key) % max_parallelism` (invariant 5). The hash is a pure function
//! of the key's *values*, not of an encoding that a library may change: integers of every width
//! hash alike, −0.0 like 0.0, every NaN like every other, NULL by a constant. It is computed once
//! per row, column by column, and carried along to the state table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::*;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Result};

/// One stable hash per row.
pub type KeyHashes = Arc<[u64]>;

/// A hash bucket of keys and the unit of rescaling.
pub type KeyGroup = u16;

/// The key group of a key hash.
pub fn key_group(hash: u64, max_parallelism: u16) -> KeyGroup {
    ((hash >> 32) % u64::from(max_parallelism)) as KeyGroup
}

/// A task's share of the key groups: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyGroupRange {
    /// First key group.
    pub start: KeyGroup,
    /// One past the last key group.
    pub end: KeyGroup,
}

impl KeyGroupRange {
    /// Task `index` of `parallelism` owns `[ceil(i·M/p), ceil((i+1)·M/p))`.
    pub fn of_task(index: usize, parallelism: usize, max_parallelism: u16) -> Self {
        let max = usize::from(max_parallelism);
        let bound = |i: usize| (i * max).div_ceil(parallelism) as KeyGroup;
        Self { start: bound(index), end: bound(index + 1) }
    }
    /// Every key group.
    pub fn all(max_parallelism: u16) -> Self {
        Self { start: 0, end: max_parallelism }
    }
    /// Whether a key group is in the range.
    pub fn contains(&self, group: KeyGroup) -> bool {
        self.start <= group && group < self.end
    }
    /// The task of `parallelism` that owns a key group.
    pub fn task_of(group: KeyGroup, parallelism: usize, max_parallelism: u16) -> usize {
        usize::from(group) * parallelism / usize::from(max_parallelism)
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const NULL_HASH: u64 = 0x6e75_6c6c_6e75_6c6c;

fn mix(value: u64) -> u64 {
    // The finaliser of splitmix64 (Steele, Lea, Flood 2014).
    let mut z = value.wrapping_add(SEED);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn combine(hash: u64, value: u64) -> u64 {
    mix(hash.rotate_left(5) ^ value)
}

/// The stable hash of a text, for identities that must survive restarts.
pub fn text_hash(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// The canonical bits of a float: one NaN, one zero.
pub fn canonical_f64(value: f64) -> f64 {
    if value.is_nan() {
        f64::NAN
    } else if value == 0.0 {
        0.0
    } else {
        value
    }
}

/// One stable hash per row of the key columns; no column gives a constant (the single key of a
/// global aggregate).
///
/// Errors: *Invalid* for a type that cannot be a key.
pub fn stable_hashes(columns: &[ArrayRef], rows: usize) -> Result<KeyHashes> {
    let mut hashes = vec![SEED; rows];
    for column in columns {
        add_column(&mut hashes, column)?;
    }
    Ok(hashes.into())
}

/// The stable hashes of keys that go on with more columns: `hashes` are those of the columns before.
///
/// Errors: as [`stable_hashes`].
pub fn extended_hashes(mut hashes: Vec<u64>, columns: &[ArrayRef]) -> Result<KeyHashes> {
    for column in columns {
        add_column(&mut hashes, column)?;
    }
    Ok(hashes.into())
}

fn add_column(hashes: &mut [u64], column: &ArrayRef) -> Result<()> {
    macro_rules! ints {
        ($t:ty) => {{
            let array = column.as_primitive::<$t>();
            add_values(hashes, column, |row| mix(array.value(row) as i64 as u64))
        }};
    }
    match column.data_type() {
        DataType::Int8 => ints!(Int8Type),
        DataType::Int16 => ints!(Int16Type),
        DataType::Int32 => ints!(Int32Type),
        DataType::Int64 => ints!(Int64Type),
        DataType::UInt8 => ints!(UInt8Type),
        DataType::UInt16 => ints!(UInt16Type),
        DataType::UInt32 => ints!(UInt32Type),
        DataType::UInt64 => ints!(UInt64Type),
        DataType::Date32 => ints!(Date32Type),
        DataType::Date64 => ints!(Date64Type),
        DataType::Time32(TimeUnit::Second) => ints!(Time32SecondType),
        DataType::Time32(TimeUnit::Millisecond) => ints!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => ints!(Time64MicrosecondType),
        DataType::Time64(TimeUnit::Nanosecond) => ints!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => ints!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => ints!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => ints!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => ints!(TimestampNanosecondType),
        DataType::Duration(_) | DataType::Interval(_) => {
            return Err(Error::invalid(format!("a key of type {} is not supported", column.data_type())));
        }
        DataType::Float32 => {
            let array = column.as_primitive::<Float32Type>();
            add_values(hashes, column, |row| mix(canonical_f64(f64::from(array.value(row))).to_bits()))
        }
        DataType::Float64 => {
            let array = column.as_primitive::<Float64Type>();
            add_values(hashes, column, |row| mix(canonical_f64(array.value(row)).to_bits()))
        }
        DataType::Decimal128(_, _) => {
            let array = column.as_primitive::<Decimal128Type>();
            add_values(hashes, column, |row| {
                let value = array.value(row) as u128;
                combine(mix(value as u64), (value >> 64) as u64)
            })
        }
        DataType::Boolean => {
            let array = column.as_boolean();
            add_values(hashes, column, |row| mix(u64::from(array.value(row))))
        }
        DataType::Utf8 => {
            let array = column.as_string::<i32>();
            add_values(hashes, column, |row| xxh3_64(array.value(row).as_bytes()))
        }
        DataType::LargeUtf8 => {
            let array = column.as_string::<i64>();
            add_values(hashes, column, |row| xxh3_64(array.value(row).as_bytes()))
        }
        DataType::Utf8View => {
            let array = column.as_string_view();
            add_values(hashes, column, |row| xxh3_64(array.value(row).as_bytes()))
        }
        DataType::Binary => {
            let array = column.as_binary::<i32>();
            add_values(hashes, column, |row| xxh3_64(array.value(row)))
        }
        DataType::BinaryView => {
            let array = column.as_binary_view();
            add_values(hashes, column, |row| xxh3_64(array.value(row)))
        }
        DataType::FixedSizeBinary(_) => {
            let array = column.as_fixed_size_binary();
            add_values(hashes, column, |row| xxh3_64(array.value(row)))
        }
        DataType::LargeBinary => {
            let array = column.as_binary::<i64>();
            add_values(hashes, column, |row| xxh3_64(array.value(row)))
        }
        DataType::Struct(_) => {
            let fields = stable_hashes(column.as_struct().columns(), column.len())?;
            add_values(hashes, column, |row| fields[row])
        }
        DataType::List(_) => {
            let array = column.as_list::<i32>();
            let items = stable_hashes(&[array.values().clone()], array.values().len())?;
            let offsets = array.value_offsets();
            let list = |row: usize| {
                let items = &items[offsets[row] as usize..offsets[row + 1] as usize];
                items.iter().fold(mix(items.len() as u64), |hash, item| combine(hash, *item))
            };
            add_values(hashes, column, list)
        }
        DataType::Null => add_values(hashes, column, |_| NULL_HASH),
        other => {
            return Err(Error::invalid(format!("a key of type {other} is not supported"))
                .with_hint("group or join by its fields, or by CAST(... AS STRING)"));
        }
    }
    Ok(())
}

fn add_values(hashes: &mut [u64], column: &ArrayRef, value: impl Fn(usize) -> u64) {
    match column.logical_nulls() {
        None => {
            for (row, hash) in hashes.iter_mut().enumerate() {
                *hash = combine(*hash, value(row));
            }
        }
        Some(nulls) => {
            for (row, hash) in hashes.iter_mut().enumerate() {
                let value = if nulls.is_null(row) { NULL_HASH } else { value(row) };
                *hash = combine(*hash, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int32Array, Int64Array, ListArray, StringArray, StructArray};

    #[test]
    fn every_key_group_has_exactly_one_task() {
        for parallelism in 1..=9 {
            for group in 0..256u16 {
                let owners: Vec<usize> = (0..parallelism)
                    .filter(|i| KeyGroupRange::of_task(*i, parallelism, 256).contains(group))
                    .collect();
                assert_eq!(owners, [KeyGroupRange::task_of(group, parallelism, 256)]);
            }
        }
    }

    #[test]
    fn equal_values_hash_alike() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN]));
        let hashes = stable_hashes(&[floats], 4).unwrap();
        assert_eq!((hashes[0], hashes[2]), (hashes[1], hashes[3]));
        let narrow: ArrayRef = Arc::new(Int32Array::from(vec![-7]));
        let wide: ArrayRef = Arc::new(Int64Array::from(vec![-7]));
        assert_eq!(stable_hashes(&[narrow], 1).unwrap(), stable_hashes(&[wide], 1).unwrap());
    }

    #[test]
    fn nested_keys_hash_by_their_values() {
        let list = |rows: Vec<Option<Vec<Option<i32>>>>| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
        };
        let rows = list(vec![Some(vec![Some(1), None]), Some(vec![]), None, Some(vec![Some(1), None])]);
        let hashes = stable_hashes(std::slice::from_ref(&rows), 4).unwrap();
        assert_eq!(hashes[0], hashes[3]);
        assert!(hashes[1] != hashes[2] && hashes[0] != hashes[1]);
        assert_eq!(stable_hashes(&[rows.slice(3, 1)], 1).unwrap()[0], hashes[0]);
        let fields = arrow::datatypes::Fields::from(vec![Field::new("l", rows.data_type().clone(), true)]);
        let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![rows], None));
        let hashes = stable_hashes(&[structs], 4).unwrap();
        assert!(hashes[0] == hashes[3] && hashes[0] != hashes[1]);
    }

    #[test]
    fn hashes_can_be_extended() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let first = stable_hashes(std::slice::from_ref(&numbers), 2).unwrap();
        let extended = extended_hashes(first.to_vec(), std::slice::from_ref(&texts)).unwrap();
        assert_eq!(extended, stable_hashes(&[numbers, texts], 2).unwrap());
    }

    /// The golden file of invariant 5: a change here orphans every stored state.
    #[test]
    fn hashes_are_stable_across_versions() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(""), Some("a"), Some("millpond"), None]));
        let hashes = stable_hashes(&[numbers, texts], 4).unwrap();
        let groups: Vec<KeyGroup> = hashes.iter().map(|h| key_group(*h, 256)).collect();
        let golden = include_str!("key_groups.golden");
        let text = format!("{hashes:x?}\n{groups:?}\n");
        assert_eq!(text, golden);
    }
}
