//! Keys of rows in the form in which they are compared: a word for a single integer or time
//! column, bytes in arrow's row format for everything else.
//!
//! The encoding lives in memory only; parts hold typed columns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::cast;
use arrow::datatypes::*;
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::key::{canonical_f64, stable_hashes};
use millpond_core::{Error, KeyHashes, Result};

/// Encoded keys of a batch, with their hashes.
#[derive(Debug)]
pub struct Keys {
    /// The stable hash of each key.
    pub(super) hashes: KeyHashes,
    pub(super) encoded: EncodedKeys,
}

impl Keys {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }
    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
    /// The word of a row; 0 for the other encodings.
    pub(super) fn word(&self, row: usize) -> u64 {
        match &self.encoded {
            EncodedKeys::Words(words) => words[row],
            EncodedKeys::Unit | EncodedKeys::Bytes(_) => 0,
        }
    }
}

#[derive(Debug)]
pub(super) enum EncodedKeys {
    /// No key column: every row has the same key.
    Unit,
    /// A single column of at most 64 bits.
    Words(Vec<u64>),
    /// Anything else.
    Bytes(Rows),
}

/// Encodes key columns of given types; equal values of equal types encode alike.
#[derive(Debug)]
pub(super) enum KeyEncoder {
    Unit,
    Word,
    Bytes(RowConverter),
}

impl KeyEncoder {
    /// An encoder; words cannot tell NULL from a value, so `null_keys` asks for bytes.
    pub(super) fn new(types: &[DataType], null_keys: bool) -> Result<Self> {
        match types {
            [] => Ok(Self::Unit),
            [only] if !null_keys && is_word(only) => Ok(Self::Word),
            _ => {
                Ok(Self::Bytes(RowConverter::new(types.iter().map(|t| SortField::new(t.clone())).collect())?))
            }
        }
    }

    /// Encodes the key columns; `hashes` are their stable hashes, if they are known.
    pub(super) fn encode(
        &self,
        columns: &[ArrayRef],
        rows: usize,
        hashes: Option<KeyHashes>,
    ) -> Result<Keys> {
        let hashes = match hashes {
            Some(hashes) => hashes,
            None => stable_hashes(columns, rows)?,
        };
        let encoded = match self {
            Self::Unit => EncodedKeys::Unit,
            Self::Word => EncodedKeys::Words(words(&columns[0])?),
            Self::Bytes(converter) => EncodedKeys::Bytes(converter.convert_columns(&canonical(columns)?)?),
        };
        Ok(Keys { hashes, encoded })
    }

    /// An empty buffer for the keys of stored rows, if they have to be stored.
    pub(super) fn store(&self) -> Option<Rows> {
        match self {
            Self::Unit | Self::Word => None,
            Self::Bytes(converter) => Some(converter.empty_rows(0, 0)),
        }
    }
}

/// Floats are compared as SQL does: one zero, one NaN.
fn canonical(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    columns
        .iter()
        .map(|column| match column.data_type() {
            DataType::Float64 => {
                Ok(Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical_f64))
                    as ArrayRef)
            }
            DataType::Float32 => {
                let wide = cast(column, &DataType::Float64)?;
                let wide = wide.as_primitive::<Float64Type>();
                Ok(Arc::new(wide.unary::<_, Float32Type>(|v| canonical_f64(v) as f32)) as ArrayRef)
            }
            _ => Ok(column.clone()),
        })
        .collect()
}

fn is_word(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
                | DataType::Time32(_)
                | DataType::Time64(_)
        )
}

fn words(column: &ArrayRef) -> Result<Vec<u64>> {
    Ok(match column.data_type() {
        DataType::Int8 => word_values::<Int8Type>(column, |v| v as i64 as u64),
        DataType::Int16 => word_values::<Int16Type>(column, |v| v as i64 as u64),
        DataType::Int32 => word_values::<Int32Type>(column, |v| v as i64 as u64),
        DataType::Int64 => word_values::<Int64Type>(column, |v| v as u64),
        DataType::UInt8 => word_values::<UInt8Type>(column, u64::from),
        DataType::UInt16 => word_values::<UInt16Type>(column, u64::from),
        DataType::UInt32 => word_values::<UInt32Type>(column, u64::from),
        DataType::UInt64 => word_values::<UInt64Type>(column, |v| v),
        DataType::Date32 => word_values::<Date32Type>(column, |v| v as i64 as u64),
        DataType::Date64 => word_values::<Date64Type>(column, |v| v as u64),
        DataType::Time32(_) => return words(&cast(column, &DataType::Int32)?),
        DataType::Time64(_) | DataType::Timestamp(..) => return words(&cast(column, &DataType::Int64)?),
        other => return Err(Error::internal(format!("a key of type {other} is not a word"))),
    })
}

fn word_values<T: ArrowPrimitiveType>(column: &ArrayRef, word: impl Fn(T::Native) -> u64) -> Vec<u64> {
    column.as_primitive::<T>().values().iter().map(|v| word(*v)).collect()
}
