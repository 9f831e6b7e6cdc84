//! Casts that must show in the names of what is computed of them.
//!
//! The planner tells aggregates, window functions and grouping expressions apart by names in which
//! casts do not show: `MAX(a)` and `MAX(CAST(a AS STRING))` would be one column. Where a SELECT has
//! two such expressions, its casts are wrapped in a call that passes their value on and bears the
//! type in its name.

use std::collections::HashMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, GroupByExpr, Ident, OrderByKind, Query, Select, SetExpr, Value, Visit, VisitMut, Visitor,
    VisitorMut,
};

use crate::sugar::call;

/// The function that passes on its first argument.
pub(crate) const NAMED_CAST: &str = "named_cast";

/// The query, with casts that show in names where they must.
pub(crate) fn casts_named(mut query: Query) -> Query {
    let _ = VisitMut::visit(&mut query, &mut Queries);
    query
}

struct Queries;

impl VisitorMut for Queries {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let order = match query.order_by.as_mut().map(|order| &mut order.kind) {
            Some(OrderByKind::Expressions(keys)) => Some(keys),
            Some(OrderByKind::All(_)) | None => None,
        };
        if let (SetExpr::Select(select), Some(keys)) = (query.body.as_mut(), order) {
            if collide(select) {
                let _ = VisitMut::visit(keys, &mut Wrap);
            }
        }
        name_in(&mut query.body);
        ControlFlow::Continue(())
    }
}

fn name_in(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) if collide(select) => {
            let Select { projection, group_by, having, qualify, .. } = select.as_mut();
            let _ = VisitMut::visit(projection, &mut Wrap);
            let _ = VisitMut::visit(group_by, &mut Wrap);
            let _ = VisitMut::visit(having, &mut Wrap);
            let _ = VisitMut::visit(qualify, &mut Wrap);
        }
        SetExpr::SetOperation { left, right, .. } => {
            name_in(left);
            name_in(right);
        }
        _ => {}
    }
}

/// Whether two different expressions of a SELECT would have one name.
fn collide(select: &Select) -> bool {
    let mut named = Named::default();
    let _ = Visit::visit(&select.projection, &mut named);
    let _ = Visit::visit(&select.having, &mut named);
    let _ = Visit::visit(&select.qualify, &mut named);
    if let GroupByExpr::Expressions(keys, _) = &select.group_by {
        keys.iter().for_each(|key| named.add(key));
    }
    named.collide
}

/// The expressions that get a name of the planner's, by that name.
#[derive(Default)]
struct Named {
    by_name: HashMap<String, String>,
    collide: bool,
}

impl Named {
    fn add(&mut self, expr: &Expr) {
        let mut plain = expr.clone();
        let _ = VisitMut::visit(&mut plain, &mut Unqualified);
        let written = plain.to_string().to_lowercase();
        let _ = VisitMut::visit(&mut plain, &mut WithoutCasts);
        let known = self.by_name.entry(plain.to_string().to_lowercase()).or_insert_with(|| written.clone());
        self.collide |= *known != written;
    }
}

impl Visitor for Named {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Function(_)) {
            self.add(expr);
        }
        ControlFlow::Continue(())
    }
}

/// `t.a` as `a`.
struct Unqualified;

impl VisitorMut for Unqualified {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(names) = expr
            && let Some(last) = names.pop()
        {
            *expr = Expr::Identifier(Ident::new(last.value));
        }
        ControlFlow::Continue(())
    }
}

struct WithoutCasts;

impl VisitorMut for WithoutCasts {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: inner, .. } = expr {
            let inner = std::mem::replace(inner.as_mut(), Expr::value(Value::Null));
            *expr = inner;
        }
        ControlFlow::Continue(())
    }
}

struct Wrap;

impl VisitorMut for Wrap {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { data_type, .. } = expr {
            let name = Expr::value(Value::SingleQuotedString(data_type.to_string()));
            let cast = std::mem::replace(expr, Expr::value(Value::Null));
            *expr = call(NAMED_CAST, vec![cast, name]);
        }
        ControlFlow::Continue(())
    }
}
