//! CAST and TRY_CAST where Flink's meaning is not Arrow's, or where a value can fail.
//!
//! Casts that neither fail nor depend on the session's time zone (INT to BIGINT, TIMESTAMP(3) to
//! TIMESTAMP(6)) stay casts of the planner, which its rules see through. The others become calls of
//! a function that is named after its target, as in `CAST AS INT`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, PrimitiveArray, StringArray, StringBuilder,
    StructArray,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    ArrowTimestampType, DataType, Date32Type, Decimal128Type, DecimalType, Field, FieldRef, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time64MicrosecondType,
    Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use chrono::{NaiveDateTime, TimeDelta, Timelike};
use chrono_tz::Tz;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond_core::{Error, Result};

use super::show::texts;
use super::time_text;
use super::zone::{Times, count, day, to_utc, units_per_second};
use crate::plan_error::carried;
use crate::sql_type::{TextLength, sql_type, text_length};

/// The cast of an expression, if it is not one of the planner's own.
///
/// Errors: *Invalid* if there is no such cast.
pub(crate) fn special_cast(
    expr: &Expr,
    from: &DataType,
    to: &FieldRef,
    is_try: bool,
    zone: Option<Tz>,
) -> Result<Option<Expr>> {
    let length = text_length(to);
    let to = to.data_type();
    if !is_special(from, to, length.is_some(), zone) {
        return Ok(None);
    }
    if let Some(reason) = refusal(from, to) {
        return Err(reason);
    }
    let function = ScalarUDF::from(Cast::new(to.clone(), length, is_try, zone));
    Ok(Some(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), vec![expr.clone()]))))
}

/// Whether a cast can fail, or means something else than Arrow's.
fn is_special(from: &DataType, to: &DataType, has_length: bool, zone: Option<Tz>) -> bool {
    if from.is_null() {
        return false;
    }
    match (from, to) {
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, DataType::Utf8) => has_length,
        (DataType::Utf8, DataType::LargeUtf8 | DataType::Utf8View) => false,
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, _) => true,
        (_, DataType::Utf8) => true,
        (from, to) if from == to => false,
        (DataType::Struct(_), DataType::Struct(_)) => true,
        (DataType::Timestamp(_, from), DataType::Timestamp(_, to)) => {
            from.is_some() != to.is_some() && zone.is_some()
        }
        (DataType::Timestamp(_, Some(_)), DataType::Date32 | DataType::Time32(_) | DataType::Time64(_))
        | (DataType::Date32, DataType::Timestamp(_, Some(_))) => zone.is_some(),
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => {
            t < s || i16::from(*q) - i16::from(*t) < i16::from(*p) - i16::from(*s)
        }
        (from, DataType::Decimal128(p, s)) if from.is_integer() => {
            i16::from(*p) - i16::from(*s) < integer_digits(from)
        }
        (DataType::Float32 | DataType::Float64, DataType::Decimal128(_, _)) => true,
        (from, to) if to.is_integer() && from.is_numeric() => match from.is_integer() {
            true => to.is_unsigned_integer() || to.primitive_width() < from.primitive_width(),
            false => true,
        },
        (from, to) if to.is_temporal() && from.is_numeric() => true,
        (from, to) if from.is_temporal() && to.is_numeric() => true,
        _ => false,
    }
}

fn integer_digits(data_type: &DataType) -> i16 {
    match data_type {
        DataType::Int8 | DataType::UInt8 => 3,
        DataType::Int16 | DataType::UInt16 => 5,
        DataType::Int32 | DataType::UInt32 => 10,
        DataType::UInt64 => 20,
        _ => 19,
    }
}

fn refusal(from: &DataType, to: &DataType) -> Option<Error> {
    let error = || {
        let (from, to) = (sql_type(from), sql_type(to));
        Error::invalid(format!("{from} cannot be cast to {to}"))
    };
    match (from, to) {
        (from, to) if from.is_numeric() && to.is_temporal() && !matches!(to, DataType::Interval(_)) => Some(
            error().with_hint("use TO_TIMESTAMP_LTZ(number, 3) for milliseconds since 1970, 0 for seconds"),
        ),
        (DataType::Timestamp(_, _), to) if to.is_numeric() => {
            Some(error().with_hint("use EXTRACT(EPOCH FROM time) or UNIX_TIMESTAMP(text)"))
        }
        (from, to) if from.is_temporal() && to.is_numeric() => Some(error()),
        (from, to)
            if matches!(from, DataType::Utf8) && (to.is_nested() || matches!(to, DataType::Interval(_))) =>
        {
            Some(error())
        }
        _ => None,
    }
}

/// One target of casts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Cast {
    /// `CAST AS INT`.
    name: String,
    target: DataType,
    length: Option<TextLength>,
    is_try: bool,
    zone: Option<Tz>,
    signature: Signature,
}

impl Cast {
    fn new(target: DataType, length: Option<TextLength>, is_try: bool, zone: Option<Tz>) -> Self {
        let target_name = length.map_or_else(|| sql_type(&target), |length| length.to_string());
        let name = format!("{} AS {target_name}", if is_try { "TRY_CAST" } else { "CAST" });
        Self { name, target, length, is_try, zone, signature: Signature::any(1, Volatility::Immutable) }
    }

    fn cast(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let converted = self.converted(values)?;
        if !self.is_try && converted.null_count() > values.null_count() {
            let failed = (0..values.len()).find(|row| values.is_valid(*row) && converted.is_null(*row));
            let failed = failed.ok_or_else(|| Error::internal("a cast lost no value"))?;
            return Err(self.failure(values, failed)?);
        }
        Ok(converted)
    }

    fn failure(&self, values: &ArrayRef, row: usize) -> Result<Error> {
        let text = texts(&values.slice(row, 1), self.zone)?;
        let text = text.value(0);
        let target = sql_type(&self.target);
        Ok(match values.data_type().is_numeric() {
            true => Error::data(format!("{text} is out of range of {target}")),
            false => Error::data(format!("'{text}' is no {target}")),
        }
        .with_hint("TRY_CAST gives NULL instead"))
    }

    /// The values in the target's type; NULL for those that have none.
    fn converted(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if self.target == DataType::Utf8 {
            let texts = texts(values, self.zone)?;
            return Ok(Arc::new(match self.length {
                None => texts,
                Some(length) => with_length(&texts, length),
            }));
        }
        match values.data_type() {
            DataType::Utf8 => self.of_text(values.as_string()),
            DataType::Struct(_) if matches!(self.target, DataType::Struct(_)) => self.of_row(values),
            DataType::Timestamp(_, _) | DataType::Date32 if self.zone.is_some() => self.of_time(values),
            DataType::Float32 | DataType::Float64 if self.target.is_integer() => self.of_float(values),
            _ => {
                let options = CastOptions { safe: true, ..CastOptions::default() };
                Ok(cast_with_options(values, &self.target, &options)?)
            }
        }
    }

    /// Fields are cast by their places, whatever their names.
    fn of_row(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let (rows, DataType::Struct(fields)) = (values.as_struct(), &self.target) else {
            return Err(Error::internal("a row is cast to something else"));
        };
        if rows.num_columns() != fields.len() {
            let (from, to) = (sql_type(values.data_type()), sql_type(&self.target));
            return Err(Error::invalid(format!("{from} cannot be cast to {to}"))
                .with_hint("they have different numbers of fields"));
        }
        let cast = |(column, field): (&ArrayRef, &FieldRef)| {
            Cast::new(field.data_type().clone(), None, self.is_try, self.zone).field(column)
        };
        let columns = rows.columns().iter().zip(fields).map(cast).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(StructArray::try_new(fields.clone(), columns, rows.nulls().cloned())?))
    }

    /// A field of a row, also where its cast is none of ours.
    fn field(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if *values.data_type() == self.target {
            return Ok(Arc::clone(values));
        }
        if let Some(reason) = refusal(values.data_type(), &self.target) {
            return Err(reason);
        }
        self.cast(values)
    }

    /// Floats are cut towards zero.
    fn of_float(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let values = cast_with_options(values, &DataType::Float64, &CastOptions::default())?;
        let cut: PrimitiveArray<Float64Type> = values.as_primitive::<Float64Type>().unary(f64::trunc);
        let options = CastOptions { safe: true, ..CastOptions::default() };
        Ok(cast_with_options(&cut, &self.target, &options)?)
    }

    fn of_text(&self, values: &StringArray) -> Result<ArrayRef> {
        let rows = || values.iter().map(|text| text.map(str::trim));
        macro_rules! integers {
            ($type:ty) => {
                Ok(Arc::new(
                    rows()
                        .map(|text| text.and_then(integer).and_then(|number| number.try_into().ok()))
                        .collect::<PrimitiveArray<$type>>(),
                ))
            };
        }
        match &self.target {
            DataType::Boolean => {
                Ok(Arc::new(rows().map(|text| text.and_then(boolean)).collect::<BooleanArray>()))
            }
            DataType::Int8 => integers!(Int8Type),
            DataType::Int16 => integers!(Int16Type),
            DataType::Int32 => integers!(Int32Type),
            DataType::Int64 => integers!(Int64Type),
            DataType::Float32 => Ok(Arc::new(
                rows().map(|text| text.and_then(|t| t.parse().ok())).collect::<PrimitiveArray<Float32Type>>(),
            )),
            DataType::Float64 => Ok(Arc::new(
                rows().map(|text| text.and_then(|t| t.parse().ok())).collect::<PrimitiveArray<Float64Type>>(),
            )),
            DataType::Decimal128(precision, scale) => {
                let decimal = |text: Option<&str>| decimal(text?, *precision, *scale);
                let values: PrimitiveArray<Decimal128Type> = rows().map(decimal).collect();
                Ok(Arc::new(values.with_precision_and_scale(*precision, *scale)?))
            }
            DataType::Date32 => Ok(Arc::new(
                rows()
                    .map(|text| Some(day(time_text::timestamp(text?)?.date())))
                    .collect::<PrimitiveArray<Date32Type>>(),
            )),
            DataType::Time32(TimeUnit::Millisecond) => Ok(Arc::new(
                rows()
                    .map(|text| i32::try_from(nanos_of_day(text?)? / 1_000_000).ok())
                    .collect::<PrimitiveArray<Time32MillisecondType>>(),
            )),
            DataType::Time64(TimeUnit::Microsecond) => Ok(Arc::new(
                rows()
                    .map(|text| Some(nanos_of_day(text?)? / 1000))
                    .collect::<PrimitiveArray<Time64MicrosecondType>>(),
            )),
            DataType::Time64(TimeUnit::Nanosecond) => Ok(Arc::new(
                rows().map(|text| nanos_of_day(text?)).collect::<PrimitiveArray<Time64NanosecondType>>(),
            )),
            DataType::Timestamp(_, None) => {
                self.timestamps(values.len(), |row| time_text::timestamp(text_at(values, row)?))
            }
            DataType::Timestamp(_, Some(_)) => self.timestamps(values.len(), |row| {
                let (time, offset) = time_text::instant(text_at(values, row)?)?;
                Some(match offset {
                    Some(offset) => time - TimeDelta::seconds(offset.into()),
                    None => to_utc(self.zone, time),
                })
            }),
            DataType::Binary => {
                Ok(Arc::new(values.iter().map(|text| text.map(str::as_bytes)).collect::<BinaryArray>()))
            }
            other => {
                Ok(cast_with_options(values, other, &CastOptions { safe: true, ..CastOptions::default() })?)
            }
        }
    }

    /// Between local times and instants, in the session's time zone.
    fn of_time(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let times = Times::new(values, usize::MAX, self.zone).ok_or_else(|| Error::internal("no time"))?;
        let rows = 0..values.len();
        match &self.target {
            DataType::Date32 => Ok(Arc::new(
                rows.map(|row| Some(day(times.at(row)?.date()))).collect::<PrimitiveArray<Date32Type>>(),
            )),
            DataType::Timestamp(_, None) => self.timestamps(values.len(), |row| times.at(row)),
            DataType::Timestamp(_, Some(_)) => {
                self.timestamps(values.len(), |row| times.at(row).map(|time| to_utc(self.zone, time)))
            }
            target => {
                let nanos = |row: usize| {
                    let time = times.at(row)?.time();
                    Some(
                        i64::from(time.num_seconds_from_midnight()) * 1_000_000_000
                            + i64::from(time.nanosecond() % 1_000_000_000),
                    )
                };
                let nanos: PrimitiveArray<Time64NanosecondType> = rows.map(nanos).collect();
                Ok(cast_with_options(&nanos, target, &CastOptions::default())?)
            }
        }
    }

    fn timestamps(&self, rows: usize, time: impl Fn(usize) -> Option<NaiveDateTime>) -> Result<ArrayRef> {
        fn of<T: ArrowTimestampType>(
            rows: usize,
            target: &DataType,
            time: impl Fn(usize) -> Option<NaiveDateTime>,
        ) -> ArrayRef {
            let per_second = units_per_second(T::UNIT);
            let values = (0..rows).map(|row| count(time(row)?, per_second)).collect::<PrimitiveArray<T>>();
            Arc::new(values.with_data_type(target.clone()))
        }
        Ok(match &self.target {
            DataType::Timestamp(TimeUnit::Second, _) => of::<TimestampSecondType>(rows, &self.target, time),
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                of::<TimestampMillisecondType>(rows, &self.target, time)
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                of::<TimestampMicrosecondType>(rows, &self.target, time)
            }
            _ => of::<TimestampNanosecondType>(rows, &self.target, time),
        })
    }
}

impl ScalarUDFImpl for Cast {
    fn name(&self) -> &str {
        &self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.target.clone())
    }
    fn return_field_from_args(
        &self,
        given: datafusion::logical_expr::ReturnFieldArgs<'_>,
    ) -> Result<FieldRef, DataFusionError> {
        let nullable = self.is_try || given.arg_fields.first().is_none_or(|field| field.is_nullable());
        Ok(Arc::new(Field::new(&self.name, self.target.clone(), nullable)))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        Ok(match &arguments.args[0] {
            ColumnarValue::Array(values) => ColumnarValue::Array(self.cast(values).map_err(carried)?),
            ColumnarValue::Scalar(value) => {
                let cast = self.cast(&value.to_array()?).map_err(carried)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&cast, 0)?)
            }
        })
    }
}

fn text_at(values: &StringArray, row: usize) -> Option<&str> {
    values.is_valid(row).then(|| values.value(row))
}

fn with_length(texts: &StringArray, length: TextLength) -> StringArray {
    let mut fitted = StringBuilder::with_capacity(texts.len(), texts.value_data().len());
    for text in texts {
        fitted.append_option(text.map(|text| length.fit(text)));
    }
    fitted.finish()
}

/// A whole number; the decimal places of a text are cut.
fn integer(text: &str) -> Option<i64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    if !places.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    match whole {
        "" | "+" | "-" => (!places.is_empty()).then_some(0),
        whole => whole.parse().ok(),
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// `[±]digits[.digits][E[±]digits]`, rounded half away from zero to the scale.
fn decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.strip_prefix(['+', '-']) {
        Some(rest) => (mantissa.starts_with('-'), rest),
        None => (false, mantissa),
    };
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && places.is_empty() {
        return None;
    }
    // value = all × 10^shift at the target's scale
    let shift = i64::from(exponent) + i64::from(scale) - places.len() as i64;
    let kept = (whole.len() + places.len()) as i64 + shift.min(0);
    let mut value = 0i128;
    for (place, digit) in whole.bytes().chain(places.bytes()).enumerate() {
        let digit = digit.is_ascii_digit().then(|| i128::from(digit - b'0'))?;
        match place as i64 - kept {
            ..0 => value = value.checked_mul(10)?.checked_add(digit)?,
            0 if digit >= 5 => value += 1,
            _ => {}
        }
    }
    if shift > 0 && value != 0 {
        value = value.checked_mul(10i128.checked_pow(u32::try_from(shift).ok()?)?)?;
    }
    let value = if negative { -value } else { value };
    Decimal128Type::is_valid_decimal_precision(value, precision).then_some(value)
}

fn nanos_of_day(text: &str) -> Option<i64> {
    let time = match time_text::time(text) {
        Some(time) => time,
        None => time_text::timestamp(text)?.time(),
    };
    Some(
        i64::from(time.num_seconds_from_midnight()) * 1_000_000_000
            + i64::from(time.nanosecond() % 1_000_000_000),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_from_texts() {
        let cases = [
            ("1.005", Some(101)),
            ("-1.005", Some(-101)),
            ("1.0049", Some(100)),
            ("1e2", Some(10000)),
            ("125e-3", Some(13)),
            ("4e-3", Some(0)),
            ("5e-3", Some(1)),
            (".5", Some(50)),
            ("999.99", Some(99999)),
            ("999.995", None),
            ("1000", None),
            ("", None),
            (".", None),
            ("1x", None),
            ("0e99999", Some(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(decimal(text, 5, 2), expected, "{text}");
        }
    }

    #[test]
    fn integers_and_booleans_are_read_from_texts() {
        assert_eq!(
            ["12", "+7", "-1.9", ".5", "1.x", "", "-"].map(integer),
            [Some(12), Some(7), Some(-1), Some(0), None, None, None]
        );
        assert_eq!(["TRUE", "n", "maybe"].map(boolean), [Some(true), Some(false), None]);
    }
}
