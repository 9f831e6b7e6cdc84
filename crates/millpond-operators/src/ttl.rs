//! Time to live: which keys of a state table have not been touched for a while.
//!
//! Processing time is cut into steps of a sixteenth of the time to live. A key remembers the step
//! in which it was last touched, by its first microsecond; that is a column of its state, so that
//! it survives a restart, also one with another time to live, and is written again only when the
//! step changes. A key is dropped once its whole step
//! is older than the time to live, between one and 1 1/16 times that after it was last touched:
//! before the next row is looked at, and at the end of an epoch, which is asked for if none comes.
//!
//! ```text
//! step at 70: keys a b c     at 80: keys d a     at 90: key b       a was touched at 80: its place at 70 is void
//! ```

use std::collections::BTreeMap;

use millpond_core::{EpochTime, Timestamp};

/// Name of the column that holds the step of the last touch.
pub const TOUCHED: &str = "touched";

/// The keys of a table by the time of their last touch.
#[derive(Debug)]
pub struct TimeToLive {
    /// In microseconds.
    step: i64,
    ttl: i64,
    steps: BTreeMap<i64, Vec<u32>>,
    /// By slot: the step of its last touch.
    last: Vec<i64>,
}

const STEPS: i64 = 16;

/// Microseconds of a step.
fn step_of(ttl: i64) -> i64 {
    (ttl / STEPS).max(1)
}

/// The end of the step in which a time lies: from then on a time to live counts.
pub(crate) fn end_of_step(ttl: i64, time: EpochTime) -> EpochTime {
    let step = step_of(ttl);
    Timestamp(time.0.div_euclid(step).saturating_add(1).saturating_mul(step))
}

/// No key lives in this step.
const NEVER: i64 = i64::MIN;

impl TimeToLive {
    /// No keys, to live so many microseconds.
    pub fn new(ttl: i64) -> Self {
        Self { step: step_of(ttl), ttl, steps: BTreeMap::new(), last: Vec::new() }
    }

    /// The step in which a time lies: its first microsecond.
    pub fn step(&self, time: EpochTime) -> i64 {
        time.0.div_euclid(self.step).saturating_mul(self.step)
    }

    /// A key is touched in a step; whether that is another one than before.
    pub fn touch(&mut self, slot: u32, step: i64) -> bool {
        if slot as usize >= self.last.len() {
            self.last.resize(slot as usize + 1, NEVER);
        }
        let last = &mut self.last[slot as usize];
        if *last == step {
            return false;
        }
        *last = step;
        self.steps.entry(step).or_default().push(slot);
        true
    }

    /// A key was touched in a step, or later.
    pub fn touch_at_least(&mut self, slot: u32, step: i64) {
        if self.last.get(slot as usize).is_none_or(|last| *last < step) {
            self.touch(slot, step);
        }
    }

    /// A key is gone, and its slot may be another's.
    pub fn forget(&mut self, slot: u32) {
        if let Some(last) = self.last.get_mut(slot as usize) {
            *last = NEVER;
        }
    }

    /// When the keys of a step have not been touched for the time to live.
    fn end(&self, step: i64) -> EpochTime {
        Timestamp(step.saturating_add(self.step).saturating_add(self.ttl))
    }

    /// The next time after `now` at which keys may be over: an epoch is wanted then.
    pub fn wake_after(&self, now: EpochTime) -> Option<EpochTime> {
        self.steps.keys().map(|step| self.end(*step)).find(|end| *end > now)
    }

    /// Takes the keys out whose time is over.
    pub fn expired(&mut self, now: EpochTime) -> Vec<u32> {
        let mut expired = Vec::new();
        while let Some((step, _)) = self.steps.first_key_value() {
            let step = *step;
            if self.end(step) > now {
                break;
            }
            let Some(slots) = self.steps.remove(&step) else { break };
            for slot in slots {
                if self.last[slot as usize] == step {
                    self.last[slot as usize] = NEVER;
                    expired.push(slot);
                }
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_expire_after_their_last_touch() {
        let mut ttl = TimeToLive::new(160);
        let step = |time: i64| TimeToLive::new(160).step(Timestamp(time));
        assert!(ttl.touch(0, step(5)));
        assert!(!ttl.touch(0, step(9)), "the same step");
        assert!(ttl.touch(1, step(12)));
        assert!(ttl.touch(2, step(12)));
        assert!(ttl.touch(0, step(25)));
        assert_eq!(ttl.wake_after(Timestamp(0)), Some(Timestamp(170)), "a step whose key was touched later");
        assert_eq!(ttl.wake_after(Timestamp(170)), Some(Timestamp(180)));
        assert!(ttl.expired(Timestamp(179)).is_empty());
        assert_eq!(ttl.expired(Timestamp(180)), [1, 2], "0 was touched later");
        assert_eq!(ttl.wake_after(Timestamp(180)), Some(Timestamp(190)));
        assert_eq!(ttl.expired(Timestamp(10_000)), [0]);
        assert!(ttl.expired(Timestamp(10_000)).is_empty());
    }

    #[test]
    fn a_slot_that_is_used_again_is_another_key() {
        let mut ttl = TimeToLive::new(16);
        ttl.touch(3, 1);
        ttl.forget(3);
        ttl.touch(3, 9);
        assert!(ttl.expired(Timestamp(18)).is_empty());
        assert_eq!(ttl.expired(Timestamp(26)), [3]);
    }

    #[test]
    fn a_step_of_another_time_to_live_is_as_old_as_it_was() {
        let step = TimeToLive::new(160).step(Timestamp(57));
        let mut ttl = TimeToLive::new(320);
        ttl.touch(0, step);
        assert!(ttl.expired(Timestamp(389)).is_empty());
        assert_eq!(ttl.expired(Timestamp(390)), [0], "50, a step of 20, and the time to live");
    }
}
