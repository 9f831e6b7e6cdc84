//! Expressions: DataFusion's, evaluated over a batch with our errors, and bound to the epoch.
//!
//! The planner leaves functions of the epoch (`NOW()`, `PROCTIME()`, `CURRENT_WATERMARK(..)`) as
//! calls of scalar functions by these names; each task binds them to its own [`EpochCell`], which
//! the operator sets before it evaluates (invariant 16).

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, TimeUnit};
use arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{EpochTime, Error, Result, TimePrecision, Timestamp, Watermark};

use crate::sql_text::readable;
pub use crate::sql_text::sql_text;

/// An expression.
pub type Expression = Arc<dyn PhysicalExpr>;

/// Names of functions that read the epoch's time.
pub const EPOCH_TIME_FUNCTIONS: [&str; 9] = [
    "now",
    "proctime",
    "current_timestamp",
    "current_row_timestamp",
    "localtimestamp",
    "localtime",
    "current_time",
    "current_date",
    "today",
];

/// Name of the function that reads the watermark in force.
pub const WATERMARK_FUNCTION: &str = "current_watermark";

/// What the functions of the epoch read; one per operator and task.
#[derive(Debug, Clone)]
pub struct EpochCell {
    time: Arc<AtomicI64>,
    watermark: Arc<AtomicI64>,
}

impl Default for EpochCell {
    fn default() -> Self {
        let cell = || Arc::new(AtomicI64::new(Timestamp::MIN.0));
        Self { time: cell(), watermark: cell() }
    }
}

impl EpochCell {
    /// Sets what is read from now on.
    pub fn set(&self, time: EpochTime, watermark: Option<Watermark>) {
        self.time.store(time.0, Ordering::Relaxed);
        self.watermark.store(watermark.unwrap_or(Timestamp::MIN).0, Ordering::Relaxed);
    }

    /// The expression with its functions of the epoch bound to this cell.
    pub fn bind(&self, expression: Expression) -> Result<Expression> {
        let bound = expression.transform_up(|node| {
            let Some(function) = epoch_function(&node) else { return Ok(Transformed::no(node)) };
            let cell = match function.fun().name() {
                WATERMARK_FUNCTION => self.watermark.clone(),
                _ => self.time.clone(),
            };
            let field = Arc::new(Field::new(function.fun().name(), function.return_type().clone(), true));
            Ok(Transformed::yes(Arc::new(EpochTimeExpr { cell, field }) as Expression))
        });
        bound.data().map_err(|error| error_of(error, "an expression"))
    }
}

/// Whether the expression reads the epoch's time or watermark.
pub fn reads_epoch(expression: &Expression) -> bool {
    let mut found = false;
    let visit = expression.apply(|node| {
        found |= epoch_function(node).is_some();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || visit.is_err()
}

/// Whether this function, not its arguments, reads the epoch's time or watermark.
pub fn reads_epoch_itself(node: &Expression) -> bool {
    epoch_function(node).is_some()
}

fn epoch_function(node: &Expression) -> Option<&ScalarFunctionExpr> {
    let function = node.downcast_ref::<ScalarFunctionExpr>()?;
    let name = function.fun().name();
    (EPOCH_TIME_FUNCTIONS.contains(&name) || name == WATERMARK_FUNCTION).then_some(function)
}

/// Reads a cell of an [`EpochCell`] as a date, time or timestamp; NULL while it is not set.
#[derive(Debug, Clone)]
struct EpochTimeExpr {
    cell: Arc<AtomicI64>,
    field: FieldRef,
}

impl PartialEq for EpochTimeExpr {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell) && self.field == other.field
    }
}

impl Eq for EpochTimeExpr {}

impl Hash for EpochTimeExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.cell).hash(state);
        self.field.hash(state);
    }
}

impl fmt::Display for EpochTimeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}()", self.field.name())
    }
}

impl PhysicalExpr for EpochTimeExpr {
    fn return_field(&self, _: &Schema) -> datafusion::common::Result<FieldRef> {
        Ok(self.field.clone())
    }
    fn evaluate(&self, _: &RecordBatch) -> datafusion::common::Result<ColumnarValue> {
        let time = Timestamp(self.cell.load(Ordering::Relaxed));
        Ok(ColumnarValue::Scalar(scalar(time, self.field.data_type())?))
    }
    fn children(&self) -> Vec<&Expression> {
        Vec::new()
    }
    fn with_new_children(self: Arc<Self>, _: Vec<Expression>) -> datafusion::common::Result<Expression> {
        Ok(self)
    }
    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const DAY: i64 = 86_400_000_000;

fn scalar(time: Timestamp, data_type: &DataType) -> datafusion::common::Result<ScalarValue> {
    if time == Timestamp::MIN {
        return ScalarValue::try_from(data_type);
    }
    let of_day = time.0.rem_euclid(DAY);
    Ok(match data_type {
        DataType::Timestamp(unit, zone) => timestamp_scalar(time, *unit, zone.clone()),
        DataType::Date32 => ScalarValue::Date32(i32::try_from(time.0.div_euclid(DAY)).ok()),
        DataType::Time32(TimeUnit::Second) => {
            ScalarValue::Time32Second(i32::try_from(of_day / 1_000_000).ok())
        }
        DataType::Time32(_) => ScalarValue::Time32Millisecond(i32::try_from(of_day / 1000).ok()),
        DataType::Time64(TimeUnit::Microsecond) => ScalarValue::Time64Microsecond(Some(of_day)),
        DataType::Time64(_) => ScalarValue::Time64Nanosecond(Some(of_day * 1000)),
        other => return Err(DataFusionError::Internal(format!("the epoch's time as {other}"))),
    })
}

fn timestamp_scalar(time: Timestamp, unit: TimeUnit, zone: Option<Arc<str>>) -> ScalarValue {
    match unit {
        TimeUnit::Second => {
            ScalarValue::TimestampSecond(Some(TimePrecision::Second.from_timestamp(time)), zone)
        }
        TimeUnit::Millisecond => {
            ScalarValue::TimestampMillisecond(Some(TimePrecision::Millisecond.from_timestamp(time)), zone)
        }
        TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(Some(time.0), zone),
        TimeUnit::Nanosecond => {
            ScalarValue::TimestampNanosecond(Some(TimePrecision::Nanosecond.from_timestamp(time)), zone)
        }
    }
}

/// The expression's value for each row.
///
/// Errors: *Data*, with the expression and the first row for which it fails.
pub fn evaluate(expression: &Expression, rows: &RecordBatch) -> Result<ArrayRef> {
    match try_evaluate(expression, rows) {
        Ok(values) => Ok(values),
        Err(error) => Err(failure(expression, rows, error)),
    }
}

/// The expression's truth for each row.
///
/// Errors: as [`evaluate`]; *Internal* if it is not a predicate.
pub fn evaluate_predicate(expression: &Expression, rows: &RecordBatch) -> Result<BooleanArray> {
    let values = evaluate(expression, rows)?;
    let truth = values.as_boolean_opt().ok_or_else(|| {
        Error::internal(format!("{} is no predicate but {}", sql_text(expression), values.data_type()))
    })?;
    Ok(truth.clone())
}

fn try_evaluate(expression: &Expression, rows: &RecordBatch) -> Result<ArrayRef, DataFusionError> {
    expression.evaluate(rows)?.into_array(rows.num_rows())
}

fn failure(expression: &Expression, rows: &RecordBatch, error: DataFusionError) -> Error {
    let failing = |row: &usize| try_evaluate(expression, &rows.slice(*row, 1)).is_err();
    let error = error_of(error, &sql_text(expression));
    match (0..rows.num_rows()).find(failing) {
        Some(row) if !columns_of(expression).is_empty() => {
            error.with_detail(format!("in the row {}", row_text(expression, rows, row)))
        }
        Some(_) | None => error,
    }
}

/// The values of the columns that the expression reads.
fn row_text(expression: &Expression, rows: &RecordBatch, row: usize) -> String {
    let value = |column: usize| {
        let column_values = rows.column(column);
        let value = match column_values.is_null(row) {
            true => Ok("NULL".to_owned()),
            false => array_value_to_string(column_values, row),
        };
        format!(
            "{} = {}",
            readable(rows.schema_ref().field(column).name()),
            value.unwrap_or_else(|error| error.to_string())
        )
    };
    let values: Vec<String> = columns_of(expression).into_iter().map(value).collect();
    values.join(", ")
}

fn error_of(error: DataFusionError, text: &str) -> Error {
    let root = error.find_root();
    let context = format!("cannot compute {text}");
    match root {
        DataFusionError::Internal(message) => Error::internal(message.clone()).context(context),
        DataFusionError::ResourcesExhausted(message) => Error::unavailable(message.clone()).context(context),
        DataFusionError::ArrowError(arrow, _) => Error::data(arrow_message(arrow)).context(context),
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(ours) => ours.clone().context(context),
            None => Error::data(inner.to_string()).context(context),
        },
        other => Error::data(other.message().into_owned()).context(context),
    }
}

fn arrow_message(error: &arrow::error::ArrowError) -> String {
    use arrow::error::ArrowError::*;
    match error {
        CastError(message)
        | ParseError(message)
        | ComputeError(message)
        | ArithmeticOverflow(message)
        | InvalidArgumentError(message) => message.clone(),
        DivideByZero => "division by zero".into(),
        other => other.to_string(),
    }
}

/// The index of the column that the expression is; `None` if it computes.
pub fn plain_column(expression: &Expression) -> Option<usize> {
    expression.downcast_ref::<Column>().map(Column::index)
}

/// The columns that the expression reads.
pub fn columns_of(expression: &Expression) -> BTreeSet<usize> {
    datafusion::physical_expr::utils::collect_columns(expression).iter().map(Column::index).collect()
}

/// The expression over a batch that holds only `columns`.
pub fn over_columns(expression: Expression, columns: &[usize]) -> Result<Expression> {
    let moved = expression.transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let place = columns
            .iter()
            .position(|c| *c == column.index())
            .ok_or_else(|| DataFusionError::Internal(format!("column {} is left out", column.name())))?;
        Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as Expression))
    });
    moved.data().map_err(|error| error_of(error, "an expression"))
}

/// The expression with each occurrence of `part` read from a column instead.
pub fn replace(expression: Expression, part: &Expression, name: &str, column: usize) -> Result<Expression> {
    let replaced = expression.transform_down(|node| {
        if !node.eq(part) {
            return Ok(Transformed::no(node));
        }
        Ok(Transformed::yes(Arc::new(Column::new(name, column)) as Expression))
    });
    replaced.data().map_err(|error| error_of(error, "an expression"))
}
