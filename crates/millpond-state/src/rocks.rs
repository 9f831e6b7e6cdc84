//! RocksDB: the only place that calls it.
//!
//! A delta enters as sorted files that are ingested, never by puts: no log, no memtable, nothing
//! to flush, so that a hard-link checkpoint costs milliseconds.
//!
//! ```text
//! key    kg u16 BE │ table id u16 BE │ [window end i64 BE, sign flipped] │ identity row
//! value  version u8 │ value row
//! ```
//!
//! Rows are Arrow's row encoding, which is not promised to be stable: native files are used only
//! by the version that wrote them, and anything wrong with them means reading Parquet instead.
//! Window ends come before the key, so that one range delete per key group expires windows.
//!
//!  1. The working files are disposable (invariant 10): they start empty, or as hard links of a
//!     checkpoint's.
//!  2. A native checkpoint names its files with their lengths, and small ones with their CRC32C:
//!     a manifest cut at a record's end would else open as an older state. Blocks of sorted files
//!     have checksums of RocksDB's own.
//!  3. A table id is never used again, and its rows are removed when the table goes.

pub(crate) mod spill;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::Field;
use arrow::row::{RowConverter, RowParser, SortField};
use millpond_core::{CheckpointId, Error, KeyGroup, KeyGroupRange, OperatorUid, Result};
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, DB, DBCompactionStyle, DBCompressionType, InfoLogger, IngestExternalFileOptions,
    LogLevel, Options, ReadOptions, SstFileWriter,
};

use crate::files;
use crate::metadata;
use crate::snapshot::{self, Identities, Op, PartRows, ROWS_MAX};
use crate::store::FileHandle;
pub(crate) use crate::table::survives_encoding as holds;
use crate::table::{TableDef, TableKind};

/// Changes with the layout of keys and values, and with the version of Arrow's row encoding.
const ENCODING: &str = concat!("millpond-rocks/1 arrow-row/59 ", env!("CARGO_PKG_VERSION"));
const VALUE_VERSION: u8 = 1;
const TABLES: &str = "tables.json";

/// Which tables a database holds, and its files at a checkpoint.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
struct Directory {
    encoding: String,
    generation: u64,
    checkpoint: CheckpointId,
    next_id: u16,
    tables: Vec<Table>,
    files: Vec<FileHandle>,
}

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Table {
    uid: OperatorUid,
    table: String,
    id: u16,
    columns: Vec<String>,
}

impl Directory {
    fn find(&self, uid: &OperatorUid, def: &TableDef) -> Option<&Table> {
        self.tables.iter().find(|table| table.uid == *uid && table.table == def.name)
    }
    fn id_of(&mut self, uid: &OperatorUid, def: &TableDef) -> Result<u16> {
        if let Some(table) = self.find(uid, def) {
            return Ok(table.id);
        }
        let id = self.next_id;
        // The last id would have no successor to end its range.
        self.next_id = id.checked_add(1).ok_or_else(|| Error::unavailable("RocksDB has no table id left"))?;
        self.tables.push(Table { uid: uid.clone(), table: def.name.clone(), id, columns: columns_of(def) });
        Ok(id)
    }
}

fn columns_of(def: &TableDef) -> Vec<String> {
    def.schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect()
}

/// The working database of a job.
pub(crate) struct Rocks {
    folder: PathBuf,
    db: DB,
    directory: Directory,
    files_written: u64,
}

impl std::fmt::Debug for Rocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rocks").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The rows that enter, and where they meet earlier ones.
pub(crate) struct Ingest<'a> {
    pub(crate) uid: &'a OperatorUid,
    pub(crate) def: &'a TableDef,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) rows: &'a PartRows,
    /// The key groups in which the task may have earlier rows: what a base or an expiry clears.
    pub(crate) groups: &'a BTreeSet<KeyGroup>,
}

impl Rocks {
    /// An empty database below a job's folder.
    pub(crate) fn create(job: &Path) -> Result<Self> {
        let folder = job.join("rocksdb");
        wipe(&folder)?;
        files::ensure_folder(&folder)?;
        Self::open(folder, Directory { encoding: ENCODING.into(), ..Directory::default() })
    }

    fn open(folder: PathBuf, directory: Directory) -> Result<Self> {
        let path = folder.join("db");
        let db = DB::open(&options(), &path).map_err(|e| failure(format!("open {path:?}"), &e))?;
        Ok(Self { folder, db, directory, files_written: 0 })
    }

    /// A database that continues from a native checkpoint, whose files it shares by hard links.
    /// Of tables other than those to `keep` the rows are removed.
    pub(crate) fn continue_from(
        job: &Path,
        native: &Path,
        max_parallelism: u16,
        keep: impl Fn(&OperatorUid, &str) -> bool,
    ) -> Result<Self> {
        let mut directory = read_directory(native)?;
        let folder = job.join("rocksdb");
        wipe(&folder)?;
        let path = folder.join("db");
        files::ensure_folder(&path)?;
        for file in &directory.files {
            share(&native.join(&file.path), &folder.join(&file.path))?;
        }
        let tables = std::mem::take(&mut directory.tables);
        let (kept, gone): (Vec<Table>, Vec<Table>) =
            tables.into_iter().partition(|table| keep(&table.uid, &table.table));
        directory.tables = kept;
        let mut rocks = Self::open(folder, directory)?;
        let groups: BTreeSet<KeyGroup> = (0..max_parallelism).collect();
        let ranges = gone.iter().flat_map(|table| groups.iter().map(|group| whole_table(*group, table.id)));
        rocks.ingest_ranges(ranges.collect())?;
        Ok(rocks)
    }

    /// The newest checkpoint of which it has a delta.
    pub(crate) fn newest(&self) -> CheckpointId {
        self.directory.checkpoint
    }

    /// Takes the rows of a delta, or a base that replaces all.
    pub(crate) fn ingest(&mut self, ingest: &Ingest<'_>) -> Result<()> {
        let id = self.directory.id_of(ingest.uid, ingest.def)?;
        self.directory.checkpoint = self.directory.checkpoint.max(ingest.checkpoint);
        let expired = ingest.rows.expired_through;
        let cleared = ingest.groups.iter().filter_map(|group| {
            if ingest.rows.base {
                Some(whole_table(*group, id))
            } else {
                expired.map(|end| windows(*group, id, end))
            }
        });
        self.ingest_ranges(cleared.collect())?;
        if ingest.rows.rows() == 0 {
            return Ok(());
        }
        self.ingest_file(|writer| write_rows(writer, ingest.def, id, ingest.rows))
    }

    /// Range deletes go in before the rows, as a file of their own: within one file they would
    /// have the same sequence number.
    fn ingest_ranges(&mut self, ranges: Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        self.ingest_file(|writer| {
            ranges.iter().try_for_each(|(start, end)| {
                writer.delete_range(start, end).map_err(|e| failure("delete a range", &e))
            })
        })
    }

    fn ingest_file(&mut self, fill: impl FnOnce(&mut SstFileWriter<'_>) -> Result<()>) -> Result<()> {
        self.files_written += 1;
        let path = self.folder.join(format!("ingest-{}.sst", self.files_written));
        let options = options();
        let mut writer = SstFileWriter::create(&options);
        writer.open(&path).map_err(|e| failure(format!("create {path:?}"), &e))?;
        fill(&mut writer)?;
        writer.finish().map_err(|e| failure(format!("write {path:?}"), &e))?;
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        self.db
            .ingest_external_file_opts(&how, vec![&path])
            .map_err(|e| failure(format!("ingest {path:?}"), &e))?;
        files::discard(&path);
        Ok(())
    }

    /// Hard-links the files into a checkpoint's native folder.
    pub(crate) fn link(&self, target: &Path, checkpoint: CheckpointId, generation: u64) -> Result<()> {
        wipe(target)?;
        files::ensure_folder(target)?;
        let db = target.join("db");
        let what = || format!("link {db:?}");
        let maker = Checkpoint::new(&self.db).map_err(|e| failure(what(), &e))?;
        maker.create_checkpoint(&db).map_err(|e| failure(what(), &e))?;
        let files = files::names(&db)?.into_iter().map(|name| describe(target, &format!("db/{name}")));
        let files = files.collect::<Result<_>>()?;
        let directory = Directory { checkpoint, generation, files, ..self.directory.clone() };
        let text = metadata::seal(&directory)?;
        let path = target.join(TABLES);
        files::write_durably(&path, |file| {
            file.write_all(text.as_bytes()).map_err(|e| Error::io(format!("write {path:?}"), &e))
        })?;
        Ok(())
    }
}

fn wipe(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {folder:?}"), &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Sorted files never change and can be shared; the others are written to when opened.
fn share(from: &Path, to: &Path) -> Result<()> {
    let shared = if is_sorted_file(from) { fs::hard_link(from, to) } else { fs::copy(from, to).map(|_| ()) };
    shared.map_err(|e| Error::io(format!("link {from:?}"), &e))
}

fn is_sorted_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sst")
}

fn describe(native: &Path, path: &str) -> Result<FileHandle> {
    let full = native.join(path);
    let failed = |e: io::Error| Error::io(format!("read {full:?}"), &e);
    if is_sorted_file(&full) {
        let bytes = fs::metadata(&full).map_err(failed)?.len();
        return Ok(FileHandle { path: path.into(), bytes, crc32c: String::new() });
    }
    let content = fs::read(&full).map_err(failed)?;
    let crc32c = files::hexadecimal(crc32c::crc32c(&content));
    Ok(FileHandle { path: path.into(), bytes: content.len() as u64, crc32c })
}

/// Reads what a native checkpoint says of itself, and checks it (invariant 2).
fn read_directory(native: &Path) -> Result<Directory> {
    let path = native.join(TABLES);
    let content = fs::read(&path).map_err(|error| files::read_failure(&path, &error))?;
    let text = metadata::unseal(&content)?;
    let directory: Directory =
        serde_json::from_str(text).map_err(|e| Error::corrupt(format!("{path:?}: {e}")))?;
    if directory.encoding != ENCODING {
        return Err(Error::invalid(format!("{native:?} has the encoding {:?}", directory.encoding)));
    }
    for file in &directory.files {
        if file.crc32c.is_empty() {
            files::check_size(native, file)?;
        } else {
            files::read_checked(native, file)?;
        }
    }
    Ok(directory)
}

fn options() -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    // Half the cost of levels for files that arrive sorted.
    options.set_compaction_style(DBCompactionStyle::Universal);
    options.set_level_zero_file_num_compaction_trigger(8);
    options.set_max_background_jobs(2);
    options.set_max_open_files(512);
    // Nothing is ever put: the memtable stays empty.
    options.set_write_buffer_size(1 << 20);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Warn, |level, message| {
        tracing::debug!(?level, message, "rocksdb");
    }));
    options
}

fn failure(what: impl std::fmt::Display, error: &rocksdb::Error) -> Error {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => Error::corrupt(format!("cannot {what}: {error}")),
        _other => Error::unavailable(format!("cannot {what}: {error}")),
    }
}

fn prefix(group: KeyGroup, id: u16) -> Vec<u8> {
    [group.to_be_bytes(), id.to_be_bytes()].concat()
}

/// A window end as bytes that sort like it.
fn sortable(window_end: i64) -> [u8; 8] {
    ((window_end as u64) ^ (1 << 63)).to_be_bytes()
}

fn from_sortable(bytes: [u8; 8]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)) as i64
}

fn whole_table(group: KeyGroup, id: u16) -> (Vec<u8>, Vec<u8>) {
    (prefix(group, id), prefix(group, id + 1))
}

/// The windows of a table that end at or before `through`.
fn windows(group: KeyGroup, id: u16, through: i64) -> (Vec<u8>, Vec<u8>) {
    let (start, mut end) = whole_table(group, id);
    if let Some(next) = through.checked_add(1) {
        end = prefix(group, id);
        end.extend(sortable(next));
    }
    (start, end)
}

/// How many of the identity columns precede the identity row: the window end.
fn leading(def: &TableDef) -> usize {
    usize::from(def.kind == TableKind::Window)
}

fn write_rows(writer: &mut SstFileWriter<'_>, def: &TableDef, id: u16, rows: &PartRows) -> Result<()> {
    let mut key = Vec::new();
    let mut value = Vec::new();
    for batch in &rows.batches {
        let identities = Identities::encode(&snapshot::identity(def, batch)[leading(def)..])?;
        let values = Identities::encode(snapshot::values(def, batch))?;
        let (groups, ops) = (snapshot::key_groups(batch), snapshot::ops(batch));
        let windows = (def.kind == TableKind::Window).then(|| snapshot::window_ends(batch));
        for row in 0..batch.num_rows() {
            key.clear();
            key.extend(groups.value(row).to_be_bytes());
            key.extend(id.to_be_bytes());
            key.extend(windows.into_iter().flat_map(|ends| sortable(ends.value(row))));
            key.extend(identities.key(row));
            value.clear();
            value.push(VALUE_VERSION);
            value.extend(values.key(row));
            let upsert = ops.value(row) == Op::Upsert as i8;
            let written = if upsert { writer.put(&key, &value) } else { writer.delete(&key) };
            written.map_err(|e| failure("write a row", &e))?;
        }
    }
    Ok(())
}

/// A native checkpoint, opened for reading only.
pub(crate) struct NativeSnapshot {
    db: DB,
    directory: Directory,
}

impl NativeSnapshot {
    /// Opens the native files of a checkpoint.
    pub(crate) fn open(native: &Path, checkpoint: CheckpointId, generation: u64) -> Result<Self> {
        let directory = read_directory(native)?;
        if (directory.checkpoint, directory.generation) != (checkpoint, generation) {
            return Err(Error::corrupt(format!("{native:?} is of another checkpoint")));
        }
        let path = native.join("db");
        let db = DB::open_for_read_only(&options(), &path, false)
            .map_err(|e| failure(format!("open {path:?}"), &e))?;
        Ok(Self { db, directory })
    }

    /// The rows of a table in a range; `None` when the table is not here, or was another one.
    pub(crate) fn read(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Option<Vec<RecordBatch>>> {
        let Some(table) = self.directory.find(uid, def).filter(|table| table.columns == columns_of(def))
        else {
            return Ok(None);
        };
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        let mut rows = self.db.raw_iterator_opt(options);
        let mut decoder = Decoder::new(def)?;
        for group in range.start..range.end {
            let prefix = prefix(group, table.id);
            rows.seek(&prefix);
            while let Some((key, value)) = rows.item().filter(|(key, _)| key.starts_with(&prefix)) {
                decoder.push(&key[prefix.len()..], value)?;
                rows.next();
            }
            rows.status().map_err(|e| failure("read native files", &e))?;
        }
        decoder.finish().map(Some)
    }
}

impl std::fmt::Debug for NativeSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeSnapshot")
            .field("checkpoint", &self.directory.checkpoint)
            .finish_non_exhaustive()
    }
}

/// Turns keys and values back into columns, a batch at a time.
struct Decoder<'a> {
    def: &'a TableDef,
    windows: Vec<i64>,
    identities: Column,
    values: Column,
    rows: usize,
    batches: Vec<RecordBatch>,
}

/// Encoded rows end to end.
struct Column {
    converter: Option<(RowConverter, RowParser)>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Decoder<'a> {
    fn new(def: &'a TableDef) -> Result<Self> {
        let fields = def.schema.fields();
        Ok(Self {
            def,
            windows: Vec::new(),
            identities: Column::new(&fields[leading(def)..def.identity_columns])?,
            values: Column::new(&fields[def.identity_columns..])?,
            rows: 0,
            batches: Vec::new(),
        })
    }

    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut identity = key;
        if self.def.kind == TableKind::Window {
            let (end, rest) =
                key.split_first_chunk::<8>().ok_or_else(|| Error::corrupt("a native key is too short"))?;
            self.windows.push(from_sortable(*end));
            identity = rest;
        }
        let Some((&VALUE_VERSION, value)) = value.split_first() else {
            return Err(Error::corrupt("a native value has another version"));
        };
        self.identities.push(identity);
        self.values.push(value);
        self.rows += 1;
        if self.rows == ROWS_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.def.schema.fields().len());
        if self.def.kind == TableKind::Window {
            columns.push(Arc::new(Int64Array::from(std::mem::take(&mut self.windows))));
        }
        columns.extend(self.identities.take()?);
        columns.extend(self.values.take()?);
        let options = RecordBatchOptions::new().with_row_count(Some(std::mem::take(&mut self.rows)));
        let batch = RecordBatch::try_new_with_options(self.def.schema.clone(), columns, &options);
        self.batches
            .push(batch.map_err(|e| Error::corrupt(format!("native rows do not fit their table: {e}")))?);
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<RecordBatch>> {
        if self.rows > 0 {
            self.flush()?;
        }
        Ok(self.batches)
    }
}

impl Column {
    fn new(fields: &[Arc<Field>]) -> Result<Self> {
        let sort = || fields.iter().map(|field| SortField::new(field.data_type().clone())).collect();
        let converter = if fields.is_empty() { None } else { Some(RowConverter::new(sort())?) };
        let converter = converter.map(|converter| {
            let parser = converter.parser();
            (converter, parser)
        });
        Ok(Self { converter, bytes: Vec::new(), ends: Vec::new() })
    }
    fn push(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        self.ends.push(self.bytes.len());
    }
    fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let slices = starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]);
        let columns = match &self.converter {
            Some((converter, parser)) => converter.convert_rows(slices.map(|bytes| parser.parse(bytes)))?,
            None => Vec::new(),
        };
        self.bytes.clear();
        self.ends.clear();
        Ok(columns)
    }
}
