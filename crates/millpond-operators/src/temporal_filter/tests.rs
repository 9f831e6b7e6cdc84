//! Tests of `temporal_filter`.

use super::*;

use arrow::array::{StringArray, TimestampMillisecondArray};
use arrow::datatypes::{Schema, TimeUnit};
use millpond_core::{ErrorKind, KeyGroupRange, OperatorMetrics};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };
const S: i64 = 1_000_000;

fn factory(bounds: Vec<TimeBound>, input_mode: ChangelogMode) -> TemporalFilterFactory {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let schema =
        Arc::new(Schema::new(vec![Field::new("k", DataType::Utf8, true), Field::new("ts", time, true)]));
    TemporalFilterFactory {
        bounds,
        key: vec![1],
        output: vec![0, 1],
        input_schema: schema.clone(),
        schema,
        input_mode,
    }
}

fn bound(comparison: TimeComparison, shift: i64) -> TimeBound {
    TimeBound { column: 1, comparison, shift, unit: 1000 }
}

/// `ts > now - 10 s`.
fn last_ten_seconds(mode: ChangelogMode) -> TemporalFilterFactory {
    factory(vec![bound(TimeComparison::After, -10 * S)], mode)
}

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(factory: &TemporalFilterFactory) -> Self {
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let operator = factory.build(context).unwrap();
        Self { operator, ctx: OperatorContext::new(Arc::new(OperatorMetrics::default())) }
    }

    /// Rows as (kind, k, ts in seconds).
    fn rows(&mut self, rows: &[(RowKind, &str, Option<i64>)]) -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(TimestampMillisecondArray::from_iter(rows.iter().map(|row| row.2.map(|s| s * 1000)))),
        ];
        let schema = factory(Vec::new(), ChangelogMode::Append).schema;
        let kinds: Vec<RowKind> = rows.iter().map(|row| row.0).collect();
        let batch = ChangelogBatch::with_kinds(RecordBatch::try_new(schema, columns).unwrap(), kinds);
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch)?, Progress::Done);
        Ok(())
    }

    /// Ends the epoch at a time in seconds: what is said, and when to wake.
    fn end(&mut self, seconds: i64) -> (Vec<String>, Option<i64>) {
        let time = Timestamp(seconds * S);
        let outcome = self.operator.end_epoch(&mut self.ctx, None, time).unwrap();
        let mut said = Vec::new();
        let mut progress = outcome.progress;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.num_rows() <= BATCH_ROWS_MAX);
                let names = batch.rows.column(0).as_string::<i32>().clone();
                said.extend(
                    (0..batch.num_rows())
                        .map(|row| format!("{}{}", batch.kind(row).symbol(), names.value(row))),
                );
            }
            if progress == Progress::Done {
                break;
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
        self.ctx.time = time;
        (said, outcome.wake_at.map(|time| time.0 / S))
    }

    fn restored(&mut self, factory: &TemporalFilterFactory) -> Self {
        let rows = self.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts;
        let mut task = Self::new(factory);
        task.operator.tables()[0].load(&rows, ALL).unwrap();
        task.operator.restored(None).unwrap();
        task
    }
}

const I: RowKind = RowKind::Insert;
const D: RowKind = RowKind::Delete;

#[test]
fn rows_leave_as_time_passes() {
    let factory = last_ten_seconds(ChangelogMode::Append);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(100)), (I, "b", Some(95)), (I, "old", Some(90)), (I, "null", None)]).unwrap();
    assert_eq!(task.end(100), (vec!["+Ia".into(), "+Ib".into()], Some(105)));
    assert_eq!(task.end(104), (vec![], Some(105)));
    let mut task = task.restored(&factory);
    assert_eq!(task.end(105), (vec!["-Db".into()], Some(110)));
    assert_eq!(task.end(200), (vec!["-Da".into()], None));
    assert_eq!(task.operator.tables()[0].rows(), 0);
}

#[test]
fn rows_enter_when_their_time_has_come() {
    let factory = factory(vec![bound(TimeComparison::AtOrBefore, 0)], ChangelogMode::Append);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "now", Some(50)), (I, "later", Some(60))]).unwrap();
    assert_eq!(task.end(50), (vec!["+Inow".into()], Some(60)));
    assert_eq!(task.operator.tables()[0].rows(), 1, "what never leaves is not kept");
    let mut task = task.restored(&factory);
    assert_eq!(task.end(61), (vec!["+Ilater".into()], None));
    assert_eq!(task.operator.tables()[0].rows(), 0);
}

#[test]
fn a_span_that_is_over_before_it_is_seen_says_nothing() {
    let bounds = vec![bound(TimeComparison::After, -10 * S), bound(TimeComparison::Before, 0)];
    let mut task = Task::new(&factory(bounds, ChangelogMode::Append));
    task.rows(&[(I, "a", Some(100))]).unwrap();
    assert_eq!(task.end(100), (vec![], Some(100)));
    assert_eq!(task.end(200), (vec![], None));
}

#[test]
fn what_is_taken_back_was_given() {
    let factory = last_ten_seconds(ChangelogMode::Retract);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(100)), (I, "b", Some(100)), (I, "c", Some(100)), (D, "c", Some(100))]).unwrap();
    assert_eq!(task.end(100).0, ["+Ia", "+Ib"]);
    let mut task = task.restored(&factory);
    task.rows(&[(D, "a", Some(100))]).unwrap();
    assert_eq!(task.end(101).0, ["-Da"]);
    assert_eq!(task.end(111).0, ["-Db"]);
    task.rows(&[(D, "b", Some(100))]).unwrap();
    assert!(task.end(112).0.is_empty(), "it had left already");
    assert_eq!(task.rows(&[(D, "x", Some(112))]).unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn a_day_is_a_unit() {
    let day = 86_400 * S;
    let at = |days: i64| Timestamp(days * day);
    let today = TimeBound { column: 0, comparison: TimeComparison::At, shift: 0, unit: day };
    assert_eq!(today.span(at(3)), (at(3), at(4)));
    let since_yesterday = TimeBound { comparison: TimeComparison::AtOrAfter, shift: -day, ..today };
    assert_eq!(since_yesterday.span(at(3)).1, at(5));
    let after = TimeBound { comparison: TimeComparison::After, ..today };
    assert_eq!(
        after.span(Timestamp(at(3).0 + 1)).1,
        at(4),
        "today begins before that moment and ends after it"
    );
    let never = today.span(Timestamp(at(3).0 + 1));
    assert!(never.0 >= never.1, "no midnight is at that moment");
}

#[test]
fn many_rows_leave_in_bounded_batches() {
    let mut task = Task::new(&last_ten_seconds(ChangelogMode::Append));
    let rows: Vec<(RowKind, &str, Option<i64>)> = (0..20_000).map(|_| (I, "a", Some(5))).collect();
    task.rows(&rows).unwrap();
    assert_eq!(task.end(5).0.len(), 20_000);
    assert_eq!(task.end(50).0.len(), 20_000);
}
