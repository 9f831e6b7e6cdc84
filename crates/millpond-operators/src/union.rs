//! Union: the rows of all inputs, as they come (UNION ALL).
//!
//! The task has aligned the inputs and combined their watermarks already.

use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogBatch, Error, Result};

use crate::operator::{BuildContext, Operator, OperatorContext, OperatorFactory};
use crate::stateless::{BatchFunction, Stateless};

/// Describes a [`Union`].
#[derive(Debug, Clone)]
pub struct UnionFactory {
    /// Output columns; every input has their types, under any names.
    pub schema: SchemaRef,
    /// Number of inputs.
    pub inputs: usize,
}

impl OperatorFactory for UnionFactory {
    fn name(&self) -> &'static str {
        "Union"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, _: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Stateless(Union { schema: self.schema.clone() })))
    }
    fn describe(&self) -> String {
        format!("inputs={}", self.inputs)
    }
}

/// Passes batches of every input under the columns of the output.
#[derive(Debug)]
pub struct Union {
    schema: SchemaRef,
}

impl BatchFunction for Union {
    fn apply(&mut self, ctx: &OperatorContext, batch: ChangelogBatch) -> Result<ChangelogBatch> {
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        if batch.rows.schema_ref() == &self.schema {
            return Ok(batch);
        }
        let columns = batch.rows.columns().to_vec();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let rows = arrow::array::RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("an input of a union has other columns: {error}")))?;
        Ok(batch.replace_rows(rows))
    }
}
