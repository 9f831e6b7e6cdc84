//! Names of the columns of a SELECT: a name that is there already gets a number, as in Flink.
//!
//! `SELECT a.extra, b.extra` gives `extra` and `extra0`. Without it the planner would refuse two
//! equal expressions and give two columns of one name.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Ident, Query, Select, SelectItem, VisitMut, VisitorMut};

/// The query with distinct names in each of its SELECTs.
pub(crate) fn distinctly_named(mut query: Query) -> Query {
    let _ = query.visit(&mut Namer);
    query
}

struct Namer;

impl VisitorMut for Namer {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        name_apart(&mut select.projection);
        ControlFlow::Continue(())
    }
}

fn name_apart(items: &mut [SelectItem]) {
    let mut taken = HashSet::new();
    for (place, item) in items.iter_mut().enumerate() {
        let (name, expr) = match item {
            SelectItem::UnnamedExpr(expr) => (name_of(expr), expr),
            SelectItem::ExprWithAlias { expr, alias } => (alias.value.clone(), expr),
            _ => continue,
        };
        if taken.insert(name.clone()) {
            continue;
        }
        let mut numbered = (0..=place).map(|number| format!("{name}{number}"));
        let free = numbered.find(|free| !taken.contains(free)).expect("fewer names are taken than tried");
        taken.insert(free.clone());
        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('`', free) };
    }
}

/// The name that a column has without AS: that of the column or field. Of other expressions, their
/// text tells whether two are equal.
fn name_of(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(name) => name.value.clone(),
        Expr::CompoundIdentifier(names) => names.last().map_or_else(String::new, |name| name.value.clone()),
        // A cast keeps the name of what it casts.
        Expr::Cast { expr, .. } | Expr::Nested(expr) => name_of(expr),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlparser::dialect::GenericDialect;
    use sqlparser::parser::Parser;

    #[test]
    fn names_are_numbered() {
        let cases = [
            ("SELECT a, b", "SELECT a, b"),
            ("SELECT a, t.a, a", "SELECT a, t.a AS `a0`, a AS `a1`"),
            ("SELECT a, b AS a", "SELECT a, b AS `a0`"),
            ("SELECT a, CAST(a AS INT)", "SELECT a, CAST(a AS INT) AS `a0`"),
            ("SELECT x FROM (SELECT f(a), f(a)) t", "SELECT x FROM (SELECT f(a), f(a) AS `f(a)0`) t"),
        ];
        for (sql, expected) in cases {
            let query = *Parser::new(&GenericDialect {}).try_with_sql(sql).unwrap().parse_query().unwrap();
            assert_eq!(distinctly_named(query).to_string(), expected);
        }
    }
}
