//! Window functions and the aggregations over them.
//!
//! An aggregation by the window of a window function assigns rows to windows itself (and shares
//! slices between overlapping windows), so that the function never multiplies rows. An aggregation
//! of rows that carry a window already, such as the results of another one, is attached to it.

use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::window_aggregate::{WindowAggregateFactory, WindowOutput, WindowSpec};
use millpond_operators::window_tvf::WindowTvfFactory;

use super::aggregate::{Call, call_texts};
use super::{Chooser, NodeFacts, Operator, column_index, lost};
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::{WindowShape, WindowTvf};

impl WindowShape {
    fn spec(self) -> WindowSpec {
        match self {
            Self::Tumble { size, offset } => WindowSpec::Tumble { size, offset },
            Self::Hop { slide, size, offset } => WindowSpec::Hop { slide, size, offset },
        }
    }
}

/// An aggregation by a window, before it becomes an operator.
struct Windowed<'a> {
    aggregate: &'a Aggregate,
    spec: WindowSpec,
    shape: WindowShape,
    input: NodeId,
    time: usize,
    /// The keys beside the window.
    keys: Vec<usize>,
    calls: Vec<millpond_operators::aggregate::AggregateCall>,
    /// What each group expression is.
    groups: Vec<WindowOutput>,
}

impl Chooser<'_> {
    /// A window function whose rows are used one by one.
    pub(super) fn window_tvf(&mut self, window: &WindowTvf) -> Result<NodeId> {
        let input = self.choose(&window.input)?;
        let time = self.time_attribute(window, input)?;
        let before = self.node(input);
        let width = before.schema.fields().len();
        let mut fields: Vec<_> = before.schema.fields().iter().cloned().collect();
        let schema = UserDefinedLogicalNodeCore::schema(window);
        fields.extend(schema.fields().iter().skip(window.input.schema().fields().len()).cloned());
        // HOP repeats a row, with another window each time.
        let keys = before.properties.upsert_keys.iter().cloned().map(|mut key| {
            key.push(width);
            key
        });
        let shape = window.shape;
        let mut roles = self.facts[input].roles.clone();
        roles.extend([Role::WindowStart(shape), Role::WindowEnd(shape), Role::WindowTime(shape)]);
        let operator = Operator {
            semantics: format!("{shape} time={time}"),
            identity: None,
            mode: before.properties.mode,
            upsert_keys: keys.collect(),
            state: StateBound::None,
            facts: NodeFacts { roles, ..self.facts[input].clone() },
            factory: Arc::new(WindowTvfFactory {
                window: shape.spec(),
                time,
                schema: Arc::new(arrow::datatypes::Schema::new(fields)),
            }),
            inputs: vec![input],
        };
        Ok(self.add_operator(operator))
    }

    /// The descriptor's column, which must carry the watermark.
    fn time_attribute(&self, window: &WindowTvf, input: NodeId) -> Result<usize> {
        let time = column_index(window.input.schema(), &window.time).ok_or_else(|| lost("a window's time column"))?;
        if self.facts[input].roles[time].is_time_attribute() {
            return Ok(time);
        }
        let name = self.node(input).schema.field(time).name();
        Err(Error::invalid(format!("DESCRIPTOR({name}) is not a time attribute"))
            .with_detail("windows close as the watermark of their time column passes")
            .with_hint(format!(
                "declare WATERMARK FOR {name} AS … in its table, or use window_time of an inner window"
            ))
            .with_location(window.at.0))
    }

    /// An aggregation by the window of a window function; `None` if it is another one.
    pub(super) fn aggregate_over_window_function(
        &mut self,
        aggregate: &Aggregate,
        calls: &[Call],
    ) -> Result<Option<NodeId>> {
        let Some(beneath) = Beneath::find(aggregate, calls)? else { return Ok(None) };
        let window = beneath.window;
        let input = self.choose(&window.input)?;
        let time = self.time_attribute(window, input)?;
        if !self.is_append(input) {
            return Ok(None);
        }
        let schema = window.input.schema();
        let time = Expr::Column(schema.columns().swap_remove(time));
        let filter = conjunction(beneath.filters);
        let prepared = self.prepared(input, schema, &[time], &beneath.keys, &beneath.calls, filter.as_ref())?;
        let windowed = Windowed {
            aggregate,
            spec: window.shape.spec(),
            shape: window.shape,
            input: prepared.input,
            time: prepared.others[0],
            keys: prepared.keys,
            calls: prepared.calls,
            groups: beneath.groups,
        };
        Ok(Some(self.add_window_aggregate(windowed)))
    }

    /// An aggregation by window columns that the rows carry.
    pub(super) fn aggregate_attached(
        &mut self,
        aggregate: &Aggregate,
        calls: &[Call],
        input: NodeId,
        roles: &[Role],
    ) -> Result<NodeId> {
        let schema = aggregate.input.schema();
        let place = |wanted: &dyn Fn(&Role) -> bool| {
            roles.iter().position(wanted).map(|place| aggregate.group_expr[place].clone())
        };
        let start = place(&|role| matches!(role, Role::WindowStart(_)));
        let end = place(&|role| matches!(role, Role::WindowEnd(_)));
        let shape = roles.iter().find_map(|role| role.window()).ok_or_else(|| lost("a window"))?;
        let [start, end] = self.both_bounds(input, schema, shape, start, end)?;
        let mut groups = Vec::new();
        let mut keys = Vec::new();
        for (role, expr) in roles.iter().zip(&aggregate.group_expr) {
            groups.push(match role {
                Role::WindowStart(_) => WindowOutput::Start,
                Role::WindowEnd(_) => WindowOutput::End,
                Role::WindowTime(_) => WindowOutput::Time,
                Role::Plain | Role::EventTime => {
                    keys.push(expr.clone());
                    WindowOutput::Key(keys.len() - 1)
                }
            });
        }
        let prepared = self.prepared(input, schema, &[start, end], &keys, calls, None)?;
        let [start, end] = [prepared.others[0], prepared.others[1]];
        let windowed = Windowed {
            aggregate,
            spec: WindowSpec::Attached { start, end },
            shape,
            input: prepared.input,
            time: end,
            keys: prepared.keys,
            calls: prepared.calls,
            groups,
        };
        Ok(self.add_window_aggregate(windowed))
    }

    /// Start and end of the rows' window: grouped by, or carried along, or one computed from the
    /// other by the window's length.
    fn both_bounds(
        &self,
        input: NodeId,
        schema: &DFSchema,
        shape: WindowShape,
        start: Option<Expr>,
        end: Option<Expr>,
    ) -> Result<[Expr; 2]> {
        let carried = |role: Role| {
            let columns = schema.columns();
            let place = self.facts[input].roles.iter().position(|other| *other == role)?;
            columns.get(place).cloned().map(Expr::Column)
        };
        let start = start.or_else(|| carried(Role::WindowStart(shape)));
        let end = end.or_else(|| carried(Role::WindowEnd(shape)));
        let size = datafusion::common::ScalarValue::IntervalMonthDayNano(Some(
            arrow::datatypes::IntervalMonthDayNano::new(0, 0, shape.size().saturating_mul(1000)),
        ));
        let size = Expr::Literal(size, None);
        match (start, end) {
            (Some(start), Some(end)) => Ok([start, end]),
            (Some(start), None) => Ok([start.clone(), start + size]),
            (None, Some(end)) => Ok([end.clone() - size, end]),
            (None, None) => Err(lost("a window's bounds")),
        }
    }

    fn add_window_aggregate(&mut self, windowed: Windowed<'_>) -> NodeId {
        let Windowed { aggregate, spec, shape, input, time, keys, calls, groups } = windowed;
        let exchange = self.exchange(input, keys.clone());
        let role = |group: &WindowOutput| match group {
            WindowOutput::Start => Role::WindowStart(shape),
            WindowOutput::End => Role::WindowEnd(shape),
            WindowOutput::Time => Role::WindowTime(shape),
            WindowOutput::Key(_) | WindowOutput::Aggregate(_) => Role::Plain,
        };
        let mut roles: Vec<Role> = groups.iter().map(role).collect();
        roles.extend(calls.iter().map(|_| Role::Plain));
        let group_count = groups.len();
        let output: Vec<WindowOutput> =
            groups.into_iter().chain((0..calls.len()).map(WindowOutput::Aggregate)).collect();
        let given = Arc::clone(&self.node(exchange).schema);
        let what = match spec {
            WindowSpec::Attached { end, .. } => given.field(end).name().clone(),
            WindowSpec::Tumble { .. } | WindowSpec::Hop { .. } => {
                format!("{} of {}", shape, given.field(time).name())
            }
        };
        let operator = Operator {
            semantics: format!("{spec:?} time={time} {keys:?} {output:?} {}", call_texts(&calls)),
            identity: None,
            factory: Arc::new(WindowAggregateFactory {
                window: spec,
                time,
                keys: keys.clone(),
                aggregates: calls,
                output,
                input_schema: given,
                schema: Arc::clone(aggregate.schema.inner()),
            }),
            inputs: vec![exchange],
            mode: ChangelogMode::Append,
            upsert_keys: vec![(0..group_count).collect()],
            state: StateBound::Watermark(what),
            facts: NodeFacts::new(roles, keys.is_empty()),
        };
        self.add_operator(operator)
    }
}

/// What lies beneath an aggregation by a window: the window function, and keys, calls and filters
/// rewritten onto the columns of its input.
struct Beneath<'a> {
    window: &'a WindowTvf,
    keys: Vec<Expr>,
    calls: Vec<Call>,
    filters: Vec<Expr>,
    groups: Vec<WindowOutput>,
}

impl<'a> Beneath<'a> {
    fn find(aggregate: &'a Aggregate, calls: &[Call]) -> Result<Option<Self>> {
        let mut exprs = aggregate.group_expr.clone();
        exprs.extend(calls.iter().filter_map(|call| call.argument.clone()));
        exprs.extend(calls.iter().filter_map(|call| call.filter.clone()));
        let Some((window, exprs, filters)) = descend(&aggregate.input, exprs, Vec::new())? else {
            return Ok(None);
        };
        let schema = UserDefinedLogicalNodeCore::schema(window);
        let width = window.input.schema().fields().len();
        let uses_window =
            |expr: &Expr| expr.column_refs().iter().any(|c| schema.index_of_column(c).is_ok_and(|i| i >= width));
        let mut exprs = exprs.into_iter();
        let (mut keys, mut groups) = (Vec::new(), Vec::new());
        for expr in exprs.by_ref().take(aggregate.group_expr.len()) {
            groups.push(match column_index(schema, &expr).and_then(|column| column.checked_sub(width)) {
                Some(0) => WindowOutput::Start,
                Some(1) => WindowOutput::End,
                Some(_) => WindowOutput::Time,
                None if uses_window(&expr) => return Ok(None),
                None => {
                    keys.push(expr);
                    WindowOutput::Key(keys.len() - 1)
                }
            });
        }
        let mut rest: Vec<Expr> = exprs.collect();
        let by_window = groups.iter().any(|group| !matches!(group, WindowOutput::Key(_)));
        if !by_window || rest.iter().chain(&filters).any(uses_window) {
            return Ok(None);
        }
        let mut call_filters = rest.split_off(calls.iter().filter(|call| call.argument.is_some()).count()).into_iter();
        let mut arguments = rest.into_iter();
        let calls = calls
            .iter()
            .map(|call| Call {
                argument: call.argument.as_ref().and_then(|_| arguments.next()),
                filter: call.filter.as_ref().and_then(|_| call_filters.next()),
                ..call.clone()
            })
            .collect();
        Ok(Some(Self { window, keys, calls, filters, groups }))
    }
}

/// A window function under projections, filters and aliases; expressions and filters over its columns.
type Descent<'a> = Option<(&'a WindowTvf, Vec<Expr>, Vec<Expr>)>;

fn descend(plan: &LogicalPlan, exprs: Vec<Expr>, mut filters: Vec<Expr>) -> Result<Descent<'_>> {
    match plan {
        LogicalPlan::Extension(extension) => {
            Ok(extension.node.as_any().downcast_ref::<WindowTvf>().map(|window| (window, exprs, filters)))
        }
        LogicalPlan::Filter(filter) => {
            filters.push(filter.predicate.clone());
            descend(&filter.input, exprs, filters)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let below: Vec<Expr> = alias.input.schema().columns().into_iter().map(Expr::Column).collect();
            let schema = &alias.schema;
            descend(&alias.input, rewritten(exprs, schema, &below)?, rewritten(filters, schema, &below)?)
        }
        LogicalPlan::Projection(projection) if !projection.expr.iter().any(Expr::is_volatile) => {
            let below: Vec<Expr> = projection.expr.iter().cloned().map(Expr::unalias).collect();
            let schema = &projection.schema;
            descend(&projection.input, rewritten(exprs, schema, &below)?, rewritten(filters, schema, &below)?)
        }
        _ => Ok(None),
    }
}

/// The expressions with each column of `schema` replaced by what it is below.
fn rewritten(exprs: Vec<Expr>, schema: &DFSchema, below: &[Expr]) -> Result<Vec<Expr>> {
    let replace = |expr: Expr| {
        let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
        let place = schema.index_of_column(column)?;
        Ok(Transformed::yes(below[place].clone()))
    };
    exprs
        .into_iter()
        .map(|expr| expr.transform_up(replace).map(|expr| expr.data).map_err(crate::plan_error::from_datafusion))
        .collect()
}
