//! How a plan runs: tasks, exchange, alignment, the epoch clock, the coordinator, restore.
//!
//! The crate must not know SQL or the catalog.
//!
//! ```text
//! JobGraph ─start_job─▶ supervisor ─▶ attempt: restore, deploy ─▶ tasks
//!                                       └─▶ driver: epoch clock, coordinator
//! ```
//!
//! A row: `source` ─▶ `chain` ─▶ `tail`, `exchange` ─▶ `align` ─▶ `task` … ─▶ sink.
//! A barrier: `coordinator` ─▶ `driver` ─▶ `source` ─▶ `task` ─▶ `snapshot` ─▶ `driver` (metadata,
//! then `pending`: sinks).

mod admission;
mod align;
mod attempt;
mod background;
mod chain;
mod clock;
mod coordinator;
mod driver;
mod exchange;
mod flush;
pub mod graph;
mod job;
mod memory;
mod options;
mod pending;
mod release;
mod report;
mod restore;
mod restore_plan;
mod snapshot;
mod source;
mod splits;
mod tail;
mod task;
#[cfg(test)]
mod testing;
mod timer;
mod validate;

pub use admission::{Refusal, TriggerPolicy};
pub use coordinator::Trigger;
pub use graph::{Exchange, Fragment, Head, JobGraph, OperatorNode, SinkNode, SourceNode, Tail};
pub use job::{JobHandle, JobStatus, start_job};
pub use memory::{Memory, MemoryBudget};
pub use options::{CheckpointMode, Environment, JobOptions, RestartPolicy};
pub use report::{
    CheckpointEvent, CheckpointReport, CheckpointStatus, CheckpointTotals, JobMetrics, OperatorReport,
    RefusedCheckpoint, SourceReport,
};
pub use restore_plan::{Fate, RestoreItem, explain_restore};
