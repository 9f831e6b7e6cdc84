//! The reading side of `filesystem`: one split per file, or one for all files of change events.

use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use millpond_core::limits::READ_BYTES;
use millpond_core::{ChangelogMode, Error, OnMissingFile, Result};

use super::columns::{Assembly, Columns};
use super::fingerprint::Fingerprint;
use super::listing::Listing;
use super::reader::{Input, Text, TextReader};
use super::sequence::SequenceReader;
use crate::connector::{Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader};
use crate::factory::TableSpec;
use crate::format::parquet_decoder::ParquetReader;
use crate::format::{DecodedRows, Faults, Format};
use crate::options::Options;

/// Reads files.
#[derive(Debug, Clone)]
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
        let format = Format::take(spec, options, None)?;
        let columns = Columns::of(spec, &format)?;
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

    /// The files there are now, in the order in which they are read.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>> {
        let files = if self.is_bounded() { self.listing.files_for_good() } else { self.listing.files() };
        files.map_err(|error| error.context(format!("table {:?}", self.columns.table())))
    }

    /// How long to wait before a look for more; `None`: what is there is all.
    pub(super) fn retry_after(&self) -> Option<i64> {
        self.monitor_interval
    }

    /// Reads one file from a position on.
    pub(super) fn file(
        &self,
        path: &Path,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<FileReader> {
        if !path.is_file() {
            return self.gone(path, position, context);
        }
        let position = position.filter(|position| !position.0.is_null());
        position.map_or(Ok(()), |position| Fingerprint::check(path, position))?;
        let fingerprint = Fingerprint::of(path)?;
        let assembly = self.columns.assembly(path, &context.projection)?;
        let content = self.content(path, position, &context)?;
        let faults = Faults::new(context, &path.to_string_lossy());
        let retry_after = self.monitor_interval.unwrap_or(0);
        Ok(FileReader { path: path.into(), fingerprint, content, assembly, faults, retry_after })
    }

    /// A file that is not there: the end of it, if that is allowed.
    fn gone(&self, path: &Path, position: Option<&Position>, context: ReaderContext) -> Result<FileReader> {
        let table = self.columns.table();
        let what = format!("the file {path:?} of table {table:?} is gone");
        if context.on_missing_file == OnMissingFile::Fail {
            return Err(Error::data(what)
                .with_detail("the job had begun to read it, as its last checkpoint says")
                .with_hint(
                    "put it back, or set 'on-missing-file' = 'skip' to go on without what was not read of it",
                ));
        }
        tracing::warn!(file = %path.display(), table, "a file is gone; going on without it");
        let assembly = self.columns.assembly(path, &context.projection)?;
        let faults = Faults::new(context, &path.to_string_lossy());
        let content = Content::Gone(position.cloned());
        Ok(FileReader {
            path: path.into(),
            fingerprint: Fingerprint::default(),
            content,
            assembly,
            faults,
            retry_after: 0,
        })
    }

    /// Files of change events are read one after the other.
    fn is_sequence(&self) -> bool {
        self.mode() != ChangelogMode::Append
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
        self.columns.schema().clone()
    }
    fn is_bounded(&self) -> bool {
        self.monitor_interval.is_none()
    }
    fn mode(&self) -> ChangelogMode {
        self.format.mode()
    }
    fn splits(&self) -> Result<Vec<Split>> {
        let files = self.files()?;
        if self.is_sequence() {
            return Ok(vec![Split { id: self.listing.path().into() }]);
        }
        Ok(files.into_iter().map(|file| Split { id: file.to_string_lossy().into_owned() }).collect())
    }
    /// The reader of a sequence finds further files by itself.
    fn discovery_interval(&self) -> Option<i64> {
        self.monitor_interval.filter(|_| !self.is_sequence())
    }
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        if self.is_sequence() {
            return Ok(Box::new(SequenceReader::open(self.clone(), position, context)?));
        }
        Ok(Box::new(self.file(Path::new(&split.id), position, context)?))
    }
}

enum Content {
    Text(Box<TextReader>),
    Parquet(Box<ParquetReader>),
    /// Nothing any more; where reading had come to.
    Gone(Option<Position>),
}

/// Reads one file.
pub(super) struct FileReader {
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
            let decoded = match &mut self.content {
                Content::Text(text) => match text.poll(rows_max)? {
                    Text::Rows(decoded) => decoded,
                    Text::Waiting => {
                        let now = self.faults.context().clock.now();
                        return Ok(SourcePoll::NotYet { retry_at: now.saturating_add(self.retry_after) });
                    }
                    Text::End => return Ok(SourcePoll::End),
                },
                Content::Gone(_) => return Ok(SourcePoll::End),
                Content::Parquet(parquet) => match parquet.poll(rows_max, &self.faults)? {
                    Some((columns, rows)) => DecodedRows { columns, kinds: None, rows },
                    None => return Ok(SourcePoll::End),
                },
            };
            let batch = self.assembly.assemble(decoded, &self.faults)?;
            if !batch.is_empty() {
                return Ok(SourcePoll::Rows(batch));
            }
        }
    }

    fn position(&self) -> Position {
        let value = match &self.content {
            Content::Text(text) => serde_json::to_value(text.position()),
            Content::Parquet(parquet) => serde_json::to_value(parquet.position()),
            Content::Gone(position) => return position.clone().unwrap_or(Position(serde_json::Value::Null)),
        };
        let mut value = value.expect("a position is two numbers");
        self.fingerprint_now().add_to(&mut value);
        Position(value)
    }
}
