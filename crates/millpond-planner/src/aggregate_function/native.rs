//! Aggregate functions that DataFusion lacks or defines otherwise: computed by the streaming
//! operators' code, in a batch too.
//!
//! In a batch an accumulator collects the rows of its group and lets an [`AggregateSet`] of one
//! group compute the result, so that both ways give the same values, types and errors.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, concat_batches};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Schema, SchemaRef};
use datafusion::common::{DataFusionError, ScalarValue, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::aggregate::{
    AggregateCall, AggregateFunction, FRACTION_PARTS, Percentile, one_group, output_type,
};

use crate::plan_error::carried;
use crate::sql_type::sql_type;

/// A function of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Native {
    name: &'static str,
    aliases: Vec<String>,
    shape: Shape,
    signature: Signature,
}

/// What a function takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// Values of any type.
    Any(AggregateFunction),
    /// As many numbers as said.
    Numbers(AggregateFunction, usize),
    /// A text, and the constant text between two of them.
    ListAgg,
    /// Numbers or other values, and the constant fractions; WITHIN GROUP turns the two round.
    Percentile { discrete: bool },
    /// Numbers, of which the middle one is asked for.
    Median,
}

/// How a function is called: with the constant arguments taken out.
pub(crate) struct Resolved {
    pub(crate) function: AggregateFunction,
    /// How many of the first arguments are computed per row.
    pub(crate) columns: usize,
    /// Whether ORDER BY has had its say in the function itself.
    pub(crate) ordered: bool,
}

impl Native {
    pub(super) fn new(name: &'static str, aliases: &[&str], shape: Shape) -> Self {
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        Self { name, aliases, shape, signature: Signature::user_defined(Volatility::Immutable) }
    }

    /// The function of a call, given its constant arguments and the direction of its ORDER BY.
    ///
    /// Errors: *Invalid* for an argument that must be constant and is not.
    pub(crate) fn resolve(&self, constants: &[Option<ScalarValue>], descending: bool) -> Result<Resolved> {
        let plain = |function: &AggregateFunction, columns: usize| Resolved {
            function: function.clone(),
            columns,
            ordered: false,
        };
        match &self.shape {
            Shape::Any(function) => Ok(plain(function, constants.len())),
            Shape::Numbers(function, count) => Ok(plain(function, *count)),
            Shape::ListAgg => {
                let separator = match constants.get(1) {
                    None => ",".to_owned(),
                    Some(Some(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)))) => {
                        text.clone()
                    }
                    Some(_) => return Err(self.not_constant("separator")),
                };
                Ok(plain(&AggregateFunction::ListAgg(separator), 1))
            }
            Shape::Percentile { discrete } => {
                let fractions = constants.get(1).and_then(Option::as_ref).and_then(fractions);
                let (fractions, is_list) = fractions.ok_or_else(|| self.not_constant("percentage"))?;
                if let Some(wrong) = fractions.iter().find(|fraction| !(0.0..=1.0).contains(*fraction)) {
                    return Err(Error::invalid(format!(
                        "the percentage of {} must be between 0 and 1, not {wrong}",
                        self.name.to_uppercase()
                    )));
                }
                Ok(self.percentile(&fractions, is_list, *discrete, descending))
            }
            Shape::Median => Ok(self.percentile(&[0.5], false, false, descending)),
        }
    }

    fn percentile(&self, fractions: &[f64], is_list: bool, discrete: bool, descending: bool) -> Resolved {
        let function = AggregateFunction::Percentile(Percentile {
            name: self.name.to_uppercase(),
            fractions: fractions.iter().map(|fraction| (fraction * FRACTION_PARTS) as u64).collect(),
            is_list,
            discrete,
            descending,
        });
        Resolved { function, columns: 1, ordered: true }
    }

    fn not_constant(&self, what: &str) -> Error {
        Error::invalid(format!("the {what} of {} must be a constant", self.name.to_uppercase()))
    }

    fn wrong(&self, takes: &str) -> Result<Vec<DataType>, DataFusionError> {
        plan_err!("{} takes {takes}", self.name.to_uppercase())
    }

    /// The function, as far as the types of its arguments tell, for the type of its result.
    fn typed(&self, arguments: &[DataType]) -> Result<(AggregateFunction, usize)> {
        let is_list = matches!(arguments.get(1), Some(DataType::List(_)));
        Ok(match &self.shape {
            Shape::Any(function) => (function.clone(), arguments.len()),
            Shape::Numbers(function, count) => (function.clone(), *count),
            Shape::ListAgg => (AggregateFunction::ListAgg(String::new()), 1),
            Shape::Percentile { discrete } => (self.percentile(&[], is_list, *discrete, false).function, 1),
            Shape::Median => (self.percentile(&[0.5], false, false, false).function, 1),
        })
    }
}

/// Fractions of a constant, and whether it was a list of them.
fn fractions(constant: &ScalarValue) -> Option<(Vec<f64>, bool)> {
    match constant {
        ScalarValue::Float64(Some(fraction)) => Some((vec![*fraction], false)),
        ScalarValue::List(list) if list.len() == 1 && list.is_valid(0) => {
            let items = list.value(0);
            let items = items.as_primitive_opt::<Float64Type>()?;
            (items.null_count() == 0).then(|| (items.values().to_vec(), true))
        }
        _ => None,
    }
}

impl AggregateUDFImpl for Native {
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
        let number = |argument: &DataType| match argument {
            DataType::Null => Ok(DataType::Float64),
            unsigned if unsigned.is_unsigned_integer() => Ok(DataType::Int64),
            number if number.is_numeric() => Ok(number.clone()),
            other => plan_err!(
                "{} of {} is not possible: it takes numbers",
                self.name.to_uppercase(),
                sql_type(other)
            ),
        };
        match (&self.shape, arguments) {
            (Shape::Any(_), [argument]) => Ok(vec![argument.clone()]),
            (Shape::Any(_), _) | (Shape::Median, [] | [_, _, ..]) => self.wrong("one argument"),
            (Shape::Numbers(_, count), _) if arguments.len() == *count => {
                arguments.iter().map(number).collect()
            }
            (Shape::Numbers(_, 1), _) => self.wrong("one argument"),
            (Shape::Numbers(_, _), _) => self.wrong("two arguments"),
            (Shape::ListAgg, [_]) => Ok(vec![DataType::Utf8]),
            (Shape::ListAgg, [_, _]) => Ok(vec![DataType::Utf8, DataType::Utf8]),
            (Shape::ListAgg, _) => self.wrong("a text and the separator"),
            (Shape::Median, [argument]) => Ok(vec![number(argument)?]),
            (Shape::Percentile { discrete }, [argument, fraction]) => {
                let argument = if *discrete { argument.clone() } else { number(argument)? };
                let fraction = match fraction {
                    DataType::List(_) | DataType::FixedSizeList(_, _) => {
                        DataType::List(Arc::new(Field::new_list_field(DataType::Float64, true)))
                    }
                    _ => DataType::Float64,
                };
                Ok(vec![argument, fraction])
            }
            (Shape::Percentile { .. }, _) => self.wrong("a value and the percentage"),
        }
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        let (function, columns) = self.typed(arguments).map_err(carried)?;
        output_type(&function, &arguments[..columns.min(arguments.len())]).map_err(carried)
    }
    fn is_nullable(&self) -> bool {
        match &self.shape {
            Shape::Any(function) | Shape::Numbers(function, _) => !function.counts(),
            Shape::ListAgg | Shape::Percentile { .. } | Shape::Median => true,
        }
    }
    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue, DataFusionError> {
        match self.is_nullable() {
            true => ScalarValue::try_from(data_type),
            false => ScalarValue::new_zero(data_type),
        }
    }
    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        // The accumulator sorts by itself, and is given the columns of ORDER BY to that end.
        AggregateOrderSensitivity::Beneficial
    }
    fn with_beneficial_ordering(
        self: Arc<Self>,
        _beneficial: bool,
    ) -> Result<Option<Arc<dyn AggregateUDFImpl>>, DataFusionError> {
        Ok(Some(self))
    }
    fn supports_null_handling_clause(&self) -> bool {
        let functions =
            [AggregateFunction::FirstValue, AggregateFunction::LastValue, AggregateFunction::ArrayAgg];
        matches!(&self.shape, Shape::Any(function) if functions.contains(function))
    }
    fn supports_within_group_clause(&self) -> bool {
        match &self.shape {
            Shape::Percentile { .. } => true,
            Shape::Any(function) => *function == AggregateFunction::Mode,
            Shape::Numbers(_, _) | Shape::ListAgg | Shape::Median => false,
        }
    }
    fn accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>, DataFusionError> {
        Ok(Box::new(Collected::new(self, arguments).map_err(carried)?))
    }
    fn state_fields(&self, arguments: StateFieldsArgs) -> Result<Vec<FieldRef>, DataFusionError> {
        let ordering = arguments.ordering_fields.iter();
        let types = arguments.input_fields.iter().chain(ordering).map(|field| field.data_type());
        let schema = rows_schema(types);
        let item = Field::new_list_field(DataType::Struct(schema.fields().clone()), true);
        Ok(vec![Arc::new(Field::new(
            format!("{}[rows]", arguments.name),
            DataType::List(Arc::new(item)),
            true,
        ))])
    }
}

fn rows_schema<'a>(types: impl Iterator<Item = &'a DataType>) -> SchemaRef {
    let field =
        |(index, data_type): (usize, &DataType)| Field::new(format!("c{index}"), data_type.clone(), true);
    Arc::new(Schema::new(types.enumerate().map(field).collect::<Vec<_>>()))
}

/// The rows of one group in a batch.
#[derive(Debug)]
struct Collected {
    call: AggregateCall,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Collected {
    fn new(native: &Native, arguments: AccumulatorArgs<'_>) -> Result<Self> {
        let constant = |expr: &Arc<dyn PhysicalExpr>| {
            let any: &dyn std::any::Any = expr.as_ref();
            any.downcast_ref::<Literal>().map(|literal| literal.value().clone())
        };
        let constants: Vec<Option<ScalarValue>> = arguments.exprs.iter().map(constant).collect();
        let descending = arguments.order_bys.first().is_some_and(|order| order.options.descending);
        let resolved = native.resolve(&constants, descending)?;
        let ordering = arguments.order_bys.iter().map(|order| order.expr.data_type(arguments.schema));
        let ordering = ordering.collect::<Result<Vec<_>, _>>().map_err(crate::plan_error::from_datafusion)?;
        let types = arguments.expr_fields.iter().map(|field| field.data_type()).chain(&ordering);
        let schema = rows_schema(types);
        let column = |index: usize| -> Arc<dyn PhysicalExpr> {
            Arc::new(Column::new(schema.field(index).name(), index))
        };
        let first = arguments.expr_fields.len();
        let order = |(index, options): (usize, SortOptions)| (column(first + index), options);
        let options = arguments.order_bys.iter().map(|order| order.options).enumerate();
        let order_by = if resolved.ordered { Vec::new() } else { options.map(order).collect() };
        let call = AggregateCall {
            distinct: arguments.is_distinct,
            order_by,
            ignore_nulls: arguments.ignore_nulls.then_some(true),
            ..AggregateCall::new(
                resolved.function,
                (0..resolved.columns).map(column).collect(),
                arguments.name,
                arguments.return_field.data_type().clone(),
            )
        };
        Ok(Self { call, schema, batches: Vec::new() })
    }

    fn push(&mut self, columns: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.batches.push(RecordBatch::try_new(Arc::clone(&self.schema), columns.to_vec())?);
        Ok(())
    }
}

impl Accumulator for Collected {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        let width = self.schema.fields().len();
        match values.len() < width {
            true => Err(DataFusionError::Internal(format!("{} lacks a column", self.call.name))),
            false => self.push(&values[..width]),
        }
    }
    /// A frame slides along its rows: the first ones leave it.
    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        let mut leaving = values.first().map_or(0, |column| column.len());
        while leaving > 0 {
            let Some(first) = self.batches.first_mut() else {
                return Err(DataFusionError::Internal(format!("{} lacks rows to take back", self.call.name)));
            };
            let rows = first.num_rows().min(leaving);
            leaving -= rows;
            match rows == first.num_rows() {
                true => drop(self.batches.remove(0)),
                false => *first = first.slice(rows, first.num_rows() - rows),
            }
        }
        Ok(())
    }
    fn supports_retract_batch(&self) -> bool {
        true
    }
    fn evaluate(&mut self) -> Result<ScalarValue, DataFusionError> {
        let result =
            one_group(&self.call, &self.schema, &self.batches, ChangelogMode::Append).map_err(carried)?;
        ScalarValue::try_from_array(&result, 0)
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.batches.iter().map(RecordBatch::get_array_memory_size).sum::<usize>()
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>, DataFusionError> {
        let rows = concat_batches(&self.schema, &self.batches)?;
        let rows = StructArray::from(rows);
        let field = Arc::new(Field::new_list_field(rows.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths([rows.len()]);
        Ok(vec![ScalarValue::List(Arc::new(ListArray::new(field, offsets, Arc::new(rows), None)))])
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<(), DataFusionError> {
        let lists = states[0].as_list::<i32>();
        for row in 0..lists.len() {
            if lists.is_valid(row) {
                let rows = lists.value(row);
                self.push(rows.as_struct().columns())?;
            }
        }
        Ok(())
    }
}
