//! Functions of DataFusion's and of the embedding program: computed anew from all rows of a group.
//!
//! DataFusion's accumulators cannot be kept in a state table, and few of them take rows back. The
//! rows are kept instead, and a fresh accumulator sees them, in order, when a result is due.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::Result;

use super::state::expression_error;

/// A registered aggregate function with its constant arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomFunction {
    function: Arc<AggregateUDF>,
    /// All arguments: the constant ones, and `None` for those that are computed per row.
    arguments: Vec<Option<ScalarValue>>,
}

impl CustomFunction {
    /// A function and all its arguments: constants, and `None` for those that rows give.
    pub fn new(function: Arc<AggregateUDF>, arguments: Vec<Option<ScalarValue>>) -> Self {
        Self { function, arguments }
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        self.function.name()
    }

    /// The type of its result over the types of the arguments that rows give.
    pub(super) fn output_type(&self, inputs: &[DataType]) -> Result<DataType> {
        let field = self.function.return_field(&self.fields(inputs)).map_err(expression_error)?;
        Ok(field.data_type().clone())
    }

    /// The result over some rows.
    pub(super) fn result(&self, rows: &[ArrayRef], count: usize, ignore_nulls: bool) -> Result<ArrayRef> {
        self.try_result(rows, count, ignore_nulls).map_err(expression_error)
    }

    fn try_result(
        &self,
        rows: &[ArrayRef],
        count: usize,
        ignore_nulls: bool,
    ) -> Result<ArrayRef, DataFusionError> {
        let types: Vec<DataType> = rows.iter().map(|column| column.data_type().clone()).collect();
        let fields = self.fields(&types);
        let schema = Schema::new(fields.clone());
        let expression = |(index, argument): (usize, &Option<ScalarValue>)| -> Arc<dyn PhysicalExpr> {
            match argument {
                Some(value) => Arc::new(Literal::new(value.clone())),
                None => Arc::new(Column::new(fields[index].name(), index)),
            }
        };
        let expressions: Vec<_> = self.arguments.iter().enumerate().map(expression).collect();
        let mut accumulator = self.function.accumulator(AccumulatorArgs {
            return_field: self.function.return_field(&fields)?,
            schema: &schema,
            ignore_nulls,
            order_bys: &[],
            is_reversed: false,
            name: self.name(),
            is_distinct: false,
            exprs: &expressions,
            expr_fields: &fields,
        })?;
        let mut columns = rows.iter();
        let mut values = Vec::with_capacity(self.arguments.len());
        for argument in &self.arguments {
            values.push(match argument {
                Some(value) => value.to_array_of_size(count)?,
                None => columns
                    .next()
                    .cloned()
                    .ok_or_else(|| DataFusionError::Internal(format!("{} lacks an argument", self.name())))?,
            });
        }
        if count > 0 {
            accumulator.update_batch(&values)?;
        }
        accumulator.evaluate()?.to_array()
    }

    fn fields(&self, inputs: &[DataType]) -> Vec<FieldRef> {
        let mut inputs = inputs.iter();
        let types = self.arguments.iter().map(|argument| match argument {
            Some(value) => value.data_type(),
            None => inputs.next().cloned().unwrap_or(DataType::Null),
        });
        let field = |(index, data_type)| Arc::new(Field::new(format!("argument_{index}"), data_type, true));
        types.enumerate().map(field).collect()
    }
}
