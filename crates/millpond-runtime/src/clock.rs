//! The epoch clock: when an epoch ends.
//!
//! Epoch *e* closes when it has something to say and (a) every source reports nothing more ready
//! and no epoch is in flight, or (b) its age reaches `epoch.interval`, or (c) its budget of rows is
//! used or its changes take more memory than there is, or (d) a barrier, a statement or the end of the input demands it, or (e) an operator
//! wants to be woken. While `in_flight_max` epochs are in the graph it stays open, however old.
//!
//! ```text
//! sources ──readiness, rows──▶ Signals, EpochGate ──▶ EpochClock::decide ──EndEpoch──▶ sources
//! sinks ────last epoch done──▶ Signals
//! ```
//!
//! [`EpochClock`] decides and does nothing else. [`Signals`] and [`EpochGate`] are what the tasks
//! share with it: counters that cost a task one uncontended lock per batch and no message.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond_core::{Epoch, EpochTime, Timestamp, Watermark};
use tokio::sync::Notify;

/// Decides when the open epoch closes.
#[derive(Debug)]
pub(crate) struct EpochClock {
    interval: i64,
    in_flight_max: u64,
    open: Epoch,
    last_time: EpochTime,
}

/// What the clock sees when it decides.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Observed {
    /// The last epoch that has passed every sink.
    pub done: Epoch,
    /// No source has anything ready.
    pub quiet: bool,
    /// What has happened in the open epoch.
    pub facts: EpochFacts,
    /// The earliest time at which an operator wants to be woken.
    pub wake_at: Option<Timestamp>,
    /// A barrier, a statement or the end of the input wants the epoch closed.
    pub demanded: bool,
}

impl EpochClock {
    pub(crate) fn new(interval: i64, in_flight_max: u64) -> Self {
        Self { interval, in_flight_max: in_flight_max.max(1), open: Epoch(1), last_time: Timestamp::MIN }
    }

    /// Epochs end at another age from now on.
    pub(crate) fn alter(&mut self, interval: i64) {
        self.interval = interval;
    }

    /// The epoch that is open.
    pub(crate) fn open(&self) -> Epoch {
        self.open
    }

    /// Whether the open epoch closes now.
    pub(crate) fn decide(&self, now: Timestamp, observed: &Observed) -> bool {
        let in_flight = self.in_flight(observed);
        if in_flight >= self.in_flight_max {
            return false;
        }
        let still = in_flight == 0;
        let says_something = match observed.facts.opened_at {
            None => false,
            Some(opened) => {
                (still && observed.quiet)
                    || observed.facts.full
                    || now >= opened.saturating_add(self.interval)
            }
        };
        observed.demanded || says_something || (still && self.due(observed).is_some_and(|at| now >= at))
    }

    /// When to decide again, unless something happens before.
    pub(crate) fn next_look(&self, observed: &Observed) -> Option<Timestamp> {
        let in_flight = self.in_flight(observed);
        if in_flight >= self.in_flight_max {
            return None;
        }
        let aged = observed.facts.opened_at.map(|opened| opened.saturating_add(self.interval));
        let woken = if in_flight == 0 { self.due(observed) } else { None };
        aged.into_iter().chain(woken).min()
    }

    /// Closes the open epoch at its time.
    pub(crate) fn close(&mut self, time: EpochTime) -> Epoch {
        self.last_time = time;
        let next = self.open.next();
        std::mem::replace(&mut self.open, next)
    }

    fn in_flight(&self, observed: &Observed) -> u64 {
        self.open.0 - 1 - observed.done.0
    }

    /// A wake-up that no epoch has served yet. An operator that still asks for a time that has
    /// been served would keep the graph spinning and is not heard.
    fn due(&self, observed: &Observed) -> Option<Timestamp> {
        observed.wake_at.filter(|at| *at > self.last_time)
    }
}

/// What has happened in an epoch so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EpochFacts {
    /// When its first row (or other news) came; `None` while it has nothing to say.
    pub opened_at: Option<Timestamp>,
    /// Its budget of rows is used up.
    pub full: bool,
}

/// Hands out each epoch's budget of rows, and fixes its one time.
#[derive(Debug)]
pub(crate) struct EpochGate {
    rows_max: Option<u64>,
    /// The last epoch that was full for other reasons.
    overfull: AtomicU64,
    /// Held for a few instructions, never across an await.
    epochs: Mutex<Epochs>,
    /// Rung when granted rows come back unused.
    refunded: Notify,
}

#[derive(Debug)]
struct Epochs {
    open: BTreeMap<Epoch, OpenEpoch>,
    last_time: EpochTime,
    rows: u64,
}

#[derive(Debug, Default)]
struct OpenEpoch {
    time: Option<EpochTime>,
    granted: u64,
    delivered: u64,
    news: bool,
    /// Its changes take more memory than there is.
    overfull: bool,
}

impl EpochGate {
    pub(crate) fn new(rows_max: Option<u64>) -> Self {
        let epochs = Epochs { open: BTreeMap::new(), last_time: Timestamp::MIN, rows: 0 };
        Self { rows_max, overfull: AtomicU64::new(0), epochs: Mutex::new(epochs), refunded: Notify::new() }
    }

    /// Up to `wanted` rows of the epoch's budget; 0 when it is used up. What is not delivered
    /// must be given back by [`EpochGate::settle`].
    pub(crate) fn grant(&self, epoch: Epoch, wanted: usize) -> usize {
        if epoch.0 <= self.overfull.load(Ordering::SeqCst) {
            return 0;
        }
        let Some(rows_max) = self.rows_max else { return wanted };
        let mut epochs = self.lock();
        let open = epochs.open.entry(epoch).or_default();
        let granted = (wanted as u64).min(rows_max.saturating_sub(open.granted));
        open.granted += granted;
        granted as usize
    }

    /// Of `granted` rows, `delivered` were read. The first rows of an epoch fix its time. Answers
    /// whether the clock must look: the epoch has its first rows, or its last.
    #[must_use]
    pub(crate) fn settle(&self, epoch: Epoch, granted: usize, delivered: usize, now: Timestamp) -> bool {
        if delivered > 0 {
            self.time(epoch, now);
        }
        let mut epochs = self.lock();
        epochs.rows += delivered as u64;
        let open = epochs.open.entry(epoch).or_default();
        open.delivered += delivered as u64;
        let is_first = delivered > 0 && !open.news;
        open.news |= delivered > 0;
        let is_full = self.rows_max.is_some_and(|rows_max| open.delivered >= rows_max);
        let unused = granted.saturating_sub(delivered) as u64;
        open.granted = open.granted.saturating_sub(unused);
        drop(epochs);
        if unused > 0 && self.rows_max.is_some() {
            self.refunded.notify_waiters();
        }
        is_first || is_full
    }

    /// Something other than rows makes the epoch worth closing: a watermark moves.
    pub(crate) fn news(&self, epoch: Epoch, now: Timestamp) {
        self.time(epoch, now);
        self.lock().open.entry(epoch).or_default().news = true;
    }

    /// The changes of the epoch take more memory than there is: it is full.
    pub(crate) fn fill(&self, epoch: Epoch) {
        self.overfull.fetch_max(epoch.0, Ordering::SeqCst);
        self.lock().open.entry(epoch).or_default().overfull = true;
    }

    /// The epoch's one time: fixed by whoever asks first, the same for every task, and never
    /// before that of an earlier epoch.
    pub(crate) fn time(&self, epoch: Epoch, now: Timestamp) -> EpochTime {
        let mut epochs = self.lock();
        let time = now.max(epochs.last_time);
        let time = *epochs.open.entry(epoch).or_default().time.get_or_insert(time);
        epochs.last_time = epochs.last_time.max(time);
        time
    }

    pub(crate) fn facts(&self, epoch: Epoch) -> EpochFacts {
        let epochs = self.lock();
        let Some(open) = epochs.open.get(&epoch) else { return EpochFacts::default() };
        EpochFacts {
            opened_at: open.time.filter(|_| open.news),
            full: open.overfull || self.rows_max.is_some_and(|rows_max| open.delivered >= rows_max),
        }
    }

    /// Rows delivered since the start, in all epochs.
    pub(crate) fn rows(&self) -> u64 {
        self.lock().rows
    }

    /// Drops what is known of epochs that have passed every sink.
    pub(crate) fn forget(&self, through: Epoch) {
        let mut epochs = self.lock();
        epochs.open = epochs.open.split_off(&through.next());
    }

    /// Resolves when budget comes back. To be created before `grant` is asked, so that no refund
    /// is missed.
    pub(crate) fn refunded(&self) -> tokio::sync::futures::Notified<'_> {
        self.refunded.notified()
    }

    fn lock(&self) -> MutexGuard<'_, Epochs> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a source task has to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Readiness {
    /// Reading, or not asked yet.
    Busy,
    /// Every split said "not yet".
    Quiet,
    /// Every split has ended.
    Exhausted,
}

/// What tasks tell the clock without a message; the bell wakes it.
#[derive(Debug)]
pub(crate) struct Signals {
    bell: Notify,
    sources: Vec<SourceSignal>,
    /// Per task with a sink or the client: the last epoch that has passed it.
    ends: Vec<AtomicU64>,
    /// Per task: when its operators want to be woken.
    wakes: Vec<AtomicI64>,
}

#[derive(Debug)]
struct SourceSignal {
    readiness: AtomicU8,
    polled: AtomicU64,
    /// What its last mark carried; `i64::MIN`: none.
    watermark: AtomicI64,
}

const NEVER: i64 = i64::MAX;

impl Signals {
    pub(crate) fn new(sources: usize, ends: usize, tasks: usize) -> Self {
        let source = || SourceSignal {
            readiness: AtomicU8::new(Readiness::Busy as u8),
            polled: AtomicU64::new(0),
            watermark: AtomicI64::new(i64::MIN),
        };
        Self {
            bell: Notify::new(),
            sources: (0..sources).map(|_| source()).collect(),
            ends: (0..ends).map(|_| AtomicU64::new(0)).collect(),
            wakes: (0..tasks).map(|_| AtomicI64::new(NEVER)).collect(),
        }
    }

    /// Wakes the clock.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }
    /// Resolves when the bell has been rung since the last time.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// A source task tells what it has to offer; the clock is woken when that is nothing.
    pub(crate) fn source(&self, source: usize, readiness: Readiness) {
        let before = self.sources[source].readiness.swap(readiness as u8, Ordering::SeqCst);
        if readiness != Readiness::Busy && before != readiness as u8 {
            self.ring();
        }
    }
    /// A source task has found nothing (more) ready since it was asked for the `poll`th time.
    pub(crate) fn polled(&self, source: usize, poll: u64) {
        self.sources[source].polled.store(poll, Ordering::SeqCst);
        self.ring();
    }
    /// A mark of a source task carries this watermark.
    pub(crate) fn watermark(&self, source: usize, watermark: Option<Watermark>) {
        self.sources[source].watermark.store(watermark.unwrap_or(Timestamp::MIN).0, Ordering::SeqCst);
    }
    /// An epoch has passed a sink or the client.
    pub(crate) fn passed(&self, end: usize, epoch: Epoch) {
        self.ends[end].store(epoch.0, Ordering::SeqCst);
        self.ring();
    }
    /// When a task's operators want to be woken.
    pub(crate) fn wake_at(&self, task: usize, at: Option<Timestamp>) {
        self.wakes[task].store(at.map_or(NEVER, |at| at.0), Ordering::SeqCst);
    }

    /// The watermarks that the last marks of the sources carried.
    pub(crate) fn watermarks(&self) -> impl Iterator<Item = Option<Watermark>> + '_ {
        let watermarks = self.sources.iter().map(|source| Timestamp(source.watermark.load(Ordering::SeqCst)));
        watermarks.map(|watermark| (watermark > Timestamp::MIN).then_some(watermark))
    }
    pub(crate) fn is_quiet(&self) -> bool {
        self.sources.iter().all(|source| source.readiness.load(Ordering::SeqCst) != Readiness::Busy as u8)
    }
    pub(crate) fn is_exhausted(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.readiness.load(Ordering::SeqCst) == Readiness::Exhausted as u8)
    }
    /// Whether every source has answered the `poll`th question.
    pub(crate) fn has_polled(&self, poll: u64) -> bool {
        self.sources.iter().all(|source| source.polled.load(Ordering::SeqCst) >= poll)
    }
    /// The last epoch that has passed every sink.
    pub(crate) fn done(&self) -> Epoch {
        Epoch(self.ends.iter().map(|end| end.load(Ordering::SeqCst)).min().unwrap_or(0))
    }
    /// When the first operator wants to be woken.
    pub(crate) fn earliest_wake(&self) -> Option<Timestamp> {
        let earliest = self.wakes.iter().map(|wake| wake.load(Ordering::SeqCst)).min();
        earliest.filter(|at| *at != NEVER).map(Timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(at: i64) -> Observed {
        Observed { facts: EpochFacts { opened_at: Some(Timestamp(at)), full: false }, ..Observed::default() }
    }

    /// A clock with an interval of 50 whose epochs up to `open - 1` are closed.
    fn clock(open: u64) -> EpochClock {
        let mut clock = EpochClock::new(50, 2);
        for _ in 1..open {
            clock.close(Timestamp(100));
        }
        clock
    }

    #[test]
    fn an_epoch_without_anything_to_say_stays_open() {
        let nothing = Observed { quiet: true, ..Observed::default() };
        assert!(!clock(1).decide(Timestamp(1_000_000), &nothing));
        assert_eq!(clock(1).next_look(&nothing), None);
    }

    #[test]
    fn a_quiet_graph_answers_at_once() {
        assert!(clock(1).decide(Timestamp(1), &Observed { quiet: true, ..opened(1) }));
    }

    #[test]
    fn a_busy_one_waits_for_its_age_or_its_budget() {
        assert!(!clock(1).decide(Timestamp(49), &opened(0)));
        assert_eq!(clock(1).next_look(&opened(0)), Some(Timestamp(50)));
        assert!(clock(1).decide(Timestamp(50), &opened(0)));
        let full = Observed {
            facts: EpochFacts { opened_at: Some(Timestamp(0)), full: true },
            ..Observed::default()
        };
        assert!(clock(1).decide(Timestamp(1), &full));
    }

    #[test]
    fn with_an_epoch_in_flight_quiet_sources_do_not_close_the_next() {
        let quiet = Observed { quiet: true, ..opened(100) };
        assert!(!clock(2).decide(Timestamp(101), &quiet));
        assert!(clock(2).decide(Timestamp(101), &Observed { done: Epoch(1), ..quiet }));
    }

    #[test]
    fn with_too_many_in_flight_nothing_closes_it() {
        let pressing = Observed { demanded: true, quiet: true, ..opened(0) };
        assert!(!clock(3).decide(Timestamp(1_000), &pressing));
        assert_eq!(clock(3).next_look(&pressing), None);
        assert!(clock(3).decide(Timestamp(1_000), &Observed { done: Epoch(1), ..pressing }));
    }

    #[test]
    fn an_operator_is_woken_once() {
        let wakes = Observed { wake_at: Some(Timestamp(150)), done: Epoch(1), ..Observed::default() };
        assert_eq!(clock(2).next_look(&wakes), Some(Timestamp(150)));
        assert!(!clock(2).decide(Timestamp(149), &wakes));
        assert!(clock(2).decide(Timestamp(150), &wakes));
        let served = Observed { wake_at: Some(Timestamp(100)), ..wakes };
        assert!(!clock(2).decide(Timestamp(150), &served));
    }

    #[test]
    fn the_budget_is_shared_and_unused_rows_come_back() {
        let gate = EpochGate::new(Some(10));
        let (first, now) = (Epoch(1), Timestamp(5));
        assert_eq!((gate.grant(first, 8), gate.grant(first, 8), gate.grant(first, 8)), (8, 2, 0));
        assert!(gate.settle(first, 8, 3, now), "the first rows");
        assert_eq!(gate.facts(first), EpochFacts { opened_at: Some(now), full: false });
        assert_eq!(gate.grant(first, 8), 5);
        assert!(!gate.settle(first, 5, 5, now));
        assert!(gate.settle(first, 2, 2, now), "the last rows");
        assert!(gate.facts(first).full);
        assert_eq!(gate.grant(Epoch(2), 8), 8, "the next epoch has its own");
        assert_eq!(gate.rows(), 10);
    }

    #[test]
    fn an_epoch_has_one_time_and_times_do_not_go_back() {
        let gate = EpochGate::new(None);
        assert_eq!(gate.time(Epoch(1), Timestamp(7)), Timestamp(7));
        assert_eq!(gate.time(Epoch(1), Timestamp(9)), Timestamp(7));
        assert_eq!(gate.time(Epoch(2), Timestamp(3)), Timestamp(7));
        gate.forget(Epoch(1));
        assert_eq!(gate.facts(Epoch(1)), EpochFacts::default());
    }
}
