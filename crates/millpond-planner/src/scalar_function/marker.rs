//! Markers: values that only the running operator knows, such as the epoch's time and its watermark.
//!
//! They are volatile, so that no rule folds them, and Calc replaces each by a cell of its task.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond_core::Error;

use crate::plan_error::carried;
use crate::sql_type::LTZ_ZONE;

/// All markers.
pub(super) fn functions() -> impl Iterator<Item = ScalarUDF> {
    let markers = [
        Marker::new("now", &["current_timestamp"], local_zone_time()),
        Marker::new("current_row_timestamp", &[], local_zone_time()),
        Marker::new("proctime", &[], local_zone_time()),
        Marker::new("localtimestamp", &[], DataType::Timestamp(TimeUnit::Millisecond, None)),
        Marker::new("current_date", &["today"], DataType::Date32),
        Marker::new("current_time", &["localtime"], DataType::Time32(TimeUnit::Millisecond)),
        Marker::new("current_watermark", &[], local_zone_time()).over_one_column(),
    ];
    markers.into_iter().map(ScalarUDF::from)
}

fn local_zone_time() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some(LTZ_ZONE.into()))
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
