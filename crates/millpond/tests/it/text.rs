//! Answers as text, for comparison.

use millpond::{RecordBatch, TextFormat};

/// Each row as `a,b,c`, NULL as `\N`.
pub(crate) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let format = TextFormat::display("UTC".parse().unwrap());
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| format.formatter(column).unwrap()).collect();
        for row in 0..batch.num_rows() {
            let mut line = String::new();
            for (i, column) in columns.iter().enumerate() {
                line.push_str(if i == 0 { "" } else { "," });
                if column.is_null(row) {
                    line.push_str("\\N");
                } else {
                    column.write(row, &mut line);
                }
            }
            lines.push(line);
        }
    }
    lines
}

/// The rows in an order of their own.
pub(crate) fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let mut lines = lines(batches);
    lines.sort();
    lines
}
