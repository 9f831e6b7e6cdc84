//! SHOW, DESCRIBE, EXPLAIN, CHECKPOINT, STOP and CANCEL: looking in and steering.

use millpond_core::quantity::format_duration;
use millpond_core::{Error, JobId, Result};
use millpond_planner::{ExplainKind, Show, Statement};
use millpond_runtime::{CheckpointReport, JobStatus};
use millpond_state::{CheckpointMetadata, SnapshotReader};

use crate::answer::{Outcome, Rows};
use crate::catalog_log::CatalogRecord;
use crate::job::{Job, JobRecord};
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

    /// Those of this process with how they went; of jobs that do not run, those on disk.
    fn show_checkpoints(&self) -> Result<Rows> {
        let records: Vec<JobRecord> = self.engine.state().jobs.values().cloned().collect();
        let mut rows = Vec::new();
        for record in records {
            match &record.handle {
                Some(job) => {
                    rows.extend(job.checkpoints().iter().map(|report| report_row(record.id, report)))
                }
                None => rows.extend(self.stored_checkpoints(&record)?),
            }
        }
        let names = ["job id", "checkpoint id", "trigger", "status", "duration", "bytes", "rows"];
        Ok(Rows::of_texts(&names, &rows))
    }

    fn stored_checkpoints(&self, record: &JobRecord) -> Result<Vec<Vec<Option<String>>>> {
        let settings = self.engine.session_with(&record.settings)?.settings();
        let folder = self.engine.job_dir(record.id, &settings).filter(|folder| folder.is_dir());
        let Some(folder) = folder else { return Ok(Vec::new()) };
        let mut stored = SnapshotReader::new(folder).checkpoints()?;
        stored.reverse();
        Ok(stored.iter().map(|metadata| stored_row(record.id, metadata)).collect())
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
                Some(format_duration(millis(report.duration))),
                Some(report.bytes.to_string()),
                Some(report.rows.to_string()),
            ]);
        }
        Ok(Outcome::Rows(Rows::of_texts(&["job id", "checkpoint id", "duration", "bytes", "rows"], &rows)))
    }

    pub(crate) async fn stop(&self, id: JobId) -> Result<Outcome> {
        let job = self.engine.job(id)?;
        job.stop().await?;
        job.note_end("stopped")?;
        Ok(Outcome::Done(None))
    }

    pub(crate) async fn cancel(&self, id: JobId) -> Result<Outcome> {
        match self.engine.job(id) {
            Ok(job) => {
                job.cancel().await;
                job.note_end("cancelled")?;
            }
            Err(error) => self.cancel_waiting(id).ok_or(error)??,
        }
        Ok(Outcome::Done(None))
    }

    /// Ends a job of the catalog that does not run; `None` if there is no such job.
    fn cancel_waiting(&self, id: JobId) -> Option<Result<()>> {
        let mut state = self.engine.state();
        state.jobs.get(&id).filter(|record| record.ended.is_none())?;
        let ended = state.record(&CatalogRecord::JobEnded { id, how: "cancelled".into() });
        if let Some(record) = state.jobs.get_mut(&id) {
            record.ended = Some("cancelled".into());
        }
        Some(ended)
    }
}

/// Whole milliseconds, in microseconds: finer is noise in a report.
fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).saturating_mul(1000)
}

fn report_row(job: JobId, report: &CheckpointReport) -> Vec<Option<String>> {
    let texts = [
        job.to_string(),
        report.checkpoint.to_string(),
        report.trigger.name().into(),
        report.status_text(),
        format_duration(millis(report.duration)),
        report.bytes.to_string(),
        report.rows.to_string(),
    ];
    texts.map(Some).to_vec()
}

/// Bytes and rows of all files that the checkpoint refers to, older ones included.
fn stored_row(job: JobId, metadata: &CheckpointMetadata) -> Vec<Option<String>> {
    let tables = metadata.operators.values().flat_map(|operator| operator.tables.values());
    let parts: Vec<_> = tables.flat_map(|table| table.parts.values().flatten()).collect();
    let bytes: u64 = parts.iter().filter_map(|part| part.file.as_ref()).map(|file| file.bytes).sum();
    let rows: u64 = parts.iter().map(|part| part.rows).sum();
    let micros = metadata.completed_at.0.saturating_sub(metadata.triggered_at.0);
    let texts = [
        job.to_string(),
        metadata.checkpoint.to_string(),
        metadata.trigger.clone(),
        "COMPLETED".into(),
        format_duration(micros / 1000 * 1000),
        bytes.to_string(),
        rows.to_string(),
    ];
    texts.map(Some).to_vec()
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
