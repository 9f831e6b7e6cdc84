//! What a job tells of itself: its checkpoints and its counters.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millpond_core::{
    CheckpointId, Epoch, Error, OperatorMetrics, OperatorUid, SourceMetrics, Timestamp, Watermark,
};

use crate::admission::Refusal;
use crate::coordinator::Trigger;

/// How a checkpoint has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckpointStatus {
    /// Its metadata is durable and the sinks have committed.
    Completed,
    /// It never existed, for this reason.
    Failed(Error),
}

/// A checkpoint that has ended.
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
    /// The longest copying of frozen rows in a task, summed over the slices between its batches.
    pub drain: Duration,
    /// The longest background work of a task.
    pub asynchronous: Duration,
    /// Bytes written for it.
    pub bytes: u64,
    /// Rows written for it.
    pub rows: u64,
    /// Bytes of all files that it refers to, those of earlier checkpoints included.
    pub total_bytes: u64,
    /// When it had ended.
    pub ended_at: Timestamp,
}

/// An automatic checkpoint that was not made, and why; equal ones in a row are one entry.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedCheckpoint {
    /// What would have made it.
    pub trigger: Trigger,
    /// Why it was not made.
    pub refusal: Refusal,
    /// When the last of them was refused.
    pub refused_at: Timestamp,
    /// How many there were in a row.
    pub times: u64,
}

/// A line of SHOW CHECKPOINTS.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckpointEvent {
    /// A checkpoint, completed or failed.
    Ended(CheckpointReport),
    /// One that was not made.
    Refused(RefusedCheckpoint),
}

/// Checkpoints of a job since it was started in this process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckpointTotals {
    /// Completed ones.
    pub completed: u64,
    /// Failed ones by reason.
    pub failed: BTreeMap<String, u64>,
    /// Automatic ones that were not made.
    pub refused: u64,
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
    /// Checkpoints by how they went.
    pub checkpoints: CheckpointTotals,
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
            let (read, sent, rejected) =
                (counted.read.value(), counted.sent.value(), counted.rejected.value());
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
    /// Which part of all its bytes was written for it: small for a checkpoint of few changes.
    pub fn incremental_ratio(&self) -> Option<f64> {
        (self.total_bytes > 0).then(|| self.bytes as f64 / self.total_bytes as f64)
    }

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

/// Events kept for SHOW CHECKPOINTS.
const HISTORY_MAX: usize = 100;

/// The last checkpoints of a job, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Held to add or to copy.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<CheckpointEvent>,
    totals: CheckpointTotals,
    last_completed: Option<CheckpointReport>,
}

impl Kept {
    fn push(&mut self, event: CheckpointEvent) {
        if self.events.len() == HISTORY_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl History {
    pub(crate) fn add(&self, report: CheckpointReport) {
        let mut kept = self.lock();
        match &report.status {
            CheckpointStatus::Completed => {
                kept.totals.completed += 1;
                kept.last_completed = Some(report.clone());
            }
            CheckpointStatus::Failed(reason) => {
                let reason = reason.message().to_string();
                *kept.totals.failed.entry(reason).or_default() += 1;
            }
        }
        kept.push(CheckpointEvent::Ended(report));
    }

    /// Notes why one was not made; what was refused for the same reason just before is counted.
    pub(crate) fn refuse(&self, trigger: Trigger, refusal: Refusal, now: Timestamp) {
        let mut kept = self.lock();
        kept.totals.refused += 1;
        if let Some(CheckpointEvent::Refused(last)) = kept.events.back_mut()
            && (last.trigger, last.refusal) == (trigger, refusal)
        {
            last.times += 1;
            last.refused_at = now;
            return;
        }
        kept.push(CheckpointEvent::Refused(RefusedCheckpoint {
            trigger,
            refusal,
            refused_at: now,
            times: 1,
        }));
    }

    pub(crate) fn events(&self) -> Vec<CheckpointEvent> {
        self.lock().events.iter().cloned().collect()
    }
    pub(crate) fn all(&self) -> Vec<CheckpointReport> {
        let report = |event: &CheckpointEvent| match event {
            CheckpointEvent::Ended(report) => Some(report.clone()),
            CheckpointEvent::Refused(_) => None,
        };
        self.lock().events.iter().filter_map(report).collect()
    }
    pub(crate) fn totals(&self) -> CheckpointTotals {
        self.lock().totals.clone()
    }
    pub(crate) fn last_completed(&self) -> Option<CheckpointReport> {
        self.lock().last_completed.clone()
    }
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
