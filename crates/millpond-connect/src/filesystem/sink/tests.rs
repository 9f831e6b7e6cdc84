//! The sink's promise, a crash between any two steps: nothing lost, nothing doubled.

use std::path::Path;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond_core::{ErrorKind, ManualClock, Timestamp};
use tempfile::TempDir;

use super::*;

struct Table {
    dir: TempDir,
    sink: Arc<dyn SinkConnector>,
}

fn table_with(format: &str, partition_keys: &[&str], options: &[(&str, &str)]) -> Table {
    let dir = TempDir::new().unwrap();
    let sink = sink_in(&dir.path().join("out"), format, partition_keys, options).unwrap();
    Table { dir, sink }
}

fn table() -> Table {
    table_with("csv", &[], &[])
}

fn sink_in(
    folder: &Path,
    format: &str,
    partition_keys: &[&str],
    options: &[(&str, &str)],
) -> Result<Arc<dyn SinkConnector>> {
    let options: std::collections::BTreeMap<String, String> =
        options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let spec = TableSpec {
        name: "t".into(),
        schema: rows(&[]).schema(),
        primary_key: vec![],
        partition_keys: partition_keys.iter().map(|key| key.to_string()).collect(),
        options: options.clone(),
        time_zone: "UTC".into(),
    };
    open_sink(&spec, &mut Options::new("t", options), folder.into(), format)
}

fn rows(values: &[(i64, &str)]) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(values.iter().map(|(n, _)| *n).collect::<Int64Array>())),
        ("s", Arc::new(values.iter().map(|(_, s)| Some(*s)).collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
}

impl Table {
    fn writer(&self, generation: u64) -> Box<dyn SinkWriter> {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        self.sink
            .open(SinkContext { job: "j-1".into(), generation, index: 0, parallelism: 1, clock })
            .unwrap()
    }
    fn folder(&self) -> PathBuf {
        self.dir.path().join("out")
    }
    /// All files, relative to the sink's folder.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        collect(&self.folder(), &self.folder(), &mut files);
        files.sort();
        files
    }
    /// What readers see: the lines of all files that are not hidden.
    fn visible(&self) -> Vec<String> {
        let is_visible = |file: &&String| !file.rsplit('/').next().unwrap().starts_with('.');
        let read = |file: &String| std::fs::read_to_string(self.folder().join(file)).unwrap();
        let mut lines: Vec<String> = self
            .files()
            .iter()
            .filter(is_visible)
            .flat_map(|file| read(file).lines().map(String::from).collect::<Vec<_>>())
            .collect();
        lines.sort();
        lines
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(root, &path, files),
            false => files.push(path.strip_prefix(root).unwrap().to_str().unwrap().into()),
        }
    }
}

fn write(writer: &mut dyn SinkWriter, values: &[(i64, &str)]) {
    writer.write(&ChangelogBatch::append(rows(values))).unwrap();
    writer.end_epoch().unwrap();
}

fn prepare(writer: &mut dyn SinkWriter) -> Vec<Committable> {
    writer.pre_commit(CheckpointId(1)).unwrap().run().unwrap()
}

#[test]
fn rows_appear_with_their_commit() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a"), (2, "")]);
    assert_eq!(table.files(), [".part-j-1-0-1-0.csv.inprogress"]);
    let owed = prepare(&mut *writer);
    assert_eq!(table.files(), [".part-j-1-0-1-1-0.csv.pending"]);
    table.sink.commit(&owed).unwrap();
    assert_eq!(table.files(), ["part-j-1-0-1-1-0.csv"]);
    assert_eq!(table.visible(), ["1,a", "2,\"\""]);
}

#[test]
fn an_empty_transaction_makes_no_file() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[]);
    assert!(prepare(&mut *writer).is_empty());
    assert!(table.files().is_empty());
}

#[test]
fn a_crash_before_pre_commit_leaves_nothing() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    drop(writer);
    table.sink.abort_dangling("j-1", &[]).unwrap();
    assert!(table.files().is_empty());
}

#[test]
fn a_crash_before_the_checkpoint_is_durable_leaves_nothing() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    let work = writer.pre_commit(CheckpointId(1)).unwrap();
    // The writer goes on before the work has run.
    write(&mut *writer, &[(2, "b")]);
    work.run().unwrap();
    drop(writer);
    table.sink.abort_dangling("j-1", &[]).unwrap();
    assert!(table.files().is_empty());
}

#[test]
fn a_crash_before_the_commit_is_mended_by_the_next_start() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    let owed = prepare(&mut *writer);
    write(&mut *writer, &[(2, "lost, and read again")]);
    let newer = prepare(&mut *writer);
    assert_eq!(newer.len(), 1);
    drop(writer);
    table.sink.abort_dangling("j-1", &owed).unwrap();
    table.sink.commit(&owed).unwrap();
    let mut writer = table.writer(2);
    write(&mut *writer, &[(2, "b")]);
    table.sink.commit(&prepare(&mut *writer)).unwrap();
    assert_eq!(table.visible(), ["1,a", "2,b"]);
    assert_eq!(table.files(), ["part-j-1-0-1-1-0.csv", "part-j-1-0-2-1-0.csv"]);
}

#[test]
fn a_crash_amid_the_commits_is_mended_by_committing_again() {
    let table = table_with("csv", &["s"], &[]);
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a"), (2, "b"), (3, "c")]);
    let owed = prepare(&mut *writer);
    assert_eq!(owed.len(), 3);
    table.sink.commit(&owed[..1]).unwrap();
    table.sink.abort_dangling("j-1", &owed).unwrap();
    for _ in 0..2 {
        table.sink.commit(&owed).unwrap();
        assert_eq!(table.visible(), ["1", "2", "3"]);
    }
    assert_eq!(table.files()[0], "s=a/part-j-1-0-1-1-0.csv");
}

#[test]
fn a_committable_survives_the_checkpoint() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    let owed = prepare(&mut *writer);
    let stored = serde_json::to_string(&owed).unwrap();
    let expected = "[{\"bytes\":4,\"crc32c\":1652117837,\"folder\":FOLDER,\"path\":\"part-j-1-0-1-1-0.csv\",\
                    \"pending\":\".part-j-1-0-1-1-0.csv.pending\"}]";
    let sum = crc32c::crc32c(b"1,a\n").to_string();
    assert_eq!(
        stored,
        expected.replace("1652117837", &sum).replace("FOLDER", &format!("{:?}", table.folder()))
    );
    table.sink.commit(&serde_json::from_str::<Vec<Committable>>(&stored).unwrap()).unwrap();
    assert_eq!(table.visible(), ["1,a"]);
}

#[test]
fn what_was_promised_and_is_gone_is_corrupt() {
    let table = table();
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    let owed = prepare(&mut *writer);
    let pending = table.folder().join(".part-j-1-0-1-1-0.csv.pending");
    std::fs::write(&pending, "short").unwrap();
    assert_eq!(table.sink.commit(&owed).unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_file(pending).unwrap();
    let error = table.sink.commit(&owed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.message().contains(".pending") && error.message().contains("part-j-1-0-1-1-0.csv\" exists"),
        "{error}"
    );
    std::fs::write(table.folder().join("part-j-1-0-1-1-0.csv"), "other bytes").unwrap();
    assert_eq!(table.sink.commit(&owed).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn only_the_jobs_own_leavings_are_removed() {
    let table = table();
    std::fs::create_dir_all(table.folder()).unwrap();
    let others = [
        ".part-j-1-0-0-0.csv.pending",
        ".part-j-1-0-1-0.other",
        ".part-j-2-0-1-0.csv.inprogress",
        ".part-j-1-x-0-1.csv.inprogress",
        "part-j-1-0-1-0.csv",
    ];
    let ours = [".part-j-1-0-1-7.csv.inprogress", ".part-j-1-12-3-9-4.parquet.pending"];
    for file in others.iter().chain(&ours) {
        std::fs::write(table.folder().join(file), "").unwrap();
    }
    table.sink.abort_dangling("j-1", &[]).unwrap();
    // The first of the others is of job "j": task 1, generation 0, checkpoint 0, part 0.
    assert_eq!(
        table.files(),
        [
            ".part-j-1-0-0-0.csv.pending",
            ".part-j-1-0-1-0.other",
            ".part-j-1-x-0-1.csv.inprogress",
            ".part-j-2-0-1-0.csv.inprogress",
            "part-j-1-0-1-0.csv"
        ]
    );
}

#[test]
fn two_branches_of_a_job_never_share_a_part() {
    let table = table();
    let other = sink_in(&table.folder(), "csv", &[], &[]).unwrap();
    let other = Table { dir: TempDir::new().unwrap(), sink: other };
    let (mut first, mut second) = (table.writer(1), other.writer(1));
    for n in 0..3 {
        write(&mut *first, &[(n, "first")]);
        write(&mut *second, &[(n, "second")]);
        let (a, b) = (prepare(&mut *first), prepare(&mut *second));
        write(&mut *second, &[(n + 10, "second")]);
        table.sink.commit(&a).unwrap();
        other.sink.commit(&b).unwrap();
    }
    table.sink.commit(&prepare(&mut *second)).unwrap();
    assert_eq!(table.visible().len(), 9);
}

#[test]
fn large_parts_are_rolled_within_a_transaction() {
    let table = table_with("csv", &[], &[("sink.rolling-policy.file-size", "10 b"), ("csv.header", "true")]);
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a"), (2, "bbbbb")]);
    write(&mut *writer, &[(3, "c")]);
    let owed = prepare(&mut *writer);
    assert_eq!(owed.len(), 2);
    table.sink.commit(&owed).unwrap();
    assert_eq!(table.visible(), ["1,a", "2,bbbbb", "3,c", "n,s", "n,s"]);
}

#[test]
fn many_partitions_hold_few_files_open() {
    let table = table_with("json", &["s"], &[]);
    let mut writer = table.writer(1);
    let names: Vec<String> = (0..2 * OPEN_PARTS_MAX).map(|n| format!("p{n}")).collect();
    for _ in 0..2 {
        write(&mut *writer, &names.iter().map(|name| (1, name.as_str())).collect::<Vec<_>>());
    }
    table.sink.commit(&prepare(&mut *writer)).unwrap();
    assert_eq!(table.visible(), vec!["{\"n\":1}"; 4 * OPEN_PARTS_MAX]);
}

#[test]
fn compressed_and_parquet_parts_read_back() {
    use std::io::Read;
    let read = |format, options: &[(&str, &str)], read: &dyn Fn(PathBuf) -> String| {
        let table = table_with(format, &[], options);
        let mut writer = table.writer(1);
        write(&mut *writer, &[(1, "a")]);
        table.sink.commit(&prepare(&mut *writer)).unwrap();
        read(table.folder().join(&table.files()[0]))
    };
    let gzip = |path: PathBuf| {
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        text
    };
    let zstd = |path: PathBuf| {
        String::from_utf8(zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap()).unwrap()
    };
    let parquet = |path: PathBuf| {
        let file = std::fs::File::open(path).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        format!("{}", reader.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>())
    };
    assert_eq!(read("csv", &[("compression", "gzip")], &gzip), "1,a\n");
    assert_eq!(read("json", &[("compression", "zstd")], &zstd), "{\"n\":1,\"s\":\"a\"}\n");
    assert_eq!(read("parquet", &[], &parquet), "1");
}

#[test]
fn what_cannot_be_written_is_refused_when_the_table_is_made() {
    let dir = TempDir::new().unwrap();
    let refused = |format, keys: &[&str], options: &[(&str, &str)]| {
        let error = sink_in(&dir.path().join("out"), format, keys, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.message().to_string()
    };
    assert!(refused("avro", &[], &[]).contains("\"avro\""));
    assert!(refused("parquet", &[], &[("compression", "gzip")]).contains("compress"));
    assert!(refused("csv", &[], &[("compression", "lzma")]).contains("\"lzma\""));
    assert!(refused("csv", &["missing"], &[]).contains("\"missing\""));
}

#[test]
fn metadata_columns_are_not_written() {
    use arrow::datatypes::{DataType, Field};
    let dir = TempDir::new().unwrap();
    let marked = [(TableSpec::METADATA_KEY.to_string(), "file.path".to_string())].into();
    let path = Field::new("path", DataType::Utf8, true).with_metadata(marked);
    let spec = TableSpec {
        name: "t".into(),
        schema: Arc::new(Schema::new(vec![path, Field::new("n", DataType::Int64, true)])),
        primary_key: vec![],
        partition_keys: vec![],
        options: Default::default(),
        time_zone: "UTC".into(),
    };
    let sink =
        open_sink(&spec, &mut Options::new("t", Default::default()), dir.path().into(), "csv").unwrap();
    assert_eq!(sink.schema().fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["n"]);
}

#[test]
fn updates_and_files_in_the_way_are_refused() {
    let table = table();
    let updates = ChangelogBatch::with_kinds(rows(&[(1, "a")]), vec![RowKind::Delete]);
    assert_eq!(table.writer(1).write(&updates).unwrap_err().kind(), ErrorKind::Internal);
    std::fs::write(table.folder(), "a file").unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    let context = SinkContext { job: "j".into(), generation: 1, index: 0, parallelism: 1, clock };
    assert!(table.sink.open(context).map(drop).unwrap_err().message().contains("is a file"));
    table.sink.abort_dangling("j-1", &[]).unwrap();
}

#[test]
fn output_of_later_checkpoints_is_told() {
    for (format, keys) in [("csv", &["s"][..]), ("debezium-json", &[])] {
        let table = table_with(format, keys, &[]);
        let mut writer = table.writer(7);
        for checkpoint in [3, 12] {
            write(&mut *writer, &[(1, "a")]);
            let owed = writer.pre_commit(CheckpointId(checkpoint)).unwrap().run().unwrap();
            table.sink.commit(&owed).unwrap();
        }
        let after = |job, checkpoint| table.sink.committed_after(job, CheckpointId(checkpoint)).unwrap();
        assert!(after("j-1", 3).is_some_and(|file| file.contains("12")), "{:?}", table.files());
        assert_eq!((after("j-1", 12), after("j", 3)), (None, None), "of none, of another job");
    }
}

#[test]
fn a_part_that_is_owed_elsewhere_is_committed_there() {
    let (table, other) = (table(), table());
    let mut writer = table.writer(1);
    write(&mut *writer, &[(1, "a")]);
    let owed = prepare(&mut *writer);
    other.sink.commit(&owed).unwrap();
    assert_eq!((table.visible(), other.files()), (vec!["1,a".into()], vec![]));
    let moved = TempDir::new().unwrap();
    std::fs::rename(table.folder(), moved.path().join("out")).unwrap();
    let sink = sink_in(&moved.path().join("out"), "csv", &[], &[]).unwrap();
    sink.commit(&owed).unwrap();
    assert_eq!(table.sink.commit(&owed).unwrap_err().kind(), ErrorKind::Corrupt);
}
