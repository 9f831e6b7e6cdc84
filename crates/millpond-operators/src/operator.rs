//! The operator: what the task loop drives.
//!
//! One call of `process` per batch, one of `end_epoch` per epoch, `resume` while `More` is
//! answered. Marks, barriers, channels and snapshots are the task loop's alone.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::{
    ChangelogBatch, EpochTime, KeyGroupRange, KeyHashes, OperatorMetrics, Result, Timestamp, Watermark,
};
use millpond_state::{Evicted, StateTable};

/// Which input of an operator a batch came from: 0, or 1 for the right side of a join.
pub type InputIndex = usize;

/// Whether a call has said all it has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All said.
    Done,
    /// The output batch is full: send it and call [`Operator::resume`].
    More,
}

/// What an operator answers at the end of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochOutcome {
    /// The watermark to send on: nothing emitted later is late for it (invariant 3).
    pub watermark: Option<Watermark>,
    /// A processing time at which an epoch is wanted even on quiet input.
    pub wake_at: Option<Timestamp>,
    /// `More`: the net change does not fit one batch; `resume` continues it.
    pub progress: Progress,
}

/// Keys of one state table that a batch will touch, by their hashes.
#[derive(Debug, Clone)]
pub struct KeySet {
    /// Index of the table in [`Operator::tables`].
    pub table: usize,
    /// One key hash per row of the batch.
    pub hashes: KeyHashes,
}

/// All keys that a batch will touch; empty for an operator without keyed state.
pub type KeySets = Vec<KeySet>;

/// What an operator may use during a call: the current epoch's facts, counters, and one output
/// batch.
#[derive(Debug)]
pub struct OperatorContext {
    /// The watermark in force during this epoch.
    pub watermark: Option<Watermark>,
    /// The processing time of the open epoch (set at its start for `process`, final at its end).
    pub time: EpochTime,
    /// Counters (invariant 14).
    pub metrics: Arc<OperatorMetrics>,
    output: Option<ChangelogBatch>,
}

impl OperatorContext {
    /// A context in which no epoch has passed.
    pub fn new(metrics: Arc<OperatorMetrics>) -> Self {
        Self { watermark: None, time: Timestamp::MIN, metrics, output: None }
    }

    /// Sends a batch on; at most one per call of the operator, at most
    /// [`millpond_core::limits::BATCH_ROWS_MAX`] rows (invariant 12). Empty batches are dropped.
    pub fn emit(&mut self, batch: ChangelogBatch) {
        assert!(self.output.is_none(), "invariant 12: at most one output batch per call");
        if !batch.is_empty() {
            self.metrics.rows_out.add(batch.num_rows() as u64);
            self.output = Some(batch);
        }
    }

    /// The batch that the last call emitted.
    pub fn take_output(&mut self) -> Option<ChangelogBatch> {
        self.output.take()
    }
}

/// How the state of an operator leaves memory when there is too little of it.
pub enum Residency<'a> {
    /// There is none to speak of.
    Stateless,
    /// It stays, and counts: with its tables, and so many bytes beside them.
    Resident(usize),
    /// Rows of keys that are not in use can leave.
    Spilling(&'a mut dyn Spilling),
}

/// State that leaves memory and comes back, a partition key at a time: all rows of all tables whose
/// partition key has the same hash.
pub trait Spilling {
    /// Gives up rows of keys that the open epoch has not touched, those not used for long first, until
    /// about the fraction `keep` of the keys is left: what left each of its tables, in their order.
    /// Called between batches.
    fn evict(&mut self, keep: f64) -> Result<Vec<Evicted>>;
    /// Takes rows of whole keys back, as they left: of each of its tables, in their order.
    fn admit(&mut self, tables: Vec<Evicted>) -> Result<()>;
    /// Bytes that it holds for its rows beside their tables, estimated.
    fn beside(&self) -> usize;
}

/// How many of `keys` are to go if the fraction `keep` is to stay.
pub(crate) fn surplus(keys: usize, keep: f64) -> usize {
    keys - (keys as f64 * keep.clamp(0.0, 1.0)) as usize
}

/// A streaming operator in one task.
pub trait Operator: Send {
    /// Keys of its state tables that this batch will touch; the task makes them resident before
    /// `process`.
    fn touches(&self, input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets>;
    /// Rows of one input. May emit (stateless) or only update state.
    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress>;
    /// The epoch is complete on all inputs: emit its net change; say which watermark to send on
    /// and when to be woken. `watermark` is in force from the next epoch on.
    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome>;
    /// Called again after [`Progress::More`].
    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress>;
    /// All its state, for the runtime to freeze and load; empty for a stateless operator.
    fn tables(&mut self) -> Vec<&mut dyn StateTable>;
    /// Called once after the last `load` of a restore, before the first row.
    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()>;
    /// How its state leaves memory.
    fn residency(&mut self) -> Residency<'_>;
}

/// The task for which an operator is built.
#[derive(Debug, Clone, Copy)]
pub struct BuildContext {
    /// Index of the task.
    pub index: usize,
    /// Number of tasks of the fragment.
    pub parallelism: usize,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
    /// The key groups that the task owns.
    pub key_groups: KeyGroupRange,
}

/// Builds an operator for each task: the physical description that the planner makes.
pub trait OperatorFactory: Send + Sync + std::fmt::Debug {
    /// The operator's name for EXPLAIN, SHOW JOBS and errors, e.g. `WindowAggregate`.
    fn name(&self) -> &'static str;
    /// Output columns.
    fn schema(&self) -> SchemaRef;
    /// A fresh operator without state.
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>>;
    /// The same operator, with the same state, whose changes replace each other by its key: it says
    /// `+U` without `-U`. `None` if it cannot, or never says `-U`.
    fn without_update_before(&self) -> Option<Arc<dyn OperatorFactory>> {
        None
    }
    /// One line of details for EXPLAIN, e.g. `keys=[origin] aggregates=[COUNT(*)]`.
    fn describe(&self) -> String;
}
