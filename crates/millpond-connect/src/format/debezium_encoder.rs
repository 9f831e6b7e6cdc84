//! Changes as Debezium's events, one JSON object per line, as Flink writes them: an added row
//! (`+I`, `+U`) is a create, a row taken back (`-U`, `-D`) a delete.

use arrow::datatypes::Schema;
use millpond_core::{ChangelogBatch, Result};

use crate::format::json_encoder::JsonEncoder;

/// Turns changes into lines of JSON.
#[derive(Debug)]
pub(crate) struct DebeziumEncoder(JsonEncoder);

impl DebeziumEncoder {
    pub(crate) fn new(schema: &Schema) -> Self {
        Self(JsonEncoder::new(schema))
    }

    /// Appends one line per change.
    pub(crate) fn encode(&self, changes: &ChangelogBatch, out: &mut String) -> Result<()> {
        let columns = JsonEncoder::columns(&changes.rows)?;
        for row in 0..changes.num_rows() {
            let addition = changes.kind(row).is_addition();
            out.push_str(if addition { "{\"before\":null,\"after\":" } else { "{\"before\":" });
            self.0.write_row(&columns, row, out);
            out.push_str(if addition { ",\"op\":\"c\"}\n" } else { ",\"after\":null,\"op\":\"d\"}\n" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use millpond_core::RowKind;

    use super::*;

    #[test]
    fn a_change_is_an_event() {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from(vec![1, 1, 1, 1]))),
            ("v", Arc::new(StringArray::from(vec![Some("a"), Some("a"), None, None]))),
        ];
        let rows =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        let kinds = [RowKind::Insert, RowKind::UpdateBefore, RowKind::UpdateAfter, RowKind::Delete];
        let mut out = String::new();
        let changes = ChangelogBatch::with_kinds(rows, kinds);
        DebeziumEncoder::new(&changes.schema()).encode(&changes, &mut out).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"before":null,"after":{"id":1,"v":"a"},"op":"c"}"#,
                r#"{"before":{"id":1,"v":"a"},"after":null,"op":"d"}"#,
                r#"{"before":null,"after":{"id":1,"v":null},"op":"c"}"#,
                r#"{"before":{"id":1,"v":null},"after":null,"op":"d"}"#,
            ]
        );
    }
}
