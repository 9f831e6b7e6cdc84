//! Units of time: parts of a time, its beginning, sums and differences.

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike};
use millpond_core::{Error, Result};

/// A unit, as EXTRACT, FLOOR, TIMESTAMPADD and TIMESTAMPDIFF name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Millennium,
    Century,
    Decade,
    Year,
    IsoYear,
    Quarter,
    Month,
    /// From Sunday, except that EXTRACT counts weeks as ISO does.
    Week,
    /// From Monday.
    IsoWeek,
    Day,
    DayOfWeek,
    IsoDayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
    Epoch,
}

const NAMES: [(&str, Unit); 20] = [
    ("MILLENNIUM", Unit::Millennium),
    ("CENTURY", Unit::Century),
    ("DECADE", Unit::Decade),
    ("YEAR", Unit::Year),
    ("ISOYEAR", Unit::IsoYear),
    ("QUARTER", Unit::Quarter),
    ("MONTH", Unit::Month),
    ("WEEK", Unit::Week),
    ("DAY", Unit::Day),
    ("DOW", Unit::DayOfWeek),
    ("DAYOFWEEK", Unit::DayOfWeek),
    ("ISODOW", Unit::IsoDayOfWeek),
    ("DOY", Unit::DayOfYear),
    ("HOUR", Unit::Hour),
    ("MINUTE", Unit::Minute),
    ("SECOND", Unit::Second),
    ("MILLISECOND", Unit::Millisecond),
    ("MICROSECOND", Unit::Microsecond),
    ("NANOSECOND", Unit::Nanosecond),
    ("EPOCH", Unit::Epoch),
];

impl Unit {
    /// The unit of this name; also as `DAYS`, `SQL_TSI_DAY`.
    pub(super) fn parse(name: &str) -> Result<Self> {
        let upper = name.to_uppercase();
        let plain = upper.strip_prefix("SQL_TSI_").unwrap_or(&upper);
        let known = |name: &str| NAMES.iter().find(|(known, _)| *known == name).map(|(_, unit)| *unit);
        known(plain).or_else(|| known(plain.strip_suffix('S')?)).ok_or_else(|| {
            Error::invalid(format!("there is no unit of time {upper}"))
                .with_hint("for example YEAR, MONTH, DAY, HOUR, MINUTE or SECOND")
        })
    }

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, unit)| *unit == self).map_or("WEEK", |(name, _)| name)
    }

    /// Whether dates can be moved by it.
    pub(super) fn is_of_days(self) -> bool {
        use Unit::*;
        match self {
            Millennium | Century | Decade | Year | IsoYear | Quarter | Month | Week | IsoWeek | Day
            | DayOfWeek | IsoDayOfWeek | DayOfYear => true,
            Hour | Minute | Second | Millisecond | Microsecond | Nanosecond | Epoch => false,
        }
    }

    /// The part of a time that it names. Milliseconds and less count from the minute, as in SQL.
    pub(super) fn part_of(self, time: NaiveDateTime) -> i64 {
        let year = i64::from(time.year());
        let of_minute = |per_second: i64| {
            let nanos = i64::from(time.nanosecond() % 1_000_000_000);
            i64::from(time.second()) * per_second + nanos / (1_000_000_000 / per_second)
        };
        match self {
            Unit::Millennium => (year + 999).div_euclid(1000),
            Unit::Century => (year + 99).div_euclid(100),
            Unit::Decade => year.div_euclid(10),
            Unit::Year => year,
            Unit::IsoYear => time.iso_week().year().into(),
            Unit::Quarter => i64::from(time.month0() / 3 + 1),
            Unit::Month => time.month().into(),
            Unit::Week | Unit::IsoWeek => time.iso_week().week().into(),
            Unit::Day => time.day().into(),
            Unit::DayOfWeek => i64::from(time.weekday().num_days_from_sunday() + 1),
            Unit::IsoDayOfWeek => time.weekday().number_from_monday().into(),
            Unit::DayOfYear => time.ordinal().into(),
            Unit::Hour => time.hour().into(),
            Unit::Minute => time.minute().into(),
            Unit::Second => time.second().into(),
            Unit::Millisecond => of_minute(1_000),
            Unit::Microsecond => of_minute(1_000_000),
            Unit::Nanosecond => of_minute(1_000_000_000),
            Unit::Epoch => time.and_utc().timestamp(),
        }
    }

    /// The beginning of the unit that a time is in.
    pub(super) fn floor(self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let date = time.date();
        let year = |year: i32| NaiveDate::from_ymd_opt(year, 1, 1);
        // Centuries begin with the year 1, decades with the year 0.
        let begun = |years: i32, first: i32| (date.year() - first).div_euclid(years) * years + first;
        let weekday = |days: u32| date.checked_sub_days(Days::new(days.into()));
        let day = match self {
            Unit::Millennium => year(begun(1000, 1)),
            Unit::Century => year(begun(100, 1)),
            Unit::Decade => year(begun(10, 0)),
            Unit::Year | Unit::IsoYear | Unit::DayOfYear => year(date.year()),
            Unit::Quarter => NaiveDate::from_ymd_opt(date.year(), date.month0() / 3 * 3 + 1, 1),
            Unit::Month => NaiveDate::from_ymd_opt(date.year(), date.month(), 1),
            Unit::Week | Unit::DayOfWeek => weekday(date.weekday().num_days_from_sunday()),
            Unit::IsoWeek | Unit::IsoDayOfWeek => weekday(date.weekday().num_days_from_monday()),
            Unit::Day => Some(date),
            Unit::Hour => return date.and_hms_opt(time.hour(), 0, 0),
            Unit::Minute => return date.and_hms_opt(time.hour(), time.minute(), 0),
            Unit::Second | Unit::Epoch => return time.with_nanosecond(0),
            Unit::Millisecond => return time.with_nanosecond(time.nanosecond() / 1_000_000 * 1_000_000),
            Unit::Microsecond => return time.with_nanosecond(time.nanosecond() / 1_000 * 1_000),
            Unit::Nanosecond => return Some(time),
        };
        day.map(|day| day.and_time(NaiveTime::MIN))
    }

    /// The first beginning of a unit that is not before a time.
    pub(super) fn ceil(self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let floor = self.floor(time)?;
        if floor == time { Some(time) } else { self.add(floor, 1) }
    }

    /// So many units later; `None` if there is no such time.
    pub(super) fn add(self, time: NaiveDateTime, number: i64) -> Option<NaiveDateTime> {
        let months = |each: i64| {
            let months = number.checked_mul(each)?;
            let count = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
            if months < 0 { time.checked_sub_months(count) } else { time.checked_add_months(count) }
        };
        let span = |span: Option<TimeDelta>| time.checked_add_signed(span?);
        match self {
            Unit::Millennium => months(12_000),
            Unit::Century => months(1_200),
            Unit::Decade => months(120),
            Unit::Year | Unit::IsoYear => months(12),
            Unit::Quarter => months(3),
            Unit::Month => months(1),
            Unit::Week | Unit::IsoWeek => span(TimeDelta::try_weeks(number)),
            Unit::Day | Unit::DayOfWeek | Unit::IsoDayOfWeek | Unit::DayOfYear => {
                span(TimeDelta::try_days(number))
            }
            Unit::Hour => span(TimeDelta::try_hours(number)),
            Unit::Minute => span(TimeDelta::try_minutes(number)),
            Unit::Second | Unit::Epoch => span(TimeDelta::try_seconds(number)),
            Unit::Millisecond => span(TimeDelta::try_milliseconds(number)),
            Unit::Microsecond => span(Some(TimeDelta::microseconds(number))),
            Unit::Nanosecond => span(Some(TimeDelta::nanoseconds(number))),
        }
    }

    /// How many whole units lie between two times.
    pub(super) fn difference(self, from: NaiveDateTime, to: NaiveDateTime) -> i64 {
        let span = to - from;
        let nanos = || span.num_nanoseconds().unwrap_or(i64::MAX);
        match self {
            Unit::Millennium => months_between(from, to) / 12_000,
            Unit::Century => months_between(from, to) / 1_200,
            Unit::Decade => months_between(from, to) / 120,
            Unit::Year | Unit::IsoYear => months_between(from, to) / 12,
            Unit::Quarter => months_between(from, to) / 3,
            Unit::Month => months_between(from, to),
            Unit::Week | Unit::IsoWeek => span.num_weeks(),
            Unit::Day | Unit::DayOfWeek | Unit::IsoDayOfWeek | Unit::DayOfYear => span.num_days(),
            Unit::Hour => span.num_hours(),
            Unit::Minute => span.num_minutes(),
            Unit::Second | Unit::Epoch => span.num_seconds(),
            Unit::Millisecond => span.num_milliseconds(),
            Unit::Microsecond => span.num_microseconds().unwrap_or(i64::MAX),
            Unit::Nanosecond => nanos(),
        }
    }
}

/// Whole months from one time to another, towards zero.
fn months_between(from: NaiveDateTime, to: NaiveDateTime) -> i64 {
    let month = |time: NaiveDateTime| i64::from(time.year()) * 12 + i64::from(time.month0());
    let rest = |time: NaiveDateTime| (time.day(), time.time());
    let months = month(to) - month(from);
    match months {
        1.. if rest(to) < rest(from) => months - 1,
        ..=-1 if rest(to) > rest(from) => months + 1,
        _ => months,
    }
}

#[cfg(test)]
mod tests {
    use super::super::time_text::timestamp;
    use super::*;

    fn time(text: &str) -> NaiveDateTime {
        timestamp(text).unwrap()
    }

    #[test]
    fn beginnings() {
        let wednesday = time("2024-05-15 13:05:07.123456");
        let cases = [
            (Unit::Millennium, "2001-01-01", "3001-01-01"),
            (Unit::Decade, "2020-01-01", "2030-01-01"),
            (Unit::Quarter, "2024-04-01", "2024-07-01"),
            (Unit::Week, "2024-05-12", "2024-05-19"),
            (Unit::IsoWeek, "2024-05-13", "2024-05-20"),
            (Unit::Minute, "2024-05-15 13:05:00", "2024-05-15 13:06:00"),
            (Unit::Millisecond, "2024-05-15 13:05:07.123", "2024-05-15 13:05:07.124"),
        ];
        for (unit, floor, ceil) in cases {
            assert_eq!(unit.floor(wednesday), Some(time(floor)), "{unit:?}");
            assert_eq!(unit.ceil(wednesday), Some(time(ceil)), "{unit:?}");
        }
        assert_eq!(Unit::Hour.ceil(time("2024-05-15 13:00:00")), Some(time("2024-05-15 13:00:00")));
        assert_eq!(Unit::Hour.floor(time("1969-12-31 23:58:57")), Some(time("1969-12-31 23:00:00")));
    }

    #[test]
    fn differences_are_whole_units() {
        let months = |from, to| Unit::Month.difference(time(from), time(to));
        assert_eq!(months("2024-01-31", "2024-02-29"), 0);
        assert_eq!(months("2024-01-15 10:00:00", "2024-02-15 10:00:00"), 1);
        assert_eq!(months("2024-02-15", "2024-01-16"), 0);
        assert_eq!(months("2024-02-15", "2024-01-15"), -1);
        assert_eq!(Unit::Day.difference(time("2024-01-02 01:00:00"), time("2024-01-01 02:00:00")), 0);
        assert_eq!(Unit::Month.add(time("2024-01-31"), 1), Some(time("2024-02-29")));
    }

    #[test]
    fn parts() {
        let part = |name| Unit::parse(name).unwrap().part_of(time("2024-12-30 23:58:57.0125"));
        assert_eq!((part("YEAR"), part("isoyear"), part("WEEK"), part("QUARTERS")), (2024, 2025, 1, 4));
        assert_eq!((part("DOW"), part("DOY"), part("MILLISECOND")), (2, 365, 57012));
        assert!(Unit::parse("FORTNIGHT").is_err());
    }
}
