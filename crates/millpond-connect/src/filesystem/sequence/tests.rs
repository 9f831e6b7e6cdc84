//! Change events in files: the same changes however the input is cut, and from every position
//! exactly the rest.

use std::io::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_core::{
    BadRows, ChangelogBatch, DeadLetter, DeadLetterOffice, ManualClock, SourceMetrics, Timestamp,
};
use tempfile::TempDir;

use super::*;
use crate::connector::SourceConnector;
use crate::factory::TableSpec;
use crate::options::Options;

#[derive(Debug)]
struct NoLetters;

impl DeadLetterOffice for NoLetters {
    fn keep(&self, _: DeadLetter) -> Result<()> {
        Ok(())
    }
}

/// A folder of files, and a table over it.
struct Table {
    dir: TempDir,
    fields: Vec<Field>,
    primary_key: Vec<String>,
    options: Vec<(&'static str, &'static str)>,
    bad_rows: BadRows,
}

impl Table {
    fn new(files: &[(&str, &str)]) -> Self {
        let table = Self {
            dir: TempDir::new().unwrap(),
            fields: vec![Field::new("id", DataType::Int64, true), Field::new("v", DataType::Utf8, true)],
            primary_key: vec![],
            options: vec![],
            bad_rows: BadRows::Skip,
        };
        files.iter().for_each(|(name, text)| table.append(name, text));
        table
    }
    fn keyed(mut self) -> Self {
        self.primary_key = vec!["id".into()];
        self.fields[0] = Field::new("id", DataType::Int64, false);
        self
    }
    fn with(mut self, key: &'static str, value: &'static str) -> Self {
        self.options.push((key, value));
        self
    }
    fn metadata(mut self, name: &str, key: &str, data_type: DataType) -> Self {
        let marked = [(TableSpec::METADATA_KEY.to_string(), key.to_string())];
        self.fields.push(Field::new(name, data_type, true).with_metadata(marked.into()));
        self
    }
    fn append(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
    fn source(&self, block_bytes: usize) -> Result<FileSource> {
        let path = self.dir.path().to_str().unwrap();
        let options = [("format", "debezium-json"), ("path", path)].into_iter().chain(self.options.clone());
        let spec = TableSpec {
            name: "t".into(),
            schema: Arc::new(Schema::new(self.fields.clone())),
            primary_key: self.primary_key.clone(),
            partition_keys: vec![],
            options: options.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            time_zone: "UTC".into(),
        };
        let mut options = Options::new("t", spec.options.clone());
        Ok(FileSource::take(&spec, &mut options)?.with_block_bytes(block_bytes))
    }
    fn context(&self) -> ReaderContext {
        ReaderContext {
            table: "t".into(),
            projection: (0..self.fields.len()).collect(),
            bad_rows: self.bad_rows,
            on_missing_file: millpond_core::OnMissingFile::Fail,
            log_dir: None,
            dead_letters: Arc::new(NoLetters),
            metrics: Arc::new(SourceMetrics::default()),
            clock: Arc::new(ManualClock::new(Timestamp(0))),
        }
    }
    fn open(&self, block_bytes: usize, position: Option<&Position>) -> (Box<dyn SplitReader>, ReaderContext) {
        let source = self.source(block_bytes).unwrap();
        let context = self.context();
        let splits = source.splits().unwrap();
        assert_eq!(splits.len(), 1, "all files are one split");
        (source.open(&splits[0], position, context.clone()).unwrap(), context)
    }
    /// Reads in every way and demands the same changes; then resumes from every position.
    fn changes(&self) -> Vec<String> {
        let mut all: Option<Vec<String>> = None;
        for block in [65536, 1, 7, 64] {
            for rows_max in [8192, 1, 2, 3] {
                let (mut reader, context) = self.open(block, None);
                let (batches, _) = drain(reader.as_mut(), rows_max);
                assert!(batches.iter().all(|batch| batch.len() <= rows_max.max(2)));
                let changes = batches.concat();
                let metrics = &context.metrics;
                assert_eq!(metrics.read.value(), changes.len() as u64 + metrics.rejected.value());
                assert_eq!(all.get_or_insert(changes.clone()), &changes, "block {block}, batch {rows_max}");
            }
        }
        let all = all.unwrap();
        let (batches, positions) = drain(self.open(7, None).0.as_mut(), 1);
        let mut given = 0;
        for (batch, position) in batches.iter().zip(&positions) {
            given += batch.len();
            let rest = drain(self.open(64, Some(position)).0.as_mut(), 3).0.concat();
            assert_eq!(rest, all[given..], "after {given} rows, from {position:?}");
        }
        all
    }
}

/// The changes batch by batch until nothing more is there, and the position behind each batch.
fn drain(reader: &mut dyn SplitReader, rows_max: usize) -> (Vec<Vec<String>>, Vec<Position>) {
    let (mut batches, mut positions) = (Vec::new(), Vec::new());
    while let SourcePoll::Rows(batch) = reader.poll(rows_max).unwrap() {
        batches.push(texts(&batch));
        positions.push(reader.position());
    }
    (batches, positions)
}

fn texts(batch: &ChangelogBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns =
        batch.rows.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap());
    let columns: Vec<ArrayFormatter<'_>> = columns.collect();
    let row = |row: usize| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(|at| format!("{} {}", batch.kind(at).symbol(), row(at))).collect()
}

const LIFE: &str = r#"{"before": null, "after": {"id": 1, "v": "a"}, "op": "r"}
{"before": null, "after": {"id": 2, "v": "b"}, "op": "c"}
{"before": {"id": 1, "v": "a"}, "after": {"id": 1, "v": "x"}, "op": "u"}
null

{"before": {"id": 2, "v": "b"}, "after": null, "op": "d"}
null
{"before": {"id": 1, "v": "x"}, "after": {"id": 3, "v": "x"}, "op": "u", "ts_ms": 5}
"#;

#[test]
fn an_update_takes_the_old_row_back() {
    let changes = Table::new(&[("a.json", LIFE)]).changes();
    assert_eq!(changes, ["+I 1|a", "+I 2|b", "-U 1|a", "+U 1|x", "-D 2|b", "-U 1|x", "+U 3|x"]);
}

#[test]
fn with_a_key_rows_replace_each_other_by_it() {
    let changes = Table::new(&[("a.json", LIFE)]).keyed().changes();
    assert_eq!(changes, ["+I 1|a", "+I 2|b", "+U 1|x", "-D 2|b", "-D 1|x", "+I 3|x"]);
}

#[test]
fn the_old_row_may_be_missing_where_there_is_a_key() {
    let events = "{\"before\": null, \"after\": {\"id\": 1, \"v\": \"a\"}, \"op\": \"u\"}\n\
                  {\"after\": {\"id\": 1}, \"op\": \"u\"}\n\
                  {\"before\": {\"id\": 1}, \"op\": \"d\"}\n";
    let mut table = Table::new(&[("a.json", events)]).keyed();
    assert_eq!(table.changes(), ["+U 1|a", "+U 1|NULL", "-D 1|NULL"]);
    table.fields[1] = Field::new("v", DataType::Utf8, false);
    assert_eq!(table.changes(), ["+U 1|a", "-D 1|NULL"], "NOT NULL asks nothing of a deleted row");
    let table = Table::new(&[("a.json", events)]);
    assert_eq!(table.changes(), ["-D 1|NULL"]);
}

#[test]
fn files_are_read_one_after_the_other_in_natural_order() {
    let event = |op: &str, image: &str| format!("{{\"op\":\"{op}\",\"{image}\":{{\"id\":1,\"v\":\"a\"}}}}\n");
    let (create, delete) = (event("c", "after"), event("d", "before"));
    let files =
        [("10.json", delete.as_str()), ("2.json", &create), ("9.json", &delete), ("9b.json", &create)];
    assert_eq!(Table::new(&files).changes(), ["+I 1|a", "-D 1|a", "+I 1|a", "-D 1|a"]);
}

#[test]
fn bad_events_are_left_out_and_counted() {
    let events = [
        r#"{"after": {"id": 1, "v": "good"}, "op": "c"}"#,
        r#"{"after": {"id": 1}, "op": "u"}"#,
        r#"{"before": {"id": 1}, "op": "c"}"#,
        r#"{"after": {"id": 1}, "op": "d"}"#,
        r#"{"before": null, "after": null, "op": "t"}"#,
        r#"{"op": "m", "message": {"prefix": "p"}}"#,
        r#"{"status": "END", "id": "571:53195832"}"#,
        r#"{"schema": {}, "payload": {"after": {"id": 8}, "op": "c"}}"#,
        r#"{"after": {"id": 1, "v": "open"}, "op": "c""#,
        "nul",
        "nullify",
        r#"{"after": {"id": "no", "v": "good"}, "op": "c"}"#,
        r#"{"after": [1], "op": "c"}"#,
        r#"{"before": {"id": 1, "v": "good"}, "op": "d"}"#,
    ];
    let table = Table::new(&[("a.json", &events.join("\n"))]);
    assert_eq!(table.changes(), ["+I 1|good", "+I NULL|good", "-D 1|good"]);
    for (at, reason) in [
        (1, "the update lacks \"before\""),
        (4, "TRUNCATE cannot be followed"),
        (6, "it lacks \"op\""),
        (7, "set 'debezium-json.schema-include' = 'true'"),
    ] {
        let mut table = Table::new(&[("a.json", events[at])]);
        table.bad_rows = BadRows::Fail;
        let error = table.open(64, None).0.poll(1).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn an_envelope_is_opened_where_it_is_announced() {
    let events = "{\"schema\": {\"a\":1}, \"payload\": {\"after\": {\"id\": 8, \"v\": \"e\"}, \"op\": \"c\"}}\n\
                  {\"after\": {\"id\": 9}, \"op\": \"c\"}\n";
    let table = Table::new(&[("a.json", events)]).with("debezium-json.schema-include", "true");
    assert_eq!(table.changes(), ["+I 8|e"]);
    let table = table.keyed().metadata("s", "schema", DataType::Utf8);
    assert_eq!(table.changes(), ["+I 8|e|{\"a\":1}"]);
}

#[test]
fn events_tell_where_they_come_from() {
    let events = "{\"after\": {\"id\": 1, \"v\": \"a\"}, \"op\": \"c\", \"ts_ms\": 1704103200123, \"source\": \
                  {\"ts_ms\": 1704103200000, \"db\": \"d\", \"schema\": \"public\", \"table\": \"t\", \"lsn\": 7}}\n\
                  {\"before\": {\"id\": 1}, \"op\": \"d\"}\n";
    let ltz = || DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let table = |key: &str, data_type| {
        Table::new(&[("a.json", events)]).keyed().metadata("m", key, data_type).changes()
    };
    assert_eq!(table("ingestion-timestamp", ltz()), ["+I 1|a|2024-01-01T10:00:00.123Z", "-D 1|NULL|NULL"]);
    assert_eq!(table("source.timestamp", ltz())[0], "+I 1|a|2024-01-01T10:00:00Z");
    assert_eq!(table("value.source.timestamp", DataType::Int64)[0], "+I 1|a|1704103200000");
    assert_eq!(table("source.database", DataType::Utf8)[0], "+I 1|a|d");
    assert_eq!(table("source.schema", DataType::Utf8)[0], "+I 1|a|public");
    assert_eq!(table("source.table", DataType::Utf8)[0], "+I 1|a|t");
    assert_eq!(table("file.name", DataType::Utf8)[0], "+I 1|a|a.json");
    let unknown = Table::new(&[]).keyed().metadata("m", "source.host", DataType::Utf8).source(1).unwrap_err();
    assert!(unknown.hint().unwrap().contains("source.table"), "{unknown}");
    let unkeyed = Table::new(&[]).metadata("m", "source.table", DataType::Utf8).source(1).unwrap_err();
    assert!(unkeyed.to_string().contains("not the same when a row comes and when it goes"), "{unkeyed}");
}

#[test]
fn watched_files_are_read_in_their_turn_as_they_grow() {
    let event = |id: u32| format!("{{\"op\":\"c\",\"after\":{{\"id\":{id}}}}}\n");
    let table = Table::new(&[("a.json", &event(1)), ("c.json", &event(3))]);
    let table = table.with("source.monitor-interval", "1 s");
    let (mut reader, _) = table.open(64, None);
    let more = |reader: &mut Box<dyn SplitReader>| drain(reader.as_mut(), 10).0.concat();
    assert_eq!(more(&mut reader), ["+I 1|NULL", "+I 3|NULL"]);
    assert_eq!(more(&mut reader), [""; 0]);
    table.append("b.json", &event(2));
    table.append("a.json", &event(4)[..10]);
    assert_eq!(more(&mut reader), ["+I 2|NULL"], "an unfinished line waits for its end");
    table.append("a.json", &event(4)[10..]);
    let position = reader.position();
    assert_eq!(more(&mut reader), ["+I 4|NULL"]);
    let (mut again, _) = table.open(64, Some(&position));
    assert_eq!(more(&mut again), ["+I 4|NULL"]);
    std::fs::remove_file(table.dir.path().join("c.json")).unwrap();
    table.append("d.json", &event(5));
    assert_eq!(more(&mut reader), ["+I 5|NULL"]);
}
