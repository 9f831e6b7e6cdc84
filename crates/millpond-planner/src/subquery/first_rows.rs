//! The first rows of a correlated subquery, found for all outer rows at once.
//!
//! ```text
//! SELECT … FROM q WHERE q.a = outer.b ORDER BY c LIMIT n
//! ROW_NUMBER() OVER (PARTITION BY q.a ORDER BY c) <= n, joined by outer.b = q.a
//! ```
//!
//! So it is for LATERAL, and for LIMIT 1 in a scalar subquery.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, NullEquality, TableReference};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprFunctionExt, FetchType, Join, JoinConstraint, JoinType, LogicalPlan,
    LogicalPlanBuilder, Operator, Projection, SkipType, lit,
};

use super::{Planned, has_outer_beneath, has_subquery};

/// The column of the row number.
const RANK: &str = "$rank";

/// A subquery without reference to the outer query.
pub(super) struct FirstRows {
    /// The columns of the subquery, then its keys.
    rows: LogicalPlan,
    /// The subquery's own columns.
    pub(super) width: usize,
    /// What each key equals in the outer query.
    outer: Vec<Expr>,
    /// How many rows there are at most for each key.
    pub(super) fetch: usize,
}

impl FirstRows {
    /// `None` if the subquery is of another form.
    pub(super) fn of(plan: &LogicalPlan) -> Planned<Option<Self>> {
        let limit = match plan {
            LogicalPlan::Limit(limit) => limit,
            LogicalPlan::Projection(projection) if !projection.expr.iter().any(reads_more) => {
                let Some(inner) = Self::of(&projection.input)? else { return Ok(None) };
                let keys = (0..inner.outer.len()).map(|place| Expr::Column(Column::from_name(key(place))));
                let exprs = projection.expr.iter().cloned().chain(keys);
                let rows = LogicalPlanBuilder::from(inner.rows).project(exprs)?.build()?;
                return Ok(Some(Self { rows, width: projection.expr.len(), ..inner }));
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let Some(inner) = Self::of(&alias.input)? else { return Ok(None) };
                let rows = LogicalPlanBuilder::from(inner.rows).alias(alias.alias.clone())?.build()?;
                return Ok(Some(Self { rows, ..inner }));
            }
            _ => return Ok(None),
        };
        let (SkipType::Literal(skip), FetchType::Literal(Some(fetch))) =
            (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return Ok(None);
        };
        let mut outer = Vec::new();
        let Some(mut found) = ranked(&limit.input, None, &mut outer)? else { return Ok(None) };
        if !found.ranked {
            // Any rows will do: they are those that come first by their own columns, always the same.
            let order = own_order(&limit.input);
            found = numbered(found, Some(&order), outer.len())?;
        }
        let Ranked { plan: rows, ranked: true } = found else { return Ok(None) };
        let rank = || Expr::Column(Column::from_name(RANK));
        let (first, last) = (skip as u64, (skip + fetch) as u64);
        let mut wanted = rank().lt_eq(lit(last));
        if first > 0 {
            wanted = wanted.and(rank().gt(lit(first)));
        }
        let width = limit.input.schema().fields().len();
        Ok(Some(Self { rows: LogicalPlanBuilder::from(rows).filter(wanted)?.build()?, width, outer, fetch }))
    }

    /// The outer rows with those of the subquery, whose columns are called `columns`.
    pub(super) fn joined(
        self,
        left: Arc<LogicalPlan>,
        alias: &TableReference,
        columns: &[String],
        join_type: JoinType,
        filter: Option<Expr>,
    ) -> Planned<LogicalPlan> {
        let given = self.rows.schema().columns();
        let renamed = given.iter().take(self.width).zip(columns);
        let exprs: Vec<Expr> = renamed.map(|(from, to)| Expr::Column(from.clone()).alias(to)).collect();
        let keys = (0..self.outer.len()).map(|place| Expr::Column(Column::from_name(key(place))));
        let right = LogicalPlanBuilder::from(self.rows)
            .project(exprs.into_iter().chain(keys))?
            .alias(alias.clone())?
            .build()?;
        let inner = |place: usize| Expr::Column(Column::new(Some(alias.clone()), key(place)));
        let on = self.outer.into_iter().enumerate().map(|(place, outer)| (outer, inner(place))).collect();
        let equality = NullEquality::NullEqualsNothing;
        let right = Arc::new(right);
        let join = Join::try_new(left, right, on, filter, join_type, JoinConstraint::On, equality, false)?;
        Ok(LogicalPlan::Join(join))
    }
}

/// By all columns that have an order.
fn own_order(plan: &LogicalPlan) -> Vec<Sort> {
    let fields = plan.schema().columns().into_iter().zip(plan.schema().fields());
    let ordered = fields.filter(|(_, field)| !field.data_type().is_nested());
    ordered.map(|(column, _)| Expr::Column(column).sort(true, true)).collect()
}

fn key(place: usize) -> String {
    format!("$k{place}")
}

/// A plan whose keys, and row number, are columns behind its own.
struct Ranked {
    plan: LogicalPlan,
    ranked: bool,
}

/// `order`: of the rows, as it stands above the plan.
fn ranked(plan: &LogicalPlan, order: Option<&[Sort]>, outer: &mut Vec<Expr>) -> Planned<Option<Ranked>> {
    match plan {
        LogicalPlan::Projection(projection) if !projection.expr.iter().any(reads_more) => {
            let Some(inner) = ranked(&projection.input, None, outer)? else { return Ok(None) };
            let rows = projected(projection, inner, outer.len())?;
            numbered(rows, order, outer.len()).map(Some)
        }
        LogicalPlan::Sort(sort) if sort.fetch.is_none() && order.is_none() => {
            ranked(&sort.input, Some(&sort.expr), outer)
        }
        LogicalPlan::Filter(filter) => {
            let Some(plan) = keyed(&filter.predicate, &filter.input, outer)? else { return Ok(None) };
            numbered(Ranked { plan, ranked: false }, order, outer.len()).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether an expression needs more than its input.
fn reads_more(expr: &Expr) -> bool {
    expr.contains_outer() || has_subquery(expr)
}

/// The projection over an input that has more columns, which are kept.
fn projected(projection: &Projection, inner: Ranked, keys: usize) -> Planned<Ranked> {
    let more = (0..keys).map(key).chain(inner.ranked.then(|| RANK.to_owned()));
    let more = more.map(|name| Expr::Column(Column::from_name(name)));
    let exprs = projection.expr.iter().cloned().chain(more);
    let plan = LogicalPlanBuilder::from(inner.plan).project(exprs)?.build()?;
    Ok(Ranked { plan, ranked: inner.ranked })
}

/// The rows with their number among those of their keys, if they have an order.
fn numbered(rows: Ranked, order: Option<&[Sort]>, keys: usize) -> Planned<Ranked> {
    let Some(order) = order.map(<[Sort]>::to_vec) else { return Ok(rows) };
    if rows.ranked || order.is_empty() || order.iter().any(|sort| reads_more(&sort.expr)) {
        return Ok(Ranked { ranked: false, ..rows });
    }
    let own: Vec<Expr> = rows.plan.schema().columns().into_iter().map(Expr::Column).collect();
    let keys = (0..keys).map(|place| Expr::Column(Column::from_name(key(place)))).collect();
    let number = row_number().partition_by(keys).order_by(order).build()?;
    let name = number.schema_name().to_string();
    let plan = LogicalPlanBuilder::from(rows.plan)
        .window([number])?
        .project(own.into_iter().chain([Expr::Column(Column::from_name(name)).alias(RANK)]))?
        .build()?;
    Ok(Ranked { plan, ranked: true })
}

/// The rows that pass the condition, as far as it is their own; what equals the outer query's columns
/// is a key.
fn keyed(condition: &Expr, input: &LogicalPlan, outer: &mut Vec<Expr>) -> Planned<Option<LogicalPlan>> {
    if has_outer_beneath(input)? || has_subquery(condition) {
        return Ok(None);
    }
    let (mut own, mut keys) = (Vec::new(), Vec::new());
    for conjunct in split_conjunction(condition) {
        if !conjunct.contains_outer() {
            own.push(conjunct.clone());
            continue;
        }
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = conjunct else {
            return Ok(None);
        };
        let (inner, other) = if left.contains_outer() { (right, left) } else { (left, right) };
        if inner.contains_outer() || !other.column_refs().is_empty() {
            return Ok(None);
        }
        keys.push(inner.as_ref().clone().alias(key(keys.len())));
        outer.push(as_own(other.as_ref().clone())?);
    }
    let columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut rows = LogicalPlanBuilder::from(input.clone());
    if let Some(own) = conjunction(own) {
        rows = rows.filter(own)?;
    }
    Ok(Some(rows.project(columns.into_iter().chain(keys))?.build()?))
}

/// An expression over outer columns, in the outer query.
fn as_own(expr: Expr) -> Planned<Expr> {
    let own = expr.transform_up(|node| {
        Ok(match node {
            Expr::OuterReferenceColumn(_, column) => Transformed::yes(Expr::Column(column)),
            other => Transformed::no(other),
        })
    });
    Ok(own?.data)
}

/// LATERAL with ORDER BY and LIMIT; `None` for other joins.
pub(super) fn lateral(join: &Join, alias: impl FnOnce() -> String) -> Planned<Option<LogicalPlan>> {
    let kept = join.join_type == JoinType::Inner || join.join_type == JoinType::Left;
    let LogicalPlan::Subquery(subquery) = beneath(&join.right) else { return Ok(None) };
    if !kept || !join.on.is_empty() {
        return Ok(None);
    }
    let Some(rows) = FirstRows::of(&subquery.subquery)? else { return Ok(None) };
    let right = join.right.schema();
    if right.fields().len() != rows.width {
        return Ok(None);
    }
    // Without an alias of the user's the columns are those of several tables, or of none.
    let alias = TableReference::bare(alias());
    let names: Vec<String> = (0..rows.width).map(|place| format!("$c{place}")).collect();
    let inner = |place: usize| Expr::Column(Column::new(Some(alias.clone()), names[place].clone()));
    let renamed = |expr: Expr| {
        expr.transform_up(|node| match &node {
            Expr::Column(column) if right.has_column(column) => {
                Ok(Transformed::yes(inner(right.index_of_column(column)?)))
            }
            _ => Ok(Transformed::no(node)),
        })
    };
    let filter = join.filter.clone().map(renamed).transpose()?.map(|filter| filter.data);
    let left = join.left.schema().columns().into_iter().map(Expr::Column);
    let own = right.iter().enumerate();
    let own = own.map(|(place, (table, field))| inner(place).alias_qualified(table.cloned(), field.name()));
    let shown: Vec<Expr> = left.chain(own).collect();
    let joined = rows.joined(Arc::clone(&join.left), &alias, &names, join.join_type, filter)?;
    LogicalPlanBuilder::from(joined).project(shown)?.build().map(Some)
}

/// The plan beneath aliases.
fn beneath(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => beneath(&alias.input),
        other => other,
    }
}
