//! Binary operators that mean something else here than in stock DataFusion.
//!
//! - `n * INTERVAL '1' MINUTE`: an interval can be multiplied by a whole number, as in Flink.
//! - Comparisons of FLOAT and DOUBLE are IEEE's: every one with NaN is false, except `<>`. Arrow
//!   compares by a total order in which NaN is the largest value, so each comparison gets the
//!   missing condition. Equality of two columns stays Arrow's: it may be a join key, and for keys
//!   NaN equals NaN.
//! - Arithmetic of numbers has Flink's result types and fails where it would wrap.
//! - A text that is compared with a number, truth or time is read as one, as in Flink.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::functions::expr_fn::isnan;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, cast,
};
use millpond_core::Error;
use sqlparser::ast::BinaryOperator;

use crate::plan_error::carried;
use crate::scalar_function::{Operation, are_numbers, operation};
use crate::sql_type::sql_type;

/// Plans our binary operators; the others are left to DataFusion.
#[derive(Debug)]
pub(crate) struct StreamOperators;

impl ExprPlanner for StreamOperators {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>, DataFusionError> {
        if let Some(operation) = arithmetic(&expr.op) {
            check_operands(&expr, schema)?;
            return Ok(computed(expr, operation, schema));
        }
        if expr.op == BinaryOperator::StringConcat {
            check_texts(&expr, schema)?;
        }
        Ok(match comparison(&expr.op) {
            Some(operator) => compared(with_text_read(expr, schema), operator, schema),
            None => PlannerResult::Original(expr),
        })
    }
}

fn arithmetic(operator: &BinaryOperator) -> Option<Operation> {
    match operator {
        BinaryOperator::Plus => Some(Operation::Plus),
        BinaryOperator::Minus => Some(Operation::Minus),
        BinaryOperator::Multiply => Some(Operation::Times),
        BinaryOperator::Divide => Some(Operation::Divide),
        BinaryOperator::Modulo => Some(Operation::Remainder),
        _ => None,
    }
}

/// Arithmetic is of numbers, or of times and intervals.
fn check_operands(expr: &RawBinaryExpr, schema: &DFSchema) -> Result<(), DataFusionError> {
    let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
        return Ok(());
    };
    let is_operand = |side: &DataType| side.is_numeric() || side.is_temporal() || side.is_null();
    let is_interval = |side: &DataType| matches!(side, DataType::Interval(_) | DataType::Duration(_));
    let time_and_number = |a: &DataType, b: &DataType| {
        matches!(a, DataType::Timestamp(_, _) | DataType::Time32(_) | DataType::Time64(_)) && b.is_numeric()
    };
    let mixed = time_and_number(&left, &right) || time_and_number(&right, &left);
    if is_operand(&left) && is_operand(&right) && !mixed {
        return Ok(());
    }
    let error = undefined(&left, &expr.op, &right);
    Err(carried(match mixed || is_interval(&left) || is_interval(&right) {
        true => error.with_hint("times are moved by intervals, as in ts + INTERVAL '1' DAY"),
        false => error.with_hint("CAST one of them"),
    }))
}

/// `||` joins texts, or a text and what can be shown as one, or arrays.
fn check_texts(expr: &RawBinaryExpr, schema: &DFSchema) -> Result<(), DataFusionError> {
    let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
        return Ok(());
    };
    let joins = |side: &DataType| {
        matches!(side, DataType::Utf8 | DataType::List(_) | DataType::Binary) || side.is_null()
    };
    match joins(&left) || joins(&right) {
        true => Ok(()),
        false => Err(carried(undefined(&left, &expr.op, &right).with_hint("CAST one of them to STRING"))),
    }
}

fn undefined(left: &DataType, operator: &BinaryOperator, right: &DataType) -> Error {
    Error::invalid(format!("{} {operator} {} is not defined", sql_type(left), sql_type(right)))
}

fn computed(expr: RawBinaryExpr, operator: Operation, schema: &DFSchema) -> PlannerResult<RawBinaryExpr> {
    match (expr.left.get_type(schema), expr.right.get_type(schema)) {
        (Ok(left), Ok(right)) if are_numbers(&left, &right) => {
            PlannerResult::Planned(operation(operator, expr.left, expr.right))
        }
        _ if operator == Operation::Times => scaled_interval(expr, schema),
        _ => PlannerResult::Original(expr),
    }
}

/// A text on one side becomes what is on the other: `number = '7'`.
fn with_text_read(expr: RawBinaryExpr, schema: &DFSchema) -> RawBinaryExpr {
    let RawBinaryExpr { op, left, right } = expr;
    let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema)) else {
        return RawBinaryExpr { op, left, right };
    };
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8);
    let is_read = |data_type: &DataType| {
        data_type.is_numeric()
            || *data_type == DataType::Boolean
            || matches!(data_type, DataType::Date32 | DataType::Time32(_) | DataType::Time64(_))
            || matches!(data_type, DataType::Timestamp(_, _))
    };
    match (is_text(&a) && is_read(&b), is_text(&b) && is_read(&a)) {
        (true, _) => RawBinaryExpr { op, left: cast(left, read_as(&b)), right },
        (_, true) => RawBinaryExpr { op, left, right: cast(right, read_as(&a)) },
        _ => RawBinaryExpr { op, left, right },
    }
}

/// As which type a text is read that stands beside a value of this type.
fn read_as(data_type: &DataType) -> DataType {
    match data_type {
        // A text may have decimal places, which must not be lost.
        number if number.is_integer() => DataType::Decimal128(38, 18),
        DataType::Decimal128(_, _) => DataType::Decimal128(38, 18),
        DataType::Float32 => DataType::Float64,
        other => other.clone(),
    }
}

fn scaled_interval(expr: RawBinaryExpr, schema: &DFSchema) -> PlannerResult<RawBinaryExpr> {
    let is_interval = |side: &Expr| matches!(side.get_type(schema), Ok(DataType::Interval(_)));
    let is_whole = |side: &Expr| side.get_type(schema).is_ok_and(|data_type| data_type.is_integer());
    let (number, interval) = if is_whole(&expr.left) && is_interval(&expr.right) {
        (expr.left, expr.right)
    } else if is_interval(&expr.left) && is_whole(&expr.right) {
        (expr.right, expr.left)
    } else {
        return PlannerResult::Original(expr);
    };
    let interval = cast(interval, DataType::Interval(IntervalUnit::MonthDayNano));
    let arguments = vec![cast(number, DataType::Int64), interval];
    let function = Arc::new(ScalarUDF::from(ScaleInterval::new()));
    PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction::new_udf(function, arguments)))
}

fn comparison(operator: &BinaryOperator) -> Option<Operator> {
    match operator {
        BinaryOperator::Gt => Some(Operator::Gt),
        BinaryOperator::GtEq => Some(Operator::GtEq),
        BinaryOperator::Lt => Some(Operator::Lt),
        BinaryOperator::LtEq => Some(Operator::LtEq),
        BinaryOperator::Eq => Some(Operator::Eq),
        BinaryOperator::NotEq => Some(Operator::NotEq),
        _ => None,
    }
}

fn compared(expr: RawBinaryExpr, operator: Operator, schema: &DFSchema) -> PlannerResult<RawBinaryExpr> {
    let is_float = |side: &Expr| side.get_type(schema).is_ok_and(|data_type| data_type.is_floating());
    let is_key = |side: &Expr| side.any_column_refs();
    let between_columns = is_key(&expr.left) && is_key(&expr.right);
    let volatile = expr.left.is_volatile() || expr.right.is_volatile();
    let equality = matches!(operator, Operator::Eq | Operator::NotEq);
    if !(is_float(&expr.left) || is_float(&expr.right)) || volatile || (equality && between_columns) {
        return PlannerResult::Original(expr);
    }
    // In the total order NaN is largest, so only one side of each comparison can be true with it.
    let suspect = match operator {
        Operator::Lt | Operator::LtEq => expr.right.clone(),
        _ => expr.left.clone(),
    };
    let nan = isnan(cast(suspect, DataType::Float64));
    let compared = Expr::BinaryExpr(BinaryExpr::new(Box::new(expr.left), operator, Box::new(expr.right)));
    PlannerResult::Planned(match operator {
        Operator::NotEq => compared.or(nan),
        _ => compared.and(Expr::Not(Box::new(nan))),
    })
}

/// `n * interval`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ScaleInterval {
    signature: Signature,
}

impl ScaleInterval {
    fn new() -> Self {
        let types = vec![DataType::Int64, DataType::Interval(IntervalUnit::MonthDayNano)];
        Self { signature: Signature::exact(types, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for ScaleInterval {
    fn name(&self) -> &str {
        "scale_interval"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::Interval(IntervalUnit::MonthDayNano))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let numbers = arguments.args[0].to_array(arguments.number_rows)?;
        let intervals = arguments.args[1].to_array(arguments.number_rows)?;
        let numbers = numbers.as_primitive::<Int64Type>();
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        let scaled: PrimitiveArray<IntervalMonthDayNanoType> =
            numbers.iter().zip(intervals.iter()).map(|(n, interval)| scaled(n?, interval?)).collect();
        if scaled.null_count()
            > arrow::compute::or(&arrow::compute::is_null(numbers)?, &arrow::compute::is_null(intervals)?)?
                .true_count()
        {
            return Err(carried(Error::data("an interval times a number is out of range")));
        }
        Ok(ColumnarValue::Array(Arc::new(scaled) as ArrayRef))
    }
}

/// `None` if a part overflows.
fn scaled(number: i64, interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let small = |part: i32| i64::from(part).checked_mul(number).and_then(|part| i32::try_from(part).ok());
    Some(IntervalMonthDayNano {
        months: small(interval.months)?,
        days: small(interval.days)?,
        nanoseconds: interval.nanoseconds.checked_mul(number)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_multiplied_part_by_part() {
        let interval = IntervalMonthDayNano { months: 1, days: -2, nanoseconds: 3 };
        assert_eq!(scaled(-2, interval), Some(IntervalMonthDayNano { months: -2, days: 4, nanoseconds: -6 }));
        assert_eq!(scaled(i64::MAX, interval), None);
    }
}
