//! Scalar functions that a stream plans differently from a batch, or that Flink names differently.
//!
//! A *marker* stands for a value that only the running operator knows: the epoch's time, its
//! watermark. It is volatile, so that no rule folds it, and Calc replaces it by a cell of its task.

use std::hash::Hash;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::functions::datetime;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, lit,
};
use millpond_core::Error;

use crate::plan_error::carried;
use crate::sql_type::LTZ_ZONE;

/// All functions that replace or add to DataFusion's.
pub(crate) fn all() -> Vec<ScalarUDF> {
    let markers = [
        Marker::new("now", &["current_timestamp"], local_zone_time()),
        Marker::new("current_row_timestamp", &[], local_zone_time()),
        Marker::new("proctime", &[], local_zone_time()),
        Marker::new("localtimestamp", &[], DataType::Timestamp(TimeUnit::Millisecond, None)),
        Marker::new("current_date", &["today"], DataType::Date32),
        Marker::new("current_time", &["localtime"], DataType::Time32(TimeUnit::Millisecond)),
        Marker::new("current_watermark", &[], local_zone_time()).over_one_column(),
    ];
    let parts = [
        ("year", "year"),
        ("quarter", "quarter"),
        ("month", "month"),
        ("week", "week"),
        ("dayofyear", "doy"),
        ("dayofmonth", "day"),
        ("hour", "hour"),
        ("minute", "minute"),
        ("second", "second"),
    ];
    let parts = parts.map(|(name, part)| DatePart { name, part, signature: any(1) });
    let remainder = ScalarUDF::from(Remainder { signature: Signature::numeric(2, Volatility::Immutable) });
    markers
        .into_iter()
        .map(ScalarUDF::from)
        .chain(parts.into_iter().map(ScalarUDF::from))
        .chain([remainder, ScalarUDF::from(DateFormat { signature: any(2) })])
        .collect()
}

fn local_zone_time() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some(LTZ_ZONE.into()))
}

fn any(arguments: usize) -> Signature {
    Signature::any(arguments, Volatility::Immutable)
}

/// Stands for a value that only the running operator knows.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Marker {
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
    return_type: DataType,
}

impl Marker {
    fn new(name: &'static str, aliases: &[&str], return_type: DataType) -> Self {
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        Self { name, aliases, signature: Signature::nullary(Volatility::Volatile), return_type }
    }
    fn over_one_column(self) -> Self {
        Self { signature: Signature::any(1, Volatility::Volatile), ..self }
    }
}

impl ScalarUDFImpl for Marker {
    fn name(&self) -> &str {
        self.name
    }
    fn aliases(&self) -> &[String] {
        &self.aliases
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    /// The watermark has the type of the column that it belongs to.
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(arguments.first().unwrap_or(&self.return_type).clone())
    }
    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let name = self.name.to_uppercase();
        Err(carried(Error::invalid(format!("{name} has no value outside of a running query"))))
    }
}

/// What a marker stands for in a batch that runs at `now` (microseconds since 1970); `None` for
/// other expressions.
pub(crate) fn marker_value(expr: &Expr, now: i64) -> Option<ScalarValue> {
    let Expr::ScalarFunction(call) = expr else { return None };
    let zoned = ScalarValue::TimestampMillisecond(Some(now.div_euclid(1000)), Some(LTZ_ZONE.into()));
    match call.func.name() {
        "now" | "proctime" | "current_row_timestamp" => Some(zoned),
        "localtimestamp" => Some(ScalarValue::TimestampMillisecond(Some(now.div_euclid(1000)), None)),
        "current_date" => {
            i32::try_from(now.div_euclid(86_400_000_000)).ok().map(|day| ScalarValue::Date32(Some(day)))
        }
        "current_time" => {
            let millis = now.rem_euclid(86_400_000_000) / 1000;
            i32::try_from(millis).ok().map(|millis| ScalarValue::Time32Millisecond(Some(millis)))
        }
        _ => None,
    }
}

/// `DATE_FORMAT(ts, 'yyyy-MM-dd HH:mm:ss')`, with the pattern letters of Java, as in Flink.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DateFormat {
    signature: Signature,
}

impl ScalarUDFImpl for DateFormat {
    fn name(&self) -> &str {
        "date_format"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::Utf8)
    }
    fn simplify(
        &self,
        arguments: Vec<Expr>,
        _: &SimplifyContext,
    ) -> Result<ExprSimplifyResult, DataFusionError> {
        let [time, Expr::Literal(ScalarValue::Utf8(Some(pattern)), _)] = arguments.as_slice() else {
            return Err(carried(Error::invalid("DATE_FORMAT needs a pattern that is a constant text")));
        };
        let pattern = strftime_pattern(pattern).map_err(carried)?;
        let text = ScalarFunction::new_udf(datetime::to_char(), vec![time.clone(), lit(pattern)]);
        Ok(ExprSimplifyResult::Simplified(cast(Expr::ScalarFunction(text), DataType::Utf8)))
    }
    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        Err(carried(Error::internal("DATE_FORMAT is planned as to_char")))
    }
}

/// Java's pattern letters as strftime's.
fn strftime_pattern(java: &str) -> millpond_core::Result<String> {
    const LETTERS: [(&str, &str); 11] = [
        ("yyyy", "%Y"),
        ("yy", "%y"),
        ("MM", "%m"),
        ("dd", "%d"),
        ("HH", "%H"),
        ("hh", "%I"),
        ("mm", "%M"),
        ("SSS", "%3f"),
        ("ss", "%S"),
        ("a", "%p"),
        ("EEEE", "%A"),
    ];
    let (mut rest, mut strftime) = (java, String::new());
    while let Some(first) = rest.chars().next() {
        if let Some((letters, code)) = LETTERS.iter().find(|(letters, _)| rest.starts_with(letters)) {
            strftime.push_str(code);
            rest = &rest[letters.len()..];
        } else if let Some((quoted, after)) = rest.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
            strftime.push_str(&quoted.replace('%', "%%"));
            rest = after;
        } else if first.is_ascii_alphabetic() {
            return Err(Error::invalid(format!(
                "the pattern {java:?} of DATE_FORMAT has the unknown letter '{first}'"
            ))
            .with_hint("known are yyyy, yy, MM, dd, HH, hh, mm, ss, SSS, a, EEEE; quote other text"));
        } else {
            strftime.push_str(if first == '%' { "%%" } else { &rest[..first.len_utf8()] });
            rest = &rest[first.len_utf8()..];
        }
    }
    Ok(strftime)
}

/// `MOD(a, b)`: `a % b`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Remainder {
    signature: Signature,
}

impl ScalarUDFImpl for Remainder {
    fn name(&self) -> &str {
        "mod"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(arguments[0].clone())
    }
    fn simplify(
        &self,
        mut arguments: Vec<Expr>,
        _: &SimplifyContext,
    ) -> Result<ExprSimplifyResult, DataFusionError> {
        match (arguments.pop(), arguments.pop()) {
            (Some(divisor), Some(dividend)) => Ok(ExprSimplifyResult::Simplified(dividend % divisor)),
            _ => Err(carried(Error::internal("MOD has two arguments"))),
        }
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let dividend = arguments.args[0].to_array(arguments.number_rows)?;
        let divisor = arguments.args[1].to_array(arguments.number_rows)?;
        Ok(ColumnarValue::Array(arrow::compute::kernels::numeric::rem(
            &dividend.as_ref(),
            &divisor.as_ref(),
        )?))
    }
}

/// `HOUR(ts)` and its like: `EXTRACT(HOUR FROM ts)` as BIGINT.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DatePart {
    name: &'static str,
    part: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for DatePart {
    fn name(&self) -> &str {
        self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::Int64)
    }
    fn simplify(
        &self,
        arguments: Vec<Expr>,
        _: &SimplifyContext,
    ) -> Result<ExprSimplifyResult, DataFusionError> {
        let arguments = std::iter::once(lit(self.part)).chain(arguments).collect();
        let part = Expr::ScalarFunction(ScalarFunction::new_udf(datetime::date_part(), arguments));
        Ok(ExprSimplifyResult::Simplified(cast(part, DataType::Int64)))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let part = ColumnarValue::Scalar(ScalarValue::Utf8(Some(self.part.into())));
        let part_field = Arc::new(arrow::datatypes::Field::new("part", DataType::Utf8, false));
        let inner = ScalarFunctionArgs {
            args: std::iter::once(part).chain(arguments.args).collect(),
            arg_fields: std::iter::once(part_field).chain(arguments.arg_fields).collect(),
            number_rows: arguments.number_rows,
            return_field: Arc::new(arrow::datatypes::Field::new(self.name, DataType::Int32, true)),
            config_options: arguments.config_options,
        };
        datetime::date_part().invoke_with_args(inner)?.cast_to(&DataType::Int64, None)
    }
}
