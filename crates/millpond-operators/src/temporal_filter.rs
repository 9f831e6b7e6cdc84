//! TemporalFilter: rows that are part of the relation from one processing time to another.
//!
//! State table: `rows` (key, `_row` → the columns, whether the consumer has the row).
//! Bound: by time: a row is kept until it leaves; over conditions that let rows only enter, until
//! it has entered. With neither, nothing is kept.
//! Emission: at the end of an epoch, `+I` for rows that have come or whose time has come, `-D` for
//! rows that were taken back or whose time is over. `wake_at` asks for the epoch at which the next
//! row enters or leaves, so that the answer is right on quiet input too.
//!
//! ```text
//! WHERE ts > NOW() - INTERVAL '1' HOUR      in the relation while NOW() < ts + 1 h
//!       ├──────────────────────┤
//!      ts, +I                 ts + 1 h, -D
//! ```
//!
//! The output has no time attribute: a row may enter, and leaves, behind the watermark.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, SchemaRef};
use arrow::row::{RowConverter, SortField};
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, KeyHashes, Result, RowKind, RowKinds, Timestamp,
    Watermark,
};
use millpond_state::{StateTable, TableKind, ValueTable};

use crate::aggregate::state_table;
use crate::operator::*;

/// How a row's time is compared with the processing time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeComparison {
    /// `time < now`: the row enters.
    Before,
    /// `time <= now`: the row enters.
    AtOrBefore,
    /// `time > now`: the row leaves.
    After,
    /// `time >= now`: the row leaves.
    AtOrAfter,
    /// `time = now`: the row is there for one unit.
    At,
}

/// `column comparison now + shift`, where `now` is cut to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeBound {
    /// A timestamp or date of the input.
    pub column: usize,
    /// How it is compared.
    pub comparison: TimeComparison,
    /// What is added to the processing time, in microseconds.
    pub shift: i64,
    /// To what the processing time is cut, in microseconds: its type's precision.
    pub unit: i64,
}

impl TimeBound {
    /// When a row with this time is part of the relation: from the first (inclusive) to the second
    /// (exclusive).
    fn span(&self, time: Timestamp) -> (Timestamp, Timestamp) {
        let moment = time.0.saturating_sub(self.shift);
        let floor = moment.div_euclid(self.unit).saturating_mul(self.unit);
        let at_or_after = if floor == moment { moment } else { floor.saturating_add(self.unit) };
        let after = floor.saturating_add(self.unit);
        let (from, until) = match self.comparison {
            TimeComparison::Before => (after, i64::MAX),
            TimeComparison::AtOrBefore => (at_or_after, i64::MAX),
            TimeComparison::After => (i64::MIN, at_or_after),
            TimeComparison::AtOrAfter => (i64::MIN, after),
            TimeComparison::At => (at_or_after, after),
        };
        (Timestamp(from), Timestamp(until))
    }
}

/// The physical description of a temporal filter.
#[derive(Debug, Clone)]
pub struct TemporalFilterFactory {
    /// All of them hold for the rows of the relation.
    pub bounds: Vec<TimeBound>,
    /// By which rows are spread over tasks.
    pub key: Vec<usize>,
    /// Columns of the input that are emitted.
    pub output: Vec<usize>,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// Columns of the output.
    pub schema: SchemaRef,
    /// The changelog of the input: append or retract.
    pub input_mode: ChangelogMode,
}

impl OperatorFactory for TemporalFilterFactory {
    fn name(&self) -> &'static str {
        "TemporalFilter"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(TemporalFilter::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        let bound = |bound: &TimeBound| {
            let sign = match bound.comparison {
                TimeComparison::Before => "<",
                TimeComparison::AtOrBefore => "<=",
                TimeComparison::After => ">",
                TimeComparison::AtOrAfter => ">=",
                TimeComparison::At => "=",
            };
            let duration = millpond_core::quantity::format_duration;
            let shift = match bound.shift {
                0 => String::new(),
                1.. => format!(" + {}", duration(bound.shift)),
                _ => format!(" - {}", duration(-bound.shift)),
            };
            format!("{} {sign} now{shift}", self.input_schema.field(bound.column).name())
        };
        let bounds: Vec<String> = self.bounds.iter().map(bound).collect();
        format!("where=[{}]", bounds.join(" AND "))
    }
}

impl TemporalFilterFactory {
    /// When each row is part of the relation; an empty span for rows without a time.
    fn spans(&self, rows: &RecordBatch) -> Result<Vec<(Timestamp, Timestamp)>> {
        let mut spans = vec![(Timestamp::MIN, Timestamp::MAX); rows.num_rows()];
        for bound in &self.bounds {
            let times = micros(rows.column(bound.column))?;
            for (row, span) in spans.iter_mut().enumerate() {
                let (from, until) = match times.is_valid(row) {
                    true => bound.span(Timestamp(times.value(row))),
                    false => (Timestamp::MAX, Timestamp::MIN),
                };
                *span = (span.0.max(from), span.1.min(until));
            }
        }
        Ok(spans)
    }
}

/// A column of times in microseconds since 1970.
fn micros(column: &ArrayRef) -> Result<Int64Array> {
    let nulls = column.nulls().cloned();
    if column.data_type() == &DataType::Date32 {
        const DAY: i64 = 86_400_000_000;
        let days = cast(column, &DataType::Int32)?;
        let days = days.as_primitive::<arrow::datatypes::Int32Type>();
        let values = days.values().iter().map(|day| i64::from(*day) * DAY).collect::<Vec<_>>();
        return Ok(Int64Array::new(values.into(), nulls));
    }
    let (values, precision) = timestamp_values(column)?;
    let values: Vec<i64> = values.iter().map(|value| precision.to_timestamp(*value).0).collect();
    Ok(Int64Array::new(values.into(), nulls))
}

/// One task's instance of a temporal filter.
struct TemporalFilter {
    factory: TemporalFilterFactory,
    /// Input columns that are not part of the key; `shown` comes behind them.
    values: Vec<usize>,
    table: ValueTable,
    next_row: i64,
    /// When the row of a slot enters and leaves.
    spans: Vec<(Timestamp, Timestamp)>,
    /// Rows that the consumer does not have, by the time when they enter.
    entering: BTreeSet<(Timestamp, u32)>,
    /// Rows that it has, by the time when they leave.
    leaving: BTreeSet<(Timestamp, u32)>,
    retractions: Option<Retractions>,
    /// Changes of the rows that are to be said, then the slots to be freed.
    said: Vec<(RowKind, u32)>,
    /// Slots of rows that have just entered.
    entered: Vec<u32>,
    free: Vec<u32>,
    time: EpochTime,
}

/// Finds the rows that are taken back.
struct Retractions {
    converter: RowConverter,
    slots: HashMap<u64, Vec<u32>>,
    /// By slot.
    fingerprints: Vec<u64>,
    /// Rows that the consumer has, to be taken back at the end of the epoch.
    gone: Vec<u32>,
}

impl TemporalFilter {
    fn new(factory: TemporalFilterFactory, context: BuildContext) -> Result<Self> {
        let schema = &factory.input_schema;
        let nullable = |column: &usize| {
            let field = schema.field(*column);
            Arc::new(Field::new(field.name(), field.data_type().clone(), true))
        };
        let keys: Vec<FieldRef> = factory.key.iter().map(nullable).collect();
        let values: Vec<usize> =
            (0..schema.fields().len()).filter(|column| !factory.key.contains(column)).collect();
        let mut fields: Vec<FieldRef> = values.iter().map(nullable).collect();
        fields.push(Arc::new(Field::new("shown", DataType::Boolean, false)));
        let number = [Arc::new(Field::new("_row", DataType::Int64, false))];
        let def = state_table("rows", TableKind::Value, &keys, &number, &fields);
        let retractions = match factory.input_mode {
            ChangelogMode::Append => None,
            ChangelogMode::Retract => Some(Retractions::new(schema)?),
            ChangelogMode::Upsert => {
                return Err(Error::internal("a temporal filter over an upsert input: it needs the old rows"));
            }
        };
        Ok(Self {
            table: ValueTable::new(def, context.max_parallelism)?,
            values,
            factory,
            next_row: 0,
            spans: Vec::new(),
            entering: BTreeSet::new(),
            leaving: BTreeSet::new(),
            retractions,
            said: Vec::new(),
            entered: Vec::new(),
            free: Vec::new(),
            time: Timestamp::MIN,
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

    /// Keeps added rows that are or will be part of the relation.
    fn keep(&mut self, added: &ChangelogBatch, spans: &[(Timestamp, Timestamp)]) -> Result<()> {
        let rows = added.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let mut identity = self.key_columns(&added.rows);
        let numbers = self.next_row..self.next_row + rows as i64;
        self.next_row = numbers.end;
        identity.push(Arc::new(Int64Array::from_iter_values(numbers)));
        let mut slots = Vec::new();
        self.table.slots_for(&identity, &stable_hashes(&identity, rows)?, &mut slots)?;
        let columns = self.table.columns_mut();
        for (place, column) in self.values.iter().enumerate() {
            columns[place].store(&slots, added.rows.column(*column))?;
        }
        for (slot, span) in slots.iter().zip(spans) {
            self.place(*slot, *span, false);
        }
        match &mut self.retractions {
            Some(retractions) => retractions.add(&canonical(&added.rows, &self.factory.key)?, &slots),
            None => Ok(()),
        }
    }

    /// Remembers when a row enters or leaves.
    fn place(&mut self, slot: u32, span: (Timestamp, Timestamp), shown: bool) {
        if slot as usize >= self.spans.len() {
            self.spans.resize(slot as usize + 1, (Timestamp::MIN, Timestamp::MIN));
        }
        self.spans[slot as usize] = span;
        match shown {
            true => self.leaving.insert((span.1, slot)),
            false => self.entering.insert((span.0, slot)),
        };
    }

    /// Takes rows back: those that the consumer has at the end of the epoch.
    fn take_back(&mut self, removed: &ChangelogBatch) -> Result<()> {
        let rows = canonical(&removed.rows, &self.factory.key)?;
        let Some(retractions) = &mut self.retractions else {
            return Err(Error::internal("invariant 4: a retraction on an append edge of TemporalFilter"));
        };
        for fingerprint in retractions.fingerprints_of(&rows)? {
            let Some(slot) = retractions.take(fingerprint) else {
                return Err(Error::internal("invariant 4: a retraction meets no row of a temporal filter"));
            };
            let (from, until) = self.spans[slot as usize];
            if self.entering.remove(&(from, slot)) {
                self.free.push(slot);
            } else {
                self.leaving.remove(&(until, slot));
                retractions.gone.push(slot);
            }
        }
        Ok(())
    }

    /// Says what has entered and left at the epoch's time.
    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        while self.said.len() < BATCH_ROWS_MAX && self.next_change() {}
        self.mark_shown()?;
        let changes: Vec<(RowKind, u32)> = self.said.drain(..self.said.len().min(BATCH_ROWS_MAX)).collect();
        if changes.is_empty() {
            self.table.remove(&std::mem::take(&mut self.free))?;
            return Ok(Progress::Done);
        }
        let slots: Vec<u32> = changes.iter().map(|(_, slot)| *slot).collect();
        let columns = self.gather(&slots, &self.factory.output)?;
        let options = RecordBatchOptions::new().with_row_count(Some(slots.len()));
        let rows = RecordBatch::try_new_with_options(self.factory.schema.clone(), columns, &options)
            .map_err(|error| {
                Error::internal(format!("rows do not fit the output of TemporalFilter: {error}"))
            })?;
        let kinds: RowKinds = changes.iter().map(|(kind, _)| *kind).collect();
        ctx.emit(match kinds.iter().all(|kind| *kind == RowKind::Insert) {
            true => ChangelogBatch::append(rows),
            false => ChangelogBatch::with_kinds(rows, kinds),
        });
        Ok(Progress::More)
    }

    /// Remembers that the consumer has the rows that have just entered.
    fn mark_shown(&mut self) -> Result<()> {
        let entered = std::mem::take(&mut self.entered);
        self.table.mark_dirty(&entered)?;
        let shown = self.table.columns_mut()[self.values.len()].bools_mut();
        entered.iter().for_each(|slot| shown[*slot as usize] = true);
        Ok(())
    }

    /// Says one change; whether there was one.
    fn next_change(&mut self) -> bool {
        if let Some(slot) = self.retractions.as_mut().and_then(|retractions| retractions.gone.pop()) {
            self.said.push((RowKind::Delete, slot));
            self.free.push(slot);
            return true;
        }
        if let Some((_, slot)) = self.leaving.first().copied().filter(|(until, _)| *until <= self.time) {
            self.leaving.pop_first();
            self.said.push((RowKind::Delete, slot));
            self.leave(slot);
            return true;
        }
        let Some((_, slot)) = self.entering.first().copied().filter(|(from, _)| *from <= self.time) else {
            return false;
        };
        self.entering.pop_first();
        let until = self.spans[slot as usize].1;
        if until <= self.time {
            self.leave(slot);
            return true;
        }
        self.said.push((RowKind::Insert, slot));
        if until == Timestamp::MAX && self.retractions.is_none() {
            // It will never leave, so that it need not be known any more.
            self.free.push(slot);
        } else {
            self.entered.push(slot);
            self.leaving.insert((until, slot));
        }
        true
    }

    /// A row is no longer part of the relation, and is not known any more once that is said.
    fn leave(&mut self, slot: u32) {
        self.free.push(slot);
        if let Some(retractions) = &mut self.retractions {
            retractions.forget(slot);
        }
    }

    fn gather(&self, slots: &[u32], columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let keys = self.table.keys(slots)?;
        let column = |column: &usize| match self.factory.key.iter().position(|key| key == column) {
            Some(place) => Ok(keys[place].clone()),
            None => {
                let place = self.values.iter().position(|value| value == column);
                self.table.columns()[place.expect("a column is in the key or not")].gather(slots)
            }
        };
        columns.iter().map(column).collect()
    }

    fn index_rows(&mut self, slots: &[u32]) -> Result<()> {
        let all: Vec<usize> = (0..self.factory.input_schema.fields().len()).collect();
        let fields = self.factory.input_schema.fields().iter();
        let fields: Vec<Field> = fields.map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let rows =
            RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), self.gather(slots, &all)?)
                .map_err(|error| Error::corrupt(format!("the state of a temporal filter: {error}")))?;
        let numbers = self.table.keys(slots)?.swap_remove(self.factory.key.len());
        let largest = arrow::compute::max(numbers.as_primitive::<Int64Type>()).unwrap_or(-1);
        self.next_row = self.next_row.max(largest + 1);
        for (slot, span) in slots.iter().zip(self.factory.spans(&rows)?) {
            let shown = self.table.columns()[self.values.len()].bools()[*slot as usize];
            self.place(*slot, span, shown);
        }
        match &mut self.retractions {
            Some(retractions) => retractions.add(&rows, slots),
            None => Ok(()),
        }
    }
}

/// Rows as they come back from state: floats of the key have one NaN and one zero.
fn canonical(rows: &RecordBatch, key: &[usize]) -> Result<RecordBatch> {
    let column = |(column, values): (usize, &ArrayRef)| match key.contains(&column) {
        true => crate::top_n::order::canonical(values),
        false => values.clone(),
    };
    let columns = rows.columns().iter().enumerate().map(column).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(rows.schema(), columns, &options)?)
}

impl Retractions {
    fn new(schema: &SchemaRef) -> Result<Self> {
        let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
        let converter = RowConverter::new(fields)
            .map_err(|error| Error::invalid(format!("rows that change cannot be compared: {error}")))?;
        Ok(Self { converter, slots: HashMap::new(), fingerprints: Vec::new(), gone: Vec::new() })
    }

    fn fingerprints_of(&self, rows: &RecordBatch) -> Result<Vec<u64>> {
        use std::hash::{DefaultHasher, Hasher};
        let encoded = self.converter.convert_columns(rows.columns())?;
        let fingerprint = |row: arrow::row::Row<'_>| {
            let mut hasher = DefaultHasher::new();
            hasher.write(row.data());
            hasher.finish()
        };
        Ok(encoded.iter().map(fingerprint).collect())
    }

    fn add(&mut self, rows: &RecordBatch, slots: &[u32]) -> Result<()> {
        for (slot, fingerprint) in slots.iter().zip(self.fingerprints_of(rows)?) {
            if *slot as usize >= self.fingerprints.len() {
                self.fingerprints.resize(*slot as usize + 1, 0);
            }
            self.fingerprints[*slot as usize] = fingerprint;
            self.slots.entry(fingerprint).or_default().push(*slot);
        }
        Ok(())
    }

    /// One of the rows with this fingerprint, which is forgotten.
    fn take(&mut self, fingerprint: u64) -> Option<u32> {
        let slots = self.slots.get_mut(&fingerprint)?;
        let slot = slots.pop();
        if slots.is_empty() {
            self.slots.remove(&fingerprint);
        }
        slot
    }

    fn forget(&mut self, slot: u32) {
        let fingerprint = self.fingerprints[slot as usize];
        if let Some(slots) = self.slots.get_mut(&fingerprint) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.slots.remove(&fingerprint);
            }
        }
    }
}

impl Operator for TemporalFilter {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        let spans = self.factory.spans(&batch.rows)?;
        // What is over now will be over at the end of the epoch too.
        let ever = |row: usize| spans[row].0 < spans[row].1 && spans[row].1 > ctx.time;
        let kept: BooleanArray = (0..batch.num_rows()).map(|row| Some(ever(row))).collect();
        ctx.metrics.accepted.add(kept.true_count() as u64);
        ctx.metrics.filtered.add((kept.len() - kept.true_count()) as u64);
        // Runs of rows of one sign, in their order: a row may come and go in one batch.
        let rows: Vec<usize> = (0..batch.num_rows()).filter(|row| kept.value(*row)).collect();
        for run in rows.chunk_by(|a, b| batch.kind(*a).is_addition() == batch.kind(*b).is_addition()) {
            let indices = run.iter().map(|row| *row as u32);
            let part = batch.take(&arrow::array::UInt32Array::from_iter_values(indices))?;
            let spans: Vec<_> = run.iter().map(|row| spans[*row]).collect();
            match batch.kind(run[0]).is_addition() {
                true => self.keep(&part, &spans)?,
                false => self.take_back(&part)?,
            }
        }
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.time = time;
        let progress = self.emit_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: self.next_time(), progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(0)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.table]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        const ROWS: usize = 8192;
        let mut from = 0;
        loop {
            let slots = self.table.keyed_rows_mut().live_slots(from, ROWS);
            let Some(last) = slots.last() else { return Ok(()) };
            from = last + 1;
            self.index_rows(&slots)?;
        }
    }
}

impl TemporalFilter {
    /// When the next row enters or leaves after this epoch.
    fn next_time(&self) -> Option<Timestamp> {
        let after = (std::ops::Bound::Excluded((self.time, u32::MAX)), std::ops::Bound::Unbounded);
        let first = |times: &BTreeSet<(Timestamp, u32)>| times.range(after).next().map(|(time, _)| *time);
        // Rows that enter in this epoch are not among the leaving ones yet.
        let entered = self.entering.iter().take_while(|(from, _)| *from <= self.time);
        let leave =
            entered.map(|(_, slot)| self.spans[*slot as usize].1).filter(|until| *until > self.time).min();
        let times = [first(&self.entering), first(&self.leaving), leave];
        times.into_iter().flatten().min().filter(|time| *time != Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests;
