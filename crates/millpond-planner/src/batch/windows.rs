//! Windows in batch: the window function as a list of windows, unnested.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};
use chrono_tz::Tz;
use datafusion::common::{Column, DataFusionError, ScalarValue, UnnestOptions};
use datafusion::functions::core::get_field;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, UserDefinedLogicalNodeCore, Volatility, lit,
};
use millpond_core::time::timestamp_values;
use millpond_core::{Error, Result, TimePrecision, Timestamp, Watermark};
use millpond_operators::window::{
    WINDOW_TIME_MAX, WindowKind, WindowSpec, bounds, window_fields, window_times,
};

use super::sessions::batch_sessions;
use crate::plan_error::carried;
use crate::window_relation::{WindowShape, WindowTvf};

/// The rows of a window function; where a watermark is given, only those of final windows.
pub(super) fn batch_window(
    window: &WindowTvf,
    zone: Option<Tz>,
    final_at: Option<Watermark>,
) -> Result<LogicalPlan, DataFusionError> {
    let schema = UserDefinedLogicalNodeCore::schema(window);
    let width = window.input.schema().fields().len();
    let added: Vec<&FieldRef> = schema.fields().iter().skip(width).collect();
    let time_type = added[2].data_type();
    let rows = match window.shape {
        WindowShape::Session { gap } => LogicalPlanBuilder::from(batch_sessions(window, gap, zone)?),
        _ => LogicalPlanBuilder::from(unnested(window, zone, &added)?),
    };
    match final_at.filter(|watermark| *watermark < Timestamp::MAX) {
        None => rows,
        Some(watermark) => {
            let last = Expr::Column(Column::from_name(added[2].name()));
            rows.filter(last.lt_eq(lit(time_literal(time_type, watermark).map_err(carried)?)))?
        }
    }
    .build()
}

/// Each row with each of its windows.
fn unnested(
    window: &WindowTvf,
    zone: Option<Tz>,
    added: &[&FieldRef],
) -> Result<LogicalPlan, DataFusionError> {
    let time_type = added[2].data_type();
    let windows = ScalarUDF::from(WindowsOf::new(window.shape, zone, time_type).map_err(carried)?);
    let windows = Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(windows), vec![window.time.clone()]));
    let own: Vec<Expr> = window.input.schema().columns().into_iter().map(Expr::Column).collect();
    let one = Column::from_name("$window");
    let part = |(own, field): (FieldRef, &&FieldRef)| {
        get_field().call(vec![Expr::Column(one.clone()), lit(own.name().as_str())]).alias(field.name())
    };
    LogicalPlanBuilder::from(window.input.clone())
        .project(own.iter().cloned().chain([windows.alias("$window")]))?
        .unnest_column_with_options(one.clone(), UnnestOptions::new().with_preserve_nulls(false))?
        .project(own.into_iter().chain(window_fields(time_type).into_iter().zip(added).map(part)))?
        .build()
}

/// A time as a value of a window's time column.
fn time_literal(time_type: &DataType, time: Timestamp) -> Result<ScalarValue> {
    let (DataType::Timestamp(_, zone), Some(precision)) = (time_type, TimePrecision::of(time_type)) else {
        return Err(Error::internal(format!("a window over {time_type}")));
    };
    let (value, zone) = (Some(precision.from_timestamp(time)), zone.clone());
    Ok(match precision {
        TimePrecision::Second => ScalarValue::TimestampSecond(value, zone),
        TimePrecision::Millisecond => ScalarValue::TimestampMillisecond(value, zone),
        TimePrecision::Microsecond => ScalarValue::TimestampMicrosecond(value, zone),
        TimePrecision::Nanosecond => ScalarValue::TimestampNanosecond(value, zone),
    })
}

/// The windows that a time lies in: a list of their starts, ends and last instants.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WindowsOf {
    shape: WindowShape,
    zone: Option<Tz>,
    time_type: DataType,
    signature: Signature,
}

impl WindowsOf {
    fn new(shape: WindowShape, zone: Option<Tz>, time_type: &DataType) -> Result<Self> {
        let zone = match time_type {
            DataType::Timestamp(_, Some(_)) => zone,
            _ => None,
        };
        let windows = Self {
            shape,
            zone,
            time_type: time_type.clone(),
            signature: Signature::any(1, Volatility::Immutable),
        };
        windows.spec()?.check()?;
        Ok(windows)
    }

    fn spec(&self) -> Result<WindowSpec> {
        let (kind, offset) = match self.shape {
            WindowShape::Tumble { size, offset } => (WindowKind::Tumble { size }, offset),
            WindowShape::Hop { slide, size, offset } => (WindowKind::Hop { size, slide }, offset),
            WindowShape::Cumulate { step, size, offset } => (WindowKind::Cumulate { size, step }, offset),
            WindowShape::Session { .. } => {
                return Err(Error::internal("the windows of a session depend on other rows"));
            }
        };
        Ok(WindowSpec { kind, offset, time_zone: self.zone })
    }

    fn list_type(&self) -> FieldRef {
        let fields = window_fields(&self.time_type).to_vec();
        Arc::new(Field::new("item", DataType::Struct(fields.into()), true))
    }

    fn lists(&self, times: &ArrayRef) -> Result<ListArray> {
        let spec = self.spec()?;
        let (values, precision) = timestamp_values(times)?;
        let (mut ends, mut lengths) = (Vec::new(), Vec::with_capacity(values.len()));
        for (row, value) in values.iter().enumerate() {
            let local = spec.local(precision.to_timestamp(*value).0);
            let before = ends.len();
            if times.is_valid(row) && local.unsigned_abs() < WINDOW_TIME_MAX as u64 {
                ends.extend(spec.assign(local));
            }
            lengths.push(ends.len() - before);
        }
        let columns = vec![
            bounds(ends.iter().map(|end| spec.start(*end))),
            bounds(ends.iter().copied()),
            window_times(ends.iter().map(|end| spec.instant(*end)), &self.time_type)?,
        ];
        let windows = StructArray::try_new(window_fields(&self.time_type).to_vec().into(), columns, None)?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(ListArray::try_new(self.list_type(), offsets, Arc::new(windows), None)?)
    }
}

impl ScalarUDFImpl for WindowsOf {
    fn name(&self) -> &str {
        "$windows"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::List(self.list_type()))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let times = arguments.args[0].to_array(arguments.number_rows)?;
        Ok(ColumnarValue::Array(Arc::new(self.lists(&times).map_err(carried)?)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, TimestampMicrosecondArray};
    use arrow::datatypes::{TimeUnit, TimestampMicrosecondType};

    use super::*;

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn windows_are_cut_in_local_time_and_end_one_unit_before_their_end() {
        let time_type = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let shape = WindowShape::Tumble { size: 24 * HOUR, offset: 0 };
        let windows = WindowsOf::new(shape, Some(chrono_tz::America::Los_Angeles), &time_type).unwrap();
        let times = TimestampMicrosecondArray::from(vec![Some(0), None]).with_timezone("UTC");
        let lists = windows.lists(&(Arc::new(times) as ArrayRef)).unwrap();
        assert_eq!([lists.value_length(0), lists.value_length(1)], [1, 0]);
        let last = lists.values().as_struct().column(2).as_primitive::<TimestampMicrosecondType>();
        assert_eq!(last.value(0), 8 * HOUR - 1, "1969-12-31 in Los Angeles ends at 08:00 of the next day");
    }

    #[test]
    fn a_time_lies_in_each_step_of_its_cumulating_window() {
        let time_type = DataType::Timestamp(TimeUnit::Microsecond, None);
        let shape = WindowShape::Cumulate { step: HOUR, size: 3 * HOUR, offset: 0 };
        let windows = WindowsOf::new(shape, None, &time_type).unwrap();
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![HOUR + 1]));
        assert_eq!(windows.lists(&times).unwrap().value_length(0), 2);
    }
}
