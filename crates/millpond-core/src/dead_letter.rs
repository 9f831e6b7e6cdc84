//! Dead letters: rows that could not be used, kept with the reason.

use crate::Result;

/// A record that was not used, and why.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeadLetter {
    /// The connector table.
    pub table: String,
    /// The split it came from (for files: the path).
    pub split: String,
    /// 1-based line in the split, where known.
    pub line: Option<u64>,
    /// 1-based column in the line, where known.
    pub column: Option<u64>,
    /// Why it was not used.
    pub reason: String,
    /// The record as it was, cut at 64 KiB.
    pub record: String,
}

/// Keeps dead letters. Injected by the engine; what is kept is part of no promise of order.
pub trait DeadLetterOffice: Send + Sync + std::fmt::Debug {
    /// Keeps a letter.
    fn keep(&self, letter: DeadLetter) -> Result<()>;
}

/// What to do when a file that has been read, or was to be read, is not there (`on-missing-file`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum OnMissingFile {
    /// Fail the job with the file's name.
    #[default]
    Fail,
    /// Go on without it, with a warning; what was read of it stays counted.
    Skip,
}

/// What to do with a record that cannot be read (`bad-rows`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum BadRows {
    /// Fail the job with file, line and column.
    #[default]
    Fail,
    /// An unreadable field becomes NULL, an unreadable row is dropped; both are counted.
    Skip,
    /// As `Skip`, and the record is kept with the reason.
    DeadLetter,
}
