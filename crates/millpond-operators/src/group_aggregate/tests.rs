//! Tests of `group_aggregate`.

use super::*;
use arrow::array::{AsArray, Float64Array, Int32Array, Int64Array, StringArray};
use arrow::datatypes::{Decimal128Type, Int64Type, Schema};
use arrow::util::display::array_value_to_string;
use datafusion::logical_expr::Operator as BinaryOperator;
use datafusion::physical_expr::expressions::{binary, col, lit};
use millpond_core::{ErrorKind, KeyGroupRange, OperatorMetrics, Timestamp};
use millpond_state::Delta;

use crate::aggregate::{AggregateFunction, output_type};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

fn input_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("f", DataType::Float64, true),
        Field::new("i", DataType::Int32, true),
        Field::new("d", DataType::Decimal128(10, 2), true),
    ]))
}

fn call(function: AggregateFunction, argument: &str, distinct: bool) -> AggregateCall {
    let schema = input_schema();
    let arguments: Vec<_> = argument.split_whitespace().map(|name| col(name, &schema).unwrap()).collect();
    let types: Vec<DataType> = arguments.iter().map(|a| a.data_type(&schema).unwrap()).collect();
    let name = format!("{function}({})", arguments.first().map_or("*".into(), |a| a.to_string()));
    let output_type = output_type(&function, &types).unwrap();
    AggregateCall { distinct, ..AggregateCall::new(function, arguments, name, output_type) }
}

fn factory(keys: &[&str], aggregates: Vec<AggregateCall>, mode: ChangelogMode) -> GroupAggregateFactory {
    let input_schema = input_schema();
    let keys: Vec<_> = keys.iter().map(|key| (col(key, &input_schema).unwrap(), key.to_string())).collect();
    let set = AggregateSet::new(&aggregates, &input_schema, mode).unwrap();
    let mut fields = key_fields(&keys, &input_schema).unwrap();
    fields.extend(set.result_fields());
    let schema = Arc::new(Schema::new(fields));
    GroupAggregateFactory {
        ttl: None,
        lasting: if keys.is_empty() { vec![Vec::new()] } else { Vec::new() },
        keys,
        aggregates,
        input_schema,
        schema,
        emit_update_before: true,
        input_mode: mode,
    }
}

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(factory: &GroupAggregateFactory) -> Self {
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let operator = factory.build(context).unwrap();
        let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        ctx.time = Timestamp(0);
        Self { operator, ctx }
    }

    fn rows(&mut self, batch: ChangelogBatch) {
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch).unwrap(), Progress::Done);
    }

    fn end(&mut self) -> Result<Vec<String>> {
        self.end_at(0)
    }

    /// The same at a time, in seconds; the next epoch begins then.
    fn end_at(&mut self, time: i64) -> Result<Vec<String>> {
        let time = Timestamp(time * 1_000_000);
        self.ctx.time = time;
        let outcome = self.operator.end_epoch(&mut self.ctx, Some(Timestamp(7)), time)?;
        assert_eq!(outcome.watermark, Some(Timestamp(7)));
        let mut said = Vec::new();
        let mut progress = outcome.progress;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.num_rows() <= BATCH_ROWS_MAX);
                assert_ne!(batch.kind(batch.num_rows() - 1), RowKind::UpdateBefore, "a pair is not torn");
                said.extend(
                    (0..batch.num_rows())
                        .map(|row| format!("{} {}", batch.kind(row).symbol(), show(&batch, row))),
                );
            }
            if progress == Progress::Done {
                return Ok(said);
            }
            progress = self.operator.resume(&mut self.ctx)?;
        }
    }

    /// The state as a snapshot would hold it: the deltas of all tables.
    fn freeze(&mut self) -> Vec<Delta> {
        self.operator
            .tables()
            .into_iter()
            .map(|table| table.freeze().unwrap().into_delta().unwrap())
            .collect()
    }
}

fn show(batch: &ChangelogBatch, row: usize) -> String {
    let value = |column: &ArrayRef| {
        if column.is_null(row) { "NULL".into() } else { array_value_to_string(column, row).unwrap() }
    };
    batch.rows.columns().iter().map(value).collect::<Vec<_>>().join("|")
}

/// Rows as `+a 5`: kind, key and value of every number column; `-` alone is NULL.
fn rows(text: &str) -> ChangelogBatch {
    let mut kinds = Vec::new();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for row in text.split(", ") {
        let (key, value) = row.split_once(' ').unwrap();
        kinds.push(if key.starts_with('+') { RowKind::Insert } else { RowKind::Delete });
        keys.push(key[1..].to_string());
        values.push(value.parse::<i64>().ok());
    }
    let floats = values.iter().map(|v| v.map(|v| v as f64 / 2.0));
    let decimals: arrow::array::Decimal128Array = values.iter().map(|v| v.map(i128::from)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(keys)),
        Arc::new(Int64Array::from(values.clone())),
        Arc::new(floats.collect::<Float64Array>()),
        Arc::new(values.iter().map(|v| v.map(|v| v as i32)).collect::<Int32Array>()),
        Arc::new(decimals.with_precision_and_scale(10, 2).unwrap()),
    ];
    ChangelogBatch::with_kinds(RecordBatch::try_new(input_schema(), columns).unwrap(), kinds)
}

#[test]
fn an_epoch_says_the_net_change_of_each_group_once() {
    use AggregateFunction::*;
    let calls = vec![call(CountStar, "", false), call(Sum, "v", false), call(Avg, "i", false)];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("+a 5, +b 7, +a 4"));
    assert_eq!(task.end().unwrap(), ["+I a|2|9|4", "+I b|1|7|7"]);
    task.rows(rows("+a -4, -b 7, +c 1, -c 1"));
    assert_eq!(task.end().unwrap(), ["-U a|2|9|4", "+U a|3|5|1", "-D b|1|7|7"]);
    task.rows(rows("+a 1, -a 1"));
    assert_eq!(task.end().unwrap(), [""; 0], "nothing changed");
    task.rows(rows("+b -, -a 5"));
    assert_eq!(task.end().unwrap(), ["+I b|1|NULL|NULL", "-U a|3|5|1", "+U a|2|0|0"]);
}

#[test]
fn an_upsert_consumer_gets_no_update_before() {
    let calls = vec![call(AggregateFunction::Count, "v", false)];
    let factory =
        GroupAggregateFactory { emit_update_before: false, ..factory(&["k"], calls, ChangelogMode::Retract) };
    let mut task = Task::new(&factory);
    task.rows(rows("+a 5"));
    task.end().unwrap();
    task.rows(rows("+a 5"));
    assert_eq!(task.end().unwrap(), ["+U a|2"]);
    task.rows(rows("-a 5, -a 5"));
    assert_eq!(task.end().unwrap(), ["-D a|2"]);
}

#[test]
fn a_global_aggregate_has_its_row_from_the_first_epoch_on() {
    use AggregateFunction::*;
    let calls = vec![call(CountStar, "", false), call(Sum, "v", false), call(Count, "v", true)];
    let factory = factory(&[], calls, ChangelogMode::Retract);
    let mut task = Task::new(&factory);
    assert_eq!(task.end().unwrap(), ["+I 0|NULL|0"]);
    task.rows(rows("+a 3, +b 3"));
    assert_eq!(task.end().unwrap(), ["-U 0|NULL|0", "+U 2|6|1"]);
    task.rows(rows("-a 3, -b 3"));
    assert_eq!(task.end().unwrap(), ["-U 2|6|1", "+U 0|NULL|0"]);
    let owners = (0..4).filter(|index| {
        let key_groups = KeyGroupRange::of_task(*index, 4, 256);
        let context = BuildContext { index: *index, parallelism: 4, max_parallelism: 256, key_groups };
        let mut task = Task { operator: factory.build(context).unwrap(), ..Task::new(&factory) };
        !task.end().unwrap().is_empty()
    });
    assert_eq!(owners.count(), 1);
}

#[test]
fn distinct_and_filter_count_what_they_should() {
    use AggregateFunction::*;
    let schema = input_schema();
    let big = binary(col("v", &schema).unwrap(), BinaryOperator::Gt, lit(2i64), &schema).unwrap();
    // 10 / v fails for v = 0, which the FILTER keeps away.
    let ratio = binary(lit(10i64), BinaryOperator::Divide, col("v", &schema).unwrap(), &schema).unwrap();
    let filtered = AggregateCall { filter: Some(big), arguments: vec![ratio], ..call(Sum, "v", false) };
    let calls = vec![call(Count, "v", true), call(Sum, "v", true), filtered, call(Avg, "d", true)];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("+a 5, +a 5, +a 0, +a -, +b 3"));
    assert_eq!(task.end().unwrap(), ["+I a|2|5|4|0.025000", "+I b|1|3|3|0.030000"]);
    task.rows(rows("-a 5"));
    assert_eq!(task.end().unwrap(), ["-U a|2|5|4|0.025000", "+U a|2|5|2|0.025000"]);
    task.rows(rows("-a 5, +b 3"));
    assert_eq!(
        task.end().unwrap(),
        ["-U a|2|5|2|0.025000", "+U a|1|0|NULL|0.000000", "-U b|1|3|3|0.030000", "+U b|1|3|6|0.030000"]
    );
    assert_eq!(task.operator.tables()[1].rows(), 2, "values without rows are gone");
}

#[test]
fn overflow_is_judged_on_the_emitted_value_only() {
    let calls = vec![call(AggregateFunction::Sum, "v", false)];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Append));
    let max = i64::MAX;
    task.rows(rows(&format!("+a {max}, +a {max}, +a -{max}")));
    assert_eq!(task.end().unwrap(), [format!("+I a|{max}")]);
    task.rows(rows("+a 1"));
    let error = task.end().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("SUM(v@1)"), "{error}");
    assert!(error.detail().unwrap().contains("9223372036854775808"), "{error}");
    assert!(error.detail().unwrap().contains("k = a"), "{error}");
}

#[test]
fn decimal_sums_are_exact_beyond_128_bits() {
    let schema = Arc::new(Schema::new(vec![Field::new("d", DataType::Decimal128(38, 0), true)]));
    let sum = AggregateCall {
        arguments: vec![col("d", &schema).unwrap()],
        output_type: DataType::Decimal128(38, 0),
        ..call(AggregateFunction::Sum, "d", false)
    };
    let set = AggregateSet::new(std::slice::from_ref(&sum), &schema, ChangelogMode::Append).unwrap();
    let schema_out = Arc::new(Schema::new(set.result_fields()));
    let factory = GroupAggregateFactory {
        keys: vec![],
        ttl: None,
        lasting: vec![Vec::new()],
        aggregates: vec![sum],
        input_schema: schema.clone(),
        schema: schema_out,
        emit_update_before: true,
        input_mode: ChangelogMode::Append,
    };
    let big = 10i128.pow(38) - 1;
    let values = [big, big, big, big, -big, -big, -big];
    let batch = |values: &[i128]| {
        let array =
            arrow::array::Decimal128Array::from(values.to_vec()).with_precision_and_scale(38, 0).unwrap();
        ChangelogBatch::append(RecordBatch::try_new(schema.clone(), vec![Arc::new(array)]).unwrap())
    };
    let mut task = Task::new(&factory);
    task.rows(batch(&values));
    assert_eq!(task.end().unwrap(), [format!("+I {big}")]);
    task.rows(batch(&[1]));
    assert_eq!(task.end().unwrap_err().kind(), ErrorKind::Data);
    let frozen = Task::freeze(&mut task);
    assert_eq!(frozen[0].upserts.column(2).as_primitive::<Decimal128Type>().value(0), big + 1);
}

#[test]
fn a_retraction_undoes_nan_and_infinity() {
    let calls = vec![call(AggregateFunction::Sum, "f", false), call(AggregateFunction::Avg, "f", false)];
    let mut task = Task::new(&factory(&[], calls, ChangelogMode::Retract));
    let batch = |kind: RowKind, values: &[f64]| {
        let empty = rows("+a 1").rows.slice(0, 0);
        let mut columns: Vec<ArrayRef> = empty
            .columns()
            .iter()
            .map(|c| arrow::array::new_null_array(c.data_type(), values.len()))
            .collect();
        columns[2] = Arc::new(Float64Array::from(values.to_vec()));
        ChangelogBatch::with_kinds(
            RecordBatch::try_new(input_schema(), columns).unwrap(),
            vec![kind; values.len()],
        )
    };
    task.rows(batch(RowKind::Insert, &[0.1, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]));
    assert_eq!(task.end().unwrap(), ["+I NaN|NaN"]);
    task.rows(batch(RowKind::Delete, &[f64::NAN, f64::NEG_INFINITY]));
    assert_eq!(task.end().unwrap(), ["-U NaN|NaN", "+U inf|inf"]);
    task.rows(batch(RowKind::Delete, &[f64::INFINITY, 1e300]));
    assert_eq!(task.end().unwrap(), ["-U inf|inf", "+U 0.1|0.1"]);
}

#[test]
fn the_next_extreme_takes_the_place_of_one_taken_back() {
    use AggregateFunction::{Count, CountStar, Max, Min};
    let calls = vec![
        call(Min, "v", false),
        call(Max, "v", false),
        call(Count, "v", true),
        call(CountStar, "", false),
    ];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("+a 5, +a 7, +a 7, +a -, +b 1"));
    assert_eq!(task.end().unwrap(), ["+I a|5|7|2|4", "+I b|1|1|1|1"]);
    task.rows(rows("-a 7"));
    assert_eq!(task.end().unwrap(), ["-U a|5|7|2|4", "+U a|5|7|2|3"]);
    task.rows(rows("-a 7, -a 5, +a 6, -a 6, -b 1"));
    assert_eq!(task.end().unwrap(), ["-U a|5|7|2|3", "+U a|NULL|NULL|0|1", "-D b|1|1|1|1"]);
    assert_eq!(task.operator.tables().len(), 2, "DISTINCT shares the values of MIN and MAX");
    assert_eq!(task.operator.tables()[1].rows(), 0, "values without rows are gone");
}

#[test]
fn rows_are_kept_in_order_of_arrival() {
    use AggregateFunction::{ArrayAgg, FirstValue, LastValue};
    let calls = vec![
        call(FirstValue, "v", false),
        call(LastValue, "v", false),
        call(ArrayAgg, "v", false),
        call(ArrayAgg, "v", true),
    ];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("+a 5, +a -, +a 7, +a 5"));
    assert_eq!(task.end().unwrap(), ["+I a|5|5|[5, , 7, 5]|[5, , 7]"]);
    task.rows(rows("-a 5, +a 9"));
    assert_eq!(task.end().unwrap(), ["-U a|5|5|[5, , 7, 5]|[5, , 7]", "+U a|7|9|[, 7, 5, 9]|[5, , 7, 9]"]);
    task.rows(rows("-a 7, -a -, -a 5, -a 9"));
    assert_eq!(task.end().unwrap(), ["-D a|7|9|[, 7, 5, 9]|[5, , 7, 9]"]);
    assert!(task.operator.tables().iter().all(|table| table.rows() == 0));
}

#[test]
fn a_deletion_without_its_row_is_an_error() {
    let calls = vec![call(AggregateFunction::CountStar, "", false)];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("-a 1"));
    let error = task.end().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.detail().unwrap().contains("k = a: it has -1 rows"), "{error}");
}

/// A value that is not there is missed although the group has rows; so is a row, wherever it counts.
#[test]
fn a_value_is_not_taken_back_from_others() {
    use AggregateFunction::{ArrayAgg, Max, Min, Sum};
    for call in
        [call(Min, "v", false), call(Max, "v", true), call(Sum, "v", true), call(ArrayAgg, "v", false)]
    {
        let mut task = Task::new(&factory(&["k"], vec![call], ChangelogMode::Retract));
        task.rows(rows("+a 7, -a 5"));
        task.rows(rows("+a 8"));
        let error = task.end().unwrap_err();
        assert!(error.detail().unwrap().contains("k = a: a value is taken back"), "{error}");
    }
}

/// Within an epoch a row may be taken back before it comes.
#[test]
fn what_is_taken_back_may_come_later_in_its_epoch() {
    use AggregateFunction::{ArrayAgg, Count, Min};
    let calls = vec![call(Min, "v", false), call(Count, "v", true), call(ArrayAgg, "v", false)];
    let mut task = Task::new(&factory(&["k"], calls, ChangelogMode::Retract));
    task.rows(rows("+a 7"));
    task.rows(rows("-a 5, -b 1"));
    task.rows(rows("+a 5, +a 8, +b 1"));
    assert_eq!(task.end().unwrap(), ["+I a|7|2|[7, 8]"]);
    task.rows(rows("-a 7, -a 8"));
    assert_eq!(task.end().unwrap(), ["-D a|7|2|[7, 8]"]);
    assert!(task.operator.tables().iter().all(|table| table.rows() == 0));
}

/// An update of a forgotten group begins it anew, also where no value tells the rows apart.
#[test]
fn an_update_of_what_was_forgotten_is_a_new_row() {
    use AggregateFunction::{CountStar, Sum};
    let calls = vec![call(CountStar, "", false), call(Sum, "v", false)];
    let factory =
        GroupAggregateFactory { ttl: Some(2_000_000), ..factory(&["k"], calls, ChangelogMode::Retract) };
    let mut task = Task::new(&factory);
    task.rows(rows("-a 5, +a 7"));
    assert_eq!(task.end().unwrap(), ["+I a|1|7"]);
    assert_eq!(task.ctx.metrics.rejected.value(), 1);
}

/// What may have been forgotten is not taken back from what came since.
#[test]
fn a_stray_leaves_a_living_group_as_it_is() {
    use AggregateFunction::{ArrayAgg, Count, CountStar, Max, Min, Sum};
    let calls = vec![
        call(CountStar, "", false),
        call(Sum, "v", false),
        call(Min, "v", false),
        call(Max, "v", false),
        call(Count, "v", true),
        call(ArrayAgg, "v", false),
        call(ArrayAgg, "v", true),
    ];
    let factory =
        GroupAggregateFactory { ttl: Some(2_000_000), ..factory(&["k"], calls, ChangelogMode::Retract) };
    let mut task = Task::new(&factory);
    task.rows(rows("+a 7, +a 8, -a 5"));
    assert_eq!(task.end().unwrap(), ["+I a|2|15|7|8|2|[7, 8]|[7, 8]"]);
    task.rows(rows("-a 7, -a 7"));
    assert_eq!(task.end().unwrap(), ["-U a|2|15|7|8|2|[7, 8]|[7, 8]", "+U a|1|8|8|8|1|[8]|[8]"]);
    assert_eq!(task.ctx.metrics.rejected.value(), 2);
    // Once more after its time, in a batch that comes before the epoch ends.
    task.ctx.time = Timestamp(9_000_000);
    task.rows(rows("-a 8, +a 9, +a 9, -a 9"));
    assert_eq!(task.end_at(9).unwrap(), ["+I a|1|9|9|9|1|[9]|[9]"]);
    assert_eq!(task.ctx.metrics.rejected.value(), 3);
    assert!(task.operator.tables().iter().all(|table| table.rows() == 1), "no stray has a row");
    let at = |task: &mut Task, time| {
        task.ctx.time = Timestamp(time);
        task.operator.end_epoch(&mut task.ctx, None, Timestamp(time)).unwrap().wake_at
    };
    let wake = at(&mut task, 10_000_000).unwrap();
    assert!(wake > Timestamp(11_000_000) && wake < Timestamp(11_500_000), "{wake:?}");
    assert_eq!(at(&mut task, wake.0), None);
    assert!(task.operator.tables().iter().all(|table| table.rows() == 0), "nothing need come for that");
}

#[test]
fn many_groups_come_in_bounded_batches() {
    let calls = vec![call(AggregateFunction::CountStar, "", false)];
    let mut task = Task::new(&factory(&["v"], calls, ChangelogMode::Append));
    let text: Vec<String> = (0..20_000).map(|i| format!("+a {i}")).collect();
    task.rows(rows(&text.join(", ")));
    assert_eq!(task.end().unwrap().len(), 20_000);
    task.rows(rows(&text.join(", ")));
    assert_eq!(task.end().unwrap().len(), 40_000);
}

/// Folds a changelog of strings to the rows it leaves.
fn fold(said: &[String]) -> Vec<String> {
    let mut left = std::collections::BTreeMap::<String, i64>::new();
    for change in said {
        let (kind, row) = change.split_at(3);
        *left.entry(row.into()).or_default() += if kind.starts_with('+') { 1 } else { -1 };
    }
    left.into_iter().filter(|(_, count)| *count != 0).map(|(row, count)| format!("{row} x{count}")).collect()
}

#[test]
fn epochs_and_restores_do_not_change_the_folded_result() {
    use AggregateFunction::*;
    let calls = || {
        vec![
            call(CountStar, "", false),
            call(Sum, "v", false),
            call(Avg, "d", false),
            call(Count, "v", true),
            call(Sum, "v", true),
            call(Sum, "f", false),
            call(Min, "v", false),
            call(Max, "f", false),
            call(Min, "d", true),
            call(BitOr, "v", false),
            call(FirstValue, "v", false),
            call(LastValue, "d", false),
            call(ArrayAgg, "v", false),
            call(ArrayAgg, "d", true),
            call(Mode, "i", false),
            call(Collect, "k", false),
            call(Moment(crate::aggregate::Moment::StddevPop), "v", false),
            call(CoMoment(crate::aggregate::CoMoment::Corr), "v f", false),
        ]
    };
    let factory = factory(&["k"], calls(), ChangelogMode::Retract);
    let mut seed = 7u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut alive: Vec<String> = Vec::new();
    let script: Vec<String> = (0..400)
        .map(|_| {
            if !alive.is_empty() && random(3) == 0 {
                let row = alive.swap_remove(random(alive.len() as u64) as usize);
                return format!("-{row}");
            }
            let row = format!("k{} {}", random(6), random(5));
            alive.push(row.clone());
            format!("+{row}")
        })
        .collect();
    let run = |epoch: usize, restore_every: usize| {
        let mut task = Task::new(&factory);
        let mut stored: Vec<Vec<Delta>> = Vec::new();
        let mut said = Vec::new();
        for (number, chunk) in script.chunks(epoch).enumerate() {
            task.rows(rows(&chunk.join(", ")));
            said.extend(task.end().unwrap());
            if number % restore_every == restore_every - 1 {
                stored.push(task.freeze());
                task = Task::new(&factory);
                load(&mut task, &stored);
            }
        }
        fold(&said)
    };
    let expected = run(400, 1000);
    assert!(expected.len() > 2);
    for (epoch, restore_every) in [(1, 1000), (1, 1), (7, 3), (50, 1)] {
        assert_eq!(run(epoch, restore_every), expected, "epochs of {epoch}");
    }
}

/// Loads what a store would give back: the deltas folded by identity.
fn load(task: &mut Task, stored: &[Vec<Delta>]) {
    for (index, table) in task.operator.tables().into_iter().enumerate() {
        let identity = table.def().identity_columns;
        let mut live = std::collections::BTreeMap::new();
        let key = |batch: &RecordBatch, row: usize| {
            let columns = batch.columns()[..identity].iter();
            columns.map(|c| array_value_to_string(c, row).unwrap()).collect::<Vec<_>>()
        };
        for delta in stored.iter().map(|deltas| &deltas[index]) {
            (0..delta.deletes.num_rows()).for_each(|row| {
                assert!(live.remove(&key(&delta.deletes, row)).is_some(), "only stored rows are deleted");
            });
            (0..delta.upserts.num_rows()).for_each(|row| {
                live.insert(key(&delta.upserts, row), delta.upserts.slice(row, 1));
            });
        }
        for row in live.values() {
            table.load(row, ALL).unwrap();
        }
    }
    task.operator.restored(None).unwrap();
}

#[test]
fn counts_are_bigint() {
    let calls = vec![call(AggregateFunction::CountStar, "", false)];
    let mut task = Task::new(&factory(&[], calls, ChangelogMode::Append));
    task.operator.end_epoch(&mut task.ctx, None, Timestamp(0)).unwrap();
    let batch = task.ctx.take_output().unwrap();
    assert_eq!(batch.rows.column(0).as_primitive::<Int64Type>().values(), &[0]);
}

/// With a time to live, groups go without a word, their side tables with them, and what would take
/// them back then is ignored and counted.
#[test]
fn groups_live_for_a_time() {
    use AggregateFunction::*;
    let calls = || {
        vec![call(CountStar, "", false), call(Sum, "v", false), call(Min, "v", false), call(Count, "v", true)]
    };
    let factory =
        GroupAggregateFactory { ttl: Some(2_000_000), ..factory(&["k"], calls(), ChangelogMode::Retract) };
    let mut task = Task::new(&factory);
    task.ctx.time = Timestamp(0);
    task.rows(rows("+a 5, +b 1, +b 1"));
    assert_eq!(task.end_at(1).unwrap(), ["+I a|1|5|5|1", "+I b|2|2|1|1"]);
    task.rows(rows("+b 3"));
    assert_eq!(task.end_at(2).unwrap(), ["-U b|2|2|1|1", "+U b|3|5|1|2"]);
    assert_eq!(task.end_at(3).unwrap(), [""; 0], "a is gone, and nothing says so");
    let sizes: Vec<usize> = task.operator.tables().iter().map(|table| table.rows()).collect();
    assert_eq!(sizes[0], 1);
    assert!(sizes[1..].iter().all(|rows| *rows == 2), "of b only: {sizes:?}");
    task.rows(rows("-a 5, +a 7, -c 1, -c 2, +c 3, -c 3"));
    assert_eq!(task.end_at(3).unwrap(), ["+I a|1|7|7|1"]);
    assert_eq!(task.ctx.metrics.rejected.value(), 3);
    task.rows(rows("-a 7, -b 1"));
    assert_eq!(task.end_at(4).unwrap(), ["-D a|1|7|7|1", "-U b|3|5|1|2", "+U b|2|4|1|2"]);
    // Its age outlives a restart.
    let frozen = task.freeze();
    let mut task = Task::new(&factory);
    for (table, delta) in task.operator.tables().into_iter().zip(&frozen) {
        table.load(&delta.upserts, ALL).unwrap();
    }
    task.operator.restored(None).unwrap();
    assert_eq!(task.operator.tables()[0].rows(), 1);
    task.ctx.time = Timestamp(5_000_000);
    assert_eq!(task.end_at(5).unwrap(), [""; 0]);
    assert_eq!(task.operator.tables()[0].rows(), 1);
    assert_eq!(task.end_at(7).unwrap(), [""; 0]);
    assert!(task.operator.tables().iter().all(|table| table.rows() == 0));
    task.rows(rows("+b 9"));
    assert_eq!(task.end_at(7).unwrap(), ["+I b|1|9|9|1"]);
}
