//! Retention: how the watermark bounds the state of a join.
//!
//! A row of a side can be dropped when no acceptable row of the other side can match it any more,
//! and a row is late when its own side would have dropped it already. Both follow from the rows'
//! times and tags alone, so the pairs of all accepted rows are exact (invariant 1), whatever the
//! epochs, batches and chunks:
//!
//! ```text
//! interval   late: time + max(keep, 0) ≤ W       dropped: time + keep + max(other's keep, 0) ≤ W
//! window     late: last instant of window ≤ W    dropped: the same
//! ```
//!
//! W is the watermark in force and, for lateness, the row's tag if that is larger.

use arrow::array::{Array, BooleanArray};
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, Result, TimePrecision, Timestamp, Watermark};

/// By what the rows of each side become useless; `None`: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JoinRetention {
    /// Of the left side.
    pub left: Option<SideRetention>,
    /// Of the right side.
    pub right: Option<SideRetention>,
}

/// By what the rows of one side become useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideRetention {
    /// The join predicate lets a row match only rows of the other side whose time is at most
    /// `keep` microseconds after its own (negative: before its own).
    Interval {
        /// The side's time column.
        column: usize,
        /// Microseconds.
        keep: i64,
    },
    /// The key contains the end of a window.
    Window {
        /// The side's column of (exclusive) window ends.
        column: usize,
    },
}

impl SideRetention {
    /// The column whose values decide.
    pub fn column(self) -> usize {
        match self {
            Self::Interval { column, .. } | Self::Window { column } => column,
        }
    }

    /// How long after a row's time a row of the other side may still match, at least 0.
    pub(super) fn slack(self) -> i64 {
        match self {
            Self::Interval { keep, .. } => keep.max(0),
            Self::Window { .. } => 0,
        }
    }

    /// The largest time that can be dropped at a watermark, if the other side accepts rows that
    /// are `other_slack` behind it.
    pub(super) fn expired_through(
        self,
        watermark: Watermark,
        precision: TimePrecision,
        other_slack: i64,
    ) -> Timestamp {
        match self {
            Self::Interval { keep, .. } => {
                if watermark == Timestamp::MAX {
                    return watermark;
                }
                Timestamp(watermark.0.saturating_sub(keep).saturating_sub(other_slack))
            }
            Self::Window { .. } => after_last_instant(watermark, precision),
        }
    }

    /// Whether a row with this time is late at a watermark.
    fn is_late(self, time: Timestamp, precision: TimePrecision, watermark: Watermark) -> bool {
        match self {
            Self::Interval { .. } => time.saturating_add(self.slack()) <= watermark,
            Self::Window { .. } => precision.last_instant(time) <= watermark,
        }
    }
}

/// The largest window end that is final: `last_instant` turned around.
fn after_last_instant(watermark: Watermark, precision: TimePrecision) -> Timestamp {
    let unit = -precision.last_instant(Timestamp(0)).0;
    watermark.saturating_add(unit)
}

/// Which rows are not late; `None`: all of them.
///
/// A side without a retention, joined with one that has, accepts no tagged row: nobody could say
/// which of its partners are still there.
pub(super) fn in_time(
    batch: &ChangelogBatch,
    own: Option<SideRetention>,
    other: Option<SideRetention>,
    watermark: Option<Watermark>,
) -> Result<Option<BooleanArray>> {
    match own {
        Some(own) => in_time_of(batch, own, watermark.unwrap_or(Timestamp::MIN)),
        None if other.is_some() && batch.late.is_some() => {
            let untagged = |row: usize| Some(batch.late_tag(row) == Timestamp::MIN);
            Ok(Some((0..batch.num_rows()).map(untagged).collect()))
        }
        None => Ok(None),
    }
}

fn in_time_of(
    batch: &ChangelogBatch,
    own: SideRetention,
    watermark: Watermark,
) -> Result<Option<BooleanArray>> {
    let column = batch.rows.column(own.column());
    let (values, precision) = timestamp_values(column)?;
    let late = |row: usize| {
        let watermark = watermark.max(batch.late_tag(row));
        column.is_valid(row) && own.is_late(precision.to_timestamp(values[row]), precision, watermark)
    };
    if !(0..values.len()).any(late) {
        return Ok(None);
    }
    Ok(Some((0..values.len()).map(|row| Some(!late(row))).collect()))
}

impl JoinRetention {
    /// How far behind the incoming watermark a row of the output may be.
    pub(super) fn hold_back(self) -> i64 {
        let slack = |side: Option<SideRetention>| side.map_or(0, SideRetention::slack);
        slack(self.left).saturating_add(slack(self.right))
    }
}
