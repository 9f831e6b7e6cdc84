//! Moments: variances, covariances, correlation and regression.
//!
//! Sums of x, x², x·y … are kept in two floats each (about 32 digits), so that neither the small
//! difference of large squares nor a value taken back leaves a trace that shows in the result.
//! Rows with NaN or an infinity are counted apart: while there is one, the result is NaN.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type};
use millpond_core::Result;
use millpond_state::{StateColumn, for_integer_type};

use super::fold::Fold;
use super::function::{CoMoment, Moment};

/// A number in two floats: their exact sum, the second at most half an ulp of the first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Double(f64, f64);

impl Double {
    fn of_integer(value: i64) -> Self {
        let high = value as f64;
        // 2⁶³ as a float is beyond i64, but within i128.
        Double(high, (i128::from(value) - high as i128) as f64)
    }

    fn of_wide(value: i128) -> Self {
        let high = value as f64;
        let rest = value.wrapping_sub(high as i128);
        Double(high, rest as f64)
    }

    fn is_finite(self) -> bool {
        self.0.is_finite()
    }
}

/// The exact sum of two floats (Knuth 1969).
fn two_sum(a: f64, b: f64) -> Double {
    let sum = a + b;
    let part = sum - a;
    Double(sum, (a - (sum - part)) + (b - part))
}

/// The exact product of two floats (Dekker 1971), where it does not overflow.
fn two_product(a: f64, b: f64) -> Double {
    let product = a * b;
    Double(product, a.mul_add(b, -product))
}

impl std::ops::Add for Double {
    type Output = Double;
    fn add(self, other: Double) -> Double {
        let high = two_sum(self.0, other.0);
        let low = two_sum(self.1, other.1);
        let sum = two_sum(high.0, high.1 + low.0);
        two_sum(sum.0, sum.1 + low.1)
    }
}

impl std::ops::Neg for Double {
    type Output = Double;
    fn neg(self) -> Double {
        Double(-self.0, -self.1)
    }
}

impl std::ops::Sub for Double {
    type Output = Double;
    fn sub(self, other: Double) -> Double {
        self + -other
    }
}

impl std::ops::Mul for Double {
    type Output = Double;
    fn mul(self, other: Double) -> Double {
        let product = two_product(self.0, other.0);
        let low = product.1 + (self.0 * other.1 + self.1 * other.0);
        two_sum(product.0, low)
    }
}

/// The column's values as numbers in two floats.
fn doubles(values: &ArrayRef) -> Result<Vec<Double>> {
    if let DataType::Decimal128(_, scale) = values.data_type() {
        let unit = 10f64.powi(-i32::from(*scale));
        let values = values.as_primitive::<Decimal128Type>().values().iter();
        // A decimal is not exact in binary anyway; its digits are, before the point is set.
        return Ok(values.map(|value| Double::of_wide(*value) * Double(unit, 0.0)).collect());
    }
    for_integer_type!(values.data_type(), T => {
        let values = values.as_primitive::<T>().values().iter();
        #[allow(clippy::unnecessary_cast, reason = "not for all integer types")]
        let values = values.map(|value| Double::of_integer(*value as i64));
        Ok(values.collect())
    }, _ => {
        let values = cast(values, &DataType::Float64)?;
        Ok(values.as_primitive::<Float64Type>().values().iter().map(|value| Double(*value, 0.0)).collect())
    })
}

impl Fold<'_> {
    /// Adds the moments of x, or of y and x, to (rows, not finite, sums …).
    pub(super) fn moments(&self, state: &mut [StateColumn], values: &[ArrayRef]) -> Result<()> {
        let columns: Vec<Vec<Double>> = values.iter().map(doubles).collect::<Result<_>>()?;
        let powers = |row: usize| -> ([Double; 5], usize) {
            match columns.as_slice() {
                [x] => {
                    ([x[row], x[row] * x[row], Double::default(), Double::default(), Double::default()], 2)
                }
                [y, x, ..] => {
                    let (y, x) = (y[row], x[row]);
                    ([y, x, y * y, x * x, y * x], 5)
                }
                [] => ([Double::default(); 5], 0),
            }
        };
        self.each(0..self.slots.len(), |slot, row, sign| {
            state[0].i64s_mut()[slot] += sign;
            let (powers, used) = powers(row);
            let powers = &powers[..used];
            if !powers.iter().all(|power| power.is_finite()) {
                state[1].i64s_mut()[slot] += sign;
            } else {
                for (power, sums) in powers.iter().zip(state[2..].chunks_exact_mut(2)) {
                    add(sums, slot, if sign > 0 { *power } else { -*power });
                }
            }
            if sign < 0 && state[0].i64s()[slot] == state[1].i64s()[slot] {
                // No finite row is left, so neither is a rounding error of earlier ones.
                state[2..].iter_mut().for_each(|column| column.f64s_mut()[slot] = 0.0);
            }
        });
        Ok(())
    }
}

fn add(sums: &mut [StateColumn], slot: usize, value: Double) {
    let sum = Double(sums[0].f64s()[slot], sums[1].f64s()[slot]) + value;
    sums[0].f64s_mut()[slot] = sum.0;
    sums[1].f64s_mut()[slot] = sum.1;
}

/// Adds the moments of other groups.
pub(super) fn merge(
    state: &mut [StateColumn],
    other: &[StateColumn],
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    for (into, from) in pairs {
        for counter in 0..2 {
            state[counter].i64s_mut()[into] += other[counter].i64s()[from];
        }
        for (sums, other) in state[2..].chunks_exact_mut(2).zip(other[2..].chunks_exact(2)) {
            add(sums, into, Double(other[0].f64s()[from], other[1].f64s()[from]));
        }
    }
}

/// n·Σx² − (Σx)² and its kin: n times the sum of the products of deviations.
fn centred(product: Double, a: Double, b: Double, rows: i64) -> f64 {
    let n = Double::of_integer(rows);
    let difference = product * n - a * b;
    difference.0 + difference.1
}

/// √(a·b), also where the product is beyond the range of floats.
fn geometric_mean(a: f64, b: f64) -> f64 {
    let product = a * b;
    if product.is_normal() { product.sqrt() } else { a.sqrt() * b.sqrt() }
}

fn read(state: &[StateColumn], slot: usize) -> (i64, i64, Vec<Double>) {
    let sums = state[2..].chunks_exact(2).map(|sums| Double(sums[0].f64s()[slot], sums[1].f64s()[slot]));
    (state[0].i64s()[slot], state[1].i64s()[slot], sums.collect())
}

/// The results of a function of one variable.
pub(super) fn of_one(moment: Moment, state: &[StateColumn], slots: &[u32]) -> ArrayRef {
    let value = |slot: &u32| -> Option<f64> {
        let (rows, not_finite, sums) = read(state, *slot as usize);
        let divisor = match moment {
            Moment::VarPop | Moment::StddevPop => rows,
            Moment::VarSamp | Moment::StddevSamp => rows - 1,
        };
        if divisor <= 0 {
            return None;
        }
        if not_finite > 0 {
            return Some(f64::NAN);
        }
        let squares = centred(sums[1], sums[0], sums[0], rows).max(0.0);
        let variance = squares / (rows as f64 * divisor as f64);
        Some(match moment {
            Moment::VarPop | Moment::VarSamp => variance,
            Moment::StddevPop | Moment::StddevSamp => variance.sqrt(),
        })
    };
    Arc::new(slots.iter().map(value).collect::<Float64Array>())
}

/// The results of a function of two variables, as SQL:2003 defines them.
pub(super) fn of_two(moment: CoMoment, state: &[StateColumn], slots: &[u32]) -> ArrayRef {
    if moment == CoMoment::RegrCount {
        let rows = state[0].i64s();
        return Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| rows[*slot as usize])));
    }
    let value = |slot: &u32| -> Option<f64> {
        let (rows, not_finite, sums) = read(state, *slot as usize);
        if rows <= 0 || moment == CoMoment::CovarSamp && rows == 1 {
            return None;
        }
        if not_finite > 0 {
            return Some(f64::NAN);
        }
        let [y, x, yy, xx, xy] = sums[..] else { return None };
        let n = rows as f64;
        let (sxx, syy) = (centred(xx, x, x, rows).max(0.0), centred(yy, y, y, rows).max(0.0));
        let sxy = centred(xy, x, y, rows);
        let (mean_x, mean_y) = (x.0 / n, y.0 / n);
        match moment {
            CoMoment::CovarPop => Some(sxy / (n * n)),
            CoMoment::CovarSamp => Some(sxy / (n * (n - 1.0))),
            CoMoment::Corr if sxx == 0.0 || syy == 0.0 => None,
            CoMoment::Corr => Some((sxy / geometric_mean(sxx, syy)).clamp(-1.0, 1.0)),
            CoMoment::RegrSlope | CoMoment::RegrIntercept | CoMoment::RegrR2 if sxx == 0.0 => None,
            CoMoment::RegrSlope => Some(sxy / sxx),
            CoMoment::RegrIntercept => Some(mean_y - sxy / sxx * mean_x),
            CoMoment::RegrR2 if syy == 0.0 => Some(1.0),
            CoMoment::RegrR2 => Some((sxy * sxy / (sxx * syy)).min(1.0)),
            CoMoment::RegrCount => Some(n),
            CoMoment::RegrAvgX => Some(mean_x),
            CoMoment::RegrAvgY => Some(mean_y),
            CoMoment::RegrSxx => Some(sxx / n),
            CoMoment::RegrSyy => Some(syy / n),
            CoMoment::RegrSxy => Some(sxy / n),
        }
    };
    Arc::new(slots.iter().map(value).collect::<Float64Array>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_and_their_retraction_leave_no_trace() {
        let mut sum = Double::default();
        for value in [1e16, 1.0, 0.25] {
            sum = sum + Double(value, 0.0);
        }
        sum = sum - Double(1e16, 0.0);
        assert_eq!(sum, Double(1.25, 0.0));
        let big = Double::of_integer(i64::MAX);
        assert_eq!((big - Double::of_integer(i64::MAX - 1)).0, 1.0);
        let square = big * big - Double::of_integer(i64::MAX - 1) * Double::of_integer(i64::MAX - 1);
        assert_eq!(square.0, 2f64.powi(64) - 3.0);
    }
}
