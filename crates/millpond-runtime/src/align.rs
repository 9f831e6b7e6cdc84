//! Alignment: turns the elements of several channels into one sequence.
//!
//! When a channel has delivered mark *e* it is held back until every channel has; then one mark
//! is returned and all channels continue (invariants 2, 6). A channel that has not delivered *e*
//! is always read: nothing else may hold it back, so diamonds cannot deadlock.
//!
//! ```text
//! in 0:  a b |7 . . . c          out:  a b x |7 c y
//! in 1:  . . x . |7 y
//! ```
//!
//! The watermark of the returned mark is the smallest of the channels that are not idle (the
//! largest when all are: what has been seen is complete as far as anyone knows), and never goes
//! back (invariant 3). A channel that has ended counts as having delivered every later
//! mark, with the watermark that it ended on.
//!
//! [`Alignment`] is the state machine, without channels and clocks; [`AlignedInputs`] does its IO.

use std::task::{Context, Poll};

use millpond_core::clock::Stopwatch;
use millpond_core::{
    Barrier, ChangelogBatch, Element, Epoch, EpochMark, EpochTime, Error, Result, Watermark,
};
use millpond_operators::InputIndex;
use tokio::sync::mpsc;

/// What comes out of an alignment.
#[derive(Debug, Clone)]
pub(crate) enum Aligned {
    /// Rows of an input.
    Batch(InputIndex, ChangelogBatch),
    /// All channels have delivered this mark.
    Mark(EpochMark),
}

/// The state of an alignment over channels.
#[derive(Debug)]
pub(crate) struct Alignment {
    channels: Vec<Channel>,
    epoch: Epoch,
    watermark: Option<Watermark>,
    open: Option<Agreed>,
}

#[derive(Debug)]
struct Channel {
    input: InputIndex,
    state: ChannelState,
    watermark: Option<Watermark>,
    idle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelState {
    /// Has not delivered the mark of the open epoch.
    Reading,
    /// Has delivered it and is held back.
    Delivered,
    /// Delivers nothing more.
    Ended,
}

/// What every mark of one epoch must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Agreed {
    time: EpochTime,
    barrier: Option<Barrier>,
}

impl Alignment {
    /// Channels by the input that they feed; `watermark` was in force when the job was last
    /// snapshotted and is not undercut.
    pub(crate) fn new(inputs: impl IntoIterator<Item = InputIndex>, watermark: Option<Watermark>) -> Self {
        let channel = |input| Channel { input, state: ChannelState::Reading, watermark: None, idle: false };
        Self { channels: inputs.into_iter().map(channel).collect(), epoch: Epoch(1), watermark, open: None }
    }

    /// Whether a channel must not be read now.
    pub(crate) fn is_held(&self, channel: usize) -> bool {
        self.channels[channel].state != ChannelState::Reading
    }

    /// Whether some channel has delivered the mark of the open epoch.
    pub(crate) fn is_aligning(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next element of a channel that is not held.
    pub(crate) fn accept(&mut self, channel: usize, element: Element) -> Result<Option<Aligned>> {
        if self.is_held(channel) {
            return Err(Error::internal(format!("invariant 2: channel {channel} was read across a mark")));
        }
        match element {
            Element::Batch(batch) => Ok(Some(Aligned::Batch(self.channels[channel].input, batch))),
            Element::EpochEnd(mark) => self.accept_mark(channel, mark),
        }
    }

    fn accept_mark(&mut self, channel: usize, mark: EpochMark) -> Result<Option<Aligned>> {
        self.check(channel, &mark)?;
        let at = &mut self.channels[channel];
        at.watermark = mark.watermark;
        at.idle = mark.idle;
        at.state = if mark.end { ChannelState::Ended } else { ChannelState::Delivered };
        let agreed = *self.open.get_or_insert(Agreed { time: mark.time, barrier: mark.barrier });
        if self.channels.iter().any(|channel| channel.state == ChannelState::Reading) {
            return Ok(None);
        }
        Ok(Some(Aligned::Mark(self.close(agreed))))
    }

    fn check(&self, channel: usize, mark: &EpochMark) -> Result<()> {
        let agreed = Agreed { time: mark.time, barrier: mark.barrier };
        let broken = if mark.epoch != self.epoch {
            format!("invariant 2: mark {} where {} is expected", mark.epoch, self.epoch)
        } else if mark.watermark < self.channels[channel].watermark {
            "invariant 3: the watermark of a channel went back".into()
        } else if self.open.is_some_and(|open| open != agreed) {
            format!("invariant 2: marks of epoch {} disagree about time or barrier", mark.epoch)
        } else {
            return Ok(());
        };
        Err(Error::internal(broken).with_detail(format!("channel {channel}: {mark:?}")))
    }

    /// All channels have delivered: one mark, and those that have not ended are read again.
    fn close(&mut self, agreed: Agreed) -> EpochMark {
        let idle = self.channels.iter().all(|channel| channel.idle);
        let watermarks =
            || self.channels.iter().filter(|channel| channel.idle == idle).map(|channel| channel.watermark);
        let combined = if idle { watermarks().max() } else { watermarks().min() };
        self.watermark = self.watermark.max(combined.flatten());
        let end = self.channels.iter().all(|channel| channel.state == ChannelState::Ended);
        for channel in self.channels.iter_mut().filter(|channel| channel.state == ChannelState::Delivered) {
            channel.state = ChannelState::Reading;
        }
        let epoch = self.epoch;
        self.epoch = epoch.next();
        self.open = None;
        EpochMark { epoch, time: agreed.time, watermark: self.watermark, idle, barrier: agreed.barrier, end }
    }
}

/// The receiving end of a task: its channels, read fairly, and their alignment.
#[derive(Debug)]
pub(crate) struct AlignedInputs {
    alignment: Alignment,
    receivers: Vec<mpsc::Receiver<Element>>,
    next: usize,
    since: Option<Stopwatch>,
}

impl AlignedInputs {
    /// One receiver per (input, upstream task).
    pub(crate) fn new(
        channels: Vec<(InputIndex, mpsc::Receiver<Element>)>,
        watermark: Option<Watermark>,
    ) -> Self {
        let (inputs, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
        Self { alignment: Alignment::new(inputs, watermark), receivers, next: 0, since: None }
    }

    /// The next batch or aligned mark, with the time that the alignment took.
    ///
    /// Errors: *Cancelled* when a sender is gone without an end mark: it has failed, and says why
    /// itself.
    pub(crate) async fn next(&mut self) -> Result<(Aligned, std::time::Duration)> {
        loop {
            let (channel, element) = std::future::poll_fn(|context| self.poll_any(context)).await;
            let element = element.ok_or_else(Error::cancelled)?;
            if let Some(aligned) = self.alignment.accept(channel, element)? {
                let since = if self.alignment.is_aligning() { None } else { self.since.take() };
                return Ok((aligned, since.map(|since| since.elapsed()).unwrap_or_default()));
            }
            if self.since.is_none() {
                self.since = Some(Stopwatch::start());
            }
        }
    }

    /// Polls every channel that is not held, beginning behind the one that was read last, so that
    /// a busy channel does not starve the others.
    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<(usize, Option<Element>)> {
        let count = self.receivers.len();
        for channel in (self.next..count).chain(0..self.next) {
            if self.alignment.is_held(channel) {
                continue;
            }
            if let Poll::Ready(element) = self.receivers[channel].poll_recv(context) {
                self.next = (channel + 1) % count;
                return Poll::Ready((channel, element));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
