//! A walk over a query's syntax tree with hooks that are called, not compiled in: every visitor of its
//! own makes the compiler write out the walk over all of the syntax once more.

use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Query, VisitMut, VisitorMut};

/// What is done to each query or expression, its parts first.
enum Hook<'a> {
    Query(&'a mut dyn FnMut(&mut Query)),
    Expr(&'a mut dyn FnMut(&mut Expr)),
}

/// Calls `hook` with each query, inner ones first.
pub(crate) fn each_query(node: &mut Query, hook: &mut dyn FnMut(&mut Query)) {
    let _ = VisitMut::visit(node, &mut Walk(Hook::Query(hook)));
}

/// Calls `hook` with each expression, inner ones first.
pub(crate) fn each_expr(node: &mut impl VisitMut, hook: &mut dyn FnMut(&mut Expr)) {
    let _ = VisitMut::visit(node, &mut Walk(Hook::Expr(hook)));
}

struct Walk<'a>(Hook<'a>);

impl VisitorMut for Walk<'_> {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Hook::Query(hook) = &mut self.0 {
            hook(query);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Hook::Expr(hook) = &mut self.0 {
            hook(expr);
        }
        ControlFlow::Continue(())
    }
}
