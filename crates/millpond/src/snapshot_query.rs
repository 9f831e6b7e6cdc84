//! Reading snapshots by SQL: `checkpoint_state('job', 'uid' [, checkpoint])`.
//!
//! The call is answered before the query is planned: its rows become a table of the batch that
//! answers the query. `job` is a job's number or name; `uid` an operator's uid as EXPLAIN shows
//! it, or `uid/table` where the operator has several tables; the newest checkpoint if none is
//! named.

use std::ops::ControlFlow;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use millpond_core::{Error, OperatorUid, Result};
use millpond_planner::TableRows;
use millpond_state::{CheckpointMetadata, SnapshotReader};
use sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, Query, TableFactor, Value, VisitMut, VisitorMut};

use crate::answer::Rows;
use crate::session::Session;

/// What one call names.
struct StateCall {
    job: String,
    uid: String,
    checkpoint: Option<u64>,
}

impl Session {
    /// Answers a query that reads snapshots.
    pub(crate) async fn select_from_state(&self, query: &Query) -> Result<Rows> {
        let mut query = query.clone();
        let mut calls = Calls { found: Vec::new(), error: None };
        let _ = VisitMut::visit(&mut query, &mut calls);
        if let Some(error) = calls.error {
            return Err(error);
        }
        let mut planner = self.planner()?;
        let mut tables = TableRows::new();
        for (name, call) in calls.found {
            let (schema, batches) = self.state_rows(&call)?;
            planner.catalog.add_rows(&name, schema);
            tables.insert(name, batches);
        }
        self.answer_in_batch(&planner, &query, tables).await
    }

    fn state_rows(&self, call: &StateCall) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let reader = SnapshotReader::new(self.job_folder(&call.job)?);
        let checkpoint = choose(reader.checkpoints()?, call)?;
        let (uid, table) = match call.uid.split_once('/') {
            Some((uid, table)) => (OperatorUid(uid.into()), table.to_string()),
            None => (OperatorUid(call.uid.clone()), only_table(&checkpoint, &call.uid)?),
        };
        match reader.rows(&checkpoint, &uid, &table)? {
            Some(rows) => Ok((rows.schema, rows.batches)),
            None => Ok((std::sync::Arc::new(Schema::empty()), Vec::new())),
        }
    }

    fn job_folder(&self, job: &str) -> Result<PathBuf> {
        let (id, settings) = {
            let state = self.engine.state();
            let record =
                state.jobs.values().find(|record| record.id.to_string() == job || record.name == job);
            let record = record.ok_or_else(|| {
                Error::invalid(format!("there is no job '{job}'")).with_hint("SHOW JOBS lists them")
            })?;
            (record.id, record.settings.clone())
        };
        let settings = self.engine.session_with(&settings)?.settings();
        self.engine.job_dir(id, &settings).ok_or_else(|| {
            Error::invalid("the snapshots of an engine without a data directory cannot be read")
                .with_hint("start millpond with a data directory")
        })
    }
}

fn choose(checkpoints: Vec<CheckpointMetadata>, call: &StateCall) -> Result<CheckpointMetadata> {
    let ids: Vec<String> = checkpoints.iter().map(|checkpoint| checkpoint.checkpoint.to_string()).collect();
    let wanted =
        |checkpoint: &CheckpointMetadata| call.checkpoint.is_none_or(|id| id == checkpoint.checkpoint.0);
    checkpoints.into_iter().find(wanted).ok_or_else(|| match call.checkpoint {
        None => Error::invalid(format!("job '{}' has no checkpoint yet", call.job))
            .with_hint("CHECKPOINT takes one"),
        Some(id) => Error::invalid(format!("job '{}' has no checkpoint {id}", call.job))
            .with_hint(format!("it has {}", ids.join(", "))),
    })
}

fn only_table(checkpoint: &CheckpointMetadata, uid: &str) -> Result<String> {
    let operator = checkpoint.operators.get(&OperatorUid(uid.into()));
    let tables: Vec<&String> = operator.iter().flat_map(|operator| operator.tables.keys()).collect();
    match tables.as_slice() {
        [only] => Ok((*only).clone()),
        [] if operator.is_some() => Err(Error::invalid(format!("operator '{uid}' keeps no state table"))),
        // An unknown uid is told by the reader, with those there are.
        [] => Ok(String::new()),
        several => {
            let names: Vec<String> = several.iter().map(|table| format!("'{uid}/{table}'")).collect();
            Err(Error::invalid(format!("operator '{uid}' has several state tables"))
                .with_hint(format!("name one: {}", names.join(", "))))
        }
    }
}

/// Replaces each call by a table name and remembers what it asked for.
struct Calls {
    found: Vec<(String, StateCall)>,
    error: Option<Error>,
}

impl VisitorMut for Calls {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, args, .. } = factor else { return ControlFlow::Continue(()) };
        if !name.to_string().eq_ignore_ascii_case("checkpoint_state") {
            return ControlFlow::Continue(());
        }
        let Some(given) = args.take() else { return ControlFlow::Continue(()) };
        match state_call(&given.args) {
            Ok(call) => {
                let table = format!("checkpoint_state_{}", self.found.len());
                *name = sqlparser::ast::Ident::new(table.clone()).into();
                self.found.push((table, call));
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

fn state_call(args: &[FunctionArg]) -> Result<StateCall> {
    let texts: Option<Vec<String>> = args.iter().map(literal).collect();
    let usage = || {
        Error::invalid(
            "checkpoint_state takes a job, an operator's uid and, if wanted, a checkpoint's number",
        )
        .with_hint("for example checkpoint_state('1', 'group-aggregate-1a2b3c4d', 42)")
    };
    match texts.as_deref() {
        Some([job, uid]) => Ok(StateCall { job: job.clone(), uid: uid.clone(), checkpoint: None }),
        Some([job, uid, checkpoint]) => {
            let checkpoint = Some(checkpoint.parse().map_err(|_| usage())?);
            Ok(StateCall { job: job.clone(), uid: uid.clone(), checkpoint })
        }
        Some(_) | None => Err(usage()),
    }
}

fn literal(arg: &FunctionArg) -> Option<String> {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) = arg else { return None };
    match &value.value {
        Value::SingleQuotedString(text) | Value::Number(text, _) => Some(text.clone()),
        _ => None,
    }
}
