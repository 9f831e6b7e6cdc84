//! Functions of texts. They count code points; NULL in gives NULL out unless the line says else.

use std::borrow::Cow;

use arrow::array::ArrayRef;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition};
use super::show::shown;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("CHAR_LENGTH(text STRING) -> INT", |c| {
            let text = c.text(0)?;
            c.ints(|row| Ok(text.at(row).map(|text| text.chars().count() as i64)))
        })
        .alias("character_length")
        .alias("length"),
        f("OCTET_LENGTH(text STRING) -> INT", |c| {
            let text = c.text(0)?;
            c.ints(|row| Ok(text.at(row).map(|text| text.len() as i64)))
        }),
        f("UPPER(text STRING) -> STRING", |c| mapped(c, |text| text.to_uppercase().into())).alias("ucase"),
        f("LOWER(text STRING) -> STRING", |c| mapped(c, |text| text.to_lowercase().into())).alias("lcase"),
        f("INITCAP(text STRING) -> STRING", |c| mapped(c, |text| initcap(text).into())),
        f("REVERSE(text STRING) -> STRING", |c| {
            mapped(c, |text| text.chars().rev().collect::<String>().into())
        }),
        f("LTRIM(text STRING [, characters STRING]) -> STRING", |c| trimmed(c, true, false)),
        f("RTRIM(text STRING [, characters STRING]) -> STRING", |c| trimmed(c, false, true)),
        f("BTRIM(text STRING [, characters STRING]) -> STRING", |c| trimmed(c, true, true)).alias("trim"),
        f("SUBSTRING(text STRING, start INT [, length INT]) -> STRING", |c| {
            let (text, start, length) = (c.text(0)?, c.int(1)?, c.optional_int(2)?);
            c.texts(|row| {
                let length = length.map_or(Some(i64::MAX), |length| length.at(row));
                substring(text.at(row)?, start.at(row)?, length?)
            })
        })
        .alias("substr"),
        f("LEFT(text STRING, length INT) -> STRING", |c| {
            let (text, length) = (c.text(0)?, c.int(1)?);
            c.texts(|row| substring(text.at(row)?, 1, length.at(row)?.max(0)))
        }),
        f("RIGHT(text STRING, length INT) -> STRING", |c| {
            let (text, length) = (c.text(0)?, c.int(1)?);
            c.texts(|row| {
                let (text, length) = (text.at(row)?, length.at(row)?.max(0) as usize);
                let skipped = text.chars().count().saturating_sub(length);
                Some(text[offset(text, skipped)..].to_owned())
            })
        }),
        f("LOCATE(part STRING, text STRING [, start INT]) -> INT", |c| {
            let (part, text, start) = (c.text(0)?, c.text(1)?, c.optional_int(2)?);
            c.ints(|row| {
                let start = start.map_or(Some(1), |start| start.at(row));
                Ok(start.and_then(|start| Some(locate(part.at(row)?, text.at(row)?, start))))
            })
        })
        .alias("position"),
        f("INSTR(text STRING, part STRING [, start INT, occurrence INT]) -> INT", |c| {
            let (text, part) = (c.text(0)?, c.text(1)?);
            let (start, occurrence) = (c.optional_int(2)?, c.optional_int(3)?);
            c.ints(|row| {
                let start = start.map_or(Some(1), |start| start.at(row));
                let occurrence = occurrence.map_or(Some(1), |occurrence| occurrence.at(row));
                let (Some(start), Some(occurrence)) = (start, occurrence) else { return Ok(None) };
                Ok(text.at(row).zip(part.at(row)).map(|(text, part)| instr(text, part, start, occurrence)))
            })
        })
        .alias("strpos"),
        f("REPLACE(text STRING, old STRING, new STRING) -> STRING", |c| {
            let (text, old, new) = (c.text(0)?, c.text(1)?, c.text(2)?);
            c.texts(|row| {
                let (text, old, new) = (text.at(row)?, old.at(row)?, new.at(row)?);
                Some(if old.is_empty() { Cow::Borrowed(text) } else { text.replace(old, new).into() })
            })
        }),
        f("TRANSLATE(text STRING, from STRING, to STRING) -> STRING", |c| {
            let (text, from, to) = (c.text(0)?, c.text(1)?, c.text(2)?);
            c.texts(|row| Some(translate(text.at(row)?, from.at(row)?, to.at(row)?)))
        }),
        f("REPEAT(text STRING, times INT) -> STRING", |c| {
            let (text, times) = (c.text(0)?, c.int(1)?);
            c.try_texts(|row| match (text.at(row), times.at(row)) {
                (Some(text), Some(times)) => {
                    let times = times.max(0) as usize;
                    check_length(text.len().saturating_mul(times), "REPEAT")?;
                    Ok(Some(text.repeat(times)))
                }
                _ => Ok(None),
            })
        }),
        f("LPAD(text STRING, length INT [, pad STRING]) -> STRING", |c| padded(c, |text, pad| pad + text)),
        f("RPAD(text STRING, length INT [, pad STRING]) -> STRING", |c| {
            padded(c, |text, pad| text.to_owned() + &pad)
        }),
        f("OVERLAY(text STRING, new STRING, start INT [, length INT]) -> STRING", |c| {
            let (text, new, start, length) = (c.text(0)?, c.text(1)?, c.int(2)?, c.optional_int(3)?);
            c.texts(|row| {
                let (text, new) = (text.at(row)?, new.at(row)?);
                let length = match length {
                    Some(length) => length.at(row)?,
                    None => new.chars().count() as i64,
                };
                Some(overlay(text, new, start.at(row)?, length))
            })
        }),
        f("CONCAT(text VALUE, ...) -> STRING", |c| {
            let parts = all_shown(c)?;
            c.texts(|row| parts.iter().map(|part| part.at(row)).collect::<Option<String>>())
        }),
        f("CONCAT_WS(separator STRING, text VALUE, ...) -> STRING", |c| {
            let (separator, parts) = (c.text(0)?, all_shown(c)?);
            c.texts(|row| {
                let present: Vec<&str> = parts[1..].iter().filter_map(|part| part.at(row)).collect();
                Some(present.join(separator.at(row)?))
            })
        }),
        f("SPLIT_INDEX(text STRING, separator STRING, index INT) -> STRING", |c| {
            let (text, separator, index) = (c.text(0)?, c.text(1)?, c.int(2)?);
            c.texts(|row| split_index(text.at(row)?, separator.at(row)?, index.at(row)?))
        }),
        f("ELT(index INT, text STRING, ...) -> STRING", |c| {
            let index = c.int(0)?;
            let texts = (1..c.len()).map(|argument| c.text(argument)).collect::<Result<Vec<_>>>()?;
            c.texts(|row| {
                let index = usize::try_from(index.at(row)?).ok()?.checked_sub(1)?;
                texts.get(index)?.at(row)
            })
        }),
        f("STARTSWITH(text STRING, start STRING) -> BOOLEAN", |c| {
            let (text, part) = (c.text(0)?, c.text(1)?);
            c.booleans(|row| Ok(text.at(row).zip(part.at(row)).map(|(text, part)| text.starts_with(part))))
        })
        .alias("starts_with"),
        f("ENDSWITH(text STRING, end STRING) -> BOOLEAN", |c| {
            let (text, part) = (c.text(0)?, c.text(1)?);
            c.booleans(|row| Ok(text.at(row).zip(part.at(row)).map(|(text, part)| text.ends_with(part))))
        })
        .alias("ends_with"),
        f("ASCII(text STRING) -> INT", |c| {
            let text = c.text(0)?;
            c.ints(|row| {
                Ok(text.at(row).map(|text| text.bytes().next().map_or(0, |byte| i64::from(byte as i8))))
            })
        }),
        f("CHR(code INT) -> STRING", |c| {
            let code = c.int(0)?;
            c.texts(|row| {
                let code = code.at(row)?;
                Some(if code < 0 { String::new() } else { char::from((code % 256) as u8).to_string() })
            })
        }),
        f("IS_ALPHA(text VALUE) -> BOOLEAN", |c| judged(c, |text| text.chars().all(char::is_alphabetic))),
        f("IS_DIGIT(text VALUE) -> BOOLEAN", |c| judged(c, |text| text.chars().all(|c| c.is_numeric()))),
        f("IS_DECIMAL(text VALUE) -> BOOLEAN", |c| {
            judged(c, |text| text.parse::<f64>().is_ok() && !text.contains(['n', 'N', 'i', 'I']))
        }),
        f("URL_ENCODE(text STRING) -> STRING", |c| mapped(c, |text| url_encode(text).into())),
        f("URL_DECODE(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.texts(|row| url_decode(text.at(row)?))
        }),
        f("PARSE_URL(url STRING, part STRING [, key STRING]) -> STRING", |c| {
            let (url, part, key) = (c.text(0)?, c.text(1)?, c.optional_text(2)?);
            c.texts(|row| match key {
                Some(key) => url_part(url.at(row)?, part.at(row)?, Some(key.at(row)?)),
                None => url_part(url.at(row)?, part.at(row)?, None),
            })
        }),
    ]
}

/// A text longer than this is a mistake rather than a wish.
const LENGTH_MAX: usize = 64 << 20;

fn check_length(bytes: usize, name: &str) -> Result<()> {
    match bytes <= LENGTH_MAX {
        true => Ok(()),
        false => Err(Error::data(format!("{name} would give a text of {bytes} bytes"))
            .with_hint(format!("texts have at most {LENGTH_MAX} bytes"))),
    }
}

fn mapped(call: &Call<'_>, map: impl Fn(&str) -> Cow<'_, str>) -> Result<ArrayRef> {
    let text = call.text(0)?;
    call.texts(|row| text.at(row).map(&map))
}

fn judged(call: &Call<'_>, judge: impl Fn(&str) -> bool) -> Result<ArrayRef> {
    let text = shown(call, 0)?;
    call.booleans(|row| Ok(Some(text.at(row).is_some_and(|text| !text.is_empty() && judge(text)))))
}

fn all_shown(call: &Call<'_>) -> Result<Vec<super::show::Shown>> {
    (0..call.len()).map(|argument| shown(call, argument)).collect()
}

/// The byte at which the n-th character begins.
fn offset(text: &str, characters: usize) -> usize {
    if text.is_ascii() {
        return characters.min(text.len());
    }
    text.char_indices().nth(characters).map_or(text.len(), |(offset, _)| offset)
}

/// Flink's SUBSTRING: from 1, or from the end if negative; 0 is as 1; a negative length gives NULL.
fn substring(text: &str, start: i64, length: i64) -> Option<String> {
    let length = usize::try_from(length).ok()?;
    let skipped = match start {
        0 => 0,
        1.. => (start - 1) as usize,
        _ => match text.chars().count().checked_sub(start.unsigned_abs() as usize) {
            Some(skipped) => skipped,
            None => return Some(String::new()),
        },
    };
    let rest = &text[offset(text, skipped)..];
    Some(rest[..offset(rest, length)].to_owned())
}

fn trimmed(call: &Call<'_>, front: bool, back: bool) -> Result<ArrayRef> {
    let (text, characters) = (call.text(0)?, call.optional_text(1)?);
    call.texts(|row| {
        let characters = characters.map_or(Some(" "), |characters| characters.at(row))?;
        let unwanted = |letter: char| characters.contains(letter);
        let mut text = text.at(row)?;
        if front {
            text = text.trim_start_matches(unwanted);
        }
        if back {
            text = text.trim_end_matches(unwanted);
        }
        Some(text)
    })
}

fn initcap(text: &str) -> String {
    let mut inside = false;
    let mut capitals = String::with_capacity(text.len());
    for letter in text.chars() {
        match inside {
            true => capitals.extend(letter.to_lowercase()),
            false => capitals.extend(letter.to_uppercase()),
        }
        inside = letter.is_alphanumeric();
    }
    capitals
}

/// The place of a part, from 1; 0 if it is not there.
fn locate(part: &str, text: &str, start: i64) -> i64 {
    let Some(skipped) = usize::try_from(start).ok().and_then(|start| start.checked_sub(1)) else { return 0 };
    let from = offset(text, skipped);
    if skipped > text.chars().count() {
        return 0;
    }
    text[from..].find(part).map_or(0, |found| (text[..from + found].chars().count() + 1) as i64)
}

/// The place of the n-th occurrence; a negative start searches backwards from the end.
fn instr(text: &str, part: &str, start: i64, occurrence: i64) -> i64 {
    if occurrence < 1 || start == 0 {
        return 0;
    }
    let places: Vec<i64> = text
        .char_indices()
        .enumerate()
        .filter(|(_, (offset, _))| text[*offset..].starts_with(part))
        .map(|(place, _)| place as i64 + 1)
        .collect();
    let nth = (occurrence - 1) as usize;
    let found = match start {
        1.. => places.iter().filter(|place| **place >= start).nth(nth),
        _ => {
            let last = text.chars().count() as i64 + start + 1;
            places.iter().rev().filter(|place| **place <= last).nth(nth)
        }
    };
    found.copied().unwrap_or(0)
}

fn translate(text: &str, from: &str, to: &str) -> String {
    let to: Vec<char> = to.chars().collect();
    let translated = |letter: char| match from.chars().position(|known| known == letter) {
        None => Some(letter),
        Some(place) => to.get(place).copied(),
    };
    text.chars().filter_map(translated).collect()
}

fn padded(call: &Call<'_>, join: impl Fn(&str, String) -> String) -> Result<ArrayRef> {
    let (text, length, pad) = (call.text(0)?, call.int(1)?, call.optional_text(2)?);
    call.try_texts(|row| {
        let pad = pad.map_or(Some(" "), |pad| pad.at(row));
        let (Some(text), Some(length), Some(pad)) = (text.at(row), length.at(row), pad) else {
            return Ok(None);
        };
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let own = text.chars().count();
        if length <= own {
            return Ok(Some(text[..offset(text, length)].to_owned()));
        }
        if pad.is_empty() {
            return Ok(None);
        }
        check_length(length, "a padded text")?;
        Ok(Some(join(text, pad.chars().cycle().take(length - own).collect())))
    })
}

fn overlay(text: &str, new: &str, start: i64, length: i64) -> String {
    let characters = text.chars().count() as i64;
    if start < 1 || start > characters {
        return text.to_owned();
    }
    let before = &text[..offset(text, (start - 1) as usize)];
    let rest = match start.saturating_add(length) {
        end if length >= 0 && end <= characters => &text[offset(text, (end - 1) as usize)..],
        _ => "",
    };
    format!("{before}{new}{rest}")
}

/// The part at an index from 0; NULL if there is none.
fn split_index<'a>(text: &'a str, separator: &str, index: i64) -> Option<&'a str> {
    let index = usize::try_from(index).ok()?;
    if text.is_empty() {
        return None;
    }
    match separator {
        "" => text.split(char::is_whitespace).nth(index),
        separator => text.split(separator).nth(index),
    }
}

fn url_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => encoded.push(byte.into()),
            b' ' => encoded.push('+'),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// `None` if it is no encoded text.
fn url_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

/// HOST, PATH, QUERY, REF, PROTOCOL, AUTHORITY, FILE or USERINFO of a URL, or one parameter of its query.
fn url_part(url: &str, part: &str, key: Option<&str>) -> Option<String> {
    let (protocol, rest) = url.split_once("://")?;
    let (rest, reference) = match rest.split_once('#') {
        Some((rest, reference)) => (rest, Some(reference)),
        None => (rest, None),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    match (part, key) {
        ("QUERY", Some(key)) => query?.split('&').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            (name == key).then(|| value.to_owned())
        }),
        (_, Some(_)) => None,
        ("PROTOCOL", None) => Some(protocol.to_owned()),
        ("HOST", None) => Some(host.to_owned()),
        ("PATH", None) => Some(path.to_owned()),
        ("QUERY", None) => query.map(str::to_owned),
        ("REF", None) => reference.map(str::to_owned),
        ("AUTHORITY", None) => Some(authority.to_owned()),
        ("USERINFO", None) => user.map(str::to_owned),
        ("FILE", None) => Some(query.map_or(path.to_owned(), |query| format!("{path}?{query}"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substrings_count_from_one_or_from_the_end() {
        let cut = |start, length| substring("grün€", start, length);
        assert_eq!(cut(3, 2).as_deref(), Some("ün"));
        assert_eq!(cut(0, 2).as_deref(), Some("gr"));
        assert_eq!(cut(-2, 9).as_deref(), Some("n€"));
        assert_eq!(cut(-9, 2).as_deref(), Some(""));
        assert_eq!(cut(9, 2).as_deref(), Some(""));
        assert_eq!(cut(1, -1), None);
        assert_eq!(cut(1, 0).as_deref(), Some(""));
    }

    #[test]
    fn places_of_parts() {
        assert_eq!(locate("b", "äbcb", 1), 2);
        assert_eq!(locate("b", "äbcb", 3), 4);
        assert_eq!(locate("", "ab", 1), 1);
        assert_eq!(locate("x", "ab", 1), 0);
        assert_eq!(locate("a", "ab", 0), 0);
        assert_eq!(instr("corporate floor", "or", 3, 2), 14);
        assert_eq!(instr("corporate floor", "or", -3, 2), 2);
    }

    #[test]
    fn overlays() {
        assert_eq!(overlay("xxxxxtest", "xxxx", 6, 4), "xxxxxxxxx");
        assert_eq!(overlay("abcdef", "X", 2, 3), "aXef");
        assert_eq!(overlay("abc", "X", 9, 1), "abc");
        assert_eq!(overlay("abc", "XYZ", 3, 3), "abXYZ");
    }

    #[test]
    fn splits_and_urls() {
        assert_eq!(split_index("a/b//c", "/", 2), Some(""));
        assert_eq!(split_index("a/b", "/", 2), None);
        assert_eq!(split_index("", "/", 0), None);
        assert_eq!(url_decode("a%20b+c%C3%BC").as_deref(), Some("a b cü"));
        assert_eq!(url_decode("%2"), None);
        assert_eq!(url_encode("a b&ü"), "a+b%26%C3%BC");
        let url = "https://me@host.org:80/a/b?k=1&l=2#end";
        let part = |part, key| url_part(url, part, key);
        assert_eq!(part("HOST", None).as_deref(), Some("host.org"));
        assert_eq!(part("PATH", None).as_deref(), Some("/a/b"));
        assert_eq!(part("QUERY", Some("l")).as_deref(), Some("2"));
        assert_eq!(part("REF", None).as_deref(), Some("end"));
    }
}
