//! Differences: two multisets of rows compared as text, floats up to rounding.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_core::{Error, Result};

/// Rows shown of a difference, per side.
const SHOWN_MAX: usize = 10;
/// Relative difference of floats that may come from another order of additions.
const ROUNDING: f64 = 1e-9;

/// What two multisets do not share; `None` if they are equal.
pub(crate) fn difference(stream: &[RecordBatch], batch: &[RecordBatch]) -> Result<Option<String>> {
    let (stream, batch) = (texts(stream)?, texts(batch)?);
    let mut counts: BTreeMap<&[String], i64> = BTreeMap::new();
    stream.iter().for_each(|row| *counts.entry(row).or_default() += 1);
    batch.iter().for_each(|row| *counts.entry(row).or_default() -= 1);
    let times = |n: i64| usize::try_from(n).unwrap_or_default();
    let repeat = |sign: i64| {
        counts.iter().flat_map(move |(row, n)| std::iter::repeat_n(*row, times(*n * sign))).collect()
    };
    let (extra, missing): (Vec<&[String]>, Vec<&[String]>) = (repeat(1), repeat(-1));
    if extra.len() == missing.len() && extra.iter().zip(&missing).all(|(a, b)| alike(a, b)) {
        return Ok(None);
    }
    let mut text = String::new();
    for (sign, rows) in [("+ only in the stream:", extra), ("- only in the batch: ", missing)] {
        for row in rows.iter().take(SHOWN_MAX) {
            text.push_str(&format!("  {sign} {}\n", row.join(" | ")));
        }
        if rows.len() > SHOWN_MAX {
            text.push_str(&format!("  {sign} … {} more\n", rows.len() - SHOWN_MAX));
        }
    }
    Ok(Some(text))
}

fn alike(left: &[String], right: &[String]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| a == b || close(a, b))
}

/// Floats are written with an exponent, so that nothing else is taken for one.
fn close(left: &str, right: &str) -> bool {
    let float = |text: &str| text.contains('e').then(|| text.parse::<f64>().ok()).flatten();
    match (float(left), float(right)) {
        (Some(a), Some(b)) => (a - b).abs() <= ROUNDING * a.abs().max(b.abs()).max(1.0),
        _ => false,
    }
}

fn texts(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<Vec<String>> = batch.columns().iter().map(cells).collect::<Result<_>>()?;
        rows.extend(
            (0..batch.num_rows())
                .map(|row| columns.iter().map(|cells| cells[row].clone()).collect::<Vec<_>>()),
        );
    }
    Ok(rows)
}

fn cells(column: &ArrayRef) -> Result<Vec<String>> {
    let float = |value: Option<f64>| match value {
        None => "NULL".into(),
        // −0.0 equals 0.0, so which of them comes out does not matter.
        Some(value) => format!("{:e}", value + 0.0),
    };
    match column.data_type() {
        DataType::Float64 => Ok(column.as_primitive::<Float64Type>().iter().map(float).collect()),
        DataType::Float32 => {
            Ok(column.as_primitive::<Float32Type>().iter().map(|value| float(value.map(f64::from))).collect())
        }
        _ => {
            let options = FormatOptions::default().with_null("NULL");
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
            let cell = |row: usize| -> Result<String> {
                let text = formatter.value(row).try_to_string()?;
                // An empty text and a text that reads NULL are not what they look like.
                let quoted = !column.is_null(row) && matches!(text.as_str(), "" | "NULL");
                Ok(if quoted { format!("'{text}'") } else { text })
            };
            (0..column.len()).map(cell).collect()
        }
    }
}

/// Errors: *Internal* (invariant 4) if two rows share the key of these columns.
pub(crate) fn check_unique(batches: &[RecordBatch], key: &[usize]) -> Result<()> {
    let keys: Vec<RecordBatch> = batches.iter().map(|batch| batch.project(key)).collect::<Result<_, _>>()?;
    let mut seen = std::collections::HashSet::new();
    match texts(&keys)?.into_iter().find(|row| !seen.insert(row.clone())) {
        Some(row) => Err(Error::internal(format!("invariant 4: two rows have the key {key:?} = {row:?}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringArray};
    use arrow::datatypes::{Field, Schema};

    use super::*;

    fn rows(rows: &[(i64, f64, Option<&str>)]) -> Vec<RecordBatch> {
        let schema = Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Float64, true),
            Field::new("c", DataType::Utf8, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(rows.iter().map(|row| row.2).collect::<StringArray>()),
        ];
        vec![RecordBatch::try_new(Arc::new(schema), columns).unwrap()]
    }

    #[test]
    fn rows_count_as_often_as_they_occur() {
        let one = (1, 0.5, Some("x"));
        assert_eq!(difference(&rows(&[one, one]), &rows(&[one, one])).unwrap(), None);
        let text = difference(&rows(&[one, one]), &rows(&[one])).unwrap().unwrap();
        assert_eq!(text, "  + only in the stream: 1 | 5e-1 | x\n");
    }

    #[test]
    fn floats_may_round_differently_and_nothing_else_may() {
        let (a, b) = (rows(&[(1, 0.1 + 0.2, None)]), rows(&[(1, 0.3, None)]));
        assert_eq!(difference(&a, &b).unwrap(), None);
        assert!(difference(&rows(&[(1, 0.3, None)]), &rows(&[(1, 0.301, None)])).unwrap().is_some());
        assert!(difference(&rows(&[(1, 0.3, Some(""))]), &rows(&[(1, 0.3, None)])).unwrap().is_some());
        assert!(difference(&rows(&[(1, 0.3, Some("NULL"))]), &rows(&[(1, 0.3, None)])).unwrap().is_some());
    }

    #[test]
    fn keys_are_unique() {
        assert!(check_unique(&rows(&[(1, 0.5, None), (1, 1.5, None)]), &[0, 1]).is_ok());
        assert!(check_unique(&rows(&[(1, 0.5, None), (1, 1.5, None)]), &[0, 2]).is_err());
    }
}
