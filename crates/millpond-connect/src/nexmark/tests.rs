//! The rows are those of the generator with which the reference results were made.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{Field, Int32Type, Schema, TimeUnit};
use millpond_core::{
    BadRows, DeadLetter, DeadLetterOffice, ErrorKind, ManualClock, SourceMetrics, Timestamp,
};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Content;
use super::*;
use crate::format::csv_encoder::{CsvEncoder, CsvStyle};

#[derive(Debug)]
struct NoLetters;

impl DeadLetterOffice for NoLetters {
    fn keep(&self, letter: DeadLetter) -> Result<()> {
        panic!("{letter:?}")
    }
}

fn declared(kind: Kind) -> Fields {
    let data_type = |content| match content {
        Content::Long => DataType::Int64,
        Content::Text => DataType::Utf8,
        Content::Time => DataType::Timestamp(TimeUnit::Millisecond, None),
    };
    kind.columns().iter().map(|column| Field::new(column.name, data_type(column.content), true)).collect()
}

fn nested() -> Fields {
    let row = |name, kind| Field::new(name, DataType::Struct(declared(kind)), true);
    let event_type = Field::new("event_type", DataType::Int32, true);
    Fields::from(vec![
        event_type,
        row("person", Kind::Person),
        row("auction", Kind::Auction),
        row("bid", Kind::Bid),
    ])
}

fn table(fields: Fields, options: &[(&str, &str)]) -> Result<Arc<dyn SourceConnector>> {
    let options: BTreeMap<String, String> =
        options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let spec = TableSpec {
        name: "t".into(),
        schema: Arc::new(Schema::new(fields)),
        primary_key: vec![],
        partition_keys: vec![],
        options: options.clone(),
        time_zone: "UTC".into(),
    };
    let mut options = Options::new("t", options);
    let table = open(&spec, &mut options)?;
    options.finish(OPTIONS)?;
    Ok(table.source.unwrap())
}

/// The set n100k of the reference results, or a part of it.
fn n100k(kind: &str, more: &[(&str, &str)]) -> Arc<dyn SourceConnector> {
    let fields = match kind {
        "person" => declared(Kind::Person),
        "auction" => declared(Kind::Auction),
        "bid" => declared(Kind::Bid),
        _ => nested(),
    };
    let mut options = vec![("event", kind), ("rate", "1000"), ("base-time", "1704067140000")];
    options.extend(more);
    if !more.iter().any(|(key, _)| *key == "events") {
        options.push(("events", "100000"));
    }
    table(fields, &options).unwrap()
}

fn context(projection: Vec<usize>) -> ReaderContext {
    ReaderContext {
        table: "t".into(),
        projection,
        bad_rows: BadRows::Fail,
        on_missing_file: millpond_core::OnMissingFile::Fail,
        log_dir: None,
        dead_letters: Arc::new(NoLetters),
        metrics: Arc::new(SourceMetrics::default()),
        clock: Arc::new(ManualClock::new(Timestamp(0))),
    }
}

fn all_columns(source: &Arc<dyn SourceConnector>) -> Vec<usize> {
    (0..source.schema().fields().len()).collect()
}

/// A lane to its end; reopened at its position after every batch.
fn read(
    source: &Arc<dyn SourceConnector>,
    lane: usize,
    projection: &[usize],
    rows_max: usize,
) -> RecordBatch {
    let split = &source.splits().unwrap()[lane];
    let (mut position, mut batches) = (None, Vec::new());
    loop {
        let mut reader = source.open(split, position.as_ref(), context(projection.to_vec())).unwrap();
        match reader.poll(rows_max).unwrap() {
            SourcePoll::Rows(batch) => batches.push(batch.rows),
            SourcePoll::NotYet { .. } => panic!("there is no wall rate"),
            SourcePoll::End => break,
        }
        position = Some(reader.position());
    }
    let schema = Arc::new(source.schema().project(projection).unwrap());
    concat_batches(&schema, &batches).unwrap()
}

fn csv(rows: &RecordBatch) -> String {
    let style = CsvStyle::parse(&mut Options::new("t", BTreeMap::new())).unwrap();
    let mut text = String::new();
    CsvEncoder::new(style).encode(rows, &mut text).unwrap();
    text
}

fn whole(source: &Arc<dyn SourceConnector>) -> String {
    csv(&read(source, 0, &all_columns(source), 8192))
}

#[test]
fn rows_are_those_of_the_reference() {
    let first_rows = [
        ("person", include_str!("../../testdata/nexmark/person.csv")),
        ("auction", include_str!("../../testdata/nexmark/auction.csv")),
        ("bid", include_str!("../../testdata/nexmark/bid.csv")),
    ];
    let mut digests = String::new();
    for (kind, first) in first_rows {
        let text = whole(&n100k(kind, &[]));
        assert_eq!(text.lines().take(20).collect::<Vec<_>>(), first.lines().collect::<Vec<_>>(), "{kind}");
        let permuted = whole(&n100k(kind, &[("ooo", "1000")]));
        let digest = |text: &str| format!("{} rows {:016x}", text.lines().count(), xxh3_64(text.as_bytes()));
        digests.push_str(&format!("{kind}: {}\n{kind}, ooo 1000: {}\n", digest(&text), digest(&permuted)));
    }
    assert_eq!(digests, include_str!("../../testdata/nexmark/digests.txt"));
}

#[test]
fn rows_do_not_depend_on_how_they_are_read() {
    let source = n100k("auction", &[("events", "2000"), ("ooo", "100")]);
    let columns = all_columns(&source);
    let whole = read(&source, 0, &columns, 8192);
    assert_eq!(whole.num_rows(), 120);
    for rows_max in [1, 7, 120] {
        assert_eq!(read(&source, 0, &columns, rows_max), whole);
    }
}

#[test]
fn each_column_is_the_same_alone() {
    for kind in ["person", "auction", "bid"] {
        let source = n100k(kind, &[("events", "5000")]);
        let columns = all_columns(&source);
        let whole = read(&source, 0, &columns, 8192);
        for column in columns {
            let alone = read(&source, 0, &[column], 8192);
            assert_eq!(alone.column(0), whole.column(column), "{kind} {column}");
        }
        assert_eq!(read(&source, 0, &[], 8192).num_rows(), whole.num_rows());
    }
}

#[test]
fn lanes_share_the_events() {
    let one = whole(&n100k("bid", &[("events", "1050")]));
    let source = n100k("bid", &[("events", "1050"), ("lanes", "4")]);
    let texts: Vec<String> = (0..4).map(|lane| csv(&read(&source, lane, &all_columns(&source), 5))).collect();
    assert!(texts.iter().all(|text| !text.is_empty()));
    let mut lines: Vec<&str> = texts.iter().flat_map(|text| text.lines()).collect();
    let mut expected: Vec<&str> = one.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn nested_rows_are_the_flat_ones() {
    let source = n100k("all", &[("events", "1000")]);
    let all = read(&source, 0, &[0, 1, 2, 3], 77);
    assert_eq!(all.num_rows(), 1_000);
    let types = all.column(0).as_primitive::<Int32Type>();
    for (column, kind) in ["person", "auction", "bid"].into_iter().enumerate() {
        let rows = all.column(column + 1);
        for row in 0..all.num_rows() {
            assert_eq!(rows.is_valid(row), types.value(row) as usize == column, "{kind} {row}");
        }
        let present = arrow::compute::is_not_null(rows).unwrap();
        let present = filter_record_batch(
            &RecordBatch::try_from_iter_with_nullable([("row", rows.clone(), true)]).unwrap(),
            &present,
        );
        let flat = RecordBatch::from(present.unwrap().column(0).as_struct().clone());
        assert_eq!(csv(&flat), whole(&n100k(kind, &[("events", "1000")])), "{kind}");
    }
}

#[test]
fn declared_types_are_kept() {
    let fields = Fields::from(vec![
        Field::new("dateTime", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("channel", DataType::Utf8View, true),
    ]);
    let source =
        table(fields, &[("event", "bid"), ("events", "100"), ("base-time", "2024-01-01 10:00:00")]).unwrap();
    let rows = read(&source, 0, &[0, 1], 10);
    assert_eq!(rows.schema(), source.schema());
    assert!(csv(&rows).starts_with("2024-01-01 10:00:00"));
}

#[test]
fn an_unbounded_source_follows_the_wall_clock() {
    let options = [("event", "bid"), ("wall-rate", "10")];
    let source = table(declared(Kind::Bid), &options).unwrap();
    assert!(!source.is_bounded());
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    let context = ReaderContext { clock: clock.clone(), ..context(vec![0]) };
    let mut reader = source.open(&source.splits().unwrap()[0], None, context).unwrap();
    assert!(matches!(reader.poll(100).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 1));
    assert!(matches!(reader.poll(100).unwrap(), SourcePoll::NotYet { retry_at: Timestamp(100_000) }));
    clock.advance(500_000);
    assert!(matches!(reader.poll(100).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 5));
}

#[test]
fn bad_tables_are_refused_by_name() {
    let refused = |fields: Fields, options: &[(&str, &str)]| {
        let error = table(fields, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    let one = |name: &str, data_type: DataType| Fields::from(vec![Field::new(name, data_type, true)]);
    let bid = || declared(Kind::Bid);
    for (fields, options, expected) in [
        (one("price", DataType::Int32), &[("event", "bid")][..], "price BIGINT"),
        (one("datetime", DataType::Utf8), &[("event", "bid")], "did you mean \"dateTime\""),
        (one("event_type", DataType::Int64), &[], "event_type INT"),
        (one("bid", DataType::Int64), &[], "bid ROW<`auction` BIGINT"),
        (one("price", DataType::Int64), &[], "event_type, person, auction, bid"),
        (bid(), &[("event", "bids")], "did you mean 'bid'"),
        (bid(), &[("event", "bid"), ("ooo", "953")], "multiple of 953"),
        (bid(), &[("event", "bid"), ("ooo", "7"), ("events", "100")], "use 105"),
        (bid(), &[("event", "bid"), ("rate", "0")], "positive"),
        (bid(), &[("event", "bid"), ("base-time", "noon")], "is not a time"),
        (bid(), &[("event", "bid"), ("lanes", "0")], "lanes"),
    ] {
        let message = refused(fields, options);
        assert!(message.contains(expected), "{message}");
    }
}
