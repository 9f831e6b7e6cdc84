//! The call of an aggregate function, and the types of its result.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Schema};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{ChangelogMode, Error, Result};

/// The aggregate functions with a native state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    /// `COUNT(*)`.
    CountStar,
    /// `COUNT(x)`: rows in which x is not NULL.
    Count,
    /// `SUM(x)`.
    Sum,
    /// `MIN(x)`.
    Min,
    /// `MAX(x)`.
    Max,
    /// `AVG(x)`.
    Avg,
}

impl std::fmt::Display for AggregateFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AggregateFunction::CountStar | AggregateFunction::Count => "COUNT",
            AggregateFunction::Sum => "SUM",
            AggregateFunction::Min => "MIN",
            AggregateFunction::Max => "MAX",
            AggregateFunction::Avg => "AVG",
        })
    }
}

/// One aggregate of a query.
#[derive(Debug, Clone)]
pub struct AggregateCall {
    /// The function.
    pub function: AggregateFunction,
    /// Its argument; `None` for `COUNT(*)` only.
    pub argument: Option<Arc<dyn PhysicalExpr>>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// `DISTINCT`; without effect on MIN and MAX.
    pub distinct: bool,
    /// The output column's name, which also names the call in messages and state columns.
    pub name: String,
    /// The type of the result, as [`output_type`] tells it.
    pub output_type: DataType,
}

impl AggregateCall {
    /// Whether distinct values must be told apart.
    pub fn needs_distinct(&self) -> bool {
        self.distinct && !matches!(self.function, AggregateFunction::Min | AggregateFunction::Max)
    }

    /// Checks the call against the columns and the changelog that it will see.
    ///
    /// Errors: *Invalid* for a MIN or MAX over rows that may be retracted, a missing argument, or
    /// types that do not fit.
    pub fn check(&self, input: &Schema, mode: ChangelogMode) -> Result<()> {
        let extreme = matches!(self.function, AggregateFunction::Min | AggregateFunction::Max);
        if extreme && mode != ChangelogMode::Append {
            return Err(Error::invalid(format!(
                "{} over an input whose rows change is not supported",
                self.name
            ))
            .with_hint("MIN and MAX need an input to which rows are only appended"));
        }
        let argument_type = self.argument_type(input)?;
        let output = output_type(self.function, &argument_type)?;
        if output != self.output_type {
            return Err(Error::internal(format!(
                "{} is {output} and was planned as {}",
                self.name, self.output_type
            )));
        }
        Ok(())
    }

    /// The type of the argument; that of NULL for `COUNT(*)`.
    pub fn argument_type(&self, input: &Schema) -> Result<DataType> {
        match (&self.argument, self.function) {
            (None, AggregateFunction::CountStar) => Ok(DataType::Null),
            (None, _) => Err(Error::internal(format!("{} without an argument", self.function))),
            (Some(argument), _) => argument.data_type(input).map_err(super::state::expression_error),
        }
    }

    /// The call as EXPLAIN shows it, e.g. `SUM(DISTINCT price@1)`.
    pub fn describe(&self) -> String {
        let argument = self.argument.as_ref().map_or("*".into(), |argument| argument.to_string());
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let filter = self.filter.as_ref().map_or(String::new(), |filter| format!(" FILTER ({filter})"));
        format!("{}({distinct}{argument}){filter}", self.function)
    }
}

/// The type of a function's result over an argument type, as in Flink.
///
/// COUNT is BIGINT; SUM(DECIMAL(p, s)) is DECIMAL(38, s) and AVG of it DECIMAL(38, max(s, 6));
/// everything else has the argument's type.
///
/// Errors: *Invalid* for an argument that the function cannot take.
pub fn output_type(function: AggregateFunction, input: &DataType) -> Result<DataType> {
    let refused = || {
        Error::invalid(format!("{function} cannot take an argument of type {input}"))
            .with_hint("CAST it to a type that can be aggregated")
    };
    match function {
        AggregateFunction::CountStar | AggregateFunction::Count => Ok(DataType::Int64),
        AggregateFunction::Sum | AggregateFunction::Avg => match input {
            DataType::Decimal128(_, scale) if function == AggregateFunction::Sum => {
                Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale))
            }
            DataType::Decimal128(_, scale) => {
                Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, (*scale).max(6)))
            }
            DataType::Float32 | DataType::Float64 => Ok(input.clone()),
            other if other.is_integer() => Ok(input.clone()),
            _ => Err(refused()),
        },
        AggregateFunction::Min | AggregateFunction::Max if is_comparable(input) => Ok(input.clone()),
        AggregateFunction::Min | AggregateFunction::Max => Err(refused()),
    }
}

fn is_comparable(data_type: &DataType) -> bool {
    match data_type {
        // Held by their bits, whose order is not theirs; the dialect has no such type.
        DataType::UInt64 => false,
        DataType::Boolean
        | DataType::Float32
        | DataType::Float64
        | DataType::Decimal128(_, _)
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView => true,
        other => other.is_integer() || other.is_temporal() && !matches!(other, DataType::Interval(_)),
    }
}
