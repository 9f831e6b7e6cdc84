//! The driver of one attempt: does what the epoch clock and the coordinator decide.
//!
//! One loop, woken by the bell of the tasks, their snapshots, commands, finished work and timers.
//! It never waits for a task, so that tasks may wait for it.
//!
//! ```text
//! tasks ──bell, snapshots──▶ driver ──EndEpoch, Poll──▶ source tasks
//!                              │
//!           coordinator.step ◀─┴─▶ background: metadata, commit, retain
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millpond_core::clock::Stopwatch;
use millpond_core::{Barrier, CheckpointId, Error, Result, TaskId, Timestamp};
use millpond_state::{CheckpointMetadata, StateStore};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use crate::background::{Background, panicked};
use crate::clock::{EpochClock, Observed};
use crate::coordinator::{Action, Coordinator, Event, Trigger};
use crate::flush::Flushes;
use crate::graph::SinkNode;
use crate::options::JobOptions;
use crate::pending::Pending;
use crate::report::{CheckpointReport, CheckpointStatus, History};
use crate::snapshot::{SnapshotEvent, TaskSnapshot};
use crate::source::{Control, End, EndEpoch};
use crate::task::TaskContext;
use crate::timer::sleep_until;

/// The running tasks of an attempt.
pub(crate) type Tasks = JoinSet<(TaskId, Result<()>)>;

/// How an attempt has ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All input has been read and everything is committed.
    Finished,
    /// The user has stopped the job.
    Stopped,
}

/// What the job's handle asks.
#[derive(Debug)]
pub(crate) enum Command {
    /// Make a checkpoint.
    Checkpoint(oneshot::Sender<Result<CheckpointReport>>),
    /// Make a last checkpoint and end.
    Stop,
    /// Let the sources deliver what is ready, close the epoch, wait until it has passed.
    EndEpoch(oneshot::Sender<Result<()>>),
}

/// Drives one attempt.
pub(crate) struct Driver {
    context: TaskContext,
    options: Arc<JobOptions>,
    history: Arc<History>,
    sinks: Arc<Vec<SinkNode>>,
    controls: Vec<mpsc::Sender<Control>>,
    snapshot_events: mpsc::Receiver<Result<SnapshotEvent>>,
    clock: EpochClock,
    coordinator: Coordinator,
    pending: Pending,
    flushes: Flushes,
    /// The checkpoint under way.
    started: Option<Started>,
    completing: Option<oneshot::Receiver<Result<Completion>>>,
    requests: HashMap<u64, oneshot::Sender<Result<CheckpointReport>>>,
    requests_made: u64,
    stop_asked: bool,
    end_asked: bool,
    /// The job ends without a last checkpoint.
    end_wanted: bool,
    ended: Option<End>,
}

/// What a driver is made of.
pub(crate) struct DriverParts {
    pub(crate) context: TaskContext,
    pub(crate) options: Arc<JobOptions>,
    pub(crate) history: Arc<History>,
    pub(crate) sinks: Arc<Vec<SinkNode>>,
    pub(crate) controls: Vec<mpsc::Sender<Control>>,
    pub(crate) snapshot_events: mpsc::Receiver<Result<SnapshotEvent>>,
    pub(crate) coordinator: Coordinator,
}

/// A checkpoint under way.
#[derive(Debug)]
struct Started {
    checkpoint: CheckpointId,
    trigger: Trigger,
    triggered_at: Timestamp,
    stopwatch: Stopwatch,
    /// Whether its barrier is still to be sent.
    awaits_mark: bool,
    snapshots: BTreeMap<TaskId, TaskSnapshot>,
}

/// How the commit of a checkpoint has gone.
#[derive(Debug)]
enum Completion {
    Committed,
    /// The checkpoint does not exist.
    NotDurable(Error),
    /// The checkpoint exists, but a sink has not committed: a restart will.
    SinkFailed(Error),
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        Self {
            clock: EpochClock::new(parts.options.epoch_interval, parts.options.in_flight_max),
            context: parts.context,
            options: parts.options,
            history: parts.history,
            sinks: parts.sinks,
            controls: parts.controls,
            snapshot_events: parts.snapshot_events,
            coordinator: parts.coordinator,
            pending: Pending::default(),
            flushes: Flushes::default(),
            started: None,
            completing: None,
            requests: HashMap::new(),
            requests_made: 0,
            stop_asked: false,
            end_asked: false,
            end_wanted: false,
            ended: None,
        }
    }

    /// Drives until the job has ended or something has failed.
    pub(crate) async fn run(
        &mut self,
        tasks: &mut Tasks,
        commands: &mut mpsc::Receiver<Command>,
    ) -> Result<Outcome> {
        let signals = Arc::clone(&self.context.signals);
        let clock = Arc::clone(&self.context.clock);
        loop {
            self.turn()?;
            if let Some(outcome) = self.outcome(tasks) {
                self.flushes.answer_all();
                return Ok(outcome);
            }
            let wake = self.next_look();
            tokio::select! {
                () = signals.rung() => {}
                Some(event) = self.snapshot_events.recv() => self.take_snapshot(event?)?,
                Some(command) = commands.recv() => self.obey(command)?,
                Some(joined) = tasks.join_next() => joined_well(joined)?,
                completion = answered(&mut self.completing) => self.completed(completion?)?,
                () = sleep_until(clock.as_ref(), wake) => {}
            }
        }
    }

    /// The number that the next checkpoint will have: for the next attempt.
    pub(crate) fn next_checkpoint(&self) -> CheckpointId {
        self.coordinator.next_checkpoint()
    }

    /// Whether the user has asked the job to stop: it is not to be started again.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop_asked
    }

    /// Looks at everything once, and closes the epoch if it is time.
    fn turn(&mut self) -> Result<()> {
        let now = self.now();
        self.coordinate(now, Event::Tick { rows: self.context.gate.rows() })?;
        let done = self.context.signals.done();
        self.context.gate.forget(done);
        self.flushes.passed(done);
        if let Some(poll) = self.flushes.begin(now, self.options.epoch_interval) {
            self.tell(Control::Poll(poll))?;
        }
        self.notice_end(now)?;
        while self.ended.is_none() && self.clock.decide(now, &self.observe(now)) {
            if !self.close_epoch(now)? {
                break;
            }
        }
        Ok(())
    }

    /// With all sources exhausted the next mark is the last; with checkpoints on, or a sink that
    /// needs them, it carries the last barrier.
    fn notice_end(&mut self, now: Timestamp) -> Result<()> {
        if self.end_asked || !self.context.signals.is_exhausted() {
            return Ok(());
        }
        self.end_asked = true;
        let transactional = self.sinks.iter().any(|sink| sink.connector.is_transactional());
        if transactional || self.options.makes_checkpoints() {
            return self.coordinate(now, Event::Request { trigger: Trigger::EndOfInput, request: None });
        }
        self.end_wanted = true;
        Ok(())
    }

    fn observe(&self, now: Timestamp) -> Observed {
        let signals = &self.context.signals;
        let quiet = signals.is_quiet();
        Observed {
            done: signals.done(),
            quiet,
            facts: self.context.gate.facts(self.clock.open()),
            wake_at: signals.earliest_wake(),
            demanded: self.awaits_mark() || self.end_wanted || self.flushes.demand(now, quiet, signals),
        }
    }

    fn awaits_mark(&self) -> bool {
        self.started.as_ref().is_some_and(|started| started.awaits_mark)
    }

    /// Closes the open epoch; answers whether it did. When every epoch is to carry a barrier it
    /// waits for the checkpoint under way.
    fn close_epoch(&mut self, now: Timestamp) -> Result<bool> {
        if self.options.checkpoint_at_every_epoch && !self.awaits_mark() {
            if self.coordinator.is_busy() {
                return Ok(false);
            }
            self.coordinate(now, Event::Request { trigger: Trigger::EveryEpoch, request: None })?;
        }
        let epoch = self.clock.open();
        let time = self.context.gate.time(epoch, now);
        let started = self.started.as_mut().filter(|started| started.awaits_mark);
        let trigger = started.map(|started| {
            started.awaits_mark = false;
            (started.checkpoint, started.trigger)
        });
        if self.flushes.demand(now, self.context.signals.is_quiet(), &self.context.signals) {
            self.flushes.closed(epoch);
        }
        let barrier = trigger.map(|(checkpoint, trigger)| Barrier { checkpoint, kind: trigger.barrier() });
        self.ended = match trigger {
            Some((_, Trigger::EndOfInput)) => Some(End::Input),
            Some((_, Trigger::Stop)) => Some(End::Stop),
            _ => self.end_wanted.then_some(End::Input),
        };
        self.clock.close(time);
        self.tell(Control::EndEpoch(EndEpoch { epoch, time, barrier, end: self.ended }))?;
        Ok(true)
    }

    /// Tells all source tasks. One that is gone has failed, which its join will say.
    fn tell(&self, control: Control) -> Result<()> {
        for source in &self.controls {
            if let Err(mpsc::error::TrySendError::Full(_)) = source.try_send(control) {
                return Err(Error::internal(
                    "invariant 12: a source task has more orders than epochs in flight",
                ));
            }
        }
        Ok(())
    }

    fn next_look(&self) -> Option<Timestamp> {
        let now = self.now();
        let waits =
            self.ended.is_some() || (self.options.checkpoint_at_every_epoch && self.coordinator.is_busy());
        let epoch = if waits { None } else { self.clock.next_look(&self.observe(now)) };
        let patience = self.flushes.gives_up_at().filter(|at| *at > now);
        epoch.into_iter().chain(self.coordinator.next_tick()).chain(patience).min()
    }

    /// The attempt is over when all tasks have ended well and no checkpoint is under way.
    fn outcome(&self, tasks: &Tasks) -> Option<Outcome> {
        let over = tasks.is_empty() && self.started.is_none();
        match self.ended.filter(|_| over)? {
            End::Input => Some(Outcome::Finished),
            End::Stop => Some(Outcome::Stopped),
        }
    }

    fn obey(&mut self, command: Command) -> Result<()> {
        let now = self.now();
        match command {
            Command::Checkpoint(reply) => {
                self.requests_made += 1;
                self.requests.insert(self.requests_made, reply);
                let request = Some(self.requests_made);
                self.coordinate(now, Event::Request { trigger: Trigger::Manual, request })
            }
            Command::Stop => {
                self.stop_asked = true;
                self.coordinate(now, Event::Request { trigger: Trigger::Stop, request: None })
            }
            Command::EndEpoch(reply) => {
                self.flushes.ask(reply);
                Ok(())
            }
        }
    }

    /// A task has stored its state, or could not. What its sinks have prepared is owed either way.
    fn take_snapshot(&mut self, event: SnapshotEvent) -> Result<()> {
        let SnapshotEvent { task, checkpoint, committables, stored } = event;
        for (uid, committable) in committables {
            self.pending.add(uid, checkpoint, committable);
        }
        let event = match stored {
            Ok(snapshot) => {
                if let Some(started) =
                    self.started.as_mut().filter(|started| started.checkpoint == checkpoint)
                {
                    started.snapshots.insert(task, snapshot);
                }
                Event::Acked { checkpoint, task }
            }
            Err(reason) => Event::Declined { checkpoint, task, reason },
        };
        self.coordinate(self.now(), event)
    }

    fn coordinate(&mut self, now: Timestamp, event: Event) -> Result<()> {
        for action in self.coordinator.step(now, event) {
            self.act(now, action)?;
        }
        Ok(())
    }

    fn act(&mut self, now: Timestamp, action: Action) -> Result<()> {
        match action {
            Action::Start { checkpoint, trigger } => {
                self.started = Some(Started {
                    checkpoint,
                    trigger,
                    triggered_at: now,
                    stopwatch: Stopwatch::start(),
                    awaits_mark: true,
                    snapshots: BTreeMap::new(),
                });
            }
            Action::Complete { .. } => self.complete(now)?,
            Action::Abort { checkpoint, reason } => self.abort(checkpoint, reason),
            Action::Reply { request, result } => self.reply(request, result),
            Action::Fail(error) => return Err(error),
        }
        Ok(())
    }

    /// All tasks have acknowledged: the rest is background work.
    fn complete(&mut self, now: Timestamp) -> Result<()> {
        let metadata = self.metadata(now)?;
        let (store, sinks) = (Arc::clone(&self.context.store), Arc::clone(&self.sinks));
        let (pending, background) = (self.pending.clone(), self.context.background.clone());
        let retained = self.options.retained;
        let work = move || Ok(commit(metadata, &pending, &sinks, retained, store.as_ref(), &background));
        self.completing = Some(self.context.background.start(work));
        Ok(())
    }

    fn metadata(&self, now: Timestamp) -> Result<CheckpointMetadata> {
        let started = self.started.as_ref().ok_or_else(|| Error::internal("no checkpoint is under way"))?;
        let mut operators = BTreeMap::new();
        for (task, snapshot) in &started.snapshots {
            snapshot.add_to(task.index, &mut operators);
        }
        self.pending.add_to(&self.sinks, &mut operators)?;
        Ok(CheckpointMetadata {
            format: "millpond-checkpoint/1".into(),
            engine_version: env!("CARGO_PKG_VERSION").into(),
            job: self.options.job.clone(),
            generation: self.context.store.generation(),
            checkpoint: started.checkpoint,
            kind: "checkpoint".into(),
            trigger: started.trigger.name().into(),
            triggered_at: started.triggered_at,
            completed_at: now,
            max_parallelism: self.context.max_parallelism,
            finished: started.trigger == Trigger::EndOfInput,
            operators,
            native: None,
        })
    }

    fn completed(&mut self, completion: Completion) -> Result<()> {
        let now = self.now();
        let checkpoint = self.started.as_ref().map(|started| started.checkpoint).unwrap_or_default();
        match completion {
            Completion::Committed => {
                self.pending.settle(checkpoint);
                self.report(checkpoint, CheckpointStatus::Completed);
                self.coordinate(now, Event::Committed { checkpoint })
            }
            Completion::NotDurable(reason) => {
                self.coordinate(now, Event::CommitFailed { checkpoint, reason })
            }
            Completion::SinkFailed(error) => {
                self.report(checkpoint, CheckpointStatus::Completed);
                Err(error)
            }
        }
    }

    fn abort(&mut self, checkpoint: CheckpointId, reason: Error) {
        tracing::warn!(job = %self.options.job, %checkpoint, %reason, "checkpoint failed");
        self.report(checkpoint, CheckpointStatus::Failed(reason));
        let store = Arc::clone(&self.context.store);
        // Nobody waits for the cleaning; the end of the attempt does.
        drop(self.context.background.start(move || {
            store
                .abort(checkpoint)
                .inspect_err(|error| tracing::warn!(%checkpoint, %error, "cleaning failed"))
        }));
    }

    /// Ends the checkpoint under way with a line for SHOW CHECKPOINTS.
    fn report(&mut self, checkpoint: CheckpointId, status: CheckpointStatus) {
        let Some(started) = self.started.take_if(|started| started.checkpoint == checkpoint) else { return };
        let snapshots = || started.snapshots.values();
        self.history.add(CheckpointReport {
            checkpoint,
            trigger: started.trigger,
            status,
            triggered_at: started.triggered_at,
            duration: started.stopwatch.elapsed(),
            align: snapshots().map(|snapshot| snapshot.align).max().unwrap_or_default(),
            freeze: snapshots().map(|snapshot| snapshot.freeze).max().unwrap_or_default(),
            asynchronous: snapshots().map(|snapshot| snapshot.asynchronous).max().unwrap_or_default(),
            bytes: snapshots().map(|snapshot| snapshot.bytes).sum(),
            rows: snapshots().map(|snapshot| snapshot.rows).sum(),
        });
    }

    fn reply(&mut self, request: u64, result: Result<CheckpointId>) {
        let Some(reply) = self.requests.remove(&request) else { return };
        let result = result.and_then(|checkpoint| {
            let reports = self.history.all();
            let report = reports.into_iter().rev().find(|report| report.checkpoint == checkpoint);
            report.ok_or_else(|| Error::internal(format!("checkpoint {checkpoint} has no report")))
        });
        // Whoever asked may have gone.
        let _ = reply.send(result);
    }

    fn now(&self) -> Timestamp {
        self.context.clock.now()
    }
}

/// The commit point of a checkpoint and what follows it (invariants 8, 9).
fn commit(
    mut metadata: CheckpointMetadata,
    pending: &Pending,
    sinks: &[SinkNode],
    retained: usize,
    store: &dyn StateStore,
    background: &Background,
) -> Completion {
    if let Err(error) = make_durable(&mut metadata, store, background) {
        return Completion::NotDurable(error);
    }
    if let Err(error) = pending.commit(sinks, background) {
        return Completion::SinkFailed(error);
    }
    if !background.is_halted()
        && let Err(error) = store.retain(retained)
    {
        tracing::warn!(job = %metadata.job, %error, "old checkpoints could not be removed");
    }
    Completion::Committed
}

fn make_durable(
    metadata: &mut CheckpointMetadata,
    store: &dyn StateStore,
    background: &Background,
) -> Result<()> {
    background.check_halted()?;
    metadata.native = store.link_native(metadata.checkpoint)?;
    background.check_halted()?;
    store.commit(metadata)
}

/// The answer of work under way; never when there is none.
async fn answered<T>(work: &mut Option<oneshot::Receiver<Result<T>>>) -> Result<T> {
    let Some(receiver) = work else { return std::future::pending().await };
    let answer = receiver.await;
    *work = None;
    answer.unwrap_or_else(|_| Err(Error::cancelled()))
}

/// A task has ended: well, with an error, or with a panic that becomes one (invariant 15).
pub(crate) fn joined_well(joined: Result<(TaskId, Result<()>), JoinError>) -> Result<()> {
    match joined {
        Ok((_, result)) => result,
        Err(error) if error.is_panic() => Err(panicked("task", error.into_panic().as_ref())),
        Err(_) => Err(Error::cancelled()),
    }
}
