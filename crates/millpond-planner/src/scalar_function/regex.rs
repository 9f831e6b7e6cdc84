//! Functions of regular expressions. A pattern that is none is an error, not NULL.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use millpond_core::{Error, Result};
use regex::{NoExpand, Regex};

use super::builtin::{Call, Definition};

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("REGEXP(text STRING, pattern STRING) -> BOOLEAN", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            c.booleans(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                Ok(Some(!regex.as_str().is_empty() && regex.is_match(text)))
            })
        }),
        f("REGEXP_EXTRACT(text STRING, pattern STRING [, group INT]) -> STRING", |c| {
            let (text, patterns, group) = (c.text(0)?, Patterns::new(c, 1)?, c.optional_int(2)?);
            c.try_texts(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                let group = group.map_or(Some(0), |group| group.at(row));
                let Some(group) = group.and_then(|group| usize::try_from(group).ok()) else {
                    return Ok(None);
                };
                let found = regex.captures(text).and_then(|captures| captures.get(group));
                Ok(found.map(|found| found.as_str()))
            })
        }),
        f("REGEXP_SUBSTR(text STRING, pattern STRING) -> STRING", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            c.try_texts(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                Ok(regex.find(text).map(|found| found.as_str()))
            })
        }),
        f("REGEXP_REPLACE(text STRING, pattern STRING, new STRING) -> STRING", |c| {
            let (text, patterns, new) = (c.text(0)?, Patterns::new(c, 1)?, c.text(2)?);
            c.try_texts(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                Ok(new.at(row).map(|new| regex.replace_all(text, NoExpand(new)).into_owned()))
            })
        }),
        f("REGEXP_COUNT(text STRING, pattern STRING) -> INT", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            c.ints(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                Ok(Some(regex.find_iter(text).count() as i64))
            })
        }),
        f("REGEXP_INSTR(text STRING, pattern STRING) -> INT", |c| {
            let (text, patterns) = (c.text(0)?, Patterns::new(c, 1)?);
            c.ints(|row| {
                let Some((text, regex)) = text.at(row).zip(patterns.at(row)?) else { return Ok(None) };
                let place = |found: regex::Match<'_>| text[..found.start()].chars().count() as i64 + 1;
                Ok(Some(regex.find(text).map_or(0, place)))
            })
        }),
        f("REGEXP_EXTRACT_ALL(text STRING, pattern STRING [, group INT])", extract_all)
            .gives(|_, _| Ok(DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))))),
        f("SIMILAR_TO(text STRING, pattern STRING [, escape STRING]) -> BOOLEAN", |c| {
            let (text, pattern, escape) = (c.text(0)?, c.text(1)?, c.optional_text(2)?);
            let patterns = Patterns::default();
            c.booleans(|row| {
                let Some((text, pattern)) = text.at(row).zip(pattern.at(row)) else { return Ok(None) };
                let escape = match escape {
                    None => None,
                    Some(escape) => match escape.at(row) {
                        None => return Ok(None),
                        Some(escape) => Some(single(escape)?),
                    },
                };
                let regex = patterns.compiled(&similar_pattern(pattern, escape)?)?;
                Ok(Some(regex.is_match(text)))
            })
        }),
        f("LIKE(text STRING, pattern STRING [, escape STRING]) -> BOOLEAN", |c| {
            let (text, pattern, escape) = (c.text(0)?, c.text(1)?, c.optional_text(2)?);
            let patterns = Patterns::default();
            c.booleans(|row| {
                let Some((text, pattern)) = text.at(row).zip(pattern.at(row)) else { return Ok(None) };
                let escape = match escape {
                    None => None,
                    Some(escape) => match escape.at(row) {
                        None => return Ok(None),
                        Some(escape) => Some(single(escape)?),
                    },
                };
                let regex = patterns.compiled(&like_pattern(pattern, escape)?)?;
                Ok(Some(regex.is_match(text)))
            })
        }),
    ]
}

/// Compiled patterns; the last one is kept, since mostly it is the same for all rows.
#[derive(Default)]
struct Patterns<'a> {
    texts: Option<super::builtin::Values<'a, arrow::array::StringArray>>,
    last: RefCell<Option<(String, Rc<Regex>)>>,
}

impl<'a> Patterns<'a> {
    fn new(call: &'a Call<'_>, argument: usize) -> Result<Self> {
        Ok(Self { texts: Some(call.text(argument)?), last: RefCell::default() })
    }

    fn at(&self, row: usize) -> Result<Option<Rc<Regex>>> {
        let pattern = self.texts.and_then(|texts| texts.at(row));
        pattern.map(|pattern| self.compiled(pattern)).transpose()
    }

    fn compiled(&self, pattern: &str) -> Result<Rc<Regex>> {
        if let Some((last, regex)) = self.last.borrow().as_ref()
            && last == pattern
        {
            return Ok(Rc::clone(regex));
        }
        let regex = Rc::new(compile(pattern)?);
        *self.last.borrow_mut() = Some((pattern.to_owned(), Rc::clone(&regex)));
        Ok(regex)
    }
}

/// A pattern ready to be matched.
pub(super) fn compile(pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Error::invalid(format!("the pattern '{pattern}' is no regular expression"))
            .with_detail(reason.to_owned())
    })
}

fn extract_all(c: &Call<'_>) -> Result<ArrayRef> {
    let (text, patterns, group) = (c.text(0)?, Patterns::new(c, 1)?, c.optional_int(2)?);
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in 0..c.rows {
        // Without a group it is the first, as in Flink.
        let group =
            group.map_or(Some(1), |group| group.at(row)).and_then(|group| usize::try_from(group).ok());
        let (Some(text), Some(regex), Some(group)) = (text.at(row), patterns.at(row)?, group) else {
            lists.append_null();
            continue;
        };
        if group >= regex.captures_len() {
            lists.append_null();
            continue;
        }
        for captures in regex.captures_iter(text) {
            lists.values().append_option(captures.get(group).map(|found| found.as_str()));
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

/// The one character of an ESCAPE.
fn single(escape: &str) -> Result<char> {
    let mut characters = escape.chars();
    match (characters.next(), characters.next()) {
        (Some(escape), None) => Ok(escape),
        _ => Err(Error::invalid(format!("ESCAPE '{escape}' is not one character"))),
    }
}

fn wrong(pattern: &str, escape: char) -> Error {
    Error::invalid(format!("the pattern '{pattern}' has an escape before nothing to escape"))
        .with_hint(format!("'{escape}' escapes the signs of patterns and itself only"))
}

/// A LIKE pattern as a regular expression.
fn like_pattern(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut regex = String::from("^(?s:");
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if Some(letter) == escape => match letters.next() {
                Some(next) if next == letter || next == '%' || next == '_' => literal(next, &mut regex),
                _ => return Err(wrong(pattern, letter)),
            },
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            other => literal(other, &mut regex),
        }
    }
    Ok(regex + ")$")
}

/// A SIMILAR TO pattern as a regular expression.
fn similar_pattern(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut regex = String::from("^(?s:");
    let mut in_class = false;
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if Some(letter) == escape => match letters.next() {
                Some(next) => literal(next, &mut regex),
                None => return Err(wrong(pattern, letter)),
            },
            '[' | ']' => {
                in_class = letter == '[';
                regex.push(letter);
            }
            letter if in_class => regex.push(letter),
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            '|' | '*' | '+' | '?' | '{' | '}' | '(' | ')' => regex.push(letter),
            other => literal(other, &mut regex),
        }
    }
    Ok(regex + ")$")
}

fn literal(letter: char, regex: &mut String) {
    regex.push_str(&regex::escape(letter.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_like_and_similar() {
        let like =
            |pattern, escape, text| compile(&like_pattern(pattern, escape).unwrap()).unwrap().is_match(text);
        assert!(like("a%c", None, "a\nbc"));
        assert!(like("a.c", None, "a.c") && !like("a.c", None, "abc"));
        assert!(like("a!_c", Some('!'), "a_c") && !like("a!_c", Some('!'), "abc"));
        assert!(like_pattern("a!", Some('!')).is_err() && like_pattern("!a", Some('!')).is_err());
        let similar =
            |pattern, text| compile(&similar_pattern(pattern, None).unwrap()).unwrap().is_match(text);
        assert!(similar("(a|b)%", "bcd") && !similar("(a|b)", "bcd"));
        assert!(similar("[a-c]{2}", "ab") && !similar("a.c", "abc"));
    }
}
