//! A DECIMAL beside a DOUBLE or FLOAT is taken as a DOUBLE, as in Flink; the planner would round the
//! DOUBLE to a DECIMAL, in which most of them have no place.
//!
//! ```text
//! d > 0.0           d > CAST(0.0 AS DOUBLE)
//! COALESCE(d, 1.0)  COALESCE(d, CAST(1.0 AS DOUBLE))
//! a UNION ALL b     columns of one branch cast, where the other's are DOUBLE
//! VALUES (1.5), (2e0)   VALUES (CAST(1.5 AS DOUBLE)), (2e0)
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, Union, cast,
};
use sqlparser::ast::{self, ExactNumberInfo, SetExpr};

use crate::ast_walk::each_query;

/// Functions whose arguments become one type.
const CHOICES: &[&str] = &["coalesce", "greatest", "ifnull", "least", "nullif", "nvl"];

/// Numbers written in a column of VALUES that also holds a DOUBLE: the planner types the rows as it
/// binds them.
pub(crate) fn values_with_doubles(query: &mut ast::Query) {
    each_query(query, &mut |query| {
        let SetExpr::Values(values) = query.body.as_mut() else { return };
        for place in 0..values.rows.first().map_or(0, |row| row.len()) {
            let mut column: Vec<&mut ast::Expr> =
                values.rows.iter_mut().filter_map(|row| row.get_mut(place)).collect();
            if column.iter().any(|value| is_double(value)) {
                for value in column.iter_mut().filter(|value| is_written_decimal(value)) {
                    let decimal = std::mem::replace(*value, ast::Expr::value(ast::Value::Null));
                    **value = ast::Expr::Cast {
                        kind: ast::CastKind::Cast,
                        expr: Box::new(decimal),
                        data_type: ast::DataType::Double(ExactNumberInfo::None),
                        array: false,
                        format: None,
                    };
                }
            }
        }
    });
}

/// A DOUBLE or FLOAT by its writing.
fn is_double(value: &ast::Expr) -> bool {
    match value {
        ast::Expr::Cast { data_type, .. } => matches!(
            data_type,
            ast::DataType::Double(_)
                | ast::DataType::DoublePrecision
                | ast::DataType::Float(_)
                | ast::DataType::Real
        ),
        ast::Expr::UnaryOp { expr, .. } | ast::Expr::Nested(expr) => is_double(expr),
        ast::Expr::Value(value) => {
            matches!(&value.value, ast::Value::Number(text, _) if text.contains(['e', 'E']))
        }
        _ => false,
    }
}

/// A number with a point and no exponent.
fn is_written_decimal(value: &ast::Expr) -> bool {
    match value {
        ast::Expr::UnaryOp { expr, .. } | ast::Expr::Nested(expr) => is_written_decimal(expr),
        ast::Expr::Value(value) => {
            matches!(&value.value, ast::Value::Number(text, _) if text.contains('.') && !text.contains(['e', 'E']))
        }
        _ => false,
    }
}

/// The expression over columns of `schema`, not yet coerced.
pub(crate) fn with_doubles(expr: Expr, schema: &DFSchema) -> Result<Expr, DataFusionError> {
    let rewritten = expr.transform_up(|mut expr| {
        let changed = match &mut expr {
            Expr::BinaryExpr(binary) if binary.op.supports_propagation() => {
                aligned(&mut [&mut binary.left, &mut binary.right], schema)
            }
            Expr::Between(between) => {
                aligned(&mut [&mut between.expr, &mut between.low, &mut between.high], schema)
            }
            Expr::InList(list) => {
                let mut members: Vec<&mut Expr> = list.list.iter_mut().collect();
                members.push(&mut list.expr);
                aligned(&mut members, schema)
            }
            Expr::Case(case) => {
                let (whens, thens): (Vec<_>, Vec<_>) =
                    case.when_then_expr.iter_mut().map(|(when, then)| (&mut **when, &mut **then)).unzip();
                let mut results = thens;
                results.extend(case.else_expr.iter_mut().map(|otherwise| &mut **otherwise));
                let mut compared = whens;
                let operand = case.expr.as_mut();
                let simple = operand.is_some();
                compared.extend(operand.map(|operand| &mut **operand));
                aligned(&mut results, schema) | (simple && aligned(&mut compared, schema))
            }
            Expr::ScalarFunction(call) if CHOICES.contains(&call.func.name()) => {
                let mut arguments: Vec<&mut Expr> = call.args.iter_mut().collect();
                aligned(&mut arguments, schema)
            }
            Expr::InSubquery(within) => {
                let plan = &within.subquery.subquery;
                let given = plan.schema().field(0).data_type().clone();
                match (type_of(&within.expr, schema), given) {
                    (Some(own), given) if own.is_floating() && is_decimal(&given) => {
                        within.subquery.subquery = Arc::new(projected(plan, |_| true)?);
                        true
                    }
                    (Some(own), given) if is_decimal(&own) && given.is_floating() => {
                        *within.expr = cast((*within.expr).clone(), DataType::Float64);
                        true
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
    });
    Ok(rewritten?.data)
}

/// The keys of a join and the branches of a UNION.
pub(crate) fn node_with_doubles(node: LogicalPlan) -> Result<Transformed<LogicalPlan>, DataFusionError> {
    match node {
        LogicalPlan::Join(mut join) => {
            let mut changed = false;
            for (left, right) in &mut join.on {
                match (type_of(left, join.left.schema()), type_of(right, join.right.schema())) {
                    (Some(a), Some(b)) if a.is_floating() && is_decimal(&b) => {
                        *right = cast(right.clone(), DataType::Float64);
                        changed = true;
                    }
                    (Some(a), Some(b)) if is_decimal(&a) && b.is_floating() => {
                        *left = cast(left.clone(), DataType::Float64);
                        changed = true;
                    }
                    _ => {}
                }
            }
            let join = LogicalPlan::Join(join);
            Ok(if changed { Transformed::yes(join) } else { Transformed::no(join) })
        }
        LogicalPlan::Union(union) => {
            let types =
                |place: usize| union.inputs.iter().map(move |input| input.schema().field(place).data_type());
            let mixed =
                |place: usize| types(place).any(DataType::is_floating) && types(place).any(is_decimal);
            let places: Vec<usize> = (0..union.schema.fields().len()).filter(|place| mixed(*place)).collect();
            if places.is_empty() {
                return Ok(Transformed::no(LogicalPlan::Union(union)));
            }
            let inputs = union.inputs.iter().map(|input| {
                Ok(Arc::new(projected(input, |place| {
                    places.contains(&place) && is_decimal(input.schema().field(place).data_type())
                })?))
            });
            let inputs = inputs.collect::<Result<Vec<_>, DataFusionError>>()?;
            Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?)))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The plan, with some of its columns as DOUBLE.
fn projected(plan: &LogicalPlan, as_double: impl Fn(usize) -> bool) -> Result<LogicalPlan, DataFusionError> {
    let exprs = plan.schema().columns().into_iter().enumerate().map(|(place, column)| {
        let name = column.name.clone();
        let expr = Expr::Column(column);
        if as_double(place) { cast(expr, DataType::Float64).alias(name) } else { expr }
    });
    let projection = Projection::try_new(exprs.collect(), Arc::new(plan.clone()))?;
    LogicalPlanBuilder::from(LogicalPlan::Projection(projection)).build()
}

/// Casts the DECIMALs among these to DOUBLE if there is a DOUBLE or FLOAT; whether it did.
fn aligned(members: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<_> = members.iter().map(|member| type_of(member, schema)).collect();
    let is = |test: fn(&DataType) -> bool| types.iter().flatten().any(test);
    if !is(DataType::is_floating) || !is(is_decimal) {
        return false;
    }
    for (member, data_type) in members.iter_mut().zip(&types) {
        if data_type.as_ref().is_some_and(is_decimal) {
            **member = cast(std::mem::take(*member), DataType::Float64);
        }
    }
    true
}

/// `None` for what cannot be typed before it is coerced.
fn type_of(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..)
    )
}
