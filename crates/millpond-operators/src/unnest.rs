//! Unnest: a row for each item of an array, or each entry of a map.
//!
//! No state. Each output row has the input row's columns, then the item (a ROW gives its fields, a
//! map entry key and value), then, if wanted, the item's number from 1. Kinds and late tags go
//! along, so that a retraction takes back what its row has given. Output is made a batch at a time,
//! so that one row with a million items stays within bounds.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, EpochTime, Error, Result, Watermark};
use millpond_state::StateTable;

use crate::operator::*;

/// Describes an Unnest.
#[derive(Debug, Clone)]
pub struct UnnestFactory {
    /// Index of the array or map in the input.
    pub column: usize,
    /// How many of the input's columns the output has.
    pub width: usize,
    /// A row without items is kept, with NULL for the item.
    pub outer: bool,
    /// Whether the last column numbers the items.
    pub ordinality: bool,
    /// Output columns.
    pub schema: SchemaRef,
}

impl OperatorFactory for UnnestFactory {
    fn name(&self) -> &'static str {
        "Unnest"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, _: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Unnest { factory: self.clone(), pending: None }))
    }
    fn describe(&self) -> String {
        let items: Vec<&str> =
            self.schema.fields()[self.width..].iter().map(|field| field.name().as_str()).collect();
        format!("items=[{}]{}", items.join(", "), if self.outer { " outer" } else { "" })
    }
}

struct Unnest {
    factory: UnnestFactory,
    pending: Option<Pending>,
}

/// A batch of which some items are still to be said.
struct Pending {
    batch: ChangelogBatch,
    row: usize,
    /// The next item of the row.
    item: usize,
}

/// Per output row: the input row, where the item stands, and its number.
#[derive(Default)]
struct Items {
    rows: Vec<u32>,
    places: Vec<Option<u32>>,
    numbers: Vec<Option<i32>>,
}

impl Items {
    fn push(&mut self, row: usize, place: Option<usize>, number: Option<usize>) {
        self.rows.push(row as u32);
        self.places.push(place.map(|place| place as u32));
        self.numbers.push(number.map(|number| number as i32));
    }
}

impl Unnest {
    fn unnest_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let Some(mut pending) = self.pending.take() else { return Ok(Progress::Done) };
        let items = self.items(ctx, &mut pending)?;
        if !items.rows.is_empty() {
            ctx.emit(self.output(&pending.batch, items)?);
        }
        if pending.row == pending.batch.num_rows() {
            return Ok(Progress::Done);
        }
        self.pending = Some(pending);
        Ok(Progress::More)
    }

    fn items(&self, ctx: &OperatorContext, pending: &mut Pending) -> Result<Items> {
        let column = pending.batch.rows.column(self.factory.column);
        let mut items = Items::default();
        while pending.row < column.len() && items.rows.len() < BATCH_ROWS_MAX {
            let range = range(column, pending.row)?;
            if range.is_empty() {
                match self.factory.outer {
                    true => {
                        items.push(pending.row, None, None);
                        ctx.metrics.accepted.add(1);
                    }
                    false => ctx.metrics.filtered.add(1),
                }
                pending.row += 1;
                continue;
            }
            while pending.item < range.len() && items.rows.len() < BATCH_ROWS_MAX {
                items.push(pending.row, Some(range.start + pending.item), Some(pending.item + 1));
                pending.item += 1;
            }
            if pending.item == range.len() {
                ctx.metrics.accepted.add(1);
                (pending.row, pending.item) = (pending.row + 1, 0);
            }
        }
        Ok(items)
    }

    fn output(&self, batch: &ChangelogBatch, items: Items) -> Result<ChangelogBatch> {
        let places = UInt32Array::from(items.places);
        let repeated = batch.take(&UInt32Array::from(items.rows))?;
        let mut columns = repeated.rows.columns()[..self.factory.width].to_vec();
        for values in item_columns(batch.rows.column(self.factory.column))? {
            columns.push(take(&values, &places, None)?);
        }
        if self.factory.ordinality {
            columns.push(std::sync::Arc::new(Int32Array::from(items.numbers)));
        }
        let rows = RecordBatch::try_new(self.factory.schema.clone(), columns)
            .map_err(|error| Error::internal(format!("rows do not fit the output of Unnest: {error}")))?;
        Ok(repeated.replace_rows(rows))
    }
}

/// Where the items of a row stand among all items; empty for NULL.
fn range(column: &ArrayRef, row: usize) -> Result<Range<usize>> {
    let offsets = match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value_offsets(),
        DataType::Map(_, _) => column.as_map().value_offsets(),
        other => return Err(Error::internal(format!("{other} has no items"))),
    };
    if column.is_null(row) {
        return Ok(0..0);
    }
    Ok(offsets[row] as usize..offsets[row + 1] as usize)
}

/// The columns of the items of all rows: of a ROW one per field, NULL where the whole ROW is.
fn item_columns(column: &ArrayRef) -> Result<Vec<ArrayRef>> {
    let items: ArrayRef = match column.data_type() {
        DataType::Map(_, _) => return Ok(column.as_map().entries().columns().to_vec()),
        _ => column.as_list::<i32>().values().clone(),
    };
    let Some(rows) = items.as_struct_opt() else { return Ok(vec![items]) };
    let missing = arrow::compute::is_null(rows)?;
    rows.columns().iter().map(|field| Ok(arrow::compute::nullif(field, &missing)?)).collect()
}

impl Operator for Unnest {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(Vec::new())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        self.pending = Some(Pending { batch, row: 0, item: 0 });
        self.unnest_next(ctx)
    }

    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.unnest_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }

    fn restored(&mut self, _: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Builder, Int64Array, ListBuilder};
    use arrow::datatypes::{Field, Int32Type, Schema};
    use millpond_core::{OperatorMetrics, RowKind};

    use super::*;

    fn run(lists: &[Option<Vec<Option<i32>>>], outer: bool) -> Vec<(RowKind, i64, Option<i32>, Option<i32>)> {
        let mut items = ListBuilder::new(Int32Builder::new());
        for list in lists {
            match list {
                None => items.append_null(),
                Some(list) => items.append_value(list.iter().copied()),
            }
        }
        let items: ArrayRef = Arc::new(items.finish());
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..lists.len() as i64));
        let id = Field::new("id", DataType::Int64, false);
        let input = Schema::new(vec![id.clone(), Field::new("items", items.data_type().clone(), true)]);
        let item = |name| Field::new(name, DataType::Int32, true);
        let factory = UnnestFactory {
            column: 1,
            width: 1,
            outer,
            ordinality: true,
            schema: Arc::new(Schema::new(vec![id, item("item"), item("number")])),
        };
        let mut unnest = Unnest { factory, pending: None };
        let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
        let rows = RecordBatch::try_new(Arc::new(input), vec![ids, items]).unwrap();
        let kinds = vec![RowKind::Delete; lists.len()];
        let mut progress = unnest.process(&mut ctx, 0, ChangelogBatch::with_kinds(rows, kinds)).unwrap();
        let mut lines = Vec::new();
        loop {
            if let Some(out) = ctx.take_output() {
                assert!(out.num_rows() <= BATCH_ROWS_MAX);
                let int = |column: usize, row| {
                    let values = out.rows.column(column).as_primitive::<Int32Type>();
                    values.is_valid(row).then(|| values.value(row))
                };
                let ids = out.rows.column(0).as_primitive::<arrow::datatypes::Int64Type>();
                lines.extend(
                    (0..out.num_rows()).map(|row| (out.kind(row), ids.value(row), int(1, row), int(2, row))),
                );
            }
            match progress {
                Progress::Done => return lines,
                Progress::More => progress = unnest.resume(&mut ctx).unwrap(),
            }
        }
    }

    #[test]
    fn items_come_with_their_row() {
        let lists = [Some(vec![]), None, Some(vec![Some(1), None, Some(3)])];
        let d = RowKind::Delete;
        let items = [(d, 2, Some(1), Some(1)), (d, 2, None, Some(2)), (d, 2, Some(3), Some(3))];
        assert_eq!(run(&lists, false), items);
        let outer = run(&lists, true);
        assert_eq!(outer[..2], [(d, 0, None, None), (d, 1, None, None)]);
        assert_eq!(outer[2..], items);
    }

    #[test]
    fn a_row_with_many_items_comes_in_bounded_batches() {
        let lists = [Some(vec![Some(7); 20_000]), Some(vec![Some(8)])];
        let lines = run(&lists, false);
        assert_eq!((lines.len(), lines[19_999].3, lines[20_000].2), (20_001, Some(20_000), Some(8)));
    }
}
