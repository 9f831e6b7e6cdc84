//! RowStore: whole rows, numbered by arrival, in a state table that is spread by some of their columns.
//!
//! State table: (partition key, `_row`) → the other columns; with a time to live also the step in
//! which a row came (`touched`).

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::row::{RowConverter, SortField};
use millpond_core::key::stable_hashes;
use millpond_core::{Error, Result};
use millpond_state::{StateTable, TableKind, ValueTable};

use crate::aggregate::state_table;
use crate::operator::BuildContext;
use crate::top_n::order::canonical;
use crate::ttl::TOUCHED;

/// Rows by the number of their arrival.
#[derive(Debug)]
pub(crate) struct RowStore {
    /// Input columns that are the partition key.
    partition: Vec<usize>,
    /// The others.
    values: Vec<usize>,
    /// All, nullable.
    schema: SchemaRef,
    table: ValueTable,
    /// The number of the next row.
    next_row: i64,
}

impl RowStore {
    /// An empty table named `rows`; with `touched`, it keeps the step in which each row came.
    pub(crate) fn new(
        partition: &[usize],
        schema: &SchemaRef,
        touched: bool,
        context: BuildContext,
    ) -> Result<Self> {
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(schema.fields().iter().map(nullable).collect::<Vec<_>>()));
        let plain = |column: &usize| {
            let field = schema.field(*column);
            Arc::new(Field::new(field.name(), field.data_type().clone(), true))
        };
        let keys: Vec<FieldRef> = partition.iter().map(plain).collect();
        let values: Vec<usize> =
            (0..schema.fields().len()).filter(|column| !partition.contains(column)).collect();
        let mut fields: Vec<FieldRef> = values.iter().map(plain).collect();
        if touched {
            fields.push(Arc::new(Field::new(TOUCHED, DataType::Int64, false)));
        }
        let number = [Arc::new(Field::new("_row", DataType::Int64, false))];
        let def = state_table("rows", TableKind::Value, &keys, &number, &fields);
        Ok(Self {
            partition: partition.to_vec(),
            values,
            table: ValueTable::new(def, context.max_parallelism)?,
            schema,
            next_row: 0,
        })
    }

    pub(crate) fn table(&mut self) -> &mut dyn StateTable {
        &mut self.table
    }

    pub(crate) fn rows(&self) -> usize {
        self.table.rows()
    }

    /// The partition key of some rows.
    pub(crate) fn partition_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.partition.iter().map(|column| rows.column(*column).clone()).collect()
    }

    /// Numbers for so many rows: the first of them.
    pub(crate) fn take_numbers(&mut self, rows: usize) -> i64 {
        let first = self.next_row;
        self.next_row += rows as i64;
        first
    }

    /// Keeps the rows of a batch at `kept`, whose numbers count from `first_row`; gives their slots.
    pub(crate) fn add(
        &mut self,
        rows: &RecordBatch,
        kept: &UInt32Array,
        first_row: i64,
        step: Option<i64>,
    ) -> Result<Vec<u32>> {
        let taken = |column: &usize| Ok(take(rows.column(*column), kept, None)?);
        let mut identity: Vec<ArrayRef> = self.partition.iter().map(taken).collect::<Result<_>>()?;
        let numbers = kept.values().iter().map(|row| first_row + i64::from(*row));
        identity.push(Arc::new(Int64Array::from_iter_values(numbers)));
        let mut slots = Vec::new();
        self.table.slots_for(&identity, &stable_hashes(&identity, kept.len())?, &mut slots)?;
        for (place, column) in self.values.iter().enumerate() {
            self.table.columns_mut()[place].store(&slots, &taken(column)?)?;
        }
        if let Some(step) = step {
            let touched = self.table.columns_mut()[self.values.len()].i64s_mut();
            slots.iter().for_each(|slot| touched[*slot as usize] = step);
        }
        Ok(slots)
    }

    /// The step in which a row came.
    pub(crate) fn step(&self, slot: u32) -> i64 {
        self.table.columns()[self.values.len()].i64s()[slot as usize]
    }

    pub(crate) fn remove(&mut self, slots: &[u32]) -> Result<()> {
        self.table.remove(slots)
    }

    /// Input columns of some rows.
    pub(crate) fn gather(&self, slots: &[u32], columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let in_key = |column: &usize| self.partition.contains(column);
        let keys = if columns.iter().any(in_key) { self.table.keys(slots)? } else { Vec::new() };
        let column = |column: &usize| match self.partition.iter().position(|key| key == column) {
            Some(place) => Ok(keys[place].clone()),
            None => {
                let place = self.values.iter().position(|value| value == column);
                self.table.columns()[place.expect("a column is in the key or not")].gather(slots)
            }
        };
        columns.iter().map(column).collect()
    }

    /// Loaded rows from a slot on, at most 8192: their slots, numbers and columns; none at the end.
    pub(crate) fn loaded(&mut self, from: u32) -> Result<Option<(Vec<u32>, Int64Array, RecordBatch)>> {
        const ROWS: usize = 8192;
        let slots = self.table.keyed_rows_mut().live_slots(from, ROWS);
        if slots.is_empty() {
            return Ok(None);
        }
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let columns = self.gather(&slots, &all)?;
        let options = RecordBatchOptions::new().with_row_count(Some(slots.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::corrupt(format!("the rows of a state table: {error}")))?;
        let identity = self.table.keys(&slots)?;
        let numbers = identity[self.partition.len()].as_primitive::<Int64Type>().clone();
        let last = numbers.values().iter().max().copied().unwrap_or(-1);
        self.next_row = self.next_row.max(last + 1);
        Ok(Some((slots, numbers, rows)))
    }
}

/// One number per row, equal for equal rows: only ever compared within this process.
#[derive(Debug)]
pub(crate) struct Fingerprints {
    converter: RowConverter,
    partition: Vec<usize>,
}

impl Fingerprints {
    /// Errors: *Invalid* for a type that cannot be compared.
    pub(crate) fn new(partition: &[usize], schema: &SchemaRef) -> Result<Self> {
        let all = schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
        let converter = RowConverter::new(all)
            .map_err(|error| Error::invalid(format!("rows that change cannot be compared: {error}")))?;
        Ok(Self { converter, partition: partition.to_vec() })
    }

    pub(crate) fn of(&self, rows: &RecordBatch) -> Result<Vec<u64>> {
        // A partition key comes back from state with one NaN and one zero.
        let column = |(column, values): (usize, &ArrayRef)| match self.partition.contains(&column) {
            true => canonical(values),
            false => values.clone(),
        };
        let columns: Vec<ArrayRef> = rows.columns().iter().enumerate().map(column).collect();
        let encoded = self.converter.convert_columns(&columns)?;
        let fingerprint = |row: arrow::row::Row<'_>| {
            let mut hasher = DefaultHasher::new();
            hasher.write(row.data());
            hasher.finish()
        };
        Ok(encoded.iter().map(fingerprint).collect())
    }
}
