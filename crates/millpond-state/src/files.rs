//! Files of a job's folder: durable writes, names, the lock and the generation fence.
//!
//! A file is written beside its place, synced, renamed into it, and then the folder is synced;
//! length and CRC32C are computed on the way. A name that is not ours is never touched.
//!
//!  1. A file under its final name is complete and durable.
//!  2. After a failed sync a file is given up: syncing again may "succeed" without the data.
//!  3. One process holds a folder (`LOCK`), and each start has a new number (`GENERATION`).

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use millpond_core::{CheckpointId, Error, OperatorUid, Result};

use crate::store::FileHandle;

/// What was written: length and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
}

/// A file that counts and sums what passes.
pub(crate) struct CheckedWriter {
    file: BufWriter<File>,
    checked: Checked,
}

impl Write for CheckedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.checked.crc32c = crc32c::crc32c_append(self.checked.crc32c, &bytes[..written]);
        self.checked.bytes += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file durably under its final name (invariants 1, 2); what `fill` has written so far
/// is removed when it fails.
pub(crate) fn write_durably(
    path: &Path,
    fill: impl FnOnce(&mut CheckedWriter) -> Result<()>,
) -> Result<Checked> {
    let folder = path.parent().ok_or_else(|| Error::internal(format!("{path:?} has no folder")))?;
    ensure_folder(folder)?;
    let temporary = temporary_name(path);
    let written = fill_and_sync(&temporary, fill).and_then(|checked| {
        fs::rename(&temporary, path).map_err(|e| Error::io(format!("rename {temporary:?}"), &e))?;
        Ok(checked)
    });
    match written.and_then(|checked| sync_folder(folder).map(|()| checked)) {
        Ok(checked) => Ok(checked),
        Err(error) => {
            discard(&temporary);
            Err(error)
        }
    }
}

fn fill_and_sync(path: &Path, fill: impl FnOnce(&mut CheckedWriter) -> Result<()>) -> Result<Checked> {
    let failed = |e: io::Error| Error::io(format!("write {path:?}"), &e);
    let file = BufWriter::with_capacity(1 << 16, File::create(path).map_err(failed)?);
    let mut writer = CheckedWriter { file, checked: Checked { bytes: 0, crc32c: 0 } };
    fill(&mut writer)?;
    writer.flush().map_err(failed)?;
    writer.file.get_ref().sync_all().map_err(failed)?;
    Ok(writer.checked)
}

/// Where a file is written before it gets its name.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Removes a file that is of no use; when that fails, the next open collects it.
pub(crate) fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(?path, %error, "a file that is no longer needed stays for now");
    }
}

/// Makes a folder and those above it, durably.
pub(crate) fn ensure_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        ensure_folder(parent)?;
    }
    match fs::create_dir(path) {
        Ok(()) => parent.map_or(Ok(()), sync_folder),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(Error::io(format!("create folder {path:?}"), &error)),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| Error::io(format!("sync folder {path:?}"), &e))
}

/// Renames durably.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(format!("rename {from:?}"), &e))?;
    to.parent().map_or(Ok(()), sync_folder)
}

/// The names in a folder, sorted; none if there is no such folder.
pub(crate) fn names(path: &Path) -> Result<Vec<String>> {
    let failed = |e: io::Error| Error::io(format!("list folder {path:?}"), &e);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is not UTF-8 is not ours.
        names.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a file as it was written, or says how it is damaged.
///
/// Errors: *Corrupt* when it is missing or changed, *Unavailable* when it cannot be read now.
pub(crate) fn read_checked(folder: &Path, handle: &FileHandle) -> Result<Bytes> {
    let path = resolve(folder, handle)?;
    let content = fs::read(&path).map_err(|error| read_failure(&path, &error))?;
    check_length(handle, content.len() as u64)?;
    let crc32c = hexadecimal(crc32c::crc32c(&content));
    if crc32c != handle.crc32c {
        return Err(Error::corrupt(format!("file {:?} is damaged", handle.path))
            .with_detail(format!("its CRC32C is {crc32c} and should be {}", handle.crc32c)));
    }
    Ok(content.into())
}

/// Checks that a file is there and has its length.
pub(crate) fn check_size(folder: &Path, handle: &FileHandle) -> Result<()> {
    let path = resolve(folder, handle)?;
    let metadata = fs::metadata(&path).map_err(|error| read_failure(&path, &error))?;
    if !metadata.is_file() {
        return Err(Error::corrupt(format!("{:?} is not a file", handle.path)));
    }
    check_length(handle, metadata.len())
}

fn check_length(handle: &FileHandle, bytes: u64) -> Result<()> {
    if bytes == handle.bytes {
        return Ok(());
    }
    Err(Error::corrupt(format!("file {:?} has {bytes} bytes instead of {}", handle.path, handle.bytes)))
}

/// A path that leads out of the job's folder cannot be ours.
fn resolve(folder: &Path, handle: &FileHandle) -> Result<PathBuf> {
    let path = Path::new(&handle.path);
    if path.components().all(|component| matches!(component, Component::Normal(_))) {
        return Ok(folder.join(path));
    }
    Err(Error::corrupt(format!("file {:?} does not lie in the job's folder", handle.path)))
}

/// A file that is gone, or on a bad sector, is damage; anything else may pass.
pub(crate) fn read_failure(path: &Path, error: &io::Error) -> Error {
    const EIO: i32 = 5;
    let kinds = [
        io::ErrorKind::NotFound,
        io::ErrorKind::NotADirectory,
        io::ErrorKind::IsADirectory,
        io::ErrorKind::UnexpectedEof,
    ];
    if kinds.contains(&error.kind()) || error.raw_os_error() == Some(EIO) {
        return Error::corrupt(format!("file {path:?} cannot be read: {error}"));
    }
    Error::io(format!("read {path:?}"), error)
}

/// A checksum as text.
pub(crate) fn hexadecimal(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

/// The name of a part: `<delta|base>-<task>-<checkpoint>-<generation>.parquet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartName {
    pub(crate) base: bool,
    pub(crate) task: usize,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) generation: u64,
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.base { "base" } else { "delta" };
        write!(f, "{kind}-{}-{}-{}.parquet", self.task, self.checkpoint, self.generation)
    }
}

impl PartName {
    /// Reads a name back; `None` when it is not one of ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut fields = name.strip_suffix(".parquet")?.split('-');
        let base = match fields.next()? {
            "base" => true,
            "delta" => false,
            _ => return None,
        };
        let task = fields.next()?.parse().ok()?;
        let checkpoint = CheckpointId(fields.next()?.parse().ok()?);
        let generation = fields.next()?.parse().ok()?;
        let parsed = Self { base, task, checkpoint, generation };
        (fields.next().is_none() && parsed.to_string() == name).then_some(parsed)
    }
}

/// Where a part lies below the job's folder.
pub(crate) fn part_path(uid: &OperatorUid, table: &str, name: PartName) -> String {
    format!("shared/{}/{}/{name}", folder_name("op", &uid.0), folder_name("table", table))
}

/// Where a part lies in a savepoint's folder.
pub(crate) fn savepoint_part_path(uid: &OperatorUid, table: &str, name: PartName) -> String {
    format!("{}/{}/{name}", folder_name("op", &uid.0), folder_name("table", table))
}

/// `<kind>=<name>` with everything but letters, digits, `_`, `-` and `.` as `%XX`; a long name is
/// cut and told apart by its checksum, since a file system allows 255 bytes.
fn folder_name(kind: &str, name: &str) -> String {
    const BYTES_MAX: usize = 180;
    let mut folder = format!("{kind}=");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => folder.push(char::from(byte)),
            other => folder.push_str(&format!("%{other:02X}")),
        }
    }
    if folder.len() > BYTES_MAX {
        folder.truncate(BYTES_MAX);
        folder.push_str(&format!("~{}", hexadecimal(crc32c::crc32c(name.as_bytes()))));
    }
    folder
}

/// The folder of a checkpoint, below the job's folder or `native`.
pub(crate) fn checkpoint_folder(checkpoint: CheckpointId) -> String {
    format!("chk-{checkpoint}")
}

/// Reads a name of [`checkpoint_folder`] back.
pub(crate) fn parse_checkpoint_folder(name: &str) -> Option<CheckpointId> {
    let checkpoint = CheckpointId(name.strip_prefix("chk-")?.parse().ok()?);
    (checkpoint_folder(checkpoint) == name).then_some(checkpoint)
}

/// The exclusive hold on a job's folder; let go when dropped, or by the system when the process
/// dies.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock.
    ///
    /// Errors: *Unavailable* when someone else has it.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join("LOCK");
        let failed = |e: io::Error| Error::io(format!("lock {path:?}"), &e);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(folder, &path)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn in_use(folder: &Path, lock: &Path) -> Error {
    let holder = fs::read_to_string(lock).unwrap_or_default();
    Error::unavailable(format!("state folder {folder:?} is in use"))
        .with_detail(format!("process {holder} holds its LOCK"))
        .with_hint("stop the other process, or choose another folder")
}

/// What must only ever grow: the number of the job's start, and of its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Fence {
    pub(crate) generation: u64,
    pub(crate) last_checkpoint: CheckpointId,
    /// The newest checkpoint that was ever complete.
    #[serde(default)]
    pub(crate) completed: CheckpointId,
}

impl Fence {
    const FILE: &'static str = "GENERATION";
    /// How far a lost fence jumps ahead of everything seen: starts that left no file behind must
    /// not be repeated.
    const JUMP: u64 = 1000;

    /// The fence of the last start; `seen` are the largest numbers found in the folder.
    pub(crate) fn read(folder: &Path, seen: Fence) -> Result<Self> {
        let path = folder.join(Self::FILE);
        let stored = match fs::read(&path) {
            Ok(content) => serde_json::from_slice::<Fence>(&content).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && seen.generation == 0 => Some(seen),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(read_failure(&path, &error)),
        };
        let stored = stored.unwrap_or_else(|| {
            tracing::warn!(?path, "the generation is lost; jumping ahead of every one seen");
            Fence { generation: seen.generation + Self::JUMP, ..seen }
        });
        Ok(Fence {
            generation: stored.generation.max(seen.generation),
            last_checkpoint: stored.last_checkpoint.max(seen.last_checkpoint),
            completed: stored.completed.max(seen.completed),
        })
    }

    /// Makes the fence durable.
    pub(crate) fn write(self, folder: &Path) -> Result<()> {
        let path = folder.join(Self::FILE);
        let text = serde_json::to_vec(&self).map_err(|e| Error::internal(e.to_string()))?;
        write_durably(&path, |file| {
            file.write_all(&text).map_err(|e| Error::io(format!("write {path:?}"), &e))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_read_back_and_others_are_not_ours() {
        let name = PartName { base: true, task: 3, checkpoint: CheckpointId(42), generation: 7 };
        assert_eq!(name.to_string(), "base-3-42-7.parquet");
        assert_eq!(PartName::parse("base-3-42-7.parquet"), Some(name));
        for other in
            ["base-3-42.parquet", "base-03-42-7.parquet", "x-3-42-7.parquet", "base-3-42-7-1.parquet", "a"]
        {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
        assert_eq!(parse_checkpoint_folder("chk-9"), Some(CheckpointId(9)));
        assert_eq!(parse_checkpoint_folder("chk-09"), None);
    }

    #[test]
    fn folder_names_are_safe_and_distinct() {
        assert_eq!(folder_name("op", "../a b"), "op=..%2Fa%20b");
        let (one, two) = (folder_name("op", &"x".repeat(300)), folder_name("op", &"x".repeat(301)));
        assert!(one.len() < 200 && one != two);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let failed = write_durably(&path, |file| {
            file.write_all(b"half").unwrap();
            Err(Error::unavailable("full"))
        });
        assert!(failed.is_err());
        assert_eq!(names(&folder.path().join("a")).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_written_file_is_checked_when_read() {
        let folder = tempfile::tempdir().unwrap();
        let checked = write_durably(&folder.path().join("x"), |file| {
            file.write_all(b"millpond").map_err(|e| Error::io("write", &e))
        })
        .unwrap();
        let handle =
            FileHandle { path: "x".into(), bytes: checked.bytes, crc32c: hexadecimal(checked.crc32c) };
        assert_eq!(&read_checked(folder.path(), &handle).unwrap()[..], b"millpond");
        fs::write(folder.path().join("x"), b"millpind").unwrap();
        assert_eq!(
            read_checked(folder.path(), &handle).unwrap_err().kind(),
            millpond_core::error::ErrorKind::Corrupt
        );
        let outside = FileHandle { path: "../x".into(), ..handle };
        assert_eq!(
            check_size(folder.path(), &outside).unwrap_err().kind(),
            millpond_core::error::ErrorKind::Corrupt
        );
    }

    #[test]
    fn a_lost_fence_jumps_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let none = Fence { generation: 0, last_checkpoint: CheckpointId(0), completed: CheckpointId(0) };
        assert_eq!(Fence::read(folder.path(), none).unwrap(), none);
        let seen = Fence { generation: 4, last_checkpoint: CheckpointId(9), completed: CheckpointId(8) };
        assert_eq!(Fence::read(folder.path(), seen).unwrap().generation, 1004);
        seen.write(folder.path()).unwrap();
        assert_eq!(Fence::read(folder.path(), none).unwrap(), seen);
        fs::write(folder.path().join("GENERATION"), b"{]").unwrap();
        assert_eq!(Fence::read(folder.path(), seen).unwrap().last_checkpoint, CheckpointId(9));
    }
}
