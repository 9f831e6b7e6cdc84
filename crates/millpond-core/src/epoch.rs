//! What flows along an edge: batches of rows and epoch marks, nothing else.

use crate::changelog::ChangelogBatch;
use crate::id::{CheckpointId, Epoch};
use crate::time::Timestamp;

/// A point in event time up to which an input is complete: no row with an earlier or equal time
/// is expected any more.
pub type Watermark = Timestamp;

/// The one processing time of an epoch; `NOW()` and `PROCTIME()` read it.
pub type EpochTime = Timestamp;

/// An element of an edge.
#[derive(Debug, Clone)]
pub enum Element {
    /// Rows of the open epoch.
    Batch(ChangelogBatch),
    /// The end of an epoch.
    EpochEnd(EpochMark),
}

/// The in-band end of an epoch: a consistent cut of the input.
///
/// Marks on an edge have consecutive epochs (invariant 2); the watermark never decreases
/// (invariant 3) and takes effect between this epoch and the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochMark {
    /// The epoch that ends here.
    pub epoch: Epoch,
    /// Its processing time.
    pub time: EpochTime,
    /// The watermark from here on; `None` while there is none.
    pub watermark: Option<Watermark>,
    /// The sender's inputs are all idle: its watermark does not hold others back.
    pub idle: bool,
    /// A request to freeze the state as of this cut.
    pub barrier: Option<Barrier>,
    /// No element follows.
    pub end: bool,
}

/// A request that travels on an epoch mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Barrier {
    /// The checkpoint it belongs to.
    pub checkpoint: CheckpointId,
    /// What the snapshot is for.
    pub kind: BarrierKind,
}

/// What a snapshot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierKind {
    /// An automatic snapshot, which the engine may delete.
    Checkpoint,
    /// A snapshot that belongs to the user.
    Savepoint,
    /// A snapshot after which the job stops; nothing follows it.
    Stop,
}
