//! Where in a query a window function stands that cannot be planned.
//!
//! Logical plans do not keep the places of functions, so that it is looked up in the text.

use std::ops::ControlFlow;

use millpond_core::{Error, Location};
use sqlparser::ast::{self, Expr, Spanned, visit_expressions};

use crate::plan_error::location_of;

/// The error with the place of the window function that it speaks of.
pub(crate) fn at_over(error: Error, query: &ast::Query) -> Error {
    if error.location().is_some() {
        return error;
    }
    let name = error.message().split(['(', ' ']).next().unwrap_or_default().to_owned();
    let place = match name.as_str() {
        "ROW_NUMBER" | "RANK" | "DENSE_RANK" => over(query, Some(&name)),
        "OVER" => over(query, None),
        _ => None,
    };
    error.with_location(place)
}

/// The place of the first window function, or of the first with this name.
fn over(query: &ast::Query, name: Option<&str>) -> Option<Location> {
    let found = visit_expressions(query, |expr| match expr {
        Expr::Function(call)
            if call.over.is_some()
                && name.is_none_or(|name| call.name.to_string().eq_ignore_ascii_case(name)) =>
        {
            ControlFlow::Break(location_of(call.name.span()))
        }
        _ => ControlFlow::Continue(()),
    });
    match found {
        ControlFlow::Break(place) => place,
        ControlFlow::Continue(()) => None,
    }
}
