//! JSON to columns: one object per line, strictly parsed, straight into builders.
//!
//! An object is first scanned to its end, which validates it and notes where the values of the
//! wanted keys stand (of equal keys the last); only then are the values appended, so that a
//! malformed object leaves no trace. Several objects on one line are all read. Numbers go from
//! their text into the column's type, never through a float.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{ArrayRef, ListArray, MapArray, StructArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields};
use memchr::memchr;
use millpond_core::limits::RECORD_BYTES_MAX;
use millpond_core::{Error, Result};

use super::appender::{Appender, appender};
use super::json_scanner::{Kind, Scanner, Span, Stop, unescape};
use super::scalar::{self, Zone};
use super::{Faults, Place, Taken, TextDecoder, Window, byte_order_mark};
use crate::options::Options;

/// The options of the format `json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JsonFormat {
    fail_on_missing_field: bool,
}

impl JsonFormat {
    /// Takes the options that begin with `json.`. Both timestamp formats are always understood.
    pub(crate) fn take(options: &mut Options) -> Result<Self> {
        options.choice("json.timestamp-format.standard", &[("SQL", ()), ("ISO-8601", ())])?;
        Ok(Self { fail_on_missing_field: options.flag("json.fail-on-missing-field")?.unwrap_or(false) })
    }
}

/// Refuses a type that JSON cannot give.
pub(crate) fn check(data_type: &DataType, zone: Zone) -> Result<()> {
    Node::new(data_type, zone).map(drop)
}

/// Keys of an object and their places: found by the order in which they came last time, else by
/// name.
#[derive(Debug)]
pub(crate) struct Keys {
    names: Vec<String>,
    by_name: HashMap<Vec<u8>, usize>,
}

impl Keys {
    fn new<'a>(names: impl Iterator<Item = &'a String>) -> Self {
        let names: Vec<String> = names.cloned().collect();
        let by_name = names.iter().enumerate().map(|(at, name)| (name.clone().into_bytes(), at)).collect();
        Self { names, by_name }
    }
    /// The place of a key; `hint` is where it is looked for first.
    #[inline]
    fn find(&self, key: &[u8], hint: usize) -> Option<usize> {
        match self.names.get(hint) {
            Some(name) if name.as_bytes() == key => Some(hint),
            _ => self.by_name.get(key).copied(),
        }
    }
}

/// A value that became NULL because it could not be read.
struct Unreadable {
    span: Span,
    data_type: DataType,
}

/// What appending values needs.
struct Appending<'a> {
    bytes: &'a [u8],
    scratch: Vec<u8>,
    unreadable: Vec<Unreadable>,
}

/// A column, or a part of one, under construction.
enum Node {
    Scalar {
        appender: Box<dyn Appender>,
        data_type: DataType,
    },
    Struct {
        keys: Keys,
        children: Vec<Node>,
        spans: Vec<Option<Span>>,
        fields: Fields,
        nulls: NullBufferBuilder,
    },
    List {
        item: Box<Node>,
        field: FieldRef,
        offsets: Vec<i32>,
        nulls: NullBufferBuilder,
    },
    Map(Box<MapNode>),
}

struct MapNode {
    keys: Box<dyn Appender>,
    key_type: DataType,
    values: Node,
    entries: FieldRef,
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
}

impl Node {
    fn new(data_type: &DataType, zone: Zone) -> Result<Self> {
        Ok(match data_type {
            DataType::Struct(fields) => {
                let children: Result<Vec<_>> =
                    fields.iter().map(|field| Node::new(field.data_type(), zone)).collect();
                Self::Struct {
                    keys: Keys::new(fields.iter().map(|field| field.name())),
                    children: children?,
                    spans: vec![None; fields.len()],
                    fields: fields.clone(),
                    nulls: NullBufferBuilder::new(0),
                }
            }
            DataType::List(field) => Self::List {
                item: Box::new(Node::new(field.data_type(), zone)?),
                field: field.clone(),
                offsets: vec![0],
                nulls: NullBufferBuilder::new(0),
            },
            DataType::Map(entries, _) => Self::Map(Box::new(MapNode::new(entries, zone)?)),
            scalar => Self::Scalar { appender: appender(scalar, zone)?, data_type: scalar.clone() },
        })
    }

    /// Appends the value at `span`, NULL if there is none.
    fn append(&mut self, span: Option<Span>, cx: &mut Appending<'_>) {
        let span = match span {
            Some(span) if span.kind != Kind::Null => span,
            _ => return self.append_null(),
        };
        match self {
            Self::Scalar { appender, data_type } => {
                if !append_scalar(appender.as_mut(), data_type, span, cx) {
                    appender.null();
                    cx.unreadable.push(Unreadable { span, data_type: data_type.clone() });
                }
            }
            Self::Struct { keys, children, spans, nulls, fields } => match span.kind {
                Kind::Object => {
                    find_values(cx.bytes, span, keys, spans);
                    nulls.append_non_null();
                    children.iter_mut().zip(spans).for_each(|(child, span)| child.append(*span, cx));
                }
                _ => {
                    let data_type = DataType::Struct(fields.clone());
                    self.refuse(span, data_type, cx);
                }
            },
            Self::List { item, field, offsets, nulls } => match span.kind {
                Kind::Array => {
                    let mut count = 0;
                    let bytes = cx.bytes;
                    Scanner::new(bytes).elements(span, |element| {
                        item.append(Some(element), cx);
                        count += 1;
                    });
                    offsets.push(offsets[offsets.len() - 1] + count);
                    nulls.append_non_null();
                }
                _ => {
                    let data_type = DataType::List(field.clone());
                    self.refuse(span, data_type, cx);
                }
            },
            Self::Map(map) => match span.kind {
                Kind::Object => map.append(span, cx),
                _ => {
                    let data_type = DataType::Map(map.entries.clone(), false);
                    self.refuse(span, data_type, cx);
                }
            },
        }
    }

    fn refuse(&mut self, span: Span, data_type: DataType, cx: &mut Appending<'_>) {
        cx.unreadable.push(Unreadable { span, data_type });
        self.append_null();
    }

    fn append_null(&mut self) {
        match self {
            Self::Scalar { appender, .. } => appender.null(),
            Self::Struct { children, nulls, .. } => {
                children.iter_mut().for_each(Node::append_null);
                nulls.append_null();
            }
            Self::List { offsets, nulls, .. } => {
                offsets.push(offsets[offsets.len() - 1]);
                nulls.append_null();
            }
            Self::Map(map) => {
                map.offsets.push(map.offsets[map.offsets.len() - 1]);
                map.nulls.append_null();
            }
        }
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        Ok(match self {
            Self::Scalar { appender, .. } => appender.finish()?,
            Self::Struct { children, fields, nulls, .. } => {
                let columns: Result<Vec<_>> = children.iter_mut().map(Node::finish).collect();
                let length = nulls.len();
                let nulls = nulls.finish();
                Arc::new(StructArray::try_new_with_length(fields.clone(), columns?, nulls, length)?)
            }
            Self::List { item, field, offsets, nulls } => {
                let offsets = take_offsets(offsets);
                Arc::new(ListArray::try_new(field.clone(), offsets, item.finish()?, nulls.finish())?)
            }
            Self::Map(map) => map.finish()?,
        })
    }
}

impl MapNode {
    fn new(entries: &FieldRef, zone: Zone) -> Result<Self> {
        let DataType::Struct(fields) = entries.data_type() else {
            return Err(Error::internal("the entries of a map are no structure"));
        };
        let [key, value] = &fields[..] else { return Err(Error::internal("an entry of a map is no pair")) };
        Ok(Self {
            keys: appender(key.data_type(), zone)?,
            key_type: key.data_type().clone(),
            values: Node::new(value.data_type(), zone)?,
            entries: entries.clone(),
            offsets: vec![0],
            nulls: NullBufferBuilder::new(0),
        })
    }

    /// Appends an object's members; of equal keys the last, at the place of the first.
    fn append(&mut self, span: Span, cx: &mut Appending<'_>) {
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut members: Vec<(Span, Span)> = Vec::new();
        Scanner::new(cx.bytes).members(span, |key, value| {
            let mut name = Vec::new();
            unescape(key.text(cx.bytes), &mut name);
            let place = *places.entry(name).or_insert(members.len());
            match members.get_mut(place) {
                Some(member) => member.1 = value,
                None => members.push((key, value)),
            }
        });
        let mut count = 0;
        for (key, value) in members {
            if append_scalar(self.keys.as_mut(), &self.key_type, key, cx) {
                self.values.append(Some(value), cx);
                count += 1;
            } else {
                cx.unreadable.push(Unreadable { span: key, data_type: self.key_type.clone() });
            }
        }
        self.offsets.push(self.offsets[self.offsets.len() - 1] + count);
        self.nulls.append_non_null();
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let DataType::Struct(fields) = self.entries.data_type() else {
            return Err(Error::internal("the entries of a map are no structure"));
        };
        let entries =
            StructArray::try_new(fields.clone(), vec![self.keys.finish()?, self.values.finish()?], None)?;
        let offsets = take_offsets(&mut self.offsets);
        Ok(Arc::new(MapArray::try_new(self.entries.clone(), offsets, entries, self.nulls.finish(), false)?))
    }
}

fn take_offsets(offsets: &mut Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])))
}

/// Notes where an object's wanted values stand. The object has been validated before.
fn find_values(bytes: &[u8], object: Span, keys: &Keys, spans: &mut [Option<Span>]) {
    spans.fill(None);
    let mut hint = 0;
    let mut scratch = Vec::new();
    Scanner::new(bytes).members(object, |key, value| {
        if let Some(place) = place_of(bytes, key, keys, hint, &mut scratch) {
            spans[place] = Some(value);
            hint = place + 1;
        }
    });
}

#[inline]
fn place_of(bytes: &[u8], key: Span, keys: &Keys, hint: usize, scratch: &mut Vec<u8>) -> Option<usize> {
    match key.kind {
        Kind::EscapedText => {
            scratch.clear();
            unescape(key.text(bytes), scratch).then(|| keys.find(scratch, hint)).flatten()
        }
        _ => keys.find(key.text(bytes), hint),
    }
}

/// Appends a scalar by its text; `false`: it is none of the column's type.
#[inline]
fn append_scalar(
    appender: &mut dyn Appender,
    data_type: &DataType,
    span: Span,
    cx: &mut Appending<'_>,
) -> bool {
    let text = span.text(cx.bytes);
    match span.kind {
        Kind::Text => appender.text(text, true),
        Kind::EscapedText => {
            cx.scratch.clear();
            unescape(text, &mut cx.scratch) && appender.text(&cx.scratch, true)
        }
        Kind::Number => match data_type {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => false,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
                appender.text(text, true)
                    || scalar::integral(text)
                        .is_some_and(|value| appender.text(value.to_string().as_bytes(), true))
            }
            _ => appender.text(text, true),
        },
        Kind::Boolean => match data_type {
            DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                appender.text(text, true)
            }
            _ => false,
        },
        // A nested value as text is its JSON, as in Flink.
        Kind::Object | Kind::Array => match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => appender.text(text, true),
            _ => false,
        },
        Kind::Null => false,
    }
}

/// Builds the wanted columns of a JSON file.
pub(crate) struct JsonDecoder {
    format: JsonFormat,
    wanted: Vec<FieldRef>,
    keys: Keys,
    spans: Vec<Option<Span>>,
    columns: Vec<Node>,
    rows: usize,
    scratch: Vec<u8>,
}

impl JsonDecoder {
    pub(crate) fn new(
        format: JsonFormat,
        columns: &[FieldRef],
        projection: &[usize],
        zone: Zone,
    ) -> Result<Self> {
        let wanted: Vec<FieldRef> = projection.iter().map(|index| columns[*index].clone()).collect();
        let nodes: Result<Vec<_>> = wanted.iter().map(|column| Node::new(column.data_type(), zone)).collect();
        Ok(Self {
            format,
            keys: Keys::new(wanted.iter().map(|column| column.name())),
            spans: vec![None; wanted.len()],
            columns: nodes?,
            wanted,
            rows: 0,
            scratch: Vec::new(),
        })
    }

    /// Scans the object at `start` and notes its wanted values; returns where it ends.
    fn scan(&mut self, bytes: &[u8], start: usize) -> Result<usize, Stop> {
        let Self { keys, spans, scratch, .. } = self;
        spans.fill(None);
        let mut hint = 0;
        let end = Scanner::new(bytes).object(start, |key, value| {
            if let Some(place) = place_of(bytes, key, keys, hint, scratch) {
                spans[place] = Some(value);
                hint = place + 1;
            }
        })?;
        if end - start > RECORD_BYTES_MAX {
            return Err(Stop::Malformed { at: start, reason: super::OVERSIZED });
        }
        Ok(end)
    }

    /// Appends the scanned object as a row.
    fn append(
        &mut self,
        window: Window<'_>,
        range: std::ops::Range<usize>,
        line: u64,
        faults: &Faults,
    ) -> Result<()> {
        let record = &window.bytes[range.clone()];
        let place = |at: usize| Place::within(record, at - range.start, line);
        if self.format.fail_on_missing_field
            && let Some(missing) = self.spans.iter().position(Option::is_none)
        {
            let reason = format!("it lacks the field {:?}", self.wanted[missing].name());
            return faults.reject(record, place(range.start), &reason);
        }
        let scratch = std::mem::take(&mut self.scratch);
        let mut cx = Appending { bytes: window.bytes, scratch, unreadable: Vec::new() };
        for (index, (column, span)) in self.columns.iter_mut().zip(&self.spans).enumerate() {
            column.append(*span, &mut cx);
            for bad in cx.unreadable.drain(..) {
                let complaint = scalar::complaint(&bad.data_type, bad.span.text(window.bytes));
                let text = bad.span.text(window.bytes);
                faults.unreadable(&self.wanted[index], text, complaint, record, place(bad.span.start()))?;
            }
        }
        self.scratch = cx.scratch;
        self.rows += 1;
        Ok(())
    }
}

/// The end of the line that `start` is on; `None`: it is not in the window.
fn line_end(window: Window<'_>, start: usize) -> Option<usize> {
    match memchr(b'\n', &window.bytes[start..]) {
        Some(length) => Some(start + length),
        None if window.is_last => Some(window.bytes.len()),
        None => None,
    }
}

impl TextDecoder for JsonDecoder {
    fn begin(&mut self, window: Window<'_>) -> Result<Option<Taken>> {
        Ok(byte_order_mark(window).map(|bytes| Taken { bytes, lines: 0, is_starved: false }))
    }

    fn decode(&mut self, window: Window<'_>, rows_max: usize, faults: &mut Faults) -> Result<Taken> {
        let bytes = window.bytes;
        let mut taken = Taken { bytes: 0, lines: 0, is_starved: false };
        while self.rows < rows_max {
            match bytes.get(taken.bytes) {
                None => return Ok(Taken { is_starved: true, ..taken }),
                Some(b'\n') => {
                    taken.bytes += 1;
                    taken.lines += 1;
                    continue;
                }
                Some(b' ' | b'\t' | b'\r') => {
                    taken.bytes += 1;
                    continue;
                }
                Some(_) => {}
            }
            let (start, line) = (taken.bytes, window.line + taken.lines);
            let stop = match self.scan(bytes, start) {
                Ok(end) if window.is_utf8 || std::str::from_utf8(&bytes[start..end]).is_ok() => {
                    faults.count_read(1);
                    self.append(window, start..end, line, faults)?;
                    taken.bytes = end;
                    continue;
                }
                Ok(_) => Stop::Malformed { at: start, reason: "it is not UTF-8" },
                Err(Stop::Incomplete) if !window.is_last => return Ok(Taken { is_starved: true, ..taken }),
                Err(stop) => stop,
            };
            let Some(end) = line_end(window, start) else { return Ok(Taken { is_starved: true, ..taken }) };
            faults.count_read(1);
            let (at, reason) = match stop {
                Stop::Incomplete => (end, "the file ends within it"),
                Stop::Malformed { at, reason } => (at, reason),
            };
            let record = &bytes[start..end];
            faults.reject(record, Place::within(record, at - start, line), reason)?;
            taken.bytes = end;
        }
        Ok(taken)
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>> {
        self.rows = 0;
        self.columns.iter_mut().map(Node::finish).collect()
    }
}
