//! WindowAggregate: TUMBLE and HOP with GROUP BY, event time, append input and output.
//!
//! State tables: `panes` (pane end, key → aggregate states) and, for HOP, `overlay` (window end,
//! key → aggregate states); beside each, per argument of a DISTINCT aggregate, a table of values.
//! Bound: by the watermark; a pane is dropped, in O(1), when the last window that it is part of
//! has fired.
//! Emission: when the watermark has reached the last unit of a window, its groups are emitted
//! once, in ascending order of window ends, a batch at a time. A window without rows is silent.
//!
//! The windows of a HOP share panes of gcd(size, slide), which are merged when a window fires; for
//! a TUMBLE the pane is the window. A row that is late by its own tag for some windows which have
//! not yet fired must not count in those: it stays out of the shared panes, and goes to the
//! overlay of each window that it is in time for.
//!
//! ```text
//! watermark in force ─┐      ┌─ tag of the row
//! | w1 fired          |  w2  |  w3    w4      row in time for w3, w4: overlay[w3], overlay[w4]
//! ```
//!
//! Rows that fire have window_time above the previous watermark, and reach the consumer before
//! the mark that carries the next one: they are not late there (invariant 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, Result, TimePrecision, Timestamp, Watermark,
};
use millpond_state::{KeyedRows, StateTable, TableKind, WindowTable};

use crate::aggregate::{
    AggregateCall, AggregateSet, DistinctChanges, EvaluatedInput, Fold, evaluate, key_fields, state_table,
};
use crate::operator::*;
use crate::window::{WINDOW_TIME_MAX, WindowSpec, bounds, window_times};

/// The physical description of a windowed GROUP BY.
#[derive(Debug, Clone)]
pub struct WindowAggregateFactory {
    /// The windows.
    pub window: WindowSpec,
    /// Index of the time column in the input.
    pub time_column: usize,
    /// Grouping expressions besides the window, and their names; may be empty.
    pub keys: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// The aggregates.
    pub aggregates: Vec<AggregateCall>,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// Columns of the output.
    pub schema: SchemaRef,
    /// What each output column is.
    pub output: Vec<WindowColumn>,
}

/// A column of the output of a windowed GROUP BY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowColumn {
    /// A grouping expression, by its index.
    Key(usize),
    /// Start of the window: TIMESTAMP(3), in local time.
    WindowStart,
    /// Exclusive end of the window: TIMESTAMP(3), in local time.
    WindowEnd,
    /// Last unit of the window, in the type of the time column: a time attribute.
    WindowTime,
    /// An aggregate, by its index.
    Aggregate(usize),
}

impl OperatorFactory for WindowAggregateFactory {
    fn name(&self) -> &'static str {
        "WindowAggregate"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(WindowAggregate::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        let keys: Vec<&str> = self.keys.iter().map(|(_, name)| name.as_str()).collect();
        let aggregates: Vec<String> = self.aggregates.iter().map(AggregateCall::describe).collect();
        let time = self.input_schema.field(self.time_column).name();
        let window = &self.window;
        format!(
            "window={window} time={time} keys=[{}] aggregates=[{}]",
            keys.join(", "),
            aggregates.join(", ")
        )
    }
}

/// One task's instance of a windowed GROUP BY.
struct WindowAggregate {
    factory: WindowAggregateFactory,
    set: AggregateSet,
    precision: TimePrecision,
    panes: Groups,
    overlay: Groups,
    /// Windows that are final at this watermark have fired.
    closed: Watermark,
    /// Windows up to this end have fired, too.
    fired: i64,
    /// Windows that are final at this watermark are to fire.
    target: Watermark,
    firing: Option<Firing>,
}

/// A window that is being emitted.
struct Firing {
    end: i64,
    /// Its groups; `None`: they are those of its only pane.
    merged: Option<KeyedRows>,
    /// The first slot that is not yet emitted.
    next: u32,
}

impl WindowAggregate {
    fn new(factory: WindowAggregateFactory, context: BuildContext) -> Result<Self> {
        factory.window.check()?;
        let time_type = factory.input_schema.field(factory.time_column).data_type();
        let precision = TimePrecision::of(time_type)
            .ok_or_else(|| Error::internal(format!("a window over a time column of type {time_type}")))?;
        for call in &factory.aggregates {
            call.check(&factory.input_schema, ChangelogMode::Append)?;
        }
        let set = AggregateSet::new(&factory.aggregates, &factory.input_schema)?;
        let keys = key_fields(&factory.keys, &factory.input_schema)?;
        Ok(Self {
            panes: Groups::new("panes", &keys, &set, context)?,
            overlay: Groups::new("overlay", &keys, &set, context)?,
            factory,
            set,
            precision,
            closed: Timestamp::MIN,
            fired: i64::MIN,
            target: Timestamp::MIN,
            firing: None,
        })
    }

    fn is_over(&self, end: i64) -> bool {
        end <= self.fired || self.final_at(end) <= self.closed
    }

    fn final_at(&self, end: i64) -> Timestamp {
        self.factory.window.final_at(end, self.precision)
    }

    /// The next window to fire, if it is due.
    fn next_due(&self) -> Result<Option<i64>> {
        let window = &self.factory.window;
        let from_panes = match self.panes.rows.first_end() {
            None => None,
            Some(pane) => {
                let ends = window.ends(pane - window.pane());
                let next = ends.and_then(|ends| window.first_open(ends, |end| self.is_over(end)));
                Some(next.ok_or_else(|| Error::internal(format!("pane {pane} outlived its windows")))?)
            }
        };
        let next = from_panes.into_iter().chain(self.overlay.rows.first_end()).min();
        Ok(next.filter(|end| self.final_at(*end) <= self.target))
    }

    fn start_firing(&mut self) -> Result<()> {
        let Some(end) = self.next_due()? else { return Ok(()) };
        let window = &self.factory.window;
        let merged = if window.pane() == window.size() { None } else { Some(self.merge(end)?) };
        self.firing = Some(Firing { end, merged, next: 0 });
        Ok(())
    }

    /// The groups of a window: those of its panes and of its overlay, added up.
    fn merge(&self, end: i64) -> Result<KeyedRows> {
        let start = end - self.factory.window.size();
        let mut merged = self.panes.empty_rows()?;
        let parts = self.panes.rows.range(start, end).chain(self.overlay.rows.range(end - 1, end));
        let mut into = Vec::new();
        for (_, part) in parts {
            let from = part.live_slots(0, usize::MAX);
            let keys = part.keys(&from)?;
            merged.slots_for(&keys, &stable_hashes(&keys, from.len())?, &mut into)?;
            self.set.merge(merged.columns_mut(), &into, part.columns(), &from);
        }
        for table in 0..self.panes.distinct.len() {
            self.unite(&mut merged, table, start, end)?;
        }
        Ok(merged)
    }

    /// Counts each distinct value of a window once, in however many panes it appears.
    fn unite(&self, merged: &mut KeyedRows, table: usize, start: i64, end: i64) -> Result<()> {
        let (panes, overlay) = (&self.panes.distinct[table], &self.overlay.distinct[table]);
        let mut seen = self.panes.empty_distinct(table)?;
        let mut groups = Vec::new();
        for (_, part) in panes.range(start, end).chain(overlay.range(end - 1, end)) {
            let from = part.live_slots(0, usize::MAX);
            let mut keys = part.keys(&from)?;
            let input = EvaluatedInput { values: keys.pop(), keep: None };
            merged.find(&keys, &stable_hashes(&keys, from.len())?, &mut groups)?;
            let fold = Fold { slots: &groups, signs: None, keep: None };
            let changes = DistinctChanges::of(&mut seen, &keys, fold, &input)?;
            self.set.update_distinct(merged.columns_mut(), table, changes.fold(), &changes.values)?;
        }
        Ok(())
    }

    /// Emits a batch of the windows that are due.
    fn fire_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let mut pieces: Vec<Vec<ArrayRef>> = Vec::new();
        let mut rows = 0;
        while rows < BATCH_ROWS_MAX {
            if self.firing.is_none() {
                self.start_firing()?;
            }
            let Some(mut firing) = self.firing.take() else { break };
            let slots = self.groups_of(&firing)?.live_slots(firing.next, BATCH_ROWS_MAX - rows);
            match slots.last() {
                None => self.finish_firing(&firing),
                Some(last) => {
                    rows += slots.len();
                    pieces.push(self.output(&firing, &slots)?);
                    firing.next = last + 1;
                    self.firing = Some(firing);
                }
            }
        }
        if rows > 0 {
            ctx.emit(ChangelogBatch::append(self.batch(pieces)?));
        }
        if self.firing.is_some() {
            return Ok(Progress::More);
        }
        self.closed = self.closed.max(self.target);
        Ok(Progress::Done)
    }

    fn groups_of<'a>(&'a self, firing: &'a Firing) -> Result<&'a KeyedRows> {
        let groups = firing.merged.as_ref().or_else(|| self.panes.rows.window(firing.end));
        groups.ok_or_else(|| Error::internal(format!("window {} has no groups", firing.end)))
    }

    fn finish_firing(&mut self, firing: &Firing) {
        let window = &self.factory.window;
        // Panes at or before the start of the next window are part of no other.
        self.panes.drop_through(firing.end + window.slide() - window.size());
        self.overlay.drop_through(firing.end);
        self.fired = firing.end;
    }

    fn output(&self, firing: &Firing, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let groups = self.groups_of(firing)?;
        let window = &self.factory.window;
        let keys = groups.keys(slots)?;
        let results = self.set.results(groups.columns(), slots, |slot| self.named_keys(firing, slot))?;
        let repeat = |local: i64| bounds(std::iter::repeat_n(local, slots.len()));
        let column = |column: &WindowColumn| match column {
            WindowColumn::Key(key) => Ok(keys[*key].clone()),
            WindowColumn::WindowStart => Ok(repeat(firing.end - window.size())),
            WindowColumn::WindowEnd => Ok(repeat(firing.end)),
            WindowColumn::WindowTime => {
                let instant = window.instant(firing.end);
                window_times(std::iter::repeat_n(instant, slots.len()), self.time_type())
            }
            WindowColumn::Aggregate(call) => Ok(results[*call].clone()),
        };
        self.factory.output.iter().map(column).collect()
    }

    fn batch(&self, pieces: Vec<Vec<ArrayRef>>) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.factory.output.len());
        for column in 0..self.factory.output.len() {
            let parts: Vec<&dyn Array> = pieces.iter().map(|piece| piece[column].as_ref()).collect();
            columns.push(concat(&parts)?);
        }
        RecordBatch::try_new(self.factory.schema.clone(), columns).map_err(|error| {
            Error::internal(format!("results do not fit the output of WindowAggregate: {error}"))
        })
    }

    fn named_keys(&self, firing: &Firing, slot: u32) -> Result<Vec<(String, ArrayRef)>> {
        let start = bounds(std::iter::once(firing.end - self.factory.window.size()));
        let names = self.factory.keys.iter().map(|(_, name)| name.clone());
        let keys = names.zip(self.groups_of(firing)?.keys(&[slot])?);
        Ok(std::iter::once(("window_start".to_string(), start)).chain(keys).collect())
    }

    fn time_type(&self) -> &DataType {
        self.factory.input_schema.field(self.factory.time_column).data_type()
    }

    /// Decides for each row of a batch where it counts.
    fn place(&self, watermark: Watermark, batch: &ChangelogBatch) -> Result<Placement> {
        let column = batch.rows.column(self.factory.time_column);
        let (values, precision) = timestamp_values(column)?;
        let window = &self.factory.window;
        let mut placement = Placement::default();
        let mut pane = Pane::nowhere();
        for (row, value) in values.iter().enumerate() {
            let local = window.local(precision.to_timestamp(*value).0);
            if column.is_null(row) || local.unsigned_abs() >= WINDOW_TIME_MAX as u64 {
                placement.rejected += 1;
                continue;
            }
            if local < pane.start || local >= pane.end {
                placement.pane_rows(&mut pane);
                pane = self.pane(local, watermark);
            }
            let Some((_, last)) = pane.windows else {
                placement.between += 1;
                continue;
            };
            let tag = batch.late_tag(row);
            if tag.max(watermark) >= pane.last_final {
                placement.late += 1;
            } else if tag >= pane.open_final {
                let ends = pane.windows.unwrap_or((last, last));
                let first = window.first_open(ends, |end| self.final_at(end) <= tag.max(watermark));
                placement.overlay_row(row, first.unwrap_or(last), last, window.slide());
            } else {
                pane.rows.push(row as u32);
            }
        }
        placement.pane_rows(&mut pane);
        Ok(placement)
    }

    fn pane(&self, local: i64, watermark: Watermark) -> Pane {
        let window = &self.factory.window;
        let end = window.pane_end(local);
        let windows = window.ends(local);
        let first_open =
            windows.and_then(|ends| window.first_open(ends, |end| self.final_at(end) <= watermark));
        Pane {
            start: end - window.pane(),
            end,
            windows,
            open_final: first_open.map_or(Timestamp::MAX, |end| self.final_at(end)),
            last_final: windows.map_or(Timestamp::MIN, |(_, last)| self.final_at(last)),
            rows: Vec::new(),
        }
    }
}

/// A pane during the placement of a batch.
struct Pane {
    start: i64,
    end: i64,
    /// Ends of the first and last window that it is part of.
    windows: Option<(i64, i64)>,
    /// From which watermark on the first window that has not fired is final.
    open_final: Timestamp,
    /// From which watermark on the last window is final.
    last_final: Timestamp,
    rows: Vec<u32>,
}

impl Pane {
    /// The pane in which no time lies.
    fn nowhere() -> Self {
        let (open_final, last_final) = (Timestamp::MAX, Timestamp::MAX);
        Self { start: 0, end: 0, windows: None, open_final, last_final, rows: Vec::new() }
    }
}

/// Where the rows of a batch count.
#[derive(Default)]
struct Placement {
    panes: BTreeMap<i64, Vec<u32>>,
    overlay: BTreeMap<i64, Vec<u32>>,
    overlay_rows: u64,
    late: u64,
    rejected: u64,
    between: u64,
}

impl Placement {
    fn pane_rows(&mut self, pane: &mut Pane) {
        if !pane.rows.is_empty() {
            self.panes.entry(pane.end).or_default().append(&mut pane.rows);
        }
    }

    fn overlay_row(&mut self, row: usize, first: i64, last: i64, slide: i64) {
        self.overlay_rows += 1;
        for end in (first..=last).step_by(slide as usize) {
            self.overlay.entry(end).or_default().push(row as u32);
        }
    }

    fn count(&self, metrics: &millpond_core::OperatorMetrics) {
        let in_panes: usize = self.panes.values().map(Vec::len).sum();
        metrics.accepted.add(in_panes as u64 + self.overlay_rows);
        metrics.late.add(self.late);
        metrics.rejected.add(self.rejected);
        metrics.filtered.add(self.between);
    }
}

/// Groups by (pane or window end, key), with the distinct values of their DISTINCT aggregates.
struct Groups {
    rows: WindowTable,
    distinct: Vec<WindowTable>,
    slots: Vec<u32>,
}

impl Groups {
    fn new(name: &str, keys: &[FieldRef], set: &AggregateSet, context: BuildContext) -> Result<Self> {
        let table = |name: &str, more: &[FieldRef], values: &[FieldRef]| {
            WindowTable::new(
                state_table(name, TableKind::Window, keys, more, values),
                context.max_parallelism,
            )
        };
        let rows = [Arc::new(Field::new("rows", DataType::Int64, false))];
        let distinct = set.distinct_fields().into_iter().enumerate();
        let distinct = distinct.map(|(i, value)| table(&format!("{name}_distinct_{i}"), &[value], &rows));
        Ok(Self {
            rows: table(name, &[], set.state_fields())?,
            distinct: distinct.collect::<Result<_>>()?,
            slots: Vec::new(),
        })
    }

    /// Folds rows into one pane.
    fn add(&mut self, end: i64, set: &AggregateSet, keys: &[ArrayRef], rows: &RecordBatch) -> Result<()> {
        let hashes = stable_hashes(keys, rows.num_rows())?;
        let inputs = set.evaluate(rows)?;
        let groups = self.rows.window_mut(end)?;
        groups.slots_for(keys, &hashes, &mut self.slots)?;
        let mut seen = Vec::with_capacity(self.distinct.len());
        for table in &mut self.distinct {
            seen.push(table.window_mut(end)?);
        }
        let fold = Fold { slots: &self.slots, signs: None, keep: None };
        set.update(groups.columns_mut(), &mut seen, keys, fold, &inputs)
    }

    fn empty_rows(&self) -> Result<KeyedRows> {
        empty_like(&self.rows)
    }

    fn empty_distinct(&self, table: usize) -> Result<KeyedRows> {
        empty_like(&self.distinct[table])
    }

    fn drop_through(&mut self, end: i64) {
        self.rows.drop_through(end);
        self.distinct.iter_mut().for_each(|table| table.drop_through(end));
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut dyn StateTable> {
        let distinct = self.distinct.iter_mut().map(|table| table as &mut dyn StateTable);
        std::iter::once(&mut self.rows as &mut dyn StateTable).chain(distinct)
    }
}

/// Rows of the shape that one window of a table has.
fn empty_like(table: &WindowTable) -> Result<KeyedRows> {
    let def = table.def();
    let (identity, values) = def.schema.fields().split_at(def.identity_columns);
    let keys: Vec<DataType> = identity[1..].iter().map(|field| field.data_type().clone()).collect();
    KeyedRows::new(&keys, values)
}

/// Some rows of a batch; without a copy where they are a run.
fn rows_at(rows: &RecordBatch, indices: Vec<u32>) -> Result<RecordBatch> {
    let (first, last) = (indices[0] as usize, indices[indices.len() - 1] as usize);
    if last - first + 1 == indices.len() {
        return Ok(rows.slice(first, indices.len()));
    }
    Ok(take_record_batch(rows, &UInt32Array::from(indices))?)
}

impl Operator for WindowAggregate {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        let keys: Vec<ArrayRef> =
            self.factory.keys.iter().map(|(key, _)| evaluate(key, &batch.rows)).collect::<Result<_>>()?;
        Ok(vec![KeySet { table: 0, hashes: stable_hashes(&keys, batch.num_rows())? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        if batch.kinds.as_ref().is_some_and(|kinds| kinds.iter().any(|kind| !kind.is_addition())) {
            return Err(Error::internal("invariant 4: a retraction on an append edge of WindowAggregate"));
        }
        let watermark = ctx.watermark.unwrap_or(Timestamp::MIN).max(self.closed);
        let placement = self.place(watermark, &batch)?;
        placement.count(&ctx.metrics);
        let groups = [(&mut self.panes, placement.panes), (&mut self.overlay, placement.overlay)];
        for (groups, rows_by_end) in groups {
            for (end, indices) in rows_by_end {
                let rows = rows_at(&batch.rows, indices)?;
                let keys: Vec<ArrayRef> =
                    self.factory.keys.iter().map(|(key, _)| evaluate(key, &rows)).collect::<Result<_>>()?;
                groups.add(end, &self.set, &keys, &rows)?;
            }
        }
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.target = watermark.unwrap_or(Timestamp::MIN);
        let progress = self.fire_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: None, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.fire_next(ctx)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        self.panes.tables().chain(self.overlay.tables()).collect()
    }

    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()> {
        self.closed = watermark.unwrap_or(Timestamp::MIN);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
