//! `FETCH FIRST n ROWS ONLY`, the standard's word for LIMIT.

use std::ops::ControlFlow;

use millpond_core::{Error, Result};
use sqlparser::ast::{Expr, LimitClause, Query, Value, VisitMut, VisitorMut};

use crate::plan_error::unsupported;

/// The query with LIMIT in place of FETCH, also in its subqueries.
pub(crate) fn with_limits(mut query: Query) -> Result<Query> {
    match query.visit(&mut Limiter) {
        ControlFlow::Continue(()) => Ok(query),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Limiter;

impl VisitorMut for Limiter {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let Some(fetch) = query.fetch.take() else { return ControlFlow::Continue(()) };
        if fetch.percent {
            return ControlFlow::Break(unsupported("FETCH … PERCENT").with_hint("give a number of rows"));
        }
        if fetch.with_ties {
            return ControlFlow::Break(
                unsupported("FETCH … WITH TIES").with_hint("use RANK() in a subquery: WHERE r <= 10"),
            );
        }
        let one = || Expr::Value(Value::Number("1".into(), false).into());
        let rows = Some(fetch.quantity.unwrap_or_else(one));
        match &mut query.limit_clause {
            Some(LimitClause::LimitOffset { limit: limit @ None, .. }) => *limit = rows,
            None => {
                query.limit_clause =
                    Some(LimitClause::LimitOffset { limit: rows, offset: None, limit_by: Vec::new() });
            }
            Some(_) => {
                let error = Error::invalid("a query has LIMIT and FETCH").with_hint("leave one of them out");
                return ControlFlow::Break(error);
            }
        }
        ControlFlow::Continue(())
    }
}
