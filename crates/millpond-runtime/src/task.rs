//! The task loop: the only code that handles marks.
//!
//! A task owns a chain of operators and its tails. Batches pass down the chain; at a mark each
//! operator ends its epoch in order, sinks publish, a barrier freezes everything, and the mark
//! goes on at once. Storing what was frozen is background work; one frozen set at a time: barrier
//! *n + 1* waits until *n* is stored.
//!
//! ```text
//! inputs ─align─▶ batch ─▶ chain ─▶ tails
//!                 mark  ─▶ end_epoch … ─▶ freeze? ─▶ mark to the tails ─▶ "epoch passed"
//! ```

use std::sync::Arc;
use std::time::Duration;

use millpond_core::clock::Stopwatch;
use millpond_core::{Barrier, ChangelogBatch, Clock, Epoch, EpochMark, Error, Result, TaskId};
use millpond_operators::InputIndex;
use millpond_state::StateStore;
use tokio::sync::{mpsc, oneshot};

use crate::align::{Aligned, AlignedInputs};
use crate::background::Background;
use crate::chain::Chain;
use crate::clock::{EpochGate, Signals};
use crate::snapshot::{FrozenOperator, FrozenTask, LostTables, SnapshotEvent};
use crate::tail::Tails;

/// What all tasks of an attempt share.
#[derive(Debug, Clone)]
pub(crate) struct TaskContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) gate: Arc<EpochGate>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) background: Background,
    pub(crate) events: mpsc::Sender<Result<SnapshotEvent>>,
    pub(crate) max_parallelism: u16,
}

/// A task without its head.
pub(crate) struct TaskBody {
    id: TaskId,
    /// Number of the task among all tasks.
    number: usize,
    /// Number among the tasks that end at a sink or the client.
    end: Option<usize>,
    chain: Chain,
    tails: Tails,
    context: TaskContext,
    epoch: Epoch,
    epoch_begun: bool,
    storing: Option<oneshot::Receiver<Result<LostTables>>>,
}

/// Drives a task whose rows come from other tasks until its inputs have ended.
pub(crate) async fn run(mut inputs: AlignedInputs, mut body: TaskBody) -> Result<()> {
    loop {
        match inputs.next().await? {
            (Aligned::Batch(input, batch), _) => body.batch(input, batch).await?,
            (Aligned::Mark(mark), align) => {
                let end = mark.end;
                body.mark(mark, None, align).await?;
                if end {
                    return body.finish().await;
                }
            }
        }
    }
}

impl TaskBody {
    pub(crate) fn new(
        id: TaskId,
        number: usize,
        end: Option<usize>,
        chain: Chain,
        tails: Tails,
        context: TaskContext,
    ) -> Self {
        context.signals.wake_at(number, chain.wake_at());
        Self { id, number, end, chain, tails, context, epoch: Epoch(1), epoch_begun: false, storing: None }
    }

    pub(crate) fn context(&self) -> &TaskContext {
        &self.context
    }

    /// The epoch that is open in this task.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Rows of the open epoch.
    pub(crate) async fn batch(&mut self, input: InputIndex, batch: ChangelogBatch) -> Result<()> {
        if !self.epoch_begun {
            self.epoch_begun = true;
            self.chain.open_epoch(self.context.gate.time(self.epoch, self.context.clock.now()));
        }
        self.chain.push(&mut self.tails, input, batch).await
    }

    /// The epoch has ended on all inputs; `source` is the state of the task's source.
    pub(crate) async fn mark(
        &mut self,
        mark: EpochMark,
        source: Option<FrozenOperator>,
        align: Duration,
    ) -> Result<()> {
        if mark.epoch != self.epoch {
            let what =
                format!("invariant 2: task {} met mark {} in epoch {}", self.id, mark.epoch, self.epoch);
            return Err(Error::internal(what));
        }
        let watermark = self.chain.end_epoch(&mut self.tails, mark.watermark, mark.time).await?;
        self.tails.end_epoch()?;
        if let Some(barrier) = mark.barrier {
            self.snapshot(barrier, source, align).await?;
        }
        self.tails.send_mark(&EpochMark { watermark, ..mark }).await?;
        self.epoch = self.epoch.next();
        self.epoch_begun = false;
        self.context.signals.wake_at(self.number, self.chain.wake_at());
        if let Some(end) = self.end {
            self.context.signals.passed(end, mark.epoch);
        }
        Ok(())
    }

    /// Freezes everything and leaves storing it to a background thread.
    async fn snapshot(
        &mut self,
        barrier: Barrier,
        source: Option<FrozenOperator>,
        align: Duration,
    ) -> Result<()> {
        self.stored().await?;
        let stopwatch = Stopwatch::start();
        let mut operators = self.chain.freeze(self.id.index, self.context.store.as_ref())?;
        operators.extend(source);
        let frozen = FrozenTask {
            task: self.id,
            checkpoint: barrier.checkpoint,
            operators,
            sinks: self.tails.pre_commit(barrier.checkpoint)?,
            align,
            freeze: stopwatch.elapsed(),
        };
        if frozen.is_light() {
            let (event, _) = frozen.store(
                self.context.store.as_ref(),
                self.context.max_parallelism,
                &self.context.background,
            )?;
            return self.context.events.send(Ok(event)).await.map_err(|_| Error::cancelled());
        }
        let context = self.context.clone();
        self.storing = Some(self.context.background.start(move || store(frozen, &context)));
        Ok(())
    }

    /// Waits until the last snapshot has been stored.
    async fn stored(&mut self) -> Result<()> {
        if let Some(storing) = self.storing.take() {
            let lost = storing.await.unwrap_or_else(|_| Err(Error::cancelled()))?;
            self.chain.write_bases(lost);
        }
        Ok(())
    }

    /// The last mark has gone on.
    pub(crate) async fn finish(mut self) -> Result<()> {
        self.stored().await
    }
}

/// Stores a frozen task and tells the driver how it went. The driver must hear of a failure from
/// here: the task itself may not look before its next barrier.
fn store(frozen: FrozenTask, context: &TaskContext) -> Result<LostTables> {
    let stored = frozen.store(context.store.as_ref(), context.max_parallelism, &context.background);
    let (event, lost) = match stored {
        Ok((event, lost)) => (Ok(event), Ok(lost)),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    context.events.blocking_send(event).map_err(|_| Error::cancelled())?;
    lost
}
