//! Checkpoints as Parquet parts and one metadata file each, in a job's folder.
//!
//! ```text
//! open:    LOCK → read metadata → GENERATION → remove orphans
//! commit:  files are there → chk-N/metadata.json (the commit point) → older ones in progress end
//! retain:  metadata.json → .deleted, folder, native links → then files that nobody needs
//! ```
//!
//!  1. Orphans are collected only from complete knowledge: while damaged metadata cannot be read,
//!     parts of earlier starts stay.
//!  2. The last checkpoint number is durable before the traces of an aborted one are removed.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, Error, ErrorKind, KeyGroupRange, OperatorUid, Result};

use super::ledger::{Kept, Ledger};
use super::tables::{PartStorage, TableAddress, Tables, Write, Written, lock};
use super::{CheckpointMetadata, FileHandle, StateStore, StoredCheckpoint, TablePart, Verify};
use crate::files::{self, Fence, FolderLock, PartName};
use crate::metadata;
use crate::snapshot::{self, PartRows};
use crate::table::{Delta, TableDef};

/// A store in a folder.
#[derive(Debug)]
pub struct FilesystemStore {
    tables: Tables<Folder>,
    /// Guards `GENERATION`, and what is removed together with a new number in it.
    fence: Mutex<Fence>,
    _lock: FolderLock,
}

/// The job's folder.
#[derive(Debug)]
struct Folder(PathBuf);

impl PartStorage for Folder {
    fn write(
        &self,
        address: &TableAddress,
        name: PartName,
        def: &TableDef,
        rows: &PartRows,
    ) -> Result<FileHandle> {
        let path = files::part_path(&address.uid, &address.table, name);
        let notes = [
            ("uid", address.uid.to_string()),
            ("table", address.table.clone()),
            ("task", address.task.to_string()),
            ("checkpoint", name.checkpoint.to_string()),
            ("generation", name.generation.to_string()),
        ];
        let checked = snapshot::write_part(&self.0.join(&path), def, rows, &notes)?;
        Ok(FileHandle { path, bytes: checked.bytes, crc32c: files::hexadecimal(checked.crc32c) })
    }
    fn read(&self, file: &FileHandle, def: &TableDef, range: KeyGroupRange) -> Result<Vec<RecordBatch>> {
        snapshot::read_part(def, files::read_checked(&self.0, file)?, range)
    }
}

impl Folder {
    fn checkpoint(&self, checkpoint: CheckpointId) -> PathBuf {
        self.0.join(files::checkpoint_folder(checkpoint))
    }
    fn native(&self) -> PathBuf {
        self.0.join("native")
    }
    fn checkpoints(&self) -> Result<Vec<CheckpointId>> {
        Ok(files::names(&self.0)?.iter().filter_map(|name| files::parse_checkpoint_folder(name)).collect())
    }

    /// What the checkpoints on disk refer to, and the largest numbers seen.
    fn survey(&self) -> Result<(Ledger, Fence)> {
        let mut ledger = Ledger::default();
        let mut seen = Fence { generation: 0, last_checkpoint: CheckpointId(0), completed: CheckpointId(0) };
        for checkpoint in self.checkpoints()? {
            seen.last_checkpoint = seen.last_checkpoint.max(checkpoint);
            let (kept, generation) = self.survey_checkpoint(checkpoint)?;
            seen.generation = seen.generation.max(generation);
            if let Some(kept) = kept {
                // Also when it is damaged: with GENERATION lost too, nothing else knows of it.
                seen.completed = seen.completed.max(checkpoint);
                ledger.keep(checkpoint, kept);
            }
        }
        for (path, name) in self.parts()? {
            seen.generation = seen.generation.max(name.generation);
            seen.last_checkpoint = seen.last_checkpoint.max(name.checkpoint);
            ledger.found(path);
        }
        let native = files::names(&self.native())?;
        let native = native.iter().filter_map(|name| files::parse_checkpoint_folder(name)).max();
        seen.last_checkpoint = seen.last_checkpoint.max(native.unwrap_or_default());
        Ok((ledger, seen))
    }

    fn survey_checkpoint(&self, checkpoint: CheckpointId) -> Result<(Option<Kept>, u64)> {
        let folder = self.checkpoint(checkpoint);
        match metadata::read(&folder, checkpoint) {
            Ok(Some(metadata)) => return Ok((Some(Kept::of(&metadata)), metadata.generation)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => call_corrupt(&folder, &error)?,
            Err(error) => return Err(error),
        }
        let corrupt = folder.join(metadata::CORRUPT).exists();
        let kept = || Kept { paths: metadata::files_of_corrupt(&folder), savepoint: false, damaged: true };
        Ok((corrupt.then(kept), 0))
    }

    /// Parts of ours, finished ones only; the unfinished are removed on the way.
    fn parts(&self) -> Result<Vec<(String, PartName)>> {
        let mut parts = Vec::new();
        let subfolders = |folder: &Path, prefix: &str| -> Result<Vec<PathBuf>> {
            let names = files::names(folder)?;
            Ok(names.iter().filter(|name| name.starts_with(prefix)).map(|name| folder.join(name)).collect())
        };
        for operator in subfolders(&self.0.join("shared"), "op=")? {
            for table in subfolders(&operator, "table=")? {
                self.parts_of(&table, &mut parts)?;
            }
        }
        Ok(parts)
    }

    fn parts_of(&self, folder: &Path, parts: &mut Vec<(String, PartName)>) -> Result<()> {
        let inside = folder.strip_prefix(&self.0).map_err(|e| Error::internal(e.to_string()))?;
        for name in files::names(folder)? {
            let finished = name.strip_suffix(".tmp").unwrap_or(&name);
            match (PartName::parse(finished), inside.join(&name).to_str()) {
                (Some(part), Some(path)) if finished == name => parts.push((path.to_string(), part)),
                (Some(_), _) => files::discard(&folder.join(&name)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Removes what a checkpoint consists of apart from parts.
    fn remove(&self, checkpoint: CheckpointId) -> Result<()> {
        metadata::remove(&self.checkpoint(checkpoint))?;
        self.remove_native(checkpoint)
    }

    fn remove_native(&self, checkpoint: CheckpointId) -> Result<()> {
        let path = self.native().join(files::checkpoint_folder(checkpoint));
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {path:?}"), &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn call_corrupt(folder: &Path, error: &Error) -> Result<()> {
    tracing::warn!(?folder, %error, "checkpoint is damaged and will not be used; its files are kept");
    metadata::retire(folder, metadata::CORRUPT)
}

impl Kept {
    /// What a checkpoint refers to.
    pub(crate) fn of(metadata: &CheckpointMetadata) -> Self {
        let paths = metadata::files_of(metadata).map(|file| file.path.clone()).collect();
        Self { paths: Some(paths), savepoint: metadata.kind == "savepoint", damaged: false }
    }
}

impl FilesystemStore {
    /// Opens the store of a job in its folder, which is created if need be.
    pub fn open(folder: &Path) -> Result<Self> {
        files::ensure_folder(folder)?;
        let lock = FolderLock::take(folder)?;
        let folder = Folder(folder.to_path_buf());
        let (ledger, seen) = folder.survey()?;
        let fence = Fence::read(&folder.0, seen)?;
        let fence = Fence { generation: fence.generation + 1, ..fence };
        fence.write(&folder.0)?;
        let store = Self { tables: Tables::new(folder, ledger), fence: Mutex::new(fence), _lock: lock };
        store.remove_orphans()?;
        Ok(store)
    }

    fn folder(&self) -> &Folder {
        &self.tables.storage
    }

    /// The job's folder.
    pub(crate) fn path(&self) -> &Path {
        &self.folder().0
    }

    /// What crashed starts left: folders of checkpoints that never came to be, parts, links.
    fn remove_orphans(&self) -> Result<()> {
        for checkpoint in self.folder().checkpoints()? {
            if !self.exists(checkpoint)
                && !self.folder().checkpoint(checkpoint).join(metadata::CORRUPT).exists()
            {
                metadata::remove(&self.folder().checkpoint(checkpoint))?;
            }
        }
        for name in files::names(&self.folder().native())? {
            let checkpoint = files::parse_checkpoint_folder(&name);
            if let Some(orphan) = checkpoint.filter(|checkpoint| !self.exists(*checkpoint)) {
                self.folder().remove_native(orphan)?;
            }
        }
        self.collect();
        Ok(())
    }

    fn exists(&self, checkpoint: CheckpointId) -> bool {
        self.folder().checkpoint(checkpoint).join(metadata::FILE).exists()
    }

    /// Removes the files that nobody needs.
    fn collect(&self) {
        let garbage = self.tables.ledger().take_garbage();
        for path in garbage {
            files::discard(&self.path().join(path));
        }
    }

    /// Notes that a checkpoint number has been used.
    fn saw(&self, checkpoint: CheckpointId) {
        let mut fence = lock(&self.fence);
        fence.last_checkpoint = fence.last_checkpoint.max(checkpoint);
    }

    /// Makes a delta durable; also answers what was new in it.
    #[allow(clippy::too_many_arguments, reason = "as in the trait")]
    pub(crate) fn write_changes(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        max_parallelism: u16,
        delta: &Delta,
        base: bool,
    ) -> Result<Written> {
        self.saw(checkpoint);
        let address = TableAddress { uid: uid.clone(), table: def.name.clone(), task };
        let generation = self.generation();
        self.tables.write(&Write { address, def, checkpoint, generation, max_parallelism }, delta, base)
    }

    fn check(&self, metadata: &CheckpointMetadata) -> Result<()> {
        let refused = |why: String| Err(Error::internal(format!("checkpoint {} {why}", metadata.checkpoint)));
        if metadata.format != metadata::FORMAT {
            return refused(format!("has the format {:?}", metadata.format));
        }
        if metadata.generation != self.generation() {
            return refused(format!("is of start {} and this is {}", metadata.generation, self.generation()));
        }
        let newest = self.tables.ledger().newest();
        if newest.is_some_and(|newest| newest >= metadata.checkpoint) {
            return refused("completes after a newer one".into());
        }
        metadata::files_of(metadata).try_for_each(|file| self.check_file(file))
    }

    /// A lost part cannot be brought back, but its table can be written whole next time.
    fn check_file(&self, file: &FileHandle) -> Result<()> {
        files::check_size(self.path(), file).inspect_err(|_| self.tables.distrust(&file.path))
    }

    fn verified(
        &self,
        checkpoint: CheckpointId,
        verify: Verify,
        known: &mut Verified,
    ) -> Result<Option<StoredCheckpoint>> {
        let Some(metadata) = metadata::read(&self.folder().checkpoint(checkpoint), checkpoint)? else {
            return Ok(None);
        };
        let mut bytes = 0;
        for file in metadata::files_of(&metadata) {
            known.check(self.path(), file, verify)?;
            bytes += file.bytes;
        }
        Ok(Some(StoredCheckpoint { metadata, bytes }))
    }
}

/// Files that were found good: neighbours share most of them.
#[derive(Default)]
struct Verified(HashMap<String, FileHandle>);

impl Verified {
    fn check(&mut self, folder: &Path, file: &FileHandle, verify: Verify) -> Result<()> {
        if self.0.get(&file.path) == Some(file) {
            return Ok(());
        }
        match verify {
            Verify::Size => files::check_size(folder, file)?,
            Verify::Crc => drop(files::read_checked(folder, file)?),
        }
        self.0.insert(file.path.clone(), file.clone());
        Ok(())
    }
}

impl StateStore for FilesystemStore {
    fn generation(&self) -> u64 {
        lock(&self.fence).generation
    }
    fn next_generation(&self) -> Result<u64> {
        let mut fence = lock(&self.fence);
        let next = Fence { generation: fence.generation + 1, ..*fence };
        next.write(self.path())?;
        *fence = next;
        self.tables.continue_from(None, &BTreeMap::new());
        Ok(next.generation)
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        lock(&self.fence).last_checkpoint
    }
    fn newest_completed(&self) -> CheckpointId {
        lock(&self.fence).completed
    }
    fn write_delta(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        max_parallelism: u16,
        delta: Delta,
        base: bool,
    ) -> Result<Vec<TablePart>> {
        Ok(self.write_changes(uid, def, task, checkpoint, max_parallelism, &delta, base)?.parts)
    }
    fn link_native(&self, _checkpoint: CheckpointId) -> Result<Option<String>> {
        Ok(None)
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        self.saw(metadata.checkpoint);
        self.check(metadata)?;
        metadata::write(&self.folder().checkpoint(metadata.checkpoint), metadata)?;
        let mut fence = lock(&self.fence);
        fence.completed = fence.completed.max(metadata.checkpoint);
        fence.write(self.path())?;
        drop(fence);
        self.tables.ledger().commit(metadata.checkpoint, Kept::of(metadata));
        Ok(())
    }
    fn retain(&self, retained: usize) -> Result<()> {
        let surplus = self.tables.ledger().surplus(retained);
        for checkpoint in surplus {
            self.folder().remove(checkpoint)?;
            self.tables.ledger().forget(checkpoint);
        }
        self.collect();
        Ok(())
    }
    fn abort(&self, checkpoint: CheckpointId) -> Result<()> {
        let mut fence = lock(&self.fence);
        fence.last_checkpoint = fence.last_checkpoint.max(checkpoint);
        fence.write(self.path())?;
        self.folder().remove(checkpoint)?;
        drop(fence);
        self.tables.ledger().forget(checkpoint);
        self.collect();
        Ok(())
    }
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>> {
        let mut stored = Vec::new();
        let mut known = Verified::default();
        let mut all = self.folder().checkpoints()?;
        all.sort_unstable_by(|a, b| b.cmp(a));
        for checkpoint in all {
            match self.verified(checkpoint, verify, &mut known) {
                Ok(found) => stored.extend(found),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    call_corrupt(&self.folder().checkpoint(checkpoint), &error)?;
                    self.tables.ledger().damage(checkpoint);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(stored)
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        self.tables.read(checkpoint, uid, def, range)
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        self.tables.continue_from(Some(checkpoint), tasks);
        Ok(())
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        self.tables.needs_base(&TableAddress { uid: uid.clone(), table: table.into(), task })
    }
}
