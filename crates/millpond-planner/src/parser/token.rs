//! From the text of a statement to the tokens that sqlparser is given.
//!
//! A few things of Flink's that sqlparser does not know are put into words it knows; every token
//! keeps the place it had in the user's text, so that errors point there.
//!
//! | written | given to sqlparser |
//! |---|---|
//! | `ROW<a INT, …>` | `STRUCT<a INT, …>` |
//! | `ROW<a INT NOT NULL>` | without NOT NULL: nested fields are all nullable |
//! | `TIMESTAMP(3) WITH LOCAL TIME ZONE` | `TIMESTAMP_LTZ(3)` |
//!
//! Blanks and comments go, hints behind SELECT stay (they are comments to sqlparser, which keeps
//! them in `Select::optimizer_hints`).

use millpond_core::{Error, Location, Result};
use sqlparser::tokenizer::{self, Token, TokenWithSpan, Tokenizer, Whitespace};

use super::script::{LexemeKind, Scanner, StatementSource};
use super::{DEPTH_MAX, complaint};
use crate::dialect::StreamDialect;

/// Operators of one level of parentheses, between two commas; some stacks are only 2 MB.
const OPERATORS_MAX: usize = 500;
/// How deep types may be nested.
const TYPE_DEPTH_MAX: usize = 32;

/// The tokens of a statement, placed in its script.
pub(super) fn tokenize(source: &StatementSource) -> Result<Vec<TokenWithSpan>> {
    require_closed_quotes(source)?;
    let origin = source.location;
    let mut tokens = Tokenizer::new(&StreamDialect::for_tokens(0), &source.text)
        .tokenize_with_location()
        .map_err(|error| complaint::of_tokenizer(&error, origin))?;
    for token in &mut tokens {
        token.span.start = shifted(token.span.start, origin);
        token.span.end = shifted(token.span.end, origin);
    }
    require_hints_in_place(&tokens)?;
    tokens.retain(|token| is_hint(&token.token) || !matches!(token.token, Token::Whitespace(_)));
    require_supported(&tokens)?;
    require_shallow(&tokens)?;
    name_structs(&mut tokens);
    drop_nested_not_null(&mut tokens);
    Ok(name_local_time_zone(tokens))
}

/// The place of a token in our terms; `None` for the end of the text, which has none.
pub(super) fn location(place: tokenizer::Location) -> Option<Location> {
    (place.line > 0).then_some(Location { line: place.line, column: place.column })
}

/// Whether a token is this keyword, not in quotes.
pub(super) fn is_word(token: &TokenWithSpan, keyword: &str) -> bool {
    bare_word(token).is_some_and(|word| word.eq_ignore_ascii_case(keyword))
}

/// A word without quotes.
pub(super) fn bare_word(token: &TokenWithSpan) -> Option<&str> {
    match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(&word.value),
        _ => None,
    }
}

/// A place in the statement, moved to its place in the script.
pub(super) fn shifted(place: tokenizer::Location, origin: Location) -> tokenizer::Location {
    match place.line {
        0 => place,
        1 => tokenizer::Location { line: origin.line, column: place.column + origin.column - 1 },
        line => tokenizer::Location { line: line + origin.line - 1, column: place.column },
    }
}

/// sqlparser reports some of these at the end of the text; the user looks for the beginning.
fn require_closed_quotes(source: &StatementSource) -> Result<()> {
    for lexeme in Scanner::new(&source.text) {
        let LexemeKind::Unterminated { opened_by } = lexeme.kind else { continue };
        let (what, close) = match opened_by {
            '\'' => ("string", "'"),
            '/' => ("comment", "*/"),
            '"' => ("quoted name", "\""),
            _ => ("quoted name", "`"),
        };
        let place = tokenizer::Location { line: lexeme.location.line, column: lexeme.location.column };
        return Err(Error::invalid(format!("the {what} is not closed"))
            .with_hint(format!("close it with {close}"))
            .with_location(location(shifted(place, source.location))));
    }
    Ok(())
}

fn is_hint(token: &Token) -> bool {
    matches!(token, Token::Whitespace(Whitespace::MultiLineComment(text)) if text.starts_with('+'))
}

/// A hint elsewhere would be dropped as a comment, and the user would wait for its effect.
fn require_hints_in_place(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut after_select = false;
    for token in tokens {
        if is_hint(&token.token) && !after_select {
            return Err(Error::invalid("a hint is not supported here yet")
                .with_hint("hints stand behind SELECT: SELECT /*+ … */ …")
                .with_location(location(token.span.start)));
        }
        if !matches!(token.token, Token::Whitespace(_)) {
            after_select = is_word(token, "SELECT");
        }
    }
    Ok(())
}

fn require_supported(tokens: &[TokenWithSpan]) -> Result<()> {
    for pair in tokens.windows(2) {
        if is_word(&pair[0], "MATCH_RECOGNIZE") && pair[1].token == Token::LParen {
            return Err(
                complaint::unsupported("MATCH_RECOGNIZE", "").with_location(location(pair[0].span.start))
            );
        }
    }
    Ok(())
}

/// Brackets in one another, types in one another and chains of operators become trees as deep,
/// which are walked recursively; not all of sqlparser's parsers count their depth.
fn require_shallow(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut outer: Vec<usize> = vec![];
    let mut operators = 0usize;
    let mut types = 0usize;
    for (index, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen | Token::LBracket => outer.push(std::mem::take(&mut operators)),
            Token::RParen | Token::RBracket => operators = outer.pop().unwrap_or_default(),
            Token::Comma | Token::SemiColon => operators = 0,
            _ if is_word(token, "CASE") => outer.push(std::mem::take(&mut operators)),
            _ if is_word(token, "END") => operators = outer.pop().unwrap_or_default(),
            _ if begins_branch(token) => operators = 0,
            _ if is_operator(token) => operators += 1,
            _ => {}
        }
        match &token.token {
            Token::Lt if index > 0 && is_nested_type(&tokens[index - 1]) => types += 1,
            Token::Gt => types = types.saturating_sub(1),
            Token::ShiftRight => types = types.saturating_sub(2),
            _ => {}
        }
        let place = location(token.span.start);
        if outer.len() > DEPTH_MAX || types > TYPE_DEPTH_MAX {
            return Err(complaint::too_deep().with_location(place));
        }
        if operators > OPERATORS_MAX {
            return Err(Error::invalid(format!("more than {OPERATORS_MAX} operators in a row"))
                .with_hint("use IN (…) instead of OR, VALUES instead of UNION")
                .with_location(place));
        }
    }
    Ok(())
}

/// What follows is a branch of CASE, beside the ones before it rather than below them.
fn begins_branch(token: &TokenWithSpan) -> bool {
    ["WHEN", "THEN", "ELSE"].iter().any(|word| is_word(token, word))
}

fn is_nested_type(token: &TokenWithSpan) -> bool {
    const NESTED: [&str; 5] = ["ROW", "STRUCT", "ARRAY", "MAP", "MULTISET"];
    NESTED.iter().any(|name| is_word(token, name))
}

fn is_operator(token: &TokenWithSpan) -> bool {
    const WORDS: [&str; 14] = [
        "AND",
        "AT",
        "BETWEEN",
        "COLLATE",
        "EXCEPT",
        "ILIKE",
        "IN",
        "INTERSECT",
        "IS",
        "LIKE",
        "MINUS",
        "OR",
        "SIMILAR",
        "UNION",
    ];
    match &token.token {
        Token::Word(_) => WORDS.iter().any(|word| is_word(token, word)),
        Token::Number(..) | Token::SingleQuotedString(_) | Token::Period | Token::Whitespace(_) => false,
        _ => true,
    }
}

fn name_structs(tokens: &mut [TokenWithSpan]) {
    for index in 0..tokens.len() {
        if is_word(&tokens[index], "ROW") && opens_type(tokens, index) {
            tokens[index].token = Token::make_keyword("STRUCT");
        }
    }
}

/// Whether a word is a type that is followed by its parameters, and not the left side of `<`.
fn opens_type(tokens: &[TokenWithSpan], index: usize) -> bool {
    let named = is_word(&tokens[index], "ROW") || is_word(&tokens[index], "STRUCT");
    let word = |ahead: usize| matches!(tokens.get(index + ahead).map(|t| &t.token), Some(Token::Word(_)));
    is_nested_type(&tokens[index])
        && tokens.get(index + 1).is_some_and(|next| next.token == Token::Lt)
        && word(2)
        && (!named || word(3))
}

fn drop_nested_not_null(tokens: &mut Vec<TokenWithSpan>) {
    let mut depth = 0usize;
    let mut index = 0;
    while index < tokens.len() {
        match &tokens[index].token {
            Token::Word(_) if opens_type(tokens, index) => depth += 1,
            Token::Word(_) if depth > 0 && is_not_null(tokens, index) => {
                tokens.drain(index..index + 2);
                continue;
            }
            Token::Gt => depth = depth.saturating_sub(1),
            Token::ShiftRight => depth = depth.saturating_sub(2),
            Token::Word(_) | Token::Number(..) | Token::Comma | Token::Lt | Token::LParen | Token::RParen => {
            }
            _ => depth = 0,
        }
        index += 1;
    }
}

/// `NOT NULL`, but not that of `IS NOT NULL`.
fn is_not_null(tokens: &[TokenWithSpan], index: usize) -> bool {
    is_word(&tokens[index], "NOT")
        && tokens.get(index + 1).is_some_and(|next| is_word(next, "NULL"))
        && index.checked_sub(1).is_some_and(|before| !is_word(&tokens[before], "IS"))
}

fn name_local_time_zone(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    const ZONE: [&str; 4] = ["WITH", "LOCAL", "TIME", "ZONE"];
    let mut named: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut rest = tokens.into_iter();
    while let Some(token) = rest.next() {
        let ahead = std::iter::once(&token).chain(rest.as_slice()).take(ZONE.len());
        let zone = rest.len() >= 3 && ahead.zip(ZONE).all(|(token, word)| is_word(token, word));
        match (zone, timestamp_at_end(&named)) {
            (true, Some(timestamp)) => {
                named[timestamp].token = Token::make_word("TIMESTAMP_LTZ", None);
                rest.nth(ZONE.len() - 2);
            }
            (true | false, _) => named.push(token),
        }
    }
    named
}

/// Where `TIMESTAMP` or `TIMESTAMP(p)` begins, if the tokens end with it.
fn timestamp_at_end(tokens: &[TokenWithSpan]) -> Option<usize> {
    let with_precision = matches!(
        tokens.last_chunk::<3>().map(|last| last.each_ref().map(|token| &token.token)),
        Some([Token::LParen, Token::Number(..), Token::RParen])
    );
    let index = tokens.len().checked_sub(if with_precision { 4 } else { 1 })?;
    is_word(&tokens[index], "TIMESTAMP").then_some(index)
}
