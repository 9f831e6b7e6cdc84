//! Binding of `CREATE TABLE`: resolves types, types computed columns, checks names, primary key
//! and watermark.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{Expr, ExprSchemable};
use millpond_core::{Error, Result, TimePrecision};
use sqlparser::ast;

use crate::catalog::{BoundTable, Catalog, TableColumn, TableColumnKind, TableWatermark};
use crate::plan_error::{from_datafusion, location_of, with_nearest};
use crate::session::{Binder, Session};
use crate::sql_type::{TextLength, arrow_type, sql_type};
use crate::statement::{Column, ColumnKind, CreateTable, Watermark};

/// Resolves a table definition.
pub(crate) fn bind_table(session: &Session, create: &CreateTable) -> Result<BoundTable> {
    check_names(create)?;
    let connector_schema = connector_schema(create)?;
    let columns = bind_columns(session, create, &connector_schema)?;
    let schema = Arc::new(Schema::new(columns.iter().map(TableColumn::field).collect::<Vec<_>>()));
    let primary_key = primary_key(create, &columns)?;
    let watermark = create
        .watermark
        .as_ref()
        .map(|watermark| bind_watermark(session, watermark, &columns, &connector_schema))
        .transpose()?;
    Ok(BoundTable {
        name: create.name.value.clone(),
        columns,
        schema,
        connector_schema,
        primary_key,
        watermark,
    })
}

fn check_names(create: &CreateTable) -> Result<()> {
    let mut seen = HashSet::new();
    match create.columns.iter().find(|column| !seen.insert(column.name.value.as_str())) {
        None => Ok(()),
        Some(column) => Err(Error::invalid(format!("column \"{}\" is declared twice", column.name.value))
            .with_location(location_of(column.name.span))),
    }
}

fn connector_schema(create: &CreateTable) -> Result<SchemaRef> {
    let primary_key: HashSet<&str> = create.primary_key.iter().map(|name| name.value.as_str()).collect();
    let mut fields = Vec::new();
    for column in &create.columns {
        let (data_type, nullable) = match &column.kind {
            ColumnKind::Physical { data_type, not_null } => {
                (data_type, !not_null && !primary_key.contains(column.name.value.as_str()))
            }
            ColumnKind::Metadata { data_type, .. } => (data_type, true),
            ColumnKind::Computed { .. } => continue,
        };
        let data_type = arrow_type(data_type).map_err(|error| at_column(error, column))?;
        fields.push(Field::new(&column.name.value, data_type, nullable));
    }
    if fields.is_empty() {
        return Err(Error::invalid(format!("table \"{}\" has no column", create.name.value))
            .with_location(location_of(create.name.span)));
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn at_column(error: Error, column: &Column) -> Error {
    error.context(format!("column \"{}\"", column.name.value)).with_location(location_of(column.name.span))
}

fn bind_columns(session: &Session, create: &CreateTable, connector: &SchemaRef) -> Result<Vec<TableColumn>> {
    let mut columns: Vec<TableColumn> = Vec::new();
    for column in &create.columns {
        let name = column.name.value.clone();
        let comment = column.comment.clone();
        let index = connector.index_of(&name).ok();
        let given = |kind: &dyn Fn(usize) -> TableColumnKind| {
            let index = index.expect("physical and metadata columns are in the connector's schema");
            let field = connector.field(index);
            (field.data_type().clone(), field.is_nullable(), kind(index))
        };
        let (data_type, nullable, kind) = match &column.kind {
            ColumnKind::Physical { .. } => given(&|index| TableColumnKind::Physical { index }),
            ColumnKind::Metadata { from, is_virtual, .. } => given(&|index| TableColumnKind::Metadata {
                index,
                key: from.clone().unwrap_or_else(|| name.clone()),
                is_virtual: *is_virtual,
            }),
            ColumnKind::Computed { expr } => {
                computed(session, expr, &columns, connector).map_err(|error| at_column(error, column))?
            }
        };
        let length = match &column.kind {
            ColumnKind::Physical { data_type, .. } | ColumnKind::Metadata { data_type, .. } => {
                TextLength::of(data_type)
            }
            ColumnKind::Computed { .. } => None,
        };
        columns.push(TableColumn { name, data_type, nullable, kind, comment, length });
    }
    Ok(columns)
}

fn computed(
    session: &Session,
    sql: &ast::Expr,
    before: &[TableColumn],
    connector: &SchemaRef,
) -> Result<(DataType, bool, TableColumnKind)> {
    let (expr, data_type, nullable) = bind_expr(session, sql, before, connector)?;
    Ok((data_type, nullable, TableColumnKind::Computed { expr, text: sql.to_string() }))
}

/// An expression over the columns of a table, expressed over those of its connector.
///
/// Computed columns that it names are replaced by their expressions.
fn bind_expr(
    session: &Session,
    sql: &ast::Expr,
    columns: &[TableColumn],
    connector: &SchemaRef,
) -> Result<(Expr, DataType, bool)> {
    let visible = visible_schema(columns, connector)?;
    let catalog = Catalog::default();
    let expr = Binder::new(session, &catalog).expr(sql, &visible)?;
    let expr = expr.transform(|expr| Ok(inline(expr, columns))).map_err(from_datafusion)?.data;
    let connector = DFSchema::try_from(connector.as_ref().clone()).map_err(from_datafusion)?;
    let expr = session.coerced(expr, &connector)?;
    let data_type = expr.get_type(&connector).map_err(from_datafusion)?;
    let nullable = expr.nullable(&connector).map_err(from_datafusion)?;
    Ok((expr, data_type, nullable))
}

/// The connector's columns (also those declared later) and the computed ones declared so far.
fn visible_schema(columns: &[TableColumn], connector: &SchemaRef) -> Result<DFSchema> {
    let computed = columns
        .iter()
        .filter(|column| matches!(column.kind, TableColumnKind::Computed { .. }))
        .map(|column| Arc::new(column.field()));
    let fields: Vec<_> = connector.fields().iter().cloned().chain(computed).collect();
    DFSchema::try_from(Schema::new(fields)).map_err(from_datafusion)
}

fn inline(expr: Expr, columns: &[TableColumn]) -> Transformed<Expr> {
    let Expr::Column(column) = &expr else { return Transformed::no(expr) };
    match columns.iter().find(|known| known.name == column.name).map(|known| &known.kind) {
        Some(TableColumnKind::Computed { expr, .. }) => Transformed::yes(expr.clone()),
        Some(TableColumnKind::Physical { .. } | TableColumnKind::Metadata { .. }) | None => {
            Transformed::no(expr)
        }
    }
}

fn column_index(columns: &[TableColumn], name: &ast::Ident, clause: &str) -> Result<usize> {
    columns.iter().position(|column| column.name == name.value).ok_or_else(|| {
        let known: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let error = Error::invalid(format!("{clause} column \"{}\" does not exist", name.value));
        with_nearest(error, &name.value, &known).with_location(location_of(name.span))
    })
}

fn primary_key(create: &CreateTable, columns: &[TableColumn]) -> Result<Vec<usize>> {
    let mut key = Vec::new();
    for name in &create.primary_key {
        let index = column_index(columns, name, "PRIMARY KEY")?;
        if matches!(columns[index].kind, TableColumnKind::Computed { .. }) {
            return Err(Error::invalid(format!("PRIMARY KEY column \"{}\" is computed", name.value))
                .with_hint("a key column must be stored by the connector")
                .with_location(location_of(name.span)));
        }
        if key.contains(&index) {
            return Err(Error::invalid(format!("PRIMARY KEY names column \"{}\" twice", name.value))
                .with_location(location_of(name.span)));
        }
        key.push(index);
    }
    Ok(key)
}

fn bind_watermark(
    session: &Session,
    watermark: &Watermark,
    columns: &[TableColumn],
    connector: &SchemaRef,
) -> Result<TableWatermark> {
    let at = location_of(watermark.column.span);
    let column = column_index(columns, &watermark.column, "WATERMARK")?;
    let declared = &columns[column];
    if TimePrecision::of(&declared.data_type).is_none() {
        let (name, found) = (&declared.name, sql_type(&declared.data_type));
        return Err(Error::invalid(format!("WATERMARK column \"{name}\" is {found}, not a timestamp"))
            .with_hint(format!("declare it TIMESTAMP(3), or compute one: ts AS CAST({name} AS TIMESTAMP(3))"))
            .with_location(at));
    }
    let in_watermark = |error: Error| error.context("WATERMARK").with_location(at);
    let (expr, data_type, _) =
        bind_expr(session, &watermark.expr, columns, connector).map_err(in_watermark)?;
    if TimePrecision::of(&data_type).is_none() {
        return Err(Error::invalid(format!(
            "WATERMARK expression is {}, not a timestamp",
            sql_type(&data_type)
        ))
        .with_hint(format!("for example {} - INTERVAL '5' SECOND", declared.name))
        .with_location(at));
    }
    let time = match &declared.kind {
        TableColumnKind::Computed { expr, .. } => expr.clone(),
        TableColumnKind::Physical { .. } | TableColumnKind::Metadata { .. } => {
            Expr::Column(datafusion::common::Column::from_name(&declared.name))
        }
    };
    Ok(TableWatermark { column, time, expr, text: watermark.expr.to_string() })
}
