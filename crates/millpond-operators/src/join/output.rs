//! What a join says: pairs and lone rows, put together column by column.

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use millpond_core::{Error, Result, RowKind};
use millpond_state::MultimapTable;
use millpond_state::multimap_table::{Pairs, RowId};

/// Rows of the output, in order: of each, the probing row, the stored row, or both.
#[derive(Debug, Default)]
pub(super) struct Said {
    probing: Vec<Option<u32>>,
    stored: Vec<Option<RowId>>,
    pub(super) kinds: Vec<RowKind>,
}

impl Said {
    pub(super) fn say(&mut self, probing: Option<u32>, stored: Option<RowId>, kind: RowKind) {
        self.probing.push(probing);
        self.stored.push(stored);
        self.kinds.push(kind);
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// A column of the probing rows.
    pub(super) fn probing(&self, rows: &RecordBatch, column: usize) -> Result<ArrayRef> {
        Ok(take(rows.column(column), &self.probing.iter().copied().collect::<UInt32Array>(), None)?)
    }

    /// Columns of the stored rows.
    pub(super) fn stored(&self, table: &mut MultimapTable, columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let present: Vec<RowId> = self.stored.iter().flatten().copied().collect();
        let gathered = table.gather(&present, columns)?;
        if present.len() == self.stored.len() {
            return Ok(gathered);
        }
        let mut next = 0;
        let place = |stored: &Option<RowId>| {
            stored.map(|_| {
                next += 1;
                next - 1
            })
        };
        let places: UInt32Array = self.stored.iter().map(place).collect();
        let spread = |column: ArrayRef| match present.is_empty() {
            true => Ok(new_null_array(column.data_type(), places.len())),
            false => Ok(take(&column, &places, None)?),
        };
        gathered.into_iter().map(spread).collect()
    }
}

impl From<Pairs> for Said {
    fn from(pairs: Pairs) -> Self {
        Self {
            kinds: Vec::new(),
            probing: pairs.probing.into_iter().map(Some).collect(),
            stored: pairs.stored.into_iter().map(Some).collect(),
        }
    }
}

pub(super) fn batch_of(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|error| Error::internal(format!("a join does not give its columns: {error}")))
}
