//! Savepoints: a checkpoint as a folder that needs nothing else, and that belongs to the user.
//!
//! ```text
//! <folder>/metadata.json                                  as of a checkpoint, kind "savepoint"
//! <folder>/op=<uid>/table=<name>/base-<task>-<checkpoint>-<generation>.parquet
//! ```
//!
//!  1. Its parts are bases with their live rows only; nothing refers out of the folder, so it can be
//!     moved and copied.
//!  2. The metadata is written last: a folder without it is no savepoint.
//!  3. Nothing here ever removes one.
//!
//! [`Snapshot`] reads a savepoint's folder and, the same way, the folder of a checkpoint where it
//! lies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use millpond_core::{Error, KeyGroupRange, OperatorUid, Result};

use crate::files::{self, PartName};
use crate::snapshot::{self, PartRows};
use crate::store::{CheckpointMetadata, FileHandle, StateStore, TablePart, Verify, part_list};
use crate::table::{Delta, TableDef};
use crate::{metadata, reader};

/// The tables of a checkpoint by operator and name.
pub type TableDefs = BTreeMap<(OperatorUid, String), TableDef>;

/// A savepoint that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavepointReport {
    /// Its folder.
    pub folder: PathBuf,
    /// The checkpoint that it holds.
    pub checkpoint: millpond_core::CheckpointId,
    /// Bytes of its files.
    pub bytes: u64,
    /// Rows in them.
    pub rows: u64,
}

/// Bytes of all files that a checkpoint refers to.
pub fn bytes_of(metadata: &CheckpointMetadata) -> u64 {
    metadata::files_of(metadata).map(|file| file.bytes).sum()
}

/// Rows of all parts that a checkpoint refers to, deletes included.
pub fn rows_of(metadata: &CheckpointMetadata) -> u64 {
    let tables = metadata.operators.values().flat_map(|operator| operator.tables.values());
    tables.flat_map(|table| table.parts.values().flatten()).map(|part| part.rows).sum()
}

/// Checks that a savepoint can be written into a folder: it can be made, and is empty.
///
/// Errors: *Invalid* when something is in it, *Unavailable* when it cannot be made.
pub fn prepare_savepoint(folder: &Path) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::invalid(format!("{folder:?} is a file, and a savepoint needs a folder")));
    }
    if !files::names(folder)?.is_empty() {
        return Err(Error::invalid(format!("the folder {folder:?} is not empty"))
            .with_hint("a savepoint needs a folder of its own"));
    }
    files::ensure_folder(folder)
}

/// Writes a completed checkpoint of a store as a savepoint. What a failed try has written is
/// removed.
pub fn write_savepoint(
    store: &dyn StateStore,
    checkpoint: &CheckpointMetadata,
    defs: &TableDefs,
    folder: &Path,
) -> Result<SavepointReport> {
    prepare_savepoint(folder)?;
    let mut writer = Writer { store, checkpoint, folder, written: Vec::new() };
    let written = writer.write(defs);
    if written.is_err() {
        for path in &writer.written {
            files::discard(path);
        }
    }
    written.map_err(|error| error.context(format!("savepoint {}", folder.display())))
}

struct Writer<'a> {
    store: &'a dyn StateStore,
    checkpoint: &'a CheckpointMetadata,
    folder: &'a Path,
    written: Vec<PathBuf>,
}

impl Writer<'_> {
    fn write(&mut self, defs: &TableDefs) -> Result<SavepointReport> {
        let mut metadata = CheckpointMetadata {
            kind: "savepoint".into(),
            native: None,
            finished: false,
            ..self.checkpoint.clone()
        };
        for (uid, operator) in &mut metadata.operators {
            for (name, table) in &mut operator.tables {
                let def = defs.get(&(uid.clone(), name.clone())).ok_or_else(|| {
                    Error::internal(format!("state table {name:?} of operator {uid} has no definition"))
                })?;
                let tasks = table.parts.len();
                for (task, parts) in &mut table.parts {
                    *parts = self.write_task(uid, def, *task, tasks)?.into_iter().collect();
                }
            }
        }
        let text = metadata::seal(&metadata)?;
        let path = self.folder.join(metadata::FILE);
        files::write_durably(&path, |file| {
            std::io::Write::write_all(file, text.as_bytes())
                .map_err(|e| Error::io(format!("write {path:?}"), &e))
        })?;
        Ok(SavepointReport {
            folder: self.folder.to_path_buf(),
            checkpoint: metadata.checkpoint,
            bytes: bytes_of(&metadata),
            rows: rows_of(&metadata),
        })
    }

    /// The live rows of a task's key groups as one base; none if there are none.
    fn write_task(
        &mut self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        tasks: usize,
    ) -> Result<Option<TablePart>> {
        let max_parallelism = self.checkpoint.max_parallelism;
        let range = KeyGroupRange::of_task(task, tasks, max_parallelism);
        let batches = self.store.read_table(self.checkpoint, uid, def, range)?;
        let upserts = arrow::compute::concat_batches(&def.schema, &batches)?;
        let identity: Vec<usize> = (0..def.identity_columns).collect();
        let deletes = upserts.slice(0, 0).project(&identity)?;
        let delta = Delta { upserts, deletes, expired_through: None };
        let rows = PartRows::from_delta(def, max_parallelism, &delta, true)?;
        let rows = snapshot::restrict(rows, range);
        if rows.rows() == 0 {
            return Ok(None);
        }
        let (checkpoint, generation) = (self.checkpoint.checkpoint, self.checkpoint.generation);
        let name = PartName { base: true, task, checkpoint, generation };
        let path = files::savepoint_part_path(uid, &def.name, name);
        let notes = [
            ("uid", uid.to_string()),
            ("table", def.name.clone()),
            ("task", task.to_string()),
            ("checkpoint", checkpoint.to_string()),
        ];
        let full = self.folder.join(&path);
        let checked = snapshot::write_part(&full, def, &rows, &notes)?;
        self.written.push(full);
        let file = FileHandle { path, bytes: checked.bytes, crc32c: files::hexadecimal(checked.crc32c) };
        Ok(Some(part_list::part_of(def, &rows, checkpoint, Some(file))))
    }
}

/// A savepoint, or a checkpoint where it lies: read only, from outside its job.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What the paths in the metadata are relative to.
    root: PathBuf,
    metadata: CheckpointMetadata,
}

impl Snapshot {
    /// Opens the folder of a savepoint or checkpoint, or a job's folder: then its newest checkpoint.
    ///
    /// Errors: *Invalid* when there is none, *Corrupt* when its metadata is damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        let metadata = match metadata::read_any(folder)? {
            Some(metadata) => metadata,
            None => return Self::newest_of_job(folder),
        };
        let root = match metadata.kind.as_str() {
            "savepoint" => folder.to_path_buf(),
            _ => folder.parent().map(Path::to_path_buf).unwrap_or_default(),
        };
        Ok(Self { root, metadata })
    }

    fn newest_of_job(folder: &Path) -> Result<Self> {
        let newest = reader::SnapshotReader::new(folder).checkpoints()?.into_iter().next();
        match newest {
            Some(metadata) => Ok(Self { root: folder.to_path_buf(), metadata }),
            None => Err(Error::invalid(format!("{folder:?} holds no savepoint and no checkpoint"))
                .with_hint("name the folder in which metadata.json lies")),
        }
    }

    /// What the snapshot says of itself.
    pub fn metadata(&self) -> &CheckpointMetadata {
        &self.metadata
    }

    /// Checks every file.
    ///
    /// Errors: *Corrupt*, naming the first damaged one.
    pub fn verify(&self, verify: Verify) -> Result<()> {
        metadata::files_of(&self.metadata).try_for_each(|file| match verify {
            Verify::Size => files::check_size(&self.root, file),
            Verify::Crc => files::read_checked(&self.root, file).map(drop),
        })
    }

    /// The damaged files with what is wrong, all of them.
    pub fn damages(&self) -> Vec<Error> {
        metadata::files_of(&self.metadata)
            .filter_map(|file| files::read_checked(&self.root, file).err())
            .collect()
    }

    /// The live rows of a table by its name alone, with the columns that its files have; `None` for
    /// a table that never held a row.
    pub fn rows(&self, uid: &OperatorUid, table: &str) -> Result<Option<reader::SnapshotRows>> {
        reader::SnapshotReader::new(&self.root).rows(&self.metadata, uid, table)
    }

    /// The live rows of a table that lie in `range`.
    ///
    /// Errors: as of [`StateStore::read_table`].
    pub fn read_table(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        self.read_as(&self.metadata, uid, def, range)
    }

    /// As [`Snapshot::read_table`], by metadata in which operators have other names.
    pub fn read_as(
        &self,
        metadata: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        let operator = metadata.operators.get(uid);
        let Some(table) = operator.and_then(|operator| operator.tables.get(&def.name)) else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::new();
        for parts in table.parts.values() {
            let parts = part_list::from_base(parts).iter();
            let parts = parts.map(|part| self.read_part(part, def, range)).collect::<Result<Vec<_>>>()?;
            rows.extend(snapshot::fold(def, &parts, true, Some(range))?.table_batches(def)?);
        }
        Ok(rows)
    }

    fn read_part(&self, part: &TablePart, def: &TableDef, range: KeyGroupRange) -> Result<PartRows> {
        let touched = part.key_groups.is_none_or(|groups| snapshot::intersects(groups, range));
        let batches = match &part.file {
            Some(file) if touched => snapshot::read_part(def, files::read_checked(&self.root, file)?, range)?,
            Some(_) | None => Vec::new(),
        };
        Ok(PartRows { batches, base: part.base, expired_through: part.expired_through })
    }
}
