//! SHOW, DESCRIBE, EXPLAIN, CHECKPOINT, STOP and CANCEL: looking in and steering.

use millpond_core::{Error, JobId, Result};
use millpond_planner::{ExplainKind, Show, Statement};
use millpond_runtime::JobStatus;

use crate::answer::{Outcome, Rows};
use crate::catalog_log::CatalogRecord;
use crate::job::{Job, JobRecord};
use crate::session::Session;

impl Session {
    pub(crate) fn show(&self, show: Show) -> Result<Outcome> {
        let rows = match show {
            Show::Tables => names("table name", self.engine.state().catalog.tables()),
            Show::Views => names("view name", self.engine.state().catalog.views()),
            Show::Functions => names("function name", self.planner()?.functions()),
            Show::Settings => self.show_settings(),
            Show::Jobs => self.show_jobs(),
            Show::Checkpoints => self.show_checkpoints(),
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
        let names = ["job id", "job name", "state", "rows in", "rows out", "late rows", "rejected rows", "watermark", "last checkpoint"];
        Rows::of_texts(&names, &rows)
    }

    fn show_checkpoints(&self) -> Rows {
        let mut rows = Vec::new();
        for job in self.engine.jobs() {
            for report in job.checkpoints() {
                rows.push(vec![
                    Some(job.id().to_string()),
                    Some(report.checkpoint.to_string()),
                    Some(report.trigger.clone()),
                    Some(report.status_text()),
                    Some(millpond_core::quantity::format_duration(report.duration_micros)),
                    Some(report.bytes.to_string()),
                    Some(report.rows.to_string()),
                ]);
            }
        }
        Rows::of_texts(&["job id", "checkpoint id", "trigger", "status", "duration", "bytes", "rows"], &rows)
    }

    pub(crate) fn describe(&self, name: &str) -> Result<Outcome> {
        let columns = self.planner()?.describe(name)?;
        let rows: Vec<Vec<Option<String>>> = columns
            .into_iter()
            .map(|column| {
                let null = if column.nullable { "TRUE" } else { "FALSE" };
                vec![Some(column.name), Some(column.sql_type), Some(null.into()), column.key, column.extras, column.watermark]
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
            Statement::Query { query, emit_changes } => planner.plan_query(query, *emit_changes)?.plan,
            Statement::Insert(insert) if kind == ExplainKind::Logical => {
                return Ok(explained(&planner.explain_logical(&insert.query)?));
            }
            Statement::Insert(insert) => planner.plan_insert(std::slice::from_ref(insert))?,
            Statement::StatementSet(inserts) => planner.plan_insert(inserts)?,
            _ => {
                return Err(Error::invalid("EXPLAIN takes a query, an INSERT or a STATEMENT SET"));
            }
        };
        Ok(explained(&planner.explain(&plan, kind)))
    }

    pub(crate) async fn checkpoint(&self, job: Option<JobId>) -> Result<Outcome> {
        let jobs: Vec<Job> = match job {
            Some(id) => vec![self.engine.job(id)?],
            None => self.engine.jobs().into_iter().filter(Job::is_running).collect(),
        };
        if jobs.is_empty() {
            return Err(Error::invalid("no job is running"));
        }
        let mut rows = Vec::new();
        for job in jobs {
            let report = job.checkpoint().await?;
            rows.push(vec![
                Some(job.id().to_string()),
                Some(report.checkpoint.to_string()),
                Some(millpond_core::quantity::format_duration(report.duration_micros)),
                Some(report.bytes.to_string()),
                Some(report.rows.to_string()),
            ]);
        }
        Ok(Outcome::Rows(Rows::of_texts(&["job id", "checkpoint id", "duration", "bytes", "rows"], &rows)))
    }

    pub(crate) async fn stop(&self, id: JobId) -> Result<Outcome> {
        self.engine.job(id)?.stop().await?;
        self.note_end(id, "stopped")?;
        Ok(Outcome::Done(None))
    }

    pub(crate) async fn cancel(&self, id: JobId) -> Result<Outcome> {
        self.engine.job(id)?.cancel().await;
        self.note_end(id, "cancelled")?;
        Ok(Outcome::Done(None))
    }

    fn note_end(&self, id: JobId, how: &str) -> Result<()> {
        let mut state = self.engine.state();
        state.record(&CatalogRecord::JobEnded { id, how: how.into() })?;
        if let Some(record) = state.jobs.get_mut(&id) {
            record.ended = Some(how.into());
        }
        Ok(())
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
            [Some(state), None, None, None, None, None, None].to_vec()
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
                Some(metrics.rows_sent_to_sinks().to_string()),
                Some(metrics.rows_late().to_string()),
                Some(metrics.rows_rejected().to_string()),
                metrics.watermark.map(|watermark| watermark.to_string()),
                metrics.last_checkpoint.map(|id| id.to_string()),
            ]
        }
    };
    head.into_iter().chain(tail).collect()
}
