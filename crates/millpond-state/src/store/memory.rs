//! Checkpoints kept in the process's memory: for tests, and for jobs without a data directory.
//!
//! They outlive a job, not the process: a job that is started again on the same store (an `Arc`
//! that the engine keeps) restores from them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, Error, KeyGroupRange, OperatorUid, Result};

use super::ledger::{Kept, Ledger};
use super::tables::{PartStorage, TableAddress, Tables, Write, lock};
use super::{CheckpointMetadata, FileHandle, StateStore, StoredCheckpoint, TablePart, Verify};
use crate::files::{self, PartName};
use crate::metadata;
use crate::snapshot::PartRows;
use crate::table::{Delta, TableDef};

/// A store without files.
#[derive(Debug)]
pub struct MemoryStore {
    tables: Tables<Parts>,
    checkpoints: Mutex<BTreeMap<CheckpointId, CheckpointMetadata>>,
    generation: AtomicU64,
    last_checkpoint: AtomicU64,
}

/// Parts by path.
#[derive(Debug, Default)]
struct Parts(Mutex<HashMap<String, PartRows>>);

impl PartStorage for Parts {
    fn write(
        &self,
        address: &TableAddress,
        name: PartName,
        _def: &TableDef,
        rows: &PartRows,
    ) -> Result<FileHandle> {
        let path = files::part_path(&address.uid, &address.table, name);
        let bytes = rows.batches.iter().map(RecordBatch::get_array_memory_size).sum::<usize>() as u64;
        lock(&self.0).insert(path.clone(), rows.clone());
        Ok(FileHandle { path, bytes, crc32c: files::hexadecimal(0) })
    }
    fn read(&self, file: &FileHandle, _def: &TableDef, _range: KeyGroupRange) -> Result<Vec<RecordBatch>> {
        let parts = lock(&self.0);
        let rows =
            parts.get(&file.path).ok_or_else(|| Error::corrupt(format!("part {:?} is gone", file.path)))?;
        Ok(rows.batches.clone())
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self {
            tables: Tables::new(Parts::default(), Ledger::default()),
            checkpoints: Mutex::default(),
            generation: AtomicU64::new(1),
            last_checkpoint: AtomicU64::new(0),
        }
    }

    fn saw(&self, checkpoint: CheckpointId) {
        self.last_checkpoint.fetch_max(checkpoint.0, Ordering::SeqCst);
    }

    fn collect(&self) {
        let garbage = self.tables.ledger().take_garbage();
        let mut parts = lock(&self.tables.storage.0);
        for path in garbage {
            parts.remove(&path);
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl StateStore for MemoryStore {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
    fn next_generation(&self) -> Result<u64> {
        self.tables.continue_from(None, &BTreeMap::new());
        Ok(self.generation.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        CheckpointId(self.last_checkpoint.load(Ordering::SeqCst))
    }
    fn newest_completed(&self) -> CheckpointId {
        lock(&self.checkpoints).keys().next_back().copied().unwrap_or_default()
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
        self.saw(checkpoint);
        let address = TableAddress { uid: uid.clone(), table: def.name.clone(), task };
        let generation = self.generation();
        let write = Write { address, def, checkpoint, generation, max_parallelism };
        Ok(self.tables.write(&write, &delta, base)?.parts)
    }
    fn link_native(&self, _checkpoint: CheckpointId) -> Result<Option<String>> {
        Ok(None)
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        self.saw(metadata.checkpoint);
        let kept = Kept::of(metadata);
        lock(&self.checkpoints).insert(metadata.checkpoint, metadata.clone());
        self.tables.ledger().commit(metadata.checkpoint, kept);
        Ok(())
    }
    fn retain(&self, retained: usize) -> Result<()> {
        let surplus = self.tables.ledger().surplus(retained);
        for checkpoint in surplus {
            lock(&self.checkpoints).remove(&checkpoint);
            self.tables.ledger().forget(checkpoint);
        }
        self.collect();
        Ok(())
    }
    fn abort(&self, checkpoint: CheckpointId) -> Result<()> {
        self.saw(checkpoint);
        lock(&self.checkpoints).remove(&checkpoint);
        self.tables.ledger().forget(checkpoint);
        self.collect();
        Ok(())
    }
    fn checkpoints(&self, _verify: Verify) -> Result<Vec<StoredCheckpoint>> {
        let checkpoints = lock(&self.checkpoints);
        let stored = |metadata: &CheckpointMetadata| StoredCheckpoint {
            bytes: metadata::files_of(metadata).map(|file| file.bytes).sum(),
            metadata: metadata.clone(),
        };
        Ok(checkpoints.values().rev().map(stored).collect())
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        self.tables.read(checkpoint, uid, def, range)
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        self.tables.continue_from(Some(checkpoint), tasks);
        Ok(())
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        self.tables.needs_base(&TableAddress { uid: uid.clone(), table: table.into(), task })
    }
}
