//! The fold: adds the rows of a batch to state columns, in one tight loop per call.
//!
//! Append input without NULLs or FILTER runs without a test per row: sign and selection are
//! decided once per batch, outside the loop.

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::*;
use millpond_core::{Error, Result};
use millpond_state::{ByteStrings, StateColumn, StateValues, for_integer_type};

/// Which rows go to which slots, and with which sign.
#[derive(Debug, Clone, Copy)]
pub struct Fold<'a> {
    /// The slot of each row.
    pub slots: &'a [u32],
    /// +1 or −1 per row; `None`: all rows are added.
    pub signs: Option<&'a [i64]>,
    /// Which rows count; `None`: all.
    pub keep: Option<&'a BooleanBuffer>,
    /// When the rows arrived; empty where nobody asks.
    pub arrivals: &'a [i64],
}

impl Fold<'_> {
    /// Calls `f(slot, value, sign)` for each row that counts.
    #[inline(always)]
    pub fn each<V>(&self, values: impl Iterator<Item = V>, mut f: impl FnMut(usize, V, i64)) {
        let rows = self.slots.iter().map(|slot| *slot as usize).zip(values);
        match (self.keep, self.signs) {
            (None, None) => rows.for_each(|(slot, value)| f(slot, value, 1)),
            (None, Some(signs)) => rows.zip(signs).for_each(|((slot, value), sign)| f(slot, value, *sign)),
            (Some(keep), None) => {
                rows.zip(keep.iter())
                    .filter(|(_, keep)| *keep)
                    .for_each(|((slot, value), _)| f(slot, value, 1));
            }
            (Some(keep), Some(signs)) => rows
                .zip(signs)
                .zip(keep.iter())
                .filter(|(_, keep)| *keep)
                .for_each(|(((slot, value), sign), _)| f(slot, value, *sign)),
        }
    }

    /// Adds one per row.
    pub fn count(&self, counts: &mut StateColumn) {
        let counts = counts.i64s_mut();
        self.each(std::iter::repeat(()), |slot, (), sign| counts[slot] += sign);
    }

    /// Adds integers: state is (sum, rows). 128 bits hold 2⁶⁴ rows of the largest BIGINT.
    pub fn add_integers(&self, [sums, rows]: &mut [StateColumn; 2], values: &ArrayRef) -> Result<()> {
        let (sums, rows) = (sums.i128s_mut(), rows.i64s_mut());
        for_integer_type!(values.data_type(), T => {
            let values = values.as_primitive::<T>().values().iter();
            self.each(values, |slot, value, sign| {
                sums[slot] += *value as i128 * i128::from(sign);
                rows[slot] += sign;
            });
            Ok(())
        }, _ => Err(unexpected(values)))
    }

    /// Adds decimals: state is (sum, rows, carry), where the carry counts how often the sum has
    /// wrapped: the value is sum + carry · 2¹²⁸.
    pub fn add_decimals(
        &self,
        [sums, rows, carries]: &mut [StateColumn; 3],
        values: &ArrayRef,
    ) -> Result<()> {
        let (sums, rows, carries) = (sums.i128s_mut(), rows.i64s_mut(), carries.i64s_mut());
        let values = values.as_primitive_opt::<Decimal128Type>().ok_or_else(|| unexpected(values))?;
        self.each(values.values().iter(), |slot, value, sign| {
            // A decimal has 38 digits, so that its negation never overflows.
            add_wide(&mut sums[slot], &mut carries[slot], *value * i128::from(sign));
            rows[slot] += sign;
        });
        Ok(())
    }

    /// Adds floats: state is (sum, compensation, rows, NaNs, +∞, −∞); `rows` counts all of them.
    pub fn add_floats(&self, state: &mut [StateColumn; 6], values: &ArrayRef) -> Result<()> {
        match values.data_type() {
            DataType::Float32 => {
                let values = values.as_primitive::<Float32Type>().values().iter();
                self.add_f64s(state, values.map(|value| f64::from(*value)));
            }
            DataType::Float64 => {
                self.add_f64s(state, values.as_primitive::<Float64Type>().values().iter().copied())
            }
            _ => return Err(unexpected(values)),
        }
        Ok(())
    }

    fn add_f64s(&self, state: &mut [StateColumn; 6], values: impl Iterator<Item = f64>) {
        let [sums, compensations, rows, nans, positives, negatives] = state;
        let (sums, compensations, rows) = (sums.f64s_mut(), compensations.f64s_mut(), rows.i64s_mut());
        let (nans, positives, negatives) = (nans.i64s_mut(), positives.i64s_mut(), negatives.i64s_mut());
        self.each(values, |slot, value, sign| {
            rows[slot] += sign;
            if value.is_finite() {
                add_compensated(&mut sums[slot], &mut compensations[slot], value * sign as f64);
            } else if value.is_nan() {
                nans[slot] += sign;
            } else if value > 0.0 {
                positives[slot] += sign;
            } else {
                negatives[slot] += sign;
            }
            if sign < 0 && rows[slot] == nans[slot] + positives[slot] + negatives[slot] {
                // No finite value is left, so neither is a rounding error of earlier ones.
                sums[slot] = 0.0;
                compensations[slot] = 0.0;
            }
        });
    }

    /// Keeps the least or greatest value; state is that value. Rows are only added.
    pub fn extreme(&self, extreme: Extreme, state: &mut StateColumn, values: &ArrayRef) -> Result<()> {
        assert!(self.signs.is_none(), "an extreme cannot be taken back");
        let valid = state.valid.as_mut().expect("an extreme may be NULL");
        match &mut state.values {
            StateValues::I64(best) => for_integer_type!(values.data_type(), T => {
                #[allow(clippy::unnecessary_cast, reason = "not for all integer types")]
                let values = values.as_primitive::<T>().values().iter().map(|value| *value as i64);
                match extreme {
                    Extreme::Least => self.improve(values, valid, best, |new, old| new < old),
                    Extreme::Greatest => self.improve(values, valid, best, |new, old| new > old),
                }
            }, _ => return Err(unexpected(values))),
            StateValues::F64(best) => {
                let values = cast(values, &DataType::Float64)?;
                let values = values.as_primitive::<Float64Type>().values().iter().copied();
                match extreme {
                    Extreme::Least => self.improve(values, valid, best, |new, old| float_above(old, new)),
                    Extreme::Greatest => self.improve(values, valid, best, float_above),
                }
            }
            StateValues::I128(best) => {
                let values = values.as_primitive::<Decimal128Type>().values().iter().copied();
                match extreme {
                    Extreme::Least => self.improve(values, valid, best, |new, old| new < old),
                    Extreme::Greatest => self.improve(values, valid, best, |new, old| new > old),
                }
            }
            StateValues::Bool(best) => {
                let values = values.as_boolean().values().iter();
                match extreme {
                    Extreme::Least => self.improve(values, valid, best, |new, old| !new & old),
                    Extreme::Greatest => self.improve(values, valid, best, |new, old| new & !old),
                }
            }
            StateValues::Bytes(best) => self.improve_bytes(extreme, values, valid, best)?,
            StateValues::Arrays(_) => return Err(unexpected(values)),
        }
        Ok(())
    }

    /// Counts rows, and those that are true; state is (rows, true rows).
    pub fn truths(&self, [rows, truths]: &mut [StateColumn; 2], values: &ArrayRef) -> Result<()> {
        let values = values.as_boolean_opt().ok_or_else(|| unexpected(values))?;
        let (rows, truths) = (rows.i64s_mut(), truths.i64s_mut());
        self.each(values.values().iter(), |slot, value, sign| {
            rows[slot] += sign;
            truths[slot] += sign * i64::from(value);
        });
        Ok(())
    }

    /// Toggles bits, which is its own inverse; state is (bits, rows).
    pub fn xor(&self, [bits, rows]: &mut [StateColumn; 2], values: &ArrayRef) -> Result<()> {
        let (bits, rows) = (bits.i64s_mut(), rows.i64s_mut());
        for_integer_type!(values.data_type(), T => {
            let values = values.as_primitive::<T>().values().iter();
            self.each(values, |slot, value, sign| {
                #[allow(clippy::unnecessary_cast, reason = "not for all integer types")]
                let value = *value as i64;
                bits[slot] ^= value;
                rows[slot] += sign;
            });
            Ok(())
        }, _ => Err(unexpected(values)))
    }

    /// Combines bits by AND or OR; state is the bits. Rows are only added.
    pub fn bits(&self, all: bool, bits: &mut StateColumn, values: &ArrayRef) -> Result<()> {
        assert!(self.signs.is_none(), "bits cannot be taken back");
        let StateColumn { values: StateValues::I64(bits), valid: Some(valid), .. } = bits else {
            return Err(unexpected(values));
        };
        for_integer_type!(values.data_type(), T => {
            let values = values.as_primitive::<T>().values().iter();
            self.each(values, |slot, value, _| {
                #[allow(clippy::unnecessary_cast, reason = "not for all integer types")]
                let value = *value as i64;
                bits[slot] = match (valid[slot], all) {
                    (false, _) => value,
                    (true, true) => bits[slot] & value,
                    (true, false) => bits[slot] | value,
                };
                valid[slot] = true;
            });
            Ok(())
        }, _ => Err(unexpected(values)))
    }

    /// Keeps the value that arrived first or last; state is (value, arrival + 1). Rows are only
    /// added, in order of arrival.
    pub fn arrival(
        &self,
        last: bool,
        [value, arrival]: &mut [StateColumn; 2],
        values: &ArrayRef,
    ) -> Result<()> {
        assert!(self.signs.is_none(), "a first or last value cannot be taken back");
        let arrivals = arrival.i64s_mut();
        let mut winners: Vec<(usize, u32)> = Vec::new();
        self.each(0..values.len(), |slot, row, _| {
            let known = arrivals[slot];
            let arrived = self.arrivals[row] + 1;
            if known == 0 || (if last { arrived > known } else { arrived < known }) {
                arrivals[slot] = arrived;
                winners.push((slot, row as u32));
            }
        });
        // Of several winners of a slot the last one has won.
        winners.sort_by_key(|(slot, _)| *slot);
        let rows = winners.chunk_by(|a, b| a.0 == b.0).filter_map(|chunk| chunk.last());
        let (slots, rows): (Vec<u32>, Vec<u32>) = rows.map(|(slot, row)| (*slot as u32, *row)).unzip();
        value.store(&slots, &take(values, &UInt32Array::from(rows), None)?)
    }

    #[inline(always)]
    fn improve<V: Copy>(
        &self,
        values: impl Iterator<Item = V>,
        valid: &mut [bool],
        best: &mut [V],
        better: impl Fn(V, V) -> bool,
    ) {
        self.each(values, |slot, value, _| {
            if !valid[slot] || better(value, best[slot]) {
                valid[slot] = true;
                best[slot] = value;
            }
        });
    }

    fn improve_bytes(
        &self,
        extreme: Extreme,
        values: &ArrayRef,
        valid: &mut [bool],
        best: &mut ByteStrings,
    ) -> Result<()> {
        let improve = |slot: usize, value: &[u8], _| {
            if !valid[slot] || extreme.is_better(value.cmp(&best[slot])) {
                valid[slot] = true;
                best.set(slot, value);
            }
        };
        let rows = 0..values.len();
        match values.data_type() {
            DataType::Utf8 => {
                let values = values.as_string::<i32>();
                self.each(rows.map(|row| values.value(row).as_bytes()), improve);
            }
            DataType::Utf8View => {
                let values = values.as_string_view();
                self.each(rows.map(|row| values.value(row).as_bytes()), improve);
            }
            DataType::LargeUtf8 => {
                let values = values.as_string::<i64>();
                self.each(rows.map(|row| values.value(row).as_bytes()), improve);
            }
            _ => {
                let values = cast(values, &DataType::Binary)?;
                let values: &BinaryArray = values.as_binary();
                self.each(rows.map(|row| values.value(row)), improve);
            }
        }
        Ok(())
    }
}

/// Which end of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extreme {
    /// MIN.
    Least,
    /// MAX.
    Greatest,
}

impl Extreme {
    /// Whether a value with this order to the best one so far takes its place.
    pub(super) fn is_better(self, order: std::cmp::Ordering) -> bool {
        match self {
            Extreme::Least => order.is_lt(),
            Extreme::Greatest => order.is_gt(),
        }
    }
}

/// Whether `a` sorts above `b`: as numbers, NaN above all.
pub(super) fn float_above(a: f64, b: f64) -> bool {
    a > b || a.is_nan() && !b.is_nan()
}

/// Adds to a 192-bit integer.
pub(super) fn add_wide(sum: &mut i128, carry: &mut i64, value: i128) {
    let (total, wrapped) = sum.overflowing_add(value);
    *sum = total;
    if wrapped {
        *carry += if value > 0 { 1 } else { -1 };
    }
}

/// Adds to a float sum and keeps what rounding lost (Neumaier 1974).
pub(super) fn add_compensated(sum: &mut f64, compensation: &mut f64, value: f64) {
    let total = *sum + value;
    *compensation += if sum.abs() >= value.abs() { (*sum - total) + value } else { (value - total) + *sum };
    *sum = total;
}

pub(super) fn unexpected(values: &ArrayRef) -> Error {
    Error::internal(format!("an aggregate over values of type {}", values.data_type()))
}
