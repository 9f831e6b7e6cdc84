//! Remember: columns whose values are others the next time (RAND, UUID, NOW), over rows that change.
//!
//! What is computed for a row as it comes is kept, and stands in its retraction: the row that is
//! taken back is the row that was given.
//!
//! State table: `rows` (key, `_row` → the other columns, the computed ones).
//! Bound: by the rows that are there.
//! Emission: each batch at once, with the computed columns behind its own; kinds and late tags
//! stay with their rows.
//!
//! ```text
//! +I k, 7          +I k, 7, 0.31
//! -U k, 7          -U k, 7, 0.31
//! +U k, 8          +U k, 8, 0.84
//! ```
//!
//! Of equal rows any may be taken back, as long as its own values go with it. The watermark passes
//! unchanged.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::key::stable_hashes;
use millpond_core::{ChangelogBatch, EpochTime, Error, KeyHashes, Result, Watermark};
use millpond_state::{StateTable, TableKind, ValueTable};

use crate::aggregate::state_table;
use crate::expression::{EpochCell, Expression, evaluate, sql_text};
use crate::operator::*;
use crate::top_n::order::canonical;

/// Describes a Remember. The exchange in front of it, if any, hashes by exactly the key columns in
/// their order.
#[derive(Debug, Clone)]
pub struct RememberFactory {
    /// By which rows are spread over tasks.
    pub key: Vec<usize>,
    /// What is computed once for each row, over the columns of the input.
    pub computed: Vec<Expression>,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// Columns of the output: those of the input, then the computed ones.
    pub schema: SchemaRef,
}

impl OperatorFactory for RememberFactory {
    fn name(&self) -> &'static str {
        "Remember"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Remember::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        let key: Vec<&str> =
            self.key.iter().map(|column| self.input_schema.field(*column).name().as_str()).collect();
        let computed: Vec<String> = self.computed.iter().map(sql_text).collect();
        format!("keys=[{}] values=[{}]", key.join(", "), computed.join(", "))
    }
}

/// A row as bytes.
type Encoded = Box<[u8]>;

/// One task's instance.
struct Remember {
    factory: RememberFactory,
    epoch: EpochCell,
    computed: Vec<Expression>,
    /// Input columns that are not part of the key; the computed columns come behind them.
    values: Vec<usize>,
    table: ValueTable,
    converter: RowConverter,
    /// Where the rows with these columns are.
    slots: HashMap<Encoded, Vec<u32>>,
    next_row: i64,
}

impl Remember {
    /// Errors: *Invalid* for columns that cannot be compared.
    fn new(factory: RememberFactory, context: BuildContext) -> Result<Self> {
        let input = &factory.input_schema;
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        let keys: Vec<FieldRef> =
            factory.key.iter().map(|column| nullable(&input.fields()[*column])).collect();
        let values: Vec<usize> =
            (0..input.fields().len()).filter(|column| !factory.key.contains(column)).collect();
        let computed = factory.schema.fields().iter().skip(input.fields().len());
        let fields: Vec<FieldRef> = values
            .iter()
            .map(|column| nullable(&input.fields()[*column]))
            .chain(computed.map(nullable))
            .collect();
        let number = [Arc::new(Field::new("_row", DataType::Int64, false))];
        let types = input.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        let converter = RowConverter::new(types.collect())
            .map_err(|error| Error::invalid(format!("rows that change cannot be compared: {error}")))?;
        let epoch = EpochCell::default();
        let bind = |expression: &Expression| epoch.bind(expression.clone());
        Ok(Self {
            computed: factory.computed.iter().map(bind).collect::<Result<_>>()?,
            table: ValueTable::new(
                state_table("rows", TableKind::Value, &keys, &number, &fields),
                context.max_parallelism,
            )?,
            values,
            converter,
            slots: HashMap::new(),
            next_row: 0,
            epoch,
            factory,
        })
    }

    fn key_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.factory.key.iter().map(|column| rows.column(*column).clone()).collect()
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.key_columns(&batch.rows), batch.num_rows()),
        }
    }

    /// The rows as they are looked up: as state gives them back, floats of the key have one NaN
    /// and one zero.
    fn encoded(&self, columns: &[ArrayRef]) -> Result<Rows> {
        let column = |(place, values): (usize, &ArrayRef)| match self.factory.key.contains(&place) {
            true => canonical(values),
            false => values.clone(),
        };
        let columns: Vec<ArrayRef> = columns.iter().enumerate().map(column).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    /// Computes and keeps the values of rows that come; gives their slots.
    fn keep(&mut self, rows: &RecordBatch) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        if rows.num_rows() == 0 {
            return Ok(slots);
        }
        let mut identity = self.key_columns(rows);
        let numbers = self.next_row..self.next_row + rows.num_rows() as i64;
        self.next_row = numbers.end;
        identity.push(Arc::new(Int64Array::from_iter_values(numbers)));
        self.table.slots_for(&identity, &stable_hashes(&identity, rows.num_rows())?, &mut slots)?;
        let columns = self.table.columns_mut();
        for (place, column) in self.values.iter().enumerate() {
            columns[place].store(&slots, rows.column(*column))?;
        }
        for (place, expression) in self.computed.iter().enumerate() {
            columns[self.values.len() + place].store(&slots, &evaluate(expression, rows)?)?;
        }
        Ok(slots)
    }

    /// The slot of each row of the batch: its own if it comes, that of an equal row, which is
    /// forgotten, if it goes.
    fn places(&mut self, batch: &ChangelogBatch, added: &[u32], gone: &mut Vec<u32>) -> Result<Vec<u32>> {
        let encoded = self.encoded(batch.rows.columns())?;
        let mut added = added.iter();
        let mut places = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let image = image(&encoded, row);
            if batch.kind(row).is_addition() {
                let slot = *added.next().expect("every row that comes has a slot");
                match self.slots.get_mut(image) {
                    Some(equal) => equal.push(slot),
                    None => drop(self.slots.insert(image.into(), vec![slot])),
                }
                places.push(slot);
                continue;
            }
            let equal = self.slots.get_mut(image).ok_or_else(never_inserted)?;
            let slot = equal.pop().expect("a known row has a slot");
            if equal.is_empty() {
                self.slots.remove(image);
            }
            gone.push(slot);
            places.push(slot);
        }
        Ok(places)
    }
}

/// A row as bytes; rows without columns are all alike.
fn image(rows: &Rows, row: usize) -> &[u8] {
    if rows.num_rows() == 0 { &[] } else { rows.row(row).data() }
}

fn never_inserted() -> Error {
    Error::data("a row was deleted that was never inserted")
        .with_hint("if the change events are incomplete or doubled, SET 'source.cdc-duplicates' = 'true'")
}

impl Operator for Remember {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        self.epoch.set(ctx.time, ctx.watermark);
        let coming = (0..batch.num_rows() as u32).filter(|row| batch.kind(*row as usize).is_addition());
        let coming = batch.take(&UInt32Array::from_iter_values(coming))?.rows;
        let added = self.keep(&coming)?;
        let mut gone = Vec::new();
        let places = self.places(&batch, &added, &mut gone)?;
        let mut columns = batch.rows.columns().to_vec();
        for column in &self.table.columns()[self.values.len()..] {
            columns.push(column.gather(&places)?);
        }
        self.table.remove(&gone)?;
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let rows = RecordBatch::try_new_with_options(self.factory.schema.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("rows do not fit the output of Remember: {error}")))?;
        ctx.emit(batch.replace_rows(rows));
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        _ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, _ctx: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.table]
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(0)
    }

    /// Finds the slots of the rows again.
    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        const ROWS: usize = 8192;
        let mut from = 0;
        loop {
            let slots = self.table.keyed_rows().live_slots(from, ROWS);
            let Some(last) = slots.last() else { return Ok(()) };
            from = last + 1;
            let mut keys = self.table.keys(&slots)?;
            let numbers = keys.pop().ok_or_else(|| Error::corrupt("rows without their numbers"))?;
            let largest = arrow::compute::max(numbers.as_primitive::<Int64Type>()).unwrap_or(-1);
            self.next_row = self.next_row.max(largest + 1);
            let column = |column: usize| match self.factory.key.iter().position(|key| *key == column) {
                Some(place) => Ok(keys[place].clone()),
                None => {
                    let place = self.values.iter().position(|value| *value == column);
                    self.table.columns()[place.expect("a column is in the key or not")].gather(&slots)
                }
            };
            let width = self.factory.input_schema.fields().len();
            let encoded = self.encoded(&(0..width).map(column).collect::<Result<Vec<_>>>()?)?;
            for (row, slot) in slots.iter().enumerate() {
                self.slots.entry(image(&encoded, row).into()).or_default().push(*slot);
            }
        }
    }
}

#[cfg(test)]
mod tests;
