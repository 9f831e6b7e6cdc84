//! What every connector is to the runtime: splits that can be read from a position, and writers
//! whose output is committed in two phases.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::{
    BadRows, ChangelogBatch, ChangelogMode, CheckpointId, Clock, DeadLetterOffice, OnMissingFile, Result,
    SourceMetrics, Timestamp,
};

/// A part of a source with an order of its own: a file, a partition, a generator's lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Split {
    /// Names the split; unique within its source and stable across restarts.
    pub id: String,
}

/// Where a split is to be read next: opaque to all but its connector, exact to the row
/// (invariant 7).
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Position(pub serde_json::Value);

/// What a reader has for its caller.
#[derive(Debug)]
pub enum SourcePoll {
    /// At least one row, at most as many as asked for.
    Rows(ChangelogBatch),
    /// Nothing now; ask again at this processing time (or when the connector's own interval has
    /// passed).
    NotYet {
        /// When to ask again.
        retry_at: Timestamp,
    },
    /// The split has ended.
    End,
}

/// What a reader is given.
#[derive(Debug, Clone)]
pub struct ReaderContext {
    /// The table's name, for messages and dead letters.
    pub table: String,
    /// Which of the source's columns are wanted, in this order (indices into its schema).
    pub projection: Vec<usize>,
    /// What to do with unreadable records.
    pub bad_rows: BadRows,
    /// What to do when a file is gone.
    pub on_missing_file: OnMissingFile,
    /// Where they are kept.
    pub dead_letters: Arc<dyn DeadLetterOffice>,
    /// Counters: the reader adds `read`, `rejected`, `nulled` and `bytes`; the task adds `sent`.
    pub metrics: Arc<SourceMetrics>,
    /// The processing time.
    pub clock: Arc<dyn Clock>,
    /// Where input that cannot be read again is written down; `None`: nowhere.
    pub log_dir: Option<PathBuf>,
}

/// The reading side of a connector table: parsed, checked options.
pub trait SourceConnector: Send + Sync + std::fmt::Debug {
    /// The columns it gives.
    fn schema(&self) -> SchemaRef;
    /// Whether the input ends by itself.
    fn is_bounded(&self) -> bool;
    /// The changelog it gives.
    fn mode(&self) -> ChangelogMode;
    /// The splits there are now, in the order in which they are best opened. Called once for a
    /// bounded source, again at [`SourceConnector::discovery_interval`] for an unbounded one.
    fn splits(&self) -> Result<Vec<Split>>;
    /// How often to look for new splits, in microseconds; `None`: never.
    fn discovery_interval(&self) -> Option<i64>;
    /// Reads a split from a position on, or from its start. After a seek exactly the rows
    /// behind the position come, in the same order.
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>>;
    /// No checkpoint that is kept needs anything before these positions, one per split. `log_dir` is
    /// that of the readers. Only what was written down can be let go.
    fn release(&self, _log_dir: Option<&Path>, _positions: &[Position]) -> Result<()> {
        Ok(())
    }
}

/// Reads one split. May block on local IO for about as long as one batch takes.
pub trait SplitReader: Send {
    /// Up to `rows_max` rows.
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll>;
    /// The position right behind the last row given.
    fn position(&self) -> Position;
}

/// What a sink has prepared: durable, not yet visible; opaque to all but its connector.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Committable(pub serde_json::Value);

/// The asynchronous rest of a pre-commit (flush, fsync): run on a background thread before the
/// checkpoint is acknowledged.
pub struct PreCommit(Box<dyn FnOnce() -> Result<Vec<Committable>> + Send>);

impl PreCommit {
    /// Work that ends with what is to be committed.
    pub fn new(work: impl FnOnce() -> Result<Vec<Committable>> + Send + 'static) -> Self {
        Self(Box::new(work))
    }
    /// Nothing to commit.
    pub fn nothing() -> Self {
        Self::new(|| Ok(Vec::new()))
    }
    /// Does the work.
    pub fn run(self) -> Result<Vec<Committable>> {
        (self.0)()
    }
}

impl std::fmt::Debug for PreCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PreCommit")
    }
}

/// Who writes: names what is written so that a crashed writer's leavings can be told apart.
#[derive(Debug, Clone)]
pub struct SinkContext {
    /// Identifies the job (unique in the data directory, kept across restarts).
    pub job: String,
    /// Counts the job's starts: the fence against a former self.
    pub generation: u64,
    /// Index of the task.
    pub index: usize,
    /// Number of tasks.
    pub parallelism: usize,
    /// The processing time.
    pub clock: Arc<dyn Clock>,
}

/// The writing side of a connector table.
pub trait SinkConnector: Send + Sync + std::fmt::Debug {
    /// The columns it takes.
    fn schema(&self) -> SchemaRef;
    /// The richest changelog that it can take.
    fn mode(&self) -> ChangelogMode;
    /// Whether it can do without the old images of changed rows (`-U`), and without a key.
    fn ignores_update_before(&self) -> bool {
        false
    }
    /// Whether output becomes visible only by a commit.
    fn is_transactional(&self) -> bool;
    /// A writer for one task.
    fn open(&self, context: SinkContext) -> Result<Box<dyn SinkWriter>>;
    /// Makes prepared output visible. Idempotent: repeated on restore (invariant 9).
    fn commit(&self, committables: &[Committable]) -> Result<()>;
    /// Removes what earlier generations of the job have prepared or begun, except `keep` (whose
    /// commit is still owed). Called on start, before any writer is opened.
    fn abort_dangling(&self, job: &str, keep: &[Committable]) -> Result<()>;
    /// Output that `job` has made visible with a later checkpoint than this one, by name: going on
    /// from this one would write it again.
    fn committed_after(&self, job: &str, checkpoint: CheckpointId) -> Result<Option<String>>;
}

/// Writes one task's rows.
pub trait SinkWriter: Send {
    /// Rows of the open epoch.
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()>;
    /// The epoch is complete: non-transactional sinks publish it.
    fn end_epoch(&mut self) -> Result<()>;
    /// Closes the current transaction and begins the next. The returned work makes it durable.
    fn pre_commit(&mut self, checkpoint: CheckpointId) -> Result<PreCommit>;
}

/// A connector table: what `WITH (…)` has been parsed into.
#[derive(Debug, Clone, Default)]
pub struct ConnectorTable {
    /// The reading side, if it can be read.
    pub source: Option<Arc<dyn SourceConnector>>,
    /// The writing side, if it can be written.
    pub sink: Option<Arc<dyn SinkConnector>>,
    /// The table's own `bad-rows`, if given.
    pub bad_rows: Option<BadRows>,
    /// The table's own `on-missing-file`, if given.
    pub on_missing_file: Option<OnMissingFile>,
    /// The table's own `source.idle-timeout` in microseconds, if given.
    pub idle_timeout: Option<i64>,
    /// The table's own `source.max-future` in microseconds, if given.
    pub max_future: Option<i64>,
}
