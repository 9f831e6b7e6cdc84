//! The two phases of a part file: prepare (durable, hidden) and commit (visible), and what is
//! done about the leavings of a crash.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use millpond_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::part::{FinishedPart, is_unfinished_part_of};
use crate::connector::Committable;

/// Partition folders are nested as deep as there are partition columns; deeper trees are not ours.
const FOLDER_DEPTH_MAX: usize = 32;

/// A prepared part. Paths are relative to the sink's folder, so that it may be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PreparedPart {
    pending: String,
    path: String,
    bytes: u64,
    crc32c: u32,
}

impl PreparedPart {
    fn of(committable: &Committable) -> Result<Self> {
        Self::deserialize(&committable.0).map_err(|error| {
            Error::corrupt(format!(
                "a filesystem sink cannot read its committable {}: {error}",
                committable.0
            ))
        })
    }
}

/// Makes finished parts durable under their pending names.
pub(super) fn prepare(folder: &Path, parts: &[FinishedPart]) -> Result<Vec<Committable>> {
    let mut prepared = Vec::with_capacity(parts.len());
    for part in parts {
        let (from, pending) = (folder.join(part.place.in_progress()), part.place.pending());
        let file = File::open(&from).map_err(|error| Error::io(format!("open {from:?}"), &error))?;
        file.sync_all().map_err(|error| Error::io(format!("fsync {from:?}"), &error))?;
        rename(&from, &folder.join(&pending))?;
        let part = PreparedPart { pending, path: part.place.path(), bytes: part.bytes, crc32c: part.crc32c };
        let json = serde_json::to_value(&part).map_err(|error| Error::internal(error.to_string()))?;
        prepared.push(Committable(json));
    }
    sync_folders(folder, parts.iter().map(|part| part.place.path()))?;
    Ok(prepared)
}

/// Gives prepared parts their final names; those that have them already are left alone.
pub(super) fn commit(folder: &Path, committables: &[Committable]) -> Result<()> {
    let parts = committables.iter().map(PreparedPart::of).collect::<Result<Vec<_>>>()?;
    for part in &parts {
        commit_part(folder, part)?;
    }
    sync_folders(folder, parts.into_iter().map(|part| part.path))
}

fn commit_part(folder: &Path, part: &PreparedPart) -> Result<()> {
    let (pending, path) = (folder.join(&part.pending), folder.join(&part.path));
    match (length(&pending)?, length(&path)?) {
        (Some(bytes), None) if bytes == part.bytes => rename(&pending, &path),
        (None, Some(bytes)) if bytes == part.bytes => Ok(()),
        (None, None) => {
            Err(Error::corrupt(format!("neither {pending:?} nor {path:?} exists, one of which was prepared"))
                .with_hint("committed files must stay in place until the checkpoint after theirs"))
        }
        (Some(_), Some(_)) => {
            Err(Error::corrupt(format!("{path:?} exists and would be overwritten by {pending:?}")))
        }
        (Some(bytes), None) => Err(wrong_length(&pending, bytes, part.bytes)),
        (None, Some(bytes)) => Err(wrong_length(&path, bytes, part.bytes)),
    }
}

fn wrong_length(path: &Path, bytes: u64, expected: u64) -> Error {
    Error::corrupt(format!("{path:?} has {bytes} bytes, but {expected} were written"))
}

/// Removes the hidden parts of a job, except those whose commit is still owed.
pub(super) fn abort_dangling(folder: &Path, job: &str, keep: &[Committable]) -> Result<()> {
    let keep = keep.iter().map(PreparedPart::of).collect::<Result<Vec<_>>>()?;
    let keep: HashSet<PathBuf> = keep.into_iter().map(|part| folder.join(part.pending)).collect();
    remove_dangling(folder, job, &keep, FOLDER_DEPTH_MAX)
}

fn remove_dangling(folder: &Path, job: &str, keep: &HashSet<PathBuf>, depth: usize) -> Result<()> {
    let cannot = |error: std::io::Error| Error::io(format!("read the folder {folder:?}"), &error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        entries => entries.map_err(cannot)?,
    };
    for entry in entries {
        let entry = entry.map_err(cannot)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(cannot)?;
        if kind.is_dir() && depth > 0 {
            remove_dangling(&path, job, keep, depth - 1)?;
        } else if kind.is_file()
            && !keep.contains(&path)
            && entry.file_name().to_str().is_some_and(|name| is_unfinished_part_of(name, job))
        {
            std::fs::remove_file(&path).map_err(|error| Error::io(format!("remove {path:?}"), &error))?;
        }
    }
    Ok(())
}

fn length(path: &Path) -> Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("look at {path:?}"), &error)),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|error| Error::io(format!("rename {from:?} to {to:?}"), &error))
}

/// Makes renames durable, and the folders that lead to them: each of these may be new.
fn sync_folders(folder: &Path, paths: impl Iterator<Item = String>) -> Result<()> {
    let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
    for path in paths {
        let path = folder.join(path);
        folders.extend(
            path.ancestors().skip(1).take_while(|above| above.starts_with(folder)).map(PathBuf::from),
        );
    }
    if !folders.is_empty() {
        folders.extend(folder.parent().filter(|parent| !parent.as_os_str().is_empty()).map(PathBuf::from));
    }
    for folder in folders {
        let synced = File::open(&folder).and_then(|file| file.sync_all());
        synced.map_err(|error| Error::io(format!("fsync the folder {folder:?}"), &error))?;
    }
    Ok(())
}
