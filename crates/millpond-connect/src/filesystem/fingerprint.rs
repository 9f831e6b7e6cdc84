//! Tells a file that has grown from one that was written anew.
//!
//! A position means nothing in another file of the same name. So the checksum of a file's first
//! bytes is kept with every position, and compared before reading goes on there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use millpond_core::{Error, Result};

use crate::connector::Position;

/// As many of a file's first bytes are looked at.
const BYTES_MAX: u64 = 4096;

/// Under which it stands in a position.
const KEY: &str = "head";

/// The first bytes of a file, as their number and CRC32C.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Fingerprint {
    bytes: u64,
    crc: u32,
}

impl Fingerprint {
    /// Of a file as it is now.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::of_first(path, BYTES_MAX)
    }

    fn of_first(path: &Path, bytes: u64) -> Result<Self> {
        let mut head = Vec::new();
        let read = |head: &mut Vec<u8>| File::open(path)?.take(bytes).read_to_end(head);
        read(&mut head).map_err(|error| Error::io(format!("read {path:?}"), &error))?;
        Ok(Self { bytes: head.len() as u64, crc: crc32c::crc32c(&head) })
    }

    /// Whether it will not change while the file grows.
    pub(crate) fn is_final(&self) -> bool {
        self.bytes == BYTES_MAX
    }

    /// Adds it to a position.
    pub(crate) fn add_to(self, position: &mut serde_json::Value) {
        if let Some(object) = position.as_object_mut() {
            object.insert(KEY.into(), serde_json::json!(self));
        }
    }

    /// Compares a file with what a position says of it.
    ///
    /// Errors: *Data* if the position was taken in another file.
    pub(crate) fn check(path: &Path, position: &Position) -> Result<()> {
        let Some(known) = position.0.get(KEY) else { return Ok(()) };
        let known: Self = serde_json::from_value(known.clone())
            .map_err(|error| Error::corrupt(format!("{known} is not a file's fingerprint: {error}")))?;
        if Self::of_first(path, known.bytes)? == known {
            return Ok(());
        }
        Err(Error::data(format!("the file {path:?} is not the one that has been read in part"))
            .with_detail("its beginning has changed since the last checkpoint")
            .with_hint("input files may grow or be joined by new ones, but not be rewritten; CANCEL JOB lets a new one begin"))
    }
}
