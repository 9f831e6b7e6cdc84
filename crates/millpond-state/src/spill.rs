//! Rows that have left memory: where they are until their keys are wanted again.
//!
//! The unit is a partition key, by its stable hash: all rows of a table whose partition key has the
//! hash leave together and come back together, a batch of keys at a time. A small table of hashes in
//! memory tells which keys are out, so that a new key costs no look-up.
//!
//! ```text
//! table ──evict──▶ Evicted ──put──▶ [space │ hash] ─▶ rows          SpillStore (disposable)
//!       ◀──admit── Evicted ◀──take─┘     │
//! freeze: rows that left memory changed ─┴─▶ Delta, on a background thread
//! ```
//!
//!  1. A row is either in its table or here.
//!  2. A row that changed since the last freeze says so here, with the number of that freeze: at the
//!     next one it becomes part of the delta, and from then on counts as clean without being written
//!     again.
//!  3. What a freeze has taken stays readable to it: whoever takes a unit away before the background
//!     thread has read it hands it over.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use hashbrown::HashTable;
use millpond_core::{Error, Result};

use crate::snapshot::Identities;
use crate::table::{Delta, Frozen, Scope, TableDef};

/// A partition key of a table, encoded, and its rows.
pub type SpilledUnit = (Vec<u8>, Vec<u8>);

/// Where spilled rows are kept. It blocks.
pub trait SpillStore: Send + Sync + std::fmt::Debug {
    /// Writes and removes units; keys ascend.
    fn write(&self, puts: &[SpilledUnit], deletes: &[Vec<u8>]) -> Result<()>;
    /// The units of ascending keys, where there are any.
    fn read(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>>;
    /// Up to `max` units from key `from` on, below `to`.
    fn scan(&self, from: &[u8], to: &[u8], max: usize) -> Result<Vec<SpilledUnit>>;
    /// Removes all units from `from` on, below `to`.
    fn clear(&self, from: &[u8], to: &[u8]) -> Result<()>;
}

/// The spilled rows of a process; each table has a space of its own.
#[derive(Debug)]
pub struct SpillArea {
    store: Arc<dyn SpillStore>,
    next: AtomicU32,
}

impl SpillArea {
    /// An area in a folder that nothing else uses; it is made when the first row comes, and goes with
    /// the area. `None` where there is no RocksDB: rows stay in memory.
    pub fn new(folder: PathBuf) -> Option<Self> {
        #[cfg(feature = "rocksdb")]
        return Some(Self::over(Arc::new(crate::rocks::spill::RocksSpill::new(folder))));
        #[cfg(not(feature = "rocksdb"))]
        {
            let _unused = folder;
            None
        }
    }

    /// An area in a store.
    pub fn over(store: Arc<dyn SpillStore>) -> Self {
        Self { store, next: AtomicU32::new(0) }
    }

    /// A space for a table; `None` if its columns cannot leave memory unchanged.
    pub fn table(&self, def: &TableDef) -> Result<Option<TableSpill>> {
        if !crate::table::survives_encoding(def) {
            return Ok(None);
        }
        let space = self.next.fetch_add(1, Ordering::Relaxed);
        TableSpill::new(def, Arc::clone(&self.store), space).map(Some)
    }
}

/// Rows on their way out of a table or back.
#[derive(Debug, Clone)]
pub struct Evicted {
    /// The rows, in the columns of the table.
    pub rows: RecordBatch,
    /// The hash of each row's partition key.
    pub hashes: Vec<u64>,
    /// Which rows have changed since the last freeze.
    pub dirty: Vec<bool>,
    /// Which rows' identities the store of checkpoints knows.
    pub stored: Vec<bool>,
}

impl Evicted {
    /// No rows of a table.
    pub fn none(schema: &SchemaRef) -> Self {
        let rows = RecordBatch::new_empty(Arc::clone(schema));
        Self { rows, hashes: Vec::new(), dirty: Vec::new(), stored: Vec::new() }
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

/// The rows of one table that have left memory.
#[derive(Debug)]
pub struct TableSpill {
    store: Arc<dyn SpillStore>,
    space: u32,
    coder: Arc<Coder>,
    held: HeldKeys,
    rows: usize,
    /// Freezes so far.
    freezes: u32,
    /// Keys of which rows left memory changed since the last freeze.
    dirty: HashSet<u64>,
    /// What the last freeze has still to read.
    drain: Option<Arc<Mutex<Drain>>>,
    /// Who will read it.
    reader: Option<Reader>,
}

/// What a freeze has to read on its background thread.
#[derive(Debug)]
struct Drain {
    freeze: u32,
    todo: Todo,
    /// Units that were taken away before they were read.
    rescued: Vec<Vec<u8>>,
}

#[derive(Debug)]
enum Todo {
    /// The changed rows of these keys.
    Changed(HashSet<u64>),
    /// All rows from this key on.
    All(Vec<u8>),
    Nothing,
}

/// Units that the background thread reads while it holds the lock.
const DRAIN_UNITS: usize = 256;

impl TableSpill {
    fn new(def: &TableDef, store: Arc<dyn SpillStore>, space: u32) -> Result<Self> {
        let coder = Arc::new(Coder::new(def)?);
        Ok(Self {
            store,
            space,
            coder,
            held: HeldKeys::default(),
            rows: 0,
            freezes: 0,
            dirty: HashSet::new(),
            drain: None,
            reader: None,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of memory that it takes to know what is out.
    pub fn bytes(&self) -> usize {
        self.held.bytes() + self.dirty.capacity() * 9
    }

    /// Whether rows of a key may be here; a wrong yes is rare and costs a look-up.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.rows > 0 && self.held.may_hold(hash)
    }

    /// Takes rows that have left their table.
    pub fn put(&mut self, evicted: &Evicted) -> Result<()> {
        if evicted.is_empty() {
            return Ok(());
        }
        let mut order: Vec<usize> = (0..evicted.hashes.len()).collect();
        order.sort_unstable_by_key(|row| evicted.hashes[*row]);
        let mut units = self.coder.encode(evicted, &order, self.freezes)?;
        self.join_present(&mut units)?;
        let puts: Vec<SpilledUnit> =
            units.into_iter().map(|(hash, unit)| (unit_key(self.space, hash), unit)).collect();
        self.store.write(&puts, &[])?;
        self.rows += evicted.hashes.len();
        let dirty = evicted.hashes.iter().zip(&evicted.dirty).filter(|(_, dirty)| **dirty);
        self.dirty.extend(dirty.map(|(hash, _)| *hash));
        Ok(())
    }

    /// Two keys may have one hash, and one of them may have left before.
    fn join_present(&mut self, units: &mut [(u64, Vec<u8>)]) -> Result<()> {
        let present: Vec<usize> = (0..units.len()).filter(|unit| self.may_hold(units[*unit].0)).collect();
        let keys: Vec<Vec<u8>> = present.iter().map(|unit| unit_key(self.space, units[*unit].0)).collect();
        let mut joined = HashSet::new();
        if !keys.is_empty() {
            for (unit, earlier) in present.into_iter().zip(self.store.read(&keys)?) {
                if let Some(mut earlier) = earlier {
                    joined.insert(units[unit].0);
                    earlier.append(&mut units[unit].1);
                    units[unit].1 = earlier;
                }
            }
        }
        units.iter().filter(|(hash, _)| !joined.contains(hash)).for_each(|(hash, _)| self.held.add(*hash));
        Ok(())
    }

    /// Gives back the rows of these keys (ascending, each once).
    pub fn take(&mut self, hashes: &[u64]) -> Result<Evicted> {
        let wanted: Vec<u64> = hashes.iter().copied().filter(|hash| self.may_hold(*hash)).collect();
        if wanted.is_empty() {
            return Ok(Evicted::none(&self.coder.schema));
        }
        let keys: Vec<Vec<u8>> = wanted.iter().map(|hash| unit_key(self.space, *hash)).collect();
        let found = self.store.read(&keys)?;
        let present = wanted.into_iter().zip(keys).zip(found);
        let (mut units, mut gone) = (Vec::new(), Vec::new());
        for ((hash, key), unit) in present {
            let Some(unit) = unit else { continue };
            self.held.remove(hash);
            self.dirty.remove(&hash);
            units.push((hash, unit));
            gone.push(key);
        }
        if gone.is_empty() {
            return Ok(Evicted::none(&self.coder.schema));
        }
        self.remove(&units, &gone)?;
        let evicted = self.coder.decode(&units, self.freezes)?;
        self.rows -= evicted.hashes.len();
        Ok(evicted)
    }

    /// Removes units, and hands those over that a freeze has yet to read (invariant 3).
    fn remove(&mut self, units: &[(u64, Vec<u8>)], keys: &[Vec<u8>]) -> Result<()> {
        let Some(drain) = &self.drain else { return self.store.write(&[], keys) };
        let mut open = lock(drain);
        for ((hash, unit), key) in units.iter().zip(keys) {
            let wanted = match &mut open.todo {
                Todo::Changed(hashes) => hashes.remove(hash),
                Todo::All(from) => key >= from,
                Todo::Nothing => false,
            };
            if wanted {
                open.rescued.push(unit.clone());
            }
        }
        let is_read = matches!(open.todo, Todo::Nothing);
        self.store.write(&[], keys)?;
        drop(open);
        if is_read {
            self.drain = None;
        }
        Ok(())
    }

    /// Fixes what has left memory and is in the scope: everything, or what changed.
    pub fn begin_freeze(&mut self, scope: Scope) {
        let base = scope == Scope::Everything;
        let freeze = self.freezes;
        self.freezes += 1;
        let changed = std::mem::take(&mut self.dirty);
        (self.drain, self.reader) = (None, None);
        if self.rows == 0 || (changed.is_empty() && !base) {
            return;
        }
        let todo = if base { Todo::All(unit_key(self.space, 0)) } else { Todo::Changed(changed) };
        let drain = Arc::new(Mutex::new(Drain { freeze, todo, rescued: Vec::new() }));
        self.drain = Some(Arc::clone(&drain));
        let (store, coder) = (Arc::clone(&self.store), Arc::clone(&self.coder));
        self.reader = Some(Reader { drain, store, coder, space: self.space, base });
    }

    /// Adds to a frozen table what has left its memory.
    pub fn finish_freeze(&mut self, def: &TableDef, resident: Frozen) -> Frozen {
        let Some(reader) = self.reader.take() else { return resident };
        let identity_columns = def.identity_columns;
        Frozen::new(move || with_spilled(resident.into_delta()?, reader.read()?, identity_columns))
    }
}

impl Drop for TableSpill {
    fn drop(&mut self) {
        if self.rows > 0
            && let Err(error) = self.store.clear(&unit_key(self.space, 0), &unit_key(self.space + 1, 0))
        {
            tracing::warn!(%error, "spilled rows of a task that has ended stay until the process ends");
        }
    }
}

/// Reads on a background thread what a freeze has taken.
#[derive(Debug)]
struct Reader {
    drain: Arc<Mutex<Drain>>,
    store: Arc<dyn SpillStore>,
    coder: Arc<Coder>,
    space: u32,
    base: bool,
}

impl Reader {
    fn read(&self) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        loop {
            let (units, is_last) = self.next()?;
            let freeze = lock(&self.drain).freeze;
            batches.extend(self.coder.decode_frozen(&units, freeze, self.base)?);
            if is_last {
                return Ok(batches);
            }
        }
    }

    /// The next units, and whether they are the last.
    fn next(&self) -> Result<(Vec<Vec<u8>>, bool)> {
        let mut drain = lock(&self.drain);
        let mut units = std::mem::take(&mut drain.rescued);
        let is_last = match &mut drain.todo {
            Todo::Changed(hashes) => {
                let mut next: Vec<u64> = hashes.iter().copied().take(DRAIN_UNITS).collect();
                next.sort_unstable();
                next.iter().for_each(|hash| {
                    hashes.remove(hash);
                });
                let keys: Vec<Vec<u8>> = next.iter().map(|hash| unit_key(self.space, *hash)).collect();
                units.extend(self.store.read(&keys)?.into_iter().flatten());
                hashes.is_empty()
            }
            Todo::All(from) => {
                let scanned = self.store.scan(from, &unit_key(self.space + 1, 0), DRAIN_UNITS)?;
                let is_last = scanned.len() < DRAIN_UNITS;
                if let Some((last, _)) = scanned.last() {
                    *from = [last.as_slice(), &[0]].concat();
                }
                units.extend(scanned.into_iter().map(|(_, unit)| unit));
                is_last
            }
            Todo::Nothing => true,
        };
        if is_last {
            drain.todo = Todo::Nothing;
        }
        Ok((units, is_last))
    }
}

/// A delta with rows that were frozen outside of memory. An identity that went and came back before
/// it left memory is no delete.
fn with_spilled(resident: Delta, spilled: Vec<RecordBatch>, identity_columns: usize) -> Result<Delta> {
    let schema = resident.upserts.schema();
    let spilled = concat_batches(&schema, &spilled)?;
    let mut deletes = resident.deletes;
    if deletes.num_rows() > 0 && spilled.num_rows() > 0 {
        let present = Identities::encode(&spilled.columns()[..identity_columns])?;
        let present: HashSet<&[u8]> = (0..spilled.num_rows()).map(|row| present.key(row)).collect();
        let gone = Identities::encode(deletes.columns())?;
        let keep: BooleanArray =
            (0..deletes.num_rows()).map(|row| Some(!present.contains(gone.key(row)))).collect();
        deletes = filter_record_batch(&deletes, &keep)?;
    }
    Ok(Delta { upserts: concat_batches(&schema, [&resident.upserts, &spilled])?, deletes, ..resident })
}

fn lock(drain: &Mutex<Drain>) -> MutexGuard<'_, Drain> {
    drain.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unit_key(space: u32, hash: u64) -> Vec<u8> {
    [space.to_be_bytes().as_slice(), &hash.to_be_bytes()].concat()
}

/// Rows as bytes: flags, the number of the freeze before which they left memory, and their columns.
#[derive(Debug)]
struct Coder {
    schema: SchemaRef,
    columns: RowConverter,
}

const DIRTY: u8 = 1;
const STORED: u8 = 2;
/// Flags, freeze and length.
const HEADER: usize = 1 + 4 + 4;

/// A row of a unit.
struct CodedRow<'a> {
    flags: u8,
    freeze: u32,
    row: &'a [u8],
}

impl Coder {
    fn new(def: &TableDef) -> Result<Self> {
        let fields = def.schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        Ok(Self { schema: Arc::clone(&def.schema), columns: RowConverter::new(fields.collect())? })
    }

    /// Units by hash; `order` sorts the rows by it.
    fn encode(&self, evicted: &Evicted, order: &[usize], freeze: u32) -> Result<Vec<(u64, Vec<u8>)>> {
        let rows = self.columns.convert_columns(evicted.rows.columns())?;
        let mut units: Vec<(u64, Vec<u8>)> = Vec::new();
        for at in order {
            let hash = evicted.hashes[*at];
            if units.last().is_none_or(|(last, _)| *last != hash) {
                units.push((hash, Vec::new()));
            }
            let Some((_, unit)) = units.last_mut() else { continue };
            let row = rows.row(*at);
            let dirty = if evicted.dirty[*at] { DIRTY } else { 0 };
            let stored = if evicted.stored[*at] { STORED } else { 0 };
            unit.push(dirty | stored);
            unit.extend(freeze.to_le_bytes());
            unit.extend((row.data().len() as u32).to_le_bytes());
            unit.extend(row.data());
        }
        Ok(units)
    }

    /// Rows that come back after so many freezes.
    fn decode(&self, units: &[(u64, Vec<u8>)], freezes: u32) -> Result<Evicted> {
        let (mut rows, mut hashes, mut dirty, mut stored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (hash, unit) in units {
            for coded in coded_rows(unit) {
                let coded = coded?;
                let was_dirty = coded.flags & DIRTY != 0;
                hashes.push(*hash);
                // A freeze has taken what had changed before it (invariant 2).
                dirty.push(was_dirty && coded.freeze == freezes);
                stored.push(coded.flags & STORED != 0 || (was_dirty && coded.freeze < freezes));
                rows.push(coded.row);
            }
        }
        Ok(Evicted { rows: self.batch(&rows)?, hashes, dirty, stored })
    }

    /// The rows that a freeze has taken: those that left memory before it, and of these the changed
    /// ones unless it wants all.
    fn decode_frozen(&self, units: &[Vec<u8>], freeze: u32, all: bool) -> Result<Option<RecordBatch>> {
        let mut rows = Vec::new();
        for unit in units {
            for coded in coded_rows(unit) {
                let coded = coded?;
                let changed = coded.freeze == freeze && coded.flags & DIRTY != 0;
                if changed || (all && coded.freeze <= freeze) {
                    rows.push(coded.row);
                }
            }
        }
        if rows.is_empty() { Ok(None) } else { self.batch(&rows).map(Some) }
    }

    fn batch(&self, rows: &[&[u8]]) -> Result<RecordBatch> {
        let parser = self.columns.parser();
        let columns = self.columns.convert_rows(rows.iter().map(|row| parser.parse(row)))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| Error::internal(format!("spilled rows do not fit their table: {e}")))
    }
}

fn coded_rows(unit: &[u8]) -> impl Iterator<Item = Result<CodedRow<'_>>> {
    let mut rest = unit;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let coded = split_row(&mut rest);
        if coded.is_none() {
            rest = &[];
        }
        Some(coded.ok_or_else(|| Error::internal("spilled rows are cut short")))
    })
}

fn split_row<'a>(rest: &mut &'a [u8]) -> Option<CodedRow<'a>> {
    let (header, after) = rest.split_first_chunk::<HEADER>()?;
    let [flags, f0, f1, f2, f3, l0, l1, l2, l3] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let (row, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(CodedRow { flags, freeze: u32::from_le_bytes([f0, f1, f2, f3]), row })
}

/// Which keys are out: 32 bits of each hash, in parts by 8 others, so that no growth copies all.
/// Keys that agree in these 40 bits are there as often as they are.
#[derive(Debug)]
struct HeldKeys {
    parts: Vec<HashTable<u32>>,
}

impl Default for HeldKeys {
    fn default() -> Self {
        Self { parts: (0..256).map(|_| HashTable::new()).collect() }
    }
}

impl HeldKeys {
    fn add(&mut self, hash: u64) {
        self.parts[(hash >> 56) as usize]
            .insert_unique(spread(hash as u32), hash as u32, |word| spread(*word));
    }

    fn remove(&mut self, hash: u64) {
        let entry =
            self.parts[(hash >> 56) as usize].find_entry(spread(hash as u32), |word| *word == hash as u32);
        if let Ok(entry) = entry {
            entry.remove();
        }
    }

    fn may_hold(&self, hash: u64) -> bool {
        let part = &self.parts[(hash >> 56) as usize];
        part.find(spread(hash as u32), |word| *word == hash as u32).is_some()
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(HashTable::allocation_size).sum()
    }
}

fn spread(word: u32) -> u64 {
    u64::from(word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests;
