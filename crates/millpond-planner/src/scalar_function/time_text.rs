//! Dates and times as CAST reads and writes them: `2024-01-01 10:00:00[.fff]`.

use chrono::{NaiveDate, NaiveDateTime, NaiveTime, Timelike};

/// Reads a timestamp: a date, or a date and a time with `' '` or `T` between them.
pub(super) fn timestamp(text: &str) -> Option<NaiveDateTime> {
    let text = text.trim();
    match text.find([' ', 'T']) {
        None => Some(date(text)?.and_time(NaiveTime::MIN)),
        Some(end) => Some(date(&text[..end])?.and_time(time(text[end + 1..].trim_start())?)),
    }
}

/// Reads an instant: a timestamp, and the offset of its zone in seconds if it has one.
pub(super) fn instant(text: &str) -> Option<(NaiveDateTime, Option<i32>)> {
    let text = text.trim();
    if let Some(utc) = text.strip_suffix(['Z', 'z']) {
        return Some((timestamp(utc)?, Some(0)));
    }
    let time_begins = text.find([' ', 'T'])?;
    match text[time_begins..].rfind(['+', '-']).map(|sign| sign + time_begins) {
        Some(sign) => Some((timestamp(&text[..sign])?, Some(offset(&text[sign..])?))),
        None => Some((timestamp(text)?, None)),
    }
}

/// `+02:00`, `-0830` or `+02` in seconds.
pub(super) fn offset(text: &str) -> Option<i32> {
    let (sign, digits) = text.split_at_checked(1)?;
    let digits: String = digits.chars().filter(|letter| *letter != ':').collect();
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let hours: i32 = digits[..2].parse().ok()?;
    let minutes: i32 = if digits.len() == 4 { digits[2..].parse().ok()? } else { 0 };
    let seconds = (hours <= 18 && minutes < 60).then_some(hours * 3600 + minutes * 60)?;
    Some(if sign == "-" { -seconds } else { seconds })
}

/// Reads `yyyy-M-d`, `yyyy-M` or `yyyy`.
pub(super) fn date(text: &str) -> Option<NaiveDate> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.split('-');
    let mut part = |digits_max: usize| match parts.next() {
        None => Some(None),
        Some(text) => number(text, digits_max).map(Some),
    };
    let (year, month, day) = (part(6)??, part(2)?, part(2)?);
    if parts.next().is_some() {
        return None;
    }
    let year = i32::try_from(year).ok()?;
    let year = if negative { -year } else { year };
    NaiveDate::from_ymd_opt(year, month.unwrap_or(1), day.unwrap_or(1))
}

/// Reads `H:m:s[.fraction]`, `H:m` or `H`.
pub(super) fn time(text: &str) -> Option<NaiveTime> {
    let (clock, fraction) = match text.split_once('.') {
        Some((clock, fraction)) => (clock, fraction),
        None => (text, ""),
    };
    let mut parts = clock.split(':');
    let mut part = || match parts.next() {
        None => Some(0),
        Some(text) => number(text, 2),
    };
    let (hour, minute, second) = (part()?, part()?, part()?);
    if parts.next().is_some() || clock.is_empty() {
        return None;
    }
    NaiveTime::from_hms_nano_opt(hour, minute, second, nanoseconds(fraction)?)
}

fn nanoseconds(fraction: &str) -> Option<u32> {
    if fraction.is_empty() {
        return Some(0);
    }
    if fraction.len() > 18 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    format!("{fraction:0<9.9}").parse().ok()
}

fn number(text: &str, digits_max: usize) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    (digits && text.len() <= digits_max).then(|| text.parse().ok())?
}

/// Writes a timestamp, with so many digits of a second or without those that are zero.
pub(super) fn show_timestamp(time: NaiveDateTime, out: &mut String) {
    show_date(time.date(), out);
    out.push(' ');
    show_time(time.time(), out);
}

/// Writes a date.
pub(super) fn show_date(date: NaiveDate, out: &mut String) {
    use std::fmt::Write;
    let _ = write!(out, "{}", date.format("%Y-%m-%d"));
}

/// Writes a time, without trailing zeros of its fraction.
pub(super) fn show_time(time: NaiveTime, out: &mut String) {
    use std::fmt::Write;
    let _ = write!(out, "{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second());
    let nanos = time.nanosecond() % 1_000_000_000;
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        out.push('.');
        out.push_str(fraction.trim_end_matches('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_read_and_written() {
        let cases = [
            ("2024-01-01 10:00:00", Some("2024-01-01 10:00:00")),
            ("2024-1-1T1:2:3.5", Some("2024-01-01 01:02:03.5")),
            ("2024-01-01", Some("2024-01-01 00:00:00")),
            (" 2024-01-01 10:00 ", Some("2024-01-01 10:00:00")),
            ("2024-02-30 00:00:00", None),
            ("2024-01-01 24:00:00", None),
            ("2024-01-01 10:00:00 x", None),
            ("yesterday", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let shown = timestamp(text).map(|time| {
                let mut shown = String::new();
                show_timestamp(time, &mut shown);
                shown
            });
            assert_eq!(shown.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn instants_have_offsets() {
        assert_eq!(instant("2024-01-01T10:00:00Z").unwrap().1, Some(0));
        assert_eq!(instant("2024-01-01 10:00:00+02:00").unwrap().1, Some(7200));
        assert_eq!(instant("2024-01-01 10:00:00-0830").unwrap().1, Some(-30600));
        assert_eq!(instant("2024-01-01 10:00:00").unwrap().1, None);
        assert_eq!(instant("2024-01-01 10:00:00+99:00"), None);
    }
}
