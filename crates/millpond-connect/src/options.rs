//! Options of a connector table: read once into typed values; what is left over is refused.

use std::collections::BTreeMap;

use millpond_core::quantity::{parse_duration, parse_size};
use millpond_core::{Error, Result};

/// The `WITH` options of one table while a connector takes what it knows.
///
/// ```
/// # use millpond_connect::options::Options;
/// let mut options = Options::new("t", [("path".to_string(), "/a".to_string())].into());
/// assert_eq!(options.require("path").unwrap(), "/a");
/// options.finish(&["path", "format"]).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    table: String,
    left: BTreeMap<String, String>,
}

impl Options {
    /// The options of a table as they stand in its definition.
    pub fn new(table: &str, options: BTreeMap<String, String>) -> Self {
        Self { table: table.into(), left: options }
    }
    /// The table's name.
    pub fn table(&self) -> &str {
        &self.table
    }
    /// A text, if given.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.left.remove(key)
    }
    /// A text that must be given.
    pub fn require(&mut self, key: &str) -> Result<String> {
        self.text(key).ok_or_else(|| {
            let error = Error::invalid(format!("table {:?} lacks the option '{key}'", self.table));
            match self.left.keys().find(|given| strsim::damerau_levenshtein(given, key) <= 2) {
                Some(given) => error.with_hint(format!("there is '{given}': did you mean '{key}'?")),
                None => error.with_hint(format!("add '{key}' = '…' to WITH (…)")),
            }
        })
    }
    /// A value read by a parser; the error names table and key.
    pub fn parse<T>(&mut self, key: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
        match self.left.remove(key) {
            None => Ok(None),
            Some(text) => match parse(&text) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(error.context(format!("option '{key}' of table {:?}", self.table))),
            },
        }
    }
    /// `true` or `false`.
    pub fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        self.parse(key, |text| match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Error::invalid(format!("{text:?} is neither true nor false"))),
        })
    }
    /// A whole number.
    pub fn number<T: std::str::FromStr>(&mut self, key: &str) -> Result<Option<T>> {
        self.parse(key, |text| {
            text.trim().parse().map_err(|_| Error::invalid(format!("{text:?} is not a number in range")))
        })
    }
    /// A duration in microseconds.
    pub fn duration(&mut self, key: &str) -> Result<Option<i64>> {
        self.parse(key, parse_duration)
    }
    /// A size in bytes.
    pub fn size(&mut self, key: &str) -> Result<Option<u64>> {
        self.parse(key, parse_size)
    }
    /// One of a closed set of words.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        self.parse(key, |text| {
            choices
                .iter()
                .find(|(word, _)| word.eq_ignore_ascii_case(text))
                .map(|(_, value)| *value)
                .ok_or_else(|| {
                    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                    let error = Error::invalid(format!("{text:?} is not one of {}", words.join(", ")));
                    match nearest(text, words) {
                        Some(word) => error.with_hint(format!("did you mean '{word}'?")),
                        None => error,
                    }
                })
        })
    }
    /// Options with a common prefix, e.g. all `fields.…` of datagen, taken out together.
    pub fn with_prefix(&mut self, prefix: &str) -> BTreeMap<String, String> {
        let keys: Vec<String> = self.left.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        keys.into_iter().filter_map(|key| self.left.remove_entry(&key)).collect()
    }
    /// Keeps only what `other` has left too: both sides of a connector take from a copy of their
    /// own, and what either took is known.
    pub fn keep_left_in(&mut self, other: &Options) {
        self.left.retain(|key, _| other.left.contains_key(key));
    }
    /// Refuses what nobody took, naming the nearest of the `known` keys.
    pub fn finish(self, known: &[&str]) -> Result<()> {
        let Some(key) = self.left.keys().next() else { return Ok(()) };
        let error = Error::invalid(format!("table {:?} has an unknown option '{key}'", self.table));
        Err(match nearest(key, known.iter().copied()) {
            Some(word) => error.with_hint(format!("did you mean '{word}'?")),
            None => error.with_hint(format!("known options: {}", known.join(", "))),
        })
    }
}

/// The candidate most like `word`, if any is alike at all.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
