//! Window table functions in FROM: `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND))`.
//!
//! They become the logical node [`WindowTvf`]: its input's columns followed by `window_start`,
//! `window_end` and `window_time`. Whether the descriptor is a time attribute is known only after
//! optimisation, so that the node keeps its place in the text.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::{DFSchema, DFSchemaRef, DataFusionError, ExprSchema, ScalarValue, TableReference};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use millpond_core::{Error, Location, Result, TimePrecision};
use millpond_operators::window::window_fields;
use sqlparser::ast::{self, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, TableFactor};

use crate::dialect::TABLE_ARGUMENT;
use crate::plan_error::{carried, from_datafusion, location_of, unsupported};
use crate::rows_of::only_relation;
use crate::sql_type::sql_type;
use crate::{state_ttl, unnest_relation};

/// The window table functions, in lower case.
pub(crate) const FUNCTIONS: [&str; 4] = ["cumulate", "hop", "session", "tumble"];

/// How rows are assigned to windows; lengths in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd)]
pub(crate) enum WindowShape {
    Tumble { size: i64, offset: i64 },
    Hop { slide: i64, size: i64, offset: i64 },
    Cumulate { step: i64, size: i64, offset: i64 },
    Session { gap: i64 },
}

impl WindowShape {
    /// The length of the longest window; of a session, the shortest.
    pub(crate) fn size(self) -> i64 {
        match self {
            Self::Session { gap } => gap,
            Self::Tumble { size, .. } | Self::Hop { size, .. } | Self::Cumulate { size, .. } => size,
        }
    }
    /// From one window's end to the next one's; sessions may end at any time.
    pub(crate) fn slide(self, precision: TimePrecision) -> i64 {
        match self {
            Self::Session { .. } => unit_micros(precision),
            Self::Tumble { size, .. } => size,
            Self::Hop { slide, .. } => slide,
            Self::Cumulate { step, .. } => step,
        }
    }
    fn with_offset(mut self, by: i64) -> Self {
        match &mut self {
            Self::Tumble { offset, .. } | Self::Hop { offset, .. } | Self::Cumulate { offset, .. } => {
                *offset = by
            }
            Self::Session { .. } => {}
        }
        self
    }
    /// Where the window grid lies relative to 1970-01-01.
    pub(crate) fn offset(self) -> i64 {
        match self {
            Self::Tumble { offset, .. } | Self::Hop { offset, .. } | Self::Cumulate { offset, .. } => offset,
            Self::Session { .. } => 0,
        }
    }
}

impl fmt::Display for WindowShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tumble { size, .. } => write!(f, "TUMBLE(size={}", seconds(size))?,
            Self::Hop { slide, size, .. } => {
                write!(f, "HOP(slide={} size={}", seconds(slide), seconds(size))?
            }
            Self::Session { gap } => write!(f, "SESSION(gap={}", seconds(gap))?,
            Self::Cumulate { step, size, .. } => {
                write!(f, "CUMULATE(step={} size={}", seconds(step), seconds(size))?
            }
        }
        match self.offset() {
            0 => f.write_str(")"),
            offset => write!(f, " offset={})", seconds(offset)),
        }
    }
}

/// One unit of a time column; of nanoseconds, the least that our time resolves.
pub(crate) fn unit_micros(precision: TimePrecision) -> i64 {
    match precision {
        TimePrecision::Second => 1_000_000,
        TimePrecision::Millisecond => 1000,
        TimePrecision::Microsecond | TimePrecision::Nanosecond => 1,
    }
}

/// Microseconds in the largest unit that divides them.
pub(crate) fn seconds(micros: i64) -> String {
    let units = [(3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1000, "ms"), (1, "us")];
    if micros == 0 {
        return "0 s".into();
    }
    let (unit, name) = units.into_iter().find(|(unit, _)| micros % unit == 0).unwrap_or((1, "us"));
    format!("{} {name}", micros / unit)
}

/// A place in the text that does not make plans differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At(pub(crate) Option<Location>);

impl PartialEq for At {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for At {}
impl Hash for At {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A window table function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowTvf {
    pub(crate) shape: WindowShape,
    /// The time column: always [`Expr::Column`].
    pub(crate) time: Expr,
    /// PARTITION BY of a SESSION: each of its values has sessions of its own.
    pub(crate) partition: Vec<Expr>,
    /// It stands for a group window, `GROUP BY TUMBLE(…)`, whose columns have no names.
    is_group_window: bool,
    pub(crate) input: LogicalPlan,
    schema: DFSchemaRef,
    pub(crate) at: At,
}

/// Names of the window columns of `GROUP BY TUMBLE(…)`.
pub(crate) const GROUP_WINDOW_COLUMNS: [&str; 3] = ["$window_start", "$window_end", "$window_time"];

impl WindowTvf {
    fn try_new(
        shape: WindowShape,
        (time, partition): (Expr, Vec<Expr>),
        is_group_window: bool,
        input: LogicalPlan,
        at: At,
    ) -> Result<Self, DataFusionError> {
        let data_type = match &time {
            Expr::Column(column) => input.schema().field_from_column(column)?.data_type().clone(),
            other => return Err(carried(Error::internal(format!("window over the expression {other}")))),
        };
        let mut fields: Vec<(Option<TableReference>, FieldRef)> =
            input.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field))).collect();
        let names = match is_group_window {
            true => GROUP_WINDOW_COLUMNS.map(str::to_owned),
            false => window_columns(input.schema()),
        };
        for (name, field) in names.into_iter().zip(window_fields(&data_type)) {
            fields.push((None, Arc::new(field.as_ref().clone().with_name(name))));
        }
        let schema = Arc::new(DFSchema::new_with_metadata(fields, HashMap::new())?);
        Ok(Self { shape, time, partition, is_group_window, input, schema, at })
    }

    /// Whether a column of the input can be tested before rows are put into windows: always, except
    /// that the rows of a session depend on each other, unless they all agree on the column.
    pub(crate) fn commutes_with(&self, column: usize) -> bool {
        let is_key = |key: &Expr| match key {
            Expr::Column(key) => self.input.schema().index_of_column(key).is_ok_and(|key| key == column),
            _ => false,
        };
        !matches!(self.shape, WindowShape::Session { .. }) || self.partition.iter().any(is_key)
    }
}

/// Names of the window columns; a window over windows numbers them.
fn window_columns(input: &DFSchema) -> [String; 3] {
    ["window_start", "window_end", "window_time"].map(|name| {
        let mut free = name.to_owned();
        let mut number = 0;
        while input.fields().iter().any(|field| *field.name() == free) {
            free = format!("{name}{number}");
            number += 1;
        }
        free
    })
}

impl PartialOrd for WindowTvf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for WindowTvf {
    fn name(&self) -> &str {
        "WindowTvf"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
    fn expressions(&self) -> Vec<Expr> {
        std::iter::once(&self.time).chain(&self.partition).cloned().collect()
    }
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let input = self.input.schema().fields().len();
        let fields = self.schema.fields().iter().enumerate();
        let kept = fields.filter(|(column, _)| *column >= input || !self.commutes_with(*column));
        kept.map(|(_, field)| field.name().clone()).collect()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowTvf: {} time={}", self.shape, self.time)?;
        if !self.partition.is_empty() {
            let keys: Vec<String> = self.partition.iter().map(ToString::to_string).collect();
            write!(f, " partition=[{}]", keys.join(", "))?;
        }
        Ok(())
    }
    fn with_exprs_and_inputs(
        &self,
        exprs: Vec<Expr>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<Self, DataFusionError> {
        let mut exprs = exprs.into_iter();
        match (exprs.next(), inputs.pop()) {
            (Some(time), Some(input)) => {
                Self::try_new(self.shape, (time, exprs.collect()), self.is_group_window, input, self.at)
            }
            _ => Err(carried(Error::internal("a window table function has one input and a time"))),
        }
    }
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let input = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|column| *column < input).collect()])
    }
}

/// Plans window table functions, and refuses what DataFusion would silently plan as something else.
#[derive(Debug)]
pub(crate) struct WindowRelations;

impl RelationPlanner for WindowRelations {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning, DataFusionError> {
        let at = location_of(relation.span());
        let refused = |what: &str| Err(carried(unsupported(what).with_location(at)));
        match relation {
            TableFactor::TableFunction { expr: ast::Expr::Function(function), alias }
                if function.name.to_string() == state_ttl::FUNCTION =>
            {
                state_ttl::planned(&function, alias, at, context)
            }
            TableFactor::TableFunction { expr: ast::Expr::Function(function), alias } => {
                let name = function.name.to_string().to_lowercase();
                let is_group_window = name.starts_with(GROUP_WINDOW);
                let name = name.trim_start_matches(GROUP_WINDOW).to_owned();
                let call = Call { name, arguments: arguments(&function.args), is_group_window, at };
                planned(call, alias, context)
            }
            TableFactor::Table { name, alias, args: Some(args), .. } if is_window_function(&name) => {
                let name = name.to_string().to_lowercase();
                planned(Call { name, arguments: args.args, is_group_window: false, at }, alias, context)
            }
            TableFactor::UNNEST { array_exprs, with_offset: false, with_ordinality, alias, .. } => {
                unnest_relation::planned(array_exprs, with_ordinality, alias, context)
            }
            TableFactor::Table { version: Some(_), .. } => refused("FOR SYSTEM_TIME AS OF"),
            TableFactor::MatchRecognize { .. } => refused("MATCH_RECOGNIZE"),
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

fn is_window_function(name: &ast::ObjectName) -> bool {
    FUNCTIONS.contains(&name.to_string().to_lowercase().as_str())
}

fn planned(
    call: Call,
    alias: Option<ast::TableAlias>,
    context: &mut dyn RelationPlannerContext,
) -> Result<RelationPlanning, DataFusionError> {
    let at = call.at;
    let window = call.plan(context).map_err(|error| carried(error.with_location(at)))?;
    let plan = LogicalPlan::Extension(Extension { node: Arc::new(window) });
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
}

fn arguments(arguments: &FunctionArguments) -> Vec<FunctionArg> {
    match arguments {
        FunctionArguments::List(list) => list.args.clone(),
        FunctionArguments::None | FunctionArguments::Subquery(_) => Vec::new(),
    }
}

/// A call of a window table function.
struct Call {
    name: String,
    arguments: Vec<FunctionArg>,
    is_group_window: bool,
    at: Option<Location>,
}

/// Before the name of the function that `GROUP BY TUMBLE(…)` becomes.
pub(crate) const GROUP_WINDOW: &str = "$group_";

impl Call {
    fn plan(self, context: &mut dyn RelationPlannerContext) -> Result<WindowTvf> {
        let parameters: &[&str] = match self.name.as_str() {
            "tumble" => &["DATA", "TIMECOL", "SIZE", "OFFSET"],
            "hop" => &["DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"],
            "cumulate" => &["DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"],
            "session" => &["DATA", "TIMECOL", "GAP"],
            other => {
                let error = Error::invalid(format!("table function {} does not exist", other.to_uppercase()));
                return Err(crate::plan_error::with_nearest(error, other, &FUNCTIONS));
            }
        };
        let mut named = self.named(parameters)?;
        let function = self.name.to_uppercase();
        let mut take = |parameter: &str| {
            named.remove(parameter).ok_or_else(|| {
                Error::invalid(format!("{function} lacks its argument {parameter}"))
                    .with_hint(format!("its arguments are {}", parameters.join(", ")))
            })
        };
        let (input, partition) = data(take("DATA")?, &function, context)?;
        let (time, at) = descriptor(take("TIMECOL")?, &function, &input, context)?;
        let mut length = |parameter: &str| interval(take(parameter)?, parameter, context);
        let shape = match self.name.as_str() {
            "hop" => WindowShape::Hop { slide: length("SLIDE")?, size: length("SIZE")?, offset: 0 },
            "cumulate" => WindowShape::Cumulate { step: length("STEP")?, size: length("SIZE")?, offset: 0 },
            "session" => WindowShape::Session { gap: length("GAP")? },
            _ => WindowShape::Tumble { size: length("SIZE")?, offset: 0 },
        };
        let shape = match take("OFFSET") {
            Ok(expr) => shape.with_offset(any_interval(expr, "OFFSET", context)?),
            Err(_) => shape,
        };
        // The windows of the others do not depend on other rows.
        let partition = if self.name == "session" { partition } else { Vec::new() };
        WindowTvf::try_new(shape, (time, partition), self.is_group_window, input, At(at.or(self.at)))
            .map_err(from_datafusion)
    }

    /// Arguments by parameter; positional ones take the parameters in order.
    fn named(&self, parameters: &[&'static str]) -> Result<HashMap<&'static str, ast::Expr>> {
        let mut named = HashMap::new();
        for (position, argument) in self.arguments.iter().enumerate() {
            let (parameter, value) = match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => {
                    (parameters.get(position).copied(), value)
                }
                FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } => {
                    (parameters.iter().copied().find(|known| known.eq_ignore_ascii_case(&name.value)), value)
                }
                other => {
                    return Err(Error::invalid(format!(
                        "{}: unexpected argument {other}",
                        self.name.to_uppercase()
                    )));
                }
            };
            let Some(parameter) = parameter else {
                let function = self.name.to_uppercase();
                return Err(Error::invalid(format!("{function}: unexpected argument {argument}"))
                    .with_hint(format!("its arguments are {}", parameters.join(", "))));
            };
            named.insert(parameter, value.clone());
        }
        Ok(named)
    }
}

/// The first argument: `TABLE t [PARTITION BY …]`, a table name or a subquery; with the partition keys.
fn data(
    argument: ast::Expr,
    function: &str,
    context: &mut dyn RelationPlannerContext,
) -> Result<(LogicalPlan, Vec<Expr>)> {
    let mut keys = Vec::new();
    let relation = match argument {
        ast::Expr::Function(call) if call.name.to_string() == TABLE_ARGUMENT => {
            keys = partition_keys(&call);
            table_argument(&call)
        }
        ast::Expr::Subquery(subquery) => Some(derived(subquery)),
        ast::Expr::Identifier(name) => Some(named_table(vec![name])),
        ast::Expr::CompoundIdentifier(names) => Some(named_table(names)),
        _ => None,
    };
    let relation = relation.ok_or_else(|| {
        Error::invalid(format!("the first argument of {function} is not a table"))
            .with_hint("write TABLE name, or a subquery in parentheses")
    })?;
    let input = context.plan(relation).map_err(from_datafusion)?;
    let planned = |key: ast::Expr| {
        let at = location_of(key.span());
        context.sql_to_expr(key, input.schema()).map_err(|error| from_datafusion(error).with_location(at))
    };
    let keys = keys.into_iter().map(planned).collect::<Result<Vec<_>>>()?;
    Ok((input, keys))
}

fn derived(subquery: Box<ast::Query>) -> TableFactor {
    TableFactor::Derived { lateral: false, subquery, alias: None, sample: None }
}

/// The relation in `__table_arg((SELECT * FROM t), …)`: t itself, or a subquery with more to it.
fn table_argument(call: &ast::Function) -> Option<TableFactor> {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::Subquery(query))) =
        arguments(&call.args).into_iter().next()?
    else {
        return None;
    };
    Some(only_relation(&query).unwrap_or_else(|| derived(query)))
}

/// What follows the relation in `__table_arg((SELECT * FROM t), k, …)`.
fn partition_keys(call: &ast::Function) -> Vec<ast::Expr> {
    let key = |argument: FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(key)) => Some(key),
        _ => None,
    };
    arguments(&call.args).into_iter().skip(1).filter_map(key).collect()
}

fn named_table(names: Vec<ast::Ident>) -> TableFactor {
    TableFactor::Table {
        name: ast::ObjectName::from(names),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

/// The second argument: `DESCRIPTOR(column)`, a timestamp.
fn descriptor(
    argument: ast::Expr,
    function: &str,
    input: &LogicalPlan,
    context: &mut dyn RelationPlannerContext,
) -> Result<(Expr, Option<Location>)> {
    let at = location_of(argument.span());
    let wrong = || {
        Error::invalid(format!("the time column of {function} is not given by DESCRIPTOR"))
            .with_hint("write DESCRIPTOR(ts), where ts has a WATERMARK")
            .with_location(at)
    };
    let ast::Expr::Function(call) = &argument else { return Err(wrong()) };
    let columns = arguments(&call.args);
    let (true, [FunctionArg::Unnamed(FunctionArgExpr::Expr(column))]) =
        (call.name.to_string().eq_ignore_ascii_case("descriptor"), columns.as_slice())
    else {
        return Err(wrong());
    };
    let at = location_of(column.span()).or(at);
    let time = context
        .sql_to_expr(column.clone(), input.schema())
        .map_err(|error| from_datafusion(error).with_location(at))?;
    let Expr::Column(name) = &time else { return Err(wrong()) };
    let field =
        input.schema().field_from_column(name).map_err(|error| from_datafusion(error).with_location(at))?;
    if TimePrecision::of(field.data_type()).is_none() {
        let (name, found) = (field.name(), sql_type(field.data_type()));
        return Err(
            Error::invalid(format!("DESCRIPTOR({name}) is {found}, not a timestamp")).with_location(at)
        );
    }
    Ok((time, at))
}

/// A positive length in microseconds.
fn interval(argument: ast::Expr, parameter: &str, context: &mut dyn RelationPlannerContext) -> Result<i64> {
    let at = location_of(argument.span());
    match any_interval(argument, parameter, context)? {
        micros if micros > 0 => Ok(micros),
        _ => Err(Error::invalid(format!("{parameter} of a window is not positive")).with_location(at)),
    }
}

fn any_interval(
    argument: ast::Expr,
    parameter: &str,
    context: &mut dyn RelationPlannerContext,
) -> Result<i64> {
    let at = location_of(argument.span());
    let expr = context.sql_to_expr(argument, &DFSchema::empty()).map_err(from_datafusion)?;
    interval_micros(&expr).ok_or_else(|| {
        let months = matches!(&expr, Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(value)), _) if value.months != 0)
            || matches!(&expr, Expr::Literal(ScalarValue::IntervalYearMonth(_), _));
        let hint = match months {
            true => "months and years differ in length: write it in days, as INTERVAL '30' DAY",
            false => "write it as INTERVAL '10' SECOND",
        };
        Error::invalid(format!("{parameter} of a window is not a constant interval of days to seconds"))
            .with_hint(hint)
            .with_location(at)
    })
}

/// Microseconds of a constant interval without months.
pub(crate) fn interval_micros(expr: &Expr) -> Option<i64> {
    const DAY: i64 = 86_400_000_000;
    match expr {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(value)), _) if value.months == 0 => {
            Some(i64::from(value.days) * DAY + value.nanoseconds / 1000)
        }
        Expr::Literal(ScalarValue::IntervalDayTime(Some(value)), _) => {
            Some(i64::from(value.days) * DAY + i64::from(value.milliseconds) * 1000)
        }
        Expr::Literal(ScalarValue::DurationNanosecond(Some(nanos)), _) => Some(nanos / 1000),
        Expr::Literal(ScalarValue::DurationMicrosecond(Some(micros)), _) => Some(*micros),
        Expr::Literal(ScalarValue::DurationMillisecond(Some(millis)), _) => millis.checked_mul(1000),
        Expr::Literal(ScalarValue::DurationSecond(Some(seconds)), _) => seconds.checked_mul(1_000_000),
        Expr::Negative(inner) => interval_micros(inner).map(|micros| -micros),
        Expr::Cast(cast) => interval_micros(&cast.expr),
        _ => None,
    }
}
