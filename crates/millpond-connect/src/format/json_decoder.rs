//! JSON to columns: one object per line, strictly parsed, straight into builders.
//!
//! An object is first scanned to its end, which validates it and notes where the values of the
//! wanted keys stand (of equal keys the last); only then are the values appended, so that a
//! malformed object leaves no trace. Several objects on one line are all read. Numbers go from
//! their text into the column's type, never through a float.

use arrow::datatypes::FieldRef;
use memchr::memchr;
use millpond_core::Result;
use millpond_core::limits::RECORD_BYTES_MAX;

use super::json_builder::{Record, RowBuilder, Wanted, place_of};
use super::json_scanner::{Scanner, Stop};
use super::scalar::Zone;
use super::{DecodedRows, Faults, Place, Taken, TextDecoder, Window, byte_order_mark};
use crate::options::Options;

/// The options of the format `json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonFormat {
    fail_on_missing_field: bool,
}

impl JsonFormat {
    /// Takes the options that begin with `json.`. Both timestamp formats are always understood.
    pub(crate) fn take(options: &mut Options) -> Result<Self> {
        options.choice("json.timestamp-format.standard", &[("SQL", ()), ("ISO-8601", ())])?;
        Ok(Self { fail_on_missing_field: options.flag("json.fail-on-missing-field")?.unwrap_or(false) })
    }
}

/// Turns scanned objects into rows.
pub(super) trait ObjectRows {
    /// Validates the object at `start` and notes what is wanted of it; returns where it ends.
    fn scan(&mut self, bytes: &[u8], start: usize) -> Result<usize, Stop>;
    /// Appends the rows of the scanned object, and counts them as read.
    fn append(&mut self, record: &Record<'_>, faults: &Faults) -> Result<()>;
    /// Rows held.
    fn rows(&self) -> usize;
}

/// Builds the wanted columns of a JSON file.
pub(crate) struct JsonDecoder {
    format: JsonFormat,
    builder: RowBuilder,
    scratch: Vec<u8>,
}

impl JsonDecoder {
    pub(crate) fn new(
        format: JsonFormat,
        columns: &[FieldRef],
        projection: &[usize],
        zone: Zone,
    ) -> Result<Self> {
        let wanted = projection.iter().map(|index| Wanted::new(&columns[*index], zone));
        let builder = RowBuilder::new(wanted.collect::<Result<_>>()?);
        Ok(Self { format, builder, scratch: Vec::new() })
    }
}

impl ObjectRows for JsonDecoder {
    fn scan(&mut self, bytes: &[u8], start: usize) -> Result<usize, Stop> {
        let Self { builder: RowBuilder { keys, spans, .. }, scratch, .. } = self;
        spans.fill(None);
        let mut hint = 0;
        Scanner::new(bytes).object(start, |key, value| {
            if let Some(place) = place_of(bytes, key, keys, hint, scratch) {
                spans[place] = Some(value);
                hint = place + 1;
            }
        })
    }

    fn append(&mut self, record: &Record<'_>, faults: &Faults) -> Result<()> {
        faults.count_read(1);
        if self.format.fail_on_missing_field
            && let Some(missing) = self.builder.spans.iter().position(Option::is_none)
        {
            let reason = format!("it lacks the field {:?}", self.builder.field(missing).name());
            return faults.reject(record.text(), record.start(), &reason);
        }
        self.builder.append(record, faults)
    }

    fn rows(&self) -> usize {
        self.builder.rows()
    }
}

/// The end of the line that `start` is on; `None`: it is not in the window.
fn line_end(window: Window<'_>, start: usize) -> Option<usize> {
    match memchr(b'\n', &window.bytes[start..]) {
        Some(length) => Some(start + length),
        None if window.is_last => Some(window.bytes.len()),
        None => None,
    }
}

/// Takes objects until `rows_max` rows are held or the window is used up.
pub(super) fn decode_objects(
    objects: &mut impl ObjectRows,
    window: Window<'_>,
    rows_max: usize,
    faults: &Faults,
) -> Result<Taken> {
    let bytes = window.bytes;
    let mut taken = Taken { bytes: 0, lines: 0, is_starved: false };
    while objects.rows() < rows_max {
        match bytes.get(taken.bytes) {
            None => return Ok(Taken { is_starved: true, ..taken }),
            Some(b'\n') => {
                taken.bytes += 1;
                taken.lines += 1;
                continue;
            }
            Some(b' ' | b'\t' | b'\r') => {
                taken.bytes += 1;
                continue;
            }
            Some(_) => {}
        }
        let (start, line) = (taken.bytes, window.line + taken.lines);
        let stop = match objects.scan(bytes, start) {
            Ok(end) if end - start > RECORD_BYTES_MAX => {
                Stop::Malformed { at: start, reason: super::OVERSIZED }
            }
            Ok(end) if window.is_utf8 || std::str::from_utf8(&bytes[start..end]).is_ok() => {
                objects.append(&Record { window, range: start..end, line }, faults)?;
                taken.bytes = end;
                continue;
            }
            Ok(_) => Stop::Malformed { at: start, reason: "it is not UTF-8" },
            Err(Stop::Incomplete) if !window.is_last => return Ok(Taken { is_starved: true, ..taken }),
            Err(stop) => stop,
        };
        let Some(end) = line_end(window, start) else { return Ok(Taken { is_starved: true, ..taken }) };
        faults.count_read(1);
        let (at, reason) = match stop {
            Stop::Incomplete => (end, "the file ends within it"),
            Stop::Malformed { at, reason } => (at, reason),
        };
        let record = &bytes[start..end];
        faults.reject(record, Place::within(record, at - start, line), reason)?;
        taken.bytes = end;
    }
    Ok(taken)
}

impl TextDecoder for JsonDecoder {
    fn begin(&mut self, window: Window<'_>) -> Result<Option<Taken>> {
        Ok(byte_order_mark(window).map(|bytes| Taken { bytes, lines: 0, is_starved: false }))
    }
    fn decode(&mut self, window: Window<'_>, rows_max: usize, faults: &mut Faults) -> Result<Taken> {
        decode_objects(self, window, rows_max, faults)
    }
    fn rows(&self) -> usize {
        self.builder.rows()
    }
    fn finish(&mut self) -> Result<DecodedRows> {
        Ok(DecodedRows { rows: self.builder.rows(), columns: self.builder.finish()?, kinds: None })
    }
}
