//! Rankings: the first rows of each partition, and ORDER BY … LIMIT inside a query.
//!
//! A filter that bounds a row number makes a Top-N of the window beneath it, however many
//! projections and aliases lie between:
//!
//! ```text
//! Projection a, b                         Calc a, b
//! └─ Filter rn <= 3 AND b > 0             └─ Calc where b > 0
//!    └─ Projection a, b, number AS rn        └─ TopN ROW_NUMBER ranks=1..3
//!       └─ Window number
//! ```
//!
//! The rank is a column of the Top-N only where something reads it: without it a row that moves
//! up or down need not be said again.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, ScalarValue, TableReference};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Expr, ExprSchemable, FetchType, Limit, LogicalPlan, SkipType, SortExpr, Window, WindowFunctionDefinition,
};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::deduplicate::DeduplicateFactory;
use millpond_operators::top_n::{RankFunction, RankOutput, RankRange, RankSpec, SortColumn, TopNFactory};
use millpond_operators::window_top_n::{WindowBound, WindowTopNFactory};

mod bounds;

use self::bounds::{is_column, range_of};
use super::window::rewritten;
use super::{Chooser, NodeFacts, Operator, column_index};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::{Role, Windows};
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::seconds;

/// A ranking under filters and projections; what lies above it, over its columns.
struct Ranked<'a> {
    window: &'a Window,
    function: RankFunction,
    partition: &'a [Expr],
    order: &'a [SortExpr],
    exprs: Vec<Expr>,
    filters: Vec<Expr>,
}

/// What a Top-N is to give.
struct Wanted<'a> {
    /// Whose rows, with the names by which the expressions know them.
    input: NodeId,
    plan: &'a LogicalPlan,
    schema: &'a DFSchemaRef,
    function: RankFunction,
    partition: &'a [Expr],
    order: &'a [SortExpr],
    range: RankRange,
    /// The rank's column, if it is given.
    rank: Option<FieldRef>,
    /// What a user calls it.
    clause: &'static str,
}

impl Chooser<'_> {
    /// The expressions over a filter that bounds a row number; `None` if `plan` is something else.
    pub(super) fn ranked(
        &mut self,
        plan: &LogicalPlan,
        exprs: Vec<Expr>,
        schema: &DFSchema,
    ) -> Result<Option<NodeId>> {
        let Some(ranked) = Ranked::find(plan, exprs, Vec::new())? else { return Ok(None) };
        let rank = ranked.window.input.schema().fields().len();
        let window_schema = Arc::clone(&ranked.window.schema);
        let (range, rest) = range_of(&window_schema, rank, ranked.filters, ranked.function)?;
        let single = ranked.function == RankFunction::RowNumber && range.last == Some(range.first);
        let field = Arc::clone(&window_schema.fields()[rank]);
        let name = format!("{}()", ranked.function.to_string().to_lowercase());
        let number = match single {
            true => {
                let number = ScalarValue::UInt64(Some(range.first)).cast_to(field.data_type());
                Expr::Literal(number.map_err(from_datafusion)?, None)
            }
            false => Expr::Column(Column::new_unqualified(&name)),
        };
        let reads_rank =
            |expr: &Expr| expr.column_refs().iter().any(|column| is_column(&window_schema, column, rank));
        let emits_rank = !single && ranked.exprs.iter().chain(&rest).any(reads_rank);
        let exprs = with_rank(ranked.exprs, &window_schema, rank, &number)?;
        let rest = conjunction(with_rank(rest, &window_schema, rank, &number)?);
        let field = Arc::new(field.as_ref().clone().with_name(&name));
        let below = ranked.window.input.schema();
        let given = if emits_rank { extended(below, [Arc::clone(&field)])? } else { Arc::clone(below) };
        let input = self.choose(&ranked.window.input)?;
        let node = self.top_n(Wanted {
            input,
            plan: &ranked.window.input,
            schema: below,
            function: ranked.function,
            partition: ranked.partition,
            order: ranked.order,
            range,
            rank: emits_rank.then_some(field),
            clause: "a filter on the row number",
        })?;
        let exprs = named(exprs, schema);
        self.calc(node, &given, &exprs, rest.as_ref(), Arc::clone(schema.inner())).map(Some)
    }

    /// LIMIT and OFFSET inside a query, by the order of its ORDER BY or by arrival.
    pub(super) fn limit(&mut self, limit: &Limit) -> Result<NodeId> {
        let constant = || Error::invalid("LIMIT and OFFSET must be constants");
        let SkipType::Literal(skip) = limit.get_skip_type().map_err(from_datafusion)? else {
            return Err(constant());
        };
        let FetchType::Literal(fetch) = limit.get_fetch_type().map_err(from_datafusion)? else {
            return Err(constant());
        };
        let outer = limit.input.schema();
        let exprs = outer.columns().into_iter().map(Expr::Column).collect();
        let (plan, exprs, order) = sorted(&limit.input, exprs)?;
        let input = self.choose(plan)?;
        let exprs = named(exprs, outer);
        let schema = Arc::clone(outer.inner());
        if fetch == Some(0) {
            let nothing = Expr::Literal(ScalarValue::Boolean(Some(false)), None);
            return self.calc(input, plan.schema(), &exprs, Some(&nothing), schema);
        }
        let first = skip as u64 + 1;
        let node = self.top_n(Wanted {
            input,
            plan,
            schema: plan.schema(),
            function: RankFunction::RowNumber,
            partition: &[],
            order,
            range: RankRange { first, last: fetch.map(|fetch| skip as u64 + fetch as u64) },
            rank: None,
            clause: "LIMIT",
        })?;
        self.calc(node, plan.schema(), &exprs, None, schema)
    }

    fn top_n(&mut self, wanted: Wanted<'_>) -> Result<NodeId> {
        let width = wanted.schema.fields().len();
        let (order, latest_first) = self.order(&wanted);
        let sort_exprs = order.iter().map(|sort| sort.expr.clone());
        let computed: Vec<Expr> = wanted.partition.iter().cloned().chain(sort_exprs).collect();
        let (node, columns) = self.with_columns(wanted.input, wanted.schema, &computed)?;
        let (partition, order_columns) = columns.split_at(wanted.partition.len());
        let partition = distinct(partition);
        let order: Vec<SortColumn> = order
            .iter()
            .zip(order_columns)
            .map(|(sort, column)| SortColumn {
                column: *column,
                descending: !sort.asc,
                nulls_first: sort.nulls_first,
            })
            .collect();
        let exchange = self.exchange(node, partition.clone());
        let given = Arc::clone(&self.node(exchange).schema);
        let input_mode = self.mode(exchange);
        let mut fields: Vec<FieldRef> = given.fields()[..width].to_vec();
        fields.extend(wanted.rank.clone());
        let output = RankOutput {
            columns: (0..width).collect(),
            emit_rank: wanted.rank.is_some(),
            schema: Arc::new(Schema::new(fields)),
        };
        let mut spec = RankSpec {
            function: wanted.function,
            partition,
            order,
            latest_first,
            range: wanted.range,
            input_schema: given,
            input_mode,
            ttl: None,
        };
        let windows = self.ranked_windows(exchange, &spec);
        if windows.is_none() || keeps_first(&spec, &output) {
            spec.ttl = self.ttl_of(wanted.plan);
        }
        Ok(match windows {
            _ if keeps_first(&spec, &output) => self.deduplicate(exchange, &spec),
            Some(windows) => self.window_top_n(exchange, spec, output, windows),
            None => self.updating_top_n(exchange, spec, output, wanted.clause),
        })
    }

    /// Keeps the first row of each key, which stays the first.
    fn deduplicate(&mut self, input: NodeId, spec: &RankSpec) -> NodeId {
        let key = spec.partition.clone();
        let names: Vec<&str> =
            key.iter().map(|column| spec.input_schema.field(*column).name().as_str()).collect();
        let operator = Operator {
            semantics: format!("first {key:?}{}", ttl_text(spec.ttl)),
            identity: None,
            inputs: vec![input],
            mode: ChangelogMode::Append,
            upsert_keys: vec![key.clone()],
            state: match spec.ttl {
                Some(ttl) => StateBound::Ttl(seconds(ttl)),
                None => StateBound::Keys(names.join(", ")),
            },
            facts: NodeFacts::new(self.facts[input].roles.clone(), key.is_empty()),
            factory: Arc::new(DeduplicateFactory {
                key,
                schema: Arc::clone(&spec.input_schema),
                ttl: spec.ttl,
            }),
        };
        self.add_operator(operator)
    }

    fn updating_top_n(
        &mut self,
        input: NodeId,
        spec: RankSpec,
        output: RankOutput,
        clause: &'static str,
    ) -> NodeId {
        // The first rows to arrive stay the first.
        let settled = spec.order.is_empty() && !spec.latest_first && spec.input_mode == ChangelogMode::Append;
        let roles = vec![Role::Plain; output.schema.fields().len()];
        let operator = Operator {
            semantics: rank_semantics(&spec, &output),
            identity: None,
            inputs: vec![input],
            mode: if settled { ChangelogMode::Append } else { ChangelogMode::Retract },
            upsert_keys: self.rank_keys(input, &spec, &output),
            state: self.rank_bound(input, &spec),
            facts: NodeFacts {
                updated_by: (!settled).then_some(clause),
                ..NodeFacts::new(roles, spec.partition.is_empty())
            },
            factory: Arc::new(TopNFactory { spec, output }),
        };
        self.add_operator(operator)
    }

    /// The windows within which appended rows are ranked, and the column that tells their ends.
    fn ranked_windows(&self, input: NodeId, spec: &RankSpec) -> Option<(Windows, usize, WindowBound)> {
        if spec.input_mode != ChangelogMode::Append {
            return None;
        }
        let roles = &self.facts[input].roles;
        let bound = |column: &usize| match roles[*column] {
            Role::WindowEnd(windows) => Some((windows, *column, WindowBound::End(windows.time_zone))),
            Role::WindowTime(windows) => Some((windows, *column, WindowBound::Time)),
            _ => None,
        };
        spec.partition.iter().find_map(bound)
    }

    /// A ranking within windows: what it gives of a final window never changes.
    fn window_top_n(
        &mut self,
        input: NodeId,
        spec: RankSpec,
        output: RankOutput,
        (windows, window_column, bound): (Windows, usize, WindowBound),
    ) -> NodeId {
        // The watermark bounds it already.
        let spec = RankSpec { ttl: None, ..spec };
        let role = |column: &usize| {
            let role = self.facts[input].roles[*column];
            if role.windows() == Some(windows) { role } else { Role::Plain }
        };
        let mut roles: Vec<Role> = output.columns.iter().map(role).collect();
        roles.resize(output.schema.fields().len(), Role::Plain);
        let column = spec.input_schema.field(window_column).name();
        let operator = Operator {
            semantics: format!("{} {window_column}", rank_semantics(&spec, &output)),
            identity: None,
            inputs: vec![input],
            mode: ChangelogMode::Append,
            upsert_keys: self.rank_keys(input, &spec, &output),
            state: StateBound::Watermark(format!("{} by {column}", windows.shape)),
            facts: NodeFacts::new(roles, spec.partition.is_empty()),
            factory: Arc::new(WindowTopNFactory {
                spec,
                output,
                window_column,
                bound,
                precision: windows.precision,
            }),
        };
        self.add_operator(operator)
    }

    /// The order without what makes no difference, and whether the latest of equal rows is first.
    ///
    /// A row that arrives later has a later processing time, so that an order by it is that of
    /// arrival, and what comes behind it decides nothing. Of rows with the same event time the
    /// last to come is the last row.
    fn order<'w>(&self, wanted: &Wanted<'w>) -> (&'w [SortExpr], bool) {
        let roles = &self.facts[wanted.input].roles;
        let role = |sort: &SortExpr| match &sort.expr {
            Expr::ScalarFunction(call) if call.func.name() == "proctime" => Role::ProcessingTime,
            expr => column_index(wanted.schema, expr).map_or(Role::Plain, |column| roles[column]),
        };
        let arrival = wanted.order.iter().position(|sort| role(sort) == Role::ProcessingTime);
        if let Some(place) = arrival {
            return (&wanted.order[..place], !wanted.order[place].asc);
        }
        let keeps_last = match wanted.order {
            [only] => {
                !only.asc
                    && role(only).is_time_attribute()
                    && wanted.range.last == Some(1)
                    && wanted.rank.is_none()
            }
            _ => false,
        };
        (wanted.order, keeps_last)
    }

    /// A node with a column for each expression, its own columns first.
    pub(super) fn with_columns(
        &mut self,
        node: NodeId,
        schema: &DFSchemaRef,
        exprs: &[Expr],
    ) -> Result<(NodeId, Vec<usize>)> {
        let mut all: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        let width = all.len();
        let mut fields: Vec<FieldRef> = Vec::new();
        let mut columns = Vec::with_capacity(exprs.len());
        for expr in exprs {
            let known = column_index(schema, expr)
                .or_else(|| all[width..].iter().position(|other| other == expr).map(|place| width + place));
            columns.push(known.unwrap_or(all.len()));
            if known.is_none() {
                let data_type = expr.get_type(schema.as_ref()).map_err(from_datafusion)?;
                fields.push(Arc::new(Field::new(format!("$expr{}", fields.len()), data_type, true)));
                all.push(expr.clone());
            }
        }
        if fields.is_empty() {
            return Ok((node, columns));
        }
        let extended = extended(schema, fields)?;
        Ok((self.calc(node, schema, &all, None, Arc::clone(extended.inner()))?, columns))
    }

    /// What identifies a ranked row: the rank within its partition or, without it, what identified
    /// it before.
    fn rank_keys(&self, input: NodeId, spec: &RankSpec, output: &RankOutput) -> Vec<Vec<usize>> {
        let width = output.columns.len();
        let partition: Option<Vec<usize>> =
            spec.partition.iter().map(|column| (*column < width).then_some(*column)).collect();
        let Some(partition) = partition else { return Vec::new() };
        let single = spec.range.last == Some(spec.range.first);
        if spec.function == RankFunction::RowNumber && single {
            return vec![partition];
        }
        if spec.function == RankFunction::RowNumber && output.emit_rank {
            return vec![partition.into_iter().chain([width]).collect()];
        }
        let keys = self.node(input).properties.upsert_keys.iter();
        let within = keys.filter(|key| key.iter().all(|column| *column < width));
        within
            .map(|key| {
                let more = partition.iter().filter(|column| !key.contains(column));
                key.iter().chain(more).copied().collect()
            })
            .collect()
    }

    fn rank_bound(&self, input: NodeId, spec: &RankSpec) -> StateBound {
        let names = |columns: &[usize]| {
            let names: Vec<&str> =
                columns.iter().map(|column| spec.input_schema.field(*column).name().as_str()).collect();
            names.join(", ")
        };
        if let Some(ttl) = spec.ttl {
            return StateBound::Ttl(seconds(ttl));
        }
        match (spec.input_mode, spec.range.last, self.node(input).properties.upsert_keys.first()) {
            (ChangelogMode::Append, Some(_), _) if spec.partition.is_empty() => {
                StateBound::Keys(format!("ranks {}", spec.range))
            }
            (ChangelogMode::Append, Some(_), _) => {
                StateBound::Keys(format!("{}; ranks {}", names(&spec.partition), spec.range))
            }
            (ChangelogMode::Append, None, _) => {
                StateBound::Unbounded("OFFSET without LIMIT keeps all rows".into())
            }
            (ChangelogMode::Retract | ChangelogMode::Upsert, _, Some(key)) => StateBound::Keys(names(key)),
            (ChangelogMode::Retract | ChangelogMode::Upsert, _, None) => {
                StateBound::Unbounded("a ranking of rows that change keeps them all: any may move up".into())
            }
        }
    }
}

impl<'a> Ranked<'a> {
    fn find(plan: &'a LogicalPlan, exprs: Vec<Expr>, mut filters: Vec<Expr>) -> Result<Option<Self>> {
        match plan {
            LogicalPlan::Filter(filter) => {
                filters.extend(split_conjunction(&filter.predicate).into_iter().cloned());
                Self::find(&filter.input, exprs, filters)
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let below: Vec<Expr> = alias.input.schema().columns().into_iter().map(Expr::Column).collect();
                let schema = &alias.schema;
                let (exprs, filters) =
                    (rewritten(exprs, schema, &below)?, rewritten(filters, schema, &below)?);
                Self::find(&alias.input, exprs, filters)
            }
            LogicalPlan::Projection(projection) if !projection.expr.iter().any(is_random) => {
                let below: Vec<Expr> = projection.expr.iter().cloned().map(Expr::unalias).collect();
                let schema = &projection.schema;
                let (exprs, filters) =
                    (rewritten(exprs, schema, &below)?, rewritten(filters, schema, &below)?);
                Self::find(&projection.input, exprs, filters)
            }
            LogicalPlan::Window(window) if !filters.is_empty() => Ok(Self::of(window, exprs, filters)),
            _ => Ok(None),
        }
    }

    fn of(window: &'a Window, exprs: Vec<Expr>, filters: Vec<Expr>) -> Option<Self> {
        let [expr] = window.window_expr.as_slice() else { return None };
        let call = unaliased_window_function(expr)?;
        let function = rank_function(&call.fun)?;
        let (partition, order) = (call.params.partition_by.as_slice(), call.params.order_by.as_slice());
        Some(Self { window, function, partition, order, exprs, filters })
    }
}

/// Whether just the first row to arrive of each key is wanted.
fn keeps_first(spec: &RankSpec, output: &RankOutput) -> bool {
    spec.function == RankFunction::RowNumber
        && spec.order.is_empty()
        && !spec.latest_first
        && spec.range == (RankRange { first: 1, last: Some(1) })
        && spec.input_mode == ChangelogMode::Append
        && !output.emit_rank
}

/// State with times is other state than without; how long it lives may change.
pub(super) fn ttl_text(ttl: Option<i64>) -> &'static str {
    if ttl.is_some() { " ttl" } else { "" }
}

/// What makes a ranking what it is.
fn rank_semantics(spec: &RankSpec, output: &RankOutput) -> String {
    let ttl = ttl_text(spec.ttl);
    format!("{} {:?} {:?} rank={}{ttl}", spec.describe(), spec.partition, spec.order, output.emit_rank)
}

fn unaliased_window_function(expr: &Expr) -> Option<&datafusion::logical_expr::expr::WindowFunction> {
    match expr {
        Expr::Alias(alias) => unaliased_window_function(&alias.expr),
        Expr::WindowFunction(call) => Some(call),
        _ => None,
    }
}

fn rank_function(function: &WindowFunctionDefinition) -> Option<RankFunction> {
    match function.name() {
        "row_number" => Some(RankFunction::RowNumber),
        "rank" => Some(RankFunction::Rank),
        "dense_rank" => Some(RankFunction::DenseRank),
        _ => None,
    }
}

/// Whether the expression gives another value each time, other than the time.
fn is_random(expr: &Expr) -> bool {
    let mut found = false;
    let visited = expr.apply(|node| {
        if let Expr::ScalarFunction(call) = node {
            let name = call.func.name();
            let of_epoch = millpond_operators::expression::EPOCH_TIME_FUNCTIONS.contains(&name)
                || name == millpond_operators::expression::WATERMARK_FUNCTION;
            found |= !of_epoch
                && call.func.signature().volatility == datafusion::logical_expr::Volatility::Volatile;
        }
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    });
    found || visited.is_err()
}

/// What an OVER without a bound is told.
pub(super) fn unbounded_rank(function: &str) -> Error {
    unsupported(format!("{function}() without a filter on its number"))
        .with_hint("keep the first rows of each partition: WHERE rn <= 10, or QUALIFY … <= 10")
}

/// The refusal of an OVER that is not a ranking with a bound.
pub(super) fn refused_window(window: &Window) -> Error {
    let mut calls = window.window_expr.iter().filter_map(unaliased_window_function);
    match (calls.next().and_then(|call| rank_function(&call.fun)), calls.next()) {
        (Some(function), None) => unbounded_rank(&function.to_string()),
        (Some(_), Some(_)) => unsupported("OVER beside another OVER")
            .with_hint("filter on one row number in a subquery, and compute the next over it"),
        (None, _) => unsupported("OVER"),
    }
}

/// The expressions with another one in place of the rank's column.
fn with_rank(exprs: Vec<Expr>, schema: &DFSchema, rank: usize, number: &Expr) -> Result<Vec<Expr>> {
    let replace = |expr: Expr| match &expr {
        Expr::Column(column) if is_column(schema, column, rank) => Ok(Transformed::yes(number.clone())),
        _ => Ok(Transformed::no(expr)),
    };
    exprs
        .into_iter()
        .map(|expr| expr.transform_up(replace).map(|expr| expr.data).map_err(from_datafusion))
        .collect()
}

/// A schema with more columns, which belong to no table.
fn extended(schema: &DFSchema, more: impl IntoIterator<Item = FieldRef>) -> Result<DFSchemaRef> {
    let mut fields: Vec<(Option<TableReference>, FieldRef)> =
        schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect();
    fields.extend(more.into_iter().map(|field| (None, field)));
    DFSchema::new_with_metadata(fields, HashMap::new()).map(Arc::new).map_err(from_datafusion)
}

/// The expressions under the names of a schema.
fn named(exprs: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    exprs.into_iter().zip(schema.fields()).map(|(expr, field)| expr.alias(field.name())).collect()
}

/// The ORDER BY beneath a LIMIT, what it orders, and the expressions over that.
fn sorted(plan: &LogicalPlan, exprs: Vec<Expr>) -> Result<(&LogicalPlan, Vec<Expr>, &[SortExpr])> {
    match plan {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
            let exprs = onto(exprs, plan.schema(), &sort.input)?;
            Ok((&sort.input, exprs, &sort.expr))
        }
        LogicalPlan::SubqueryAlias(alias) if reaches_sort(&alias.input) => {
            let exprs = onto(exprs, plan.schema(), &alias.input)?;
            sorted(&alias.input, exprs)
        }
        LogicalPlan::Projection(projection) if reaches_sort(&projection.input) => {
            let below: Vec<Expr> = projection.expr.iter().cloned().map(Expr::unalias).collect();
            sorted(&projection.input, rewritten(exprs, &projection.schema, &below)?)
        }
        other => Ok((other, exprs, &[])),
    }
}

fn reaches_sort(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(sort) => sort.fetch.is_none(),
        LogicalPlan::SubqueryAlias(alias) => reaches_sort(&alias.input),
        LogicalPlan::Projection(projection) => {
            !projection.expr.iter().any(is_random) && reaches_sort(&projection.input)
        }
        _ => false,
    }
}

/// Expressions over columns that a plan passes through in their places.
fn onto(exprs: Vec<Expr>, schema: &DFSchema, input: &LogicalPlan) -> Result<Vec<Expr>> {
    let below: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    rewritten(exprs, schema, &below)
}

fn distinct(columns: &[usize]) -> Vec<usize> {
    let mut distinct = Vec::with_capacity(columns.len());
    for column in columns {
        if !distinct.contains(column) {
            distinct.push(*column);
        }
    }
    distinct
}
