//! The two phases of a part file: prepare (durable, hidden) and commit (visible), and what is
//! done about the leavings of a crash.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use millpond_core::{ChangelogMode, CheckpointId, Error, Result};
use serde::{Deserialize, Serialize};

use super::part::{FinishedPart, checkpoint_of, is_unfinished_part_of};
use crate::connector::Committable;

/// Partition folders are nested as deep as there are partition columns; deeper trees are not ours.
const FOLDER_DEPTH_MAX: usize = 32;

/// A prepared part. Paths are relative to the sink's folder, which may be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PreparedPart {
    pending: String,
    path: String,
    bytes: u64,
    crc32c: u32,
    /// The sink's folder when it was prepared: a job that is restored with another output still owes
    /// the part there.
    #[serde(default)]
    folder: Option<PathBuf>,
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
pub(super) fn prepare(
    folder: &Path,
    checkpoint: CheckpointId,
    parts: &[FinishedPart],
) -> Result<Vec<Committable>> {
    let home = std::path::absolute(folder).ok();
    let mut prepared = Vec::with_capacity(parts.len());
    for part in parts {
        let from = folder.join(part.place.in_progress());
        let file = File::open(&from).map_err(|error| Error::io(format!("open {from:?}"), &error))?;
        file.sync_all().map_err(|error| Error::io(format!("fsync {from:?}"), &error))?;
        let place = part.place.clone().free(folder, checkpoint);
        let (pending, path) = (place.pending(checkpoint), place.path(checkpoint));
        rename(&from, &folder.join(&pending))?;
        let (bytes, crc32c) = (part.bytes, part.crc32c);
        prepared.push(PreparedPart { pending, path, bytes, crc32c, folder: home.clone() });
    }
    sync_folders(folder, prepared.iter().map(|part| part.path.clone()))?;
    let committable = |part: &PreparedPart| serde_json::to_value(part).map(Committable);
    let json = prepared.iter().map(committable).collect::<serde_json::Result<_>>();
    json.map_err(|error| Error::internal(error.to_string()))
}

/// Gives prepared parts their final names; those that have them already are left alone.
pub(super) fn commit(folder: &Path, committables: &[Committable]) -> Result<()> {
    let parts = committables.iter().map(PreparedPart::of).collect::<Result<Vec<_>>>()?;
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| home_of(part, folder) == folder);
    for part in here.iter().chain(&elsewhere) {
        commit_part(home_of(part, folder), part)?;
    }
    for part in elsewhere {
        let home = home_of(&part, folder).to_path_buf();
        sync_folders(&home, std::iter::once(part.path))?;
    }
    sync_folders(folder, here.into_iter().map(|part| part.path))
}

/// Where a part lies: in the sink's folder, unless that is another one than it was prepared in.
fn home_of<'a>(part: &'a PreparedPart, folder: &'a Path) -> &'a Path {
    let lies_in = |home: &Path| home.join(&part.pending).exists() || home.join(&part.path).exists();
    match &part.folder {
        Some(former) if !lies_in(folder) && lies_in(former) => former,
        Some(_) | None => folder,
    }
}

/// A visible file that `job` has committed with a later checkpoint than this one.
pub(super) fn committed_after(
    folder: &Path,
    job: &str,
    checkpoint: CheckpointId,
    mode: ChangelogMode,
) -> Result<Option<String>> {
    let mut found = None;
    walk(folder, FOLDER_DEPTH_MAX, &mut |path, name| {
        if checkpoint_of(name, job, mode).is_some_and(|of| of > checkpoint) {
            found = found.take().max(Some(path.to_string_lossy().into_owned()));
        }
        Ok(())
    })?;
    Ok(found)
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
    walk(folder, FOLDER_DEPTH_MAX, &mut |path, name| {
        if !keep.contains(path) && is_unfinished_part_of(name, job) {
            std::fs::remove_file(path).map_err(|error| Error::io(format!("remove {path:?}"), &error))?;
        }
        Ok(())
    })
}

/// Calls `see` with path and name of every file in a folder and its partitions.
fn walk(folder: &Path, depth: usize, see: &mut dyn FnMut(&Path, &str) -> Result<()>) -> Result<()> {
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
            walk(&path, depth - 1, see)?;
        } else if kind.is_file()
            && let Some(name) = entry.file_name().to_str()
        {
            see(&path, name)?;
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
