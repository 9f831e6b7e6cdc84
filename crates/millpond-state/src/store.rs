//! The store of one job: takes deltas, makes checkpoints of them, and gives them back.
//!
//! `memory` keeps the checkpoints in the process, `filesystem` writes Parquet parts, `rocksdb`
//! ingests each delta as sorted files too and takes a hard-link checkpoint. One face serves all.
//! Everything here blocks and is called from background threads.
//!
//!     for each table:  write_delta ──▶ TablePart (durable, with length and CRC32C)
//!     then once:       commit(metadata) — the commit point — then retain
//!
//! Layout (STATE.md § 4), below the job's folder:
//!
//!     LOCK  GENERATION
//!     chk-42/metadata.json                                the checkpoint exists iff this does
//!     shared/op=<uid>/table=<name>/<delta|base>-<task>-<checkpoint>-<generation>.parquet
//!     native/chk-42/…                                     RocksDB hard links (rocksdb only)

use std::collections::BTreeMap;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, KeyGroupRange, OperatorUid, Result, Timestamp};

use crate::table::{Delta, TableDef};

/// Where state goes (`state.backend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The process's memory; gone with it.
    Memory,
    /// Parquet parts.
    Filesystem,
    /// Parquet parts, and RocksDB beside them.
    Rocksdb,
}

/// What is checked of a checkpoint before it is chosen (`restore.verify`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Every file is there and has its length.
    Size,
    /// And its CRC32C.
    Crc,
}

/// A file that a checkpoint refers to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileHandle {
    /// Path below the job's folder.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// Checksum, as 8 hexadecimal digits.
    pub crc32c: String,
}

/// One task's file of one table: a base (everything) or a delta.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TablePart {
    /// The file; `None` when nothing but an expiry is recorded.
    pub file: Option<FileHandle>,
    /// The checkpoint for which it was written.
    pub checkpoint: CheckpointId,
    /// Whether it holds everything, so that earlier parts are not needed.
    pub base: bool,
    /// Rows in it, deletes included.
    pub rows: u64,
    /// Window tables: rows whose window end is at or below this, in this part or an earlier one, are gone.
    pub expired_through: Option<i64>,
    /// Window tables: the largest window end in the file, so that a part can be dropped whole.
    pub window_max: Option<i64>,
}

/// The state of one operator of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct OperatorSnapshot {
    /// Readable name, e.g. `WindowAggregate`.
    pub name: String,
    /// Per table name: its definition (Arrow schema as JSON) and the parts of all tasks, oldest first.
    pub tables: BTreeMap<String, TableSnapshot>,
    /// Operator state: lists of JSON values by name (split positions, committables, watermarks).
    pub lists: BTreeMap<String, Vec<serde_json::Value>>,
}

/// The parts of one table of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TableSnapshot {
    /// `value`, `window` or `multimap`.
    pub kind: String,
    /// Columns as `(name, SQL-readable type, role)`; role is `key`, `window`, `row` or `state`.
    pub columns: Vec<(String, String, String)>,
    /// Per task index, oldest first.
    pub parts: BTreeMap<usize, Vec<TablePart>>,
}

/// The file that makes a checkpoint valid (invariant 8).
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CheckpointMetadata {
    /// `millpond-checkpoint/1`.
    pub format: String,
    /// Version of the engine that wrote it.
    pub engine_version: String,
    /// Name of the job.
    pub job: String,
    /// The start of the job that wrote it.
    pub generation: u64,
    /// Its number.
    pub checkpoint: CheckpointId,
    /// `checkpoint` or `savepoint`.
    pub kind: String,
    /// `interval`, `every-rows`, `manual`, `end-of-input`, `stop`.
    pub trigger: String,
    /// When it was asked for (processing time, microseconds).
    pub triggered_at: Timestamp,
    /// When its last part was durable.
    pub completed_at: Timestamp,
    /// Number of key groups; fixed for the job.
    pub max_parallelism: u16,
    /// Whether the job's input had ended and nothing remains to be done after it.
    pub finished: bool,
    /// The state, by operator uid.
    pub operators: BTreeMap<OperatorUid, OperatorSnapshot>,
    /// RocksDB's hard-linked files, if any: a folder below the job's folder.
    pub native: Option<String>,
}

/// A completed or failed checkpoint as `SHOW CHECKPOINTS` lists it is kept by the coordinator;
/// this is what the store knows of one on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCheckpoint {
    /// Its metadata.
    pub metadata: CheckpointMetadata,
    /// Bytes of all files it refers to.
    pub bytes: u64,
}

/// The store of one job; shared by its tasks' background work.
pub trait StateStore: Send + Sync + std::fmt::Debug {
    /// The start of the job that this store serves: one more than the last one's (the fence).
    fn generation(&self) -> u64;
    /// The largest checkpoint number ever used in the folder, aborted ones included.
    fn last_checkpoint_id(&self) -> CheckpointId;
    /// Makes a delta (or, `base`, everything) of a task's table durable and answers the *whole*
    /// list of parts that the table of this task now consists of, oldest first. When the deltas
    /// outweigh the base, the parts are merged into a new base here. What was written for a
    /// checkpoint that failed stays in the list: the next one needs it.
    fn write_delta(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        max_parallelism: u16,
        delta: Delta,
        base: bool,
    ) -> Result<Vec<TablePart>>;
    /// RocksDB: hard-links its files for a checkpoint; the folder's path below the job's folder.
    fn link_native(&self, checkpoint: CheckpointId) -> Result<Option<String>>;
    /// The commit point: writes the metadata atomically and durably.
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()>;
    /// Removes all but the newest `retained` checkpoints, and files that no checkpoint refers to.
    fn retain(&self, retained: usize) -> Result<()>;
    /// Removes what a failed checkpoint left, except parts that the next one needs.
    fn abort(&self, checkpoint: CheckpointId) -> Result<()>;
    /// Valid checkpoints, newest first. Damaged ones are left out with a warning and renamed.
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>>;
    /// The live rows of a table as of a checkpoint that lie in `range`: deltas folded over the
    /// base, expired windows left out. Also seeds this store's part lists, so that the next
    /// delta continues from here (when `continue_parts`: same number of tasks as then).
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>>;
    /// Declares from which checkpoint the job continues, and with how many tasks per operator:
    /// tables whose tasks are the same continue their part lists; the others write a base next.
    fn continue_from(&self, checkpoint: &CheckpointMetadata, tasks: &BTreeMap<OperatorUid, usize>) -> Result<()>;
    /// Whether this task's table must write a base next (after a rescale).
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool;
}

/// Opens the store of a job.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where state goes.
    pub backend: Backend,
    /// The job's folder; `None` only for [`Backend::Memory`].
    pub dir: Option<PathBuf>,
}
