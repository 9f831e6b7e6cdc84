//! The words of Millpond: changelog batches, epochs, watermarks, barriers, keys, ids, errors,
//! clock and limits.
//!
//! Its one secret is the vocabulary that every other crate shares. It must not know async,
//! files, DataFusion or RocksDB.

pub mod changelog;
pub mod clock;
pub mod dead_letter;
pub mod epoch;
pub mod error;
pub mod id;
pub mod key;
pub mod limits;
pub mod metric;
pub mod quantity;
pub mod random;
pub mod time;

pub use changelog::{ChangelogBatch, ChangelogMode, LateTags, RowKind, RowKinds};
pub use clock::{Clock, ManualClock, SystemClock};
pub use dead_letter::{BadRows, DeadLetter, DeadLetterOffice, OnMissingFile};
pub use epoch::{Barrier, BarrierKind, Element, EpochMark, EpochTime, Watermark};
pub use error::{Error, ErrorKind, Location, Result};
pub use id::{CheckpointId, Epoch, JobId, OperatorUid, TaskId};
pub use key::{KeyGroup, KeyGroupRange, KeyHashes};
pub use metric::{OperatorMetrics, SourceMetrics};
pub use time::{TimePrecision, Timestamp};
