//! Values as texts: what `CAST(… AS STRING)` gives.
//!
//! | type | text |
//! |---|---|
//! | BOOLEAN | `TRUE` |
//! | DOUBLE, FLOAT | the shortest that reads back: `1.5`, `1.0E10`, `NaN`, `-Infinity` |
//! | DECIMAL | with all digits of its scale: `1.50` |
//! | TIMESTAMP | `2024-01-01 10:00:00[.fff]`; TIMESTAMP_LTZ in the session's time zone |
//! | BYTES | the text whose UTF-8 they are |
//! | ARRAY, MAP, ROW | `[1, NULL]`, `{k=v}`, `(1, a)` |

use std::fmt::Write;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, UInt64Type,
};
use chrono::NaiveTime;
use chrono_tz::Tz;
use millpond_core::{Error, Result};

use super::builtin::Call;
use super::time_text::{show_date, show_time, show_timestamp};
use super::zone::{Times, date};
use crate::sql_type::sql_type;

/// An argument's values as texts.
pub(super) struct Shown {
    texts: StringArray,
    mask: usize,
}

impl Shown {
    /// The text of a row.
    pub(super) fn at(&self, row: usize) -> Option<&str> {
        let place = row & self.mask;
        self.texts.is_valid(place).then(|| self.texts.value(place))
    }
}

/// The values of an argument as texts.
pub(super) fn shown(call: &Call<'_>, argument: usize) -> Result<Shown> {
    let (values, mask) = call.values(argument);
    Ok(Shown { texts: texts(values, call.zone)?, mask })
}

/// Values as texts.
pub(super) fn texts(values: &ArrayRef, zone: Option<Tz>) -> Result<StringArray> {
    if let Some(texts) = values.as_string_opt::<i32>() {
        return Ok(texts.clone());
    }
    let show = shower(values, zone)?;
    let mut texts = StringBuilder::with_capacity(values.len(), values.len() * 12);
    let mut text = String::new();
    for row in 0..values.len() {
        match values.is_null(row) {
            true => texts.append_null(),
            false => {
                text.clear();
                show(row, &mut text)?;
                texts.append_value(&text);
            }
        }
    }
    Ok(texts.finish())
}

type Shower<'a> = Box<dyn Fn(usize, &mut String) -> Result<()> + 'a>;

/// Writes the value of a row that is not NULL.
fn shower(values: &ArrayRef, zone: Option<Tz>) -> Result<Shower<'_>> {
    macro_rules! number {
        ($type:ty) => {{
            let values = values.as_primitive::<$type>();
            plain(move |row, out| {
                let _ = write!(out, "{}", values.value(row));
            })
        }};
    }
    Ok(match values.data_type() {
        DataType::Null => plain(|_, _| {}),
        DataType::Boolean => {
            let values = values.as_boolean();
            plain(move |row, out| out.push_str(if values.value(row) { "TRUE" } else { "FALSE" }))
        }
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float32 => {
            let values = values.as_primitive::<Float32Type>();
            plain(move |row, out| {
                show_float(format!("{:e}", values.value(row)), values.value(row).into(), out)
            })
        }
        DataType::Float64 => {
            let values = values.as_primitive::<Float64Type>();
            plain(move |row, out| show_float(format!("{:e}", values.value(row)), values.value(row), out))
        }
        DataType::Decimal128(_, _) => {
            let values = values.as_primitive::<Decimal128Type>();
            plain(move |row, out| out.push_str(&values.value_as_string(row)))
        }
        DataType::Utf8 => {
            let values = values.as_string::<i32>();
            plain(move |row, out| out.push_str(values.value(row)))
        }
        DataType::Binary => {
            let values = values.as_binary::<i32>();
            plain(move |row, out| out.push_str(&String::from_utf8_lossy(values.value(row))))
        }
        DataType::Date32 => {
            let values = values.as_primitive::<Date32Type>();
            plain(move |row, out| {
                if let Some(date) = date(values.value(row)) {
                    show_date(date, out);
                }
            })
        }
        DataType::Time32(TimeUnit::Second) => {
            let values = values.as_primitive::<Time32SecondType>();
            plain(move |row, out| show_nanos(i64::from(values.value(row)) * 1_000_000_000, out))
        }
        DataType::Time32(_) => {
            let values = values.as_primitive::<Time32MillisecondType>();
            plain(move |row, out| show_nanos(i64::from(values.value(row)) * 1_000_000, out))
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            let values = values.as_primitive::<Time64MicrosecondType>();
            plain(move |row, out| show_nanos(values.value(row) * 1_000, out))
        }
        DataType::Time64(_) => {
            let values = values.as_primitive::<Time64NanosecondType>();
            plain(move |row, out| show_nanos(values.value(row), out))
        }
        DataType::Timestamp(_, _) => {
            let times = Times::new(values, usize::MAX, zone)
                .ok_or_else(|| Error::internal("a timestamp is no time"))?;
            Box::new(move |row, out| match times.at(row) {
                Some(time) => {
                    show_timestamp(time, out);
                    Ok(())
                }
                None => Err(Error::data("a timestamp is too far away to be shown as a date")),
            })
        }
        DataType::Interval(_) => {
            let values = values
                .as_primitive_opt::<IntervalMonthDayNanoType>()
                .ok_or_else(|| Error::internal("an interval of a foreign sort"))?;
            plain(move |row, out| show_interval(values.value(row), out))
        }
        DataType::List(_) => list_shower(values, zone)?,
        DataType::Struct(_) => row_shower(values, zone)?,
        DataType::Map(_, _) => map_shower(values, zone)?,
        other => return Err(Error::invalid(format!("{} cannot be cast to STRING", sql_type(other)))),
    })
}

fn plain<'a>(show: impl Fn(usize, &mut String) + 'a) -> Shower<'a> {
    Box::new(move |row, out| {
        show(row, out);
        Ok(())
    })
}

fn list_shower(values: &ArrayRef, zone: Option<Tz>) -> Result<Shower<'_>> {
    let lists = values.as_list::<i32>();
    let items = shower(lists.values(), zone)?;
    Ok(Box::new(move |row, out| {
        let (start, end) = (lists.value_offsets()[row] as usize, lists.value_offsets()[row + 1] as usize);
        out.push('[');
        for item in start..end {
            if item > start {
                out.push_str(", ");
            }
            nested(lists.values(), &items, item, out)?;
        }
        out.push(']');
        Ok(())
    }))
}

fn row_shower(values: &ArrayRef, zone: Option<Tz>) -> Result<Shower<'_>> {
    let fields = values.as_struct().columns();
    let showers = fields.iter().map(|field| shower(field, zone)).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move |row, out| {
        out.push('(');
        for (place, (field, show)) in fields.iter().zip(&showers).enumerate() {
            if place > 0 {
                out.push_str(", ");
            }
            nested(field, show, row, out)?;
        }
        out.push(')');
        Ok(())
    }))
}

fn map_shower(values: &ArrayRef, zone: Option<Tz>) -> Result<Shower<'_>> {
    let maps = values.as_map();
    let (keys, items) = (shower(maps.keys(), zone)?, shower(maps.values(), zone)?);
    Ok(Box::new(move |row, out| {
        let (start, end) = (maps.value_offsets()[row] as usize, maps.value_offsets()[row + 1] as usize);
        out.push('{');
        for entry in start..end {
            if entry > start {
                out.push_str(", ");
            }
            nested(maps.keys(), &keys, entry, out)?;
            out.push('=');
            nested(maps.values(), &items, entry, out)?;
        }
        out.push('}');
        Ok(())
    }))
}

fn nested(values: &ArrayRef, show: &Shower<'_>, row: usize, out: &mut String) -> Result<()> {
    match values.is_null(row) {
        true => {
            out.push_str("NULL");
            Ok(())
        }
        false => show(row, out),
    }
}

/// A number in Java's form, from Rust's shortest digits `d.ddde±x`.
fn show_float(shortest: String, value: f64, out: &mut String) {
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        return;
    }
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-3..7).contains(&exponent) {
        out.push_str(digits);
        if !digits.contains('.') {
            out.push_str(".0");
        }
        let _ = write!(out, "E{exponent}");
        return;
    }
    let start = out.len();
    let _ = write!(out, "{}", Plain { digits, exponent });
    if !out[start..].contains('.') {
        out.push_str(".0");
    }
}

/// `d.ddd` times a small power of ten, written out.
struct Plain<'a> {
    digits: &'a str,
    exponent: i32,
}

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sign, digits) = match self.digits.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", self.digits),
        };
        let digits: String = digits.chars().filter(|letter| *letter != '.').collect();
        f.write_str(sign)?;
        if self.exponent < 0 {
            let zeros = "0".repeat((-self.exponent - 1) as usize);
            return write!(f, "0.{zeros}{digits}");
        }
        let whole = self.exponent as usize + 1;
        match digits.len() > whole {
            true => write!(f, "{}.{}", &digits[..whole], &digits[whole..]),
            false => write!(f, "{digits:0<whole$}"),
        }
    }
}

fn show_nanos(nanos: i64, out: &mut String) {
    let seconds = u32::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(u32::MAX);
    let part = nanos.rem_euclid(1_000_000_000) as u32;
    if let Some(time) = NaiveTime::from_num_seconds_from_midnight_opt(seconds, part) {
        show_time(time, out);
    }
}

/// `+1-02` for months, `+1 02:03:04.500` for days and less.
pub(crate) fn show_interval(interval: IntervalMonthDayNano, out: &mut String) {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    if months != 0 {
        let sign = if months < 0 { '-' } else { '+' };
        let months = months.unsigned_abs();
        let _ = write!(out, "{sign}{}-{:02}", months / 12, months % 12);
        if days == 0 && nanoseconds == 0 {
            return;
        }
        out.push(' ');
    }
    let nanos = i128::from(days) * 86_400_000_000_000 + i128::from(nanoseconds);
    let sign = if nanos < 0 { '-' } else { '+' };
    let millis = nanos.unsigned_abs() / 1_000_000;
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
    let (seconds, millis) = (rest / 1_000 % 60, rest % 1_000);
    let _ = write!(out, "{sign}{days} {hours:02}:{minutes:02}:{seconds:02}.{millis:03}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_shown_as_java_does() {
        let shown = |value: f64| {
            let mut out = String::new();
            show_float(format!("{value:e}"), value, &mut out);
            out
        };
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (100.0, "100.0"),
            (1234567.0, "1234567.0"),
            (12345678.9, "1.23456789E7"),
            (1e7, "1.0E7"),
            (0.001, "0.001"),
            (0.00012, "1.2E-4"),
            (1e308, "1.0E308"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, expected) in cases {
            assert_eq!(shown(value), expected);
        }
    }

    #[test]
    fn intervals_are_shown() {
        let shown = |months, days, nanos| {
            let mut out = String::new();
            show_interval(IntervalMonthDayNano::new(months, days, nanos), &mut out);
            out
        };
        assert_eq!(shown(14, 0, 0), "+1-02");
        assert_eq!(shown(0, 1, 7_384_500_000_000), "+1 02:03:04.500");
        assert_eq!(shown(0, 0, -1_000_000_000), "-0 00:00:01.000");
        assert_eq!(shown(0, 0, 0), "+0 00:00:00.000");
    }
}
