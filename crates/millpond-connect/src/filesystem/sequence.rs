//! Reads files of change events: one file after the other, since a later event may take back what
//! an earlier one in another file has said.
//!
//! So all files of a table are one split. Its position lists them in the order in which they are
//! read: natural order for those that are there at the start, behind them those that are found
//! later. A watched file may grow; what it gains is read in its turn.

use std::path::{Path, PathBuf};

use millpond_core::{Error, Result};

use super::source::{FileReader, FileSource, parse_position};
use crate::connector::{Position, ReaderContext, SourcePoll, SplitReader};

/// How far a file has been read.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct FileProgress {
    path: PathBuf,
    /// `None`: not begun.
    position: Option<Position>,
    finished: bool,
}

/// Reads a sequence of files.
pub(super) struct SequenceReader {
    source: FileSource,
    context: ReaderContext,
    files: Vec<FileProgress>,
    /// The file that is read now; their number when every one has been asked.
    at: usize,
    reader: Option<FileReader>,
}

impl SequenceReader {
    pub(super) fn open(
        source: FileSource,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Self> {
        let mut files: Vec<FileProgress> = position.map(parse_position).transpose()?.unwrap_or_default();
        if position.is_none() {
            add(&mut files, source.files()?);
        }
        Ok(Self { source, context, files, at: 0, reader: None })
    }

    /// The next file that has something to read.
    fn next_file(&mut self) -> Option<usize> {
        while let Some(file) = self.files.get(self.at) {
            if !file.finished && (self.reader.is_some() || self.may_have_more(file)) {
                return Some(self.at);
            }
            self.at += 1;
        }
        None
    }

    fn may_have_more(&self, file: &FileProgress) -> bool {
        !file.finished && file.position.as_ref().is_none_or(|position| grew(&file.path, position))
    }

    /// Of watched files some may be cleared away.
    fn is_gone(&self, file: usize) -> bool {
        self.source.retry_after().is_some() && !self.files[file].path.exists()
    }

    fn reader(&mut self) -> Result<&mut FileReader> {
        if self.reader.is_none() {
            let file = &self.files[self.at];
            let reader = self.source.file(&file.path, file.position.as_ref(), self.context.clone())?;
            self.reader = Some(reader);
        }
        self.reader.as_mut().ok_or_else(|| Error::internal("a file that was just opened is not there"))
    }

    /// Remembers how far the file has been read, and goes on to the next one.
    fn leave(&mut self, finished: bool) {
        if let (Some(file), Some(reader)) = (self.files.get_mut(self.at), self.reader.take()) {
            file.position = Some(reader.position());
            file.finished = finished;
            self.at += 1;
        }
    }
}

/// Whether a file is longer than its position, or not there any more.
fn grew(path: &Path, position: &Position) -> bool {
    let read = position.0.get("offset").and_then(serde_json::Value::as_u64);
    std::fs::metadata(path).map_or(true, |metadata| read.is_none_or(|read| metadata.len() != read))
}

fn add(files: &mut Vec<FileProgress>, found: Vec<PathBuf>) {
    for path in found {
        if !files.iter().any(|file| file.path == path) {
            files.push(FileProgress { path, position: None, finished: false });
        }
    }
}

impl SplitReader for SequenceReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        let mut looked = false;
        loop {
            let Some(file) = self.next_file() else {
                match self.source.retry_after() {
                    None => return Ok(SourcePoll::End),
                    Some(interval) if looked => {
                        let now = self.context.clock.now();
                        return Ok(SourcePoll::NotYet { retry_at: now.saturating_add(interval) });
                    }
                    Some(_) => {
                        add(&mut self.files, self.source.files()?);
                        (self.at, looked) = (0, true);
                        continue;
                    }
                }
            };
            if self.reader.is_none() && self.is_gone(file) {
                self.files[file].finished = true;
                continue;
            }
            match self.reader()?.poll(rows_max)? {
                SourcePoll::Rows(batch) => return Ok(SourcePoll::Rows(batch)),
                SourcePoll::NotYet { .. } => self.leave(false),
                SourcePoll::End => self.leave(true),
            }
        }
    }

    fn position(&self) -> Position {
        let mut files = self.files.clone();
        if let (Some(file), Some(reader)) = (files.get_mut(self.at), &self.reader) {
            file.position = Some(reader.position());
        }
        Position(serde_json::to_value(files).expect("positions of files are plain values"))
    }
}

#[cfg(test)]
mod tests;
