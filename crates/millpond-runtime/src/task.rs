//! The task loop: the only code that handles marks.
//!
//! A task owns a chain of operators and its tails. Batches pass down the chain; at a mark each
//! operator ends its epoch in order, sinks publish, a barrier freezes everything, and the mark
//! goes on at once. What was frozen is copied a slice after each batch, and faster while no row
//! comes; storing it is background work. One frozen set at a time: barrier *n + 1* waits until *n*
//! is stored.
//!
//! ```text
//! inputs ─align─▶ batch ─▶ chain ─▶ tails, drain a slice
//!                 mark  ─▶ end_epoch … ─▶ freeze? ─▶ mark to the tails ─▶ "epoch passed"
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millpond_core::clock::Stopwatch;
use millpond_core::limits::DRAIN_ROWS;
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
    /// What was frozen and is not yet all copied.
    draining: Option<FrozenTask>,
    storing: Option<oneshot::Receiver<Result<LostTables>>>,
}

/// Drives a task whose rows come from other tasks until its inputs have ended.
pub(crate) async fn run(mut inputs: AlignedInputs, mut body: TaskBody) -> Result<()> {
    loop {
        match next_element(&mut inputs, &mut body).await? {
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

/// What the inputs give next; while they have nothing the task drains.
async fn next_element(inputs: &mut AlignedInputs, body: &mut TaskBody) -> Result<(Aligned, Duration)> {
    let mut next = pin!(inputs.next());
    loop {
        tokio::select! {
            biased;
            element = &mut next => return element,
            () = tokio::task::yield_now(), if body.is_draining() => body.drain().await?,
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
        let (epoch, epoch_begun) = (Epoch(1), false);
        let (draining, storing) = (None, None);
        Self { id, number, end, chain, tails, context, epoch, epoch_begun, draining, storing }
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
        self.chain.push(&mut self.tails, input, batch).await?;
        if self.chain.is_pinned() {
            self.context.gate.fill(self.epoch);
            self.context.signals.ring();
        }
        self.drain().await
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
        if !self.epoch_begun {
            // What operators emit at its end is of this epoch's time, though no batch came.
            self.chain.open_epoch(mark.time);
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
        self.drain().await
    }

    /// Freezes everything; it is copied and stored from now on.
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
        self.draining = Some(FrozenTask {
            task: self.id,
            checkpoint: barrier.checkpoint,
            operators,
            sinks: self.tails.pre_commit(barrier.checkpoint)?,
            align,
            freeze: stopwatch.elapsed(),
            drain: Duration::ZERO,
        });
        Ok(())
    }

    /// Whether something is frozen and not yet copied.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Copies some more of what is frozen; when that was all, leaves it to a background thread.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        let Some(frozen) = &mut self.draining else { return Ok(()) };
        let stopwatch = Stopwatch::start();
        let all = self.chain.drain(&mut frozen.operators, DRAIN_ROWS)?;
        frozen.drain += stopwatch.elapsed();
        match self.draining.take_if(|_| all) {
            Some(frozen) => self.start_storing(frozen).await,
            None => Ok(()),
        }
    }

    async fn start_storing(&mut self, frozen: FrozenTask) -> Result<()> {
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
        while self.is_draining() {
            self.drain().await?;
            tokio::task::yield_now().await;
        }
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
