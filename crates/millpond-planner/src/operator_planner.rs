//! Binary operators that mean something else here than in stock DataFusion.
//!
//! - `n * INTERVAL '1' MINUTE`: an interval can be multiplied by a whole number, as in Flink.
//! - Comparisons of FLOAT and DOUBLE are IEEE's: every one with NaN is false, except `<>`. Arrow
//!   compares by a total order in which NaN is the largest value, so each comparison gets the
//!   missing condition. Equality of two columns stays Arrow's: it may be a join key, and for keys
//!   NaN equals NaN.
//! - `LIKE … ESCAPE 'c'` becomes LIKE with backslashes, the only escape that the kernel knows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::functions::expr_fn::isnan;
use datafusion::logical_expr::expr::{Like, ScalarFunction};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast,
};
use millpond_core::{Error, Result};
use sqlparser::ast::BinaryOperator;

use crate::plan_error::{carried, from_datafusion};

/// Plans our binary operators; the others are left to DataFusion.
#[derive(Debug)]
pub(crate) struct StreamOperators;

impl ExprPlanner for StreamOperators {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>, DataFusionError> {
        if expr.op == BinaryOperator::Multiply {
            return Ok(scaled_interval(expr, schema));
        }
        Ok(match comparison(&expr.op) {
            Some(operator) => compared(expr, operator, schema),
            None => PlannerResult::Original(expr),
        })
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

/// The plan with every `LIKE … ESCAPE` written with backslashes.
pub(crate) fn with_plain_likes(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let node = node.map_expressions(|expr| expr.transform_up(plain_like))?;
        Ok(node)
    });
    Ok(rewritten.map_err(from_datafusion)?.data)
}

fn plain_like(expr: Expr) -> Result<Transformed<Expr>, DataFusionError> {
    let Expr::Like(like) = expr else { return Ok(Transformed::no(expr)) };
    let Some(escape) = like.escape_char.filter(|escape| *escape != '\\') else {
        return Ok(Transformed::no(Expr::Like(like)));
    };
    let Expr::Literal(ScalarValue::Utf8(Some(pattern)), metadata) = *like.pattern else {
        return Err(carried(Error::invalid("LIKE … ESCAPE needs a pattern that is a constant text")));
    };
    let pattern = plain_pattern(&pattern, escape).map_err(carried)?;
    let pattern = Box::new(Expr::Literal(ScalarValue::Utf8(Some(pattern)), metadata));
    Ok(Transformed::yes(Expr::Like(Like { pattern, escape_char: None, ..like })))
}

fn plain_pattern(pattern: &str, escape: char) -> Result<String> {
    let mut plain = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c == escape => match chars.next() {
                Some(next) if next == '%' || next == '_' => plain.extend(['\\', next]),
                Some(next) if next == escape => plain.push(next),
                _ => {
                    return Err(Error::invalid(format!("the LIKE pattern {pattern:?} is wrong"))
                        .with_hint(format!("'{escape}' escapes %, _ and itself only")));
                }
            },
            '\\' => plain.push_str("\\\\"),
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_backslashes() {
        assert_eq!(plain_pattern("a!_b%", '!').unwrap(), "a\\_b%");
        assert_eq!(plain_pattern("a!!b\\", '!').unwrap(), "a!b\\\\");
        assert!(plain_pattern("a!b", '!').is_err());
        assert!(plain_pattern("a!", '!').is_err());
    }

    #[test]
    fn an_interval_is_multiplied_part_by_part() {
        let interval = IntervalMonthDayNano { months: 1, days: -2, nanoseconds: 3 };
        assert_eq!(scaled(-2, interval), Some(IntervalMonthDayNano { months: -2, days: 4, nanoseconds: -6 }));
        assert_eq!(scaled(i64::MAX, interval), None);
    }
}
