//! Bounds between the times of two joined streams, found in join conditions.
//!
//! A condition such as `b.ts BETWEEN a.ts AND a.ts + INTERVAL '10' SECOND`, or the equality of two
//! windows' ends, says how long a row can still find partners, and so how long it must be kept.

use datafusion::common::DFSchema;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Operator};

use crate::window_relation::interval_micros;

/// `right.ts + lower ≤ left.ts ≤ right.ts + upper`, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The time column of the left input.
    pub(crate) left: usize,
    /// The time column of the right input.
    pub(crate) right: usize,
    /// Bounds how long left rows must be kept.
    pub(crate) lower: Option<i64>,
    /// Bounds how long right rows must be kept.
    pub(crate) upper: Option<i64>,
}

impl Interval {
    /// Whether it is `left.ts = right.ts`.
    pub(crate) fn is_equality(&self) -> bool {
        (self.lower, self.upper) == (Some(0), Some(0))
    }

    /// Whether it bounds both inputs.
    pub(crate) fn is_closed(&self) -> bool {
        self.lower.is_some() && self.upper.is_some()
    }
}

/// The two inputs of a join, and which of their columns follow the watermark.
pub(crate) struct Sides<'a> {
    pub(crate) left: &'a DFSchema,
    pub(crate) right: &'a DFSchema,
    pub(crate) left_follows: &'a dyn Fn(usize) -> bool,
    pub(crate) right_follows: &'a dyn Fn(usize) -> bool,
}

/// The best bound that the condition of an inner join gives.
pub(crate) fn interval(sides: &Sides<'_>, on: &[(Expr, Expr)], filter: Option<&Expr>) -> Option<Interval> {
    let mut found: Vec<Interval> = Vec::new();
    for (left, right) in on {
        if let Some(equal) = sides.bound(left, Operator::Eq, right) {
            add(&mut found, equal);
        }
    }
    for conjunct in filter.map(split_conjunction).unwrap_or_default() {
        if let Expr::BinaryExpr(binary) = conjunct
            && let Some(bound) = sides.bound(&binary.left, binary.op, &binary.right)
        {
            add(&mut found, bound);
        }
    }
    found.iter().find(|interval| interval.is_closed()).or(found.first()).copied()
}

/// Keeps the tighter of two bounds on the same columns.
fn add(found: &mut Vec<Interval>, bound: Interval) {
    match found.iter_mut().find(|known| (known.left, known.right) == (bound.left, bound.right)) {
        None => found.push(bound),
        Some(known) => {
            known.lower = known.lower.max(bound.lower);
            known.upper = match (known.upper, bound.upper) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
}

impl Sides<'_> {
    fn bound(&self, a: &Expr, op: Operator, b: &Expr) -> Option<Interval> {
        let (a, b) = (shifted_column(a)?, shifted_column(b)?);
        if let (Some(left), Some(right)) = (self.left_time(a.0), self.right_time(b.0)) {
            return interval_of(left, right, op, b.1 - a.1);
        }
        let (left, right) = (self.left_time(b.0)?, self.right_time(a.0)?);
        interval_of(left, right, op.swap()?, a.1 - b.1)
    }

    fn left_time(&self, column: &datafusion::common::Column) -> Option<usize> {
        self.left.index_of_column(column).ok().filter(|column| (self.left_follows)(*column))
    }

    fn right_time(&self, column: &datafusion::common::Column) -> Option<usize> {
        self.right.index_of_column(column).ok().filter(|column| (self.right_follows)(*column))
    }
}

/// `left op right + shift`.
fn interval_of(left: usize, right: usize, op: Operator, shift: i64) -> Option<Interval> {
    let (lower, upper) = match op {
        Operator::Eq => (Some(shift), Some(shift)),
        Operator::Gt | Operator::GtEq => (Some(shift), None),
        Operator::Lt | Operator::LtEq => (None, Some(shift)),
        _ => return None,
    };
    Some(Interval { left, right, lower, upper })
}

/// `column`, `column + interval` or `column - interval`: the column and the shift.
fn shifted_column(expr: &Expr) -> Option<(&datafusion::common::Column, i64)> {
    match expr {
        Expr::Column(column) => Some((column, 0)),
        Expr::Alias(alias) => shifted_column(&alias.expr),
        Expr::Cast(cast) if cast.field.data_type().is_temporal() => shifted_column(&cast.expr),
        Expr::BinaryExpr(binary) => {
            let (column, shift) = shifted_column(&binary.left)?;
            let interval = interval_micros(&binary.right)?;
            match binary.op {
                Operator::Plus => Some((column, shift.checked_add(interval)?)),
                Operator::Minus => Some((column, shift.checked_sub(interval)?)),
                _ => None,
            }
        }
        _ => None,
    }
}
