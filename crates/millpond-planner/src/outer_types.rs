//! The types of outer columns, as subqueries see them.
//!
//! A subquery is bound before the types of the query around it are final: literals become INT only
//! afterwards, and with them columns of VALUES. What a reference says of its column is renewed.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};

type Planned<T> = Result<T, DataFusionError>;

/// The plan in which references to outer columns have the types of those.
pub(crate) fn with_outer_types(plan: LogicalPlan) -> Planned<LogicalPlan> {
    let mut refers = false;
    plan.apply_with_subqueries(|node| {
        refers |= node.expressions().iter().any(Expr::contains_outer);
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    })?;
    if refers { typed(plan, &[]) } else { Ok(plan) }
}

/// `outer`: the columns of the queries around the plan, the outermost first.
fn typed(plan: LogicalPlan, outer: &[Arc<DFSchema>]) -> Planned<LogicalPlan> {
    // The right side of a join may be LATERAL: it sees the left one.
    let mut beside: Vec<Arc<DFSchema>> = outer.to_vec();
    let is_join = matches!(plan, LogicalPlan::Join(_));
    let plan = plan.map_children(|child| {
        let child = typed(child, &beside)?;
        if is_join {
            beside.push(Arc::clone(child.schema()));
        }
        Ok(Transformed::yes(child))
    })?;
    let mut within = outer.to_vec();
    within.push(Arc::new(merge_schema(&plan.data.inputs())));
    let renewed = plan.data.map_expressions(|expr| {
        expr.transform_down(|expr| {
            Ok(match expr {
                Expr::OuterReferenceColumn(..) => Transformed::yes(reference(expr, outer)),
                Expr::ScalarSubquery(inner) => {
                    Transformed::yes(Expr::ScalarSubquery(subquery(inner, &within)?))
                }
                Expr::Exists(mut exists) => {
                    exists.subquery = subquery(exists.subquery, &within)?;
                    Transformed::yes(Expr::Exists(exists))
                }
                Expr::InSubquery(mut member) => {
                    member.subquery = subquery(member.subquery, &within)?;
                    Transformed::yes(Expr::InSubquery(member))
                }
                Expr::SetComparison(mut comparison) => {
                    comparison.subquery = subquery(comparison.subquery, &within)?;
                    Transformed::yes(Expr::SetComparison(comparison))
                }
                other => Transformed::no(other),
            })
        })
    })?;
    match renewed.data {
        LogicalPlan::Subquery(lateral) => {
            let references = lateral.outer_ref_columns.into_iter().map(|expr| reference(expr, outer));
            Ok(LogicalPlan::Subquery(Subquery { outer_ref_columns: references.collect(), ..lateral }))
        }
        other => other.recompute_schema(),
    }
}

fn subquery(subquery: Subquery, within: &[Arc<DFSchema>]) -> Planned<Subquery> {
    let plan = typed(Arc::unwrap_or_clone(subquery.subquery), within)?;
    let references = subquery.outer_ref_columns.into_iter().map(|expr| reference(expr, within));
    Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns: references.collect(), spans: subquery.spans })
}

/// A reference, with the type of its column in the nearest query that has it.
fn reference(expr: Expr, outer: &[Arc<DFSchema>]) -> Expr {
    let Expr::OuterReferenceColumn(field, column) = expr else { return expr };
    let known = outer.iter().rev().find_map(|schema| schema.qualified_field_from_column(&column).ok());
    let field = known.map_or(field, |(_, known)| Arc::clone(known));
    Expr::OuterReferenceColumn(field, column)
}
