//! Clauses of a query: those that would be answered wrongly or passed over are refused where they
//! stand, and an error about a clause gets the clause's place in the text.

use std::ops::ControlFlow;

use millpond_core::{Error, Location, Result};
use sqlparser::ast::{
    Expr, GroupByExpr, JoinOperator, LimitClause, ObjectName, Query, Select, SetExpr, SetOperator,
    SetQuantifier, Spanned, TableFactor, Visit, Visitor,
};
use sqlparser::tokenizer::Span;

use crate::plan_error::location_of;
use crate::state_ttl::STATE_TTL;

/// Refuses clauses that no part of the planner knows.
pub(crate) fn refuse_unknown_clauses(query: &Query) -> Result<()> {
    match query.visit(&mut Refusal) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Refusal;

fn refused(what: &str, place: Span, hint: &str) -> ControlFlow<Error> {
    let error = Error::invalid(format!("{what} is not supported")).with_hint(hint);
    ControlFlow::Break(error.with_location(location_of(place)))
}

impl Visitor for Refusal {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        if let Some(lock) = query.locks.first() {
            let place = lock.of.as_ref().map_or_else(|| query.span(), Spanned::span);
            return refused("FOR UPDATE or FOR SHARE", place, "leave it out: a query locks nothing");
        }
        if let Some(with) = &query.with
            && with.recursive
        {
            let hint = "join the table with itself, once per level";
            return refused("WITH RECURSIVE", with.with_token.0.span, hint);
        }
        if query.for_clause.is_some() || query.format_clause.is_some() || query.settings.is_some() {
            return refused("FOR, FORMAT or SETTINGS behind a query", query.span(), "leave it out");
        }
        if let Some(fetch) = &query.fetch
            && (fetch.with_ties || fetch.percent)
        {
            let place = fetch.quantity.as_ref().map_or_else(|| query.span(), Spanned::span);
            return refused("FETCH … WITH TIES or PERCENT", place, "use FETCH FIRST n ROWS ONLY, or RANK()");
        }
        if let Some(LimitClause::LimitOffset { limit_by, .. }) = &query.limit_clause
            && let Some(by) = limit_by.first()
        {
            let hint = "use ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) in a subquery, and WHERE on it";
            return refused("LIMIT … BY", by.span(), hint);
        }
        set_operations(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        let place = select.select_token.0.span;
        let hints = select.optimizer_hints.iter().flat_map(|hint| hint_names(&hint.text));
        for name in hints {
            let known = name.to_uppercase();
            if !PLAN_HINTS.contains(&known.as_str()) && !KNOWN_HINTS.contains(&known.as_str()) {
                return unknown_hint(&name, place);
            }
        }
        if select.top.is_some() {
            return refused("TOP", place, "use LIMIT at the end of the query");
        }
        if let Some(into) = &select.into {
            return refused("SELECT … INTO", into.name.span(), "use INSERT INTO … SELECT …");
        }
        if let Some(view) = select.lateral_views.first() {
            return refused(
                "LATERAL VIEW",
                view.lateral_view.span(),
                "use CROSS JOIN UNNEST(array) AS t (x)",
            );
        }
        if let Some(condition) = &select.prewhere {
            return refused("PREWHERE", condition.span(), "use WHERE");
        }
        if !select.connect_by.is_empty() {
            return refused("CONNECT BY", place, "join the table with itself, once per level");
        }
        let sorts = select.sort_by.iter().map(|sort| sort.expr.span());
        let mut places =
            select.cluster_by.iter().chain(&select.distribute_by).map(Spanned::span).chain(sorts);
        if let Some(place) = places.next() {
            let hint = "leave it out: rows are spread by the keys of what follows; use ORDER BY at the end";
            return refused("CLUSTER BY, DISTRIBUTE BY or SORT BY", place, hint);
        }
        joins(select)
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { name, sample: Some(_), .. } => {
                refused("TABLESAMPLE", name.span(), "filter by a hash or by RAND(): WHERE RAND() < 0.1")
            }
            TableFactor::Derived { subquery, sample: Some(_), .. } => {
                refused("TABLESAMPLE", subquery.span(), "filter by RAND(): WHERE RAND() < 0.1")
            }
            TableFactor::Pivot { table, .. } => {
                let hint = "use aggregates with FILTER: SUM(v) FILTER (WHERE k = 'a') AS a";
                refused("PIVOT", table.span(), hint)
            }
            TableFactor::Unpivot { table, .. } => {
                refused("UNPIVOT", table.span(), "use UNION ALL of one SELECT per column")
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Hints of Flink that choose among plans with the same answer; there is one plan here.
const PLAN_HINTS: &[&str] =
    &["BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE", "NEST_LOOP", "LOOKUP", "MULTI_JOIN"];

/// Hints that the planner follows.
const KNOWN_HINTS: &[&str] = &[STATE_TTL];

/// The names of the hints in one comment: `A('x' = '1'), B(t)`.
fn hint_names(text: &str) -> Vec<String> {
    let (mut names, mut name, mut depth, mut quoted) = (Vec::new(), String::new(), 0_usize, false);
    for letter in text.chars() {
        match letter {
            '\'' | '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            letter if letter.is_alphanumeric() || letter == '_' => name.push(letter),
            _ => {}
        }
        let is_over = depth > 0 || letter == ',' || letter.is_whitespace();
        if is_over && !name.is_empty() {
            names.push(std::mem::take(&mut name));
        }
    }
    names.extend((!name.is_empty()).then_some(name));
    names
}

/// A hint without effect would let the user wait for it.
fn unknown_hint(name: &str, place: Span) -> ControlFlow<Error> {
    let what = format!("the hint {}", name.to_uppercase());
    match name.to_uppercase().as_str() {
        "OPTIONS" => {
            refused(&what, place, "give the options in CREATE TABLE … WITH (…), or CREATE TABLE … LIKE")
        }
        "UID" => refused(&what, place, "uids are derived from names; SET 'job.name' names the job"),
        _ => refused(&what, place, "leave it out"),
    }
}

/// INTERSECT ALL and EXCEPT ALL would be answered without regard to how often a row is there.
fn set_operations(body: &SetExpr) -> ControlFlow<Error> {
    let SetExpr::SetOperation { op, set_quantifier, left, right } = body else {
        return ControlFlow::Continue(());
    };
    let name = match op {
        SetOperator::Union => None,
        SetOperator::Intersect => Some("INTERSECT"),
        SetOperator::Except | SetOperator::Minus => Some("EXCEPT"),
    };
    if let (Some(name), SetQuantifier::All | SetQuantifier::AllByName) = (name, set_quantifier) {
        let hint =
            format!("use {name}, which gives each row once, or count the rows of both sides by GROUP BY");
        return refused(&format!("{name} ALL"), right.span(), &hint);
    }
    set_operations(left)?;
    set_operations(right)
}

fn joins(select: &Select) -> ControlFlow<Error> {
    for join in select.from.iter().flat_map(|from| &from.joins) {
        let place = || join.relation.span();
        match &join.join_operator {
            JoinOperator::AsOf { .. } => {
                return refused("ASOF JOIN", place(), "use JOIN t FOR SYSTEM_TIME AS OF time");
            }
            JoinOperator::CrossApply | JoinOperator::OuterApply => {
                return refused("APPLY", place(), "use CROSS JOIN LATERAL or LEFT JOIN LATERAL … ON TRUE");
            }
            JoinOperator::ArrayJoin | JoinOperator::LeftArrayJoin | JoinOperator::InnerArrayJoin => {
                return refused("ARRAY JOIN", place(), "use CROSS JOIN UNNEST(array) AS t (x)");
            }
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

/// The error with the place of the clause or function that it begins with, if it has no place yet.
pub(crate) fn located(error: Error, query: &Query) -> Error {
    if error.location().is_some() {
        return error;
    }
    let mut search = Search { message: error.message().to_uppercase(), depth: 0 };
    let place = match query.visit(&mut search) {
        ControlFlow::Break(place) => location_of(place),
        ControlFlow::Continue(()) => None,
    };
    let found: Option<Location> = place;
    error.with_location(found)
}

struct Search {
    message: String,
    depth: usize,
}

impl Search {
    fn is_about(&self, clause: &str) -> bool {
        let rest = self.message.strip_prefix(clause);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    }

    fn found_if(&self, clause: &str, place: Span) -> ControlFlow<Span> {
        if self.is_about(clause) { ControlFlow::Break(place) } else { ControlFlow::Continue(()) }
    }
}

impl Visitor for Search {
    type Break = Span;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Span> {
        self.depth += 1;
        match &query.limit_clause {
            Some(LimitClause::LimitOffset { limit: Some(limit), .. }) if self.depth > 1 => {
                self.found_if("LIMIT", limit.span())?;
            }
            Some(_) | None => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Span> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Span> {
        let groups = match &select.group_by {
            GroupByExpr::Expressions(groups, modifiers) if !groups.is_empty() || !modifiers.is_empty() => {
                groups.first().map(Spanned::span)
            }
            GroupByExpr::Expressions(..) | GroupByExpr::All(_) => None,
        };
        if let Some(place) = groups {
            self.found_if("GROUPING SETS", place)?;
        }
        if select.from.is_empty() {
            self.found_if("A QUERY WITHOUT A TABLE", select.select_token.0.span)?;
        }
        if select.distinct.is_some() {
            self.found_if("DISTINCT ON", select.select_token.0.span)?;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Span> {
        match factor {
            TableFactor::UNNEST { .. } => self.found_if("UNNEST", factor.span()),
            TableFactor::MatchRecognize { table, .. } => self.found_if("MATCH_RECOGNIZE", table.span()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Span> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        if function.over.is_some() {
            self.found_if("OVER", function.name.span())?;
        }
        let name = last_name(&function.name);
        for prefix in ["", "AGGREGATE FUNCTION ", "ORDER BY IN "] {
            self.found_if(&format!("{prefix}{name}"), function.name.span())?;
        }
        ControlFlow::Continue(())
    }
}

fn last_name(name: &ObjectName) -> String {
    name.0.last().map_or_else(String::new, ToString::to_string).to_uppercase()
}
