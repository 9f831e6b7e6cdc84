//! How SQL becomes a StreamPlan.
//!
//!     text ─parse─▶ Statement ─bind─▶ LogicalPlan ─stream rules─▶ optimised LogicalPlan
//!          ─derive─▶ properties ─choose─▶ StreamPlan
//!
//! The crate must not know the runtime, RocksDB or running jobs.

pub mod statement;
pub mod stream_plan;

pub use statement::{CreateTable, CreateView, ExplainKind, Insert, ParsedStatement, Show, Statement};
pub use stream_plan::{NodeId, NodeKind, PlannedQuery, Presentation, SinkTarget, StateBound, StreamNode, StreamPlan, StreamProperties};
