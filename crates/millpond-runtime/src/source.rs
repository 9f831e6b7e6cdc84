//! The source task: reads its splits, and turns the clock's orders into marks.
//!
//! Up to [`OPEN_SPLITS_MAX`] splits are open at once; the one with the lowest watermark is polled
//! next, so that event time advances evenly. Splits that wait to be opened hold the watermark
//! back entirely; a finished one no longer does. Between batches the task listens to the clock;
//! with nothing ready it says so and rests.
//!
//! ```text
//! split ─poll─▶ rows ─EventTime─▶ columns, late tags ─▶ chain ─▶ tails
//! clock ─EndEpoch─▶ mark with this task's watermark, positions as of the mark (invariant 7)
//! ```

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_connect::{ReaderContext, SourcePoll, SplitReader};
use millpond_core::limits::OPEN_SPLITS_MAX;
use millpond_core::{
    BadRows, Barrier, ChangelogBatch, DeadLetter, Epoch, EpochMark, EpochTime, Error, Result, SourceMetrics,
    Timestamp, Watermark,
};
use millpond_operators::event_time::BadTime;
use tokio::sync::{mpsc, watch};

use crate::clock::Readiness;
use crate::graph::SourceNode;
use crate::snapshot::{FrozenOperator, SPLITS, watermark_list};
use crate::splits::{Discovered, Discoverer, SplitState};
use crate::task::TaskBody;
use crate::timer::sleep_until;

/// How long a task rests for a reader that did not say when to ask again.
const SHORT_REST: Duration = Duration::from_millis(1);

/// What the clock tells source tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control {
    /// Close the open epoch.
    EndEpoch(EndEpoch),
    /// Look again for what is ready, and say when nothing more is.
    Poll(u64),
}

/// The end of an epoch, as the clock decides it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndEpoch {
    pub(crate) epoch: Epoch,
    pub(crate) time: EpochTime,
    pub(crate) barrier: Option<Barrier>,
    pub(crate) end: Option<End>,
}

/// Why no epoch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All sources are exhausted: the watermark goes to +∞.
    Input,
    /// The user stops the job: windows stay open in the snapshot.
    Stop,
    /// The user stops the job as if the input had ended: windows are closed.
    Drain,
}

/// Reads the splits of a source that belong to one task.
pub(crate) struct SourceTask {
    node: SourceNode,
    index: usize,
    parallelism: usize,
    /// Number among all source tasks of the job.
    number: usize,
    batch_rows: usize,
    body: TaskBody,
    control: mpsc::Receiver<Control>,
    reader_context: ReaderContext,
    discovered: watch::Receiver<Discovered>,
    /// Keeps the list open for as long as one task of the source lives.
    _found: watch::Sender<Discovered>,
    discoverer: Option<Discoverer>,
    /// How many of the discovered splits have been looked at.
    seen: usize,
    unread: VecDeque<SplitState>,
    open: Vec<OpenSplit>,
    finished: Vec<SplitState>,
    /// Counts polls, for the round robin.
    turn: u64,
    asked: Option<u64>,
    outlook: Outlook,
}

struct OpenSplit {
    state: SplitState,
    reader: Box<dyn SplitReader>,
    rest: Rest,
    last_turn: u64,
    last_row_at: Timestamp,
}

/// Whether a split may be polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    None,
    /// Not before this processing time.
    Until(Timestamp),
    /// Not before the task has rested once: the reader did not say for how long.
    Shortly,
}

/// The watermark that a mark would carry now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outlook {
    watermark: Option<Watermark>,
    idle: bool,
}

/// What is given to a source task beside its body.
pub(crate) struct SourceParts {
    pub(crate) node: SourceNode,
    pub(crate) index: usize,
    pub(crate) parallelism: usize,
    pub(crate) number: usize,
    pub(crate) batch_rows: usize,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) reader_context: ReaderContext,
    pub(crate) found: watch::Sender<Discovered>,
    pub(crate) discoverer: Option<Discoverer>,
    pub(crate) watermark: Option<Watermark>,
}

impl SourceTask {
    pub(crate) fn new(parts: SourceParts, body: TaskBody) -> Self {
        let mut task = Self {
            node: parts.node,
            index: parts.index,
            parallelism: parts.parallelism,
            number: parts.number,
            batch_rows: parts.batch_rows,
            body,
            control: parts.control,
            reader_context: parts.reader_context,
            discovered: parts.found.subscribe(),
            _found: parts.found,
            discoverer: parts.discoverer,
            seen: 0,
            unread: VecDeque::new(),
            open: Vec::new(),
            finished: Vec::new(),
            turn: 0,
            asked: None,
            outlook: Outlook { watermark: parts.watermark, idle: false },
        };
        // Before the first order: a barrier that came earlier would snapshot a source without
        // splits, and a restore would lose them.
        task.take_splits();
        task
    }

    /// Reads until the clock ends the job.
    pub(crate) async fn run(mut self) -> Result<()> {
        loop {
            let control = match self.next_control()? {
                Some(control) => Some(control),
                None => self.advance().await?,
            };
            if let Some(control) = control
                && self.obey(control).await?
            {
                return self.body.finish().await;
            }
        }
    }

    /// Reads a batch, or waits; answers an order that came while it waited.
    async fn advance(&mut self) -> Result<Option<Control>> {
        self.find_splits().await?;
        match self.next_split() {
            Some(at) => self.read_within_budget(at).await,
            None if self.body.is_draining() => self.drain().await,
            None => self.rest().await,
        }
    }

    /// A message of the clock that has arrived; an error when the clock is gone.
    fn next_control(&mut self) -> Result<Option<Control>> {
        match self.control.try_recv() {
            Ok(control) => Ok(Some(control)),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(Error::cancelled()),
        }
    }

    /// Follows an order of the clock; answers whether the task has ended.
    async fn obey(&mut self, control: Control) -> Result<bool> {
        match control {
            Control::EndEpoch(order) => {
                self.end_epoch(order).await?;
                Ok(order.end.is_some())
            }
            Control::Poll(poll) => {
                self.asked = Some(poll);
                self.open.iter_mut().for_each(|split| split.rest = Rest::None);
                Ok(false)
            }
        }
    }

    async fn end_epoch(&mut self, order: EndEpoch) -> Result<()> {
        self.outlook = match order.end {
            Some(End::Input | End::Drain) => Outlook { watermark: Some(Timestamp::MAX), idle: false },
            Some(End::Stop) | None => self.look_out(self.now()),
        };
        if order.end == Some(End::Input) {
            self.check_accounting()?;
        }
        self.body.context().signals.watermark(self.number, self.outlook.watermark);
        let mark = EpochMark {
            epoch: order.epoch,
            time: order.time,
            watermark: self.outlook.watermark,
            idle: self.outlook.idle,
            barrier: order.barrier,
            end: order.end.is_some(),
        };
        let source = order.barrier.map(|_| self.freeze()).transpose()?;
        self.body.mark(mark, source, Duration::ZERO).await
    }

    /// Invariant 14: nothing that was read is lost silently.
    fn check_accounting(&self) -> Result<()> {
        let SourceMetrics { read, sent, rejected, .. } = &*self.reader_context.metrics;
        let (read, sent, rejected) = (read.value(), sent.value(), rejected.value());
        if read == sent + rejected {
            return Ok(());
        }
        let what = format!("invariant 14: table {:?} has read {read} rows", self.node.table);
        Err(Error::internal(format!("{what}, sent {sent} and rejected {rejected}")))
    }

    /// The positions of all splits, right behind the last row sent (invariant 7).
    fn freeze(&self) -> Result<FrozenOperator> {
        let open = self
            .open
            .iter()
            .map(|split| SplitState { position: Some(split.reader.position()), ..split.state.clone() });
        let splits = self.finished.iter().cloned().chain(open).chain(self.unread.iter().cloned());
        let entry = |split| serde_json::to_value(split).map_err(|error| Error::internal(error.to_string()));
        let mut lists = watermark_list(self.index, self.outlook.watermark);
        lists.insert(SPLITS.into(), splits.map(entry).collect::<Result<_>>()?);
        Ok(FrozenOperator { uid: self.node.uid.clone(), name: "Source".into(), tables: Vec::new(), lists })
    }

    /// Takes over newly discovered splits and opens as many as may be open.
    async fn find_splits(&mut self) -> Result<()> {
        if let Some(discoverer) = &mut self.discoverer {
            let context = self.body.context();
            discoverer.look(context.clock.now(), self.asked, &context.background).await?;
        }
        self.take_splits();
        while self.open.len() < OPEN_SPLITS_MAX
            && let Some(state) = self.unread.pop_front()
        {
            self.open_split(state).await?;
        }
        Ok(())
    }

    fn take_splits(&mut self) {
        let discovered = self.discovered.borrow_and_update().clone();
        if discovered.splits.len() > self.seen {
            let mine = discovered.of_task(self.index, self.parallelism, self.seen);
            let (finished, unread): (Vec<_>, Vec<_>) = mine.into_iter().partition(|split| split.finished);
            self.finished.extend(finished);
            self.unread.extend(unread);
            self.seen = discovered.splits.len();
        }
    }

    async fn open_split(&mut self, state: SplitState) -> Result<()> {
        let (connector, context) = (Arc::clone(&self.node.connector), self.reader_context.clone());
        let open = move || Ok((connector.open(&state.split, state.position.as_ref(), context)?, state));
        let (reader, state) = self.body.context().background.run(open).await?;
        let last_row_at = self.now();
        self.open.push(OpenSplit { state, reader, rest: Rest::None, last_turn: 0, last_row_at });
        Ok(())
    }

    /// Of the splits that may be polled the one with the lowest watermark, in turn.
    fn next_split(&self) -> Option<usize> {
        let now = self.now();
        let ready = self.open.iter().enumerate().filter(|(_, split)| split.is_ready(now));
        ready.min_by_key(|(_, split)| (split.state.watermark.current, split.last_turn)).map(|(at, _)| at)
    }

    /// Reads up to what the epoch's budget allows; waits for the next epoch when it is used up.
    async fn read_within_budget(&mut self, at: usize) -> Result<Option<Control>> {
        let gate = Arc::clone(&self.body.context().gate);
        let mut refunded = pin!(gate.refunded());
        refunded.as_mut().enable();
        match gate.grant(self.body.epoch(), self.batch_rows) {
            0 if self.body.is_draining() => self.drain().await,
            0 => tokio::select! {
                control = self.control.recv() => control.ok_or_else(Error::cancelled).map(Some),
                () = refunded => Ok(None),
            },
            granted => {
                self.read(at, granted).await?;
                tokio::task::yield_now().await;
                Ok(None)
            }
        }
    }

    /// There is nothing to read: a frozen snapshot uses the time.
    async fn drain(&mut self) -> Result<Option<Control>> {
        self.body.drain().await?;
        tokio::task::yield_now().await;
        Ok(None)
    }

    async fn read(&mut self, at: usize, granted: usize) -> Result<()> {
        self.signal(Readiness::Busy);
        self.turn += 1;
        let split = &mut self.open[at];
        split.last_turn = self.turn;
        let poll = split.reader.poll(granted)?;
        let rows = match &poll {
            SourcePoll::Rows(batch) => batch.num_rows(),
            SourcePoll::NotYet { .. } | SourcePoll::End => 0,
        };
        let now = self.now();
        let context = self.body.context();
        if context.gate.settle(self.body.epoch(), granted, rows, now) {
            context.signals.ring();
        }
        match poll {
            SourcePoll::Rows(batch) => self.send(at, batch, now).await,
            SourcePoll::NotYet { retry_at } => {
                self.open[at].rest = if retry_at > now { Rest::Until(retry_at) } else { Rest::Shortly };
                Ok(())
            }
            SourcePoll::End => {
                self.finish_split(at);
                Ok(())
            }
        }
    }

    /// Computed columns, event time and late tags; then down the chain.
    async fn send(&mut self, at: usize, batch: ChangelogBatch, now: Timestamp) -> Result<()> {
        let split = &mut self.open[at];
        split.last_row_at = now;
        let metrics = &self.reader_context.metrics;
        let time = self.body.context().gate.time(self.body.epoch(), now);
        let (rows, bad) = self.node.event_time.apply(&mut split.state.watermark, &batch, time, metrics)?;
        if !bad.is_empty() {
            self.reject(&self.open[at].state.split.id, &batch, &bad)?;
        }
        self.reader_context.metrics.sent.add(rows.num_rows() as u64);
        if rows.is_empty() { Ok(()) } else { self.body.batch(0, rows).await }
    }

    /// Rows without a usable time follow `bad-rows`.
    fn reject(&self, split: &str, batch: &ChangelogBatch, bad: &[BadTime]) -> Result<()> {
        let table = &self.node.table;
        match self.node.bad_rows {
            BadRows::Fail => {
                let column =
                    self.node.event_time.watermark.as_ref().map_or("", |watermark| watermark.column.as_str());
                let reason = &bad[0].reason;
                Err(Error::data(format!("table {table:?}, column {column:?}, split {split:?}: {reason}"))
                    .with_detail(format!("the row is {}", show_row(batch, bad[0].row)))
                    .with_hint("SET 'bad-rows' = 'skip' or 'dead-letter' to go on without such rows"))
            }
            BadRows::Skip => Ok(()),
            BadRows::DeadLetter => bad.iter().try_for_each(|bad| {
                self.reader_context.dead_letters.keep(DeadLetter {
                    table: table.clone(),
                    split: split.into(),
                    line: None,
                    column: None,
                    reason: bad.reason.clone(),
                    record: show_row(batch, bad.row),
                })
            }),
        }
    }

    fn finish_split(&mut self, at: usize) {
        let mut split = self.open.swap_remove(at);
        split.state.position = Some(split.reader.position());
        split.state.finished = true;
        self.finished.push(split.state);
    }

    /// Nothing is ready: says so, and waits for the clock, a split or new splits.
    async fn rest(&mut self) -> Result<Option<Control>> {
        let now = self.now();
        self.announce(now);
        let wake = self.wake_at(now);
        let clock = Arc::clone(&self.body.context().clock);
        let shortly = self.open.iter().any(|split| split.rest == Rest::Shortly);
        tokio::select! {
            control = self.control.recv() => return control.ok_or_else(Error::cancelled).map(Some),
            () = sleep_until(clock.as_ref(), wake) => {}
            () = tokio::time::sleep(SHORT_REST), if shortly => self.end_short_rests(),
            changed = self.discovered.changed() => changed.map_err(|_| Error::cancelled())?,
        }
        Ok(None)
    }

    /// Tells the clock that nothing is ready, and whether the watermark would move.
    fn announce(&mut self, now: Timestamp) {
        let outlook = self.look_out(now);
        if outlook != self.outlook {
            self.outlook = outlook;
            self.body.context().gate.news(self.body.epoch(), now);
        }
        let looked = self.discovered.borrow().poll;
        if let Some(poll) = self.asked.take_if(|poll| looked >= *poll) {
            self.body.context().signals.polled(self.number, poll);
        }
        self.signal(if self.is_exhausted() { Readiness::Exhausted } else { Readiness::Quiet });
    }

    fn end_short_rests(&mut self) {
        for split in self.open.iter_mut().filter(|split| split.rest == Rest::Shortly) {
            split.rest = Rest::None;
        }
    }

    /// When something may change by itself.
    fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let splits = self.open.iter().filter_map(|split| match split.rest {
            Rest::Until(at) => Some(at),
            Rest::None | Rest::Shortly => None,
        });
        let idle = self.open.iter().filter_map(|split| self.idle_at(split)).filter(|at| *at > now);
        let discovery = self.discoverer.as_ref().and_then(Discoverer::due);
        splits.chain(idle).chain(discovery).min()
    }

    /// The watermark and idleness that a mark would carry now.
    fn look_out(&self, now: Timestamp) -> Outlook {
        let Outlook { watermark: sent, .. } = self.outlook;
        if self.is_exhausted() {
            return Outlook { watermark: Some(Timestamp::MAX), idle: false };
        }
        if !self.unread.is_empty() {
            return Outlook { watermark: sent, idle: false };
        }
        let idle = self.open.iter().all(|split| self.idle_at(split).is_some_and(|at| now >= at));
        let watermark = if idle {
            let open = self.open.iter().map(|split| &split.state);
            open.chain(&self.finished).map(|state| state.watermark.current).max()
        } else {
            let holding = self.open.iter().filter(|split| self.idle_at(split).is_none_or(|at| now < at));
            holding.map(|split| split.state.watermark.current).min()
        };
        let known = watermark.filter(|watermark| *watermark > Timestamp::MIN);
        Outlook { watermark: sent.max(known), idle }
    }

    /// When a split stops holding the watermark back; `None`: never. Only a source without an end
    /// has idle splits.
    fn idle_at(&self, split: &OpenSplit) -> Option<Timestamp> {
        let waits = self.node.idle_timeout > 0 && !self.node.connector.is_bounded();
        waits.then(|| split.last_row_at.saturating_add(self.node.idle_timeout))
    }

    fn is_exhausted(&self) -> bool {
        self.node.connector.is_bounded() && self.open.is_empty() && self.unread.is_empty()
    }

    fn signal(&self, readiness: Readiness) {
        self.body.context().signals.source(self.number, readiness);
    }

    fn now(&self) -> Timestamp {
        self.body.context().clock.now()
    }
}

impl OpenSplit {
    fn is_ready(&self, now: Timestamp) -> bool {
        match self.rest {
            Rest::None => true,
            Rest::Until(at) => now >= at,
            Rest::Shortly => false,
        }
    }
}

/// A row as text, cut at 64 KiB: `{a: 1, b: x}`.
fn show_row(batch: &ChangelogBatch, row: usize) -> String {
    const CUT: usize = 64 << 10;
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let schema = batch.schema();
    let mut text = String::from("{");
    for (field, column) in schema.fields().iter().zip(batch.rows.columns()) {
        let value = ArrayFormatter::try_new(column.as_ref(), &options)
            .map_or_else(|error| error.to_string(), |formatter| formatter.value(row).to_string());
        let comma = if text.len() > 1 { ", " } else { "" };
        text.push_str(&format!("{comma}{}: {value}", field.name()));
    }
    text.push('}');
    if text.len() > CUT {
        text.truncate(text.floor_char_boundary(CUT));
    }
    text
}
