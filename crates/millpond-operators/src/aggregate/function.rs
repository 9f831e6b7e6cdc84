//! The aggregate functions, and the types of their results.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field};
use millpond_core::{Error, Result};

use super::custom::CustomFunction;

/// An aggregate function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    /// `COUNT(*)`.
    CountStar,
    /// `COUNT(x)`: rows in which no argument is NULL.
    Count,
    /// `SUM(x)`.
    Sum,
    /// `MIN(x)`.
    Min,
    /// `MAX(x)`.
    Max,
    /// `AVG(x)`.
    Avg,
    /// `VAR_POP(x)` and its kin.
    Moment(Moment),
    /// `COVAR_POP(y, x)` and its kin.
    CoMoment(CoMoment),
    /// `BOOL_AND(x)`, `EVERY(x)`.
    BoolAnd,
    /// `BOOL_OR(x)`.
    BoolOr,
    /// `BIT_AND(x)`.
    BitAnd,
    /// `BIT_OR(x)`.
    BitOr,
    /// `BIT_XOR(x)`.
    BitXor,
    /// `FIRST_VALUE(x)`: in order of arrival, or of ORDER BY.
    FirstValue,
    /// `LAST_VALUE(x)`.
    LastValue,
    /// `SINGLE_VALUE(x)`: the value of the only row; more than one is an error.
    SingleValue,
    /// `ARRAY_AGG(x)`.
    ArrayAgg,
    /// `LISTAGG(x, separator)`; the separator is a constant.
    ListAgg(String),
    /// `COLLECT(x)`: how often each value occurs, as a MAP.
    Collect,
    /// `MODE(x)`: the most frequent value; of several the least.
    Mode,
    /// `PERCENTILE_CONT` and its kin, at constant fractions.
    Percentile(Percentile),
    /// `APPROX_COUNT_DISTINCT(x)`.
    ApproxCountDistinct,
    /// A function of DataFusion's, such as one that the embedding program has registered.
    Custom(CustomFunction),
}

/// What is made of the first two moments of one variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// `VAR_POP`.
    VarPop,
    /// `VAR_SAMP`.
    VarSamp,
    /// `STDDEV_POP`.
    StddevPop,
    /// `STDDEV_SAMP`.
    StddevSamp,
}

/// What is made of the first two moments of two variables, y and x.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named after the functions of SQL:2003")]
pub enum CoMoment {
    CovarPop,
    CovarSamp,
    Corr,
    RegrSlope,
    RegrIntercept,
    RegrCount,
    RegrR2,
    RegrAvgX,
    RegrAvgY,
    RegrSxx,
    RegrSyy,
    RegrSxy,
}

/// Which percentiles, and how they fall between two values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Percentile {
    /// The name by which it was called.
    pub name: String,
    /// Fractions in [0, 1], in parts of 10⁻¹⁸, so that calls can be compared.
    pub fractions: Vec<u64>,
    /// Whether several fractions were asked for: the result is an ARRAY.
    pub is_list: bool,
    /// PERCENTILE_DISC gives a value that occurs; else neighbours are interpolated.
    pub discrete: bool,
    /// WITHIN GROUP (ORDER BY x DESC).
    pub descending: bool,
}

/// Parts of a fraction of [`Percentile`].
pub const FRACTION_PARTS: f64 = 1e18;

impl fmt::Display for AggregateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AggregateFunction::CountStar | AggregateFunction::Count => "COUNT",
            AggregateFunction::Sum => "SUM",
            AggregateFunction::Min => "MIN",
            AggregateFunction::Max => "MAX",
            AggregateFunction::Avg => "AVG",
            AggregateFunction::Moment(moment) => moment.name(),
            AggregateFunction::CoMoment(moment) => moment.name(),
            AggregateFunction::BoolAnd => "BOOL_AND",
            AggregateFunction::BoolOr => "BOOL_OR",
            AggregateFunction::BitAnd => "BIT_AND",
            AggregateFunction::BitOr => "BIT_OR",
            AggregateFunction::BitXor => "BIT_XOR",
            AggregateFunction::FirstValue => "FIRST_VALUE",
            AggregateFunction::LastValue => "LAST_VALUE",
            AggregateFunction::SingleValue => "SINGLE_VALUE",
            AggregateFunction::ArrayAgg => "ARRAY_AGG",
            AggregateFunction::ListAgg(_) => "LISTAGG",
            AggregateFunction::Collect => "COLLECT",
            AggregateFunction::Mode => "MODE",
            AggregateFunction::Percentile(percentile) => &percentile.name,
            AggregateFunction::ApproxCountDistinct => "APPROX_COUNT_DISTINCT",
            AggregateFunction::Custom(function) => return f.write_str(&function.name().to_uppercase()),
        })
    }
}

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Moment::VarPop => "VAR_POP",
            Moment::VarSamp => "VAR_SAMP",
            Moment::StddevPop => "STDDEV_POP",
            Moment::StddevSamp => "STDDEV_SAMP",
        }
    }
}

impl CoMoment {
    /// All of them, for look-up by name.
    pub const ALL: [CoMoment; 12] = [
        CoMoment::CovarPop,
        CoMoment::CovarSamp,
        CoMoment::Corr,
        CoMoment::RegrSlope,
        CoMoment::RegrIntercept,
        CoMoment::RegrCount,
        CoMoment::RegrR2,
        CoMoment::RegrAvgX,
        CoMoment::RegrAvgY,
        CoMoment::RegrSxx,
        CoMoment::RegrSyy,
        CoMoment::RegrSxy,
    ];

    /// The name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            CoMoment::CovarPop => "COVAR_POP",
            CoMoment::CovarSamp => "COVAR_SAMP",
            CoMoment::Corr => "CORR",
            CoMoment::RegrSlope => "REGR_SLOPE",
            CoMoment::RegrIntercept => "REGR_INTERCEPT",
            CoMoment::RegrCount => "REGR_COUNT",
            CoMoment::RegrR2 => "REGR_R2",
            CoMoment::RegrAvgX => "REGR_AVGX",
            CoMoment::RegrAvgY => "REGR_AVGY",
            CoMoment::RegrSxx => "REGR_SXX",
            CoMoment::RegrSyy => "REGR_SYY",
            CoMoment::RegrSxy => "REGR_SXY",
        }
    }
}

impl AggregateFunction {
    /// Whether a call without any row that counts gives a value, not NULL.
    pub fn counts(&self) -> bool {
        matches!(
            self,
            AggregateFunction::CountStar
                | AggregateFunction::Count
                | AggregateFunction::ApproxCountDistinct
                | AggregateFunction::CoMoment(CoMoment::RegrCount)
        )
    }

    /// Whether rows whose argument is NULL count unless the call says IGNORE NULLS.
    pub(super) fn respects_nulls(&self) -> bool {
        matches!(
            self,
            AggregateFunction::ArrayAgg | AggregateFunction::SingleValue | AggregateFunction::Custom(_)
        )
    }

    /// Whether the result depends on how often each value occurs, in ascending order, only.
    pub(super) fn is_of_values(&self) -> bool {
        matches!(
            self,
            AggregateFunction::Min
                | AggregateFunction::Max
                | AggregateFunction::BitAnd
                | AggregateFunction::BitOr
                | AggregateFunction::Collect
                | AggregateFunction::Mode
                | AggregateFunction::Percentile(_)
        )
    }

    /// Whether it makes no difference how often a value occurs.
    pub(super) fn ignores_repetition(&self) -> bool {
        matches!(
            self,
            AggregateFunction::Min
                | AggregateFunction::Max
                | AggregateFunction::BoolAnd
                | AggregateFunction::BoolOr
                | AggregateFunction::BitAnd
                | AggregateFunction::BitOr
                | AggregateFunction::FirstValue
                | AggregateFunction::LastValue
        )
    }
}

/// The type of a function's result over argument types.
///
/// As in Flink, SUM and AVG of an integer or float have the argument's type, SUM(DECIMAL(p, s)) is
/// DECIMAL(38, s) and AVG of it DECIMAL(38, max(s, 6)); counts are BIGINT; variances, covariances
/// and interpolated percentiles are DOUBLE.
///
/// Errors: *Invalid* for arguments that the function cannot take.
pub fn output_type(function: &AggregateFunction, inputs: &[DataType]) -> Result<DataType> {
    use AggregateFunction::*;
    if let Custom(function) = function {
        return function.output_type(inputs);
    }
    let first = || inputs.first().ok_or_else(|| Error::invalid(format!("{function} takes an argument")));
    let refused = |input: &DataType| {
        Error::invalid(format!("{function} cannot take an argument of type {input}"))
            .with_hint("CAST it to a type that can be aggregated")
    };
    let accept =
        |accepted: bool, output: DataType| if accepted { Ok(output) } else { Err(refused(first()?)) };
    match function {
        CountStar | Count | ApproxCountDistinct => Ok(DataType::Int64),
        Sum | Avg => match first()? {
            DataType::Decimal128(_, scale) if *function == Sum => {
                Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale))
            }
            DataType::Decimal128(_, scale) => {
                Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, (*scale).max(6)))
            }
            number => accept(is_number(number), number.clone()),
        },
        Min | Max | Mode => accept(is_comparable(first()?), first()?.clone()),
        Moment(_) => accept(is_number(first()?), DataType::Float64),
        CoMoment(moment) => {
            let [y, x] = inputs else {
                return Err(Error::invalid(format!("{function} takes two arguments")));
            };
            match [y, x].into_iter().find(|input| !is_number(input)) {
                Some(input) => Err(refused(input)),
                None if *moment == self::CoMoment::RegrCount => Ok(DataType::Int64),
                None => Ok(DataType::Float64),
            }
        }
        BoolAnd | BoolOr => accept(first()? == &DataType::Boolean, DataType::Boolean),
        BitAnd | BitOr | BitXor => {
            accept(first()?.is_integer() && first()? != &DataType::UInt64, first()?.clone())
        }
        FirstValue | LastValue | SingleValue => Ok(first()?.clone()),
        ArrayAgg => Ok(DataType::List(Arc::new(Field::new_list_field(first()?.clone(), true)))),
        ListAgg(_) => accept(first()?.is_string(), DataType::Utf8),
        Collect => accept(is_comparable(first()?), collect_type(first()?)),
        Percentile(percentile) => {
            let one = match percentile.discrete {
                true => accept(is_comparable(first()?), first()?.clone())?,
                false => accept(is_number(first()?), DataType::Float64)?,
            };
            Ok(match percentile.is_list {
                true => DataType::List(Arc::new(Field::new_list_field(one, true))),
                false => one,
            })
        }
        Custom(_) => Err(Error::internal("a registered function has been asked above")),
    }
}

/// MAP<value, INT>.
fn collect_type(value: &DataType) -> DataType {
    let entries = vec![Field::new("key", value.clone(), false), Field::new("value", DataType::Int32, true)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false)
}

fn is_number(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(_, _) | DataType::Float32 | DataType::Float64)
        || data_type.is_integer()
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
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => true,
        other => other.is_integer() || other.is_temporal() && !matches!(other, DataType::Interval(_)),
    }
}
