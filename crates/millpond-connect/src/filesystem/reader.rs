//! Reads text: turns a stream of bytes into windows for a decoder, and knows the exact position
//! behind every row.
//!
//! ```text
//! file ─▶ gunzip/unzstd ─▶ buffer [ . . | window . . . ] ─▶ decoder ─▶ columns
//!                                      ▲ offset, line
//! ```
//!
//! A position is the byte offset (in the decoded stream) and line behind the last record taken.
//! A record that does not fit into the limit is rejected and its line skipped, so that memory
//! stays bounded.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memchr;
use millpond_core::limits::{READ_BYTES, RECORD_BYTES_MAX};
use millpond_core::{Error, Result, SourceMetrics};

use crate::format::{DecodedRows, Faults, OVERSIZED, Place, Taken, TextDecoder, Window};

/// Bytes of text after which a batch is given although it could hold more rows.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// The place behind the last row of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct TextPosition {
    offset: u64,
    line: u64,
}

/// What a text has for its caller.
pub(crate) enum Text {
    Rows(DecodedRows),
    /// The file may grow.
    Waiting,
    End,
}

/// Where bytes come from.
pub(crate) struct Input {
    name: String,
    origin: Origin,
    stream: Option<Stream>,
    /// The end that is found is not the last word.
    grows: bool,
}

enum Origin {
    File { path: PathBuf, metrics: Arc<SourceMetrics> },
    Inline(Arc<[u8]>),
}

enum Stream {
    Plain(Counted),
    Packed(Box<dyn Read + Send>),
    Inline(Cursor<Arc<[u8]>>),
}

/// A file that counts what is read of it.
struct Counted {
    file: File,
    metrics: Arc<SourceMetrics>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.metrics.bytes.add(length as u64);
        Ok(length)
    }
}

impl Input {
    /// A file, compressed or not.
    pub(crate) fn file(path: &Path, grows: bool, metrics: Arc<SourceMetrics>) -> Self {
        let name = path.display().to_string();
        Self { name, origin: Origin::File { path: path.into(), metrics }, stream: None, grows }
    }
    /// Bytes in memory.
    pub(crate) fn inline(name: &str, bytes: Arc<[u8]>) -> Self {
        Self { name: name.into(), origin: Origin::Inline(bytes), stream: None, grows: false }
    }

    /// Fills some of the buffer; 0 at the end.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.stream.is_none() {
            self.stream = self.open()?;
        }
        loop {
            let read = match &mut self.stream {
                None => return Ok(0),
                Some(Stream::Plain(file)) => file.read(buffer),
                Some(Stream::Packed(stream)) => stream.read(buffer),
                Some(Stream::Inline(bytes)) => bytes.read(buffer),
            };
            match read {
                Ok(length) => return Ok(length),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        match self.stream {
            Some(Stream::Packed(_)) => {
                Error::data(format!("the compressed file {:?} is cut off or damaged: {error}", self.name))
            }
            _ => Error::io(format!("read {:?}", self.name), error),
        }
    }

    /// Opens the stream, looking at the first bytes rather than the name for its compression;
    /// `None` while there is nothing to look at.
    fn open(&mut self) -> Result<Option<Stream>> {
        let (path, metrics) = match &self.origin {
            Origin::File { path, metrics } => (path, metrics.clone()),
            Origin::Inline(bytes) => return Ok(Some(Stream::Inline(Cursor::new(bytes.clone())))),
        };
        let failed = |error: std::io::Error| Error::io(format!("read {:?}", self.name), &error);
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = Vec::new();
        (&mut file).take(4).read_to_end(&mut magic).map_err(failed)?;
        if magic.is_empty() && self.grows {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let file = Counted { file, metrics };
        let stream = match magic.as_slice() {
            [0x1f, 0x8b, ..] => {
                let buffered = BufReader::with_capacity(64 << 10, file);
                Stream::Packed(Box::new(flate2::bufread::MultiGzDecoder::new(buffered)))
            }
            [0x28, 0xb5, 0x2f, 0xfd] => Stream::Packed(Box::new(zstd::Decoder::new(file).map_err(failed)?)),
            _ => return Ok(Some(Stream::Plain(file))),
        };
        self.grows = false;
        Ok(Some(stream))
    }

    /// Moves on to `offset`, of which `at` has been reached.
    fn jump(&mut self, at: u64, offset: u64) -> Result<()> {
        self.check_length(offset)?;
        if let Some(Stream::Plain(file)) = &mut self.stream {
            let jumped = file.file.seek(SeekFrom::Start(offset));
            return jumped.map(drop).map_err(|error| Error::io(format!("read {:?}", self.name), &error));
        }
        let mut buffer = vec![0; READ_BYTES];
        let mut left = offset - at;
        while left > 0 {
            let wanted = left.min(buffer.len() as u64) as usize;
            match self.read(&mut buffer[..wanted])? {
                0 => return Err(self.shrank()),
                length => left -= length as u64,
            }
        }
        Ok(())
    }

    /// Refuses a file that ends before what has been read of it.
    fn check_length(&self, offset: u64) -> Result<()> {
        match (&self.stream, &self.origin) {
            (Some(Stream::Plain(_)) | None, Origin::File { path, .. }) => match std::fs::metadata(path) {
                Ok(metadata) if metadata.len() < offset => Err(self.shrank()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn is_gone(&self) -> bool {
        match &self.origin {
            Origin::File { path, .. } => !path.exists(),
            Origin::Inline(_) => false,
        }
    }

    fn shrank(&self) -> Error {
        Error::data(format!("the file {:?} is shorter than what has been read of it", self.name))
            .with_hint("input files may grow or be replaced by new ones, but not be cut or rewritten")
    }
}

/// Reads one text to its end, or as far as it has grown.
pub(crate) struct TextReader {
    input: Input,
    decoder: Box<dyn TextDecoder>,
    faults: Faults,
    block_bytes: usize,
    /// The window is `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Up to here the buffer has been checked for UTF-8, and before `dirty` something is none.
    checked: usize,
    dirty: usize,
    /// Of the first byte of the window.
    place: TextPosition,
    /// Behind the last record taken.
    position: TextPosition,
    stage: Stage,
    is_last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Before the first record; then the reading goes on at the position, if there is one.
    Beginning(Option<TextPosition>),
    Records,
    /// Within the line of an oversized record.
    Skipping,
}

impl TextReader {
    pub(crate) fn new(
        input: Input,
        decoder: Box<dyn TextDecoder>,
        faults: Faults,
        position: Option<TextPosition>,
        block_bytes: usize,
    ) -> Self {
        let start = TextPosition { offset: 0, line: 1 };
        Self {
            input,
            decoder,
            faults,
            block_bytes,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            checked: 0,
            dirty: 0,
            place: start,
            position: position.unwrap_or(start),
            stage: Stage::Beginning(position),
            is_last: false,
        }
    }

    pub(crate) fn position(&self) -> TextPosition {
        self.position
    }

    /// Up to `rows_max` rows.
    pub(crate) fn poll(&mut self, rows_max: usize) -> Result<Text> {
        let mut bytes = 0;
        loop {
            bytes += self.advance(rows_max)?;
            if self.decoder.rows() >= rows_max || (self.decoder.rows() > 0 && bytes >= BATCH_BYTES_MAX) {
                return self.rows();
            }
            if self.is_last {
                return self.rows_or(Text::End);
            }
            if self.fill()? == 0 {
                if self.input.grows {
                    return self.at_present_end();
                }
                self.is_last = true;
            }
        }
    }

    fn rows(&mut self) -> Result<Text> {
        Ok(Text::Rows(self.decoder.finish()?))
    }

    fn rows_or(&mut self, otherwise: Text) -> Result<Text> {
        if self.decoder.rows() > 0 { self.rows() } else { Ok(otherwise) }
    }

    /// A file that was renamed or removed does not grow any more; of one that is still there the
    /// unfinished last line waits for its end.
    fn at_present_end(&mut self) -> Result<Text> {
        if self.input.is_gone() {
            self.input.grows = false;
            return self.rows_or(Text::Waiting);
        }
        self.input.check_length(self.place.offset + (self.end - self.start) as u64)?;
        self.rows_or(Text::Waiting)
    }

    /// Does what can be done with the window; returns the bytes taken.
    fn advance(&mut self, rows_max: usize) -> Result<usize> {
        if let Stage::Beginning(position) = self.stage
            && !self.begin(position)?
        {
            return Ok(0);
        }
        if self.stage == Stage::Skipping && !self.skip_line() {
            return Ok(0);
        }
        let Self { decoder, faults, buffer, start, end, .. } = self;
        let window = window(
            &buffer[*start..*end],
            self.is_last,
            *start >= self.dirty && (!self.is_last || self.checked == *end),
            self.place.line,
        );
        let taken = decoder.decode(window, rows_max, faults)?;
        self.take(taken);
        self.position = self.place;
        if taken.is_starved && self.end - self.start > RECORD_BYTES_MAX {
            self.reject_oversized()?;
        }
        Ok(taken.bytes)
    }

    fn take(&mut self, taken: Taken) {
        self.start += taken.bytes;
        self.place.offset += taken.bytes as u64;
        self.place.line += taken.lines;
    }

    /// Reads the header; `false`: there is not enough of it yet.
    fn begin(&mut self, position: Option<TextPosition>) -> Result<bool> {
        let window = window(&self.buffer[self.start..self.end], self.is_last, false, self.place.line);
        match self.decoder.begin(window)? {
            Some(taken) => self.take(taken),
            None if self.end - self.start > RECORD_BYTES_MAX => {
                return Err(Error::data(format!(
                    "the first record of {:?} is too large: {OVERSIZED}",
                    self.input.name
                )));
            }
            None => return Ok(false),
        }
        self.stage = Stage::Records;
        if let Some(position) = position.filter(|position| position.offset > self.place.offset) {
            self.jump(position)?;
        }
        Ok(true)
    }

    fn jump(&mut self, to: TextPosition) -> Result<()> {
        let ahead = to.offset - self.place.offset;
        let held = (self.end - self.start) as u64;
        if ahead <= held {
            self.start += ahead as usize;
        } else {
            self.input.jump(self.place.offset + held, to.offset)?;
            (self.start, self.end, self.checked, self.dirty) = (0, 0, 0, 0);
        }
        self.place = to;
        Ok(())
    }

    fn reject_oversized(&mut self) -> Result<()> {
        let record = &self.buffer[self.start..self.end];
        self.faults.count_read(1);
        self.faults.reject(record, Place { line: self.place.line, column: 1 }, OVERSIZED)?;
        self.stage = Stage::Skipping;
        self.skip_line();
        Ok(())
    }

    /// Drops the rest of a line; `false`: its end is not in the window.
    fn skip_line(&mut self) -> bool {
        let window = &self.buffer[self.start..self.end];
        let found = memchr(b'\n', window);
        let bytes = found.map_or(window.len(), |at| at + 1);
        self.take(Taken { bytes, lines: u64::from(found.is_some()), is_starved: found.is_none() });
        if found.is_some() {
            self.stage = Stage::Records;
        }
        found.is_some()
    }

    /// Reads a block behind the window; returns its size, 0 at the end.
    fn fill(&mut self) -> Result<usize> {
        if self.end + self.block_bytes > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.checked = self.checked.saturating_sub(self.start);
            self.dirty = self.dirty.saturating_sub(self.start);
            self.start = 0;
            self.buffer.resize(self.buffer.len().max(self.end + self.block_bytes), 0);
        }
        let length = self.input.read(&mut self.buffer[self.end..self.end + self.block_bytes])?;
        self.end += length;
        self.check_utf8();
        Ok(length)
    }

    /// Checks the new bytes once and together, so that fields need no check of their own.
    fn check_utf8(&mut self) {
        match std::str::from_utf8(&self.buffer[self.checked..self.end]) {
            Ok(_) => self.checked = self.end,
            // The last character is not complete yet.
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => (self.checked, self.dirty) = (self.end, self.end),
        }
    }
}

fn window(bytes: &[u8], is_last: bool, is_utf8: bool, line: u64) -> Window<'_> {
    Window { bytes, is_last, is_utf8, line }
}
