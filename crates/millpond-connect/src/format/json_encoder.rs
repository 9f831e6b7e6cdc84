//! Rows as JSON, one object per line: every field is written, NULL as `null`; numbers are exact;
//! times, bytes (base 64) and non-finite floats are strings.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use millpond_core::Result;

use crate::format::text::{ColumnText, TextFormat, json_name};

/// Turns batches into lines of JSON.
#[derive(Debug)]
pub(crate) struct JsonEncoder {
    /// Per column what stands in front of its value: `{"a":`, `,"b":`.
    names: Vec<String>,
}

impl JsonEncoder {
    pub(crate) fn new(schema: &Schema) -> Self {
        let open = |index| if index == 0 { '{' } else { ',' };
        let names = schema.fields().iter().enumerate();
        Self {
            names: names
                .map(|(index, field)| format!("{}{}", open(index), json_name(field.name())))
                .collect(),
        }
    }

    /// Appends one line per row.
    pub(crate) fn encode(&self, rows: &RecordBatch, out: &mut String) -> Result<()> {
        let columns = Self::columns(rows)?;
        for row in 0..rows.num_rows() {
            self.write_row(&columns, row, out);
            out.push('\n');
        }
        Ok(())
    }

    /// The texts of a batch's columns.
    pub(crate) fn columns(rows: &RecordBatch) -> Result<Vec<ColumnText>> {
        rows.columns().iter().map(|column| TextFormat::file().formatter(column)).collect()
    }

    /// Appends a row as an object.
    pub(crate) fn write_row(&self, columns: &[ColumnText], row: usize, out: &mut String) {
        for (name, column) in self.names.iter().zip(columns) {
            out.push_str(name);
            column.write_json(row, out);
        }
        out.push_str(if columns.is_empty() { "{}" } else { "}" });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, Decimal128Array, Int64Array, ListArray, StringArray, TimestampMillisecondArray,
    };
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn a_row_is_a_line() {
        let lists = vec![Some(vec![Some(1), None]), None];
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from(vec![Some(i64::MAX), None]))),
            ("na\"me", Arc::new(StringArray::from(vec![Some("line\nbreak"), None]))),
            ("at", Arc::new(TimestampMillisecondArray::from(vec![Some(1_704_103_200_500), None]))),
            (
                "price",
                Arc::new(Decimal128Array::from(vec![1_050, -1]).with_precision_and_scale(38, 2).unwrap()),
            ),
            ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ];
        let rows =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        let mut out = String::new();
        JsonEncoder::new(&rows.schema()).encode(&rows, &mut out).unwrap();
        let first = "{\"id\":9223372036854775807,\"na\\\"me\":\"line\\nbreak\",\"at\":\"2024-01-01 10:00:00.5\",\
                     \"price\":10.50,\"list\":[1,null]}\n";
        let second = "{\"id\":null,\"na\\\"me\":null,\"at\":null,\"price\":-0.01,\"list\":null}\n";
        assert_eq!(out, format!("{first}{second}"));
        for line in out.lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
}
