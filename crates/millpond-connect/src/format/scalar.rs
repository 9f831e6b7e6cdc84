//! Scalars from text: numbers, times and bytes as CSV and JSON files spell them.
//!
//! Every function reads exactly the whole text and answers `None` for what it cannot read
//! exactly: nothing wraps, nothing passes through another type on its way. What people spell
//! differently is read generously (`+5`, `007`, `T` or a blank between date and time), what is
//! ambiguous is not (epoch numbers as timestamps, `1/2/2024`).

use arrow::datatypes::{DataType, TimeUnit};
use chrono::{NaiveDateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::Tz;
use millpond_core::{Error, Result};

const SECONDS_PER_DAY: i64 = 86_400;

/// The text without blanks around it.
pub(crate) fn trim(text: &[u8]) -> &[u8] {
    text.trim_ascii()
}

fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

/// A whole number of 64 bits: digits with an optional sign.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = signed(text);
    if digits.is_empty() {
        return None;
    }
    if digits.len() > 18 {
        return long_integer(negative, digits);
    }
    let mut value = 0i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// Counts downwards, because the smallest number has no positive twin.
#[cold]
fn long_integer(negative: bool, digits: &[u8]) -> Option<i64> {
    let mut value = 0i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// A whole number in any spelling whose fraction is zero: `1e3`, `1.0`.
pub(crate) fn integral(text: &[u8]) -> Option<i64> {
    let number = Digits::of(text)?;
    let value = number.scaled(0, Rounding::Refuse)?;
    i64::try_from(value).ok()
}

/// A floating-point number, `NaN` or `Infinity`; `None` if it is too large to be one.
pub(crate) fn float<F: std::str::FromStr + Into<f64> + Copy>(text: &[u8]) -> Option<F> {
    let number: F = std::str::from_utf8(text).ok()?.parse().ok()?;
    let wide: f64 = number.into();
    let spelled = !matches!(signed(text).1.first(), Some(b'0'..=b'9' | b'.'));
    (wide.is_finite() || spelled).then_some(number)
}

/// PostgreSQL's spellings of a truth value.
pub(crate) fn boolean(text: &[u8]) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    match text {
        b"true" | b"1" => Some(true),
        b"false" | b"0" => Some(false),
        _ if ["true", "t", "yes", "y", "on"].into_iter().any(is) => Some(true),
        _ if ["false", "f", "no", "n", "off"].into_iter().any(is) => Some(false),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    HalfUp,
    Refuse,
}

/// A number taken apart: sign, digits before and after the point, exponent.
struct Digits<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl<'a> Digits<'a> {
    fn of(text: &'a [u8]) -> Option<Self> {
        let (negative, rest) = signed(text);
        let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', rest) {
            Some(at) => (&rest[..at], integer(&rest[at + 1..])?.clamp(-100_000, 100_000)),
            None => (rest, 0),
        };
        let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, &mantissa[..0]),
        };
        let digits_only = whole.iter().chain(fraction).all(u8::is_ascii_digit);
        let any = !whole.is_empty() || !fraction.is_empty();
        (digits_only && any).then_some(Self { negative, whole, fraction, exponent })
    }

    /// The number times ten to the `scale`.
    fn scaled(&self, scale: i64, rounding: Rounding) -> Option<i128> {
        let shift = self.exponent - self.fraction.len() as i64 + scale;
        let count = (self.whole.len() + self.fraction.len()) as i64;
        let kept = if shift < 0 { count + shift } else { count };
        let mut value = 0i128;
        for (index, byte) in self.whole.iter().chain(self.fraction).enumerate() {
            let digit = i128::from(byte - b'0');
            if (index as i64) < kept {
                value = value.checked_mul(10)?.checked_add(digit)?;
            } else if rounding == Rounding::Refuse && digit != 0 {
                return None;
            } else if index as i64 == kept && digit >= 5 {
                value = value.checked_add(1)?;
            }
        }
        if shift > 0 && value != 0 {
            value = value.checked_mul(10i128.checked_pow(u32::try_from(shift).ok()?)?)?;
        }
        Some(if self.negative { -value } else { value })
    }
}

/// A decimal of `precision` digits, `scale` of them behind the point: exact, further digits
/// rounded half up as Flink does.
pub(crate) fn decimal(text: &[u8], precision: u8, scale: i8) -> Option<i128> {
    let value = Digits::of(text)?.scaled(i64::from(scale), Rounding::HalfUp)?;
    (value.unsigned_abs() < 10u128.checked_pow(u32::from(precision))?).then_some(value)
}

fn two(text: &[u8]) -> Option<i64> {
    let [a, b] = *text else { return None };
    let (a, b) = (a.wrapping_sub(b'0'), b.wrapping_sub(b'0'));
    (a <= 9 && b <= 9).then_some(i64::from(a) * 10 + i64::from(b))
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar (Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn month_length(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// A date `YYYY-MM-DD` of the years 1 to 9999, as days since 1970-01-01.
#[inline]
pub(crate) fn date(text: &[u8]) -> Option<i32> {
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let year = two(&text[..2])? * 100 + two(&text[2..4])?;
    let (month, day) = (two(&text[5..7])?, two(&text[8..])?);
    if year < 1 || !(1..=12).contains(&month) || day < 1 || (day > 28 && day > month_length(year, month)) {
        return None;
    }
    Some(days(year, month, day) as i32)
}

/// A time of day `HH:MM[:SS[.fraction]]`, as seconds and nanoseconds.
#[inline]
fn clock(text: &[u8]) -> Option<(i64, i64)> {
    if text.len() < 5 || text[2] != b':' {
        return None;
    }
    let (hour, minute) = (two(&text[..2])?, two(&text[3..5])?);
    let (second, nanos) = match &text[5..] {
        [] => (0, 0),
        [b':', a, b] => (two(&[*a, *b])?, 0),
        [b':', a, b, b'.', fraction @ ..] => (two(&[*a, *b])?, nanos(fraction)?),
        _ => return None,
    };
    (hour < 24 && minute < 60 && second < 60).then_some((hour * 3600 + minute * 60 + second, nanos))
}

/// The nanoseconds of one to nine digits behind the point.
fn nanos(fraction: &[u8]) -> Option<i64> {
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let mut value = 0i64;
    for byte in fraction {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    const POWERS: [i64; 10] =
        [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];
    Some(value * POWERS[fraction.len()])
}

/// A time of day in a unit; digits finer than the unit are cut.
pub(crate) fn time_of_day(text: &[u8], unit: TimeUnit) -> Option<i64> {
    let (seconds, nanos) = clock(text)?;
    in_unit(seconds, nanos, unit)
}

fn in_unit(seconds: i64, nanos: i64, unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::Second => Some(seconds),
        TimeUnit::Millisecond => seconds.checked_mul(1_000)?.checked_add(nanos / 1_000_000),
        TimeUnit::Microsecond => seconds.checked_mul(1_000_000)?.checked_add(nanos / 1_000),
        TimeUnit::Nanosecond => i64::try_from(i128::from(seconds) * 1_000_000_000 + i128::from(nanos)).ok(),
    }
}

/// A date and time as written, with the offset from UTC if one is written.
struct Moment {
    seconds: i64,
    nanos: i64,
    offset: Option<i64>,
}

/// `YYYY-MM-DD[(T| )HH:MM[:SS[.f]][Z|±HH[[:]MM]]]`.
#[inline]
fn moment(text: &[u8]) -> Option<Moment> {
    if text.len() < 10 {
        return None;
    }
    let midnight = i64::from(date(&text[..10])?) * SECONDS_PER_DAY;
    let rest = &text[10..];
    if rest.is_empty() {
        return Some(Moment { seconds: midnight, nanos: 0, offset: None });
    }
    if !matches!(rest[0], b' ' | b'T' | b't') {
        return None;
    }
    let (time, offset) = split_offset(&rest[1..])?;
    let (seconds, nanos) = clock(time)?;
    Some(Moment { seconds: midnight + seconds, nanos, offset })
}

fn split_offset(text: &[u8]) -> Option<(&[u8], Option<i64>)> {
    if let [time @ .., b'Z' | b'z'] = text {
        return Some((time.trim_ascii_end(), Some(0)));
    }
    let Some(at) = text.iter().rposition(|byte| matches!(byte, b'+' | b'-')) else {
        return Some((text, None));
    };
    Some((text[..at].trim_ascii_end(), Some(offset(&text[at..])?)))
}

/// Seconds of `±HH`, `±HHMM` or `±HH:MM`.
fn offset(text: &[u8]) -> Option<i64> {
    let (negative, digits) = signed(text);
    let (hours, minutes) = match digits {
        [_, _] => (two(digits)?, 0),
        [a, b, b':', c, d] | [a, b, c, d] => (two(&[*a, *b])?, two(&[*c, *d])?),
        _ => return None,
    };
    let seconds = hours * 3600 + minutes * 60;
    (hours <= 18 && minutes < 60).then_some(if negative { -seconds } else { seconds })
}

/// A wall-clock time in a unit. A written offset is not applied: as in PostgreSQL, a
/// `TIMESTAMP` is the clock as written.
#[inline]
pub(crate) fn timestamp(text: &[u8], unit: TimeUnit) -> Option<i64> {
    let moment = moment(text)?;
    in_unit(moment.seconds, moment.nanos, unit)
}

/// An instant in a unit; text without an offset is a wall-clock time in `zone`.
pub(crate) fn instant(text: &[u8], unit: TimeUnit, zone: Zone) -> Option<i64> {
    let moment = moment(text)?;
    let offset = match moment.offset {
        Some(offset) => offset,
        None => zone.offset_of_local(moment.seconds)?,
    };
    in_unit(moment.seconds - offset, moment.nanos, unit)
}

/// Where wall-clock times are read as instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    Fixed(i64),
    Named(Tz),
}

impl Zone {
    /// A zone by its name (`Europe/Berlin`, `UTC`) or offset (`+01:00`).
    pub(crate) fn parse(name: &str) -> Result<Self> {
        if name.is_empty() || matches!(name, "UTC" | "Z" | "GMT" | "Etc/UTC") {
            return Ok(Self::Fixed(0));
        }
        let digits = name.strip_prefix("GMT").or_else(|| name.strip_prefix("UTC")).unwrap_or(name);
        if let (true, Some(offset)) = (digits.starts_with(['+', '-']), offset(digits.as_bytes())) {
            return Ok(Self::Fixed(offset));
        }
        name.parse().map(Self::Named).map_err(|_| {
            Error::invalid(format!("{name:?} is not a time zone"))
                .with_hint("write a name such as 'Europe/Berlin'")
        })
    }

    /// Seconds that a wall-clock time is ahead of UTC: of two the earlier instant, in a gap the
    /// offset before it (as in Java).
    pub(crate) fn offset_of_local(self, seconds: i64) -> Option<i64> {
        let tz = match self {
            Self::Fixed(offset) => return Some(offset),
            Self::Named(tz) => tz,
        };
        let local = chrono::DateTime::from_timestamp(seconds, 0)?.naive_utc();
        let before = |local: NaiveDateTime| local.checked_sub_signed(TimeDelta::hours(24)).unwrap_or(local);
        let offset = match tz.offset_from_local_datetime(&local) {
            chrono::LocalResult::Single(offset) => offset,
            chrono::LocalResult::Ambiguous(first, _) => first,
            chrono::LocalResult::None => tz.offset_from_utc_datetime(&before(local)),
        };
        Some(i64::from(offset.fix().local_minus_utc()))
    }
}

/// Bytes from base 64, with or without padding.
pub(crate) fn base64(text: &[u8], out: &mut Vec<u8>) -> bool {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let padded = text.len() != digits.len();
    if digits.len() % 4 == 1 || (padded && !text.len().is_multiple_of(4)) {
        return false;
    }
    let start = out.len();
    for chunk in digits.chunks(4) {
        let mut bits = 0u32;
        for (index, byte) in chunk.iter().enumerate() {
            let Some(digit) = base64_digit(*byte) else {
                out.truncate(start);
                return false;
            };
            bits |= digit << (18 - 6 * index);
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    true
}

fn base64_digit(byte: u8) -> Option<u32> {
    Some(
        match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        }
        .into(),
    )
}

/// The name of a type in SQL.
pub(crate) fn type_name(data_type: &DataType) -> String {
    let digits = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    match data_type {
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::Float32 => "FLOAT".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTES".into(),
        DataType::Date32 => "DATE".into(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME({})", digits(unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits(unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP_LTZ({})", digits(unit)),
        DataType::Struct(_) => "ROW".into(),
        DataType::List(item) => format!("ARRAY<{}>", type_name(item.data_type())),
        DataType::Map(..) => "MAP".into(),
        other => other.to_string(),
    }
}

/// Why a text is no value of a type, to be read behind the quoted text.
pub(crate) fn complaint(data_type: &DataType, text: &[u8]) -> &'static str {
    let text = trim(text);
    match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => match Digits::of(text) {
            Some(number) if number.fraction.is_empty() && number.exponent == 0 => "is out of range",
            Some(_) => "is not a whole number in range",
            None => "is not a number",
        },
        DataType::Float32 | DataType::Float64 | DataType::Decimal128(..) if Digits::of(text).is_some() => {
            "is out of range"
        }
        DataType::Float32 | DataType::Float64 | DataType::Decimal128(..) => "is not a number",
        DataType::Boolean => "is neither true nor false",
        DataType::Date32 => "is not a date (YYYY-MM-DD)",
        DataType::Time32(_) | DataType::Time64(_) => "is not a time (HH:MM:SS)",
        DataType::Timestamp(..) if moment(text).is_some() => "is out of range",
        DataType::Timestamp(..) => "is not a timestamp (YYYY-MM-DD HH:MM:SS)",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "is not base 64",
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "is not text in UTF-8",
        DataType::Struct(_) | DataType::Map(..) => "is not an object",
        DataType::List(_) => "is not an array",
        _ => "cannot be read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_or_refused() {
        let read = |text: &str| integer(text.as_bytes());
        assert_eq!(read("007"), Some(7));
        assert_eq!(read("+5"), Some(5));
        assert_eq!(read("-9223372036854775808"), Some(i64::MIN));
        assert_eq!(read("9223372036854775807"), Some(i64::MAX));
        assert_eq!(read("00000000000000000000000000012"), Some(12));
        for bad in ["", "-", "9223372036854775808", "1_000", "0x10", "1e3", "--1", "1.0", "NaN", "１"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(integral(b"1e3"), Some(1000));
        assert_eq!(integral(b"1.0"), Some(1));
        assert_eq!(integral(b"1.5"), None);
        assert_eq!(integral(b"1e400"), None);
    }

    #[test]
    fn decimals_take_no_detour() {
        let read = |text: &str, p, s| decimal(text.as_bytes(), p, s);
        assert_eq!(read("0.1", 38, 8), Some(10_000_000));
        assert_eq!(
            read("123456789012345678901234567890.12345678", 38, 8),
            Some(12345678901234567890123456789012345678)
        );
        assert_eq!(read("1E-10", 38, 8), Some(0));
        assert_eq!(read("1E-10", 38, 10), Some(1));
        assert_eq!(read("-0", 38, 8), Some(0));
        assert_eq!(read(".5", 38, 1), Some(5));
        assert_eq!(read("5.", 38, 1), Some(50));
        assert_eq!(read("99999999999999999999999999999999999999", 38, 0), Some(10i128.pow(38) - 1));
        assert_eq!(read("100000000000000000000000000000000000000", 38, 0), None);
        assert_eq!(read("-1.005", 5, 2), Some(-101));
        assert_eq!(read("1.004999", 5, 2), Some(100));
        assert_eq!(read("999.5", 3, 0), None);
        assert_eq!(read("0.05", 3, 0), Some(0));
        assert_eq!(read("1e999999999999999999", 38, 0), None);
        for bad in ["", ".", "-", "1,5", "1e", "e5", "0x1", "1.2.3"] {
            assert_eq!(read(bad, 38, 2), None, "{bad}");
        }
    }

    #[test]
    fn floats_overflow_only_when_spelled_out() {
        assert_eq!(float::<f64>(b"1e400"), None);
        assert_eq!(float::<f32>(b"1e40"), None);
        assert_eq!(float::<f64>(b"-Infinity"), Some(f64::NEG_INFINITY));
        assert!(float::<f64>(b"NaN").is_some_and(f64::is_nan));
        assert_eq!(float::<f64>(b"0.1e-400"), Some(0.0));
        assert_eq!(float::<f64>(b"1_0"), None);
    }

    #[test]
    fn timestamps_follow_the_calendar() {
        let read = |text: &str| timestamp(text.as_bytes(), TimeUnit::Millisecond);
        assert_eq!(read("1970-01-01 00:00:00"), Some(0));
        assert_eq!(read("1969-12-31 23:59:59.999"), Some(-1));
        assert_eq!(read("2024-01-01 10:00:00"), Some(1_704_103_200_000));
        assert_eq!(read("2024-01-01T10:00:00.1239Z"), Some(1_704_103_200_123));
        assert_eq!(read("2024-01-01 10:00"), Some(1_704_103_200_000));
        assert_eq!(read("2024-01-01"), Some(1_704_067_200_000));
        assert_eq!(read("0001-01-01 00:00:00"), Some(-62_135_596_800_000));
        assert_eq!(read("9999-12-31 23:59:59.999"), Some(253_402_300_799_999));
        assert_eq!(read("2024-02-29 00:00:00"), Some(1_709_164_800_000));
        for bad in [
            "10000-01-01 00:00:00",
            "2024-02-30 00:00:00",
            "2023-02-29 00:00:00",
            "2024-01-01 24:00:00",
            "1704103200",
            "2024-1-1 1:0:0",
            "2016-12-31T23:59:60Z",
            "",
            "null",
            "2024-W01-1",
            "2024-01-01 10:00:00.",
            "2024-01-01 10:00:00.1234567891",
            "2024-01-01 10:00:00+99",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        let last = "2262-04-11 23:47:16.854775807";
        assert_eq!(timestamp(last.as_bytes(), TimeUnit::Nanosecond), Some(i64::MAX));
        assert_eq!(timestamp(b"2262-04-11 23:47:16.854775808", TimeUnit::Nanosecond), None);
    }

    #[test]
    fn instants_know_offsets_and_zones() {
        let new_york = Zone::parse("America/New_York").unwrap();
        let read = |text: &str| instant(text.as_bytes(), TimeUnit::Second, new_york);
        assert_eq!(read("2024-01-01T10:00:00+05:30"), Some(1_704_103_200 - 19_800));
        assert_eq!(read("2024-01-01 10:00:00"), Some(1_704_103_200 + 5 * 3600));
        // The hour that does not exist goes on from before it; of the one that comes twice, the first.
        assert_eq!(read("2024-03-10 02:30:00"), read("2024-03-10 03:30:00"));
        assert_eq!(read("2024-11-03 01:30:00"), read("2024-11-03T05:30:00Z"));
        assert!(Zone::parse("Mars/Olympus").is_err());
        assert_eq!(Zone::parse("+01:00").unwrap(), Zone::Fixed(3600));
    }

    #[test]
    fn bytes_are_base_64() {
        let read = |text: &str| {
            let mut out = Vec::new();
            base64(text.as_bytes(), &mut out).then_some(out)
        };
        assert_eq!(read("aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(read("aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(read(""), Some(vec![]));
        for bad in ["a", "a===", "aGV#", "aGVsbG8=="] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
