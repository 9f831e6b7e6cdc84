//! State columns of the aggregates, the definition of their tables, and evaluation of expressions.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Schema};
use datafusion::common::DataFusionError;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{ChangelogMode, Error, Result};
use millpond_state::{TableDef, TableKind};

use super::call::AggregateCall;
use super::fold::Extreme;
use super::function::AggregateFunction;
use crate::sql_text::plain_name;

/// What an aggregate keeps per group, in columns beside the group's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// (count).
    Count,
    /// (sum, rows).
    IntegerSum,
    /// (sum, rows, carry).
    DecimalSum,
    /// (sum, compensation, rows, NaNs, +∞, −∞).
    FloatSum,
    /// (rows, rows that are not finite, then per moment its sum in two floats).
    Moments {
        /// 2: x, x²; 5: y, x, y², x², x·y.
        sums: usize,
    },
    /// (rows, rows that are true).
    Truths,
    /// (bits, rows).
    Xor,
    /// (bits).
    Bits {
        /// AND rather than OR.
        all: bool,
    },
    /// (value).
    Extreme(Extreme),
    /// (value, arrival + 1, or 0 while there is none).
    Arrival {
        /// The last rather than the first.
        last: bool,
    },
    /// Nothing: a values table.
    Values,
    /// Nothing: a rows table.
    Rows,
}

impl Form {
    pub(super) fn of(call: &AggregateCall, arguments: &[DataType], mode: ChangelogMode) -> Self {
        let append = mode == ChangelogMode::Append;
        match &call.function {
            AggregateFunction::CountStar
            | AggregateFunction::Count
            | AggregateFunction::ApproxCountDistinct => Form::Count,
            AggregateFunction::Sum | AggregateFunction::Avg => match arguments {
                [DataType::Decimal128(_, _)] => Form::DecimalSum,
                [DataType::Float32 | DataType::Float64] => Form::FloatSum,
                _ => Form::IntegerSum,
            },
            AggregateFunction::Moment(_) => Form::Moments { sums: 2 },
            AggregateFunction::CoMoment(_) => Form::Moments { sums: 5 },
            AggregateFunction::BoolAnd | AggregateFunction::BoolOr => Form::Truths,
            AggregateFunction::BitXor => Form::Xor,
            AggregateFunction::Min if append => Form::Extreme(Extreme::Least),
            AggregateFunction::Max if append => Form::Extreme(Extreme::Greatest),
            AggregateFunction::BitAnd if append => Form::Bits { all: true },
            AggregateFunction::BitOr if append => Form::Bits { all: false },
            AggregateFunction::FirstValue if append && call.order_by.is_empty() => {
                Form::Arrival { last: false }
            }
            AggregateFunction::LastValue if append && call.order_by.is_empty() => {
                Form::Arrival { last: true }
            }
            function if function.is_of_values() => Form::Values,
            AggregateFunction::Min
            | AggregateFunction::Max
            | AggregateFunction::BitAnd
            | AggregateFunction::BitOr
            | AggregateFunction::Collect
            | AggregateFunction::Mode
            | AggregateFunction::Percentile(_)
            | AggregateFunction::FirstValue
            | AggregateFunction::LastValue
            | AggregateFunction::SingleValue
            | AggregateFunction::ArrayAgg
            | AggregateFunction::ListAgg(_)
            | AggregateFunction::Custom(_) => Form::Rows,
        }
    }

    /// The number of state columns.
    pub(super) fn width(self) -> usize {
        match self {
            Form::Values | Form::Rows => 0,
            Form::Count | Form::Extreme(_) | Form::Bits { .. } => 1,
            Form::IntegerSum | Form::Truths | Form::Xor | Form::Arrival { .. } => 2,
            Form::DecimalSum => 3,
            Form::FloatSum => 6,
            Form::Moments { sums } => 2 + 2 * sums,
        }
    }

    /// The state columns, named after the call.
    pub(super) fn fields(self, name: &str, argument: &DataType) -> Vec<FieldRef> {
        let wide = |scale: i8| DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale);
        let field = |part: &str, data_type: DataType| {
            Arc::new(Field::new(format!("{name}.{part}"), data_type, false))
        };
        let integer = |part: &str| field(part, DataType::Int64);
        let value = || Arc::new(Field::new(format!("{name}.value"), argument.clone(), true));
        match self {
            Form::Values | Form::Rows => Vec::new(),
            Form::Count => vec![integer("count")],
            Form::IntegerSum => vec![field("sum", wide(0)), integer("rows")],
            Form::DecimalSum => {
                let scale = if let DataType::Decimal128(_, scale) = argument { *scale } else { 0 };
                vec![field("sum", wide(scale)), integer("rows"), integer("carry")]
            }
            Form::FloatSum => vec![
                field("sum", DataType::Float64),
                field("compensation", DataType::Float64),
                integer("rows"),
                integer("nan"),
                integer("infinity"),
                integer("minus_infinity"),
            ],
            Form::Moments { sums } => {
                let names = if sums == 2 { &["x", "xx"][..] } else { &["y", "x", "yy", "xx", "xy"][..] };
                let sums = names.iter().flat_map(|name| {
                    [field(name, DataType::Float64), field(&format!("{name}_low"), DataType::Float64)]
                });
                [integer("rows"), integer("not_finite")].into_iter().chain(sums).collect()
            }
            Form::Truths => vec![integer("rows"), integer("true")],
            Form::Xor => vec![integer("bits"), integer("rows")],
            Form::Bits { .. } | Form::Extreme(_) => vec![value()],
            Form::Arrival { .. } => vec![value(), integer("arrival")],
        }
    }
}

/// The key columns of a state table: the names and types of the key expressions.
pub fn key_fields(keys: &[(Arc<dyn PhysicalExpr>, String)], input: &Schema) -> Result<Vec<FieldRef>> {
    let field = |(key, name): &(Arc<dyn PhysicalExpr>, String)| {
        Ok(Arc::new(Field::new(name, key.data_type(input).map_err(expression_error)?, true)))
    };
    keys.iter().map(field).collect()
}

/// The definition of a state table that is partitioned by `keys`; a window table's identity
/// starts with the window end. Names are made unique.
pub fn state_table(
    name: &str,
    kind: TableKind,
    keys: &[FieldRef],
    more_identity: &[FieldRef],
    values: &[FieldRef],
) -> TableDef {
    let mut fields: Vec<FieldRef> = Vec::new();
    if kind == TableKind::Window {
        fields.push(Arc::new(Field::new("window_end", DataType::Int64, false)));
    }
    let first = fields.len();
    fields.extend(keys.iter().chain(more_identity).cloned());
    let identity_columns = fields.len();
    fields.extend(values.iter().cloned());
    let fields = fields.into_iter().map(plain).collect();
    TableDef {
        name: name.to_string(),
        kind,
        schema: Arc::new(Schema::new(unique_names(fields))),
        identity_columns,
        partition_columns: (first..first + keys.len()).collect(),
    }
}

/// The planner names columns after expressions; those become what people write.
fn plain(field: FieldRef) -> FieldRef {
    match field.name().contains(['(', ' ']) {
        true => Arc::new(field.as_ref().clone().with_name(plain_name(field.name()))),
        false => field,
    }
}

fn unique_names(fields: Vec<FieldRef>) -> Vec<FieldRef> {
    let mut taken = std::collections::HashSet::new();
    let unique = |field: FieldRef| {
        let mut name = field.name().clone();
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = format!("{}_{number}", field.name());
            number += 1;
        }
        Arc::new(field.as_ref().clone().with_name(name))
    };
    fields.into_iter().map(unique).collect()
}

/// The values of an expression over the rows of a batch.
///
/// Errors: *Data* for a value that it cannot take.
pub fn evaluate(expression: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ArrayRef> {
    let values = expression.evaluate(rows).map_err(expression_error)?;
    values.into_array(rows.num_rows()).map_err(expression_error)
}

/// DataFusion complains about values while it evaluates: the record is bad, unless it says
/// otherwise.
pub(super) fn expression_error(error: DataFusionError) -> Error {
    match error.find_root() {
        DataFusionError::ArrowError(_, _) => match error {
            DataFusionError::ArrowError(arrow, _) => Error::from(*arrow),
            other => Error::data(other.strip_backtrace()),
        },
        DataFusionError::Internal(message) => Error::internal(message.clone()),
        DataFusionError::Plan(message) | DataFusionError::NotImplemented(message) => {
            Error::invalid(message.clone())
        }
        _ => Error::data(error.strip_backtrace()),
    }
}
