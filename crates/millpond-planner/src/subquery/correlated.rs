//! A subquery that reads columns of the query around it, taken apart.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, BinaryExpr, Expr, LogicalPlan, Operator};

use super::{Planned, has_subquery};

/// Whether a plan reads columns of a query around it.
pub(super) fn has_outer_beneath(plan: &LogicalPlan) -> Planned<bool> {
    let mut outer = false;
    plan.apply_with_subqueries(|node| {
        outer |= node.expressions().iter().any(Expr::contains_outer);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(outer)
}

/// What stands above the aggregate, or the rows, of a subquery.
pub(super) enum Above {
    Project(Vec<Expr>),
    Filter(Expr),
}

/// A subquery that reads outer columns only in its WHERE, taken apart.
pub(super) struct Correlated {
    /// Topmost first.
    pub(super) above: Vec<Above>,
    /// Without GROUP BY.
    pub(super) aggregate: Option<Aggregate>,
    pub(super) predicates: Vec<Expr>,
    pub(super) base: LogicalPlan,
}

impl Correlated {
    /// `None` if the subquery is of another form.
    pub(super) fn of(plan: &LogicalPlan) -> Planned<Option<Self>> {
        let mut above = Vec::new();
        let mut at = plan;
        let aggregate = loop {
            match at {
                LogicalPlan::Projection(projection) => {
                    above.push(Above::Project(projection.expr.clone()));
                    at = &projection.input;
                }
                LogicalPlan::Filter(filter) if matches!(filter.input.as_ref(), LogicalPlan::Aggregate(_)) => {
                    above.push(Above::Filter(filter.predicate.clone()));
                    at = &filter.input;
                }
                LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                    at = &aggregate.input;
                    break Some(aggregate.clone());
                }
                _ => break None,
            }
        };
        let mut predicates = Vec::new();
        while let LogicalPlan::Filter(filter) = at {
            predicates.push(filter.predicate.clone());
            at = &filter.input;
        }
        let outer = has_outer_beneath(at)?;
        let subqueries = predicates.iter().any(has_subquery);
        let known = !outer && !subqueries && !predicates.is_empty();
        Ok(known.then(|| Self { above, aggregate, predicates, base: at.clone() }))
    }

    /// Whether outer columns are only compared for equality: the optimiser groups by them.
    pub(super) fn is_by_equality(&self) -> bool {
        let equality = |conjunct: &Expr| match conjunct {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
                left.contains_outer() != right.contains_outer()
            }
            other => !other.contains_outer(),
        };
        self.predicates.iter().flat_map(split_conjunction).all(equality)
    }
}
