//! The order of rows: sort keys as bytes whose order is that of the rows.

use arrow::array::{ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Schema};
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::key::canonical_f64;
use millpond_core::{Error, Result};

/// A column by which rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortColumn {
    /// Its index in the input.
    pub column: usize,
    /// Largest first.
    pub descending: bool,
    /// Whether NULLs come before all values.
    pub nulls_first: bool,
}

impl SortColumn {
    /// The column as ORDER BY names it. NULLs sort lowest unless it says otherwise.
    pub fn describe(&self, schema: &Schema) -> String {
        let name = schema.field(self.column).name();
        let direction = if self.descending { "DESC" } else { "ASC" };
        match (self.descending, self.nulls_first) {
            (true, true) => format!("{name} {direction} NULLS FIRST"),
            (false, false) => format!("{name} {direction} NULLS LAST"),
            (true, false) | (false, true) => format!("{name} {direction}"),
        }
    }
}

/// Encodes the sort keys of batches.
#[derive(Debug)]
pub(crate) struct OrderEncoder {
    columns: Vec<SortColumn>,
    /// `None`: no column, all rows are equal.
    converter: Option<RowConverter>,
}

/// Sort keys of the rows of a batch.
#[derive(Debug)]
pub(crate) struct OrderKeys(Option<Rows>);

impl OrderKeys {
    /// The key of a row; keys compare as the rows do.
    pub(crate) fn key(&self, row: usize) -> &[u8] {
        self.0.as_ref().map_or(&[], |rows| rows.row(row).data())
    }
}

impl OrderEncoder {
    /// Errors: *Invalid* for a type that has no order.
    pub(crate) fn new(columns: &[SortColumn], schema: &Schema) -> Result<Self> {
        let field = |column: &SortColumn| {
            let options = SortOptions { descending: column.descending, nulls_first: column.nulls_first };
            SortField::new_with_options(schema.field(column.column).data_type().clone(), options)
        };
        let fields: Vec<SortField> = columns.iter().map(field).collect();
        let converter = match fields.is_empty() {
            true => None,
            false => Some(RowConverter::new(fields).map_err(|error| {
                Error::invalid(format!("rows cannot be ordered by these columns: {error}"))
            })?),
        };
        Ok(Self { columns: columns.to_vec(), converter })
    }

    pub(crate) fn encode(&self, rows: &RecordBatch) -> Result<OrderKeys> {
        let Some(converter) = &self.converter else { return Ok(OrderKeys(None)) };
        let columns: Vec<ArrayRef> =
            self.columns.iter().map(|column| canonical(rows.column(column.column))).collect();
        Ok(OrderKeys(Some(converter.convert_columns(&columns)?)))
    }
}

/// One NaN, above all values, and one zero.
pub(crate) fn canonical(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let floats: PrimitiveArray<Float64Type> =
                column.as_primitive::<Float64Type>().unary(canonical_f64);
            std::sync::Arc::new(floats)
        }
        DataType::Float32 => {
            let one = |value: f32| canonical_f64(f64::from(value)) as f32;
            let floats: PrimitiveArray<Float32Type> = column.as_primitive::<Float32Type>().unary(one);
            std::sync::Arc::new(floats)
        }
        _ => column.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{Float64Array, StringArray};
    use arrow::datatypes::Field;

    fn ranked(descending: bool, nulls_first: bool) -> Vec<usize> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("x", DataType::Float64, true),
            Field::new("s", DataType::Utf8, true),
        ]));
        let x = Float64Array::from(vec![Some(f64::NAN), None, Some(-0.0), Some(0.0), Some(-f64::NAN)]);
        let s = StringArray::from(vec!["b", "b", "b", "a", "a"]);
        let rows = RecordBatch::try_new(schema.clone(), vec![Arc::new(x), Arc::new(s)]).unwrap();
        let columns = [
            SortColumn { column: 0, descending, nulls_first },
            SortColumn { column: 1, descending: false, nulls_first: true },
        ];
        let keys = OrderEncoder::new(&columns, &schema).unwrap().encode(&rows).unwrap();
        let mut order: Vec<usize> = (0..5).collect();
        order.sort_by(|a, b| keys.key(*a).cmp(keys.key(*b)));
        order
    }

    #[test]
    fn zeros_are_equal_and_so_are_nans() {
        assert_eq!(ranked(false, true), [1, 3, 2, 4, 0]);
        assert_eq!(ranked(true, false), [4, 0, 3, 2, 1]);
    }
}
