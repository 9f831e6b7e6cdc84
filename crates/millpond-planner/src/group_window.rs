//! Group windows: `GROUP BY TUMBLE(ts, INTERVAL '1' HOUR)` becomes a window table function.
//!
//! ```text
//! SELECT k, TUMBLE_END(ts, i), SUM(v) FROM t WHERE v > 0 GROUP BY TUMBLE(ts, i), k
//!   ─▶
//! SELECT k, $window_end, SUM(v)
//! FROM TABLE($group_TUMBLE((SELECT * FROM t WHERE v > 0), DESCRIPTOR(ts), i))
//! GROUP BY $window_start, $window_end, $window_time, k
//! ```
//!
//! The keys beside a SESSION become its PARTITION BY. The rewriting is done on the text's tree, so
//! that a column keeps its qualifier and a mistake its place.

use std::ops::ControlFlow;

use millpond_core::{Error, Result};
use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, OrderByKind, Query,
    Select, SelectItem, SetExpr, Spanned, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
    visit_expressions_mut,
};

use crate::dialect::{TABLE_ARGUMENT, call};
use crate::plan_error::{location_of, unsupported};
use crate::rows_of::rows_of;
use crate::window_relation::{GROUP_WINDOW, GROUP_WINDOW_COLUMNS};

/// The query with window table functions in place of its group windows.
pub(crate) fn with_window_functions(mut query: Query) -> Result<Query> {
    match query.visit(&mut Rewriter) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(query),
    }
}

struct Rewriter;

impl VisitorMut for Rewriter {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        // ORDER BY belongs to the query, its SELECT comes next.
        let SetExpr::Select(select) = query.body.as_ref() else { return ControlFlow::Continue(()) };
        let Some(window) = flow(GroupWindow::of(select))? else { return ControlFlow::Continue(()) };
        if let Some(order_by) = &mut query.order_by
            && let OrderByKind::Expressions(keys) = &mut order_by.kind
        {
            for key in keys {
                window.replace_auxiliaries(&mut key.expr);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        match flow(GroupWindow::of(select))? {
            Some(window) => flow(window.rewrite(select)),
            None => ControlFlow::Continue(()),
        }
    }

    /// What is still an auxiliary here belongs to no group window.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let Some((window, _)) = auxiliary(function) else { return ControlFlow::Continue(()) };
        ControlFlow::Break(
            Error::invalid(format!("{function} is not of the window in GROUP BY"))
                .with_hint(format!("GROUP BY {window}(…) with the same arguments"))
                .with_location(location_of(function.span())),
        )
    }
}

fn flow<T>(result: Result<T>) -> ControlFlow<Error, T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(error),
    }
}

/// The window in a GROUP BY.
struct GroupWindow {
    /// `TUMBLE`, `HOP` or `SESSION`.
    name: String,
    function: Function,
    /// Its arguments: a time column and lengths.
    arguments: Vec<Expr>,
}

/// The group window that a function is.
fn window_name(function: &Function) -> Option<String> {
    let name = function.name.to_string().to_uppercase();
    ["TUMBLE", "HOP", "SESSION"].contains(&name.as_str()).then_some(name)
}

/// The group window that an auxiliary such as TUMBLE_END is of, and the part after `_`.
fn auxiliary(function: &Function) -> Option<(String, String)> {
    let name = function.name.to_string().to_uppercase();
    let (window, part) = name.split_once('_')?;
    let known = ["TUMBLE", "HOP", "SESSION"].contains(&window)
        && ["START", "END", "ROWTIME", "PROCTIME"].contains(&part);
    known.then(|| (window.to_owned(), part.to_owned()))
}

fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let argument = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(argument).collect()
}

impl GroupWindow {
    /// The only window of a SELECT's GROUP BY, if there is one.
    fn of(select: &Select) -> Result<Option<Self>> {
        let GroupByExpr::Expressions(exprs, _) = &select.group_by else { return Ok(None) };
        let sets = exprs.iter().flat_map(|expr| match expr {
            Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) => {
                sets.iter().flatten().collect::<Vec<_>>()
            }
            other => vec![other],
        });
        let mut found: Option<Self> = None;
        for expr in sets {
            let Expr::Function(function) = expr else { continue };
            let Some(name) = window_name(function) else { continue };
            let at = location_of(function.span());
            let arguments = arguments(function).ok_or_else(|| {
                Error::invalid(format!("{name} takes a time column and intervals"))
                    .with_hint(format!("{name}(ts, INTERVAL '1' HOUR)"))
                    .with_location(at)
            })?;
            match &found {
                None => found = Some(Self { name, function: function.clone(), arguments }),
                Some(known) if known.name == name && known.arguments == arguments => {}
                Some(known) => {
                    let (one, other) = (&known.function, function);
                    return Err(Error::invalid(format!("GROUP BY has two windows, {one} and {other}"))
                        .with_hint("aggregate the results of one window by the other")
                        .with_location(at));
                }
            }
        }
        Ok(found)
    }

    fn rewrite(&self, select: &mut Select) -> Result<()> {
        let source = self.source(select)?;
        for item in &mut select.projection {
            let (expr, name) = match item {
                SelectItem::UnnamedExpr(expr) => (expr.clone(), None),
                SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), Some(alias.clone())),
                _ => continue,
            };
            let mut replaced = expr.clone();
            if self.replace_auxiliaries(&mut replaced) {
                let alias = name.unwrap_or_else(|| Ident::with_quote('`', expr.to_string()));
                *item = SelectItem::ExprWithAlias { expr: replaced, alias };
            }
        }
        for expr in select.having.iter_mut().chain(&mut select.qualify) {
            self.replace_auxiliaries(expr);
        }
        if let GroupByExpr::Expressions(exprs, _) = &mut select.group_by {
            for expr in exprs.iter_mut() {
                if let Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) = expr {
                    sets.iter_mut().for_each(|set| self.replace_window(set));
                }
            }
            self.replace_window(exprs);
        }
        select.from = vec![TableWithJoins { relation: source, joins: Vec::new() }];
        select.selection = None;
        Ok(())
    }

    /// The window table function over FROM and WHERE.
    fn source(&self, select: &Select) -> Result<TableFactor> {
        let span = self.function.span();
        let mut data =
            vec![Expr::Subquery(Box::new(rows_of(select.from.clone(), select.selection.clone())?))];
        if self.name == "SESSION" {
            data.extend(self.partition(select)?);
        }
        let (time, lengths) = self.arguments.split_first().ok_or_else(|| {
            Error::invalid(format!("{} lacks its time column", self.name)).with_location(location_of(span))
        })?;
        let time = call("DESCRIPTOR", time.span(), vec![time.clone()]);
        let arguments = [call(TABLE_ARGUMENT, span, data), time].into_iter().chain(lengths.iter().cloned());
        let function = call(&format!("{GROUP_WINDOW}{}", self.name), span, arguments.collect());
        Ok(TableFactor::TableFunction { expr: function, alias: None })
    }

    /// The keys beside the window; a number or a name may stand for a column of the SELECT.
    fn partition(&self, select: &Select) -> Result<Vec<Expr>> {
        let GroupByExpr::Expressions(exprs, _) = &select.group_by else { return Ok(Vec::new()) };
        let mut keys = Vec::new();
        for expr in exprs {
            match expr {
                Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_) => {
                    let at = location_of(self.function.span());
                    return Err(unsupported("SESSION with GROUPING SETS").with_location(at));
                }
                Expr::Function(function) if window_name(function).is_some() => {}
                other => keys.push(selected(select, other).unwrap_or_else(|| other.clone())),
            }
        }
        Ok(keys)
    }

    /// Puts the window's columns in its place.
    fn replace_window(&self, exprs: &mut Vec<Expr>) {
        let is_window = |expr: &Expr| matches!(expr, Expr::Function(f) if window_name(f).is_some());
        if let Some(place) = exprs.iter().position(is_window) {
            exprs.retain(|expr| !is_window(expr));
            exprs.splice(place..place, GROUP_WINDOW_COLUMNS.map(column));
        }
    }

    /// Puts the window's columns in the place of its auxiliaries; whether there were any.
    fn replace_auxiliaries(&self, expr: &mut Expr) -> bool {
        let mut replaced = false;
        let _: ControlFlow<()> = visit_expressions_mut(expr, |expr| {
            if let Expr::Function(function) = expr
                && let Some((window, part)) = auxiliary(function)
                && window == self.name
                && arguments(function).as_ref() == Some(&self.arguments)
            {
                *expr = match part.as_str() {
                    "START" => column(GROUP_WINDOW_COLUMNS[0]),
                    "END" => column(GROUP_WINDOW_COLUMNS[1]),
                    "ROWTIME" => column(GROUP_WINDOW_COLUMNS[2]),
                    _ => call("PROCTIME", function.span(), Vec::new()),
                };
                replaced = true;
            }
            ControlFlow::Continue(())
        });
        replaced
    }
}

fn column(name: &str) -> Expr {
    Expr::Identifier(Ident::with_quote('`', name))
}

/// The expression of the SELECT that a key names by its number or alias.
fn selected(select: &Select, key: &Expr) -> Option<Expr> {
    match key {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => {
                let place = number.to_string().parse::<usize>().ok()?.checked_sub(1)?;
                match select.projection.get(place)? {
                    SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                        Some(expr.clone())
                    }
                    _ => None,
                }
            }
            _ => None,
        },
        Expr::Identifier(name) => select.projection.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if alias.value == name.value => Some(expr.clone()),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sqlparser::dialect::GenericDialect;
    use sqlparser::parser::Parser;

    use super::*;

    fn rewritten(sql: &str) -> String {
        let query = *Parser::new(&GenericDialect).try_with_sql(sql).unwrap().parse_query().unwrap();
        match with_window_functions(query) {
            Ok(query) => query.to_string().replace('`', ""),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_group_window_becomes_a_table_function() {
        let sql = "SELECT k, TUMBLE_END(ts, i) AS e FROM t WHERE v > 0 GROUP BY TUMBLE(ts, i), k \
                   HAVING TUMBLE_START(ts, i) > x ORDER BY TUMBLE_ROWTIME(ts, i)";
        let expected = "SELECT k, $window_end AS e \
                        FROM TABLE($group_TUMBLE(__table_arg((SELECT * FROM t WHERE v > 0)), DESCRIPTOR(ts), i)) \
                        GROUP BY $window_start, $window_end, $window_time, k \
                        HAVING $window_start > x ORDER BY $window_time";
        assert_eq!(rewritten(sql), expected);
    }

    #[test]
    fn the_keys_of_a_session_are_its_partition() {
        let sql = "SELECT a + 1 AS x, b FROM t GROUP BY x, SESSION(ts, i), 2, c";
        let source = "TABLE($group_SESSION(__table_arg((SELECT * FROM t), a + 1, b, c), DESCRIPTOR(ts), i))";
        assert!(rewritten(sql).contains(source), "{}", rewritten(sql));
    }

    #[test]
    fn other_queries_stay_and_strangers_are_refused() {
        for sql in ["SELECT a FROM t GROUP BY a", "SELECT TUMBLE FROM t", "SELECT f(TUMBLE_X(ts, i)) FROM t"]
        {
            assert_eq!(rewritten(sql), sql);
        }
        for sql in [
            "SELECT TUMBLE_END(ts, j) FROM t GROUP BY TUMBLE(ts, i)",
            "SELECT HOP_END(ts, i) FROM t GROUP BY TUMBLE(ts, i)",
            "SELECT TUMBLE_END(ts, i) FROM t GROUP BY a",
        ] {
            assert!(rewritten(sql).contains("is not of the window in GROUP BY"), "{}", rewritten(sql));
        }
        let two = "SELECT a FROM t GROUP BY TUMBLE(ts, i), TUMBLE(ts, j)";
        assert!(rewritten(two).contains("two windows"), "{}", rewritten(two));
    }
}
