//! From text to statements: our own grammar of statements around sqlparser's of queries.
//!
//! ```text
//! text ─split─▶ StatementSource ─tokenize─▶ tokens ─statement─▶ Statement
//! ```
//!
//! sqlparser's own statements are a closed enum without watermarks, statement sets or jobs, so
//! statements are parsed here, by phrases ([`phrase`]); names, types, expressions and queries are
//! left to its `Parser`, over the same tokens. Every place in a tree or an error is one of the
//! whole script.

use millpond_core::{Error, Location, Result};
use sqlparser::ast;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::dialect::StreamDialect;
use crate::stack::with_deep_stack;
use crate::statement::{ParsedStatement, Statement};

mod command;
mod complaint;
mod phrase;
mod query;
mod script;
mod table;
mod token;

pub use script::{StatementSource, is_complete, split_statements};

/// How deep expressions and subqueries may be nested.
const DEPTH_MAX: usize = 128;

/// All statements of a script. Fails at the first error, so what shall run up to an error is
/// rather split with [`split_statements`] and parsed one by one.
pub fn parse(sql: &str) -> Result<Vec<ParsedStatement>> {
    split_statements(sql).iter().map(parse_one).collect()
}

/// One statement of a script.
///
/// An error is of kind Invalid, has its place in the script and mostly a hint.
pub fn parse_one(source: &StatementSource) -> Result<ParsedStatement> {
    with_deep_stack(|| parse_statement(source)).map_err(|error| error.with_location(Some(source.location)))
}

fn parse_statement(source: &StatementSource) -> Result<ParsedStatement> {
    let tokens = token::tokenize(source)?;
    let dialect = StreamDialect::for_tokens(tokens.len());
    let mut parser = StatementParser::new(source, &dialect, tokens);
    let statement = parser.statement()?;
    parser.require_end()?;
    Ok(ParsedStatement { statement, text: source.text.clone(), location: source.location })
}

/// sqlparser's parser over tokens of ours.
fn stream_parser(dialect: &StreamDialect, tokens: Vec<TokenWithSpan>) -> Parser<'_> {
    Parser::new(dialect).with_recursion_limit(DEPTH_MAX).with_tokens_with_locations(tokens)
}

/// Parses one statement.
struct StatementParser<'a> {
    source: &'a StatementSource,
    /// A second copy, for complaints: sqlparser does not lend its own.
    tokens: Vec<TokenWithSpan>,
    parser: Parser<'a>,
    dialect: &'a StreamDialect,
    /// Just behind the last token.
    end: Location,
    /// Where `EMIT CHANGES` stands at the end of the statement, until a query claims it.
    emit_changes: Option<Location>,
}

impl<'a> StatementParser<'a> {
    fn new(source: &'a StatementSource, dialect: &'a StreamDialect, mut tokens: Vec<TokenWithSpan>) -> Self {
        let end = tokens.last().and_then(|last| token::location(last.span.end)).unwrap_or(source.location);
        let emit_changes = take_emit_changes(&mut tokens);
        let parser = stream_parser(dialect, tokens.clone());
        Self { source, tokens, parser, dialect, end, emit_changes }
    }

    fn require_end(&self) -> Result<()> {
        if self.peek(0).token != Token::EOF {
            let hint = complaint::hint(&self.tokens, self.parser.index());
            let error = self.unexpected("the end of the statement");
            return Err(hint.into_iter().fold(error, Error::with_hint));
        }
        match self.emit_changes {
            Some(place) => Err(Error::invalid("EMIT CHANGES belongs to a query")
                .with_hint("remove EMIT CHANGES")
                .with_location(Some(place))),
            None => Ok(()),
        }
    }

    /// The token that comes after so many others.
    fn peek(&self, ahead: usize) -> &TokenWithSpan {
        self.parser.peek_nth_token_ref(ahead)
    }

    /// Whether these keywords come next.
    fn at(&self, keywords: &[&str]) -> bool {
        keywords.iter().enumerate().all(|(ahead, keyword)| token::is_word(self.peek(ahead), keyword))
    }

    /// Takes these keywords, if they come next.
    fn take(&mut self, keywords: &[&str]) -> bool {
        let found = self.at(keywords);
        if found {
            self.advance(keywords.len());
        }
        found
    }

    fn advance(&mut self, count: usize) {
        for _ in 0..count {
            self.parser.advance_token();
        }
    }

    fn expect(&mut self, keyword: &str) -> Result<()> {
        if self.take(&[keyword]) { Ok(()) } else { Err(self.unexpected(keyword)) }
    }

    fn take_symbol(&mut self, symbol: &Token) -> bool {
        self.parser.consume_token(symbol)
    }

    fn expect_symbol(&mut self, symbol: &Token, what: &str) -> Result<()> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(self.unexpected(what)) }
    }

    fn unexpected(&self, what: &str) -> Error {
        complaint::expected(what, self.peek(0), self.end)
    }

    /// `what is not supported yet`, at the next token.
    fn unsupported(&self, what: &str, hint: &str) -> Error {
        complaint::unsupported(what, hint).with_location(Some(self.here()))
    }

    /// Where the next token stands.
    fn here(&self) -> Location {
        token::location(self.peek(0).span.start).unwrap_or(self.end)
    }

    /// Runs one of sqlparser's parsers and has its errors said in our words.
    fn delegate<T>(
        &mut self,
        parse: impl FnOnce(&mut Parser<'a>) -> Result<T, sqlparser::parser::ParserError>,
    ) -> Result<T> {
        parse(&mut self.parser).map_err(|error| {
            if self.dialect.is_exhausted() {
                return complaint::exhausted();
            }
            complaint::culprit(&self.tokens, self.end)
                .unwrap_or_else(|| complaint::of_parser(&error, &self.tokens, self.end))
        })
    }

    /// The name of a table, view or column.
    fn name(&mut self, what: &str) -> Result<ast::Ident> {
        let Token::Word(word) = &self.peek(0).token else {
            let quoted = matches!(self.peek(0).token, Token::SingleQuotedString(_));
            let error = self.unexpected(what);
            return Err(if quoted {
                error.with_hint("names stand in `backticks` or \"quotes\"")
            } else {
                error
            });
        };
        let name = word.to_ident(self.peek(0).span);
        if self.peek(1).token == Token::Period {
            return Err(self.unsupported("a name with a database", "write the bare name"));
        }
        self.advance(1);
        Ok(name)
    }

    /// `(a, b, …)`.
    fn names(&mut self, what: &str) -> Result<Vec<ast::Ident>> {
        self.expect_symbol(&Token::LParen, "(")?;
        let mut names = vec![self.name(what)?];
        while self.take_symbol(&Token::Comma) {
            names.push(self.name(what)?);
        }
        self.expect_symbol(&Token::RParen, ") or ,")?;
        Ok(names)
    }

    /// A string in single quotes.
    fn string(&mut self, what: &str) -> Result<String> {
        let Token::SingleQuotedString(text) = &self.peek(0).token else {
            return Err(self.unexpected(what));
        };
        let text = text.clone();
        self.advance(1);
        Ok(text)
    }

    /// The text of the statement from a place to its end.
    fn text_from(&self, place: Location) -> &'a str {
        let mut at = self.source.location;
        for (offset, ch) in self.source.text.char_indices() {
            if at == place {
                return &self.source.text[offset..];
            }
            at = if ch == '\n' {
                Location { line: at.line + 1, column: 1 }
            } else {
                Location { line: at.line, column: at.column + 1 }
            };
        }
        ""
    }

    /// `IF NOT EXISTS`.
    fn if_not_exists(&mut self) -> bool {
        self.take(&["IF", "NOT", "EXISTS"])
    }

    fn statement(&mut self) -> Result<Statement> {
        if self.at_query() { self.select() } else { phrase::statement(self) }
    }
}

fn take_emit_changes(tokens: &mut Vec<TokenWithSpan>) -> Option<Location> {
    let [.., emit, changes] = tokens.as_slice() else { return None };
    if !(token::is_word(emit, "EMIT") && token::is_word(changes, "CHANGES")) {
        return None;
    }
    let place = token::location(emit.span.start);
    tokens.truncate(tokens.len() - 2);
    place
}

#[cfg(test)]
mod tests;
