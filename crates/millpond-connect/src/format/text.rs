//! Values as text: how a value of every Arrow type is shown to people and written to text files.
//!
//! A [`ColumnText`] is made once per column of a batch and knows the column's type; writing a
//! row's value is then one match that appends to the caller's text and allocates nothing.
//!
//! Timestamps are `2024-01-01 10:00:00[.fff]` without trailing zero digits, decimals exact,
//! floats the shortest text that reads back the same, nested values JSON.

mod scalar;
#[cfg(test)]
mod tests;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray,
    LargeBinaryArray, LargeStringArray, StringArray, StringViewArray,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type,
    Decimal256Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTime,
    IntervalDayTimeType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use chrono_tz::Tz;
use millpond_core::time::timestamp_values;
use millpond_core::{Error, Result};

pub(crate) use scalar::push_json_string;
use scalar::{
    Zone, push_base64, push_date, push_decimal, push_decimal256, push_duration, push_float, push_hex,
    push_integer, push_interval, push_time, push_timestamp,
};

/// Choices that the type of a value leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextFormat {
    /// Where instants (`TIMESTAMP_LTZ`) are shown, without naming the zone; `None` shows them in
    /// UTC with a `Z`.
    pub time_zone: Option<Tz>,
    /// How bytes are written.
    pub bytes: BytesText,
}

/// How bytes are written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BytesText {
    /// `x'00ff'`, as in SQL.
    Hex,
    /// Base 64 with padding, as in JSON and CSV files of Flink.
    Base64,
}

impl TextFormat {
    /// For people: instants in the session's time zone, bytes as SQL literals.
    pub fn display(time_zone: Tz) -> Self {
        Self { time_zone: Some(time_zone), bytes: BytesText::Hex }
    }
    /// For people, in a zone by its name (`Europe/Berlin`) or whole hours (`+02:00`).
    ///
    /// Errors: *Invalid* for a zone that is not known.
    pub fn display_in(time_zone: &str) -> Result<Self> {
        Ok(Self::display(parse_zone(time_zone)?))
    }
    /// For files: independent of the session, as Flink writes them.
    pub fn file() -> Self {
        Self { time_zone: None, bytes: BytesText::Base64 }
    }
    /// Writes the values of a column.
    ///
    /// Errors: *Invalid* for a type that has no text.
    pub fn formatter(&self, array: &ArrayRef) -> Result<ColumnText> {
        Ok(ColumnText { nulls: array.nulls().cloned(), values: Values::of(self, array)?, format: *self })
    }
}

fn parse_zone(name: &str) -> Result<Tz> {
    let hours = |sign: &str| name.strip_prefix(sign)?.strip_suffix(":00")?.parse::<u8>().ok();
    // Etc/GMT counts hours west of Greenwich.
    let zone = match (name, hours("+"), hours("-")) {
        ("" | "Z", _, _) => Ok(Tz::UTC),
        (_, Some(hours), _) => format!("Etc/GMT-{hours}").parse(),
        (_, _, Some(hours)) => format!("Etc/GMT+{hours}").parse(),
        (name, None, None) => name.parse(),
    };
    zone.map_err(|_| {
        Error::invalid(format!("{name:?} is not a time zone"))
            .with_hint("write a name such as 'Europe/Berlin'")
    })
}

/// The text of one column's values.
#[derive(Debug)]
pub struct ColumnText {
    nulls: Option<NullBuffer>,
    values: Values,
    format: TextFormat,
}

impl ColumnText {
    /// Whether the row's value is NULL.
    pub fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
            || match &self.values {
                Values::Null => true,
                Values::Dictionary { keys, values } => values.is_null(keys[row]),
                _ => false,
            }
    }

    /// Appends the row's value as it is; nothing for NULL.
    pub fn write(&self, row: usize, out: &mut String) {
        if self.is_null(row) {
            return;
        }
        match &self.values {
            Values::Null => {}
            Values::Boolean(values) => out.push_str(if values.value(row) { "true" } else { "false" }),
            Values::Int8(values) => push_integer(out, values[row]),
            Values::Int16(values) => push_integer(out, values[row]),
            Values::Int32(values) => push_integer(out, values[row]),
            Values::Int64(values) => push_integer(out, values[row]),
            Values::UInt8(values) => push_integer(out, values[row]),
            Values::UInt16(values) => push_integer(out, values[row]),
            Values::UInt32(values) => push_integer(out, values[row]),
            Values::UInt64(values) => push_integer(out, values[row]),
            Values::Float32(values) => push_float(out, values[row]),
            Values::Float64(values) => push_float(out, values[row]),
            Values::Decimal(values, scale) => push_decimal(out, values[row], *scale),
            Values::Decimal256(values, scale) => push_decimal256(out, values[row], *scale),
            Values::Text(values) => out.push_str(values.value(row)),
            Values::LargeText(values) => out.push_str(values.value(row)),
            Values::TextView(values) => out.push_str(values.value(row)),
            Values::Bytes(values) => self.write_bytes(values.value(row), out),
            Values::LargeBytes(values) => self.write_bytes(values.value(row), out),
            Values::BytesView(values) => self.write_bytes(values.value(row), out),
            Values::FixedBytes(values) => self.write_bytes(values.value(row), out),
            Values::Date(values) => push_date(out, i64::from(values[row])),
            Values::Time(values) => push_time(out, values[row]),
            Values::Timestamp { values, per_second, zone } => {
                push_timestamp(out, values[row], *per_second, *zone)
            }
            Values::Duration(values, per_second) => push_duration(out, values[row], *per_second),
            Values::Months(values) => push_interval(out, values[row], 0, 0),
            Values::DayTime(values) => {
                let value = values[row];
                push_interval(out, 0, value.days, i64::from(value.milliseconds) * 1_000_000);
            }
            Values::MonthDayNano(values) => {
                let value = values[row];
                push_interval(out, value.months, value.days, value.nanoseconds);
            }
            Values::Dictionary { keys, values } => values.write(keys[row], out),
            Values::List { .. } | Values::Map { .. } | Values::Row(_) => self.write_nested(row, out),
        }
    }

    /// Appends the row's value as JSON; `null` for NULL.
    pub fn write_json(&self, row: usize, out: &mut String) {
        if self.is_null(row) {
            return out.push_str("null");
        }
        match &self.values {
            Values::Text(values) => push_json_string(out, values.value(row)),
            Values::LargeText(values) => push_json_string(out, values.value(row)),
            Values::TextView(values) => push_json_string(out, values.value(row)),
            Values::Dictionary { keys, values } => values.write_json(keys[row], out),
            _ if self.is_json_as_it_is(row) => self.write(row, out),
            _ => {
                out.push('"');
                self.write(row, out);
                out.push('"');
            }
        }
    }

    /// Whether the plain text is a JSON value: numbers (but not NaN), booleans, nested values.
    fn is_json_as_it_is(&self, row: usize) -> bool {
        match &self.values {
            Values::Float32(values) => values[row].is_finite(),
            Values::Float64(values) => values[row].is_finite(),
            Values::Null
            | Values::Boolean(_)
            | Values::Int8(_)
            | Values::Int16(_)
            | Values::Int32(_)
            | Values::Int64(_)
            | Values::UInt8(_)
            | Values::UInt16(_)
            | Values::UInt32(_)
            | Values::UInt64(_)
            | Values::Decimal(..)
            | Values::Decimal256(..)
            | Values::List { .. }
            | Values::Map { .. }
            | Values::Row(_) => true,
            _ => false,
        }
    }

    fn write_bytes(&self, bytes: &[u8], out: &mut String) {
        match self.format.bytes {
            BytesText::Hex => push_hex(out, bytes),
            BytesText::Base64 => push_base64(out, bytes),
        }
    }

    fn write_nested(&self, row: usize, out: &mut String) {
        match &self.values {
            Values::List { ends, items } => {
                write_separated(out, ['[', ']'], ends.range(row), |item, out| items.write_json(item, out));
            }
            Values::Map { ends, keys, values } => {
                write_separated(out, ['{', '}'], ends.range(row), |entry, out| {
                    keys.write_json_key(entry, out);
                    out.push(':');
                    values.write_json(entry, out);
                });
            }
            Values::Row(fields) => write_separated(out, ['{', '}'], 0..fields.len(), |index, out| {
                let (name, column) = &fields[index];
                out.push_str(name);
                column.write_json(row, out);
            }),
            _ => unreachable!("only nested values are written so"),
        }
    }

    /// A key of a JSON object is a string whatever its type.
    fn write_json_key(&self, row: usize, out: &mut String) {
        let start = out.len();
        self.write_json(row, out);
        if !out[start..].starts_with('"') {
            let text = out.split_off(start);
            push_json_string(out, &text);
        }
    }
}

fn write_separated(
    out: &mut String,
    [open, close]: [char; 2],
    rows: std::ops::Range<usize>,
    mut write: impl FnMut(usize, &mut String),
) {
    out.push(open);
    let first = rows.start;
    for row in rows {
        if row > first {
            out.push(',');
        }
        write(row, out);
    }
    out.push(close);
}

/// Where the items of each row's list begin and end.
#[derive(Debug)]
enum Ends {
    Short(ScalarBuffer<i32>),
    Long(ScalarBuffer<i64>),
    Fixed(usize),
}

impl Ends {
    fn range(&self, row: usize) -> std::ops::Range<usize> {
        match self {
            Ends::Short(ends) => ends[row] as usize..ends[row + 1] as usize,
            Ends::Long(ends) => ends[row] as usize..ends[row + 1] as usize,
            Ends::Fixed(length) => row * length..(row + 1) * length,
        }
    }
}

/// A column's values with its type resolved.
#[derive(Debug)]
enum Values {
    Null,
    Boolean(BooleanArray),
    Int8(ScalarBuffer<i8>),
    Int16(ScalarBuffer<i16>),
    Int32(ScalarBuffer<i32>),
    Int64(ScalarBuffer<i64>),
    UInt8(ScalarBuffer<u8>),
    UInt16(ScalarBuffer<u16>),
    UInt32(ScalarBuffer<u32>),
    UInt64(ScalarBuffer<u64>),
    Float32(ScalarBuffer<f32>),
    Float64(ScalarBuffer<f64>),
    Decimal(ScalarBuffer<i128>, i8),
    Decimal256(ScalarBuffer<i256>, i8),
    Text(StringArray),
    LargeText(LargeStringArray),
    TextView(StringViewArray),
    Bytes(BinaryArray),
    LargeBytes(LargeBinaryArray),
    BytesView(BinaryViewArray),
    FixedBytes(FixedSizeBinaryArray),
    /// Days since 1970.
    Date(ScalarBuffer<i32>),
    /// Nanoseconds since midnight.
    Time(ScalarBuffer<i64>),
    Timestamp {
        values: ScalarBuffer<i64>,
        per_second: i64,
        zone: Zone,
    },
    Duration(ScalarBuffer<i64>, i64),
    Months(ScalarBuffer<i32>),
    DayTime(ScalarBuffer<IntervalDayTime>),
    MonthDayNano(ScalarBuffer<IntervalMonthDayNano>),
    Dictionary {
        keys: Vec<usize>,
        values: Box<ColumnText>,
    },
    List {
        ends: Ends,
        items: Box<ColumnText>,
    },
    Map {
        ends: Ends,
        keys: Box<ColumnText>,
        values: Box<ColumnText>,
    },
    /// Fields by name, the name as it stands in JSON with its colon.
    Row(Vec<(String, ColumnText)>),
}

fn raw<T: ArrowPrimitiveType>(array: &ArrayRef) -> ScalarBuffer<T::Native> {
    array.as_primitive::<T>().values().clone()
}

fn scaled<T: ArrowPrimitiveType<Native: Into<i64>>>(array: &ArrayRef, factor: i64) -> ScalarBuffer<i64> {
    array.as_primitive::<T>().values().iter().map(|value| (*value).into().wrapping_mul(factor)).collect()
}

fn wide<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &ArrayRef) -> ScalarBuffer<i128> {
    array.as_primitive::<T>().values().iter().map(|value| (*value).into()).collect()
}

impl Values {
    fn of(format: &TextFormat, array: &ArrayRef) -> Result<Self> {
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Boolean(array.as_boolean().clone()),
            DataType::Int8 => Self::Int8(raw::<Int8Type>(array)),
            DataType::Int16 => Self::Int16(raw::<Int16Type>(array)),
            DataType::Int32 => Self::Int32(raw::<Int32Type>(array)),
            DataType::Int64 => Self::Int64(raw::<Int64Type>(array)),
            DataType::UInt8 => Self::UInt8(raw::<UInt8Type>(array)),
            DataType::UInt16 => Self::UInt16(raw::<UInt16Type>(array)),
            DataType::UInt32 => Self::UInt32(raw::<UInt32Type>(array)),
            DataType::UInt64 => Self::UInt64(raw::<UInt64Type>(array)),
            DataType::Float32 => Self::Float32(raw::<Float32Type>(array)),
            DataType::Float64 => Self::Float64(raw::<Float64Type>(array)),
            DataType::Decimal32(_, scale) => Self::Decimal(wide::<Decimal32Type>(array), *scale),
            DataType::Decimal64(_, scale) => Self::Decimal(wide::<Decimal64Type>(array), *scale),
            DataType::Decimal128(_, scale) => Self::Decimal(raw::<Decimal128Type>(array), *scale),
            DataType::Decimal256(_, scale) => Self::Decimal256(raw::<Decimal256Type>(array), *scale),
            DataType::Utf8 => Self::Text(array.as_string::<i32>().clone()),
            DataType::LargeUtf8 => Self::LargeText(array.as_string::<i64>().clone()),
            DataType::Utf8View => Self::TextView(array.as_string_view().clone()),
            DataType::Binary => Self::Bytes(array.as_binary::<i32>().clone()),
            DataType::LargeBinary => Self::LargeBytes(array.as_binary::<i64>().clone()),
            DataType::BinaryView => Self::BytesView(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(_) => Self::FixedBytes(array.as_fixed_size_binary().clone()),
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => {
                Self::of_clock(array)
            }
            DataType::Timestamp(unit, zone) => Self::Timestamp {
                values: timestamp_values(array)?.0.iter().copied().collect(),
                per_second: per_second(*unit),
                zone: match (zone, format.time_zone) {
                    (None, _) => Zone::Wall,
                    (Some(_), None) => Zone::Utc,
                    (Some(_), Some(zone)) => Zone::Local(zone),
                },
            },
            DataType::Duration(unit) => Self::Duration(durations(array, *unit), per_second(*unit)),
            DataType::Interval(IntervalUnit::YearMonth) => Self::Months(raw::<IntervalYearMonthType>(array)),
            DataType::Interval(IntervalUnit::DayTime) => Self::DayTime(raw::<IntervalDayTimeType>(array)),
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                Self::MonthDayNano(raw::<IntervalMonthDayNanoType>(array))
            }
            _ => return Self::of_nested(format, array),
        })
    }

    fn of_clock(array: &ArrayRef) -> Self {
        match array.data_type() {
            DataType::Date32 => Self::Date(raw::<Date32Type>(array)),
            DataType::Date64 => {
                let days = array
                    .as_primitive::<Date64Type>()
                    .values()
                    .iter()
                    .map(|ms| ms.div_euclid(86_400_000) as i32);
                Self::Date(days.collect())
            }
            DataType::Time32(TimeUnit::Second) => {
                Self::Time(scaled::<Time32SecondType>(array, 1_000_000_000))
            }
            DataType::Time32(_) => Self::Time(scaled::<Time32MillisecondType>(array, 1_000_000)),
            DataType::Time64(TimeUnit::Microsecond) => {
                Self::Time(scaled::<Time64MicrosecondType>(array, 1_000))
            }
            _ => Self::Time(raw::<Time64NanosecondType>(array)),
        }
    }

    fn of_nested(format: &TextFormat, array: &ArrayRef) -> Result<Self> {
        let boxed = |array: &ArrayRef| format.formatter(array).map(Box::new);
        Ok(match array.data_type() {
            DataType::Dictionary(_, _) => {
                let dictionary = array.as_any_dictionary();
                match dictionary.values().is_empty() {
                    true => Self::Null,
                    false => Self::Dictionary {
                        keys: dictionary.normalized_keys(),
                        values: boxed(dictionary.values())?,
                    },
                }
            }
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                Self::List { ends: Ends::Short(list.offsets().inner().clone()), items: boxed(list.values())? }
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                Self::List { ends: Ends::Long(list.offsets().inner().clone()), items: boxed(list.values())? }
            }
            DataType::FixedSizeList(_, length) => {
                let list = array.as_fixed_size_list();
                Self::List { ends: Ends::Fixed(*length as usize), items: boxed(list.values())? }
            }
            DataType::Map(_, _) => {
                let map = array.as_map();
                Self::Map {
                    ends: Ends::Short(map.offsets().inner().clone()),
                    keys: boxed(map.keys())?,
                    values: boxed(map.values())?,
                }
            }
            DataType::Struct(fields) => {
                let columns = fields.iter().zip(array.as_struct().columns());
                let texts =
                    columns.map(|(field, column)| Ok((json_name(field.name()), format.formatter(column)?)));
                Self::Row(texts.collect::<Result<_>>()?)
            }
            other => return Err(Error::invalid(format!("a value of type {other} has no text form"))),
        })
    }
}

fn durations(array: &ArrayRef, unit: TimeUnit) -> ScalarBuffer<i64> {
    match unit {
        TimeUnit::Second => raw::<DurationSecondType>(array),
        TimeUnit::Millisecond => raw::<DurationMillisecondType>(array),
        TimeUnit::Microsecond => raw::<DurationMicrosecondType>(array),
        TimeUnit::Nanosecond => raw::<DurationNanosecondType>(array),
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// `"name":`, escaped.
pub(crate) fn json_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 3);
    push_json_string(&mut out, name);
    out.push(':');
    out
}
