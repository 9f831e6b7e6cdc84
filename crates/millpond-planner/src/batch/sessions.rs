//! Sessions in batch: the rows of each key in the order of time, cut where the gap is.
//!
//! ```text
//! instant  before          is_first   session          bounds
//!   10      -                 1          1             [10, 10 + gap) …
//!   12      10                0          1             … [10, 12 + gap)
//!   90      12                1          2             [90, 90 + gap)
//! ```

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StructArray};
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use chrono_tz::Tz;
use datafusion::common::{Column, DataFusionError, ScalarValue};
use datafusion::functions::core::get_field;
use datafusion::functions_aggregate::expr_fn::{max, min, sum};
use datafusion::logical_expr::expr::{ScalarFunction, WindowFunction};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, UserDefinedLogicalNodeCore, Volatility, WindowFrame, WindowFrameBound,
    WindowFrameUnits, WindowFunctionDefinition, lit, when,
};
use millpond_core::time::timestamp_values;
use millpond_core::{Error, Timestamp};
use millpond_operators::window::{WINDOW_TIME_MAX, bounds, local_time, window_fields, window_times};

use crate::plan_error::carried;
use crate::window_relation::WindowTvf;

/// The rows of a SESSION, each with the bounds of its session.
pub(super) fn batch_sessions(
    window: &WindowTvf,
    gap: i64,
    zone: Option<Tz>,
) -> Result<LogicalPlan, DataFusionError> {
    let schema = UserDefinedLogicalNodeCore::schema(window);
    let width = window.input.schema().fields().len();
    let added: Vec<&FieldRef> = schema.fields().iter().skip(width).collect();
    let time_type = added[2].data_type().clone();
    let zone = zone.filter(|_| matches!(time_type, DataType::Timestamp(_, Some(_))));
    let own: Vec<Expr> = window.input.schema().columns().into_iter().map(Expr::Column).collect();
    let column = |name: &str| Expr::Column(Column::from_name(name));
    let instant = called(SessionFunction::instant(), vec![window.time.clone()]);
    let over = |call: Expr, keys: Vec<Expr>, frame: Option<WindowFrame>| -> Result<Expr, DataFusionError> {
        let Expr::AggregateFunction(call) = call else {
            return Err(carried(Error::internal("a window call that is no aggregate")));
        };
        let function = WindowFunctionDefinition::AggregateUDF(call.func);
        let call = Expr::from(WindowFunction::new(function, call.params.args)).partition_by(keys);
        match frame {
            Some(frame) => {
                call.order_by(vec![column("$instant").sort(true, true)]).window_frame(frame).build()
            }
            None => call.build(),
        }
    };
    let keys = || window.partition.clone();
    let all_before = WindowFrameBound::Preceding(ScalarValue::UInt64(None));
    let one_before = WindowFrameBound::Preceding(ScalarValue::UInt64(Some(1)));
    let before = WindowFrame::new_bounds(WindowFrameUnits::Rows, all_before.clone(), one_before);
    // Rows of the same instant are in the same session.
    let so_far = WindowFrame::new_bounds(WindowFrameUnits::Range, all_before, WindowFrameBound::CurrentRow);
    let is_first = when(column("$before").is_null(), lit(1i64))
        .when(column("$instant").gt(column("$before") + lit(gap)), lit(1i64))
        .otherwise(lit(0i64))?;
    let keys_and_session: Vec<Expr> = keys().into_iter().chain([column("$session")]).collect();
    let bounds = SessionFunction::bounds(gap, zone, time_type.clone());
    let part = |(own, field): (FieldRef, &&FieldRef)| {
        get_field().call(vec![column("$window"), lit(own.name().as_str())]).alias(field.name())
    };
    let with = |name: &str, expr: Expr, mut exprs: Vec<Expr>| {
        exprs.push(expr.alias(name));
        exprs
    };
    LogicalPlanBuilder::from(window.input.clone())
        .project(with("$instant", instant, own.clone()))?
        .filter(column("$instant").is_not_null())?
        .window([over(max(column("$instant")), keys(), Some(before))?.alias("$before")])?
        .project(with("$first", is_first, with("$instant", column("$instant"), own.clone())))?
        .window([over(sum(column("$first")), keys(), Some(so_far))?.alias("$session")])?
        .window([
            over(min(column("$instant")), keys_and_session.clone(), None)?.alias("$start"),
            over(max(column("$instant")), keys_and_session, None)?.alias("$last"),
        ])?
        .project(with("$window", called(bounds, vec![column("$start"), column("$last")]), own.clone()))?
        .project(own.into_iter().chain(window_fields(&time_type).into_iter().zip(&added).map(part)))?
        .build()
}

fn called(function: SessionFunction, arguments: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), arguments))
}

/// What is computed of a session's times.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Computed {
    /// A time as microseconds; NULL for one that lies in no window.
    Instant,
    /// The window of the first and the last instant of a session.
    Bounds { gap: i64, zone: Option<Tz>, time_type: DataType },
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SessionFunction {
    computed: Computed,
    signature: Signature,
}

impl SessionFunction {
    fn instant() -> Self {
        Self { computed: Computed::Instant, signature: Signature::any(1, Volatility::Immutable) }
    }

    fn bounds(gap: i64, zone: Option<Tz>, time_type: DataType) -> Self {
        let computed = Computed::Bounds { gap, zone, time_type };
        Self { computed, signature: Signature::any(2, Volatility::Immutable) }
    }

    fn compute(&self, arguments: &[ArrayRef]) -> millpond_core::Result<ArrayRef> {
        match &self.computed {
            Computed::Instant => {
                let (values, precision) = timestamp_values(&arguments[0])?;
                let instant = |(row, value): (usize, &i64)| {
                    let time = precision.to_timestamp(*value).0;
                    let is_known = arguments[0].is_valid(row) && time.unsigned_abs() < WINDOW_TIME_MAX as u64;
                    is_known.then_some(time)
                };
                Ok(Arc::new(values.iter().enumerate().map(instant).collect::<Int64Array>()))
            }
            Computed::Bounds { gap, zone, time_type } => {
                let firsts = arguments[0].as_primitive::<Int64Type>().values().iter().copied();
                let ends = || arguments[1].as_primitive::<Int64Type>().values().iter().map(|last| last + gap);
                let columns = vec![
                    bounds(firsts.map(|first| local_time(*zone, first))),
                    bounds(ends().map(|end| local_time(*zone, end))),
                    window_times(ends().map(Timestamp), time_type)?,
                ];
                Ok(Arc::new(StructArray::try_new(window_fields(time_type).to_vec().into(), columns, None)?))
            }
        }
    }
}

impl ScalarUDFImpl for SessionFunction {
    fn name(&self) -> &str {
        match self.computed {
            Computed::Instant => "$instant",
            Computed::Bounds { .. } => "$session",
        }
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(match &self.computed {
            Computed::Instant => DataType::Int64,
            Computed::Bounds { time_type, .. } => DataType::Struct(window_fields(time_type).to_vec().into()),
        })
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let rows = arguments.number_rows;
        let arrays = arguments.args.iter().map(|argument| argument.to_array(rows));
        let arrays = arrays.collect::<Result<Vec<ArrayRef>, DataFusionError>>()?;
        Ok(ColumnarValue::Array(self.compute(&arrays).map_err(carried)?))
    }
}
