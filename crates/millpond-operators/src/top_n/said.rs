//! What is said of ranked rows, a batch at a time.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, Error, Result, RowKind, RowKinds};

use super::rankings::{Ranked, Rankings};

/// What is said of a ranked row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) kind: RowKind,
    pub(crate) row: Ranked,
}

/// Changes that are still to be emitted.
#[derive(Debug, Default)]
pub(crate) struct Said {
    changes: Vec<Change>,
    /// Slots to be freed once all are.
    pub(crate) free: Vec<u32>,
}

impl Said {
    pub(crate) fn say(&mut self, kind: RowKind, row: Ranked) {
        self.changes.push(Change { kind, row });
    }

    pub(crate) fn by_rank(&mut self, before: &[Ranked], after: &[Ranked]) {
        for place in 0..before.len().max(after.len()) {
            match (before.get(place), after.get(place)) {
                (Some(old), Some(new)) if old.slot == new.slot => {}
                (Some(old), Some(new)) => {
                    self.say(RowKind::UpdateBefore, *old);
                    self.say(RowKind::UpdateAfter, *new);
                }
                (Some(old), None) => self.say(RowKind::Delete, *old),
                (None, Some(new)) => self.say(RowKind::Insert, *new),
                (None, None) => {}
            }
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.changes.len()
    }

    /// The next changes, as many as fit a batch; a pair is not torn.
    pub(crate) fn next_batch(&mut self) -> Vec<Change> {
        let mut end = self.changes.len().min(BATCH_ROWS_MAX);
        if end < self.changes.len() && self.changes[end - 1].kind == RowKind::UpdateBefore {
            end -= 1;
        }
        self.changes.drain(..end).collect()
    }
}

/// What is emitted of a ranked row.
#[derive(Debug, Clone)]
pub struct RankOutput {
    /// Columns of the input.
    pub columns: Vec<usize>,
    /// Whether the rank comes behind them.
    pub emit_rank: bool,
    /// Their names and types.
    pub schema: SchemaRef,
}

impl RankOutput {
    /// The batch that says some changes.
    pub(crate) fn batch(&self, rankings: &Rankings, changes: &[Change]) -> Result<ChangelogBatch> {
        let slots: Vec<u32> = changes.iter().map(|change| change.row.slot).collect();
        let mut columns = rankings.gather(&slots, &self.columns)?;
        if self.emit_rank {
            let ranks = changes.iter().map(|change| change.row.rank as i64);
            let ranks: ArrayRef = Arc::new(Int64Array::from_iter_values(ranks));
            let field = self.schema.fields().last();
            columns.push(field.map_or(Ok(Arc::clone(&ranks)), |field| cast(&ranks, field.data_type()))?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(slots.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("ranked rows do not fit their columns: {error}")))?;
        if changes.iter().all(|change| change.kind == RowKind::Insert) {
            return Ok(ChangelogBatch::append(rows));
        }
        let kinds: RowKinds = changes.iter().map(|change| change.kind).collect();
        Ok(ChangelogBatch::with_kinds(rows, kinds))
    }
}
