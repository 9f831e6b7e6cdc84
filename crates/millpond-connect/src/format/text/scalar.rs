//! The text of single values.

use std::fmt::Write;

use arrow::datatypes::i256;
use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::Tz;

const PAIRS: &str = "00010203040506070809101112131415161718192021222324252627282930313233343536373839\
                     40414243444546474849505152535455565758596061626364656667686970717273747576777879\
                     8081828384858687888990919293949596979899";
const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// How the time of day of a timestamp is found.
#[derive(Debug, Clone, Copy)]
pub(super) enum Zone {
    /// A wall-clock time: as it is.
    Wall,
    /// An instant, shown in UTC with a `Z`.
    Utc,
    /// An instant, shown as the wall-clock time of a zone.
    Local(Tz),
}

pub(super) fn push_integer<N: itoa::Integer>(out: &mut String, value: N) {
    out.push_str(itoa::Buffer::new().format(value));
}

pub(super) trait Float: Copy + std::fmt::Debug + Into<f64> {}
impl Float for f32 {}
impl Float for f64 {}

/// The shortest text that reads back the same: `1.0`, `0.1`, `1e16`.
pub(super) fn push_float<F: Float>(out: &mut String, value: F) {
    let double: f64 = value.into();
    if double.is_infinite() {
        out.push_str(if double > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        write!(out, "{value:?}").expect("writing to a string cannot fail");
    }
}

pub(super) fn push_decimal(out: &mut String, value: i128, scale: i8) {
    if value < 0 {
        out.push('-');
    }
    push_scaled(out, itoa::Buffer::new().format(value.unsigned_abs()), scale);
}

pub(super) fn push_decimal256(out: &mut String, value: i256, scale: i8) {
    let text = value.to_string();
    let digits = text.strip_prefix('-').unwrap_or(&text);
    if digits.len() < text.len() {
        out.push('-');
    }
    push_scaled(out, digits, scale);
}

/// Digits with the decimal point moved `scale` places to the left.
fn push_scaled(out: &mut String, digits: &str, scale: i8) {
    if scale <= 0 {
        out.push_str(digits);
        if digits != "0" {
            push_zeros(out, usize::from(scale.unsigned_abs()));
        }
        return;
    }
    let scale = usize::from(scale.unsigned_abs());
    match digits.len().checked_sub(scale) {
        None | Some(0) => {
            out.push_str("0.");
            push_zeros(out, scale - digits.len());
            out.push_str(digits);
        }
        Some(whole) => {
            out.push_str(&digits[..whole]);
            out.push('.');
            out.push_str(&digits[whole..]);
        }
    }
}

fn push_zeros(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n('0', count));
}

fn push_pair(out: &mut String, value: i64) {
    let at = 2 * value as usize;
    out.push_str(&PAIRS[at..at + 2]);
}

/// `YYYY-MM-DD` of days since 1970 (proleptic Gregorian).
pub(super) fn push_date(out: &mut String, days: i64) {
    let (year, month, day) = civil(days);
    if (0..10_000).contains(&year) {
        push_pair(out, year / 100);
        push_pair(out, year % 100);
    } else {
        push_integer(out, year);
    }
    out.push('-');
    push_pair(out, month);
    out.push('-');
    push_pair(out, day);
}

/// Year, month and day; after Howard Hinnant, "chrono-compatible low-level date algorithms".
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// `HH:MM:SS[.fff]` of nanoseconds since midnight.
pub(super) fn push_time(out: &mut String, nanos: i64) {
    push_clock(out, nanos.div_euclid(NANOS_PER_SECOND), nanos.rem_euclid(NANOS_PER_SECOND));
}

/// Hours beyond a day only come from bad data; they are shown rather than wrapped.
fn push_clock(out: &mut String, seconds: i64, nanos: i64) {
    let (hours, minutes) = (seconds.div_euclid(3_600), seconds.rem_euclid(3_600) / 60);
    if (0..100).contains(&hours) {
        push_pair(out, hours);
    } else {
        push_integer(out, hours);
    }
    out.push(':');
    push_pair(out, minutes);
    out.push(':');
    push_pair(out, seconds.rem_euclid(60));
    push_fraction(out, nanos);
}

/// `.fff` of nanoseconds, without trailing zeros; nothing for zero.
fn push_fraction(out: &mut String, mut nanos: i64) {
    if nanos == 0 {
        return;
    }
    out.push('.');
    let mut unit = NANOS_PER_SECOND / 10;
    while nanos > 0 {
        out.push((b'0' + (nanos / unit) as u8) as char);
        nanos %= unit;
        unit /= 10;
    }
}

pub(super) fn push_timestamp(out: &mut String, value: i64, per_second: i64, zone: Zone) {
    let seconds = value.div_euclid(per_second) + offset(value.div_euclid(per_second), zone);
    push_date(out, seconds.div_euclid(SECONDS_PER_DAY));
    out.push(' ');
    let nanos = value.rem_euclid(per_second) * (NANOS_PER_SECOND / per_second);
    push_clock(out, seconds.rem_euclid(SECONDS_PER_DAY), nanos);
    if matches!(zone, Zone::Utc) {
        out.push('Z');
    }
}

fn offset(seconds: i64, zone: Zone) -> i64 {
    match zone {
        Zone::Wall | Zone::Utc => 0,
        Zone::Local(zone) => DateTime::from_timestamp(seconds, 0).map_or(0, |time| {
            i64::from(zone.offset_from_utc_datetime(&time.naive_utc()).fix().local_minus_utc())
        }),
    }
}

/// `+1 02:03:04.500`, as Flink shows an interval of days to seconds.
pub(super) fn push_duration(out: &mut String, value: i64, per_second: i64) {
    let size = value.unsigned_abs();
    let per_second = per_second.unsigned_abs();
    let seconds = (size / per_second).min(i64::MAX as u64) as i64;
    let nanos = (size % per_second) as i64 * (NANOS_PER_SECOND / per_second as i64);
    out.push(if value < 0 { '-' } else { '+' });
    push_integer(out, seconds / SECONDS_PER_DAY);
    out.push(' ');
    push_clock(out, seconds % SECONDS_PER_DAY, nanos);
}

/// `+1-02` for months, `+3 04:05:06` for days and time, both with a space between.
pub(super) fn push_interval(out: &mut String, months: i32, days: i32, nanos: i64) {
    if months != 0 {
        out.push(if months < 0 { '-' } else { '+' });
        push_integer(out, months.unsigned_abs() / 12);
        out.push('-');
        push_pair(out, i64::from(months.unsigned_abs() % 12));
        if (days, nanos) == (0, 0) {
            return;
        }
        out.push(' ');
    }
    let total = i128::from(days) * 86_400 * i128::from(NANOS_PER_SECOND) + i128::from(nanos);
    let seconds = (total.unsigned_abs() / NANOS_PER_SECOND as u128) as i64;
    out.push(if total < 0 { '-' } else { '+' });
    push_integer(out, seconds / SECONDS_PER_DAY);
    out.push(' ');
    push_clock(out, seconds % SECONDS_PER_DAY, (total.unsigned_abs() % NANOS_PER_SECOND as u128) as i64);
}

const HEX: &[u8; 16] = b"0123456789abcdef";

pub(super) fn push_hex(out: &mut String, bytes: &[u8]) {
    out.push_str("x'");
    for byte in bytes {
        out.push(HEX[usize::from(byte >> 4)] as char);
        out.push(HEX[usize::from(byte & 15)] as char);
    }
    out.push('\'');
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn push_base64(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            match at <= chunk.len() {
                true => out.push(BASE64[(bits >> (18 - 6 * at) & 63) as usize] as char),
                false => out.push('='),
            }
        }
    }
}

/// A JSON string: quotes, backslashes and control characters are escaped, all else stays.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.push_str(&rest[..at]);
        push_escape(out, rest.as_bytes()[at]);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

fn push_escape(out: &mut String, byte: u8) {
    match byte {
        b'"' => out.push_str("\\\""),
        b'\\' => out.push_str("\\\\"),
        b'\n' => out.push_str("\\n"),
        b'\r' => out.push_str("\\r"),
        b'\t' => out.push_str("\\t"),
        8 => out.push_str("\\b"),
        12 => out.push_str("\\f"),
        _ => {
            out.push_str("\\u00");
            out.push(HEX[usize::from(byte >> 4)] as char);
            out.push(HEX[usize::from(byte & 15)] as char);
        }
    }
}
