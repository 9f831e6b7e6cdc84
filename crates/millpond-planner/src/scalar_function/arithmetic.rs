//! `+`, `-`, `*`, `/`, `%` of numbers, with Flink's result types; what does not fit is an error.
//!
//! | operands | result |
//! |---|---|
//! | whole numbers | the wider of both; division is towards zero |
//! | with DECIMAL | DECIMAL: exact, rounded half away from zero where 38 digits are not enough |
//! | with FLOAT or DOUBLE | DOUBLE (FLOAT if both are, or the other is whole) |
//!
//! They are functions rather than operators of the planner's, because those wrap when they are
//! folded, and give decimals other types.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Datum, PrimitiveArray};
use arrow::compute::kernels::numeric::{add, div, mul, neg, rem, sub};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Decimal128Type, DecimalType, Field, FieldRef, i256};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond_core::{Error, Result};

use crate::plan_error::carried;
use crate::sql_type::sql_type;

/// An operation on numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// `a + b`
    Plus,
    /// `a - b`
    Minus,
    /// `a * b`
    Times,
    /// `a / b`
    Divide,
    /// `a % b`
    Remainder,
}

impl Operation {
    fn sign(self) -> &'static str {
        match self {
            Operation::Plus => "+",
            Operation::Minus => "-",
            Operation::Times => "*",
            Operation::Divide => "/",
            Operation::Remainder => "%",
        }
    }
}

/// `left operation right`.
pub(crate) fn operation(operation: Operation, left: Expr, right: Expr) -> Expr {
    let function = Arc::new(ScalarUDF::from(Arithmetic::new(operation)));
    Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![left, right]))
}

/// `MOD(a, b)`.
pub(super) fn remainder() -> ScalarUDF {
    let mut remainder = Arithmetic::new(Operation::Remainder);
    remainder.name = "mod";
    ScalarUDF::from(remainder)
}

/// `-a`.
pub(super) fn negation() -> ScalarUDF {
    ScalarUDF::from(Negation { signature: Signature::user_defined(Volatility::Immutable) })
}

/// Whether both types have an operation here.
pub(crate) fn are_numbers(left: &DataType, right: &DataType) -> bool {
    let number = |data_type: &DataType| data_type.is_numeric() || data_type.is_null();
    number(left) && number(right) && !(left.is_null() && right.is_null())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Arithmetic {
    operation: Operation,
    name: &'static str,
    signature: Signature,
}

impl Arithmetic {
    fn new(operation: Operation) -> Self {
        Self { operation, name: operation.sign(), signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn schema_name(&self, args: &[Expr]) -> Result<String, DataFusionError> {
        match (self.name, args) {
            ("mod", _) | (_, [] | [_] | [_, _, _, ..]) => {
                let args: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
                Ok(format!("{}({})", self.name, args.join(",")))
            }
            (_, [left, right]) => Ok(format!("{} {} {}", left.schema_name(), self.name, right.schema_name())),
        }
    }
    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        let types = operand_types(self.operation, given);
        types.map(Vec::from).ok_or_else(|| carried(no_numbers(self.name, given)))
    }
    fn return_type(&self, given: &[DataType]) -> Result<DataType, DataFusionError> {
        let [left, right] =
            operand_types(self.operation, given).ok_or_else(|| carried(no_numbers(self.name, given)))?;
        Ok(result_type(self.operation, &left, &right))
    }
    fn return_field_from_args(&self, given: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let types: Vec<DataType> = given.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = given.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name, self.return_type(&types)?, nullable)))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let result = arguments.return_field.data_type();
        let compute = |left: &dyn Datum, right: &dyn Datum| {
            computed(self.operation, left, right, result).map_err(carried)
        };
        match (&arguments.args[0], &arguments.args[1]) {
            (ColumnarValue::Array(left), ColumnarValue::Array(right)) => {
                Ok(ColumnarValue::Array(compute(left, right)?))
            }
            (ColumnarValue::Array(left), ColumnarValue::Scalar(right)) => {
                Ok(ColumnarValue::Array(compute(left, &right.to_scalar()?)?))
            }
            (ColumnarValue::Scalar(left), ColumnarValue::Array(right)) => {
                Ok(ColumnarValue::Array(compute(&left.to_scalar()?, right)?))
            }
            (ColumnarValue::Scalar(left), ColumnarValue::Scalar(right)) => {
                let value = compute(&left.to_array()?, &right.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&value, 0)?))
            }
        }
    }
}

fn no_numbers(name: &str, given: &[DataType]) -> Error {
    let given: Vec<String> = given.iter().map(sql_type).collect();
    match given.as_slice() {
        [left, right] if name != "mod" => {
            Error::invalid(format!("{left} {name} {right} is not defined")).with_hint("CAST one of them")
        }
        _ => Error::invalid(format!("there is no function {}({})", name.to_uppercase(), given.join(", "))),
    }
}

/// The types in which two numbers are computed.
fn operand_types(operation: Operation, given: &[DataType]) -> Option<[DataType; 2]> {
    let [left, right] = given else { return None };
    let (left, right) = match (left.is_null(), right.is_null()) {
        (true, true) => (DataType::Int32, DataType::Int32),
        (true, false) => (right.clone(), right.clone()),
        (false, true) => (left.clone(), left.clone()),
        (false, false) => (left.clone(), right.clone()),
    };
    if !left.is_numeric() || !right.is_numeric() {
        return None;
    }
    if left.is_floating() || right.is_floating() {
        let small = |side: &DataType| side.is_integer() || *side == DataType::Float32;
        let float = if small(&left) && small(&right) { DataType::Float32 } else { DataType::Float64 };
        return Some([float.clone(), float]);
    }
    if left.is_integer() && right.is_integer() {
        let rank =
            |side: &DataType| if side.is_unsigned_integer() { Some(8) } else { side.primitive_width() };
        let wider = if rank(&left) >= rank(&right) { left } else { right };
        let wider = if wider.is_unsigned_integer() { DataType::Int64 } else { wider };
        return Some([wider.clone(), wider]);
    }
    let (left, right) = (as_decimal(&left)?, as_decimal(&right)?);
    if matches!(operation, Operation::Plus | Operation::Minus | Operation::Remainder) {
        return Some([left, right]);
    }
    Some([left, right])
}

fn as_decimal(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Int8 => DataType::Decimal128(3, 0),
        DataType::Int16 => DataType::Decimal128(5, 0),
        DataType::Int32 => DataType::Decimal128(10, 0),
        DataType::Int64 => DataType::Decimal128(19, 0),
        other if other.is_integer() => DataType::Decimal128(20, 0),
        DataType::Decimal128(p, s) => DataType::Decimal128(*p, *s),
        DataType::Decimal256(_, s) => DataType::Decimal128(38, *s),
        _ => return None,
    })
}

/// Of numbers that are computed in these types.
fn result_type(operation: Operation, left: &DataType, right: &DataType) -> DataType {
    let (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) = (left, right) else { return left.clone() };
    let (p, s, q, t) = (i16::from(*p), i16::from(*s), i16::from(*q), i16::from(*t));
    let (precision, scale) = match operation {
        Operation::Plus | Operation::Minus => (s.max(t) + (p - s).max(q - t) + 1, s.max(t)),
        Operation::Times => (p + q, s + t),
        Operation::Divide => {
            let scale = 6.max(s + q + 1);
            (p - s + t + scale, scale)
        }
        // As Calcite: of the larger scale, and as many digits as the smaller has before the point.
        Operation::Remainder => ((p - s).min(q - t) + s.max(t), s.max(t)),
    };
    let (precision, scale) = adjusted(precision, scale);
    DataType::Decimal128(precision as u8, scale as i8)
}

/// Where more than 38 digits were needed: those before the point stay, of those behind it at least 6.
fn adjusted(precision: i16, scale: i16) -> (i16, i16) {
    if precision <= 38 {
        return (precision.max(1), scale);
    }
    let whole = precision - scale;
    (38, (38 - whole).max(scale.min(6)))
}

fn computed(
    operation: Operation,
    left: &dyn Datum,
    right: &dyn Datum,
    result: &DataType,
) -> Result<ArrayRef> {
    if let DataType::Decimal128(precision, scale) = result {
        return decimals(operation, left, right, *precision, *scale);
    }
    let computed = match operation {
        Operation::Plus => add(left, right),
        Operation::Minus => sub(left, right),
        Operation::Times => mul(left, right),
        Operation::Divide => div(left, right),
        Operation::Remainder => rem(left, right),
    };
    computed.map_err(|error| match error {
        ArrowError::DivideByZero => division_by_zero(),
        ArrowError::ArithmeticOverflow(what) => {
            let what = what.trim_start_matches("Overflow happened on: ");
            Error::data(format!("{what} overflows {}", sql_type(result)))
                .with_hint("CAST an operand to a wider type, such as BIGINT or DECIMAL(38, 0)")
        }
        other => Error::from(other),
    })
}

fn division_by_zero() -> Error {
    Error::data("division by zero").with_hint("NULLIF(divisor, 0) gives NULL instead")
}

/// One operand of an operation on decimals.
struct Decimals<'a> {
    values: &'a PrimitiveArray<Decimal128Type>,
    mask: usize,
    scale: i8,
}

impl<'a> Decimals<'a> {
    fn new(datum: &'a dyn Datum) -> Result<Self> {
        let (values, is_scalar) = datum.get();
        let values = values
            .as_primitive_opt::<Decimal128Type>()
            .ok_or_else(|| Error::internal(format!("{} is no DECIMAL", values.data_type())))?;
        Ok(Self { values, mask: if is_scalar { 0 } else { usize::MAX }, scale: values.scale() })
    }

    fn at(&self, row: usize) -> Option<i128> {
        let place = row & self.mask;
        self.values.is_valid(place).then(|| self.values.value(place))
    }
}

fn decimals(
    operation: Operation,
    left: &dyn Datum,
    right: &dyn Datum,
    precision: u8,
    scale: i8,
) -> Result<ArrayRef> {
    let (left, right) = (Decimals::new(left)?, Decimals::new(right)?);
    let rows = match (left.mask, right.mask) {
        (0, 0) => 1,
        (0, _) => right.values.len(),
        _ => left.values.len(),
    };
    let compute = |row: usize| -> Result<Option<i128>> {
        let Some((a, b)) = left.at(row).zip(right.at(row)) else { return Ok(None) };
        let value = decimal(operation, (a, left.scale), (b, right.scale), scale)?;
        let value = value.filter(|value| Decimal128Type::is_valid_decimal_precision(*value, precision));
        value.map(Some).ok_or_else(|| {
            let shown = |value, scale| Decimal128Type::format_decimal(value, 38, scale);
            let (a, b, sign) = (shown(a, left.scale), shown(b, right.scale), operation.sign());
            Error::data(format!("{a} {sign} {b} overflows DECIMAL({precision}, {scale})"))
        })
    };
    let values = (0..rows).map(compute).collect::<Result<PrimitiveArray<Decimal128Type>>>()?;
    Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
}

/// The value at the result's scale; `None` if it does not fit.
fn decimal(operation: Operation, a: (i128, i8), b: (i128, i8), scale: i8) -> Result<Option<i128>> {
    if b.0 == 0 && matches!(operation, Operation::Divide | Operation::Remainder) {
        return Err(division_by_zero());
    }
    if let Some(quick) = quick_decimal(operation, a, b, scale) {
        return Ok(Some(quick));
    }
    let power = |digits: i32| i256::from_i128(10).checked_pow(digits.unsigned_abs());
    let aligned = |(value, own): (i128, i8), to: i8| -> Option<i256> {
        i256::from_i128(value).checked_mul(power(i32::from(to) - i32::from(own))?)
    };
    let wide = || -> Option<i128> {
        let common = a.1.max(b.1);
        let (value, own) = match operation {
            Operation::Plus => (aligned(a, common)?.checked_add(aligned(b, common)?)?, i32::from(common)),
            Operation::Minus => (aligned(a, common)?.checked_sub(aligned(b, common)?)?, i32::from(common)),
            Operation::Times => {
                let product = i256::from_i128(a.0).checked_mul(i256::from_i128(b.0))?;
                (product, i32::from(a.1) + i32::from(b.1))
            }
            Operation::Remainder => {
                (aligned(a, common)?.checked_rem(aligned(b, common)?)?, i32::from(common))
            }
            Operation::Divide => {
                // a / b at the result's scale: shift a so that the quotient has it.
                let shift = i32::from(scale) + i32::from(b.1) - i32::from(a.1);
                let (mut dividend, mut divisor) = (i256::from_i128(a.0), i256::from_i128(b.0));
                match shift {
                    0.. => dividend = dividend.checked_mul(power(shift)?)?,
                    _ => divisor = divisor.checked_mul(power(shift)?)?,
                }
                return rounded_division(dividend, divisor)?.to_i128();
            }
        };
        let surplus = own - i32::from(scale);
        match surplus {
            0 => value.to_i128(),
            1.. => rounded_division(value, power(surplus)?)?.to_i128(),
            _ => value.checked_mul(power(surplus)?)?.to_i128(),
        }
    };
    Ok(wide())
}

/// Sums and products that need neither rounding nor more than 128 bits.
fn quick_decimal(operation: Operation, a: (i128, i8), b: (i128, i8), scale: i8) -> Option<i128> {
    match operation {
        Operation::Plus if a.1 == b.1 && a.1 == scale => a.0.checked_add(b.0),
        Operation::Minus if a.1 == b.1 && a.1 == scale => a.0.checked_sub(b.0),
        Operation::Times if i16::from(a.1) + i16::from(b.1) == i16::from(scale) => a.0.checked_mul(b.0),
        _ => None,
    }
}

/// The quotient, rounded half away from zero.
fn rounded_division(dividend: i256, divisor: i256) -> Option<i256> {
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend.checked_rem(divisor)?;
    let two = i256::from_i128(2);
    let away = rest.wrapping_abs().checked_mul(two)? >= divisor.wrapping_abs();
    if !away {
        return Some(quotient);
    }
    let negative = (dividend < i256::ZERO) != (divisor < i256::ZERO);
    let one = i256::from_i128(1);
    if negative { quotient.checked_sub(one) } else { quotient.checked_add(one) }
}

/// `-a`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Negation {
    signature: Signature,
}

impl ScalarUDFImpl for Negation {
    fn name(&self) -> &str {
        "negate"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        match given {
            [DataType::Null] => Ok(vec![DataType::Int32]),
            [number @ (DataType::Interval(_) | DataType::Decimal128(_, _))] => Ok(vec![number.clone()]),
            [number] if number.is_numeric() => Ok(vec![match number.is_unsigned_integer() {
                true => DataType::Int64,
                false => number.clone(),
            }]),
            _ => {
                let given: Vec<String> = given.iter().map(sql_type).collect();
                Err(carried(Error::invalid(format!("-{} is not defined", given.join(", ")))))
            }
        }
    }
    fn return_type(&self, given: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.coerce_types(given)?.swap_remove(0))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let data_type = arguments.return_field.data_type().clone();
        let negated = |values: &ArrayRef| {
            let values = match *values.data_type() == data_type {
                true => Arc::clone(values),
                false => cast_with_options(values, &data_type, &CastOptions::default())?,
            };
            neg(&values).map_err(|error| match error {
                ArrowError::ArithmeticOverflow(_) => {
                    carried(Error::data(format!("- overflows {}", sql_type(&data_type))))
                }
                other => DataFusionError::from(other),
            })
        };
        Ok(match &arguments.args[0] {
            ColumnarValue::Array(values) => ColumnarValue::Array(negated(values)?),
            ColumnarValue::Scalar(value) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&negated(&value.to_array()?)?, 0)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_types_are_flinks() {
        let d = DataType::Decimal128;
        let cases = [
            (Operation::Plus, d(10, 2), d(10, 3), d(12, 3)),
            (Operation::Times, d(10, 2), d(10, 3), d(20, 5)),
            (Operation::Divide, d(10, 2), d(10, 3), d(24, 13)),
            (Operation::Divide, d(38, 10), d(38, 10), d(38, 6)),
            (Operation::Times, d(38, 10), d(38, 10), d(38, 6)),
            (Operation::Remainder, d(10, 2), d(5, 3), d(5, 3)),
        ];
        for (operation, left, right, expected) in cases {
            assert_eq!(result_type(operation, &left, &right), expected, "{operation:?} {left} {right}");
        }
        let types = |left, right| operand_types(Operation::Plus, &[left, right]);
        assert_eq!(types(DataType::Int32, DataType::Int64), Some([DataType::Int64, DataType::Int64]));
        assert_eq!(types(DataType::Int64, d(5, 2)), Some([d(19, 0), d(5, 2)]));
        assert_eq!(types(DataType::Utf8, DataType::Int64), None);
    }

    #[test]
    fn decimals_are_rounded_half_away_from_zero() {
        let compute = |operation, a, b, scale| decimal(operation, a, b, scale).unwrap();
        assert_eq!(compute(Operation::Divide, (100, 2), (300, 2), 6), Some(333_333));
        assert_eq!(compute(Operation::Divide, (200, 2), (-300, 2), 6), Some(-666_667));
        assert_eq!(compute(Operation::Times, (15, 1), (3, 1), 1), Some(5));
        assert_eq!(compute(Operation::Plus, (1, 0), (5, 1), 1), Some(15));
        assert_eq!(compute(Operation::Remainder, (-75, 1), (2, 0), 1), Some(-15));
        assert_eq!(compute(Operation::Times, (i128::MAX, 0), (10, 0), 0), None);
        assert!(decimal(Operation::Divide, (1, 0), (0, 0), 6).is_err());
    }
}
