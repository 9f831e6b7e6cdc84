//! The checkpoint coordinator: a state machine that decides and does nothing else (invariant 13).
//!
//! [`Coordinator::step`] takes what has happened and answers what is to be done; the driver does
//! it. One checkpoint at a time; requests wait in order of rank: the end of the job, then the
//! user's, then the automatic ones. A checkpoint is complete when every task has acknowledged it
//! and the driver has made its metadata durable and committed the sinks.
//!
//! ```text
//! trigger ─▶ Start ─▶ acks … ─▶ Complete ─▶ committed ─▶ report, replies
//!              └── timeout, decline, failed commit ─▶ Abort ─▶ report; too many ─▶ Fail
//! ```

use std::collections::BTreeSet;

use millpond_core::{BarrierKind, CheckpointId, Error, Result, TaskId, Timestamp};

/// Why a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// `checkpoint.interval` has passed.
    Interval,
    /// `checkpoint.every-rows` source rows have been read.
    EveryRows,
    /// `checkpoint_at_every_epoch` (torture).
    EveryEpoch,
    /// The user has asked (`CHECKPOINT`).
    Manual,
    /// All input has been read.
    EndOfInput,
    /// The user stops the job.
    Stop,
}

impl Trigger {
    /// As metadata and SHOW CHECKPOINTS name it.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Interval => "interval",
            Trigger::EveryRows => "every-rows",
            Trigger::EveryEpoch => "every-epoch",
            Trigger::Manual => "manual",
            Trigger::EndOfInput => "end-of-input",
            Trigger::Stop => "stop",
        }
    }

    fn is_last(self) -> bool {
        matches!(self, Trigger::EndOfInput | Trigger::Stop)
    }

    /// The barrier by which tasks hear of it.
    pub(crate) fn barrier(self) -> BarrierKind {
        match self {
            Trigger::Stop => BarrierKind::Stop,
            Trigger::Interval
            | Trigger::EveryRows
            | Trigger::EveryEpoch
            | Trigger::Manual
            | Trigger::EndOfInput => BarrierKind::Checkpoint,
        }
    }
}

/// What the coordinator goes by.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorOptions {
    pub(crate) interval: Option<i64>,
    pub(crate) every_rows: Option<u64>,
    pub(crate) timeout: i64,
    pub(crate) min_pause: i64,
    pub(crate) tolerable_failures: Option<u32>,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// Time has passed, and so many source rows have been read since the start.
    Tick { rows: u64 },
    /// Somebody asks for a checkpoint; the request number comes back with the answer.
    Request { trigger: Trigger, request: Option<u64> },
    /// A task has stored its state.
    Acked { checkpoint: CheckpointId, task: TaskId },
    /// A task could not store its state.
    Declined { checkpoint: CheckpointId, task: TaskId, reason: Error },
    /// The metadata is durable and the sinks have committed.
    Committed { checkpoint: CheckpointId },
    /// The metadata could not be made durable.
    CommitFailed { checkpoint: CheckpointId, reason: Error },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Send a barrier on the next mark.
    Start { checkpoint: CheckpointId, trigger: Trigger },
    /// All tasks have acknowledged: write the metadata, commit the sinks, retain.
    Complete { checkpoint: CheckpointId },
    /// Forget what has been stored for it.
    Abort { checkpoint: CheckpointId, reason: Error },
    /// Answer a request.
    Reply { request: u64, result: Result<CheckpointId> },
    /// The job cannot go on.
    Fail(Error),
}

/// Decides about the checkpoints of one attempt of a job.
#[derive(Debug)]
pub(crate) struct Coordinator {
    options: CoordinatorOptions,
    tasks: BTreeSet<TaskId>,
    next: CheckpointId,
    current: Option<Current>,
    /// Waiting requests: at most one per trigger, each with all who wait for it.
    waiting: Vec<Waiting>,
    due: Option<Timestamp>,
    last_completed_at: Option<Timestamp>,
    rows_at_last: u64,
    rows: u64,
    failures: u32,
    last: bool,
}

#[derive(Debug)]
struct Current {
    checkpoint: CheckpointId,
    trigger: Trigger,
    started_at: Timestamp,
    missing: BTreeSet<TaskId>,
    requests: Vec<u64>,
}

impl Current {
    /// When it is given up; never once all have acknowledged, for its metadata may be durable.
    fn expires_at(&self, timeout: i64) -> Option<Timestamp> {
        let is_acknowledged = self.missing.is_empty();
        (!is_acknowledged).then(|| self.started_at.saturating_add(timeout))
    }
}

#[derive(Debug)]
struct Waiting {
    trigger: Trigger,
    requests: Vec<u64>,
}

impl Coordinator {
    /// A coordinator over all tasks of a job; `next` is a number that was never used.
    pub(crate) fn new(
        options: CoordinatorOptions,
        tasks: impl IntoIterator<Item = TaskId>,
        next: CheckpointId,
        now: Timestamp,
    ) -> Self {
        let due = options.interval.map(|interval| now.saturating_add(interval));
        Self {
            options,
            tasks: tasks.into_iter().collect(),
            next,
            current: None,
            waiting: Vec::new(),
            due,
            last_completed_at: None,
            rows_at_last: 0,
            rows: 0,
            failures: 0,
            last: false,
        }
    }

    /// Takes what has happened; answers what is to be done, in order.
    pub(crate) fn step(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick { rows } => self.tick(now, rows, &mut actions),
            Event::Request { trigger, request } => self.request(trigger, request, &mut actions),
            Event::Acked { checkpoint, task } => self.acked(checkpoint, task, &mut actions),
            Event::Declined { checkpoint, task, reason } => {
                self.abort(checkpoint, reason.context(format!("task {task}")), &mut actions);
            }
            Event::Committed { checkpoint } => self.committed(now, checkpoint, &mut actions),
            Event::CommitFailed { checkpoint, reason } => self.abort(checkpoint, reason, &mut actions),
        }
        self.admit(now, &mut actions);
        actions
    }

    /// When to tick, unless something happens before.
    pub(crate) fn next_tick(&self) -> Option<Timestamp> {
        match &self.current {
            Some(current) => current.expires_at(self.options.timeout),
            None if self.last => None,
            None if self.waiting.is_empty() => self.due,
            None => self.pause_ends(),
        }
    }

    /// Whether a checkpoint is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// The number that the next checkpoint will have.
    pub(crate) fn next_checkpoint(&self) -> CheckpointId {
        self.next
    }

    fn tick(&mut self, now: Timestamp, rows: u64, actions: &mut Vec<Action>) {
        self.rows = rows;
        let timeout = self.options.timeout;
        let expired =
            self.current.as_ref().filter(|current| current.expires_at(timeout).is_some_and(|at| now >= at));
        if let Some(checkpoint) = expired.map(|current| current.checkpoint) {
            let after = millpond_core::quantity::format_duration(timeout);
            self.abort(checkpoint, Error::unavailable(format!("not complete after {after}")), actions);
        }
        if self.due.is_some_and(|due| now >= due) {
            self.wait(Trigger::Interval, None);
            self.due = self.options.interval.map(|interval| now.saturating_add(interval));
        }
        if self.options.every_rows.is_some_and(|every| rows - self.rows_at_last >= every) {
            self.wait(Trigger::EveryRows, None);
        }
    }

    fn request(&mut self, trigger: Trigger, request: Option<u64>, actions: &mut Vec<Action>) {
        if self.last {
            let refusal = Error::unavailable("the job is making its last checkpoint");
            actions.extend(request.map(|request| Action::Reply { request, result: Err(refusal) }));
        } else {
            self.wait(trigger, request);
        }
    }

    fn wait(&mut self, trigger: Trigger, request: Option<u64>) {
        match self.waiting.iter_mut().find(|waiting| waiting.trigger == trigger) {
            Some(waiting) => waiting.requests.extend(request),
            None => self.waiting.push(Waiting { trigger, requests: request.into_iter().collect() }),
        }
    }

    /// Starts the request of the highest rank, if one may start.
    fn admit(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if self.current.is_some() || self.last {
            return;
        }
        let forced_only = self.pause_ends().is_some_and(|ends| now < ends);
        let admitted = self.waiting.iter().map(|waiting| waiting.trigger);
        let Some(trigger) = admitted.filter(|trigger| !forced_only || *trigger >= Trigger::Manual).max()
        else {
            return;
        };
        // One checkpoint serves all who wait: it covers whatever the lower ranks asked for.
        let requests = self.waiting.drain(..).flat_map(|waiting| waiting.requests).collect();
        let checkpoint = self.next;
        self.next = checkpoint.next();
        self.rows_at_last = self.rows;
        self.last = trigger.is_last();
        self.current =
            Some(Current { checkpoint, trigger, started_at: now, missing: self.tasks.clone(), requests });
        actions.push(Action::Start { checkpoint, trigger });
    }

    /// Until when automatic checkpoints must wait after the last one.
    fn pause_ends(&self) -> Option<Timestamp> {
        self.last_completed_at.map(|at| at.saturating_add(self.options.min_pause))
    }

    fn acked(&mut self, checkpoint: CheckpointId, task: TaskId, actions: &mut Vec<Action>) {
        // A late ack of an aborted checkpoint says nothing any more.
        let Some(current) = self.current.as_mut().filter(|current| current.checkpoint == checkpoint) else {
            return;
        };
        if current.missing.remove(&task) && current.missing.is_empty() {
            actions.push(Action::Complete { checkpoint });
        }
    }

    fn committed(&mut self, now: Timestamp, checkpoint: CheckpointId, actions: &mut Vec<Action>) {
        let Some(current) = self.current.take_if(|current| current.checkpoint == checkpoint) else { return };
        self.failures = 0;
        self.last_completed_at = Some(now);
        actions.extend(
            current.requests.into_iter().map(|request| Action::Reply { request, result: Ok(checkpoint) }),
        );
    }

    fn abort(&mut self, checkpoint: CheckpointId, reason: Error, actions: &mut Vec<Action>) {
        let Some(current) = self.current.take_if(|current| current.checkpoint == checkpoint) else { return };
        self.failures += 1;
        actions.push(Action::Abort { checkpoint, reason: reason.clone() });
        let failed = reason.context(format!("checkpoint {checkpoint} failed"));
        for request in current.requests {
            actions.push(Action::Reply { request, result: Err(failed.clone()) });
        }
        if current.trigger.is_last() {
            actions.push(Action::Fail(failed));
        } else if self.options.tolerable_failures.is_some_and(|tolerable| self.failures > tolerable) {
            actions.push(Action::Fail(
                failed.with_detail(format!("{} checkpoints in a row have failed", self.failures)),
            ));
        }
    }
}

#[cfg(test)]
mod tests;
