//! `checkpoint.trigger`: when automatic checkpoints are made.
//!
//! ```text
//! ALWAYS
//! MANUAL                                 only CHECKPOINT, signals, savepoints and the job's end
//! START_AT '2024-01-01 10:00:00'         from then on, in the session's time zone
//! END_AT '2024-01-01 12:00:00'           until then; also behind START_AT
//! PROCESSING_TIME '10 min'               once the job has been running for so long
//! ```

use arrow::array::timezone::Tz;
use arrow::compute::kernels::cast_utils::string_to_datetime;
use millpond_core::quantity::parse_duration;
use millpond_core::{Error, Result, Timestamp};
use millpond_runtime::TriggerPolicy;

/// What a text says; times without an offset are in this time zone.
///
/// Errors: *Invalid*, with the forms there are.
pub(crate) fn parse(text: &str, time_zone: &str) -> Result<TriggerPolicy> {
    let mut rest = text.trim();
    let (mut from, mut until) = (None, None);
    loop {
        let word_end = rest.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(rest.len());
        let (word, behind) = rest.split_at(word_end);
        let (value, behind) = value(behind);
        match (word.to_ascii_uppercase().as_str(), value) {
            ("ALWAYS", None) if behind.is_empty() && text.trim().len() == 6 => {
                return Ok(TriggerPolicy::Always);
            }
            ("MANUAL", None) if behind.is_empty() && text.trim().len() == 6 => {
                return Ok(TriggerPolicy::Manual);
            }
            ("PROCESSING_TIME", Some(value)) if behind.is_empty() && (from, until) == (None, None) => {
                return Ok(TriggerPolicy::After(parse_duration(value)?));
            }
            ("START_AT", Some(value)) if from.is_none() => from = Some(time(value, time_zone)?),
            ("END_AT", Some(value)) if until.is_none() => until = Some(time(value, time_zone)?),
            _ => return Err(unknown(text)),
        }
        if behind.is_empty() {
            break;
        }
        rest = behind;
    }
    if let (Some(from), Some(until)) = (from, until)
        && until <= from
    {
        return Err(Error::invalid(format!("{text:?} ends before it starts")));
    }
    Ok(TriggerPolicy::Between { from, until })
}

/// The value behind a word, in quotes or up to the end, and what follows it.
fn value(text: &str) -> (Option<&str>, &str) {
    let text = text.trim_start();
    match text.strip_prefix('\'') {
        Some(quoted) => match quoted.split_once('\'') {
            Some((value, behind)) => (Some(value), behind.trim_start()),
            None => (None, text),
        },
        None if text.is_empty() => (None, ""),
        None => (Some(text), ""),
    }
}

fn time(text: &str, time_zone: &str) -> Result<Timestamp> {
    let zone: Tz =
        time_zone.parse().map_err(|_| Error::invalid(format!("{time_zone:?} is not a time zone")))?;
    let moment = string_to_datetime(&zone, text.trim()).map_err(|_| {
        Error::invalid(format!("{text:?} is not a time"))
            .with_hint("write it as '2024-01-01 10:00:00' or '2024-01-01T10:00:00Z'")
    })?;
    Ok(Timestamp(moment.timestamp_micros()))
}

fn unknown(text: &str) -> Error {
    Error::invalid(format!("{text:?} is no trigger")).with_hint(
        "write ALWAYS, MANUAL, START_AT '<time>', END_AT '<time>', START_AT '<time>' END_AT '<time>' or PROCESSING_TIME '<duration>'",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000_000;

    fn between(from: Option<i64>, until: Option<i64>) -> TriggerPolicy {
        TriggerPolicy::Between { from: from.map(Timestamp), until: until.map(Timestamp) }
    }

    #[test]
    fn every_form_is_read() {
        let read = |text| parse(text, "UTC").unwrap();
        assert_eq!(read("ALWAYS"), TriggerPolicy::Always);
        assert_eq!(read(" manual "), TriggerPolicy::Manual);
        assert_eq!(read("PROCESSING_TIME '10 s'"), TriggerPolicy::After(10_000_000));
        assert_eq!(read("PROCESSING_TIME 500"), TriggerPolicy::After(500_000));
        assert_eq!(read("START_AT '1970-01-02'"), between(Some(DAY), None));
        assert_eq!(read("start_at 1970-01-02 00:00:00"), between(Some(DAY), None));
        assert_eq!(read("END_AT '1970-01-02T01:00:00+01:00'"), between(None, Some(DAY)));
        assert_eq!(read("START_AT '1970-01-02' END_AT '1970-01-03'"), between(Some(DAY), Some(2 * DAY)));
    }

    #[test]
    fn a_time_without_offset_is_in_the_sessions_zone() {
        let hour = 3_600_000_000;
        let read = parse("START_AT '1970-01-02 00:00:00'", "Europe/Berlin").unwrap();
        assert_eq!(read, between(Some(DAY - hour), None));
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "SOMETIMES",
            "START_AT",
            "START_AT 'noon'",
            "PROCESSING_TIME 'soon'",
            "ALWAYS 'x'",
            "START_AT '1970-01-02' START_AT '1970-01-03'",
            "START_AT '1970-01-03' END_AT '1970-01-02'",
            "START_AT '1970-01-02",
            "MANUAL START_AT '1970-01-02'",
        ] {
            assert!(parse(bad, "UTC").is_err(), "{bad}");
        }
    }
}
