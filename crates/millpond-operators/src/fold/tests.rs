//! Tests of `fold`.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use millpond_core::RowKind::{self, Delete, Insert, UpdateAfter, UpdateBefore};
use millpond_core::random::Random;

use super::*;

type Row = (i64, i64);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::Int64, false),
    ]))
}

fn changes(rows: &[(RowKind, Row)]) -> ChangelogBatch {
    let column = |value: fn(&Row) -> i64| -> ArrayRef {
        Arc::new(rows.iter().map(|(_, row)| Some(value(row))).collect::<Int64Array>())
    };
    let rows_batch = RecordBatch::try_new(schema(), vec![column(|r| r.0), column(|r| r.1)]).unwrap();
    ChangelogBatch::with_kinds(rows_batch, rows.iter().map(|(kind, _)| *kind).collect::<Vec<_>>())
}

fn content(fold: &ChangelogFold) -> Vec<Row> {
    let rows = |batch: RecordBatch| {
        let column = |c: usize| batch.column(c).as_primitive::<Int64Type>().values().to_vec();
        column(0).into_iter().zip(column(1)).collect::<Vec<Row>>()
    };
    let content: Vec<Row> = fold.batches().unwrap().into_iter().flat_map(rows).collect();
    assert_eq!(content.len(), fold.rows());
    content
}

#[test]
fn appends_are_kept_as_they_are() {
    let mut fold = ChangelogFold::new(schema());
    fold.add(&changes(&[(Insert, (1, 1)), (Insert, (1, 1))])).unwrap();
    fold.add(&changes(&[(Insert, (2, 2))])).unwrap();
    assert!(fold.index.is_none());
    assert_eq!(content(&fold), [(1, 1), (1, 1), (2, 2)]);
}

#[test]
fn a_retraction_takes_back_one_equal_row() {
    let mut fold = ChangelogFold::new(schema());
    fold.add(&changes(&[(Insert, (1, 1)), (Insert, (1, 1)), (Insert, (2, 2))])).unwrap();
    fold.add(&changes(&[(UpdateBefore, (1, 1)), (UpdateAfter, (1, 5)), (Delete, (2, 2))])).unwrap();
    assert_eq!(content(&fold), [(1, 1), (1, 5)]);
    fold.add(&changes(&[(Insert, (3, 3)), (Delete, (3, 3))])).unwrap();
    assert_eq!(content(&fold), [(1, 1), (1, 5)]);
}

#[test]
fn a_retraction_that_meets_no_row_is_internal() {
    let mut fold = ChangelogFold::new(schema());
    fold.add(&changes(&[(Insert, (1, 1))])).unwrap();
    let error = fold.add(&changes(&[(Delete, (1, 2))])).unwrap_err();
    assert_eq!(error.kind(), millpond_core::ErrorKind::Internal);
    assert!(error.message().starts_with("invariant 4: -D meets no row (1, 2)"), "{error}");
}

#[test]
fn upserts_replace_by_key() {
    let mut fold = ChangelogFold::upsert(schema(), vec![0]);
    fold.add(&changes(&[(Insert, (1, 1)), (Insert, (2, 2)), (UpdateAfter, (1, 3))])).unwrap();
    fold.add(&changes(&[(UpdateAfter, (2, 4)), (Delete, (1, 0)), (Delete, (9, 9))])).unwrap();
    assert_eq!(content(&fold), [(2, 4)]);
}

#[test]
fn many_changes_fold_like_a_list_and_stay_compact() {
    let mut random = Random::seeded(1);
    let (mut fold, mut list) = (ChangelogFold::new(schema()), Vec::<Row>::new());
    for _ in 0..3000 {
        let mut batch = Vec::new();
        for _ in 0..random.below(12) {
            if !list.is_empty() && random.below(100) < 49 {
                batch.push((Delete, list.swap_remove(random.below(list.len() as u64) as usize)));
            } else {
                let row = (random.below(4) as i64, random.below(4) as i64);
                list.push(row);
                batch.push((Insert, row));
            }
        }
        fold.add(&changes(&batch)).unwrap();
    }
    let mut got = content(&fold);
    got.sort_unstable();
    list.sort_unstable();
    assert_eq!(got, list);
    let held: usize = fold.batches.iter().map(RecordBatch::num_rows).sum();
    assert!(held <= list.len() * 2 + 2 * DEAD_ROWS_MIN, "{held} rows are held for {}", list.len());
}

#[test]
fn rows_without_columns_are_counted() {
    let schema = Arc::new(arrow::datatypes::Schema::empty());
    let rows = |count: usize| {
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(schema.clone(), Vec::new(), &options).unwrap()
    };
    let mut fold = ChangelogFold::new(schema.clone());
    fold.add(&ChangelogBatch::append(rows(3))).unwrap();
    fold.add(&ChangelogBatch::with_kinds(rows(1), vec![RowKind::Delete])).unwrap();
    assert_eq!(fold.rows(), 2);
    let left: usize = fold.batches().unwrap().iter().map(RecordBatch::num_rows).sum();
    assert_eq!(left, 2);
}
