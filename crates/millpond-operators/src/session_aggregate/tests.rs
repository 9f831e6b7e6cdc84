//! Tests of `session_aggregate`.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

use arrow::array::TimestampMillisecondArray;
use arrow::datatypes::{Schema, TimeUnit, TimestampMillisecondType};
use datafusion::physical_expr::expressions::col;
use millpond_core::{KeyGroupRange, OperatorMetrics};
use millpond_state::Delta;

use crate::aggregate::AggregateFunction;
use crate::window::bound_type;

fn input_schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new("ts", time, true),
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
    ]))
}

/// k, window_start, window_end, window_time, COUNT(*), SUM(v), MAX(v) and, if wanted,
/// COUNT(DISTINCT v); else COUNT(*) again.
fn factory(gap: i64, distinct: bool) -> SessionAggregateFactory {
    let input_schema = input_schema();
    let v = || vec![col("v", &input_schema).unwrap()];
    let call = |function, arguments, distinct, name: &str| AggregateCall {
        distinct,
        ..AggregateCall::new(function, arguments, name, DataType::Int64)
    };
    let aggregates = vec![
        call(AggregateFunction::CountStar, Vec::new(), false, "n"),
        call(AggregateFunction::Sum, v(), false, "sum"),
        call(AggregateFunction::Max, v(), false, "max"),
        match distinct {
            true => call(AggregateFunction::Count, v(), true, "distinct"),
            false => call(AggregateFunction::CountStar, Vec::new(), false, "distinct"),
        },
    ];
    let integer = |name: &str| Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![
        integer("k"),
        Field::new("window_start", bound_type(), false),
        Field::new("window_end", bound_type(), false),
        Field::new("window_time", input_schema.field(0).data_type().clone(), false),
        integer("n"),
        integer("sum"),
        integer("max"),
        integer("distinct"),
    ]));
    use WindowColumn::*;
    SessionAggregateFactory {
        gap: gap * 1000,
        time_zone: None,
        time_column: 0,
        keys: vec![(col("k", &input_schema).unwrap(), "k".into())],
        aggregates,
        schema,
        output: vec![Key(0), WindowStart, WindowEnd, WindowTime]
            .into_iter()
            .chain((0..4).map(Aggregate))
            .collect(),
        input_schema,
    }
}

/// Output: k, start ms, end ms, n, sum, max, distinct.
type Line = [i64; 7];

/// Input: time in ms, key, value, late tag in ms.
type Row = (Option<i64>, i64, i64, Option<i64>);

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(factory: &SessionAggregateFactory) -> Self {
        let key_groups = KeyGroupRange::all(256);
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
        let ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        Self { operator: factory.build(context).unwrap(), ctx }
    }

    fn rows(&mut self, rows: &[Row]) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| row.0).collect::<TimestampMillisecondArray>()),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        ];
        let mut batch = ChangelogBatch::append(RecordBatch::try_new(input_schema(), columns).unwrap());
        if rows.iter().any(|row| row.3.is_some()) {
            let tag = |row: &Row| row.3.map_or(Timestamp::MIN, Timestamp::from_millis);
            batch.late = Some(rows.iter().map(tag).collect());
        }
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch).unwrap(), Progress::Done);
    }

    fn end(&mut self, watermark: Option<i64>) -> Vec<Line> {
        let watermark = watermark.map(Timestamp::from_millis);
        let mut lines = Vec::new();
        let mut progress = self.operator.end_epoch(&mut self.ctx, watermark, Timestamp(0)).unwrap().progress;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.num_rows() <= BATCH_ROWS_MAX);
                lines.extend((0..batch.num_rows()).map(|row| line(&batch.rows, row)));
            }
            if progress == Progress::Done {
                break;
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
        assert!(lines.is_sorted_by_key(|line| line[2]), "sessions are emitted in order of their ends");
        self.ctx.watermark = watermark;
        lines.sort_by_key(|line| (line[2], line[0], line[1]));
        lines
    }

    fn counts(&self) -> [u64; 3] {
        let metrics = &self.ctx.metrics;
        [&metrics.accepted, &metrics.late, &metrics.rejected].map(|counter| counter.value())
    }

    fn state_rows(&mut self) -> usize {
        self.operator.tables().iter().map(|table| table.rows()).sum()
    }
}

fn line(rows: &RecordBatch, row: usize) -> Line {
    let integer = |column: usize| rows.column(column).as_primitive::<Int64Type>().value(row);
    let time = |column: usize| rows.column(column).as_primitive::<TimestampMillisecondType>().value(row);
    assert_eq!(time(3), time(2) - 1);
    [integer(0), time(1), time(2), integer(4), integer(5), integer(6), integer(7)]
}

const END: Option<i64> = Some(i64::MAX / 1000);

#[test]
fn a_row_connects_all_sessions_that_it_touches() {
    let mut task = Task::new(&factory(6, true));
    task.rows(&[
        (Some(0), 1, 1, None),
        (Some(10), 1, 2, None),
        (Some(20), 1, 1, None),
        (Some(0), 2, 9, None),
    ]);
    assert_eq!(task.end(Some(4)), [[0; 7]; 0]);
    // The first of these lies between the first two sessions; the second touches two.
    task.rows(&[(Some(5), 1, 1, None), (Some(15), 1, 3, None)]);
    task.rows(&[(Some(26), 1, 4, None)]);
    assert_eq!(task.end(Some(5)), [[2, 0, 6, 1, 9, 9, 1]]);
    assert_eq!(task.end(END), [[1, 0, 32, 6, 12, 4, 4]]);
    assert_eq!((task.state_rows(), task.counts()), (0, [7, 0, 0]));
}

#[test]
fn lateness_is_judged_by_the_session_that_the_row_would_be_part_of() {
    let mut task = Task::new(&factory(5, false));
    task.rows(&[(Some(0), 1, 1, None), (Some(10), 1, 2, None)]);
    assert_eq!(task.end(Some(12)), [[1, 0, 5, 1, 1, 1, 1]]);
    // 4 reaches to 9 only, 6 to 11, where the second session is open.
    task.rows(&[(Some(4), 1, 8, None), (Some(6), 1, 4, None), (None, 1, 1, None)]);
    // By their tags, the session is over for the first and open for the second.
    task.rows(&[(Some(12), 1, 16, Some(14)), (Some(6), 1, 32, Some(13))]);
    assert_eq!(task.end(END), [[1, 6, 15, 3, 38, 32, 3], [1, 12, 17, 1, 16, 16, 1]]);
    assert_eq!(task.counts(), [5, 1, 1]);
}

#[test]
fn many_sessions_come_in_bounded_batches() {
    let mut task = Task::new(&factory(1, false));
    for start in (0..20_000).step_by(5000) {
        let rows: Vec<Row> = (start..start + 5000).map(|key| (Some(key % 7), key, 1, None)).collect();
        task.rows(&rows);
    }
    assert_eq!(task.end(END).len(), 20_000);
    assert_eq!(task.state_rows(), 0);
}

// ── A naive reference ────────────────────────────────────────────────────────────────────────

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound) as i64
    }
}

/// Epochs of rows, each with the watermark of its mark.
type Script = Vec<(Vec<Row>, Option<i64>)>;

fn script(random: &mut Random) -> Script {
    let mut watermark = None;
    (0..30)
        .map(|epoch| {
            let rows = (0..random.below(14))
                .map(|_| {
                    let time = epoch * 5 - 30 + random.below(60);
                    let tag = (random.below(4) == 0).then(|| time + random.below(20));
                    (Some(time), random.below(3), random.below(5), tag)
                })
                .collect();
            if epoch > 3 && random.below(3) > 0 {
                watermark = watermark.max(Some(epoch * 5 - 35 + random.below(12)));
            }
            (rows, watermark)
        })
        .collect()
}

struct Open {
    start: i64,
    end: i64,
    values: Vec<i64>,
}

/// What the manual says, row by row: lines and the number of late rows.
fn reference(script: &Script, gap: i64) -> (Vec<Line>, u64) {
    let mut open: BTreeMap<i64, Vec<Open>> = BTreeMap::new();
    let (mut in_force, mut late, mut lines) = (i64::MIN, 0, Vec::new());
    for (rows, watermark) in script.iter().chain([&(Vec::new(), END)]) {
        for (time, key, value, tag) in rows {
            let time = time.unwrap();
            let passed = in_force.max(tag.unwrap_or(i64::MIN));
            let sessions = open.entry(*key).or_default();
            let (parts, rest): (Vec<Open>, Vec<Open>) = std::mem::take(sessions)
                .into_iter()
                .partition(|s| s.start <= time + gap && time <= s.end && s.end - 1 > passed);
            *sessions = rest;
            if parts.is_empty() && time + gap - 1 <= passed {
                late += 1;
                continue;
            }
            let mut joined = Open { start: time, end: time + gap, values: vec![*value] };
            for part in parts {
                joined.start = joined.start.min(part.start);
                joined.end = joined.end.max(part.end);
                joined.values.extend(part.values);
            }
            sessions.push(joined);
        }
        in_force = watermark.unwrap_or(i64::MIN);
        let mut fired = Vec::new();
        for (key, sessions) in &mut open {
            for Open { start, end, values } in sessions.extract_if(.., |session| session.end - 1 <= in_force)
            {
                let distinct = values.iter().collect::<BTreeSet<_>>().len() as i64;
                let max = *values.iter().max().unwrap();
                fired.push([*key, start, end, values.len() as i64, values.iter().sum(), max, distinct]);
            }
        }
        fired.sort_by_key(|line| (line[2], line[0], line[1]));
        lines.extend(fired);
    }
    (lines, late)
}

fn run(script: &Script, factory: &SessionAggregateFactory, split: usize, restore: bool) -> (Vec<Line>, u64) {
    let mut task = Task::new(factory);
    let mut stored: Vec<Vec<Delta>> = Vec::new();
    let mut lines = Vec::new();
    let mut late = 0;
    for (rows, watermark) in script {
        rows.chunks(split).for_each(|rows| task.rows(rows));
        lines.extend(task.end(*watermark));
        if restore {
            late += task.counts()[1];
            let tables = task.operator.tables().into_iter();
            stored.push(tables.map(|table| table.freeze().unwrap().into_delta().unwrap()).collect());
            task = restored(factory, &stored, *watermark);
        }
    }
    lines.extend(task.end(END));
    assert_eq!(task.state_rows(), 0);
    (lines, late + task.counts()[1])
}

/// A task over what a store would give back.
fn restored(factory: &SessionAggregateFactory, stored: &[Vec<Delta>], watermark: Option<i64>) -> Task {
    let mut task = Task::new(factory);
    for (index, table) in task.operator.tables().into_iter().enumerate() {
        let identity = table.def().identity_columns;
        let mut live: BTreeMap<Vec<i64>, RecordBatch> = BTreeMap::new();
        let key = |rows: &RecordBatch, row: usize| -> Vec<i64> {
            (0..identity).map(|i| rows.column(i).as_primitive::<Int64Type>().value(row)).collect()
        };
        for delta in stored.iter().map(|deltas| &deltas[index]) {
            for row in 0..delta.deletes.num_rows() {
                assert!(live.remove(&key(&delta.deletes, row)).is_some(), "what is deleted was stored");
            }
            for row in 0..delta.upserts.num_rows() {
                live.insert(key(&delta.upserts, row), delta.upserts.slice(row, 1));
            }
        }
        live.values().for_each(|row| table.load(row, KeyGroupRange::all(256)).unwrap());
    }
    let watermark = watermark.map(Timestamp::from_millis);
    task.operator.restored(watermark).unwrap();
    task.ctx.watermark = watermark;
    task
}

#[test]
fn random_scripts_agree_with_the_reference() {
    let mut random = Random(7);
    let mut late_rows = 0;
    for round in 0..40 {
        let script = script(&mut random);
        let gap = 1 + random.below(12);
        let expected = reference(&script, gap);
        late_rows += expected.1;
        for (split, restore) in [(1000, false), (1, false), (3, false), (5, true)] {
            let what = format!("round {round}, gap {gap}, batches of {split}, restore {restore}");
            assert_eq!(run(&script, &factory(gap, true), split, restore), expected, "{what}");
            let counted = expected
                .0
                .iter()
                .map(|[k, start, end, n, sum, max, _]| [*k, *start, *end, *n, *sum, *max, *n]);
            let counting = run(&script, &factory(gap, false), split, restore);
            assert_eq!(counting, (counted.collect(), expected.1), "{what}, without DISTINCT");
        }
    }
    assert!(late_rows > 100, "the scripts have late rows");
}
