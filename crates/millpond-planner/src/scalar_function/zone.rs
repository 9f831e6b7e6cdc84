//! Times of rows as wall clocks show them: TIMESTAMP as it is, TIMESTAMP_LTZ in the session's zone.
//!
//! Where clocks go forward, a local time that is skipped is read as the one an hour later; where
//! they go back, a local time that comes twice is the earlier one, as in Java.

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Date32Type, TimeUnit};
use chrono::{DateTime, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeDelta, TimeZone};
use chrono_tz::Tz;
use millpond_core::time::timestamp_values;

use super::time_text;

/// An argument that is a time.
pub(super) struct Times<'a> {
    values: Kind<'a>,
    nulls: Option<&'a NullBuffer>,
    mask: usize,
    /// Set for TIMESTAMP_LTZ.
    zone: Option<Tz>,
}

enum Kind<'a> {
    Timestamps { values: &'a [i64], per_second: i64 },
    Dates(&'a [i32]),
    Texts(&'a StringArray),
}

impl<'a> Times<'a> {
    /// `None` if the values are no times.
    pub(super) fn new(values: &'a ArrayRef, mask: usize, zone: Option<Tz>) -> Option<Self> {
        let nulls = values.nulls();
        let (values, zone) = match values.data_type() {
            DataType::Timestamp(unit, local) => {
                let (values, _) = timestamp_values(values).ok()?;
                let per_second = units_per_second(*unit);
                (Kind::Timestamps { values, per_second }, zone.filter(|_| local.is_some()))
            }
            DataType::Date32 => (Kind::Dates(values.as_primitive::<Date32Type>().values()), None),
            DataType::Utf8 => (Kind::Texts(values.as_string()), None),
            _ => return None,
        };
        Some(Self { values, nulls, mask, zone })
    }

    /// The wall clock's date and time in a row; `None` for NULL and for texts that are no time.
    pub(super) fn at(&self, row: usize) -> Option<NaiveDateTime> {
        let place = row & self.mask;
        if self.nulls.is_some_and(|nulls| nulls.is_null(place)) {
            return None;
        }
        match &self.values {
            Kind::Timestamps { values, per_second } => {
                Some(to_local(self.zone, date_time(values[place], *per_second)?))
            }
            Kind::Dates(days) => date(days[place]).map(|date| date.and_time(NaiveTime::MIN)),
            Kind::Texts(texts) => time_text::timestamp(texts.value(place)),
        }
    }
}

/// How many of the unit a second has.
pub(super) fn units_per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// A day since 1970 as a date.
pub(super) fn date(day: i32) -> Option<NaiveDate> {
    NaiveDate::from_ymd_opt(1970, 1, 1)?.checked_add_signed(TimeDelta::days(i64::from(day)))
}

/// The day since 1970 of a date.
pub(super) fn day(date: NaiveDate) -> i32 {
    let days = date.signed_duration_since(NaiveDate::default()).num_days();
    i32::try_from(days).expect("chrono's dates are fewer than 2³¹")
}

/// A count since 1970 as date and time.
pub(super) fn date_time(value: i64, per_second: i64) -> Option<NaiveDateTime> {
    let nanos = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
    DateTime::from_timestamp(value.div_euclid(per_second), u32::try_from(nanos).ok()?)
        .map(|time| time.naive_utc())
}

/// Date and time as a count since 1970; `None` if it does not fit.
pub(super) fn count(time: NaiveDateTime, per_second: i64) -> Option<i64> {
    let time = time.and_utc();
    let part = i64::from(time.timestamp_subsec_nanos()) / (1_000_000_000 / per_second);
    time.timestamp().checked_mul(per_second)?.checked_add(part)
}

/// What clocks in the zone show at an instant.
pub(super) fn to_local(zone: Option<Tz>, utc: NaiveDateTime) -> NaiveDateTime {
    zone.map_or(utc, |zone| zone.from_utc_datetime(&utc).naive_local())
}

/// The instant at which clocks in the zone show this.
pub(super) fn to_utc(zone: Option<Tz>, local: NaiveDateTime) -> NaiveDateTime {
    let Some(zone) = zone else { return local };
    match zone.from_local_datetime(&local) {
        LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => time.naive_utc(),
        LocalResult::None => {
            // Skipped: as if the clocks had not gone forward yet.
            let before = zone.offset_from_utc_datetime(&(local - TimeDelta::days(1))).fix();
            local - TimeDelta::seconds(i64::from(before.local_minus_utc()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> NaiveDateTime {
        time_text::timestamp(text).unwrap()
    }

    #[test]
    fn hours_that_are_skipped_or_come_twice() {
        let berlin = Some(Tz::Europe__Berlin);
        assert_eq!(to_utc(berlin, time("2024-03-31 02:30:00")), time("2024-03-31 01:30:00"));
        assert_eq!(to_local(berlin, time("2024-03-31 01:30:00")), time("2024-03-31 03:30:00"));
        assert_eq!(to_utc(berlin, time("2024-10-27 02:30:00")), time("2024-10-27 00:30:00"));
        assert_eq!(to_utc(None, time("2024-10-27 02:30:00")), time("2024-10-27 02:30:00"));
    }

    #[test]
    fn counts_before_1970() {
        assert_eq!(date_time(-1, 1000), Some(time("1969-12-31 23:59:59.999")));
        assert_eq!(count(time("1969-12-31 23:59:59.999"), 1000), Some(-1));
        assert_eq!(day(date(-1).unwrap()), -1);
    }
}
