//! The only home of the wall clock; everything else is told the time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::time::Timestamp;

/// Where time comes from; injected, so that tests turn it by hand.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The processing time now.
    fn now(&self) -> Timestamp;
    /// Whether time passes only when [`ManualClock::advance`] is called.
    fn is_manual(&self) -> bool {
        false
    }
}

/// The system's wall clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one home of the wall clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(since.as_micros() as i64)
    }
}

/// A clock that stands until it is advanced.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self(AtomicI64::new(start.0))
    }
    /// Moves time forward.
    pub fn advance(&self, micros: i64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
    fn is_manual(&self) -> bool {
        true
    }
}

/// Measures how long something takes; for metrics and reports, never for results.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "the one home of the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }
    /// Time since the start.
    pub fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }
}
