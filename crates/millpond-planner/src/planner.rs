//! The planner: the crate's public face.
//!
//! ```text
//! bind (names, types) ─▶ peel ORDER BY and LIMIT ─▶ optimise ─▶ choose operators
//! ```

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Column;
use datafusion::logical_expr::{
    AggregateUDF, Expr, FetchType, LogicalPlan, LogicalPlanBuilder, Projection, SkipType, Sort,
};
use millpond_core::{Error, Result};
use sqlparser::ast;

use crate::bind;
use crate::catalog::{BoundTable, Catalog, CatalogEntry, TableColumnKind, TableEntry};
use crate::choose::Chooser;
use crate::clause::located;
use crate::optimize::optimized;
use crate::over_location::at_over;
use crate::parser::{StatementSource, parse_one};
use crate::plan_error::{from_datafusion, unsupported};
use crate::session::{Binder, PlannerSettings, Session};
use crate::sql_type::sql_type;
use crate::stack::with_deep_stack;
use crate::statement::{CreateTable, CreateView, Insert, Statement};
use crate::stream_plan::{NodeKind, PlannedQuery, Presentation, StateBound, StreamNode, StreamPlan};

/// Turns SQL over the tables and views of its catalog into plans.
#[derive(Debug)]
pub struct Planner {
    /// The tables and views that queries may name.
    pub catalog: Catalog,
    pub(crate) session: Session,
    settings: PlannerSettings,
}

/// A column as `DESCRIBE` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnDescription {
    /// Its name.
    pub name: String,
    /// Its SQL type.
    pub data_type: String,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// `PRI(a, b)` for a column of the primary key.
    pub key: Option<String>,
    /// `AS expr` or `METADATA …`.
    pub extras: Option<String>,
    /// The WATERMARK expression.
    pub watermark: Option<String>,
}

impl Planner {
    /// A planner with an empty catalog.
    pub fn new(settings: PlannerSettings) -> Result<Self> {
        Ok(Self { catalog: Catalog::default(), session: Session::new(&settings)?, settings })
    }

    /// Makes an aggregate function known to queries, under its name and aliases.
    pub fn register_aggregate(&mut self, function: Arc<AggregateUDF>) -> Result<()> {
        self.session.register_aggregate(function)
    }

    /// Resolves the names and types of a table definition. The caller opens its connector and then
    /// calls [`Catalog::add_table`].
    pub fn bind_table(&self, create: &CreateTable) -> Result<BoundTable> {
        bind::bind_table(&self.session, create)
    }

    /// Checks a view's query; gives its columns.
    pub fn check_view(&self, view: &CreateView) -> Result<SchemaRef> {
        let plan = self.bound(&view.query)?;
        let columns = plan.schema().fields().len();
        if !view.columns.is_empty() && view.columns.len() != columns {
            let (name, named) = (&view.name.value, view.columns.len());
            return Err(Error::invalid(format!(
                "view \"{name}\" names {named} columns but its query gives {columns}"
            ))
            .with_location(crate::plan_error::location_of(view.name.span)));
        }
        Ok(Arc::clone(plan.schema().inner()))
    }

    /// Plans a SELECT as a stream that ends in the client.
    pub fn plan_query(&self, query: &ast::Query) -> Result<PlannedQuery> {
        with_deep_stack(|| self.query_plan(query).map_err(|error| located(error, query)))
    }

    fn query_plan(&self, query: &ast::Query) -> Result<PlannedQuery> {
        let bound = self.bound(query)?;
        let peeled = peel(bound.clone())?;
        let plan = self.client_plan(query, peeled.plan)?;
        let bounded = plan.nodes.last().is_some_and(|client| client.properties.bounded);
        let visible = peeled.visible;
        let presentation = peeled.presentation.unwrap_or(Presentation { visible, ..Presentation::default() });
        if bounded || presentation.is_plain() {
            self.check_bounds(&plan)?;
            return Ok(PlannedQuery { plan, bounded, presentation });
        }
        if presentation.fetch.is_none() {
            return Err(Error::invalid("ORDER BY over an unbounded input has no end to wait for")
                .with_hint("add LIMIT to keep the first rows up to date, or read a bounded table"));
        }
        // There is no end at which to take the first rows: they are kept up to date.
        let plan = self.client_plan(query, bound)?;
        self.check_bounds(&plan)?;
        Ok(PlannedQuery { plan, bounded, presentation: Presentation { visible, ..Presentation::default() } })
    }

    /// The operators of a query, up to the client.
    fn client_plan(&self, query: &ast::Query, plan: LogicalPlan) -> Result<StreamPlan> {
        let plan = optimized(&self.session, plan)?;
        let mut chooser = Chooser::new(&self.session, &[&plan])?;
        if !chooser.reads_tables() {
            // Its answer needs no job.
            return Err(unsupported("a query without a table"));
        }
        let rows = chooser.choose(&plan).map_err(|error| at_over(error, query))?;
        chooser.client(rows);
        chooser.finish()
    }

    /// Plans one INSERT or the INSERTs of a statement set as one job.
    pub fn plan_insert(&self, inserts: &[Insert]) -> Result<StreamPlan> {
        with_deep_stack(|| self.insert_plan(inserts))
    }

    fn insert_plan(&self, inserts: &[Insert]) -> Result<StreamPlan> {
        let mut queries = Vec::new();
        for insert in inserts {
            let table = self.insert_target(insert)?;
            let query = optimized(&self.session, self.bound(&insert.query)?);
            queries.push((insert, table, query.map_err(|error| located(error, &insert.query))?));
        }
        let plans: Vec<&LogicalPlan> = queries.iter().map(|(_, _, query)| query).collect();
        let mut chooser = Chooser::new(&self.session, &plans)?;
        for (insert, table, query) in &queries {
            let planned = chooser.sink(insert, table, query).map_err(|error| at_over(error, &insert.query));
            planned.map_err(|error| located(error, &insert.query))?;
        }
        let plan = chooser.finish()?;
        self.check_bounds(&plan)?;
        Ok(plan)
    }

    fn insert_target(&self, insert: &Insert) -> Result<Arc<TableEntry>> {
        let table = self.catalog.resolve_table(&insert.table.value);
        table.cloned().map_err(|error| error.with_location(crate::plan_error::location_of(insert.table.span)))
    }

    /// `state.require-bounded` refuses plans that grow without bound.
    fn check_bounds(&self, plan: &StreamPlan) -> Result<()> {
        if !self.settings.require_bounded_state {
            return Ok(());
        }
        for node in plan.nodes.iter().filter(|node| !node.properties.bounded) {
            if let StateBound::Unbounded(reason) = &node.properties.state {
                return Err(unbounded_state(node, reason));
            }
        }
        Ok(())
    }

    /// The logical plan of a query, as written.
    pub(crate) fn bound(&self, query: &ast::Query) -> Result<LogicalPlan> {
        with_deep_stack(|| Binder::new(&self.session, &self.catalog).query(query))
    }

    /// The columns that a query gives.
    pub fn query_schema(&self, query: &ast::Query) -> Result<SchemaRef> {
        Ok(Arc::clone(self.bound(query)?.schema().inner()))
    }

    /// Plans the reading of a whole table, all columns, as a stream that ends in the client.
    pub fn plan_scan(&self, table: &str) -> Result<PlannedQuery> {
        let source = StatementSource {
            text: format!("SELECT * FROM `{}`", table.replace('`', "``")),
            location: millpond_core::Location { line: 1, column: 1 },
        };
        match parse_one(&source)?.statement {
            Statement::Query { query, .. } => self.plan_query(&query),
            _ => Err(Error::internal("a SELECT is a query")),
        }
    }

    /// The optimised logical plan as text.
    pub fn explain_logical(&self, query: &ast::Query) -> Result<String> {
        let plan = optimized(&self.session, self.bound(query)?)?;
        Ok(plan.display_indent().to_string())
    }

    /// The columns of a table or view.
    pub fn describe(&self, name: &str) -> Result<Vec<ColumnDescription>> {
        match self.catalog.resolve(name)? {
            CatalogEntry::Table(table) => Ok(describe_table(&table.bound)),
            CatalogEntry::View(view) => {
                let schema = self.bound(&view.query)?.schema().inner().clone();
                let name =
                    |place: usize| view.columns.get(place).unwrap_or(schema.field(place).name()).clone();
                let describe = |place: usize| ColumnDescription {
                    name: name(place),
                    data_type: sql_type(schema.field(place).data_type()),
                    nullable: schema.field(place).is_nullable(),
                    key: None,
                    extras: None,
                    watermark: None,
                };
                Ok((0..schema.fields().len()).map(describe).collect())
            }
        }
    }

    /// Names of all functions, sorted.
    pub fn functions(&self) -> Vec<String> {
        self.session.functions()
    }
}

fn unbounded_state(node: &StreamNode, reason: &str) -> Error {
    let what = match &node.kind {
        NodeKind::Operator(factory) => format!("{} {}", factory.name(), factory.describe()),
        other => other.label().to_owned(),
    };
    let remedy = match node.kind.label() {
        "Join" => {
            "compare the inputs' time attributes (b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR), or join \
             windows by their ends"
        }
        _ => "group by windows (TUMBLE, HOP), or by fewer keys",
    };
    Error::invalid(format!("the state of {what} grows without bound"))
        .with_detail(format!("operator {}: {reason}", node.uid))
        .with_hint(format!("{remedy}; or SET 'state.require-bounded' = 'false'"))
}

fn describe_table(table: &BoundTable) -> Vec<ColumnDescription> {
    let key: Vec<&str> =
        table.primary_key.iter().map(|column| table.columns[*column].name.as_str()).collect();
    let key_text = format!("PRI({})", key.join(", "));
    let describe = |column: &crate::catalog::TableColumn| ColumnDescription {
        name: column.name.clone(),
        data_type: sql_type(&column.data_type),
        nullable: column.nullable,
        key: key.contains(&column.name.as_str()).then(|| key_text.clone()),
        extras: match &column.kind {
            TableColumnKind::Physical { .. } => None,
            TableColumnKind::Metadata { key, is_virtual: true, .. } => {
                Some(format!("METADATA FROM '{key}' VIRTUAL"))
            }
            TableColumnKind::Metadata { key, is_virtual: false, .. } => {
                Some(format!("METADATA FROM '{key}'"))
            }
            TableColumnKind::Computed { text, .. } => Some(format!("AS {text}")),
        },
        watermark: table
            .watermark
            .as_ref()
            .filter(|watermark| table.columns[watermark.column].name == column.name)
            .map(|watermark| watermark.text.clone()),
    };
    table.columns.iter().map(describe).collect()
}

/// A query without its final ORDER BY, OFFSET and LIMIT.
struct Peeled {
    plan: LogicalPlan,
    /// `None` if there was none of them.
    presentation: Option<Presentation>,
    visible: usize,
}

/// Takes the final ORDER BY, OFFSET and LIMIT off; sort keys that the query does not give are
/// appended as hidden columns.
fn peel(plan: LogicalPlan) -> Result<Peeled> {
    let visible = plan.schema().fields().len();
    let (skip, fetch, limited, inner) = peel_limit(plan)?;
    let (shown, sort) = match inner {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => (None, Some(sort)),
        LogicalPlan::Projection(projection) => match projection.input.as_ref() {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                (Some(projection.expr.clone()), Some(sort.clone()))
            }
            _ => return Ok(unsorted(LogicalPlan::Projection(projection), skip, fetch, limited, visible)),
        },
        other => return Ok(unsorted(other, skip, fetch, limited, visible)),
    };
    let sort = sort.ok_or_else(|| Error::internal("a sorted query without its sort"))?;
    let (plan, keys) = with_sort_columns(sort, shown)?;
    Ok(Peeled { plan, presentation: Some(Presentation { sort: keys, skip, fetch, visible }), visible })
}

fn unsorted(plan: LogicalPlan, skip: usize, fetch: Option<usize>, limited: bool, visible: usize) -> Peeled {
    let presentation = limited.then(|| Presentation { sort: Vec::new(), skip, fetch, visible });
    Peeled { plan, presentation, visible }
}

fn peel_limit(plan: LogicalPlan) -> Result<(usize, Option<usize>, bool, LogicalPlan)> {
    let LogicalPlan::Limit(limit) = plan else { return Ok((0, None, false, plan)) };
    let constant = || Error::invalid("LIMIT and OFFSET must be constants");
    let skip = match limit.get_skip_type().map_err(from_datafusion)? {
        SkipType::Literal(skip) => skip,
        SkipType::UnsupportedExpr => return Err(constant()),
    };
    let fetch = match limit.get_fetch_type().map_err(from_datafusion)? {
        FetchType::Literal(fetch) => fetch,
        FetchType::UnsupportedExpr => return Err(constant()),
    };
    Ok((skip, fetch, true, Arc::unwrap_or_clone(limit.input)))
}

/// Per sort key: column, ascending, nulls first.
type SortKeys = Vec<(usize, bool, bool)>;

/// The sort's input (or the projection over it) with a column for every sort key.
fn with_sort_columns(sort: Sort, shown: Option<Vec<Expr>>) -> Result<(LogicalPlan, SortKeys)> {
    let input = sort.input;
    let all = || input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut exprs: Vec<Expr> = shown.unwrap_or_else(all);
    let mut keys = Vec::new();
    for (number, key) in sort.expr.into_iter().enumerate() {
        let known = exprs.iter().position(|expr| *unaliased(expr) == key.expr);
        let place = known.unwrap_or(exprs.len());
        if known.is_none() {
            exprs.push(key.expr.alias(format!("$sort{number}")));
        }
        keys.push((place, key.asc, key.nulls_first));
    }
    let identity = exprs.len() == input.schema().fields().len()
        && exprs.iter().enumerate().all(|(place, expr)| is_column(expr, &input, place));
    if identity {
        return Ok((Arc::unwrap_or_clone(input), keys));
    }
    let projection = Projection::try_new(exprs, input).map_err(from_datafusion)?;
    let plan =
        LogicalPlanBuilder::from(LogicalPlan::Projection(projection)).build().map_err(from_datafusion)?;
    Ok((plan, keys))
}

fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

fn is_column(expr: &Expr, input: &LogicalPlan, place: usize) -> bool {
    let own: Column = input.schema().qualified_field(place).into();
    matches!(expr, Expr::Column(column) if *column == own)
}

#[cfg(test)]
mod tests;
