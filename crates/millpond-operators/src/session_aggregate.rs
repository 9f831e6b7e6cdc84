//! SessionAggregate: SESSION with GROUP BY, event time, append input and output.
//!
//! State tables: `sessions` (key, session → start, end, aggregate states); per session, the side
//! tables of aggregates that remember values or rows.
//! Bound: by the watermark; a session goes as it is emitted.
//! Emission: when the watermark has reached the last unit of a session, it is emitted once, in
//! ascending order of ends, a batch at a time.
//!
//! A row at `t` is a session `[t, t + gap)`; sessions of one key that overlap or touch are one.
//! A row that connects several makes one of them, whose states are added up. Whether a row is late
//! is judged by the session that it would be part of: those that are over, by the watermark in
//! force and the row's own tag, take no more rows, and one that it would begin must not be over.
//!
//! ```text
//! |--- a ---|      |--- b ---|        x at t connects:   |------- a, x, b ------|
//!           t ─── gap ───▶
//! ```
//!
//! A session's number tells it from others of its key: its key group, then a counter that is above
//! that of every session the task has; so it stays its own wherever the key moves.

mod sessions;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat, take_arrays};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, SchemaRef};
use chrono_tz::Tz;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, Result, TimePrecision, Timestamp, Watermark,
};
use millpond_state::{KeyIndex, KeyedRows, StateColumn, StateTable, TableKind, ValueTable, WindowTable};

use self::sessions::{NONE, Session, Sessions};
use crate::aggregate::{
    AggregateCall, AggregateSet, GroupedRows, SideDef, SideMut, SideRef, evaluate, key_fields, state_table,
};
use crate::operator::*;
use crate::window::{WINDOW_TIME_MAX, bounds, check_gap, local_time, window_times};
use crate::window_aggregate::{WindowColumn, rows_at};

/// The physical description of a GROUP BY of sessions.
#[derive(Debug, Clone)]
pub struct SessionAggregateFactory {
    /// A session ends this many microseconds after its last row.
    pub gap: i64,
    /// For a TIMESTAMP_LTZ column: the zone in whose local time window bounds are said.
    pub time_zone: Option<Tz>,
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

impl OperatorFactory for SessionAggregateFactory {
    fn name(&self) -> &'static str {
        "SessionAggregate"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(SessionAggregate::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        let gap = millpond_core::quantity::format_duration(self.gap);
        let time = self.input_schema.field(self.time_column).name();
        let keys: Vec<&str> = self.keys.iter().map(|(_, name)| name.as_str()).collect();
        let aggregates: Vec<String> = self.aggregates.iter().map(AggregateCall::describe).collect();
        let (keys, aggregates) = (keys.join(", "), aggregates.join(", "));
        format!("window=SESSION({gap}) time={time} keys=[{keys}] aggregates=[{aggregates}]")
    }
}

/// How many of a session's state columns come before those of the aggregates: its bounds.
const BOUNDS: usize = 2;

/// One task's instance of a GROUP BY of sessions.
struct SessionAggregate {
    factory: SessionAggregateFactory,
    set: AggregateSet,
    precision: TimePrecision,
    max_parallelism: u16,
    table: ValueTable,
    sides: Vec<WindowTable>,
    /// When the next row arrives, where a call asks for it.
    next_arrival: i64,
    /// Keys that have sessions.
    keys: KeyIndex,
    sessions: Sessions,
    /// The counter in the number of the youngest session.
    counter: i64,
    /// Sessions that are final at this watermark have been emitted.
    closed: Watermark,
    /// Sessions that are final at this watermark are to be emitted.
    target: Watermark,
}

/// The rows of a batch that count, and the session of each.
#[derive(Default)]
struct Placed {
    rows: Vec<u32>,
    sessions: Vec<u32>,
    late: u64,
    rejected: u64,
}

/// Bits of a session's number that count.
const COUNTER_BITS: u32 = 47;

impl SessionAggregate {
    fn new(factory: SessionAggregateFactory, context: BuildContext) -> Result<Self> {
        check_gap(factory.gap)?;
        let time_type = factory.input_schema.field(factory.time_column).data_type();
        let precision = TimePrecision::of(time_type)
            .ok_or_else(|| Error::internal(format!("a window over a time column of type {time_type}")))?;
        for call in &factory.aggregates {
            call.check(&factory.input_schema)?;
        }
        let set = AggregateSet::new(&factory.aggregates, &factory.input_schema, ChangelogMode::Append)?;
        let keys = key_fields(&factory.keys, &factory.input_schema)?;
        let types: Vec<DataType> = keys.iter().map(|key| key.data_type().clone()).collect();
        Ok(Self {
            table: sessions_table(&keys, &set, context)?,
            sides: side_tables(&keys, &set, context)?,
            next_arrival: 0,
            keys: KeyIndex::new(&types)?,
            factory,
            set,
            precision,
            max_parallelism: context.max_parallelism,
            sessions: Sessions::default(),
            counter: 0,
            closed: Timestamp::MIN,
            target: Timestamp::MIN,
        })
    }

    /// Finds the session of each row; sessions begin, grow and are united.
    fn place(
        &mut self,
        watermark: Watermark,
        batch: &ChangelogBatch,
        keys: &[ArrayRef],
        hashes: &[u64],
    ) -> Result<Placed> {
        let column = batch.rows.column(self.factory.time_column);
        let (values, precision) = timestamp_values(column)?;
        let mut key_slots = Vec::new();
        let created = self.keys.upsert(keys, hashes, &mut key_slots)?;
        self.sessions.resize(self.keys.slots());
        let mut placed = Placed::default();
        for (row, (value, key)) in values.iter().zip(&key_slots).enumerate() {
            let time = precision.to_timestamp(*value).0;
            if column.is_null(row) || time.unsigned_abs() >= WINDOW_TIME_MAX as u64 {
                placed.rejected += 1;
                continue;
            }
            let passed = batch.late_tag(row).max(watermark);
            let is_over = |end| precision.last_instant(Timestamp(end)) <= passed;
            match self.sessions.place(*key, time, self.factory.gap, row as u32, is_over) {
                None => placed.late += 1,
                Some(session) => {
                    placed.rows.push(row as u32);
                    placed.sessions.push(session);
                }
            }
        }
        for key in created {
            self.forget_if_idle(key);
        }
        Ok(placed)
    }

    fn forget_if_idle(&mut self, key: u32) {
        if !self.sessions.has(key) && self.keys.is_live(key) {
            self.keys.remove(key);
        }
    }

    /// Gives rows of the state table to sessions that began.
    fn settle(&mut self, placed: &[u32], keys: &[ArrayRef], hashes: &[u64]) -> Result<()> {
        let began: Vec<u32> =
            placed.iter().copied().filter(|session| self.sessions.at(*session).slot == NONE).collect();
        if began.is_empty() {
            return Ok(());
        }
        let mut began = began;
        began.sort_unstable();
        began.dedup();
        let rows: Vec<u32> = began.iter().map(|session| self.sessions.at(*session).row).collect();
        let ids: Vec<i64> = rows.iter().map(|row| self.next_id(hashes[*row as usize])).collect();
        let mut identity = take_arrays(keys, &UInt32Array::from(rows), None)?;
        identity.push(Arc::new(Int64Array::from(ids.clone())));
        let mut slots = Vec::new();
        self.table.slots_for(&identity, &stable_hashes(&identity, ids.len())?, &mut slots)?;
        for ((session, slot), id) in began.iter().zip(&slots).zip(ids) {
            self.sessions.settle(*session, *slot, id);
        }
        Ok(())
    }

    fn next_id(&mut self, hash: u64) -> i64 {
        self.counter += 1;
        i64::from(key_group(hash, self.max_parallelism)) << COUNTER_BITS | self.counter
    }

    /// Adds the states of sessions that were united with others to those, and removes them.
    fn unite(&mut self) -> Result<()> {
        let united = self.sessions.take_united();
        if united.is_empty() {
            return Ok(());
        }
        let from: Vec<u32> = united.iter().map(|(slot, _, _)| *slot).collect();
        let into: Vec<u32> = united.iter().map(|(_, _, session)| self.sessions.at(*session).slot).collect();
        let fields = self.set.state_fields();
        let mut parts: Vec<StateColumn> = fields.iter().map(|field| StateColumn::new(field)).collect();
        let places: Vec<u32> = (0..from.len() as u32).collect();
        for (part, column) in parts.iter_mut().zip(&self.table.columns()[BOUNDS..]) {
            part.resize(from.len());
            part.store(&places, &column.gather(&from)?)?;
        }
        self.table.mark_dirty(&into)?;
        self.set.merge(&mut self.table.columns_mut()[BOUNDS..], &into, &parts, &places);
        for (_, id, session) in &united {
            let (into, slot) = (self.sessions.at(*session).id, self.sessions.at(*session).slot);
            for side in 0..self.sides.len() {
                self.unite_side(side, *id, into, slot)?;
            }
        }
        self.table.remove(&from)
    }

    /// Moves the values or rows of one session to another; values that it lacks change its states.
    fn unite_side(&mut self, side: usize, from: i64, into: i64, slot: u32) -> Result<()> {
        let Some(part) = self.sides[side].remove(from)? else { return Ok(()) };
        let columns = &mut self.table.columns_mut()[BOUNDS..];
        let into = self.sides[side].window_mut(into)?;
        self.set.merge_side_at(side, columns, &vec![slot; part.len()], into, &part, 1)
    }

    /// Folds the rows that count into the states of their sessions.
    fn fold(&mut self, rows: &RecordBatch, keys: &[ArrayRef], sessions: &[u32]) -> Result<()> {
        let slots: Vec<u32> = sessions.iter().map(|session| self.sessions.at(*session).slot).collect();
        self.table.mark_dirty(&slots)?;
        let (bounds, columns) = self.table.columns_mut().split_at_mut(BOUNDS);
        for (session, slot) in sessions.iter().zip(&slots) {
            let session = self.sessions.at(*session);
            bounds[0].i64s_mut()[*slot as usize] = session.start;
            bounds[1].i64s_mut()[*slot as usize] = session.end;
        }
        let first_arrival = self.next_arrival;
        self.next_arrival += rows.num_rows() as i64;
        if self.sides.is_empty() {
            let inputs = self.set.evaluate(rows)?;
            let arrivals: Vec<i64> = (first_arrival..self.next_arrival).collect();
            let hashes = stable_hashes(keys, rows.num_rows())?;
            let rows = GroupedRows { keys, hashes: &hashes, slots: &slots, signs: None, arrivals: &arrivals };
            return self.set.update(columns, &mut [], rows, &inputs);
        }
        // Each session has side tables of its own.
        let mut order: Vec<u32> = (0..sessions.len() as u32).collect();
        order.sort_by_key(|row| sessions[*row as usize]);
        for run in order.chunk_by(|a, b| sessions[*a as usize] == sessions[*b as usize]) {
            let session = self.sessions.at(sessions[run[0] as usize]);
            let keys = take_arrays(keys, &UInt32Array::from(run.to_vec()), None)?;
            let hashes = stable_hashes(&keys, run.len())?;
            let inputs = self.set.evaluate(&rows_at(rows, run.to_vec())?)?;
            let slots = vec![session.slot; run.len()];
            let arrivals: Vec<i64> = run.iter().map(|row| first_arrival + i64::from(*row)).collect();
            let mut sides = Vec::with_capacity(self.sides.len());
            for table in &mut self.sides {
                sides.push(SideMut { rows: table.window_mut(session.id)?, index: None, owed: None });
            }
            let rows =
                GroupedRows { keys: &keys, hashes: &hashes, slots: &slots, signs: None, arrivals: &arrivals };
            self.set.update(columns, &mut sides, rows, &inputs)?;
        }
        Ok(())
    }

    /// The results of some sessions. Those that are read from side tables come one by one.
    fn results(&self, due: &[Session]) -> Result<Vec<ArrayRef>> {
        let columns = &self.table.columns()[BOUNDS..];
        let slots: Vec<u32> = due.iter().map(|session| session.slot).collect();
        if !self.set.reads_sides() {
            return self.set.results(columns, &[], &slots, |slot| self.named_keys(slot));
        }
        let (mut empty, mut pieces) = (Vec::with_capacity(self.sides.len()), Vec::with_capacity(due.len()));
        for table in &self.sides {
            empty.push(table.empty()?);
        }
        for session in due {
            let rows = |side: usize| self.sides[side].window(session.id).unwrap_or(&empty[side]);
            let mut indexes = Vec::with_capacity(self.sides.len());
            for side in 0..self.sides.len() {
                indexes.push(self.set.index_of_one(side, rows(side), session.slot)?);
            }
            let sides: Vec<SideRef<'_>> = indexes
                .iter()
                .enumerate()
                .map(|(side, index)| SideRef { rows: rows(side), index: index.as_ref() })
                .collect();
            pieces.push(self.set.results(columns, &sides, &[session.slot], |slot| self.named_keys(slot))?);
        }
        let column = |call: usize| -> Result<ArrayRef> {
            let parts: Vec<&dyn Array> = pieces.iter().map(|piece| piece[call].as_ref()).collect();
            Ok(concat(&parts)?)
        };
        (0..self.factory.aggregates.len()).map(column).collect()
    }

    /// Emits a batch of the sessions that are due.
    fn fire_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let (precision, target) = (self.precision, self.target);
        let is_final = |end| precision.last_instant(Timestamp(end)) <= target;
        let mut due: Vec<Session> = Vec::new();
        while due.len() < BATCH_ROWS_MAX
            && let Some(session) = self.sessions.take_due(is_final)
        {
            due.push(session);
        }
        if due.is_empty() {
            self.closed = self.closed.max(self.target);
            return Ok(Progress::Done);
        }
        ctx.emit(ChangelogBatch::append(self.output(&due)?));
        let slots: Vec<u32> = due.iter().map(|session| session.slot).collect();
        self.table.remove(&slots)?;
        for session in &due {
            for table in &mut self.sides {
                table.remove(session.id)?;
            }
            self.forget_if_idle(Sessions::key_of(session));
        }
        Ok(Progress::More)
    }

    fn output(&mut self, due: &[Session]) -> Result<RecordBatch> {
        let slots: Vec<u32> = due.iter().map(|session| session.slot).collect();
        let keys = self.table.keys(&slots)?;
        let zone = self.factory.time_zone;
        let time_type = self.factory.input_schema.field(self.factory.time_column).data_type();
        let results = self.results(due)?;
        let local = |bound: fn(&Session) -> i64| {
            bounds(due.iter().map(move |session| local_time(zone, bound(session))))
        };
        let column = |column: &WindowColumn| match column {
            WindowColumn::Key(key) => Ok(keys[*key].clone()),
            WindowColumn::WindowStart => Ok(local(|session| session.start)),
            WindowColumn::WindowEnd => Ok(local(|session| session.end)),
            WindowColumn::WindowTime => {
                window_times(due.iter().map(|session| Timestamp(session.end)), time_type)
            }
            WindowColumn::Aggregate(call) => Ok(results[*call].clone()),
        };
        let columns = self.factory.output.iter().map(column).collect::<Result<Vec<_>>>()?;
        RecordBatch::try_new(self.factory.schema.clone(), columns).map_err(|error| {
            Error::internal(format!("results do not fit the output of SessionAggregate: {error}"))
        })
    }

    fn named_keys(&self, slot: u32) -> Result<Vec<(String, ArrayRef)>> {
        let start = self.table.columns()[0].i64s()[slot as usize];
        let start = bounds(std::iter::once(local_time(self.factory.time_zone, start)));
        let names = self.factory.keys.iter().map(|(_, name)| name.clone());
        let keys = names.zip(self.table.keys(&[slot])?);
        Ok(std::iter::once(("window_start".to_string(), start)).chain(keys).collect())
    }
}

fn sessions_table(keys: &[FieldRef], set: &AggregateSet, context: BuildContext) -> Result<ValueTable> {
    let integer = |name: &str| Arc::new(Field::new(name, DataType::Int64, false));
    let mut values = vec![integer("session_start"), integer("session_end")];
    values.extend(set.state_fields().iter().cloned());
    let def = state_table("sessions", TableKind::Value, keys, &[integer("session")], &values);
    ValueTable::new(def, context.max_parallelism)
}

fn side_tables(keys: &[FieldRef], set: &AggregateSet, context: BuildContext) -> Result<Vec<WindowTable>> {
    let table = |side: SideDef| {
        let name = format!("sessions_{}", side.name);
        let def = state_table(&name, TableKind::Window, keys, &side.identity, &side.values);
        WindowTable::new(def, context.max_parallelism)
    };
    set.side_tables().into_iter().map(table).collect()
}

impl Operator for SessionAggregate {
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
            return Err(Error::internal("invariant 4: a retraction on an append edge of SessionAggregate"));
        }
        let watermark = ctx.watermark.unwrap_or(Timestamp::MIN).max(self.closed);
        let keys: Vec<ArrayRef> =
            self.factory.keys.iter().map(|(key, _)| evaluate(key, &batch.rows)).collect::<Result<_>>()?;
        let hashes = stable_hashes(&keys, batch.num_rows())?;
        let mut placed = self.place(watermark, &batch, &keys, &hashes)?;
        ctx.metrics.accepted.add(placed.rows.len() as u64);
        ctx.metrics.late.add(placed.late);
        ctx.metrics.rejected.add(placed.rejected);
        if placed.rows.is_empty() {
            return Ok(Progress::Done);
        }
        for session in &mut placed.sessions {
            *session = self.sessions.root(*session);
        }
        self.settle(&placed.sessions, &keys, &hashes)?;
        self.unite()?;
        let all = placed.rows.len() == batch.num_rows();
        let keys =
            if all { keys } else { take_arrays(&keys, &UInt32Array::from(placed.rows.clone()), None)? };
        self.fold(&rows_at(&batch.rows, placed.rows)?, &keys, &placed.sessions)?;
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
        let sides = self.sides.iter_mut().map(|table| table as &mut dyn StateTable);
        std::iter::once(&mut self.table as &mut dyn StateTable).chain(sides).collect()
    }

    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()> {
        self.closed = watermark.unwrap_or(Timestamp::MIN);
        let rows: &KeyedRows = self.table.keyed_rows_mut();
        let slots = rows.live_slots(0, usize::MAX);
        let mut keys = rows.keys(&slots)?;
        let ids = keys.pop().ok_or_else(|| Error::internal("a session has no number"))?;
        let ids = ids.as_primitive::<Int64Type>();
        let mut key_slots = Vec::new();
        self.keys.upsert(&keys, &stable_hashes(&keys, slots.len())?, &mut key_slots)?;
        self.sessions.resize(self.keys.slots());
        let (starts, ends) = (self.table.columns()[0].i64s(), self.table.columns()[1].i64s());
        for ((slot, key), id) in slots.iter().zip(&key_slots).zip(ids.values()) {
            let bounds = (starts[*slot as usize], ends[*slot as usize]);
            self.sessions.restore(*key, bounds, *slot, *id);
            self.counter = self.counter.max(id & ((1 << COUNTER_BITS) - 1));
        }
        let mut last = self.set.last_arrival(&self.table.columns()[BOUNDS..]);
        for (side, table) in self.sides.iter().enumerate() {
            for (_, rows) in table.range(i64::MIN, i64::MAX) {
                last = last.max(self.set.last_arrival_of_side(side, rows)?);
            }
        }
        self.next_arrival = last + 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
