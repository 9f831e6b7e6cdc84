//! The columns of a table of files: from a file's content, its directories and facts about it.

use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use millpond_core::{ChangelogBatch, ChangelogMode, Error, Result, Timestamp};

use super::listing::partition_value;
use crate::factory::TableSpec;
use crate::format::appender::appender;
use crate::format::debezium_decoder::{event_facts, is_event_fact};
use crate::format::scalar::{Zone, type_name};
use crate::format::{DecodedRows, Faults, Format, Place};

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
    mode: ChangelogMode,
    primary_key: Vec<String>,
}

impl Columns {
    /// Sorts out a table's columns.
    ///
    /// Errors: *Invalid* for unknown metadata keys.
    pub(crate) fn of(spec: &TableSpec, format: &Format) -> Result<Self> {
        let mode = format.mode();
        let (mut origins, mut content) = (Vec::new(), Vec::new());
        for field in spec.schema.fields() {
            let origin = match field.metadata().get(TableSpec::METADATA_KEY) {
                Some(key) if mode == ChangelogMode::Retract => {
                    return Err(passing_fact(spec, field, key));
                }
                Some(key) if mode != ChangelogMode::Append && is_event_fact(key) => {
                    Origin::Content(content.len())
                }
                Some(key) => Origin::Fact(fact(spec, key, mode)?),
                None if spec.partition_keys.contains(field.name()) => Origin::Partition,
                None => Origin::Content(content.len()),
            };
            if matches!(origin, Origin::Content(_)) {
                content.push(field.clone());
            }
            origins.push(origin);
        }
        let zone = Zone::parse(&spec.time_zone)?;
        Ok(Self {
            table: spec.name.clone(),
            schema: spec.schema.clone(),
            origins,
            content,
            zone,
            mode,
            primary_key: spec.primary_key.clone(),
        })
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
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
    pub(crate) fn assembly(&self, path: &Path, projection: &[usize]) -> Result<Assembly> {
        let schema = self.schema.project(projection)?;
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
        Ok(self.assembly_of(&schema, sources))
    }

    /// An assembly of decoded columns alone.
    pub(crate) fn assembly_of_content(&self, projection: &[usize]) -> Result<Assembly> {
        let sources = (0..projection.len()).map(Source::Decoded).collect();
        Ok(self.assembly_of(&self.schema.project(projection)?, sources))
    }

    /// Of a deleted row that is found by its key, nothing else needs to be known.
    fn assembly_of(&self, schema: &Schema, sources: Vec<Source>) -> Assembly {
        let given = |field: &FieldRef| match self.mode {
            ChangelogMode::Upsert if !self.primary_key.contains(field.name()) => {
                Arc::new(field.as_ref().clone().with_nullable(true))
            }
            ChangelogMode::Append | ChangelogMode::Retract | ChangelogMode::Upsert => field.clone(),
        };
        let fields: Vec<FieldRef> = schema.fields().iter().map(given).collect();
        let required = schema.fields().iter().map(|field| !field.is_nullable()).collect();
        Assembly { schema: Arc::new(Schema::new(fields)), required, sources }
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

fn fact(spec: &TableSpec, key: &str, mode: ChangelogMode) -> Result<Fact> {
    Fact::KEYS.iter().find(|(known, _)| *known == key).map(|(_, fact)| *fact).ok_or_else(|| {
        let files = Fact::KEYS.iter().map(|(known, _)| *known);
        let known: Vec<&str> = match mode {
            ChangelogMode::Append => files.collect(),
            ChangelogMode::Upsert | ChangelogMode::Retract => files.chain(event_facts()).collect(),
        };
        Error::invalid(format!("table {:?}: files have no metadata {key:?}", spec.name))
            .with_hint(format!("use one of {}", known.join(", ")))
    })
}

/// A retraction must equal the row that it takes back, also where it came from.
fn passing_fact(spec: &TableSpec, field: &FieldRef, key: &str) -> Error {
    let name = field.name();
    Error::invalid(format!(
        "column {name:?} of table {:?} (metadata {key:?}) is not the same when a row comes and when it goes",
        spec.name
    ))
    .with_hint("declare a PRIMARY KEY by which the rows of change events are found")
}

fn modification_time(metadata: &std::fs::Metadata) -> String {
    let since =
        metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{}Z", Timestamp(i64::try_from(since.as_micros()).unwrap_or_default()))
}

/// Puts decoded columns and constants together.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// What is given: a column may have NULLs that its declaration forbids, in deleted rows.
    schema: SchemaRef,
    /// Per column, whether it is NOT NULL.
    required: Vec<bool>,
    sources: Vec<Source>,
}

#[derive(Debug)]
enum Source {
    Decoded(usize),
    Constant(ArrayRef),
}

impl Assembly {
    /// The batch without the rows that break a NOT NULL; these follow `bad-rows`.
    pub(crate) fn assemble(&self, decoded: DecodedRows, faults: &Faults) -> Result<ChangelogBatch> {
        let rows = decoded.rows;
        let columns: Result<Vec<ArrayRef>> = self
            .sources
            .iter()
            .map(|source| match source {
                Source::Decoded(index) => Ok(decoded.columns[*index].clone()),
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
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns?, &options)?;
        let mut batch = match decoded.kinds {
            Some(kinds) => ChangelogBatch::with_kinds(batch, kinds),
            None => ChangelogBatch::append(batch),
        };
        for (index, field) in self.schema.fields().iter().enumerate() {
            if self.required[index] && batch.rows.column(index).null_count() > 0 {
                batch = without_nulls(batch, index, field, faults)?;
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.rows.columns().to_vec();
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        Ok(batch.replace_rows(rows))
    }
}

#[cold]
fn without_nulls(
    batch: ChangelogBatch,
    index: usize,
    field: &FieldRef,
    faults: &Faults,
) -> Result<ChangelogBatch> {
    let reason = format!("column {:?} is NOT NULL, but has no readable value", field.name());
    let column = batch.rows.column(index);
    let is_needed = |row: usize| batch.kind(row).is_addition() || !field.is_nullable();
    let kept: BooleanArray =
        (0..batch.num_rows()).map(|row| Some(column.is_valid(row) || !is_needed(row))).collect();
    for _ in 0..kept.false_count() {
        faults.reject(b"", Place::UNKNOWN, &reason)?;
    }
    batch.filter(&kept)
}
