//! Prepared queries: plans that can be looked at, and altered, before they run.
//!
//! For programs that watch a plan at work: the differential tests put recorders between its
//! operators and compare every epoch with the batch answer over the same input.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millpond_core::{Error, Result, Timestamp};
use millpond_planner::{
    CatalogEntry, PlannedQuery, Planner, Statement, StatementSource, TableRows, TableWatermarks, parse_one,
};
use sqlparser::ast::Query;

use crate::answer::Changes;
use crate::session::Session;

/// A query with its plan, before it runs; without its final ORDER BY and LIMIT, which are no part
/// of what is kept up to date.
#[derive(Debug)]
pub struct PreparedQuery {
    /// The plan; ends in the client.
    pub planned: PlannedQuery,
    /// The text of the query.
    pub text: String,
    planner: Planner,
    query: Query,
}

impl Session {
    /// The queries of a statement, planned: that of a SELECT, or those of INSERTs.
    ///
    /// Errors: as running the statement would give them.
    pub fn prepare(&self, source: &StatementSource) -> Result<Vec<PreparedQuery>> {
        let queries = match parse_one(source)?.statement {
            Statement::Query { query, .. } => vec![*query],
            Statement::Insert(insert) => vec![*insert.query],
            Statement::StatementSet(inserts) => inserts.into_iter().map(|insert| *insert.query).collect(),
            _ => Vec::new(),
        };
        queries.into_iter().map(|query| self.prepare_query(query)).collect()
    }

    fn prepare_query(&self, mut query: Query) -> Result<PreparedQuery> {
        query.order_by = None;
        query.limit_clause = None;
        query.fetch = None;
        let planner = self.planner()?;
        let planned = planner.plan_query(&query)?;
        Ok(PreparedQuery { planned, text: query.to_string(), planner, query })
    }

    /// Starts a plan as it is now.
    pub fn start_prepared(&self, prepared: &PreparedQuery) -> Result<Changes> {
        self.changes_of(&prepared.planned.plan)
    }
}

impl PreparedQuery {
    /// The tables that the query names, also those of which the plan needs nothing.
    pub fn tables(&self) -> Result<Vec<String>> {
        self.planner.tables_read(&self.query)
    }

    /// All columns of a table that the query reads.
    pub fn table_schema(&self, table: &str) -> Result<SchemaRef> {
        match self.planner.catalog.resolve(table)? {
            CatalogEntry::Table(table) => Ok(Arc::clone(&table.bound.schema)),
            CatalogEntry::View(_) => Err(Error::internal(format!("{table:?} is a view"))),
        }
    }

    /// The batch answer over these rows at the processing time `now`; where the tables' watermarks
    /// are given, of windows only those that are final at them.
    pub async fn batch(
        &self,
        tables: &TableRows,
        now: Timestamp,
        final_at: Option<&TableWatermarks>,
    ) -> Result<Vec<RecordBatch>> {
        self.planner.run_batch_at(&self.query, tables, now, final_at).await
    }

    /// Whether the query reads windows.
    pub fn reads_windows(&self) -> Result<bool> {
        self.planner.reads_windows(&self.query)
    }
}
