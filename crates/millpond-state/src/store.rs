//! The store of one job: takes deltas, makes checkpoints of them, and gives them back.
//!
//! `memory` keeps the checkpoints in the process, `filesystem` writes Parquet parts, `rocksdb`
//! ingests each delta as sorted files too and takes a hard-link checkpoint. One face serves all.
//! Everything here blocks and is called from background threads.
//!
//! ```text
//! for each table:  write_delta ──▶ TablePart (durable, with length and CRC32C)
//! then once:       commit(metadata) — the commit point — then retain
//! ```
//!
//! Layout, below the job's folder:
//!
//! ```text
//! LOCK  GENERATION                                    one process; one number per start
//! chk-42/metadata.json                                the checkpoint exists iff this does
//! shared/op=<uid>/table=<name>/<delta|base>-<task>-<checkpoint>-<generation>.parquet
//! native/chk-42/…                                     RocksDB hard links (rocksdb only)
//! rocksdb/…                                           RocksDB's working files, disposable
//! ```
//!
//!  1. A file that a checkpoint refers to is never changed, and is removed after it.
//!  2. A delta whose write failed is kept and becomes part of the next one.
//!  3. Rows that are read are those that were written, or the answer is an error: every byte is
//!     checked on the way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, Error, KeyGroupRange, OperatorUid, Result, Timestamp};

use crate::table::{Delta, TableDef, TableKind};

mod filesystem;
mod ledger;
mod memory;
pub(crate) mod part_list;
mod remote;
#[cfg(feature = "rocksdb")]
mod rocks;
mod tables;

pub use filesystem::FilesystemStore;
pub use memory::MemoryStore;
pub use remote::{RemoteFiles, RemoteStore, fetch_snapshot, send_snapshot};
#[cfg(feature = "rocksdb")]
pub use rocks::RocksStore;

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
    /// Window tables: rows of *earlier* parts whose window end is at or below this are gone.
    pub expired_through: Option<i64>,
    /// Window tables: the largest window end in the file, so that a part can be dropped whole.
    pub window_max: Option<i64>,
    /// Between which key groups its rows lie, so that a task need not open what is not its own.
    pub key_groups: Option<KeyGroupRange>,
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
    /// Per task index, oldest first; an entry for *every* task, also when its list is empty: their
    /// number is how many tasks the operator had.
    pub parts: BTreeMap<usize, Vec<TablePart>>,
}

impl TableSnapshot {
    /// A table's description, without parts.
    pub fn describe(def: &TableDef) -> Self {
        let kind = match def.kind {
            TableKind::Value => "value",
            TableKind::Window => "window",
            TableKind::Multimap => "multimap",
        };
        let role = |index: usize| match def.kind {
            TableKind::Window if index == 0 => "window",
            _kind if def.partition_columns.contains(&index) => "key",
            TableKind::Multimap if index + 1 == def.identity_columns => "row",
            _kind if index < def.identity_columns => "key",
            _kind => "state",
        };
        let fields = def.schema.fields().iter().enumerate();
        let column = |(index, field): (usize, &arrow::datatypes::FieldRef)| {
            (field.name().clone(), field.data_type().to_string(), role(index).to_string())
        };
        Self { kind: kind.into(), columns: fields.map(column).collect(), parts: BTreeMap::new() }
    }
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
    /// The name under which its sinks wrote; empty where that was the job's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub writer: String,
    /// The start of the job that wrote it.
    pub generation: u64,
    /// Its number.
    pub checkpoint: CheckpointId,
    /// `checkpoint` or `savepoint`.
    pub kind: String,
    /// `interval`, `every-rows`, `external`, `manual`, `savepoint`, `end-of-input`, `stop`, `drain`.
    pub trigger: String,
    /// `exactly_once` or `at_least_once`.
    #[serde(default = "exactly_once")]
    pub mode: String,
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

/// Metadata that does not say it is of the only mode there was.
fn exactly_once() -> String {
    "exactly_once".into()
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
    /// The job starts again on this open store: the fence advances, and part lists, checkpoints in
    /// progress and unwritten deltas are forgotten. Call it once the old tasks' background work has
    /// ended, before [`StateStore::continue_from`]; not needed right after opening. Answers the new
    /// generation.
    fn next_generation(&self) -> Result<u64>;
    /// The largest checkpoint number ever used in the folder, aborted ones included.
    fn last_checkpoint_id(&self) -> CheckpointId;
    /// The newest checkpoint that was ever complete, also if it is damaged or gone by now: up to
    /// it, sinks may have committed. Zero if there was none.
    fn newest_completed(&self) -> CheckpointId;
    /// Makes a delta (or, `base`, everything) of a task's table durable and answers the *whole*
    /// list of parts that the table of this task now consists of, oldest first. When the deltas
    /// outweigh the base, the parts are merged into a new base here. What was written for a
    /// checkpoint that failed stays in the list: the next one needs it. When it fails, the delta is
    /// kept here and becomes part of the next one, so the task must not hand it in again. Call it
    /// for every table of every task at every checkpoint, also with an empty delta, and one
    /// checkpoint of a task's table after the other.
    #[allow(
        clippy::too_many_arguments,
        reason = "each names a different thing of one address and one change"
    )]
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
    /// Valid checkpoints, newest first. Damaged ones are left out with a warning and renamed, so
    /// that this also is the way to fall back: when [`StateStore::read_table`] finds damage that
    /// [`Verify::Size`] could not, call this with [`Verify::Crc`] and take the first.
    ///
    /// Errors: *Invalid* when another version of the format wrote one.
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>>;
    /// The live rows of a table as of a checkpoint that lie in `range`: deltas folded over the
    /// base, expired windows left out. Reading changes nothing.
    ///
    /// Errors: *Corrupt* when a file is not what was written, *Invalid* when the table has other
    /// columns now.
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>>;
    /// Declares from which checkpoint the job continues, and with how many tasks per operator:
    /// tables whose tasks are the same continue their part lists; the others write a base next.
    /// Call it before the first delta.
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()>;
    /// Whether this task's table must write a base next: after a rescale, or when what is stored
    /// of it turned out to be damaged. Ask when freezing; a delta instead of a base is refused.
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

/// Opens the store of a job: creates its folder, takes its lock, advances the fence and removes
/// what crashed starts left behind.
///
/// Errors: *Unavailable* when another process has the folder, *Invalid* when the options do not fit
/// together.
pub fn open_store(options: &StoreOptions) -> Result<Arc<dyn StateStore>> {
    let dir = || {
        options.dir.as_deref().ok_or_else(|| {
            Error::invalid(format!("state backend {:?} needs a folder", options.backend))
                .with_hint("set a data directory, or state.backend = 'memory'")
        })
    };
    match options.backend {
        Backend::Memory => Ok(Arc::new(MemoryStore::new())),
        Backend::Filesystem => Ok(Arc::new(FilesystemStore::open(dir()?)?)),
        #[cfg(feature = "rocksdb")]
        Backend::Rocksdb => Ok(Arc::new(RocksStore::open(dir()?)?)),
        #[cfg(not(feature = "rocksdb"))]
        Backend::Rocksdb => Err(Error::invalid("this build of millpond has no RocksDB")
            .with_hint("set state.backend = 'filesystem', or build with the feature \"rocksdb\"")),
    }
}

#[cfg(test)]
mod tests;
