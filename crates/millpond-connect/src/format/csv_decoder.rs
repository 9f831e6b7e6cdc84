//! CSV to columns: RFC 4180, read generously and fast.
//!
//! Records are split a chunk at a time into cells (start and length; nothing is copied), then each
//! column parses its cells in one typed loop. Fields that nobody asked for are only counted. A
//! record without a quote takes a path of three vectorised byte searches; any other is split
//! field by field.
//!
//! An unquoted empty field is NULL, a quoted one the empty text. Lines of blanks only are
//! skipped. A record must have as many fields as the table has columns (or as the header names).
//! Unless told, the first record is a header when it names nothing but columns of the table, or
//! all of them.

use std::collections::HashMap;

use arrow::array::ArrayRef;
use arrow::datatypes::FieldRef;
use memchr::{memchr, memchr_iter, memchr2};
use millpond_core::limits::RECORD_BYTES_MAX;
use millpond_core::{Error, Result};

use super::appender::{Appender, Cell, Texts, appender};
use super::scalar::{self, Zone, trim};
use super::{DecodedRows, Faults, Place, Taken, TextDecoder, Window, byte_order_mark};
use crate::options::Options;

/// Records split before their columns are parsed: few enough that cells stay in the cache.
const CHUNK_ROWS: usize = 512;
const UNWANTED: usize = usize::MAX;

/// The options of the format `csv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvFormat {
    delimiter: u8,
    quote: Option<u8>,
    allow_comments: bool,
    null_literal: Option<Vec<u8>>,
    header: Header,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    Present,
    Absent,
    /// The first record is one if all its fields are names of columns.
    Detected,
}

impl Default for CsvFormat {
    fn default() -> Self {
        Self {
            delimiter: b',',
            quote: Some(b'"'),
            allow_comments: false,
            null_literal: None,
            header: Header::Detected,
        }
    }
}

impl CsvFormat {
    /// Whether the first record is a header, whatever it says.
    pub(crate) fn begins_with_header(&self) -> bool {
        self.header == Header::Present
    }

    /// Takes the options that begin with `csv.`.
    pub(crate) fn take(options: &mut Options) -> Result<Self> {
        let quote = options.parse("csv.quote-character", ascii)?.unwrap_or(b'"');
        let disabled = options.flag("csv.disable-quote-character")?.unwrap_or(false);
        let headers = [("true", Header::Present), ("false", Header::Absent), ("auto", Header::Detected)];
        let format = Self {
            delimiter: options.parse("csv.field-delimiter", ascii)?.unwrap_or(b','),
            quote: (!disabled).then_some(quote),
            allow_comments: options.flag("csv.allow-comments")?.unwrap_or(false),
            null_literal: options.text("csv.null-literal").map(String::into_bytes),
            header: options.choice("csv.header", &headers)?.unwrap_or(Header::Detected),
        };
        if format.quote == Some(format.delimiter) {
            return Err(Error::invalid(format!(
                "table {:?} uses one character as 'csv.field-delimiter' and 'csv.quote-character'",
                options.table()
            )));
        }
        Ok(format)
    }
}

fn ascii(text: &str) -> Result<u8> {
    let text = match text {
        "\\t" => "\t",
        other => other,
    };
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(*byte),
        _ => Err(Error::invalid(format!("{text:?} is not a single ASCII character"))),
    }
}

/// A record found in the window.
enum Record {
    Row {
        next: usize,
        fields: usize,
    },
    /// A line that holds no record.
    Empty {
        next: usize,
    },
    Bad {
        next: usize,
        reason: &'static str,
    },
    Starved,
}

impl CsvFormat {
    /// Splits the record at `start`; `put` gets every field before the `useful`th with its index
    /// and place, and may get more.
    #[inline]
    fn split(
        &self,
        window: Window<'_>,
        start: usize,
        useful: usize,
        scratch: &mut Vec<u8>,
        put: &mut impl FnMut(usize, Cell, usize),
    ) -> Record {
        let bytes = &window.bytes[start..];
        let found = match self.quote {
            Some(quote) => memchr2(b'\n', quote, bytes),
            None => memchr(b'\n', bytes),
        };
        let end = match found {
            Some(at) if bytes[at] == b'\n' => at,
            Some(_) if self.is_comment(bytes) => return comment(window, start),
            Some(_) => return self.split_quoted(window, start, scratch, put),
            None if !window.is_last => return Record::Starved,
            None => bytes.len(),
        };
        let next = (start + end + 1).min(window.bytes.len());
        let line = without_return(&bytes[..end]);
        if line.first().is_none_or(|byte| *byte <= b' ' && trim(line).is_empty()) || self.is_comment(line) {
            return Record::Empty { next };
        }
        Record::Row { next, fields: self.split_line(line, start, useful, put) }
    }

    fn is_comment(&self, line: &[u8]) -> bool {
        self.allow_comments && line.first() == Some(&b'#')
    }

    /// Splits a line without quotes; returns its number of fields.
    #[inline]
    fn split_line(
        &self,
        line: &[u8],
        start: usize,
        useful: usize,
        put: &mut impl FnMut(usize, Cell, usize),
    ) -> usize {
        let mut at = 0;
        for field in 0..useful {
            let length = memchr(self.delimiter, &line[at..]);
            let text = &line[at..length.map_or(line.len(), |length| at + length)];
            put(field, self.unquoted(text, start + at), start + at);
            match length {
                Some(length) => at += length + 1,
                None => return field + 1,
            }
        }
        useful + 1 + memchr_iter(self.delimiter, &line[at..]).count()
    }

    #[inline]
    fn unquoted(&self, text: &[u8], start: usize) -> Cell {
        match &self.null_literal {
            _ if text.is_empty() => Cell::NULL,
            Some(literal) if literal == text => Cell::NULL,
            _ => Cell::in_block(start, text.len()),
        }
    }

    /// Splits a record that has a quote somewhere.
    #[cold]
    fn split_quoted(
        &self,
        window: Window<'_>,
        start: usize,
        scratch: &mut Vec<u8>,
        put: &mut impl FnMut(usize, Cell, usize),
    ) -> Record {
        let (mut at, mut field) = (start, 0);
        loop {
            let (cell, end) = if self.quote.is_some() && window.bytes.get(at) == self.quote.as_ref() {
                match self.quoted(window, at, scratch) {
                    Ok(found) => found,
                    Err(record) => return record,
                }
            } else {
                match self.bare(window, at) {
                    Some(found) => found,
                    None => return Record::Starved,
                }
            };
            put(field, cell, at);
            field += 1;
            match window.bytes.get(end) {
                Some(byte) if *byte == self.delimiter => at = end + 1,
                Some(b'\r') => return Record::Row { next: (end + 2).min(window.bytes.len()), fields: field },
                Some(_) => return Record::Row { next: end + 1, fields: field },
                None => return Record::Row { next: end, fields: field },
            }
        }
    }

    /// An unquoted field at `at` and where it ends; `None`: the window ends first.
    fn bare(&self, window: Window<'_>, at: usize) -> Option<(Cell, usize)> {
        let rest = &window.bytes[at..];
        let end = match memchr2(self.delimiter, b'\n', rest) {
            Some(end) => end,
            None if window.is_last => rest.len(),
            None => return None,
        };
        let ends_record = rest.get(end).is_none_or(|byte| *byte == b'\n');
        let text = if ends_record { without_return(&rest[..end]) } else { &rest[..end] };
        Some((self.unquoted(text, at), at + text.len()))
    }

    /// A quoted field at `at` and where it ends.
    fn quoted(&self, window: Window<'_>, at: usize, scratch: &mut Vec<u8>) -> Result<(Cell, usize), Record> {
        let quote = self.quote.unwrap_or(b'"');
        let bytes = window.bytes;
        let content = at + 1;
        let (mut from, mut doubled) = (content, false);
        let close = loop {
            let Some(found) = memchr(quote, &bytes[from..]) else { return Err(open_quote(window)) };
            let found = from + found;
            match bytes.get(found + 1) {
                Some(byte) if *byte == quote => (from, doubled) = (found + 2, true),
                None if !window.is_last => return Err(Record::Starved),
                _ => break found,
            }
        };
        let cell = match doubled {
            false => Cell::in_block(content, close - content),
            true => undouble(&bytes[content..close], quote, scratch),
        };
        match bytes.get(close + 1..).unwrap_or_default() {
            [] | [b'\n', ..] | [b'\r', b'\n', ..] => Ok((cell, close + 1)),
            [b'\r'] if window.is_last => Ok((cell, close + 1)),
            [b'\r'] => Err(Record::Starved),
            [byte, ..] if *byte == self.delimiter => Ok((cell, close + 1)),
            rest => Err(match memchr(b'\n', rest) {
                Some(end) => Record::Bad { next: close + 1 + end + 1, reason: BEHIND_QUOTE },
                None if window.is_last => Record::Bad { next: bytes.len(), reason: BEHIND_QUOTE },
                None => Record::Starved,
            }),
        }
    }
}

const BEHIND_QUOTE: &str = "there is text behind a closing quote";

fn open_quote(window: Window<'_>) -> Record {
    match window.is_last {
        true => Record::Bad { next: window.bytes.len(), reason: "a quote is never closed" },
        false => Record::Starved,
    }
}

fn comment(window: Window<'_>, start: usize) -> Record {
    match memchr(b'\n', &window.bytes[start..]) {
        Some(end) => Record::Empty { next: start + end + 1 },
        None if window.is_last => Record::Empty { next: window.bytes.len() },
        None => Record::Starved,
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn undouble(text: &[u8], quote: u8, scratch: &mut Vec<u8>) -> Cell {
    let start = scratch.len();
    let mut rest = text;
    while let Some(at) = memchr(quote, rest) {
        scratch.extend_from_slice(&rest[..=at]);
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    scratch.extend_from_slice(rest);
    Cell::in_scratch(start, scratch.len() - start)
}

/// Which field of a record goes where.
#[derive(Debug, Clone)]
struct Layout {
    /// Per field of the file: its place among the wanted columns, or [`UNWANTED`]; fields behind
    /// the last wanted one are left out.
    slots: Vec<usize>,
    /// Fields that a record must have.
    fields: usize,
}

impl Layout {
    /// A layout for a file whose fields are `names`.
    fn of(names: &[&str], wanted: &[FieldRef]) -> Self {
        let by_name: HashMap<&str, usize> =
            wanted.iter().enumerate().map(|(slot, column)| (column.name().as_str(), slot)).collect();
        let mut slots: Vec<usize> =
            names.iter().map(|name| by_name.get(name).copied().unwrap_or(UNWANTED)).collect();
        while slots.last() == Some(&UNWANTED) {
            slots.pop();
        }
        Self { slots, fields: names.len() }
    }
}

/// Builds the wanted columns of a CSV file.
pub(crate) struct CsvDecoder {
    format: CsvFormat,
    names: Vec<String>,
    wanted: Vec<FieldRef>,
    appenders: Vec<Box<dyn Appender>>,
    layout: Layout,
    rows: usize,
    chunk: Chunk,
}

/// Records that are split but not parsed yet.
#[derive(Default)]
struct Chunk {
    cells: Vec<Cell>,
    scratch: Vec<u8>,
    /// Per row: where it starts and ends in the window, and its line behind the window's.
    rows: Vec<(u32, u32, u32)>,
    unreadable: Vec<u32>,
    /// Fields whose text could not be read: row and column.
    faults: Vec<(u32, u32)>,
    /// The record that ended the chunk.
    bad: Option<(u32, u32, u32, &'static str)>,
}

impl Chunk {
    fn clear(&mut self) {
        self.cells.clear();
        self.scratch.clear();
        self.rows.clear();
        self.faults.clear();
        self.bad = None;
    }
}

impl CsvDecoder {
    pub(crate) fn new(
        format: CsvFormat,
        columns: &[FieldRef],
        projection: &[usize],
        zone: Zone,
    ) -> Result<Self> {
        let names: Vec<String> = columns.iter().map(|column| column.name().clone()).collect();
        let wanted: Vec<FieldRef> = projection.iter().map(|index| columns[*index].clone()).collect();
        let appenders: Result<Vec<_>> =
            wanted.iter().map(|column| appender(column.data_type(), zone)).collect();
        let layout = Layout::of(&names.iter().map(String::as_str).collect::<Vec<_>>(), &wanted);
        Ok(Self { format, names, wanted, appenders: appenders?, layout, rows: 0, chunk: Chunk::default() })
    }

    /// The fields of the first record as text, with what was taken up to its end.
    fn first_record(&mut self, window: Window<'_>, start: usize) -> Option<(Vec<String>, usize)> {
        let mut at = start;
        loop {
            let (mut cells, mut scratch) = (Vec::new(), Vec::new());
            match self
                .format
                .split(window, at, usize::MAX - 1, &mut scratch, &mut |_, cell, _| cells.push(cell))
            {
                Record::Starved if window.is_last => return Some((Vec::new(), at)),
                Record::Starved => return None,
                Record::Empty { next } if next == window.bytes.len() && !window.is_last => return None,
                Record::Empty { next } if next == window.bytes.len() => return Some((Vec::new(), next)),
                Record::Empty { next } => at = next,
                Record::Bad { next, .. } => return Some((vec![String::new()], next)),
                Record::Row { next, .. } => {
                    let texts =
                        Texts { block: window.bytes, scratch: &scratch, is_utf8: false, null_literal: None };
                    return Some((cells.into_iter().map(|cell| name(texts, cell)).collect(), next));
                }
            }
        }
    }

    fn is_header(&self, fields: &[String]) -> bool {
        match self.format.header {
            Header::Present => true,
            Header::Absent => false,
            Header::Detected => {
                let names_only = !fields.is_empty() && fields.iter().all(|field| self.names.contains(field));
                let names_all = !self.names.is_empty() && self.names.iter().all(|name| fields.contains(name));
                names_only || names_all
            }
        }
    }

    /// Splits up to `rows_max` records into the chunk; returns how far it got.
    fn split_chunk(&mut self, window: Window<'_>, taken: Taken, rows_max: usize) -> Taken {
        let Self { format, layout, chunk, wanted, .. } = self;
        let width = wanted.len();
        let mut taken = taken;
        chunk.clear();
        while chunk.rows.len() < rows_max.min(CHUNK_ROWS) {
            if taken.bytes == window.bytes.len() {
                return Taken { is_starved: true, ..taken };
            }
            let start = taken.bytes;
            let base = chunk.cells.len();
            chunk.cells.resize(base + width, Cell::NULL);
            let row = &mut chunk.cells[base..];
            let slots = layout.slots.as_slice();
            let record =
                format.split(window, start, slots.len(), &mut chunk.scratch, &mut |field, cell, _| {
                    if let Some(slot) = slots.get(field).and_then(|slot| row.get_mut(*slot)) {
                        *slot = cell;
                    }
                });
            let (next, problem) = match record {
                Record::Row { next, fields } => (next, Some(problem(next - start, fields, layout.fields))),
                Record::Bad { next, reason } => (next, Some(Some(reason))),
                Record::Empty { next } => (next, None),
                Record::Starved => {
                    chunk.cells.truncate(base);
                    return Taken { is_starved: true, ..taken };
                }
            };
            let at = (start as u32, next as u32, taken.lines as u32);
            taken.bytes = next;
            taken.lines += memchr_iter(b'\n', &window.bytes[start..next]).count() as u64;
            match problem {
                Some(None) => chunk.rows.push(at),
                Some(Some(reason)) => {
                    chunk.cells.truncate(base);
                    chunk.bad = Some((at.0, at.1, at.2, reason));
                    break;
                }
                None => chunk.cells.truncate(base),
            }
        }
        taken
    }

    /// Parses the chunk's cells column by column.
    fn append_chunk(&mut self, window: Window<'_>) {
        let Self { format, chunk, appenders, .. } = self;
        let width = appenders.len();
        let texts = Texts {
            block: window.bytes,
            scratch: &chunk.scratch,
            is_utf8: window.is_utf8,
            null_literal: format.null_literal.as_deref(),
        };
        for (column, appender) in appenders.iter_mut().enumerate().filter(|_| !chunk.cells.is_empty()) {
            appender.run(texts, &chunk.cells[column..], width, &mut chunk.unreadable);
            chunk.faults.extend(chunk.unreadable.drain(..).map(|row| (row, column as u32)));
        }
        self.rows += chunk.rows.len();
    }

    /// Reports what could not be read, in the order of the file.
    fn report(&mut self, window: Window<'_>, faults: &mut Faults) -> Result<()> {
        faults.count_read(self.chunk.rows.len() + usize::from(self.chunk.bad.is_some()));
        self.chunk.faults.sort_unstable();
        for (row, column) in &self.chunk.faults {
            self.report_field(window, *row as usize, *column as usize, faults)?;
        }
        let Some((start, end, line, reason)) = self.chunk.bad else { return Ok(()) };
        let record = &window.bytes[start as usize..end as usize];
        let place = Place { line: window.line + u64::from(line), column: 1 };
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        match reason {
            RAGGED => faults
                .reject(record, place, &self.raggedness(window, start as usize))
                .map_err(|error| error.with_hint(RAGGED_HINT)),
            reason => faults.reject(record, place, reason),
        }
    }

    fn raggedness(&self, window: Window<'_>, start: usize) -> String {
        let mut scratch = Vec::new();
        match self.format.split(window, start, 0, &mut scratch, &mut |_, _, _| ()) {
            Record::Row { fields, .. } => {
                format!("it has {fields} fields instead of {}", self.layout.fields)
            }
            Record::Empty { .. } | Record::Bad { .. } | Record::Starved => RAGGED.into(),
        }
    }

    fn report_field(&self, window: Window<'_>, row: usize, column: usize, faults: &Faults) -> Result<()> {
        let (start, end, line) = self.chunk.rows[row];
        let (start, end) = (start as usize, end as usize);
        let mut place = start;
        let slots = &self.layout.slots;
        let mut scratch = Vec::new();
        self.format.split(window, start, slots.len(), &mut scratch, &mut |field, _, at| {
            if slots.get(field) == Some(&column) {
                place = at;
            }
        });
        let texts = Texts {
            block: window.bytes,
            scratch: &self.chunk.scratch,
            is_utf8: window.is_utf8,
            null_literal: None,
        };
        let text = texts.of(self.chunk.cells[row * self.wanted.len() + column]);
        let record = &window.bytes[start..end];
        let field = &self.wanted[column];
        let outcome = faults.unreadable(
            field,
            text,
            scalar::complaint(field.data_type(), text),
            record.strip_suffix(b"\n").unwrap_or(record),
            Place::within(record, place - start, window.line + u64::from(line)),
        );
        outcome.map_err(|error| error.with_hint(UNREADABLE_HINT))
    }
}

const RAGGED: &str = "it has too few or too many fields";
const RAGGED_HINT: &str = "if fields are separated by something else, set 'csv.field-delimiter'; 'bad-rows' = 'skip' drops such rows, 'dead-letter' keeps them aside";
const UNREADABLE_HINT: &str =
    "set 'bad-rows' = 'skip' to read it as NULL, or 'csv.null-literal' if this text means NULL";

#[inline]
fn problem(length: usize, fields: usize, expected: usize) -> Option<&'static str> {
    if fields != expected {
        Some(RAGGED)
    } else if length > RECORD_BYTES_MAX {
        Some(super::OVERSIZED)
    } else {
        None
    }
}

fn name(texts: Texts<'_>, cell: Cell) -> String {
    match cell.is_null() {
        true => String::new(),
        false => String::from_utf8_lossy(trim(texts.of(cell))).into_owned(),
    }
}

impl TextDecoder for CsvDecoder {
    fn begin(&mut self, window: Window<'_>) -> Result<Option<Taken>> {
        let Some(mark) = byte_order_mark(window) else { return Ok(None) };
        let nothing = Taken { bytes: mark, lines: 0, is_starved: false };
        if self.format.header == Header::Absent {
            return Ok(Some(nothing));
        }
        let Some((fields, next)) = self.first_record(window, mark) else { return Ok(None) };
        if !self.is_header(&fields) {
            return Ok(Some(nothing));
        }
        let names: Vec<&str> = fields.iter().map(String::as_str).collect();
        self.layout = Layout::of(&names, &self.wanted);
        let lines = memchr_iter(b'\n', &window.bytes[..next]).count() as u64;
        Ok(Some(Taken { bytes: next, lines, is_starved: false }))
    }

    fn decode(&mut self, window: Window<'_>, rows_max: usize, faults: &mut Faults) -> Result<Taken> {
        let mut taken = Taken { bytes: 0, lines: 0, is_starved: false };
        while self.rows < rows_max && !taken.is_starved {
            taken = self.split_chunk(window, taken, rows_max - self.rows);
            self.append_chunk(window);
            self.report(window, faults)?;
        }
        Ok(taken)
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn finish(&mut self) -> Result<DecodedRows> {
        let columns: Result<Vec<ArrayRef>> =
            self.appenders.iter_mut().map(|appender| appender.finish()).collect();
        Ok(DecodedRows { columns: columns?, kinds: None, rows: std::mem::take(&mut self.rows) })
    }
}
