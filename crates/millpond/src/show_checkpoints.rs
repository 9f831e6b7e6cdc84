//! SHOW CHECKPOINTS, DESCRIBE CHECKPOINT, EXPLAIN RESTORE: looking into snapshots.

use std::time::Duration;

use millpond_core::quantity::format_duration;
use millpond_core::{CheckpointId, Error, JobId, Result};
use millpond_planner::Statement;
use millpond_runtime::{CheckpointEvent, CheckpointReport, Fate, RefusedCheckpoint, explain_restore};
use millpond_state::{CheckpointMetadata, Snapshot, SnapshotReader, bytes_of, rows_of};

use crate::answer::{Outcome, Rows};
use crate::job::JobRecord;
use crate::session::Session;

type Row = Vec<Option<String>>;

const COLUMNS: [&str; 14] = [
    "job id",
    "checkpoint id",
    "trigger",
    "status",
    "duration",
    "bytes",
    "rows",
    "align",
    "freeze",
    "drain",
    "asynchronous",
    "total bytes",
    "incremental",
    "age",
];

impl Session {
    /// Those of this process with how they went; of jobs that do not run, those on disk.
    pub(crate) fn show_checkpoints(&self) -> Result<Rows> {
        let records: Vec<JobRecord> = self.engine.state().jobs.values().cloned().collect();
        let mut rows = Vec::new();
        for record in records {
            match &record.handle {
                Some(job) => {
                    let events = job.checkpoint_events();
                    rows.extend(events.iter().map(|event| self.event_row(record.id, event)));
                }
                None => rows.extend(self.stored_checkpoints(&record)?),
            }
        }
        Ok(Rows::of_texts(&COLUMNS, &rows))
    }

    fn event_row(&self, job: JobId, event: &CheckpointEvent) -> Row {
        match event {
            CheckpointEvent::Ended(report) => self.report_row(job, report),
            CheckpointEvent::Refused(refused) => self.refused_row(job, refused),
        }
    }

    fn report_row(&self, job: JobId, report: &CheckpointReport) -> Row {
        let duration = |duration| format_duration(millis(duration));
        let texts = [
            Some(job.to_string()),
            Some(report.checkpoint.to_string()),
            Some(report.trigger.name().into()),
            Some(report.status_text()),
            Some(duration(report.duration)),
            Some(report.bytes.to_string()),
            Some(report.rows.to_string()),
            Some(duration(report.align)),
            Some(micros(report.freeze)),
            Some(micros(report.drain)),
            Some(duration(report.asynchronous)),
            Some(report.total_bytes.to_string()),
            report.incremental_ratio().map(percent),
            Some(self.age(report.ended_at)),
        ];
        texts.to_vec()
    }

    fn refused_row(&self, job: JobId, refused: &RefusedCheckpoint) -> Row {
        let times = if refused.times > 1 { format!(" ({} times)", refused.times) } else { String::new() };
        let mut row: Row = vec![None; COLUMNS.len()];
        row[0] = Some(job.to_string());
        row[2] = Some(refused.trigger.name().into());
        row[3] = Some(format!("REFUSED: {}{times}", refused.refusal));
        row[COLUMNS.len() - 1] = Some(self.age(refused.refused_at));
        row
    }

    fn age(&self, at: millpond_core::Timestamp) -> String {
        let micros = self.engine.shared.clock.now().0.saturating_sub(at.0).max(0);
        format_duration(micros / 1_000_000 * 1_000_000)
    }

    fn stored_checkpoints(&self, record: &JobRecord) -> Result<Vec<Row>> {
        let settings = self.engine.session_with(&record.settings)?.settings();
        let folder = self.engine.job_dir(record.id, &settings).filter(|folder| folder.is_dir());
        let Some(folder) = folder else { return Ok(Vec::new()) };
        let mut stored = SnapshotReader::new(folder).checkpoints()?;
        stored.reverse();
        Ok(stored.iter().map(|metadata| self.stored_row(record.id, metadata)).collect())
    }

    /// Bytes and rows of all files that the checkpoint refers to, older ones included.
    fn stored_row(&self, job: JobId, metadata: &CheckpointMetadata) -> Row {
        let micros = metadata.completed_at.0.saturating_sub(metadata.triggered_at.0);
        let mut row: Row = vec![None; COLUMNS.len()];
        let texts = [
            job.to_string(),
            metadata.checkpoint.to_string(),
            metadata.trigger.clone(),
            "COMPLETED".into(),
            format_duration(micros / 1000 * 1000),
            bytes_of(metadata).to_string(),
            rows_of(metadata).to_string(),
        ];
        row.splice(..texts.len(), texts.map(Some));
        row[11] = Some(bytes_of(metadata).to_string());
        row[COLUMNS.len() - 1] = Some(self.age(metadata.completed_at));
        row
    }

    /// The operators and tables of one checkpoint.
    pub(crate) fn describe_checkpoint(&self, checkpoint: &str, job: Option<JobId>) -> Result<Outcome> {
        let metadata = match checkpoint.parse::<u64>() {
            Ok(number) => self.find_checkpoint(CheckpointId(number), job)?,
            Err(_) => {
                let place = self.snapshot_place(checkpoint, &self.settings())?;
                Snapshot::open(&place)?.metadata().clone()
            }
        };
        Ok(Outcome::Rows(Rows::of_texts(
            &crate::snapshot_rows::STATE_COLUMNS,
            &crate::snapshot_rows::state_rows(&metadata),
        )))
    }

    fn find_checkpoint(&self, id: CheckpointId, job: Option<JobId>) -> Result<CheckpointMetadata> {
        let records: Vec<JobRecord> = self.engine.state().jobs.values().cloned().collect();
        let mut found = Vec::new();
        for record in records.iter().filter(|record| job.is_none_or(|job| job == record.id)) {
            let settings = self.engine.session_with(&record.settings)?.settings();
            let folder = self.engine.job_dir(record.id, &settings).filter(|folder| folder.is_dir());
            let Some(folder) = folder else { continue };
            let stored = SnapshotReader::new(folder).checkpoints()?;
            found.extend(
                stored.into_iter().filter(|stored| stored.checkpoint == id).map(|stored| (record.id, stored)),
            );
        }
        match found.len() {
            1 => Ok(found.remove(0).1),
            0 => Err(Error::invalid(format!("there is no checkpoint {id} on disk"))
                .with_hint("SHOW CHECKPOINTS lists them")),
            _ => {
                let jobs: Vec<String> = found.iter().map(|(job, _)| job.to_string()).collect();
                Err(Error::invalid(format!("jobs {} have a checkpoint {id}", jobs.join(", ")))
                    .with_hint(format!("DESCRIBE CHECKPOINT {id} FOR JOB {}", jobs[0])))
            }
        }
    }

    /// What of a snapshot's state the job of a statement would keep.
    pub(crate) fn explain_restore(&self, place: &str, statement: &Statement) -> Result<Outcome> {
        let planner = self.planner()?;
        let plan = match statement {
            Statement::Insert(insert) => planner.plan_insert(std::slice::from_ref(insert))?,
            Statement::StatementSet(inserts) => planner.plan_insert(inserts)?,
            _ => return Err(Error::invalid("EXPLAIN RESTORE takes an INSERT or a STATEMENT SET")),
        };
        let place = self.snapshot_place(place, &self.settings())?;
        let snapshot = Snapshot::open(&place)?;
        let items = explain_restore(&self.cut(&plan)?, snapshot.metadata())?;
        let row = |item: &millpond_runtime::RestoreItem| -> Row {
            let rows = match &item.fate {
                Fate::Kept { entries, .. } => Some(entries.to_string()),
                Fate::Fresh | Fate::Lost(_) => None,
            };
            let texts =
                [item.uid.to_string(), item.operator.clone(), item.state.clone(), item.fate.to_string()];
            texts.map(Some).into_iter().chain([rows]).collect()
        };
        let rows: Vec<Row> = items.iter().map(row).collect();
        let names = ["operator uid", "operator", "state", "fate", "entries"];
        Ok(Outcome::Rows(Rows::of_texts(&names, &rows)))
    }
}

/// Whole milliseconds, in microseconds: finer is noise in a report.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).saturating_mul(1000)
}

/// A freeze is shorter than a millisecond where all is well.
fn micros(duration: Duration) -> String {
    format_duration(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}
