//! How the outside is read and written: sources, sinks, formats, typed options.
//!
//! The crate must not know state, operators or the planner.

pub mod connector;
pub mod factory;
pub mod filesystem;
pub mod format;
pub mod options;
pub mod values;

pub use connector::{
    Committable, ConnectorTable, Position, PreCommit, ReaderContext, SinkConnector, SinkContext, SinkWriter,
    SourceConnector, SourcePoll, Split, SplitReader,
};
pub use factory::{TableSpec, open_table};
