//! Subqueries that DataFusion's rules do not turn into joins, or not into the right ones.
//!
//! ```text
//! x NOT IN (q)          no row of q equals x, and none is NULL (or x is not NULL, or q is empty)
//! EXISTS, IN in SELECT  counts of rows, compared with 0
//! (SELECT y FROM q)     left join that fails where a row finds two partners
//! (SELECT agg FROM q    the aggregate for each distinct value of the outer columns, joined back:
//!  WHERE outer < q.c)   by outer join, so that COUNT of nothing is 0
//! ```
//!
//! All of it happens before types are coerced, on the plan as it was written.

mod correlated;
mod first_rows;

use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{
    Column, DFSchema, DataFusionError, ExprSchema, NullEquality, ScalarValue, TableReference,
};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{AggregateFunction, Exists, InSubquery};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, ExprSchemable, FetchType, Filter, Join, JoinConstraint, JoinType,
    LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Subquery, SubqueryAlias, lit, when,
};
use millpond_core::Result;

use self::correlated::{Above, Correlated, has_outer_beneath};
use self::first_rows::{FirstRows, lateral};
use crate::plan_error::from_datafusion;

type Planned<T> = datafusion::common::Result<T, DataFusionError>;

/// How the right input of a join is called whose rows must be found at most once.
pub(crate) const AT_MOST_ONE: &str = "__single";

/// Who computes the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// Our joins, which can count the rows of a scalar subquery.
    Stream,
    /// DataFusion's joins, which cannot: such subqueries are left to it.
    Batch,
}

/// Makes aliases.
#[derive(Clone, Copy)]
struct Names<'a> {
    generator: &'a AliasGenerator,
    executor: Executor,
}

impl Names<'_> {
    fn next(&self, prefix: &str) -> String {
        self.generator.next(prefix)
    }
}

/// The plan with our own subqueries; the others are left to the optimiser.
pub(crate) fn with_own_subqueries(
    plan: LogicalPlan,
    generator: &AliasGenerator,
    executor: Executor,
) -> Result<LogicalPlan> {
    let names = Names { generator, executor };
    let own = |node: LogicalPlan| {
        match node {
        LogicalPlan::Filter(filter) => filtered(filter, names).map(Transformed::yes),
        LogicalPlan::Projection(projection) => projected(projection, names).map(Transformed::yes),
        LogicalPlan::Aggregate(aggregate) => aggregated(aggregate, names).map(Transformed::yes),
        LogicalPlan::Window(window) if looks_outside(&window.input) => Err(DataFusionError::Plan(
            "OVER in a subquery whose rows depend on the query around it is not supported; write it as a join"
                .into(),
        )),
        LogicalPlan::SubqueryAlias(alias) if looks_outside(&alias.input) => {
            renamed(alias).map(Transformed::yes)
        }
        LogicalPlan::Join(join) => Ok(match lateral(&join, || names.next("__first"))? {
            Some(joined) => Transformed::yes(joined),
            None => Transformed::no(LogicalPlan::Join(join)),
        }),
        other => Ok(Transformed::no(other)),
    }
    };
    plan.transform_up_with_subqueries(own).map(|plan| plan.data).map_err(from_datafusion)
}

/// Whether a derived table refers to columns of a query around it. LATERAL has its own way.
fn looks_outside(plan: &LogicalPlan) -> bool {
    !matches!(plan, LogicalPlan::Subquery(_)) && !plan.all_out_ref_exprs().is_empty()
}

/// A derived table as a projection that renames: conditions on columns of the query around it are
/// pulled up through projections, and lost in an alias.
fn renamed(alias: SubqueryAlias) -> Planned<LogicalPlan> {
    let columns = alias.input.schema().columns().into_iter();
    let exprs = columns.map(|column| {
        let name = column.name.clone();
        Expr::Column(column).alias_qualified(Some(alias.alias.clone()), name)
    });
    Ok(LogicalPlan::Projection(Projection::try_new(exprs.collect(), alias.input)?))
}

fn filtered(filter: Filter, names: Names<'_>) -> Planned<LogicalPlan> {
    let shown: Vec<Expr> = filter.input.schema().columns().into_iter().map(Expr::Column).collect();
    let predicate = without_not_in(filter.predicate, filter.input.schema())?;
    let joined = Joined::of(vec![predicate], filter.input, names)?;
    let (predicate, grown) = (joined.exprs.into_iter().next(), joined.grown);
    let predicate = predicate.expect("one predicate gives one");
    let filter = LogicalPlan::Filter(Filter::try_new(predicate, joined.input)?);
    if !grown {
        return Ok(filter);
    }
    Ok(LogicalPlan::Projection(Projection::try_new(shown, Arc::new(filter))?))
}

fn projected(projection: Projection, names: Names<'_>) -> Planned<LogicalPlan> {
    let subqueries = projection.expr.iter().any(has_subquery);
    if !subqueries {
        return Ok(LogicalPlan::Projection(projection));
    }
    let named: Vec<String> = projection.expr.iter().map(|expr| expr.schema_name().to_string()).collect();
    let counted = projection.expr.into_iter().map(|expr| counted(expr, projection.input.schema()));
    let joined = Joined::of(counted.collect::<Planned<_>>()?, projection.input, names)?;
    let exprs = joined.exprs.into_iter().zip(named).map(|(expr, name)| {
        let same = expr.schema_name().to_string() == name;
        if same { expr } else { expr.alias(name) }
    });
    Ok(LogicalPlan::Projection(Projection::try_new(exprs.collect(), joined.input)?))
}

/// The aggregate over an input in which what its calls and keys ask of subqueries are columns.
fn aggregated(aggregate: Aggregate, names: Names<'_>) -> Planned<LogicalPlan> {
    let all = || aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
    if !all().any(has_subquery) || matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]) {
        return Ok(LogicalPlan::Aggregate(aggregate));
    }
    let mut exprs: Vec<Expr> = aggregate.input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut column_of = |expr: Expr| {
        if !has_subquery(&expr) {
            return expr;
        }
        let name = names.next("$asked");
        exprs.push(expr.alias(&name));
        Expr::Column(Column::from_name(name))
    };
    let mut renewed = |expr: Expr| -> Planned<Expr> {
        let name = expr.schema_name().to_string();
        let expr = match expr.unalias() {
            Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
                params.args = params.args.into_iter().map(&mut column_of).collect();
                params.filter = params.filter.map(|filter| Box::new(column_of(*filter)));
                for sort in &mut params.order_by {
                    sort.expr = column_of(std::mem::take(&mut sort.expr));
                }
                Expr::AggregateFunction(AggregateFunction { func, params })
            }
            other => column_of(other),
        };
        let same = expr.schema_name().to_string() == name;
        Ok(if same { expr } else { expr.alias(name) })
    };
    let group = aggregate.group_expr.clone().into_iter().map(&mut renewed).collect::<Planned<Vec<_>>>()?;
    let calls = aggregate.aggr_expr.clone().into_iter().map(&mut renewed).collect::<Planned<Vec<_>>>()?;
    let input = projected(Projection::try_new(exprs, Arc::clone(&aggregate.input))?, names)?;
    Ok(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), group, calls)?))
}

fn has_subquery(expr: &Expr) -> bool {
    let is_subquery =
        |expr: &Expr| matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_));
    expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(true)
}

/// NOT IN where a condition asks for it to be true; NULL and false are alike there.
fn without_not_in(expr: Expr, schema: &DFSchema) -> Planned<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let (left, right) = (without_not_in(*left, schema)?, without_not_in(*right, schema)?);
            Ok(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right))))
        }
        Expr::Not(inner) => match *inner {
            Expr::InSubquery(member) if !member.negated => not_in(member, schema),
            other => Ok(Expr::Not(Box::new(other))),
        },
        Expr::InSubquery(member) if member.negated => not_in(member, schema),
        other => Ok(other),
    }
}

fn not_in(member: InSubquery, schema: &DFSchema) -> Planned<Expr> {
    let unchanged = |member: InSubquery| Ok(Expr::InSubquery(InSubquery { negated: true, ..member }));
    let Some((value, references)) = as_outer(&member.expr, schema)? else { return unchanged(member) };
    let rows = Arc::clone(&member.subquery.subquery);
    let [field] = rows.schema().fields().iter().as_slice() else { return unchanged(member) };
    let (value_null, field_null) = (member.expr.nullable(schema)?, field.is_nullable());
    if !value_null && !field_null {
        return unchanged(member);
    }
    let column = Expr::Column(rows.schema().columns().remove(0));
    let equal = value.clone().eq(column.clone());
    let equal = none_that(Arc::clone(&rows), equal, references.clone(), &member.subquery)?;
    let null = column.is_null().alias("$null");
    let nulls = LogicalPlanBuilder::from(Arc::unwrap_or_clone(rows));
    let nulls = match member.subquery.outer_ref_columns.is_empty() {
        true => nulls.aggregate([null], Vec::<Expr>::new())?,
        false => nulls.project([null])?,
    };
    let null = Expr::Column(Column::from_name("$null"));
    let unknown = match (value_null, field_null) {
        (true, true) => null.or(value.is_null()),
        (false, _) => null,
        (true, false) => value.is_null(),
    };
    let references = if value_null { references } else { Vec::new() };
    Ok(equal.and(none_that(Arc::new(nulls.build()?), unknown, references, &member.subquery)?))
}

/// `NOT EXISTS (SELECT … FROM rows WHERE condition)`.
fn none_that(
    rows: Arc<LogicalPlan>,
    condition: Expr,
    references: Vec<Expr>,
    subquery: &Subquery,
) -> Planned<Expr> {
    let subquery = narrowed(rows, condition, references, subquery)?;
    Ok(Expr::Exists(Exists { subquery, negated: true }))
}

/// The rows for which a condition holds; only whether there are any is asked, so that what was
/// selected of them is left out, and the condition stands beside the subquery's own.
fn narrowed(
    rows: Arc<LogicalPlan>,
    condition: Expr,
    references: Vec<Expr>,
    subquery: &Subquery,
) -> Planned<Subquery> {
    let (condition, rows) = beneath_projections(condition, rows)?;
    let (condition, rows) = match rows.as_ref() {
        LogicalPlan::Filter(filter) => (filter.predicate.clone().and(condition), Arc::clone(&filter.input)),
        _ => (condition, rows),
    };
    let rows = LogicalPlan::Filter(Filter::try_new(condition, rows)?);
    let mut outer_ref_columns = subquery.outer_ref_columns.clone();
    outer_ref_columns.extend(references.into_iter().filter(|new| !subquery.outer_ref_columns.contains(new)));
    Ok(Subquery { subquery: Arc::new(rows), outer_ref_columns, spans: subquery.spans.clone() })
}

fn beneath_projections(condition: Expr, rows: Arc<LogicalPlan>) -> Planned<(Expr, Arc<LogicalPlan>)> {
    let LogicalPlan::Projection(projection) = rows.as_ref() else { return Ok((condition, rows)) };
    if projection.expr.iter().any(|expr| expr.is_volatile() || has_subquery(expr)) {
        return Ok((condition, rows));
    }
    let condition = condition.transform_up(|node| match &node {
        Expr::Column(column) => {
            let place = projection.schema.index_of_column(column)?;
            Ok(Transformed::yes(projection.expr[place].clone().unalias_nested().data))
        }
        _ => Ok(Transformed::no(node)),
    })?;
    beneath_projections(condition.data, Arc::clone(&projection.input))
}

/// An expression over the outer query's columns as a subquery sees it, and the columns; `None` if
/// it reads a query farther out, or one of its own.
fn as_outer(expr: &Expr, schema: &DFSchema) -> Planned<Option<(Expr, Vec<Expr>)>> {
    if has_subquery(expr) || expr.contains_outer() {
        return Ok(None);
    }
    let mut references = Vec::new();
    let outer = expr.clone().transform_up(|node| match node {
        Expr::Column(column) => {
            let field = schema.field_from_column(&column)?;
            let outer = Expr::OuterReferenceColumn(Arc::clone(field), column);
            if !references.contains(&outer) {
                references.push(outer.clone());
            }
            Ok(Transformed::yes(outer))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(Some((outer.data, references)))
}

/// The plan without what does not matter to whether it has a row.
fn whether_any(plan: &LogicalPlan) -> Planned<&LogicalPlan> {
    match plan {
        LogicalPlan::Projection(projection) if !projection.expr.iter().any(has_subquery) => {
            whether_any(&projection.input)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => whether_any(input),
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => whether_any(&sort.input),
        LogicalPlan::Limit(limit) => {
            let skips = !matches!(limit.get_skip_type()?, SkipType::Literal(0));
            let some = matches!(limit.get_fetch_type()?, FetchType::Literal(fetch) if fetch != Some(0));
            if skips || !some { Ok(plan) } else { whether_any(&limit.input) }
        }
        other => Ok(other),
    }
}

/// EXISTS and IN as values: by counts, which subqueries in SELECT can be.
fn counted(expr: Expr, schema: &DFSchema) -> Planned<Expr> {
    let rows = |subquery: Subquery| -> Planned<Expr> {
        let Subquery { subquery, outer_ref_columns, spans } = subquery;
        let counted = LogicalPlanBuilder::from(Arc::unwrap_or_clone(subquery))
            .aggregate(Vec::<Expr>::new(), [count(lit(1_i64))])?
            .build()?;
        Ok(Expr::ScalarSubquery(Subquery { subquery: Arc::new(counted), outer_ref_columns, spans }))
    };
    let counted = |node: Expr| -> Planned<Transformed<Expr>> {
        match node {
            Expr::Exists(Exists { subquery, negated }) => {
                let plan = Arc::new(whether_any(&subquery.subquery)?.clone());
                let rows = rows(Subquery { subquery: plan, ..subquery })?;
                Ok(Transformed::yes(if negated { rows.eq(lit(0_i64)) } else { rows.gt(lit(0_i64)) }))
            }
            Expr::InSubquery(member) => {
                let Some((value, references)) = as_outer(&member.expr, schema)? else {
                    return Ok(Transformed::no(Expr::InSubquery(member)));
                };
                let found = Arc::clone(&member.subquery.subquery);
                let column = Expr::Column(found.schema().columns().remove(0));
                let equal = value.clone().eq(column.clone());
                let unknown = column.is_null().or(value.is_null());
                let equal = narrowed(Arc::clone(&found), equal, references.clone(), &member.subquery)?;
                let unknown = narrowed(found, unknown, references, &member.subquery)?;
                let is_in = when(rows(equal)?.gt(lit(0_i64)), lit(!member.negated))
                    .when(rows(unknown)?.gt(lit(0_i64)), Expr::Literal(ScalarValue::Boolean(None), None))
                    .otherwise(lit(member.negated))?;
                Ok(Transformed::yes(is_in))
            }
            other => Ok(Transformed::no(other)),
        }
    };
    Ok(expr.transform_up(counted)?.data)
}

/// Expressions, and an input in which their scalar subqueries are columns.
struct Joined {
    exprs: Vec<Expr>,
    input: Arc<LogicalPlan>,
    /// Whether the input has more columns than before.
    grown: bool,
}

impl Joined {
    fn of(exprs: Vec<Expr>, input: Arc<LogicalPlan>, names: Names<'_>) -> Planned<Self> {
        let mut joined = Self { exprs: Vec::new(), input, grown: false };
        for expr in exprs {
            let expr = expr.transform_up(|node| match node {
                Expr::ScalarSubquery(subquery) => Ok(match joined.column_of(&subquery, names)? {
                    Some(column) => Transformed::yes(column),
                    None => Transformed::no(Expr::ScalarSubquery(subquery)),
                }),
                other => Ok(Transformed::no(other)),
            })?;
            joined.exprs.push(expr.data);
        }
        Ok(joined)
    }

    /// The column that is a subquery's value; `None` if that is left to the optimiser.
    fn column_of(&mut self, subquery: &Subquery, names: Names<'_>) -> Planned<Option<Expr>> {
        let plan = subquery.subquery.as_ref();
        if plan.schema().fields().len() != 1 {
            return Ok(None);
        }
        let counts = names.executor == Executor::Stream;
        if subquery.outer_ref_columns.is_empty() {
            if !counts || plan.max_rows().is_some_and(|rows| rows <= 1) {
                return Ok(None);
            }
            return self.single(plan, Expr::Column(plan.schema().columns().remove(0)), None, names).map(Some);
        }
        if let Some(rows) = FirstRows::of(plan)?.filter(|rows| rows.fetch == 1) {
            let alias = TableReference::bare(names.next("__first"));
            let input = Arc::clone(&self.input);
            let value = "$value".to_owned();
            self.input =
                Arc::new(rows.joined(input, &alias, std::slice::from_ref(&value), JoinType::Left, None)?);
            self.grown = true;
            return Ok(Some(Expr::Column(Column::new(Some(alias), value))));
        }
        match Correlated::of(plan)? {
            Some(correlated) if correlated.aggregate.is_some() => {
                if correlated.is_by_equality() {
                    return Ok(None);
                }
                self.aggregated(correlated, names)
            }
            Some(correlated) if counts => self.single_correlated(correlated, names),
            Some(_) | None => Ok(None),
        }
    }

    /// Left join with rows of which at most one may match.
    fn single(
        &mut self,
        rows: &LogicalPlan,
        value: Expr,
        condition: Option<Expr>,
        names: Names<'_>,
    ) -> Planned<Expr> {
        let alias = names.next(AT_MOST_ONE);
        let columns = rows.schema().columns();
        let renamed: Vec<(Column, String)> =
            columns.into_iter().enumerate().map(|(place, column)| (column, format!("$c{place}"))).collect();
        let exprs = renamed.iter().map(|(column, name)| Expr::Column(column.clone()).alias(name));
        let right = LogicalPlanBuilder::from(rows.clone())
            .project(exprs.chain([value.alias("$value")]))?
            .alias(alias.as_str())?
            .build()?;
        let of_right = |node: Expr| match node {
            Expr::Column(column) => {
                let name = renamed.iter().find(|(known, _)| *known == column).map(|(_, name)| name);
                let name = name.map_or(column.name.clone(), Clone::clone);
                Ok(Transformed::yes(Expr::Column(Column::new(Some(alias.as_str()), name))))
            }
            Expr::OuterReferenceColumn(_, column) => Ok(Transformed::yes(Expr::Column(column))),
            other => Ok(Transformed::no(other)),
        };
        let filter = condition.map(|condition| condition.transform_up(of_right)).transpose()?;
        self.join(right, Vec::new(), filter.map(|filter| filter.data))?;
        Ok(Expr::Column(Column::new(Some(alias.as_str()), "$value")))
    }

    fn single_correlated(&mut self, correlated: Correlated, names: Names<'_>) -> Planned<Option<Expr>> {
        let [above] = correlated.above.as_slice() else { return Ok(None) };
        let Above::Project(exprs) = above else { return Ok(None) };
        let [value] = exprs.as_slice() else { return Ok(None) };
        if value.contains_outer() {
            return Ok(None);
        }
        let condition = conjunction(correlated.predicates);
        self.single(&correlated.base, value.clone().unalias(), condition, names).map(Some)
    }

    /// The aggregate for each distinct combination of outer values, joined back by them.
    fn aggregated(&mut self, correlated: Correlated, names: Names<'_>) -> Planned<Option<Expr>> {
        let Correlated { above, aggregate, predicates, base } = correlated;
        let Some(aggregate) = aggregate else { return Ok(None) };
        let mut outer = Vec::new();
        for predicate in &predicates {
            predicate.apply(|node| {
                if let Expr::OuterReferenceColumn(_, column) = node
                    && !outer.contains(column)
                {
                    outer.push(column.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let domain = names.next("__outer");
        let name = |place: usize| format!("$o{place}");
        let key = |place: usize| Expr::Column(Column::new(Some(domain.as_str()), name(place)));
        let keys: Vec<Expr> = (0..outer.len()).map(key).collect();
        let values =
            outer.iter().enumerate().map(|(place, column)| Expr::Column(column.clone()).alias(name(place)));
        let values = LogicalPlanBuilder::from(self.input.as_ref().clone())
            .project(values)?
            .distinct()?
            .alias(domain.as_str())?
            .build()?;
        let of_domain = |expr: Expr| -> Planned<Option<Expr>> {
            let mut known = true;
            let expr = expr.transform_up(|node| match node {
                Expr::OuterReferenceColumn(_, column) => {
                    match outer.iter().position(|other| *other == column) {
                        Some(place) => Ok(Transformed::yes(key(place))),
                        None => {
                            known = false;
                            Ok(Transformed::no(Expr::Column(column)))
                        }
                    }
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(known.then_some(expr.data))
        };
        let there = Expr::Column(Column::from_name("$there"));
        let columns = base.schema().columns().into_iter().map(Expr::Column);
        let base = LogicalPlanBuilder::from(base.clone())
            .project(columns.chain([lit(true).alias("$there")]))?
            .build()?;
        let Some(condition) = conjunction(predicates).map(&of_domain).transpose()?.flatten() else {
            return Ok(None);
        };
        let joined = outer_join(Arc::new(values), base, Vec::new(), Some(condition))?;
        let mut calls = Vec::new();
        let mut results = keys.clone();
        for (place, call) in aggregate.aggr_expr.iter().enumerate() {
            let old = call.schema_name().to_string();
            let Some(call) = of_domain(call.clone())?.and_then(|call| only_where(call, &there)) else {
                return Ok(None);
            };
            let new = format!("$a{place}");
            calls.push(call.alias(&new));
            results.push(Expr::Column(Column::from_name(new)).alias(old));
        }
        let mut plan = LogicalPlanBuilder::from(joined).aggregate(keys.clone(), calls)?.project(results)?;
        let mut value = Expr::Column(aggregate.schema.columns().remove(0));
        for above in above.into_iter().rev() {
            match above {
                Above::Filter(condition) => {
                    let Some(condition) = of_domain(condition)? else { return Ok(None) };
                    plan = plan.filter(condition)?;
                }
                Above::Project(exprs) => {
                    let exprs: Planned<Option<Vec<Expr>>> = exprs.into_iter().map(&of_domain).collect();
                    let Some(exprs) = exprs? else { return Ok(None) };
                    value = Expr::Column(Column::from_name(exprs[0].schema_name().to_string()));
                    plan = plan.project(exprs.into_iter().chain(keys.clone()))?;
                }
            }
        }
        let alias = names.next("__scalar");
        let named = (0..outer.len()).map(|place| key(place).alias(name(place)));
        let right = plan.project(named.chain([value.alias("$value")]))?.alias(alias.as_str())?.build()?;
        let right_key = |place: usize| Expr::Column(Column::new(Some(alias.as_str()), name(place)));
        let on =
            outer.into_iter().enumerate().map(|(place, column)| (Expr::Column(column), right_key(place)));
        let on: Vec<(Expr, Expr)> = on.collect();
        self.join(right, on, None)?;
        Ok(Some(Expr::Column(Column::new(Some(alias.as_str()), "$value"))))
    }

    fn join(&mut self, right: LogicalPlan, on: Vec<(Expr, Expr)>, filter: Option<Expr>) -> Planned<()> {
        self.input = Arc::new(outer_join(Arc::clone(&self.input), right, on, filter)?);
        self.grown = true;
        Ok(())
    }
}

fn outer_join(
    left: Arc<LogicalPlan>,
    right: LogicalPlan,
    on: Vec<(Expr, Expr)>,
    filter: Option<Expr>,
) -> Planned<LogicalPlan> {
    let null_equality =
        if on.is_empty() { NullEquality::NullEqualsNothing } else { NullEquality::NullEqualsNull };
    Ok(LogicalPlan::Join(Join::try_new(
        left,
        Arc::new(right),
        on,
        filter,
        JoinType::Left,
        JoinConstraint::On,
        null_equality,
        false,
    )?))
}

/// The aggregate over the rows that are there, not over the NULLs of an outer join.
fn only_where(call: Expr, there: &Expr) -> Option<Expr> {
    match call {
        Expr::Alias(alias) => only_where(*alias.expr, there),
        Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
            let filter = match params.filter {
                Some(filter) => there.clone().and(*filter),
                None => there.clone(),
            };
            params.filter = Some(Box::new(filter));
            Some(Expr::AggregateFunction(AggregateFunction { func, params }))
        }
        _ => None,
    }
}
