//! A job: a running plan with its own epoch clock and its own checkpoints.
//!
//! A supervisor starts one attempt after the other: an error that may pass (*Unavailable*, or a
//! bug of ours) restarts the job from its last checkpoint, with back-off; any other ends it. The
//! same *Internal* error three times in a row, without a checkpoint in between, is taken for one
//! that does not pass. Epoch numbers begin anew with each attempt, so "the same epoch" is told by
//! the checkpoint behind it.
//!
//! ```text
//! start_job ─▶ supervisor ─▶ attempt ─▶ driver, tasks
//! JobHandle ── commands, halt ──▶        └─▶ status, reports, counters
//! ```

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use millpond_core::limits::CHANNEL_ELEMENTS_MAX;
use millpond_core::{CheckpointId, Element, Epoch, Error, ErrorKind, Result};
use millpond_state::SavepointReport;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Instrument;

use crate::attempt::{Counters, Deployable, Deployed, deploy};
use crate::background::{Background, panicked};
use crate::coordinator::Trigger;
use crate::driver::{Command, Outcome, Stop, Tasks, joined_well};
use crate::graph::{JobGraph, Tail};
use crate::options::{Environment, JobOptions, RestartPolicy};
use crate::report::{CheckpointEvent, CheckpointReport, History, JobMetrics};

/// Where a job stands.
#[derive(Debug, Clone, PartialEq)]
pub enum JobStatus {
    /// Not running yet: it restores.
    Created,
    /// Running (or about to be restarted).
    Running,
    /// All input has been read and all output is committed.
    Finished,
    /// Failed for good.
    Failed(Error),
    /// Stopped with a last checkpoint, from which it can go on.
    Stopped,
    /// Ended at once, without a last checkpoint.
    Cancelled,
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JobStatus::Created => "created",
            JobStatus::Running => "running",
            JobStatus::Finished => "finished",
            JobStatus::Failed(_) => "failed",
            JobStatus::Stopped => "stopped",
            JobStatus::Cancelled => "cancelled",
        })
    }
}

impl JobStatus {
    /// Whether nothing runs any more.
    pub fn is_terminal(&self) -> bool {
        match self {
            JobStatus::Created | JobStatus::Running => false,
            JobStatus::Finished | JobStatus::Failed(_) | JobStatus::Stopped | JobStatus::Cancelled => true,
        }
    }
}

/// A running job. Clones are handles of the same job; when the last is dropped, the job is
/// cancelled.
#[derive(Debug, Clone)]
pub struct JobHandle(Arc<Job>);

#[derive(Debug)]
struct Job {
    name: String,
    options: watch::Sender<Arc<JobOptions>>,
    status: watch::Receiver<JobStatus>,
    commands: mpsc::Sender<Command>,
    halt: watch::Sender<bool>,
    history: Arc<History>,
    progress: Arc<Progress>,
    /// Taken once.
    client: Mutex<Option<mpsc::Receiver<Result<Element>>>>,
}

/// What the supervisor shows of the running attempt.
#[derive(Debug, Default)]
struct Progress {
    /// Held to replace or to copy.
    counters: Mutex<Counters>,
    restarts: AtomicU64,
}

/// Commands that wait for the driver, at most.
const COMMANDS_MAX: usize = 16;

/// Starts a job on the current tokio runtime.
///
/// Errors: *Internal* for a graph that breaks a promise of the planner; *Invalid* outside a
/// runtime.
pub fn start_job(graph: JobGraph, options: JobOptions, environment: Environment) -> Result<JobHandle> {
    graph.validate()?;
    graph.validate_mode(options.mode)?;
    let runtime = tokio::runtime::Handle::try_current().map_err(|error| Error::invalid(error.to_string()))?;
    let (status, watched) = watch::channel(JobStatus::Created);
    let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
    let (halt, halted) = watch::channel(false);
    let (sender, client) = client(&graph).unzip();
    let name = options.job.clone();
    let (options, history) = (Arc::new(options), Arc::new(History::default()));
    let (altered, changes) = watch::channel(Arc::clone(&options));
    let progress = Arc::new(Progress::default());
    let supervisor = Supervisor {
        job: Deployable {
            graph: Arc::new(graph),
            options,
            changes,
            environment,
            history: Arc::clone(&history),
            background: Background::default(),
            client: sender,
        },
        progress: Arc::clone(&progress),
        status,
        halted,
        commands: commanded,
    };
    // Joined through the status: it is terminal only when all tasks have been joined.
    let span = tracing::info_span!("job", %name);
    runtime.spawn(supervisor.run().instrument(span));
    let client = Mutex::new(client);
    let options = altered;
    Ok(JobHandle(Arc::new(Job { name, options, status: watched, commands, halt, history, progress, client })))
}

type ClientChannel = (mpsc::Sender<Result<Element>>, mpsc::Receiver<Result<Element>>);

fn client(graph: &JobGraph) -> Option<ClientChannel> {
    let mut tails = graph.fragments.iter().flat_map(|fragment| &fragment.tail);
    tails.any(|tail| matches!(tail, Tail::Client)).then(|| mpsc::channel(CHANNEL_ELEMENTS_MAX))
}

impl JobHandle {
    /// The job's identity.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where the job stands.
    pub fn status(&self) -> JobStatus {
        self.0.status.borrow().clone()
    }

    /// Waits until the job has ended.
    ///
    /// Errors: why it failed, or *Cancelled*.
    pub async fn wait(&self) -> Result<()> {
        match self.ended().await {
            JobStatus::Finished | JobStatus::Stopped => Ok(()),
            JobStatus::Failed(error) => Err(error),
            JobStatus::Cancelled => Err(Error::cancelled()),
            JobStatus::Created | JobStatus::Running => Err(Error::internal("the job's supervisor is gone")),
        }
    }

    async fn ended(&self) -> JobStatus {
        let mut status = self.0.status.clone();
        let ended = status.wait_for(JobStatus::is_terminal).await.map(|status| status.clone());
        ended.unwrap_or_else(|_| self.status())
    }

    /// Makes a checkpoint and waits until it is complete and the sinks have committed.
    ///
    /// Errors: why it failed; *Invalid* when the job has ended.
    pub async fn checkpoint(&self) -> Result<CheckpointReport> {
        self.ask(|reply| Command::Checkpoint { trigger: Trigger::Manual, reply }).await
    }

    /// As [`JobHandle::checkpoint`], for a request from outside: a signal.
    pub async fn checkpoint_externally(&self) -> Result<CheckpointReport> {
        self.ask(|reply| Command::Checkpoint { trigger: Trigger::External, reply }).await
    }

    /// Makes a checkpoint and writes it as a savepoint into a folder: self-contained, and the
    /// user's.
    ///
    /// Errors: as of [`JobHandle::checkpoint`]; *Unavailable* when the folder cannot be written.
    pub async fn savepoint(&self, folder: PathBuf) -> Result<SavepointReport> {
        self.ask(|reply| Command::Savepoint { folder, reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let (reply, replied) = oneshot::channel();
        let restarts = self.restarts();
        if self.0.commands.send(command(reply)).await.is_err() {
            return Err(self.over());
        }
        match replied.await {
            Ok(result) => result,
            Err(_) => Err(self.unanswered(restarts).await),
        }
    }

    /// Makes a last checkpoint, lets the sinks commit, and ends the job; it can go on from there.
    pub async fn stop(&self) -> Result<()> {
        // A job that has ended needs no order; how it ended is what `wait` says.
        let _ = self.0.commands.send(Command::Stop(Stop { trigger: Trigger::Stop, savepoint: None })).await;
        self.wait().await
    }

    /// As [`JobHandle::stop`], but the input counts as ended: the watermark goes to its end and
    /// windows are closed before the last checkpoint.
    pub async fn drain(&self) -> Result<()> {
        let _ = self.0.commands.send(Command::Stop(Stop { trigger: Trigger::Drain, savepoint: None })).await;
        self.wait().await
    }

    /// As [`JobHandle::stop`] (or, with `drain`, [`JobHandle::drain`]), and writes the last
    /// checkpoint as a savepoint into a folder.
    ///
    /// Errors: *Invalid* when the job has ended. When the savepoint cannot be written the job has
    /// stopped all the same.
    pub async fn stop_with_savepoint(&self, folder: PathBuf, drain: bool) -> Result<SavepointReport> {
        let trigger = if drain { Trigger::Drain } else { Trigger::Stop };
        let order = |reply| Command::Stop(Stop { trigger, savepoint: Some((folder, reply)) });
        let written = self.ask(order).await;
        self.wait().await?;
        written
    }

    /// Changes options of the running job: those of checkpoints and of restarts, and
    /// `epoch_interval`. The others stay as they were until the job is started again.
    pub fn alter(&self, change: impl FnOnce(&mut JobOptions)) {
        self.0.options.send_modify(|options| change(Arc::make_mut(options)));
    }

    /// Lets the sources deliver what is ready, closes the open epoch, and waits until it has
    /// passed every sink. Does nothing when the job has ended well.
    pub async fn end_epoch(&self) -> Result<()> {
        let (reply, replied) = oneshot::channel();
        let restarts = self.restarts();
        if self.0.commands.send(Command::EndEpoch(reply)).await.is_err() {
            return self.wait().await;
        }
        match replied.await {
            Ok(result) => result,
            Err(_) => {
                let error = self.unanswered(restarts).await;
                if self.status().is_terminal() { self.wait().await } else { Err(error) }
            }
        }
    }

    /// Ends the job at once, and waits until its tasks are gone.
    pub async fn cancel(&self) {
        self.0.halt.send_replace(true);
        self.ended().await;
    }

    /// Ends the job as a kill would: nothing is flushed, nothing committed; work in the background
    /// ends at its next step. Waits until all of it is gone, so that what follows meets no ghost.
    pub async fn crash(&self) {
        self.cancel().await;
    }

    /// What a SELECT sends; taken once, `None` later and for jobs without a client.
    pub fn client(&self) -> Option<mpsc::Receiver<Result<Element>>> {
        lock(&self.0.client).take()
    }

    /// Counters since the last start.
    pub fn metrics(&self) -> JobMetrics {
        let counters = lock(&self.0.progress.counters);
        let mut sources = counters.sources.clone();
        let signals = counters.signals.as_ref();
        for (source, watermark) in
            sources.iter_mut().zip(signals.iter().flat_map(|signals| signals.watermarks()))
        {
            source.watermark = watermark;
        }
        JobMetrics {
            sources,
            operators: counters.operators.clone(),
            epoch: signals.map(|signals| signals.done()).unwrap_or_default(),
            restarts: self.restarts(),
            last_checkpoint: self.0.history.last_completed(),
            checkpoints: self.0.history.totals(),
        }
    }

    /// The last checkpoints, completed and failed, oldest first.
    pub fn checkpoints(&self) -> Vec<CheckpointReport> {
        self.0.history.all()
    }

    /// As [`JobHandle::checkpoints`], with those that were not made and why.
    pub fn checkpoint_events(&self) -> Vec<CheckpointEvent> {
        self.0.history.events()
    }

    fn restarts(&self) -> u64 {
        self.0.progress.restarts.load(Ordering::SeqCst)
    }

    /// Why a command was not answered, once that is known: the attempt that took it has failed,
    /// and the job ends with its error or is restarted.
    async fn unanswered(&self, restarts: u64) -> Error {
        let mut status = self.0.status.clone();
        let moved_on = |status: &JobStatus| status.is_terminal() || self.restarts() > restarts;
        // A supervisor that is gone has told how it ended.
        let _ = status.wait_for(moved_on).await;
        self.over()
    }

    fn over(&self) -> Error {
        match self.status() {
            JobStatus::Failed(error) => error,
            JobStatus::Cancelled => Error::cancelled(),
            JobStatus::Finished | JobStatus::Stopped => {
                Error::invalid(format!("job {:?} has ended and makes no checkpoints", self.name()))
            }
            JobStatus::Created | JobStatus::Running => {
                Error::unavailable(format!("job {:?} was restarted meanwhile", self.name()))
                    .with_hint("run the statement again")
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.halt.send_replace(true);
    }
}

/// Starts one attempt after the other.
struct Supervisor {
    job: Deployable,
    progress: Arc<Progress>,
    status: watch::Sender<JobStatus>,
    halted: watch::Receiver<bool>,
    commands: mpsc::Receiver<Command>,
}

impl Supervisor {
    async fn run(mut self) {
        let mut tasks = Tasks::new();
        let mut halted = self.halted.clone();
        let ended = tokio::select! {
            ended = AssertUnwindSafe(self.attempts(&mut tasks)).catch_unwind() => {
                ended.unwrap_or_else(|panic| Err(panicked("supervisor", panic.as_ref())))
            }
            _ = halted.wait_for(|halted| *halted) => Err(Error::cancelled()),
        };
        let ended = match ended {
            Ok(outcome) => Ok(outcome),
            Err(error) => Err(self.clear(&mut tasks, error).await),
        };
        self.job.background.join().await;
        let Self { job, status, commands: _commands, .. } = self;
        let client = job.client.clone();
        // Before the end is told: whoever hears of it may open the job's store again at once.
        drop(job);
        let ended = status_of(ended);
        tracing::info!(status = %ended, "job has ended");
        status.send_replace(ended.clone());
        if let (JobStatus::Failed(error), Some(client)) = (ended, client) {
            tokio::select! {
                // A client that is gone does not want to know.
                _ = client.send(Err(error)) => {}
                _ = halted.wait_for(|halted| *halted) => {}
            }
        }
    }

    async fn attempts(&mut self, tasks: &mut Tasks) -> Result<Outcome> {
        let store = Arc::clone(&self.job.environment.store);
        let mut next = self.job.background.run(move || Ok(store.last_checkpoint_id().next())).await?;
        let mut restarts = Restarts::new(self.job.options.restart);
        for attempt in 0.. {
            let (error, stopping) = match self.attempt(attempt, &mut next, tasks).await {
                Ok(outcome) => return Ok(outcome),
                Err(failed) => failed,
            };
            let error = self.clear(tasks, error).await;
            if stopping || self.job.client.is_some() {
                return Err(error);
            }
            if error.kind() == ErrorKind::Unavailable && self.has_done_nothing() {
                return Err(error);
            }
            let completed = self.job.history.last_completed().map(|report| report.checkpoint);
            let told = error.clone();
            restarts.policy = self.job.changes.borrow().restart;
            let pause = restarts.pause(error, completed)?;
            tracing::warn!(job = %self.job.options.job, error = %told, ?pause, "the job has failed and is started again");
            self.progress.restarts.fetch_add(1, Ordering::SeqCst);
            // Wakes those whose command the failed attempt has taken with it.
            self.status.send_modify(|_| {});
            tokio::time::sleep(pause).await;
            self.job.background.resume();
        }
        Err(Error::internal("attempts have run out"))
    }

    /// Whether not one epoch has passed since the job was started: what is missing now was missing
    /// from the beginning, so it is the user's to mend rather than ours to wait for.
    fn has_done_nothing(&self) -> bool {
        let counters = lock(&self.progress.counters);
        let done = counters.signals.as_ref().map(|signals| signals.done()).unwrap_or_default();
        done == Epoch::default() && self.progress.restarts.load(Ordering::SeqCst) == 0
    }

    /// One attempt; an error comes with whether the user had asked the job to stop.
    async fn attempt(
        &mut self,
        attempt: u64,
        next: &mut CheckpointId,
        tasks: &mut Tasks,
    ) -> Result<Outcome, (Error, bool)> {
        self.job.options = Arc::clone(&self.job.changes.borrow_and_update());
        let deployed = deploy(&self.job, attempt, *next, tasks).await.map_err(|error| (error, false))?;
        let Deployed::Running(mut driver, counters) = deployed else { return Ok(Outcome::Finished) };
        *lock(&self.progress.counters) = counters;
        self.status.send_replace(JobStatus::Running);
        let outcome = driver.run(tasks, &mut self.commands).await;
        *next = driver.next_checkpoint();
        outcome.map_err(|error| (error, driver.is_stopping()))
    }

    /// Ends all tasks and background work; answers the error that began it: tasks that have lost
    /// their neighbour only say that they were cancelled.
    async fn clear(&self, tasks: &mut Tasks, mut error: Error) -> Error {
        self.job.background.halt();
        tasks.abort_all();
        while let Some(joined) = tasks.join_next().await {
            if let Err(other) = joined_well(joined)
                && error.kind() == ErrorKind::Cancelled
            {
                error = other;
            }
        }
        self.job.background.join().await;
        error
    }
}

fn status_of(ended: Result<Outcome>) -> JobStatus {
    match ended {
        Ok(Outcome::Finished) => JobStatus::Finished,
        Ok(Outcome::Stopped) => JobStatus::Stopped,
        Err(error) if error.kind() == ErrorKind::Cancelled => JobStatus::Cancelled,
        Err(error) => JobStatus::Failed(error),
    }
}

/// Whether and when a failed job is started again.
#[derive(Debug)]
struct Restarts {
    policy: RestartPolicy,
    /// Since the last completed checkpoint.
    in_a_row: u32,
    completed: Option<CheckpointId>,
    last: Option<Error>,
    same: u32,
}

/// An *Internal* error that comes so often in a row does not pass.
const SAME_ERROR_MAX: u32 = 3;

impl Restarts {
    fn new(policy: RestartPolicy) -> Self {
        Self { policy, in_a_row: 0, completed: None, last: None, same: 0 }
    }

    /// The pause before the next attempt, or the error when there is none.
    fn pause(&mut self, error: Error, completed: Option<CheckpointId>) -> Result<Duration> {
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::Data | ErrorKind::Corrupt | ErrorKind::Cancelled => {
                return Err(error);
            }
            ErrorKind::Unavailable | ErrorKind::Internal => {}
        }
        if completed > self.completed {
            *self = Self { completed, ..Self::new(self.policy) };
        }
        self.same = if self.last.as_ref() == Some(&error) { self.same + 1 } else { 1 };
        self.last = Some(error.clone());
        if error.kind() == ErrorKind::Internal && self.same >= SAME_ERROR_MAX {
            return Err(error.with_detail(format!("the same error {SAME_ERROR_MAX} times in a row")));
        }
        if self.policy.attempts.is_some_and(|attempts| self.in_a_row >= attempts) {
            return Err(error);
        }
        let pause =
            self.policy.delay.saturating_mul(1 << self.in_a_row.min(20)).min(self.policy.delay_max).max(0);
        self.in_a_row += 1;
        tracing::warn!(%error, pause_ms = pause / 1_000, "job restarts from its last checkpoint");
        Ok(Duration::from_micros(pause as u64))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
