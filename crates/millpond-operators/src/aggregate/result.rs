//! Results: from state columns to the values that are emitted, where overflow is judged.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int64Array, PrimitiveArray,
};
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, i256};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_core::{Error, Result};
use millpond_state::{StateColumn, for_integer_type};

use super::function::AggregateFunction;
use super::moment;
use super::set::{AggregateSet, BoundCall};
use super::side::SideRef;
use super::state::Form;

/// The first unscaled value with more digits than a decimal may have.
const DECIMAL_BOUND: u128 = 10u128.pow(DECIMAL128_MAX_PRECISION as u32);

impl AggregateSet {
    /// The results of the groups at `slots`, one column per call. `sides` are the side tables; `keys` gives the key columns of
    /// a group, for messages.
    ///
    /// Errors: *Data* for a sum that does not fit its type, with the call and the group.
    pub fn results(
        &self,
        columns: &[StateColumn],
        sides: &[SideRef<'_>],
        slots: &[u32],
        keys: impl Fn(u32) -> Result<Vec<(String, ArrayRef)>>,
    ) -> Result<Vec<ArrayRef>> {
        let result = |bound: &BoundCall| {
            let several = |row: usize| several(bound, keys(slots[row]));
            match (bound.form, bound.source) {
                (Form::Values, Some(source)) => bound.of_values(sides[source.side], slots),
                (Form::Rows, Some(source)) => bound.of_rows(sides[source.side], slots, several),
                _ => bound.result(columns, slots).map_err(|failure| match failure {
                    Failure::Overflow { row, value } => overflow(bound, &value, keys(slots[row])),
                    Failure::Other(error) => error,
                }),
            }
        };
        self.calls.iter().map(result).collect()
    }
}

enum Failure {
    Overflow { row: usize, value: String },
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}

impl BoundCall {
    fn result(&self, columns: &[StateColumn], slots: &[u32]) -> Result<ArrayRef, Failure> {
        match self.form {
            Form::Count => {
                let [counts] = self.state::<1>(columns);
                let counts = counts.i64s();
                Ok(Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| counts[*slot as usize]))))
            }
            Form::IntegerSum => self.integers(self.state(columns), slots),
            Form::DecimalSum => self.decimals(self.state(columns), slots),
            Form::FloatSum => Ok(self.floats(self.state(columns), slots)),
            Form::Moments { .. } => self.moments(self.columns(columns), slots),
            Form::Truths => Ok(self.truths(self.state(columns), slots)),
            Form::Xor => {
                let [bits, rows] = self.state(columns);
                let (bits, rows) = (bits.i64s(), rows.i64s());
                let values = slots.iter().map(|slot| *slot as usize);
                let values = values.map(|slot| (rows[slot] != 0).then_some(bits[slot]));
                Ok(cast(&values.collect::<Int64Array>(), &self.call.output_type).map_err(Error::from)?)
            }
            Form::Extreme(_) | Form::Bits { .. } => Ok(self.state::<1>(columns)[0].gather(slots)?),
            Form::Arrival { .. } => Ok(self.state::<2>(columns)[0].gather(slots)?),
            Form::Values | Form::Rows => Err(Error::internal("a result without its table").into()),
        }
    }

    fn is_average(&self) -> bool {
        self.is(&AggregateFunction::Avg)
    }

    fn moments(&self, state: &[StateColumn], slots: &[u32]) -> Result<ArrayRef, Failure> {
        match &self.call.function {
            AggregateFunction::Moment(moment) => Ok(moment::of_one(*moment, state, slots)),
            AggregateFunction::CoMoment(moment) => Ok(moment::of_two(*moment, state, slots)),
            other => Err(Error::internal(format!("{other} is not made of moments")).into()),
        }
    }

    fn truths(&self, [rows, truths]: &[StateColumn; 2], slots: &[u32]) -> ArrayRef {
        let (rows, truths) = (rows.i64s(), truths.i64s());
        let all = self.is(&AggregateFunction::BoolAnd);
        let value = |slot: &u32| {
            let (rows, truths) = (rows[*slot as usize], truths[*slot as usize]);
            (rows > 0).then_some(if all { truths == rows } else { truths > 0 })
        };
        Arc::new(slots.iter().map(value).collect::<BooleanArray>())
    }

    fn integers(&self, [sums, rows]: &[StateColumn; 2], slots: &[u32]) -> Result<ArrayRef, Failure> {
        let (sums, rows) = (sums.i128s(), rows.i64s());
        for_integer_type!(&self.call.output_type, T => {
            type Native = <T as ArrowPrimitiveType>::Native;
            let mut values: Vec<Option<Native>> = Vec::with_capacity(slots.len());
            for (row, slot) in slots.iter().map(|slot| *slot as usize).enumerate() {
                if rows[slot] == 0 {
                    values.push(None);
                    continue;
                }
                // Division of integers truncates toward zero.
                let value = if self.is_average() { sums[slot] / i128::from(rows[slot]) } else { sums[slot] };
                let fits = Native::try_from(value);
                values.push(Some(fits.map_err(|_| Failure::Overflow { row, value: value.to_string() })?));
            }
            let values: PrimitiveArray<T> = values.into_iter().collect();
            Ok(Arc::new(values.with_data_type(self.call.output_type.clone())))
        }, _ => Err(Error::internal(format!("an integer sum of type {}", self.call.output_type)).into()))
    }

    fn decimals(&self, state: &[StateColumn; 3], slots: &[u32]) -> Result<ArrayRef, Failure> {
        let [sums, rows, carries] = state;
        let factor = self.decimal_factor(sums.data_type())?;
        let (sums, rows, carries) = (sums.i128s(), rows.i64s(), carries.i64s());
        let mut values = Vec::with_capacity(slots.len());
        for (row, slot) in slots.iter().map(|slot| *slot as usize).enumerate() {
            if rows[slot] == 0 {
                values.push(None);
                continue;
            }
            let sum = wide(sums[slot], carries[slot]);
            let value =
                if self.is_average() { divide_half_up(sum.wrapping_mul(factor), rows[slot]) } else { sum };
            let fits = value.to_i128().filter(|value| value.unsigned_abs() < DECIMAL_BOUND);
            values.push(Some(fits.ok_or_else(|| Failure::Overflow { row, value: value.to_string() })?));
        }
        Ok(Arc::new(Decimal128Array::from(values).with_data_type(self.call.output_type.clone())))
    }

    /// 10 to the digits that the result has after the point more than the sum.
    fn decimal_factor(&self, sum: &DataType) -> Result<i256> {
        match (sum, &self.call.output_type) {
            (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) if to >= from => {
                Ok(i256::from_i128(10i128.pow(u32::from(to.abs_diff(*from)))))
            }
            (from, to) => Err(Error::internal(format!("a decimal sum of type {from} as {to}"))),
        }
    }

    fn floats(&self, state: &[StateColumn; 6], slots: &[u32]) -> ArrayRef {
        let [sums, compensations, rows, nans, positives, negatives] = state;
        let (sums, compensations, rows) = (sums.f64s(), compensations.f64s(), rows.i64s());
        let (nans, positives, negatives) = (nans.i64s(), positives.i64s(), negatives.i64s());
        let values = slots.iter().map(|slot| *slot as usize).map(|slot| {
            if rows[slot] == 0 {
                return None;
            }
            let sum = match (nans[slot] > 0, positives[slot] > 0, negatives[slot] > 0) {
                (true, _, _) | (_, true, true) => f64::NAN,
                (_, true, _) => f64::INFINITY,
                (_, _, true) => f64::NEG_INFINITY,
                // A finite sum beyond the range of floats is infinite; its compensation means nothing.
                _ if sums[slot].is_infinite() => sums[slot],
                _ => sums[slot] + compensations[slot],
            };
            Some(if self.is_average() { sum / rows[slot] as f64 } else { sum })
        });
        match self.call.output_type {
            DataType::Float32 => {
                Arc::new(values.map(|value| value.map(|value| value as f32)).collect::<Float32Array>())
            }
            _ => Arc::new(values.collect::<Float64Array>()),
        }
    }
}

fn wide(sum: i128, carry: i64) -> i256 {
    let carried = i256::from_parts(0, i128::from(carry));
    i256::from_i128(sum).wrapping_add(carried)
}

/// Rounds halves away from zero, as SQL's decimals do.
fn divide_half_up(value: i256, rows: i64) -> i256 {
    let divisor = i256::from_i128(i128::from(rows));
    let quotient = value.wrapping_div(divisor);
    let rest = value.wrapping_rem(divisor);
    let doubled = rest.wrapping_abs().wrapping_add(rest.wrapping_abs());
    if doubled < divisor.wrapping_abs() {
        quotient
    } else if (value < i256::ZERO) == (rows < 0) {
        quotient.wrapping_add(i256::ONE)
    } else {
        quotient.wrapping_sub(i256::ONE)
    }
}

fn overflow(bound: &BoundCall, value: &str, keys: Result<Vec<(String, ArrayRef)>>) -> Error {
    let call = &bound.call;
    let group = keys.and_then(|keys| describe_group(&keys));
    let group = group.unwrap_or_else(|error| format!("a group that cannot be shown ({error})"));
    Error::data(format!("{} does not fit {}", call.name, call.output_type))
        .with_detail(format!("its exact value is {value} (unscaled) in {group}"))
        .with_hint("cast the argument to a wider type, for example CAST(... AS DECIMAL(38, 0))")
}

fn several(bound: &BoundCall, keys: Result<Vec<(String, ArrayRef)>>) -> Error {
    let group = keys.and_then(|keys| describe_group(&keys));
    let group = group.unwrap_or_else(|error| format!("a group that cannot be shown ({error})"));
    Error::data(format!("{} has more than one row", bound.call.name)).with_detail(group)
}

/// `group k = 1, name = a`, from key columns of one row.
pub(crate) fn describe_group(keys: &[(String, ArrayRef)]) -> Result<String> {
    if keys.is_empty() {
        return Ok("the only group".into());
    }
    let options = FormatOptions::new().with_null("NULL");
    let key = |(name, column): &(String, ArrayRef)| -> Result<String, ArrowError> {
        let formatter = ArrayFormatter::try_new(column, &options)?;
        Ok(format!("{name} = {}", formatter.value(0)))
    };
    let keys: Vec<String> = keys.iter().map(key).collect::<Result<_, _>>()?;
    Ok(format!("group {}", keys.join(", ")))
}
