//! Syntax that is short for something else, written out before the planner sees it.
//!
//! | written | planned as |
//! |---|---|
//! | `EXTRACT(u FROM t)`, `FLOOR(t TO u)`, `CEIL(t TO u)`, `TIMESTAMPADD(u, n, t)`, `TIMESTAMPDIFF(u, a, b)` | a call with the unit as a text |
//! | `POSITION(a IN b)`, `SUBSTRING(a FROM b FOR c)`, `TRIM(BOTH a FROM b)`, `OVERLAY(a PLACING b FROM c)` | a call |
//! | `a SIMILAR TO b`, `a LIKE b ESCAPE c` | a call |
//! | `a[i]`, `ARRAY[a, b]` | `ITEM(a, i)`, `MAKE_ARRAY(a, b)` |
//! | `-a` | `NEGATE(a)`, which fails where it would wrap |
//! | `IF(a, b, c)`, `IFNULL(a, b)` | `CASE`, `COALESCE` |
//! | `(a, b) = (c, d)`, `(a, b) IN …` | comparisons of fields ([`crate::row_values`]) |
//! | `1e3`, `U&'\00e4'`, `TIMESTAMP '…'` | literals, checked |
//! | `INTERVAL '1 02:03:04.5' DAY TO SECOND` | an interval of days and seconds |
//! | an unnamed column that is an expression | `EXPR$n`, as in Flink |

use std::ops::ControlFlow;

use millpond_core::{Error, Result};
use sqlparser::ast::{
    self, AccessExpr, CaseWhen, CastKind, CeilFloorKind, DateTimeField, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, Interval, ObjectName, Query, Subscript,
    TrimWhereField, UnaryOperator, Value, ValueWithSpan, VisitMut, VisitorMut,
};
use sqlparser::tokenizer::Span;

use crate::cast_names::casts_named;
use crate::doubles::values_with_doubles;
use crate::interval_text::interval_text;
use crate::plan_error::location_of;
use crate::row_values::{by_fields, condition_by_fields};
use crate::scalar_function::is_time_text;
use crate::select_names::distinctly_named;

/// The query, written out. `has_zone`: the session's time zone is not UTC.
pub(crate) fn written_out(query: Query, has_zone: bool) -> Result<Query> {
    let mut query = casts_named(distinctly_named(query));
    values_with_doubles(&mut query);
    match query.visit(&mut Sugar { has_zone }) {
        ControlFlow::Continue(()) => Ok(query),
        ControlFlow::Break(error) => Err(*error),
    }
}

/// The expression, written out.
pub(crate) fn written_out_expr(mut expr: Expr, has_zone: bool) -> Result<Expr> {
    match expr.visit(&mut Sugar { has_zone }) {
        ControlFlow::Continue(()) => Ok(expr),
        ControlFlow::Break(error) => Err(*error),
    }
}

struct Sugar {
    has_zone: bool,
}

impl VisitorMut for Sugar {
    type Break = Box<Error>;

    /// `GROUP BY ()` is one group of all rows.
    fn pre_visit_select(&mut self, select: &mut ast::Select) -> ControlFlow<Box<Error>> {
        if let ast::GroupByExpr::Expressions(keys, _) = &mut select.group_by {
            let is_empty = |key: &Expr| matches!(key, Expr::Tuple(none) if none.is_empty());
            if !keys.is_empty() && keys.iter().all(is_empty) {
                *keys = vec![Expr::GroupingSets(vec![Vec::new()])];
            } else {
                keys.retain(|key| !is_empty(key));
            }
        }
        by_result(select.selection.as_mut().map_or(Ok(()), condition_by_fields))
    }

    /// Units are names to the parser, and would be columns to the planner: they go first.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Box<Error>> {
        if let Expr::Function(function) = expr {
            name_unit(function);
        }
        by_result(by_fields(expr))
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Box<Error>> {
        match self.written_out(std::mem::replace(expr, Expr::value(Value::Null))) {
            Ok(plain) => {
                *expr = plain;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(Box::new(error)),
        }
    }
}

fn by_result(result: Result<()>) -> ControlFlow<Box<Error>> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(Box::new(error)),
    }
}

impl Sugar {
    fn written_out(&self, expr: Expr) -> Result<Expr> {
        Ok(match expr {
            Expr::Extract { field, expr, .. } => call("extract", vec![unit(&field), *expr]),
            Expr::Floor { expr, field } => rounded("floor", *expr, field),
            Expr::Ceil { expr, field } => rounded("ceil", *expr, field),
            Expr::Position { expr, r#in } => call("locate", vec![*expr, *r#in]),
            Expr::Substring { expr, substring_from, substring_for, .. } => {
                let from = substring_from.map_or_else(|| number("1"), |from| *from);
                call(
                    "substring",
                    [*expr, from].into_iter().chain(substring_for.map(|length| *length)).collect(),
                )
            }
            Expr::Trim { expr, trim_where, trim_what, trim_characters } => {
                let name = match trim_where {
                    None | Some(TrimWhereField::Both) => "btrim",
                    Some(TrimWhereField::Leading) => "ltrim",
                    Some(TrimWhereField::Trailing) => "rtrim",
                };
                let what =
                    trim_what.map(|what| *what).into_iter().chain(trim_characters.into_iter().flatten());
                call(name, std::iter::once(*expr).chain(what).collect())
            }
            Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let arguments = [*expr, *overlay_what, *overlay_from].into_iter();
                call("overlay", arguments.chain(overlay_for.map(|length| *length)).collect())
            }
            Expr::SimilarTo { negated, expr, pattern, escape_char } => {
                negated_if(negated, matched("similar_to", *expr, *pattern, escape_char))
            }
            Expr::Like { negated, any: false, expr, pattern, escape_char }
                if escape_char.is_some() || !is_plain_pattern(&pattern) =>
            {
                negated_if(negated, matched("like", *expr, *pattern, escape_char))
            }
            // A call sees the columns of outer queries; the planner's own arrays do not.
            Expr::Array(array) => call("make_array", array.elem),
            Expr::Tuple(fields) => row(fields.into_iter()),
            Expr::CompoundFieldAccess { root, access_chain } => accessed(*root, access_chain),
            Expr::UnaryOp { op: UnaryOperator::Minus, expr } => negative(*expr),
            Expr::UnaryOp { op: UnaryOperator::Plus, expr } => *expr,
            Expr::Interval(interval) => Expr::Interval(plain_interval(interval)?),
            Expr::TypedString(typed) => {
                let text = typed.value.value.clone().into_string().unwrap_or_default();
                match is_time_text(&text, &typed.data_type) {
                    true => Expr::TypedString(typed),
                    false => {
                        return Err(Error::invalid(format!("'{text}' is no {}", typed.data_type))
                            .with_hint("for example DATE '2024-01-31', TIMESTAMP '2024-01-31 10:00:00.123'")
                            .with_location(location_of(typed.value.span)));
                    }
                }
            }
            Expr::Value(ValueWithSpan { value, span }) => plain_value(value, span),
            Expr::Function(function) => self.plain_call(function)?,
            other => other,
        })
    }

    fn plain_call(&self, function: Function) -> Result<Expr> {
        let name = function.name.to_string().to_uppercase();
        let Some(arguments) = plain_arguments(&function) else { return Ok(Expr::Function(function)) };
        let mut arguments = arguments.into_iter();
        let now = || call("now", Vec::new());
        Ok(match (name.as_str(), arguments.len()) {
            ("IF", 3) => {
                let (Some(condition), Some(result), other) =
                    (arguments.next(), arguments.next(), arguments.next())
                else {
                    return Ok(Expr::Function(function));
                };
                Expr::Case {
                    case_token: ast::helpers::attached_token::AttachedToken::empty(),
                    end_token: ast::helpers::attached_token::AttachedToken::empty(),
                    operand: None,
                    conditions: vec![CaseWhen { condition, result }],
                    else_result: other.map(Box::new),
                }
            }
            ("ROW", 1..) => row(arguments),
            ("IFNULL" | "NVL", 2) => call("coalesce", arguments.collect()),
            ("UNIX_TIMESTAMP", 0) => call("extract", vec![text("EPOCH"), now()]),
            // A date or time of the wall clock, where the clock is not UTC's.
            ("CURRENT_DATE" | "TODAY", 0) if self.has_zone => cast(now(), ast::DataType::Date),
            ("LOCALTIMESTAMP", 0) if self.has_zone => {
                cast(now(), ast::DataType::Timestamp(Some(3), ast::TimezoneInfo::None))
            }
            ("CURRENT_TIME" | "LOCALTIME", 0) if self.has_zone => {
                cast(now(), ast::DataType::Time(None, ast::TimezoneInfo::None))
            }
            _ => Expr::Function(function),
        })
    }
}

/// The arguments of a call without further clauses.
pub(crate) fn plain_arguments(function: &Function) -> Option<Vec<Expr>> {
    let list = match &function.args {
        FunctionArguments::None => return Some(Vec::new()),
        FunctionArguments::Subquery(_) => return None,
        FunctionArguments::List(list) => list,
    };
    let plain = list.duplicate_treatment.is_none() && list.clauses.is_empty() && function.over.is_none();
    let argument = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    if plain { list.args.iter().map(argument).collect() } else { None }
}

/// The first argument of TIMESTAMPADD and TIMESTAMPDIFF as a text.
fn name_unit(function: &mut Function) {
    let name = function.name.to_string();
    if !["TIMESTAMPADD", "TIMESTAMPDIFF"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
        return;
    }
    if let FunctionArguments::List(list) = &mut function.args
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(first))) = list.args.first_mut()
        && let Expr::Identifier(name) = first
    {
        *first = text(&name.value);
    }
}

pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let args = arguments.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

/// A row whose fields have the names of Flink's.
fn row(fields: impl Iterator<Item = Expr>) -> Expr {
    let named = fields.enumerate().flat_map(|(place, field)| [text(&format!("EXPR${place}")), field]);
    call("named_struct", named.collect())
}

fn text(text: &str) -> Expr {
    Expr::value(Value::SingleQuotedString(text.to_owned()))
}

fn number(digits: &str) -> Expr {
    Expr::value(Value::Number(digits.to_owned(), false))
}

fn unit(field: &DateTimeField) -> Expr {
    text(&field.to_string())
}

fn cast(expr: Expr, data_type: ast::DataType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

fn rounded(name: &str, expr: Expr, field: CeilFloorKind) -> Expr {
    match field {
        CeilFloorKind::DateTimeField(DateTimeField::NoDateTime) => call(name, vec![expr]),
        CeilFloorKind::DateTimeField(field) => call(&format!("{name}_time"), vec![expr, unit(&field)]),
        CeilFloorKind::Scale(scale) => call(name, vec![expr, Expr::Value(scale)]),
    }
}

fn matched(name: &str, expr: Expr, pattern: Expr, escape: Option<ValueWithSpan>) -> Expr {
    call(name, [expr, pattern].into_iter().chain(escape.map(Expr::Value)).collect())
}

fn negated_if(negated: bool, expr: Expr) -> Expr {
    match negated {
        true => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) },
        false => expr,
    }
}

/// A constant pattern without a backslash, which is no escape here but is one to the kernels.
fn is_plain_pattern(pattern: &Expr) -> bool {
    matches!(pattern, Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) if !text.contains('\\'))
}

fn accessed(root: Expr, chain: Vec<AccessExpr>) -> Expr {
    let mut chain = chain.into_iter().peekable();
    // `a.b` of a name: the planner knows better what is a table and what a row.
    let is_name = matches!(root, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
    let mut names = Vec::new();
    while is_name && let Some(AccessExpr::Dot(Expr::Identifier(_))) = chain.peek() {
        names.extend(chain.next());
    }
    let root = match names.is_empty() {
        true => root,
        false => Expr::CompoundFieldAccess { root: Box::new(root), access_chain: names },
    };
    chain.fold(root, |root, access| match access {
        AccessExpr::Subscript(Subscript::Index { index }) => call("item", vec![root, index]),
        AccessExpr::Dot(Expr::Identifier(name)) => call("get_field", vec![root, text(&name.value)]),
        other => Expr::CompoundFieldAccess { root: Box::new(root), access_chain: vec![other] },
    })
}

fn negative(expr: Expr) -> Expr {
    match expr {
        // `-1` is one literal: the smallest numbers have no positive counterpart.
        Expr::Value(ValueWithSpan { value: Value::Number(..), .. }) => {
            Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(expr) }
        }
        Expr::Interval(_) => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(expr) },
        Expr::Nested(inner) if matches!(*inner, Expr::Value(_)) => negative(*inner),
        other => call("negate", vec![other]),
    }
}

fn plain_interval(interval: Interval) -> Result<Interval> {
    let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(value), span }) =
        interval.value.as_ref()
    else {
        return Ok(interval);
    };
    let Some(first) = &interval.leading_field else { return Ok(interval) };
    let plain = interval_text(
        value,
        &first.to_string(),
        interval.last_field.as_ref().map(ToString::to_string).as_deref(),
    )
    .map_err(|error| error.with_location(location_of(*span)))?;
    Ok(Interval {
        value: Box::new(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(plain), span: *span })),
        leading_field: None,
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    })
}

fn plain_value(value: Value, span: Span) -> Expr {
    let value = match value {
        Value::Number(digits, _) if digits.contains(['e', 'E']) => {
            return cast(text(&digits), ast::DataType::Double(ast::ExactNumberInfo::None));
        }
        Value::UnicodeStringLiteral(text) | Value::NationalStringLiteral(text) => {
            Value::SingleQuotedString(text)
        }
        other => other,
    };
    Expr::Value(ValueWithSpan { value, span })
}
