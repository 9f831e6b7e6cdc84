//! Builds columns from the values of scanned JSON objects: scalars, rows, arrays and maps.
//!
//! The objects have been validated before, so what goes wrong here is a single value's type: it
//! becomes NULL and is reported to [`Faults`].

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{ArrayRef, ListArray, MapArray, StructArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields};
use millpond_core::{Error, Result, Timestamp};

use super::appender::{Appender, appender};
use super::json_scanner::{Kind, Scanner, Span, unescape};
use super::scalar::{self, Zone};
use super::{Faults, Place, Window};

/// Refuses a type that JSON cannot give.
pub(crate) fn check(data_type: &DataType, zone: Zone) -> Result<()> {
    Node::new(data_type, zone).map(drop)
}

/// Keys of an object and their places: found by the order in which they came last time, else by
/// name.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` for a place that no key leads to.
    names: Vec<Option<String>>,
    by_name: HashMap<Vec<u8>, usize>,
}

impl Keys {
    pub(super) fn new<'a>(names: impl Iterator<Item = Option<&'a str>>) -> Self {
        let names: Vec<Option<String>> = names.map(|name| name.map(String::from)).collect();
        let named = |(at, name): (usize, &Option<String>)| Some((name.clone()?.into_bytes(), at));
        let by_name = names.iter().enumerate().filter_map(named).collect();
        Self { names, by_name }
    }
    /// The place of a key; `hint` is where it is looked for first.
    #[inline]
    fn find(&self, key: &[u8], hint: usize) -> Option<usize> {
        match self.names.get(hint) {
            Some(Some(name)) if name.as_bytes() == key => Some(hint),
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
                    keys: Keys::new(fields.iter().map(|field| Some(field.name().as_str()))),
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
pub(super) fn find_values(bytes: &[u8], object: Span, keys: &Keys, spans: &mut [Option<Span>]) {
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

/// The place of a key as it stands in the text.
#[inline]
pub(super) fn place_of(
    bytes: &[u8],
    key: Span,
    keys: &Keys,
    hint: usize,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
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

/// Where a record stands.
#[derive(Clone)]
pub(super) struct Record<'a> {
    pub(super) window: Window<'a>,
    pub(super) range: Range<usize>,
    pub(super) line: u64,
}

impl<'a> Record<'a> {
    pub(super) fn text(&self) -> &'a [u8] {
        &self.window.bytes[self.range.clone()]
    }
    /// The place of the byte `at` of the window.
    pub(super) fn place(&self, at: usize) -> Place {
        Place::within(self.text(), at - self.range.start, self.line)
    }
    pub(super) fn start(&self) -> Place {
        self.place(self.range.start)
    }
}

/// A column to be built.
pub(super) struct Wanted {
    pub(super) field: FieldRef,
    /// The key of its values; `None`: they are found elsewhere.
    pub(super) key: Option<String>,
    node: Node,
}

impl Wanted {
    /// A column whose values stand under its own name.
    pub(super) fn new(field: &FieldRef, zone: Zone) -> Result<Self> {
        let node = Node::new(field.data_type(), zone)?;
        Ok(Self { field: field.clone(), key: Some(field.name().clone()), node })
    }
    /// A column whose values are found elsewhere.
    pub(super) fn of_event(field: &FieldRef, zone: Zone) -> Result<Self> {
        Ok(Self { key: None, ..Self::new(field, zone)? })
    }
    /// A column of times, given as milliseconds since 1970, whose values are found elsewhere.
    pub(super) fn of_millis(field: &FieldRef, zone: Zone) -> Result<Self> {
        let appender = Box::new(Millis(appender(field.data_type(), zone)?));
        let node = Node::Scalar { appender, data_type: field.data_type().clone() };
        Ok(Self { field: field.clone(), key: None, node })
    }
}

/// Builds columns row by row.
pub(super) struct RowBuilder {
    wanted: Vec<Wanted>,
    pub(super) keys: Keys,
    /// Where the values of the next row stand.
    pub(super) spans: Vec<Option<Span>>,
    rows: usize,
    scratch: Vec<u8>,
}

impl RowBuilder {
    pub(super) fn new(wanted: Vec<Wanted>) -> Self {
        Self {
            keys: Keys::new(wanted.iter().map(|column| column.key.as_deref())),
            spans: vec![None; wanted.len()],
            wanted,
            rows: 0,
            scratch: Vec::new(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn field(&self, column: usize) -> &FieldRef {
        &self.wanted[column].field
    }

    /// Appends the values at `spans` as a row.
    pub(super) fn append(&mut self, record: &Record<'_>, faults: &Faults) -> Result<()> {
        let bytes = record.window.bytes;
        let mut cx = Appending { bytes, scratch: std::mem::take(&mut self.scratch), unreadable: Vec::new() };
        for (column, span) in self.wanted.iter_mut().zip(&self.spans) {
            column.node.append(*span, &mut cx);
            for bad in cx.unreadable.drain(..) {
                let text = bad.span.text(bytes);
                let complaint = scalar::complaint(&bad.data_type, text);
                let place = record.place(bad.span.start());
                faults.unreadable(&column.field, text, complaint, record.text(), place)?;
            }
        }
        self.scratch = cx.scratch;
        self.rows += 1;
        Ok(())
    }

    /// The columns of the rows held; none is held afterwards.
    pub(super) fn finish(&mut self) -> Result<Vec<ArrayRef>> {
        self.rows = 0;
        self.wanted.iter_mut().map(|column| column.node.finish()).collect()
    }
}

/// Reads milliseconds since 1970 where the column's own text is a date and time.
struct Millis(Box<dyn Appender>);

impl Appender for Millis {
    fn text(&mut self, text: &[u8], is_utf8: bool) -> bool {
        let Some(micros) = scalar::integer(text).and_then(|millis| millis.checked_mul(1000)) else {
            return false;
        };
        self.0.text(format!("{}Z", Timestamp(micros)).as_bytes(), is_utf8) || self.0.text(text, is_utf8)
    }
    fn null(&mut self) {
        self.0.null();
    }
    fn finish(&mut self) -> Result<ArrayRef> {
        self.0.finish()
    }
}
