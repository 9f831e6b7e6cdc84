//! Pace: how many rows a generator may give by now.

use millpond_core::Timestamp;

/// The least time between two polls of a generator, so that a fast one gives batches and not rows.
const BREATH_MICROS: i64 = 5_000;

/// Time that a generator may catch up when its reader was slow; what is older is forgotten.
const CATCH_UP_MICROS: i64 = 1_000_000;

const MICROS_PER_SECOND: f64 = 1e6;

/// Rows per second of processing time, or as fast as possible.
#[derive(Debug)]
pub(crate) struct Pace {
    rows_per_second: Option<f64>,
    /// When the count below began.
    start: Timestamp,
    given: u64,
}

/// What the pace allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// So many rows, at least one.
    Rows(usize),
    /// None before this time.
    Wait(Timestamp),
}

impl Pace {
    /// A pace that begins now, with its first row.
    pub(crate) fn new(rows_per_second: Option<f64>, now: Timestamp) -> Self {
        Self { rows_per_second, start: now, given: 0 }
    }

    /// Rows that may be given at `now`, at most `rows_max`.
    pub(crate) fn allowance(&mut self, now: Timestamp, rows_max: usize) -> Allowance {
        let Some(rate) = self.rows_per_second else { return Allowance::Rows(rows_max) };
        self.forget(now, rate);
        let due = (now.0.saturating_sub(self.start.0) as f64 * rate / MICROS_PER_SECOND) as u64 + 1;
        match due.saturating_sub(self.given) {
            0 => {
                let next =
                    self.start.saturating_add((self.given as f64 * MICROS_PER_SECOND / rate).ceil() as i64);
                Allowance::Wait(next.max(now.saturating_add(BREATH_MICROS)))
            }
            rows => Allowance::Rows(rows_max.min(usize::try_from(rows).unwrap_or(usize::MAX))),
        }
    }

    /// Counts rows given.
    pub(crate) fn give(&mut self, rows: usize) {
        self.given += rows as u64;
    }

    fn forget(&mut self, now: Timestamp, rate: f64) {
        let given_until = self.start.saturating_add((self.given as f64 * MICROS_PER_SECOND / rate) as i64);
        if now.0.saturating_sub(given_until.0) > CATCH_UP_MICROS {
            *self = Self::new(self.rows_per_second, now.saturating_add(-CATCH_UP_MICROS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_due_as_time_passes() {
        let mut pace = Pace::new(Some(10.0), Timestamp(0));
        assert_eq!(pace.allowance(Timestamp(0), 100), Allowance::Rows(1));
        pace.give(1);
        assert_eq!(pace.allowance(Timestamp(0), 100), Allowance::Wait(Timestamp(100_000)));
        assert_eq!(pace.allowance(Timestamp(350_000), 100), Allowance::Rows(3));
        assert_eq!(pace.allowance(Timestamp(350_000), 2), Allowance::Rows(2));
    }

    #[test]
    fn a_fast_pace_takes_a_breath() {
        let mut pace = Pace::new(Some(1e6), Timestamp(0));
        pace.give(1);
        assert_eq!(pace.allowance(Timestamp(0), 100), Allowance::Wait(Timestamp(BREATH_MICROS)));
    }

    #[test]
    fn a_slow_reader_is_not_flooded() {
        let mut pace = Pace::new(Some(10.0), Timestamp(0));
        assert_eq!(pace.allowance(Timestamp(3_600_000_000), 1_000), Allowance::Rows(11));
    }

    #[test]
    fn without_a_rate_everything_is_due() {
        let mut pace = Pace::new(None, Timestamp(0));
        assert_eq!(pace.allowance(Timestamp(0), 8), Allowance::Rows(8));
    }
}
