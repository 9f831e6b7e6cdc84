//! What planning knows of tables and views.
//!
//! A table has two schemas: `schema`, all columns that a query sees, and `connector_schema`, what
//! its connector gives and takes: physical and metadata columns, without the computed ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::logical_expr::Expr;
use millpond_core::{ChangelogMode, Error, Result};
use sqlparser::ast;

use crate::plan_error::with_nearest;
use crate::sql_type::TextLength;

/// The tables and views that a query may name; names are case-sensitive.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    relations: BTreeMap<String, CatalogEntry>,
}

/// A table or a view.
#[derive(Debug, Clone)]
pub enum CatalogEntry {
    /// A connector table.
    Table(Arc<TableEntry>),
    /// A view.
    View(Arc<ViewEntry>),
}

/// A connector table.
#[derive(Debug, Clone)]
pub struct TableEntry {
    /// What its definition says.
    pub bound: BoundTable,
    /// What its connector says.
    pub facts: TableFacts,
}

/// What a connector says of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// Whether reading it ends.
    pub bounded: bool,
    /// The changelog that it gives, if it can be read.
    pub source: Option<ChangelogMode>,
    /// The richest changelog that it takes, if it can be written.
    pub sink: Option<ChangelogMode>,
    /// Whether what is written needs no old images of changed rows (`-U`).
    pub ignores_update_before: bool,
    /// Rows further ahead of the processing time than this many microseconds are bad.
    pub max_future: Option<i64>,
}

/// A table definition with its names and types resolved.
#[derive(Debug, Clone)]
pub struct BoundTable {
    /// Its name.
    pub name: String,
    /// All columns, in the order of the definition.
    pub columns: Vec<TableColumn>,
    /// Names and types of all columns.
    pub schema: SchemaRef,
    /// What the connector gives and takes.
    pub connector_schema: SchemaRef,
    /// The columns of the primary key.
    pub primary_key: Vec<usize>,
    /// The time attribute.
    pub watermark: Option<TableWatermark>,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// Where its values come from.
    pub kind: TableColumnKind,
    /// Its comment.
    pub comment: Option<String>,
    /// How long its texts are, where its type says so; its data type does not.
    pub(crate) length: Option<TextLength>,
}

/// Where the values of a column come from.
#[derive(Debug, Clone)]
pub enum TableColumnKind {
    /// The connector.
    Physical {
        /// Index in the connector's schema.
        index: usize,
    },
    /// The connector, beside the record itself.
    Metadata {
        /// Index in the connector's schema.
        index: usize,
        /// The connector's name for it.
        key: String,
        /// Not written.
        is_virtual: bool,
    },
    /// An expression over the connector's columns.
    Computed {
        /// The expression, coerced.
        expr: Expr,
        /// As the user wrote it.
        text: String,
    },
}

/// `WATERMARK FOR column AS expr`.
#[derive(Debug, Clone)]
pub struct TableWatermark {
    /// The time column.
    pub column: usize,
    /// The time column over the connector's columns.
    pub time: Expr,
    /// The expression over the connector's columns, coerced.
    pub expr: Expr,
    /// As the user wrote it.
    pub text: String,
}

/// A view: a named query.
#[derive(Debug, Clone)]
pub struct ViewEntry {
    /// Its name.
    pub name: String,
    /// New names of its columns; empty to keep the query's.
    pub columns: Vec<String>,
    /// The query.
    pub query: Box<ast::Query>,
}

impl Catalog {
    /// Adds a bounded table whose rows are given when a batch is run.
    pub fn add_rows(&mut self, name: &str, schema: SchemaRef) {
        let column = |(index, field): (usize, &arrow::datatypes::FieldRef)| TableColumn {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
            kind: TableColumnKind::Physical { index },
            comment: None,
            length: None,
        };
        let bound = BoundTable {
            name: name.into(),
            columns: schema.fields().iter().enumerate().map(column).collect(),
            connector_schema: Arc::clone(&schema),
            schema,
            primary_key: Vec::new(),
            watermark: None,
        };
        let source = Some(ChangelogMode::Append);
        self.add_table(
            bound,
            TableFacts { bounded: true, source, sink: None, ignores_update_before: false, max_future: None },
        );
    }

    /// Adds a table; `false` if the name is taken.
    pub fn add_table(&mut self, bound: BoundTable, facts: TableFacts) -> bool {
        let name = bound.name.clone();
        self.add(name, CatalogEntry::Table(Arc::new(TableEntry { bound, facts })))
    }

    /// Adds a view; `false` if the name is taken.
    pub fn add_view(&mut self, view: ViewEntry) -> bool {
        let name = view.name.clone();
        self.add(name, CatalogEntry::View(Arc::new(view)))
    }

    fn add(&mut self, name: String, entry: CatalogEntry) -> bool {
        match self.relations.entry(name) {
            std::collections::btree_map::Entry::Occupied(_) => false,
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(entry);
                true
            }
        }
    }

    /// Removes a table or view; gives what it was.
    pub fn remove(&mut self, name: &str) -> Option<CatalogEntry> {
        self.relations.remove(name)
    }

    /// A table or view by name.
    pub fn find(&self, name: &str) -> Option<&CatalogEntry> {
        self.relations.get(name)
    }

    /// A table or view by name, or an error that suggests the nearest names.
    pub fn resolve(&self, name: &str) -> Result<&CatalogEntry> {
        self.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.relations.keys().map(String::as_str).collect();
            with_nearest(Error::invalid(format!("table \"{name}\" does not exist")), name, &known)
        })
    }

    /// A table by name, or an error.
    pub fn resolve_table(&self, name: &str) -> Result<&Arc<TableEntry>> {
        match self.resolve(name)? {
            CatalogEntry::Table(table) => Ok(table),
            CatalogEntry::View(_) => Err(Error::invalid(format!("\"{name}\" is a view, not a table"))),
        }
    }

    /// Names of all tables, sorted.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableEntry>> {
        self.relations.values().filter_map(|entry| match entry {
            CatalogEntry::Table(table) => Some(table),
            CatalogEntry::View(_) => None,
        })
    }

    /// All views, sorted by name.
    pub fn views(&self) -> impl Iterator<Item = &Arc<ViewEntry>> {
        self.relations.values().filter_map(|entry| match entry {
            CatalogEntry::Table(_) => None,
            CatalogEntry::View(view) => Some(view),
        })
    }
}

impl BoundTable {
    /// The columns that a sink takes, as indices into `columns`: all but computed and virtual ones.
    pub fn written_columns(&self) -> Vec<usize> {
        let written = |column: &TableColumn| match column.kind {
            TableColumnKind::Physical { .. } => true,
            TableColumnKind::Metadata { is_virtual, .. } => !is_virtual,
            TableColumnKind::Computed { .. } => false,
        };
        (0..self.columns.len()).filter(|column| written(&self.columns[*column])).collect()
    }

    /// Names and types of the columns that a sink takes.
    pub fn sink_schema(&self) -> SchemaRef {
        let field = |column: usize| Arc::clone(&self.schema.fields()[column]);
        Arc::new(Schema::new(self.written_columns().into_iter().map(field).collect::<Vec<_>>()))
    }
}

impl TableColumn {
    /// Its name, type and nullability.
    pub fn field(&self) -> Field {
        Field::new(&self.name, self.data_type.clone(), self.nullable)
    }
}
