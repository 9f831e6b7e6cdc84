//! A chain of operators: a batch passes down by plain calls, one output batch at a time.
//!
//! What is still to be done stands on a stack, never on the call stack: the newest work first, so
//! that an output batch has passed the whole chain before the operator that answered `More` is
//! resumed. So no operator holds more than one output batch (invariant 12), and closing a window
//! of ten million keys neither grows memory nor blocks the thread.
//!
//! ```text
//! process(0) ─▶ out, More     stack: [resume 0] [process 1 out]  ─▶ …  ─▶ tails, then resume 0
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use millpond_core::{
    ChangelogBatch, EpochTime, Error, ErrorKind, OperatorMetrics, OperatorUid, Result, Timestamp, Watermark,
};
use millpond_operators::{InputIndex, Operator, OperatorContext, Progress};
use millpond_state::{Scope, StateStore};

use crate::memory::{Memory, OperatorMemory, Room};
use crate::snapshot::{FrozenOperator, FrozenTable, watermark_list};
use crate::tail::Tails;

/// The operators of one task.
pub(crate) struct Chain {
    links: Vec<Link>,
    stack: Vec<Work>,
    /// Tables that are frozen and not yet copied.
    undrained: VecDeque<Undrained>,
    /// Whether the open epoch holds more in memory than there is room for.
    is_pinned: bool,
}

/// A frozen table: the place of its operator, its place among the operator's tables.
struct Undrained {
    link: usize,
    table: usize,
    base: bool,
}

/// An operator with what the task knows of it.
pub(crate) struct Link {
    pub(crate) uid: OperatorUid,
    pub(crate) name: &'static str,
    pub(crate) operator: Box<dyn Operator>,
    context: OperatorContext,
    wake_at: Option<Timestamp>,
    sent: Option<Watermark>,
    /// Tables of which the next snapshot must hold everything: their last delta never reached the
    /// store.
    bases: BTreeSet<String>,
    /// What its state takes; `None` if it has none.
    memory: Option<OperatorMemory>,
}

enum Work {
    Process { at: usize, input: InputIndex, batch: ChangelogBatch },
    Resume { at: usize },
}

impl Link {
    /// An operator whose input had reached `watermark` when it was snapshotted.
    pub(crate) fn new(
        uid: OperatorUid,
        name: &'static str,
        operator: Box<dyn Operator>,
        metrics: Arc<OperatorMetrics>,
        watermark: Option<Watermark>,
    ) -> Self {
        let mut context = OperatorContext::new(metrics);
        context.watermark = watermark;
        let (wake_at, sent, bases) = (None, None, BTreeSet::new());
        Self { uid, name, operator, context, wake_at, sent, bases, memory: None }
    }

    /// Accounts for its state from now on.
    pub(crate) fn account(&mut self, memory: &Memory) -> Result<()> {
        self.memory = OperatorMemory::new(memory, self.operator.as_mut())?;
        match &mut self.memory {
            Some(memory) => memory.after_epoch(self.operator.as_mut()),
            None => Ok(()),
        }
    }

    /// After a restore the operator is woken at once: what it waited for may have passed
    /// meanwhile, and no row may come to tell it so.
    pub(crate) fn wake_at_once(&mut self) {
        self.wake_at = Some(Timestamp::MIN.saturating_add(1));
    }

    fn process(&mut self, input: InputIndex, batch: ChangelogBatch) -> Result<(Progress, Room)> {
        self.context.metrics.rows_in.add(batch.num_rows() as u64);
        let mut room = Room::Enough;
        if let Some(memory) = &mut self.memory {
            room = memory.between_batches(self.operator.as_mut())?;
            memory.admit(self.operator.as_mut(), input, &batch)?;
        }
        Ok((self.operator.process(&mut self.context, input, batch)?, room))
    }

    fn after_epoch(&mut self) -> Result<()> {
        match &mut self.memory {
            Some(memory) => memory.after_epoch(self.operator.as_mut()),
            None => Ok(()),
        }
    }

    /// Our own bugs are easier to find with the operator's name; the user's errors read better
    /// without.
    fn named(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Invalid if error.message().starts_with("'memory.limit'") => {
                error.context(format!("operator {} ({})", self.name, self.uid))
            }
            ErrorKind::Internal => error.context(format!("operator {} ({})", self.name, self.uid)),
            ErrorKind::Invalid
            | ErrorKind::Data
            | ErrorKind::Unavailable
            | ErrorKind::Corrupt
            | ErrorKind::Cancelled => error,
        }
    }

    /// Freezes all tables; answers of each whether it was frozen as a base.
    fn freeze(&mut self, task: usize, store: &dyn StateStore) -> Result<(FrozenOperator, Vec<bool>)> {
        let mut bases = Vec::new();
        for (at, table) in self.operator.tables().into_iter().enumerate() {
            let name = &table.def().name;
            let base = self.bases.remove(name) || store.needs_base(&self.uid, name, task);
            let scope = if base { Scope::Everything } else { Scope::Changes };
            table.begin_freeze(scope)?;
            if let Some(memory) = &mut self.memory {
                memory.begin_freeze(at, scope);
            }
            bases.push(base);
        }
        let lists = watermark_list(task, self.context.watermark);
        let tables = Vec::new();
        Ok((FrozenOperator { uid: self.uid.clone(), name: self.name.into(), tables, lists }, bases))
    }
}

impl Chain {
    pub(crate) fn new(links: Vec<Link>) -> Self {
        Self { links, stack: Vec::new(), undrained: VecDeque::new(), is_pinned: false }
    }

    /// The watermark that was in force at the head when the job was snapshotted.
    pub(crate) fn watermark(&self) -> Option<Watermark> {
        self.links.first().and_then(|link| link.context.watermark)
    }

    /// An epoch begins.
    pub(crate) fn open_epoch(&mut self, time: EpochTime) {
        for link in &mut self.links {
            link.context.time = time;
        }
    }

    /// Passes rows down the chain and what comes of them to the tails.
    pub(crate) async fn push(
        &mut self,
        tails: &mut Tails,
        input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<()> {
        self.stack.push(Work::Process { at: 0, input, batch });
        self.run(tails).await
    }

    /// Whether the epoch should end because it holds more in memory than there is room for; asked
    /// once.
    pub(crate) fn is_pinned(&mut self) -> bool {
        std::mem::take(&mut self.is_pinned)
    }

    /// Ends the epoch in one operator after the other; answers the watermark behind the last.
    pub(crate) async fn end_epoch(
        &mut self,
        tails: &mut Tails,
        mut watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<Option<Watermark>> {
        for at in 0..self.links.len() {
            watermark = self.end_epoch_at(at, tails, watermark, time).await?;
        }
        Ok(watermark)
    }

    async fn end_epoch_at(
        &mut self,
        at: usize,
        tails: &mut Tails,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<Option<Watermark>> {
        let link = &mut self.links[at];
        link.context.time = time;
        let outcome =
            link.operator.end_epoch(&mut link.context, watermark, time).map_err(|error| link.named(error))?;
        link.wake_at = outcome.wake_at;
        self.follow(at, outcome.progress);
        self.run(tails).await?;
        let link = &mut self.links[at];
        link.after_epoch().map_err(|error| link.named(error))?;
        if outcome.watermark < link.sent {
            return Err(link.named(Error::internal("invariant 3: the watermark went back")));
        }
        link.sent = outcome.watermark;
        link.context.watermark = watermark;
        Ok(outcome.watermark)
    }

    /// Does all work on the stack. Yields after each resumption, so that a long answer does not
    /// keep the thread.
    async fn run(&mut self, tails: &mut Tails) -> Result<()> {
        while let Some(work) = self.stack.pop() {
            let resumed = matches!(work, Work::Resume { .. });
            if let Some(batch) = self.step(work)? {
                tails.send(batch).await?;
            }
            if resumed {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// One call of one operator; a batch that has passed the last one is answered.
    fn step(&mut self, work: Work) -> Result<Option<ChangelogBatch>> {
        let (at, progress) = match work {
            Work::Process { at, batch, .. } if at == self.links.len() => return Ok(Some(batch)),
            Work::Process { at, input, batch } => {
                let processed = self.links[at].process(input, batch);
                (
                    at,
                    processed.map(|(progress, room)| {
                        self.is_pinned |= room == Room::Pinned;
                        progress
                    }),
                )
            }
            Work::Resume { at } => {
                let link = &mut self.links[at];
                (at, link.operator.resume(&mut link.context))
            }
        };
        let progress = progress.map_err(|error| self.links[at].named(error))?;
        self.follow(at, progress);
        Ok(None)
    }

    /// Stacks what follows a call: its output on top, its resumption below.
    fn follow(&mut self, at: usize, progress: Progress) {
        match progress {
            Progress::More => self.stack.push(Work::Resume { at }),
            Progress::Done => {}
        }
        if let Some(batch) = self.links[at].context.take_output() {
            self.stack.push(Work::Process { at: at + 1, input: 0, batch });
        }
    }

    /// When the first operator wants to be woken.
    pub(crate) fn wake_at(&self) -> Option<Timestamp> {
        self.links.iter().filter_map(|link| link.wake_at).min()
    }

    /// Freezes all tables of all operators (invariant 6). [`Chain::drain`] adds the tables.
    pub(crate) fn freeze(&mut self, task: usize, store: &dyn StateStore) -> Result<Vec<FrozenOperator>> {
        assert!(self.undrained.is_empty(), "one frozen set at a time");
        let mut frozen = Vec::new();
        for (at, link) in self.links.iter_mut().enumerate() {
            let (operator, bases) = link.freeze(task, store)?;
            let tables = bases.into_iter().enumerate();
            self.undrained.extend(tables.map(|(table, base)| Undrained { link: at, table, base }));
            frozen.push(operator);
        }
        Ok(frozen)
    }

    /// Copies about `rows` rows of what was frozen to the operators that [`Chain::freeze`] answered;
    /// whether that was all.
    pub(crate) fn drain(&mut self, frozen: &mut [FrozenOperator], rows: usize) -> Result<bool> {
        let mut budget = rows;
        while let Some(Undrained { link, table, base }) = self.undrained.front() {
            let Link { operator, memory, .. } = &mut self.links[*link];
            let mut tables = operator.tables();
            let Some(rows) = tables[*table].drain(&mut budget)? else { return Ok(false) };
            let def = tables[*table].def().clone();
            let rows = match memory {
                Some(memory) => memory.finish_freeze(*table, &def, rows),
                None => rows,
            };
            frozen[*link].tables.push(FrozenTable { def, frozen: rows, base: *base });
            self.undrained.pop_front();
        }
        Ok(true)
    }

    /// The next snapshot must hold all of these tables: their last delta did not reach the store.
    pub(crate) fn write_bases(&mut self, lost: Vec<(OperatorUid, String)>) {
        for (uid, table) in lost {
            for link in self.links.iter_mut().filter(|link| link.uid == uid) {
                link.bases.insert(table.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Expand, rows, values};

    #[tokio::test]
    async fn a_restored_operator_is_woken_at_once_and_then_as_it_asks() {
        let (mut tails, _client) = crate::testing::client_tails(64);
        let metrics = Arc::new(OperatorMetrics::default());
        let mut link = Link::new(OperatorUid("1".into()), "Expand", Expand::boxed(1), metrics, None);
        link.wake_at_once();
        let mut chain = Chain::new(vec![link]);
        assert!(chain.wake_at().is_some_and(|at| at < Timestamp(0)));
        chain.end_epoch(&mut tails, None, Timestamp(0)).await.unwrap();
        assert_eq!(chain.wake_at(), None);
    }

    /// A chain of operators that answer `More` keeps order and passes one batch at a time.
    #[tokio::test]
    async fn an_output_batch_passes_the_chain_before_the_next_is_made() {
        let (mut tails, mut client) = crate::testing::client_tails(64);
        let metrics = Arc::new(OperatorMetrics::default());
        let link = |n| {
            Link::new(OperatorUid(format!("{n}")), "Expand", Expand::boxed(n), Arc::clone(&metrics), None)
        };
        let mut chain = Chain::new(vec![link(2), link(3)]);
        chain.push(&mut tails, 0, rows(&[1])).await.unwrap();
        chain.end_epoch(&mut tails, None, Timestamp(0)).await.unwrap();
        drop(tails);
        let mut out = Vec::new();
        while let Some(Ok(millpond_core::Element::Batch(batch))) = client.recv().await {
            out.push(values(&batch));
        }
        assert_eq!(out, [[100], [101], [102], [110], [111], [112]]);
    }
}
