//! The job graph: fragments and the edges between them, ready to be deployed as tasks.
//!
//! ```text
//! Fragment { head, chain, tail } × parallelism = tasks
//!
//! head:  a source, or input edges (exchanges) that are aligned
//! chain: operators that pass batches by plain calls; only the first may have several inputs
//! tail:  edges to other fragments, a sink, or the client that asked
//! ```

use std::sync::Arc;

use millpond_connect::{SinkConnector, SourceConnector};
use millpond_core::{BadRows, OnMissingFile, OperatorUid};
use millpond_operators::OperatorFactory;

/// A dataflow of fragments. Edges lead from lower to higher fragment indices.
#[derive(Debug, Clone)]
pub struct JobGraph {
    /// Fragments in topological order.
    pub fragments: Vec<Fragment>,
    /// Number of key groups, fixed for the job's life.
    pub max_parallelism: u16,
}

/// A chain of operators without an exchange.
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Number of tasks.
    pub parallelism: usize,
    /// Where its rows come from.
    pub head: Head,
    /// Its operators, in the order in which a row meets them; may be empty.
    pub chain: Vec<OperatorNode>,
    /// Where its rows go; several for a shared sub-plan. Never empty.
    pub tail: Vec<Tail>,
}

/// Where the rows of a fragment come from.
#[derive(Debug, Clone)]
pub enum Head {
    /// A connector.
    Source(SourceNode),
    /// Edges from other fragments; the number of inputs of the chain's first operator. The
    /// edges themselves stand in the tails of their senders.
    Inputs(usize),
}

/// A connector table as a source.
#[derive(Debug, Clone)]
pub struct SourceNode {
    /// By which its offsets are found again.
    pub uid: OperatorUid,
    /// The table's name.
    pub table: String,
    /// The connector.
    pub connector: Arc<dyn SourceConnector>,
    /// Which of the connector's columns are read.
    pub projection: Vec<usize>,
    /// Computed columns, event time and late tags: applied per split, before the chain.
    pub event_time: Arc<millpond_operators::event_time::EventTime>,
    /// What to do with unreadable records and rows without a usable time.
    pub bad_rows: BadRows,
    /// What to do when a file is gone.
    pub on_missing_file: OnMissingFile,
    /// After how many microseconds without rows a split no longer holds the watermark back; 0: never.
    pub idle_timeout: i64,
}

/// An operator of a chain.
#[derive(Debug, Clone)]
pub struct OperatorNode {
    /// By which its state is found again.
    pub uid: OperatorUid,
    /// What it computes.
    pub factory: Arc<dyn OperatorFactory>,
}

/// Where the rows of a fragment go.
#[derive(Debug, Clone)]
pub enum Tail {
    /// To another fragment.
    Edge {
        /// Index of the fragment.
        to: usize,
        /// Input of its first operator.
        input: usize,
        /// Which task gets which row.
        exchange: Exchange,
    },
    /// To a connector table.
    Sink(SinkNode),
    /// To the client that runs the query. The fragment's parallelism is 1.
    Client,
}

/// Which task of the receiving fragment gets which row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// Task i to task i.
    Forward,
    /// By the key group of these columns.
    Hash(Vec<usize>),
    /// All to task 0.
    Single,
    /// All to all.
    Broadcast,
}

/// A connector table as a sink.
#[derive(Debug, Clone)]
pub struct SinkNode {
    /// By which its committables are found again.
    pub uid: OperatorUid,
    /// The table's name.
    pub table: String,
    /// The connector.
    pub connector: Arc<dyn SinkConnector>,
}
