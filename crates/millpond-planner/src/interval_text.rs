//! Interval literals: `INTERVAL '1 02:03:04.5' DAY TO SECOND` as a text that names its units.

use millpond_core::{Error, Result};

/// Units from the largest; each of the last ones is so many of the next.
const UNITS: [&str; 6] = ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"];

/// `1 days 2 hours 3 minutes 4.5 seconds` for the value `1 02:03:04.5` of DAY TO SECOND.
pub(crate) fn interval_text(value: &str, first: &str, last: Option<&str>) -> Result<String> {
    let (first, last) = (singular(first), last.map(singular));
    let wrong = || {
        let range = last.as_ref().map_or(first.clone(), |last| format!("{first} TO {last}"));
        Error::invalid(format!("'{value}' is no interval of {range}"))
            .with_hint("for example INTERVAL '5' SECOND, INTERVAL '1 02:03:04.5' DAY TO SECOND")
    };
    let (negative, digits) = match value.trim().strip_prefix(['-', '+']) {
        Some(rest) => (value.trim().starts_with('-'), rest.trim_start()),
        None => (false, value.trim()),
    };
    let sign = if negative { "-" } else { "" };
    let Some(last) = &last else {
        let (factor, unit) = match first.as_str() {
            "WEEK" => (7, "days"),
            "QUARTER" => (3, "months"),
            "CENTURY" => (1200, "months"),
            "DECADE" => (120, "months"),
            "MILLENNIUM" => (12_000, "months"),
            _ => return single(digits, &first).map(|text| format!("{sign}{text}")).ok_or_else(wrong),
        };
        let number: i64 = digits.parse().map_err(|_| wrong())?;
        return Ok(format!("{sign}{} {unit}", number.checked_mul(factor).ok_or_else(wrong)?));
    };
    let place = |unit: &str| UNITS.iter().position(|known| *known == unit);
    let (Some(from), Some(to)) = (place(&first), place(last)) else { return Err(wrong()) };
    let months = from <= 1 && to <= 1;
    if from >= to || !(months || from >= 2) {
        return Err(wrong());
    }
    let parts = split(digits, from, to).ok_or_else(wrong)?;
    let named = parts.iter().zip(&UNITS[from..=to]).map(|(part, unit)| {
        let fits = *unit == UNITS[from] || is_below(part, unit);
        (fits && is_number(part, *unit == "SECOND")).then(|| format!("{sign}{part} {}s", unit.to_lowercase()))
    });
    let named = named.collect::<Option<Vec<String>>>().ok_or_else(wrong)?;
    Ok(named.join(" "))
}

fn singular(unit: &str) -> String {
    let unit = unit.to_uppercase();
    unit.strip_suffix('S').map(str::to_owned).unwrap_or(unit)
}

fn single(digits: &str, unit: &str) -> Option<String> {
    let known = UNITS.contains(&unit) || ["MILLISECOND", "MICROSECOND", "NANOSECOND"].contains(&unit);
    (known && is_number(digits, unit == "SECOND")).then(|| format!("{digits} {}s", unit.to_lowercase()))
}

fn is_number(text: &str, with_fraction: bool) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    digits(whole) && whole.len() <= 18 && digits(fraction) && (with_fraction || !text.contains('.'))
}

/// Whether a part is less than one of the next larger unit.
fn is_below(part: &str, unit: &str) -> bool {
    let most = match unit {
        "MONTH" => 12,
        "HOUR" => 24,
        _ => 60,
    };
    part.split('.').next().and_then(|whole| whole.parse::<u32>().ok()).is_some_and(|whole| whole < most)
}

/// The parts of `y-m` or `d h:m:s`, from one unit to another.
fn split(digits: &str, from: usize, to: usize) -> Option<Vec<&str>> {
    let parts: Vec<&str> = match from {
        0 => digits.split('-').collect(),
        2 => {
            let (days, clock) = digits.split_once(char::is_whitespace)?;
            std::iter::once(days).chain(clock.trim_start().split(':')).collect()
        }
        _ => digits.split(':').collect(),
    };
    (parts.len() == to - from + 1).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_name_their_units() {
        let cases = [
            ("1 02:03:04.5", "DAY", Some("SECOND"), Some("1 days 02 hours 03 minutes 04.5 seconds")),
            ("-1 02:03", "DAY", Some("MINUTE"), Some("-1 days -02 hours -03 minutes")),
            ("1-2", "YEAR", Some("MONTH"), Some("1 years 2 months")),
            ("100:30", "MINUTE", Some("SECOND"), Some("100 minutes 30 seconds")),
            ("10", "MINUTES", None, Some("10 minutes")),
            ("-0.5", "SECOND", None, Some("-0.5 seconds")),
            ("2", "WEEK", None, Some("14 days")),
            ("1-13", "YEAR", Some("MONTH"), None),
            ("1", "DAY", Some("SECOND"), None),
            ("1 02:03:04", "YEAR", Some("SECOND"), None),
            ("x", "DAY", None, None),
            ("", "DAY", None, None),
            ("1.5", "DAY", None, None),
        ];
        for (value, first, last, expected) in cases {
            assert_eq!(interval_text(value, first, last).ok().as_deref(), expected, "{value} {first}");
        }
    }
}
