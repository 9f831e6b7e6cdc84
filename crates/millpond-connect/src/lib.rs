//! How the outside is read and written: sources, sinks, formats, typed options.
//!
//! The crate must not know state, operators or the planner.

mod blackhole;
pub mod connector;
mod datagen;
pub mod factory;
pub mod filesystem;
pub mod format;
mod given;
mod http_listen;
mod logged;
mod nexmark;
pub mod object_files;
pub mod options;
mod pace;
mod print;
mod replay_log;
mod stdin;
pub mod values;

pub use connector::{
    Committable, ConnectorTable, Position, PreCommit, ReaderContext, SinkConnector, SinkContext, SinkWriter,
    SourceConnector, SourcePoll, Split, SplitReader,
};
pub use factory::{TableSpec, open_table};
pub use given::given_rows;
pub use stdin::offer_stdin;
