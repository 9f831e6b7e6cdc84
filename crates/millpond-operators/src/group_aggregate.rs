//! GroupAggregate: an updating GROUP BY.
//!
//! State tables: `groups` (key → number of rows, aggregate states, last emitted results) and, for
//! aggregates that remember values or rows, `values_<n>` (key, value → number of rows) and `rows_<n>`
//! (key, arrival → row).
//! Bound: by keys; one row per group that has rows, one per distinct value or row of a group. With a time
//! to live, groups that nothing has touched for so long go with all their rows and without a word.
//! Emission: at the end of an epoch, the net change of each group that it touched, once: `+I` for
//! a new group, `-U` `+U` (or `+U` alone) when a result changed, nothing when none did, `-D` when
//! the last row went. The one group of a global aggregate, and of each empty grouping set, always
//! has its row, from the first epoch on.
//!
//! The output has no time attribute, so the watermark passes unchanged: nothing is late for it.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::interleave;
use arrow::compute::kernels::cmp::distinct;
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, ChangelogMode, EpochTime, Error, Result, RowKind, RowKinds, Watermark};
use millpond_state::{Evicted, KeyedRows, NO_SLOT, StateColumn, StateTable, TableKind, ValueTable};

use crate::aggregate::{
    AggregateCall, AggregateSet, GroupedRows, OrderIndex, Owed, SideMut, SideRef, describe_group, evaluate,
    key_fields, state_table,
};
use crate::operator::*;
use crate::ttl::{TOUCHED, TimeToLive};

/// The physical description of an updating GROUP BY.
#[derive(Debug, Clone)]
pub struct GroupAggregateFactory {
    /// Grouping expressions and their output names; none: a global aggregate.
    pub keys: Vec<(Arc<dyn PhysicalExpr>, String)>,
    /// Keys of the groups that are there without rows: that of a global aggregate, which has no
    /// column, and those of empty grouping sets.
    pub lasting: Vec<Vec<ScalarValue>>,
    /// The aggregates, in output order.
    pub aggregates: Vec<AggregateCall>,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// Columns of the output: keys, then aggregates.
    pub schema: SchemaRef,
    /// Whether the consumer needs `-U` before `+U`.
    pub emit_update_before: bool,
    /// The changelog of the input: append or retract.
    pub input_mode: ChangelogMode,
    /// How long a group is known that nothing touches, in microseconds; `None`: for ever.
    pub ttl: Option<i64>,
}

impl OperatorFactory for GroupAggregateFactory {
    fn name(&self) -> &'static str {
        "GroupAggregate"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(GroupAggregate::new(self.clone(), context)?))
    }

    fn without_update_before(&self) -> Option<Arc<dyn OperatorFactory>> {
        Some(Arc::new(Self { emit_update_before: false, ..self.clone() }))
    }

    fn describe(&self) -> String {
        let keys: Vec<&str> = self.keys.iter().map(|(_, name)| name.as_str()).collect();
        let aggregates: Vec<String> = self.aggregates.iter().map(AggregateCall::describe).collect();
        format!("keys=[{}] aggregates=[{}]", keys.join(", "), aggregates.join(", "))
    }
}

/// Columns of `groups` before the aggregate states.
const ROW_COUNT: usize = 0;
const EMITTED: usize = 1;
const FIRST_STATE: usize = 2;

/// Groups whose change fits one output batch, pairs included.
const GROUPS_MAX: usize = BATCH_ROWS_MAX / 2;

/// One task's instance of an updating GROUP BY.
struct GroupAggregate {
    factory: GroupAggregateFactory,
    set: AggregateSet,
    groups: ValueTable,
    sides: Vec<Side>,
    /// When the next row arrives, where a call asks for it.
    next_arrival: i64,
    /// Slots that the epoch touched, each once, in order of arrival.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// How many of `touched` have been emitted.
    emitted: usize,
    /// Keys of the task's groups that are there without rows, until they have a slot.
    lasting_keys: Vec<Vec<ScalarValue>>,
    /// And their slots.
    lasting: Vec<u32>,
    ttl: Option<TimeToLive>,
    slots: Vec<u32>,
}

/// A side table and the order of its rows, which is kept up to date if a result depends on it.
struct Side {
    table: ValueTable,
    index: Option<OrderIndex>,
    owed: Owed,
}

impl Side {
    fn as_ref(&self) -> SideRef<'_> {
        SideRef { rows: self.table.keyed_rows(), index: self.index.as_ref() }
    }

    fn as_mut(&mut self) -> SideMut<'_> {
        let owed = Some(&mut self.owed);
        SideMut { rows: self.table.keyed_rows_mut(), index: self.index.as_mut(), owed }
    }
}

impl GroupAggregate {
    fn new(factory: GroupAggregateFactory, context: BuildContext) -> Result<Self> {
        if factory.input_mode == ChangelogMode::Upsert {
            return Err(Error::internal("GroupAggregate over an upsert input: it needs the old rows too"));
        }
        for call in &factory.aggregates {
            call.check(&factory.input_schema)?;
        }
        let set = AggregateSet::new(&factory.aggregates, &factory.input_schema, factory.input_mode)?;
        let keys = key_fields(&factory.keys, &factory.input_schema)?;
        let values = value_fields(&set, factory.ttl.is_some());
        let table = |name: &str, more: &[FieldRef], values: &[FieldRef]| {
            ValueTable::new(state_table(name, TableKind::Value, &keys, more, values), context.max_parallelism)
        };
        let groups = table("groups", &[], &values)?;
        let mut sides = Vec::new();
        for (number, side) in set.side_tables().into_iter().enumerate() {
            let table = table(&side.name, &side.identity, &side.values)?;
            sides.push(Side { table, index: set.new_index(number)?, owed: Owed::default() });
        }
        let mut lasting_keys = factory.lasting.clone();
        let mut hashes = Vec::new();
        for key in &lasting_keys {
            hashes.push(stable_hashes(&columns_of(key)?, 1)?[0]);
        }
        let mut hashes = hashes.into_iter();
        lasting_keys.retain(|_| {
            let group = hashes.next().map(|hash| key_group(hash, context.max_parallelism));
            group.is_some_and(|group| context.key_groups.contains(group))
        });
        Ok(Self {
            lasting_keys,
            lasting: Vec::new(),
            ttl: factory.ttl.map(TimeToLive::new),
            sides,
            next_arrival: 0,
            factory,
            set,
            groups,
            touched: Vec::new(),
            is_touched: Vec::new(),
            emitted: 0,
            slots: Vec::new(),
        })
    }

    fn key_columns(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.factory.keys.iter().map(|(key, _)| evaluate(key, rows)).collect()
    }

    /// Numbers rows in order of arrival.
    fn arrivals(&mut self, rows: usize) -> Vec<i64> {
        if !self.set.needs_arrivals() {
            return Vec::new();
        }
        let first = self.next_arrival;
        self.next_arrival += rows as i64;
        (first..self.next_arrival).collect()
    }

    fn touch(&mut self) {
        let largest = self.slots.iter().max().map_or(0, |slot| *slot as usize + 1);
        if largest > self.is_touched.len() {
            self.is_touched.resize(largest, false);
        }
        for slot in &self.slots {
            let touched = &mut self.is_touched[*slot as usize];
            if !*touched {
                *touched = true;
                self.touched.push(*slot);
            }
        }
    }

    /// The groups of the current batch live on from now.
    fn live_on(&mut self, now: EpochTime) {
        let Some(ttl) = &mut self.ttl else { return };
        let step = ttl.step(now);
        if let Some(touched) = self.groups.columns_mut().last_mut() {
            let touched = touched.i64s_mut();
            for slot in &self.slots {
                touched[*slot as usize] = step;
                ttl.touch(*slot, step);
            }
        }
    }

    /// Forgets the groups whose time is over; none of them has changes that are still to be emitted.
    fn expire(&mut self, now: EpochTime) -> Result<()> {
        let Some(ttl) = &mut self.ttl else { return Ok(()) };
        let mut expired = ttl.expired(now);
        expired.retain(|slot| !self.lasting.contains(slot));
        if expired.is_empty() {
            return Ok(());
        }
        self.groups.remove(&expired)?;
        let keys = self.factory.keys.len();
        for side in &mut self.sides {
            let rows = side.table.keyed_rows_mut();
            let gone = remove_orphans(rows, self.groups.keyed_rows_mut(), keys)?;
            rows.forget_groups(&expired);
            if let Some(index) = &mut side.index {
                index.forget(&expired, &gone);
            }
        }
        Ok(())
    }

    /// Folds a batch into its groups. With a time to live, rows that take back what is not there
    /// are left out and given back. They are not tried again: what has come since is another row.
    fn fold(&mut self, ctx: &OperatorContext, batch: ChangelogBatch) -> Result<Option<ChangelogBatch>> {
        let signs = signs(&batch);
        if signs.is_some() && self.factory.input_mode == ChangelogMode::Append {
            return Err(Error::internal("invariant 4: a retraction on an append edge of GroupAggregate"));
        }
        let keys = self.key_columns(&batch.rows)?;
        let hashes = stable_hashes(&keys, batch.num_rows())?;
        let inputs = self.set.evaluate(&batch.rows)?;
        self.groups.slots_for(&keys, &hashes, &mut self.slots)?;
        // Groups that come to nothing are removed when their epoch ends.
        self.touch();
        let rows = GroupedRows {
            keys: &keys,
            hashes: &hashes,
            slots: &self.slots,
            signs: signs.as_deref(),
            arrivals: &[],
        };
        let mut sides: Vec<SideMut<'_>> = self.sides.iter_mut().map(Side::as_mut).collect();
        if self.ttl.is_some() && signs.is_some() {
            let counts = self.groups.columns()[ROW_COUNT].i64s();
            let meets = BooleanArray::from(self.set.meets(counts, &mut sides, rows, &inputs)?);
            if meets.has_false() {
                let strays = batch.filter(&arrow::compute::not(&meets)?)?;
                self.fold(ctx, batch.filter(&meets)?)?;
                return Ok(Some(strays));
            }
        }
        drop(sides);
        self.live_on(ctx.time);
        let arrivals = self.arrivals(batch.num_rows());
        let rows = GroupedRows {
            keys: &keys,
            hashes: &hashes,
            slots: &self.slots,
            signs: signs.as_deref(),
            arrivals: &arrivals,
        };
        let columns = self.groups.columns_mut();
        rows.count(&mut columns[ROW_COUNT]);
        let mut sides: Vec<SideMut<'_>> = self.sides.iter_mut().map(Side::as_mut).collect();
        self.set.update(&mut columns[FIRST_STATE..], &mut sides, rows, &inputs)?;
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        Ok(None)
    }

    /// Each value that the epoch took back must have been there by now.
    fn settle(&mut self) -> Result<()> {
        for (number, side) in self.sides.iter_mut().enumerate() {
            if let Some(group) = self.set.settle(number, &mut side.as_mut())? {
                return Err(self.missing_rows(group, "a value is taken back that is not there"));
            }
        }
        Ok(())
    }

    /// Some groups exist before any input does.
    fn touch_lasting(&mut self) -> Result<()> {
        for key in std::mem::take(&mut self.lasting_keys) {
            let key = columns_of(&key)?;
            self.groups.slots_for(&key, &stable_hashes(&key, 1)?, &mut self.slots)?;
            self.lasting.extend(&self.slots);
            self.touch();
        }
        Ok(())
    }

    /// Emits the changes of the next groups.
    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        while self.emitted < self.touched.len() {
            let end = self.touched.len().min(self.emitted + GROUPS_MAX);
            let slots: Vec<u32> = self.touched[self.emitted..end].to_vec();
            self.emitted = end;
            if let Some(batch) = self.changes(&slots)? {
                ctx.emit(batch);
                break;
            }
        }
        if self.emitted < self.touched.len() {
            return Ok(Progress::More);
        }
        self.touched.clear();
        self.emitted = 0;
        self.expire(ctx.time)?;
        Ok(Progress::Done)
    }

    /// The net change of some groups, which counts as emitted from now on.
    fn changes(&mut self, slots: &[u32]) -> Result<Option<ChangelogBatch>> {
        slots.iter().for_each(|slot| self.is_touched[*slot as usize] = false);
        let old = self.old_results(slots)?;
        let new = self.new_results(slots)?;
        let changes = self.decide(slots, &changed_rows(&old, &new, slots.len())?)?;
        let keys = self.groups.keys(slots)?;
        self.remember(slots, &new)?;
        self.groups.remove(&changes.gone)?;
        if let Some(ttl) = &mut self.ttl {
            changes.gone.iter().for_each(|slot| ttl.forget(*slot));
        }
        for side in &mut self.sides {
            side.table.keyed_rows_mut().forget_groups(&changes.gone);
        }
        if changes.rows.is_empty() {
            return Ok(None);
        }
        let mut columns = Vec::with_capacity(keys.len() + new.len());
        for key in &keys {
            columns.push(interleave(&[key, key], &changes.rows)?);
        }
        for (old, new) in old.iter().zip(&new) {
            columns.push(interleave(&[old, new], &changes.rows)?);
        }
        let rows = RecordBatch::try_new(self.factory.schema.clone(), columns).map_err(|error| {
            Error::internal(format!("results do not fit the output of GroupAggregate: {error}"))
        })?;
        Ok(Some(changes.batch(rows)))
    }

    /// What to say of each group.
    fn decide(&self, slots: &[u32], changed: &BooleanArray) -> Result<Changes> {
        let counts = self.groups.columns()[ROW_COUNT].i64s();
        let emitted = self.groups.columns()[EMITTED].bools();
        let mut changes = Changes::default();
        for (row, slot) in slots.iter().enumerate() {
            let count = counts[*slot as usize];
            if count < 0 {
                return Err(self.missing_rows(*slot, &format!("it has {count} rows")));
            }
            match (emitted[*slot as usize], count > 0 || self.lasting.contains(slot)) {
                (false, true) => changes.say(RowKind::Insert, row),
                (true, true) if changed.value(row) => {
                    if self.factory.emit_update_before {
                        changes.say(RowKind::UpdateBefore, row);
                    }
                    changes.say(RowKind::UpdateAfter, row);
                }
                (true, true) => {}
                (true, false) => {
                    changes.say(RowKind::Delete, row);
                    changes.gone.push(*slot);
                }
                (false, false) => changes.gone.push(*slot),
            }
        }
        Ok(changes)
    }

    fn old_results(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let emitted = FIRST_STATE + self.set.state_fields().len();
        let results = &self.groups.columns()[emitted..emitted + self.factory.aggregates.len()];
        results.iter().map(|column| column.gather(slots)).collect()
    }

    fn new_results(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let states = &self.groups.columns()[FIRST_STATE..];
        let sides: Vec<SideRef<'_>> = self.sides.iter().map(Side::as_ref).collect();
        self.set.results(states, &sides, slots, |slot| self.named_keys(slot))
    }

    fn remember(&mut self, slots: &[u32], results: &[ArrayRef]) -> Result<()> {
        let first = FIRST_STATE + self.set.state_fields().len();
        self.groups.mark_dirty(slots)?;
        let columns = self.groups.columns_mut();
        let emitted = columns[EMITTED].bools_mut();
        slots.iter().for_each(|slot| emitted[*slot as usize] = true);
        for (column, result) in columns[first..].iter_mut().zip(results) {
            column.store(slots, result)?;
        }
        Ok(())
    }

    fn named_keys(&self, slot: u32) -> Result<Vec<(String, ArrayRef)>> {
        let names = self.factory.keys.iter().map(|(_, name)| name.clone());
        Ok(names.zip(self.groups.keys(&[slot])?).collect())
    }

    fn missing_rows(&self, slot: u32, how: &str) -> Error {
        let group = self.named_keys(slot).and_then(|keys| describe_group(&keys));
        Error::data("a row was deleted that was never inserted")
            .with_detail(format!("{}: {how}", group.unwrap_or_default()))
            .with_hint("if the change events are incomplete or doubled, SET 'source.cdc-duplicates' = 'true'")
    }
}

impl Operator for GroupAggregate {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        let hashes = stable_hashes(&self.key_columns(&batch.rows)?, batch.num_rows())?;
        Ok(vec![KeySet { table: 0, hashes }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        // A group that lasts is known as such before time passes over it.
        self.touch_lasting()?;
        self.expire(ctx.time)?;
        if let Some(strays) = self.fold(ctx, batch)? {
            ctx.metrics.rejected.add(strays.num_rows() as u64);
        }
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.settle()?;
        self.touch_lasting()?;
        let progress = self.emit_next(ctx)?;
        let wake_at = self.ttl.as_ref().and_then(|ttl| ttl.wake_after(time));
        Ok(EpochOutcome { watermark, wake_at, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        // The clock of a time to live goes by the slots of groups that are in memory.
        match self.factory.keys.is_empty() || self.ttl.is_some() {
            true => Residency::Resident(self.beside()),
            false => Residency::Spilling(self),
        }
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        let sides = self.sides.iter_mut().map(|side| &mut side.table as &mut dyn StateTable);
        std::iter::once(&mut self.groups as &mut dyn StateTable).chain(sides).collect()
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        let mut last = self.set.last_arrival(&self.groups.columns()[FIRST_STATE..]);
        for (number, side) in self.sides.iter_mut().enumerate() {
            if let Some(index) = &mut side.index {
                let (rows, groups) = (side.table.keyed_rows(), self.groups.keyed_rows_mut());
                last = last.max(self.set.fill_index(number, index, rows, groups)?);
            }
        }
        self.next_arrival = last + 1;
        if let Some(ttl) = &mut self.ttl {
            let slots = self.groups.keyed_rows().live_slots(0, usize::MAX);
            let touched = self.groups.columns().last().map(StateColumn::i64s).unwrap_or_default();
            for slot in slots {
                ttl.touch(slot, touched[slot as usize]);
            }
        }
        Ok(())
    }
}

impl Spilling for GroupAggregate {
    fn evict(&mut self, keep: f64) -> Result<Vec<Evicted>> {
        let (count, touched, lasting) = (surplus(self.groups.rows(), keep), &self.is_touched, &self.lasting);
        let is_pinned = |slot: u32| touched.get(slot as usize) == Some(&true) || lasting.contains(&slot);
        let cold = self.groups.keyed_rows_mut().cold_slots(count, is_pinned);
        let mut sides = self.evict_sides(&cold)?;
        sides.insert(0, self.groups.evict(&cold)?);
        Ok(sides)
    }

    fn admit(&mut self, tables: Vec<Evicted>) -> Result<()> {
        let mut tables = tables.into_iter();
        if let Some(groups) = tables.next() {
            self.groups.admit(&groups)?;
        }
        for ((number, side), rows) in self.sides.iter_mut().enumerate().zip(tables) {
            let slots = side.table.admit(&rows)?;
            if let Some(index) = &mut side.index {
                let (rows, groups) = (side.table.keyed_rows(), self.groups.keyed_rows_mut());
                self.set.index_rows(number, index, rows, groups, &slots)?;
            }
        }
        Ok(())
    }

    fn beside(&self) -> usize {
        self.sides.iter().filter_map(|side| side.index.as_ref()).map(OrderIndex::bytes).sum()
    }
}

impl GroupAggregate {
    /// The rows of groups that are about to leave.
    fn evict_sides(&mut self, groups: &[u32]) -> Result<Vec<Evicted>> {
        let mut is_leaving = vec![false; self.is_touched.len()];
        for group in groups {
            is_leaving.resize(is_leaving.len().max(*group as usize + 1), false);
            is_leaving[*group as usize] = true;
        }
        let mut evicted = Vec::with_capacity(self.sides.len());
        for (number, side) in self.sides.iter_mut().enumerate() {
            let mut slots = side.table.keyed_rows().live_slots(0, usize::MAX);
            let of =
                self.set.groups_of(number, side.table.keyed_rows(), self.groups.keyed_rows_mut(), &slots)?;
            let mut of = of.into_iter();
            slots.retain(|_| of.next().is_some_and(|group| is_leaving.get(group as usize) == Some(&true)));
            if let Some(index) = &mut side.index {
                index.forget(groups, &slots);
            }
            side.table.keyed_rows_mut().forget_groups(groups);
            evicted.push(side.table.evict(&slots)?);
        }
        Ok(evicted)
    }
}

/// What is said of some groups: (old or new result, index of the group) per output row.
#[derive(Default)]
struct Changes {
    kinds: Vec<RowKind>,
    rows: Vec<(usize, usize)>,
    /// Slots of groups without rows.
    gone: Vec<u32>,
}

impl Changes {
    fn say(&mut self, kind: RowKind, row: usize) {
        self.kinds.push(kind);
        self.rows.push((usize::from(kind.is_addition()), row));
    }

    fn batch(self, rows: RecordBatch) -> ChangelogBatch {
        if self.kinds.iter().all(|kind| *kind == RowKind::Insert) {
            return ChangelogBatch::append(rows);
        }
        ChangelogBatch::with_kinds(rows, RowKinds::from(self.kinds))
    }
}

/// Removes rows of a side table whose group is gone; gives their slots.
fn remove_orphans(rows: &mut KeyedRows, groups: &mut KeyedRows, keys: usize) -> Result<Vec<u32>> {
    let mut from = 0;
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    loop {
        let slots = rows.live_slots(from, BATCH_ROWS_MAX);
        let Some(last) = slots.last() else { return Ok(gone) };
        from = last + 1;
        let mut prefix = rows.keys(&slots)?;
        prefix.truncate(keys);
        groups.find(&prefix, &stable_hashes(&prefix, slots.len())?, &mut found)?;
        let orphans: Vec<u32> =
            slots.iter().zip(&found).filter(|(_, group)| **group == NO_SLOT).map(|(slot, _)| *slot).collect();
        rows.remove(&orphans)?;
        gone.extend(orphans);
    }
}

/// One key as columns.
fn columns_of(key: &[ScalarValue]) -> Result<Vec<ArrayRef>> {
    let column = |value: &ScalarValue| value.to_array().map_err(|error| Error::internal(error.to_string()));
    key.iter().map(column).collect()
}

/// +1 or −1 per row; `None` when every row is added.
fn signs(batch: &ChangelogBatch) -> Option<Vec<i64>> {
    let kinds = batch.kinds.as_ref()?;
    let sign = |kind: &RowKind| if kind.is_addition() { 1 } else { -1 };
    let signs: Vec<i64> = kinds.iter().map(sign).collect();
    signs.contains(&-1).then_some(signs)
}

fn value_fields(set: &AggregateSet, has_ttl: bool) -> Vec<FieldRef> {
    let mut fields: Vec<FieldRef> = vec![
        Arc::new(Field::new("row_count", DataType::Int64, false)),
        Arc::new(Field::new("emitted", DataType::Boolean, false)),
    ];
    fields.extend(set.state_fields().iter().cloned());
    let last = |field: FieldRef| {
        Arc::new(Field::new(format!("{}.emitted", field.name()), field.data_type().clone(), true))
    };
    fields.extend(set.result_fields().into_iter().map(last));
    fields.extend(has_ttl.then(|| Arc::new(Field::new(TOUCHED, DataType::Int64, false))));
    fields
}

/// Which groups have another result than the last emitted one.
fn changed_rows(old: &[ArrayRef], new: &[ArrayRef], rows: usize) -> Result<BooleanArray> {
    let mut changed = BooleanArray::from(vec![false; rows]);
    for (old, new) in old.iter().zip(new) {
        let differ =
            if new.data_type().is_nested() { nested_distinct(old, new) } else { distinct(old, new)? };
        changed = arrow::compute::or(&changed, &differ)?;
    }
    Ok(changed)
}

/// Which rows of arrays, maps or rows differ.
fn nested_distinct(old: &ArrayRef, new: &ArrayRef) -> BooleanArray {
    (0..new.len()).map(|row| Some(old.slice(row, 1).as_ref() != new.slice(row, 1).as_ref())).collect()
}

#[cfg(test)]
mod tests;
