//! Tests of `join`.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, TimeUnit};
use datafusion::logical_expr::Operator as Op;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::random::Random;
use millpond_core::{KeyGroupRange, OperatorMetrics, RowKind};

use super::*;

mod kinds;

/// What a lone row has in place of the other side's value.
const NOTHING: i64 = i64::MIN;

/// key, value, time in milliseconds.
type Row = (Option<i64>, i64, i64);

fn side_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, false),
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), false),
    ]))
}

fn rows(rows: &[Row]) -> RecordBatch {
    RecordBatch::try_new(
        side_schema(),
        vec![
            Arc::new(rows.iter().map(|r| r.0).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|r| r.1).map(Some).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|r| r.2).map(Some).collect::<TimestampMillisecondArray>()),
        ],
    )
    .unwrap()
}

/// left value, right value.
fn factory() -> JoinFactory {
    let field = |name| Field::new(name, DataType::Int64, false);
    JoinFactory {
        left_schema: side_schema(),
        right_schema: side_schema(),
        left_keys: vec![0],
        right_keys: vec![0],
        null_equals_null: false,
        filter: None,
        output: vec![1, 4],
        schema: Arc::new(Schema::new(vec![field("lv"), field("rv")])),
        left_mode: ChangelogMode::Append,
        right_mode: ChangelogMode::Append,
        retention: JoinRetention::default(),
        kind: JoinKind::Inner,
        at_most_one: false,
        ttl: [None; 2],
    }
}

fn context() -> BuildContext {
    BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: KeyGroupRange::all(256) }
}

/// `left.v < right.v`.
fn less_than() -> Arc<dyn PhysicalExpr> {
    Arc::new(BinaryExpr::new(Arc::new(Column::new("v", 1)), Op::Lt, Arc::new(Column::new("v", 4))))
}

/// A join under test, with the multiset of pairs that it has emitted.
struct Run {
    join: Join,
    ctx: OperatorContext,
    pairs: BTreeMap<(i64, i64), i64>,
    batch_max: usize,
    retracted: bool,
}

impl Run {
    fn new(factory: &JoinFactory) -> Self {
        let ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        Self {
            join: Join::new(factory, context()).unwrap(),
            ctx,
            pairs: BTreeMap::new(),
            batch_max: 0,
            retracted: false,
        }
    }

    fn process(&mut self, input: InputIndex, batch: ChangelogBatch) {
        let mut progress = self.join.process(&mut self.ctx, input, batch).unwrap();
        self.fold();
        while progress == Progress::More {
            progress = self.join.resume(&mut self.ctx).unwrap();
            self.fold();
        }
    }

    fn fold(&mut self) {
        let Some(batch) = self.ctx.take_output() else { return };
        self.batch_max = self.batch_max.max(batch.num_rows());
        let value = |i: usize, row: usize| {
            let column = (i < batch.rows.num_columns()).then(|| batch.rows.column(i));
            let column = column.map(|column| column.as_primitive::<Int64Type>());
            column.filter(|column| column.is_valid(row)).map_or(NOTHING, |column| column.value(row))
        };
        for row in 0..batch.num_rows() {
            let sign = if batch.kind(row).is_addition() { 1 } else { -1 };
            self.retracted |= sign < 0;
            let pair = (value(0, row), value(1, row));
            let count = self.pairs.entry(pair).or_default();
            *count += sign;
            assert!(*count >= 0, "invariant 4: a pair is taken back before it was there");
            if *count == 0 {
                self.pairs.remove(&pair);
            }
        }
    }

    fn end_epoch(&mut self, watermark_ms: i64) -> Option<Watermark> {
        self.close_epoch(Some(Timestamp::from_millis(watermark_ms)))
    }

    fn close_epoch(&mut self, watermark: Option<Watermark>) -> Option<Watermark> {
        let outcome = self.join.end_epoch(&mut self.ctx, watermark, Timestamp(0)).unwrap();
        let mut progress = outcome.progress;
        self.fold();
        while progress == Progress::More {
            progress = self.join.resume(&mut self.ctx).unwrap();
            self.fold();
        }
        self.ctx.watermark = watermark;
        outcome.watermark
    }

    /// The same join after its state went through freeze and load.
    fn restart(&mut self, factory: &JoinFactory, stored: &mut [Stored; 2]) {
        let mut next = Join::new(factory, context()).unwrap();
        let tables = self.join.tables().into_iter().zip(next.tables());
        for ((old, new), stored) in tables.zip(stored) {
            stored.apply(old.freeze().unwrap().into_delta().unwrap(), old.def().identity_columns);
            new.load(&stored.rows(&old.def().schema), KeyGroupRange::all(256)).unwrap();
            assert_eq!(new.rows(), old.rows());
        }
        next.restored(self.ctx.watermark).unwrap();
        self.join = next;
    }
}

/// What a store does with deltas: rows by identity.
#[derive(Default)]
struct Stored(BTreeMap<String, RecordBatch>);

impl Stored {
    fn apply(&mut self, delta: millpond_state::Delta, identity: usize) {
        let name = |batch: &RecordBatch, row: usize| {
            format!(
                "{:?}",
                batch.slice(row, 1).project(&(0..identity).collect::<Vec<_>>()).unwrap().columns()
            )
        };
        for row in 0..delta.deletes.num_rows() {
            self.0.remove(&name(&delta.deletes, row)).expect("a delete meets a stored row");
        }
        for row in 0..delta.upserts.num_rows() {
            let old = self.0.insert(name(&delta.upserts, row), delta.upserts.slice(row, 1));
            assert!(old.is_none(), "an identity names one row for ever");
        }
    }
    fn rows(&self, schema: &SchemaRef) -> RecordBatch {
        arrow::compute::concat_batches(schema, self.0.values()).unwrap()
    }
}

fn random_rows(random: &mut Random, count: usize, first: i64) -> Vec<Row> {
    let mut row = |i: usize| {
        let key = random.below(12) as i64;
        ((key > 0).then_some(key), first + i as i64 % 5, random.below(1000) as i64)
    };
    (0..count).map(&mut row).collect()
}

/// Nested loops.
fn reference(left: &[Row], right: &[Row], accept: impl Fn(&Row, &Row) -> bool) -> BTreeMap<(i64, i64), i64> {
    let mut by_key: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
    right.iter().for_each(|r| by_key.entry(r.0.unwrap_or(i64::MIN)).or_default().push(r));
    let mut pairs = BTreeMap::new();
    for l in left {
        let candidates = l.0.and_then(|key| by_key.get(&key)).into_iter().flatten();
        for r in candidates.filter(|r| accept(l, r)) {
            *pairs.entry((l.1, r.1)).or_default() += 1;
        }
    }
    pairs
}

/// Cuts both inputs into random batches in a random order.
fn interleaved(random: &mut Random, left: &[Row], right: &[Row]) -> Vec<(InputIndex, Vec<Row>)> {
    let (mut rest, mut out) = ([left, right], Vec::new());
    while !rest[0].is_empty() || !rest[1].is_empty() {
        let side = random.below(2) as usize;
        let count = (random.below(9) as usize).min(rest[side].len());
        out.push((side, rest[side][..count].to_vec()));
        rest[side] = &rest[side][count..];
    }
    out
}

#[test]
fn any_interleaving_gives_the_nested_loop_answer() {
    for seed in 0..20 {
        let mut random = Random::seeded(seed);
        let (left, right) = (random_rows(&mut random, 60, 0), random_rows(&mut random, 70, 2));
        let mut plain = Run::new(&factory());
        let filtering = JoinFactory { filter: Some(less_than()), ..factory() };
        let mut filtered = Run::new(&filtering);
        for (input, batch) in interleaved(&mut random, &left, &right) {
            plain.process(input, ChangelogBatch::append(rows(&batch)));
            filtered.process(input, ChangelogBatch::append(rows(&batch)));
        }
        assert_eq!(plain.pairs, reference(&left, &right, |_, _| true), "seed {seed}");
        assert_eq!(filtered.pairs, reference(&left, &right, |l, r| l.1 < r.1), "seed {seed}");
    }
}

#[test]
fn restarts_change_nothing() {
    for seed in 0..10 {
        let mut random = Random::seeded(seed);
        let (left, right) = (random_rows(&mut random, 60, 0), random_rows(&mut random, 70, 2));
        let mut run = Run::new(&factory());
        let mut stored = [Stored::default(), Stored::default()];
        for (input, batch) in interleaved(&mut random, &left, &right) {
            run.process(input, ChangelogBatch::append(rows(&batch)));
            if random.below(3) == 0 {
                run.restart(&factory(), &mut stored);
            }
        }
        assert_eq!(run.pairs, reference(&left, &right, |_, _| true), "seed {seed}");
    }
}

#[test]
fn retractions_take_back_their_pairs() {
    let retract =
        JoinFactory { left_mode: ChangelogMode::Retract, right_mode: ChangelogMode::Retract, ..factory() };
    for seed in 0..20 {
        let mut random = Random::seeded(seed);
        let mut run = Run::new(&retract);
        let mut stored = [Stored::default(), Stored::default()];
        let mut content: [Vec<Row>; 2] = Default::default();
        for _ in 0..80 {
            let input = random.below(2) as usize;
            let (mut batch, mut kinds) = (Vec::new(), Vec::new());
            for _ in 0..random.below(6) {
                let rows = &mut content[input];
                if random.below(2) == 0 && !rows.is_empty() {
                    batch.push(rows.swap_remove(random.below(rows.len() as u64) as usize));
                    kinds.push(RowKind::UpdateBefore);
                } else {
                    // Few distinct rows, so that equal ones meet.
                    let row = (Some(random.below(3) as i64), random.below(2) as i64, 0);
                    batch.push(row);
                    rows.push(row);
                    kinds.push(RowKind::Insert);
                }
            }
            run.process(input, ChangelogBatch::with_kinds(rows(&batch), kinds));
            if random.below(4) == 0 {
                run.restart(&retract, &mut stored);
            }
            assert_eq!(run.pairs, reference(&content[0], &content[1], |_, _| true), "seed {seed}");
        }
    }
}

#[test]
fn a_retraction_that_meets_no_row_is_internal() {
    let retract = JoinFactory { left_mode: ChangelogMode::Retract, ..factory() };
    let mut run = Run::new(&retract);
    let batch = ChangelogBatch::with_kinds(rows(&[(Some(1), 1, 0)]), vec![RowKind::Delete]);
    let error = run.join.process(&mut run.ctx, 0, batch).unwrap_err();
    assert_eq!(error.kind(), millpond_core::ErrorKind::Internal);
    assert!(error.message().contains("invariant 4"), "{error}");
}

#[test]
fn a_skewed_key_leaves_in_bounded_batches() {
    let same_key: Vec<Row> = (0..300).map(|v| (Some(1), v, 0)).collect();
    let mut run = Run::new(&factory());
    run.process(0, ChangelogBatch::append(rows(&same_key)));
    run.process(1, ChangelogBatch::append(rows(&same_key)));
    assert_eq!(run.batch_max, BATCH_ROWS_MAX);
    assert_eq!(run.pairs, reference(&same_key, &same_key, |_, _| true));
}

#[test]
fn a_filter_that_drops_a_full_batch_still_makes_progress() {
    let left: Vec<Row> = (0..300).map(|v| (Some(1), 1000 + v, 0)).collect();
    let right: Vec<Row> = (0..300).map(|v| (Some(1), v + i64::from(v == 299) * 2000, 0)).collect();
    let mut run = Run::new(&JoinFactory { filter: Some(less_than()), ..factory() });
    run.process(0, ChangelogBatch::append(rows(&left)));
    run.process(1, ChangelogBatch::append(rows(&right)));
    assert_eq!(run.pairs, reference(&left, &right, |l, r| l.1 < r.1));
    assert_eq!(run.pairs.len(), 300);
}

#[test]
fn null_keys_match_only_where_null_equals_null() {
    for (null_equals_null, expected) in [(false, vec![]), (true, vec![((1, 2), 1)])] {
        let mut run = Run::new(&JoinFactory { null_equals_null, ..factory() });
        run.process(0, ChangelogBatch::append(rows(&[(None, 1, 0)])));
        run.process(1, ChangelogBatch::append(rows(&[(None, 2, 0), (Some(0), 3, 0)])));
        assert_eq!(run.pairs, expected.into_iter().collect());
        assert_eq!(run.ctx.metrics.filtered.value(), if null_equals_null { 0 } else { 2 });
    }
}

#[test]
fn text_and_composite_keys_match_by_value() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Int64, false),
    ]));
    let batch = |rows: &[(&str, i64)]| {
        let keys: StringArray = rows.iter().map(|r| Some(r.0)).collect();
        let values: Int64Array = rows.iter().map(|r| Some(r.1)).collect();
        ChangelogBatch::append(
            RecordBatch::try_new(schema.clone(), vec![Arc::new(keys), Arc::new(values)]).unwrap(),
        )
    };
    for (keys, expected) in
        [(vec![0], vec![((1, 1), 1), ((1, 3), 1), ((2, 2), 1)]), (vec![0, 1], vec![((1, 1), 1), ((2, 2), 1)])]
    {
        let mut run = Run::new(&JoinFactory {
            left_schema: schema.clone(),
            right_schema: schema.clone(),
            left_keys: keys.clone(),
            right_keys: keys,
            output: vec![1, 3],
            ..factory()
        });
        run.process(0, batch(&[("a", 1), ("", 2)]));
        run.process(1, batch(&[("a", 1), ("", 2), ("a", 3), ("b", 1)]));
        assert_eq!(run.pairs, expected.into_iter().collect());
    }
}

#[test]
fn without_keys_every_pair_is_a_candidate() {
    let mut run = Run::new(&JoinFactory {
        left_keys: vec![],
        right_keys: vec![],
        filter: Some(less_than()),
        ..factory()
    });
    run.process(0, ChangelogBatch::append(rows(&[(Some(1), 1, 0), (None, 2, 0)])));
    run.process(1, ChangelogBatch::append(rows(&[(Some(3), 2, 0), (None, 3, 0)])));
    assert_eq!(run.pairs, [((1, 2), 1), ((1, 3), 1), ((2, 3), 1)].into_iter().collect());
}

/// `right.ts BETWEEN left.ts − 50 ms AND left.ts + 20 ms`.
fn interval(left: &Row, right: &Row) -> bool {
    (left.2 - 50..=left.2 + 20).contains(&right.2)
}

fn interval_factory() -> JoinFactory {
    use arrow::datatypes::{IntervalDayTime, IntervalDayTimeType};
    use datafusion::common::ScalarValue;
    use datafusion::physical_expr::expressions::Literal;
    let column = |i: usize| Arc::new(Column::new("ts", i)) as Arc<dyn PhysicalExpr>;
    let shifted = |ms: i32| -> Arc<dyn PhysicalExpr> {
        let value: IntervalDayTime = IntervalDayTimeType::make_value(0, ms);
        let by = Arc::new(Literal::new(ScalarValue::IntervalDayTime(Some(value))));
        Arc::new(BinaryExpr::new(column(2), Op::Plus, by))
    };
    let from: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(column(5), Op::GtEq, shifted(-50)));
    let to: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(column(5), Op::LtEq, shifted(20)));
    JoinFactory {
        filter: Some(Arc::new(BinaryExpr::new(from, Op::And, to))),
        retention: JoinRetention {
            left: Some(SideRetention::Interval { column: 2, keep: 20_000 }),
            right: Some(SideRetention::Interval { column: 2, keep: 50_000 }),
        },
        ..factory()
    }
}

#[test]
fn an_interval_join_is_exact_over_accepted_rows_and_bounded() {
    let factory = interval_factory();
    for seed in 0..3 {
        let mut random = Random::seeded(seed);
        let mut run = Run::new(&factory);
        let mut stored = [Stored::default(), Stored::default()];
        let mut accepted: [Vec<Row>; 2] = Default::default();
        let slack = [20, 50];
        let mut kept_max = 0;
        for epoch in 0..200i64 {
            let watermark = epoch * 40 - 100;
            for input in 0..2 {
                let row = |_| {
                    (Some(random.below(20) as i64 + 1), epoch, epoch * 40 + random.below(300) as i64 - 200)
                };
                let batch: Vec<Row> = (0..50).map(row).collect();
                // The tag of a source with one split whose watermark is the one in force.
                let tag = |row: &Row| match row.2 <= watermark {
                    true => Timestamp::from_millis(watermark),
                    false => Timestamp::MIN,
                };
                let tags: Vec<Timestamp> = batch.iter().map(tag).collect();
                accepted[input]
                    .extend(batch.iter().filter(|r| r.2 > watermark || r.2 + slack[input] > watermark));
                let mut changes = ChangelogBatch::append(rows(&batch));
                changes.late = Some(tags.into());
                run.process(input, changes);
            }
            let sent = run.end_epoch(watermark + 40);
            assert_eq!(sent, Some(Timestamp::from_millis(watermark + 40 - 70)));
            kept_max = kept_max.max(run.join.left.table.rows());
            if random.below(30) == 0 {
                run.restart(&factory, &mut stored);
            }
        }
        assert_eq!(run.pairs, reference(&accepted[0], &accepted[1], interval), "seed {seed}");
        assert!(kept_max < 9_500, "one chunk and what is in time, not {kept_max} rows");
        assert!(run.ctx.metrics.late.value() > 0);
        run.end_epoch(i64::MAX / 1000);
        assert_eq!((run.join.left.table.rows(), run.join.right.table.rows()), (0, 0));
    }
}

#[test]
fn a_window_join_drops_final_windows_and_late_rows() {
    let window = Some(SideRetention::Window { column: 2 });
    let mut run = Run::new(&JoinFactory {
        left_keys: vec![0, 2],
        right_keys: vec![0, 2],
        retention: JoinRetention { left: window, right: window },
        ..factory()
    });
    run.process(0, ChangelogBatch::append(rows(&[(Some(1), 1, 1000), (Some(1), 2, 2000)])));
    assert_eq!(run.end_epoch(998), Some(Timestamp::from_millis(998)));
    assert_eq!(run.join.left.table.rows(), 2);
    run.process(1, ChangelogBatch::append(rows(&[(Some(1), 3, 1000)])));
    run.end_epoch(999);
    run.process(1, ChangelogBatch::append(rows(&[(Some(1), 4, 1000), (Some(1), 5, 2000)])));
    assert_eq!(run.pairs, [((1, 3), 1), ((2, 5), 1)].into_iter().collect());
    assert_eq!(run.ctx.metrics.late.value(), 1);
    run.end_epoch(1999);
    assert_eq!((run.join.left.table.rows(), run.join.right.table.rows()), (0, 0));
}

#[test]
fn unequal_key_types_are_refused() {
    let factory = JoinFactory { right_keys: vec![2], ..factory() };
    assert!(factory.build(context()).is_err());
}

/// Against a list of rows with their ages: a row pairs with those that are still known, what takes
/// back a forgotten one is ignored and counted, and an epoch is asked for when rows are to go.
#[test]
fn rows_live_for_a_time() {
    const TTL: i64 = 160;
    let retract = JoinFactory {
        left_mode: ChangelogMode::Retract,
        right_mode: ChangelogMode::Retract,
        ttl: [Some(TTL); 2],
        ..factory()
    };
    let (mut forgotten, mut strays) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::seeded(seed);
        let mut run = Run::new(&retract);
        let mut stored = [Stored::default(), Stored::default()];
        // Row, and when it is forgotten; all rows that ever were, to take them back too late.
        let mut known: [Vec<(Row, i64)>; 2] = Default::default();
        let mut ever: [Vec<Row>; 2] = Default::default();
        let mut pairs: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        let mut now = 0;
        for step in 0..200 {
            let input = random.below(2) as usize;
            let takes_back = random.below(3) == 0 && !ever[input].is_empty();
            let row = match takes_back {
                true => ever[input][random.below(ever[input].len() as u64) as usize],
                false => (Some(random.below(3) as i64), random.below(4) as i64, 0),
            };
            let sign = match known[input].iter().position(|(other, _)| *other == row) {
                Some(place) if takes_back => {
                    known[input].remove(place);
                    -1
                }
                None if takes_back => 0,
                Some(_) | None => {
                    known[input].push((row, (now / 10 + 1) * 10 + TTL));
                    ever[input].push(row);
                    1
                }
            };
            for (other, _) in known[1 - input].iter().filter(|(other, _)| other.0 == row.0) {
                let pair = if input == 0 { (row.1, other.1) } else { (other.1, row.1) };
                *pairs.entry(pair).or_default() += sign;
            }
            let kind = if takes_back { RowKind::Delete } else { RowKind::Insert };
            strays += u64::from(sign == 0);
            run.ctx.time = Timestamp(now);
            run.process(input, ChangelogBatch::with_kinds(rows(&[row]), vec![kind]));
            if step % 3 == 0 {
                now += random.below(60) as i64;
                let outcome = run.join.end_epoch(&mut run.ctx, None, Timestamp(now)).unwrap();
                assert_eq!(outcome.progress, Progress::Done);
                let before: usize = known.iter().map(Vec::len).sum();
                known.iter_mut().for_each(|rows| rows.retain(|(_, until)| *until > now));
                let left: usize = known.iter().map(Vec::len).sum();
                forgotten += before - left;
                assert_eq!(run.join.tables().iter().map(|table| table.rows()).sum::<usize>(), left);
                let next = known.iter().flatten().map(|(_, until)| *until).min();
                let wakes_in_time = outcome.wake_at.is_none_or(|at| at.0 > now);
                assert!(wakes_in_time && outcome.wake_at.map(|at| at.0) <= next, "seed {seed}");
                assert_eq!(outcome.wake_at.is_some(), next.is_some());
            }
            if random.below(20) == 0 {
                run.restart(&retract, &mut stored);
            }
            pairs.retain(|_, count| *count != 0);
            assert_eq!(run.pairs, pairs, "seed {seed}, step {step}");
        }
        assert!(run.ctx.metrics.rejected.value() > 0, "seed {seed}");
    }
    assert!(forgotten > 1000 && strays > 100, "{forgotten} {strays}");
}

/// A row that comes after a forgotten one was taken back is kept, in one batch as in two.
#[test]
fn an_update_of_a_forgotten_row_is_a_new_row() {
    let retract = JoinFactory {
        left_mode: ChangelogMode::Retract,
        right_mode: ChangelogMode::Retract,
        ttl: [Some(160); 2],
        ..factory()
    };
    let row: Row = (Some(1), 7, 0);
    for (kinds, left) in [
        (vec![RowKind::UpdateBefore, RowKind::UpdateAfter], 1),
        (vec![RowKind::Insert, RowKind::Delete], 0),
        (vec![RowKind::Delete, RowKind::Insert, RowKind::Delete], 0),
    ] {
        let mut run = Run::new(&retract);
        run.ctx.time = Timestamp(0);
        run.process(1, ChangelogBatch::with_kinds(rows(&vec![row; kinds.len()]), kinds));
        assert_eq!(run.join.tables()[1].rows(), left);
    }
}
