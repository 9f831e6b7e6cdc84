//! Golden files: `> ` lines are SQL, the lines below what it is parsed to, or the error.
//!
//! When a file differs, the text as it would be now is written to the temporary directory; read
//! the difference, then copy it over.

use millpond_core::random::Random;

use super::*;
use crate::diagnostic;
use crate::statement::{ColumnKind, CreateTable, Insert};

const STATEMENTS: &str = include_str!("testdata/statements.txt");
const ERRORS: &str = include_str!("testdata/errors.txt");

/// The SQL texts of a golden file.
fn inputs(golden: &str) -> impl Iterator<Item = String> + '_ {
    golden
        .split("\n\n")
        .filter(|case| !case.trim().is_empty())
        .map(|case| case.lines().filter_map(|line| line.strip_prefix("> ")).collect::<Vec<_>>().join("\n"))
}

fn check_golden(name: &str, golden: &str, output: impl Fn(&str) -> String) {
    let cases = inputs(golden).map(|sql| {
        let quoted: String = sql.lines().map(|line| format!("> {line}\n")).collect();
        format!("{quoted}{}\n", output(&sql).trim_end())
    });
    let actual = cases.collect::<Vec<_>>().join("\n");
    if actual != golden {
        let path = std::env::temp_dir().join(format!("millpond-parser-{name}.txt"));
        std::fs::write(&path, &actual).expect("the temporary directory is writable");
        panic!("{name}.txt differs: compare it with {}", path.display());
    }
}

#[test]
fn statements_are_parsed() {
    check_golden("statements", STATEMENTS, |sql| match parse(sql) {
        Ok(statements) => statements.iter().map(|parsed| summary(&parsed.statement) + "\n").collect(),
        Err(error) => format!("UNEXPECTED {error:?}"),
    });
}

#[test]
fn errors_point_to_their_place() {
    check_golden("errors", ERRORS, |sql| match parse(sql) {
        Ok(statements) => format!("UNEXPECTED {}", summary(&statements[0].statement)),
        Err(error) => diagnostic::render(&error, None, sql, 0),
    });
}

fn summary(statement: &Statement) -> String {
    match statement {
        Statement::CreateTable(table) => table_summary(table),
        Statement::CreateView(view) => format!(
            "create view {} {:?} columns {} query {} text {:?}",
            view.name,
            flags(&[("temporary", view.temporary), ("if not exists", view.if_not_exists)]),
            names(&view.columns),
            view.query,
            view.query_text
        ),
        Statement::DropTable { name, if_exists } => format!("drop table {name} if_exists {if_exists}"),
        Statement::DropView { name, if_exists } => format!("drop view {name} if_exists {if_exists}"),
        Statement::Insert(insert) => insert_summary(insert),
        Statement::StatementSet(inserts) => {
            inserts.iter().fold("set".into(), |text, insert| format!("{text}\n  {}", insert_summary(insert)))
        }
        Statement::Query { query, emit_changes } => {
            format!("{}{query}", if *emit_changes { "changes of " } else { "" })
        }
        Statement::Explain { kind, statement } => format!("explain {kind:?}: {}", summary(statement)),
        Statement::Describe { name } => format!("describe {name}"),
        Statement::ExplainRestore { place, statement } => {
            format!("explain restore from {place:?}: {}", summary(statement))
        }
        Statement::Set { .. }
        | Statement::Reset { .. }
        | Statement::Show(_)
        | Statement::Checkpoint { .. }
        | Statement::CreateSavepoint { .. }
        | Statement::StopJob { .. }
        | Statement::AlterJob { .. }
        | Statement::DescribeCheckpoint { .. }
        | Statement::CancelJob { .. } => format!("{statement:?}"),
    }
}

fn insert_summary(insert: &Insert) -> String {
    let conflict = insert.on_conflict.map(|clause| format!(" on conflict do {}", clause.conflict.name()));
    let conflict = conflict.unwrap_or_default();
    format!("insert into {} {}: {}{conflict}", insert.table, names(&insert.columns), insert.query)
}

fn table_summary(table: &CreateTable) -> String {
    let flags = flags(&[("temporary", table.temporary), ("if not exists", table.if_not_exists)]);
    let mut text = format!("create table {} {flags:?}", table.name);
    for column in &table.columns {
        let kind = match &column.kind {
            ColumnKind::Physical { data_type, not_null } => {
                format!("{data_type}{}", if *not_null { " NOT NULL" } else { "" })
            }
            ColumnKind::Computed { expr } => format!("= {expr}"),
            ColumnKind::Metadata { data_type, from, is_virtual } => {
                format!("{data_type} metadata from {from:?} virtual {is_virtual}")
            }
        };
        let comment = column.comment.as_ref().map(|text| format!(" -- {text}")).unwrap_or_default();
        text += &format!("\n  {} {kind}{comment}", column.name);
    }
    if let Some(watermark) = &table.watermark {
        text += &format!("\n  watermark {} = {}", watermark.column, watermark.expr);
    }
    for (what, list) in [("primary key", &table.primary_key), ("partitioned by", &table.partitioned_by)] {
        if !list.is_empty() {
            text += &format!("\n  {what} {}", names(list));
        }
    }
    text += &table.comment.as_ref().map(|comment| format!("\n  comment {comment}")).unwrap_or_default();
    for (key, value, place) in &table.options {
        text += &format!("\n  option {key:?} = {value:?} at {}:{}", place.line, place.column);
    }
    text
}

fn names(idents: &[ast::Ident]) -> String {
    format!("({})", idents.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

fn flags<'a>(flags: &[(&'a str, bool)]) -> Vec<&'a str> {
    flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect()
}

fn texts(sql: &str) -> Vec<(String, u64, u64)> {
    let sources = split_statements(sql);
    sources.into_iter().map(|source| (source.text, source.location.line, source.location.column)).collect()
}

#[test]
fn scripts_are_cut_at_semicolons_that_end_a_statement() {
    let script = "\u{feff}-- head ;\nSET 'a' = 'b;''c;' ;; /* ; */ SELECT `x;` , \"y;\" -- tail ;\n;\n \
        BEGIN STATEMENT SET; INSERT INTO a SELECT CASE WHEN x THEN 1 END FROM t; INSERT INTO b SELECT 2; END;\
        EXPLAIN EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END; SET statement = 1; SELECT 2";
    let expected = [
        ("SET 'a' = 'b;''c;'", 2, 1),
        ("SELECT `x;` , \"y;\"", 2, 31),
        (
            "BEGIN STATEMENT SET; INSERT INTO a SELECT CASE WHEN x THEN 1 END FROM t; INSERT INTO b SELECT 2; END",
            4,
            2,
        ),
        ("EXPLAIN EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END", 4, 103),
        ("SET statement = 1", 4, 168),
        ("SELECT 2", 4, 187),
    ];
    let expected = expected.map(|(text, line, column)| (text.to_owned(), line, column));
    assert_eq!(texts(script), expected);
    let kinds: Vec<bool> = split_statements(script).iter().map(|source| parse_one(source).is_ok()).collect();
    assert_eq!(kinds, [true, true, true, true, true, true]);
}

#[test]
fn an_open_quote_takes_the_rest_and_leaves_what_came_before() {
    assert_eq!(
        texts("SELECT 1; SELECT 'a; SELECT 2;"),
        [("SELECT 1".into(), 1, 1), ("SELECT 'a; SELECT 2;".into(), 1, 11)]
    );
    assert_eq!(
        texts("SELECT 1; /* rest; SELECT 2"),
        [("SELECT 1".into(), 1, 1), ("/* rest; SELECT 2".into(), 1, 11)]
    );
    assert_eq!(texts(" -- nothing\n;;"), []);
}

#[test]
fn a_statement_is_complete_at_its_semicolon() {
    let complete = [
        "SELECT 1;",
        "SELECT 1; -- x",
        "SELECT ';';  ",
        "a; b;",
        "BEGIN STATEMENT SET; INSERT INTO a SELECT 1; END;",
    ];
    let incomplete = [
        "",
        ";",
        "-- x;",
        "SELECT 1",
        "SELECT 1; SELECT",
        "SELECT ';",
        "SELECT 1 -- ;",
        "SELECT 1 /* ; */",
        "SELECT 1; /* ",
        "BEGIN STATEMENT SET;",
        "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;",
    ];
    for sql in complete {
        assert!(is_complete(sql), "{sql}");
    }
    for sql in incomplete {
        assert!(!is_complete(sql), "{sql}");
    }
}

#[test]
fn places_are_those_of_the_script() {
    let parsed = parse("SELECT 1;\n  SELECT a,\n b FROM t; DROP TABLE x").expect("valid");
    let places: Vec<_> = parsed.iter().map(|p| (p.location.line, p.location.column)).collect();
    assert_eq!(places, [(1, 1), (2, 3), (3, 12)]);
    let Statement::DropTable { name, .. } = &parsed[2].statement else { panic!("{:?}", parsed[2]) };
    assert_eq!((name.span.start.line, name.span.start.column), (3, 23));
    let error = parse("SELECT 1;\n  SELECT a b c").expect_err("two aliases");
    assert_eq!(error.location(), Some(Location { line: 2, column: 14 }));
}

#[test]
fn hints_reach_the_tree() {
    let parsed = parse("SELECT /*+ STATE_TTL('a' = '1d') */ * FROM a").expect("valid");
    let Statement::Query { query, .. } = &parsed[0].statement else { panic!("{:?}", parsed[0]) };
    let ast::SetExpr::Select(select) = query.body.as_ref() else { panic!("{query}") };
    assert_eq!(select.optimizer_hints[0].text.trim(), "STATE_TTL('a' = '1d')");
}

#[test]
fn names_keep_their_case_and_lose_their_quotes() {
    let parsed = parse("DESCRIBE `Bid`; DESCRIBE \"bID\"; DESCRIBE BID").expect("valid");
    let names = parsed.iter().map(|parsed| match &parsed.statement {
        Statement::Describe { name } => name.value.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["Bid", "bID", "BID"]);
}

/// Deep nesting is an error, and one that comes at once, also when the mistake is deep inside.
#[test]
fn deep_nesting_is_refused() {
    for depth in [40, 1_000] {
        for (head, open, close) in NESTED {
            for inner in ["1", "a b c", "SELECT 1", "'"] {
                let sql = format!("{head}{}{inner}{}", open.repeat(depth), close.repeat(depth));
                let result = parse(&sql);
                assert!(depth < 200 || inner == "1" || result.is_err(), "{head}{open}{inner}");
            }
        }
    }
}

const NESTED: [(&str, &str, &str); 29] = [
    ("SELECT ", "(", ")"),
    ("SELECT ", "(SELECT ", ")"),
    ("SELECT ", "CASE WHEN ", " THEN 1 END"),
    ("SELECT ", "CASE ", " WHEN 1 THEN 2 END"),
    ("SELECT ", "NOT ", ""),
    ("SELECT ", "NOT (", ")"),
    ("SELECT ", "- ", ""),
    ("SELECT ", "f(", ")"),
    ("SELECT ", "f(x => ", ")"),
    ("SELECT ", "CAST(", " AS INT)"),
    ("SELECT ", "ARRAY[", "]"),
    ("SELECT ", "MAP[1, ", "]"),
    ("SELECT ", "a[", "]"),
    ("SELECT ", "INTERVAL ", ""),
    ("SELECT ", "EXTRACT(DAY FROM ", ")"),
    ("SELECT ", "TRIM(", ")"),
    ("SELECT ", "STRUCT(", ")"),
    ("SELECT ", "ROW(", ")"),
    ("SELECT ", "NULLABLE(", ")"),
    ("SELECT ", "x IN (", ")"),
    ("SELECT ", "x IN (SELECT a FROM t WHERE ", ")"),
    ("SELECT ", "EXISTS (SELECT a FROM t WHERE ", ")"),
    ("SELECT CAST(a AS ", "ARRAY<", ">"),
    ("SELECT * FROM ", "(", ") x"),
    ("SELECT * FROM ", "(SELECT * FROM ", ") x"),
    ("SELECT * FROM ", "(a JOIN ", ")"),
    ("SELECT * FROM ", "TABLE(f(", "))"),
    ("", "(", ")"),
    ("", "WITH a AS (", ") SELECT 1"),
];

#[test]
fn long_chains_are_refused_and_shorter_ones_survive() {
    for operator in ["+ 1", "AND a = 1", "IS NULL", ":: INT", "UNION ALL SELECT 1", "|| 'a'"] {
        let chain = |length: usize| format!("SELECT a {}", format!("{operator} ").repeat(length));
        let error = parse(&chain(100_000)).expect_err("too long");
        assert!(error.message().contains("in a row"), "{error}");
        let parsed = parse(&chain(250)).expect("short enough");
        assert!(summary(&parsed[0].statement.clone()).len() > 1_000);
    }
}

#[test]
fn many_rows_and_branches_are_no_chain() {
    let rows = format!("INSERT INTO t VALUES {}(1, -2 + 3)", "(1, -2 + 3), ".repeat(20_000));
    let branches = format!("SELECT CASE {}ELSE 1 END FROM t", "WHEN a = 1 THEN b + 1 ".repeat(1_000));
    for sql in [rows, branches] {
        assert!(parse(&sql).is_ok());
    }
}

#[test]
fn no_text_panics() {
    let statements: Vec<String> = inputs(STATEMENTS).chain(inputs(ERRORS)).collect();
    let mut random = Random::seeded(7);
    for _ in 0..2_000 {
        let sql = mutated(&statements, &mut random);
        is_complete(&sql);
        for source in split_statements(&sql) {
            if let Err(error) = parse_one(&source) {
                assert_eq!(error.kind(), millpond_core::ErrorKind::Invalid, "{sql}");
                assert!(error.location().is_some(), "{sql}");
                diagnostic::render(&error, Some("x.sql"), &sql, 0);
            }
        }
    }
}

/// A statement with pieces removed, doubled, replaced by junk or taken from another one.
fn mutated(statements: &[String], random: &mut Random) -> String {
    const JUNK: [&str; 16] =
        ["'", "\"", "`", "(", ")", ";", "/*", "--", "\n", "\t", "日本", "<", ">>", "0x", "NULL", "\u{0}"];
    let pick = |random: &mut Random| &statements[random.below(statements.len() as u64) as usize];
    let mut chars: Vec<char> = pick(random).chars().collect();
    for _ in 0..=random.below(4) {
        let at = |random: &mut Random, chars: &[char]| random.below(chars.len() as u64 + 1) as usize;
        let (a, b) = (at(random, &chars), at(random, &chars));
        let (start, end) = (a.min(b), a.max(b).min(a.min(b) + 12));
        match random.below(4) {
            0 => drop(chars.drain(start..end)),
            1 => {
                let piece = chars[start..end].to_vec();
                chars.splice(start..start, piece);
            }
            2 => drop(chars.splice(start..start, JUNK[random.below(16) as usize].chars())),
            _ => {
                let other: Vec<char> = pick(random).chars().collect();
                let from = at(random, &other);
                chars.splice(start..end, other[from..].iter().copied().take(20));
            }
        }
    }
    chars.into_iter().collect()
}
