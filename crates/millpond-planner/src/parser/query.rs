//! Queries, INSERT, statement sets, EXPLAIN.

use millpond_core::{Error, Result};
use millpond_operators::sink_materialize::Conflict;
use sqlparser::ast::{self, SetExpr};
use sqlparser::tokenizer::Token;

use super::{StatementParser, phrase};
use crate::statement::{ExplainKind, Insert, OnConflict, Statement};

const ON_CONFLICT: &str = "ON CONFLICT DO DEDUPLICATE | NOTHING | ERROR";

impl StatementParser<'_> {
    /// Whether a query comes next.
    pub(super) fn at_query(&self) -> bool {
        self.peek(0).token == Token::LParen || phrase::QUERY.iter().any(|word| self.at(&[word]))
    }

    /// `SELECT … [EMIT CHANGES]`.
    pub(super) fn select(&mut self) -> Result<Statement> {
        let query = self.query()?;
        Ok(Statement::Query { query, emit_changes: self.emit_changes.take().is_some() })
    }

    /// A query, without clauses of other dialects that nobody would heed.
    pub(super) fn query(&mut self) -> Result<Box<ast::Query>> {
        if !self.at_query() {
            return Err(self.unexpected("a query"));
        }
        let start = self.here();
        let query = self.delegate(|parser| parser.parse_query())?;
        let refused = if matches!(*query.body, SetExpr::Insert(_)) {
            Some(("INSERT behind WITH", "write INSERT INTO t WITH … SELECT …"))
        } else if !matches!(
            *query.body,
            SetExpr::Select(_) | SetExpr::Query(_) | SetExpr::SetOperation { .. } | SetExpr::Values(_)
        ) {
            Some(("a query of this kind", "write a SELECT"))
        } else if !query.locks.is_empty() || query.for_clause.is_some() {
            Some(("FOR at the end of a query", "remove it"))
        } else {
            None
        };
        match refused {
            Some((what, hint)) => Err(super::complaint::unsupported(what, hint).with_location(Some(start))),
            None => Ok(query),
        }
    }

    /// Behind `INSERT INTO`.
    pub(super) fn insert_statement(&mut self) -> Result<Statement> {
        self.insert().map(Statement::Insert)
    }

    fn insert(&mut self) -> Result<Insert> {
        let table = self.name("the name of a table")?;
        if self.at(&["PARTITION"]) {
            return Err(
                self.unsupported("INSERT … PARTITION (…)", "select the partition's column as any other")
            );
        }
        let columns = if self.at_column_list() { self.names("the name of a column")? } else { vec![] };
        let query = self.query()?;
        let on_conflict = self.on_conflict()?;
        Ok(Insert { table, columns, query, on_conflict })
    }

    fn on_conflict(&mut self) -> Result<Option<OnConflict>> {
        // Behind a SELECT list, ON alone was taken for an alias.
        if self.at(&["CONFLICT"]) {
            return Err(self.unsupported("ON CONFLICT behind a SELECT list", "read FROM a table"));
        }
        let location = self.here();
        if !self.take(&["ON", "CONFLICT"]) {
            return Ok(None);
        }
        if !self.take(&["DO"]) {
            return Err(self.unexpected("DO").with_hint(ON_CONFLICT));
        }
        let words = [
            ("DEDUPLICATE", Conflict::Deduplicate),
            ("NOTHING", Conflict::Nothing),
            ("ERROR", Conflict::Error),
        ];
        let Some((_, conflict)) = words.into_iter().find(|(word, _)| self.take(&[word])) else {
            return Err(self.unexpected("DEDUPLICATE, NOTHING or ERROR").with_hint(ON_CONFLICT));
        };
        Ok(Some(OnConflict { conflict, location }))
    }

    /// `(a, …)` rather than a query in parentheses.
    fn at_column_list(&self) -> bool {
        let query = phrase::QUERY.iter().any(|word| super::token::is_word(self.peek(1), word));
        self.peek(0).token == Token::LParen && self.peek(1).token != Token::LParen && !query
    }

    /// Behind `[EXECUTE | BEGIN] STATEMENT SET`: `BEGIN` or `;`, INSERTs each with its `;`, `END`.
    pub(super) fn statement_set(&mut self) -> Result<Statement> {
        if !self.take(&["BEGIN"]) {
            self.expect_symbol(&Token::SemiColon, "BEGIN or ; after STATEMENT SET")?;
        }
        let start = self.here();
        let mut inserts = vec![];
        while !self.take(&["END"]) {
            if !self.take(&["INSERT", "INTO"]) {
                return Err(self.unexpected("INSERT INTO or END"));
            }
            inserts.push(self.insert()?);
            self.expect_symbol(&Token::SemiColon, "; after an INSERT of a statement set")?;
        }
        if inserts.is_empty() {
            return Err(Error::invalid("the statement set is empty")
                .with_hint("put INSERT INTO … SELECT …; before END")
                .with_location(Some(start)));
        }
        Ok(Statement::StatementSet(inserts))
    }

    /// Behind `EXPLAIN [kind]`.
    pub(super) fn explain(&mut self, kind: ExplainKind) -> Result<Statement> {
        let explained = self.at_query()
            || [&["INSERT"][..], &["EXECUTE"], &["BEGIN"], &["STATEMENT"]].iter().any(|words| self.at(words));
        if !explained {
            return Err(self
                .unexpected("a query, INSERT or statement set to explain")
                .with_hint("EXPLAIN [STATE | CHANGELOG_MODE | LOGICAL | PLAN FOR] SELECT …"));
        }
        Ok(Statement::Explain { kind, statement: Box::new(self.statement()?) })
    }
}
