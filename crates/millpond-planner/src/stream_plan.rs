//! The StreamPlan: the streaming physical plan, a graph of operators with their keys, changelog
//! modes, watermarks, state bounds and stable uids.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogMode, OperatorUid};
use millpond_operators::OperatorFactory;
use millpond_operators::event_time::EventTime;

/// Index of a node in its plan.
pub type NodeId = usize;

/// A graph of operators; inputs come before their consumers.
#[derive(Debug, Clone, Default)]
pub struct StreamPlan {
    /// The nodes in topological order. A node with several consumers is a shared sub-plan.
    pub nodes: Vec<StreamNode>,
}

/// A node of the plan.
#[derive(Debug, Clone)]
pub struct StreamNode {
    /// By which its state is found again; depends on what it computes, not on where it stands.
    pub uid: OperatorUid,
    /// What it is.
    pub kind: NodeKind,
    /// Its inputs.
    pub inputs: Vec<NodeId>,
    /// Output columns.
    pub schema: SchemaRef,
    /// What is known of its output.
    pub properties: StreamProperties,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// Reads a connector table.
    Source {
        /// The table.
        table: String,
        /// Which of the connector's columns are read.
        projection: Vec<usize>,
        /// Computed columns and watermark.
        event_time: Arc<EventTime>,
    },
    /// Gives rows that stand in the query, once.
    Rows {
        /// The rows.
        rows: RecordBatch,
        /// Passes them on as they are.
        event_time: Arc<EventTime>,
    },
    /// Computes.
    Operator(Arc<dyn OperatorFactory>),
    /// Re-distributes rows by the key group of these columns; no column: all to one task.
    Exchange(Vec<usize>),
    /// Writes a connector table.
    Sink(SinkTarget),
    /// Gives the rows to the client that asked.
    Client,
}

/// The table that a sink node writes.
#[derive(Debug, Clone)]
pub struct SinkTarget {
    /// The table.
    pub table: String,
}

/// What is known of a node's output.
#[derive(Debug, Clone)]
pub struct StreamProperties {
    /// The changelog that it emits.
    pub mode: ChangelogMode,
    /// Which kinds of changes are in it, beside `+I`.
    pub kinds: ChangeKinds,
    /// Sets of columns that identify a row at every instant.
    pub upsert_keys: Vec<Vec<usize>>,
    /// Columns that carry the watermark: time attributes.
    pub time_columns: Vec<usize>,
    /// Whether the input ends by itself.
    pub bounded: bool,
    /// The bound of the node's own state.
    pub state: StateBound,
}

/// Kinds of changes in a changelog, beside `+I`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeKinds {
    /// `-U` and `+U`; in upsert mode `+U` alone.
    pub updates: bool,
    /// `-D`.
    pub deletes: bool,
}

/// How far the state of an operator can grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateBound {
    /// It keeps none.
    None,
    /// It is dropped as the watermark passes.
    Watermark(String),
    /// One row per key.
    Keys(String),
    /// It is dropped as processing time passes.
    Time(String),
    /// A key that nothing touches for so long is forgotten (`state.ttl`).
    Ttl(String),
    /// It grows with the input.
    Unbounded(String),
}

/// A planned SELECT.
#[derive(Debug, Clone)]
pub struct PlannedQuery {
    /// Ends in one [`NodeKind::Client`] node.
    pub plan: StreamPlan,
    /// Whether it ends by itself.
    pub bounded: bool,
    /// What is done with the folded result of a bounded query.
    pub presentation: Presentation,
}

/// Final ORDER BY, OFFSET, LIMIT of a bounded SELECT: applied to the folded result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presentation {
    /// Sort keys: column, ascending, nulls first.
    pub sort: Vec<(usize, bool, bool)>,
    /// Rows left out at the start.
    pub skip: usize,
    /// Rows shown at most.
    pub fetch: Option<usize>,
    /// How many of the first columns are shown (the others were only sorted by).
    pub visible: usize,
}

impl Presentation {
    /// Whether the result is shown as it is.
    pub fn is_plain(&self) -> bool {
        self.sort.is_empty() && self.skip == 0 && self.fetch.is_none()
    }
}
