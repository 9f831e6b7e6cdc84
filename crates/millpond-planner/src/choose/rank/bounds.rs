//! The numbers to which filters bound a rank.

use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::logical_expr::{Expr, Operator as BinaryOperator};
use millpond_core::{Error, Result};
use millpond_operators::top_n::{RankFunction, RankRange};

use super::unbounded_rank;

/// The range to which filters bound the rank, and the filters that say more than that.
pub(super) fn range_of(
    schema: &DFSchema,
    rank: usize,
    filters: Vec<Expr>,
    function: RankFunction,
) -> Result<(RankRange, Vec<Expr>)> {
    let is_rank = |expr: &Expr| matches!(expr, Expr::Column(column) if is_column(schema, column, rank));
    let mut range = Bounds::default();
    let mut rest = Vec::new();
    for filter in filters {
        match Bounds::of(&filter, &is_rank) {
            Some((bounds, exact)) => {
                range = range.both(bounds);
                if !exact {
                    rest.push(filter);
                }
            }
            None => rest.push(filter),
        }
    }
    let first = range.first.unwrap_or(1).max(1);
    let last = range.last.ok_or_else(|| unbounded_rank(&function.to_string()))?;
    if last < first {
        return Err(Error::invalid(format!("no row has a {function} of {first} or more and {last} or less"))
            .with_hint("numbers begin at 1: WHERE rn <= 10"));
    }
    Ok((RankRange { first: first as u64, last: Some(last as u64) }, rest))
}

/// Numbers that a condition lets through lie within these.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    first: Option<i64>,
    last: Option<i64>,
}

impl Bounds {
    fn both(self, other: Self) -> Self {
        let tighter = |a: Option<i64>, b: Option<i64>, pick: fn(i64, i64) -> i64| match (a, b) {
            (Some(a), Some(b)) => Some(pick(a, b)),
            (a, b) => a.or(b),
        };
        Self {
            first: tighter(self.first, other.first, i64::max),
            last: tighter(self.last, other.last, i64::min),
        }
    }

    fn either(self, other: Self) -> Self {
        Self {
            first: self.first.zip(other.first).map(|(a, b)| a.min(b)),
            last: self.last.zip(other.last).map(|(a, b)| a.max(b)),
        }
    }

    /// The bounds of a condition on the rank, and whether they say all that it does.
    fn of(filter: &Expr, is_rank: &impl Fn(&Expr) -> bool) -> Option<(Self, bool)> {
        match filter {
            Expr::BinaryExpr(binary) if binary.op == BinaryOperator::And => {
                let (left, right) = (Self::of(&binary.left, is_rank), Self::of(&binary.right, is_rank));
                match (left, right) {
                    (Some((a, a_exact)), Some((b, b_exact))) => Some((a.both(b), a_exact && b_exact)),
                    (one, other) => one.or(other).map(|(bounds, _)| (bounds, false)),
                }
            }
            Expr::BinaryExpr(binary) if binary.op == BinaryOperator::Or => {
                let (left, right) = (Self::of(&binary.left, is_rank)?.0, Self::of(&binary.right, is_rank)?.0);
                Some((left.either(right), false))
            }
            Expr::BinaryExpr(binary) => {
                let (left, right) = (uncast(&binary.left), uncast(&binary.right));
                let (op, number) = match (is_rank(left), is_rank(right)) {
                    (true, false) => (binary.op, number(right)?),
                    (false, true) => (binary.op.swap()?, number(left)?),
                    (true, true) | (false, false) => return None,
                };
                Self::comparison(op, number).map(|bounds| (bounds, true))
            }
            Expr::Between(between) if !between.negated && is_rank(uncast(&between.expr)) => {
                let (low, high) = (number(uncast(&between.low))?, number(uncast(&between.high))?);
                Some((Self { first: Some(low), last: Some(high) }, true))
            }
            Expr::InList(list) if !list.negated && is_rank(uncast(&list.expr)) => {
                let numbers: Option<Vec<i64>> = list.list.iter().map(|item| number(uncast(item))).collect();
                let numbers = numbers?;
                Some((
                    Self { first: numbers.iter().min().copied(), last: numbers.iter().max().copied() },
                    false,
                ))
            }
            _ => None,
        }
    }

    fn comparison(op: BinaryOperator, number: i64) -> Option<Self> {
        let (first, last) = match op {
            BinaryOperator::Eq => (Some(number), Some(number)),
            BinaryOperator::Lt => (None, Some(number.saturating_sub(1))),
            BinaryOperator::LtEq => (None, Some(number)),
            BinaryOperator::Gt => (Some(number.saturating_add(1)), None),
            BinaryOperator::GtEq => (Some(number), None),
            _ => return None,
        };
        Some(Self { first, last })
    }
}

pub(super) fn is_column(schema: &DFSchema, column: &Column, place: usize) -> bool {
    schema.index_of_column(column).is_ok_and(|index| index == place)
}

/// A cast between integers changes no rank.
fn uncast(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) if cast.field.data_type().is_integer() => uncast(&cast.expr),
        Expr::Alias(alias) => uncast(&alias.expr),
        other => other,
    }
}

fn number(expr: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = expr else { return None };
    if !value.data_type().is_integer() {
        return None;
    }
    match value.cast_to(&arrow::datatypes::DataType::Int64).ok()? {
        ScalarValue::Int64(number) => number,
        _ => None,
    }
}
