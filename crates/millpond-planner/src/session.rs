//! The session: DataFusion's functions and settings as streams need them, and the binder that
//! turns SQL into logical plans against our catalog.
//!
//! Identifiers are case-sensitive, NULLs sort lowest, decimal literals are exact, and functions
//! that read a clock are volatile markers, never folded at planning time.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use chrono_tz::Tz;
use datafusion::common::config::{ConfigNonZeroUsize, ConfigOptions};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, TableReference};
use datafusion::execution::context::{SessionConfig, SessionState};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, RelationPlanner, TypePlanner};
use datafusion::logical_expr::registry::FunctionRegistry;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, LogicalPlanBuilder, ScalarUDF, TableSource, WindowUDF,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::sql::planner::{PlannerContext, SqlToRel};
use millpond_core::{Error, Result};
use millpond_operators::quick_time::quickened;
use sqlparser::ast::{self, Spanned};

use crate::catalog::{Catalog, CatalogEntry, TableEntry, ViewEntry};
use crate::clause::refuse_unknown_clauses;
use crate::doubles::with_doubles;
use crate::fetch_clause::with_limits;
use crate::group_window::with_window_functions;
use crate::plan_error::{carried, from_datafusion, location_of, nearest, unknown_function};
use crate::rewrite::{int_literals, special_casts, with_int_literals};
use crate::sql_type::SqlTypes;
use crate::state_ttl::with_state_ttl;
use crate::sugar::{written_out, written_out_expr};
use crate::unnest_relation::with_unnests;
use crate::{aggregate_function, operator_planner, scalar_function, window_relation};

/// How deep expressions and queries may be nested.
const RECURSION_MAX: usize = 128;

/// How deep views may be nested.
const VIEW_DEPTH_MAX: usize = 64;

/// Settings of a session that planning depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannerSettings {
    /// The session's time zone (`time-zone`); `None`: UTC.
    pub time_zone: Option<String>,
    /// Refuse plans whose state grows without bound (`state.require-bounded`).
    pub require_bounded_state: bool,
    /// Change events may come twice (`source.cdc-duplicates`).
    pub cdc_duplicates: bool,
    /// Leave rows out that have NULL where the sink takes none (`sink.not-null-enforcer`).
    pub drop_nulls_at_sinks: bool,
    /// Cut texts, or fill them with blanks, to the length of the sink's column (`sink.type-length-enforcer`).
    pub fit_texts_at_sinks: bool,
    /// How long operators remember a key that nothing touches, in microseconds (`state.ttl`);
    /// `None`: for ever.
    pub state_ttl: Option<i64>,
}

/// Functions and settings.
#[derive(Debug)]
pub(crate) struct Session {
    state: SessionState,
    /// In whose local time windows over TIMESTAMP_LTZ are cut; `None`: UTC.
    time_zone: Option<Tz>,
    /// Whether change events may come twice.
    pub(crate) cdc_duplicates: bool,
    /// Whether rows with NULL where the sink takes none are left out.
    pub(crate) drop_nulls_at_sinks: bool,
    /// Whether texts get the length of the sink's column.
    pub(crate) fit_texts_at_sinks: bool,
    state_ttl: Option<i64>,
}

impl Session {
    pub(crate) fn new(settings: &PlannerSettings) -> Result<Self> {
        let mut state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config())
            .with_relation_planners(vec![Arc::new(window_relation::WindowRelations)])
            .with_type_planner(Arc::new(SqlTypes))
            .build();
        state.register_expr_planner(Arc::new(operator_planner::StreamOperators)).map_err(from_datafusion)?;
        let time_zone = time_zone(settings)?;
        for function in scalar_function::all(time_zone) {
            state.register_udf(Arc::new(function)).map_err(from_datafusion)?;
        }
        for function in aggregate_function::all() {
            state.register_udaf(Arc::new(function)).map_err(from_datafusion)?;
        }
        Ok(Self {
            state,
            time_zone,
            cdc_duplicates: settings.cdc_duplicates,
            drop_nulls_at_sinks: settings.drop_nulls_at_sinks,
            fit_texts_at_sinks: settings.fit_texts_at_sinks,
            state_ttl: settings.state_ttl,
        })
    }

    pub(crate) fn register_aggregate(&mut self, function: Arc<AggregateUDF>) -> Result<()> {
        self.state.register_udaf(function).map(|_| ()).map_err(from_datafusion)
    }

    /// In whose local time windows over TIMESTAMP_LTZ are cut; `None`: UTC.
    pub(crate) fn time_zone(&self) -> Option<Tz> {
        self.time_zone
    }

    /// How long operators remember a key that nothing touches, in microseconds.
    pub(crate) fn state_ttl(&self) -> Option<i64> {
        self.state_ttl
    }

    /// DataFusion's own session.
    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }

    /// The expression with implicit casts made explicit.
    pub(crate) fn coerced(&self, expr: Expr, schema: &DFSchema) -> Result<Expr> {
        let context =
            SimplifyContext::builder().with_config_options(Arc::clone(self.state.config_options())).build();
        let coerced = ExprSimplifier::new(context).coerce(expr, schema).map_err(from_datafusion)?;
        special_casts(coerced, schema, self.time_zone)
    }

    /// The expression, ready to be evaluated over batches of `schema`.
    pub(crate) fn physical(&self, expr: &Expr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
        let context = PhysicalPlanningContext::default();
        let lowered =
            datafusion::physical_expr::create_physical_expr(expr, schema, &ExecutionProps::new(), &context);
        lowered.and_then(overflow_checked).and_then(quickened).map_err(from_datafusion)
    }

    /// Names of all functions, sorted.
    pub(crate) fn functions(&self) -> Vec<String> {
        let state = &self.state;
        let mut names: Vec<String> = state.scalar_functions().keys().cloned().collect();
        names.extend(state.aggregate_functions().keys().cloned());
        names.extend(state.window_functions().keys().cloned());
        names.extend(window_relation::FUNCTIONS.map(str::to_owned));
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn time_zone(settings: &PlannerSettings) -> Result<Option<Tz>> {
    let Some(name) = &settings.time_zone else { return Ok(None) };
    let zone: Tz = name.parse().map_err(|_| {
        Error::invalid(format!("time zone \"{name}\" is not known"))
            .with_hint("for example Europe/Berlin or UTC")
    })?;
    Ok((zone != Tz::UTC).then_some(zone))
}

fn config() -> SessionConfig {
    let mut config = SessionConfig::new();
    let options = config.options_mut();
    options.sql_parser.collect_spans = true;
    options.sql_parser.enable_ident_normalization = false;
    options.sql_parser.parse_float_as_decimal = true;
    options.sql_parser.default_null_ordering = "nulls_min".into();
    options.sql_parser.map_string_types_to_utf8view = false;
    if let Ok(limit) = ConfigNonZeroUsize::try_new(RECURSION_MAX) {
        options.sql_parser.recursion_limit = limit;
    }
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    options.optimizer.filter_null_join_keys = true;
    config
}

/// Turns SQL into logical plans against a catalog.
pub(crate) struct Binder<'a> {
    session: &'a Session,
    catalog: &'a Catalog,
    view_depth: usize,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(session: &'a Session, catalog: &'a Catalog) -> Self {
        Self { session, catalog, view_depth: 0 }
    }

    /// The logical plan of a query, as written.
    pub(crate) fn query(&self, query: &ast::Query) -> Result<LogicalPlan> {
        refuse_unknown_clauses(query)?;
        let windowed = with_window_functions(with_state_ttl(with_limits(query.clone())?)?)?;
        let written = written_out(windowed, self.session.time_zone.is_some())?;
        let statement = ast::Statement::Query(Box::new(written));
        let plan = SqlToRel::new(self)
            .sql_statement_to_plan(statement)
            .map_err(|error| placed(self.suggested(from_datafusion(error)), query))?;
        with_int_literals(with_unnests(plan)?)
    }

    /// An expression over the columns of `schema`, not yet coerced.
    pub(crate) fn expr(&self, sql: &ast::Expr, schema: &DFSchema) -> Result<Expr> {
        let sql = written_out_expr(sql.clone(), self.session.time_zone.is_some())?;
        let expr = SqlToRel::new(self)
            .sql_to_expr(sql, schema, &mut PlannerContext::new())
            .map_err(|error| self.suggested(from_datafusion(error)))?;
        int_literals(expr).and_then(|expr| with_doubles(expr, schema)).map_err(from_datafusion)
    }

    /// Adds the nearest names to an error about an unknown function.
    fn suggested(&self, error: Error) -> Error {
        match unknown_function(&error).map(str::to_owned) {
            None => error,
            Some(name) => {
                let known = self.session.functions();
                let nearest = nearest(&name, &known.iter().map(String::as_str).collect::<Vec<_>>());
                let nearest: Vec<String> = nearest.into_iter().map(str::to_uppercase).collect();
                if nearest.is_empty() {
                    error
                } else {
                    error.with_hint(format!("did you mean {}?", nearest.join(" or ")))
                }
            }
        }
    }

    fn source(&self, name: &TableReference) -> Result<Arc<dyn TableSource>> {
        match self.catalog.resolve(name.table())? {
            CatalogEntry::Table(table) => Ok(Arc::new(StreamTable(Arc::clone(table)))),
            CatalogEntry::View(view) => Ok(Arc::new(self.view(view)?)),
        }
    }

    fn view(&self, view: &ViewEntry) -> Result<ViewSource> {
        if self.view_depth >= VIEW_DEPTH_MAX {
            return Err(Error::invalid(format!("view \"{}\" is defined by itself", view.name)));
        }
        let inner = Binder { view_depth: self.view_depth + 1, ..*self };
        let in_view = |error: Error| {
            let inner = Error::new(error.kind(), format!("view \"{}\": {}", view.name, error.message()));
            error.hint().map_or(inner.clone(), |hint| inner.with_hint(hint))
        };
        let plan = inner.query(&view.query).map_err(in_view)?;
        let plan = renamed(plan, &view.columns).map_err(in_view)?;
        Ok(ViewSource { schema: Arc::clone(plan.schema().inner()), plan })
    }
}

/// A complaint about the arguments of a function stands where the function does.
fn placed(error: Error, query: &ast::Query) -> Error {
    let name = error.message().strip_prefix("there is no function ").and_then(|rest| rest.split('(').next());
    let Some(name) = name.filter(|_| error.location().is_none()) else { return error };
    let mut place = None;
    let _: ControlFlow<()> = ast::visit_expressions(query, |expr| match expr {
        ast::Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case(name) => {
            place = location_of(function.name.span());
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    error.with_location(place)
}

/// The plan with other column names.
fn renamed(plan: LogicalPlan, names: &[String]) -> Result<LogicalPlan> {
    if names.is_empty() {
        return Ok(plan);
    }
    let columns = plan.schema().columns();
    if columns.len() != names.len() {
        let (found, named) = (columns.len(), names.len());
        return Err(Error::invalid(format!("the query has {found} columns but {named} names are given")));
    }
    let exprs = columns.into_iter().zip(names).map(|(column, name)| Expr::Column(column).alias(name));
    LogicalPlanBuilder::from(plan).project(exprs).and_then(|plan| plan.build()).map_err(from_datafusion)
}

impl ContextProvider for Binder<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>, DataFusionError> {
        self.source(&name).map_err(carried)
    }
    fn get_table_function_source(
        &self,
        name: &str,
        _arguments: Vec<Expr>,
    ) -> Result<Arc<dyn TableSource>, DataFusionError> {
        let known = window_relation::FUNCTIONS;
        let error = Error::invalid(format!("table function {} does not exist", name.to_uppercase()));
        Err(carried(crate::plan_error::with_nearest(error, name, &known)))
    }
    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.session.state.expr_planners()
    }
    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        self.session.state.relation_planners()
    }
    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(SqlTypes))
    }
    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.session.state.scalar_functions().get(name).cloned()
    }
    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.session.state.higher_order_functions().get(name).cloned()
    }
    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.session.state.aggregate_functions().get(name).cloned()
    }
    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.session.state.window_functions().get(name).cloned()
    }
    fn get_variable_type(&self, _names: &[String]) -> Option<DataType> {
        None
    }
    fn options(&self) -> &ConfigOptions {
        self.session.state.config_options()
    }
    fn udf_names(&self) -> Vec<String> {
        self.session.state.scalar_functions().keys().cloned().collect()
    }
    fn higher_order_function_names(&self) -> Vec<String> {
        self.session.state.higher_order_functions().keys().cloned().collect()
    }
    fn udaf_names(&self) -> Vec<String> {
        self.session.state.aggregate_functions().keys().cloned().collect()
    }
    fn udwf_names(&self) -> Vec<String> {
        self.session.state.window_functions().keys().cloned().collect()
    }
}

/// Integer arithmetic that fails where it would wrap.
fn overflow_checked(expr: Arc<dyn PhysicalExpr>) -> datafusion::common::Result<Arc<dyn PhysicalExpr>> {
    let checked =
        expr.transform_up(|expr| {
            let any: &dyn std::any::Any = expr.as_ref();
            Ok(match any.downcast_ref::<BinaryExpr>() {
                Some(binary) => Transformed::yes(
                    Arc::new(binary.clone().with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>
                ),
                None => Transformed::no(expr),
            })
        });
    Ok(checked?.data)
}

/// A connector table in a logical plan.
///
/// Its primary key is not exposed as a constraint: DataFusion would widen GROUP BY and drop
/// DISTINCT on its strength, which is wrong for a key that nobody enforces.
#[derive(Debug)]
pub(crate) struct StreamTable(pub(crate) Arc<TableEntry>);

impl TableSource for StreamTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0.bound.schema)
    }
}

#[derive(Debug)]
struct ViewSource {
    schema: SchemaRef,
    plan: LogicalPlan,
}

impl TableSource for ViewSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        Some(Cow::Borrowed(&self.plan))
    }
}
