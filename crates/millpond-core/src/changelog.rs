//! Changelog batches: rows with their kinds and companions.
//!
//! Kinds travel beside the Arrow batch, never as a column of it, and so do late tags: an
//! expression, projection or function sees only the user's columns. A batch without kinds holds
//! insertions only, so that the append path costs nothing.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;

use crate::Result;
use crate::key::KeyHashes;
use crate::time::Timestamp;

/// What a row of a changelog says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowKind {
    /// `+I`: a new row.
    Insert,
    /// `-U`: the old image of a changed row.
    UpdateBefore,
    /// `+U`: the new image of a changed row.
    UpdateAfter,
    /// `-D`: a row that is gone.
    Delete,
}

impl RowKind {
    /// `+I`, `-U`, `+U` or `-D`.
    pub fn symbol(self) -> &'static str {
        match self {
            RowKind::Insert => "+I",
            RowKind::UpdateBefore => "-U",
            RowKind::UpdateAfter => "+U",
            RowKind::Delete => "-D",
        }
    }
    /// Whether the row is added (`+I`, `+U`) rather than taken away.
    pub fn is_addition(self) -> bool {
        matches!(self, RowKind::Insert | RowKind::UpdateAfter)
    }
}

/// The changelog that an edge declares to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangelogMode {
    /// `+I` only.
    Append,
    /// `+I`, `+U`, `-D`; rows replace each other by upsert key.
    Upsert,
    /// `+I`, `-U`, `+U`, `-D`.
    Retract,
}

impl std::fmt::Display for ChangelogMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ChangelogMode::Append => "append",
            ChangelogMode::Upsert => "upsert",
            ChangelogMode::Retract => "retract",
        })
    }
}

/// One kind per row.
pub type RowKinds = Arc<[RowKind]>;

/// Per row: the watermark of its split if the row is behind it, else [`Timestamp::MIN`].
pub type LateTags = Arc<[Timestamp]>;

/// Rows of one relation with their kinds, late tags and (after an exchange) key hashes.
#[derive(Debug, Clone)]
pub struct ChangelogBatch {
    /// The user's columns.
    pub rows: RecordBatch,
    /// One kind per row; `None` means that every row is `+I`.
    pub kinds: Option<RowKinds>,
    /// One tag per row; `None` means that no row is behind its split's watermark.
    pub late: Option<LateTags>,
    /// The key hashes that an exchange has computed for the operator behind it.
    pub hashes: Option<KeyHashes>,
}

impl ChangelogBatch {
    /// A batch of insertions.
    pub fn append(rows: RecordBatch) -> Self {
        Self { rows, kinds: None, late: None, hashes: None }
    }
    /// A batch with one kind per row.
    pub fn with_kinds(rows: RecordBatch, kinds: impl Into<RowKinds>) -> Self {
        let kinds = kinds.into();
        assert_eq!(rows.num_rows(), kinds.len(), "one kind per row");
        Self { rows, kinds: Some(kinds), late: None, hashes: None }
    }
    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }
    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.num_rows() == 0
    }
    /// The columns' names and types.
    pub fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
    /// The kind of a row.
    pub fn kind(&self, row: usize) -> RowKind {
        self.kinds.as_ref().map_or(RowKind::Insert, |kinds| kinds[row])
    }
    /// The late tag of a row; [`Timestamp::MIN`] if it has none.
    pub fn late_tag(&self, row: usize) -> Timestamp {
        self.late.as_ref().map_or(Timestamp::MIN, |late| late[row])
    }
    /// The same kinds, tags and hashes over other columns of the same rows.
    pub fn replace_rows(&self, rows: RecordBatch) -> Self {
        assert_eq!(rows.num_rows(), self.rows.num_rows(), "the same rows");
        Self { rows, kinds: self.kinds.clone(), late: self.late.clone(), hashes: None }
    }
    /// A range of rows.
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        let range = offset..offset + length;
        Self {
            rows: self.rows.slice(offset, length),
            kinds: self.kinds.as_ref().map(|kinds| kinds[range.clone()].into()),
            late: self.late.as_ref().map(|late| late[range.clone()].into()),
            hashes: self.hashes.as_ref().map(|hashes| hashes[range].into()),
        }
    }
    /// The rows at `indices`, with their companions.
    pub fn take(&self, indices: &UInt32Array) -> Result<Self> {
        let at = indices.values();
        Ok(Self {
            rows: taken(&self.rows, indices)?,
            kinds: self.kinds.as_ref().map(|kinds| at.iter().map(|i| kinds[*i as usize]).collect()),
            late: self.late.as_ref().map(|late| at.iter().map(|i| late[*i as usize]).collect()),
            hashes: self.hashes.as_ref().map(|hashes| at.iter().map(|i| hashes[*i as usize]).collect()),
        })
    }
    /// The rows for which `predicate` is true (NULL counts as false), with their companions.
    pub fn filter(&self, predicate: &arrow::array::BooleanArray) -> Result<Self> {
        if self.kinds.is_none() && self.late.is_none() && self.hashes.is_none() {
            return Ok(Self::append(filter_record_batch(&self.rows, predicate)?));
        }
        let kept: UInt32Array = predicate
            .iter()
            .enumerate()
            .filter(|(_, keep)| *keep == Some(true))
            .map(|(row, _)| row as u32)
            .collect();
        self.take(&kept)
    }
}

/// The rows at `indices`; rows without columns are counted.
fn taken(rows: &RecordBatch, indices: &UInt32Array) -> Result<RecordBatch> {
    if rows.num_columns() > 0 {
        return Ok(take_record_batch(rows, indices)?);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(indices.len()));
    Ok(RecordBatch::try_new_with_options(rows.schema(), Vec::new(), &options)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::BooleanArray;
    use arrow::datatypes::Schema;

    use super::*;

    #[test]
    fn rows_without_columns_are_filtered_with_their_kinds() {
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let schema = Arc::new(Schema::empty());
        let rows = RecordBatch::try_new_with_options(schema, Vec::new(), &options).unwrap();
        let kinds = vec![RowKind::Insert, RowKind::UpdateBefore, RowKind::UpdateAfter];
        let kept = ChangelogBatch::with_kinds(rows, kinds)
            .filter(&BooleanArray::from(vec![false, true, true]))
            .unwrap();
        assert_eq!(kept.num_rows(), 2);
        assert_eq!(kept.kind(0), RowKind::UpdateBefore);
    }
}
