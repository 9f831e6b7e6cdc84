//! The `datagen` source: rows of random values or sequences, with Flink's options.
//!
//! A value depends on the seed, its column and the number of its row alone, so that any position
//! can be sought. Row *i* belongs to lane *i* modulo the number of lanes, and its time is when it
//! was due by the rate, counted from the moment the lane was first opened; that moment is part of
//! the position. So times, too, come back the same after a restart.

mod field;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogBatch, ChangelogMode, Error, Result, Timestamp};
use serde::{Deserialize, Serialize};

use crate::connector::{
    ConnectorTable, Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader,
};
use crate::factory::TableSpec;
use crate::nexmark::lane_of;
use crate::options::{Options, nearest};
use crate::pace::{Allowance, Pace};
use field::{Field, Rows};

/// The options of `datagen`.
pub(crate) const OPTIONS: &[&str] = &[
    "rows-per-second",
    "number-of-rows",
    "seed",
    "lanes",
    "fields.#.kind",
    "fields.#.min",
    "fields.#.max",
    "fields.#.max-past",
    "fields.#.length",
    "fields.#.var-len",
    "fields.#.null-rate",
    "fields.#.start",
    "fields.#.end",
];

const RATE_DEFAULT: f64 = 10_000.0;

/// More lanes than any machine has cores would only cost.
const LANES_MAX: u64 = 1024;

/// Parses the options of a table.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let fields = parse_fields(spec, options.with_prefix("fields."))?;
    let number_of_rows: Option<u64> = options.number("number-of-rows")?;
    let rows = fields.iter().filter_map(Field::rows).chain(number_of_rows).min();
    let rate = options.parse("rows-per-second", parse_rate)?;
    let lanes = options.number("lanes")?.unwrap_or(1);
    if !(1..=LANES_MAX).contains(&lanes) {
        return Err(Error::invalid(format!(
            "option 'lanes' of table {:?} is not between 1 and {LANES_MAX}",
            spec.name
        )));
    }
    let source = DatagenSource {
        schema: spec.schema.clone(),
        fields: fields.into(),
        seed: options.number("seed")?.unwrap_or(42),
        rows,
        lanes,
        rate: rate.unwrap_or(if rows.is_some() { Rate::Unlimited } else { Rate::Rows(RATE_DEFAULT) }),
    };
    Ok(ConnectorTable {
        source: Some(Arc::new(source)),
        sink: None,
        bad_rows: None,
        on_missing_file: None,
        idle_timeout: None,
        max_future: None,
    })
}

/// Rows per second of all lanes.
#[derive(Debug, Clone, Copy)]
enum Rate {
    Unlimited,
    Rows(f64),
}

impl Rate {
    /// Rows per second by which rows are due.
    fn nominal(self) -> f64 {
        match self {
            Self::Unlimited => RATE_DEFAULT,
            Self::Rows(rate) => rate,
        }
    }
    fn limit(self) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::Rows(rate) => Some(rate),
        }
    }
}

fn parse_rate(text: &str) -> Result<Rate> {
    if text.trim().eq_ignore_ascii_case("unlimited") {
        return Ok(Rate::Unlimited);
    }
    match text.trim().parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(Rate::Rows(rate)),
        _ => Err(Error::invalid(format!("{text:?} is not a positive number"))
            .with_hint("write 'unlimited' for as fast as possible")),
    }
}

fn parse_fields(spec: &TableSpec, given: BTreeMap<String, String>) -> Result<Vec<Field>> {
    let mut options = Options::new(&spec.name, given);
    let fields = spec.schema.fields().iter().map(|field| Field::parse(&mut options, field));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    match options.with_prefix("fields.").into_keys().next() {
        None => Ok(fields),
        Some(key) => Err(unknown_option(spec, &key)),
    }
}

fn unknown_option(spec: &TableSpec, key: &str) -> Error {
    let error = Error::invalid(format!("table {:?} has an unknown option '{key}'", spec.name));
    let known = |name: &str| field::OPTIONS.map(|option| format!("fields.{name}.{option}"));
    let known: Vec<String> = spec.schema.fields().iter().flat_map(|field| known(field.name())).collect();
    match nearest(key, known.iter().map(String::as_str)) {
        Some(word) => error.with_hint(format!("did you mean '{word}'?")),
        None => error.with_hint(format!("known options: fields.<column>.{{{}}}", field::OPTIONS.join(", "))),
    }
}

#[derive(Debug)]
struct DatagenSource {
    schema: SchemaRef,
    /// One per column.
    fields: Arc<[Field]>,
    seed: u64,
    /// Number of rows of all lanes, if the source ends.
    rows: Option<u64>,
    lanes: u64,
    rate: Rate,
}

/// The number of the next row, and the time at which row 0 was due.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct DatagenPosition {
    row: u64,
    start: Timestamp,
}

impl SourceConnector for DatagenSource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn is_bounded(&self) -> bool {
        self.rows.is_some()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok((0..self.lanes).map(|lane| Split { id: format!("lane-{lane}") }).collect())
    }
    fn discovery_interval(&self) -> Option<i64> {
        None
    }
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let lane = lane_of(split, self.lanes)?;
        let now = context.clock.now();
        let next = match position {
            None => DatagenPosition { row: lane, start: now },
            Some(position) => DatagenPosition::deserialize(&position.0)
                .map_err(|error| Error::corrupt(format!("{} is no datagen position: {error}", position.0)))?,
        };
        Ok(Box::new(DatagenReader {
            schema: Arc::new(self.schema.project(&context.projection)?),
            fields: self.fields.clone(),
            seed: self.seed,
            end: self.rows.unwrap_or(u64::MAX),
            lanes: self.lanes,
            rate: self.rate,
            next,
            pace: Pace::new(self.rate.limit().map(|rate| rate / self.lanes as f64), now),
            context,
        }))
    }
}

struct DatagenReader {
    schema: SchemaRef,
    fields: Arc<[Field]>,
    seed: u64,
    /// Rows from here on are not given.
    end: u64,
    lanes: u64,
    rate: Rate,
    next: DatagenPosition,
    pace: Pace,
    context: ReaderContext,
}

impl SplitReader for DatagenReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        let left = self.end.saturating_sub(self.next.row).div_ceil(self.lanes);
        if left == 0 {
            return Ok(SourcePoll::End);
        }
        let rows_max = rows_max.max(1).min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = match self.pace.allowance(self.context.clock.now(), rows_max) {
            Allowance::Wait(retry_at) => return Ok(SourcePoll::NotYet { retry_at }),
            Allowance::Rows(rows) => rows,
        };
        let rows = self.rows(count)?;
        self.next.row += count as u64 * self.lanes;
        self.pace.give(count);
        self.context.metrics.read.add(count as u64);
        self.context.metrics.bytes.add(rows.get_array_memory_size() as u64);
        Ok(SourcePoll::Rows(ChangelogBatch::append(rows)))
    }

    fn position(&self) -> Position {
        Position(serde_json::json!({ "row": self.next.row, "start": self.next.start }))
    }
}

impl DatagenReader {
    fn rows(&self, count: usize) -> Result<RecordBatch> {
        let rows = Rows {
            seed: self.seed,
            first: self.next.row,
            step: self.lanes,
            count,
            start: self.next.start,
            rows_per_second: self.rate.nominal(),
        };
        let columns =
            self.context.projection.iter().map(|column| self.fields[*column].column(*column, &rows));
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns.collect::<Result<_>>()?, &options)?)
    }
}
