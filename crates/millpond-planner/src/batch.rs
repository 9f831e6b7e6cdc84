//! Batch answers: a query over bounded tables, computed by DataFusion's own executor.
//!
//! Queries that cannot be planned as a stream are answered this way, and the differential tests
//! compare streams with it. Names, types and functions are those of the streaming planner; window
//! table functions become a list of windows that is unnested.

mod sessions;
mod windows;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::FieldRef;
use chrono_tz::Tz;
use datafusion::catalog::MemTable;
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, TableReference, UnnestOptions};
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::SessionContext;
use datafusion::functions::core::get_field;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableScan, lit};
use datafusion::optimizer::OptimizerConfig;
use datafusion::physical_plan::collect;
use millpond_core::{Error, Result, Timestamp, Watermark};
use sqlparser::ast;

use self::windows::batch_window;
use crate::optimize::{analyzed, unless_it_panics};
use crate::plan_error::{carried, from_datafusion};
use crate::planner::Planner;
use crate::scalar_function::{item_rows, marker_value};
use crate::session::StreamTable;
use crate::subquery::{Executor, with_own_subqueries};
use crate::unnest_relation::Unnest;
use crate::window_relation::WindowTvf;

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
        let names = OptimizerConfig::alias_generator(self.session.state());
        let plan = with_own_subqueries(self.bound(query)?, names, Executor::Batch)?;
        let plan = analyzed(&self.session, plan)?;
        let plan = plan
            .transform_up_with_subqueries(|node| {
                batch_node(node, tables, now, self.session.time_zone(), final_at).map(Transformed::yes)
            })
            .map_err(from_datafusion)?
            .data;
        let context = SessionContext::new_with_state(self.session.state().clone());
        let frame = context.execute_logical_plan(plan).await.map_err(from_datafusion)?;
        let (state, plan) = frame.into_parts();
        let plan = unless_it_panics(|| state.optimize(&plan).map_err(from_datafusion))?;
        let plan =
            state.query_planner().create_physical_plan(&plan, &state).await.map_err(from_datafusion)?;
        collect(plan, state.task_ctx()).await.map_err(from_datafusion)
    }
}

fn batch_node(
    node: LogicalPlan,
    tables: &TableRows,
    now: Timestamp,
    zone: Option<Tz>,
    final_at: Option<&TableWatermarks>,
) -> Result<LogicalPlan, DataFusionError> {
    match node {
        LogicalPlan::TableScan(scan) => batch_scan(scan, tables),
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            match (node.downcast_ref::<WindowTvf>(), node.downcast_ref::<Unnest>()) {
                (Some(window), _) => batch_window(
                    window,
                    zone,
                    final_at.map(|at| watermark_of(&window.input, at)).transpose()?,
                ),
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
