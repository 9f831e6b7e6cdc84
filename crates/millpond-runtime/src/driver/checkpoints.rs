//! The driver's part in checkpoints: does what the coordinator decides.
//!
//! ```text
//! Start ─▶ barrier on the next mark ─▶ snapshots of all tasks ─▶ Complete
//! Complete ─▶ background: metadata, sinks, savepoints, retention ─▶ report, replies
//! Abort ─▶ report; the store forgets, but keeps what the next one needs
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::clock::Stopwatch;
use millpond_core::{CheckpointId, Error, Result, TaskId, Timestamp};
use millpond_state::{CheckpointMetadata, SavepointReport, StateStore, TableDefs, bytes_of, write_savepoint};

use super::{Driver, Waiter};
use crate::background::Background;
use crate::coordinator::{Action, Event, Trigger};
use crate::graph::SinkNode;
use crate::pending::Pending;
use crate::release::Releases;
use crate::report::{CheckpointReport, CheckpointStatus};
use crate::snapshot::{SnapshotEvent, TaskSnapshot};

/// A checkpoint under way.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) trigger: Trigger,
    triggered_at: Timestamp,
    stopwatch: Stopwatch,
    /// Whether its barrier is still to be sent.
    pub(super) awaits_mark: bool,
    snapshots: BTreeMap<TaskId, TaskSnapshot>,
    /// Where it is to be written as a savepoint, and who asked.
    savepoints: Vec<(u64, PathBuf)>,
    /// Bytes of all files that it refers to; known when it is complete.
    total_bytes: u64,
}

/// How the commit of a checkpoint has gone.
#[derive(Debug)]
pub(super) struct Completion {
    checkpoint: CheckpointId,
    outcome: Committed,
}

#[derive(Debug)]
enum Committed {
    /// With the savepoints that were asked for.
    Well(Vec<(u64, Result<SavepointReport>)>),
    /// The checkpoint does not exist.
    NotDurable(Error),
    /// The checkpoint exists, but a sink has not committed: a restart will.
    SinkFailed(Error),
}

impl Driver {
    /// A task has stored its state, or could not. What its sinks have prepared is owed either way.
    pub(super) fn take_snapshot(&mut self, event: SnapshotEvent) -> Result<()> {
        let SnapshotEvent { task, checkpoint, committables, stored } = event;
        for (uid, committable) in committables {
            self.pending.add(uid, checkpoint, committable);
        }
        let event = match stored {
            Ok(snapshot) => {
                if let Some(started) = self.started.get_mut(&checkpoint) {
                    started.snapshots.insert(task, snapshot);
                }
                Event::Acked { checkpoint, task }
            }
            Err(reason) => Event::Declined { checkpoint, task, reason },
        };
        self.coordinate(self.now(), event)
    }

    pub(super) fn coordinate(&mut self, now: Timestamp, event: Event) -> Result<()> {
        for action in self.coordinator.step(now, event) {
            self.act(now, action)?;
        }
        Ok(())
    }

    fn act(&mut self, now: Timestamp, action: Action) -> Result<()> {
        match action {
            Action::Start { checkpoint, trigger, requests } => {
                self.begin(now, checkpoint, trigger, &requests);
            }
            Action::Complete { checkpoint } => self.complete(now, checkpoint)?,
            Action::Abort { checkpoint, reason } => self.abort(checkpoint, reason),
            Action::Refuse { trigger, refusal } => {
                if let crate::admission::Refusal::Stretched { .. } = refusal {
                    tracing::warn!(job = %self.options.job, "checkpoints are slower than their interval: {refusal}");
                }
                self.history.refuse(trigger, refusal, now);
            }
            Action::Reply { request, result } => self.reply(request, result),
            Action::Fail(error) => return Err(error),
        }
        Ok(())
    }

    fn begin(&mut self, now: Timestamp, checkpoint: CheckpointId, trigger: Trigger, requests: &[u64]) {
        let folder = |request: &u64| match self.waiters.get(request) {
            Some(Waiter::Savepoint { folder, .. }) => Some((*request, folder.clone())),
            Some(Waiter::Checkpoint(_)) | None => None,
        };
        let started = Started {
            trigger,
            triggered_at: now,
            stopwatch: Stopwatch::start(),
            awaits_mark: true,
            snapshots: BTreeMap::new(),
            savepoints: requests.iter().filter_map(folder).collect(),
            total_bytes: 0,
        };
        self.started.insert(checkpoint, started);
    }

    /// All tasks have acknowledged: the rest is background work.
    fn complete(&mut self, now: Timestamp, checkpoint: CheckpointId) -> Result<()> {
        let pending = self.pending.through(checkpoint);
        let metadata = self.metadata(now, checkpoint, &pending)?;
        let started = self.started_mut(checkpoint)?;
        started.total_bytes = bytes_of(&metadata);
        let savepoints = std::mem::take(&mut started.savepoints);
        let tables = started.snapshots.values().flat_map(TaskSnapshot::tables).collect();
        let commit = Commit {
            metadata,
            pending,
            savepoints,
            tables,
            sinks: Arc::clone(&self.sinks),
            releases: Arc::clone(&self.releases),
            retained: self.options.retained,
            store: Arc::clone(&self.context.store),
            background: self.context.background.clone(),
        };
        self.completing = Some(self.context.background.start(move || Ok(commit.run())));
        Ok(())
    }

    fn started_mut(&mut self, checkpoint: CheckpointId) -> Result<&mut Started> {
        let started = self.started.get_mut(&checkpoint);
        started.ok_or_else(|| Error::internal(format!("checkpoint {checkpoint} is not under way")))
    }

    fn metadata(
        &mut self,
        now: Timestamp,
        checkpoint: CheckpointId,
        pending: &Pending,
    ) -> Result<CheckpointMetadata> {
        let started = self.started_mut(checkpoint)?;
        let mut operators = BTreeMap::new();
        for (task, snapshot) in &started.snapshots {
            snapshot.add_to(task.index, &mut operators);
        }
        let (trigger, triggered_at) = (started.trigger, started.triggered_at);
        pending.add_to(&self.sinks, &mut operators)?;
        Ok(CheckpointMetadata {
            format: "millpond-checkpoint/1".into(),
            engine_version: env!("CARGO_PKG_VERSION").into(),
            job: self.options.job.clone(),
            writer: self.options.writer.clone(),
            generation: self.context.store.generation(),
            checkpoint,
            kind: "checkpoint".into(),
            trigger: trigger.name().into(),
            mode: self.options.mode.name().into(),
            triggered_at,
            completed_at: now,
            max_parallelism: self.context.max_parallelism,
            finished: matches!(trigger, Trigger::EndOfInput | Trigger::Drain),
            operators,
            native: None,
        })
    }

    pub(super) fn completed(&mut self, completion: Completion) -> Result<()> {
        let now = self.now();
        let Completion { checkpoint, outcome } = completion;
        match outcome {
            Committed::Well(savepoints) => {
                self.pending.settle(checkpoint);
                self.report(checkpoint, CheckpointStatus::Completed);
                for (request, written) in savepoints {
                    self.answer_savepoint(request, written);
                }
                self.coordinate(now, Event::Committed { checkpoint })
            }
            Committed::NotDurable(reason) => self.coordinate(now, Event::CommitFailed { checkpoint, reason }),
            Committed::SinkFailed(error) => {
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

    /// Ends a checkpoint with a line for SHOW CHECKPOINTS.
    fn report(&mut self, checkpoint: CheckpointId, status: CheckpointStatus) {
        let Some(started) = self.started.remove(&checkpoint) else { return };
        let snapshots = || started.snapshots.values();
        self.history.add(CheckpointReport {
            checkpoint,
            trigger: started.trigger,
            status,
            triggered_at: started.triggered_at,
            ended_at: self.now(),
            duration: started.stopwatch.elapsed(),
            align: snapshots().map(|snapshot| snapshot.align).max().unwrap_or_default(),
            freeze: snapshots().map(|snapshot| snapshot.freeze).max().unwrap_or_default(),
            drain: snapshots().map(|snapshot| snapshot.drain).max().unwrap_or_default(),
            asynchronous: snapshots().map(|snapshot| snapshot.asynchronous).max().unwrap_or_default(),
            bytes: snapshots().map(|snapshot| snapshot.bytes).sum(),
            rows: snapshots().map(|snapshot| snapshot.rows).sum(),
            total_bytes: started.total_bytes,
        });
    }

    /// Tells who waits how it went. Whoever asked may have gone.
    fn reply(&mut self, request: u64, result: Result<CheckpointId>) {
        match (self.waiters.remove(&request), result) {
            (Some(Waiter::Checkpoint(reply)), Ok(checkpoint)) => {
                let reports = self.history.all();
                let report = reports.into_iter().rev().find(|report| report.checkpoint == checkpoint);
                let missing = || Error::internal(format!("checkpoint {checkpoint} has no report"));
                let _ = reply.send(report.ok_or_else(missing));
            }
            (Some(Waiter::Checkpoint(reply)), Err(error)) => {
                let _ = reply.send(Err(error));
            }
            (Some(Waiter::Savepoint { reply, .. }), result) => {
                let unwritten = || Error::internal("the savepoint was not written");
                let _ = reply.send(Err(result.err().unwrap_or_else(unwritten)));
            }
            (None, _) => {}
        }
    }

    fn answer_savepoint(&mut self, request: u64, written: Result<SavepointReport>) {
        if let Some(Waiter::Savepoint { reply, .. }) = self.waiters.remove(&request) {
            let _ = reply.send(written);
        }
    }
}

/// The commit point of a checkpoint and what follows it (invariants 8, 9).
struct Commit {
    metadata: CheckpointMetadata,
    pending: Pending,
    savepoints: Vec<(u64, PathBuf)>,
    tables: TableDefs,
    sinks: Arc<Vec<SinkNode>>,
    releases: Arc<Releases>,
    retained: usize,
    store: Arc<dyn StateStore>,
    background: Background,
}

impl Commit {
    fn run(mut self) -> Completion {
        let checkpoint = self.metadata.checkpoint;
        Completion { checkpoint, outcome: self.outcome() }
    }

    fn outcome(&mut self) -> Committed {
        if let Err(error) = self.make_durable() {
            return Committed::NotDurable(error);
        }
        if let Err(error) = self.pending.commit(&self.sinks, &self.background) {
            return Committed::SinkFailed(error);
        }
        // Before old files are removed: the parts are still needed.
        let savepoints = std::mem::take(&mut self.savepoints);
        let written = savepoints.into_iter().map(|(request, folder)| (request, self.save(&folder))).collect();
        if !self.background.is_halted()
            && let Err(error) = self.store.retain(self.retained)
        {
            tracing::warn!(job = %self.metadata.job, %error, "old checkpoints could not be removed");
        }
        if let Err(error) = self.releases.completed(&self.metadata, self.retained) {
            tracing::warn!(job = %self.metadata.job, %error, "a source could not let go of what it has read");
        }
        Committed::Well(written)
    }

    fn make_durable(&mut self) -> Result<()> {
        self.background.check_halted()?;
        self.metadata.native = self.store.link_native(self.metadata.checkpoint)?;
        self.background.check_halted()?;
        self.store.commit(&self.metadata)
    }

    /// What the sinks were owed is committed: the savepoint says that nothing is.
    fn save(&self, folder: &std::path::Path) -> Result<SavepointReport> {
        self.background.check_halted()?;
        let settled = Pending::settled(&self.metadata);
        write_savepoint(self.store.as_ref(), &settled, &self.tables, folder)
    }
}
