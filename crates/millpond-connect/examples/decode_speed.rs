//! How fast a CSV or JSON file is decoded: `decode_speed FILE FORMAT "name TYPE, …" [column …]`.
//!
//! Types: int, bigint, double, string, timestamp. Without columns, all are wanted.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use millpond_connect::{ReaderContext, SourcePoll, TableSpec, open_table};
use millpond_core::clock::Stopwatch;
use millpond_core::{
    BadRows, DeadLetter, DeadLetterOffice, Error, OnMissingFile, Result, SourceMetrics, SystemClock,
};

#[derive(Debug)]
struct Nowhere;

impl DeadLetterOffice for Nowhere {
    fn keep(&self, _: DeadLetter) -> Result<()> {
        Ok(())
    }
}

fn field(definition: &str) -> Result<Field> {
    let (name, data_type) = definition
        .trim()
        .split_once(' ')
        .ok_or_else(|| Error::invalid(format!("{definition:?} lacks a type")))?;
    let data_type = match data_type {
        "int" => DataType::Int32,
        "bigint" => DataType::Int64,
        "double" => DataType::Float64,
        "string" => DataType::Utf8,
        "timestamp" => DataType::Timestamp(TimeUnit::Millisecond, None),
        other => return Err(Error::invalid(format!("{other:?} is no type here"))),
    };
    Ok(Field::new(name, data_type, true))
}

#[expect(clippy::print_stdout, reason = "the example prints its measurement")]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, format, columns, wanted @ ..] = arguments.as_slice() else {
        return Err(Error::invalid("usage: decode_speed FILE FORMAT \"name TYPE, …\" [column …]"));
    };
    let fields: Result<Vec<Field>> = columns.split(',').map(field).collect();
    let schema = Arc::new(Schema::new(fields?));
    let projection = match wanted {
        [] => (0..schema.fields().len()).collect(),
        wanted => {
            wanted.iter().map(|name| schema.index_of(name).map_err(Error::from)).collect::<Result<_>>()?
        }
    };
    let options = [("connector", "filesystem"), ("path", path), ("format", format)];
    let table = open_table(TableSpec {
        name: "t".into(),
        schema,
        primary_key: vec![],
        partition_keys: vec![],
        options: options.map(|(key, value)| (key.to_string(), value.to_string())).into(),
        time_zone: "UTC".into(),
    })?;
    let source = table.source.ok_or_else(|| Error::internal("files can be read"))?;
    let context = ReaderContext {
        table: "t".into(),
        projection,
        bad_rows: BadRows::Fail,
        on_missing_file: OnMissingFile::Fail,
        log_dir: None,
        dead_letters: Arc::new(Nowhere),
        metrics: Arc::new(SourceMetrics::default()),
        clock: Arc::new(SystemClock),
    };
    let watch = Stopwatch::start();
    let mut rows = 0;
    for split in source.splits()? {
        let mut reader = source.open(&split, None, context.clone())?;
        while let SourcePoll::Rows(batch) = reader.poll(8192)? {
            rows += batch.num_rows();
        }
    }
    let seconds = watch.elapsed().as_secs_f64();
    let bytes = context.metrics.bytes.value() as f64;
    println!("{rows} rows, {:.0} MB/s, {:.2} M rows/s", bytes / 1e6 / seconds, rows as f64 / 1e6 / seconds);
    Ok(())
}
