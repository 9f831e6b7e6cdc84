//! Batch answers: a query over bounded tables, computed by DataFusion's own executor.
//!
//! Queries that cannot be planned as a stream are answered this way, and the differential tests
//! compare streams with it. Names, types and functions are those of the streaming planner; window
//! table functions become a list of window starts that is unnested.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, ListBuilder, PrimitiveBuilder, RecordBatch};
use arrow::datatypes::{
    ArrowTimestampType, DataType, Field, FieldRef, IntervalMonthDayNano, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use datafusion::catalog::MemTable;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, ScalarValue, TableReference, UnnestOptions};
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::SessionContext;
use datafusion::functions::core::get_field;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TableScan, UserDefinedLogicalNodeCore, Volatility, lit,
};
use millpond_core::{Error, Result, TimePrecision, Timestamp, Watermark};
use sqlparser::ast;

use crate::optimize::analyzed;
use crate::plan_error::{carried, from_datafusion};
use crate::planner::Planner;
use crate::scalar_function::{item_rows, marker_value};
use crate::session::StreamTable;
use crate::unnest_relation::Unnest;
use crate::window_relation::{WindowShape, WindowTvf};

/// Rows of tables, by table name; all columns, also computed ones.
pub type TableRows = HashMap<String, Vec<RecordBatch>>;

/// How far tables are complete, by table name.
pub type TableWatermarks = HashMap<String, Watermark>;

impl Planner {
    /// The names of the tables that a query reads, also through views, sorted.
    pub fn tables_read(&self, query: &ast::Query) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.bound(query)?
            .apply_with_subqueries(|node| {
                if let LogicalPlan::TableScan(scan) = node
                    && let Some(table) = scan.source.downcast_ref::<StreamTable>()
                {
                    names.push(table.0.bound.name.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .map_err(from_datafusion)?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Whether a query reads windows, whose answer depends on the watermark: which rows are late
    /// is not a question that a batch can answer.
    pub fn reads_windows(&self, query: &ast::Query) -> Result<bool> {
        let mut found = false;
        self.bound(query)?
            .apply_with_subqueries(|node| {
                if let LogicalPlan::Extension(extension) = node {
                    found |= extension.node.as_any().is::<WindowTvf>();
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .map_err(from_datafusion)?;
        Ok(found)
    }

    /// Answers a query over the given rows at the processing time `now`.
    pub async fn run_batch(
        &self,
        query: &ast::Query,
        tables: &TableRows,
        now: Timestamp,
    ) -> Result<Vec<RecordBatch>> {
        self.run_batch_at(query, tables, now, None).await
    }

    /// As [`Planner::run_batch`]; where the tables' watermarks are given, of windows only those
    /// that are final at them.
    pub async fn run_batch_at(
        &self,
        query: &ast::Query,
        tables: &TableRows,
        now: Timestamp,
        final_at: Option<&TableWatermarks>,
    ) -> Result<Vec<RecordBatch>> {
        let plan = analyzed(&self.session, self.bound(query)?)?;
        let plan = plan
            .transform_up_with_subqueries(|node| {
                batch_node(node, tables, now, final_at).map(Transformed::yes)
            })
            .map_err(from_datafusion)?
            .data;
        let context = SessionContext::new_with_state(self.session.state().clone());
        let frame = context.execute_logical_plan(plan).await.map_err(from_datafusion)?;
        frame.collect().await.map_err(from_datafusion)
    }
}

fn batch_node(
    node: LogicalPlan,
    tables: &TableRows,
    now: Timestamp,
    final_at: Option<&TableWatermarks>,
) -> Result<LogicalPlan, DataFusionError> {
    match node {
        LogicalPlan::TableScan(scan) => batch_scan(scan, tables),
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            match (node.downcast_ref::<WindowTvf>(), node.downcast_ref::<Unnest>()) {
                (Some(window), _) => {
                    batch_window(window, final_at.map(|at| watermark_of(&window.input, at)).transpose()?)
                }
                (None, Some(unnest)) => batch_unnest(unnest),
                (None, None) => Ok(LogicalPlan::Extension(extension)),
            }
        }
        other => {
            let fixed = other.map_expressions(|expr| {
                expr.transform(|expr| match marker_value(&expr, now.0) {
                    Some(value) => Ok(Transformed::yes(Expr::Literal(value, None))),
                    None => Ok(Transformed::no(expr)),
                })
            })?;
            fixed.data.recompute_schema()
        }
    }
}

fn batch_scan(scan: TableScan, tables: &TableRows) -> Result<LogicalPlan, DataFusionError> {
    let Some(table) = scan.source.downcast_ref::<StreamTable>() else {
        return Ok(LogicalPlan::TableScan(scan));
    };
    let name = &table.0.bound.name;
    let rows = tables.get(name).ok_or_else(|| {
        carried(Error::internal(format!("no rows of table \"{name}\" were given to a batch")))
    })?;
    let provider = MemTable::try_new(Arc::clone(&table.0.bound.schema), vec![rows.clone()])?;
    LogicalPlanBuilder::scan(scan.table_name, provider_as_source(Arc::new(provider)), None)?.build()
}

/// The window function as a list of window starts, unnested.
fn batch_window(window: &WindowTvf, final_at: Option<Watermark>) -> Result<LogicalPlan, DataFusionError> {
    if !matches!(window.shape, WindowShape::Tumble { .. } | WindowShape::Hop { .. }) {
        let refused = crate::plan_error::unsupported(format!("a batch answer over {}", window.shape));
        return Err(carried(refused));
    }
    let schema = UserDefinedLogicalNodeCore::schema(window);
    let width = window.input.schema().fields().len();
    let [start, end, time] = [width, width + 1, width + 2].map(|column| schema.field(column).name().clone());
    let precision = TimePrecision::of(schema.field(width).data_type())
        .ok_or_else(|| carried(Error::internal("a window over a column that is no timestamp")))?;
    let starts = ScalarUDF::from(WindowStarts::new(window.shape));
    let starts = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(starts), vec![window.time.clone()]));
    let own: Vec<Expr> = window.input.schema().columns().into_iter().map(Expr::Column).collect();
    let size = window.shape.size();
    let last = size - (precision.last_instant(Timestamp(0)).0).abs();
    let at = |shift: i64| Expr::Column(Column::from_name(&start)) + lit(interval(shift));
    let windows = LogicalPlanBuilder::from(window.input.clone())
        .project(own.iter().cloned().chain([starts.alias(&start)]))?
        .unnest_column_with_options(
            Column::from_name(&start),
            UnnestOptions::new().with_preserve_nulls(false),
        )?
        .project(own.into_iter().chain([
            Expr::Column(Column::from_name(&start)),
            at(size).alias(&end),
            at(last).alias(&time),
        ]))?;
    match final_at.filter(|watermark| *watermark < Timestamp::MAX) {
        Some(watermark) => {
            windows.filter(Expr::Column(Column::from_name(&time)).lt_eq(lit(time_literal(
                schema.field(width + 2).data_type(),
                precision,
                watermark,
            ))))?
        }
        None => windows,
    }
    .build()
}

/// The lowest watermark of the tables beneath a plan, whose scans are those of a batch already.
fn watermark_of(plan: &LogicalPlan, watermarks: &TableWatermarks) -> Result<Watermark, DataFusionError> {
    let mut lowest = Timestamp::MAX;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            lowest = lowest.min(watermarks.get(scan.table_name.table()).copied().unwrap_or(Timestamp::MIN));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(lowest)
}

/// A time as a value of a window's time column.
fn time_literal(data_type: &DataType, precision: TimePrecision, time: Timestamp) -> ScalarValue {
    let zone = match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let value = Some(precision.from_timestamp(time));
    match precision {
        TimePrecision::Second => ScalarValue::TimestampSecond(value, zone),
        TimePrecision::Millisecond => ScalarValue::TimestampMillisecond(value, zone),
        TimePrecision::Microsecond => ScalarValue::TimestampMicrosecond(value, zone),
        TimePrecision::Nanosecond => ScalarValue::TimestampNanosecond(value, zone),
    }
}

/// The items as a list of rows with all their columns, unnested.
fn batch_unnest(unnest: &Unnest) -> Result<LogicalPlan, DataFusionError> {
    let types = unnest.item_fields().iter().map(|(_, field)| field.data_type().clone()).collect();
    let rows = Arc::new(item_rows(types, unnest.ordinality, unnest.outer));
    let items = Expr::ScalarFunction(ScalarFunction::new_udf(rows, vec![unnest.items.clone()]));
    let own: Vec<Expr> = unnest.input.schema().columns().into_iter().map(Expr::Column).collect();
    let item = |place: usize, (table, field): (Option<TableReference>, FieldRef)| {
        let part = vec![Expr::Column(Column::from_name("$items")), lit(format!("c{place}"))];
        let part = ScalarFunction::new_udf(get_field(), part);
        Expr::ScalarFunction(part).alias_qualified(table, field.name())
    };
    let items_columns = unnest.item_fields().into_iter().enumerate().map(|(place, field)| item(place, field));
    LogicalPlanBuilder::from(unnest.input.clone())
        .project(own.iter().cloned().chain([items.alias("$items")]))?
        .unnest_column_with_options(
            Column::from_name("$items"),
            UnnestOptions::new().with_preserve_nulls(false),
        )?
        .project(own.into_iter().chain(items_columns))?
        .build()
}

fn interval(micros: i64) -> ScalarValue {
    ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 0, micros.saturating_mul(1000))))
}

/// The starts of the windows that a time belongs to.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WindowStarts {
    shape: WindowShape,
    signature: Signature,
}

impl WindowStarts {
    fn new(shape: WindowShape) -> Self {
        Self { shape, signature: Signature::any(1, Volatility::Immutable) }
    }

    fn starts<T: ArrowTimestampType>(&self, times: &ArrayRef, precision: TimePrecision) -> ArrayRef {
        let values = PrimitiveBuilder::<T>::new().with_data_type(times.data_type().clone());
        let mut lists = ListBuilder::new(values).with_field(item_field(times.data_type()));
        for time in times.as_primitive::<T>() {
            if let Some(time) = time {
                for start in window_starts(self.shape, precision.to_timestamp(time).0) {
                    lists.values().append_value(precision.from_timestamp(Timestamp(start)));
                }
            }
            lists.append(true);
        }
        Arc::new(lists.finish())
    }
}

fn item_field(data_type: &DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type.clone(), true))
}

/// Starts, latest first, of the windows with `start ≤ time < start + size`.
fn window_starts(shape: WindowShape, time: i64) -> impl Iterator<Item = i64> {
    let (size, slide) = (shape.size(), shape.slide(TimePrecision::Microsecond));
    let latest = time - (time - shape.offset()).rem_euclid(slide);
    std::iter::successors(Some(latest), move |start| Some(start - slide))
        .take_while(move |start| start + size > time)
}

impl ScalarUDFImpl for WindowStarts {
    fn name(&self) -> &str {
        "$window_starts"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::List(item_field(&arguments[0])))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let times = arguments.args[0].to_array(arguments.number_rows)?;
        let lists = match times.data_type() {
            DataType::Timestamp(TimeUnit::Second, _) => {
                self.starts::<TimestampSecondType>(&times, TimePrecision::Second)
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                self.starts::<TimestampMillisecondType>(&times, TimePrecision::Millisecond)
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                self.starts::<TimestampMicrosecondType>(&times, TimePrecision::Microsecond)
            }
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                self.starts::<TimestampNanosecondType>(&times, TimePrecision::Nanosecond)
            }
            other => return Err(carried(Error::internal(format!("a window over {other}")))),
        };
        Ok(ColumnarValue::Array(lists))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_contain_their_time() {
        let hop = WindowShape::Hop { slide: 2, size: 10, offset: 0 };
        assert_eq!(window_starts(hop, 11).collect::<Vec<_>>(), [10, 8, 6, 4, 2]);
        let tumble = WindowShape::Tumble { size: 10, offset: 3 };
        assert_eq!(window_starts(tumble, 2).collect::<Vec<_>>(), [-7]);
        assert_eq!(window_starts(tumble, 3).collect::<Vec<_>>(), [3]);
        let gaps = WindowShape::Hop { slide: 10, size: 4, offset: 0 };
        assert_eq!(window_starts(gaps, 7).count(), 0);
    }
}
