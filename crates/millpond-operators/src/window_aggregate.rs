//! WindowAggregate: TUMBLE, HOP and CUMULATE with GROUP BY, event time, append input and output.
//!
//! State tables: `panes` (pane end, key → aggregate states); for HOP, `overlay` (window end, key →
//! aggregate states); for CUMULATE, `totals` (end of the longest window, key → aggregate states).
//! Beside each, the side tables of aggregates that remember values or rows.
//! Bound: by the watermark; a pane is dropped, in O(1), when the last window that it is part of
//! has fired.
//! Emission: when the watermark has reached the last unit of a window, its groups are emitted
//! once, in ascending order of window ends, a batch at a time. A window without rows is silent.
//!
//! Rows are folded into one pane each, and windows share panes ([`sharing`]): for a TUMBLE the pane
//! is the window; the windows of a HOP are sums of panes of gcd(size, slide); those of a CUMULATE
//! are the running total of panes of one step. A row that is late by its own tag for some windows
//! which have not yet fired must not count in those: in a HOP it stays out of the shared panes, and
//! goes to the overlay of each window that it is in time for; in a CUMULATE it is folded into the
//! pane at the end of the first of them.
//!
//! ```text
//! watermark in force ─┐      ┌─ tag of the row
//! | w1 fired          |  w2  |  w3    w4      row in time for w3, w4: overlay[w3], overlay[w4]
//! ```
//!
//! Rows that fire have window_time above the previous watermark, and reach the consumer before
//! the mark that carries the next one: they are not late there (invariant 3).

mod groups;
mod placement;
mod sharing;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, Result, TimePrecision, Timestamp, Watermark,
};
use millpond_state::{KeyedRows, StateTable};

use self::groups::Groups;
pub(crate) use self::groups::rows_at;
use self::placement::Placement;
use self::sharing::Sharing;
use crate::aggregate::{AggregateCall, AggregateSet, OrderIndex, SideRef, evaluate, key_fields};
use crate::operator::*;
use crate::window::{WindowSpec, bounds, window_times};

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
    sharing: Sharing,
    /// Windows that are final at this watermark have fired.
    closed: Watermark,
    /// Windows up to this end have fired, too.
    fired: i64,
    /// Windows that are final at this watermark are to fire.
    target: Watermark,
    firing: Option<Firing>,
    /// When the next row arrives, where a call asks for it.
    next_arrival: i64,
}

/// A window that is being emitted.
struct Firing {
    end: i64,
    /// The orders of its side tables, where a result depends on one.
    indexes: Vec<Option<OrderIndex>>,
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
            call.check(&factory.input_schema)?;
        }
        let set = AggregateSet::new(&factory.aggregates, &factory.input_schema, ChangelogMode::Append)?;
        let keys = key_fields(&factory.keys, &factory.input_schema)?;
        Ok(Self {
            panes: Groups::new("panes", &keys, &set, context)?,
            sharing: Sharing::new(&factory.window, &keys, &set, context)?,
            factory,
            set,
            precision,
            closed: Timestamp::MIN,
            fired: i64::MIN,
            target: Timestamp::MIN,
            firing: None,
            next_arrival: 0,
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
        let first_open = |ends: Option<(i64, i64)>| {
            let next = ends.and_then(|ends| window.first_open(ends, |end| self.is_over(end)));
            next.ok_or_else(|| Error::internal(format!("rows outlived their windows {ends:?}")))
        };
        let pane = self.panes.rows.first_end();
        let from_panes = pane.map(|pane| first_open(window.ends(pane - window.pane()))).transpose()?;
        let from_shared = match &self.sharing {
            Sharing::None => None,
            Sharing::Sliding { overlay, .. } => overlay.rows.first_end(),
            Sharing::Cumulative { totals } => {
                let last = totals.rows.first_end();
                last.map(|last| first_open(window.ends(last - window.size()))).transpose()?
            }
        };
        let next = from_panes.into_iter().chain(from_shared).min();
        Ok(next.filter(|end| self.final_at(*end) <= self.target))
    }

    fn start_firing(&mut self) -> Result<()> {
        let Some(end) = self.next_due()? else { return Ok(()) };
        self.sharing.gather(&self.factory.window, &self.set, &mut self.panes, end)?;
        let indexes = self.sharing.indexes(&self.factory.window, &self.set, &mut self.panes, end)?;
        self.firing = Some(Firing { end, indexes, next: 0 });
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
                None => self.finish_firing(&firing)?,
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

    fn groups_of(&self, firing: &Firing) -> Result<&KeyedRows> {
        let groups = self.sharing.groups(&self.factory.window, &self.panes, firing.end);
        groups.ok_or_else(|| Error::internal(format!("window {} has no groups", firing.end)))
    }

    fn finish_firing(&mut self, firing: &Firing) -> Result<()> {
        self.sharing.finish(&self.factory.window, &self.set, &mut self.panes, firing.end)?;
        self.fired = firing.end;
        Ok(())
    }

    fn output(&self, firing: &Firing, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let groups = self.groups_of(firing)?;
        let window = &self.factory.window;
        let keys = groups.keys(slots)?;
        let (_, empty) = self.panes.empty()?;
        let sides = self.sharing.sides(window, &self.panes, firing.end);
        let sides = sides.into_iter().zip(&empty).zip(&firing.indexes);
        let sides: Vec<SideRef<'_>> = sides
            .map(|((rows, empty), index)| SideRef { rows: rows.unwrap_or(empty), index: index.as_ref() })
            .collect();
        let keys_of = |slot| self.named_keys(firing, slot);
        let results = self.set.results(groups.columns(), &sides, slots, keys_of)?;
        let repeat = |local: i64| bounds(std::iter::repeat_n(local, slots.len()));
        let column = |column: &WindowColumn| match column {
            WindowColumn::Key(key) => Ok(keys[*key].clone()),
            WindowColumn::WindowStart => Ok(repeat(window.start(firing.end))),
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
        let start = bounds(std::iter::once(self.factory.window.start(firing.end)));
        let names = self.factory.keys.iter().map(|(_, name)| name.clone());
        let keys = names.zip(self.groups_of(firing)?.keys(&[slot])?);
        Ok(std::iter::once(("window_start".to_string(), start)).chain(keys).collect())
    }

    fn time_type(&self) -> &DataType {
        self.factory.input_schema.field(self.factory.time_column).data_type()
    }
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
        let placement = Placement::of(&self.factory, watermark, &batch)?;
        placement.count(&ctx.metrics);
        let first_arrival = self.next_arrival;
        self.next_arrival += batch.num_rows() as i64;
        let numbered = self.set.needs_arrivals();
        let arrivals = |indices: &[u32]| -> Vec<i64> {
            match numbered {
                true => indices.iter().map(|row| first_arrival + i64::from(*row)).collect(),
                false => Vec::new(),
            }
        };
        for (end, indices) in placement.panes {
            let arrivals = arrivals(&indices);
            let rows = rows_at(&batch.rows, indices)?;
            self.panes.add(end, &self.set, &self.factory.keys, &rows, &arrivals)?;
            self.sharing.pane_changed(end);
        }
        for (end, indices) in placement.overlay {
            let arrivals = arrivals(&indices);
            let rows = rows_at(&batch.rows, indices)?;
            let Sharing::Sliding { overlay, .. } = &mut self.sharing else {
                return Err(Error::internal("only windows of HOP have rows of their own"));
            };
            overlay.add(end, &self.set, &self.factory.keys, &rows, &arrivals)?;
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

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(0)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        self.panes.tables().chain(self.sharing.tables()).collect()
    }

    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()> {
        self.closed = watermark.unwrap_or(Timestamp::MIN);
        if self.set.needs_arrivals() {
            let last = self.panes.last_arrival(&self.set)?.max(self.sharing.last_arrival(&self.set)?);
            self.next_arrival = last + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
