//! Parquet parts, and RocksDB beside them: native checkpoints for a fast local restart.
//!
//! Parquet is the truth. A native checkpoint exists only when RocksDB has seen every delta that the
//! parts hold; whenever that is in doubt the table is *stale* until it has written a base, and no
//! native checkpoint is made meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, KeyGroup, KeyGroupRange, OperatorUid, Result};

use super::filesystem::FilesystemStore;
use super::tables::{TableAddress, lock};
use super::{CheckpointMetadata, StateStore, StoredCheckpoint, TablePart, Verify};
use crate::files;
use crate::rocks::{self, Ingest, NativeSnapshot, Rocks};
use crate::snapshot::{self, PartRows};
use crate::table::{Delta, TableDef};

/// A store in a folder, with RocksDB.
#[derive(Debug)]
pub struct RocksStore {
    parquet: FilesystemStore,
    /// Guards the working database and what is known of it: deltas enter one at a time.
    working: Mutex<Working>,
    /// The native checkpoint that was read last: the tables of a job are read one after another.
    reading: Mutex<Option<Arc<Reading>>>,
}

#[derive(Debug)]
struct Reading {
    checkpoint: CheckpointId,
    snapshot: Option<NativeSnapshot>,
}

#[derive(Debug)]
struct Working {
    /// `None` when it failed: no native checkpoints until the next start.
    rocks: Option<Rocks>,
    tables: HashMap<TableAddress, NativeTable>,
}

/// What RocksDB has of a task's table.
#[derive(Debug, Default)]
struct NativeTable {
    /// Rows are missing until a base comes.
    stale: bool,
    /// The key groups in which it may have rows.
    groups: BTreeSet<KeyGroup>,
}

impl RocksStore {
    /// Opens the store of a job in its folder, which is created if need be.
    pub fn open(folder: &Path) -> Result<Self> {
        let parquet = FilesystemStore::open(folder)?;
        let working = Working { rocks: Some(Rocks::create(folder)?), tables: HashMap::new() };
        Ok(Self { parquet, working: Mutex::new(working), reading: Mutex::default() })
    }

    fn native(&self, checkpoint: CheckpointId) -> (String, PathBuf) {
        let path = format!("native/{}", files::checkpoint_folder(checkpoint));
        let full = self.parquet.path().join(&path);
        (path, full)
    }

    /// Starts over with an empty database, of which every table needs a base.
    fn distrust(&self, working: &mut Working) {
        working.rocks = None;
        working.rocks = Rocks::create(self.parquet.path())
            .inspect_err(
                |error| tracing::warn!(%error, "rocksdb is not available; continuing with parquet alone"),
            )
            .ok();
        for table in working.tables.values_mut() {
            table.stale = true;
        }
    }

    /// Hands a change to RocksDB. That it fails costs the native checkpoint, not the delta.
    fn ingest(&self, address: TableAddress, def: &TableDef, checkpoint: CheckpointId, rows: &PartRows) {
        let mut working = lock(&self.working);
        if !rocks::holds(def) {
            working.tables.remove(&address);
            return;
        }
        if rows.is_empty() && !rows.base {
            return;
        }
        let Working { rocks: Some(rocks), tables } = &mut *working else {
            return;
        };
        let table = tables.entry(address.clone()).or_default();
        if table.stale && !rows.base {
            return;
        }
        let ingest = Ingest { uid: &address.uid, def, checkpoint, rows, groups: &table.groups };
        match rocks.ingest(&ingest) {
            Ok(()) => table.learn(rows),
            Err(error) => {
                // What it has is incomplete now; the next start makes it anew.
                tracing::warn!(%error, "rocksdb did not take a delta; continuing with parquet alone");
                working.rocks = None;
            }
        }
    }

    fn link(&self, working: &Working, checkpoint: CheckpointId) -> Option<String> {
        let rocks = working.rocks.as_ref()?;
        let stale = working.tables.values().any(|table| table.stale);
        // A delta of a later checkpoint is in already: its rows must not be taken for this one's.
        if stale || rocks.newest() > checkpoint {
            return None;
        }
        let (path, full) = self.native(checkpoint);
        match rocks.link(&full, checkpoint, self.parquet.generation()) {
            Ok(()) => Some(path),
            Err(error) => {
                tracing::warn!(%error, %checkpoint, "checkpoint has no native files");
                None
            }
        }
    }

    fn snapshot(&self, checkpoint: &CheckpointMetadata) -> Arc<Reading> {
        let mut reading = lock(&self.reading);
        let open = reading.as_ref().filter(|reading| reading.checkpoint == checkpoint.checkpoint);
        if let Some(open) = open {
            return open.clone();
        }
        let (_, full) = self.native(checkpoint.checkpoint);
        let snapshot = NativeSnapshot::open(&full, checkpoint.checkpoint, checkpoint.generation)
            .inspect_err(|error| tracing::warn!(%error, "native files are of no use; reading parquet"));
        let opened = Arc::new(Reading { checkpoint: checkpoint.checkpoint, snapshot: snapshot.ok() });
        reading.insert(opened).clone()
    }

    /// Native files that cannot be read must not be built upon.
    fn read_native(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Option<Vec<RecordBatch>> {
        let listed =
            checkpoint.operators.get(uid).is_some_and(|operator| operator.tables.contains_key(&def.name));
        if checkpoint.native.is_none() || !listed || !rocks::holds(def) {
            return None;
        }
        let reading = self.snapshot(checkpoint);
        match reading.snapshot.as_ref()?.read(uid, def, range) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(%error, table = def.name, "native files are damaged; reading parquet");
                let unusable = Reading { checkpoint: checkpoint.checkpoint, snapshot: None };
                *lock(&self.reading) = Some(Arc::new(unusable));
                let mut working = lock(&self.working);
                if working.rocks.is_some() {
                    self.distrust(&mut working);
                }
                None
            }
        }
    }

    /// Whether native files may be continued from: there, not found damaged, of our making.
    fn usable(&self, checkpoint: &CheckpointMetadata) -> bool {
        checkpoint.native.is_some() && self.snapshot(checkpoint).snapshot.is_some()
    }

    fn continue_native(
        &self,
        working: &mut Working,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        let (_, native) = self.native(checkpoint.checkpoint);
        let keep = |uid: &OperatorUid, table: &str| {
            let operator = checkpoint.operators.get(uid).filter(|_| tasks.contains_key(uid));
            operator.is_some_and(|operator| operator.tables.contains_key(table))
        };
        working.rocks = None;
        let job = self.parquet.path();
        working.rocks = Some(Rocks::continue_from(job, &native, checkpoint.max_parallelism, keep)?);
        Ok(())
    }

    /// What RocksDB has of each task's table; `complete` when it continues from the checkpoint.
    fn native_tables(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
        complete: bool,
    ) -> HashMap<TableAddress, NativeTable> {
        let mut tables = HashMap::new();
        for (uid, operator) in &checkpoint.operators {
            let tasks = tasks.get(uid).copied().unwrap_or(0);
            for (table, task) in
                operator.tables.keys().flat_map(|table| (0..tasks).map(move |task| (table, task)))
            {
                let range = KeyGroupRange::of_task(task, tasks, checkpoint.max_parallelism);
                let stale = !complete || self.parquet.needs_base(uid, table, task);
                let address = TableAddress { uid: uid.clone(), table: table.clone(), task };
                tables.insert(address, NativeTable { stale, groups: (range.start..range.end).collect() });
            }
        }
        tables
    }
}

impl NativeTable {
    fn learn(&mut self, rows: &PartRows) {
        if rows.base {
            self.stale = false;
            self.groups.clear();
        }
        for batch in &rows.batches {
            self.groups.extend(snapshot::key_groups(batch).values());
        }
    }
}

impl StateStore for RocksStore {
    fn generation(&self) -> u64 {
        self.parquet.generation()
    }
    fn next_generation(&self) -> Result<u64> {
        let generation = self.parquet.next_generation()?;
        let mut working = lock(&self.working);
        working.tables.clear();
        self.distrust(&mut working);
        *lock(&self.reading) = None;
        Ok(generation)
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        self.parquet.last_checkpoint_id()
    }
    fn newest_completed(&self) -> CheckpointId {
        self.parquet.newest_completed()
    }
    fn write_delta(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        max_parallelism: u16,
        delta: Delta,
        base: bool,
    ) -> Result<Vec<TablePart>> {
        let written =
            self.parquet.write_changes(uid, def, task, checkpoint, max_parallelism, &delta, base)?;
        let address = TableAddress { uid: uid.clone(), table: def.name.clone(), task };
        self.ingest(address, def, checkpoint, &written.changes);
        Ok(written.parts)
    }
    fn link_native(&self, checkpoint: CheckpointId) -> Result<Option<String>> {
        Ok(self.link(&lock(&self.working), checkpoint))
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        *lock(&self.reading) = None;
        self.parquet.commit(metadata)
    }
    fn retain(&self, retained: usize) -> Result<()> {
        *lock(&self.reading) = None;
        self.parquet.retain(retained)
    }
    fn abort(&self, checkpoint: CheckpointId) -> Result<()> {
        self.parquet.abort(checkpoint)
    }
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>> {
        self.parquet.checkpoints(verify)
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        match self.read_native(checkpoint, uid, def, range) {
            Some(rows) => Ok(rows),
            None => self.parquet.read_table(checkpoint, uid, def, range),
        }
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        self.parquet.continue_from(checkpoint, tasks)?;
        let usable = self.usable(checkpoint);
        let mut working = lock(&self.working);
        let continued = usable
            && self
                .continue_native(&mut working, checkpoint, tasks)
                .inspect_err(
                    |error| tracing::warn!(%error, "native files cannot be continued; starting them anew"),
                )
                .is_ok();
        if !continued {
            self.distrust(&mut working);
        }
        working.tables = self.native_tables(checkpoint, tasks, continued);
        Ok(())
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        let address = TableAddress { uid: uid.clone(), table: table.into(), task };
        let working = lock(&self.working);
        let stale = working.rocks.is_some() && working.tables.get(&address).is_some_and(|table| table.stale);
        stale || self.parquet.needs_base(uid, table, task)
    }
}
