//! Functions of dates and times. TIMESTAMP_LTZ is seen as clocks in the session's zone show it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Date32Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowTimestampType, DataType, Date32Type, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use chrono::{NaiveDateTime, TimeDelta};
use chrono_tz::Tz;
use datafusion::common::ScalarValue;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition, Values};
use super::time_pattern::Pattern;
use super::zone::{count, date_time, day, to_local, to_utc, units_per_second};
use super::{time_text, time_unit::Unit};
use crate::sql_type::LTZ_ZONE;

const DEFAULT_PATTERN: &str = "yyyy-MM-dd HH:mm:ss";

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    let mut all = vec![
        f("EXTRACT(unit STRING, time TIMESTAMP) -> BIGINT", |c| {
            let unit = constant_unit(c, 0)?;
            extracted(c, 1, unit)
        })
        .alias("date_part"),
        f("FLOOR_TIME(time TIMESTAMP, unit STRING)", |c| {
            let unit = constant_unit(c, 1)?;
            moved(c, 0, |time, _| unit.floor(time))
        })
        .gives(as_first),
        f("CEIL_TIME(time TIMESTAMP, unit STRING)", |c| {
            let unit = constant_unit(c, 1)?;
            moved(c, 0, |time, _| unit.ceil(time))
        })
        .gives(as_first),
        f("DATE_TRUNC(unit STRING, time TIMESTAMP)", |c| {
            let unit = constant_unit(c, 0)?;
            let unit = if unit == Unit::Week { Unit::IsoWeek } else { unit };
            moved(c, 1, |time, _| unit.floor(time))
        })
        .gives(|types, _| Ok(time_or_midnight(&types[1]))),
        f("TIMESTAMPADD(unit STRING, number INT, time TIMESTAMP)", |c| {
            let (unit, number) = (constant_unit(c, 0)?, c.int(1)?);
            moved(c, 2, |time, row| match number.at(row) {
                None => Ok(None),
                Some(number) => unit.add(time, number).map(Some).ok_or_else(|| {
                    Error::data(format!("{time} and {number} {} give no timestamp", unit.name()))
                }),
            })
        })
        .gives(|types, constants| {
            let whole_days = constants
                .first()
                .and_then(|unit| Unit::parse(unit.as_ref()?.try_as_str()??).ok())
                .is_some_and(|unit| unit.is_of_days());
            Ok(match &types[2] {
                DataType::Date32 if whole_days => DataType::Date32,
                other => time_or_midnight(other),
            })
        }),
        f("TIMESTAMPDIFF(unit STRING, from TIMESTAMP, to TIMESTAMP) -> INT", |c| {
            let (unit, from, to) = (constant_unit(c, 0)?, c.time(1)?, c.time(2)?);
            c.ints(|row| {
                let Some((from, to)) = from.at(row).zip(to.at(row)) else { return Ok(None) };
                let difference = unit.difference(from, to);
                match i32::try_from(difference) {
                    Ok(_) => Ok(Some(difference)),
                    Err(_) => {
                        Err(Error::data(format!("{difference} {} are out of range of INT", unit.name())))
                    }
                }
            })
        }),
        f("DATE_FORMAT(time TIMESTAMP|STRING, pattern STRING) -> STRING", |c| {
            let (time, patterns, zone) = (c.time(0)?, Patterns::new(c, 1)?, zone_of(c, 0));
            c.try_texts(|row| match time.at(row).zip(patterns.at(row)?) {
                Some((time, pattern)) => Ok(Some(pattern.format(time, zone))),
                None => Ok(None),
            })
        }),
        f("TO_TIMESTAMP(text STRING [, pattern STRING]) -> TIMESTAMP(3)", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            let read = |row: usize| -> Result<Option<NaiveDateTime>> {
                let Some(text) = text.at(row) else { return Ok(None) };
                match c.len() {
                    1 => Ok(time_text::timestamp(text)),
                    _ => Ok(patterns.at(row)?.and_then(|pattern| Some(pattern.read(text)?.0))),
                }
            };
            timestamps::<TimestampMillisecondType>(c, read)
        }),
        f("TO_TIMESTAMP_LTZ(time ANY [, pattern ANY, zone STRING]) -> TIMESTAMP_LTZ(3)", to_instants).takes(
            |given| {
                let text = matches!(given.first()?, DataType::Utf8 | DataType::Utf8View | DataType::Null);
                let number = given.first()?;
                match given.len() {
                    1..=3 if text => Some(vec![DataType::Utf8; given.len()]),
                    1 | 2 if number.is_integer() => Some(vec![DataType::Int64; given.len()]),
                    1 | 2 if number.is_numeric() => {
                        Some([DataType::Float64, DataType::Int64][..given.len()].to_vec())
                    }
                    _ => None,
                }
            },
        ),
        f("TO_DATE(text STRING [, pattern STRING]) -> DATE", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            let read = |row: usize| -> Result<Option<i32>> {
                let Some(text) = text.at(row) else { return Ok(None) };
                let date = match c.len() {
                    1 => time_text::timestamp(text).map(|time| time.date()),
                    _ => patterns.at(row)?.and_then(|pattern| Some(pattern.read(text)?.0.date())),
                };
                Ok(date.map(day))
            };
            Ok(Arc::new((0..c.rows).map(read).collect::<Result<Date32Array>>()?))
        }),
        f("UNIX_TIMESTAMP(text STRING [, pattern STRING]) -> BIGINT", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            c.bigints(|row| {
                let Some((text, pattern)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                Ok(pattern.read(text).map(|read| utc_of(c.zone, read).and_utc().timestamp()))
            })
        }),
        f("FROM_UNIXTIME(seconds BIGINT [, pattern STRING]) -> STRING", |c| {
            let (seconds, patterns) = (c.int(0)?, Patterns::new(c, 1)?);
            c.try_texts(|row| {
                let Some((seconds, pattern)) = seconds.at(row).zip(patterns.at(row)?) else {
                    return Ok(None);
                };
                let local = date_time(seconds, 1).map(|time| to_local(c.zone, time));
                Ok(local.map(|time| pattern.format(time, c.zone)))
            })
        }),
        f("CONVERT_TZ(text STRING, from STRING, to STRING) -> STRING", |c| {
            let (text, from, to) = (c.text(0)?, c.text(1)?, c.text(2)?);
            let pattern = Pattern::parse(DEFAULT_PATTERN)?;
            c.try_texts(|row| {
                let (Some(text), Some(from), Some(to)) = (text.at(row), from.at(row), to.at(row)) else {
                    return Ok(None);
                };
                let (from, to) = (zone_named(from)?, zone_named(to)?);
                let time = time_text::timestamp(text);
                Ok(time.map(|time| pattern.format(to_local(Some(to), to_utc(Some(from), time)), Some(to))))
            })
        }),
    ];
    macro_rules! parts {
        ($($usage:literal $unit:ident;)*) => {
            $(all.push(f($usage, |c| extracted(c, 0, Unit::$unit)));)*
        };
    }
    parts! {
        "YEAR(time TIMESTAMP) -> BIGINT" Year;
        "QUARTER(time TIMESTAMP) -> BIGINT" Quarter;
        "MONTH(time TIMESTAMP) -> BIGINT" Month;
        "WEEK(time TIMESTAMP) -> BIGINT" Week;
        "DAYOFYEAR(time TIMESTAMP) -> BIGINT" DayOfYear;
        "DAYOFMONTH(time TIMESTAMP) -> BIGINT" Day;
        "DAYOFWEEK(time TIMESTAMP) -> BIGINT" DayOfWeek;
        "HOUR(time TIMESTAMP) -> BIGINT" Hour;
        "MINUTE(time TIMESTAMP) -> BIGINT" Minute;
        "SECOND(time TIMESTAMP) -> BIGINT" Second;
    }
    all
}

/// The unit that an argument names; it is the same for all rows.
fn constant_unit(call: &Call<'_>, argument: usize) -> Result<Unit> {
    let unit = call.is_constant(argument).then(|| call.text(argument)).transpose()?;
    match unit.and_then(|unit| unit.at(0)) {
        Some(unit) => Unit::parse(unit),
        None => {
            Err(Error::invalid("the unit of a time must be constant").with_hint("for example DAY or HOUR"))
        }
    }
}

fn extracted(call: &Call<'_>, argument: usize, unit: Unit) -> Result<ArrayRef> {
    let time = call.time(argument)?;
    let zone = zone_of(call, argument);
    call.bigints(|row| {
        let Some(time) = time.at(row) else { return Ok(None) };
        Ok(Some(match unit {
            Unit::Epoch => to_utc(zone, time).and_utc().timestamp(),
            unit => unit.part_of(time),
        }))
    })
}

/// The zone whose clocks an argument is read by.
fn zone_of(call: &Call<'_>, argument: usize) -> Option<Tz> {
    call.zone.filter(|_| matches!(call.data_type(argument), DataType::Timestamp(_, Some(_))))
}

fn zone_named(name: &str) -> Result<Tz> {
    name.parse().map_err(|_| {
        Error::data(format!("time zone '{name}' is not known")).with_hint("for example Europe/Berlin or UTC")
    })
}

fn as_first(types: &[DataType], _: &[Option<ScalarValue>]) -> Result<DataType> {
    Ok(if types[0].is_null() { DataType::Timestamp(TimeUnit::Millisecond, None) } else { types[0].clone() })
}

/// A timestamp's own type; that of midnight for a date.
fn time_or_midnight(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(_, _) => data_type.clone(),
        _ => DataType::Timestamp(TimeUnit::Millisecond, None),
    }
}

/// Times moved on the wall clock, in the type of the result.
fn moved<M, T>(call: &Call<'_>, argument: usize, map: M) -> Result<ArrayRef>
where
    M: Fn(NaiveDateTime, usize) -> T,
    T: IntoResult,
{
    let (time, zone) = (call.time(argument)?, zone_of(call, argument));
    let local = |row: usize| -> Result<Option<NaiveDateTime>> {
        time.at(row).map_or(Ok(None), |time| map(time, row).into_result())
    };
    if *call.result == DataType::Date32 {
        let days = (0..call.rows).map(|row| Ok(local(row)?.map(|time| day(time.date()))));
        return Ok(Arc::new(days.collect::<Result<PrimitiveArray<Date32Type>>>()?));
    }
    let utc = |row| Ok(local(row)?.map(|time| to_utc(zone, time)));
    match call.result {
        DataType::Timestamp(TimeUnit::Second, _) => timestamps::<TimestampSecondType>(call, utc),
        DataType::Timestamp(TimeUnit::Millisecond, _) => timestamps::<TimestampMillisecondType>(call, utc),
        DataType::Timestamp(TimeUnit::Microsecond, _) => timestamps::<TimestampMicrosecondType>(call, utc),
        _ => timestamps::<TimestampNanosecondType>(call, utc),
    }
}

/// What a function of times gives.
trait IntoResult {
    fn into_result(self) -> Result<Option<NaiveDateTime>>;
}

impl IntoResult for Option<NaiveDateTime> {
    fn into_result(self) -> Result<Option<NaiveDateTime>> {
        Ok(self)
    }
}

impl IntoResult for Result<Option<NaiveDateTime>> {
    fn into_result(self) -> Result<Option<NaiveDateTime>> {
        self
    }
}

fn timestamps<T: ArrowTimestampType>(
    call: &Call<'_>,
    value: impl Fn(usize) -> Result<Option<NaiveDateTime>>,
) -> Result<ArrayRef> {
    let per_second = units_per_second(T::UNIT);
    let value = |row| -> Result<Option<i64>> {
        let Some(time) = value(row)? else { return Ok(None) };
        count(time, per_second)
            .map(Some)
            .ok_or_else(|| Error::data(format!("the time {time} is out of range")))
    };
    let values = (0..call.rows).map(value).collect::<Result<PrimitiveArray<T>>>()?;
    Ok(Arc::new(values.with_data_type(call.result.clone())))
}

/// The instant that a text tells: by the offset that stands in it, else by the zone.
fn utc_of(zone: Option<Tz>, (time, offset): (NaiveDateTime, Option<i32>)) -> NaiveDateTime {
    match offset {
        Some(offset) => time - TimeDelta::seconds(offset.into()),
        None => to_utc(zone, time),
    }
}

/// `TO_TIMESTAMP_LTZ(n [, digits])`, `TO_TIMESTAMP_LTZ(text [, pattern [, zone]])`.
fn to_instants(call: &Call<'_>) -> Result<ArrayRef> {
    if *call.data_type(0) == DataType::Utf8 {
        return instants_of_texts(call);
    }
    let digits = call.optional_int(1)?;
    let micros = |row: usize, number: &dyn Fn(i64) -> Option<i64>| -> Result<Option<i64>> {
        match digits.map_or(Some(3), |digits| digits.at(row)) {
            None => Ok(None),
            Some(0) => Ok(number(1000)),
            Some(3) => Ok(number(1)),
            Some(other) => Err(Error::invalid(format!("TO_TIMESTAMP_LTZ with {other} digits"))
                .with_hint("0: the number counts seconds; 3: milliseconds")),
        }
    };
    let (values, mask) = call.values(0);
    let millis = |row: usize| -> Result<Option<i64>> {
        let place = row & mask;
        if values.is_null(place) {
            return Ok(None);
        }
        match values.as_primitive_opt::<Int64Type>() {
            Some(values) => micros(row, &|scale| values.value(place).checked_mul(scale)),
            None => micros(row, &|scale| {
                Some((values.as_primitive::<Float64Type>().value(place) * scale as f64) as i64)
            }),
        }
    };
    let millis = (0..call.rows).map(millis).collect::<Result<PrimitiveArray<TimestampMillisecondType>>>()?;
    Ok(Arc::new(millis.with_timezone(LTZ_ZONE)))
}

fn instants_of_texts(call: &Call<'_>) -> Result<ArrayRef> {
    let (text, patterns, zone) = (call.text(0)?, Patterns::new(call, 1)?, call.optional_text(2)?);
    timestamps::<TimestampMillisecondType>(call, |row| {
        let Some(text) = text.at(row) else { return Ok(None) };
        let zone = match zone {
            None => call.zone,
            Some(zone) => match zone.at(row) {
                None => return Ok(None),
                Some(zone) => Some(zone_named(zone)?),
            },
        };
        let read = match call.len() {
            1 => time_text::instant(text),
            _ => patterns.at(row)?.and_then(|pattern| pattern.read(text)),
        };
        Ok(read.map(|read| utc_of(zone, read)))
    })
}

/// The patterns of an argument; the last one is kept, since mostly it is the same for all rows.
struct Patterns<'a> {
    texts: Option<Values<'a, arrow::array::StringArray>>,
    last: RefCell<Option<(String, Rc<Pattern>)>>,
}

impl<'a> Patterns<'a> {
    fn new(call: &'a Call<'_>, argument: usize) -> Result<Self> {
        Ok(Self { texts: call.optional_text(argument)?, last: RefCell::default() })
    }

    /// The default pattern if there is no such argument.
    fn at(&self, row: usize) -> Result<Option<Rc<Pattern>>> {
        let Some(text) = self.texts.map_or(Some(DEFAULT_PATTERN), |texts| texts.at(row)) else {
            return Ok(None);
        };
        if let Some((last, pattern)) = self.last.borrow().as_ref()
            && last == text
        {
            return Ok(Some(Rc::clone(pattern)));
        }
        let pattern = Rc::new(Pattern::parse(text)?);
        *self.last.borrow_mut() = Some((text.to_owned(), Rc::clone(&pattern)));
        Ok(Some(pattern))
    }
}
