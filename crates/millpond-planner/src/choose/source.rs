//! Sources: which of a connector's columns are read, and what is computed from them before the
//! first operator.
//!
//! The watermark's columns are always read, also where no query names them, and so is the key of
//! rows that replace each other: they are normalised before anything else sees them, because a
//! filter below would miss that a row leaves it.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::{Expr, TableScan};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::changelog_normalize::ChangelogNormalizeFactory;
use millpond_operators::event_time::{EventTime, WatermarkSpec};

use super::{Chooser, Identity, NewNode, NodeFacts, Operator, lost};
use crate::catalog::{BoundTable, TableColumn, TableColumnKind, TableEntry, TableWatermark};
use crate::plan_error::from_datafusion;
use crate::properties::{Role, surviving_keys};
use crate::session::StreamTable;
use crate::stream_plan::{NodeId, NodeKind, StateBound};

/// The table's columns that a scan gives.
pub(super) fn columns_of(scan: &TableScan) -> Vec<usize> {
    scan.projection.clone().unwrap_or_else(|| (0..scan.source.schema().fields().len()).collect())
}

impl Chooser<'_> {
    /// Reads a table: once for all scans of the plan, then only the columns of this one.
    pub(super) fn source(&mut self, scan: &TableScan) -> Result<NodeId> {
        let table = scan.source.downcast_ref::<StreamTable>().ok_or_else(|| lost("a table's source"))?;
        let table = Arc::clone(&table.0);
        let read = self.reads.get(&table.bound.name).ok_or_else(|| lost("the columns read of a table"))?;
        let mut read: Vec<usize> = read.iter().copied().collect();
        if read.is_empty() {
            // COUNT(*) reads no column, but a batch without columns has no rows.
            read.push(0);
        }
        let source = self.shared_source(&table, &read)?;
        let source = self.normalised(source, declared_schema(&table.bound, &read, false));
        let place = |column: usize| read.iter().position(|other| *other == column);
        let wanted: Option<Vec<usize>> = columns_of(scan).into_iter().map(place).collect();
        let wanted = wanted.ok_or_else(|| lost("a column read of a table"))?;
        let names = output_identity(&table.bound, &columns_of(scan));
        self.selection(source, &wanted, Some(Identity { own: names.clone(), output: names }))
    }

    fn shared_source(&mut self, table: &TableEntry, read: &[usize]) -> Result<NodeId> {
        let bound = &table.bound;
        let mode = self.source_mode(table)?;
        let exprs: Vec<Expr> = read.iter().map(|column| column_expr(&bound.columns[*column])).collect();
        let projection = connector_columns(bound, &exprs)?;
        let event_time = self.event_time(table, read, &exprs, &projection)?;
        let time = bound.watermark.as_ref().map(|watermark| watermark.column);
        let role = |column: &usize| match &bound.columns[*column].kind {
            _ if Some(*column) == time => Role::EventTime,
            TableColumnKind::Computed { expr, .. } if is_proctime(expr) => Role::ProcessingTime,
            _ => Role::Plain,
        };
        let place = |column: usize| read.iter().position(|other| *other == column);
        let keys = match bound.primary_key.is_empty() {
            true => Vec::new(),
            false => surviving_keys(std::slice::from_ref(&bound.primary_key), place),
        };
        let watermark = bound.watermark.as_ref().map_or("", |watermark| &watermark.text);
        let semantics =
            format!("Source {} columns={projection:?} watermark={watermark} {}", bound.name, join(&exprs));
        let node = NewNode {
            uid_prefix: format!("source-{}", bound.name),
            semantics,
            // Offsets are found again whatever columns are read.
            identity: Some(Identity {
                own: format!("Source {} {watermark}", bound.name),
                output: output_identity(bound, read),
            }),
            inputs: Vec::new(),
            schema: Arc::clone(&event_time.schema),
            mode,
            // NOT ENFORCED: only a changelog's key can be relied on.
            upsert_keys: if mode == ChangelogMode::Append { Vec::new() } else { keys },
            bounded: table.facts.bounded,
            state: StateBound::None,
            facts: NodeFacts {
                updated_by: (mode != ChangelogMode::Append).then_some("a changelog source"),
                ..NodeFacts::new(read.iter().map(role).collect(), false)
            },
            kind: NodeKind::Source {
                table: bound.name.clone(),
                projection,
                event_time: Arc::new(event_time),
            },
        };
        Ok(self.add(node))
    }

    /// A right changelog of rows that replace each other by key.
    fn normalised(&mut self, source: NodeId, schema: SchemaRef) -> NodeId {
        let node = self.node(source);
        let key = match (node.properties.mode, node.properties.upsert_keys.as_slice()) {
            (ChangelogMode::Upsert, [key, ..]) => key.clone(),
            _ => return source,
        };
        let facts = self.facts[source].clone();
        let exchange = self.exchange(source, key.clone());
        let names: Vec<&str> = key.iter().map(|column| schema.field(*column).name().as_str()).collect();
        let operator = Operator {
            semantics: format!("{key:?}"),
            identity: None,
            state: StateBound::Keys(names.join(", ")),
            factory: Arc::new(ChangelogNormalizeFactory { schema: Arc::clone(&schema), keys: key.clone() }),
            inputs: vec![exchange],
            mode: ChangelogMode::Retract,
            upsert_keys: vec![key],
            facts: NodeFacts { single: false, ..facts },
        };
        self.add_operator(operator)
    }

    fn event_time(
        &self,
        table: &TableEntry,
        read: &[usize],
        exprs: &[Expr],
        projection: &[usize],
    ) -> Result<EventTime> {
        let bound = &table.bound;
        let given: SchemaRef = Arc::new(bound.connector_schema.project(projection)?);
        let given = DFSchema::try_from(given.as_ref().clone()).map_err(from_datafusion)?;
        let columns = exprs.iter().map(|expr| self.session.physical(expr, &given)).collect::<Result<_>>()?;
        let keyed = table.facts.source == Some(ChangelogMode::Upsert);
        let spec = |watermark: &TableWatermark| -> Result<WatermarkSpec> {
            Ok(WatermarkSpec {
                time: self.session.physical(&watermark.time, &given)?,
                watermark: self.session.physical(&watermark.expr, &given)?,
                column: bound.columns[watermark.column].name.clone(),
                max_future: table.facts.max_future,
            })
        };
        let watermark = bound.watermark.as_ref().map(spec).transpose()?;
        Ok(EventTime { columns, schema: declared_schema(bound, read, keyed), watermark, keyed })
    }

    fn source_mode(&self, table: &TableEntry) -> Result<ChangelogMode> {
        let mode = source_mode(table)?;
        if mode == ChangelogMode::Retract && self.session.cdc_duplicates {
            return Err(Error::invalid(format!(
                "change events may come twice, but table \"{}\" has no PRIMARY KEY by which that can be told",
                table.bound.name
            ))
            .with_hint("declare PRIMARY KEY (…) NOT ENFORCED, or SET 'source.cdc-duplicates' = 'false'"));
        }
        Ok(mode)
    }
}

/// Names and types of columns of a table. Of a deleted row only its key need be known.
fn declared_schema(bound: &BoundTable, columns: &[usize], with_deletes_by_key: bool) -> SchemaRef {
    let field = |column: &usize| {
        let field = &bound.schema.fields()[*column];
        match with_deletes_by_key && !bound.primary_key.contains(column) {
            true => Arc::new(field.as_ref().clone().with_nullable(true)),
            false => Arc::clone(field),
        }
    };
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn source_mode(table: &TableEntry) -> Result<ChangelogMode> {
    let name = &table.bound.name;
    match table.facts.source {
        Some(mode) => Ok(mode),
        None => Err(Error::invalid(format!("table \"{name}\" cannot be read"))
            .with_hint("its connector only writes: it can stand behind INSERT INTO")),
    }
}

/// What the columns of a table are to their consumers, wherever they stand in what the source reads.
fn output_identity(bound: &BoundTable, columns: &[usize]) -> String {
    let columns = columns.iter().map(|column| {
        let column = &bound.columns[*column];
        match &column.kind {
            TableColumnKind::Computed { text, .. } => format!("{} AS {text}", column.name),
            TableColumnKind::Physical { .. } | TableColumnKind::Metadata { .. } => {
                format!("{} {}", column.name, column.data_type)
            }
        }
    });
    format!("{} {}", bound.name, columns.collect::<Vec<_>>().join(", "))
}

/// Whether the expression is `PROCTIME()`.
fn is_proctime(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.name() == "proctime")
}

fn column_expr(column: &TableColumn) -> Expr {
    match &column.kind {
        TableColumnKind::Computed { expr, .. } => expr.clone(),
        TableColumnKind::Physical { .. } | TableColumnKind::Metadata { .. } => {
            Expr::Column(Column::from_name(&column.name))
        }
    }
}

/// The connector's columns that the expressions and the watermark need, in order.
fn connector_columns(bound: &BoundTable, exprs: &[Expr]) -> Result<Vec<usize>> {
    let watermark = bound.watermark.iter().flat_map(|watermark| [&watermark.time, &watermark.expr]);
    let mut columns = BTreeSet::new();
    for expr in exprs.iter().chain(watermark) {
        for column in expr.column_refs() {
            columns.insert(bound.connector_schema.index_of(&column.name)?);
        }
    }
    if columns.is_empty() {
        columns.insert(0);
    }
    Ok(columns.into_iter().collect())
}

fn join(exprs: &[Expr]) -> String {
    exprs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
