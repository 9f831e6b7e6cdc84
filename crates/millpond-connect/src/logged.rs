//! Reads rows out of the replay log: each record is a text of its own, a request or a block of lines.
//!
//! A position is the record's offset and the place within its text, so that reading goes on at the
//! exact row.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::limits::READ_BYTES;
use millpond_core::{BadRows, ChangelogMode, DeadLetter, DeadLetterOffice, Error, Result, SourceMetrics};

use crate::connector::{Position, ReaderContext, SourcePoll, SplitReader};
use crate::factory::TableSpec;
use crate::filesystem::columns::{Assembly, Columns};
use crate::filesystem::reader::{Input, Text, TextPosition, TextReader};
use crate::filesystem::source::parse_position;
use crate::format::{Faults, Format};
use crate::options::Options;
use crate::replay_log::{LogReader, LogRecord, ReplayLog};

/// How long a quiet log is left alone, in microseconds.
const PAUSE: i64 = 1_000;

/// The columns and the format of texts that are pushed.
#[derive(Debug, Clone)]
pub(crate) struct Texts {
    name: String,
    schema: SchemaRef,
    columns: Columns,
    format: Format,
}

/// How many rows of a text are good and how many are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
}

impl Texts {
    /// Takes the format's options.
    ///
    /// Errors: *Invalid* for a format that is no text, and for metadata columns.
    pub(crate) fn take(spec: &TableSpec, options: &mut Options, connector: &str) -> Result<Self> {
        let format = Format::take(spec, options, Some("json"))?;
        let columns = Columns::of(spec, &format)?;
        if matches!(format, Format::Parquet) || columns.content().len() != spec.schema.fields().len() {
            return Err(Error::invalid(format!(
                "table {:?}: the connector '{connector}' has neither files nor partitions",
                spec.name
            ))
            .with_hint("use the format csv, json or debezium-json"));
        }
        let checked = format.check(columns.content(), columns.zone());
        checked.map_err(|error| error.context(format!("table {:?}", spec.name)))?;
        Ok(Self { name: spec.name.clone(), schema: spec.schema.clone(), columns, format })
    }

    pub(crate) fn table(&self) -> &str {
        &self.name
    }
    pub(crate) fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    pub(crate) fn mode(&self) -> ChangelogMode {
        self.format.mode()
    }
    pub(crate) fn is_json(&self) -> bool {
        !matches!(self.format, Format::Csv(..))
    }
    /// Whether a line break may stand between quotes.
    pub(crate) fn has_quotes(&self) -> bool {
        matches!(self.format, Format::Csv(..))
    }
    /// Whether the first line is a header, whatever it says.
    pub(crate) fn begins_with_header(&self) -> bool {
        matches!(&self.format, Format::Csv(csv) if csv.begins_with_header())
    }

    fn reader(
        &self,
        name: &str,
        text: Arc<[u8]>,
        position: Option<TextPosition>,
        context: &ReaderContext,
    ) -> Result<TextReader> {
        let decoder = self
            .format
            .text_decoder(self.columns.content(), &context.projection, self.columns.zone())?
            .ok_or_else(|| Error::internal("what is pushed is text"))?;
        let faults = Faults::new(context.clone(), name);
        Ok(TextReader::new(Input::inline(name, text), decoder, faults, position, READ_BYTES))
    }

    /// Decodes a text without keeping anything of it.
    ///
    /// Errors: the first row that cannot be read, with its place, if such rows are to fail.
    pub(crate) fn check(&self, name: &str, text: &[u8], context: &ReaderContext) -> Result<Checked> {
        let metrics = Arc::new(SourceMetrics::default());
        let context = ReaderContext {
            projection: (0..self.schema.fields().len()).collect(),
            metrics: Arc::clone(&metrics),
            dead_letters: Arc::new(Nobody),
            bad_rows: if context.bad_rows == BadRows::Fail { BadRows::Fail } else { BadRows::Skip },
            ..context.clone()
        };
        let assembly = self.columns.assembly_of_content(&context.projection)?;
        let faults = Faults::new(context.clone(), name);
        let mut reader = self.reader(name, text.into(), None, &context)?;
        let mut accepted = 0;
        while let Text::Rows(decoded) = reader.poll(8192)? {
            accepted += assembly.assemble(decoded, &faults)?.num_rows() as u64;
        }
        Ok(Checked { accepted, rejected: metrics.read.value().saturating_sub(accepted) })
    }

    /// Reads a log from a position on.
    pub(crate) fn read_log(
        &self,
        log: &Arc<ReplayLog>,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<LoggedReader> {
        let position: Option<LogPosition> = position.map(parse_position).transpose()?;
        let (at, inside) = match &position {
            None => (log.first(), None),
            Some(position) if position.log == log.name() => {
                let (first, end) = (log.first(), log.durable_end());
                if position.record < first || position.record > end {
                    return Err(Error::corrupt(format!(
                        "the replay log of table {:?} holds {first} to {end}, and is to be read from {}",
                        self.name, position.record
                    ))
                    .with_hint("restore its files from a backup, or begin the job anew"));
                }
                (position.record, position.inside)
            }
            // A job that goes on from the snapshot of another one, or on another machine, has a log of
            // its own, all of which came later.
            Some(position) => {
                tracing::warn!(
                    table = self.name,
                    log = position.log,
                    "the log that the snapshot was taken over is not here; what came after the snapshot is there"
                );
                (log.first(), None)
            }
        };
        let log_name = log.name().to_string();
        Ok(LoggedReader {
            assembly: self.columns.assembly_of_content(&context.projection)?,
            faults: Faults::new(context, &self.name),
            texts: self.clone(),
            log: log.reader(at),
            log_name,
            inside,
            open: None,
        })
    }
}

/// The text is thrown away, and so are its bad rows.
#[derive(Debug)]
struct Nobody;

impl DeadLetterOffice for Nobody {
    fn keep(&self, _: DeadLetter) -> Result<()> {
        Ok(())
    }
}

/// Where reading goes on.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct LogPosition {
    /// The log's name.
    log: String,
    record: u64,
    inside: Option<TextPosition>,
}

/// The offset of the first record of a log that any of these positions needs.
pub(crate) fn needed_from(log: &ReplayLog, positions: &[Position]) -> Result<Option<u64>> {
    let positions = positions.iter().map(parse_position::<LogPosition>).collect::<Result<Vec<_>>>()?;
    let records = positions.iter().map(|position| (position.log == log.name()).then_some(position.record));
    Ok(records.collect::<Option<Vec<_>>>().and_then(|records| records.into_iter().min()))
}

/// Splits a record into the name of its request and its text.
pub(crate) fn parts_of(record: &[u8]) -> (&[u8], &[u8]) {
    let length = record.first().map_or(0, |length| usize::from(*length));
    let name = record.get(1..=length).unwrap_or_default();
    (name, record.get(1 + length..).unwrap_or_default())
}

/// The record of a text; of the request's name as much as fits.
pub(crate) fn record_of(request: &[u8], text: &[u8]) -> Vec<u8> {
    let request = &request[..request.len().min(usize::from(u8::MAX))];
    [&[request.len() as u8], request, text].concat()
}

/// Reads the rows of a log.
pub(crate) struct LoggedReader {
    texts: Texts,
    assembly: Assembly,
    faults: Faults,
    log: LogReader,
    log_name: String,
    /// Where the next record is to be entered.
    inside: Option<TextPosition>,
    /// The record that is read, and its length.
    open: Option<(TextReader, usize)>,
}

impl LoggedReader {
    fn enter(&mut self, record: &[u8]) -> Result<()> {
        let context = self.faults.context();
        context.metrics.bytes.add(record.len() as u64);
        let (_, text) = parts_of(record);
        let name = format!("{} at {}", self.texts.name, self.log.at());
        let reader = self.texts.reader(&name, text.into(), self.inside.take(), context)?;
        self.open = Some((reader, record.len()));
        Ok(())
    }
}

impl SplitReader for LoggedReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        loop {
            let Some((text, length)) = &mut self.open else {
                match self.log.peek()? {
                    LogRecord::Record(record) => self.enter(&record)?,
                    LogRecord::End => return Ok(SourcePoll::End),
                    LogRecord::Waiting => {
                        let now = self.faults.context().clock.now();
                        return Ok(SourcePoll::NotYet { retry_at: now.saturating_add(PAUSE) });
                    }
                }
                continue;
            };
            match text.poll(rows_max)? {
                Text::Rows(decoded) => {
                    let batch = self.assembly.assemble(decoded, &self.faults)?;
                    if !batch.is_empty() {
                        return Ok(SourcePoll::Rows(batch));
                    }
                }
                Text::Waiting | Text::End => {
                    self.log.pass(*length);
                    self.open = None;
                }
            }
        }
    }

    fn position(&self) -> Position {
        let inside = self.open.as_ref().map(|(text, _)| text.position()).or(self.inside);
        let position = LogPosition { log: self.log_name.clone(), record: self.log.at(), inside };
        Position(serde_json::to_value(position).expect("a position is a few numbers"))
    }
}
