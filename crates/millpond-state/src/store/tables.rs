//! The tables of all tasks: what every store does with deltas, wherever parts are kept.
//!
//! ```text
//! write:  delta ─ sort ─ (+ what a failed write left) ─ (+ parts to merge) ─▶ one part
//! read:   parts of every task that touch the range ─ fold ─▶ live rows
//! ```
//!
//!  1. A delta is never lost: what cannot be written now is kept and becomes part of the next one.
//!  2. A list is changed only after its new part is durable.
//!  3. The lists of different tasks hold different key groups, because after a change of the
//!     number of tasks every task starts with a base.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, Error, ErrorKind, KeyGroupRange, OperatorUid, Result};

use super::ledger::Ledger;
use super::part_list;
use super::{CheckpointMetadata, FileHandle, TablePart};
use crate::files::{self, PartName};
use crate::snapshot::{self, PartRows};
use crate::table::{Delta, TableDef};

/// One task's table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TableAddress {
    pub(crate) uid: OperatorUid,
    pub(crate) table: String,
    pub(crate) task: usize,
}

/// Where the parts are kept: files, or memory.
pub(crate) trait PartStorage: Send + Sync + std::fmt::Debug {
    /// Makes a part durable.
    fn write(
        &self,
        address: &TableAddress,
        name: PartName,
        def: &TableDef,
        rows: &PartRows,
    ) -> Result<FileHandle>;
    /// Reads a part back; rows outside the range may be left out.
    fn read(&self, file: &FileHandle, def: &TableDef, range: KeyGroupRange) -> Result<Vec<RecordBatch>>;
}

/// A delta on its way into the store.
pub(crate) struct Write<'a> {
    pub(crate) address: TableAddress,
    pub(crate) def: &'a TableDef,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) generation: u64,
    pub(crate) max_parallelism: u16,
}

/// What became of a delta.
pub(crate) struct Written {
    /// The whole list.
    pub(crate) parts: Vec<TablePart>,
    /// The rows that were new: the delta, and those before it that could not be written. A base
    /// here replaces everything.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only RocksDB takes them too"))]
    pub(crate) changes: PartRows,
}

/// The state of one task's table in the store.
#[derive(Debug, Default)]
struct Entry {
    parts: Vec<TablePart>,
    /// What could not be written (invariant 1).
    unwritten: Option<PartRows>,
    needs_base: bool,
    checkpoint: CheckpointId,
}

/// All tables, and who needs which file. An entry's lock is taken before the ledger's.
#[derive(Debug)]
pub(crate) struct Tables<S> {
    pub(crate) storage: S,
    entries: Mutex<HashMap<TableAddress, Arc<Mutex<Entry>>>>,
    ledger: Mutex<Ledger>,
}

/// A lock whose holder panicked: all our changes are made at the end, so what it guards is sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: PartStorage> Tables<S> {
    /// Tables without rows.
    pub(crate) fn new(storage: S, ledger: Ledger) -> Self {
        Self { storage, entries: Mutex::default(), ledger: Mutex::new(ledger) }
    }

    /// The references to files.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Makes a delta durable.
    pub(crate) fn write(&self, write: &Write<'_>, delta: &Delta, base: bool) -> Result<Written> {
        let entry = self.entry(&write.address);
        let mut entry = lock(&entry);
        let changes = entry.take_changes(write, delta, base)?;
        match self.store(&mut entry, write, &changes) {
            Ok(()) => Ok(Written { parts: entry.parts.clone(), changes }),
            Err(error) => {
                // A part that cannot be read back cannot be repaired by adding to it.
                entry.needs_base |= error.kind() == ErrorKind::Corrupt;
                entry.unwritten = Some(changes).filter(|_| error.kind() != ErrorKind::Corrupt);
                Err(error.context(format!("table {:?} of operator {}", write.def.name, write.address.uid)))
            }
        }
    }

    fn entry(&self, address: &TableAddress) -> Arc<Mutex<Entry>> {
        lock(&self.entries).entry(address.clone()).or_default().clone()
    }

    fn store(&self, entry: &mut Entry, write: &Write<'_>, changes: &PartRows) -> Result<()> {
        let mut parts = if changes.base { Vec::new() } else { entry.parts.clone() };
        let written = if changes.rows() > 0 {
            self.add_rows(&mut parts, write, changes)?
        } else {
            if !changes.is_empty() {
                parts.push(part_list::part_of(write.def, changes, write.checkpoint, None));
            }
            None
        };
        part_list::drop_expired(&mut parts);
        entry.parts = parts;
        self.ledger().answered(&write.address, write.checkpoint, written, part_list::paths(&entry.parts));
        Ok(())
    }

    fn add_rows(
        &self,
        parts: &mut Vec<TablePart>,
        write: &Write<'_>,
        changes: &PartRows,
    ) -> Result<Option<String>> {
        let rows = changes.rows();
        let start = part_list::merge_from(parts, rows)
            .or_else(|| part_list::shorten_from(parts, rows))
            .unwrap_or(parts.len());
        let mut inputs =
            self.read_parts(&parts[start..], write.def, KeyGroupRange::all(write.max_parallelism))?;
        inputs.push(changes.clone());
        // A fold of one part only drops the deletes of a first delta, which meet nothing.
        let merged = if inputs.len() == 1 && start > 0 {
            changes.clone()
        } else {
            snapshot::fold(write.def, &inputs, start == 0, None)?
        };
        parts.truncate(start);
        if merged.is_empty() {
            return Ok(None);
        }
        let file = if merged.rows() > 0 { Some(self.write_part(write, &merged)?) } else { None };
        let path = file.as_ref().map(|file| file.path.clone());
        parts.push(part_list::part_of(write.def, &merged, write.checkpoint, file));
        Ok(path)
    }

    fn write_part(&self, write: &Write<'_>, rows: &PartRows) -> Result<FileHandle> {
        let name = part_list::name(rows.base, write.address.task, write.checkpoint, write.generation);
        let path = files::part_path(&write.address.uid, &write.address.table, name);
        if self.ledger().wrote(&path) {
            return Err(Error::internal(format!("part {path:?} is written twice")));
        }
        self.storage.write(&write.address, name, write.def, rows)
    }

    fn read_parts(&self, parts: &[TablePart], def: &TableDef, range: KeyGroupRange) -> Result<Vec<PartRows>> {
        let read = |part: &TablePart| -> Result<PartRows> {
            let touched = part.key_groups.is_none_or(|groups| snapshot::intersects(groups, range));
            let batches = match &part.file {
                Some(file) if touched => self.storage.read(file, def, range)?,
                Some(_) | None => Vec::new(),
            };
            Ok(PartRows { batches, base: part.base, expired_through: part.expired_through })
        };
        parts.iter().map(read).collect()
    }

    /// The live rows of a table as of a checkpoint, in a key-group range.
    pub(crate) fn read(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        let operator = checkpoint.operators.get(uid);
        let Some(table) = operator.and_then(|operator| operator.tables.get(&def.name)) else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::new();
        for parts in table.parts.values() {
            rows.extend(self.read_list(parts, def, range)?.table_batches(def)?);
        }
        Ok(rows)
    }

    fn read_list(&self, parts: &[TablePart], def: &TableDef, range: KeyGroupRange) -> Result<PartRows> {
        let mut parts = self.read_parts(part_list::from_base(parts), def, range)?;
        match parts.pop() {
            // Nothing to fold, and no row to move.
            Some(only) if parts.is_empty() && only.base => Ok(snapshot::restrict(only, range)),
            Some(last) => {
                parts.push(last);
                snapshot::fold(def, &parts, true, Some(range))
            }
            None => Ok(PartRows::default()),
        }
    }

    /// Takes over the lists of a checkpoint (`None`: of nothing), for operators whose number of
    /// tasks is the same; tables of the others need a base next.
    pub(crate) fn continue_from(
        &self,
        checkpoint: Option<&CheckpointMetadata>,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) {
        let mut entries = HashMap::new();
        let operators = checkpoint.iter().flat_map(|checkpoint| &checkpoint.operators);
        for (uid, operator) in operators {
            let tasks = tasks.get(uid).copied().unwrap_or(0);
            for (name, table) in &operator.tables {
                let same =
                    table.parts.len() == tasks && (0..tasks).all(|task| table.parts.contains_key(&task));
                for task in 0..tasks {
                    let parts = table.parts.get(&task).filter(|_| same).cloned().unwrap_or_default();
                    let address = TableAddress { uid: uid.clone(), table: name.clone(), task };
                    entries.insert(address, Entry { parts, needs_base: !same, ..Entry::default() });
                }
            }
        }
        let lists = entries.iter().map(|(address, entry)| (address.clone(), part_list::paths(&entry.parts)));
        let lists = lists.collect();
        *lock(&self.entries) =
            entries.into_iter().map(|(address, entry)| (address, Arc::new(Mutex::new(entry)))).collect();
        self.ledger().restart(lists);
    }

    /// A part is lost: the tables that have it must write everything next.
    pub(crate) fn distrust(&self, path: &str) {
        let entries: Vec<_> = lock(&self.entries).values().cloned().collect();
        for entry in entries {
            let mut entry = lock(&entry);
            entry.needs_base |= part_list::paths(&entry.parts).iter().any(|part| part == path);
        }
    }

    /// Whether a task's table must write everything next.
    pub(crate) fn needs_base(&self, address: &TableAddress) -> bool {
        let entry = lock(&self.entries).get(address).cloned();
        entry.is_some_and(|entry| lock(&entry).needs_base)
    }
}

impl Entry {
    /// The rows to write for a delta: with what could not be written before.
    fn take_changes(&mut self, write: &Write<'_>, delta: &Delta, base: bool) -> Result<PartRows> {
        if write.checkpoint <= self.checkpoint {
            return Err(Error::internal(format!(
                "checkpoint {} of table {:?} comes after checkpoint {}",
                write.checkpoint, write.def.name, self.checkpoint
            )));
        }
        if self.needs_base && !base {
            return Err(Error::internal(format!("table {:?} must write a base and did not", write.def.name)));
        }
        let changes = PartRows::from_delta(write.def, write.max_parallelism, delta, base)?;
        let changes = match &self.unwritten {
            Some(earlier) if !base => snapshot::fold(write.def, &[earlier.clone(), changes], false, None)?,
            Some(_) | None => changes,
        };
        self.unwritten = None;
        self.checkpoint = write.checkpoint;
        self.needs_base = false;
        Ok(changes)
    }
}
