//! Counters of the accounting invariant (14): nothing is lost silently.
//!
//! Per source: read = sent + rejected. Per operator: in = accepted + filtered + late + rejected.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one task adds to and anyone reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// The sum so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one source task.
#[derive(Debug, Default)]
pub struct SourceMetrics {
    /// Records read, good or bad.
    pub read: Counter,
    /// Rows sent on.
    pub sent: Counter,
    /// Records not sent: unreadable, or without a usable time.
    pub rejected: Counter,
    /// Fields that became NULL because they were unreadable (`bad-rows = skip`).
    pub nulled: Counter,
    /// Bytes read.
    pub bytes: Counter,
}

/// Counters of one operator in one task.
#[derive(Debug, Default)]
pub struct OperatorMetrics {
    /// Rows in.
    pub rows_in: Counter,
    /// Rows that the operator used.
    pub accepted: Counter,
    /// Rows that a predicate dropped.
    pub filtered: Counter,
    /// Rows that came after their last window was final.
    pub late: Counter,
    /// Rows that could not be used (for example without a time).
    pub rejected: Counter,
    /// Rows out.
    pub rows_out: Counter,
}
