//! JSON paths: `$.a.b[0]`, `$['a']`, `$[*]`, `$.*`, with `lax` (the default) or `strict` before them.

use millpond_core::{Error, Result};

use super::json_value::Json;

/// A path, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// A missing member is an error rather than nothing.
    pub(super) strict: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Item(usize),
    All,
}

/// What a path finds.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Nothing,
    /// A member is missing, and the path is strict.
    Missing,
    One(Json),
}

impl Path {
    /// Takes a path apart.
    pub(super) fn parse(text: &str) -> Result<Self> {
        Self::steps(text).ok_or_else(|| {
            Error::invalid(format!("'{text}' is no JSON path"))
                .with_hint("for example '$.user.names[0]', 'strict $.id', '$[*]'")
        })
    }

    fn steps(text: &str) -> Option<Self> {
        let mut rest = text.trim();
        let mut strict = false;
        for (word, is_strict) in [("lax", false), ("strict", true)] {
            if let Some(after) = rest.strip_prefix(word).filter(|after| after.starts_with(' ')) {
                (rest, strict) = (after.trim_start(), is_strict);
            }
        }
        rest = rest.strip_prefix('$')?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = if let Some(after) = rest.strip_prefix('.') {
                Self::member(after)?
            } else {
                let inside = rest.strip_prefix('[')?;
                Self::bracket(inside.trim_start())?
            };
            steps.push(step);
            rest = after;
        }
        Some(Self { strict, steps })
    }

    fn member(text: &str) -> Option<(Step, &str)> {
        if let Some(after) = text.strip_prefix('*') {
            return Some((Step::All, after));
        }
        if let Some(quoted) = text.strip_prefix('"') {
            let (name, after) = quoted.split_once('"')?;
            return Some((Step::Member(name.to_owned()), after));
        }
        let end = text.find(|letter: char| ".[ ".contains(letter)).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        (!name.is_empty() && !name.contains(['(', ')', '?', '@']))
            .then(|| (Step::Member(name.to_owned()), after))
    }

    fn bracket(text: &str) -> Option<(Step, &str)> {
        for quote in ['\'', '"'] {
            if let Some(quoted) = text.strip_prefix(quote) {
                let (name, after) = quoted.split_once(quote)?;
                return Some((Step::Member(name.to_owned()), after.trim_start().strip_prefix(']')?));
            }
        }
        let (index, after) = text.split_once(']')?;
        match index.trim() {
            "*" => Some((Step::All, after)),
            index => Some((Step::Item(index.parse().ok()?), after)),
        }
    }

    /// What the path leads to. A path through all items gives an array of what it finds.
    pub(super) fn find(&self, json: &Json) -> Found {
        let mut found = vec![json];
        let mut several = false;
        for step in &self.steps {
            let mut next = Vec::new();
            for json in found {
                match (step, json) {
                    (Step::Member(name), Json::Object(members)) => {
                        next.extend(members.iter().find(|(known, _)| known == name).map(|(_, value)| value));
                    }
                    (Step::Item(index), Json::Array(items)) => next.extend(items.get(*index)),
                    (Step::All, Json::Array(items)) => next.extend(items),
                    (Step::All, Json::Object(members)) => next.extend(members.iter().map(|(_, value)| value)),
                    _ => {}
                }
            }
            several |= *step == Step::All;
            found = next;
        }
        match (found.as_slice(), several) {
            (found, true) => Found::One(Json::Array(found.iter().copied().cloned().collect())),
            ([one], false) => Found::One((*one).clone()),
            _ if self.strict => Found::Missing,
            _ => Found::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_values() {
        let json = Json::parse(r#"{"a": {"b c": [1, {"d": null}]}, "e": []}"#).unwrap();
        let find = |path: &str| match Path::parse(path).unwrap().find(&json) {
            Found::One(found) => found.to_text(),
            Found::Nothing => "nothing".into(),
            Found::Missing => "missing".into(),
        };
        let cases = [
            ("$.a['b c'][0]", "1"),
            ("lax $.a.\"b c\"[1].d", "null"),
            ("$.a.x", "nothing"),
            ("strict $.a.x", "missing"),
            ("$.e", "[]"),
            ("$.a['b c'][*]", "[1,{\"d\":null}]"),
            ("$.e[*].x", "[]"),
        ];
        for (path, expected) in cases {
            assert_eq!(find(path), expected, "{path}");
        }
        for wrong in ["", "a.b", "$.", "$[x]", "$.a[?(@.b)]", "$['a"] {
            assert!(Path::parse(wrong).is_err(), "{wrong}");
        }
    }
}
