//! Window functions and the aggregations over them.
//!
//! An aggregation by the window of a window function assigns rows to windows itself (and shares
//! slices between overlapping windows), so that the function never multiplies rows. An aggregation
//! of rows that carry a window already, such as the results of another one, is attached to it.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNano, Schema, SchemaRef, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, UserDefinedLogicalNodeCore, cast};
use millpond_core::{ChangelogMode, Error, Result, TimePrecision};
use millpond_operators::OperatorFactory;
use millpond_operators::aggregate::AggregateCall;
use millpond_operators::session_aggregate::SessionAggregateFactory;
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
pub(super) struct Windowed {
    /// Its output.
    pub(super) schema: SchemaRef,
    /// How rows find their windows; `None`: by sessions.
    pub(super) spec: Option<WindowSpec>,
    pub(super) windows: Windows,
    pub(super) input: NodeId,
    pub(super) time: usize,
    /// The keys beside the window.
    pub(super) keys: Vec<usize>,
    pub(super) calls: Vec<AggregateCall>,
    /// What each group expression is.
    pub(super) groups: Vec<WindowColumn>,
    /// What it means to event time.
    pub(super) roles: Vec<Role>,
}

impl Chooser<'_> {
    /// A window function whose rows are used one by one.
    pub(super) fn window_tvf(&mut self, window: &WindowTvf) -> Result<NodeId> {
        let input = self.window_input(window)?;
        let time = self.time_attribute(window, input)?;
        let (spec, windows) = self.windows(window, input, time)?;
        let Some(spec) = spec else { return self.session_rows(window, input, time, windows) };
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
    fn windows(
        &self,
        window: &WindowTvf,
        input: NodeId,
        time: usize,
    ) -> Result<(Option<WindowSpec>, Windows)> {
        let schema = &self.node(input).schema;
        let data_type = schema.field(time).data_type();
        let precision = TimePrecision::of(data_type).ok_or_else(|| lost("a timestamp"))?;
        let time_zone = match data_type {
            DataType::Timestamp(_, Some(_)) => self.session.time_zone(),
            _ => None,
        };
        let windows = Windows { shape: window.shape, precision, time_zone };
        let kind = match window.shape {
            WindowShape::Tumble { size, .. } => WindowKind::Tumble { size },
            WindowShape::Hop { slide, size, .. } => WindowKind::Hop { size, slide },
            WindowShape::Cumulate { step, size, .. } => WindowKind::Cumulate { size, step },
            WindowShape::Session { .. } => return Ok((None, windows)),
        };
        let spec = WindowSpec { kind, offset: window.shape.offset(), time_zone };
        spec.check().map_err(|error| error.with_location(window.at.0))?;
        Ok((Some(spec), windows))
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
        let input = self.window_input(window)?;
        let time = self.time_attribute(window, input)?;
        if !self.is_append(input) {
            return Ok(None);
        }
        let (spec, windows) = self.windows(window, input, time)?;
        if spec.is_none() && !beneath.is_by_partition() {
            return Ok(None);
        }
        let schema = window.input.schema();
        let time = Expr::Column(schema.columns().swap_remove(time));
        let filter = conjunction(beneath.filters);
        let prepared =
            self.prepared(input, schema, &[time], &beneath.keys, &beneath.calls, filter.as_ref())?;
        let windowed = Windowed {
            schema: Arc::clone(aggregate.schema.inner()),
            spec,
            windows,
            input: prepared.input,
            time: prepared.others[0],
            keys: prepared.keys,
            calls: prepared.calls,
            roles: beneath.groups.iter().map(|group| window_role(*group, windows)).collect(),
            groups: beneath.groups,
        };
        let node = self.add_window_aggregate(windowed)?;
        let Some(later) = conjunction(beneath.later) else { return Ok(Some(node)) };
        let schema = &aggregate.schema;
        let all: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        self.calc(node, schema, &all, Some(&later), Arc::clone(schema.inner())).map(Some)
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
            WindowShape::Session { .. } if !ends => {
                return Err(Error::invalid("GROUP BY window_start without the end of the sessions")
                    .with_detail("sessions that start together may end at any time")
                    .with_hint("add window_end to GROUP BY"));
            }
            shape => shape.slide(windows.precision),
        };
        let known_starts = match windows.shape {
            WindowShape::Session { .. } => false,
            shape => distance == shape.size(),
        };
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
        let offset = match windows.shape {
            WindowShape::Session { .. } => 0,
            shape => (shape.offset() + shape.size()).rem_euclid(distance),
        };
        let windowed = Windowed {
            schema: Arc::clone(aggregate.schema.inner()),
            spec: Some(WindowSpec {
                kind: WindowKind::Tumble { size: distance },
                offset,
                time_zone: windows.time_zone,
            }),
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

    pub(super) fn add_window_aggregate(&mut self, windowed: Windowed) -> Result<NodeId> {
        let Windowed { schema, spec, windows, input, time, keys, calls, groups, mut roles } = windowed;
        let exchange = self.exchange(input, keys.clone());
        let single = keys.is_empty();
        let window = spec.map_or(windows.shape.to_string(), |spec| spec.to_string());
        roles.extend(calls.iter().map(|_| Role::Plain));
        let key: Vec<usize> = (0..groups.len()).collect();
        let aggregates = (0..calls.len()).map(WindowColumn::Aggregate);
        let output: Vec<WindowColumn> = groups.iter().copied().chain(aggregates).collect();
        let given = Arc::clone(&self.node(exchange).schema);
        let operator = Operator {
            semantics: format!("{window} time={time} {keys:?} {output:?} {}", call_texts(&calls)),
            identity: None,
            state: StateBound::Watermark(format!("{} of {}", windows.shape, given.field(time).name())),
            factory: Self::window_factory(
                windows,
                spec,
                WindowAggregateParts { time, keys, calls, input: given, output, schema },
            ),
            inputs: vec![exchange],
            mode: ChangelogMode::Append,
            upsert_keys: vec![key],
            facts: NodeFacts::new(roles, single),
        };
        Ok(self.add_operator(operator))
    }

    fn window_factory(
        windows: Windows,
        spec: Option<WindowSpec>,
        parts: WindowAggregateParts,
    ) -> Arc<dyn OperatorFactory> {
        let WindowAggregateParts { time, keys, calls, input, output, schema } = parts;
        let name = |key: usize| input.field(key).name().clone();
        let keys = keys.into_iter().map(|key| (plain(&input, key), name(key))).collect();
        match spec {
            Some(window) => Arc::new(WindowAggregateFactory {
                window,
                time_column: time,
                keys,
                aggregates: calls,
                output,
                input_schema: input,
                schema,
            }),
            None => Arc::new(SessionAggregateFactory {
                gap: windows.shape.size(),
                time_zone: windows.time_zone,
                time_column: time,
                keys,
                aggregates: calls,
                output,
                input_schema: input,
                schema,
            }),
        }
    }
}

/// What an operator for windows consists of.
struct WindowAggregateParts {
    time: usize,
    keys: Vec<usize>,
    calls: Vec<AggregateCall>,
    input: SchemaRef,
    output: Vec<WindowColumn>,
    schema: SchemaRef,
}

fn interval(nanos: i64) -> ScalarValue {
    ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 0, nanos)))
}

/// What a window column means.
pub(super) fn window_role(column: WindowColumn, windows: Windows) -> Role {
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
    /// Filters over the columns of the aggregation's result.
    later: Vec<Expr>,
}

impl<'a> Beneath<'a> {
    fn find(aggregate: &'a Aggregate, calls: &[Call]) -> Result<Option<Self>> {
        let mut exprs = aggregate.group_expr.clone();
        exprs.extend(calls.iter().flat_map(Call::exprs).cloned());
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
        let rest: Vec<Expr> = exprs.collect();
        // By their starts alone, the windows of a CUMULATE are one: not what the operator makes.
        let cumulative = matches!(window.shape, WindowShape::Cumulate { .. });
        let by_window = groups.iter().any(|group| match group {
            WindowColumn::WindowEnd | WindowColumn::WindowTime => true,
            WindowColumn::WindowStart => !cumulative,
            WindowColumn::Key(_) | WindowColumn::Aggregate(_) => false,
        });
        if !by_window || rest.iter().any(uses_window) {
            return Ok(None);
        }
        let commutes = |filter: &Expr| {
            filter.column_refs().iter().all(|column| {
                schema
                    .index_of_column(column)
                    .is_ok_and(|column| column < width && window.commutes_with(column))
            })
        };
        let (filters, others): (Vec<Expr>, Vec<Expr>) = filters.into_iter().partition(commutes);
        let is_session = matches!(window.shape, WindowShape::Session { .. });
        if !is_session && !others.is_empty() {
            return Ok(None);
        }
        let results = Results { schema, width, groups: &groups, keys: &keys, aggregate };
        let Some(later) = others.into_iter().map(|filter| results.over(filter)).collect() else {
            return Ok(None);
        };
        let mut rest = rest.into_iter();
        let calls = calls.iter().map(|call| call.over(&mut rest)).collect();
        Ok(Some(Self { window, keys, calls, filters, groups, later }))
    }

    /// Whether the keys are what sessions belong to: all that stands in PARTITION BY, and nothing
    /// that could tell rows of one session apart.
    fn is_by_partition(&self) -> bool {
        let partition = &self.window.partition;
        let of_partition = |key: &Expr| {
            let columns = key.column_refs();
            partition.contains(key)
                || columns.into_iter().all(|column| partition.contains(&Expr::Column(column.clone())))
        };
        partition.iter().all(|part| self.keys.contains(part)) && self.keys.iter().all(of_partition)
    }
}

/// The columns of an aggregation's result, found by those of the window function beneath it.
struct Results<'a> {
    schema: &'a DFSchema,
    width: usize,
    groups: &'a [WindowColumn],
    keys: &'a [Expr],
    aggregate: &'a Aggregate,
}

impl Results<'_> {
    /// The expression over the result; `None` if it needs a column that is not grouped by.
    fn over(&self, expr: Expr) -> Option<Expr> {
        let columns = self.aggregate.schema.columns();
        let moved = expr.transform_up(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            let place = self.schema.index_of_column(column)?;
            let wanted = |group: &WindowColumn| match group {
                WindowColumn::WindowStart => place == self.width,
                WindowColumn::WindowEnd => place == self.width + 1,
                WindowColumn::WindowTime => place == self.width + 2,
                WindowColumn::Key(key) => self.keys[*key] == expr,
                WindowColumn::Aggregate(_) => false,
            };
            match self.groups.iter().position(wanted) {
                Some(group) => Ok(Transformed::yes(Expr::Column(columns[group].clone()))),
                None => Err(DataFusionError::Plan("the column is not grouped by".into())),
            }
        });
        moved.ok().map(|moved| moved.data)
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
pub(super) fn rewritten(exprs: Vec<Expr>, schema: &DFSchema, below: &[Expr]) -> Result<Vec<Expr>> {
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
