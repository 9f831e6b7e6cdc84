//! Tests of `calc`.

use arrow::array::{AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit, TimestampMillisecondType};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, Operator as Op, Volatility, create_udf};
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use millpond_core::{ErrorKind, OperatorMetrics, RowKind, Timestamp};

use super::*;

fn schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

fn column(name: &str, index: usize) -> Expression {
    Arc::new(Column::new(name, index))
}

fn literal(value: i64) -> Expression {
    Arc::new(Literal::new(ScalarValue::Int64(Some(value))))
}

fn binary(left: Expression, op: Op, right: Expression) -> Expression {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// A function that only marks a place: its body must never run.
fn marker(name: &str) -> Expression {
    let data_type = DataType::Timestamp(TimeUnit::Millisecond, None);
    let body =
        Arc::new(|_: &[ColumnarValue]| Err(datafusion::common::DataFusionError::Internal("unbound".into())));
    let function = create_udf(name, vec![], data_type.clone(), Volatility::Volatile, body);
    let field = Arc::new(Field::new(name, data_type, true));
    Arc::new(ScalarFunctionExpr::new(name, Arc::new(function), vec![], field, Arc::new(ConfigOptions::new())))
}

fn numbers(a: &[i64], b: &[Option<i64>]) -> RecordBatch {
    let schema =
        schema(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int64, true)]);
    RecordBatch::try_new(
        schema,
        vec![Arc::new(Int64Array::from(a.to_vec())), Arc::new(Int64Array::from(b.to_vec()))],
    )
    .unwrap()
}

fn calc(filter: Option<Expression>, projection: Vec<Expression>) -> Calc {
    let names = ["x", "y"];
    let fields = projection.iter().zip(names).map(|(e, name)| {
        let input = Schema::new(vec![
            Field::new("a", DataType::Int64, false),
            Field::new("b", DataType::Int64, true),
        ]);
        Field::new(name, e.data_type(&input).unwrap(), true)
    });
    let schema = schema(fields.collect());
    Calc::new(&CalcFactory { filter, projection, schema }).unwrap()
}

fn context() -> OperatorContext {
    OperatorContext::new(Arc::new(OperatorMetrics::default()))
}

fn int_column(batch: &ChangelogBatch, column: usize) -> Vec<Option<i64>> {
    batch.rows.column(column).as_primitive::<Int64Type>().iter().collect()
}

#[test]
fn rows_that_pass_keep_kinds_and_tags() {
    let mut calc = calc(
        Some(binary(column("b", 1), Op::Gt, literal(1))),
        vec![binary(column("b", 1), Op::Multiply, literal(10)), column("a", 0)],
    );
    let (ctx, tag) = (context(), Timestamp(7));
    let kinds = vec![RowKind::Insert, RowKind::UpdateBefore, RowKind::UpdateAfter, RowKind::Delete];
    let mut batch =
        ChangelogBatch::with_kinds(numbers(&[1, 2, 3, 4], &[Some(2), None, Some(1), Some(5)]), kinds);
    batch.late = Some(vec![Timestamp::MIN, tag, tag, tag].into());
    let output = calc.apply(&ctx, batch).unwrap();
    assert_eq!(int_column(&output, 0), [Some(20), Some(50)]);
    assert_eq!(int_column(&output, 1), [Some(1), Some(4)]);
    assert_eq!((output.kind(0), output.kind(1)), (RowKind::Insert, RowKind::Delete));
    assert_eq!((output.late_tag(0), output.late_tag(1)), (Timestamp::MIN, tag));
    assert_eq!((ctx.metrics.filtered.value(), ctx.metrics.accepted.value()), (2, 2));
}

#[test]
fn the_filter_shields_the_projection() {
    let mut calc = calc(
        Some(binary(column("a", 0), Op::NotEq, literal(0))),
        vec![binary(literal(12), Op::Divide, column("a", 0))],
    );
    let batch = ChangelogBatch::append(numbers(&[0, 3], &[None, None]));
    assert_eq!(int_column(&calc.apply(&context(), batch).unwrap(), 0), [Some(4)]);
}

#[test]
fn an_error_names_the_expression_and_the_row() {
    let mut calc = calc(None, vec![binary(column("b", 1), Op::Divide, column("a", 0))]);
    let batch = ChangelogBatch::append(numbers(&[1, 0], &[Some(5), Some(6)]));
    let error = calc.apply(&context(), batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("b / a"), "{error}");
    assert!(error.detail().unwrap().contains("a = 0, b = 6"), "{error}");
}

#[test]
fn functions_of_the_epoch_read_its_time_and_watermark() {
    let mut calc = calc(None, vec![marker("now"), marker("current_watermark")]);
    let read = |calc: &mut Calc, ctx: &OperatorContext| -> Vec<Option<i64>> {
        let output = calc.apply(ctx, ChangelogBatch::append(numbers(&[1], &[None]))).unwrap();
        let first = |c: usize| {
            let values: &TimestampMillisecondArray =
                output.rows.column(c).as_primitive::<TimestampMillisecondType>();
            values.iter().next().unwrap()
        };
        vec![first(0), first(1)]
    };
    let mut ctx = context();
    ctx.time = Timestamp::from_millis(1500);
    assert_eq!(read(&mut calc, &ctx), [Some(1500), None]);
    ctx.time = Timestamp::from_millis(1600);
    ctx.watermark = Some(Timestamp::from_millis(900));
    assert_eq!(read(&mut calc, &ctx), [Some(1600), Some(900)]);
}

#[test]
fn a_constant_projection_keeps_the_number_of_rows() {
    let mut calc = calc(None, vec![literal(1)]);
    let output = calc.apply(&context(), ChangelogBatch::append(numbers(&[1, 2, 3], &[None; 3]))).unwrap();
    assert_eq!(int_column(&output, 0), [Some(1); 3]);
}
