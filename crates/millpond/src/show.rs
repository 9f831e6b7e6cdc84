//! SHOW, DESCRIBE, EXPLAIN: looking in.

use millpond_core::{Error, Result};
use millpond_planner::{ExplainKind, Show, Statement};
use millpond_runtime::JobStatus;

use crate::answer::{Outcome, Rows};
use crate::job::JobRecord;
use crate::session::Session;

impl Session {
    pub(crate) fn show(&self, show: Show) -> Result<Outcome> {
        let rows = match show {
            Show::Tables => {
                let state = self.engine.state();
                names("table name", state.catalog.tables().map(|table| table.bound.name.clone()).collect())
            }
            Show::Views => {
                let state = self.engine.state();
                names("view name", state.catalog.views().map(|view| view.name.clone()).collect())
            }
            Show::Functions => names("function name", self.planner()?.functions()),
            Show::Settings => self.show_settings(),
            Show::Jobs => self.show_jobs(),
            Show::Checkpoints => self.show_checkpoints()?,
        };
        Ok(Outcome::Rows(rows))
    }

    fn show_settings(&self) -> Rows {
        let rows: Vec<Vec<Option<String>>> = self
            .setting_rows()
            .into_iter()
            .map(|row| {
                let texts = [row.key.into(), row.value, row.default, row.set_by.into(), row.meaning.into()];
                texts.map(Some).to_vec()
            })
            .collect();
        Rows::of_texts(&["key", "value", "default", "set by", "meaning"], &rows)
    }

    fn show_jobs(&self) -> Rows {
        let state = self.engine.state();
        let rows: Vec<Vec<Option<String>>> = state.jobs.values().map(job_row).collect();
        let names = [
            "job id",
            "job name",
            "state",
            "rows read",
            "late rows",
            "rejected rows",
            "watermark",
            "last checkpoint",
        ];
        Rows::of_texts(&names, &rows)
    }

    pub(crate) fn describe(&self, name: &str) -> Result<Outcome> {
        let columns = self.planner()?.describe(name)?;
        let rows: Vec<Vec<Option<String>>> = columns
            .into_iter()
            .map(|column| {
                let null = if column.nullable { "TRUE" } else { "FALSE" };
                vec![
                    Some(column.name),
                    Some(column.data_type),
                    Some(null.into()),
                    column.key,
                    column.extras,
                    column.watermark,
                ]
            })
            .collect();
        Ok(Outcome::Rows(Rows::of_texts(&["name", "type", "null", "key", "extras", "watermark"], &rows)))
    }

    pub(crate) fn explain(&self, kind: ExplainKind, statement: &Statement) -> Result<Outcome> {
        let planner = self.planner()?;
        let plan = match statement {
            Statement::Query { query, .. } if kind == ExplainKind::Logical => {
                return Ok(explained(&planner.explain_logical(query)?));
            }
            Statement::Query { query, .. } => planner.plan_query(query)?.plan,
            Statement::Insert(insert) if kind == ExplainKind::Logical => {
                return Ok(explained(&planner.explain_logical(&insert.query)?));
            }
            Statement::Insert(insert) => planner.plan_insert(std::slice::from_ref(insert))?,
            Statement::StatementSet(inserts) => planner.plan_insert(inserts)?,
            _ => {
                return Err(Error::invalid("EXPLAIN takes a query, an INSERT or a STATEMENT SET"));
            }
        };
        Ok(explained(&planner.explain(&plan, kind, self.settings().parallelism())?))
    }
}

fn names(title: &str, names: Vec<String>) -> Rows {
    let rows: Vec<Vec<Option<String>>> = names.into_iter().map(|name| vec![Some(name)]).collect();
    Rows::of_texts(&[title], &rows)
}

fn explained(text: &str) -> Outcome {
    let rows: Vec<Vec<Option<String>>> = text.lines().map(|line| vec![Some(line.to_string())]).collect();
    Outcome::Rows(Rows::of_texts(&["plan"], &rows))
}

fn job_row(record: &JobRecord) -> Vec<Option<String>> {
    let head = [record.id.to_string(), record.name.clone()].map(Some);
    let tail = match &record.handle {
        None => {
            let state = record.ended.as_deref().unwrap_or("waiting").to_uppercase();
            [Some(state), None, None, None, None, None].to_vec()
        }
        Some(job) => {
            let metrics = job.metrics();
            let state = match job.status() {
                JobStatus::Failed(error) => format!("FAILED: {}", error.message()),
                status => status.to_string().to_uppercase(),
            };
            vec![
                Some(state),
                Some(metrics.rows_read().to_string()),
                Some(metrics.rows_late().to_string()),
                Some(metrics.rows_rejected().to_string()),
                metrics.watermark().map(|watermark| watermark.to_string()),
                metrics.last_checkpoint.map(|report| report.checkpoint.to_string()),
            ]
        }
    };
    head.into_iter().chain(tail).collect()
}
