//! How the outside is read and written: sources, sinks, formats, typed options.
//!
//! The crate must not know state, operators or the planner.

pub mod connector;
pub mod options;

pub use connector::{
    Committable, ConnectorTable, Position, PreCommit, ReaderContext, SinkConnector, SinkContext, SinkWriter,
    SourceConnector, SourcePoll, Split, SplitReader,
};
