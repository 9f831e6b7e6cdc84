//! Tests of `datagen`.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimeUnit};
use millpond_core::{BadRows, Clock, DeadLetter, DeadLetterOffice, ErrorKind, ManualClock, SourceMetrics};

use super::*;
use crate::format::text::TextFormat;

#[derive(Debug)]
struct NoLetters;

impl DeadLetterOffice for NoLetters {
    fn keep(&self, letter: DeadLetter) -> Result<()> {
        panic!("{letter:?}")
    }
}

fn table(columns: &[(&str, DataType)], options: &[(&str, &str)]) -> Result<Arc<dyn SourceConnector>> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect();
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

fn context(source: &Arc<dyn SourceConnector>, clock: &Arc<ManualClock>) -> ReaderContext {
    ReaderContext {
        table: "t".into(),
        projection: (0..source.schema().fields().len()).collect(),
        bad_rows: BadRows::Fail,
        on_missing_file: millpond_core::OnMissingFile::Fail,
        log_dir: None,
        dead_letters: Arc::new(NoLetters),
        metrics: Arc::new(SourceMetrics::default()),
        clock: clock.clone(),
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_704_103_200_000_000)))
}

/// Everything that a lane has left, reopened at its position after every batch.
fn read(
    source: &Arc<dyn SourceConnector>,
    lane: usize,
    rows_max: usize,
    clock: &Arc<ManualClock>,
) -> RecordBatch {
    let split = &source.splits().unwrap()[lane];
    let (mut position, mut batches) = (None, Vec::new());
    loop {
        let mut reader = source.open(split, position.as_ref(), context(source, clock)).unwrap();
        match reader.poll(rows_max).unwrap() {
            SourcePoll::Rows(batch) => batches.push(batch.rows),
            SourcePoll::NotYet { .. } => clock.advance(1_000_000),
            SourcePoll::End => return concat_batches(&source.schema(), &batches).unwrap(),
        }
        position = Some(reader.position());
        clock.advance(17);
    }
}

fn all_types() -> Vec<(&'static str, DataType)> {
    vec![
        ("tiny", DataType::Int8),
        ("long", DataType::Int64),
        ("real", DataType::Float32),
        ("double", DataType::Float64),
        ("price", DataType::Decimal128(10, 2)),
        ("wide", DataType::Decimal128(38, 0)),
        ("flag", DataType::Boolean),
        ("text", DataType::Utf8),
        ("bytes", DataType::Binary),
        ("fixed", DataType::FixedSizeBinary(3)),
        ("day", DataType::Date32),
        ("clock", DataType::Time32(TimeUnit::Millisecond)),
        ("at", DataType::Timestamp(TimeUnit::Millisecond, None)),
        ("instant", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))),
    ]
}

#[test]
fn rows_do_not_depend_on_how_they_are_read() {
    let options = [("number-of-rows", "100"), ("fields.text.var-len", "true"), ("fields.at.max-past", "1 h")];
    let source = table(&all_types(), &options).unwrap();
    assert!(source.is_bounded());
    let whole = read(&source, 0, 1_000, &clock());
    assert_eq!(whole.num_rows(), 100);
    // The clock moves between the batches of the second reading.
    assert_eq!(read(&source, 0, 7, &clock()), whole);
    let seeded = table(&all_types(), &[("number-of-rows", "100"), ("seed", "43")]).unwrap();
    assert_ne!(read(&seeded, 0, 7, &clock()).column(1), whole.column(1));
}

#[test]
fn lanes_share_the_rows() {
    let columns = [("n", DataType::Int64)];
    let options =
        [("fields.n.kind", "sequence"), ("fields.n.start", "5"), ("fields.n.end", "14"), ("lanes", "3")];
    let source = table(&columns, &options).unwrap();
    let lanes: Vec<Vec<i64>> = (0..3)
        .map(|lane| read(&source, lane, 2, &clock()).column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(lanes, [vec![5, 8, 11, 14], vec![6, 9, 12], vec![7, 10, 13]]);
}

#[test]
fn random_values_keep_to_their_bounds() {
    let columns = [
        ("n", DataType::Int32),
        ("d", DataType::Decimal128(5, 2)),
        ("f", DataType::Float64),
        ("s", DataType::Utf8),
    ];
    let options = [
        ("number-of-rows", "2000"),
        ("fields.n.min", "-1"),
        ("fields.n.max", "1"),
        ("fields.d.min", "1.5"),
        ("fields.d.max", "1.52"),
        ("fields.f.min", "2"),
        ("fields.f.max", "3"),
        ("fields.s.length", "3"),
        ("fields.s.var-len", "true"),
        ("fields.s.null-rate", "0.5"),
    ];
    let rows = read(&table(&columns, &options).unwrap(), 0, 8192, &clock());
    let seen = |column: usize| {
        let text = TextFormat::file().formatter(rows.column(column)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for row in 0..rows.num_rows() {
            let mut out = String::new();
            text.write(row, &mut out);
            seen.insert(out);
        }
        seen.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(seen(0), ["-1", "0", "1"]);
    assert_eq!(seen(1), ["1.50", "1.51", "1.52"]);
    assert!(
        rows.column(2)
            .as_primitive::<arrow::datatypes::Float64Type>()
            .values()
            .iter()
            .all(|f| (2.0..3.0).contains(f))
    );
    let texts = rows.column(3).as_string::<i32>();
    assert!((800..1_200).contains(&texts.null_count()), "{}", texts.null_count());
    let lengths: std::collections::BTreeSet<usize> = texts.iter().flatten().map(str::len).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn sequences_fit_many_types() {
    let columns = [("i", DataType::Int32), ("s", DataType::Utf8), ("d", DataType::Decimal128(5, 1))];
    let mut options = vec![];
    for name in ["i", "s", "d"] {
        options.push((format!("fields.{name}.kind"), "sequence"));
        options.push((format!("fields.{name}.start"), "9"));
        options.push((format!("fields.{name}.end"), if name == "s" { "10" } else { "99" }));
    }
    let options: Vec<(&str, &str)> = options.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let rows = read(&table(&columns, &options).unwrap(), 0, 8192, &clock());
    assert_eq!(rows.column(0).as_primitive::<Int32Type>().values().to_vec(), [9, 10]);
    assert_eq!(rows.column(1).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["9", "10"]);
    assert_eq!(
        rows.column(2).as_primitive::<arrow::datatypes::Decimal128Type>().values().to_vec(),
        [90, 100]
    );
}

#[test]
fn times_follow_the_rate() {
    let columns = [("at", DataType::Timestamp(TimeUnit::Millisecond, None)), ("day", DataType::Date32)];
    let source = table(&columns, &[("number-of-rows", "3"), ("rows-per-second", "2")]).unwrap();
    let rows = read(&source, 0, 8192, &clock());
    let mut text = String::new();
    crate::format::csv_encoder::CsvEncoder::new(
        crate::format::csv_encoder::CsvStyle::parse(&mut Options::new("t", BTreeMap::new())).unwrap(),
    )
    .encode(&rows, &mut text)
    .unwrap();
    assert_eq!(
        text,
        "2024-01-01 10:00:00,2024-01-01\n2024-01-01 10:00:00.5,2024-01-01\n2024-01-01 10:00:01,2024-01-01\n"
    );
}

#[test]
fn an_unbounded_source_waits_for_its_clock() {
    let source = table(&[("n", DataType::Int64)], &[("rows-per-second", "10")]).unwrap();
    assert!(!source.is_bounded());
    let clock = clock();
    let mut reader = source.open(&source.splits().unwrap()[0], None, context(&source, &clock)).unwrap();
    assert!(matches!(reader.poll(100).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 1));
    let start = clock.now();
    assert!(
        matches!(reader.poll(100).unwrap(), SourcePoll::NotYet { retry_at } if retry_at == start.saturating_add(100_000))
    );
    clock.advance(500_000);
    assert!(matches!(reader.poll(100).unwrap(), SourcePoll::Rows(batch) if batch.num_rows() == 5));
}

#[test]
fn only_wanted_columns_are_made() {
    let source = table(&all_types(), &[("number-of-rows", "10")]).unwrap();
    let whole = read(&source, 0, 10, &clock());
    let read = |projection: Vec<usize>| {
        let context = ReaderContext { projection, ..context(&source, &clock()) };
        match source.open(&source.splits().unwrap()[0], None, context).unwrap().poll(10).unwrap() {
            SourcePoll::Rows(batch) => batch.rows,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(vec![7, 1]), whole.project(&[7, 1]).unwrap());
    assert_eq!(read(vec![]).num_rows(), 10);
}

#[test]
fn bad_options_are_refused_by_name() {
    let refused = |options: &[(&str, &str)]| {
        let error = table(&[("n", DataType::Int8), ("when", DataType::Date32)], options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    for (options, expected) in [
        (&[("fields.n.min", "200")][..], "fields.n.min"),
        (&[("fields.n.min", "5"), ("fields.n.max", "4")], "below the minimum 5"),
        (&[("fields.n.kind", "sequence")], "fields.n.start"),
        (&[("fields.n.kind", "sequence"), ("fields.n.start", "0"), ("fields.n.end", "200")], "-128 to 127"),
        (&[("fields.when.kind", "sequence"), ("fields.when.start", "0"), ("fields.when.end", "2")], "Date32"),
        (&[("fields.n.maximum", "4")], "did you mean 'fields.n.max'"),
        (&[("rows-per-second", "0")], "unlimited"),
        (&[("fields.n.null-rate", "2")], "between 0 and 1"),
        (&[("lanes", "0")], "lanes"),
        (&[("rate", "1")], "rate"),
    ] {
        let message = refused(options);
        assert!(message.contains(expected), "{message}");
    }
    let interval = DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano);
    assert!(table(&[("i", interval)], &[]).unwrap_err().message().contains("cannot generate"));
    let source = table(&[("n", DataType::Int8)], &[]).unwrap();
    let elsewhere = Split { id: "lane-1".into() };
    assert!(source.open(&elsewhere, None, context(&source, &clock())).map(drop).is_err());
}
