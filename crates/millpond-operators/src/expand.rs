//! Expand: repeats each row for every grouping set of GROUPING SETS, CUBE or ROLLUP.
//!
//! No state. Appends to each row the grouping columns, NULL where the set leaves them out, and the
//! number of the set, by which a NULL that was left out is told from one that was there. Kinds and
//! late tags go along; output is made a set at a time, so that no batch grows.
//!
//! ```text
//! (a, b)  ─▶  a b | a    b    0      GROUPING SETS ((a, b), (a), ())
//!             a b | a    NULL 1
//!             a b | NULL NULL 3
//! ```

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use millpond_core::{ChangelogBatch, EpochTime, Error, Result, Watermark};
use millpond_state::StateTable;

use crate::operator::*;

/// The physical description of grouping sets.
#[derive(Debug, Clone)]
pub struct ExpandFactory {
    /// The grouping columns, by index in the input.
    pub keys: Vec<usize>,
    /// The sets: which of the grouping columns are in it, and its number.
    pub sets: Vec<(Vec<bool>, ScalarValue)>,
    /// Columns of the output: the input's, the grouping columns again, the set's number.
    pub schema: SchemaRef,
}

impl OperatorFactory for ExpandFactory {
    fn name(&self) -> &'static str {
        "Expand"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, _context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Expand { factory: self.clone(), pending: None }))
    }

    fn describe(&self) -> String {
        let first = self.schema.fields().len() - self.keys.len() - 1;
        let set = |(kept, _): &(Vec<bool>, ScalarValue)| {
            let names = (0..self.keys.len()).filter(|key| kept[*key]);
            let names: Vec<&str> = names.map(|key| self.schema.field(first + key).name().as_str()).collect();
            format!("({})", names.join(", "))
        };
        format!("sets=[{}]", self.sets.iter().map(set).collect::<Vec<_>>().join(", "))
    }
}

struct Expand {
    factory: ExpandFactory,
    /// A batch of which some sets are still to be said, from this one on.
    pending: Option<(ChangelogBatch, usize)>,
}

impl Expand {
    fn expand_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let Some((batch, set)) = self.pending.take() else { return Ok(Progress::Done) };
        ctx.emit(self.output(&batch, set)?);
        if set + 1 == self.factory.sets.len() {
            return Ok(Progress::Done);
        }
        self.pending = Some((batch, set + 1));
        Ok(Progress::More)
    }

    fn output(&self, batch: &ChangelogBatch, set: usize) -> Result<ChangelogBatch> {
        let (kept, number) = &self.factory.sets[set];
        let rows = batch.num_rows();
        let mut columns: Vec<ArrayRef> = batch.rows.columns().to_vec();
        for (key, kept) in self.factory.keys.iter().zip(kept) {
            let column = batch.rows.column(*key);
            columns.push(if *kept { column.clone() } else { new_null_array(column.data_type(), rows) });
        }
        let internal =
            |error: String| Error::internal(format!("rows do not fit the output of Expand: {error}"));
        columns.push(number.to_array_of_size(rows).map_err(|error| internal(error.to_string()))?);
        let rows = arrow::array::RecordBatch::try_new(self.factory.schema.clone(), columns)
            .map_err(|error| internal(error.to_string()))?;
        Ok(batch.replace_rows(rows))
    }
}

impl Operator for Expand {
    fn touches(&self, _input: InputIndex, _batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(Vec::new())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        self.pending = Some((batch, 0));
        self.expand_next(ctx)
    }

    fn end_epoch(
        &mut self,
        _ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.expand_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow::util::pretty::pretty_format_batches;
    use millpond_core::{KeyGroupRange, OperatorMetrics, RowKind};

    #[test]
    fn each_row_comes_once_per_set_with_its_kind() {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        let input = Arc::new(Schema::new(vec![field("a"), field("v")]));
        let schema =
            Schema::new(vec![field("a"), field("v"), field("a2"), Field::new("id", DataType::UInt8, false)]);
        let sets =
            vec![(vec![true], ScalarValue::UInt8(Some(0))), (vec![false], ScalarValue::UInt8(Some(1)))];
        let factory = ExpandFactory { keys: vec![0], sets, schema: Arc::new(schema) };
        assert_eq!(factory.describe(), "sets=[(a2), ()]");
        let key_groups = KeyGroupRange::all(256);
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
        let mut operator = factory.build(context).unwrap();
        let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        let column = |values: [i64; 2]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
        let rows = RecordBatch::try_new(input, vec![column([1, 2]), column([3, 4])]).unwrap();
        let batch = ChangelogBatch::with_kinds(rows, vec![RowKind::Insert, RowKind::Delete]);
        assert_eq!(operator.process(&mut ctx, 0, batch).unwrap(), Progress::More);
        let first = ctx.take_output().unwrap();
        assert_eq!(operator.resume(&mut ctx).unwrap(), Progress::Done);
        let second = ctx.take_output().unwrap();
        assert_eq!(second.kind(1), RowKind::Delete);
        let text = pretty_format_batches(&[first.rows, second.rows]).unwrap().to_string();
        let rows = text.lines().skip(3).filter(|line| line.starts_with('|'));
        let values: Vec<String> = rows.map(|line| line.replace(' ', "")).collect();
        assert_eq!(values, ["|1|3|1|0|", "|2|4|2|0|", "|1|3||1|", "|2|4||1|"]);
    }
}
