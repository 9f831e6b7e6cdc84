//! How keyed state is held, frozen, stored, exported, restored and re-split.
//!
//! Working state is in memory, columnar and vectorised; a store takes what changed since the last
//! checkpoint; Parquet parts are the documented snapshot. The crate must not know operators or SQL.
//!
//! ```text
//! operator ── ValueTable / WindowTable / MultimapTable ──freeze──▶ Delta ──▶ StateStore
//!                    ▲                                                          │
//!                    └────────────────────── load ◀── Parquet parts ◀───────────┘
//! ```

pub mod column;
mod files;
pub mod inspect;
pub mod key_index;
pub mod keyed_rows;
pub mod metadata;
pub mod multimap_table;
pub mod reader;
#[cfg(feature = "rocksdb")]
mod rocks;
pub mod savepoint;
mod snapshot;
pub mod spill;
pub mod store;
pub mod table;
pub mod value_table;
pub mod window_table;

pub use column::{ByteStrings, StateColumn, StateValues};
pub use inspect::{FoundSnapshot, TableDifference, compare, find_snapshots};
pub use key_index::{KeyIndex, NO_SLOT};
pub use keyed_rows::KeyedRows;
pub use multimap_table::{MultimapSpec, MultimapTable};
pub use reader::SnapshotReader;
pub use savepoint::{
    SavepointReport, Snapshot, TableDefs, bytes_of, prepare_savepoint, rows_of, write_savepoint,
};
pub use spill::{Evicted, SpillArea, SpillStore, TableSpill};
pub use store::{
    Backend, CheckpointMetadata, FileHandle, MemoryStore, OperatorSnapshot, RemoteFiles, RemoteStore,
    StateStore, StoreOptions, StoredCheckpoint, TablePart, TableSnapshot, Verify, fetch_snapshot, open_store,
    send_snapshot,
};
pub use table::{Delta, Frozen, Scope, StateTable, TableDef, TableKind};
pub use value_table::ValueTable;
pub use window_table::WindowTable;
