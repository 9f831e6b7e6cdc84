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
mod options;
mod pending;
mod report;
mod restore;
mod snapshot;
mod source;
mod splits;
mod tail;
mod task;
#[cfg(test)]
mod testing;
mod timer;
mod validate;

pub use coordinator::Trigger;
pub use graph::{Exchange, Fragment, Head, JobGraph, OperatorNode, SinkNode, SourceNode, Tail};
pub use job::{JobHandle, JobStatus, start_job};
pub use options::{Environment, JobOptions, RestartPolicy};
pub use report::{CheckpointReport, CheckpointStatus, JobMetrics, OperatorReport, SourceReport};
