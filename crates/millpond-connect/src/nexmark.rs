//! The `nexmark` source: persons, auctions and bids of an auction site, generated.
//!
//! An event depends on the seed and its number alone, so that any position can be sought, lanes
//! are independent, and only what a query asks for is computed: columns nobody wants are not
//! built, and draws behind the last one wanted not made.
//!
//! With `'event' = 'all'` a table has `event_type INT` and the rows `person`, `auction` and `bid`,
//! of which two are NULL; with `'event' = 'bid'` (or `auction`, `person`) the flat columns of it.

mod columns;
mod model;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchOptions, StructArray, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Fields, SchemaRef};
use chrono::NaiveDateTime;
use millpond_core::{ChangelogBatch, ChangelogMode, Error, Result};
use serde::{Deserialize, Serialize};

use crate::connector::{
    ConnectorTable, Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader,
};
use crate::factory::TableSpec;
use crate::options::{Options, nearest};
use crate::pace::{Allowance, Pace};
use columns::{Column, Wanted};
use model::{GROUP, Kind, Model};

/// The options of `nexmark`.
pub(crate) const OPTIONS: &[&str] =
    &["events", "rate", "seed", "base-time", "ooo", "wall-rate", "lanes", "event"];

/// More lanes than any machine has cores would only cost.
const LANES_MAX: u64 = 1024;

/// The disorder of the event numbers within a group comes from a stride that must not divide it.
const STRIDE: u64 = 953;

/// Parses the options of a table.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let kinds = [
        ("all", None),
        ("person", Some(Kind::Person)),
        ("auction", Some(Kind::Auction)),
        ("bid", Some(Kind::Bid)),
    ];
    let kind = options.choice("event", &kinds)?.flatten();
    let outputs = outputs(spec, kind)?;
    let rate = positive(options, "rate")?.unwrap_or(10_000.0);
    let seed = options.number("seed")?.unwrap_or(42);
    let base = options.parse("base-time", parse_base_time)?.unwrap_or(1_704_067_200_000);
    let source = NexmarkSource {
        schema: spec.schema.clone(),
        kind,
        outputs,
        model: Arc::new(Model::new(seed, base, rate)),
        order: Order::parse(options)?,
        wall_rate: positive(options, "wall-rate")?,
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

fn positive(options: &mut Options, key: &str) -> Result<Option<f64>> {
    options.parse(key, |text| match text.trim().parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err(Error::invalid(format!("{text:?} is not a positive number"))),
    })
}

fn parse_base_time(text: &str) -> Result<i64> {
    let text = text.trim();
    if let Ok(millis) = text.parse() {
        return Ok(millis);
    }
    let read = |format| NaiveDateTime::parse_from_str(text, format);
    match read("%Y-%m-%d %H:%M:%S%.f").or_else(|_| read("%Y-%m-%dT%H:%M:%S%.f")) {
        Ok(time) => Ok(time.and_utc().timestamp_millis()),
        Err(_) => Err(Error::invalid(format!("{text:?} is not a time"))
            .with_hint("write milliseconds since 1970 or '2024-01-01 00:00:00'")),
    }
}

/// In which order and by whom event numbers are given.
#[derive(Debug, Clone, Copy)]
struct Order {
    /// Number of events of all kinds, if the source ends.
    events: Option<u64>,
    /// Size of the groups within which numbers are permuted.
    ooo: u64,
    lanes: u64,
}

impl Order {
    fn parse(options: &mut Options) -> Result<Self> {
        let order = Self {
            events: options.number("events")?,
            ooo: options.number("ooo")?.unwrap_or(1),
            lanes: options.number("lanes")?.unwrap_or(1),
        };
        let table = options.table();
        if order.ooo == 0 || order.ooo.is_multiple_of(STRIDE) {
            return Err(Error::invalid(format!("option 'ooo' of table {table:?} cannot be {}", order.ooo))
                .with_hint(format!("use a positive number that is no multiple of {STRIDE}")));
        }
        if let Some(events) = order.events.filter(|events| !events.is_multiple_of(order.ooo)) {
            return Err(Error::invalid(format!(
                "option 'events' of table {table:?} is {events}, no multiple of 'ooo'"
            ))
            .with_hint(format!("use {}", events.next_multiple_of(order.ooo))));
        }
        if !(1..=LANES_MAX).contains(&order.lanes) {
            return Err(Error::invalid(format!(
                "option 'lanes' of table {table:?} is not between 1 and {LANES_MAX}"
            )));
        }
        Ok(order)
    }

    /// The number of the event at a place of the sequence.
    fn event(&self, place: u64) -> u64 {
        match self.ooo {
            1 => place,
            ooo => place / ooo * ooo + place % ooo * STRIDE % ooo,
        }
    }

    /// The next place of the same lane: lanes take groups in turn, so that each has all kinds.
    fn next(&self, place: u64) -> u64 {
        let next = place + 1;
        if next.is_multiple_of(GROUP) { next + (self.lanes - 1) * GROUP } else { next }
    }

    fn is_end(&self, place: u64) -> bool {
        self.events.is_some_and(|events| place >= events)
    }
}

/// What a declared column is filled with.
#[derive(Debug, Clone)]
enum Output {
    /// A column of the one kind of event that the table has.
    Flat(Wanted),
    /// 0, 1 or 2.
    EventType,
    /// The event as a row, NULL if it is of another kind.
    Row(Kind, Fields, Vec<Wanted>),
}

fn outputs(spec: &TableSpec, kind: Option<Kind>) -> Result<Vec<Output>> {
    let fields = spec.schema.fields();
    match kind {
        Some(kind) => Ok(wanted(&spec.name, fields, kind)?.into_iter().map(Output::Flat).collect()),
        None => {
            fields.iter().map(|field| nested_output(&spec.name, field.name(), field.data_type())).collect()
        }
    }
}

fn nested_output(table: &str, name: &str, data_type: &DataType) -> Result<Output> {
    let kind = match name {
        "event_type" if *data_type == DataType::Int32 => return Ok(Output::EventType),
        "event_type" => return Err(wrong_type(table, name, data_type, "INT")),
        "person" => Kind::Person,
        "auction" => Kind::Auction,
        "bid" => Kind::Bid,
        _ => return Err(unknown_column(table, name, ["event_type", "person", "auction", "bid"])),
    };
    match data_type {
        DataType::Struct(fields) => Ok(Output::Row(kind, fields.clone(), wanted(table, fields, kind)?)),
        _ => Err(wrong_type(table, name, data_type, &kind.row_type())),
    }
}

/// Finds declared columns by name among those of a kind, and checks their types.
fn wanted(table: &str, fields: &Fields, kind: Kind) -> Result<Vec<Wanted>> {
    let find = |name: &str| kind.columns().iter().position(|column| column.name == name);
    let names = || kind.columns().iter().map(|column| column.name);
    let check = |field: &arrow::datatypes::FieldRef| {
        let index = find(field.name()).ok_or_else(|| unknown_column(table, field.name(), names()))?;
        let column: &Column = &kind.columns()[index];
        match column.content.fits(field.data_type()) {
            true => Ok(Wanted { index, data_type: field.data_type().clone() }),
            false => Err(wrong_type(table, field.name(), field.data_type(), column.content.sql())),
        }
    };
    fields.iter().map(check).collect()
}

fn wrong_type(table: &str, column: &str, declared: &DataType, expected: &str) -> Error {
    Error::invalid(format!(
        "column {column:?} of table {table:?} is {declared}, but nexmark gives {expected}"
    ))
    .with_hint(format!("declare it as {column} {expected}"))
}

fn unknown_column<'a>(table: &str, column: &str, known: impl IntoIterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.into_iter().collect();
    let error = Error::invalid(format!("nexmark has no column {column:?}, as declared by table {table:?}"));
    error.with_hint(match nearest(column, known.iter().copied()) {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("it has {}", known.join(", ")),
    })
}

#[derive(Debug)]
struct NexmarkSource {
    schema: SchemaRef,
    /// The one kind of event the table has; `None`: all.
    kind: Option<Kind>,
    /// One per column of the schema.
    outputs: Vec<Output>,
    model: Arc<Model>,
    order: Order,
    wall_rate: Option<f64>,
}

/// The place of the next event in the sequence.
#[derive(Debug, Serialize, Deserialize)]
struct NexmarkPosition {
    event: u64,
}

impl SourceConnector for NexmarkSource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn is_bounded(&self) -> bool {
        self.order.events.is_some()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok((0..self.order.lanes).map(|lane| Split { id: format!("lane-{lane}") }).collect())
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
        let lane = lane_of(split, self.order.lanes)?;
        let next = match position {
            None => lane * GROUP,
            Some(position) => {
                let read = NexmarkPosition::deserialize(&position.0);
                read.map_err(|error| {
                    Error::corrupt(format!("{} is no nexmark position: {error}", position.0))
                })?
                .event
            }
        };
        let wall_rate = self.wall_rate.map(|rate| rate / self.order.lanes as f64);
        Ok(Box::new(NexmarkReader {
            schema: Arc::new(self.schema.project(&context.projection)?),
            outputs: context.projection.iter().map(|column| self.outputs[*column].clone()).collect(),
            kind: self.kind,
            model: self.model.clone(),
            order: self.order,
            next,
            pace: Pace::new(wall_rate, context.clock.now()),
            context,
        }))
    }
}

/// The lane of a split named `lane-<n>`.
pub(crate) fn lane_of(split: &Split, lanes: u64) -> Result<u64> {
    let lane = split.id.strip_prefix("lane-").and_then(|lane| lane.parse().ok());
    lane.filter(|lane| *lane < lanes).ok_or_else(|| {
        Error::invalid(format!("the split {:?} does not exist: there are {lanes} lanes", split.id))
            .with_hint("keep the option 'lanes' as it was when the job was first started")
    })
}

struct NexmarkReader {
    schema: SchemaRef,
    outputs: Vec<Output>,
    kind: Option<Kind>,
    model: Arc<Model>,
    order: Order,
    /// The next place in the sequence.
    next: u64,
    pace: Pace,
    context: ReaderContext,
}

impl SplitReader for NexmarkReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        if self.order.is_end(self.next) {
            return Ok(SourcePoll::End);
        }
        let rows_max = match self.pace.allowance(self.context.clock.now(), rows_max.max(1)) {
            Allowance::Wait(retry_at) => return Ok(SourcePoll::NotYet { retry_at }),
            Allowance::Rows(rows) => rows,
        };
        let events = self.take_events(rows_max);
        if events.is_empty() {
            return Ok(SourcePoll::End);
        }
        let rows = self.rows(&events)?;
        self.pace.give(events.len());
        self.context.metrics.read.add(events.len() as u64);
        self.context.metrics.bytes.add(rows.get_array_memory_size() as u64);
        Ok(SourcePoll::Rows(ChangelogBatch::append(rows)))
    }

    fn position(&self) -> Position {
        Position(serde_json::json!({ "event": self.next }))
    }
}

impl NexmarkReader {
    /// The numbers of the next events of the wanted kind.
    fn take_events(&mut self, rows_max: usize) -> Vec<u64> {
        let mut events = Vec::with_capacity(rows_max);
        while events.len() < rows_max && !self.order.is_end(self.next) {
            let event = self.order.event(self.next);
            if self.kind.is_none_or(|kind| kind == Kind::of(event)) {
                events.push(event);
            }
            self.next = self.order.next(self.next);
        }
        events
    }

    fn rows(&self, events: &[u64]) -> Result<RecordBatch> {
        let columns = match self.kind {
            Some(kind) => self.flat_columns(kind, events)?,
            None => {
                self.outputs.iter().map(|output| self.nested_column(output, events)).collect::<Result<_>>()?
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(events.len()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn flat_columns(&self, kind: Kind, events: &[u64]) -> Result<Vec<ArrayRef>> {
        let flat = |output: &Output| match output {
            Output::Flat(wanted) => Some(wanted.clone()),
            Output::EventType | Output::Row(..) => None,
        };
        let wanted: Vec<Wanted> = self.outputs.iter().filter_map(flat).collect();
        self.typed_columns(kind, events, &wanted)
    }

    fn typed_columns(&self, kind: Kind, events: &[u64], wanted: &[Wanted]) -> Result<Vec<ArrayRef>> {
        let columns = columns::build(&self.model, kind, events, wanted);
        let typed = columns.into_iter().zip(wanted).map(|(column, wanted)| {
            match *column.data_type() == wanted.data_type {
                true => Ok(column),
                false => Ok(cast(&column, &wanted.data_type)?),
            }
        });
        typed.collect()
    }

    fn nested_column(&self, output: &Output, events: &[u64]) -> Result<ArrayRef> {
        let (kind, fields, wanted) = match output {
            Output::EventType => {
                return Ok(Arc::new(Int32Array::from_iter_values(
                    events.iter().map(|event| Kind::of(*event) as i32),
                )));
            }
            Output::Row(kind, fields, wanted) => (*kind, fields, wanted),
            Output::Flat(_) => return Err(Error::internal("a flat nexmark column in a table of all events")),
        };
        // The rows of this kind are built without gaps, then spread.
        let own: Vec<u64> = events.iter().copied().filter(|event| Kind::of(*event) == kind).collect();
        let columns = self.typed_columns(kind, &own, wanted)?;
        let rows = StructArray::try_new_with_length(fields.clone(), columns, None, own.len())?;
        let mut row = 0;
        let places = events.iter().map(|event| {
            let is_own = Kind::of(*event) == kind;
            row += u32::from(is_own);
            is_own.then(|| row - 1)
        });
        Ok(take(&rows, &places.collect::<UInt32Array>(), None)?)
    }
}
