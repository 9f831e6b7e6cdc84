//! What a job tells of itself: its checkpoints and its counters.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millpond_core::{
    CheckpointId, Epoch, Error, OperatorMetrics, OperatorUid, SourceMetrics, Timestamp, Watermark,
};

use crate::coordinator::Trigger;

/// How a checkpoint has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckpointStatus {
    /// Its metadata is durable and the sinks have committed.
    Completed,
    /// It never existed, for this reason.
    Failed(Error),
}

/// A line of SHOW CHECKPOINTS.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointReport {
    /// Its number.
    pub checkpoint: CheckpointId,
    /// Why it was made.
    pub trigger: Trigger,
    /// How it has ended.
    pub status: CheckpointStatus,
    /// When it was asked for.
    pub triggered_at: Timestamp,
    /// From the request to the end.
    pub duration: Duration,
    /// The longest alignment of a task.
    pub align: Duration,
    /// The longest freeze of a task: the pause that the snapshot costs.
    pub freeze: Duration,
    /// The longest background work of a task.
    pub asynchronous: Duration,
    /// Bytes written for it.
    pub bytes: u64,
    /// Rows written for it.
    pub rows: u64,
}

/// Counters of a job since its last start.
#[derive(Debug, Clone, Default)]
pub struct JobMetrics {
    /// Per source task.
    pub sources: Vec<SourceReport>,
    /// Per operator and task.
    pub operators: Vec<OperatorReport>,
    /// The last epoch that has passed every sink.
    pub epoch: Epoch,
    /// How often the job has been restarted by itself.
    pub restarts: u64,
    /// The last completed checkpoint.
    pub last_checkpoint: Option<CheckpointReport>,
}

impl JobMetrics {
    /// Records read by all sources, good or bad.
    pub fn rows_read(&self) -> u64 {
        self.sources.iter().map(|source| source.metrics.read.value()).sum()
    }
    /// Rows that came after their last window was final.
    pub fn rows_late(&self) -> u64 {
        self.operators.iter().map(|operator| operator.metrics.late.value()).sum()
    }
    /// Records and rows that could not be used.
    pub fn rows_rejected(&self) -> u64 {
        let read: u64 = self.sources.iter().map(|source| source.metrics.rejected.value()).sum();
        let used: u64 = self.operators.iter().map(|operator| operator.metrics.rejected.value()).sum();
        read + used
    }
    /// The lowest watermark of the sources: the one that holds the others back.
    pub fn watermark(&self) -> Option<Watermark> {
        self.sources.iter().filter_map(|source| source.watermark).min()
    }

    /// Invariant 14 over everything counted. Holds when nothing is in flight, so at a job's end.
    ///
    /// Errors: *Internal*, with the counters that do not add up.
    pub fn check_accounting(&self) -> Result<(), Error> {
        for source in &self.sources {
            let counted = &source.metrics;
            let (read, sent, rejected) = (counted.read.value(), counted.sent.value(), counted.rejected.value());
            if read != sent + rejected {
                return Err(Error::internal(format!(
                    "invariant 14: source {} read {read} rows but sent {sent} and rejected {rejected}",
                    source.uid
                )));
            }
        }
        for operator in &self.operators {
            let counted = &operator.metrics;
            let parts = [&counted.accepted, &counted.filtered, &counted.late, &counted.rejected];
            let (rows, sum) = (counted.rows_in.value(), parts.iter().map(|part| part.value()).sum::<u64>());
            if rows != sum {
                return Err(Error::internal(format!(
                    "invariant 14: operator {} took {rows} rows in but accounts for {sum}",
                    operator.uid
                )));
            }
        }
        Ok(())
    }
}

impl CheckpointReport {
    /// `COMPLETED`, or `FAILED` with the reason.
    pub fn status_text(&self) -> String {
        match &self.status {
            CheckpointStatus::Completed => "COMPLETED".into(),
            CheckpointStatus::Failed(error) => format!("FAILED: {}", error.message()),
        }
    }
}

/// Counters of a source in one task.
#[derive(Debug, Clone)]
pub struct SourceReport {
    /// The source.
    pub uid: OperatorUid,
    /// The table.
    pub table: String,
    /// Index of the task.
    pub task: usize,
    /// Its counters.
    pub metrics: Arc<SourceMetrics>,
    /// The watermark that its last mark carried.
    pub watermark: Option<Watermark>,
}

/// Counters of an operator in one task.
#[derive(Debug, Clone)]
pub struct OperatorReport {
    /// The operator.
    pub uid: OperatorUid,
    /// What it is, e.g. `WindowAggregate`.
    pub name: &'static str,
    /// Index of the task.
    pub task: usize,
    /// Its counters.
    pub metrics: Arc<OperatorMetrics>,
}

/// Checkpoints kept for SHOW CHECKPOINTS.
const HISTORY_MAX: usize = 100;

/// The last checkpoints of a job, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Held to add or to copy.
    reports: Mutex<VecDeque<CheckpointReport>>,
}

impl History {
    pub(crate) fn add(&self, report: CheckpointReport) {
        let mut reports = self.lock();
        if reports.len() == HISTORY_MAX {
            reports.pop_front();
        }
        reports.push_back(report);
    }
    pub(crate) fn all(&self) -> Vec<CheckpointReport> {
        self.lock().iter().cloned().collect()
    }
    pub(crate) fn last_completed(&self) -> Option<CheckpointReport> {
        self.lock().iter().rev().find(|report| report.status == CheckpointStatus::Completed).cloned()
    }
    fn lock(&self) -> MutexGuard<'_, VecDeque<CheckpointReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
