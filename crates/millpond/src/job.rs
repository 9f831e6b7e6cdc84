//! Jobs: the engine's records of them and the handle that a user holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Weak;

use millpond_core::{JobId, Result};
use millpond_runtime::{CheckpointEvent, CheckpointReport, JobHandle, JobMetrics, JobOptions, JobStatus};
use millpond_state::SavepointReport;

use crate::catalog_log::CatalogRecord;
use crate::engine::{Engine, Shared};

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

impl JobRecord {
    /// As the catalog log has it.
    pub(crate) fn as_fact(&self) -> CatalogRecord {
        CatalogRecord::Job {
            id: self.id,
            identity: self.identity.clone(),
            name: self.name.clone(),
            text: self.text.clone(),
            settings: self.settings.clone(),
        }
    }
}

/// A job that was started in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Job {
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) bounded: bool,
    pub(crate) handle: JobHandle,
    /// Its engine, which holds this handle and is told of the job's end.
    pub(crate) engine: Weak<Shared>,
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
        !self.status().is_terminal()
    }
    /// Waits until it has ended; its error, if it failed.
    pub async fn wait(&self) -> Result<()> {
        let outcome = self.handle.wait().await;
        if self.status() == JobStatus::Finished {
            self.note_end("finished")?;
        }
        outcome
    }

    /// Writes the job's end into the catalog, once.
    pub(crate) fn note_end(&self, how: &str) -> Result<()> {
        let Some(shared) = self.engine.upgrade() else { return Ok(()) };
        let engine = Engine { shared };
        let mut state = engine.state();
        if state.jobs.get(&self.id).is_none_or(|record| record.ended.is_some()) {
            return Ok(());
        }
        state.record(&CatalogRecord::JobEnded { id: self.id, how: how.into() })?;
        if let Some(record) = state.jobs.get_mut(&self.id) {
            record.ended = Some(how.into());
        }
        Ok(())
    }
    /// Takes a checkpoint now and waits for it.
    pub async fn checkpoint(&self) -> Result<CheckpointReport> {
        self.handle.checkpoint().await
    }
    /// As [`Job::checkpoint`], when a signal asks for it.
    pub async fn checkpoint_externally(&self) -> Result<CheckpointReport> {
        self.handle.checkpoint_externally().await
    }
    /// Takes a checkpoint and writes it as a savepoint into a folder of its own.
    pub async fn savepoint(&self, folder: impl Into<PathBuf>) -> Result<SavepointReport> {
        self.handle.savepoint(folder.into()).await
    }
    /// Ends the job as if its input had ended: windows are closed, then a last checkpoint.
    pub async fn drain(&self) -> Result<()> {
        self.handle.drain().await
    }
    /// As [`Job::stop`] (or, with `drain`, [`Job::drain`]), and writes the last checkpoint as a
    /// savepoint.
    pub async fn stop_with_savepoint(
        &self,
        folder: impl Into<PathBuf>,
        drain: bool,
    ) -> Result<SavepointReport> {
        self.handle.stop_with_savepoint(folder.into(), drain).await
    }
    pub(crate) fn alter(&self, change: impl FnOnce(&mut JobOptions)) {
        self.handle.alter(change);
    }
    /// Its checkpoints in this process and those that were not made, oldest first.
    pub fn checkpoint_events(&self) -> Vec<CheckpointEvent> {
        self.handle.checkpoint_events()
    }
    /// Takes a last checkpoint, commits the sinks and ends the job; it can be started again.
    pub async fn stop(&self) -> Result<()> {
        self.handle.stop().await
    }
    /// Ends the job at once. What was not committed is not.
    pub async fn cancel(&self) {
        self.handle.cancel().await;
    }
    /// Ends the job as a kill of the process would. For tests of recovery.
    pub async fn crash(&self) {
        self.handle.crash().await;
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
