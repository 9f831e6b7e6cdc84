//! Admission: whether a checkpoint that is asked for may begin. One pure function, [`decide`].
//!
//! ```text
//! request ─▶ refused, with a reason (SHOW CHECKPOINTS shows it)
//!         ─▶ waits, until what is in its way has passed
//!         ─▶ begins
//! ```
//!
//!  1. After the last checkpoint of a job nothing begins.
//!  2. `checkpoint.trigger` binds automatic requests only: who asks gets a checkpoint.
//!  3. So does `checkpoint.min-pause`.
//!  4. No request overtakes `checkpoint.max-concurrent`.

use std::fmt;

use millpond_core::Timestamp;

use crate::coordinator::Trigger;

/// When automatic checkpoints are made (`checkpoint.trigger`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TriggerPolicy {
    /// Always.
    #[default]
    Always,
    /// From a moment of processing time on, or until one, or both.
    Between {
        /// The first moment.
        from: Option<Timestamp>,
        /// The first moment after it.
        until: Option<Timestamp>,
    },
    /// Once the job has been running for so many microseconds.
    After(i64),
    /// Never: only who asks gets one.
    Manual,
}

/// What a request meets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) now: Timestamp,
    /// When the job was started.
    pub(crate) started_at: Timestamp,
    pub(crate) policy: TriggerPolicy,
    /// Whether the last checkpoint of the job has begun.
    pub(crate) is_ending: bool,
    pub(crate) under_way: usize,
    pub(crate) concurrent_max: usize,
    /// Until when automatic requests pause after the last checkpoint.
    pub(crate) pause_ends: Option<Timestamp>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Begins,
    Waits(Wait),
    Refused(Refusal),
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A checkpoint under way.
    Completion,
    /// The end of the pause.
    Until(Timestamp),
}

/// Why no checkpoint begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The job is making its last checkpoint.
    Ending,
    /// `checkpoint.trigger` is MANUAL.
    Manual,
    /// `checkpoint.trigger` allows none before this time.
    NotYet(Timestamp),
    /// `checkpoint.trigger` allows none from this time on.
    Over(Timestamp),
    /// A request of the same kind waits already and will serve this one too.
    AlreadyWaits,
    /// The last one took so many microseconds; now they come in this interval.
    Stretched {
        /// How long the last one took.
        took: i64,
        /// The interval in which they are made now.
        interval: i64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = millpond_core::quantity::format_duration;
        match self {
            Refusal::Ending => f.write_str("the job is making its last checkpoint"),
            Refusal::Manual => f.write_str("'checkpoint.trigger' is MANUAL"),
            Refusal::NotYet(from) => write!(f, "'checkpoint.trigger' allows none before {from}"),
            Refusal::Over(until) => write!(f, "'checkpoint.trigger' allows none since {until}"),
            Refusal::AlreadyWaits => f.write_str("an earlier one still waits and serves for this one"),
            Refusal::Stretched { took, interval } => {
                let (took, interval) = (duration(millis(*took)), duration(millis(*interval)));
                write!(f, "the last one took {took}: the interval is stretched to {interval}")
            }
        }
    }
}

/// Whole milliseconds: finer is noise in a message.
fn millis(micros: i64) -> i64 {
    micros / 1_000 * 1_000
}

/// Whether a request begins, waits or is refused.
pub(crate) fn decide(trigger: Trigger, facts: &Facts) -> Verdict {
    if facts.is_ending {
        return Verdict::Refused(Refusal::Ending);
    }
    if let Some(refusal) = refused_by_policy(facts).filter(|_| trigger.is_automatic()) {
        return Verdict::Refused(refusal);
    }
    if facts.under_way >= facts.concurrent_max.max(1) {
        return Verdict::Waits(Wait::Completion);
    }
    match facts.pause_ends.filter(|ends| trigger.is_automatic() && facts.now < *ends) {
        Some(ends) => Verdict::Waits(Wait::Until(ends)),
        None => Verdict::Begins,
    }
}

fn refused_by_policy(facts: &Facts) -> Option<Refusal> {
    let (from, until) = match facts.policy {
        TriggerPolicy::Always => (None, None),
        TriggerPolicy::Manual => return Some(Refusal::Manual),
        TriggerPolicy::Between { from, until } => (from, until),
        TriggerPolicy::After(micros) => (Some(facts.started_at.saturating_add(micros)), None),
    };
    let early = from.filter(|from| facts.now < *from).map(Refusal::NotYet);
    let late = until.filter(|until| facts.now >= *until).map(Refusal::Over);
    early.or(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        now: Timestamp(100),
        started_at: Timestamp(50),
        policy: TriggerPolicy::Always,
        is_ending: false,
        under_way: 0,
        concurrent_max: 1,
        pause_ends: None,
    };
    const AUTOMATIC: [Trigger; 2] = [Trigger::Interval, Trigger::EveryRows];
    const ASKED: [Trigger; 6] = [
        Trigger::Manual,
        Trigger::External,
        Trigger::Savepoint,
        Trigger::EndOfInput,
        Trigger::Stop,
        Trigger::EveryEpoch,
    ];

    #[track_caller]
    fn check(facts: Facts, automatic: Verdict, asked: Verdict) {
        for trigger in AUTOMATIC {
            assert_eq!(decide(trigger, &facts), automatic, "{trigger:?} {facts:?}");
        }
        for trigger in ASKED {
            assert_eq!(decide(trigger, &facts), asked, "{trigger:?} {facts:?}");
        }
    }

    #[test]
    fn with_nothing_in_the_way_it_begins() {
        check(FACTS, Verdict::Begins, Verdict::Begins);
        check(Facts { under_way: 1, concurrent_max: 2, ..FACTS }, Verdict::Begins, Verdict::Begins);
        check(Facts { pause_ends: Some(Timestamp(100)), ..FACTS }, Verdict::Begins, Verdict::Begins);
    }

    #[test]
    fn nothing_follows_the_last_one() {
        let refused = Verdict::Refused(Refusal::Ending);
        check(Facts { is_ending: true, under_way: 1, ..FACTS }, refused, refused);
    }

    #[test]
    fn all_wait_for_room_and_automatic_ones_for_the_pause() {
        let full = Verdict::Waits(Wait::Completion);
        check(Facts { under_way: 1, ..FACTS }, full, full);
        check(Facts { under_way: 1, concurrent_max: 0, ..FACTS }, full, full);
        let pause = Facts { pause_ends: Some(Timestamp(101)), ..FACTS };
        check(pause, Verdict::Waits(Wait::Until(Timestamp(101))), Verdict::Begins);
    }

    #[test]
    fn the_policy_binds_automatic_ones_only() {
        let policy = |policy| Facts { policy, ..FACTS };
        let refused = Verdict::Refused;
        check(policy(TriggerPolicy::Manual), refused(Refusal::Manual), Verdict::Begins);
        let between = |from: Option<i64>, until: Option<i64>| {
            policy(TriggerPolicy::Between { from: from.map(Timestamp), until: until.map(Timestamp) })
        };
        check(between(Some(100), Some(101)), Verdict::Begins, Verdict::Begins);
        check(between(Some(101), None), refused(Refusal::NotYet(Timestamp(101))), Verdict::Begins);
        check(between(None, Some(100)), refused(Refusal::Over(Timestamp(100))), Verdict::Begins);
        check(policy(TriggerPolicy::After(50)), Verdict::Begins, Verdict::Begins);
        check(policy(TriggerPolicy::After(51)), refused(Refusal::NotYet(Timestamp(101))), Verdict::Begins);
    }
}
