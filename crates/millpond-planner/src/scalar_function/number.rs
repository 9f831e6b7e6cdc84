//! Functions of numbers. DECIMAL stays exact; what does not fit its type is an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, DecimalType, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type,
};
use datafusion::common::ScalarValue;
use millpond_core::random::Random;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition};
use crate::sql_type::sql_type;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    let mut all = vec![
        f("POWER(base DOUBLE, exponent DOUBLE) -> DOUBLE", |c| paired(c, f64::powf)).alias("pow"),
        f("ATAN2(y DOUBLE, x DOUBLE) -> DOUBLE", |c| paired(c, f64::atan2)),
        f("LOG(number DOUBLE [, number DOUBLE]) -> DOUBLE", |c| match c.len() {
            1 => mapped(c, f64::ln),
            _ => paired(c, |base, number| number.ln() / base.ln()),
        }),
        f("PI() -> DOUBLE", |c| c.doubles(|_| Some(std::f64::consts::PI))),
        f("E() -> DOUBLE", |c| c.doubles(|_| Some(std::f64::consts::E))),
        f("ABS(number NUMBER)", |c| signed(c, Sign::Abs)).gives(same),
        f("SIGN(number NUMBER)", |c| signed(c, Sign::Sign)).gives(same).alias("signum"),
        f("CEIL(number NUMBER)", |c| rounded(c, Rounding::Up)).gives(whole).alias("ceiling"),
        f("FLOOR(number NUMBER)", |c| rounded(c, Rounding::Down)).gives(whole),
        f("ROUND(number NUMBER [, digits INT])", |c| rounded(c, Rounding::HalfUp)).gives(with_digits),
        f("TRUNCATE(number NUMBER [, digits INT])", |c| rounded(c, Rounding::ToZero))
            .gives(with_digits)
            .alias("trunc"),
        f("RAND([seed INT]) -> DOUBLE", |c| {
            let seed = seed(c, 0)?;
            c.doubles(|row| Some(number_of_row(seed, row).unit_f64()))
        })
        .volatile(),
        f("RAND_INTEGER(bound INT [, bound INT]) -> INT", |c| {
            let bound = c.int(c.len() - 1)?;
            let seed = if c.len() == 2 { seed(c, 0)? } else { fresh_seed() };
            c.ints(|row| {
                let below = |bound: i64| number_of_row(seed, row).below(bound.max(0) as u64) as i64;
                Ok(bound.at(row).map(below))
            })
        })
        .volatile(),
        f("UUID() -> STRING", |c| {
            let seed = fresh_seed();
            c.texts(|row| Some(uuid(number_of_row(seed, row))))
        })
        .volatile(),
        f("BIN(number INT) -> STRING", |c| {
            let number = c.int(0)?;
            c.texts(|row| Some(format!("{:b}", number.at(row)?)))
        }),
    ];
    macro_rules! doubles {
        ($($usage:literal $function:expr;)*) => {
            $(all.push(f($usage, |c| mapped(c, $function)));)*
        };
    }
    doubles! {
        "SQRT(number DOUBLE) -> DOUBLE" f64::sqrt;
        "CBRT(number DOUBLE) -> DOUBLE" f64::cbrt;
        "EXP(number DOUBLE) -> DOUBLE" f64::exp;
        "LN(number DOUBLE) -> DOUBLE" f64::ln;
        "LOG2(number DOUBLE) -> DOUBLE" f64::log2;
        "LOG10(number DOUBLE) -> DOUBLE" f64::log10;
        "SIN(angle DOUBLE) -> DOUBLE" f64::sin;
        "COS(angle DOUBLE) -> DOUBLE" f64::cos;
        "TAN(angle DOUBLE) -> DOUBLE" f64::tan;
        "COT(angle DOUBLE) -> DOUBLE" |angle: f64| 1.0 / angle.tan();
        "SINH(angle DOUBLE) -> DOUBLE" f64::sinh;
        "COSH(angle DOUBLE) -> DOUBLE" f64::cosh;
        "TANH(angle DOUBLE) -> DOUBLE" f64::tanh;
        "ASIN(number DOUBLE) -> DOUBLE" f64::asin;
        "ACOS(number DOUBLE) -> DOUBLE" f64::acos;
        "ATAN(number DOUBLE) -> DOUBLE" f64::atan;
        "DEGREES(angle DOUBLE) -> DOUBLE" f64::to_degrees;
        "RADIANS(angle DOUBLE) -> DOUBLE" f64::to_radians;
    }
    all
}

fn mapped(call: &Call<'_>, map: impl Fn(f64) -> f64) -> Result<ArrayRef> {
    let number = call.double(0)?;
    call.doubles(|row| number.at(row).map(&map))
}

fn paired(call: &Call<'_>, map: impl Fn(f64, f64) -> f64) -> Result<ArrayRef> {
    let (a, b) = (call.double(0)?, call.double(1)?);
    call.doubles(|row| Some(map(a.at(row)?, b.at(row)?)))
}

fn same(types: &[DataType], _: &[Option<ScalarValue>]) -> Result<DataType> {
    Ok(if types[0].is_null() { DataType::Int32 } else { types[0].clone() })
}

fn whole(types: &[DataType], constants: &[Option<ScalarValue>]) -> Result<DataType> {
    Ok(match types[0] {
        DataType::Decimal128(precision, _) => DataType::Decimal128(precision, 0),
        _ => same(types, constants)?,
    })
}

/// The type of a number rounded to a constant number of digits.
fn with_digits(types: &[DataType], constants: &[Option<ScalarValue>]) -> Result<DataType> {
    let DataType::Decimal128(precision, scale) = types[0] else { return same(types, constants) };
    let digits = match (types.len(), constants.get(1)) {
        (1, _) => 0,
        (_, Some(Some(digits))) => match digits.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(digits))) => digits,
            _ => i64::from(scale),
        },
        _ => i64::from(scale),
    };
    let (precision, scale) = (i64::from(precision), i64::from(scale));
    let (precision, scale) = match digits {
        digits if digits >= scale => (precision, scale),
        digits if digits < 0 => (1 + precision - scale, 0),
        digits => (1 + precision - scale + digits, digits),
    };
    Ok(DataType::Decimal128(precision.min(38) as u8, scale as i8))
}

#[derive(Clone, Copy)]
enum Sign {
    Abs,
    Sign,
}

fn signed(call: &Call<'_>, sign: Sign) -> Result<ArrayRef> {
    macro_rules! of_integer {
        ($type:ty) => {
            mapped_integer::<$type>(call, |number| match sign {
                Sign::Abs => number.checked_abs(),
                Sign::Sign => Some(number.signum()),
            })
        };
    }
    macro_rules! of_float {
        ($type:ty) => {{
            let numbers = call.column(0)?;
            let numbers: PrimitiveArray<$type> = numbers.as_primitive::<$type>().unary(|number| match sign {
                Sign::Abs => number.abs(),
                Sign::Sign if number == 0.0 => number,
                Sign::Sign => number.signum(),
            });
            Ok(Arc::new(numbers))
        }};
    }
    match call.data_type(0) {
        DataType::Int8 => of_integer!(Int8Type),
        DataType::Int16 => of_integer!(Int16Type),
        DataType::Int32 => of_integer!(Int32Type),
        DataType::Int64 => of_integer!(Int64Type),
        DataType::Float32 => of_float!(Float32Type),
        DataType::Float64 => of_float!(Float64Type),
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            let one = 10i128.pow(u32::from(scale.unsigned_abs()));
            let numbers = call.column(0)?;
            let numbers = numbers.as_primitive::<Decimal128Type>().unary(|number: i128| match sign {
                Sign::Abs => number.abs(),
                Sign::Sign => number.signum() * one,
            });
            decimals(numbers, precision, scale)
        }
        other => Err(no_number(other)),
    }
}

fn mapped_integer<T: ArrowPrimitiveType>(
    call: &Call<'_>,
    map: impl Fn(T::Native) -> Option<T::Native>,
) -> Result<ArrayRef> {
    let numbers = call.column(0)?;
    let name = sql_type(&T::DATA_TYPE);
    let mapped: PrimitiveArray<T> = numbers.as_primitive::<T>().try_unary(|number| {
        map(number).ok_or_else(|| Error::data(format!("{name} overflow at the number {number:?}")))
    })?;
    Ok(Arc::new(mapped))
}

fn decimals(values: PrimitiveArray<Decimal128Type>, precision: u8, scale: i8) -> Result<ArrayRef> {
    let fits = |value: i128| Decimal128Type::is_valid_decimal_precision(value, precision);
    if let Some(value) = values.iter().flatten().find(|value| !fits(*value)) {
        let shown = Decimal128Type::format_decimal(value, 38, scale);
        return Err(Error::data(format!("{shown} is out of range of DECIMAL({precision}, {scale})")));
    }
    Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
}

fn no_number(data_type: &DataType) -> Error {
    Error::internal(format!("{} is no number", sql_type(data_type)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Up,
    Down,
    HalfUp,
    ToZero,
}

fn rounded(call: &Call<'_>, rounding: Rounding) -> Result<ArrayRef> {
    let digits = call.optional_int(1)?;
    let digits_at = |row| digits.map_or(Some(0), |digits| digits.at(row));
    macro_rules! of_integer {
        ($type:ty) => {{
            let numbers = call.column(0)?;
            let numbers = numbers.as_primitive::<$type>();
            let round = |row: usize| -> Result<Option<_>> {
                let Some(digits) = digits_at(row).filter(|_| arrow::array::Array::is_valid(numbers, row))
                else {
                    return Ok(None);
                };
                let number = i128::from(numbers.value(row));
                let number = round_scaled(number, 0, digits, rounding);
                number.try_into().map(Some).map_err(|_| {
                    Error::data(format!("{number} is out of range of {}", sql_type(&<$type>::DATA_TYPE)))
                })
            };
            let rounded = (0..call.rows).map(round).collect::<Result<PrimitiveArray<$type>>>()?;
            Ok(Arc::new(rounded))
        }};
    }
    macro_rules! of_float {
        ($type:ty) => {{
            let numbers = call.column(0)?;
            let numbers = numbers.as_primitive::<$type>();
            let round = |row: usize| {
                let digits = digits_at(row).filter(|_| arrow::array::Array::is_valid(numbers, row))?;
                Some(round_float(numbers.value(row).into(), digits, rounding) as _)
            };
            let rounded = (0..call.rows).map(round).collect::<PrimitiveArray<$type>>();
            Ok(Arc::new(rounded))
        }};
    }
    match call.data_type(0) {
        DataType::Int8 => of_integer!(Int8Type),
        DataType::Int16 => of_integer!(Int16Type),
        DataType::Int32 => of_integer!(Int32Type),
        DataType::Int64 => of_integer!(Int64Type),
        DataType::Float32 => of_float!(Float32Type),
        DataType::Float64 => of_float!(Float64Type),
        DataType::Decimal128(_, scale) => {
            let DataType::Decimal128(precision, result_scale) = *call.result else {
                return Err(no_number(call.result));
            };
            let (scale, numbers) = (*scale, call.column(0)?);
            let numbers = numbers.as_primitive::<Decimal128Type>();
            let round = |row: usize| {
                let digits = digits_at(row).filter(|_| arrow::array::Array::is_valid(numbers, row))?;
                let rounded = round_scaled(numbers.value(row), scale, digits, rounding);
                Some(rounded / 10i128.pow(u32::from((scale - result_scale).unsigned_abs())))
            };
            decimals((0..call.rows).map(round).collect(), precision, result_scale)
        }
        other => Err(no_number(other)),
    }
}

/// A number of so many decimal places, rounded to fewer, but with the places kept.
fn round_scaled(number: i128, scale: i8, digits: i64, rounding: Rounding) -> i128 {
    let dropped = i64::from(scale) - digits;
    let Some(step) = u32::try_from(dropped).ok().filter(|dropped| *dropped > 0) else { return number };
    let Some(step) = 10i128.checked_pow(step) else { return 0 };
    let rest = number % step;
    let cut = number - rest;
    let away = match rounding {
        Rounding::ToZero => false,
        Rounding::HalfUp => rest.unsigned_abs() * 2 >= step.unsigned_abs(),
        Rounding::Up => rest > 0,
        Rounding::Down => rest < 0,
    };
    if away { cut + step * number.signum() } else { cut }
}

/// Rounds the decimal number that the shortest text of a float shows, as Java's BigDecimal does.
fn round_float(number: f64, digits: i64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Up => return number.ceil(),
        Rounding::Down => return number.floor(),
        Rounding::ToZero if digits == 0 => return number.trunc(),
        Rounding::HalfUp | Rounding::ToZero => {}
    }
    if !number.is_finite() || digits > 300 {
        return number;
    }
    let text = format!("{number:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return number };
    let places = mantissa.split_once('.').map_or(0, |(_, places)| places.len()) as i64;
    let (Ok(exponent), Ok(all)) = (exponent.parse::<i64>(), mantissa.replace('.', "").parse::<i128>()) else {
        return number;
    };
    // number = all × 10^(exponent − places)
    let scale = places - exponent;
    if scale <= digits {
        return number;
    }
    let rounded = match u32::try_from(scale - digits).ok().and_then(|dropped| 10i128.checked_pow(dropped)) {
        None => 0,
        Some(step) => {
            let rest = all % step;
            let away = rounding == Rounding::HalfUp && rest.unsigned_abs() * 2 >= step.unsigned_abs();
            (all - rest) / step + if away { all.signum() } else { 0 }
        }
    };
    format!("{rounded}e{}", -digits).parse().unwrap_or(number)
}

static SEEDS: AtomicU64 = AtomicU64::new(0);

/// Another seed for each batch.
fn fresh_seed() -> u64 {
    let count = SEEDS.fetch_add(1, Ordering::Relaxed);
    Random::fresh().next_u64() ^ count
}

fn seed(call: &Call<'_>, argument: usize) -> Result<u64> {
    match call.optional_int(argument)? {
        Some(seed) if call.rows > 0 => Ok(seed.at(0).map_or_else(fresh_seed, |seed| seed as u64)),
        Some(_) | None => Ok(fresh_seed()),
    }
}

/// The generator of one row of a batch.
fn number_of_row(seed: u64, row: usize) -> Random {
    let mut mixed = Random::seeded(seed.wrapping_add((row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    Random::seeded(mixed.next_u64())
}

/// A random UUID, version 4.
fn uuid(mut random: Random) -> String {
    let (high, low) = (random.next_u64(), random.next_u64());
    let high = high & 0xffff_ffff_ffff_0fff | 0x4000;
    let low = low & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_away_from_zero() {
        assert_eq!(round_scaled(1005, 3, 2, Rounding::HalfUp), 1010);
        assert_eq!(round_scaled(-1005, 3, 2, Rounding::HalfUp), -1010);
        assert_eq!(round_scaled(-1005, 3, 2, Rounding::ToZero), -1000);
        assert_eq!(round_scaled(-1005, 3, 0, Rounding::Down), -2000);
        assert_eq!(round_scaled(155, 0, -1, Rounding::HalfUp), 160);
        assert_eq!(round_scaled(155, 0, -60, Rounding::HalfUp), 0);
        assert_eq!(round_float(2.675, 2, Rounding::HalfUp), 2.68);
        assert_eq!(round_float(-2.5, 0, Rounding::HalfUp), -3.0);
        assert_eq!(round_float(42.324, 2, Rounding::ToZero), 42.32);
        assert_eq!(round_float(1e300, 2, Rounding::HalfUp), 1e300);
        assert_eq!(round_float(1234.0, -2, Rounding::HalfUp), 1200.0);
    }

    #[test]
    fn uuids_are_of_version_4() {
        let uuid = uuid(Random::seeded(7));
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
    }
}
