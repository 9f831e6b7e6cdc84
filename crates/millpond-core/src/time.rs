//! Points in event or processing time, in one unit for the whole engine: microseconds since
//! 1970-01-01 00:00:00.
//!
//! Time columns keep their own Arrow unit; [`TimePrecision`] converts, and knows the size of one
//! unit, which decides when a window is final: watermark ≥ end − 1 unit.

use std::fmt;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};

use crate::{Error, Result};

/// Microseconds since 1970-01-01 00:00:00.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Before every point in time: "no watermark yet".
    pub const MIN: Timestamp = Timestamp(i64::MIN);
    /// After every point in time: the watermark of an input that has ended.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// From milliseconds.
    pub fn from_millis(ms: i64) -> Self {
        Timestamp(ms.saturating_mul(1000))
    }
    /// To milliseconds, rounded down.
    pub fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }
    /// `self + micros`, staying at the ends.
    #[must_use]
    pub fn saturating_add(self, micros: i64) -> Self {
        Timestamp(self.0.saturating_add(micros))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Timestamp::MIN => f.write_str("-inf"),
            Timestamp::MAX => f.write_str("+inf"),
            Timestamp(micros) => match chrono::DateTime::from_timestamp_micros(micros) {
                Some(time) => write!(f, "{}", time.format("%Y-%m-%d %H:%M:%S%.f")),
                None => write!(f, "{micros} us"),
            },
        }
    }
}

/// The unit of a time column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum TimePrecision {
    /// `TIMESTAMP(0)`.
    Second,
    /// `TIMESTAMP(3)`.
    Millisecond,
    /// `TIMESTAMP(6)`.
    Microsecond,
    /// `TIMESTAMP(9)`.
    Nanosecond,
}

impl TimePrecision {
    /// The precision of a timestamp type; `None` for other types.
    pub fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Timestamp(TimeUnit::Second, _) => Some(Self::Second),
            DataType::Timestamp(TimeUnit::Millisecond, _) => Some(Self::Millisecond),
            DataType::Timestamp(TimeUnit::Microsecond, _) => Some(Self::Microsecond),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => Some(Self::Nanosecond),
            _ => None,
        }
    }

    /// Microseconds of a value in this unit, rounded down.
    pub fn to_timestamp(self, value: i64) -> Timestamp {
        Timestamp(match self {
            Self::Second => value.saturating_mul(1_000_000),
            Self::Millisecond => value.saturating_mul(1000),
            Self::Microsecond => value,
            Self::Nanosecond => value.div_euclid(1000),
        })
    }

    /// The value in this unit, rounded down.
    pub fn from_timestamp(self, time: Timestamp) -> i64 {
        match self {
            Self::Second => time.0.div_euclid(1_000_000),
            Self::Millisecond => time.0.div_euclid(1000),
            Self::Microsecond => time.0,
            Self::Nanosecond => time.0.saturating_mul(1000),
        }
    }

    /// The last point of a window that ends (exclusively) at `end`: a window is final, and a row
    /// for it late, iff watermark ≥ this.
    ///
    /// One unit before the end; for nanoseconds, which our time does not resolve, the end itself:
    /// a window then closes up to 1 µs after it might have, never before.
    pub fn last_instant(self, end: Timestamp) -> Timestamp {
        let unit = match self {
            Self::Second => 1_000_000,
            Self::Millisecond => 1000,
            Self::Microsecond => 1,
            Self::Nanosecond => 0,
        };
        end.saturating_add(-unit)
    }
}

/// The raw values of a timestamp column in its own unit, with their precision.
///
/// Errors: *Internal* if the column is not a timestamp.
pub fn timestamp_values(column: &ArrayRef) -> Result<(&[i64], TimePrecision)> {
    let precision = TimePrecision::of(column.data_type())
        .ok_or_else(|| Error::internal(format!("a time column of type {}", column.data_type())))?;
    let values: &[i64] = match precision {
        TimePrecision::Second => column.as_primitive::<TimestampSecondType>().values(),
        TimePrecision::Millisecond => column.as_primitive::<TimestampMillisecondType>().values(),
        TimePrecision::Microsecond => column.as_primitive::<TimestampMicrosecondType>().values(),
        TimePrecision::Nanosecond => column.as_primitive::<TimestampNanosecondType>().values(),
    };
    Ok((values, precision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(TimePrecision::Nanosecond.to_timestamp(-1), Timestamp(-1));
        assert_eq!(TimePrecision::Millisecond.from_timestamp(Timestamp(-1)), -1);
        assert_eq!(Timestamp(-1).as_millis(), -1);
    }

    #[test]
    fn a_window_is_final_one_unit_before_its_end() {
        let end = Timestamp::from_millis(10_000);
        assert_eq!(TimePrecision::Millisecond.last_instant(end), Timestamp::from_millis(9_999));
        assert_eq!(TimePrecision::Second.last_instant(end), Timestamp::from_millis(9_000));
    }
}
