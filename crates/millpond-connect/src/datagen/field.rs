//! One generated column: what its options say, and how its values are made.
//!
//! Values are made in one wide type per family (integers, floats, decimals, texts, times) and
//! cast to the column's type, a column at a time.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BinaryBuilder, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray,
    StringBuilder, TimestampMicrosecondArray,
};
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Decimal128Type, FieldRef};
use millpond_core::random::Random;
use millpond_core::{Error, Result, Timestamp};

use crate::options::Options;

/// What can be said of a column: `fields.<column>.<option>`.
pub(super) const OPTIONS: [&str; 9] =
    ["kind", "min", "max", "max-past", "length", "var-len", "null-rate", "start", "end"];

const LENGTH_DEFAULT: usize = 100;
const LENGTH_MAX: usize = 1 << 20;

/// The rows of a batch: `count` of them from `first` on, each `step` behind the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) seed: u64,
    pub(super) first: u64,
    pub(super) step: u64,
    pub(super) count: usize,
    /// When row 0 was due.
    pub(super) start: Timestamp,
    pub(super) rows_per_second: f64,
}

impl Rows {
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let (first, step) = (self.first, self.step);
        (0..self.count as u64).map(move |row| first + row * step)
    }
    /// A generator for each cell of a column.
    fn randoms(&self, column: u64) -> impl Iterator<Item = Random> {
        let seed = self.seed ^ (column + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        self.numbers().map(move |row| {
            let mut random = Random::seeded(seed ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            random.next_u64();
            random
        })
    }
    fn time(&self, row: u64) -> i64 {
        self.start.saturating_add((row as f64 * 1e6 / self.rows_per_second) as i64).0
    }
}

/// A column's options.
#[derive(Debug)]
pub(super) struct Field {
    data_type: DataType,
    values: Values,
    /// Share of NULLs.
    null_rate: f64,
}

#[derive(Debug)]
enum Values {
    /// Numbers from `start` to `end`.
    Sequence {
        start: i64,
        end: i64,
    },
    Boolean,
    Integer {
        min: i64,
        max: i64,
    },
    Float {
        min: f64,
        max: f64,
    },
    /// Unscaled.
    Decimal {
        min: i128,
        max: i128,
    },
    Text {
        length: usize,
        is_varying: bool,
    },
    Bytes {
        length: usize,
        is_varying: bool,
    },
    /// The time at which the row is due, or up to `max_past` microseconds before.
    Time {
        max_past: i64,
    },
}

impl Field {
    pub(super) fn parse(options: &mut Options, field: &FieldRef) -> Result<Self> {
        let mut keys = Keys { options, name: field.name(), data_type: field.data_type() };
        let is_sequence = keys.options.choice(&keys.key("kind"), &[("random", false), ("sequence", true)])?;
        let values = match is_sequence {
            Some(true) => keys.sequence()?,
            Some(false) | None => keys.random()?,
        };
        let null_rate = keys.number("null-rate", 0.0, (0.0, 1.0))?;
        Ok(Self { data_type: field.data_type().clone(), values, null_rate })
    }

    /// How many rows it has values for, if it ends.
    pub(super) fn rows(&self) -> Option<u64> {
        match self.values {
            Values::Sequence { start, end } => Some(end.abs_diff(start).saturating_add(1)),
            _ => None,
        }
    }

    /// The values of the column with this index.
    pub(super) fn column(&self, index: usize, rows: &Rows) -> Result<ArrayRef> {
        let column = 2 * index as u64;
        let values = self.values.column(&self.data_type, column, rows);
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let values = match *values.data_type() == self.data_type {
            true => values,
            false => cast_with_options(&values, &self.data_type, &strict)?,
        };
        if self.null_rate == 0.0 {
            return Ok(values);
        }
        let nulls = rows.randoms(column + 1).map(|mut random| Some(random.unit_f64() < self.null_rate));
        Ok(nullif(&values, &nulls.collect::<BooleanArray>())?)
    }
}

impl Values {
    fn column(&self, data_type: &DataType, column: u64, rows: &Rows) -> ArrayRef {
        let randoms = rows.randoms(column);
        match *self {
            Self::Sequence { start, .. } => Arc::new(Int64Array::from_iter_values(
                rows.numbers().map(|row| start.wrapping_add(row as i64)),
            )),
            Self::Boolean => {
                Arc::new(randoms.map(|mut random| Some(random.below(2) == 1)).collect::<BooleanArray>())
            }
            Self::Integer { min, max } => Arc::new(Int64Array::from_iter_values(
                randoms.map(|random| integer_between(random, min, max)),
            )),
            Self::Float { min, max } => {
                let value = |mut random: Random| {
                    let share = random.unit_f64();
                    min * (1.0 - share) + max * share
                };
                Arc::new(Float64Array::from_iter_values(randoms.map(value)))
            }
            Self::Decimal { min, max } => {
                let values = randoms.map(|random| decimal_between(random, min, max));
                Arc::new(Decimal128Array::from_iter_values(values).with_data_type(data_type.clone()))
            }
            Self::Text { length, is_varying } => texts(randoms, length, is_varying),
            Self::Bytes { length, is_varying } => bytes(randoms, length, is_varying),
            Self::Time { max_past } => {
                let past = |mut random: Random| {
                    if max_past == 0 { 0 } else { random.below(max_past as u64 + 1) as i64 }
                };
                let times = rows
                    .numbers()
                    .zip(randoms)
                    .map(|(row, random)| rows.time(row).saturating_sub(past(random)));
                let zone = match data_type {
                    DataType::Timestamp(_, zone) => zone.clone(),
                    _ => None,
                };
                Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone_opt(zone))
            }
        }
    }
}

fn integer_between(mut random: Random, min: i64, max: i64) -> i64 {
    let width = u128::from(max.abs_diff(min)) + 1;
    let offset = (u128::from(random.next_u64()) * width) >> 64;
    min.wrapping_add(offset as i64)
}

/// The remainder prefers some values of a wide range slightly, which test data may.
fn decimal_between(mut random: Random, min: i128, max: i128) -> i128 {
    let drawn = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    min.wrapping_add((drawn % (max.abs_diff(min) + 1)) as i128)
}

fn varied(random: &mut Random, length: usize, is_varying: bool) -> usize {
    if is_varying && length > 0 { 1 + random.below(length as u64) as usize } else { length }
}

/// Hexadecimal digits, as Flink's.
fn texts(randoms: impl Iterator<Item = Random>, length: usize, is_varying: bool) -> ArrayRef {
    let mut builder = StringBuilder::new();
    let mut text = String::with_capacity(length);
    for mut random in randoms {
        text.clear();
        let length = varied(&mut random, length, is_varying);
        while text.len() < length {
            let mut bits = random.next_u64();
            for _ in 0..16.min(length - text.len()) {
                text.push(char::from_digit((bits & 15) as u32, 16).unwrap_or('0'));
                bits >>= 4;
            }
        }
        builder.append_value(&text);
    }
    Arc::new(builder.finish())
}

fn bytes(randoms: impl Iterator<Item = Random>, length: usize, is_varying: bool) -> ArrayRef {
    let mut builder = BinaryBuilder::new();
    let mut value = Vec::with_capacity(length);
    for mut random in randoms {
        value.clear();
        let length = varied(&mut random, length, is_varying);
        while value.len() < length {
            let bits = random.next_u64().to_le_bytes();
            value.extend_from_slice(&bits[..8.min(length - value.len())]);
        }
        builder.append_value(&value);
    }
    Arc::new(builder.finish())
}

/// The options of one column while they are read.
struct Keys<'a> {
    options: &'a mut Options,
    name: &'a str,
    data_type: &'a DataType,
}

impl Keys<'_> {
    fn key(&self, option: &str) -> String {
        format!("fields.{}.{option}", self.name)
    }

    fn complaint(&self, option: &str, what: &str) -> Error {
        Error::invalid(format!("option '{}' of table {:?} {what}", self.key(option), self.options.table()))
    }

    fn number<N: std::str::FromStr + PartialOrd + Copy + std::fmt::Display>(
        &mut self,
        option: &str,
        default: N,
        (least, most): (N, N),
    ) -> Result<N> {
        let value = self.options.number(&self.key(option))?.unwrap_or(default);
        match least <= value && value <= most {
            true => Ok(value),
            false => Err(self.complaint(option, &format!("is not between {least} and {most}"))),
        }
    }

    fn sequence(&mut self) -> Result<Values> {
        let bound = |keys: &mut Self, option| {
            let value: Option<i64> = keys.options.number(&keys.key(option))?;
            value.ok_or_else(|| keys.complaint(option, "is missing: a sequence has a start and an end"))
        };
        let (start, end) = (bound(self, "start")?, bound(self, "end")?);
        if start > end {
            return Err(self.complaint("end", "is below the start"));
        }
        if let Some((least, most)) =
            integer_range(self.data_type).filter(|(least, most)| start < *least || end > *most)
        {
            return Err(self.complaint("end", &format!("goes beyond the column's type, {least} to {most}")));
        }
        match self.data_type {
            data_type if data_type.is_numeric() || data_type.is_string() => {
                Ok(Values::Sequence { start, end })
            }
            data_type => {
                Err(self.complaint("kind", &format!("cannot be 'sequence' for a column of type {data_type}")))
            }
        }
    }

    fn random(&mut self) -> Result<Values> {
        if let Some(range) = integer_range(self.data_type) {
            let (min, max) = self.range(range, range)?;
            return Ok(Values::Integer { min, max });
        }
        match self.data_type {
            DataType::Boolean => Ok(Values::Boolean),
            DataType::Float32 => self.float(f64::from(f32::MAX)),
            DataType::Float64 => self.float(f64::MAX),
            DataType::Decimal128(precision, _) => self.decimal(*precision),
            data_type if data_type.is_string() => {
                let (length, is_varying) = self.length()?;
                Ok(Values::Text { length, is_varying })
            }
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                let (length, is_varying) = self.length()?;
                Ok(Values::Bytes { length, is_varying })
            }
            DataType::FixedSizeBinary(length) => {
                Ok(Values::Bytes { length: *length as usize, is_varying: false })
            }
            DataType::Timestamp(..)
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_) => {
                let max_past = self.options.duration(&self.key("max-past"))?.unwrap_or(0);
                Ok(Values::Time { max_past })
            }
            data_type => {
                let (name, table) = (self.name, self.options.table());
                Err(Error::invalid(format!(
                    "column {name:?} of table {table:?} is {data_type}, which datagen cannot generate"
                )))
            }
        }
    }

    fn range<N: std::str::FromStr + PartialOrd + Copy + std::fmt::Display>(
        &mut self,
        (min, max): (N, N),
        bounds: (N, N),
    ) -> Result<(N, N)> {
        let (min, max) = (self.number("min", min, bounds)?, self.number("max", max, bounds)?);
        match min <= max {
            true => Ok((min, max)),
            false => Err(self.complaint("max", &format!("is {max}, below the minimum {min}"))),
        }
    }

    fn float(&mut self, largest: f64) -> Result<Values> {
        let (min, max) = self.range((0.0, largest), (-largest, largest))?;
        Ok(Values::Float { min, max })
    }

    fn decimal(&mut self, precision: u8) -> Result<Values> {
        let largest = 10i128.pow(u32::from(precision)) - 1;
        let min = self.decimal_bound("min")?.unwrap_or(0);
        let max = self.decimal_bound("max")?.unwrap_or(largest);
        match min <= max {
            true => Ok(Values::Decimal { min, max }),
            false => Err(self.complaint("max", "is below the minimum")),
        }
    }

    /// A bound as an unscaled number of the column's type.
    fn decimal_bound(&mut self, option: &str) -> Result<Option<i128>> {
        let data_type = self.data_type;
        self.options.parse(&self.key(option), |text| {
            let strict = CastOptions { safe: false, ..CastOptions::default() };
            let number = cast_with_options(&StringArray::from(vec![text.trim()]), data_type, &strict)
                .map_err(|_| Error::invalid(format!("{text:?} is no {data_type}")))?;
            Ok(number.as_primitive::<Decimal128Type>().value(0))
        })
    }

    fn length(&mut self) -> Result<(usize, bool)> {
        let length = self.number("length", LENGTH_DEFAULT, (0, LENGTH_MAX))?;
        Ok((length, self.options.flag(&self.key("var-len"))?.unwrap_or(false)))
    }
}

fn integer_range(data_type: &DataType) -> Option<(i64, i64)> {
    match data_type {
        DataType::Int8 => Some((i8::MIN.into(), i8::MAX.into())),
        DataType::Int16 => Some((i16::MIN.into(), i16::MAX.into())),
        DataType::Int32 => Some((i32::MIN.into(), i32::MAX.into())),
        DataType::Int64 => Some((i64::MIN, i64::MAX)),
        DataType::UInt8 => Some((0, u8::MAX.into())),
        DataType::UInt16 => Some((0, u16::MAX.into())),
        DataType::UInt32 => Some((0, u32::MAX.into())),
        DataType::UInt64 => Some((0, i64::MAX)),
        _ => None,
    }
}
