//! Patterns of dates and times with the letters of Java: `yyyy-MM-dd HH:mm:ss.SSS`.
//!
//! | letters | field |
//! |---|---|
//! | `y`, `u`, `Q`, `M`, `L`, `w`, `d`, `D` | year, quarter, month, week, day of month and year |
//! | `E`, `e` | weekday as name and number |
//! | `H`, `h`, `k`, `K`, `a`, `m`, `s` | hour (0–23, 1–12, 1–24, 0–11), AM or PM, minute, second |
//! | `S`, `n` | fraction of a second, nanosecond |
//! | `z`, `Z`, `X`, `x` | zone |
//!
//! Three letters of a month or weekday give its short name, four the whole. Other text stands in
//! single quotes; `''` is a quote.

use std::fmt::Write;

use chrono::{
    Datelike, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeDelta, TimeZone, Timelike,
};
use chrono_tz::Tz;
use millpond_core::{Error, Result};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const LETTERS: &str = "yuQqMLwdDEeHhkKamsSnzZXx";

/// A pattern, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Text(String),
    Field(char, usize),
}

impl Item {
    fn is_number(&self) -> bool {
        match self {
            Item::Text(_) => false,
            Item::Field('E' | 'a' | 'z' | 'Z' | 'X' | 'x', _) => false,
            Item::Field('M' | 'L', width) => *width < 3,
            Item::Field(..) => true,
        }
    }
}

impl Pattern {
    /// Takes a pattern apart.
    pub(super) fn parse(java: &str) -> Result<Self> {
        let mut items = Vec::new();
        let mut letters = java.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter == '\'' {
                push_text(&mut items, &quoted(&mut letters, java)?);
            } else if letter.is_ascii_alphabetic() {
                if !LETTERS.contains(letter) {
                    return Err(Error::invalid(format!(
                        "the time pattern '{java}' has the unknown letter {letter}"
                    ))
                    .with_hint(format!(
                        "letters are {LETTERS}; other text stands in quotes, as in yyyy'x'"
                    )));
                }
                let mut width = 1;
                while letters.next_if_eq(&letter).is_some() {
                    width += 1;
                }
                items.push(Item::Field(letter, width));
            } else {
                push_text(&mut items, letter.encode_utf8(&mut [0; 4]));
            }
        }
        Ok(Self(items))
    }

    /// A time in this form. `zone` is the one whose clocks show it.
    pub(super) fn format(&self, time: NaiveDateTime, zone: Option<Tz>) -> String {
        let mut text = String::new();
        for item in &self.0 {
            match item {
                Item::Text(literal) => text.push_str(literal),
                Item::Field(letter, width) => write_field(*letter, *width, time, zone, &mut text),
            }
        }
        text
    }

    /// The time that a text of this form tells, and the offset of its zone if it tells one. Of what
    /// the text does not tell, it is the first of 1970; `None` if the text has another form.
    pub(super) fn read(&self, text: &str) -> Option<(NaiveDateTime, Option<i32>)> {
        let mut fields = Fields::default();
        let mut rest = text;
        for (place, item) in self.0.iter().enumerate() {
            rest = match item {
                Item::Text(literal) => rest.strip_prefix(literal.as_str())?,
                Item::Field(letter, width) if item.is_number() => {
                    let adjacent = self.0.get(place + 1).is_some_and(Item::is_number);
                    let (digits, after) = take_digits(*letter, *width, adjacent, rest)?;
                    fields.set(*letter, digits, *width)?;
                    after
                }
                Item::Field(letter, _) => fields.read_name(*letter, rest)?,
            };
        }
        if rest.is_empty() { fields.resolve() } else { None }
    }
}

fn push_text(items: &mut Vec<Item>, text: &str) {
    match items.last_mut() {
        Some(Item::Text(literal)) => literal.push_str(text),
        _ => items.push(Item::Text(text.to_owned())),
    }
}

/// What stands in quotes; nothing in them is a quote.
fn quoted(letters: &mut std::iter::Peekable<std::str::Chars<'_>>, java: &str) -> Result<String> {
    if letters.next_if_eq(&'\'').is_some() {
        return Ok("'".into());
    }
    let mut text = String::new();
    loop {
        match letters.next() {
            Some('\'') if letters.next_if_eq(&'\'').is_some() => text.push('\''),
            Some('\'') => return Ok(text),
            Some(letter) => text.push(letter),
            None => {
                return Err(Error::invalid(format!(
                    "the time pattern '{java}' has a quote that is not closed"
                )));
            }
        }
    }
}

fn write_field(letter: char, width: usize, time: NaiveDateTime, zone: Option<Tz>, out: &mut String) {
    let mut number = |value: i64| {
        let _ = write!(out, "{value:0width$}");
    };
    match letter {
        'y' | 'u' if width == 2 => number(i64::from(time.year().rem_euclid(100))),
        'y' | 'u' => number(time.year().into()),
        'Q' | 'q' => number(i64::from(time.month0() / 3 + 1)),
        'M' | 'L' if width >= 3 => out.push_str(name(&MONTHS, time.month0() as usize, width)),
        'M' | 'L' => number(time.month().into()),
        'w' => number(time.iso_week().week().into()),
        'd' => number(time.day().into()),
        'D' => number(time.ordinal().into()),
        'E' => out.push_str(name(&WEEKDAYS, time.weekday().num_days_from_monday() as usize, width)),
        'e' => number(i64::from(time.weekday().num_days_from_sunday() + 1)),
        'H' => number(time.hour().into()),
        'h' => number(time.hour12().1.into()),
        'k' => number(i64::from(if time.hour() == 0 { 24 } else { time.hour() })),
        'K' => number(i64::from(time.hour() % 12)),
        'a' => out.push_str(if time.hour() < 12 { "AM" } else { "PM" }),
        'm' => number(time.minute().into()),
        's' => number(time.second().into()),
        'S' => {
            let fraction = format!("{:09}", time.nanosecond() % 1_000_000_000);
            let _ = write!(out, "{:0<width$.width$}", fraction);
        }
        'n' => number(i64::from(time.nanosecond() % 1_000_000_000)),
        _ => write_zone(letter, width, time, zone, out),
    }
}

fn name<'a>(names: &[&'a str], place: usize, width: usize) -> &'a str {
    let name = names[place];
    if width == 4 { name } else { &name[..3] }
}

fn write_zone(letter: char, width: usize, time: NaiveDateTime, zone: Option<Tz>, out: &mut String) {
    if letter == 'z' {
        out.push_str(zone.map_or("UTC", |zone| zone.name()));
        return;
    }
    let utc = FixedOffset::east_opt(0).expect("zero is an offset");
    let offset =
        zone.map_or(utc, |zone| zone.offset_from_utc_datetime(&super::zone::to_utc(Some(zone), time)).fix());
    let seconds = offset.local_minus_utc();
    if letter == 'X' && seconds == 0 {
        out.push('Z');
        return;
    }
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes) = (seconds.abs() / 3600, seconds.abs() / 60 % 60);
    let colon = if matches!((letter, width), ('X' | 'x', 3) | ('Z', 5)) { ":" } else { "" };
    let _ = match width == 1 && letter != 'Z' && minutes == 0 {
        true => write!(out, "{sign}{hours:02}"),
        false => write!(out, "{sign}{hours:02}{colon}{minutes:02}"),
    };
}

/// The digits of a field, and what follows them.
fn take_digits(letter: char, width: usize, adjacent: bool, text: &str) -> Option<(&str, &str)> {
    let available = text.bytes().take_while(u8::is_ascii_digit).count();
    let (least, most) = match (letter, width) {
        ('S', width) => (width, width),
        (_, width) if adjacent => (width, width),
        (_, 1) => (1, 9),
        ('y' | 'u', width) if width > 2 => (width, 9),
        (_, width) => (width, width),
    };
    (available >= least).then(|| text.split_at(available.min(most)))
}

/// What a text has told so far.
#[derive(Default)]
struct Fields {
    year: Option<i32>,
    month: Option<u32>,
    day: Option<u32>,
    day_of_year: Option<u32>,
    hour: Option<u32>,
    hour_of_half: Option<u32>,
    afternoon: Option<bool>,
    minute: Option<u32>,
    second: Option<u32>,
    nanosecond: Option<u32>,
    offset: Option<i32>,
}

impl Fields {
    fn set(&mut self, letter: char, digits: &str, width: usize) -> Option<()> {
        let number: u32 = digits.parse().ok()?;
        match letter {
            'y' | 'u' => self.year = Some(number as i32 + if width == 2 { 2000 } else { 0 }),
            'M' | 'L' => self.month = Some(number),
            'd' => self.day = Some(number),
            'D' => self.day_of_year = Some(number),
            'H' => self.hour = Some(number),
            'k' => self.hour = Some(number % 24),
            'h' | 'K' => self.hour_of_half = Some(number % 12).filter(|_| number <= 12),
            'm' => self.minute = Some(number),
            's' => self.second = Some(number),
            'S' => self.nanosecond = Some(format!("{digits:0<9.9}").parse().ok()?),
            'n' => self.nanosecond = Some(number),
            // The others follow from the date.
            _ => {}
        }
        Some(())
    }

    /// Reads a name or zone; gives what follows it.
    fn read_name<'a>(&mut self, letter: char, text: &'a str) -> Option<&'a str> {
        let starts =
            |name: &str| text.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        match letter {
            'a' => {
                self.afternoon = Some(starts("PM"));
                (starts("AM") || starts("PM")).then(|| &text[2..])
            }
            'M' | 'L' | 'E' => {
                let names: &[&str] = if letter == 'E' { &WEEKDAYS } else { &MONTHS };
                let long = |name: &&str| starts(name).then_some(name.len());
                let length = |name: &&str| long(name).or(starts(&name[..3]).then_some(3));
                let (place, length) =
                    names.iter().enumerate().find_map(|(place, name)| Some((place, length(name)?)))?;
                if letter != 'E' {
                    self.month = Some(place as u32 + 1);
                }
                Some(&text[length..])
            }
            _ => self.read_zone(text),
        }
    }

    fn read_zone<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        for utc in ["UTC", "GMT", "Z"] {
            if let Some(rest) = text.strip_prefix(utc) {
                self.offset = Some(0);
                return Some(rest);
            }
        }
        let length = text.bytes().take_while(|byte| byte.is_ascii_digit() || b"+-:".contains(byte)).count();
        let (offset, rest) = text.split_at(length);
        self.offset = Some(super::time_text::offset(offset)?);
        Some(rest)
    }

    fn resolve(self) -> Option<(NaiveDateTime, Option<i32>)> {
        let year = self.year.unwrap_or(1970);
        let date = match self.day_of_year {
            Some(day) => NaiveDate::from_yo_opt(year, day)?,
            None => NaiveDate::from_ymd_opt(year, self.month.unwrap_or(1), self.day.unwrap_or(1))?,
        };
        let hour = match (self.hour, self.hour_of_half) {
            (Some(hour), _) => hour,
            (None, Some(hour)) => hour + if self.afternoon == Some(true) { 12 } else { 0 },
            (None, None) => 0,
        };
        let (minute, second) = (self.minute.unwrap_or(0), self.second.unwrap_or(0));
        let (day, hour) = if hour == 24 && minute == 0 && second == 0 { (1, 0) } else { (0, hour) };
        let time = NaiveTime::from_hms_nano_opt(hour, minute, second, self.nanosecond.unwrap_or(0))?;
        Some((date.checked_add_signed(TimeDelta::days(day))?.and_time(time), self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::super::time_text::timestamp;
    use super::*;

    #[test]
    fn times_are_written_by_patterns() {
        let time = timestamp("2024-02-09 13:05:07.0125").unwrap();
        let cases = [
            ("yyyy-MM-dd HH:mm:ss.SSS", "2024-02-09 13:05:07.012"),
            ("yyyy-MM-dd'T'HH:mm", "2024-02-09T13:05"),
            ("d.M.yy h 'o''clock' a", "9.2.24 1 o'clock PM"),
            ("EEE, EEEE, MMM MMMM", "Fri, Friday, Feb February"),
            ("yyyyMMddHHmmssSSSSSS", "20240209130507012500"),
            ("D w Q e k K", "40 6 1 6 13 1"),
            ("X z", "Z UTC"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(Pattern::parse(pattern).unwrap().format(time, None), expected);
        }
        let zone = Some(Tz::Europe__Berlin);
        assert_eq!(Pattern::parse("HH XXX").unwrap().format(time, zone), "13 +01:00");
        assert!(Pattern::parse("yyyy-T").is_err());
        assert!(Pattern::parse("yyyy 'x").is_err());
    }

    #[test]
    fn times_are_read_by_patterns() {
        let cases = [
            ("yyyy-MM-dd HH:mm:ss", "2024-02-09 13:05:07", Some("2024-02-09 13:05:07")),
            ("yyyy-MM-dd", "2024-02-09", Some("2024-02-09")),
            ("yyyy-MM-dd", "2024-2-9", None),
            ("yyyy-M-d", "2024-2-9", Some("2024-02-09")),
            ("yyyyMMddHHmmss", "20240209130507", Some("2024-02-09 13:05:07")),
            ("dd MMM yyyy hh:mm a", "09 Feb 2024 01:05 PM", Some("2024-02-09 13:05:00")),
            ("yyyy-MM-dd", "2024-02-30", None),
            ("yyyy-MM-dd", "2024-02-09 ", None),
            ("HH:mm", "13:05", Some("1970-01-01 13:05:00")),
        ];
        for (pattern, text, expected) in cases {
            let read = Pattern::parse(pattern).unwrap().read(text).map(|(time, _)| time);
            assert_eq!(read, expected.and_then(timestamp), "{pattern} {text}");
        }
        let zoned = Pattern::parse("yyyy-MM-dd HH:mmX").unwrap();
        assert_eq!(zoned.read("2024-02-09 13:05+02").unwrap().1, Some(7200));
    }
}
