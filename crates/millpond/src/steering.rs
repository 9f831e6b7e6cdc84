//! CHECKPOINT, CREATE SAVEPOINT, ALTER, STOP and CANCEL JOB: steering jobs that run.

use std::path::{Path, PathBuf};

use millpond_connect::object_files::is_object_store;
use millpond_core::quantity::format_duration;
use millpond_core::{Error, JobId, Location, Result};
use millpond_planner::StopSavepoint;
use millpond_runtime::JobOptions;
use millpond_state::{SavepointReport, Snapshot};

use crate::answer::{Outcome, Rows};
use crate::catalog_log::CatalogRecord;
use crate::engine::Engine;
use crate::job::Job;
use crate::object_store::{SavepointPlace, snapshot_at};
use crate::session::{Session, job_options};
use crate::settings::Settings;
use crate::show_checkpoints::millis;

impl Session {
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
                Some(report.total_bytes.to_string()),
            ]);
        }
        let names = ["job id", "checkpoint id", "duration", "bytes", "rows", "total bytes"];
        Ok(Outcome::Rows(Rows::of_texts(&names, &rows)))
    }

    pub(crate) async fn savepoint(&self, id: JobId, folder: &str) -> Result<Outcome> {
        let job = self.engine.job(id)?;
        let place = SavepointPlace::prepare(folder, &self.engine.scratch_dir(), &self.settings())?;
        let written = job.savepoint(place.folder.clone()).await?;
        let sent = place.send()?;
        Ok(savepoint_row(id, &written, &sent))
    }

    pub(crate) async fn stop(&self, id: JobId, savepoint: &StopSavepoint, drain: bool) -> Result<Outcome> {
        let job = self.engine.job(id)?;
        let prepare =
            |place: &str| SavepointPlace::prepare(place, &self.engine.scratch_dir(), &self.settings());
        let place = match savepoint {
            StopSavepoint::None => None,
            StopSavepoint::In(folder) => Some(prepare(folder)?),
            StopSavepoint::Default => Some(prepare(&self.default_savepoint(&job)?)?),
        };
        let outcome = match place {
            Some(place) => job.stop_with_savepoint(place.folder.clone(), drain).await.and_then(|written| {
                let sent = place.send()?;
                Ok(savepoint_row(id, &written, &sent))
            }),
            None if drain => job.drain().await.map(|()| Outcome::Done(None)),
            None => job.stop().await.map(|()| Outcome::Done(None)),
        };
        match job.status() {
            millpond_runtime::JobStatus::Finished => job.note_end("finished")?,
            millpond_runtime::JobStatus::Stopped => job.note_end("stopped")?,
            millpond_runtime::JobStatus::Created
            | millpond_runtime::JobStatus::Running
            | millpond_runtime::JobStatus::Failed(_)
            | millpond_runtime::JobStatus::Cancelled => {}
        }
        outcome
    }

    /// A folder of its own below `state.savepoints.dir`.
    fn default_savepoint(&self, job: &Job) -> Result<String> {
        let last = job.metrics().last_checkpoint.map_or(0, |report| report.checkpoint.0);
        let name = |number: u64| format!("savepoint-job-{}-{number}", job.id());
        let settings = self.settings();
        if let Some(url) = settings.savepoints_dir().filter(|url| is_object_store(url)) {
            return Ok(format!("{}/{}", url.trim_end_matches('/'), name(last + 1)));
        }
        let base = self.savepoints_dir(&settings).ok_or_else(|| {
            Error::invalid(
                "the savepoint has no place: there is neither a data directory nor 'state.savepoints.dir'",
            )
            .with_hint("name a folder: STOP JOB n WITH SAVEPOINT 'folder'")
        })?;
        // Numbers only go up; one is free soon.
        let free = (last + 1..).map(|number| base.join(name(number))).find(|folder| !folder.exists());
        let free = free.ok_or_else(|| Error::internal("no savepoint has a free name"))?;
        Ok(free.to_string_lossy().into_owned())
    }

    fn savepoints_dir(&self, settings: &Settings) -> Option<PathBuf> {
        match settings.savepoints_dir() {
            Some(dir) => Some(PathBuf::from(dir.strip_prefix("file://").unwrap_or(&dir))),
            None => self.engine.data_dir().map(|dir| dir.join("savepoints")),
        }
    }

    /// What `restore.from` names: a folder, or the newest savepoint.
    pub(crate) fn restore_place(&self, settings: &Settings) -> Result<Option<PathBuf>> {
        match settings.restore_from() {
            None => Ok(None),
            Some(place) => self.snapshot_place(&place, settings).map(Some),
        }
    }

    pub(crate) fn snapshot_place(&self, place: &str, settings: &Settings) -> Result<PathBuf> {
        if !place.eq_ignore_ascii_case("latest") {
            return snapshot_at(place, &self.engine.scratch_dir(), settings);
        }
        let none = || {
            Error::invalid("'restore.from' = 'latest' finds no savepoint")
                .with_hint("name the folder of a savepoint or checkpoint, or RESET 'restore.from'")
        };
        let base = self.savepoints_dir(settings).ok_or_else(none)?;
        newest_savepoint(&base).ok_or_else(|| none().with_detail(format!("there is none in {base:?}")))
    }

    /// Changes settings of a job: now where it runs, and for its next starts.
    pub(crate) fn alter_job(&self, id: JobId, options: &[(String, String, Location)]) -> Result<Outcome> {
        let record = self.engine.state().jobs.get(&id).cloned();
        let mut record = record.ok_or_else(|| {
            Error::invalid(format!("there is no job {id}")).with_hint("SHOW JOBS lists them")
        })?;
        let mut settings = self.engine.session_with(&record.settings)?.settings();
        for (key, value, location) in options {
            let altered = settings.alter(key, value);
            let (key, value) = altered.map_err(|error| error.with_location(Some(*location)))?;
            record.settings.insert(key, value);
        }
        let mut state = self.engine.state();
        if record.ended.is_none() {
            state.record(&record.as_fact())?;
        }
        if let Some(known) = state.jobs.get_mut(&id) {
            known.settings.clone_from(&record.settings);
        }
        drop(state);
        let wanted = job_options(&settings, String::new());
        if let Some(job) = record.handle.filter(Job::is_running) {
            job.alter(|options| take_over(options, &wanted));
        }
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

impl Engine {
    /// Takes a checkpoint of every running job, on behalf of something outside: a signal. Failures
    /// are logged, and stand in SHOW CHECKPOINTS.
    pub async fn checkpoint_externally(&self) {
        for job in self.jobs().into_iter().filter(Job::is_running) {
            if let Err(error) = job.checkpoint_externally().await {
                tracing::warn!(job = %job.id(), %error, "the checkpoint that was asked for failed");
            }
        }
    }

    /// Lets SIGUSR1 ask for a checkpoint of every running job, from now on.
    ///
    /// Errors: *Unavailable* when the signal cannot be listened to.
    #[cfg(unix)]
    pub fn checkpoint_on_signal(&self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut asked =
            signal(SignalKind::user_defined1()).map_err(|e| Error::io("listen to SIGUSR1", &e))?;
        let shared = std::sync::Arc::downgrade(&self.shared);
        // Ends with the runtime; it holds nothing of the engine.
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let Some(shared) = shared.upgrade() else { return };
                Engine { shared }.checkpoint_externally().await;
            }
        });
        Ok(())
    }
}

/// The options that a running job can change.
fn take_over(options: &mut JobOptions, wanted: &JobOptions) {
    options.checkpoint_interval = wanted.checkpoint_interval;
    options.checkpoint_every_rows = wanted.checkpoint_every_rows;
    options.trigger = wanted.trigger;
    options.max_concurrent = wanted.max_concurrent;
    options.checkpoint_timeout = wanted.checkpoint_timeout;
    options.min_pause = wanted.min_pause;
    options.retained = wanted.retained;
    options.tolerable_failures = wanted.tolerable_failures;
    options.epoch_interval = wanted.epoch_interval;
    options.restart = wanted.restart;
}

fn newest_savepoint(base: &Path) -> Option<PathBuf> {
    let folders = std::fs::read_dir(base).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let savepoints = folders.filter_map(|folder| {
        let snapshot = Snapshot::open(&folder).ok()?;
        let metadata = snapshot.metadata();
        (metadata.kind == "savepoint").then_some((metadata.completed_at, metadata.checkpoint, folder.clone()))
    });
    savepoints.max().map(|(_, _, folder)| folder)
}

fn savepoint_row(job: JobId, written: &SavepointReport, place: &str) -> Outcome {
    let row = [
        job.to_string(),
        written.checkpoint.to_string(),
        place.into(),
        written.bytes.to_string(),
        written.rows.to_string(),
    ];
    let names = ["job id", "checkpoint id", "savepoint path", "bytes", "rows"];
    Outcome::Rows(Rows::of_texts(&names, &[row.map(Some).to_vec()]))
}
