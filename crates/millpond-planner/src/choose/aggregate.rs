//! Aggregations: over windows, over rows that carry their window, or per group.
//!
//! ```text
//! Aggregate over a window function, by its window      WindowAggregate, rows assigned inside
//! Aggregate by window columns that the rows carry      WindowAggregate, windows attached
//! Aggregate by GROUPING SETS, CUBE, ROLLUP             Expand, GroupAggregate
//! any other Aggregate                                  GroupAggregate
//! ```
//!
//! The first two need appended rows; they append their results when the watermark passes a window.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction as LogicalAggregate, NullTreatment, Sort};
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::aggregate::{AggregateCall, AggregateFunction};
use millpond_operators::expand::ExpandFactory;
use millpond_operators::group_aggregate::GroupAggregateFactory;

use super::calc::plain;
use super::rank::ttl_text;
use super::{Chooser, NodeFacts, Operator, column_index};
use crate::aggregate_function;
use crate::plan_error::from_datafusion;
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::seconds;

/// An aggregate call of the logical plan.
#[derive(Debug, Clone)]
pub(super) struct Call {
    function: AggregateFunction,
    arguments: Vec<Expr>,
    order_by: Vec<Sort>,
    filter: Option<Expr>,
    distinct: bool,
    ignore_nulls: Option<bool>,
    /// The name and type of its result.
    result: Arc<Field>,
}

impl Call {
    fn parse(expr: &Expr, result: &Arc<Field>) -> Result<Self> {
        match expr {
            Expr::Alias(alias) => Self::parse(&alias.expr, result),
            Expr::AggregateFunction(call) => Self::of(call, result),
            other => Err(Error::internal(format!("{other} is not an aggregate"))),
        }
    }

    fn of(call: &LogicalAggregate, result: &Arc<Field>) -> Result<Self> {
        let params = &call.params;
        let constants: Vec<Option<ScalarValue>> = params.args.iter().map(constant).collect();
        let descending = params.order_by.first().is_some_and(|sort| !sort.asc);
        let resolved = aggregate_function::resolve(&call.func, &constants, descending)?;
        let mut function = resolved.function;
        let mut arguments = match &function {
            // Its constants are part of it.
            AggregateFunction::Custom(_) => {
                let columns = params.args.iter().zip(&constants).filter(|(_, constant)| constant.is_none());
                columns.map(|(argument, _)| argument.clone()).collect()
            }
            _ => params.args[..resolved.columns].to_vec(),
        };
        // COUNT(*) arrives as COUNT(1).
        let counts_rows = function == AggregateFunction::Count
            && !params.distinct
            && constants.iter().all(|value| value.as_ref().is_some_and(|value| !value.is_null()));
        if counts_rows {
            function = AggregateFunction::CountStar;
            arguments.clear();
        }
        Ok(Self {
            function,
            arguments,
            order_by: if resolved.ordered { Vec::new() } else { params.order_by.clone() },
            filter: params.filter.as_deref().cloned(),
            distinct: params.distinct,
            ignore_nulls: params.null_treatment.map(|nulls| nulls == NullTreatment::IgnoreNulls),
            result: Arc::clone(result),
        })
    }

    /// All expressions of the call: arguments, ORDER BY, FILTER.
    pub(super) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let order_by = self.order_by.iter().map(|sort| &sort.expr);
        self.arguments.iter().chain(order_by).chain(&self.filter)
    }

    /// The same call of other expressions, as many as [`Call::exprs`] gives.
    pub(super) fn over(&self, exprs: &mut impl Iterator<Item = Expr>) -> Self {
        let sort = |(sort, expr): (&Sort, Expr)| Sort { expr, ..sort.clone() };
        let arguments = exprs.by_ref().take(self.arguments.len()).collect();
        let order_by: Vec<Expr> = exprs.by_ref().take(self.order_by.len()).collect();
        Self {
            arguments,
            order_by: self.order_by.iter().zip(order_by).map(sort).collect(),
            filter: self.filter.as_ref().and_then(|_| exprs.next()),
            ..self.clone()
        }
    }
}

fn constant(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Alias(alias) => constant(&alias.expr),
        _ => None,
    }
}

/// Keys and calls over the columns of a node.
pub(super) struct Prepared {
    pub(super) input: NodeId,
    /// Columns asked for besides keys and calls.
    pub(super) others: Vec<usize>,
    pub(super) keys: Vec<usize>,
    pub(super) calls: Vec<AggregateCall>,
}

impl Chooser<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<NodeId> {
        let grouping_sets = match aggregate.group_expr.as_slice() {
            [Expr::GroupingSet(sets)] => Some(sets),
            _ => None,
        };
        if let Some(sets) = grouping_sets
            && let Some(windowed) = self.windowed_sets(aggregate, sets)?
        {
            return Ok(windowed);
        }
        let groups = match grouping_sets {
            // Besides the grouping columns there is the number of the set.
            Some(sets) => sets.distinct_expr().len() + 1,
            None => aggregate.group_expr.len(),
        };
        let results = aggregate.schema.fields().iter().skip(groups);
        let calls = aggregate
            .aggr_expr
            .iter()
            .zip(results)
            .map(|(expr, result)| Call::parse(expr, result))
            .collect::<Result<Vec<_>>>()?;
        if let Some(sets) = grouping_sets {
            let input = self.choose(&aggregate.input)?;
            return self.aggregate_sets(aggregate, sets, &calls, input);
        }
        if let Some(windowed) = self.aggregate_over_window_function(aggregate, &calls)? {
            return Ok(windowed);
        }
        let input = self.choose(&aggregate.input)?;
        let schema = aggregate.input.schema();
        if self.is_append(input) {
            let roles = self.group_roles(input, schema, &aggregate.group_expr);
            if roles.iter().any(|role| role.windows().is_some()) {
                return self.aggregate_attached(aggregate, &calls, input, &roles);
            }
        }
        self.group_aggregate(aggregate, &calls, input)
    }

    pub(super) fn group_roles(&self, input: NodeId, schema: &DFSchema, group: &[Expr]) -> Vec<Role> {
        let roles = &self.facts[input].roles;
        group
            .iter()
            .map(|expr| column_index(schema, expr).map_or(Role::Plain, |column| roles[column]))
            .collect()
    }

    fn group_aggregate(&mut self, aggregate: &Aggregate, calls: &[Call], input: NodeId) -> Result<NodeId> {
        let schema = aggregate.input.schema();
        let prepared = self.prepared(input, schema, &[], &aggregate.group_expr, calls, None)?;
        let names = prepared.keys.iter().map(|key| self.node(prepared.input).schema.field(*key).name());
        let names: Vec<String> = names.cloned().collect();
        let lasting = if names.is_empty() { vec![Vec::new()] } else { Vec::new() };
        self.add_group_aggregate(aggregate, prepared, names, lasting)
    }

    fn add_group_aggregate(
        &mut self,
        aggregate: &Aggregate,
        prepared: Prepared,
        names: Vec<String>,
        lasting: Vec<Vec<ScalarValue>>,
    ) -> Result<NodeId> {
        let mode = self.mode(prepared.input);
        let keys = prepared.keys;
        let exchange = self.exchange(prepared.input, keys.clone());
        let given = Arc::clone(&self.node(exchange).schema);
        let ttl = if keys.is_empty() { None } else { self.ttl_of(&aggregate.input) };
        let distinct_rows = prepared.calls.is_empty() && mode == ChangelogMode::Append;
        let output = Arc::clone(aggregate.schema.inner());
        let operator = Operator {
            semantics: format!("{keys:?} {}{}", call_texts(&prepared.calls), ttl_text(ttl)),
            factory: Arc::new(GroupAggregateFactory {
                keys: keys
                    .iter()
                    .zip(names.iter())
                    .map(|(key, name)| (plain(&given, *key), name.clone()))
                    .collect(),
                lasting,
                aggregates: prepared.calls,
                input_schema: given,
                schema: Arc::clone(&output),
                emit_update_before: true,
                input_mode: mode,
                ttl,
            }),
            inputs: vec![exchange],
            mode: if distinct_rows { ChangelogMode::Append } else { ChangelogMode::Retract },
            upsert_keys: vec![(0..keys.len()).collect()],
            state: match (names.as_slice(), ttl) {
                ([], _) => StateBound::Keys("one row".into()),
                (_, Some(ttl)) => StateBound::Ttl(seconds(ttl)),
                (names, None) => StateBound::Keys(names.join(", ")),
            },
            facts: NodeFacts {
                updated_by: Some("GROUP BY"),
                ..NodeFacts::new(vec![Role::Plain; output.fields().len()], keys.is_empty())
            },
            identity: None,
        };
        let id = self.add_operator(operator);
        self.spread_by(id, vec![(0..keys.len()).collect()]);
        Ok(id)
    }

    /// GROUPING SETS, CUBE, ROLLUP: each row counts once per set.
    fn aggregate_sets(
        &mut self,
        aggregate: &Aggregate,
        sets: &GroupingSet,
        calls: &[Call],
        input: NodeId,
    ) -> Result<NodeId> {
        let exprs: Vec<Expr> = sets.distinct_expr().into_iter().cloned().collect();
        let mut prepared = self.prepared(input, aggregate.input.schema(), &[], &exprs, calls, None)?;
        let before = Arc::clone(&self.node(prepared.input).schema);
        let added = aggregate.schema.fields().iter().take(exprs.len() + 1).cloned();
        let schema = Arc::new(Schema::new(before.fields().iter().cloned().chain(added).collect::<Vec<_>>()));
        let number_type = aggregate.schema.field(exprs.len()).data_type();
        let sets = numbered_sets(sets, &exprs, number_type)?;
        let nulls = aggregate.schema.fields().iter().take(exprs.len());
        let nulls = nulls.map(|field| ScalarValue::try_from(field.data_type()).map_err(from_datafusion));
        let nulls = nulls.collect::<Result<Vec<_>>>()?;
        let empty = sets.iter().filter(|(kept, _)| !kept.contains(&true));
        let lasting = empty.map(|(_, number)| [nulls.clone(), vec![number.clone()]].concat()).collect();
        let facts = self.facts[prepared.input].clone();
        let expand = Operator {
            semantics: format!("{:?} {sets:?}", prepared.keys),
            factory: Arc::new(ExpandFactory { keys: prepared.keys, sets, schema: Arc::clone(&schema) }),
            inputs: vec![prepared.input],
            mode: self.mode(prepared.input),
            upsert_keys: Vec::new(),
            state: StateBound::None,
            facts: NodeFacts {
                roles: facts.roles.iter().copied().chain(vec![Role::Plain; exprs.len() + 1]).collect(),
                ..facts
            },
            identity: None,
        };
        prepared.input = self.add_operator(expand);
        prepared.keys = (before.fields().len()..schema.fields().len()).collect();
        let names = aggregate.schema.fields().iter().take(exprs.len() + 1);
        let names = names.map(|field| field.name().clone()).collect();
        self.add_group_aggregate(aggregate, prepared, names, lasting)
    }

    /// Makes columns of everything that an aggregation needs, so that the exchange before it can
    /// hash them and nothing is evaluated twice.
    pub(super) fn prepared(
        &mut self,
        input: NodeId,
        schema: &DFSchema,
        others: &[Expr],
        keys: &[Expr],
        calls: &[Call],
        filter: Option<&Expr>,
    ) -> Result<Prepared> {
        let called = calls.iter().flat_map(Call::exprs);
        let exprs: Vec<Expr> = others.iter().chain(keys).chain(called).cloned().collect();
        let (input, columns) = self.columns_of(input, schema, &exprs, filter)?;
        let fields = Arc::clone(&self.node(input).schema);
        let mut columns = columns.into_iter();
        let others = columns.by_ref().take(others.len()).collect();
        let keys = columns.by_ref().take(keys.len()).collect();
        let mut columns = columns.map(|column| plain(&fields, column));
        let calls = calls
            .iter()
            .map(|call| {
                let arguments = columns.by_ref().take(call.arguments.len()).collect();
                let options =
                    |sort: &Sort| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
                let order_by = columns.by_ref().take(call.order_by.len());
                let order_by = order_by.zip(call.order_by.iter().map(options)).collect();
                AggregateCall {
                    function: call.function.clone(),
                    arguments,
                    order_by,
                    filter: call.filter.as_ref().and_then(|_| columns.next()),
                    distinct: call.distinct,
                    ignore_nulls: call.ignore_nulls,
                    name: call.result.name().clone(),
                    output_type: call.result.data_type().clone(),
                }
            })
            .collect();
        Ok(Prepared { input, others, keys, calls })
    }
}

/// Which of the grouping columns each set keeps, and its number: a bit per column that it leaves
/// out, the last column's lowest, and above them how often the same set came before.
fn numbered_sets(
    sets: &GroupingSet,
    columns: &[Expr],
    number_type: &DataType,
) -> Result<Vec<(Vec<bool>, ScalarValue)>> {
    let sets: Vec<Vec<&Expr>> = match sets {
        GroupingSet::GroupingSets(sets) => sets.iter().map(|set| set.iter().collect()).collect(),
        GroupingSet::Rollup(columns) => (0..=columns.len()).map(|n| columns[..n].iter().collect()).collect(),
        GroupingSet::Cube(columns) => (0..1usize << columns.len())
            .map(|bits| (0..columns.len()).filter(|i| bits >> i & 1 == 0).map(|i| &columns[i]).collect())
            .collect(),
    };
    let mut numbered: Vec<(Vec<bool>, ScalarValue)> = Vec::with_capacity(sets.len());
    for set in sets {
        let kept: Vec<bool> = columns.iter().map(|column| set.contains(&column)).collect();
        let left_out = kept.iter().fold(0u64, |bits, kept| bits << 1 | u64::from(!kept));
        let twins = numbered.iter().filter(|(known, _)| *known == kept).count() as u64;
        let number = ScalarValue::UInt64(Some(twins << columns.len() | left_out));
        numbered.push((kept, number.cast_to(number_type).map_err(from_datafusion)?));
    }
    Ok(numbered)
}

/// Calls as text, for what makes an operator what it is.
pub(super) fn call_texts(calls: &[AggregateCall]) -> String {
    calls.iter().map(AggregateCall::semantics).collect::<Vec<_>>().join(", ")
}
