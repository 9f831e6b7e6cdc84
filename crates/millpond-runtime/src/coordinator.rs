//! The checkpoint coordinator: a state machine that decides and does nothing else (invariant 13).
//!
//! [`Coordinator::step`] takes what has happened and answers what is to be done; the driver does
//! it. Requests wait in order of rank: the end of the job, then the user's, then the automatic
//! ones; [`admission`](crate::admission) says whether one may begin. Up to `max_concurrent` are
//! under way at once, and they complete in order. A checkpoint is complete when every task has
//! acknowledged it and the driver has made its metadata durable and committed the sinks.
//!
//! ```text
//! trigger ─▶ Start ─▶ acks … ─▶ Complete ─▶ committed ─▶ report, replies
//!    │         └── timeout, decline, failed commit ─▶ Abort ─▶ report; too many ─▶ Fail
//!    └── Refuse, with the reason
//! ```
//!
//! When periodic checkpoints take longer than their interval, the interval is stretched to twice
//! what the last one took, so that at most half of the time goes to them; it comes back by itself.

use std::collections::BTreeSet;

use millpond_core::{BarrierKind, CheckpointId, Error, Result, TaskId, Timestamp};

use crate::admission::{Facts, Refusal, TriggerPolicy, Verdict, Wait, decide};

/// Why a checkpoint was made. In order of rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// `checkpoint.interval` has passed.
    Interval,
    /// `checkpoint.every-rows` source rows have been read.
    EveryRows,
    /// `checkpoint_at_every_epoch` (torture).
    EveryEpoch,
    /// Something outside has asked: a signal.
    External,
    /// The user has asked (`CHECKPOINT`).
    Manual,
    /// The user has asked for a savepoint.
    Savepoint,
    /// All input has been read.
    EndOfInput,
    /// The user stops the job.
    Stop,
    /// The user stops the job as if its input had ended: windows are closed first.
    Drain,
}

impl Trigger {
    /// As metadata and SHOW CHECKPOINTS name it.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Interval => "interval",
            Trigger::EveryRows => "every-rows",
            Trigger::EveryEpoch => "every-epoch",
            Trigger::External => "external",
            Trigger::Manual => "manual",
            Trigger::Savepoint => "savepoint",
            Trigger::EndOfInput => "end-of-input",
            Trigger::Stop => "stop",
            Trigger::Drain => "drain",
        }
    }

    /// Whether nobody has asked for it.
    pub(crate) fn is_automatic(self) -> bool {
        matches!(self, Trigger::Interval | Trigger::EveryRows)
    }

    fn is_last(self) -> bool {
        matches!(self, Trigger::EndOfInput | Trigger::Stop | Trigger::Drain)
    }

    /// The barrier by which tasks hear of it.
    pub(crate) fn barrier(self) -> BarrierKind {
        match self {
            Trigger::Stop | Trigger::Drain => BarrierKind::Stop,
            Trigger::Savepoint => BarrierKind::Savepoint,
            Trigger::Interval
            | Trigger::EveryRows
            | Trigger::EveryEpoch
            | Trigger::External
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
    pub(crate) policy: TriggerPolicy,
    pub(crate) timeout: i64,
    pub(crate) min_pause: i64,
    pub(crate) concurrent_max: usize,
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
    Start { checkpoint: CheckpointId, trigger: Trigger, requests: Vec<u64> },
    /// All tasks have acknowledged: write the metadata, commit the sinks, retain.
    Complete { checkpoint: CheckpointId },
    /// Forget what has been stored for it.
    Abort { checkpoint: CheckpointId, reason: Error },
    /// Note why an automatic checkpoint is not made.
    Refuse { trigger: Trigger, refusal: Refusal },
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
    started_at: Timestamp,
    /// Those under way, oldest first.
    current: Vec<Current>,
    /// Waiting requests: at most one per trigger, each with all who wait for it.
    waiting: Vec<Waiting>,
    due: Option<Timestamp>,
    /// The interval in which periodic ones are made because they take too long for the set one.
    stretched: Option<i64>,
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
    completing: bool,
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
            started_at: now,
            current: Vec::new(),
            waiting: Vec::new(),
            due,
            stretched: None,
            last_completed_at: None,
            rows_at_last: 0,
            rows: 0,
            failures: 0,
            last: false,
        }
    }

    /// Goes by other options from now on.
    pub(crate) fn alter(&mut self, now: Timestamp, options: CoordinatorOptions) {
        if options.interval != self.options.interval {
            self.due = options.interval.map(|interval| now.saturating_add(interval));
            self.stretched = None;
        }
        if options.every_rows != self.options.every_rows {
            self.rows_at_last = self.rows;
        }
        self.options = options;
    }

    /// Takes what has happened; answers what is to be done, in order.
    pub(crate) fn step(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick { rows } => self.tick(now, rows, &mut actions),
            Event::Request { trigger, request } => self.request(trigger, request, &mut actions),
            Event::Acked { checkpoint, task } => self.acked(checkpoint, task),
            Event::Declined { checkpoint, task, reason } => {
                self.abort(checkpoint, reason.context(format!("task {task}")), &mut actions);
            }
            Event::Committed { checkpoint } => self.committed(now, checkpoint, &mut actions),
            Event::CommitFailed { checkpoint, reason } => self.abort(checkpoint, reason, &mut actions),
        }
        self.complete(&mut actions);
        self.admit(now, &mut actions);
        actions
    }

    /// When to tick, unless something happens before.
    pub(crate) fn next_tick(&self) -> Option<Timestamp> {
        let expiry = self.current.iter().filter_map(|current| current.expires_at(self.options.timeout));
        let idle = !self.last;
        let pause = self.pause_ends().filter(|_| idle && !self.waiting.is_empty() && self.current.is_empty());
        let due = self.due.filter(|_| idle);
        expiry.chain(pause).chain(due).min()
    }

    /// Whether a checkpoint is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.current.is_empty()
    }

    /// The number that the next checkpoint will have.
    pub(crate) fn next_checkpoint(&self) -> CheckpointId {
        self.next
    }

    fn tick(&mut self, now: Timestamp, rows: u64, actions: &mut Vec<Action>) {
        self.rows = rows;
        let timeout = self.options.timeout;
        let expired = |current: &Current| current.expires_at(timeout).is_some_and(|at| now >= at);
        let expired: Vec<CheckpointId> = self
            .current
            .iter()
            .filter(|current| expired(current))
            .map(|current| current.checkpoint)
            .collect();
        for checkpoint in expired {
            let after = millpond_core::quantity::format_duration(timeout);
            self.abort(checkpoint, Error::unavailable(format!("not complete after {after}")), actions);
        }
        if self.last {
            return;
        }
        if self.due.is_some_and(|due| now >= due) {
            self.due = self.interval().map(|interval| now.saturating_add(interval));
            self.wait(Trigger::Interval, None, actions);
        }
        if self.options.every_rows.is_some_and(|every| rows - self.rows_at_last >= every) {
            // Counted from here, whatever becomes of the request.
            self.rows_at_last = rows;
            self.wait(Trigger::EveryRows, None, actions);
        }
    }

    /// The interval in force.
    fn interval(&self) -> Option<i64> {
        self.options.interval.map(|interval| self.stretched.unwrap_or(interval))
    }

    fn request(&mut self, trigger: Trigger, request: Option<u64>, actions: &mut Vec<Action>) {
        if self.last {
            let refusal = Error::unavailable(Refusal::Ending.to_string());
            actions.extend(request.map(|request| Action::Reply { request, result: Err(refusal) }));
        } else {
            self.wait(trigger, request, actions);
        }
    }

    fn wait(&mut self, trigger: Trigger, request: Option<u64>, actions: &mut Vec<Action>) {
        match self.waiting.iter_mut().find(|waiting| waiting.trigger == trigger) {
            Some(waiting) => {
                waiting.requests.extend(request);
                if trigger.is_automatic() {
                    actions.push(Action::Refuse { trigger, refusal: Refusal::AlreadyWaits });
                }
            }
            None => self.waiting.push(Waiting { trigger, requests: request.into_iter().collect() }),
        }
    }

    /// Starts the request of the highest rank that may start; refuses those that never will.
    fn admit(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let facts = Facts {
            now,
            started_at: self.started_at,
            policy: self.options.policy,
            is_ending: self.last,
            under_way: self.current.len(),
            concurrent_max: self.options.concurrent_max,
            pause_ends: self.pause_ends(),
        };
        self.waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.trigger));
        let mut begins = None;
        self.waiting.retain(|waiting| match decide(waiting.trigger, &facts) {
            Verdict::Begins => {
                begins = begins.or(Some(waiting.trigger));
                true
            }
            Verdict::Waits(Wait::Completion | Wait::Until(_)) => true,
            Verdict::Refused(refusal) => {
                actions.push(Action::Refuse { trigger: waiting.trigger, refusal });
                let refused = |request: &u64| {
                    let result = Err(Error::unavailable(refusal.to_string()));
                    Action::Reply { request: *request, result }
                };
                actions.extend(waiting.requests.iter().map(refused));
                false
            }
        });
        if let Some(trigger) = begins {
            self.begin(now, trigger, actions);
        }
    }

    /// One checkpoint serves all who wait: it covers whatever the lower ranks asked for.
    fn begin(&mut self, now: Timestamp, trigger: Trigger, actions: &mut Vec<Action>) {
        let requests: Vec<u64> = self.waiting.drain(..).flat_map(|waiting| waiting.requests).collect();
        let checkpoint = self.next;
        self.next = checkpoint.next();
        self.rows_at_last = self.rows;
        self.last = trigger.is_last();
        actions.push(Action::Start { checkpoint, trigger, requests: requests.clone() });
        let missing = self.tasks.clone();
        self.current.push(Current {
            checkpoint,
            trigger,
            started_at: now,
            missing,
            requests,
            completing: false,
        });
    }

    /// Until when automatic checkpoints must wait after the last one.
    fn pause_ends(&self) -> Option<Timestamp> {
        self.last_completed_at.map(|at| at.saturating_add(self.options.min_pause))
    }

    fn acked(&mut self, checkpoint: CheckpointId, task: TaskId) {
        // A late ack of an aborted checkpoint says nothing any more.
        if let Some(current) = self.current.iter_mut().find(|current| current.checkpoint == checkpoint) {
            current.missing.remove(&task);
        }
    }

    /// The oldest one completes when all have acknowledged it; younger ones wait for it.
    fn complete(&mut self, actions: &mut Vec<Action>) {
        if let Some(oldest) = self.current.first_mut()
            && oldest.missing.is_empty()
            && !oldest.completing
        {
            oldest.completing = true;
            actions.push(Action::Complete { checkpoint: oldest.checkpoint });
        }
    }

    fn take(&mut self, checkpoint: CheckpointId) -> Option<Current> {
        let at = self.current.iter().position(|current| current.checkpoint == checkpoint)?;
        Some(self.current.remove(at))
    }

    fn committed(&mut self, now: Timestamp, checkpoint: CheckpointId, actions: &mut Vec<Action>) {
        let Some(current) = self.take(checkpoint) else { return };
        self.failures = 0;
        self.last_completed_at = Some(now);
        self.pace(now, current.started_at, actions);
        actions.extend(
            current.requests.into_iter().map(|request| Action::Reply { request, result: Ok(checkpoint) }),
        );
    }

    /// Stretches the interval when a checkpoint has taken longer than it, and says so.
    fn pace(&mut self, now: Timestamp, started_at: Timestamp, actions: &mut Vec<Action>) {
        let Some(interval) = self.options.interval else { return };
        let took = now.0.saturating_sub(started_at.0);
        let room = i64::try_from(self.options.concurrent_max.max(1)).unwrap_or(i64::MAX);
        if took <= interval.saturating_mul(room) {
            self.stretched = None;
            return;
        }
        let stretched = took.saturating_mul(2);
        self.stretched = Some(stretched);
        self.due = Some(started_at.saturating_add(stretched));
        // A request that fell due meanwhile would make it the next moment.
        self.waiting.retain(|waiting| waiting.trigger != Trigger::Interval || !waiting.requests.is_empty());
        let refusal = Refusal::Stretched { took, interval: stretched };
        actions.push(Action::Refuse { trigger: Trigger::Interval, refusal });
    }

    fn abort(&mut self, checkpoint: CheckpointId, reason: Error, actions: &mut Vec<Action>) {
        let Some(current) = self.take(checkpoint) else { return };
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
