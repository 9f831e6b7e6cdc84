//! Names of the columns of a SELECT, as in Flink: an expression without AS is `EXPR$n`, n counting
//! columns from 0, and a name that is there already gets a number.
//!
//! `SELECT a.extra, b.extra, 1 + 1` gives `extra`, `extra0` and `EXPR$2`.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, Expr, Ident, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins,
    VisitMut, VisitorMut,
};

/// The query with distinct names in each of its SELECTs.
pub(crate) fn distinctly_named(mut query: Query) -> Query {
    let _ = query.visit(&mut Namer);
    query
}

struct Namer;

impl VisitorMut for Namer {
    type Break = ();

    /// DISTINCT sorts by its own columns only: what ORDER BY repeats of them is named.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let (SetExpr::Select(select), Some(order)) = (query.body.as_ref(), &mut query.order_by) else {
            return ControlFlow::Continue(());
        };
        if let (Some(_), OrderByKind::Expressions(keys)) = (&select.distinct, &mut order.kind) {
            for key in keys {
                let named = select.projection.iter().find_map(|item| match item {
                    SelectItem::ExprWithAlias { expr, alias } if *expr == key.expr => Some(alias.clone()),
                    _ => None,
                });
                if let Some(alias) = named {
                    key.expr = Expr::Identifier(alias);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut relations = HashSet::new();
        for from in &select.from {
            from_names(from, &mut relations);
        }
        name_apart(&mut select.projection, &relations);
        ControlFlow::Continue(())
    }
}

/// The names of the relations in FROM.
fn from_names(from: &TableWithJoins, names: &mut HashSet<String>) {
    for factor in std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)) {
        let alias = match factor {
            TableFactor::NestedJoin { table_with_joins, alias } => {
                from_names(table_with_joins, names);
                alias
            }
            TableFactor::Table { name, alias, .. } => {
                names.extend(name.0.last().and_then(|part| part.as_ident()).map(|name| name.value.clone()));
                alias
            }
            TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. } => alias,
            _ => continue,
        };
        names.extend(alias.as_ref().map(|alias| alias.name.value.clone()));
    }
}

/// `relations`: whose columns `a.b` may be; else it is a field of column `a`, named `b`.
fn name_apart(items: &mut [SelectItem], relations: &HashSet<String>) {
    let mut taken = HashSet::new();
    for (place, item) in items.iter_mut().enumerate() {
        let (name, is_named, expr) = match item {
            SelectItem::UnnamedExpr(expr) => {
                let is_named = match expr {
                    Expr::Identifier(_) => true,
                    Expr::CompoundIdentifier(names) => {
                        matches!(names.as_slice(), [table, _] if relations.contains(&table.value))
                    }
                    _ => false,
                };
                (name_of(expr).unwrap_or_else(|| format!("EXPR${place}")), is_named, expr)
            }
            SelectItem::ExprWithAlias { expr, alias } => (alias.value.clone(), true, expr),
            _ => continue,
        };
        let mut numbered = (0..=place).map(|number| format!("{name}{number}"));
        let free = match taken.contains(&name) {
            false if is_named => {
                taken.insert(name);
                continue;
            }
            false => name,
            true => numbered.find(|free| !taken.contains(free)).expect("fewer names are taken than tried"),
        };
        taken.insert(free.clone());
        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('`', free) };
    }
}

/// The name that a column has without AS: that of the column or field.
fn name_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(name.value.clone()),
        Expr::CompoundIdentifier(names) => names.last().map(|name| name.value.clone()),
        Expr::CompoundFieldAccess { access_chain, .. } => match access_chain.last() {
            Some(AccessExpr::Dot(Expr::Identifier(name))) => Some(name.value.clone()),
            _ => None,
        },
        Expr::Nested(expr) => name_of(expr),
        _ => None,
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
            ("SELECT t.a, r.a FROM t", "SELECT t.a, r.a AS `a0` FROM t"),
            ("SELECT r.a, u.r.b FROM t AS u", "SELECT r.a AS `a`, u.r.b AS `b` FROM t AS u"),
            ("SELECT a, b AS a", "SELECT a, b AS `a0`"),
            (
                "SELECT DISTINCT a + 1 FROM t ORDER BY a + 1",
                "SELECT DISTINCT a + 1 AS `EXPR$0` FROM t ORDER BY `EXPR$0`",
            ),
            ("SELECT a, CAST(a AS INT)", "SELECT a, CAST(a AS INT) AS `EXPR$1`"),
            (
                "SELECT x FROM (SELECT f(a), f(a)) t",
                "SELECT x FROM (SELECT f(a) AS `EXPR$0`, f(a) AS `EXPR$1`) t",
            ),
        ];
        for (sql, expected) in cases {
            let query = *Parser::new(&GenericDialect {}).try_with_sql(sql).unwrap().parse_query().unwrap();
            assert_eq!(distinctly_named(query).to_string(), expected);
        }
    }
}
