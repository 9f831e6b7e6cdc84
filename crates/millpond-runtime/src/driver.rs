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
use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::{Barrier, CheckpointId, Error, Result, TaskId, Timestamp};
use millpond_state::SavepointReport;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use crate::background::panicked;
use crate::clock::{EpochClock, Observed};
use crate::coordinator::{Coordinator, Event, Trigger};
use crate::flush::Flushes;
use crate::graph::SinkNode;
use crate::options::JobOptions;
use crate::pending::Pending;
use crate::release::Releases;
use crate::report::{CheckpointReport, History};
use crate::snapshot::SnapshotEvent;
use crate::source::{Control, End, EndEpoch};
use crate::task::TaskContext;
use crate::timer::sleep_until;

mod checkpoints;

use checkpoints::{Completion, Started};

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
    Checkpoint { trigger: Trigger, reply: oneshot::Sender<Result<CheckpointReport>> },
    /// Make a checkpoint and write it into a folder of the user.
    Savepoint { folder: PathBuf, reply: oneshot::Sender<Result<SavepointReport>> },
    /// Make a last checkpoint and end.
    Stop(Stop),
    /// Let the sources deliver what is ready, close the epoch, wait until it has passed.
    EndEpoch(oneshot::Sender<Result<()>>),
}

/// How a job is to be stopped.
#[derive(Debug)]
pub(crate) struct Stop {
    /// [`Trigger::Stop`] or [`Trigger::Drain`].
    pub(crate) trigger: Trigger,
    /// Where the last checkpoint is to be written too.
    pub(crate) savepoint: Option<(PathBuf, oneshot::Sender<Result<SavepointReport>>)>,
}

/// Who waits for a checkpoint.
#[derive(Debug)]
enum Waiter {
    Checkpoint(oneshot::Sender<Result<CheckpointReport>>),
    Savepoint { folder: PathBuf, reply: oneshot::Sender<Result<SavepointReport>> },
}

/// Drives one attempt.
pub(crate) struct Driver {
    context: TaskContext,
    options: Arc<JobOptions>,
    changes: watch::Receiver<Arc<JobOptions>>,
    history: Arc<History>,
    sinks: Arc<Vec<SinkNode>>,
    releases: Arc<Releases>,
    controls: Vec<mpsc::Sender<Control>>,
    snapshot_events: mpsc::Receiver<Result<SnapshotEvent>>,
    clock: EpochClock,
    coordinator: Coordinator,
    pending: Pending,
    flushes: Flushes,
    /// The checkpoints under way.
    started: BTreeMap<CheckpointId, Started>,
    /// The one whose metadata is being written; one after the other.
    completing: Option<oneshot::Receiver<Result<Completion>>>,
    waiters: HashMap<u64, Waiter>,
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
    pub(crate) changes: watch::Receiver<Arc<JobOptions>>,
    pub(crate) history: Arc<History>,
    pub(crate) sinks: Arc<Vec<SinkNode>>,
    pub(crate) releases: Releases,
    pub(crate) controls: Vec<mpsc::Sender<Control>>,
    pub(crate) snapshot_events: mpsc::Receiver<Result<SnapshotEvent>>,
    pub(crate) coordinator: Coordinator,
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        Self {
            clock: EpochClock::new(parts.options.epoch_interval, parts.options.in_flight_max),
            context: parts.context,
            options: parts.options,
            changes: parts.changes,
            history: parts.history,
            sinks: parts.sinks,
            releases: Arc::new(parts.releases),
            controls: parts.controls,
            snapshot_events: parts.snapshot_events,
            coordinator: parts.coordinator,
            pending: Pending::default(),
            flushes: Flushes::default(),
            started: BTreeMap::new(),
            completing: None,
            waiters: HashMap::new(),
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
                Ok(()) = self.changes.changed() => self.alter(),
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
        self.started.values().any(|started| started.awaits_mark)
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
        let started = self.started.iter_mut().find(|(_, started)| started.awaits_mark);
        let trigger = started.map(|(checkpoint, started)| {
            started.awaits_mark = false;
            (*checkpoint, started.trigger)
        });
        if self.flushes.demand(now, self.context.signals.is_quiet(), &self.context.signals) {
            self.flushes.closed(epoch);
        }
        let barrier = trigger.map(|(checkpoint, trigger)| Barrier { checkpoint, kind: trigger.barrier() });
        self.ended = match trigger {
            Some((_, Trigger::EndOfInput)) => Some(End::Input),
            Some((_, Trigger::Stop)) => Some(End::Stop),
            Some((_, Trigger::Drain)) => Some(End::Drain),
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
        let over = tasks.is_empty() && self.started.is_empty();
        match self.ended.filter(|_| over)? {
            End::Input | End::Drain => Some(Outcome::Finished),
            End::Stop => Some(Outcome::Stopped),
        }
    }

    fn obey(&mut self, command: Command) -> Result<()> {
        let now = self.now();
        match command {
            Command::Checkpoint { trigger, reply } => {
                let request = Some(self.expect(Waiter::Checkpoint(reply)));
                self.coordinate(now, Event::Request { trigger, request })
            }
            Command::Savepoint { folder, reply } => {
                let request = Some(self.expect(Waiter::Savepoint { folder, reply }));
                self.coordinate(now, Event::Request { trigger: Trigger::Savepoint, request })
            }
            Command::Stop(Stop { trigger, savepoint }) => {
                self.stop_asked = true;
                let waiter = savepoint.map(|(folder, reply)| Waiter::Savepoint { folder, reply });
                let request = waiter.map(|waiter| self.expect(waiter));
                self.coordinate(now, Event::Request { trigger, request })
            }
            Command::EndEpoch(reply) => {
                self.flushes.ask(reply);
                Ok(())
            }
        }
    }

    /// Remembers who waits, under a number.
    fn expect(&mut self, waiter: Waiter) -> u64 {
        self.requests_made += 1;
        self.waiters.insert(self.requests_made, waiter);
        self.requests_made
    }

    /// The user has changed options of the running job.
    fn alter(&mut self) {
        self.options = Arc::clone(&self.changes.borrow_and_update());
        self.clock.alter(self.options.epoch_interval);
        let now = self.now();
        self.coordinator.alter(now, self.options.of_coordinator());
    }

    fn now(&self) -> Timestamp {
        self.context.clock.now()
    }
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
