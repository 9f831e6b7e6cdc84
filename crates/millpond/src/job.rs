//! Jobs: the engine's records of them and the handle that a user holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_core::{JobId, Result};
use millpond_runtime::{CheckpointReport, JobHandle, JobMetrics, JobStatus};

/// What the catalog knows of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobRecord {
    pub(crate) id: JobId,
    pub(crate) identity: String,
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) settings: BTreeMap<String, String>,
    /// How it came to its end: `finished`, `stopped`, `cancelled`.
    pub(crate) ended: Option<String>,
    /// The job in this process.
    pub(crate) handle: Option<Job>,
}

impl JobRecord {
    pub(crate) fn new(
        id: JobId,
        identity: String,
        name: String,
        text: String,
        settings: BTreeMap<String, String>,
    ) -> Self {
        Self { id, identity, name, text, settings, ended: None, handle: None }
    }
}

/// A job that was started in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Job {
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) bounded: bool,
    pub(crate) handle: Arc<JobHandle>,
}

impl Job {
    /// Its number, as `SHOW JOBS` gives it.
    pub fn id(&self) -> JobId {
        self.id
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Whether its input ends by itself.
    pub fn is_bounded(&self) -> bool {
        self.bounded
    }
    /// What it is doing.
    pub fn status(&self) -> JobStatus {
        self.handle.status()
    }
    /// Whether it is still at work.
    pub fn is_running(&self) -> bool {
        matches!(self.status(), JobStatus::Created | JobStatus::Running)
    }
    /// Waits until it has ended; its error, if it failed.
    pub async fn wait(&self) -> Result<()> {
        self.handle.wait().await
    }
    /// Takes a checkpoint now and waits for it.
    pub async fn checkpoint(&self) -> Result<CheckpointReport> {
        self.handle.checkpoint().await
    }
    /// Takes a last checkpoint, commits the sinks and ends the job; it can be started again.
    pub async fn stop(&self) -> Result<()> {
        self.handle.stop().await
    }
    /// Ends the job at once. What was not committed is not.
    pub async fn cancel(&self) {
        self.handle.cancel();
        // The job's own outcome is "cancelled", which is what was asked for.
        let _ = self.handle.wait().await;
    }
    /// Ends the job as a kill of the process would. For tests of recovery.
    pub fn crash(&self) {
        self.handle.crash();
    }
    /// Ends the open epoch and waits until it has passed every sink.
    pub async fn end_epoch(&self) -> Result<()> {
        self.handle.end_epoch().await
    }
    /// Counters (invariant 14).
    pub fn metrics(&self) -> JobMetrics {
        self.handle.metrics()
    }
    /// Its checkpoints in this process, oldest first.
    pub fn checkpoints(&self) -> Vec<CheckpointReport> {
        self.handle.checkpoints()
    }
}
