//! Window functions and the aggregations over them.
//!
//! An aggregation by the window of a window function assigns rows to windows itself (and shares
//! slices between overlapping windows), so that the function never multiplies rows. An aggregation
//! of rows that carry a window already, such as the results of another one, is attached to it.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNano, Schema, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, UserDefinedLogicalNodeCore, cast};
use millpond_core::{ChangelogMode, Error, Result, TimePrecision};
use millpond_operators::aggregate::AggregateCall;
use millpond_operators::window::{WindowKind, WindowSpec};
use millpond_operators::window_aggregate::{WindowAggregateFactory, WindowColumn};
use millpond_operators::window_tvf::WindowTvfFactory;

use super::aggregate::{Call, call_texts};
use super::calc::plain;
use super::{Chooser, NodeFacts, Operator, column_index, lost};
use crate::plan_error::from_datafusion;
use crate::properties::{Role, Windows};
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::{WindowShape, WindowTvf};

/// An aggregation by a window, before it becomes an operator.
struct Windowed<'a> {
    aggregate: &'a Aggregate,
    spec: WindowSpec,
    windows: Windows,
    input: NodeId,
    time: usize,
    /// The keys beside the window.
    keys: Vec<usize>,
    calls: Vec<AggregateCall>,
    /// What each group expression is.
    groups: Vec<WindowColumn>,
    /// What it means to event time.
    roles: Vec<Role>,
}

impl Chooser<'_> {
    /// A window function whose rows are used one by one.
    pub(super) fn window_tvf(&mut self, window: &WindowTvf) -> Result<NodeId> {
        let input = self.choose(&window.input)?;
        let time = self.time_attribute(window, input)?;
        let (spec, windows) = self.windows(window, input, time)?;
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
        let mut roles = self.facts[input].roles.clone();
        roles.extend(
            [WindowColumn::WindowStart, WindowColumn::WindowEnd, WindowColumn::WindowTime]
                .map(|column| window_role(column, windows)),
        );
        let operator = Operator {
            semantics: format!("{spec} time={time}"),
            identity: None,
            mode: before.properties.mode,
            upsert_keys: keys.collect(),
            state: StateBound::None,
            facts: NodeFacts { roles, ..self.facts[input].clone() },
            factory: Arc::new(WindowTvfFactory {
                window: spec,
                time_column: time,
                schema: Arc::new(Schema::new(fields)),
            }),
            inputs: vec![input],
        };
        Ok(self.add_operator(operator))
    }

    /// The windows of a function, for the operator and as facts.
    fn windows(&self, window: &WindowTvf, input: NodeId, time: usize) -> Result<(WindowSpec, Windows)> {
        let schema = &self.node(input).schema;
        let data_type = schema.field(time).data_type();
        let precision = TimePrecision::of(data_type).ok_or_else(|| lost("a timestamp"))?;
        let time_zone = match data_type {
            DataType::Timestamp(_, Some(_)) => self.session.time_zone(),
            _ => None,
        };
        let kind = match window.shape {
            WindowShape::Tumble { size, .. } => WindowKind::Tumble { size },
            WindowShape::Hop { slide, size, .. } => WindowKind::Hop { size, slide },
            WindowShape::Cumulate { step, size, .. } => WindowKind::Cumulate { size, step },
        };
        let spec = WindowSpec { kind, offset: window.shape.offset(), time_zone };
        spec.check().map_err(|error| error.with_location(window.at.0))?;
        Ok((spec, Windows { shape: window.shape, precision, time_zone }))
    }

    /// The descriptor's column, which must carry the watermark.
    fn time_attribute(&self, window: &WindowTvf, input: NodeId) -> Result<usize> {
        let time = column_index(window.input.schema(), &window.time)
            .ok_or_else(|| lost("a window's time column"))?;
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
        let (spec, windows) = self.windows(window, input, time)?;
        let schema = window.input.schema();
        let time = Expr::Column(schema.columns().swap_remove(time));
        let filter = conjunction(beneath.filters);
        let prepared =
            self.prepared(input, schema, &[time], &beneath.keys, &beneath.calls, filter.as_ref())?;
        let windowed = Windowed {
            aggregate,
            spec,
            windows,
            input: prepared.input,
            time: prepared.others[0],
            keys: prepared.keys,
            calls: prepared.calls,
            roles: beneath.groups.iter().map(|group| window_role(*group, windows)).collect(),
            groups: beneath.groups,
        };
        self.add_window_aggregate(windowed).map(Some)
    }

    /// An aggregation by window columns that the rows carry, such as the results of another one.
    ///
    /// A window is known by its last instant: every window of a TUMBLE, HOP or CUMULATE ends at
    /// another multiple of the slide, so that instants tumble by the slide into just the rows of
    /// one window. A start that does not lie one slide before the end is another key. By their
    /// starts alone, the windows of a CUMULATE are one, as long as the longest.
    pub(super) fn aggregate_attached(
        &mut self,
        aggregate: &Aggregate,
        calls: &[Call],
        input: NodeId,
        roles: &[Role],
    ) -> Result<NodeId> {
        let schema = aggregate.input.schema();
        let windows = roles.iter().find_map(|role| role.windows()).ok_or_else(|| lost("a window"))?;
        let time = self.last_instant(input, schema, windows)?;
        let ends = roles
            .iter()
            .any(|role| matches!(role, Role::WindowEnd(of) | Role::WindowTime(of) if *of == windows));
        let distance = match windows.shape {
            WindowShape::Cumulate { size, .. } if !ends => size,
            shape => shape.slide(),
        };
        let known_starts = distance == windows.shape.size();
        let mut groups = Vec::new();
        let mut keys = Vec::new();
        for (role, expr) in roles.iter().zip(&aggregate.group_expr) {
            groups.push(match role {
                Role::WindowStart(of) if *of == windows && known_starts => WindowColumn::WindowStart,
                Role::WindowEnd(of) if *of == windows => WindowColumn::WindowEnd,
                Role::WindowTime(of) if *of == windows => WindowColumn::WindowTime,
                _ => {
                    keys.push(expr.clone());
                    WindowColumn::Key(keys.len() - 1)
                }
            });
        }
        let prepared = self.prepared(input, schema, &[time], &keys, calls, None)?;
        let offset = (windows.shape.offset() + windows.shape.size()).rem_euclid(distance);
        let windowed = Windowed {
            aggregate,
            spec: WindowSpec {
                kind: WindowKind::Tumble { size: distance },
                offset,
                time_zone: windows.time_zone,
            },
            windows,
            input: prepared.input,
            time: prepared.others[0],
            keys: prepared.keys,
            calls: prepared.calls,
            groups,
            roles: roles.to_vec(),
        };
        self.add_window_aggregate(windowed)
    }

    /// The last instant of the rows' window: carried along, or computed from one of its bounds
    /// (then in local time).
    fn last_instant(&self, input: NodeId, schema: &DFSchema, windows: Windows) -> Result<Expr> {
        let carried = |role: Role| {
            let place = self.facts[input].roles.iter().position(|other| *other == role)?;
            schema.columns().get(place).cloned().map(Expr::Column)
        };
        if let Some(time) = carried(Role::WindowTime(windows)) {
            return Ok(time);
        }
        let end = match (carried(Role::WindowEnd(windows)), carried(Role::WindowStart(windows))) {
            (Some(end), _) => end,
            (None, Some(start)) => {
                start + Expr::Literal(interval(windows.shape.size().saturating_mul(1000)), None)
            }
            (None, None) => return Err(lost("a window's bounds")),
        };
        let (unit, nanos) = match windows.precision {
            TimePrecision::Second => (TimeUnit::Second, 1_000_000_000),
            TimePrecision::Millisecond => (TimeUnit::Millisecond, 1_000_000),
            TimePrecision::Microsecond => (TimeUnit::Microsecond, 1000),
            TimePrecision::Nanosecond => (TimeUnit::Nanosecond, 1),
        };
        let time = cast(end, DataType::Timestamp(unit, None)) - Expr::Literal(interval(nanos), None);
        self.session.coerced(time, schema)
    }

    fn add_window_aggregate(&mut self, windowed: Windowed<'_>) -> Result<NodeId> {
        let Windowed { aggregate, spec, windows, input, time, keys, calls, groups, mut roles } = windowed;
        let exchange = self.exchange(input, keys.clone());
        roles.extend(calls.iter().map(|_| Role::Plain));
        let key: Vec<usize> = (0..groups.len()).collect();
        let aggregates = (0..calls.len()).map(WindowColumn::Aggregate);
        let output: Vec<WindowColumn> = groups.iter().copied().chain(aggregates).collect();
        let given = Arc::clone(&self.node(exchange).schema);
        let schema = Arc::clone(aggregate.schema.inner());
        let operator = Operator {
            semantics: format!("{spec} time={time} {keys:?} {output:?} {}", call_texts(&calls)),
            identity: None,
            state: StateBound::Watermark(format!("{} of {}", windows.shape, given.field(time).name())),
            factory: Arc::new(WindowAggregateFactory {
                window: spec,
                time_column: time,
                keys: keys
                    .iter()
                    .map(|key| (plain(&given, *key), given.field(*key).name().clone()))
                    .collect(),
                aggregates: calls,
                output,
                input_schema: given,
                schema,
            }),
            inputs: vec![exchange],
            mode: ChangelogMode::Append,
            upsert_keys: vec![key],
            facts: NodeFacts::new(roles, keys.is_empty()),
        };
        Ok(self.add_operator(operator))
    }
}

fn interval(nanos: i64) -> ScalarValue {
    ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 0, nanos)))
}

/// What a window column means.
fn window_role(column: WindowColumn, windows: Windows) -> Role {
    match column {
        WindowColumn::WindowStart => Role::WindowStart(windows),
        WindowColumn::WindowEnd => Role::WindowEnd(windows),
        WindowColumn::WindowTime => Role::WindowTime(windows),
        WindowColumn::Key(_) | WindowColumn::Aggregate(_) => Role::Plain,
    }
}

/// What lies beneath an aggregation by a window: the window function, and keys, calls and filters
/// rewritten onto the columns of its input.
struct Beneath<'a> {
    window: &'a WindowTvf,
    keys: Vec<Expr>,
    calls: Vec<Call>,
    filters: Vec<Expr>,
    groups: Vec<WindowColumn>,
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
        let uses_window = |expr: &Expr| {
            expr.column_refs().iter().any(|c| schema.index_of_column(c).is_ok_and(|i| i >= width))
        };
        let mut exprs = exprs.into_iter();
        let (mut keys, mut groups) = (Vec::new(), Vec::new());
        for expr in exprs.by_ref().take(aggregate.group_expr.len()) {
            groups.push(match column_index(schema, &expr).and_then(|column| column.checked_sub(width)) {
                Some(0) => WindowColumn::WindowStart,
                Some(1) => WindowColumn::WindowEnd,
                Some(_) => WindowColumn::WindowTime,
                None if uses_window(&expr) => return Ok(None),
                None => {
                    keys.push(expr);
                    WindowColumn::Key(keys.len() - 1)
                }
            });
        }
        let mut rest: Vec<Expr> = exprs.collect();
        let by_window = groups.iter().any(|group| !matches!(group, WindowColumn::Key(_)));
        if !by_window || rest.iter().chain(&filters).any(uses_window) {
            return Ok(None);
        }
        let mut call_filters =
            rest.split_off(calls.iter().filter(|call| call.argument.is_some()).count()).into_iter();
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
        .map(|expr| expr.transform_up(replace).map(|expr| expr.data).map_err(from_datafusion))
        .collect()
}
