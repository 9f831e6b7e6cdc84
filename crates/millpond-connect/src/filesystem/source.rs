//! The reading side of `filesystem`: one split per file.
//!
//! A table's columns come from three places: the file's content, its directories
//! (`PARTITIONED BY`), and facts about it (metadata columns `file.path`, `file.name`,
//! `file.size`, `file.modification-time`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter_record_batch, is_not_null, take};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use millpond_core::limits::READ_BYTES;
use millpond_core::{ChangelogBatch, ChangelogMode, Error, Result, Timestamp};

use super::fingerprint::Fingerprint;
use super::listing::{Listing, partition_value};
use super::reader::{Input, Text, TextReader};
use crate::connector::{Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader};
use crate::factory::TableSpec;
use crate::format::appender::appender;
use crate::format::parquet_decoder::ParquetReader;
use crate::format::scalar::{Zone, type_name};
use crate::format::{Faults, Format, Place};
use crate::options::Options;

/// Where a column of the table comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// The file's content: the index among the columns stored there.
    Content(usize),
    /// A directory `key=value`.
    Partition,
    /// A fact about the file, by its metadata key.
    Fact(Fact),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fact {
    Path,
    Name,
    Size,
    ModificationTime,
}

impl Fact {
    const KEYS: [(&str, Fact); 4] = [
        ("file.path", Fact::Path),
        ("file.name", Fact::Name),
        ("file.size", Fact::Size),
        ("file.modification-time", Fact::ModificationTime),
    ];
}

/// How the columns of a table are spread over content, directories and facts.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    table: String,
    schema: SchemaRef,
    origins: Vec<Origin>,
    content: Vec<FieldRef>,
    zone: Zone,
}

impl Columns {
    /// Sorts out a table's columns.
    ///
    /// Errors: *Invalid* for unknown metadata keys.
    pub(crate) fn of(spec: &TableSpec) -> Result<Self> {
        let (mut origins, mut content) = (Vec::new(), Vec::new());
        for field in spec.schema.fields() {
            let origin = match field.metadata().get(TableSpec::METADATA_KEY) {
                Some(key) => Origin::Fact(fact(spec, key)?),
                None if spec.partition_keys.contains(field.name()) => Origin::Partition,
                None => Origin::Content(content.len()),
            };
            if matches!(origin, Origin::Content(_)) {
                content.push(field.clone());
            }
            origins.push(origin);
        }
        let zone = Zone::parse(&spec.time_zone)?;
        Ok(Self { table: spec.name.clone(), schema: spec.schema.clone(), origins, content, zone })
    }

    pub(crate) fn content(&self) -> &[FieldRef] {
        &self.content
    }
    pub(crate) fn zone(&self) -> Zone {
        self.zone
    }

    /// What of the content a projection needs.
    pub(crate) fn content_projection(&self, projection: &[usize]) -> Vec<usize> {
        projection
            .iter()
            .filter_map(|index| match self.origins[*index] {
                Origin::Content(content) => Some(content),
                Origin::Partition | Origin::Fact(_) => None,
            })
            .collect()
    }

    /// How the batches of one file are put together.
    fn assembly(&self, path: &Path, projection: &[usize]) -> Result<Assembly> {
        let schema = Arc::new(self.schema.project(projection)?);
        let mut decoded = 0;
        let mut sources = Vec::with_capacity(projection.len());
        for (index, field) in projection.iter().zip(schema.fields()) {
            sources.push(match &self.origins[*index] {
                Origin::Content(_) => {
                    decoded += 1;
                    Source::Decoded(decoded - 1)
                }
                Origin::Partition => Source::Constant(self.partition(path, field)?),
                Origin::Fact(fact) => Source::Constant(self.fact(path, *fact, field)?),
            });
        }
        Ok(Assembly { schema, sources })
    }

    fn partition(&self, path: &Path, field: &FieldRef) -> Result<ArrayRef> {
        let value = partition_value(path, field.name()).flatten();
        self.constant(field, value.as_deref(), path)
    }

    fn fact(&self, path: &Path, fact: Fact, field: &FieldRef) -> Result<ArrayRef> {
        let metadata =
            || std::fs::metadata(path).map_err(|error| Error::io(format!("read {path:?}"), &error));
        let text = match fact {
            Fact::Path => path.to_string_lossy().into_owned(),
            Fact::Name => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Fact::Size => metadata()?.len().to_string(),
            Fact::ModificationTime => modification_time(&metadata()?),
        };
        self.constant(field, Some(&text), path)
    }

    /// One value, read as a column's type.
    fn constant(&self, field: &FieldRef, text: Option<&str>, path: &Path) -> Result<ArrayRef> {
        let mut appender = appender(field.data_type(), self.zone)?;
        match text {
            None => appender.null(),
            Some(text) if appender.text(text.as_bytes(), true) => {}
            Some(text) => {
                let (name, type_name) = (field.name(), type_name(field.data_type()));
                let table = &self.table;
                return Err(Error::data(format!(
                    "cannot read column {name:?} ({type_name}) of table {table:?}: {text:?} comes with the file {path:?}"
                )));
            }
        }
        appender.finish()
    }
}

fn fact(spec: &TableSpec, key: &str) -> Result<Fact> {
    Fact::KEYS.iter().find(|(known, _)| *known == key).map(|(_, fact)| *fact).ok_or_else(|| {
        let known: Vec<&str> = Fact::KEYS.iter().map(|(known, _)| *known).collect();
        Error::invalid(format!("table {:?}: files have no metadata {key:?}", spec.name))
            .with_hint(format!("use one of {}", known.join(", ")))
    })
}

fn modification_time(metadata: &std::fs::Metadata) -> String {
    let since =
        metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{}Z", Timestamp(i64::try_from(since.as_micros()).unwrap_or_default()))
}

/// Puts decoded columns and constants together.
#[derive(Debug)]
pub(crate) struct Assembly {
    schema: SchemaRef,
    sources: Vec<Source>,
}

#[derive(Debug)]
enum Source {
    Decoded(usize),
    Constant(ArrayRef),
}

impl Assembly {
    /// An assembly of decoded columns alone.
    pub(crate) fn of_content(schema: &Schema, projection: &[usize]) -> Result<Self> {
        let schema = Arc::new(schema.project(projection)?);
        let sources = (0..projection.len()).map(Source::Decoded).collect();
        Ok(Self { schema, sources })
    }

    /// The batch without the rows that break a NOT NULL; these follow `bad-rows`.
    pub(crate) fn assemble(
        &self,
        decoded: Vec<ArrayRef>,
        rows: usize,
        faults: &Faults,
    ) -> Result<RecordBatch> {
        let columns: Result<Vec<ArrayRef>> = self
            .sources
            .iter()
            .map(|source| match source {
                Source::Decoded(index) => Ok(decoded[*index].clone()),
                Source::Constant(value) => Ok(take(value, &UInt32Array::from(vec![0; rows]), None)?),
            })
            .collect();
        let fields: Vec<FieldRef> = self
            .schema
            .fields()
            .iter()
            .map(|field| Arc::new(field.as_ref().clone().with_nullable(true)))
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let mut batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns?, &options)?;
        for (index, field) in self.schema.fields().iter().enumerate() {
            if !field.is_nullable() && batch.column(index).null_count() > 0 {
                batch = without_nulls(&batch, index, field, faults)?;
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), batch.columns().to_vec(), &options)?)
    }
}

#[cold]
fn without_nulls(
    batch: &RecordBatch,
    index: usize,
    field: &FieldRef,
    faults: &Faults,
) -> Result<RecordBatch> {
    let reason = format!("column {:?} is NOT NULL, but has no readable value", field.name());
    for _ in 0..batch.column(index).null_count() {
        faults.reject(b"", Place::UNKNOWN, &reason)?;
    }
    let kept: BooleanArray = is_not_null(batch.column(index))?;
    Ok(filter_record_batch(batch, &kept)?)
}

/// Reads files.
#[derive(Debug)]
pub struct FileSource {
    columns: Columns,
    listing: Listing,
    format: Format,
    monitor_interval: Option<i64>,
    block_bytes: usize,
}

impl FileSource {
    /// Takes the options of the reading side.
    pub(crate) fn take(spec: &TableSpec, options: &mut Options) -> Result<Self> {
        let path = options.require("path")?;
        let flink = options.flag("source.path.recursive")?;
        let recursive = options.flag("recursive")?.or(flink).unwrap_or(false);
        options.text("source.report-statistics");
        let columns = Columns::of(spec)?;
        let format = Format::take(options, None)?;
        format
            .check(columns.content(), columns.zone())
            .map_err(|error| error.context(format!("table {:?}", spec.name)))?;
        Ok(Self {
            columns,
            listing: Listing::new(&path, recursive, &spec.partition_keys)?,
            format,
            monitor_interval: options.duration("source.monitor-interval")?,
            block_bytes: READ_BYTES,
        })
    }

    #[cfg(test)]
    pub(crate) fn with_block_bytes(mut self, block_bytes: usize) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    fn content(&self, path: &Path, position: Option<&Position>, context: &ReaderContext) -> Result<Content> {
        let projection = self.columns.content_projection(&context.projection);
        let zone = self.columns.zone();
        let content = self.columns.content();
        match self.format.text_decoder(content, &projection, zone)? {
            Some(decoder) => {
                let input = Input::file(path, self.monitor_interval.is_some(), context.metrics.clone());
                let faults = Faults::new(context.clone(), &path.to_string_lossy());
                let position = position.map(parse_position).transpose()?;
                Ok(Content::Text(Box::new(TextReader::new(
                    input,
                    decoder,
                    faults,
                    position,
                    self.block_bytes,
                ))))
            }
            None => {
                let wanted = projection.iter().map(|index| content[*index].clone()).collect();
                let position = position.map(parse_position).transpose()?.unwrap_or_default();
                Ok(Content::Parquet(Box::new(ParquetReader::open(path, wanted, zone, position)?)))
            }
        }
    }
}

/// A connector's own position out of the opaque one.
pub(crate) fn parse_position<T: serde::de::DeserializeOwned>(position: &Position) -> Result<T> {
    serde_json::from_value(position.0.clone())
        .map_err(|error| Error::corrupt(format!("{} is not a position in a file: {error}", position.0)))
}

impl SourceConnector for FileSource {
    fn schema(&self) -> SchemaRef {
        self.columns.schema.clone()
    }
    fn is_bounded(&self) -> bool {
        self.monitor_interval.is_none()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn splits(&self) -> Result<Vec<Split>> {
        let files = if self.is_bounded() { self.listing.files_for_good() } else { self.listing.files() };
        let files = files.map_err(|error| error.context(format!("table {:?}", self.columns.table)))?;
        Ok(files.into_iter().map(|file| Split { id: file.to_string_lossy().into_owned() }).collect())
    }
    fn discovery_interval(&self) -> Option<i64> {
        self.monitor_interval
    }
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let path = PathBuf::from(&split.id);
        if !path.is_file() {
            return Err(Error::data(format!("the file {path:?} of table {:?} is gone", self.columns.table)));
        }
        position.map_or(Ok(()), |position| Fingerprint::check(&path, position))?;
        let fingerprint = Fingerprint::of(&path)?;
        let assembly = self.columns.assembly(&path, &context.projection)?;
        let content = self.content(&path, position, &context)?;
        let faults = Faults::new(context, &split.id);
        Ok(Box::new(FileReader {
            path,
            fingerprint,
            content,
            assembly,
            faults,
            retry_after: self.monitor_interval.unwrap_or(0),
        }))
    }
}

enum Content {
    Text(Box<TextReader>),
    Parquet(Box<ParquetReader>),
}

/// Reads one file.
struct FileReader {
    path: PathBuf,
    fingerprint: Fingerprint,
    content: Content,
    assembly: Assembly,
    faults: Faults,
    retry_after: i64,
}

impl FileReader {
    /// A small file may have grown since it was opened.
    fn fingerprint_now(&self) -> Fingerprint {
        let grown = || Fingerprint::of(&self.path).unwrap_or(self.fingerprint);
        if self.retry_after == 0 || self.fingerprint.is_final() { self.fingerprint } else { grown() }
    }
}

impl SplitReader for FileReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        loop {
            let (columns, rows) = match &mut self.content {
                Content::Text(text) => match text.poll(rows_max)? {
                    Text::Rows(columns, rows) => (columns, rows),
                    Text::Waiting => {
                        let now = self.faults.context().clock.now();
                        return Ok(SourcePoll::NotYet { retry_at: now.saturating_add(self.retry_after) });
                    }
                    Text::End => return Ok(SourcePoll::End),
                },
                Content::Parquet(parquet) => match parquet.poll(rows_max, &self.faults)? {
                    Some(found) => found,
                    None => return Ok(SourcePoll::End),
                },
            };
            let batch = self.assembly.assemble(columns, rows, &self.faults)?;
            if batch.num_rows() > 0 {
                return Ok(SourcePoll::Rows(ChangelogBatch::append(batch)));
            }
        }
    }

    fn position(&self) -> Position {
        let value = match &self.content {
            Content::Text(text) => serde_json::to_value(text.position()),
            Content::Parquet(parquet) => serde_json::to_value(parquet.position()),
        };
        let mut value = value.expect("a position is two numbers");
        self.fingerprint_now().add_to(&mut value);
        Position(value)
    }
}
