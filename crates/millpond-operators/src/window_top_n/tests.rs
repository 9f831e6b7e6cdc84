//! Tests of `window_top_n`.

use super::*;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use millpond_core::{ChangelogMode, KeyGroupRange, OperatorMetrics};

use crate::top_n::{RankFunction, RankRange, SortColumn};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

fn factory() -> WindowTopNFactory {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let fields = vec![Field::new("window_end", time, true), Field::new("v", DataType::Int64, true)];
    let input_schema = Arc::new(Schema::new(fields.clone()));
    let rank = Field::new("rn", DataType::Int64, false);
    let schema = Arc::new(Schema::new(fields.into_iter().chain([rank]).collect::<Vec<_>>()));
    WindowTopNFactory {
        spec: RankSpec {
            function: RankFunction::RowNumber,
            partition: vec![0],
            order: vec![SortColumn { column: 1, descending: true, nulls_first: false }],
            latest_first: false,
            range: RankRange { first: 1, last: Some(2) },
            input_schema,
            input_mode: ChangelogMode::Append,
            ttl: None,
        },
        output: RankOutput { columns: vec![0, 1], emit_rank: true, schema },
        window_column: 0,
        bound: WindowBound::End(None),
        precision: TimePrecision::Millisecond,
    }
}

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new() -> Self {
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let operator = factory().build(context).unwrap();
        Self { operator, ctx: OperatorContext::new(Arc::new(OperatorMetrics::default())) }
    }

    /// Rows as (window end in ms, v, late tag in ms).
    fn rows(&mut self, rows: &[(Option<i64>, i64, Option<i64>)]) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(TimestampMillisecondArray::from_iter(rows.iter().map(|row| row.0))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        ];
        let mut batch =
            ChangelogBatch::append(RecordBatch::try_new(factory().spec.input_schema, columns).unwrap());
        let tags = rows.iter().map(|row| row.2.map_or(Timestamp::MIN, Timestamp::from_millis));
        batch.late = Some(tags.collect());
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch).unwrap(), Progress::Done);
    }

    /// Ends the epoch; window end, v and rank of what is emitted.
    fn end(&mut self, watermark_ms: i64) -> Vec<String> {
        let watermark = Some(Timestamp::from_millis(watermark_ms));
        let outcome = self.operator.end_epoch(&mut self.ctx, watermark, Timestamp(0)).unwrap();
        let mut said = Vec::new();
        let mut progress = outcome.progress;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.kinds.is_none());
                let value = |column: usize, row| {
                    arrow::util::display::array_value_to_string(batch.rows.column(column), row).unwrap()
                };
                said.extend(
                    (0..batch.num_rows())
                        .map(|row| format!("{} {} {}", &value(0, row)[17..], value(1, row), value(2, row))),
                );
            }
            if progress == Progress::Done {
                break;
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
        self.ctx.watermark = watermark;
        said
    }

    fn counts(&self) -> [u64; 3] {
        let metrics = &self.ctx.metrics;
        [&metrics.accepted, &metrics.late, &metrics.rejected].map(|counter| counter.value())
    }
}

#[test]
fn a_window_is_given_once_when_it_is_final() {
    let mut task = Task::new();
    let row = |end, v| (Some(end), v, None);
    task.rows(&[row(2000, 1), row(1000, 5), row(1000, 7), row(1000, 6)]);
    assert!(task.end(998).is_empty());
    task.rows(&[row(1000, 9)]);
    assert_eq!(task.end(999), ["01 9 1", "01 7 2"]);
    task.rows(&[row(1000, 10), (None, 1, None), (Some(2000), 3, Some(1999)), (Some(2000), 4, Some(1998))]);
    assert_eq!(task.end(5000), ["02 4 1", "02 1 2"]);
    assert_eq!(task.counts(), [6, 2, 1]);
    assert_eq!(task.operator.tables()[0].rows(), 0);
}

#[test]
fn open_windows_are_found_again_after_a_restart() {
    let mut task = Task::new();
    task.rows(&[(Some(1000), 1, None), (Some(2000), 2, None), (Some(3000), 3, None)]);
    assert_eq!(task.end(999), ["01 1 1"]);
    let rows = task.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts;
    assert_eq!(rows.num_rows(), 2);
    let mut task = Task::new();
    task.operator.tables()[0].load(&rows, ALL).unwrap();
    task.operator.restored(Some(Timestamp::from_millis(999))).unwrap();
    task.rows(&[(Some(2000), 5, None)]);
    assert_eq!(task.end(1999), ["02 5 1", "02 2 2"]);
    assert_eq!(task.end(9000), ["03 3 1"]);
}
