//! Debezium's change events (JSON, one per line) to rows with kinds.
//!
//! ```text
//! {"op":"c"|"r", "after":{…}}                    +I after
//! {"op":"u", "before":{…}, "after":{…}}          -U before, +U after
//! {"op":"d", "before":{…}}                       -D before
//! null                                           a tombstone: nothing
//! ```
//!
//! Of a table with a primary key the rows replace each other by it: an update gives its new image
//! alone, and where it moves the row to another key, `-D before, +I after`. So the old image may
//! be missing (REPLICA IDENTITY DEFAULT), and of a deleted row only the key is needed.
//!
//! The rows of one event are never given in two batches: a batch may hold one row more than was
//! asked for.

use arrow::datatypes::{DataType, FieldRef};
use millpond_core::{Error, Result, RowKind};

use super::json_builder::{Keys, Record, RowBuilder, Wanted, find_values, place_of};
use super::json_decoder::{ObjectRows, decode_objects};
use super::json_scanner::{Kind, Scanner, Span, Stop};
use super::scalar::Zone;
use super::{DecodedRows, Faults, Taken, TextDecoder, Window, byte_order_mark};
use crate::factory::TableSpec;
use crate::options::Options;

/// The options of the format `debezium-json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DebeziumFormat {
    /// Events come in an envelope with their schema.
    schema_include: bool,
    /// By which rows replace each other; empty: rows are told apart by all their columns.
    primary_key: Vec<String>,
}

impl DebeziumFormat {
    /// Takes the options that begin with `debezium-json.`. Both timestamp formats are always
    /// understood, decimals are always written as plain numbers, and no map has a NULL key.
    pub(crate) fn take(spec: &TableSpec, options: &mut Options) -> Result<Self> {
        options.choice("debezium-json.timestamp-format.standard", &[("SQL", ()), ("ISO-8601", ())])?;
        options.flag("debezium-json.encode.decimal-as-plain-number")?;
        let modes = [("FAIL", ()), ("DROP", ()), ("LITERAL", ())];
        options.choice("debezium-json.map-null-key.mode", &modes)?;
        options.text("debezium-json.map-null-key.literal");
        Ok(Self {
            schema_include: options.flag("debezium-json.schema-include")?.unwrap_or(false),
            primary_key: spec.primary_key.clone(),
        })
    }

    /// Whether rows replace each other by key.
    pub(crate) fn is_keyed(&self) -> bool {
        !self.primary_key.is_empty()
    }
}

/// What an event tells beside its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventFact {
    Schema,
    IngestionTime,
    SourceTime,
    SourceDatabase,
    SourceSchema,
    SourceTable,
    SourceProperties,
}

const FACTS: [(&str, EventFact); 7] = [
    ("schema", EventFact::Schema),
    ("ingestion-timestamp", EventFact::IngestionTime),
    ("source.timestamp", EventFact::SourceTime),
    ("source.database", EventFact::SourceDatabase),
    ("source.schema", EventFact::SourceSchema),
    ("source.table", EventFact::SourceTable),
    ("source.properties", EventFact::SourceProperties),
];

impl EventFact {
    /// By the key of a metadata column; Flink's connectors put `value.` before it.
    fn of_key(key: &str) -> Option<Self> {
        let key = key.strip_prefix("value.").unwrap_or(key);
        FACTS.iter().find(|(known, _)| *known == key).map(|(_, fact)| *fact)
    }

    fn of_field(field: &FieldRef) -> Option<Self> {
        field.metadata().get(TableSpec::METADATA_KEY).and_then(|key| Self::of_key(key))
    }

    fn wanted(self, field: &FieldRef, zone: Zone) -> Result<Wanted> {
        let is_time = matches!(self, EventFact::IngestionTime | EventFact::SourceTime);
        match field.data_type() {
            DataType::Timestamp(..) if is_time => Wanted::of_millis(field, zone),
            _ => Wanted::of_event(field, zone),
        }
    }
}

/// The keys of metadata columns that change events fill.
pub(crate) fn event_facts() -> impl Iterator<Item = &'static str> {
    FACTS.iter().map(|(key, _)| *key)
}

/// Whether a metadata column is filled by change events.
pub(crate) fn is_event_fact(key: &str) -> bool {
    EventFact::of_key(key).is_some()
}

/// The members of an event's envelope, by their places in [`MEMBERS`].
const MEMBERS: [&str; 7] = ["before", "after", "op", "source", "ts_ms", "schema", "payload"];
const BEFORE: usize = 0;
const AFTER: usize = 1;
const OP: usize = 2;
const SOURCE: usize = 3;
const TIME: usize = 4;
const SCHEMA: usize = 5;
const PAYLOAD: usize = 6;

/// The members of `source` that are metadata columns of their own.
const SOURCE_MEMBERS: [&str; 4] = ["ts_ms", "db", "schema", "table"];

/// An event as it stands in the text.
#[derive(Debug, Clone, Copy)]
enum Event {
    Tombstone,
    Members([Option<Span>; MEMBERS.len()]),
}

/// Builds the wanted columns of change events.
pub(crate) struct DebeziumDecoder {
    format: DebeziumFormat,
    builder: RowBuilder,
    kinds: Vec<RowKind>,
    members: Keys,
    source_members: Keys,
    /// Columns that the event fills rather than its rows.
    facts: Vec<(usize, EventFact)>,
    /// The columns of the primary key, and where they stand in the row that is replaced.
    key: Vec<usize>,
    before: Vec<Option<Span>>,
    event: Event,
    scratch: Vec<u8>,
}

impl DebeziumDecoder {
    pub(crate) fn new(
        format: DebeziumFormat,
        columns: &[FieldRef],
        projection: &[usize],
        zone: Zone,
    ) -> Result<Self> {
        let (mut wanted, mut facts, mut key) = (Vec::new(), Vec::new(), Vec::new());
        for (place, index) in projection.iter().enumerate() {
            let field = &columns[*index];
            wanted.push(match EventFact::of_field(field) {
                Some(fact) => {
                    facts.push((place, fact));
                    fact.wanted(field, zone)?
                }
                None => Wanted::new(field, zone)?,
            });
            if format.primary_key.contains(field.name()) {
                key.push(place);
            }
        }
        if key.len() != format.primary_key.len() {
            return Err(Error::internal("change events are read without their primary key"));
        }
        Ok(Self {
            format,
            before: vec![None; wanted.len()],
            builder: RowBuilder::new(wanted),
            kinds: Vec::new(),
            members: Keys::new(MEMBERS.iter().map(|name| Some(*name))),
            source_members: Keys::new(SOURCE_MEMBERS.iter().map(|name| Some(*name))),
            facts,
            key,
            event: Event::Tombstone,
            scratch: Vec::new(),
        })
    }

    /// The members of the event itself, out of its envelope.
    ///
    /// Errors: why it is none.
    fn unwrapped(
        &self,
        bytes: &[u8],
        members: [Option<Span>; MEMBERS.len()],
    ) -> Result<[Option<Span>; MEMBERS.len()], &'static str> {
        match (self.format.schema_include, members[PAYLOAD], members[OP]) {
            (false, Some(_), None) => {
                Err("it comes with its schema (set 'debezium-json.schema-include' = 'true')")
            }
            (false, _, _) => Ok(members),
            (true, Some(payload), _) if payload.kind == Kind::Object => {
                let mut event = [None; MEMBERS.len()];
                find_values(bytes, payload, &self.members, &mut event);
                event[SCHEMA] = members[SCHEMA];
                Ok(event)
            }
            (true, _, _) => {
                Err("it lacks \"payload\" (is 'debezium-json.schema-include' meant to be 'true'?)")
            }
        }
    }

    /// Appends the rows of an event; answers what is wrong with it.
    fn append_event(
        &mut self,
        record: &Record<'_>,
        members: [Option<Span>; MEMBERS.len()],
        faults: &Faults,
    ) -> Result<Result<(), &'static str>> {
        let bytes = record.window.bytes;
        let image = |member: usize| members[member].filter(|span| span.kind == Kind::Object);
        let op = members[OP].map_or(&b""[..], |op| op.text(bytes));
        match (op, image(BEFORE), image(AFTER)) {
            (b"c" | b"r", _, Some(after)) => {
                self.row(record, &members, after, RowKind::Insert, faults)?;
            }
            (b"u", Some(before), Some(after)) if self.format.is_keyed() => {
                if self.moves(bytes, before, after) {
                    self.row(record, &members, before, RowKind::Delete, faults)?;
                    self.row(record, &members, after, RowKind::Insert, faults)?;
                } else {
                    self.row(record, &members, after, RowKind::UpdateAfter, faults)?;
                }
            }
            (b"u", None, Some(after)) if self.format.is_keyed() => {
                self.row(record, &members, after, RowKind::UpdateAfter, faults)?;
            }
            (b"u", Some(before), Some(after)) => {
                self.row(record, &members, before, RowKind::UpdateBefore, faults)?;
                self.row(record, &members, after, RowKind::UpdateAfter, faults)?;
            }
            (b"u", None, Some(_)) => {
                return Ok(Err("the update lacks \"before\" (declare a PRIMARY KEY by which rows replace \
                               each other, or let the database send the old row: REPLICA IDENTITY FULL)"));
            }
            (b"d", Some(before), _) => {
                self.row(record, &members, before, RowKind::Delete, faults)?;
            }
            (b"c" | b"r" | b"u", _, None) => return Ok(Err("the event lacks \"after\"")),
            (b"d", None, _) => return Ok(Err("the delete lacks \"before\"")),
            (b"t", _, _) => return Ok(Err("\"op\" is \"t\": TRUNCATE cannot be followed")),
            (b"", _, _) => return Ok(Err("it lacks \"op\": it is no change event")),
            _ => return Ok(Err("its \"op\" is none of c, r, u, d")),
        }
        Ok(Ok(()))
    }

    fn row(
        &mut self,
        record: &Record<'_>,
        members: &[Option<Span>; MEMBERS.len()],
        image: Span,
        kind: RowKind,
        faults: &Faults,
    ) -> Result<()> {
        let RowBuilder { keys, spans, .. } = &mut self.builder;
        find_values(record.window.bytes, image, keys, spans);
        self.note_facts(record.window.bytes, members);
        self.builder.append(record, faults)?;
        self.kinds.push(kind);
        faults.count_read(1);
        Ok(())
    }

    fn note_facts(&mut self, bytes: &[u8], members: &[Option<Span>; MEMBERS.len()]) {
        if self.facts.is_empty() {
            return;
        }
        let source = members[SOURCE].filter(|span| span.kind == Kind::Object);
        let mut of_source = [None; SOURCE_MEMBERS.len()];
        if let Some(source) = source {
            find_values(bytes, source, &self.source_members, &mut of_source);
        }
        for (place, fact) in &self.facts {
            self.builder.spans[*place] = match fact {
                EventFact::Schema => members[SCHEMA],
                EventFact::IngestionTime => members[TIME],
                EventFact::SourceTime => of_source[0],
                EventFact::SourceDatabase => of_source[1],
                EventFact::SourceSchema => of_source[2],
                EventFact::SourceTable => of_source[3],
                EventFact::SourceProperties => source,
            };
        }
    }

    /// Whether an update gives its row another key. An old image without its key has the same.
    fn moves(&mut self, bytes: &[u8], before: Span, after: Span) -> bool {
        let RowBuilder { keys, spans, .. } = &mut self.builder;
        find_values(bytes, before, keys, &mut self.before);
        find_values(bytes, after, keys, spans);
        self.key.iter().any(|place| match (self.before[*place], spans[*place]) {
            (Some(old), _) if old.kind == Kind::Null => false,
            (Some(old), Some(new)) => old.text(bytes) != new.text(bytes),
            (Some(_), None) => true,
            (None, _) => false,
        })
    }
}

impl ObjectRows for DebeziumDecoder {
    fn scan(&mut self, bytes: &[u8], start: usize) -> Result<usize, Stop> {
        const TOMBSTONE: &[u8] = b"null";
        let rest = &bytes[start..];
        if rest.starts_with(TOMBSTONE) {
            self.event = Event::Tombstone;
            return Ok(start + TOMBSTONE.len());
        }
        if TOMBSTONE.starts_with(rest) {
            return Err(Stop::Incomplete);
        }
        let mut members = [None; MEMBERS.len()];
        let mut hint = 0;
        let Self { members: keys, scratch, .. } = self;
        let end = Scanner::new(bytes).object(start, |key, value| {
            if let Some(place) = place_of(bytes, key, keys, hint, scratch) {
                members[place] = Some(value);
                hint = place + 1;
            }
        })?;
        self.event = Event::Members(members);
        Ok(end)
    }

    fn append(&mut self, record: &Record<'_>, faults: &Faults) -> Result<()> {
        let Event::Members(members) = self.event else { return Ok(()) };
        let appended = match self.unwrapped(record.window.bytes, members) {
            Ok(members) => self.append_event(record, members, faults)?,
            Err(reason) => Err(reason),
        };
        match appended {
            Ok(()) => Ok(()),
            Err(reason) => {
                faults.count_read(1);
                faults.reject(record.text(), record.start(), reason)
            }
        }
    }

    fn rows(&self) -> usize {
        self.builder.rows()
    }
}

impl TextDecoder for DebeziumDecoder {
    fn begin(&mut self, window: Window<'_>) -> Result<Option<Taken>> {
        Ok(byte_order_mark(window).map(|bytes| Taken { bytes, lines: 0, is_starved: false }))
    }
    /// An event that gives two rows may be the last one of a batch.
    fn decode(&mut self, window: Window<'_>, rows_max: usize, faults: &mut Faults) -> Result<Taken> {
        decode_objects(self, window, rows_max.saturating_sub(1).max(1), faults)
    }
    fn rows(&self) -> usize {
        self.builder.rows()
    }
    fn finish(&mut self) -> Result<DecodedRows> {
        let kinds = std::mem::take(&mut self.kinds);
        Ok(DecodedRows { rows: kinds.len(), columns: self.builder.finish()?, kinds: Some(kinds) })
    }
}
