//! Calc: filter and projection in one step, without state.
//!
//! The filter runs first, on the whole row; then only the columns that the projection reads are
//! kept, so that a selective filter over a wide row copies little. Kinds and late tags stay with
//! their rows. A filter over updates may drop `+U` and keep its `−U`: the planner sees to it that
//! such a changelog is in retract mode.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{ChangelogBatch, Error, Result};

use crate::expression::{
    EpochCell, Expression, columns_of, evaluate, evaluate_predicate, over_columns, plain_column, sql_text,
};
use crate::operator::{BuildContext, Operator, OperatorContext, OperatorFactory};
use crate::stateless::{BatchFunction, Stateless};

/// Describes a [`Calc`].
#[derive(Debug, Clone)]
pub struct CalcFactory {
    /// Which rows stay; `None`: all.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Output columns over the input columns.
    pub projection: Vec<Arc<dyn PhysicalExpr>>,
    /// Their names and types.
    pub schema: SchemaRef,
}

impl OperatorFactory for CalcFactory {
    fn name(&self) -> &'static str {
        "Calc"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, _: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Stateless(Calc::new(self)?)))
    }
    fn describe(&self) -> String {
        let output = |(expression, field): (&Expression, &Arc<arrow::datatypes::Field>)| {
            let text = sql_text(expression);
            if text == *field.name() { text } else { format!("{text} AS {}", field.name()) }
        };
        let select: Vec<String> = self.projection.iter().zip(self.schema.fields()).map(output).collect();
        let filter = self.filter.as_ref().map_or_else(String::new, |f| format!(" where=[{}]", sql_text(f)));
        format!("select=[{}]{filter}", select.join(", "))
    }
}

/// A filter and a projection, bound to one task's epochs.
#[derive(Debug)]
pub struct Calc {
    epoch: EpochCell,
    filter: Option<Expression>,
    /// The input columns that the projection reads.
    columns: Vec<usize>,
    /// Over `columns`.
    projection: Vec<Output>,
    schema: SchemaRef,
}

#[derive(Debug)]
enum Output {
    Column(usize),
    Computed(Expression),
}

impl Calc {
    /// A calc for one task.
    pub fn new(factory: &CalcFactory) -> Result<Self> {
        let epoch = EpochCell::default();
        let columns: Vec<usize> = factory
            .projection
            .iter()
            .flat_map(columns_of)
            .collect::<std::collections::BTreeSet<usize>>()
            .into_iter()
            .collect();
        let output = |expression: &Expression| -> Result<Output> {
            let moved = over_columns(expression.clone(), &columns)?;
            Ok(match plain_column(&moved) {
                Some(column) => Output::Column(column),
                None => Output::Computed(epoch.bind(moved)?),
            })
        };
        Ok(Self {
            filter: factory.filter.clone().map(|filter| epoch.bind(filter)).transpose()?,
            projection: factory.projection.iter().map(output).collect::<Result<_>>()?,
            columns,
            schema: factory.schema.clone(),
            epoch,
        })
    }

    /// The rows that pass the filter, with the columns that the projection reads.
    fn filtered(&self, batch: ChangelogBatch) -> Result<ChangelogBatch> {
        let narrow = narrow(&batch, &self.columns)?;
        let Some(filter) = &self.filter else { return Ok(narrow) };
        let kept = evaluate_predicate(filter, &batch.rows)?;
        if kept.true_count() == batch.num_rows() { Ok(narrow) } else { narrow.filter(&kept) }
    }

    fn projected(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let column = |output: &Output| match output {
            Output::Column(column) => Ok(rows.column(*column).clone()),
            Output::Computed(expression) => evaluate(expression, rows),
        };
        let columns: Vec<ArrayRef> = self.projection.iter().map(column).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        self.check_not_null(&columns)?;
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::internal(format!("a projection does not give its columns: {error}")))
    }

    /// A NULL for a column that takes none is the data's fault.
    fn check_not_null(&self, columns: &[ArrayRef]) -> Result<()> {
        let fields = self.schema.fields().iter().zip(columns);
        let broken =
            fields.filter(|(field, _)| !field.is_nullable()).find(|(_, column)| column.null_count() > 0);
        broken.map_or(Ok(()), |(field, _)| {
            Err(Error::data(format!("a row has NULL for column {:?}, which is NOT NULL", field.name()))
                .with_hint("leave such rows out by WHERE … IS NOT NULL, or replace NULL by COALESCE"))
        })
    }
}

/// Some columns of a batch. Key hashes go: behind a projection nobody can tell of which columns they are.
fn narrow(batch: &ChangelogBatch, columns: &[usize]) -> Result<ChangelogBatch> {
    Ok(ChangelogBatch {
        rows: batch.rows.project(columns)?,
        kinds: batch.kinds.clone(),
        late: batch.late.clone(),
        hashes: None,
    })
}

impl BatchFunction for Calc {
    fn apply(&mut self, ctx: &OperatorContext, batch: ChangelogBatch) -> Result<ChangelogBatch> {
        self.epoch.set(ctx.time, ctx.watermark);
        let rows_in = batch.num_rows();
        let kept = self.filtered(batch)?;
        ctx.metrics.filtered.add((rows_in - kept.num_rows()) as u64);
        ctx.metrics.accepted.add(kept.num_rows() as u64);
        if kept.is_empty() {
            return Ok(kept);
        }
        let rows = self.projected(&kept.rows)?;
        Ok(kept.replace_rows(rows))
    }
}

#[cfg(test)]
mod tests;
