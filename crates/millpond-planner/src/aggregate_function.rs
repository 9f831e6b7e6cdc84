//! Aggregate functions with Flink's result types: `SUM(INT)` is INT, `AVG(BIGINT)` is BIGINT.
//!
//! In a stream only their names and types matter: the operators compute them. In a batch SUM and AVG
//! delegate to DataFusion's, over an argument wide enough to be exact, and cast the result; overflow
//! of the result type is an error. What DataFusion lacks or defines otherwise is [`native`].

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{DataFusionError, ScalarValue, plan_err};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::bool_and_or::bool_and_udaf;
use datafusion::functions_aggregate::grouping::grouping_udaf;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::Result as CoreResult;
use millpond_operators::aggregate::{AggregateFunction, CoMoment, CustomFunction, Moment, output_type};

use self::native::{Native, Resolved, Shape};
use crate::plan_error::carried;

mod native;

/// Digits of a sum, at most.
const SUM_DIGITS: u8 = 38;

/// All functions that replace DataFusion's.
pub(crate) fn all() -> Vec<AggregateUDF> {
    let mut all = vec![
        AggregateUDF::from(Exact::new("sum", AggregateFunction::Sum, sum_udaf())),
        AggregateUDF::from(Exact::new("avg", AggregateFunction::Avg, avg_udaf())),
        bool_and_udaf().as_ref().clone().with_aliases(["every"]),
        grouping_udaf().as_ref().clone().with_aliases(["grouping_id"]),
    ];
    all.extend(natives().into_iter().map(AggregateUDF::from));
    all
}

fn natives() -> Vec<Native> {
    use AggregateFunction as F;
    let any = |name, aliases: &[&str], function| Native::new(name, aliases, Shape::Any(function));
    let moment =
        |name, aliases: &[&str], moment| Native::new(name, aliases, Shape::Numbers(F::Moment(moment), 1));
    let mut natives = vec![
        moment("var_pop", &["var_population"], Moment::VarPop),
        moment("var_samp", &["var", "var_sample", "variance"], Moment::VarSamp),
        moment("stddev_pop", &[], Moment::StddevPop),
        moment("stddev_samp", &["stddev"], Moment::StddevSamp),
        any("first_value", &["any_value"], F::FirstValue),
        any("last_value", &[], F::LastValue),
        any("single_value", &[], F::SingleValue),
        any("array_agg", &[], F::ArrayAgg),
        any("collect", &[], F::Collect),
        any("mode", &[], F::Mode),
        any("approx_count_distinct", &["approx_distinct"], F::ApproxCountDistinct),
        Native::new("listagg", &["string_agg", "group_concat"], Shape::ListAgg),
        Native::new("median", &["approx_median"], Shape::Median),
        Native::new(
            "percentile_cont",
            &["percentile", "quantile_cont", "approx_percentile_cont"],
            Shape::Percentile { discrete: false },
        ),
        Native::new("percentile_disc", &["quantile_disc"], Shape::Percentile { discrete: true }),
    ];
    natives.extend(CoMoment::ALL.map(|moment| {
        let (name, aliases): (&'static str, &[&str]) = match moment {
            CoMoment::CovarPop => ("covar_pop", &[]),
            CoMoment::CovarSamp => ("covar_samp", &["covar"]),
            CoMoment::Corr => ("corr", &[]),
            CoMoment::RegrSlope => ("regr_slope", &[]),
            CoMoment::RegrIntercept => ("regr_intercept", &[]),
            CoMoment::RegrCount => ("regr_count", &[]),
            CoMoment::RegrR2 => ("regr_r2", &[]),
            CoMoment::RegrAvgX => ("regr_avgx", &[]),
            CoMoment::RegrAvgY => ("regr_avgy", &[]),
            CoMoment::RegrSxx => ("regr_sxx", &[]),
            CoMoment::RegrSyy => ("regr_syy", &[]),
            CoMoment::RegrSxy => ("regr_sxy", &[]),
        };
        Native::new(name, aliases, Shape::Numbers(F::CoMoment(moment), 2))
    }));
    natives
}

/// The function that a call means, given its constant arguments and the direction of its ORDER BY.
///
/// Errors: *Invalid* for an argument that must be constant and is not.
pub(crate) fn resolve(
    function: &Arc<AggregateUDF>,
    constants: &[Option<ScalarValue>],
    descending: bool,
) -> CoreResult<Resolved> {
    let inner: &dyn std::any::Any = function.inner().as_ref();
    if let Some(native) = inner.downcast_ref::<Native>() {
        return native.resolve(constants, descending);
    }
    let columns = constants.len();
    let resolved = |function| Ok(Resolved { function, columns, ordered: false });
    if let Some(exact) = inner.downcast_ref::<Exact>() {
        return resolved(exact.function.clone());
    }
    let known = [
        (datafusion::functions_aggregate::count::count_udaf(), AggregateFunction::Count),
        (datafusion::functions_aggregate::min_max::min_udaf(), AggregateFunction::Min),
        (datafusion::functions_aggregate::min_max::max_udaf(), AggregateFunction::Max),
        (datafusion::functions_aggregate::bool_and_or::bool_or_udaf(), AggregateFunction::BoolOr),
        (datafusion::functions_aggregate::bit_and_or_xor::bit_and_udaf(), AggregateFunction::BitAnd),
        (datafusion::functions_aggregate::bit_and_or_xor::bit_or_udaf(), AggregateFunction::BitOr),
        (datafusion::functions_aggregate::bit_and_or_xor::bit_xor_udaf(), AggregateFunction::BitXor),
    ];
    if let Some((_, known)) = known.into_iter().find(|(udaf, _)| udaf == function) {
        return resolved(known);
    }
    if function.name() == "bool_and" {
        return resolved(AggregateFunction::BoolAnd);
    }
    let custom = CustomFunction::new(Arc::clone(function), constants.to_vec());
    resolved(AggregateFunction::Custom(custom))
}

/// SUM or AVG.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Exact {
    name: &'static str,
    function: AggregateFunction,
    inner: Arc<AggregateUDF>,
    signature: Signature,
    aliases: Vec<String>,
}

impl Exact {
    fn new(name: &'static str, function: AggregateFunction, inner: Arc<AggregateUDF>) -> Self {
        let aliases = if name == "avg" { vec!["mean".to_owned()] } else { Vec::new() };
        Self { name, function, inner, signature: Signature::user_defined(Volatility::Immutable), aliases }
    }

    /// The type over which DataFusion's function is exact.
    fn wide_type(input: &DataType) -> DataType {
        match input {
            DataType::Float32 | DataType::Float64 => DataType::Float64,
            DataType::Decimal128(_, scale) => DataType::Decimal128(SUM_DIGITS, *scale),
            _ => DataType::Decimal128(SUM_DIGITS, 0),
        }
    }

    /// The field of the wide argument, and that of DataFusion's result.
    fn inner_fields(&self, input: &DataType) -> Result<(FieldRef, FieldRef), DataFusionError> {
        let argument = Arc::new(Field::new("argument", Self::wide_type(input), true));
        let result = self.inner.return_field(&[Arc::clone(&argument)])?;
        Ok((argument, result))
    }
}

/// Makes DataFusion's accumulator.
type Make = fn(&AggregateUDF, AccumulatorArgs) -> Result<Box<dyn Accumulator>, DataFusionError>;

impl Exact {
    fn wrapped(
        &self,
        arguments: AccumulatorArgs,
        make: Make,
    ) -> Result<Box<dyn Accumulator>, DataFusionError> {
        let input = arguments.expr_fields[0].data_type();
        let (argument, result) = self.inner_fields(input)?;
        let schema = arrow::datatypes::Schema::new(vec![Arc::clone(&argument)]);
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("argument", 0));
        let wide_arguments = AccumulatorArgs {
            return_field: result,
            schema: &schema,
            expr_fields: &[Arc::clone(&argument)],
            exprs: &[column],
            ..arguments.clone()
        };
        let inner = make(&self.inner, wide_arguments)?;
        let wide = argument.data_type().clone();
        Ok(Box::new(ExactAccumulator { inner, wide, result: arguments.return_field.data_type().clone() }))
    }
}

impl AggregateUDFImpl for Exact {
    fn name(&self) -> &str {
        self.name
    }
    fn aliases(&self) -> &[String] {
        &self.aliases
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        match arguments {
            [DataType::Null] => Ok(vec![DataType::Int64]),
            [DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64] => {
                Ok(vec![DataType::Int64])
            }
            [number] if number.is_numeric() => Ok(vec![number.clone()]),
            [other] => {
                let (name, found) = (self.name.to_uppercase(), crate::sql_type::sql_type(other));
                plan_err!("{name} of {found} is not possible: it takes numbers")
            }
            _ => plan_err!("{} takes one argument", self.name.to_uppercase()),
        }
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        match arguments {
            [input] => output_type(&self.function, std::slice::from_ref(input)).map_err(carried),
            _ => plan_err!("{} takes one argument", self.name.to_uppercase()),
        }
    }
    fn accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>, DataFusionError> {
        self.wrapped(arguments, |inner, arguments| inner.accumulator(arguments))
    }
    fn create_sliding_accumulator(
        &self,
        arguments: AccumulatorArgs,
    ) -> Result<Box<dyn Accumulator>, DataFusionError> {
        if arguments.expr_fields[0].data_type().is_floating() {
            let result = arguments.return_field.data_type().clone();
            let is_average = self.function == AggregateFunction::Avg;
            return Ok(Box::new(SlidingFloats { values: VecDeque::new(), is_average, result }));
        }
        self.wrapped(arguments, |inner, arguments| inner.create_sliding_accumulator(arguments))
    }
    fn state_fields(&self, arguments: StateFieldsArgs) -> Result<Vec<FieldRef>, DataFusionError> {
        let (argument, result) = self.inner_fields(arguments.input_fields[0].data_type())?;
        self.inner.state_fields(StateFieldsArgs {
            name: arguments.name,
            input_fields: &[argument],
            return_field: result,
            ordering_fields: arguments.ordering_fields,
            is_distinct: arguments.is_distinct,
        })
    }
}

/// DataFusion's accumulator between two casts.
#[derive(Debug)]
struct ExactAccumulator {
    inner: Box<dyn Accumulator>,
    wide: DataType,
    result: DataType,
}

impl Accumulator for ExactAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.inner.update_batch(&[checked_cast(&values[0], &self.wide)?])
    }
    fn evaluate(&mut self) -> Result<ScalarValue, DataFusionError> {
        let value = self.inner.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&checked_cast(&value, &self.result)?, 0)
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>, DataFusionError> {
        self.inner.state()
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.inner.merge_batch(states)
    }
    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.inner.retract_batch(&[checked_cast(&values[0], &self.wide)?])
    }
    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

/// SUM or AVG of a sliding frame of FLOATs or DOUBLEs: added anew, since what NaN, an infinity or
/// rounding did to a sum cannot be taken back.
#[derive(Debug)]
struct SlidingFloats {
    values: VecDeque<Option<f64>>,
    is_average: bool,
    result: DataType,
}

impl Accumulator for SlidingFloats {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        let values = checked_cast(&values[0], &DataType::Float64)?;
        self.values.extend(values.as_primitive::<Float64Type>().iter());
        Ok(())
    }
    /// A frame slides along its rows: the first ones leave it.
    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.values.drain(..values[0].len().min(self.values.len()));
        Ok(())
    }
    fn supports_retract_batch(&self) -> bool {
        true
    }
    fn evaluate(&mut self) -> Result<ScalarValue, DataFusionError> {
        let there: Vec<f64> = self.values.iter().flatten().copied().collect();
        let sum: f64 = there.iter().sum();
        let value = match (there.is_empty(), self.is_average) {
            (true, _) => None,
            (false, true) => Some(sum / there.len() as f64),
            (false, false) => Some(sum),
        };
        ScalarValue::Float64(value).cast_to(&self.result)
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<Option<f64>>()
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>, DataFusionError> {
        plan_err!("the aggregate of a frame has no state")
    }
    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<(), DataFusionError> {
        plan_err!("the aggregate of a frame is not merged")
    }
}

fn checked_cast(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, DataFusionError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(values, to, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_types_are_flinks() {
        let cases = [
            ("sum", DataType::Int32, DataType::Int32),
            ("avg", DataType::Int64, DataType::Int64),
            ("avg", DataType::Float64, DataType::Float64),
            ("sum", DataType::Decimal128(10, 2), DataType::Decimal128(38, 2)),
            ("avg", DataType::Decimal128(10, 2), DataType::Decimal128(38, 6)),
        ];
        for (name, input, expected) in cases {
            let function = all().into_iter().find(|function| function.name() == name).unwrap();
            let field = Arc::new(Field::new("x", input, true));
            assert_eq!(*function.return_field(&[field]).unwrap().data_type(), expected);
        }
    }
}
