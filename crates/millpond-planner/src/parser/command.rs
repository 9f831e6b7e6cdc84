//! Settings, DESCRIBE and jobs.

use millpond_core::{Location, Result};
use sqlparser::tokenizer::Token;

use super::StatementParser;
use crate::statement::{Show, Statement, StopSavepoint};

impl StatementParser<'_> {
    /// Behind `SET`: nothing, or `k = v`.
    pub(super) fn set(&mut self) -> Result<Statement> {
        if self.peek(0).token == Token::EOF {
            return Ok(Statement::Show(Show::Settings));
        }
        let (key, location) = self.option_key("the name of a setting")?;
        if !self.take(&["TO"]) {
            self.expect_symbol(&Token::Eq, &format!("= after '{key}'"))?;
        }
        let value = self.option_value(&key)?;
        Ok(Statement::Set { key, value, location })
    }

    /// Behind `RESET`.
    pub(super) fn reset(&mut self) -> Result<Statement> {
        if self.peek(0).token == Token::EOF {
            return Ok(Statement::Reset { key: None });
        }
        let (key, _) = self.option_key("the name of a setting")?;
        Ok(Statement::Reset { key: Some(key) })
    }

    /// `'a.b-c'` or `a.b-c`.
    pub(super) fn option_key(&mut self, what: &str) -> Result<(String, Location)> {
        let location = self.here();
        let key = match &self.peek(0).token {
            Token::SingleQuotedString(_) => self.string(what)?,
            _ => self.bare_text(),
        };
        if key.is_empty() { Err(self.unexpected(what)) } else { Ok((key, location)) }
    }

    /// A string, a number, a word: `'x'`, `-1.5`, `10 s`, `true`.
    pub(super) fn option_value(&mut self, key: &str) -> Result<String> {
        let what = format!("a value for '{key}'");
        if matches!(self.peek(0).token, Token::SingleQuotedString(_)) {
            return self.string(&what);
        }
        let value = self.bare_text();
        if value.is_empty() { Err(self.unexpected(&what)) } else { Ok(value) }
    }

    /// Text without quotes, up to a symbol that is not part of keys and values.
    fn bare_text(&mut self) -> String {
        let mut text = String::new();
        let mut first = true;
        loop {
            let to = !first && self.at(&["TO"]);
            match &self.peek(0).token {
                Token::Word(word) if !to => text.push_str(&word.value),
                Token::Number(number, _) => text.push_str(number),
                Token::Period => text.push('.'),
                Token::Minus => text.push('-'),
                _ => return text,
            }
            first = false;
            self.advance(1);
        }
    }

    /// Behind `DESCRIBE`.
    pub(super) fn describe(&mut self) -> Result<Statement> {
        if self.at(&["JOB"]) && self.peek(1).token != Token::EOF {
            return Err(self.unsupported("DESCRIBE JOB", "SHOW JOBS lists the jobs"));
        }
        if self.at(&["CHECKPOINT"]) && self.peek(1).token != Token::EOF {
            self.advance(1);
            return self.describe_checkpoint();
        }
        self.take(&["EXTENDED"]);
        Ok(Statement::Describe { name: self.name("the name of a table or view")? })
    }

    /// Behind `CHECKPOINT`.
    pub(super) fn checkpoint(&mut self) -> Result<Statement> {
        let job = if self.take(&["JOB"]) { Some(self.job()?) } else { None };
        Ok(Statement::Checkpoint { job })
    }

    /// Behind `STOP JOB`.
    pub(super) fn stop_job(&mut self) -> Result<Statement> {
        let job = self.job()?;
        let (mut savepoint, mut drain) = (StopSavepoint::None, false);
        while self.take(&["WITH"]) {
            if savepoint == StopSavepoint::None && self.take(&["SAVEPOINT"]) {
                savepoint = match self.peek(0).token {
                    Token::SingleQuotedString(_) => StopSavepoint::In(self.string("a folder")?),
                    _ => StopSavepoint::Default,
                };
            } else if !drain && self.take(&["DRAIN"]) {
                drain = true;
            } else {
                return Err(self
                    .unexpected("SAVEPOINT or DRAIN")
                    .with_hint("STOP JOB n [WITH SAVEPOINT ['folder']] [WITH DRAIN]"));
            }
        }
        Ok(Statement::StopJob { job, savepoint, drain })
    }

    /// Behind `CREATE SAVEPOINT`.
    pub(super) fn create_savepoint(&mut self) -> Result<Statement> {
        const FORM: &str = "CREATE SAVEPOINT 'folder' FOR JOB n";
        let folder = self.string("a folder in quotes").map_err(|error| error.with_hint(FORM))?;
        if !self.take(&["FOR", "JOB"]) {
            return Err(self.unexpected("FOR JOB").with_hint(FORM));
        }
        Ok(Statement::CreateSavepoint { job: self.job()?, folder })
    }

    /// Behind `ALTER JOB`.
    pub(super) fn alter_job(&mut self) -> Result<Statement> {
        let job = self.job()?;
        if !self.take(&["SET"]) {
            return Err(self.unexpected("SET").with_hint("ALTER JOB n SET ('key' = 'value', …)"));
        }
        self.expect_symbol(&Token::LParen, "( before the settings")?;
        let mut options = Vec::new();
        loop {
            let (key, location) = self.option_key("the name of a setting")?;
            self.expect_symbol(&Token::Eq, &format!("= after '{key}'"))?;
            let value = self.option_value(&key)?;
            options.push((key, value, location));
            if !self.take_symbol(&Token::Comma) {
                break;
            }
        }
        self.expect_symbol(&Token::RParen, ") after the settings")?;
        Ok(Statement::AlterJob { job, options })
    }

    /// Behind `DESCRIBE CHECKPOINT`.
    fn describe_checkpoint(&mut self) -> Result<Statement> {
        let checkpoint = match &self.peek(0).token {
            Token::Number(text, _) | Token::SingleQuotedString(text) => text.clone(),
            _ => {
                return Err(self
                    .unexpected("the number of a checkpoint, or a folder in quotes")
                    .with_hint("SHOW CHECKPOINTS lists them"));
            }
        };
        self.advance(1);
        let job = if self.take(&["FOR", "JOB"]) { Some(self.job()?) } else { None };
        Ok(Statement::DescribeCheckpoint { checkpoint, job })
    }

    /// Behind `EXPLAIN RESTORE FROM`.
    pub(super) fn explain_restore(&mut self) -> Result<Statement> {
        const FORM: &str = "EXPLAIN RESTORE FROM 'folder' INSERT INTO …";
        let place =
            self.string("a savepoint or checkpoint in quotes").map_err(|error| error.with_hint(FORM))?;
        let explained =
            [&["INSERT"][..], &["EXECUTE"], &["BEGIN"], &["STATEMENT"]].iter().any(|words| self.at(words));
        if !explained {
            return Err(self.unexpected("INSERT or a statement set").with_hint(FORM));
        }
        Ok(Statement::ExplainRestore { place, statement: Box::new(self.statement()?) })
    }

    /// Behind `CANCEL JOB`.
    pub(super) fn cancel_job(&mut self) -> Result<Statement> {
        Ok(Statement::CancelJob { job: self.job()? })
    }

    /// The number of a job, as Flink also in quotes.
    fn job(&mut self) -> Result<u64> {
        let number = match &self.peek(0).token {
            Token::Number(text, _) | Token::SingleQuotedString(text) => text.parse().ok(),
            _ => None,
        };
        let job =
            number.ok_or_else(|| self.unexpected("the number of a job").with_hint("SHOW JOBS lists them"))?;
        self.advance(1);
        Ok(job)
    }
}
