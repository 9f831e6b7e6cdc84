//! What is changed in every expression of a plan, because the planner means something else by it.
//!
//! - Whole-number literals are INT where they fit, as in Flink; to the planner they are all BIGINT.
//! - Casts that can fail or that depend on the session's time zone become calls of ours, once it is
//!   known which there are: also those that the planner put in.

use arrow::datatypes::DataType;
use chrono_tz::Tz;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, GroupingSet, LogicalPlan, LogicalPlanBuilder};
use millpond_core::Result;

use crate::doubles::{node_with_doubles, with_doubles};
use crate::outer_types::with_outer_types;
use crate::plan_error::{carried, from_datafusion};
use crate::scalar_function::special_cast;

/// The plan with INT literals, and DECIMALs beside DOUBLEs as DOUBLE.
pub(crate) fn with_int_literals(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        // The number of rows is a BIGINT.
        LogicalPlan::Limit(_) => Ok(Transformed::no(node)),
        LogicalPlan::Values(values) => {
            let rows = values.values.into_iter().map(|row| row.into_iter().map(int_literals).collect());
            let rows = rows.collect::<Result<Vec<Vec<Expr>>, _>>()?;
            LogicalPlanBuilder::values(rows)?.build().map(Transformed::yes)
        }
        other => renewed(other, |expr, schema| with_doubles(int_literals(expr)?, schema))?
            .transform_data(node_with_doubles),
    });
    rewritten.and_then(|plan| with_outer_types(plan.data)).map_err(from_datafusion)
}

/// The expression with INT literals.
pub(crate) fn int_literals(expr: Expr) -> Result<Expr, DataFusionError> {
    let rewritten = expr.transform_down(|expr| {
        Ok(match expr {
            Expr::Literal(ScalarValue::Int64(Some(number)), metadata) => match i32::try_from(number) {
                Ok(small) => Transformed::yes(Expr::Literal(ScalarValue::Int32(Some(small)), metadata)),
                Err(_) => Transformed::no(Expr::Literal(ScalarValue::Int64(Some(number)), metadata)),
            },
            // COUNT(*) is the count of a literal that the planner knows again.
            Expr::AggregateFunction(call) if call.func.name() == "count" => {
                Transformed::new(Expr::AggregateFunction(call), false, TreeNodeRecursion::Jump)
            }
            Expr::WindowFunction(call) => {
                Transformed::new(Expr::WindowFunction(call), false, TreeNodeRecursion::Jump)
            }
            other => Transformed::no(other),
        })
    });
    Ok(rewritten?.data)
}

/// The plan, in which all casts are known, with ours among them.
pub(crate) fn with_special_casts(plan: LogicalPlan, zone: Option<Tz>) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| {
        renewed(node, |expr, schema| special_casts(expr, schema, zone).map_err(carried))
    });
    Ok(rewritten.map_err(from_datafusion)?.data)
}

/// The expression, in which all casts are known, with ours among them.
pub(crate) fn special_casts(expr: Expr, schema: &DFSchema, zone: Option<Tz>) -> Result<Expr> {
    let rewritten = expr.transform_up(|expr| {
        let (inner, to, is_try) = match &expr {
            Expr::Cast(cast) => (&cast.expr, &cast.field, false),
            Expr::TryCast(cast) => (&cast.expr, &cast.field, true),
            _ => return Ok(Transformed::no(expr)),
        };
        let from: DataType = inner.get_type(schema)?;
        match special_cast(inner, &from, to, is_try, zone).map_err(carried)? {
            Some(special) => Ok(Transformed::yes(special)),
            None => Ok(Transformed::no(expr)),
        }
    });
    Ok(rewritten.map_err(from_datafusion)?.data)
}

/// The node with each expression rewritten, under its old name.
fn renewed(
    node: LogicalPlan,
    rewrite: impl Fn(Expr, &DFSchema) -> Result<Expr, DataFusionError>,
) -> Result<Transformed<LogicalPlan>, DataFusionError> {
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    let named = |expr: Expr| {
        let name = names.save(&expr);
        Ok::<_, DataFusionError>(name.restore(rewrite(expr, &schema)?))
    };
    let all = |exprs: Vec<Expr>| exprs.into_iter().map(named).collect::<Result<Vec<_>, _>>();
    let renewed = node.map_expressions(|expr| {
        // A grouping set is no expression with a name, but its members are.
        let expr = match expr {
            Expr::GroupingSet(GroupingSet::Rollup(keys)) => {
                Expr::GroupingSet(GroupingSet::Rollup(all(keys)?))
            }
            Expr::GroupingSet(GroupingSet::Cube(keys)) => Expr::GroupingSet(GroupingSet::Cube(all(keys)?)),
            Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
                let sets = sets.into_iter().map(all).collect::<Result<_, _>>()?;
                Expr::GroupingSet(GroupingSet::GroupingSets(sets))
            }
            other => named(other)?,
        };
        Ok(Transformed::yes(expr))
    })?;
    renewed.map_data(LogicalPlan::recompute_schema)
}
