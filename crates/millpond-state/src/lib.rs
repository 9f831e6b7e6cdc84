//! How keyed state is held, frozen, stored, exported, restored and re-split.
//!
//! Working state is in memory, columnar and vectorised; a store takes what changed since the last
//! checkpoint; Parquet parts are the documented snapshot. The crate must not know operators or SQL.
//!
//!     operator ── ValueTable / WindowTable / MultimapTable ──freeze──▶ Delta ──▶ StateStore
//!                        ▲                                                          │
//!                        └────────────────────── load ◀── Parquet parts ◀───────────┘

pub mod multimap_table;
pub mod store;
pub mod table;

pub use multimap_table::{MultimapSpec, MultimapTable};
pub use table::{Delta, Frozen, StateTable, TableDef, TableKind};
pub use store::{
    Backend, CheckpointMetadata, FileHandle, OperatorSnapshot, StateStore, StoreOptions, StoredCheckpoint, TablePart,
    TableSnapshot, Verify,
};
