//! Formats: bytes to batches.
//!
//! A text decoder is given a window of bytes and takes complete records out of it; it knows
//! neither files nor how the window is filled, so that how input is cut into blocks can never
//! change what is read. Unreadable records and fields go to [`Faults`], the one place that
//! follows `bad-rows`.

pub(crate) mod appender;
pub mod csv_decoder;
pub(crate) mod csv_encoder;
pub mod debezium_decoder;
pub(crate) mod debezium_encoder;
pub(crate) mod json_builder;
pub mod json_decoder;
pub(crate) mod json_encoder;
pub(crate) mod json_scanner;
pub mod parquet_decoder;
pub(crate) mod parquet_encoder;
pub(crate) mod scalar;
pub mod text;

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, FieldRef};
use millpond_core::{BadRows, ChangelogMode, DeadLetter, Error, Result, RowKind};

use crate::connector::ReaderContext;
use crate::factory::TableSpec;
use crate::format::csv_decoder::{CsvDecoder, CsvFormat};
use crate::format::debezium_decoder::{DebeziumDecoder, DebeziumFormat};
use crate::format::json_decoder::{JsonDecoder, JsonFormat};
use crate::format::scalar::Zone;
use crate::options::Options;

/// Bytes of a record that a dead letter keeps.
const LETTER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a value that a message shows.
const SHOWN_BYTES_MAX: usize = 80;

/// Why a record is refused that would not fit into memory.
pub(crate) const OVERSIZED: &str = "it is larger than 16 MiB";

/// How the bytes of a file are read.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Csv(CsvFormat),
    Json(JsonFormat),
    Debezium(DebeziumFormat),
    Parquet,
}

impl Format {
    /// Options that belong to the reading of formats.
    pub(crate) const OPTIONS: &[&str] = &[
        "format",
        "csv.field-delimiter",
        "csv.quote-character",
        "csv.disable-quote-character",
        "csv.allow-comments",
        "csv.null-literal",
        "csv.header",
        "csv.ignore-parse-errors",
        "json.timestamp-format.standard",
        "json.fail-on-missing-field",
        "json.ignore-parse-errors",
        "debezium-json.schema-include",
        "debezium-json.ignore-parse-errors",
        "debezium-json.timestamp-format.standard",
        "debezium-json.map-null-key.mode",
        "debezium-json.map-null-key.literal",
        "debezium-json.encode.decimal-as-plain-number",
    ];

    /// Takes `format` and what belongs to it.
    pub(crate) fn take(spec: &TableSpec, options: &mut Options, default: Option<&str>) -> Result<Self> {
        let name = match (options.text("format"), default) {
            (Some(name), _) => name,
            (None, Some(default)) => default.into(),
            (None, None) => options.require("format")?,
        };
        match name.as_str() {
            "csv" => Ok(Self::Csv(CsvFormat::take(options)?)),
            "json" => Ok(Self::Json(JsonFormat::take(options)?)),
            "debezium-json" => Ok(Self::Debezium(DebeziumFormat::take(spec, options)?)),
            "parquet" => Ok(Self::Parquet),
            _ => Err(Error::invalid(format!(
                "table {:?}: the format '{name}' is not supported yet",
                options.table()
            ))
            .with_hint("use one of csv, json, debezium-json, parquet")),
        }
    }

    /// The changelog that files of this format hold.
    pub(crate) fn mode(&self) -> ChangelogMode {
        match self {
            Self::Csv(_) | Self::Json(_) | Self::Parquet => ChangelogMode::Append,
            Self::Debezium(format) if format.is_keyed() => ChangelogMode::Upsert,
            Self::Debezium(_) => ChangelogMode::Retract,
        }
    }

    /// Refuses column types that the format cannot read.
    pub(crate) fn check(&self, columns: &[FieldRef], zone: Zone) -> Result<()> {
        for column in columns {
            let checked = match self {
                Self::Csv(_) => appender::appender(column.data_type(), zone).map(drop),
                Self::Json(_) | Self::Debezium(_) => json_builder::check(column.data_type(), zone),
                Self::Parquet => Ok(()),
            };
            checked.map_err(|error| error.context(format!("column {:?}", column.name())))?;
        }
        Ok(())
    }

    /// A decoder that gives the columns at `projection`; `None` for formats that are not text.
    pub(crate) fn text_decoder(
        &self,
        columns: &[FieldRef],
        projection: &[usize],
        zone: Zone,
    ) -> Result<Option<Box<dyn TextDecoder>>> {
        Ok(match self {
            Self::Csv(format) => Some(Box::new(CsvDecoder::new(format.clone(), columns, projection, zone)?)),
            Self::Json(format) => {
                Some(Box::new(JsonDecoder::new(format.clone(), columns, projection, zone)?))
            }
            Self::Debezium(format) => {
                Some(Box::new(DebeziumDecoder::new(format.clone(), columns, projection, zone)?))
            }
            Self::Parquet => None,
        })
    }
}

/// A window of bytes, beginning where a record does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window<'a> {
    pub(crate) bytes: &'a [u8],
    /// Nothing follows.
    pub(crate) is_last: bool,
    /// All complete records are known to be UTF-8.
    pub(crate) is_utf8: bool,
    /// The line (1-based) of the first byte.
    pub(crate) line: u64,
}

/// What a decoder took from a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    pub(crate) lines: u64,
    /// The window holds no further complete record.
    pub(crate) is_starved: bool,
}

/// Takes records out of windows and builds columns of them.
pub(crate) trait TextDecoder: Send {
    /// Reads what stands before the first record; `None`: the window must grow first.
    fn begin(&mut self, window: Window<'_>) -> Result<Option<Taken>>;
    /// Takes records until `rows_max` rows are held or the window is used up.
    fn decode(&mut self, window: Window<'_>, rows_max: usize, faults: &mut Faults) -> Result<Taken>;
    /// Rows held.
    fn rows(&self) -> usize;
    /// The rows held; none is held afterwards.
    fn finish(&mut self) -> Result<DecodedRows>;
}

/// Rows taken out of a file.
pub(crate) struct DecodedRows {
    pub(crate) columns: Vec<ArrayRef>,
    /// `None`: every row is new.
    pub(crate) kinds: Option<Vec<RowKind>>,
    pub(crate) rows: usize,
}

/// The length of a byte order mark at the start of the input; `None`: too short to tell.
pub(crate) fn byte_order_mark(window: Window<'_>) -> Option<usize> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    match window.bytes {
        bytes if bytes.starts_with(MARK) => Some(MARK.len()),
        bytes if MARK.starts_with(bytes) && !window.is_last => None,
        _ => Some(0),
    }
}

/// Where something stands in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl Place {
    /// For rows that are found wanting after they were read.
    pub(crate) const UNKNOWN: Place = Place { line: 0, column: 0 };
    /// The place of `at` in a record that starts on `line`, at the beginning of it.
    pub(crate) fn within(record: &[u8], at: usize, line: u64) -> Self {
        let before = &record[..at.min(record.len())];
        let lines = memchr::memchr_iter(b'\n', before).count() as u64;
        let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
        let characters = before[start..].iter().filter(|byte| (**byte as i8) >= -0x40).count();
        Self { line: line + lines, column: characters as u64 + 1 }
    }
}

/// Follows `bad-rows`: fails with the place, or counts, and keeps dead letters.
#[derive(Debug)]
pub(crate) struct Faults {
    context: ReaderContext,
    split: String,
}

impl Faults {
    pub(crate) fn new(context: ReaderContext, split: &str) -> Self {
        Self { context, split: split.into() }
    }
    /// Whether the first fault ends the reading.
    pub(crate) fn are_fatal(&self) -> bool {
        self.context.bad_rows == BadRows::Fail
    }
    pub(crate) fn context(&self) -> &ReaderContext {
        &self.context
    }
    /// Counts records taken, good or bad.
    pub(crate) fn count_read(&self, records: usize) {
        self.context.metrics.read.add(records as u64);
    }

    /// A record that gives no row.
    pub(crate) fn reject(&self, record: &[u8], place: Place, reason: &str) -> Result<()> {
        if self.are_fatal() {
            let table = &self.context.table;
            return Err(Error::data(format!(
                "cannot read a row of table {table:?}: {reason}, in {}",
                self.at(place)
            ))
            .with_hint("set 'bad-rows' = 'skip' to drop such rows, or 'dead-letter' to keep them aside"));
        }
        self.context.metrics.rejected.add(1);
        self.keep(record, place, reason)
    }

    /// A field that becomes NULL.
    pub(crate) fn unreadable(
        &self,
        column: &Field,
        text: &[u8],
        complaint: &str,
        record: &[u8],
        place: Place,
    ) -> Result<()> {
        let reason = format!(
            "cannot read column {:?} ({}) of table {:?}: {} {complaint}",
            column.name(),
            scalar::type_name(column.data_type()),
            self.context.table,
            shown(text),
        );
        if self.are_fatal() {
            return Err(Error::data(format!("{reason}, in {}", self.at(place)))
                .with_hint("set 'bad-rows' = 'skip' to read it as NULL"));
        }
        self.context.metrics.nulled.add(1);
        self.keep(record, place, &reason)
    }

    fn at(&self, place: Place) -> String {
        if place == Place::UNKNOWN {
            return self.split.clone();
        }
        format!("{}, line {}, column {}", self.split, place.line, place.column)
    }

    fn keep(&self, record: &[u8], place: Place, reason: &str) -> Result<()> {
        if self.context.bad_rows != BadRows::DeadLetter {
            return Ok(());
        }
        self.context.dead_letters.keep(DeadLetter {
            table: self.context.table.clone(),
            split: self.split.clone(),
            line: (place != Place::UNKNOWN).then_some(place.line),
            column: (place != Place::UNKNOWN).then_some(place.column),
            reason: reason.into(),
            record: String::from_utf8_lossy(&record[..record.len().min(LETTER_BYTES_MAX)]).into_owned(),
        })
    }
}

/// A value as a message shows it: quoted, escaped, cut.
fn shown(text: &[u8]) -> String {
    let lossy = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES_MAX)]);
    match text.len() > SHOWN_BYTES_MAX {
        true => format!("{:?}…", lossy),
        false => format!("{lossy:?}"),
    }
}
