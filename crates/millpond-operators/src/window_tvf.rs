//! WindowTvf: TUMBLE, HOP and CUMULATE without an aggregate over them.
//!
//! No state. Appends window_start, window_end and window_time to each row; HOP and CUMULATE
//! repeat a row for every window in which it lies. Kinds and late tags go along. Output is made a batch at a time,
//! so that one row in ten thousand windows stays within bounds.

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::datatypes::SchemaRef;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, EpochTime, Error, Result, Watermark};
use millpond_state::StateTable;

use crate::operator::*;
use crate::window::{WINDOW_TIME_MAX, WindowSpec, bounds, window_times};

/// The physical description of a window table function.
#[derive(Debug, Clone)]
pub struct WindowTvfFactory {
    /// The windows.
    pub window: WindowSpec,
    /// Index of the time column in the input.
    pub time_column: usize,
    /// Columns of the output: the input's, then window_start, window_end, window_time.
    pub schema: SchemaRef,
}

impl OperatorFactory for WindowTvfFactory {
    fn name(&self) -> &'static str {
        "WindowTvf"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, _context: BuildContext) -> Result<Box<dyn Operator>> {
        self.window.check()?;
        Ok(Box::new(WindowTvf { factory: self.clone(), pending: None }))
    }

    fn describe(&self) -> String {
        format!("window={} time={}", self.window, self.schema.field(self.time_column).name())
    }
}

struct WindowTvf {
    factory: WindowTvfFactory,
    pending: Option<Pending>,
}

/// A batch of which some windows are still to be said.
struct Pending {
    batch: ChangelogBatch,
    row: usize,
    /// The next window of the row; `None`: its first.
    end: Option<i64>,
}

/// A row in a window, per output row.
#[derive(Default)]
struct Assigned {
    rows: Vec<u32>,
    ends: Vec<i64>,
}

impl WindowTvf {
    fn assign_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let Some(mut pending) = self.pending.take() else { return Ok(Progress::Done) };
        let assigned = self.assign(ctx, &mut pending)?;
        if !assigned.rows.is_empty() {
            ctx.emit(self.output(&pending.batch, assigned)?);
        }
        if pending.row == pending.batch.num_rows() {
            return Ok(Progress::Done);
        }
        self.pending = Some(pending);
        Ok(Progress::More)
    }

    fn assign(&self, ctx: &OperatorContext, pending: &mut Pending) -> Result<Assigned> {
        let column = pending.batch.rows.column(self.factory.time_column);
        let (values, precision) = timestamp_values(column)?;
        let window = &self.factory.window;
        let mut assigned = Assigned::default();
        while pending.row < values.len() && assigned.rows.len() < BATCH_ROWS_MAX {
            let local = window.local(precision.to_timestamp(values[pending.row]).0);
            if column.is_null(pending.row) || local.unsigned_abs() >= WINDOW_TIME_MAX as u64 {
                ctx.metrics.rejected.add(1);
                pending.row += 1;
                continue;
            }
            let Some((first, last)) = window.ends(local) else {
                ctx.metrics.filtered.add(1);
                pending.row += 1;
                continue;
            };
            let mut end = pending.end.take().unwrap_or(first);
            while end <= last && assigned.rows.len() < BATCH_ROWS_MAX {
                assigned.rows.push(pending.row as u32);
                assigned.ends.push(end);
                end += window.slide();
            }
            if end <= last {
                pending.end = Some(end);
            } else {
                ctx.metrics.accepted.add(1);
                pending.row += 1;
            }
        }
        Ok(assigned)
    }

    fn output(&self, batch: &ChangelogBatch, assigned: Assigned) -> Result<ChangelogBatch> {
        let window = &self.factory.window;
        let time_type = batch.rows.column(self.factory.time_column).data_type().clone();
        let ends = || assigned.ends.iter().copied();
        let added: [ArrayRef; 3] = [
            bounds(ends().map(|end| window.start(end))),
            bounds(ends()),
            window_times(ends().map(|end| window.instant(end)), &time_type)?,
        ];
        let repeated = batch.take(&UInt32Array::from(assigned.rows))?;
        let columns = repeated.rows.columns().iter().cloned().chain(added).collect();
        let rows = RecordBatch::try_new(self.factory.schema.clone(), columns)
            .map_err(|error| Error::internal(format!("rows do not fit the output of WindowTvf: {error}")))?;
        Ok(repeated.replace_rows(rows))
    }
}

impl Operator for WindowTvf {
    fn touches(&self, _input: InputIndex, _batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(Vec::new())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        assert!(self.pending.is_none(), "a batch comes after the last one was said");
        self.pending = Some(Pending { batch, row: 0, end: None });
        self.assign_next(ctx)
    }

    fn end_epoch(
        &mut self,
        _ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.assign_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{AsArray, TimestampMillisecondArray};
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit, TimestampMillisecondType};
    use millpond_core::{KeyGroupRange, OperatorMetrics, RowKind, Timestamp};

    use crate::window::{WindowKind, window_fields};

    type Line = (RowKind, Timestamp, i64, i64, i64);

    fn run(kind: WindowKind, times: Vec<Option<i64>>) -> (Vec<Line>, [u64; 3]) {
        let time = DataType::Timestamp(TimeUnit::Millisecond, None);
        let mut fields = vec![Arc::new(Field::new("ts", time.clone(), true))];
        let input = Arc::new(Schema::new(fields.clone()));
        fields.extend(window_fields(&time));
        let window = WindowSpec { kind, offset: 0, time_zone: None };
        let factory = WindowTvfFactory { window, time_column: 0, schema: Arc::new(Schema::new(fields)) };
        let key_groups = KeyGroupRange::all(256);
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
        let mut operator = factory.build(context).unwrap();
        let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        let rows = times.len();
        let column: ArrayRef = Arc::new(TimestampMillisecondArray::from(times));
        let batch = RecordBatch::try_new(input, vec![column]).unwrap();
        let mut batch = ChangelogBatch::with_kinds(batch, vec![RowKind::Delete; rows]);
        batch.late = Some((0..rows as i64).map(Timestamp).collect());
        let mut lines = Vec::new();
        let mut progress = operator.process(&mut ctx, 0, batch).unwrap();
        loop {
            if let Some(out) = ctx.take_output() {
                assert!(out.num_rows() <= BATCH_ROWS_MAX);
                let time =
                    |i: usize, row| out.rows.column(i).as_primitive::<TimestampMillisecondType>().value(row);
                lines.extend(
                    (0..out.num_rows()).map(|row| {
                        (out.kind(row), out.late_tag(row), time(1, row), time(2, row), time(3, row))
                    }),
                );
            }
            if progress == Progress::Done {
                break;
            }
            progress = operator.resume(&mut ctx).unwrap();
        }
        let metrics = &ctx.metrics;
        (lines, [&metrics.accepted, &metrics.rejected, &metrics.filtered].map(|counter| counter.value()))
    }

    #[test]
    fn each_row_comes_once_per_window_with_its_kind_and_tag() {
        let hop = WindowKind::Hop { size: 10_000, slide: 5_000 };
        let (lines, counts) = run(hop, vec![Some(-1), None, Some(7)]);
        let d = RowKind::Delete;
        assert_eq!(
            lines,
            [
                (d, Timestamp(0), -10, 0, -1),
                (d, Timestamp(0), -5, 5, 4),
                (d, Timestamp(2), 0, 10, 9),
                (d, Timestamp(2), 5, 15, 14),
            ]
        );
        assert_eq!(counts, [2, 1, 0]);
        let gaps = WindowKind::Hop { size: 2_000, slide: 5_000 };
        assert_eq!(run(gaps, vec![Some(1), Some(3)]).1, [1, 0, 1]);
    }

    #[test]
    fn a_row_in_many_windows_comes_in_bounded_batches() {
        let hop = WindowKind::Hop { size: 20_000_000, slide: 1_000 };
        let (lines, counts) = run(hop, vec![Some(0), Some(1)]);
        assert_eq!((lines.len(), counts), (40_000, [2, 0, 0]));
    }
}
