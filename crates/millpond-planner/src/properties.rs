//! What is known of a stream's columns beside names and types.
//!
//! Facts are derived bottom-up over the optimised plan, by column index; no rule can lose them.

use chrono_tz::Tz;
use millpond_core::{ChangelogMode, TimePrecision};

use crate::stream_plan::{ChangeKinds, NodeKind};
use crate::window_relation::WindowShape;

/// Windows that a stream's rows belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) shape: WindowShape,
    /// Of the time column: windows are final one unit before their end.
    pub(crate) precision: TimePrecision,
    /// For windows over TIMESTAMP_LTZ: in whose local time they are cut.
    pub(crate) time_zone: Option<Tz>,
}

/// What a column means to event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Plain,
    /// The time attribute: rows behind the watermark are late.
    EventTime,
    /// The time of the epoch in which the row came: PROCTIME().
    ProcessingTime,
    /// Starts, in local time, of windows that end with, and are emitted before, the watermark.
    WindowStart(Windows),
    /// Ends of windows, in local time.
    WindowEnd(Windows),
    /// One unit before the ends of windows: again a time attribute.
    WindowTime(Windows),
}

impl Role {
    /// Whether windows, intervals and OVER may refer to the column.
    pub(crate) fn is_time_attribute(self) -> bool {
        match self {
            Role::EventTime | Role::WindowTime(_) => true,
            Role::Plain | Role::ProcessingTime | Role::WindowStart(_) | Role::WindowEnd(_) => false,
        }
    }

    /// Whether later rows have larger values than the watermark: a time attribute or a window's
    /// end, unless that is in a local time which is not the watermark's.
    pub(crate) fn follows_watermark(self) -> bool {
        match self {
            Role::EventTime | Role::WindowTime(_) => true,
            Role::WindowEnd(windows) => windows.time_zone.is_none(),
            Role::Plain | Role::ProcessingTime | Role::WindowStart(_) => false,
        }
    }

    /// The windows that the column belongs to.
    pub(crate) fn windows(self) -> Option<Windows> {
        match self {
            Role::WindowStart(windows) | Role::WindowEnd(windows) | Role::WindowTime(windows) => {
                Some(windows)
            }
            Role::Plain | Role::EventTime | Role::ProcessingTime => None,
        }
    }
}

/// The upsert keys whose columns all survive, at their new places.
pub(crate) fn surviving_keys(keys: &[Vec<usize>], place: impl Fn(usize) -> Option<usize>) -> Vec<Vec<usize>> {
    keys.iter().filter_map(|key| key.iter().map(|column| place(*column)).collect()).collect()
}

/// The kinds of changes that a node gives, from those of its inputs.
pub(crate) fn kinds_of(node: &NodeKind, mode: ChangelogMode, inputs: &[ChangeKinds]) -> ChangeKinds {
    let every = ChangeKinds { updates: true, deletes: true };
    let of_inputs = ChangeKinds {
        updates: inputs.iter().any(|input| input.updates),
        deletes: inputs.iter().any(|input| input.deletes),
    };
    if mode == ChangelogMode::Append {
        return ChangeKinds::default();
    }
    match node {
        NodeKind::Source { .. } | NodeKind::Rows { .. } => every,
        NodeKind::Exchange(_) | NodeKind::Sink(_) | NodeKind::Client => of_inputs,
        NodeKind::Operator(factory) => match factory.name() {
            "Calc" | "Remember" | "Union" => of_inputs,
            // A group of rows that only come is never empty again.
            "GroupAggregate" => ChangeKinds { updates: true, deletes: of_inputs != ChangeKinds::default() },
            // A pair, or a row in its session, comes or goes; it is never said to have changed.
            "Join" | "SessionWindow" => ChangeKinds { updates: false, deletes: true },
            _ => every,
        },
    }
}

/// The mode of rows from several changelogs.
pub(crate) fn joint_mode(modes: impl IntoIterator<Item = ChangelogMode>) -> ChangelogMode {
    match modes.into_iter().all(|mode| mode == ChangelogMode::Append) {
        true => ChangelogMode::Append,
        false => ChangelogMode::Retract,
    }
}
