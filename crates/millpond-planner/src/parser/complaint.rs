//! What is wrong with a statement, said in our words: place, what was expected, how to mend it.
//!
//! sqlparser reports by text only (`Expected: identifier, found: ( at Line: 1, Column: 7`), so the
//! text is taken apart here. Where it backtracks (a subquery that could also be a nested join),
//! its complaint is about the outer statement; [`culprit`] looks for the innermost subquery that
//! does not parse by itself and complains about that one.

use millpond_core::{Error, Location};
use sqlparser::keywords::Keyword;
use sqlparser::parser::ParserError;
use sqlparser::tokenizer::{Token, TokenWithSpan, TokenizerError};

use super::token::{bare_word, is_word, location, shifted};
use super::{DEPTH_MAX, stream_parser};
use crate::dialect::StreamDialect;

/// Characters of a token shown in a message.
const SHOWN_MAX: usize = 40;

/// Words that begin a clause: mistyped, they are taken for an alias, and the complaint is about
/// what follows.
const CLAUSES: [&str; 22] = [
    "BETWEEN",
    "CROSS",
    "DISTINCT",
    "EXCEPT",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "INNER",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "JOIN",
    "LEFT",
    "LIMIT",
    "OFFSET",
    "ORDER",
    "PARTITION",
    "RIGHT",
    "SELECT",
    "UNION",
    "WHERE",
];

/// `expected what, found …`.
pub(super) fn expected(what: &str, found: &TokenWithSpan, end: Location) -> Error {
    Error::invalid(format!("expected {what}, found {}", shown(&found.token)))
        .with_location(Some(location(found.span.start).unwrap_or(end)))
}

/// `what is not supported yet`.
pub(super) fn unsupported(what: &str, hint: &str) -> Error {
    let error = Error::invalid(format!("{what} is not supported yet"));
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// The candidate that a word was probably meant to be.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_uppercase();
    let distance_max = if word.len() > 4 { 2 } else { 1 };
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= distance_max && *distance < candidate.len() / 2 + 1)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A character or literal that is none.
pub(super) fn of_tokenizer(error: &TokenizerError, origin: Location) -> Error {
    Error::invalid(lower_case(&error.message)).with_location(location(shifted(error.location, origin)))
}

/// What sqlparser said about a statement.
pub(super) fn of_parser(error: &ParserError, tokens: &[TokenWithSpan], end: Location) -> Error {
    let text = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
        ParserError::RecursionLimitExceeded => return too_deep(),
    };
    let (message, place) = split_location(text);
    let mut at = tokens
        .iter()
        .position(|token| place.is_some() && location(token.span.start) == place)
        .unwrap_or(tokens.len());
    // This one complaint is made when the token is taken already.
    if message.starts_with("Expected an expression, found") {
        at = at.saturating_sub(1);
    }
    let found = tokens.get(at).map_or("the end of the statement".into(), |token| shown(&token.token));
    let expectation = message.strip_prefix("Expected").map(|rest| rest.trim_start_matches([':', ' ']));
    let message = match expectation.and_then(|rest| rest.rsplit_once(", found: ")) {
        Some((what, _)) => format!("expected {}, found {found}", in_our_words(what)),
        None if message.starts_with("No infix parser") => format!("unexpected {found}"),
        None => lower_case(message),
    };
    let place = tokens.get(at).and_then(|token| location(token.span.start)).or(place).unwrap_or(end);
    let error = Error::invalid(message).with_location(Some(place));
    hint(tokens, at).into_iter().fold(error, Error::with_hint)
}

/// More parentheses, CASEs or subqueries in one another than the parser follows.
pub(super) fn too_deep() -> Error {
    Error::invalid("the statement is nested too deeply")
        .with_detail(format!("at most {DEPTH_MAX} levels"))
        .with_hint("name the inner queries with WITH or CREATE VIEW")
}

/// The parse was ended by [`StreamDialect::is_exhausted`].
pub(super) fn exhausted() -> Error {
    Error::invalid("there is a mistake in this statement, too deep inside to tell where")
        .with_hint("try its inner parts one by one; WITH and CREATE VIEW give them names")
}

/// How to mend what stands at a token that was not expected there.
pub(super) fn hint(tokens: &[TokenWithSpan], at: usize) -> Option<String> {
    let before = at.checked_sub(1).and_then(|index| tokens.get(index));
    let found = tokens.get(at);
    if let Some(clause) = [found, before].into_iter().flatten().find_map(mistyped_clause) {
        return Some(format!("did you mean {clause}?"));
    }
    let word = bare_word(found?)?;
    let ends_a_list = ["FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT"]
        .iter()
        .any(|clause| clause.eq_ignore_ascii_case(word));
    let comma = before.is_some_and(|token| token.token == Token::Comma);
    (ends_a_list && comma).then(|| format!("remove the comma before {word}"))
}

fn mistyped_clause(token: &TokenWithSpan) -> Option<&'static str> {
    let word = bare_word(token)?.to_ascii_uppercase();
    let joined = ["GROUP BY", "ORDER BY", "PARTITION BY", "UNION ALL"];
    if let Some(clause) = joined.into_iter().find(|clause| clause.replace(' ', "") == word) {
        return Some(clause);
    }
    let known = matches!(&token.token, Token::Word(word) if word.keyword != Keyword::NoKeyword);
    if known || word.len() < 4 {
        return None;
    }
    CLAUSES
        .into_iter()
        .find(|clause| strsim::damerau_levenshtein(&word, clause) == 1 && word != format!("{clause}S"))
}

/// `Expected: … at Line: 2, Column: 7` → the text, and line 2, column 7.
fn split_location(text: &str) -> (&str, Option<Location>) {
    let parsed = text.rsplit_once(" at Line: ").and_then(|(message, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((message, Location { line: line.parse().ok()?, column: column.parse().ok()? }))
    });
    match parsed {
        Some((message, place)) => (message, Some(place)),
        None => (text, None),
    }
}

fn in_our_words(what: &str) -> &str {
    match what {
        "identifier" => "a name",
        "literal string" => "a string in single quotes",
        "literal int" => "a whole number",
        "joined table" => "a table",
        "end of statement" => "the end of the statement",
        "an expression:" => "an expression",
        "SELECT, VALUES, or a subquery in the query body" => "a query",
        other => other,
    }
}

fn lower_case(message: &str) -> String {
    let mut rest = message.trim_end_matches('.').chars();
    match (rest.next(), rest.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(rest).collect(),
        (_, _) => message.into(),
    }
}

fn shown(token: &Token) -> String {
    let text = match token {
        Token::EOF => return "the end of the statement".into(),
        other => other.to_string(),
    };
    match text.char_indices().nth(SHOWN_MAX) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// The complaint about the innermost subquery that does not parse by itself.
pub(super) fn culprit(tokens: &[TokenWithSpan], end: Location) -> Option<Error> {
    let dialect = StreamDialect::for_tokens(tokens.len());
    let mut open = vec![];
    for (index, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen => open.push(index),
            Token::RParen => {
                let Some(start) = open.pop() else { continue };
                let close = location(token.span.start).unwrap_or(end);
                if let Some(error) = complaint_about(&dialect, &tokens[start + 1..index], close) {
                    return Some(error);
                }
            }
            _ => {}
        }
    }
    open.into_iter().rev().find_map(|start| complaint_about(&dialect, &tokens[start + 1..], end))
}

/// What is wrong with the tokens between two parentheses, if they are a query.
fn complaint_about(dialect: &StreamDialect, tokens: &[TokenWithSpan], end: Location) -> Option<Error> {
    let first = tokens.first()?;
    if !["SELECT", "WITH", "VALUES"].iter().any(|word| is_word(first, word)) {
        return None;
    }
    let mut parser = stream_parser(dialect, tokens.to_vec());
    let result = parser.parse_query().and_then(|_| match &parser.peek_token_ref().token {
        Token::EOF => Ok(()),
        _ => parser.expected(")", parser.peek_token()),
    });
    result.err().map(|error| of_parser(&error, tokens, end))
}
