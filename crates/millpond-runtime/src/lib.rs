//! How a plan runs: tasks, exchange, alignment, the epoch clock, the coordinator, restore.
//!
//! The crate must not know SQL or the catalog.

pub mod graph;

pub use graph::{Exchange, Fragment, Head, JobGraph, OperatorNode, SinkNode, SourceNode, Tail};
