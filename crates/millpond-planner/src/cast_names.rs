//! Casts that must show in the names of what is computed of them.
//!
//! The planner tells aggregates, window functions and grouping expressions apart by names in which
//! casts do not show: `MAX(a)` and `MAX(CAST(a AS STRING))` would be one column. Where a SELECT has
//! two such expressions, its casts are wrapped in a call that passes their value on and bears the
//! type in its name.

use std::collections::HashMap;

use sqlparser::ast::{Expr, GroupByExpr, Ident, OrderByKind, Query, Select, SetExpr, Value};

use crate::ast_walk::{each_expr, each_query};
use crate::sugar::call;

/// The function that passes on its first argument.
pub(crate) const NAMED_CAST: &str = "named_cast";

/// The query, with casts that show in names where they must.
pub(crate) fn casts_named(mut query: Query) -> Query {
    each_query(&mut query, &mut |query| {
        let order = match query.order_by.as_mut().map(|order| &mut order.kind) {
            Some(OrderByKind::Expressions(keys)) => Some(keys),
            Some(OrderByKind::All(_)) | None => None,
        };
        if let (SetExpr::Select(select), Some(keys)) = (query.body.as_mut(), order)
            && collide(select)
        {
            each_expr(keys, &mut wrap);
        }
        name_in(&mut query.body);
    });
    query
}

fn name_in(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) if collide(select) => {
            let Select { projection, group_by, having, qualify, .. } = select.as_mut();
            each_expr(projection, &mut wrap);
            each_expr(group_by, &mut wrap);
            each_expr(having, &mut wrap);
            each_expr(qualify, &mut wrap);
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
    let mut add_calls = |expr: &mut Expr| {
        if matches!(expr, Expr::Function(_)) {
            named.add(expr);
        }
    };
    each_expr(&mut select.projection.clone(), &mut add_calls);
    each_expr(&mut select.having.clone(), &mut add_calls);
    each_expr(&mut select.qualify.clone(), &mut add_calls);
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
        each_expr(&mut plain, &mut unqualify);
        let written = plain.to_string().to_lowercase();
        each_expr(&mut plain, &mut drop_cast);
        let known = self.by_name.entry(plain.to_string().to_lowercase()).or_insert_with(|| written.clone());
        self.collide |= *known != written;
    }
}

/// `t.a` as `a`.
fn unqualify(expr: &mut Expr) {
    if let Expr::CompoundIdentifier(names) = expr
        && let Some(last) = names.pop()
    {
        *expr = Expr::Identifier(Ident::new(last.value));
    }
}

fn drop_cast(expr: &mut Expr) {
    if let Expr::Cast { expr: inner, .. } = expr {
        let inner = std::mem::replace(inner.as_mut(), Expr::value(Value::Null));
        *expr = inner;
    }
}

fn wrap(expr: &mut Expr) {
    if let Expr::Cast { data_type, .. } = expr {
        let name = Expr::value(Value::SingleQuotedString(data_type.to_string()));
        let cast = std::mem::replace(expr, Expr::value(Value::Null));
        *expr = call(NAMED_CAST, vec![cast, name]);
    }
}
