//! Tests of `multimap_table`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{Field, Int64Type, Schema, TimestampMillisecondType};
use millpond_core::random::Random;

use super::*;

/// key, value, time in milliseconds.
type Row = (i64, i64, i64);

fn spec() -> MultimapSpec {
    let time = DataType::Timestamp(arrow::datatypes::TimeUnit::Millisecond, None);
    MultimapSpec {
        name: "left".into(),
        rows: Arc::new(Schema::new(vec![
            Field::new("v", DataType::Int64, false),
            Field::new("k", DataType::Int64, false),
            Field::new("_row", time, false),
        ])),
        keys: vec![1],
        null_keys: false,
        time_column: Some(2),
        retracts: true,
        compared: 3,
        counts_partners: false,
        max_parallelism: 256,
    }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let column = |value: fn(&Row) -> i64| rows.iter().map(|r| Some(value(r))).collect::<Int64Array>();
    let times = column(|r| r.2).reinterpret_cast::<TimestampMillisecondType>();
    RecordBatch::try_new(
        spec().rows,
        vec![Arc::new(column(|r| r.1)), Arc::new(column(|r| r.0)), Arc::new(times)],
    )
    .unwrap()
}

fn append(table: &mut MultimapTable, rows: &[Row]) {
    let rows = batch(rows);
    let keys = table.keys(&rows, None).unwrap();
    table.append(rows, &keys).unwrap();
}

fn remove(table: &mut MultimapTable, rows: &[Row]) -> Result<()> {
    let rows = batch(rows);
    let keys = table.keys(&rows, None).unwrap();
    table.remove(&rows, &keys).map(|_| ())
}

/// The values of a key, oldest first, read in pairs of at most `pairs_max`.
fn values(table: &mut MultimapTable, key: i64, pairs_max: usize) -> Vec<i64> {
    let probing = batch(&[(key, 0, 0)]);
    let keys = table.keys(&probing, None).unwrap();
    let (mut cursor, mut values) = (ProbeCursor::default(), Vec::new());
    loop {
        let mut pairs = Pairs::default();
        let done = table.probe(&keys, &mut cursor, pairs_max, &mut pairs);
        assert!(pairs.len() <= pairs_max);
        let columns = table.gather(&pairs.stored, &[0]).unwrap();
        values.extend(columns[0].as_primitive::<Int64Type>().values());
        if done {
            return values;
        }
    }
}

fn all() -> KeyGroupRange {
    KeyGroupRange::all(256)
}

#[test]
fn identity_is_the_key_and_a_row_number() {
    let table = MultimapTable::new(spec()).unwrap();
    let def = table.def();
    let names: Vec<&str> = def.schema.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["k", "_row", "v", "_row_2"]);
    assert_eq!((def.identity_columns, def.partition_columns.as_slice()), (2, [0].as_slice()));
}

#[test]
fn a_chain_is_read_in_bounded_steps() {
    let mut table = MultimapTable::new(spec()).unwrap();
    for v in 0..10 {
        append(&mut table, &[(1, v, 0), (2, v + 100, 0)]);
    }
    for pairs_max in [1, 3, 100] {
        assert_eq!(values(&mut table, 1, pairs_max), (0..10).collect::<Vec<i64>>());
    }
    assert_eq!(values(&mut table, 3, 1), Vec::<i64>::new());
}

#[test]
fn single_rows_are_merged_into_few_pieces() {
    let mut table = MultimapTable::new(spec()).unwrap();
    for v in 0..10_000 {
        append(&mut table, &[(v % 7, v, 0)]);
    }
    assert_eq!(table.chunks.len(), 2);
    let pieces: usize = table.chunks.iter().flatten().map(|chunk| chunk.pieces().len()).sum();
    assert!(pieces <= 14, "{pieces} pieces");
    assert_eq!(values(&mut table, 3, 500), (0..10_000).filter(|v| v % 7 == 3).collect::<Vec<i64>>());
}

#[test]
fn a_freeze_takes_only_what_changed() {
    let mut table = MultimapTable::new(spec()).unwrap();
    append(&mut table, &[(1, 1, 0), (2, 2, 0)]);
    let frozen = table.freeze().unwrap();
    append(&mut table, &[(3, 3, 0), (4, 4, 0)]);
    remove(&mut table, &[(1, 1, 0), (4, 4, 0)]).unwrap();
    let first = frozen.into_delta().unwrap();
    assert_eq!((first.upserts.num_rows(), first.deletes.num_rows()), (2, 0), "later changes do not show");
    let second = table.freeze().unwrap().into_delta().unwrap();
    assert_eq!(
        (second.upserts.num_rows(), second.deletes.num_rows()),
        (1, 1),
        "the row that came and went is not written"
    );
    assert_eq!(second.deletes.column(0).as_primitive::<Int64Type>().values(), &[1]);
    assert!(table.freeze().unwrap().into_delta().unwrap().is_empty());
    assert_eq!(table.freeze_all().unwrap().into_delta().unwrap().upserts.num_rows(), 2);
}

#[test]
fn row_numbers_go_on_after_a_load() {
    let mut table = MultimapTable::new(spec()).unwrap();
    append(&mut table, &[(1, 1, 0), (1, 2, 0)]);
    let stored = table.freeze().unwrap().into_delta().unwrap().upserts;
    let mut next = MultimapTable::new(spec()).unwrap();
    next.load(&stored, all()).unwrap();
    append(&mut next, &[(1, 3, 0)]);
    assert_eq!(values(&mut next, 1, 9), [1, 2, 3]);
    let added = next.freeze().unwrap().into_delta().unwrap().upserts;
    assert_eq!(added.column(1).as_primitive::<arrow::datatypes::UInt64Type>().values(), &[2]);
}

#[test]
fn a_load_takes_only_its_key_groups() {
    let mut table = MultimapTable::new(spec()).unwrap();
    let rows: Vec<Row> = (0..500).map(|k| (k, k, 0)).collect();
    append(&mut table, &rows);
    let stored = table.freeze_all().unwrap().into_delta().unwrap().upserts;
    let mut parts: Vec<MultimapTable> = (0..3).map(|_| MultimapTable::new(spec()).unwrap()).collect();
    for (i, part) in parts.iter_mut().enumerate() {
        part.load(&stored, KeyGroupRange::of_task(i, 3, 256)).unwrap();
        assert!(part.rows() > 100);
    }
    assert_eq!(parts.iter().map(StateTable::rows).sum::<usize>(), 500);
    for key in 0..500 {
        let found: Vec<i64> = parts.iter_mut().flat_map(|part| values(part, key, 9)).collect();
        assert_eq!(found, [key]);
    }
}

#[test]
fn chunks_expire_whole_and_are_reported() {
    let mut table = MultimapTable::new(spec()).unwrap();
    let rows = |from: i64, time: i64| (from..from + 6000).map(|v| (v % 10, v, time)).collect::<Vec<Row>>();
    append(&mut table, &rows(0, 1));
    append(&mut table, &rows(6000, 2));
    table.freeze().unwrap();
    append(&mut table, &rows(12_000, 3));
    assert_eq!(table.expire(Timestamp::from_millis(0)).unwrap(), 0);
    assert_eq!(table.expire(Timestamp::from_millis(1)).unwrap(), 6000);
    assert_eq!(values(&mut table, 4, 10_000).len(), 1200);
    assert_eq!(table.expire(Timestamp::from_millis(3)).unwrap(), 12_000);
    assert_eq!((table.rows(), table.index.len()), (0, 0));
    let delta = table.freeze().unwrap().into_delta().unwrap();
    assert_eq!((delta.upserts.num_rows(), delta.deletes.num_rows()), (0, 12_000));
    append(&mut table, &[(1, 7, 4)]);
    assert_eq!(values(&mut table, 1, 9), [7]);
}

#[test]
fn a_few_rows_do_not_hold_the_chunks_of_many() {
    let mut table = MultimapTable::new(spec()).unwrap();
    let mut stored = BTreeMap::new();
    for round in 0..6 {
        let rows: Vec<Row> = (0..8000).map(|v| (v, round, 0)).collect();
        append(&mut table, &rows);
        persist(&mut stored, &table.freeze().unwrap().into_delta().unwrap());
        remove(&mut table, &rows[1..]).unwrap();
    }
    let mut kept = values(&mut table, 0, 9);
    kept.sort_unstable();
    assert_eq!(kept, (0..6).collect::<Vec<i64>>());
    assert!(table.chunks.iter().flatten().count() <= 2);
    persist(&mut stored, &table.freeze().unwrap().into_delta().unwrap());
    assert_eq!(stored.len(), 6, "moved rows are stored under new numbers only");
}

#[test]
fn an_unknown_row_cannot_be_taken_back() {
    let mut table = MultimapTable::new(spec()).unwrap();
    append(&mut table, &[(1, 1, 0)]);
    let error = remove(&mut table, &[(1, 2, 0)]).unwrap_err();
    assert!(error.message().contains("invariant 4"), "{error}");
}

/// Random appends, removals, expiries, freezes and loads against a plain map.
#[test]
fn it_behaves_like_a_map_of_lists() {
    for seed in 0..30 {
        let mut random = Random::seeded(seed);
        let mut table = MultimapTable::new(spec()).unwrap();
        let mut model: BTreeMap<i64, Vec<Row>> = BTreeMap::new();
        let mut stored: BTreeMap<(i64, u64), RecordBatch> = BTreeMap::new();
        for _ in 0..60 {
            let rows: Vec<Row> = (0..random.below(6))
                .map(|_| (random.below(4) as i64, random.below(3) as i64, random.below(9) as i64))
                .collect();
            append(&mut table, &rows);
            rows.iter().for_each(|row| model.entry(row.0).or_default().push(*row));
            if let Some(list) = model.values_mut().find(|list| !list.is_empty())
                && random.below(2) == 0
            {
                let row = list[random.below(list.len() as u64) as usize];
                let first = list.iter().position(|r| *r == row).unwrap();
                list.remove(first);
                remove(&mut table, &[row]).unwrap();
            }
            if random.below(5) == 0 {
                let delta = table.freeze().unwrap().into_delta().unwrap();
                persist(&mut stored, &delta);
                assert_eq!(stored.len(), table.rows(), "seed {seed}");
                let rows =
                    arrow::compute::concat_batches(&table.def().schema.clone(), stored.values()).unwrap();
                table = MultimapTable::new(spec()).unwrap();
                table.load(&rows, all()).unwrap();
            }
            for (key, list) in &model {
                assert_eq!(
                    values(&mut table, *key, 2),
                    list.iter().map(|r| r.1).collect::<Vec<i64>>(),
                    "seed {seed}"
                );
            }
        }
    }
}

fn persist(stored: &mut BTreeMap<(i64, u64), RecordBatch>, delta: &Delta) {
    let identity = |batch: &RecordBatch, row: usize| {
        let number = batch.column(1).as_primitive::<arrow::datatypes::UInt64Type>().value(row);
        (batch.column(0).as_primitive::<Int64Type>().value(row), number)
    };
    for row in 0..delta.deletes.num_rows() {
        stored.remove(&identity(&delta.deletes, row)).expect("a delete meets a stored row");
    }
    for row in 0..delta.upserts.num_rows() {
        stored.insert(identity(&delta.upserts, row), delta.upserts.slice(row, 1));
    }
}
