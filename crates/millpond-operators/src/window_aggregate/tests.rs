//! Tests of `window_aggregate`.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{Field, Int64Type, Schema, TimeUnit, TimestampMillisecondType};
use datafusion::physical_expr::expressions::col;
use millpond_core::{KeyGroupRange, OperatorMetrics};
use millpond_state::Delta;

use crate::aggregate::AggregateFunction;
use crate::window::{WindowKind, bound_type};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

fn input_schema(zone: Option<&str>) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, zone.map(Into::into));
    Arc::new(Schema::new(vec![
        Field::new("ts", time, true),
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
    ]))
}

fn millis(kind: WindowKind) -> WindowSpec {
    let kind = match kind {
        WindowKind::Tumble { size } => WindowKind::Tumble { size: size * 1000 },
        WindowKind::Hop { size, slide } => WindowKind::Hop { size: size * 1000, slide: slide * 1000 },
        WindowKind::Cumulate { size, step } => WindowKind::Cumulate { size: size * 1000, step: step * 1000 },
    };
    WindowSpec { kind, offset: 0, time_zone: None }
}

/// k, window_start, window_end, window_time, COUNT(*), SUM(v), MAX(v), COUNT(DISTINCT v).
fn factory(window: WindowSpec, input_schema: SchemaRef) -> WindowAggregateFactory {
    let v = || vec![col("v", &input_schema).unwrap()];
    let call = |function, arguments, distinct, name: &str| AggregateCall {
        distinct,
        ..AggregateCall::new(function, arguments, name, DataType::Int64)
    };
    let aggregates = vec![
        call(AggregateFunction::CountStar, Vec::new(), false, "n"),
        call(AggregateFunction::Sum, v(), false, "sum"),
        call(AggregateFunction::Max, v(), false, "max"),
        call(AggregateFunction::Count, v(), true, "distinct"),
    ];
    let integer = |name: &str| Field::new(name, DataType::Int64, true);
    let schema = Arc::new(Schema::new(vec![
        integer("k"),
        Field::new("window_start", bound_type(), false),
        Field::new("window_end", bound_type(), false),
        Field::new("window_time", input_schema.field(0).data_type().clone(), false),
        Field::new("n", DataType::Int64, false),
        integer("sum"),
        integer("max"),
        Field::new("distinct", DataType::Int64, false),
    ]));
    use WindowColumn::*;
    WindowAggregateFactory {
        window,
        time_column: 0,
        keys: vec![(col("k", &input_schema).unwrap(), "k".into())],
        aggregates,
        input_schema,
        schema,
        output: vec![
            Key(0),
            WindowStart,
            WindowEnd,
            WindowTime,
            Aggregate(0),
            Aggregate(1),
            Aggregate(2),
            Aggregate(3),
        ],
    }
}

/// Output: k, start ms, end ms, n, sum, max, distinct.
type Line = [i64; 7];

/// Input: time in ms, key, value, late tag in ms.
type Row = (Option<i64>, i64, i64, Option<i64>);

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
    schema: SchemaRef,
}

impl Task {
    fn new(factory: &WindowAggregateFactory) -> Self {
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        Self { operator: factory.build(context).unwrap(), ctx, schema: factory.input_schema.clone() }
    }

    fn rows(&mut self, rows: &[Row]) {
        let times: TimestampMillisecondArray = rows.iter().map(|row| row.0).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(times.with_data_type(self.schema.field(0).data_type().clone())),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        ];
        let mut batch = ChangelogBatch::append(RecordBatch::try_new(self.schema.clone(), columns).unwrap());
        if rows.iter().any(|row| row.3.is_some()) {
            let tag = |row: &Row| row.3.map_or(Timestamp::MIN, Timestamp::from_millis);
            batch.late = Some(rows.iter().map(tag).collect());
        }
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch).unwrap(), Progress::Done);
    }

    fn end(&mut self, watermark: Option<Timestamp>) -> Vec<Line> {
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
        assert!(lines.is_sorted_by_key(|line| line[2]), "windows fire in order");
        self.ctx.watermark = watermark;
        lines
    }

    fn counts(&self) -> [u64; 4] {
        let metrics = &self.ctx.metrics;
        [&metrics.accepted, &metrics.late, &metrics.rejected, &metrics.filtered]
            .map(|counter| counter.value())
    }

    fn state_rows(&mut self) -> usize {
        self.operator.tables().iter().map(|table| table.rows()).sum()
    }
}

fn line(rows: &RecordBatch, row: usize) -> Line {
    let integer = |column: usize| rows.column(column).as_primitive::<Int64Type>().value(row);
    let time = |column: usize| rows.column(column).as_primitive::<TimestampMillisecondType>().value(row);
    [integer(0), time(1), time(2), integer(4), integer(5), integer(6), integer(7)]
}

fn at(ms: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(ms))
}

#[test]
fn a_tumbling_window_fires_once_one_unit_before_its_end() {
    let schema = input_schema(None);
    let mut task = Task::new(&factory(millis(WindowKind::Tumble { size: 10 }), schema));
    task.rows(&[
        (Some(1), 1, 5, None),
        (Some(9), 1, 5, None),
        (Some(12), 2, 7, None),
        (Some(-1), 1, 3, None),
    ]);
    assert_eq!(task.end(at(-2)), [[0; 7]; 0]);
    assert_eq!(task.end(at(9)), [[1, -10, 0, 1, 3, 3, 1], [1, 0, 10, 2, 10, 5, 1]]);
    task.rows(&[(Some(9), 1, 5, None), (Some(10), 2, 7, None), (None, 1, 1, None)]);
    assert_eq!(task.end(Some(Timestamp::MAX)), [[2, 10, 20, 2, 14, 7, 1]]);
    assert_eq!(task.counts(), [5, 1, 1, 0]);
    assert_eq!(task.state_rows(), 0);
}

#[test]
fn a_row_late_by_its_tag_counts_only_in_windows_it_is_in_time_for() {
    let schema = input_schema(None);
    let mut task = Task::new(&factory(millis(WindowKind::Hop { size: 10, slide: 5 }), schema));
    // Time 7 lies in [0, 10) and [5, 15). No window has fired, but the second row's split had
    // passed 9 already, and that of the third 14.
    task.rows(&[(Some(7), 1, 1, None), (Some(7), 1, 10, Some(9)), (Some(7), 1, 100, Some(14))]);
    assert_eq!(task.end(at(20)), [[1, 0, 10, 1, 1, 1, 1], [1, 5, 15, 2, 11, 10, 2]]);
    assert_eq!(task.counts(), [2, 1, 0, 0]);
    // By the watermark in force, [10, 20) has fired and [15, 25) has not.
    task.rows(&[(Some(17), 1, 1, None)]);
    assert_eq!(task.end(at(24)), [[1, 15, 25, 1, 1, 1, 1]]);
    assert_eq!(task.state_rows(), 0);
}

#[test]
fn distinct_values_of_several_panes_count_once() {
    let schema = input_schema(None);
    let mut task = Task::new(&factory(millis(WindowKind::Hop { size: 10, slide: 5 }), schema));
    task.rows(&[(Some(1), 1, 5, None), (Some(6), 1, 5, None), (Some(7), 1, 6, Some(4))]);
    assert_eq!(
        task.end(Some(Timestamp::MAX)),
        [[1, -5, 5, 1, 5, 5, 1], [1, 0, 10, 3, 16, 6, 2], [1, 5, 15, 2, 11, 6, 2]]
    );
}

#[test]
fn local_days_have_25_hours_in_autumn() {
    let schema = input_schema(Some("UTC"));
    let hour = 3_600_000;
    let zone = Some(chrono_tz::America::Los_Angeles);
    let window = WindowSpec { time_zone: zone, ..millis(WindowKind::Tumble { size: 24 * hour }) };
    let mut task = Task::new(&factory(window, schema));
    // 2021-11-07 00:00 in Los Angeles.
    let start = 1_636_268_400_000;
    let local = 1_636_243_200_000;
    task.rows(&[
        (Some(start), 1, 1, None),
        (Some(start + 25 * hour - 1), 1, 2, None),
        (Some(start + 25 * hour), 1, 3, None),
    ]);
    assert_eq!(task.end(at(start + 25 * hour - 2)), [[0; 7]; 0]);
    assert_eq!(task.end(at(start + 25 * hour - 1)), [[1, local, local + 24 * hour, 2, 3, 2, 2]]);
    assert_eq!(task.end(Some(Timestamp::MAX)), [[1, local + 24 * hour, local + 48 * hour, 1, 3, 3, 1]]);
}

#[test]
fn many_windows_come_in_bounded_batches() {
    let mut task = Task::new(&factory(millis(WindowKind::Tumble { size: 1 }), input_schema(None)));
    for start in (0..20_000).step_by(5000) {
        let rows: Vec<Row> =
            (start..start + 5000).flat_map(|t| [(Some(t), 1, t, None), (Some(t), 2, t, None)]).collect();
        task.rows(&rows);
    }
    assert_eq!(task.end(Some(Timestamp::MAX)).len(), 40_000);
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
            let rows = (0..random.below(12))
                .map(|_| {
                    let time = epoch * 4 - 20 + random.below(40);
                    let tag = (random.below(3) == 0).then(|| time + random.below(30));
                    (Some(time), random.below(3), random.below(5), tag)
                })
                .collect();
            if epoch > 3 && random.below(3) > 0 {
                watermark = watermark.max(Some(epoch * 4 - 25 + random.below(12)));
            }
            (rows, watermark)
        })
        .collect()
}

/// What the manual says, row by row: lines and the number of rows late for all their windows.
fn reference(script: &Script, window: &WindowSpec) -> (Vec<Line>, u64) {
    let mut groups: BTreeMap<(i64, i64), Vec<i64>> = BTreeMap::new();
    let (mut in_force, mut late) = (i64::MIN, 0);
    for (rows, watermark) in script {
        for (time, key, value, tag) in rows {
            let effective = in_force.max(tag.unwrap_or(i64::MIN));
            let ends: Vec<i64> = window.assign(time.unwrap() * 1000).map(|end| end / 1000).collect();
            let open: Vec<i64> = ends.iter().copied().filter(|end| effective < end - 1).collect();
            late += u64::from(open.is_empty() && !ends.is_empty());
            open.into_iter().for_each(|end| groups.entry((end, *key)).or_default().push(*value));
        }
        in_force = watermark.unwrap_or(i64::MIN);
    }
    let line = |((end, key), values): ((i64, i64), Vec<i64>)| {
        let start = window.start(end * 1000) / 1000;
        let distinct = values.iter().collect::<BTreeSet<_>>().len() as i64;
        let max = *values.iter().max().unwrap();
        [key, start, end, values.len() as i64, values.iter().sum(), max, distinct]
    };
    (groups.into_iter().map(line).collect(), late)
}

fn run(script: &Script, factory: &WindowAggregateFactory, split: usize, restore: bool) -> (Vec<Line>, u64) {
    let mut task = Task::new(factory);
    let mut stored: Vec<Vec<Delta>> = Vec::new();
    let mut lines = Vec::new();
    let mut late = 0;
    for (rows, watermark) in script {
        rows.chunks(split).for_each(|rows| task.rows(rows));
        let mut fired = task.end(watermark.map(Timestamp::from_millis));
        fired.sort_by_key(|line| (line[2], line[0]));
        lines.extend(fired);
        if restore {
            late += task.counts()[1];
            let tables = task.operator.tables().into_iter();
            stored.push(tables.map(|table| table.freeze().unwrap().into_delta().unwrap()).collect());
            task = restored(factory, &stored, watermark.map(Timestamp::from_millis));
        }
    }
    let mut last = task.end(Some(Timestamp::MAX));
    last.sort_by_key(|line| (line[2], line[0]));
    lines.extend(last);
    assert_eq!(task.state_rows(), 0);
    (lines, late + task.counts()[1])
}

/// A task over what a store would give back.
fn restored(factory: &WindowAggregateFactory, stored: &[Vec<Delta>], watermark: Option<Timestamp>) -> Task {
    let mut task = Task::new(factory);
    for (index, table) in task.operator.tables().into_iter().enumerate() {
        let identity = table.def().identity_columns;
        let mut live: BTreeMap<Vec<i64>, RecordBatch> = BTreeMap::new();
        for delta in stored.iter().map(|deltas| &deltas[index]) {
            for row in 0..delta.upserts.num_rows() {
                let key = |column: usize| delta.upserts.column(column).as_primitive::<Int64Type>().value(row);
                live.insert((0..identity).map(key).collect(), delta.upserts.slice(row, 1));
            }
            live.retain(|key, _| delta.expired_through.is_none_or(|expired| key[0] > expired));
        }
        live.values().for_each(|row| table.load(row, ALL).unwrap());
    }
    task.operator.restored(watermark).unwrap();
    task.ctx.watermark = watermark;
    task
}

/// With COUNT(*) in the place of MAX, so that sums of panes can slide.
fn without_max(factory: &WindowAggregateFactory) -> WindowAggregateFactory {
    let mut factory = factory.clone();
    factory.aggregates[2] = AggregateCall { name: "max".into(), ..factory.aggregates[0].clone() };
    factory
}

fn counts_as_max(lines: &[Line]) -> Vec<Line> {
    lines
        .iter()
        .map(|[k, start, end, n, sum, _, distinct]| [*k, *start, *end, *n, *sum, *n, *distinct])
        .collect()
}

#[test]
fn a_cumulative_window_fires_at_each_step_and_totals_what_came_before() {
    let mut task =
        Task::new(&factory(millis(WindowKind::Cumulate { size: 15, step: 5 }), input_schema(None)));
    task.rows(&[(Some(1), 1, 5, None), (Some(11), 1, 5, None)]);
    assert_eq!(task.end(at(4)), [[1, 0, 5, 1, 5, 5, 1]]);
    // Late for [0, 5), in time for [0, 10) and [0, 15).
    task.rows(&[(Some(3), 1, 7, None), (Some(4), 2, 1, Some(9))]);
    assert_eq!(task.end(at(9)), [[1, 0, 10, 2, 12, 7, 2]]);
    assert_eq!(task.end(Some(Timestamp::MAX)), [[1, 0, 15, 3, 17, 7, 2], [2, 0, 15, 1, 1, 1, 1]]);
    assert_eq!(task.state_rows(), 0);
}

#[test]
fn random_scripts_agree_with_the_reference() {
    let kinds = [
        WindowKind::Tumble { size: 10 },
        WindowKind::Hop { size: 10, slide: 2 },
        WindowKind::Hop { size: 10, slide: 4 },
        WindowKind::Hop { size: 9, slide: 6 },
        WindowKind::Hop { size: 10, slide: 10 },
        WindowKind::Hop { size: 4, slide: 6 },
        WindowKind::Cumulate { size: 12, step: 3 },
        WindowKind::Cumulate { size: 20, step: 2 },
    ];
    let mut random = Random(42);
    let mut late_rows = 0;
    for round in 0..25 {
        let script = script(&mut random);
        for kind in kinds {
            let window = WindowSpec { offset: random.below(20) * 1000 - 10_000, ..millis(kind) };
            let factory = factory(window, input_schema(None));
            let expected = reference(&script, &window);
            late_rows += expected.1;
            for (split, restore) in [(1000, false), (1, false), (3, false), (5, true)] {
                let what = format!("round {round}, {window}, batches of {split}, restore {restore}");
                assert_eq!(run(&script, &factory, split, restore), expected, "{what}");
                let counting = run(&script, &without_max(&factory), split, restore);
                assert_eq!(counting, (counts_as_max(&expected.0), expected.1), "{what}, without MAX");
            }
        }
    }
    assert!(late_rows > 100, "the scripts have late rows");
}
