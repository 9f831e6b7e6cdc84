//! Answers: what a statement gives back.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use millpond_core::{ChangelogBatch, Element, EpochMark, Error, ErrorKind, Result};
use millpond_operators::fold::ChangelogFold;
use millpond_planner::Presentation;
use millpond_runtime::{JobHandle, JobMetrics};
use tokio::sync::mpsc;

use crate::job::Job;

/// What a statement gives back.
#[derive(Debug)]
pub enum Outcome {
    /// It is done; there may be something to say about it.
    Done(Option<String>),
    /// Rows: an answer.
    Rows(Rows),
    /// A result that goes on changing.
    Changes(Changes),
    /// A job was started (or found again).
    Job(Job),
}

/// A finished answer.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Columns.
    pub schema: SchemaRef,
    /// Rows.
    pub batches: Vec<RecordBatch>,
    /// Input rows that are not in the answer because they came late.
    pub late: u64,
    /// Input records that could not be used.
    pub rejected: u64,
}

impl Rows {
    /// An answer for which no row was left out.
    pub(crate) fn complete(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches, late: 0, rejected: 0 }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// A table of texts, for SHOW and DESCRIBE.
    pub(crate) fn of_texts(names: &[&str], rows: &[Vec<Option<String>>]) -> Self {
        let fields: Vec<Field> = names.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect();
        let column = |i: usize| -> ArrayRef {
            Arc::new(rows.iter().map(|row| row[i].clone()).collect::<StringArray>())
        };
        let columns: Vec<ArrayRef> = (0..names.len()).map(column).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch =
            RecordBatch::try_new(Arc::clone(&schema), columns).expect("columns are built from the schema");
        Self::complete(schema, vec![batch])
    }
}

/// What a query gives back: all rows, or changes without end.
#[derive(Debug)]
pub struct QueryResult {
    schema: SchemaRef,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Rows(Vec<RecordBatch>),
    Changes(Changes),
}

impl QueryResult {
    pub(crate) fn rows(rows: Rows) -> Self {
        Self { schema: rows.schema, inner: Inner::Rows(rows.batches) }
    }
    pub(crate) fn changes(changes: Changes) -> Self {
        Self { schema: Arc::clone(&changes.schema), inner: Inner::Changes(changes) }
    }
    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
    /// All rows of a query over bounded input.
    ///
    /// Errors: *Invalid* if the query goes on for ever.
    pub async fn batches(self) -> Result<Vec<RecordBatch>> {
        match self.inner {
            Inner::Rows(batches) => Ok(batches),
            Inner::Changes(_) => {
                Err(Error::invalid("the query reads unbounded input and never has all its rows")
                    .with_hint("use QueryResult::changes"))
            }
        }
    }
    /// The changes of the result, epoch by epoch; a bounded query gives its rows as one.
    pub fn into_changes(self) -> Result<Changes> {
        match self.inner {
            Inner::Changes(changes) => Ok(changes),
            Inner::Rows(_) => Err(Error::invalid("the query is bounded: it has an answer, not changes")
                .with_hint("use QueryResult::batches")),
        }
    }
}

/// Changes of a result: each item is the net change of one epoch.
///
/// Dropping it ends the query: the job ends when nobody takes its rows.
pub struct Changes {
    schema: SchemaRef,
    elements: mpsc::Receiver<Result<Element>>,
    job: JobHandle,
    /// A table read whose change events are taken at their word: they have no key.
    unkeyed: Option<String>,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Changes {
    pub(crate) fn new(schema: SchemaRef, job: JobHandle, unkeyed: Option<String>) -> Result<Self> {
        let elements = job.client().ok_or_else(|| Error::internal("the query's result is taken already"))?;
        Ok(Self { schema, elements, job, unkeyed })
    }

    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The changes of the next epoch that has any; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<ChangelogBatch>>> {
        while let Some((_, changes)) = self.next_epoch().await? {
            if !changes.is_empty() {
                return Ok(Some(changes));
            }
        }
        Ok(None)
    }

    /// The next epoch's mark and changes, also of an epoch without any; `None` at the end.
    pub async fn next_epoch(&mut self) -> Result<Option<(EpochMark, Vec<ChangelogBatch>)>> {
        let mut changes = Vec::new();
        while let Some(element) = self.elements.recv().await {
            match element? {
                Element::Batch(batch) => changes.push(batch),
                Element::EpochEnd(mark) => return Ok(Some((mark, changes))),
            }
        }
        self.job.wait().await?;
        Ok(None)
    }

    /// Counters of the query (invariant 14).
    pub fn metrics(&self) -> JobMetrics {
        self.job.metrics()
    }

    /// All rows of a bounded query: the folded changes, presented.
    pub(crate) async fn fold(mut self, presentation: &Presentation) -> Result<Rows> {
        let mut fold = ChangelogFold::new(Arc::clone(&self.schema));
        while let Some(epoch) = self.next().await.map_err(|error| self.explained(error))? {
            for batch in &epoch {
                fold.add(batch).map_err(|error| self.explained(error))?;
            }
        }
        let metrics = self.job.metrics();
        let rows = present(&self.schema, fold.into_batches()?, presentation)?;
        Ok(Rows { late: metrics.rows_late(), rejected: metrics.rows_rejected(), ..rows })
    }
}

impl Changes {
    /// A row that goes without having come is the events' fault where they are taken at their word.
    fn explained(&self, error: Error) -> Error {
        match &self.unkeyed {
            Some(table)
                if error.kind() == ErrorKind::Internal && error.message().contains("invariant 4") =>
            {
                Error::data(format!("a change event of table {table:?} takes back a row that is not there"))
                    .with_detail(error.message().to_string())
                    .with_hint("if events are missing or come twice, declare a PRIMARY KEY: then rows replace each other by it")
            }
            _ => error,
        }
    }
}

/// ORDER BY, OFFSET and LIMIT of a whole result, and its hidden columns taken away.
fn present(schema: &SchemaRef, batches: Vec<RecordBatch>, presentation: &Presentation) -> Result<Rows> {
    let visible: Vec<usize> = (0..presentation.visible).collect();
    let shown = Arc::new(schema.project(&visible)?);
    if presentation.is_plain() {
        let batches = batches.iter().map(|batch| batch.project(&visible)).collect::<Result<_, _>>()?;
        return Ok(Rows::complete(shown, batches));
    }
    let whole = concat_batches(schema, &batches)?;
    let sorted = if presentation.sort.is_empty() { whole } else { sort(&whole, &presentation.sort)? };
    let skip = presentation.skip.min(sorted.num_rows());
    let length = presentation.fetch.unwrap_or(usize::MAX).min(sorted.num_rows() - skip);
    let batch = sorted.slice(skip, length).project(&visible)?;
    Ok(Rows::complete(shown, vec![batch]))
}

fn sort(whole: &RecordBatch, keys: &[(usize, bool, bool)]) -> Result<RecordBatch> {
    let columns: Vec<SortColumn> = keys
        .iter()
        .map(|(column, ascending, nulls_first)| SortColumn {
            values: Arc::clone(whole.column(*column)),
            options: Some(SortOptions { descending: !ascending, nulls_first: *nulls_first }),
        })
        .collect();
    let order: UInt32Array = lexsort_to_indices(&columns, None)?;
    Ok(take_record_batch(whole, &order)?)
}
