//! The hint `/*+ STATE_TTL('o' = '1 d') */`: how long the rows of a table are kept by the operators of
//! a SELECT.
//!
//! ```text
//! SELECT /*+ STATE_TTL('o' = '1 d') */ … FROM orders AS o JOIN …
//!   ─▶
//! SELECT … FROM TABLE($state_ttl((SELECT * FROM orders), 86400000000)) AS o JOIN …
//! ```
//!
//! The function becomes an alias of a reserved name, to which the rules of the optimizer are
//! indifferent: a [`Hint`]. The operator right above it, filters and projections aside, keeps its
//! state for so long.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{DataFusionError, TableReference};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{LogicalPlan, SubqueryAlias};
use millpond_core::quantity::parse_duration;
use millpond_core::{Error, Location, Result};
use sqlparser::ast::{
    self, BinaryOperator, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, Select, Spanned,
    TableAlias, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::Parser;

use crate::dialect::call;
use crate::plan_error::{carried, location_of, with_nearest};
use crate::rows_of::{only_relation, rows_of};

/// The name of the hint.
pub(crate) const STATE_TTL: &str = "STATE_TTL";

/// The function that stands for it.
pub(crate) const FUNCTION: &str = "$state_ttl";

/// The query with the tables marked that its hints name.
pub(crate) fn with_state_ttl(mut query: Query) -> Result<Query> {
    match query.visit(&mut Rewriter) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(query),
    }
}

struct Rewriter;

impl VisitorMut for Rewriter {
    type Break = Error;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        match mark(select) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error.with_location(location_of(select.select_token.0.span))),
        }
    }
}

fn mark(select: &mut Select) -> Result<()> {
    let mut wanted = Vec::new();
    for hint in &select.optimizer_hints {
        if hint.text.to_uppercase().contains(STATE_TTL) {
            wanted.extend(times(&hint.text)?);
        }
    }
    for (name, ttl) in wanted {
        let mut names = Vec::new();
        let mut found = false;
        for factor in select.from.iter_mut().flat_map(factors) {
            let Some(known) = name_of(factor) else { continue };
            if known.value.eq_ignore_ascii_case(&name) {
                found = true;
                *factor = marked(factor.clone(), known, ttl)?;
            } else {
                names.push(known.value);
            }
        }
        if !found {
            let error =
                Error::invalid(format!("{STATE_TTL} names {name:?}, which is no table of its SELECT"));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(with_nearest(error, &name, &names));
        }
    }
    Ok(())
}

/// The names and times of `STATE_TTL('o' = '1 d', 'c' = '2 h'), …`.
fn times(text: &str) -> Result<Vec<(String, i64)>> {
    let malformed = || {
        Error::invalid(format!("the hint {} is not understood", text.trim()))
            .with_hint("write /*+ STATE_TTL('table or alias' = '1 d', …) */")
    };
    let hints = Parser::new(&GenericDialect)
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_comma_separated(Parser::parse_expr))
        .map_err(|_| malformed())?;
    let mut times = Vec::new();
    for hint in hints {
        let ast::Expr::Function(hint) = hint else { continue };
        if !hint.name.to_string().eq_ignore_ascii_case(STATE_TTL) {
            continue;
        }
        let FunctionArguments::List(pairs) = hint.args else { return Err(malformed()) };
        if pairs.args.is_empty() {
            return Err(malformed());
        }
        for pair in pairs.args {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::BinaryOp { left, op, right })) = pair
            else {
                return Err(malformed());
            };
            match (text_of(&left), op, text_of(&right)) {
                (Some(name), BinaryOperator::Eq, Some(time)) => times.push((name, parse_duration(&time)?)),
                _ => return Err(malformed()),
            }
        }
    }
    Ok(times)
}

fn text_of(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Identifier(name) => Some(name.value.clone()),
        ast::Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(text.clone()),
            Value::Number(number, _) => Some(number.to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The tables of a FROM, joined ones too.
fn factors(from: &mut TableWithJoins) -> Vec<&mut TableFactor> {
    let relations = std::iter::once(&mut from.relation).chain(from.joins.iter_mut().map(|j| &mut j.relation));
    let mut all = Vec::new();
    for relation in relations {
        match relation {
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                all.extend(factors(table_with_joins));
            }
            other => all.push(other),
        }
    }
    all
}

/// By what the SELECT calls a table that can be marked.
fn name_of(factor: &TableFactor) -> Option<Ident> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { lateral: false, alias: Some(alias), .. }
        | TableFactor::TableFunction { alias: Some(alias), .. } => Some(alias.name.clone()),
        TableFactor::Table { name, alias: None, args: None, .. } => {
            name.0.last().and_then(|part| part.as_ident()).cloned()
        }
        _ => None,
    }
}

fn marked(mut factor: TableFactor, name: Ident, ttl: i64) -> Result<TableFactor> {
    let span = factor.span();
    let alias = match &mut factor {
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::TableFunction { alias, .. } => alias.take(),
        _ => None,
    };
    let alias = alias.unwrap_or(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
    let from = vec![TableWithJoins { relation: factor, joins: Vec::new() }];
    let rows = ast::Expr::Subquery(Box::new(rows_of(from, None)?));
    let time = ast::Expr::Value(Value::Number(ttl.to_string(), false).with_span(span));
    Ok(TableFactor::TableFunction { expr: call(FUNCTION, span, vec![rows, time]), alias: Some(alias) })
}

/// Plans the function that stands for the hint.
pub(crate) fn planned(
    function: &ast::Function,
    alias: Option<TableAlias>,
    at: Option<Location>,
    context: &mut dyn RelationPlannerContext,
) -> Result<RelationPlanning, DataFusionError> {
    let lost = || carried(Error::internal("a hint that was not rewritten"));
    let FunctionArguments::List(list) = &function.args else { return Err(lost()) };
    let [
        FunctionArg::Unnamed(FunctionArgExpr::Expr(ast::Expr::Subquery(rows))),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(time)),
    ] = list.args.as_slice()
    else {
        return Err(lost());
    };
    let ttl: i64 = text_of(time).and_then(|time| time.parse().ok()).ok_or_else(lost)?;
    let input = context.plan(only_relation(rows).ok_or_else(lost)?)?;
    let table = alias.as_ref().map(|alias| alias.name.value.clone()).unwrap_or_default();
    let at = at.map_or_else(|| ":".to_owned(), |at| format!("{}:{}", at.line, at.column));
    let name = format!("{FUNCTION}:{ttl}:{table}:{at}");
    let plan = SubqueryAlias::try_new(Arc::new(input), TableReference::bare(name))?;
    let plan = LogicalPlan::SubqueryAlias(plan);
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
}

/// What a hint says of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hint {
    /// What it calls the table.
    pub(crate) table: String,
    /// How long the rows are kept, in microseconds; `None`: for ever.
    pub(crate) ttl: Option<i64>,
    /// Line and column.
    at: Option<(u64, u64)>,
}

impl Hint {
    /// The hint for which an alias stands, if it is such a one.
    pub(crate) fn of(alias: &SubqueryAlias) -> Option<Self> {
        let text = alias.alias.table().strip_prefix(FUNCTION)?.strip_prefix(':')?;
        let (ttl, rest) = text.split_once(':')?;
        let mut parts = rest.rsplitn(3, ':');
        let (column, line, table) = (parts.next()?, parts.next()?, parts.next()?);
        let ttl: i64 = ttl.parse().ok()?;
        let at = line.parse().ok().zip(column.parse().ok());
        Some(Self { table: table.to_owned(), ttl: (ttl > 0).then_some(ttl), at })
    }

    /// Where the table stands.
    pub(crate) fn location(&self) -> Option<Location> {
        self.at.map(|(line, column)| Location { line, column })
    }
}
