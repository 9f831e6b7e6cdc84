//! Tests of `session_window`: random changes against sessions that are found anew after each epoch.

use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{Field, Int64Type, Schema, TimeUnit, TimestampMillisecondType};
use millpond_core::random::Random;
use millpond_core::{KeyGroupRange, OperatorMetrics, RowKinds};

use crate::window::window_fields;

/// Time in ms, key, value.
type Row = (Option<i64>, i64, i64);

/// A row with the bounds of its session in ms.
type Line = (i64, i64, i64, i64, i64);

fn factory(gap: i64, ttl: Option<i64>) -> SessionWindowFactory {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let integer = |name: &str| Arc::new(Field::new(name, DataType::Int64, true));
    let mut fields = vec![Arc::new(Field::new("ts", time.clone(), true)), integer("k"), integer("v")];
    let input_schema = Arc::new(Schema::new(fields.clone()));
    fields.extend(window_fields(&time));
    SessionWindowFactory {
        gap: gap * 1000,
        time_zone: None,
        time_column: 0,
        partition: vec![1],
        ttl,
        input_schema,
        schema: Arc::new(Schema::new(fields)),
    }
}

/// An operator, and what its consumer has.
struct Task {
    factory: SessionWindowFactory,
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
    shown: BTreeMap<Line, i64>,
    said: usize,
}

impl Task {
    fn new(factory: SessionWindowFactory) -> Self {
        let key_groups = KeyGroupRange::all(256);
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
        let ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        let operator = factory.build(context).unwrap();
        Self { operator, ctx, factory, shown: BTreeMap::new(), said: 0 }
    }

    fn changes(&mut self, changes: &[(RowKind, Row)]) -> Result<Progress> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(changes.iter().map(|(_, row)| row.0).collect::<TimestampMillisecondArray>()),
            Arc::new(Int64Array::from_iter_values(changes.iter().map(|(_, row)| row.1))),
            Arc::new(Int64Array::from_iter_values(changes.iter().map(|(_, row)| row.2))),
        ];
        let rows = RecordBatch::try_new(self.factory.input_schema.clone(), columns).unwrap();
        let kinds: RowKinds = changes.iter().map(|(kind, _)| *kind).collect();
        self.operator.process(&mut self.ctx, 0, ChangelogBatch::with_kinds(rows, kinds))
    }

    /// Ends an epoch; the consumer takes what is said, which must fit what it has.
    fn end(&mut self) -> Option<Timestamp> {
        let time = self.ctx.time;
        let outcome = self.operator.end_epoch(&mut self.ctx, None, time).unwrap();
        let mut progress = outcome.progress;
        self.said = 0;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.num_rows() <= BATCH_ROWS_MAX);
                self.said += batch.num_rows();
                (0..batch.num_rows()).for_each(|row| self.take(line(&batch.rows, row), batch.kind(row)));
            }
            if progress == Progress::Done {
                break;
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
        outcome.wake_at
    }

    fn take(&mut self, line: Line, kind: RowKind) {
        let count = self.shown.entry(line).or_insert(0);
        *count += if kind.is_addition() { 1 } else { -1 };
        assert!(*count >= 0, "{line:?} is taken back and is not there");
        if *count == 0 {
            self.shown.remove(&line);
        }
    }

    /// The same task after a restart from a snapshot.
    fn restarted(mut self) -> Self {
        let mut next = Self::new(self.factory.clone());
        for (old, new) in self.operator.tables().into_iter().zip(next.operator.tables()) {
            let delta = old.freeze_all().unwrap().into_delta().unwrap();
            new.load(&delta.upserts, KeyGroupRange::all(256)).unwrap();
        }
        next.operator.restored(None).unwrap();
        (next.shown, next.ctx.time) = (self.shown, self.ctx.time);
        next
    }
}

fn line(rows: &RecordBatch, row: usize) -> Line {
    let time = |column: usize| rows.column(column).as_primitive::<TimestampMillisecondType>().value(row);
    let integer = |column: usize| rows.column(column).as_primitive::<Int64Type>().value(row);
    assert_eq!(time(5), time(4) - 1, "window_time is one unit before the end");
    (time(0), integer(1), integer(2), time(3), time(4))
}

/// Every row with its session, found by sorting.
fn model(rows: &[Row], gap: i64) -> BTreeMap<Line, i64> {
    let mut by_key: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    for (time, key, value) in rows {
        if let Some(time) = time {
            by_key.entry(*key).or_default().push((*time, *value));
        }
    }
    let mut lines = BTreeMap::new();
    for (key, mut rows) in by_key {
        rows.sort_unstable();
        for session in rows.chunk_by(|(before, _), (after, _)| after - before <= gap) {
            let (start, end) = (session[0].0, session[session.len() - 1].0 + gap);
            for (time, value) in session {
                *lines.entry((*time, key, *value, start, end)).or_insert(0) += 1;
            }
        }
    }
    lines
}

#[test]
fn each_row_has_its_session_after_every_epoch() {
    for seed in 0..60 {
        let mut random = Random::seeded(seed);
        let gap = 1 + random.below(6) as i64;
        let mut task = Task::new(factory(gap, None));
        let mut rows: Vec<Row> = Vec::new();
        for _ in 0..25 {
            for _ in 0..random.below(3) {
                let mut changes = Vec::new();
                for _ in 0..random.below(6) {
                    if random.below(3) == 0 && !rows.is_empty() {
                        let row = rows.swap_remove(random.below(rows.len() as u64) as usize);
                        changes.push((RowKind::Delete, row));
                    } else {
                        let time = (random.below(12) > 0).then(|| random.below(40) as i64 - 20);
                        let row = (time, random.below(3) as i64, random.below(2) as i64);
                        rows.push(row);
                        changes.push((RowKind::Insert, row));
                    }
                }
                task.changes(&changes).unwrap();
            }
            task.end();
            assert_eq!(task.shown, model(&rows, gap), "seed {seed}, gap {gap}, rows {rows:?}");
            if random.below(4) == 0 {
                task = task.restarted();
            }
        }
    }
}

#[test]
fn only_the_neighbourhood_of_a_change_is_said_again() {
    let mut task = Task::new(factory(5, None));
    let rows: Vec<(RowKind, Row)> =
        (0..1000).map(|row| (RowKind::Insert, (Some(row * 10), 1, row))).collect();
    task.changes(&rows).unwrap();
    task.end();
    assert_eq!(task.said, 1000);
    task.changes(&[(RowKind::Insert, (Some(5005), 1, -1))]).unwrap();
    task.end();
    assert_eq!(task.said, 2 + 3, "two sessions are one, with a row more");
    task.changes(&[(RowKind::Delete, (Some(5005), 1, -1)), (RowKind::Insert, (Some(5005), 1, -1))]).unwrap();
    task.end();
    assert_eq!(task.said, 2, "an equal row in place of the first");
}

#[test]
fn more_than_a_batch_is_said_in_several() {
    let mut task = Task::new(factory(5, None));
    let rows: Vec<(RowKind, Row)> = (0..8000).map(|row| (RowKind::Insert, (Some(row), 1, row))).collect();
    task.changes(&rows).unwrap();
    task.changes(&rows).unwrap();
    task.end();
    assert_eq!(task.said, 16_000);
    task.changes(&[(RowKind::Insert, (Some(8000), 1, 0))]).unwrap();
    task.end();
    assert_eq!(task.said, 32_001, "the session has another end");
}

#[test]
fn what_was_never_there_is_not_taken_back() {
    let mut task = Task::new(factory(5, None));
    task.changes(&[(RowKind::Insert, (Some(1), 1, 1))]).unwrap();
    task.end();
    let error = task.changes(&[(RowKind::Delete, (Some(1), 1, 2))]).unwrap_err();
    assert!(error.to_string().contains("meets no row"), "{error}");
}

#[test]
fn a_partition_that_nothing_changes_is_forgotten_without_a_word() {
    let mut task = Task::new(factory(5, Some(160)));
    task.ctx.time = Timestamp(0);
    task.changes(&[(RowKind::Insert, (Some(1), 1, 1)), (RowKind::Insert, (Some(1), 2, 1))]).unwrap();
    let wake_at = task.end();
    assert_eq!(wake_at, Some(Timestamp(170)));
    task.ctx.time = Timestamp(100);
    task.changes(&[(RowKind::Insert, (Some(3), 2, 1))]).unwrap();
    task.end();
    task = task.restarted();
    task.ctx.time = Timestamp(170);
    task.end();
    assert_eq!(task.said, 0);
    task.changes(&[(RowKind::Delete, (Some(1), 1, 1)), (RowKind::Delete, (Some(1), 2, 1))]).unwrap();
    task.end();
    assert_eq!(task.said, 2 + 1, "the session of key 2 is another now");
    assert_eq!([&task.ctx.metrics.rejected, &task.ctx.metrics.accepted].map(|count| count.value()), [1, 1]);
    assert_eq!(task.operator.tables()[0].rows(), 1);
}
