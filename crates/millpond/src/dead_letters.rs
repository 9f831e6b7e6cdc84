//! The dead-letter files: JSON lines with the reason, in the data directory.
//!
//! Without a data directory they are kept in memory, up to a bound, for the session to look at.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use millpond_core::limits::DEAD_LETTERS_BYTES_MAX;
use millpond_core::{DeadLetter, DeadLetterOffice, Error, Result};

/// Keeps the dead letters of one job.
#[derive(Debug)]
pub(crate) struct DeadLetterFile {
    path: PathBuf,
    /// The open file and its length; guards against interleaved lines of two tasks.
    file: Mutex<Option<(File, u64)>>,
}

impl DeadLetterFile {
    /// A file that is made at the first letter.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { path: dir.join("dead-letters.jsonl"), file: Mutex::new(None) }
    }

    fn open(&self) -> std::io::Result<(File, u64)> {
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    fn write(&self, line: &str) -> std::io::Result<()> {
        let mut slot = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut file, length) = match slot.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if length > DEAD_LETTERS_BYTES_MAX {
            std::fs::rename(&self.path, self.path.with_extension("jsonl.1"))?;
            (file, _) = self.open()?;
        }
        file.write_all(line.as_bytes())?;
        let length = file.metadata()?.len();
        *slot = Some((file, length));
        Ok(())
    }
}

impl DeadLetterOffice for DeadLetterFile {
    fn keep(&self, letter: DeadLetter) -> Result<()> {
        let mut line =
            serde_json::to_string(&letter).map_err(|e| Error::internal(format!("dead letter: {e}")))?;
        line.push('\n');
        self.write(&line).map_err(|e| Error::io(format!("write {:?}", self.path), &e))
    }
}

/// Keeps the newest dead letters in memory.
#[derive(Debug, Default)]
pub(crate) struct DeadLetterMemory {
    letters: Mutex<std::collections::VecDeque<DeadLetter>>,
}

/// Letters kept in memory, at most.
const LETTERS_MAX: usize = 10_000;

impl DeadLetterOffice for DeadLetterMemory {
    fn keep(&self, letter: DeadLetter) -> Result<()> {
        let mut letters = self.letters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if letters.len() == LETTERS_MAX {
            letters.pop_front();
        }
        letters.push_back(letter);
        Ok(())
    }
}
