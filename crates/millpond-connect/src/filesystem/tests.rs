//! Nasty files and what must come of them: the same rows for every way of cutting the input, and
//! from every position exactly the rest.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_core::{
    BadRows, DeadLetter, DeadLetterOffice, ErrorKind, ManualClock, Result, SourceMetrics, Timestamp,
};

use super::source::FileSource;
use crate::connector::{Position, ReaderContext, SourceConnector, SourcePoll, Split};
use crate::factory::TableSpec;
use crate::options::Options;

const BLOCKS: [usize; 4] = [1, 7, 64, 65536];
const BATCHES: [usize; 2] = [1, 8192];

#[derive(Debug, Default)]
struct Letters(Mutex<Vec<DeadLetter>>);

impl DeadLetterOffice for Letters {
    fn keep(&self, letter: DeadLetter) -> Result<()> {
        self.0.lock().unwrap().push(letter);
        Ok(())
    }
}

fn testdata(name: &str) -> String {
    format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))
}

const TS3: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

fn ltz() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

/// A table over files, and how it is read.
#[derive(Clone)]
struct Table {
    path: String,
    fields: Vec<Field>,
    partition_keys: Vec<String>,
    options: Vec<(String, String)>,
    bad_rows: BadRows,
    time_zone: &'static str,
}

fn table(path: &str, columns: &[(&str, DataType)]) -> Table {
    let format = ["csv", "parquet"].into_iter().find(|format| path.contains(format)).unwrap_or("json");
    Table {
        path: if path.starts_with('/') { path.into() } else { testdata(path) },
        fields: columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect(),
        partition_keys: vec![],
        options: vec![("format".into(), format.into())],
        bad_rows: BadRows::Skip,
        time_zone: "UTC",
    }
}

/// What was read.
#[derive(Debug, PartialEq, Eq, Default)]
struct Outcome {
    rows: Vec<String>,
    read: u64,
    rejected: u64,
    nulled: u64,
}

impl Table {
    fn with(mut self, key: &str, value: &str) -> Self {
        self.options.push((key.into(), value.into()));
        self
    }
    fn fail(mut self) -> Self {
        self.bad_rows = BadRows::Fail;
        self
    }
    fn source(&self, block_bytes: usize) -> FileSource {
        let mut options = self.options.clone();
        options.push(("path".into(), self.path.clone()));
        let spec = TableSpec {
            name: "t".into(),
            schema: Arc::new(Schema::new(self.fields.clone())),
            primary_key: vec![],
            partition_keys: self.partition_keys.clone(),
            options: options.into_iter().collect(),
            time_zone: self.time_zone.into(),
        };
        let mut options = Options::new("t", spec.options.clone());
        FileSource::take(&spec, &mut options).unwrap().with_block_bytes(block_bytes)
    }
    fn context(&self) -> (ReaderContext, Arc<Letters>) {
        let letters = Arc::new(Letters::default());
        let context = ReaderContext {
            table: "t".into(),
            projection: (0..self.fields.len()).collect(),
            bad_rows: self.bad_rows,
            on_missing_file: millpond_core::OnMissingFile::Fail,
            log_dir: None,
            dead_letters: letters.clone(),
            metrics: Arc::new(SourceMetrics::default()),
            clock: Arc::new(ManualClock::new(Timestamp(0))),
        };
        (context, letters)
    }
    fn read(&self, block_bytes: usize, rows_max: usize) -> Result<Outcome> {
        let source = self.source(block_bytes);
        let (context, _) = self.context();
        let mut rows = Vec::new();
        for split in source.splits()? {
            let mut reader = source.open(&split, None, context.clone())?;
            while let SourcePoll::Rows(batch) = reader.poll(rows_max)? {
                assert!((1..=rows_max).contains(&batch.num_rows()));
                rows.extend(texts(&batch.rows));
            }
        }
        let metrics = &context.metrics;
        let (read, rejected, nulled) =
            (metrics.read.value(), metrics.rejected.value(), metrics.nulled.value());
        assert_eq!(read, rows.len() as u64 + rejected, "read = sent + rejected");
        Ok(Outcome { rows, read, rejected, nulled })
    }
    fn error(&self) -> millpond_core::Error {
        let error = self.read(65536, 8192).unwrap_err();
        for block in BLOCKS {
            assert_eq!(self.read(block, 1).unwrap_err(), error, "block {block}");
        }
        error
    }
    /// Reads in every way and demands one outcome; then resumes from every position.
    fn outcome(&self) -> Outcome {
        let outcome = self.read(65536, 8192).unwrap();
        for block in BLOCKS {
            for batch in BATCHES {
                assert_eq!(self.read(block, batch).unwrap(), outcome, "block {block}, batch {batch}");
            }
        }
        self.source(64).splits().unwrap().iter().for_each(|split| self.resume_everywhere(split));
        outcome
    }
    fn resume_everywhere(&self, split: &Split) {
        let source = self.source(7);
        let mut reader = source.open(split, None, self.context().0).unwrap();
        let (mut rows, mut positions) = (Vec::new(), vec![reader.position()]);
        while let SourcePoll::Rows(batch) = reader.poll(1).unwrap() {
            rows.extend(texts(&batch.rows));
            positions.push(reader.position());
        }
        for (given, position) in positions.iter().enumerate() {
            let mut reader = source.open(split, Some(position), self.context().0).unwrap();
            let mut rest = Vec::new();
            while let SourcePoll::Rows(batch) = reader.poll(3).unwrap() {
                rest.extend(texts(&batch.rows));
            }
            assert_eq!(rest, rows[given..], "after {given} rows, from {position:?}");
        }
    }
    fn check(&self, rows: &[&str], rejected: u64, nulled: u64) {
        let outcome = self.outcome();
        assert_eq!(outcome.rows, rows, "{}", self.path);
        assert_eq!((outcome.rejected, outcome.nulled), (rejected, nulled), "{}", self.path);
    }
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}

const ID: (&str, DataType) = ("id", DataType::Int64);

fn id_and(name: &'static str, data_type: DataType) -> [(&'static str, DataType); 2] {
    [ID, (name, data_type)]
}

fn texts_table(path: &str) -> Table {
    table(path, &id_and("name", DataType::Utf8))
}

#[test]
fn csv_marks_quotes_and_line_ends_are_understood() {
    texts_table("csv/bom_crlf.csv").check(&["1|alpha", "2|beta"], 0, 0);
    texts_table("csv/quotes_newlines.csv").check(
        &["1|line one\nline two", "2|say \"hi\", ok", "3|\r\n", "4|", "5|a,b,c"],
        0,
        0,
    );
    texts_table("csv/blank_lines.csv").check(&["1|a", "2|b", "3|c"], 0, 0);
    texts_table("csv/no_final_newline.csv").check(&["1|a", "2|b"], 0, 0);
    texts_table("csv/only_header.csv").check(&[], 0, 0);
    texts_table("csv/empty.csv").check(&[], 0, 0);
    texts_table("csv/nul_bytes.csv").check(&["1|a\0b", "2|\0", "3|c"], 0, 0);
    assert_eq!(texts_table("csv/injection.csv").outcome().rows[2], "3|'; DROP TABLE t; --");
}

#[test]
fn csv_bad_records_are_counted_and_good_ones_kept() {
    let columns = [ID, ("a", DataType::Utf8), ("b", DataType::Utf8)];
    table("csv/ragged.csv", &columns).check(&["1|a|x", "5|e|z"], 3, 0);
    texts_table("csv/open_quote.csv").check(&[], 1, 0);
    texts_table("csv/latin1.csv").check(&["1|NULL", "2|ok"], 0, 1);
}

#[test]
fn csv_scalars_are_exact_or_null() {
    table("csv/numbers.csv", &id_and("n", DataType::Int64)).check(
        &[
            "1|7",
            "2|5",
            "3|42",
            "4|NULL",
            "5|NULL",
            "6|NULL",
            "7|NULL",
            "8|-9223372036854775808",
            "9|NULL",
            "10|NULL",
            "11|12",
            "12|NULL",
        ],
        0,
        7,
    );
    table("csv/bools.csv", &id_and("b", DataType::Boolean)).check(
        &["1|true", "2|true", "3|true", "4|true", "5|true", "6|true", "7|NULL", "8|NULL"],
        0,
        1,
    );
    table("csv/decimals.csv", &id_and("d", DataType::Decimal128(38, 8))).check(
        &[
            "1|0.10000000",
            "2|123456789012345678901234567890.12345678",
            "3|0.00000000",
            "4|0.00000000",
            "5|0.50000000",
            "6|5.00000000",
            "7|NULL",
            "8|NULL",
        ],
        0,
        2,
    );
}

#[test]
fn csv_options_change_the_dialect() {
    let columns = [ID, ("a", DataType::Utf8), ("d", DataType::Utf8)];
    let semicolons = table("csv/semicolon_comment.csv", &columns).with("csv.field-delimiter", ";");
    semicolons.clone().with("csv.allow-comments", "true").check(&["1|a|3,14", "2|b|2,71"], 0, 0);
    semicolons.check(&["1|a|3,14", "2|b|2,71"], 1, 0);
    let written = written("csv", "name,other,id\nNA,x,1\n\"NA\",y,2\n,z,\"NA\"\n");
    let by_name = texts_table(&written.1).with("csv.null-literal", "NA");
    by_name.clone().with("csv.header", "true").check(&["1|NULL", "2|NA", "NULL|NULL"], 0, 0);
    // The header names all columns of the table, so it is taken for one although it names more.
    by_name.check(&["1|NULL", "2|NA", "NULL|NULL"], 0, 0);
}

#[test]
fn csv_columns_are_found_by_name_and_unwanted_ones_skipped() {
    let (_directory, path) = written("csv", "c,a,b\n1,2,\"x\"\"y\"\n3,4,\n");
    let columns = [("a", DataType::Int32), ("b", DataType::Utf8), ("c", DataType::Int32)];
    let table = table(&path, &columns);
    table.check(&["2|x\"y|1", "4|NULL|3"], 0, 0);
    let source = table.source(64);
    let (mut context, _) = table.context();
    context.projection = vec![2, 0];
    let split = &source.splits().unwrap()[0];
    let SourcePoll::Rows(batch) = source.open(split, None, context.clone()).unwrap().poll(9).unwrap() else {
        panic!()
    };
    assert_eq!(texts(&batch.rows), ["1|2", "3|4"]);
    context.projection = vec![];
    let SourcePoll::Rows(batch) = source.open(split, None, context).unwrap().poll(9).unwrap() else {
        panic!()
    };
    assert_eq!((batch.num_rows(), batch.rows.num_columns()), (2, 0));
}

#[test]
fn csv_errors_say_where() {
    let (_directory, path) = written("csv", "id,n\n1,5\n2,\"é\",12\n");
    let columns = id_and("n", DataType::Int32);
    let error = table(&path, &columns).fail().error();
    assert_eq!(
        error.message(),
        format!(
            "cannot read a row of table \"t\": it has 3 fields instead of 2, in {path}, line 3, column 1"
        )
    );
    let (_directory, path) = written("csv", "id,n\n1,\"5\"\n\"2\",12x\n");
    let error = table(&path, &columns).fail().error();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert_eq!(
        error.message(),
        format!(
            "cannot read column \"n\" (INT) of table \"t\": \"12x\" is not a number, in {path}, line 3, column 5"
        )
    );
    assert!(error.hint().unwrap().contains("'bad-rows' = 'skip'"));
}

#[test]
fn json_good_records_survive_bad_neighbours() {
    let columns = [ID, ("w", DataType::Int64)];
    table("json/mixed_bad.json", &columns).check(&["1|100", "2|200", "4|NULL", "5|500"], 8, 1);
    table("json/crlf_bom.json", &[ID]).check(&["1", "2"], 0, 0);
    table("json/duplicate_keys.json", &[ID, ("a", DataType::Int64)]).check(&["2|NULL", "3|1"], 0, 0);
    table("json/concatenated.json", &[ID]).check(&["1", "2", "3", "4"], 0, 0);
    table("json/whitespace.json", &[ID]).check(&["1", "2", "3"], 0, 0);
    table("json/empty.json", &[ID]).check(&[], 0, 0);
    table("json/deep.json", &[ID]).check(&["2"], 1, 0);
    assert_eq!(table("json/huge_key_count.json", &[ID]).outcome().rows, ["1", "2"]);
}

#[test]
fn json_lines_that_are_no_objects_are_named() {
    let pretty = table("json/pretty.json", &[ID]);
    let error = pretty.clone().fail().error();
    assert!(error.message().contains("expected one object per line"), "{error}");
    assert!(error.message().contains("line 1, column 1"), "{error}");
    // The second object happens to stand on one line.
    assert_eq!(pretty.outcome().rows, ["2"]);
}

#[test]
fn json_numbers_are_exact_or_null() {
    let numbers = |data_type| table("json/numbers.json", &id_and("n", data_type)).outcome().rows;
    let n: Vec<String> =
        numbers(DataType::Int64).iter().map(|row| row.split_once('|').unwrap().1.into()).collect();
    assert_eq!(
        n,
        [
            "9007199254740993",
            "9223372036854775807",
            "NULL",
            "1000",
            "1",
            "NULL",
            "0",
            "NULL",
            "12",
            "NULL",
            "NULL"
        ]
    );
    assert_eq!(numbers(DataType::Decimal128(38, 1))[2], "3|9223372036854775808.0");
    assert_eq!(numbers(DataType::Utf8)[0], "1|9007199254740993");
    table("json/nan_inf.json", &id_and("d", DataType::Float64)).check(&["3|NaN", "4|-inf", "5|1.0"], 2, 0);
}

#[test]
fn json_text_is_unescaped_and_checked() {
    table("json/unicode.json", &id_and("s", DataType::Utf8)).check(
        &[
            "1|😀",
            "2|NULL",
            "3|NULL",
            "4|café",
            "5|cafe\u{301}",
            "6|\u{202e}abc",
            "7|\0",
            "8|👨\u{200d}👩\u{200d}👧",
            "9|İIıi",
        ],
        0,
        2,
    );
}

#[test]
fn json_nested_values_fill_nested_columns() {
    let text = |name| Field::new(name, DataType::Utf8, true);
    let tags = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
    let user = DataType::Struct(Fields::from(vec![
        text("name"),
        Field::new("tags", tags, true),
        Field::new("addr", DataType::Struct(Fields::from(vec![text("zip")])), true),
    ]));
    table("json/nested.json", &id_and("u", user)).check(
        &[
            "1|{name: a, tags: [x, NULL], addr: {zip: 0123}}",
            "2|NULL",
            "3|NULL",
            "4|{name: NULL, tags: NULL, addr: NULL}",
            "5|{name: 5, tags: NULL, addr: NULL}",
            "6|{name: NULL, tags: NULL, addr: NULL}",
        ],
        0,
        1,
    );
    let entries = Fields::from(vec![
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Int32, true),
    ]);
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false);
    let (_directory, path) =
        written("json", "{\"m\":{\"a\":1,\"b\":null,\"a\":3}}\n{\"m\":{}}\n{\"m\":[]}\n{}\n");
    table(&path, &[("m", map)]).check(&["{a: 3, b: NULL}", "{}", "NULL", "NULL"], 0, 1);
}

#[test]
fn compressed_files_are_known_by_their_bytes() {
    for file in ["a.json.gz", "b.json.zst", "wrong_ext.json.gz", "plain.json"] {
        let table = table(&format!("compressed/{file}"), &[ID]);
        let outcome = table.read(65536, 8192).unwrap();
        assert_eq!(outcome.rows.len(), 1000, "{file}");
        assert_eq!(outcome.rows.iter().map(|id| id.parse::<u64>().unwrap()).sum::<u64>(), 500_500, "{file}");
        assert_eq!(table.read(7, 1).unwrap(), outcome, "{file}");
    }
    resume_within("compressed/a.json.gz");
    resume_within("compressed/b.json.zst");
    let error = table("compressed/truncated.json.gz", &[ID]).read(65536, 8192).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("truncated.json.gz"), "{error}");
}

fn resume_within(path: &str) {
    let table = table(path, &[ID]);
    let source = table.source(64);
    let split = &source.splits().unwrap()[0];
    let mut reader = source.open(split, None, table.context().0).unwrap();
    reader.poll(637).unwrap();
    let mut reader = source.open(split, Some(&reader.position()), table.context().0).unwrap();
    let SourcePoll::Rows(batch) = reader.poll(1).unwrap() else { panic!("there is more") };
    assert_eq!(texts(&batch.rows), ["638"]);
}

#[test]
fn records_beyond_the_limit_are_rejected_in_bounded_memory() {
    let outcome = table("compressed/bomb.json.gz", &[ID]).read(1 << 20, 8192).unwrap();
    assert_eq!((outcome.rows.len(), outcome.rejected), (0, 1));
    let (_directory, path) = written("csv", &format!("1,a\n2,\"{}\"\n3,c\n", "x".repeat(17 << 20)));
    let outcome = texts_table(&path).read(1 << 20, 8192).unwrap();
    assert_eq!((outcome.rows, outcome.rejected), (vec!["1|a".to_string(), "3|c".to_string()], 1));
}

#[test]
fn directories_partitions_and_facts_become_columns() {
    table("dir_mixed", &[ID]).check(&["1", "2", "6"], 0, 0);
    let mut ids = table("dir_mixed", &[ID]).with("recursive", "true").outcome().rows;
    ids.sort();
    assert_eq!(ids, ["1", "2", "3", "4", "5", "6"]);
    let columns = [ID, ("dt", DataType::Date32), ("hour", DataType::Int32)];
    let mut partitioned = table("dir_mixed", &columns);
    partitioned.partition_keys = vec!["dt".into(), "hour".into()];
    let rows = partitioned.outcome().rows;
    assert!(rows.contains(&"4|2024-01-01|10".to_string()), "{rows:?}");
    assert!(rows.contains(&"5|2024-01-01|NULL".to_string()), "{rows:?}");
    let mut facts = table("dir_mixed/1.json", &id_and("f", DataType::Utf8));
    facts.fields[1].set_metadata([(TableSpec::METADATA_KEY.to_string(), "file.name".to_string())].into());
    facts.check(&["1|1.json", "2|1.json"], 0, 0);
}

#[test]
fn timestamps_are_read_in_the_time_zone_and_strictly() {
    let rows = table("time/formats.json", &id_and("ts", TS3)).outcome().rows;
    let readable: Vec<usize> = (1..=rows.len()).filter(|id| !rows[id - 1].ends_with("NULL")).collect();
    assert_eq!(readable, [1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 19, 20, 21, 25, 26, 27]);
    assert_eq!(rows[25], "26|2262-04-11T23:47:16.854");
    let mut local = table("time/dst_new_york.json", &id_and("ts", ltz()));
    local.time_zone = "America/New_York";
    assert_eq!(local.outcome().rows[3], "4|2024-11-03T05:30:00Z");
    let numbers = table("time/out_of_order.json", &[("ms", DataType::Int64)]).outcome();
    assert_eq!(numbers.rows.len(), 203);
    let epochs = table("time/epochs.json", &[("ms", DataType::Int64)]).outcome();
    assert_eq!(epochs.rows[8], "-9223372036854775808");
}

#[test]
fn parquet_files_are_read_by_name_and_cast() {
    let columns = [("a", DataType::Int64), ("b", DataType::Utf8)];
    let evolving = table("parquet_evolving", &columns).outcome();
    assert_eq!((evolving.rejected, evolving.nulled), (0, 0));
    assert!(evolving.rows.iter().any(|row| row.ends_with("NULL")), "{:?}", evolving.rows);
    let no_stats = table("parquet/no_stats.parquet", &columns).outcome();
    assert_eq!(no_stats.rows.len(), 6);
    assert_eq!(no_stats.rows.iter().filter(|row| row.ends_with("NULL")).count(), 2);
    let good = table("parquet/good.parquet", &[ID]).read(1, 7).unwrap();
    assert_eq!(good.rows.iter().map(|id| id.parse::<u64>().unwrap()).sum::<u64>(), 499_500);
    table("parquet/zero_rows.parquet", &[ID]).check(&[], 0, 0);
}

#[test]
fn parquet_times_round_down() {
    let columns: Vec<(&str, DataType)> = ["ms", "us", "ns"].into_iter().map(|name| (name, TS3)).collect();
    let rows = table("parquet/ts_units.parquet", &columns).outcome().rows;
    for row in &rows {
        let [ms, us, ns] = row.split('|').collect::<Vec<_>>()[..] else { panic!("{row}") };
        assert_eq!((ms, us), (ns, ns), "{rows:?}");
    }
    assert!(
        rows.contains(&"1969-12-31T23:59:59.999|1969-12-31T23:59:59.999|1969-12-31T23:59:59.999".into()),
        "{rows:?}"
    );
}

#[test]
fn damaged_parquet_files_are_data_errors() {
    for file in ["truncated", "garbage", "fake_len", "empty"] {
        let error = table(&format!("parquet/{file}.parquet"), &[ID]).read(1, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{file}: {error}");
        assert!(error.message().contains(file), "{error}");
    }
}

#[test]
fn no_null_gets_into_a_not_null_column() {
    let (_directory, path) = written("csv", "1,a\n,b\nx,c\n");
    let mut strict = texts_table(&path);
    strict.fields[0].set_nullable(false);
    strict.check(&["1|a"], 2, 1);
    strict.bad_rows = BadRows::Fail;
    assert!(strict.read(64, 1).is_err());
}

#[test]
fn dead_letters_keep_record_and_reason() {
    let mut kept = texts_table("csv/open_quote.csv");
    kept.bad_rows = BadRows::DeadLetter;
    let source = kept.source(7);
    let (context, letters) = kept.context();
    let mut reader = source.open(&source.splits().unwrap()[0], None, context).unwrap();
    assert!(matches!(reader.poll(9).unwrap(), SourcePoll::End));
    let letters = letters.0.lock().unwrap();
    assert_eq!((letters.len(), letters[0].line), (1, Some(1)));
    assert_eq!(letters[0].record, "1,\"never closed\n2,b\n3,c");
    assert_eq!(letters[0].reason, "a quote is never closed");
}

fn written(format: &str, text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(format!("a.{format}"));
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    (directory, path)
}

#[test]
fn a_watched_file_is_followed() {
    let (_directory, path) = written("json", "{\"id\":1}\n{\"id\":");
    let watched = table(&path, &[ID]).with("source.monitor-interval", "1 s");
    let source = watched.source(64);
    assert_eq!((source.is_bounded(), source.discovery_interval()), (false, Some(1_000_000)));
    let split = &source.splits().unwrap()[0];
    let mut reader = source.open(split, None, watched.context().0).unwrap();
    let mut rows = |expected: &[&str]| match reader.poll(9).unwrap() {
        SourcePoll::Rows(batch) => assert_eq!(texts(&batch.rows), expected),
        SourcePoll::NotYet { retry_at } => assert_eq!((retry_at, expected.len()), (Timestamp(1_000_000), 0)),
        SourcePoll::End => panic!("a watched file does not end"),
    };
    rows(&["1"]);
    rows(&[]);
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"2}\n{\"id\":3}\n").unwrap();
    rows(&["2", "3"]);
    rows(&[]);
    let position = reader.position();
    std::fs::write(&path, "{\"id\":9}\n").unwrap();
    assert!(reader.poll(9).unwrap_err().message().contains("is shorter than what has been read of it"));
    let error = source.open(split, Some(&position), watched.context().0).err().unwrap();
    assert!(error.message().contains("is not the one that has been read in part"), "{error}");
}

#[test]
fn a_position_is_refused_by_a_rewritten_file_and_taken_by_a_grown_one() {
    let json = "{\"id\":1}\n{\"id\":2}\n";
    let (_directory, path) = written("json", json);
    let table = table(&path, &[ID]);
    let source = table.source(64);
    let split = &source.splits().unwrap()[0];
    let mut reader = source.open(split, None, table.context().0).unwrap();
    let SourcePoll::Rows(first) = reader.poll(1).unwrap() else { panic!("there is a row") };
    assert_eq!(texts(&first.rows), ["1"]);
    let position = reader.position();
    std::fs::write(&path, format!("{json}{{\"id\":3}}\n")).unwrap();
    let mut grown = source.open(split, Some(&position), table.context().0).unwrap();
    let SourcePoll::Rows(rest) = grown.poll(9).unwrap() else { panic!("there are rows") };
    assert_eq!(texts(&rest.rows), ["2", "3"]);
    std::fs::write(&path, json.replace('1', "7")).unwrap();
    let error = source.open(split, Some(&position), table.context().0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.message().contains("is not the one that has been read in part"), "{error}");
}

#[test]
fn a_pattern_that_matches_nothing_is_refused_unless_files_may_come() {
    let (directory, _path) = written("json", "");
    let pattern = directory.path().join("b*.json").to_string_lossy().into_owned();
    let error = table(&pattern, &[ID]).source(64).splits().unwrap_err();
    assert!(error.message().contains("no file matches"), "{error}");
    let watched = table(&pattern, &[ID]).with("source.monitor-interval", "1 s");
    assert!(watched.source(64).splits().unwrap().is_empty());
}

#[test]
fn foreign_positions_and_missing_files_are_refused() {
    let table = texts_table("csv/bom_crlf.csv");
    let source = table.source(64);
    let split = source.splits().unwrap().remove(0);
    let foreign = Position(serde_json::json!({"lane": 3}));
    let error = source.open(&split, Some(&foreign), table.context().0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let gone = Split { id: PathBuf::from("/no/such/file").to_string_lossy().into_owned() };
    let error = source.open(&gone, None, table.context().0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert!(error.hint().unwrap().contains("'on-missing-file' = 'skip'"), "{error}");
    let context = ReaderContext { on_missing_file: millpond_core::OnMissingFile::Skip, ..table.context().0 };
    let read = Position(serde_json::json!({"offset": 7}));
    let mut reader = source.open(&gone, Some(&read), context).unwrap();
    assert!(matches!(reader.poll(10).unwrap(), SourcePoll::End));
    assert_eq!(reader.position(), read, "what was read of it stays so");
    let missing = texts_table("csv/no_such.csv").source(64).splits().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Invalid);
}
