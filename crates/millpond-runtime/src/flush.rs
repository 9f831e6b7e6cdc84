//! Flushes: `EPOCH` and `FLUSH` statements wait until what is ready has passed every sink.
//!
//! A round asks every source to look again for what is ready; when all have answered that nothing
//! more is, the open epoch is closed on demand, and the round ends when that has passed every
//! sink. One round at a time serves all who asked before it began.

use millpond_core::{Epoch, Result, Timestamp};
use tokio::sync::oneshot;

use crate::clock::Signals;

/// The statements that wait.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    polls: u64,
    round: Option<Round>,
    next: Vec<oneshot::Sender<Result<()>>>,
}

#[derive(Debug)]
struct Round {
    poll: u64,
    replies: Vec<oneshot::Sender<Result<()>>>,
    /// A source that always has more would never answer.
    gives_up_at: Timestamp,
    /// The epoch that was closed for it.
    epoch: Option<Epoch>,
}

/// The shortest time for which a round lets the sources deliver.
const PATIENCE: i64 = 1_000_000;

impl Flushes {
    /// Somebody waits.
    pub(crate) fn ask(&mut self, reply: oneshot::Sender<Result<()>>) {
        self.next.push(reply);
    }

    /// Begins a round if one is wanted and none is under way; answers the number of its poll.
    pub(crate) fn begin(&mut self, now: Timestamp, epoch_interval: i64) -> Option<u64> {
        if self.round.is_some() || self.next.is_empty() {
            return None;
        }
        self.polls += 1;
        let patience = PATIENCE.max(epoch_interval.saturating_mul(10));
        self.round = Some(Round {
            poll: self.polls,
            replies: std::mem::take(&mut self.next),
            gives_up_at: now.saturating_add(patience),
            epoch: None,
        });
        Some(self.polls)
    }

    /// Whether the open epoch is to be closed for the round under way.
    pub(crate) fn demand(&self, now: Timestamp, quiet: bool, signals: &Signals) -> bool {
        self.round.as_ref().is_some_and(|round| {
            let delivered = quiet && signals.has_polled(round.poll);
            round.epoch.is_none() && (delivered || now >= round.gives_up_at)
        })
    }

    /// When the round stops waiting for the sources.
    pub(crate) fn gives_up_at(&self) -> Option<Timestamp> {
        self.round.as_ref().filter(|round| round.epoch.is_none()).map(|round| round.gives_up_at)
    }

    /// An epoch has been closed because the round demanded it.
    pub(crate) fn closed(&mut self, epoch: Epoch) {
        if let Some(round) = &mut self.round {
            round.epoch.get_or_insert(epoch);
        }
    }

    /// Epochs have passed every sink.
    pub(crate) fn passed(&mut self, through: Epoch) {
        let passed = |round: &mut Round| round.epoch.is_some_and(|epoch| epoch <= through);
        if let Some(round) = self.round.take_if(passed) {
            answer(round.replies);
        }
    }

    /// The job has ended well: everything has passed.
    pub(crate) fn answer_all(&mut self) {
        answer(self.round.take().map(|round| round.replies).unwrap_or_default());
        answer(std::mem::take(&mut self.next));
    }
}

/// Whoever asked may have gone.
fn answer(replies: Vec<oneshot::Sender<Result<()>>>) {
    for reply in replies {
        let _ = reply.send(Ok(()));
    }
}
