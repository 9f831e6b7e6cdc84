//! SinkMaterialize: rows of a query, made to replace each other by the sink's key.
//!
//! The query's rows may be spread over tasks by something else than the sink's key, so that the
//! new row of a key arrives before the old one goes; and several rows of the query may have one
//! key. All rows are kept by the sink's key in order of arrival; one of them is the sink's.
//!
//! State tables: `rows` (sink key, number → the other columns). Bound: by the query's rows.
//! Emission: at the end of an epoch, the net change of each sink key that it touched, once: `+I`,
//! `-U` `+U` when another row took its place, `-D` when the last one went. So rows that meet only
//! within an epoch are no conflict, and a row may be taken back before it comes, as long as both
//! happen in one epoch.
//!
//! ```text
//! key 7:  [ 7,a  7,b  7,c ]      DEDUPLICATE: the sink's row is 7,c     - 7,c ─▶ -U 7,c +U 7,b
//!         oldest       youngest  NOTHING:     the sink's row is 7,a
//! ```
//!
//! The watermark passes unchanged: sinks know no late rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, EpochTime, Error, KeyHashes, Result, RowKind, Watermark};
use millpond_state::{StateTable, TableDef, TableKind, ValueTable};

use crate::operator::*;

/// Which of several rows with one key is the sink's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The youngest.
    Deduplicate,
    /// The oldest.
    Nothing,
    /// None may be there at the end of an epoch.
    Error,
}

impl Conflict {
    /// As it stands behind ON CONFLICT DO.
    pub fn name(self) -> &'static str {
        match self {
            Conflict::Deduplicate => "DEDUPLICATE",
            Conflict::Nothing => "NOTHING",
            Conflict::Error => "ERROR",
        }
    }
}

/// Describes a SinkMaterialize. The exchange in front of it, if any, hashes by exactly the key
/// columns in their order.
#[derive(Debug, Clone)]
pub struct SinkMaterializeFactory {
    /// Columns of input and output.
    pub schema: SchemaRef,
    /// The sink's key.
    pub keys: Vec<usize>,
    /// What becomes of rows with the same key.
    pub conflict: Conflict,
}

impl OperatorFactory for SinkMaterializeFactory {
    fn name(&self) -> &'static str {
        "SinkMaterialize"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(SinkMaterialize::new(self, context)?))
    }
    fn describe(&self) -> String {
        let keys: Vec<&str> = self.keys.iter().map(|key| self.schema.field(*key).name().as_str()).collect();
        format!("keys=[{}] conflict={}", keys.join(", "), self.conflict.name())
    }
}

/// Keys whose change fits one output batch, pairs included.
const KEYS_MAX: usize = BATCH_ROWS_MAX / 2;

type Encoded = Box<[u8]>;

/// One task's instance.
struct SinkMaterialize {
    factory: SinkMaterializeFactory,
    /// The columns that are no key.
    values: Vec<usize>,
    rows: ValueTable,
    /// Over the key, and over all columns.
    key_converter: RowConverter,
    row_converter: RowConverter,
    candidates: std::collections::HashMap<Encoded, Candidates>,
    /// Keys that the epoch has touched, each once, in order of arrival.
    touched: Vec<Encoded>,
    emitted: usize,
    /// Slots of rows that are gone, to be removed when their keys have been emitted.
    gone: Vec<u32>,
    next_number: i64,
}

/// The rows of one key.
#[derive(Debug, Default)]
struct Candidates {
    /// Oldest first.
    rows: Vec<Candidate>,
    /// Rows taken back before they came.
    debts: Vec<Encoded>,
    /// Whether the epoch has touched the key, and what the sink had before.
    touched: bool,
    before: Option<u32>,
}

#[derive(Debug)]
struct Candidate {
    row: Encoded,
    slot: u32,
}

impl Candidates {
    fn chosen(&self, conflict: Conflict) -> Option<u32> {
        let chosen = match conflict {
            Conflict::Deduplicate => self.rows.last(),
            Conflict::Nothing | Conflict::Error => self.rows.first(),
        };
        chosen.map(|candidate| candidate.slot)
    }

    /// Adds a row; `false` if one like it has been taken back already.
    fn add(&mut self, row: &[u8], slot: u32) -> bool {
        match self.debts.iter().position(|debt| **debt == *row) {
            Some(debt) => {
                self.debts.swap_remove(debt);
                false
            }
            None => {
                self.rows.push(Candidate { row: row.into(), slot });
                true
            }
        }
    }

    /// Takes back the youngest row of its like; gives its slot.
    fn remove(&mut self, row: &[u8]) -> Option<u32> {
        match self.rows.iter().rposition(|candidate| *candidate.row == *row) {
            Some(place) => Some(self.rows.remove(place).slot),
            None => {
                self.debts.push(row.into());
                None
            }
        }
    }
}

impl SinkMaterialize {
    fn new(factory: &SinkMaterializeFactory, context: BuildContext) -> Result<Self> {
        let schema = &factory.schema;
        let values: Vec<usize> =
            (0..schema.fields().len()).filter(|column| !factory.keys.contains(column)).collect();
        let field = |column: &usize| schema.fields()[*column].clone();
        let number = Arc::new(Field::new("_number", DataType::Int64, false));
        let fields: Vec<FieldRef> =
            factory.keys.iter().map(field).chain([number]).chain(values.iter().map(field)).collect();
        let def = TableDef {
            name: "rows".into(),
            kind: TableKind::Value,
            schema: Arc::new(Schema::new(fields)),
            identity_columns: factory.keys.len() + 1,
            partition_columns: (0..factory.keys.len()).collect(),
        };
        let sort_field = |column: usize| SortField::new(schema.field(column).data_type().clone());
        Ok(Self {
            values,
            rows: ValueTable::new(def, context.max_parallelism)?,
            key_converter: RowConverter::new(factory.keys.iter().map(|key| sort_field(*key)).collect())?,
            row_converter: RowConverter::new((0..schema.fields().len()).map(sort_field).collect())?,
            factory: factory.clone(),
            candidates: Default::default(),
            touched: Vec::new(),
            emitted: 0,
            gone: Vec::new(),
            next_number: 0,
        })
    }

    fn key_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.factory.keys.iter().map(|key| rows.column(*key).clone()).collect()
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.key_columns(&batch.rows), batch.num_rows()),
        }
    }

    /// Stores the added rows of a batch under new numbers; gives the slots of all rows (those of
    /// rows taken back have no meaning).
    fn store(&mut self, batch: &ChangelogBatch) -> Result<Vec<u32>> {
        let added: Vec<u32> = (0..batch.num_rows())
            .filter(|row| batch.kind(*row).is_addition())
            .map(|row| row as u32)
            .collect();
        let rows = batch.take(&added.clone().into())?.rows;
        let first = self.next_number;
        self.next_number += added.len() as i64;
        let mut identity = self.key_columns(&rows);
        identity.push(Arc::new(Int64Array::from_iter_values(first..self.next_number)));
        let mut slots = Vec::new();
        self.rows.slots_for(&identity, &stable_hashes(&identity, rows.num_rows())?, &mut slots)?;
        for (place, value) in self.values.iter().enumerate() {
            self.rows.columns_mut()[place].store(&slots, rows.column(*value))?;
        }
        let mut all = vec![0; batch.num_rows()];
        added.iter().zip(slots).for_each(|(row, slot)| all[*row as usize] = slot);
        Ok(all)
    }

    fn apply(&mut self, batch: &ChangelogBatch, slots: &[u32]) -> Result<()> {
        let keys = self.key_converter.convert_columns(&self.key_columns(&batch.rows))?;
        let rows = self.row_converter.convert_columns(batch.rows.columns())?;
        for (row, slot) in slots.iter().enumerate() {
            let (key, image) = (keys.row(row).data(), rows.row(row).data());
            if !self.candidates.contains_key(key) {
                self.candidates.insert(key.into(), Candidates::default());
            }
            let candidates = self.candidates.get_mut(key).expect("it was just put there");
            if !candidates.touched {
                candidates.touched = true;
                candidates.before = candidates.chosen(self.factory.conflict);
                self.touched.push(key.into());
            }
            if !batch.kind(row).is_addition() {
                self.gone.extend(candidates.remove(image));
            } else if !candidates.add(image, *slot) {
                self.gone.push(*slot);
            }
        }
        Ok(())
    }

    /// Emits the changes of the next keys.
    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        while self.emitted < self.touched.len() {
            let start = self.emitted;
            self.emitted = self.touched.len().min(start + KEYS_MAX);
            if let Some(batch) = self.changes(start..self.emitted)? {
                ctx.emit(batch);
                break;
            }
        }
        if self.emitted < self.touched.len() {
            return Ok(Progress::More);
        }
        self.touched.clear();
        self.emitted = 0;
        self.rows.remove(&std::mem::take(&mut self.gone))?;
        Ok(Progress::Done)
    }

    fn changes(&mut self, keys: std::ops::Range<usize>) -> Result<Option<ChangelogBatch>> {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for place in keys {
            let key = &self.touched[place];
            let candidates = self.candidates.get_mut(key).expect("a touched key has an entry");
            candidates.touched = false;
            if !candidates.debts.is_empty() {
                return Err(self.missing(place));
            }
            let (before, after) = (candidates.before.take(), candidates.chosen(self.factory.conflict));
            if self.factory.conflict == Conflict::Error && candidates.rows.len() > 1 {
                return Err(self.conflict(place));
            }
            if candidates.rows.is_empty() {
                self.candidates.remove(key);
            }
            if before != after {
                old.push(before);
                new.push(after);
            }
        }
        if old.is_empty() {
            return Ok(None);
        }
        self.changes_of(&old, &new)
    }

    /// The changes from old rows to new ones, by their slots.
    fn changes_of(&self, old: &[Option<u32>], new: &[Option<u32>]) -> Result<Option<ChangelogBatch>> {
        let (old_rows, new_rows) = (self.images(old)?, self.images(new)?);
        let encoded = [self.encoded(&old_rows)?, self.encoded(&new_rows)?];
        let (mut kinds, mut rows) = (Vec::new(), Vec::new());
        let mut places = [0, 0];
        for (old, new) in old.iter().zip(new) {
            let [old_row, new_row] = places;
            places = [old_row + usize::from(old.is_some()), new_row + usize::from(new.is_some())];
            let mut say = |kind: RowKind, from: usize, row: usize| {
                kinds.push(kind);
                rows.push((from, row));
            };
            match (old, new) {
                (None, Some(_)) => say(RowKind::Insert, 1, new_row),
                (Some(_), None) => say(RowKind::Delete, 0, old_row),
                (Some(_), Some(_)) if encoded[0].row(old_row) != encoded[1].row(new_row) => {
                    say(RowKind::UpdateBefore, 0, old_row);
                    say(RowKind::UpdateAfter, 1, new_row);
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let column = |(old, new): (&ArrayRef, &ArrayRef)| Ok(interleave(&[old, new], &rows)?);
        let columns = old_rows.iter().zip(&new_rows).map(column).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let rows = RecordBatch::try_new_with_options(self.factory.schema.clone(), columns, &options)?;
        Ok(Some(ChangelogBatch::with_kinds(rows, kinds)))
    }

    /// The rows at those slots that there are, in the columns of the schema.
    fn images(&self, slots: &[Option<u32>]) -> Result<Vec<ArrayRef>> {
        let slots: Vec<u32> = slots.iter().flatten().copied().collect();
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.factory.schema.fields().len()];
        for (place, key) in self.factory.keys.iter().zip(self.rows.keys(&slots)?) {
            columns[*place] = Some(key);
        }
        for (place, column) in self.values.iter().zip(self.rows.columns()) {
            columns[*place] = Some(column.gather(&slots)?);
        }
        Ok(columns.into_iter().flatten().collect())
    }

    fn encoded(&self, columns: &[ArrayRef]) -> Result<Rows> {
        Ok(self.row_converter.convert_columns(columns)?)
    }

    fn conflict(&self, place: usize) -> Error {
        Error::data("several rows of the query have the same primary key of the table")
            .with_detail(format!("the key is {}", self.show(place)))
            .with_hint("ON CONFLICT DO DEDUPLICATE takes the last of them, ON CONFLICT DO NOTHING the first")
    }

    fn missing(&self, place: usize) -> Error {
        Error::data("a row was deleted that was never inserted")
            .with_detail(format!("its primary key in the table is {}", self.show(place)))
            .with_hint("if the change events are incomplete or doubled, declare a PRIMARY KEY for the table they come from")
    }

    /// The values of a touched key.
    fn show(&self, place: usize) -> String {
        let parser = self.key_converter.parser();
        let columns = self.key_converter.convert_rows([parser.parse(&self.touched[place])]);
        let value = |column: &ArrayRef| {
            arrow::util::display::array_value_to_string(column, 0).unwrap_or_else(|error| error.to_string())
        };
        columns.map_or_else(
            |error| error.to_string(),
            |columns| format!("({})", columns.iter().map(value).collect::<Vec<_>>().join(", ")),
        )
    }
}

impl Operator for SinkMaterialize {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        let slots = self.store(&batch)?;
        self.apply(&batch, &slots)?;
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        let progress = self.emit_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: None, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        // Keys and images of the same rows.
        Residency::Resident(self.rows.used_bytes() + self.rows.rows() * size_of::<Candidate>())
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.rows]
    }

    /// Finds the candidates of each key again, in order of arrival.
    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        let slots = self.rows.keyed_rows_mut().live_slots(0, usize::MAX);
        let identity = self.rows.keys(&slots)?;
        let Some(numbers) = identity.last() else { return Ok(()) };
        let numbers = numbers.as_primitive::<Int64Type>().values().clone();
        let keys = self.key_converter.convert_columns(&identity[..self.factory.keys.len()])?;
        let all: Vec<Option<u32>> = slots.iter().copied().map(Some).collect();
        let rows = self.encoded(&self.images(&all)?)?;
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_unstable_by_key(|place| numbers[*place]);
        for place in order {
            let candidates = self.candidates.entry(keys.row(place).data().into()).or_default();
            candidates.rows.push(Candidate { row: rows.row(place).data().into(), slot: slots[place] });
            self.next_number = numbers[place] + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
