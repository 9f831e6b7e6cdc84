//! Aggregations: over windows, over rows that carry their window, or per group.
//!
//! ```text
//! Aggregate over a window function, by its window      WindowAggregate, rows assigned inside
//! Aggregate by window columns that the rows carry      WindowAggregate, windows attached
//! any other Aggregate                                  GroupAggregate
//! ```
//!
//! The first two need appended rows; they append their results when the watermark passes a window.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::DFSchema;
use datafusion::logical_expr::expr::AggregateFunction as LogicalAggregate;
use datafusion::logical_expr::{Aggregate, Expr};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::aggregate::{AggregateCall, AggregateFunction};
use millpond_operators::group_aggregate::GroupAggregateFactory;

use super::calc::plain;
use super::{Chooser, NodeFacts, Operator, column_index};
use crate::plan_error::unsupported;
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};

/// An aggregate call of the logical plan.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) function: AggregateFunction,
    pub(super) argument: Option<Expr>,
    pub(super) filter: Option<Expr>,
    pub(super) distinct: bool,
    /// The name and type of its result.
    pub(super) result: Arc<Field>,
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
        let name = call.func.name();
        let unknown = || unsupported(format!("aggregate function {}", name.to_uppercase()));
        let function = match name {
            "count" => AggregateFunction::Count,
            "sum" => AggregateFunction::Sum,
            "avg" => AggregateFunction::Avg,
            "min" => AggregateFunction::Min,
            "max" => AggregateFunction::Max,
            _ => return Err(unknown()),
        };
        if !params.order_by.is_empty() {
            return Err(unsupported(format!("ORDER BY in {}", name.to_uppercase())));
        }
        let argument = match params.args.as_slice() {
            [argument] => argument.clone(),
            _ => return Err(unsupported(format!("{} of several arguments", name.to_uppercase()))),
        };
        // COUNT(*) arrives as COUNT(1).
        let counts_rows = function == AggregateFunction::Count && is_constant(&argument) && !params.distinct;
        Ok(Self {
            function: if counts_rows { AggregateFunction::CountStar } else { function },
            argument: (!counts_rows).then_some(argument),
            filter: params.filter.as_deref().cloned(),
            distinct: params.distinct,
            result: Arc::clone(result),
        })
    }
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => !value.is_null(),
        Expr::Alias(alias) => is_constant(&alias.expr),
        _ => false,
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
        if let [Expr::GroupingSet(sets)] = aggregate.group_expr.as_slice() {
            let windowed = self.windowed_sets(aggregate, sets)?;
            return windowed.ok_or_else(|| unsupported("GROUPING SETS"));
        }
        let results = aggregate.schema.fields().iter().skip(aggregate.group_expr.len());
        let calls = aggregate
            .aggr_expr
            .iter()
            .zip(results)
            .map(|(expr, result)| Call::parse(expr, result))
            .collect::<Result<Vec<_>>>()?;
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
        let mode = self.mode(prepared.input);
        refuse_extremes_of_changes(calls, mode)?;
        let keys = prepared.keys.clone();
        let exchange = self.exchange(prepared.input, keys.clone());
        let given = Arc::clone(&self.node(exchange).schema);
        let names: Vec<String> = keys.iter().map(|key| given.field(*key).name().clone()).collect();
        let distinct_rows = calls.is_empty() && mode == ChangelogMode::Append;
        let output = Arc::clone(aggregate.schema.inner());
        let operator = Operator {
            semantics: format!("{keys:?} {}", call_texts(&prepared.calls)),
            factory: Arc::new(GroupAggregateFactory {
                keys: keys
                    .iter()
                    .zip(names.iter())
                    .map(|(key, name)| (plain(&given, *key), name.clone()))
                    .collect(),
                aggregates: prepared.calls,
                input_schema: given,
                schema: Arc::clone(&output),
                emit_update_before: true,
                input_mode: mode,
            }),
            inputs: vec![exchange],
            mode: if distinct_rows { ChangelogMode::Append } else { ChangelogMode::Retract },
            upsert_keys: vec![(0..keys.len()).collect()],
            state: StateBound::Keys(match names.as_slice() {
                [] => "one row".into(),
                names => names.join(", "),
            }),
            facts: NodeFacts {
                updated_by: Some("GROUP BY"),
                ..NodeFacts::new(vec![Role::Plain; output.fields().len()], keys.is_empty())
            },
            identity: None,
        };
        Ok(self.add_operator(operator))
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
        let arguments = calls.iter().filter_map(|call| call.argument.clone());
        let filters = calls.iter().filter_map(|call| call.filter.clone());
        let exprs: Vec<Expr> =
            others.iter().cloned().chain(keys.iter().cloned()).chain(arguments).chain(filters).collect();
        let (input, columns) = self.columns_of(input, schema, &exprs, filter)?;
        let fields = Arc::clone(&self.node(input).schema);
        let mut columns = columns.into_iter();
        let others = columns.by_ref().take(others.len()).collect();
        let keys = columns.by_ref().take(keys.len()).collect();
        let mut next =
            |wanted: bool| wanted.then(|| columns.next()).flatten().map(|column| plain(&fields, column));
        let arguments: Vec<_> = calls.iter().map(|call| next(call.argument.is_some())).collect();
        let filters: Vec<_> = calls.iter().map(|call| next(call.filter.is_some())).collect();
        let calls = calls
            .iter()
            .zip(arguments.into_iter().zip(filters))
            .map(|(call, (argument, filter))| AggregateCall {
                function: call.function,
                argument,
                filter,
                distinct: call.distinct,
                name: call.result.name().clone(),
                output_type: call.result.data_type().clone(),
            })
            .collect();
        Ok(Prepared { input, others, keys, calls })
    }
}

/// A retracted minimum has no successor unless all values are kept.
fn refuse_extremes_of_changes(calls: &[Call], mode: ChangelogMode) -> Result<()> {
    let extreme =
        calls.iter().find(|call| matches!(call.function, AggregateFunction::Min | AggregateFunction::Max));
    match (mode, extreme) {
        (ChangelogMode::Append, _) | (_, None) => Ok(()),
        (ChangelogMode::Upsert | ChangelogMode::Retract, Some(_)) => {
            Err(unsupported("MIN or MAX over rows that change"))
        }
    }
}

/// Calls as text, for what makes an operator what it is.
pub(super) fn call_texts(calls: &[AggregateCall]) -> String {
    calls.iter().map(AggregateCall::describe).collect::<Vec<_>>().join(", ")
}
