//! Checkpoints elsewhere: a store whose files also lie on an object store, which is the truth.
//!
//! The job's folder is a copy. A part goes up before it is acknowledged; the metadata goes up last,
//! and only if there is none of that number: that is the commit point. What is there but not here
//! is fetched when the store is opened, so a job goes on on a machine that has nothing of it.
//!
//! ```text
//! generation/<n>                     one per start, put if absent: the fence
//! chk-42/metadata.json               put if absent: the checkpoint exists iff this does
//! shared/op=<uid>/table=<name>/…     as in the job's folder
//! ```
//!
//!  1. Everything that metadata up there names is up there.
//!  2. A checkpoint that is here and not there never came to be: it is removed when the store opens.
//!  3. Metadata goes before the files that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use millpond_core::{CheckpointId, Error, ErrorKind, KeyGroupRange, OperatorUid, Result};

use super::tables::lock;
use super::{CheckpointMetadata, StateStore, StoreOptions, StoredCheckpoint, TablePart, Verify, open_store};
use crate::files::{self, Fence};
use crate::metadata;
use crate::table::{Delta, TableDef};

/// Files on another machine, below one folder.
pub trait RemoteFiles: Send + Sync + std::fmt::Debug {
    /// Writes a file, also over another one.
    fn put(&self, name: &str, content: Vec<u8>) -> Result<()>;
    /// Writes a file that is not there yet; whether it was not.
    fn create(&self, name: &str, content: Vec<u8>) -> Result<bool>;
    /// Reads a file.
    fn get(&self, name: &str) -> Result<Vec<u8>>;
    /// Names of all files below the folder.
    fn list(&self) -> Result<Vec<String>>;
    /// Removes a file.
    fn delete(&self, name: &str) -> Result<()>;
}

/// A store with a copy elsewhere.
#[derive(Debug)]
pub struct RemoteStore {
    local: Arc<dyn StateStore>,
    folder: PathBuf,
    remote: Arc<dyn RemoteFiles>,
    /// Files that are up there.
    known: Mutex<BTreeSet<String>>,
}

const GENERATIONS: &str = "generation/";

fn generation_name(generation: u64) -> String {
    format!("{GENERATIONS}{generation:020}")
}

fn newest_generation<'a>(names: impl IntoIterator<Item = &'a String>) -> u64 {
    let number = |name: &'a String| name.strip_prefix(GENERATIONS)?.parse::<u64>().ok();
    names.into_iter().filter_map(number).max().unwrap_or(0)
}

fn metadata_name(checkpoint: CheckpointId) -> String {
    format!("{}/{}", files::checkpoint_folder(checkpoint), metadata::FILE)
}

/// Which checkpoint a name of [`metadata_name`] is of.
fn checkpoint_of(name: &str) -> Option<CheckpointId> {
    let (folder, file) = name.split_once('/')?;
    (file == metadata::FILE).then(|| files::parse_checkpoint_folder(folder)).flatten()
}

impl RemoteStore {
    /// Opens the store of a job whose truth is elsewhere.
    ///
    /// Errors: *Unavailable* when the object store does not answer or another start has come
    /// between, *Corrupt* when a file that metadata names is not there.
    pub fn open(options: &StoreOptions, remote: Arc<dyn RemoteFiles>) -> Result<Self> {
        let folder =
            options.dir.clone().ok_or_else(|| Error::internal("a copy of the state needs a folder"))?;
        files::ensure_folder(&folder)?;
        // First the fence: what an older start commits after it is taken back by that start.
        let generation = claim(&folder, remote.as_ref(), 0)?;
        let known: BTreeSet<String> = remote.list()?.into_iter().collect();
        fetch(&folder, remote.as_ref(), &known, generation)?;
        let local = open_store(options)?;
        if local.generation() != generation {
            return Err(Error::internal("the copy of the state counts its starts otherwise"));
        }
        let store = Self { local, folder, remote, known: Mutex::new(known) };
        store.forget_older_starts()?;
        Ok(store)
    }

    fn forget_older_starts(&self) -> Result<()> {
        let own = generation_name(self.local.generation());
        let mut known = lock(&self.known);
        let is_older = |name: &&String| name.starts_with(GENERATIONS) && **name < own;
        let older: Vec<String> = known.iter().filter(is_older).cloned().collect();
        for name in older {
            self.remote.delete(&name)?;
            known.remove(&name);
        }
        known.insert(own);
        Ok(())
    }

    /// Writes metadata that must not be there. An answer may be lost: what is there then decides.
    fn create(&self, name: &str, content: &[u8]) -> Result<()> {
        let is_ours = || self.remote.get(name).is_ok_and(|there| there == content);
        // Whether it is there or not: when it is not here it goes with what is not needed.
        lock(&self.known).insert(name.into());
        match self.remote.create(name, content.to_vec()) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) if is_ours() => Ok(()),
            Ok(false) => Err(Error::unavailable(format!("{name} is there already"))
                .with_hint("run one job per place of checkpoints")),
            Err(error) => Err(error),
        }
    }

    /// Another start must not be overwritten.
    fn check_fence(&self) -> Result<()> {
        let newest = newest_generation(&self.remote.list()?);
        if newest == self.local.generation() { Ok(()) } else { Err(taken_over()) }
    }

    fn upload(&self, path: &str) -> Result<()> {
        if lock(&self.known).contains(path) {
            return Ok(());
        }
        let full = self.folder.join(path);
        let content = std::fs::read(&full).map_err(|error| files::read_failure(&full, &error))?;
        self.remote.put(path, content)?;
        lock(&self.known).insert(path.into());
        Ok(())
    }

    /// Removes up there what is no longer here: metadata first.
    fn sweep(&self) -> Result<()> {
        let known = lock(&self.known).clone();
        let gone = |name: &&String| !name.starts_with(GENERATIONS) && !self.folder.join(name).exists();
        let (metadata, others): (Vec<&String>, Vec<&String>) =
            known.iter().filter(gone).partition(|name| checkpoint_of(name).is_some());
        for name in metadata.into_iter().chain(others) {
            self.remote.delete(name)?;
            lock(&self.known).remove(name);
        }
        Ok(())
    }
}

fn taken_over() -> Error {
    Error::unavailable("another start of this job has taken over elsewhere")
        .with_hint("run one job per place of checkpoints")
}

/// Makes this start the newest one, behind all that are known here and there; gives its number.
fn claim(folder: &Path, remote: &dyn RemoteFiles, at_least: u64) -> Result<u64> {
    let nothing = Fence { generation: 0, last_checkpoint: CheckpointId(0), completed: CheckpointId(0) };
    let here = match at_least {
        0 => Fence::read(folder, nothing)?.generation,
        known => known,
    };
    let generation = here.max(newest_generation(&remote.list()?)) + 1;
    match remote.create(&generation_name(generation), Vec::new())? {
        true => Ok(generation),
        false => Err(taken_over()),
    }
}

/// Makes the folder a copy of what is elsewhere. A checkpoint that cannot be fetched whole is left
/// out: the store goes on from the one before, or refuses.
fn fetch(folder: &Path, remote: &dyn RemoteFiles, known: &BTreeSet<String>, generation: u64) -> Result<()> {
    for name in files::names(folder)? {
        let Some(checkpoint) = files::parse_checkpoint_folder(&name) else { continue };
        if !known.contains(&metadata_name(checkpoint)) {
            metadata::remove(&folder.join(name))?;
        }
    }
    let mut newest = CheckpointId(0);
    for (name, checkpoint) in known.iter().filter_map(|name| Some((name, checkpoint_of(name)?))) {
        newest = newest.max(checkpoint);
        let chk = folder.join(files::checkpoint_folder(checkpoint));
        if chk.join(metadata::FILE).exists() {
            continue;
        }
        match fetch_checkpoint(folder, &chk, remote, name) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(%error, %checkpoint, "a checkpoint is not whole where it was kept");
            }
            fetched => fetched?,
        }
    }
    let seen = Fence { generation: 0, last_checkpoint: newest, completed: newest };
    let fence = Fence::read(folder, seen)?;
    Fence { generation: generation - 1, ..fence }.write(folder)?;
    Ok(())
}

/// Fetches the files of a checkpoint, then its metadata: it exists when that is there. Damaged
/// metadata is fetched alone, for the store to find.
fn fetch_checkpoint(root: &Path, chk: &Path, remote: &dyn RemoteFiles, name: &str) -> Result<()> {
    let content = remote.get(name)?;
    if let Ok(fetched) = metadata::decode(&content) {
        for file in metadata::files_of(&fetched) {
            if files::check_size(root, file).is_err() {
                let full = root.join(&file.path);
                full.parent().map_or(Ok(()), files::ensure_folder)?;
                write(&full, &remote.get(&file.path)?)?;
            }
        }
    }
    files::ensure_folder(chk)?;
    write(&chk.join(metadata::FILE), &content)
}

/// Fetches a snapshot: a savepoint (`place` is empty), one checkpoint of a job (`chk-42`), or the
/// newest one of a job. Gives the folder in which its metadata lies.
///
/// Errors: *Invalid* when there is none.
pub fn fetch_snapshot(remote: &dyn RemoteFiles, place: &str, into: &Path) -> Result<PathBuf> {
    let names = remote.list()?;
    let newest = || names.iter().filter_map(|name| checkpoint_of(name)).max().map(files::checkpoint_folder);
    let folder = match place {
        "" if names.iter().any(|name| name == metadata::FILE) => String::new(),
        "" => newest().ok_or_else(|| {
            Error::invalid("there is no savepoint and no checkpoint")
                .with_hint("name the folder in which metadata.json lies")
        })?,
        chk => chk.into(),
    };
    let (chk, name) = match folder.as_str() {
        "" => (into.to_path_buf(), metadata::FILE.to_string()),
        folder => (into.join(folder), format!("{folder}/{}", metadata::FILE)),
    };
    if !names.contains(&name) {
        return Err(Error::invalid(format!("there is no {name}")));
    }
    files::ensure_folder(into)?;
    fetch_checkpoint(into, &chk, remote, &name)?;
    Ok(chk)
}

/// Sends a savepoint's folder away, its metadata last.
///
/// Errors: *Invalid* when another one is there.
pub fn send_snapshot(folder: &Path, remote: &dyn RemoteFiles) -> Result<()> {
    let mut found = Vec::new();
    collect(folder, folder, &mut found)?;
    for name in found.iter().filter(|name| *name != metadata::FILE) {
        let full = folder.join(name);
        let content = std::fs::read(&full).map_err(|error| files::read_failure(&full, &error))?;
        remote.put(name, content)?;
    }
    let path = folder.join(metadata::FILE);
    let content = std::fs::read(&path).map_err(|error| files::read_failure(&path, &error))?;
    match remote.create(metadata::FILE, content)? {
        true => Ok(()),
        false => {
            Err(Error::invalid("a savepoint is there already")
                .with_hint("a savepoint needs a folder of its own"))
        }
    }
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for name in files::names(folder)? {
        let path = folder.join(name);
        if path.is_dir() {
            collect(root, &path, found)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            found.push(relative.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    files::write_durably(path, |file| {
        std::io::Write::write_all(file, content).map_err(|e| Error::io(format!("write {path:?}"), &e))
    })
    .map(drop)
}

impl StateStore for RemoteStore {
    fn generation(&self) -> u64 {
        self.local.generation()
    }
    fn next_generation(&self) -> Result<u64> {
        self.check_fence()?;
        let generation = self.local.next_generation()?;
        if claim(&self.folder, self.remote.as_ref(), generation - 1)? != generation {
            return Err(taken_over());
        }
        self.forget_older_starts()?;
        Ok(generation)
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        self.local.last_checkpoint_id()
    }
    fn newest_completed(&self) -> CheckpointId {
        self.local.newest_completed()
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
        let parts = self.local.write_delta(uid, def, task, checkpoint, max_parallelism, delta, base)?;
        for file in parts.iter().filter_map(|part| part.file.as_ref()) {
            self.upload(&file.path)?;
        }
        Ok(parts)
    }
    fn link_native(&self, checkpoint: CheckpointId) -> Result<Option<String>> {
        self.local.link_native(checkpoint)
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        for file in metadata::files_of(metadata) {
            self.upload(&file.path)?;
        }
        self.check_fence()?;
        let portable = CheckpointMetadata { native: None, ..metadata.clone() };
        let name = metadata_name(metadata.checkpoint);
        self.create(&name, metadata::seal(&portable)?.as_bytes())?;
        // A start that has claimed the job meanwhile may not have seen it: nothing may follow from it.
        if let Err(error) = self.check_fence() {
            self.remote.delete(&name)?;
            return Err(error);
        }
        self.local.commit(metadata)
    }
    fn retain(&self, retained: usize) -> Result<()> {
        self.local.retain(retained)?;
        self.sweep()
    }
    fn abort(&self, checkpoint: CheckpointId) -> Result<()> {
        self.local.abort(checkpoint)
    }
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>> {
        self.local.checkpoints(verify)
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        self.local.read_table(checkpoint, uid, def, range)
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        self.local.continue_from(checkpoint, tasks)
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        self.local.needs_base(uid, table, task)
    }
}
