//! Rankings: the rows of each partition in their order, kept in a state table.
//!
//! State table `rows`: (partition key, `_row`) → the other columns. `_row` is the number of the
//! row's arrival: rows that compare equal rank by it. The order is an index in memory, built
//! anew when state is loaded.
//!
//! ```text
//! partition ─▶ (sort key, _row) ─▶ slot        slot ─▶ columns of the row
//! ```
//!
//! With a time to live, a partition that no row has changed for so long is forgotten, without a
//! word; what is later taken back of it is ignored.
//!
//! Over appended rows, one that ranks behind the last place wanted can never come back, so it is
//! not kept. Over rows that change, all are kept: any of them may move up.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, SchemaRef};
use millpond_core::key::stable_hashes;
use millpond_core::{ChangelogBatch, ChangelogMode, EpochTime, Error, KeyHashes, Result};
use millpond_state::{KeyIndex, StateTable};

use super::order::{OrderEncoder, OrderKeys, SortColumn};
use crate::operator::BuildContext;
use crate::row_store::{Fingerprints, RowStore};
use crate::ttl::TimeToLive;

/// How rows are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankFunction {
    /// ROW_NUMBER: by place; equal rows by arrival.
    RowNumber,
    /// RANK: equal rows share the number of the first of them.
    Rank,
    /// DENSE_RANK: as RANK, without gaps.
    DenseRank,
}

impl std::fmt::Display for RankFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RankFunction::RowNumber => "ROW_NUMBER",
            RankFunction::Rank => "RANK",
            RankFunction::DenseRank => "DENSE_RANK",
        })
    }
}

/// Which ranks are wanted: `first..=last`, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankRange {
    /// The first.
    pub first: u64,
    /// The last; `None`: all the others too.
    pub last: Option<u64>,
}

impl std::fmt::Display for RankRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.last {
            Some(last) => write!(f, "{}..{last}", self.first),
            None => write!(f, "{}..", self.first),
        }
    }
}

/// What is ranked, and how.
#[derive(Debug, Clone)]
pub struct RankSpec {
    /// How rows are numbered.
    pub function: RankFunction,
    /// Columns of which each combination is ranked by itself; NULL is a value like others.
    pub partition: Vec<usize>,
    /// The order.
    pub order: Vec<SortColumn>,
    /// Whether of equal rows the one that came last is the first.
    pub latest_first: bool,
    /// Which ranks are wanted.
    pub range: RankRange,
    /// Columns of the input.
    pub input_schema: SchemaRef,
    /// The changelog of the input: append or retract.
    pub input_mode: ChangelogMode,
    /// How long a partition lives that no row changes, in microseconds; `None`: for ever.
    pub ttl: Option<i64>,
}

impl RankSpec {
    /// For EXPLAIN and uids.
    pub fn describe(&self) -> String {
        let name = |column: &usize| self.input_schema.field(*column).name().as_str();
        let partition: Vec<&str> = self.partition.iter().map(name).collect();
        let order: Vec<String> =
            self.order.iter().map(|column| column.describe(&self.input_schema)).collect();
        let (partition, order) = (partition.join(", "), order.join(", "));
        let ties = if self.latest_first { " latest_first" } else { "" };
        format!("{} partition=[{partition}] order=[{order}]{ties} ranks={}", self.function, self.range)
    }
}

/// A row in its partition: the sort key, then the number of its arrival (negative where the
/// latest is first).
type Place = (Box<[u8]>, i64);

/// A ranked row.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its columns are: a slot of the state table or, with [`PROVISIONAL`], a row of the
    /// batch at hand.
    slot: u32,
    /// Hash of all its columns, where rows are taken back.
    fingerprint: u64,
}

const PROVISIONAL: u32 = 1 << 31;

/// A row with its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranked {
    pub(crate) slot: u32,
    pub(crate) rank: u64,
}

/// The rows of one partition key.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    rows: BTreeMap<Place, Entry>,
    /// No row with a greater sort key is wanted any more.
    bound: Option<Box<[u8]>>,
    /// Rows that the consumer has, by rank.
    pub(crate) shown: Vec<Ranked>,
    /// Rows of `shown` that are no longer ranked, but still in the state table.
    gone: Vec<u32>,
    pub(crate) touched: bool,
}

/// What a row takes in the ranking beside its place: node, allocation, and its rank as shown.
const RANKED_BYTES: usize = 48;

/// All partitions of a task.
#[derive(Debug)]
pub(crate) struct Rankings {
    spec: RankSpec,
    rows: RowStore,
    order: OrderEncoder,
    /// Compares rows that are taken back; `None` over appended rows.
    whole_rows: Option<Fingerprints>,
    index: KeyIndex,
    partitions: Vec<Partition>,
    ttl: Option<TimeToLive>,
    /// Rows that took back what was not there, which a time to live lets happen.
    pub(crate) strays: u64,
    /// Whether the consumer has the row of a slot.
    is_shown: Vec<bool>,
    /// Partition of each row of the last batch, and each partition that it touched, once.
    numbers: Vec<u32>,
    touched: Vec<u32>,
}

impl Rankings {
    /// Errors: *Invalid* for a type that cannot be a key or be ordered.
    pub(crate) fn new(spec: RankSpec, context: BuildContext) -> Result<Self> {
        let schema = &spec.input_schema;
        let retracts = match spec.input_mode {
            ChangelogMode::Append => false,
            ChangelogMode::Retract => true,
            ChangelogMode::Upsert => {
                return Err(Error::internal("a ranking over an upsert input: it needs the old rows too"));
            }
        };
        let types: Vec<DataType> =
            spec.partition.iter().map(|column| schema.field(*column).data_type().clone()).collect();
        let whole_rows = retracts.then(|| Fingerprints::new(&spec.partition, schema)).transpose()?;
        Ok(Self {
            order: OrderEncoder::new(&spec.order, schema)?,
            rows: RowStore::new(&spec.partition, schema, spec.ttl.is_some(), context)?,
            index: KeyIndex::new(&types)?,
            whole_rows,
            ttl: spec.ttl.map(TimeToLive::new),
            spec,
            partitions: Vec::new(),
            strays: 0,
            is_shown: Vec::new(),
            numbers: Vec::new(),
            touched: Vec::new(),
        })
    }

    pub(crate) fn table(&mut self) -> &mut dyn StateTable {
        self.rows.table()
    }

    /// The stable hashes of the partition keys.
    pub(crate) fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.rows.partition_columns(&batch.rows), batch.num_rows()),
        }
    }

    /// Ranks the rows of a batch and takes back those that it takes back. Answers the partitions
    /// that it touched for the first time since [`Self::settle`].
    pub(crate) fn add(&mut self, batch: &ChangelogBatch, now: EpochTime) -> Result<Vec<u32>> {
        let keys = self.rows.partition_columns(&batch.rows);
        let hashes = self.hashes(batch)?;
        self.index.upsert(&keys, &hashes, &mut self.numbers)?;
        let partitions = self.numbers.iter().max().map_or(0, |number| *number as usize + 1);
        if partitions > self.partitions.len() {
            self.partitions.resize_with(partitions, Partition::default);
        }
        let order = self.order.encode(&batch.rows)?;
        let fingerprints = self.whole_rows.as_ref().map(|whole| whole.of(&batch.rows)).transpose()?;
        let mut alive = vec![false; batch.num_rows()];
        let mut free = Vec::new();
        let first_row = self.rows.take_numbers(batch.num_rows());
        for row in 0..batch.num_rows() {
            let fingerprint = fingerprints.as_ref().map_or(0, |all| all[row]);
            if batch.kind(row).is_addition() {
                let entry = Entry { slot: PROVISIONAL | row as u32, fingerprint };
                self.insert(row, order.key(row), first_row, entry, &mut alive, &mut free);
            } else {
                self.remove(row, &order, fingerprint, &mut alive, &mut free)?;
            }
        }
        self.trim(&mut alive, &mut free);
        self.store(&batch.rows, first_row, &order, &alive, now)?;
        self.rows.remove(&free)?;
        let touched = std::mem::take(&mut self.touched);
        self.touch_partitions(&touched, &alive, now);
        Ok(touched)
    }

    fn touch(&mut self, number: u32) {
        let partition = &mut self.partitions[number as usize];
        if !partition.touched {
            partition.touched = true;
            self.touched.push(number);
        }
    }

    fn insert(
        &mut self,
        row: usize,
        key: &[u8],
        first_row: i64,
        entry: Entry,
        alive: &mut [bool],
        free: &mut Vec<u32>,
    ) {
        let number = self.numbers[row];
        let wanted = self.wanted();
        let arrival = self.turn(first_row + row as i64);
        let partition = &mut self.partitions[number as usize];
        if partition.bound.as_deref().is_some_and(|bound| key > bound) {
            return;
        }
        let full = self.spec.function == RankFunction::RowNumber
            && wanted.is_some_and(|wanted| partition.rows.len() as u64 >= wanted);
        if full {
            let behind = |((worst, turn), _): (&Place, &Entry)| (key, arrival) > (&**worst, *turn);
            if partition.rows.last_key_value().is_none_or(behind) {
                return;
            }
            if let Some((_, evicted)) = partition.rows.pop_last() {
                discard(partition, evicted.slot, &self.is_shown, alive, free);
            }
        }
        partition.rows.insert((key.into(), arrival), entry);
        alive[row] = true;
        self.touch(number);
    }

    /// Where a row stands among its equals, by the number of its arrival.
    fn turn(&self, arrival: i64) -> i64 {
        if self.spec.latest_first { -arrival } else { arrival }
    }

    /// How many ranks are kept; `None`: all rows.
    fn wanted(&self) -> Option<u64> {
        self.spec.range.last.filter(|_| self.whole_rows.is_none())
    }

    fn remove(
        &mut self,
        row: usize,
        order: &OrderKeys,
        fingerprint: u64,
        alive: &mut [bool],
        free: &mut Vec<u32>,
    ) -> Result<()> {
        if self.whole_rows.is_none() {
            return Err(Error::internal("invariant 4: a retraction on an append edge of a ranking"));
        }
        let number = self.numbers[row];
        let partition = &mut self.partitions[number as usize];
        let key: Box<[u8]> = order.key(row).into();
        let mut peers = partition.rows.range((key.clone(), i64::MIN)..=(key, i64::MAX));
        let equal = |(_, entry): &(&Place, &Entry)| entry.fingerprint == fingerprint;
        // The youngest of equal rows goes, so that the others keep their turns.
        let found = if self.spec.latest_first { peers.find(equal) } else { peers.rev().find(equal) };
        let Some((place, slot)) = found.map(|(place, entry)| (place.clone(), entry.slot)) else {
            if self.ttl.is_some() {
                // It has been forgotten; the partition, if it is empty, is looked at again.
                self.touch(number);
                self.strays += 1;
                return Ok(());
            }
            return Err(Error::internal("invariant 4: a retraction meets no row of a ranking"));
        };
        partition.rows.remove(&place);
        discard(partition, slot, &self.is_shown, alive, free);
        self.touch(number);
        Ok(())
    }

    /// Partitions that a batch has changed live on.
    fn touch_partitions(&mut self, touched: &[u32], alive: &[bool], now: EpochTime) {
        let Some(ttl) = &mut self.ttl else { return };
        let step = ttl.step(now);
        let changed = (0..alive.len()).filter(|row| alive[*row]).map(|row| self.numbers[row]);
        for number in touched.iter().copied().chain(changed) {
            ttl.touch(number, step);
        }
    }

    /// Bytes beside the table, estimated: places in the rankings, and the rankings.
    pub(crate) fn beside(&self) -> usize {
        let row = size_of::<(Place, Entry)>() + RANKED_BYTES + 16 * self.spec.order.len();
        self.rows.rows() * row + self.partitions.len() * size_of::<Partition>() + self.index.bytes()
    }

    /// When partitions may have to be forgotten next.
    pub(crate) fn wake_after(&self, now: EpochTime) -> Option<EpochTime> {
        self.ttl.as_ref().and_then(|ttl| ttl.wake_after(now))
    }

    /// Forgets partitions that no row has changed for too long; none of them may be touched.
    pub(crate) fn expire(&mut self, now: EpochTime) -> Result<()> {
        let Some(ttl) = &mut self.ttl else { return Ok(()) };
        for number in ttl.expired(now) {
            for ranked in &self.partitions[number as usize].shown {
                self.is_shown[ranked.slot as usize] = false;
            }
            let slots = self.drop_partition(number);
            self.rows.remove(&slots)?;
        }
        Ok(())
    }

    /// Drops the rows that rank behind the last rank wanted, where any number of rows may share it.
    fn trim(&mut self, alive: &mut [bool], free: &mut Vec<u32>) {
        let Some(wanted) = self.wanted().filter(|_| self.spec.function != RankFunction::RowNumber) else {
            return;
        };
        let new = (0..alive.len()).filter(|row| alive[*row]).map(|row| self.numbers[row]);
        let mut numbers: Vec<u32> = new.collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let partition = &mut self.partitions[number as usize];
            let Some(bound) = last_key(self.spec.function, &partition.rows, wanted) else { continue };
            let behind = partition.rows.split_off(&(bound.clone(), i64::MAX));
            partition.bound = Some(bound);
            for entry in behind.into_values() {
                discard(partition, entry.slot, &self.is_shown, alive, free);
            }
        }
    }

    /// Puts the rows of the batch that stay into the state table.
    fn store(
        &mut self,
        rows: &RecordBatch,
        first_row: i64,
        order: &OrderKeys,
        alive: &[bool],
        now: EpochTime,
    ) -> Result<()> {
        let kept: Vec<u32> = (0..alive.len() as u32).filter(|row| alive[*row as usize]).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let indices = UInt32Array::from(kept);
        let step = self.ttl.as_ref().map(|ttl| ttl.step(now));
        let slots = self.rows.add(rows, &indices, first_row, step)?;
        let latest_first = self.spec.latest_first;
        for (row, slot) in indices.values().iter().zip(slots) {
            if slot >= PROVISIONAL {
                return Err(Error::unavailable("a ranking is full: 2,147,483,648 rows in one task")
                    .with_hint("raise the parallelism"));
            }
            let partition = &mut self.partitions[self.numbers[*row as usize] as usize];
            let arrival = first_row + i64::from(*row);
            let turn = if latest_first { -arrival } else { arrival };
            let place = (order.key(*row as usize).into(), turn);
            let entry = partition.rows.get_mut(&place).expect("a row that is alive is in its partition");
            entry.slot = slot;
        }
        Ok(())
    }

    /// The partition of a row of the last batch.
    pub(crate) fn number(&self, row: usize) -> u32 {
        self.numbers[row]
    }

    /// The slot of any row of a partition.
    pub(crate) fn some_slot(&self, number: u32) -> Option<u32> {
        self.partitions[number as usize].rows.values().next().map(|entry| entry.slot)
    }

    pub(crate) fn partition(&mut self, number: u32) -> &mut Partition {
        &mut self.partitions[number as usize]
    }

    /// The rows of a partition that are in the range, by rank.
    pub(crate) fn ranked(&self, number: u32) -> Vec<Ranked> {
        let range = self.spec.range;
        let last = range.last.unwrap_or(u64::MAX);
        ranks(self.spec.function, &self.partitions[number as usize].rows)
            .map(|(slot, rank)| Ranked { slot, rank })
            .skip_while(|ranked| ranked.rank < range.first)
            .take_while(|ranked| ranked.rank <= last)
            .collect()
    }

    /// The consumer has these rows of a partition from now on. Answers the slots that it does not
    /// have any more and that may be freed once nothing is to be said of them.
    pub(crate) fn settle(&mut self, number: u32, shown: Vec<Ranked>) -> Vec<u32> {
        let partition = &mut self.partitions[number as usize];
        let before = std::mem::replace(&mut partition.shown, shown);
        partition.touched = false;
        before.iter().for_each(|ranked| self.is_shown[ranked.slot as usize] = false);
        for ranked in &partition.shown {
            if ranked.slot as usize >= self.is_shown.len() {
                self.is_shown.resize(ranked.slot as usize + 1, false);
            }
            self.is_shown[ranked.slot as usize] = true;
        }
        let gone = std::mem::take(&mut partition.gone);
        if partition.rows.is_empty() {
            *partition = Partition::default();
            self.index.remove(number);
            if let Some(ttl) = &mut self.ttl {
                ttl.forget(number);
            }
        }
        gone
    }

    /// Takes a whole partition out; answers its slots.
    pub(crate) fn drop_partition(&mut self, number: u32) -> Vec<u32> {
        let partition = std::mem::take(&mut self.partitions[number as usize]);
        self.index.remove(number);
        partition.rows.into_values().map(|entry| entry.slot).collect()
    }

    /// Removes rows that have been said for the last time.
    pub(crate) fn free(&mut self, slots: &[u32]) -> Result<()> {
        self.rows.remove(slots)
    }

    /// Input columns of some rows.
    pub(crate) fn gather(&self, slots: &[u32], columns: &[usize]) -> Result<Vec<ArrayRef>> {
        self.rows.gather(slots, columns)
    }

    /// Builds the order of loaded rows. Answers the partitions there are.
    pub(crate) fn restored(&mut self) -> Result<Vec<u32>> {
        let mut from = 0;
        while let Some((slots, arrivals, rows)) = self.rows.loaded(from)? {
            from = slots.last().map_or(from, |last| last + 1);
            self.index_rows(&slots, arrivals.values(), &rows)?;
        }
        Ok((0..self.partitions.len() as u32).filter(|number| self.index.is_live(*number)).collect())
    }

    fn index_rows(&mut self, slots: &[u32], arrivals: &[i64], rows: &RecordBatch) -> Result<()> {
        let keys = self.rows.partition_columns(rows);
        self.index.upsert(&keys, &stable_hashes(&keys, slots.len())?, &mut self.numbers)?;
        let order = self.order.encode(rows)?;
        let fingerprints = self.whole_rows.as_ref().map(|whole| whole.of(rows)).transpose()?;
        for (row, slot) in slots.iter().enumerate() {
            let number = self.numbers[row] as usize;
            if number >= self.partitions.len() {
                self.partitions.resize_with(number + 1, Partition::default);
            }
            let fingerprint = fingerprints.as_ref().map_or(0, |all| all[row]);
            let place = (order.key(row).into(), self.turn(arrivals[row]));
            if let Some(ttl) = &mut self.ttl {
                ttl.touch_at_least(number as u32, self.rows.step(*slot));
            }
            self.partitions[number].rows.insert(place, Entry { slot: *slot, fingerprint });
        }
        Ok(())
    }
}

/// Takes a row that is no longer ranked out of the state, unless the consumer still has it.
fn discard(partition: &mut Partition, slot: u32, is_shown: &[bool], alive: &mut [bool], free: &mut Vec<u32>) {
    if slot & PROVISIONAL != 0 {
        alive[(slot & !PROVISIONAL) as usize] = false;
    } else if is_shown.get(slot as usize) == Some(&true) {
        partition.gone.push(slot);
    } else {
        free.push(slot);
    }
}

/// Slots of a partition's rows in order, with their ranks.
fn ranks(function: RankFunction, rows: &BTreeMap<Place, Entry>) -> impl Iterator<Item = (u32, u64)> + '_ {
    let mut place = 0;
    let mut rank = 0;
    let mut group: Option<&[u8]> = None;
    rows.iter().map(move |((key, _), entry)| {
        place += 1;
        let new_group = group != Some(&**key);
        group = Some(key);
        rank = match (function, new_group) {
            (RankFunction::RowNumber, _) | (RankFunction::Rank, true) => place,
            (RankFunction::DenseRank, true) => rank + 1,
            (RankFunction::Rank | RankFunction::DenseRank, false) => rank,
        };
        (entry.slot, rank)
    })
}

/// The sort key behind which no row can rank within `wanted`; `None` while there is room.
fn last_key(function: RankFunction, rows: &BTreeMap<Place, Entry>, wanted: u64) -> Option<Box<[u8]>> {
    let mut within = 0;
    let mut last = None;
    for ((_, rank), (key, _)) in ranks(function, rows).zip(rows.keys()).take_while(|((_, r), _)| *r <= wanted)
    {
        within += 1;
        last = Some((rank, key));
    }
    let (rank, key) = last?;
    let full = if function == RankFunction::DenseRank { rank == wanted } else { within >= wanted };
    full.then(|| key.clone())
}
