//! Golden plans: each `goldens/NAME.sql` gives `goldens/NAME.plan`. Delete a `.plan` file to have it
//! written anew, and read the difference. Answers: batches over a few rows.

use std::fmt::Write;
use std::path::PathBuf;

use arrow::array::{Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::util::pretty::pretty_format_batches;
use millpond_core::{ChangelogMode, Timestamp};

use super::*;
use crate::batch::TableRows;
use crate::catalog::{TableFacts, ViewEntry};
use crate::parser::parse;
use crate::statement::{ExplainKind, ParsedStatement, Statement};

fn planner() -> Planner {
    Planner::new(PlannerSettings::default()).unwrap()
}

fn facts(create: &CreateTable) -> TableFacts {
    let connector = create.options.iter().find(|(key, _, _)| key == "connector").unwrap().1.as_str();
    let (source, sink, bounded) = match connector {
        "bounded" => (Some(ChangelogMode::Append), None, true),
        "stream" => (Some(ChangelogMode::Append), None, false),
        "changes" => (Some(ChangelogMode::Retract), None, false),
        "replacing" => (Some(ChangelogMode::Upsert), None, false),
        "print" => (None, Some(ChangelogMode::Retract), false),
        "blackhole" => (None, Some(ChangelogMode::Retract), false),
        "append" => (None, Some(ChangelogMode::Append), false),
        "upsert" => (None, Some(ChangelogMode::Upsert), false),
        other => panic!("connector {other}"),
    };
    TableFacts { bounded, source, sink, ignores_update_before: connector == "blackhole", max_future: None }
}

/// Runs a definition, or explains a statement.
fn explain(planner: &mut Planner, statement: &Statement, kind: ExplainKind) -> Result<String> {
    match statement {
        Statement::CreateTable(create) => {
            let bound = planner.bind_table(create)?;
            assert!(planner.catalog.add_table(bound, facts(create)));
            Ok(String::new())
        }
        Statement::CreateView(view) => {
            planner.check_view(view)?;
            let columns = view.columns.iter().map(|column| column.value.clone()).collect();
            let entry = ViewEntry { name: view.name.value.clone(), columns, query: view.query.clone() };
            assert!(planner.catalog.add_view(entry));
            Ok(String::new())
        }
        Statement::Query { query, .. } if kind == ExplainKind::Logical => planner.explain_logical(query),
        Statement::Query { query, .. } => {
            let planned = planner.plan_query(query)?;
            let mut text = planner.explain(&planned.plan, kind, 2)?;
            if planned.presentation
                != (Presentation { visible: planned.presentation.visible, ..Default::default() })
            {
                writeln!(text, "{:?}", planned.presentation).unwrap();
            }
            Ok(text)
        }
        Statement::Insert(insert) => {
            planner.explain(&planner.plan_insert(std::slice::from_ref(insert))?, kind, 2)
        }
        Statement::StatementSet(inserts) => planner.explain(&planner.plan_insert(inserts)?, kind, 2),
        Statement::Explain { kind, statement } => explain(planner, statement, *kind),
        Statement::Describe { name } => {
            let columns = planner.describe(&name.value)?;
            Ok(columns.iter().map(|column| format!("{column:?}\n")).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn script(sql: &str) -> String {
    let mut planner = planner();
    let mut text = String::new();
    for ParsedStatement { statement, text: sql, .. } in parse(sql).unwrap() {
        match explain(&mut planner, &statement, ExplainKind::Plan) {
            Ok(plan) if plan.is_empty() => {}
            Ok(plan) => writeln!(text, "{sql}\n----\n{plan}").unwrap(),
            Err(error) => {
                let place =
                    error.location().map_or(String::new(), |at| format!(" at {}:{}", at.line, at.column));
                writeln!(text, "{sql}\n----\nERROR{place} {error}\n").unwrap();
            }
        }
    }
    text
}

fn golden(name: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens");
    let tables = std::fs::read_to_string(folder.join("tables.sql")).unwrap();
    let queries = std::fs::read_to_string(folder.join(format!("{name}.sql"))).unwrap();
    let actual = script(&format!("{tables}\n{queries}"));
    let path = folder.join(format!("{name}.plan"));
    match std::fs::read_to_string(&path) {
        Ok(expected) => assert!(expected == actual, "{name}.plan differs; it would be:\n{actual}"),
        Err(_) => {
            std::fs::write(&path, &actual).unwrap();
            panic!("{name}.plan was missing and has been written: read it");
        }
    }
}

#[test]
fn nexmark() {
    golden("nexmark");
}

#[test]
fn constructs() {
    golden("constructs");
}

#[test]
fn joins() {
    golden("joins");
}

#[test]
fn clauses() {
    golden("clauses");
}

#[test]
fn changelog() {
    golden("changelog");
}

#[test]
fn refusals() {
    golden("refusals");
}

#[test]
fn uids_do_not_depend_on_unrelated_queries() {
    let tables = "CREATE TABLE t (a BIGINT, b BIGINT) WITH ('connector' = 'stream');
        CREATE TABLE o (k BIGINT, n BIGINT) WITH ('connector' = 'print');";
    let uids = |sql: &str| -> Vec<String> {
        let mut planner = planner();
        let mut uids = Vec::new();
        for parsed in parse(&format!("{tables}{sql}")).unwrap() {
            match &parsed.statement {
                Statement::StatementSet(inserts) => {
                    let plan = planner.plan_insert(inserts).unwrap();
                    uids = plan.nodes.iter().map(|node| node.uid.0.clone()).collect();
                }
                other => drop(explain(&mut planner, other, ExplainKind::Plan).unwrap()),
            }
        }
        uids
    };
    let insert = "INSERT INTO o SELECT b, COUNT(*) FROM t GROUP BY b;";
    let alone = uids(&format!("EXECUTE STATEMENT SET BEGIN {insert} END;"));
    let beside =
        uids(&format!("EXECUTE STATEMENT SET BEGIN INSERT INTO o SELECT a, a FROM t; {insert} END;"));
    let named = |uids: &[String], kind: &str| -> Vec<String> {
        uids.iter().filter(|uid| uid.starts_with(kind)).cloned().collect()
    };
    for kind in ["source", "group-aggregate", "exchange"] {
        assert_eq!(named(&alone, kind), named(&beside, kind), "{kind}");
        assert_eq!(named(&alone, kind).len(), 1);
    }
}

/// The answer of a query over four bids.
fn answer(sql: &str) -> String {
    let mut planner = planner();
    let table = "CREATE TABLE bid (auction BIGINT, price BIGINT, name STRING, ts TIMESTAMP(3),
        WATERMARK FOR ts AS ts) WITH ('connector' = 'bounded');";
    let mut answer = String::new();
    for parsed in parse(&format!("{table}{sql}")).unwrap() {
        match &parsed.statement {
            Statement::Query { query, .. } => {
                let rows = runtime().block_on(planner.run_batch(query, &bids(&planner), Timestamp(0)));
                answer = pretty_format_batches(&rows.unwrap()).unwrap().to_string();
            }
            other => drop(explain(&mut planner, other, ExplainKind::Plan).unwrap()),
        }
    }
    answer
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn bids(planner: &Planner) -> TableRows {
    let schema = planner.catalog.resolve_table("bid").unwrap().bound.schema.clone();
    let rows = RecordBatch::try_new(
        schema,
        vec![
            Arc::new(Int64Array::from(vec![1, 1, 2, 2])),
            Arc::new(Int64Array::from(vec![1533, 100, 7, 8])),
            Arc::new(StringArray::from(vec!["a", "b", "c", "d"])),
            Arc::new(TimestampMillisecondArray::from(vec![-1, 0, 9_999, 10_000])),
        ],
    );
    TableRows::from([("bid".to_owned(), vec![rows.unwrap()])])
}

#[test]
fn decimal_literals_are_exact() {
    let answer = answer("SELECT 0.908 * price AS price FROM bid WHERE auction = 1 ORDER BY price");
    assert_eq!(answer, "+----------+\n| price    |\n+----------+\n| 90.800   |\n| 1391.964 |\n+----------+");
}

#[test]
fn aggregates_have_flinks_types() {
    let answer =
        answer("SELECT AVG(price) AS a, SUM(CAST(price AS INT)) AS s, AVG(price * 1.0) AS d FROM bid");
    assert_eq!(
        answer,
        "+-----+------+------------+\n| a   | s    | d          |\n+-----+------+------------+\n\
         | 412 | 1648 | 412.000000 |\n+-----+------+------------+"
    );
}

#[test]
fn windows_are_assigned_in_a_batch() {
    let answer = answer(
        "SELECT window_start, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
         GROUP BY window_start, window_end ORDER BY window_start",
    );
    assert_eq!(
        answer,
        "+---------------------+---+\n| window_start        | n |\n+---------------------+---+\n\
         | 1969-12-31T23:59:50 | 1 |\n| 1970-01-01T00:00:00 | 2 |\n| 1970-01-01T00:00:10 | 1 |\n\
         +---------------------+---+"
    );
}

#[test]
fn columns_of_one_name_are_numbered() {
    let answer =
        answer("SELECT a.price, b.price, a.auction % 2, a.auction % 2 FROM bid a JOIN bid b ON a.ts = b.ts");
    assert!(answer.contains("| price | price0 |"), "{answer}");
}

#[test]
fn integer_division_truncates() {
    assert!(answer("SELECT MAX(price) / 2 AS x FROM bid").contains("| 766 |"));
}
