//! ProcessingTime: makes the time of each epoch the watermark, for windows over PROCTIME().
//!
//! No state. A row's PROCTIME() is the time of its epoch, which never goes back; so after an epoch
//! at time `t` every time before `t` is complete, and the watermark is one unit before `t`: a
//! window ends with the first epoch at or after its end. Rows lose their late tags: those speak of
//! another time.
//!
//! So that windows end on quiet input too, `wake_at` asks for an epoch at each moment at which a
//! window of the rows seen so far may end. At the end of the input, when no further row can come,
//! the watermark is +∞ and the last windows end.

use std::collections::BTreeSet;

use arrow::datatypes::SchemaRef;
use chrono_tz::Tz;
use millpond_core::{ChangelogBatch, EpochTime, Result, TimePrecision, Timestamp, Watermark};
use millpond_state::StateTable;

use crate::operator::*;
use crate::window::{instant_of, local_of};

/// The physical description of the change to processing time.
#[derive(Debug, Clone)]
pub struct ProcessingTimeFactory {
    /// The columns, which pass unchanged.
    pub schema: SchemaRef,
    /// Name of the column that is the time from here on.
    pub column: String,
    /// The precision of that column.
    pub precision: TimePrecision,
    /// When windows may end after a row has come.
    pub ends: WindowEnds,
}

/// When the windows of a row may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowEnds {
    /// At the multiples of `step` (from `offset` on) that follow the row, up to `size` after it;
    /// in microseconds.
    Grid {
        /// Distance of the ends.
        step: i64,
        /// Where the grid lies relative to 1970-01-01.
        offset: i64,
        /// Length of the longest window.
        size: i64,
        /// In whose local time the grid lies; `None`: UTC.
        time_zone: Option<Tz>,
    },
    /// So many microseconds after it.
    After(i64),
}

impl WindowEnds {
    /// The ends after a row that came at `time`; no more than a few.
    fn after(self, time: Timestamp) -> Vec<Timestamp> {
        match self {
            WindowEnds::After(gap) => vec![time.saturating_add(gap)],
            WindowEnds::Grid { step, offset, size, time_zone } => {
                let local = local_of(time, time_zone).0;
                let first = (local - offset).div_euclid(step).saturating_add(1) * step + offset;
                (0..)
                    .map(|number: i64| first.saturating_add(number.saturating_mul(step)))
                    .take_while(|end| *end <= local.saturating_add(size))
                    .take(ENDS_MAX)
                    .map(|end| instant_of(Timestamp(end), time_zone))
                    .collect()
            }
        }
    }
}

/// Ends that are remembered of one row: those behind come up again when an epoch has passed.
const ENDS_MAX: usize = 4;

impl OperatorFactory for ProcessingTimeFactory {
    fn name(&self) -> &'static str {
        "ProcessingTime"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, _context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(ProcessingTime {
            ends: self.ends,
            precision: self.precision,
            wake: BTreeSet::new(),
            last_row: None,
            restored: false,
        }))
    }

    fn describe(&self) -> String {
        format!("time={}", self.column)
    }
}

/// One task's change to processing time.
struct ProcessingTime {
    ends: WindowEnds,
    precision: TimePrecision,
    wake: BTreeSet<Timestamp>,
    /// The time of the last row.
    last_row: Option<Timestamp>,
    /// Windows of before the restart may still be open.
    restored: bool,
}

impl ProcessingTime {
    fn next_wake(&mut self, time: EpochTime) -> Option<Timestamp> {
        if std::mem::take(&mut self.restored) {
            self.last_row = Some(time);
            self.wake.extend(self.ends.after(time));
        }
        self.wake = self.wake.split_off(&time.saturating_add(1));
        if self.wake.is_empty()
            && let WindowEnds::Grid { step, offset, size, time_zone } = self.ends
            && let Some(last_row) = self.last_row
        {
            let left = last_row.0.saturating_add(size).saturating_sub(time.0);
            let rest = WindowEnds::Grid { step, offset, size: left, time_zone };
            self.wake.extend(if left > 0 { rest.after(time) } else { Vec::new() });
        }
        self.wake.first().copied()
    }
}

impl Operator for ProcessingTime {
    fn touches(&self, _input: InputIndex, _batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        mut batch: ChangelogBatch,
    ) -> Result<Progress> {
        batch.late = None;
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        if self.last_row != Some(ctx.time) && !batch.is_empty() {
            self.last_row = Some(ctx.time);
            self.wake.extend(self.ends.after(ctx.time));
        }
        ctx.emit(batch);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        _ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        let watermark = match watermark {
            Some(Timestamp::MAX) => Timestamp::MAX,
            _ => self.precision.last_instant(time),
        };
        let wake_at = self.next_wake(time);
        Ok(EpochOutcome { watermark: Some(watermark), wake_at, progress: Progress::Done })
    }

    fn resume(&mut self, _ctx: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        self.restored = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use millpond_core::{KeyGroupRange, OperatorMetrics};

    const S: i64 = 1_000_000;

    struct Task {
        operator: Box<dyn Operator>,
        ctx: OperatorContext,
        schema: SchemaRef,
    }

    impl Task {
        fn new(ends: WindowEnds) -> Self {
            let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, false)]));
            let factory = ProcessingTimeFactory {
                schema: schema.clone(),
                column: "pt".into(),
                precision: TimePrecision::Millisecond,
                ends,
            };
            let key_groups = KeyGroupRange::all(256);
            let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
            let ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
            Self { operator: factory.build(context).unwrap(), ctx, schema }
        }

        /// An epoch at a time in seconds, with a row or without: when to wake, in seconds.
        fn epoch(&mut self, seconds: i64, row: bool) -> Option<i64> {
            self.ctx.time = Timestamp(seconds * S);
            if row {
                let column = Arc::new(Int64Array::from(vec![1]));
                let rows = RecordBatch::try_new(self.schema.clone(), vec![column]).unwrap();
                let mut batch = ChangelogBatch::append(rows);
                batch.late = Some([Timestamp(5)].into());
                self.operator.process(&mut self.ctx, 0, batch).unwrap();
                assert!(self.ctx.take_output().unwrap().late.is_none());
            }
            let outcome = self.operator.end_epoch(&mut self.ctx, None, Timestamp(seconds * S)).unwrap();
            assert_eq!(outcome.watermark, Some(Timestamp(seconds * S - 1000)));
            outcome.wake_at.map(|time| time.0 / S)
        }
    }

    #[test]
    fn tumbling_windows_wake_at_their_ends() {
        let mut task = Task::new(WindowEnds::Grid { step: 10 * S, offset: 0, size: 10 * S, time_zone: None });
        assert_eq!(task.epoch(3, false), None);
        assert_eq!(task.epoch(3, true), Some(10));
        assert_eq!(task.epoch(10, true), Some(20));
        assert_eq!(task.epoch(20, false), None);
    }

    #[test]
    fn overlapping_windows_wake_at_every_end() {
        let mut task = Task::new(WindowEnds::Grid { step: 2 * S, offset: S, size: 20 * S, time_zone: None });
        assert_eq!(task.epoch(0, true), Some(1));
        let mut wakes = vec![1];
        while let Some(next) = task.epoch(*wakes.last().unwrap(), false) {
            wakes.push(next);
        }
        assert_eq!(wakes, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
    }

    #[test]
    fn sessions_wake_when_they_may_be_over_and_a_restart_forgets_none() {
        let mut task = Task::new(WindowEnds::After(5 * S));
        assert_eq!(task.epoch(1, true), Some(6));
        assert_eq!(task.epoch(3, true), Some(6));
        assert_eq!(task.epoch(6, false), Some(8));
        let mut task = Task::new(WindowEnds::After(5 * S));
        task.operator.restored(None).unwrap();
        assert_eq!(task.epoch(7, false), Some(12));
        assert_eq!(task.epoch(12, false), None);
    }

    #[test]
    fn the_end_of_the_input_ends_all_windows() {
        let mut task = Task::new(WindowEnds::After(5 * S));
        let outcome = task.operator.end_epoch(&mut task.ctx, Some(Timestamp::MAX), Timestamp(S)).unwrap();
        assert_eq!(outcome.watermark, Some(Timestamp::MAX));
    }
}
