//! Durations and sizes as people write them: `500 ms`, `10s`, `1 min`, `64 mb`.

use crate::{Error, Result};

/// Microseconds of a duration; a bare number is milliseconds.
///
/// Errors: *Invalid*, with the accepted units.
pub fn parse_duration(text: &str) -> Result<i64> {
    let (number, unit) = split(text);
    let factor: i64 = match unit.to_ascii_lowercase().as_str() {
        "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => 1,
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000_000,
        "h" | "hour" | "hours" => 3_600_000_000,
        "d" | "day" | "days" => 86_400_000_000,
        _ => return Err(bad_duration(text)),
    };
    let number: i64 = number.parse().map_err(|_| bad_duration(text))?;
    number.checked_mul(factor).ok_or_else(|| bad_duration(text))
}

fn bad_duration(text: &str) -> Error {
    Error::invalid(format!("{text:?} is not a duration"))
        .with_hint("write a number and one of ms, s, min, h, d, for example '10 s'")
}

/// Bytes of a size; a bare number is bytes; kb, mb, gb are powers of 1,024.
///
/// Errors: *Invalid*, with the accepted units.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || {
        Error::invalid(format!("{text:?} is not a size"))
            .with_hint("write a number and one of b, kb, mb, gb, for example '64 mb'")
    };
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" | "bytes" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(factor).ok_or_else(bad)
}

/// A duration as people read it: the largest unit that divides it.
pub fn format_duration(micros: i64) -> String {
    let units =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    match units.iter().find(|(size, _)| micros != 0 && micros % size == 0) {
        Some((size, unit)) => format!("{} {unit}", micros / size),
        None if micros == 0 => "0".into(),
        None => format!("{micros} us"),
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!(parse_duration("500 ms").unwrap(), 500_000);
        assert_eq!(parse_duration("10s").unwrap(), 10_000_000);
        assert_eq!(parse_duration("250").unwrap(), 250_000);
        assert_eq!(parse_duration("2 h").unwrap(), 7_200_000_000);
        assert_eq!(format_duration(90_000_000), "90 s");
        for bad in ["", "s", "10 parsecs", "-1 s", "1.5 s", "99999999999999 d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_size("64 mb").unwrap(), 64 << 20);
        assert!(parse_size("64 furlongs").is_err());
    }
}
