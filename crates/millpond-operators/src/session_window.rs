//! SessionWindow: SESSION over rows that change, each with the bounds of its session.
//!
//! State table: `rows` (partition key, `_row` → the other columns). The order by time is an index
//! in memory, built anew when state is loaded.
//! Bound: none; with a time to live, partitions that no row has changed for so long are forgotten.
//! Emission: at the end of an epoch, the net change. What came, went, or lies in a session with
//! other bounds than before: first all that is taken back (`-D`), then what is given (`+I`). A
//! change is never late.
//!
//! Only the neighbourhood of a change is looked at: the rows that were, or are, connected with its
//! time, one gap after the other. Beyond them no session has changed.
//!
//! ```text
//! before  |--- a   a   a   a ---|          b        the third a goes: the neighbourhood is a a x a
//! after   |--- a   a ---|   |- a -|        b        b is not looked at
//! ```

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, SchemaRef};
use chrono_tz::Tz;
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, EpochTime, Error, KeyHashes, Result, RowKind, Timestamp, Watermark};
use millpond_state::{KeyIndex, StateTable};

use crate::operator::*;
use crate::row_store::{Fingerprints, RowStore};
use crate::ttl::TimeToLive;
use crate::window::{WINDOW_TIME_MAX, bounds, check_gap, local_time, window_times};

/// The physical description of a SESSION over rows that change.
#[derive(Debug, Clone)]
pub struct SessionWindowFactory {
    /// A session ends this many microseconds after its last row.
    pub gap: i64,
    /// For a TIMESTAMP_LTZ column: the zone in whose local time window bounds are said.
    pub time_zone: Option<Tz>,
    /// Index of the time column in the input.
    pub time_column: usize,
    /// Columns of which each combination has sessions of its own; NULL is a value like others.
    pub partition: Vec<usize>,
    /// How long a partition lives that no row changes, in microseconds; `None`: for ever.
    pub ttl: Option<i64>,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// Columns of the output: the input's, then window_start, window_end, window_time.
    pub schema: SchemaRef,
}

impl OperatorFactory for SessionWindowFactory {
    fn name(&self) -> &'static str {
        "SessionWindow"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(SessionWindow::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        let gap = millpond_core::quantity::format_duration(self.gap);
        let name = |column: &usize| self.input_schema.field(*column).name().as_str();
        let partition: Vec<&str> = self.partition.iter().map(name).collect();
        format!("window=SESSION({gap}) time={} partition=[{}]", name(&self.time_column), partition.join(", "))
    }
}

/// A session: its first instant, and the first one after it.
type Bounds = (i64, i64);

/// A row in the order of its partition: its time, then the number of its arrival.
type Place = (i64, i64);

/// A row of a partition.
#[derive(Debug)]
struct Entry {
    slot: u32,
    /// Hash of all its columns.
    fingerprint: u64,
    /// The session with which the consumer has it.
    shown: Option<Bounds>,
    /// It was taken back in this epoch.
    gone: bool,
}

/// The rows of one partition key.
#[derive(Debug, Default)]
struct Partition {
    rows: BTreeMap<Place, Entry>,
    /// Times at which the open epoch has changed it.
    changed: Vec<i64>,
}

/// What an entry takes in the order beside its own size.
const ENTRY_BYTES: usize = 48;

/// What is to be said at the end of an epoch, and the rows that are gone once it is.
#[derive(Debug, Default)]
struct Changes {
    taken: Vec<(u32, Bounds)>,
    given: Vec<(u32, Bounds)>,
    free: Vec<u32>,
}

/// One task's instance of a SESSION over rows that change.
struct SessionWindow {
    factory: SessionWindowFactory,
    rows: RowStore,
    fingerprints: Fingerprints,
    index: KeyIndex,
    partitions: Vec<Partition>,
    ttl: Option<TimeToLive>,
    /// Partitions that the open epoch has changed.
    touched: Vec<u32>,
    changes: Changes,
}

impl SessionWindow {
    fn new(factory: SessionWindowFactory, context: BuildContext) -> Result<Self> {
        check_gap(factory.gap)?;
        let schema = &factory.input_schema;
        let types: Vec<DataType> =
            factory.partition.iter().map(|column| schema.field(*column).data_type().clone()).collect();
        Ok(Self {
            rows: RowStore::new(&factory.partition, schema, factory.ttl.is_some(), context)?,
            fingerprints: Fingerprints::new(&factory.partition, schema)?,
            index: KeyIndex::new(&types)?,
            partitions: Vec::new(),
            ttl: factory.ttl.map(TimeToLive::new),
            touched: Vec::new(),
            changes: Changes::default(),
            factory,
        })
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.rows.partition_columns(&batch.rows), batch.num_rows()),
        }
    }

    /// The time of each row; `None` for one that lies in no window.
    fn times(&self, rows: &RecordBatch) -> Result<Vec<Option<i64>>> {
        let column = rows.column(self.factory.time_column);
        let (values, precision) = timestamp_values(column)?;
        let time = |(row, value): (usize, &i64)| {
            let time = precision.to_timestamp(*value).0;
            (column.is_valid(row) && time.unsigned_abs() < WINDOW_TIME_MAX as u64).then_some(time)
        };
        Ok(values.iter().enumerate().map(time).collect())
    }

    /// The partition of each row, which may be new.
    fn numbers(&mut self, rows: &RecordBatch, hashes: &[u64]) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        self.index.upsert(&self.rows.partition_columns(rows), hashes, &mut numbers)?;
        if self.index.slots() > self.partitions.len() {
            self.partitions.resize_with(self.index.slots(), Partition::default);
        }
        Ok(numbers)
    }

    /// Takes the changes of a batch into the partitions. Answers how many rows took back what is
    /// not there, which a time to live lets happen.
    fn apply(&mut self, batch: &ChangelogBatch, times: &[Option<i64>], now: EpochTime) -> Result<u64> {
        let hashes = self.hashes(batch)?;
        let numbers = self.numbers(&batch.rows, &hashes)?;
        let fingerprints = self.fingerprints.of(&batch.rows)?;
        let first_row = self.rows.take_numbers(batch.num_rows());
        let comes = |row: &u32| times[*row as usize].is_some() && batch.kind(*row as usize).is_addition();
        let kept: UInt32Array = (0..batch.num_rows() as u32).filter(comes).collect::<Vec<_>>().into();
        let step = self.ttl.as_ref().map(|ttl| ttl.step(now));
        let mut slots = self.rows.add(&batch.rows, &kept, first_row, step)?.into_iter();
        let (mut free, mut strays) = (Vec::new(), 0);
        for (row, number) in numbers.into_iter().enumerate() {
            let Some(time) = times[row] else {
                self.touch(number);
                continue;
            };
            let fingerprint = fingerprints[row];
            if batch.kind(row).is_addition() {
                let slot = slots.next().ok_or_else(|| Error::internal("a row that came has no slot"))?;
                let place = (time, first_row + row as i64);
                let entry = Entry { slot, fingerprint, shown: None, gone: false };
                self.partitions[number as usize].rows.insert(place, entry);
            } else if !self.take_back(number, time, fingerprint, &mut free)? {
                strays += 1;
                self.touch(number);
                continue;
            }
            self.touch(number);
            self.partitions[number as usize].changed.push(time);
            if let (Some(ttl), Some(step)) = (&mut self.ttl, step) {
                ttl.touch(number, step);
            }
        }
        self.rows.remove(&free)?;
        Ok(strays)
    }

    /// Takes the youngest of the equal rows back; `false` if there is none.
    fn take_back(&mut self, number: u32, time: i64, fingerprint: u64, free: &mut Vec<u32>) -> Result<bool> {
        let rows = &mut self.partitions[number as usize].rows;
        let is_equal = |(_, entry): &(&Place, &mut Entry)| !entry.gone && entry.fingerprint == fingerprint;
        match rows.range_mut((time, i64::MIN)..=(time, i64::MAX)).rev().find(is_equal) {
            Some((_, entry)) if entry.shown.is_some() => entry.gone = true,
            Some((place, entry)) => {
                let place = *place;
                free.push(entry.slot);
                rows.remove(&place);
            }
            None if self.ttl.is_some() => return Ok(false),
            None => return Err(Error::internal("invariant 4: a retraction meets no row of a session")),
        }
        Ok(true)
    }

    /// A partition is looked at when the epoch ends.
    fn touch(&mut self, number: u32) {
        self.touched.push(number);
    }

    /// Finds what has changed in the partitions that the epoch touched.
    fn compare(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            let partition = &mut self.partitions[number as usize];
            partition.compare(self.factory.gap, &mut self.changes);
            if partition.rows.is_empty() && self.index.is_live(number) {
                self.forget(number);
            }
        }
    }

    /// Drops a partition.
    fn forget(&mut self, number: u32) -> Partition {
        self.index.remove(number);
        if let Some(ttl) = &mut self.ttl {
            ttl.forget(number);
        }
        std::mem::take(&mut self.partitions[number as usize])
    }

    /// Forgets partitions that no row has changed for too long; none of them may be touched.
    fn expire(&mut self, now: EpochTime) -> Result<()> {
        let Some(ttl) = &mut self.ttl else { return Ok(()) };
        for number in ttl.expired(now) {
            let partition = self.forget(number);
            let slots: Vec<u32> = partition.rows.into_values().map(|entry| entry.slot).collect();
            self.rows.remove(&slots)?;
        }
        Ok(())
    }

    /// Says the next batch of changes.
    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let (changes, kind) = match self.changes.taken.is_empty() {
            false => (&mut self.changes.taken, RowKind::Delete),
            true => (&mut self.changes.given, RowKind::Insert),
        };
        if changes.is_empty() {
            self.rows.remove(&std::mem::take(&mut self.changes.free))?;
            self.expire(ctx.time)?;
            return Ok(Progress::Done);
        }
        let rest = changes.len().saturating_sub(BATCH_ROWS_MAX);
        let said = changes.split_off(rest);
        let rows = self.output(&said)?;
        ctx.emit(match kind {
            RowKind::Insert => ChangelogBatch::append(rows),
            _ => ChangelogBatch::with_kinds(rows, vec![kind; said.len()]),
        });
        Ok(Progress::More)
    }

    fn output(&self, said: &[(u32, Bounds)]) -> Result<RecordBatch> {
        let slots: Vec<u32> = said.iter().map(|(slot, _)| *slot).collect();
        let input = &self.factory.input_schema;
        let all: Vec<usize> = (0..input.fields().len()).collect();
        let mut columns: Vec<ArrayRef> = self.rows.gather(&slots, &all)?;
        let zone = self.factory.time_zone;
        let time_type = input.field(self.factory.time_column).data_type();
        columns.push(bounds(said.iter().map(|(_, (start, _))| local_time(zone, *start))));
        columns.push(bounds(said.iter().map(|(_, (_, end))| local_time(zone, *end))));
        columns.push(window_times(said.iter().map(|(_, (_, end))| Timestamp(*end)), time_type)?);
        RecordBatch::try_new(self.factory.schema.clone(), columns)
            .map_err(|error| Error::internal(format!("rows do not fit the output of SessionWindow: {error}")))
    }
}

impl Partition {
    /// Finds what has changed around the times that the epoch has changed.
    fn compare(&mut self, gap: i64, changes: &mut Changes) {
        let mut times = std::mem::take(&mut self.changed);
        times.sort_unstable();
        let mut done = i64::MIN;
        for time in times {
            if time <= done {
                continue;
            }
            let mut first = time;
            for ((before, _), _) in self.rows.range(..(time, i64::MIN)).rev() {
                if first - before > gap {
                    break;
                }
                first = *before;
            }
            done = self.compare_from(first, time, gap, changes);
        }
    }

    /// Compares the neighbourhood of `time`, which begins at `first`. Answers its last time.
    fn compare_from(&mut self, first: i64, time: i64, gap: i64, changes: &mut Changes) -> i64 {
        let mut last = time;
        let mut sessions: Vec<Bounds> = Vec::new();
        for ((at, _), entry) in self.rows.range((first, i64::MIN)..) {
            if *at > last && at - last > gap {
                break;
            }
            last = last.max(*at);
            if entry.gone {
                continue;
            }
            match sessions.last_mut() {
                Some((_, end)) if *at <= *end => *end = at + gap,
                _ => sessions.push((*at, at + gap)),
            }
        }
        let mut sessions = sessions.into_iter().peekable();
        let mut gone = Vec::new();
        for (place, entry) in self.rows.range_mut((first, i64::MIN)..=(last, i64::MAX)) {
            let now = match entry.gone {
                true => None,
                false => {
                    while sessions.next_if(|(_, end)| *end < place.0).is_some() {}
                    sessions.peek().copied()
                }
            };
            if entry.shown == now {
                continue;
            }
            changes.taken.extend(entry.shown.map(|before| (entry.slot, before)));
            changes.given.extend(now.map(|now| (entry.slot, now)));
            entry.shown = now;
            if entry.gone {
                changes.free.push(entry.slot);
                gone.push(*place);
            }
        }
        for place in gone {
            self.rows.remove(&place);
        }
        last
    }
}

impl Operator for SessionWindow {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        self.expire(ctx.time)?;
        let times = self.times(&batch.rows)?;
        let outside = times.iter().filter(|time| time.is_none()).count() as u64;
        let strays = self.apply(&batch, &times, ctx.time)?;
        ctx.metrics.rejected.add(outside + strays);
        ctx.metrics.accepted.add(batch.num_rows() as u64 - outside - strays);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.compare();
        let progress = self.emit_next(ctx)?;
        let wake_at = self.ttl.as_ref().and_then(|ttl| ttl.wake_after(time));
        Ok(EpochOutcome { watermark, wake_at, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        let row = size_of::<(Place, Entry)>() + ENTRY_BYTES;
        let partitions = self.partitions.len() * size_of::<Partition>();
        Residency::Resident(self.rows.rows() * row + partitions + self.index.bytes())
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![self.rows.table()]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        let mut from = 0;
        while let Some((slots, arrivals, rows)) = self.rows.loaded(from)? {
            from = slots.last().map_or(from, |last| last + 1);
            let hashes = stable_hashes(&self.rows.partition_columns(&rows), slots.len())?;
            let numbers = self.numbers(&rows, &hashes)?;
            let fingerprints = self.fingerprints.of(&rows)?;
            let times = self.times(&rows)?;
            for (row, slot) in slots.into_iter().enumerate() {
                let time = times[row].ok_or_else(|| Error::corrupt("a row of a session has no time"))?;
                let (partition, fingerprint) =
                    (&mut self.partitions[numbers[row] as usize], fingerprints[row]);
                let entry = Entry { slot, fingerprint, shown: None, gone: false };
                partition.rows.insert((time, arrivals.value(row)), entry);
                partition.changed.push(time);
                if let Some(ttl) = &mut self.ttl {
                    ttl.touch_at_least(numbers[row], self.rows.step(slot));
                }
            }
        }
        // After an epoch the consumer has each row with its session.
        for partition in &mut self.partitions {
            partition.compare(self.factory.gap, &mut Changes::default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
