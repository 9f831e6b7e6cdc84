//! Where in a query a window function, or NOW(), stands that cannot be planned.
//!
//! Logical plans do not keep the places of functions, so that it is looked up in the text.

use std::ops::ControlFlow;

use millpond_core::{Error, Location};
use sqlparser::ast::{self, Expr, Spanned, visit_expressions};

use crate::plan_error::location_of;

/// Names of the functions that are the current time.
const NOW: [&str; 4] = ["now", "current_timestamp", "localtimestamp", "current_date"];

/// The error with the place of the function that it speaks of.
pub(crate) fn at_over(error: Error, query: &ast::Query) -> Error {
    if error.location().is_some() {
        return error;
    }
    let name = error.message().split(['(', ' ']).next().unwrap_or_default().to_owned();
    let place = match name.as_str() {
        "ROW_NUMBER" | "RANK" | "DENSE_RANK" => over(query, Some(&name)),
        "OVER" => over(query, None),
        "NOW" => first_call(query, |call| NOW.contains(&call.name.to_string().to_lowercase().as_str())),
        _ => None,
    };
    error.with_location(place)
}

/// The place of the first window function, or of the first with this name.
fn over(query: &ast::Query, name: Option<&str>) -> Option<Location> {
    first_call(query, |call| {
        call.over.is_some() && name.is_none_or(|name| call.name.to_string().eq_ignore_ascii_case(name))
    })
}

/// The place of the first function that is one of those.
fn first_call(query: &ast::Query, is_one: impl Fn(&ast::Function) -> bool) -> Option<Location> {
    let found = visit_expressions(query, |expr| match expr {
        Expr::Function(call) if is_one(call) => ControlFlow::Break(location_of(call.name.span())),
        _ => ControlFlow::Continue(()),
    });
    match found {
        ControlFlow::Break(place) => place,
        ControlFlow::Continue(()) => None,
    }
}
