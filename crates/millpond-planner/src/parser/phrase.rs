//! Which statement it is, by the words it begins with.
//!
//! One table says what is understood and one what will be; both also serve to guess what a
//! mistyped word was meant to be. The longest phrase that fits decides.

use millpond_core::{Error, Result};

use super::token::bare_word;
use super::{StatementParser, complaint};
use crate::statement::{ExplainKind, Show, Statement};

type Parse = fn(&mut StatementParser) -> Result<Statement>;

/// What is understood; the phrase is taken before the rest is parsed.
const UNDERSTOOD: &[(&[&str], Parse)] = &[
    (&["ALTER", "JOB"], |parser| parser.alter_job()),
    (&["BEGIN", "STATEMENT", "SET"], |parser| parser.statement_set()),
    (&["CANCEL", "JOB"], |parser| parser.cancel_job()),
    (&["CHECKPOINT"], |parser| parser.checkpoint()),
    (&["CREATE", "SAVEPOINT"], |parser| parser.create_savepoint()),
    (&["CREATE", "TABLE"], |parser| parser.create_table(false)),
    (&["CREATE", "TEMPORARY", "TABLE"], |parser| parser.create_table(true)),
    (&["CREATE", "TEMPORARY", "VIEW"], |parser| parser.create_view(true)),
    (&["CREATE", "VIEW"], |parser| parser.create_view(false)),
    (&["DESC"], |parser| parser.describe()),
    (&["DESCRIBE"], |parser| parser.describe()),
    (&["DROP", "TABLE"], |parser| parser.drop_table()),
    (&["DROP", "TEMPORARY", "TABLE"], |parser| parser.drop_table()),
    (&["DROP", "TEMPORARY", "VIEW"], |parser| parser.drop_view()),
    (&["DROP", "VIEW"], |parser| parser.drop_view()),
    (&["EXECUTE", "STATEMENT", "SET"], |parser| parser.statement_set()),
    (&["EXPLAIN"], |parser| parser.explain(ExplainKind::Plan)),
    (&["EXPLAIN", "CHANGELOG_MODE"], |parser| parser.explain(ExplainKind::ChangelogMode)),
    (&["EXPLAIN", "LOGICAL"], |parser| parser.explain(ExplainKind::Logical)),
    (&["EXPLAIN", "PLAN", "FOR"], |parser| parser.explain(ExplainKind::Plan)),
    (&["EXPLAIN", "RESTORE", "FROM"], |parser| parser.explain_restore()),
    (&["EXPLAIN", "STATE"], |parser| parser.explain(ExplainKind::State)),
    (&["INSERT", "INTO"], |parser| parser.insert_statement()),
    (&["RESET"], |parser| parser.reset()),
    (&["SET"], |parser| parser.set()),
    (&["SHOW", "CHECKPOINTS"], |_| Ok(Statement::Show(Show::Checkpoints))),
    (&["SHOW", "FUNCTIONS"], |_| Ok(Statement::Show(Show::Functions))),
    (&["SHOW", "JOBS"], |_| Ok(Statement::Show(Show::Jobs))),
    (&["SHOW", "SETTINGS"], |_| Ok(Statement::Show(Show::Settings))),
    (&["SHOW", "TABLES"], |_| Ok(Statement::Show(Show::Tables))),
    (&["SHOW", "VIEWS"], |_| Ok(Statement::Show(Show::Views))),
    (&["STATEMENT", "SET"], |parser| parser.statement_set()),
    (&["STOP", "JOB"], |parser| parser.stop_job()),
];

/// What is not understood yet, and what to write instead.
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["ALTER"], "DROP it and CREATE it anew"),
    (
        &["BEGIN"],
        "each statement stands for itself; several INSERTs make one job between BEGIN STATEMENT SET; and END",
    ),
    (&["COMMIT"], "each statement stands for itself"),
    (&["COPY"], "INSERT INTO a table WITH ('connector' = 'filesystem', …)"),
    (&["CREATE", "CATALOG"], ""),
    (&["CREATE", "DATABASE"], "there is one database; leave the statement out"),
    (&["CREATE", "FUNCTION"], "SHOW FUNCTIONS lists those that are there"),
    (&["CREATE", "INDEX"], ""),
    (&["CREATE", "MATERIALIZED", "VIEW"], "use CREATE VIEW, or INSERT INTO a connector table"),
    (&["CREATE", "OR"], "DROP it first, then CREATE it"),
    (&["CREATE", "SINK"], "use CREATE TABLE … WITH ('connector' = …) and INSERT INTO it"),
    (&["CREATE", "SOURCE"], "use CREATE TABLE … WITH ('connector' = …)"),
    (&["CREATE", "TEMPORARY", "FUNCTION"], "SHOW FUNCTIONS lists those that are there"),
    (&["DELETE"], "write a SELECT that leaves the rows out"),
    (&["DROP", "DATABASE"], ""),
    (&["DROP", "FUNCTION"], ""),
    (&["DROP", "INDEX"], ""),
    (&["DROP", "MATERIALIZED", "VIEW"], "use DROP VIEW"),
    (&["EXPLAIN", "ANALYZE"], "EXPLAIN shows the plan, SHOW JOBS what a job does"),
    (&["FLUSH"], "leave it out: a SELECT sees all that was written before it"),
    (&["FROM"], "begin with SELECT * FROM"),
    (&["INSERT", "OVERWRITE"], "use INSERT INTO"),
    (&["MERGE"], "INSERT INTO a table with a PRIMARY KEY updates by key"),
    (&["ROLLBACK"], "each statement stands for itself"),
    (&["SAVEPOINT"], "CREATE SAVEPOINT 'folder' FOR JOB n"),
    (&["SHOW", "CHANGES"], "SELECT * FROM … EMIT CHANGES shows the changelog"),
    (&["SHOW", "CREATE"], "DESCRIBE shows the columns"),
    (&["SHOW", "DATABASES"], "there is one database"),
    (&["TABLE"], "use SELECT * FROM"),
    (&["TRUNCATE"], "DROP it and CREATE it anew"),
    (&["UPDATE"], "INSERT INTO a table with a PRIMARY KEY updates by key"),
    (&["USE"], "there is one database; leave the statement out"),
];

/// Words that begin a query.
pub(super) const QUERY: [&str; 3] = ["SELECT", "WITH", "VALUES"];

/// Parses a statement that is not a query.
pub(super) fn statement(parser: &mut StatementParser) -> Result<Statement> {
    let understood =
        UNDERSTOOD.iter().filter(|(phrase, _)| parser.at(phrase)).max_by_key(|(phrase, _)| phrase.len());
    let unsupported =
        UNSUPPORTED.iter().filter(|(phrase, _)| parser.at(phrase)).max_by_key(|(phrase, _)| phrase.len());
    let understood_words = understood.map_or(0, |(phrase, _)| phrase.len());
    match (understood, unsupported) {
        (_, Some((phrase, hint))) if phrase.len() > understood_words => {
            Err(parser.unsupported(&named(parser, phrase), hint))
        }
        (Some((phrase, parse)), _) => {
            parser.advance(phrase.len());
            parse(parser)
        }
        (None, _) => Err(unknown(parser)),
    }
}

/// `CREATE OR` is shown as `CREATE OR REPLACE`.
fn named(parser: &StatementParser, phrase: &[&str]) -> String {
    let mut words: Vec<&str> = phrase.to_vec();
    if parser.at(&["CREATE", "OR", "REPLACE"]) {
        words.push("REPLACE");
    }
    words.join(" ")
}

/// No phrase fits: complains about the first word that leads away from all of them.
fn unknown(parser: &StatementParser) -> Error {
    let known: Vec<&[&str]> = UNDERSTOOD.iter().map(|(phrase, _)| *phrase).collect();
    let fitting = (1..3)
        .take_while(|words| known.iter().any(|phrase| phrase.len() > *words && parser.at(&phrase[..*words])));
    let fitting = fitting.last().unwrap_or(0);
    let mut next: Vec<&str> = known
        .iter()
        .filter(|phrase| phrase.len() > fitting && parser.at(&phrase[..fitting]))
        .map(|phrase| phrase[fitting])
        .collect();
    next.dedup();
    let found = parser.peek(fitting);
    let error = |what: &str| complaint::expected(what, found, parser.end);
    let word = bare_word(found).unwrap_or_default();
    if fitting > 0 {
        let error = error(&one_of(&next));
        return complaint::nearest(word, next).map(did_you_mean).into_iter().fold(error, Error::with_hint);
    }
    let unsupported = UNSUPPORTED.iter().map(|(phrase, _)| phrase[0]);
    let words = QUERY.into_iter().chain(next).chain(unsupported);
    error("a statement").with_hint(complaint::nearest(word, words).map_or_else(beginnings, did_you_mean))
}

fn did_you_mean(word: &str) -> String {
    format!("did you mean {word}?")
}

fn beginnings() -> String {
    "statements begin with CREATE, DROP, INSERT, SELECT, WITH, SET, SHOW, DESCRIBE or EXPLAIN".into()
}

/// `a, b or c`.
fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).into(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
