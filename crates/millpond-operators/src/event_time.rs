//! Event time: turns the rows of one split into rows with computed columns, a watermark and late
//! tags.
//!
//! The watermark of a split is the largest value of the WATERMARK expression so far. A row is
//! tagged with the watermark *before* it (over the earlier rows of its split, in offset order)
//! when its time is at or below that; so which rows are late is a property of the split's content
//! and not of batch sizes, parallelism or timing.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, Error, ErrorKind, LateTags, Result, SourceMetrics, Timestamp, Watermark,
};

use crate::expression::{EpochCell, Expression, evaluate, plain_column, reads_epoch, replace};

/// What the source of a table does to each batch before the first operator.
#[derive(Debug, Clone)]
pub struct EventTime {
    /// Output columns, as expressions over the columns that the connector gives (in the order of
    /// the source's projection): physical columns and computed ones.
    pub columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Their names and types.
    pub schema: SchemaRef,
    /// The time attribute, if the table has a WATERMARK.
    pub watermark: Option<WatermarkSpec>,
    /// Whether rows replace each other by key: of a deleted row no time need be known.
    pub keyed: bool,
}

/// What the expressions give for a batch.
struct Evaluated {
    output: RecordBatch,
    /// Time and watermark of each row, if the table has a WATERMARK.
    times: Option<(ArrayRef, ArrayRef)>,
}

impl EventTime {
    /// Turns rows of one split, in offset order, into output rows with late tags, and moves the
    /// split's watermark. `now` is the epoch's time.
    ///
    /// Rows without a usable time, and rows for which an expression fails, are left out, counted
    /// as rejected and given back by their index in `batch`, ascending.
    pub fn apply(
        &self,
        state: &mut SplitWatermark,
        batch: &ChangelogBatch,
        now: Timestamp,
        metrics: &SourceMetrics,
    ) -> Result<(ChangelogBatch, Vec<BadTime>)> {
        let epoch = EpochCell::default();
        epoch.set(now, (state.current != Timestamp::MIN).then_some(state.current));
        let (batch, mut evaluated, mut bad) = self.evaluate_usable(batch, &epoch)?;
        let mut output = ChangelogBatch { rows: evaluated.output, ..batch };
        if let (Some(spec), Some(times)) = (&self.watermark, &mut evaluated.times) {
            let mut bad_times = spec.bad_times(&times.0, now)?;
            if self.keyed {
                bad_times.retain(|bad| output.kind(bad.row).is_addition());
            }
            if !bad_times.is_empty() {
                let good = all_but(&bad_times, output.num_rows());
                output = output.take(&good)?;
                *times = (take(&times.0, &good, None)?, take(&times.1, &good, None)?);
                bad = merged(bad, bad_times);
            }
            output.late = state.advance(&times.0, &times.1)?;
        }
        metrics.rejected.add(bad.len() as u64);
        Ok((output, bad))
    }

    /// The rows for which no expression fails, their values, and the other rows.
    fn evaluate_usable(
        &self,
        batch: &ChangelogBatch,
        epoch: &EpochCell,
    ) -> Result<(ChangelogBatch, Evaluated, Vec<BadTime>)> {
        match self.evaluate(&batch.rows, epoch) {
            Ok(evaluated) => {
                Ok((ChangelogBatch { late: None, hashes: None, ..batch.clone() }, evaluated, Vec::new()))
            }
            Err(error) if error.kind() == ErrorKind::Data => {
                let failing = self.failing_rows(&batch.rows, epoch)?;
                let usable = batch.take(&all_but(&failing, batch.num_rows()))?;
                let evaluated = self.evaluate(&usable.rows, epoch)?;
                Ok((ChangelogBatch { late: None, hashes: None, ..usable }, evaluated, failing))
            }
            Err(error) => Err(error),
        }
    }

    fn failing_rows(&self, rows: &RecordBatch, epoch: &EpochCell) -> Result<Vec<BadTime>> {
        let mut failing = Vec::new();
        for row in 0..rows.num_rows() {
            match self.evaluate(&rows.slice(row, 1), epoch) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Data => {
                    failing.push(BadTime { row, reason: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(failing)
    }

    fn evaluate(&self, rows: &RecordBatch, epoch: &EpochCell) -> Result<Evaluated> {
        let columns: Vec<ArrayRef> =
            self.columns.iter().map(|column| value(column, rows, epoch)).collect::<Result<_>>()?;
        let times =
            self.watermark.as_ref().map(|spec| self.times(spec, rows, &columns, epoch)).transpose()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let output = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("a source does not give its columns: {error}")))?;
        Ok(Evaluated { output, times })
    }

    /// Time and watermark of each row. A computed time is not computed again: the output has it,
    /// and the watermark expression, which contains it, is told so.
    fn times(
        &self,
        spec: &WatermarkSpec,
        rows: &RecordBatch,
        output: &[ArrayRef],
        epoch: &EpochCell,
    ) -> Result<(ArrayRef, ArrayRef)> {
        if plain_column(&spec.time).is_some() {
            return Ok((value(&spec.time, rows, epoch)?, value(&spec.watermark, rows, epoch)?));
        }
        let time = match self.columns.iter().position(|column| column.eq(&spec.time)) {
            Some(column) => output[column].clone(),
            None => value(&spec.time, rows, epoch)?,
        };
        let watermark = replace(spec.watermark.clone(), &spec.time, &spec.column, rows.num_columns())?;
        let watermark = value(&watermark, &with_column(rows, &spec.column, &time)?, epoch)?;
        Ok((time, watermark))
    }
}

/// The expression's values; a plain column is only passed on.
fn value(expression: &Expression, rows: &RecordBatch, epoch: &EpochCell) -> Result<ArrayRef> {
    match plain_column(expression) {
        Some(column) => Ok(rows.column(column).clone()),
        None if reads_epoch(expression) => evaluate(&epoch.bind(expression.clone())?, rows),
        None => evaluate(expression, rows),
    }
}

fn with_column(rows: &RecordBatch, name: &str, column: &ArrayRef) -> Result<RecordBatch> {
    let added = Arc::new(Field::new(name, column.data_type().clone(), true));
    let fields: Vec<_> = rows.schema_ref().fields().iter().cloned().chain([added]).collect();
    let columns = rows.columns().iter().cloned().chain([column.clone()]).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// The indices below `rows` that are not among `bad`, which ascends.
fn all_but(bad: &[BadTime], rows: usize) -> UInt32Array {
    let mut bad = bad.iter().map(|bad| bad.row).peekable();
    let good = (0..rows).filter(|row| bad.next_if_eq(row).is_none());
    UInt32Array::from_iter_values(good.map(|row| row as u32))
}

/// `failing` rows of the input, and `bad_times` whose rows count only the others.
fn merged(failing: Vec<BadTime>, bad_times: Vec<BadTime>) -> Vec<BadTime> {
    let mut rows = failing.iter().map(|bad| bad.row).collect::<Vec<_>>().into_iter().peekable();
    let mut skipped = 0;
    let moved = bad_times.into_iter().map(|bad| {
        while rows.next_if(|row| *row <= bad.row + skipped).is_some() {
            skipped += 1;
        }
        BadTime { row: bad.row + skipped, ..bad }
    });
    let mut all: Vec<BadTime> = moved.collect();
    all.extend(failing);
    all.sort_by_key(|bad| bad.row);
    all
}

/// A WATERMARK clause, over the connector's columns.
#[derive(Debug, Clone)]
pub struct WatermarkSpec {
    /// The time column.
    pub time: Arc<dyn PhysicalExpr>,
    /// The watermark expression.
    pub watermark: Arc<dyn PhysicalExpr>,
    /// Its column's name, for messages.
    pub column: String,
    /// Rows further ahead of the processing time than this many microseconds are bad; `None`: off.
    pub max_future: Option<i64>,
}

impl WatermarkSpec {
    /// Rows whose time is NULL or too far in the future.
    fn bad_times(&self, time: &ArrayRef, now: Timestamp) -> Result<Vec<BadTime>> {
        let (values, precision) = timestamp_values(time)?;
        let limit = self.max_future.map_or(Timestamp::MAX, |micros| now.saturating_add(micros));
        let nulls = time.nulls().filter(|nulls| nulls.null_count() > 0);
        let future = |value: &i64| precision.to_timestamp(*value) > limit;
        if nulls.is_none() && (limit == Timestamp::MAX || !values.iter().any(future)) {
            return Ok(Vec::new());
        }
        let reason = |row: usize| match nulls.is_some_and(|nulls| nulls.is_null(row)) {
            true => Some(format!("time column {:?} is NULL", self.column)),
            false if future(&values[row]) => {
                Some(self.future_reason(precision.to_timestamp(values[row]), now))
            }
            false => None,
        };
        Ok((0..values.len()).filter_map(|row| reason(row).map(|reason| BadTime { row, reason })).collect())
    }

    fn future_reason(&self, time: Timestamp, now: Timestamp) -> String {
        format!("time column {:?} is {time}, too far ahead of the processing time {now}", self.column)
    }
}

/// The running watermark of one split; part of the source's checkpointed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SplitWatermark {
    /// The largest value of the watermark expression so far; [`Timestamp::MIN`] before the first.
    pub current: Watermark,
}

impl Default for SplitWatermark {
    fn default() -> Self {
        Self { current: Timestamp::MIN }
    }
}

impl SplitWatermark {
    /// Tags rows that are behind the watermark before them, and moves it over them.
    fn advance(&mut self, time: &ArrayRef, watermark: &ArrayRef) -> Result<Option<LateTags>> {
        let (times, time_precision) = timestamp_values(time)?;
        let (watermarks, watermark_precision) = timestamp_values(watermark)?;
        let nulls = watermark.nulls().filter(|nulls| nulls.null_count() > 0);
        let mut tags = Tags { rows: times.len(), tags: None };
        for (row, (time, watermark)) in times.iter().zip(watermarks).enumerate() {
            if time_precision.to_timestamp(*time) <= self.current {
                tags.set(row, self.current);
            }
            if is_valid(nulls, row) {
                self.current = self.current.max(watermark_precision.to_timestamp(*watermark));
            }
        }
        Ok(tags.tags.map(Into::into))
    }
}

fn is_valid(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_none_or(|nulls| nulls.is_valid(row))
}

/// Tags of a batch, allocated with the first one.
struct Tags {
    rows: usize,
    tags: Option<Vec<Timestamp>>,
}

impl Tags {
    fn set(&mut self, row: usize, tag: Timestamp) {
        self.tags.get_or_insert_with(|| vec![Timestamp::MIN; self.rows])[row] = tag;
    }
}

/// What a row without a usable time becomes; the caller keeps or reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTime {
    /// Index of the row in the input batch.
    pub row: usize,
    /// Why its time cannot be used.
    pub reason: String,
}

#[cfg(test)]
mod tests;
