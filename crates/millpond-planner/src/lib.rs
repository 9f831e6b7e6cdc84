//! How SQL becomes a StreamPlan.
//!
//! ```text
//! text ─parse─▶ Statement ─bind─▶ LogicalPlan ─stream rules─▶ optimised LogicalPlan
//!      ─derive─▶ properties ─choose─▶ StreamPlan
//! ```
//!
//! The crate must not know the runtime, RocksDB or running jobs.

mod aggregate_function;
mod ast_walk;
pub mod batch;
mod bind;
mod cast_names;
pub mod catalog;
mod choose;
mod clause;
pub mod diagnostic;
pub mod dialect;
mod doubles;
mod explain;
mod fetch_clause;
mod group_window;
mod interval;
mod interval_text;
mod operator_planner;
mod optimize;
mod outer_types;
mod over_location;
pub mod parser;
mod plan_error;
pub mod planner;
mod properties;
mod relation_names;
mod rewrite;
mod row_values;
mod rows_of;
mod scalar_function;
mod select_names;
mod session;
pub mod sql_type;
mod stack;
mod state_ttl;
pub mod statement;
pub mod stream_plan;
mod subquery;
mod sugar;
mod unnest_relation;
mod window_relation;

pub use batch::{TableRows, TableWatermarks};
pub use catalog::{
    BoundTable, Catalog, CatalogEntry, TableColumn, TableColumnKind, TableEntry, TableFacts, TableWatermark,
    ViewEntry,
};
/// The DataFusion for which functions of the host are written.
pub use datafusion;
pub use parser::{StatementSource, is_complete, parse, parse_one, split_statements};
pub use plan_error::is_unsupported;
pub use planner::{ColumnDescription, Planner};
pub use relation_names::relation_names;
pub use session::PlannerSettings;
pub use sql_type::{arrow_type, sql_type};
pub use statement::{
    CreateTable, CreateView, ExplainKind, Insert, ParsedStatement, Show, Statement, StopSavepoint,
};
pub use stream_plan::{
    NodeId, NodeKind, PlannedQuery, Presentation, SinkTarget, StateBound, StreamNode, StreamPlan,
    StreamProperties,
};
