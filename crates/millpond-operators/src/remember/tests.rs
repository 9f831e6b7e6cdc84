//! Tests of `remember`.

use super::*;

use arrow::array::TimestampMicrosecondArray;
use arrow::datatypes::{Schema, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_expr::ScalarFunctionExpr;
use millpond_core::RowKind::{self, Delete, Insert, UpdateAfter, UpdateBefore};
use millpond_core::{ErrorKind, KeyGroupRange, OperatorMetrics, Timestamp};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

/// Rows of a key and a number, beside which the time of their epoch is remembered.
fn factory() -> RememberFactory {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let body =
        Arc::new(|_: &[ColumnarValue]| Err(datafusion::common::DataFusionError::Internal("unbound".into())));
    let now = create_udf("now", vec![], time.clone(), Volatility::Volatile, body);
    let field = Arc::new(Field::new("now", time.clone(), true));
    let now: Expression = Arc::new(ScalarFunctionExpr::new(
        "now",
        Arc::new(now),
        vec![],
        field,
        Arc::new(ConfigOptions::new()),
    ));
    let input = vec![Field::new("k", DataType::Int64, true), Field::new("v", DataType::Int64, true)];
    let mut output = input.clone();
    output.push(Field::new("at", time, true));
    RememberFactory {
        key: vec![0],
        computed: vec![now],
        input_schema: Arc::new(Schema::new(input)),
        schema: Arc::new(Schema::new(output)),
    }
}

fn build() -> (Box<dyn Operator>, OperatorContext) {
    let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
    (factory().build(context).unwrap(), OperatorContext::new(Arc::new(OperatorMetrics::default())))
}

/// What is said of these rows at this time: kind, number, remembered time.
fn said(
    (operator, ctx): &mut (Box<dyn Operator>, OperatorContext),
    at: i64,
    rows: &[(RowKind, i64, i64)],
) -> Result<Vec<(RowKind, i64, i64)>> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    let rows_of = RecordBatch::try_new(factory().input_schema, columns).unwrap();
    let kinds: Vec<RowKind> = rows.iter().map(|row| row.0).collect();
    ctx.time = Timestamp(at);
    operator.process(ctx, 0, ChangelogBatch::with_kinds(rows_of, kinds))?;
    let Some(batch) = ctx.take_output() else { return Ok(Vec::new()) };
    let numbers = batch.rows.column(1).as_primitive::<Int64Type>().clone();
    let times = batch.rows.column(2).as_any().downcast_ref::<TimestampMicrosecondArray>().unwrap().clone();
    Ok((0..batch.num_rows()).map(|row| (batch.kind(row), numbers.value(row), times.value(row))).collect())
}

#[test]
fn a_retraction_has_the_values_that_its_row_was_given() {
    let mut task = build();
    said(&mut task, 1, &[(Insert, 1, 10), (Insert, 2, 20)]).unwrap();
    assert_eq!(
        said(&mut task, 2, &[(UpdateBefore, 1, 10), (UpdateAfter, 1, 11), (Delete, 2, 20)]).unwrap(),
        [(UpdateBefore, 10, 1), (UpdateAfter, 11, 2), (Delete, 20, 1)]
    );
    assert_eq!(said(&mut task, 3, &[(Delete, 1, 11)]).unwrap(), [(Delete, 11, 2)]);
}

#[test]
fn the_new_row_of_a_key_may_come_before_the_old_one_goes() {
    let mut task = build();
    said(&mut task, 1, &[(Insert, 1, 10)]).unwrap();
    assert_eq!(
        said(&mut task, 2, &[(Insert, 1, 11), (Delete, 1, 10)]).unwrap(),
        [(Insert, 11, 2), (Delete, 10, 1)]
    );
}

#[test]
fn equal_rows_go_one_by_one_each_with_its_own_values() {
    let mut task = build();
    said(&mut task, 1, &[(Insert, 1, 10)]).unwrap();
    said(&mut task, 2, &[(Insert, 1, 10)]).unwrap();
    let mut gone = said(&mut task, 3, &[(Delete, 1, 10), (Delete, 1, 10)]).unwrap();
    gone.sort_by_key(|row| row.2);
    assert_eq!(gone, [(Delete, 10, 1), (Delete, 10, 2)]);
}

#[test]
fn a_row_that_never_came_cannot_go() {
    let mut task = build();
    let error = said(&mut task, 1, &[(Delete, 1, 10)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
}
