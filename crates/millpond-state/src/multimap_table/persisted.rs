//! How the rows of a multimap table stand in a part: the key columns, `_row`, then the others.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{concat_batches, filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::{Error, KeyGroupRange, KeyHashes, Result};

use super::MultimapSpec;
use super::chunk::Slice;
use crate::table::{TableDef, TableKind};

/// The table's columns and where they come from.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    def: TableDef,
    /// The columns of the rows.
    rows: SchemaRef,
    /// Row columns of the table's key columns.
    keys: Vec<usize>,
    /// Row columns of the table's other columns.
    others: Vec<usize>,
    identity: SchemaRef,
}

impl Layout {
    pub(super) fn new(spec: &MultimapSpec) -> Self {
        let others: Vec<usize> = (0..spec.rows.fields().len()).filter(|c| !spec.keys.contains(c)).collect();
        let mut names = HashSet::new();
        let mut field = |field: &Field| field.clone().with_name(unused_name(&mut names, field.name()));
        let mut fields: Vec<Field> = spec.keys.iter().map(|k| field(spec.rows.field(*k))).collect();
        fields.push(field(&Field::new("_row", DataType::UInt64, false)));
        let identity = Arc::new(Schema::new(fields.clone()));
        fields.extend(others.iter().map(|c| field(spec.rows.field(*c))));
        let def = TableDef {
            name: spec.name.clone(),
            kind: TableKind::Multimap,
            schema: Arc::new(Schema::new(fields)),
            identity_columns: spec.keys.len() + 1,
            partition_columns: (0..spec.keys.len()).collect(),
        };
        Self { def, rows: spec.rows.clone(), keys: spec.keys.clone(), others, identity }
    }

    pub(super) fn def(&self) -> &TableDef {
        &self.def
    }

    /// The meant rows of the slices, in the table's columns.
    pub(super) fn rows(&self, slices: &[Slice]) -> Result<RecordBatch> {
        self.concat(&self.def.schema, &self.others, slices)
    }

    /// Their identity columns.
    pub(super) fn identities(&self, slices: &[Slice]) -> Result<RecordBatch> {
        self.concat(&self.identity, &[], slices)
    }

    fn concat(&self, schema: &SchemaRef, others: &[usize], slices: &[Slice]) -> Result<RecordBatch> {
        let batches: Result<Vec<RecordBatch>> =
            slices.iter().map(|slice| self.stored(schema, others, slice)).collect();
        Ok(concat_batches(schema, &batches?)?)
    }

    fn stored(&self, schema: &SchemaRef, others: &[usize], slice: &Slice) -> Result<RecordBatch> {
        let numbers: ArrayRef = Arc::new(slice.numbers.slice(slice.start, slice.rows.num_rows()));
        let keys = self.keys.iter().map(|k| slice.rows.column(*k).clone());
        let others = others.iter().map(|c| slice.rows.column(*c).clone());
        let columns = keys.chain([numbers]).chain(others).collect();
        let batch = RecordBatch::try_new(schema.clone(), columns)?;
        match &slice.keep {
            None => Ok(batch),
            Some(keep) => Ok(filter_record_batch(&batch, &BooleanArray::from(keep.clone()))?),
        }
    }

    /// Rows of a part that belong to `range`: the rows, their numbers and key hashes.
    pub(super) fn loaded(
        &self,
        stored: &RecordBatch,
        range: KeyGroupRange,
        max_parallelism: u16,
    ) -> Result<(RecordBatch, UInt64Array, KeyHashes)> {
        let hashes = stable_hashes(&stored.columns()[..self.keys.len()], stored.num_rows())?;
        let numbers = stored
            .column(self.keys.len())
            .as_primitive_opt::<UInt64Type>()
            .ok_or_else(|| Error::corrupt(format!("state table {:?} has no row numbers", self.def.name)))?;
        let ours: Vec<bool> = hashes.iter().map(|h| range.contains(key_group(*h, max_parallelism))).collect();
        let rows = self.row_columns(stored)?;
        if ours.iter().all(|ours| *ours) {
            return Ok((rows, numbers.clone(), hashes));
        }
        let kept = hashes.iter().zip(&ours).filter(|(_, ours)| **ours).map(|(hash, _)| *hash).collect();
        let ours = BooleanArray::from(ours);
        let numbers = filter(numbers, &ours)?.as_primitive::<UInt64Type>().clone();
        Ok((filter_record_batch(&rows, &ours)?, numbers, kept))
    }

    fn row_columns(&self, stored: &RecordBatch) -> Result<RecordBatch> {
        let place = |column: usize| {
            let key = self.keys.iter().position(|k| *k == column);
            let other = || self.others.iter().position(|c| *c == column).map(|i| self.keys.len() + 1 + i);
            key.or_else(other).expect("every column is a key or not")
        };
        let columns = (0..self.rows.fields().len()).map(|c| stored.column(place(c)).clone()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(stored.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.rows.clone(), columns, &options)?)
    }
}

/// `name`, or `name_2` and so on if it is taken: rows of a join may have two columns of a name.
fn unused_name(names: &mut HashSet<String>, name: &str) -> String {
    let mut unused = name.to_owned();
    let mut count = 1;
    while !names.insert(unused.clone()) {
        count += 1;
        unused = format!("{name}_{count}");
    }
    unused
}
