//! Millpond: declarative streaming SQL in your process.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> millpond::Result<()> {
//! let engine = millpond::Engine::ephemeral()?;
//! let session = engine.session();
//! session.execute("CREATE TABLE t (a INT) WITH ('connector' = 'values', 'data' = '1\n2')").await?;
//! let answer = session.query("SELECT SUM(a) AS s FROM t").await?;
//! let batches = answer.batches().await?;
//! assert_eq!(batches[0].num_rows(), 1);
//! # Ok(()) }
//! ```
//!
//! An [`Engine`] owns what exists (tables, views, jobs, a data directory); a [`Session`] says what
//! is to be done. Both run inside the host's tokio runtime and need its multi-thread flavour.
//! The crate is wiring only; it must not know terminals or sockets.

mod answer;
mod catalog_log;
mod dead_letters;
mod dependants;
mod deploy;
mod engine;
mod inspect;
mod job;
mod native_table;
mod object_store;
mod prepared;
mod session;
mod settings;
mod show;
mod show_checkpoints;
mod snapshot_query;
mod snapshot_rows;
mod steering;
mod trigger;

pub use answer::{Changes, Outcome, QueryResult, Rows};
pub use arrow::array::RecordBatch;
pub use engine::{Engine, EngineOptions};
pub use inspect::{compare_snapshots, inspect_snapshot, list_snapshots, verify_snapshots};
pub use job::Job;
pub use millpond_connect::format::text::{BytesText, ColumnText, TextFormat};
pub use millpond_connect::offer_stdin;
pub use millpond_core::quantity::parse_duration;
pub use millpond_core::random::Random;
pub use millpond_core::{
    ChangelogBatch, Clock, Error, ErrorKind, JobId, Location, ManualClock, Result, RowKind, SystemClock,
    Timestamp,
};
pub use millpond_operators::fold::ChangelogFold;
pub use millpond_planner::datafusion;
pub use millpond_planner::diagnostic::render;
pub use millpond_planner::{StatementSource, is_complete, split_statements};
pub use millpond_planner::{TableRows, TableWatermarks};
pub use millpond_runtime::{
    CheckpointEvent, CheckpointMode, CheckpointReport, JobMetrics, JobStatus, Refusal, TriggerPolicy,
};
pub use millpond_state::SavepointReport;
pub use prepared::PreparedQuery;
pub use session::Session;
pub use settings::{SettingRow, Settings};
