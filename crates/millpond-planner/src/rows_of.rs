//! `(SELECT * FROM …)`: the rows of a relation as an argument of a table function.

use millpond_core::{Error, Result};
use sqlparser::ast::{Expr, Query, SetExpr, TableFactor, TableWithJoins};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::Parser;

/// `SELECT * FROM from WHERE selection`.
pub(crate) fn rows_of(from: Vec<TableWithJoins>, selection: Option<Expr>) -> Result<Query> {
    let failed = |error| Error::internal(format!("a SELECT is not parsed as one: {error}"));
    let dialect = GenericDialect;
    let parser = Parser::new(&dialect).try_with_sql("SELECT * FROM t").map_err(failed)?;
    let mut query = *{ parser }.parse_query().map_err(failed)?;
    let SetExpr::Select(rows) = query.body.as_mut() else {
        return Err(Error::internal("a SELECT is not parsed as one"));
    };
    rows.from = from;
    rows.selection = selection;
    Ok(query)
}

/// The relation of which the query gives all rows, if there is just one.
pub(crate) fn only_relation(query: &Query) -> Option<TableFactor> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    match select.from.as_slice() {
        [from] if select.selection.is_none() && from.joins.is_empty() => Some(from.relation.clone()),
        _ => None,
    }
}
