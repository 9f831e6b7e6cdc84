//! Rows that are compared: field by field, as SQL has it.
//!
//! | written | planned as |
//! |---|---|
//! | `(a, b) = (c, d)`, `<>` | `a = c AND b = d`, or not |
//! | `(a, b) < (c, d)`, `<=`, `>`, `>=` | `a < c OR a = c AND b < d` |
//! | `(a, b) IN ((c, d), …)` | an OR of comparisons |
//! | `WHERE (a, b) IN (SELECT c, d …)` | `EXISTS` with a comparison in its WHERE |
//! | `WHERE (a, b) NOT IN (SELECT c, d …)` | `NOT EXISTS` of a row whose comparison is not false |
//! | the same as a value | CASE of two EXISTS: TRUE, or NULL if a comparison is, else FALSE |
//!
//! A comparison of whole rows would take two NULLs for equal, and NULL for different from all else.

use millpond_core::{Error, Result};
use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, Ident, Query, SetExpr, Spanned, TableFactor, UnaryOperator, Value,
};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::Parser;

use crate::plan_error::location_of;
use crate::sugar::plain_arguments;

/// Name of a subquery whose rows are compared, and what its columns' names begin with.
const SUBQUERY: &str = "__rows";
const COLUMN: &str = "__field_";

/// Writes a condition out whose rows count where it is TRUE: NULL is as good as FALSE.
pub(crate) fn condition_by_fields(condition: &mut Expr) -> Result<()> {
    match condition {
        Expr::Nested(inner) => condition_by_fields(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            condition_by_fields(left)?;
            condition_by_fields(right)
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            let Expr::InSubquery { expr: member, negated, .. } = unnested(expr) else { return Ok(()) };
            if fields_of(member).is_none() {
                return Ok(());
            }
            *negated = !*negated;
            *condition = unnested(expr).clone();
            condition_by_fields(condition)
        }
        Expr::InSubquery { expr, subquery, negated } => {
            let Some(fields) = fields_of(expr) else { return Ok(()) };
            let equal = compared_to(&fields, subquery)?;
            *condition = match negated {
                false => exists(subquery, fields.len(), equal, false)?,
                true => exists(subquery, fields.len(), Expr::IsNotFalse(Box::new(equal)), true)?,
            };
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Writes a comparison of rows out, if this is one.
pub(crate) fn by_fields(expr: &mut Expr) -> Result<()> {
    let written = match &*expr {
        Expr::BinaryOp { left, op, right } if is_comparison(op) => {
            match (fields_of(left), fields_of(right)) {
                (Some(left), Some(right)) => Some(compared(&left, op, &right)?),
                _ => None,
            }
        }
        Expr::InList { expr: member, list, negated } => {
            let rows: Option<Vec<Vec<Expr>>> = list.iter().map(fields_of).collect();
            match (fields_of(member), rows) {
                (Some(fields), Some(rows)) if !rows.is_empty() => {
                    let equal = |row: &Vec<Expr>| compared(&fields, &BinaryOperator::Eq, row);
                    let any = balanced(rows.iter().map(equal).collect::<Result<_>>()?, BinaryOperator::Or);
                    Some(if *negated { not(any) } else { any })
                }
                _ => None,
            }
        }
        Expr::InSubquery { expr: member, subquery, negated } => match fields_of(member) {
            None => None,
            Some(fields) => {
                let equal = compared_to(&fields, subquery)?;
                let is_null = Expr::IsNull(Box::new(equal.clone()));
                let case = Expr::Case {
                    case_token: AttachedToken::empty(),
                    end_token: AttachedToken::empty(),
                    operand: None,
                    conditions: vec![
                        CaseWhen {
                            condition: exists(subquery, fields.len(), equal, false)?,
                            result: Expr::value(Value::Boolean(true)),
                        },
                        CaseWhen {
                            condition: exists(subquery, fields.len(), is_null, false)?,
                            result: Expr::value(Value::Null),
                        },
                    ],
                    else_result: Some(Box::new(Expr::value(Value::Boolean(false)))),
                };
                Some(if *negated { not(case) } else { case })
            }
        },
        _ => None,
    };
    if let Some(written) = written {
        *expr = written;
    }
    Ok(())
}

fn unnested(expr: &mut Expr) -> &mut Expr {
    match expr {
        Expr::Nested(inner) => unnested(inner),
        other => other,
    }
}

/// The fields of a row that is written out, with at least two.
fn fields_of(expr: &Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Nested(inner) => fields_of(inner),
        Expr::Tuple(fields) if fields.len() > 1 => Some(fields.clone()),
        Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("row") => {
            plain_arguments(function).filter(|fields| fields.len() > 1)
        }
        _ => None,
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::*;
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

fn compared(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Result<Expr> {
    if left.len() != right.len() {
        let (few, many) = (left.len().min(right.len()), left.len().max(right.len()));
        return Err(Error::invalid(format!("a row of {few} fields is compared with one of {many}"))
            .with_hint("give both rows as many fields")
            .with_location(right.first().and_then(|field| location_of(field.span()))));
    }
    let pair = |place: usize, op: BinaryOperator| binary(left[place].clone(), op, right[place].clone());
    let equal =
        || balanced((0..left.len()).map(|at| pair(at, BinaryOperator::Eq)).collect(), BinaryOperator::And);
    Ok(match op {
        BinaryOperator::Eq => equal(),
        BinaryOperator::NotEq => not(equal()),
        ordered => {
            let strict = match ordered {
                BinaryOperator::LtEq => BinaryOperator::Lt,
                BinaryOperator::GtEq => BinaryOperator::Gt,
                other => other.clone(),
            };
            let last = left.len() - 1;
            (0..last).rev().fold(pair(last, ordered.clone()), |behind, at| {
                let same = binary(pair(at, BinaryOperator::Eq), BinaryOperator::And, behind);
                binary(pair(at, strict.clone()), BinaryOperator::Or, same)
            })
        }
    })
}

/// The fields compared with the columns of a subquery, inside it.
fn compared_to(fields: &[Expr], subquery: &Query) -> Result<Expr> {
    if let SetExpr::Select(select) = subquery.body.as_ref() {
        let is_plain = |item: &sqlparser::ast::SelectItem| {
            use sqlparser::ast::SelectItem::*;
            matches!(item, UnnamedExpr(_) | ExprWithAlias { .. })
        };
        let given = select.projection.len();
        if select.projection.iter().all(is_plain) && given != fields.len() {
            return Err(Error::invalid(format!(
                "a row of {} fields is looked for in a subquery of {given} columns",
                fields.len()
            ))
            .with_location(location_of(subquery.span())));
        }
    }
    let column = |place: usize| {
        Expr::CompoundIdentifier(vec![Ident::new(SUBQUERY), Ident::new(format!("{COLUMN}{place}"))])
    };
    let columns: Vec<Expr> = (0..fields.len()).map(column).collect();
    compared(&columns, &BinaryOperator::Eq, fields)
}

/// Whether a subquery, by the names of its fields, has a row for which a condition holds.
fn exists(subquery: &Query, fields: usize, condition: Expr, negated: bool) -> Result<Expr> {
    let lost = || Error::internal("a subquery of rows cannot be written out");
    let names: Vec<String> = (0..fields).map(|place| format!("{COLUMN}{place}")).collect();
    let text = format!("SELECT 1 FROM (SELECT 1) AS {SUBQUERY} ({}) WHERE TRUE", names.join(", "));
    let parser = Parser::new(&GenericDialect {}).try_with_sql(&text);
    let mut query = parser.and_then(|mut parser| parser.parse_query()).map_err(|_| lost())?;
    let SetExpr::Select(select) = query.body.as_mut() else { return Err(lost()) };
    select.selection = Some(condition);
    match select.from.first_mut().map(|from| &mut from.relation) {
        Some(TableFactor::Derived { subquery: inner, .. }) => **inner = subquery.clone(),
        _ => return Err(lost()),
    }
    Ok(Expr::Exists { subquery: query, negated })
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

fn not(expr: Expr) -> Expr {
    Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) }
}

/// A tree that is no deeper than it must be; of at least one expression.
fn balanced(mut exprs: Vec<Expr>, op: BinaryOperator) -> Expr {
    while exprs.len() > 1 {
        let mut pairs = exprs.into_iter();
        exprs = Vec::new();
        while let Some(left) = pairs.next() {
            exprs.push(match pairs.next() {
                Some(right) => binary(left, op.clone(), right),
                None => left,
            });
        }
    }
    exprs.pop().unwrap_or_else(|| Expr::value(Value::Boolean(true)))
}
