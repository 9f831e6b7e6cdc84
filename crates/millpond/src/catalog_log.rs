//! The catalog log: what exists in a data directory, as checksummed lines that are only appended.
//!
//! Each line is `crc32c json`, durable before the statement is answered. A torn last line (the
//! process died while writing it) is cut off; damage before that is *Corrupt*.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use millpond_core::{Error, JobId, Result};

/// One fact of the log.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CatalogRecord {
    /// The first fact: what tells this data directory from every other.
    Directory { id: String },
    /// `CREATE TABLE` or `CREATE VIEW`, by its text and the settings under which it was bound.
    Create { name: String, text: String, settings: BTreeMap<String, String> },
    /// `DROP TABLE` or `DROP VIEW`.
    Drop { name: String },
    /// An INSERT or STATEMENT SET became a job.
    Job { id: JobId, identity: String, name: String, text: String, settings: BTreeMap<String, String> },
    /// A job has come to its end and is not to be started again.
    JobEnded { id: JobId, how: String },
}

/// The open log; locked so that one process at a time uses the data directory.
#[derive(Debug)]
pub(crate) struct CatalogLog {
    file: File,
    path: PathBuf,
    _lock: File,
}

impl CatalogLog {
    /// Opens or creates the log of a data directory and reads what it says.
    ///
    /// Errors: *Unavailable* if another process uses the directory, *Corrupt* for damage.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Vec<CatalogRecord>)> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(format!("create {dir:?}"), &e))?;
        let lock = lock(dir)?;
        let path = dir.join("catalog.log");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| Error::io(format!("open {path:?}"), &e))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| Error::io(format!("read {path:?}"), &e))?;
        let (records, good) = read(&bytes).map_err(|e| e.context(path.display()))?;
        let end = |file: &mut File| -> std::io::Result<()> {
            file.set_len(good as u64)?;
            file.seek(SeekFrom::End(0))?;
            file.sync_all()
        };
        end(&mut file).map_err(|e| Error::io(format!("write {path:?}"), &e))?;
        sync_dir(dir)?;
        Ok((Self { file, path, _lock: lock }, records))
    }

    /// Appends a record; it is durable on return.
    pub(crate) fn append(&mut self, record: &CatalogRecord) -> Result<()> {
        let line = line(record)?;
        let write = |file: &mut File| -> std::io::Result<()> {
            file.write_all(line.as_bytes())?;
            file.sync_data()
        };
        write(&mut self.file).map_err(|e| Error::io(format!("write {:?}", self.path), &e))
    }
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("LOCK");
    let file = File::create(&path).map_err(|e| Error::io(format!("create {path:?}"), &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::unavailable(format!("the data directory {dir:?} is in use by another process"))
                .with_hint("stop that process, or use another directory"))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io(format!("lock {path:?}"), &error)),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io(format!("sync {dir:?}"), &e))
}

fn line(record: &CatalogRecord) -> Result<String> {
    let json = serde_json::to_string(record).map_err(|e| Error::internal(format!("catalog record: {e}")))?;
    Ok(format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())))
}

/// The records, and how many bytes of whole lines they take.
fn read(bytes: &[u8]) -> Result<(Vec<CatalogRecord>, usize)> {
    let mut records = Vec::new();
    let mut good = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match record(line) {
            Some(record) => records.push(record),
            None if good + line.len() == bytes.len() => break,
            None => {
                return Err(Error::corrupt(format!(
                    "record {} of the catalog log is damaged",
                    records.len() + 1
                ))
                .with_hint("restore the file from a backup"));
            }
        }
        good += line.len();
    }
    Ok((records, good))
}

fn record(line: &[u8]) -> Option<CatalogRecord> {
    let line = std::str::from_utf8(line).ok()?;
    let (crc, json) = line.strip_suffix('\n')?.split_once(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32c::crc32c(json.as_bytes())).then_some(())?;
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_of(name: &str) -> CatalogRecord {
        CatalogRecord::Drop { name: name.into() }
    }

    #[test]
    fn a_torn_last_record_is_cut_off_and_the_log_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, records) = CatalogLog::open(dir.path()).unwrap();
        assert!(records.is_empty());
        log.append(&drop_of("a")).unwrap();
        log.append(&drop_of("späť")).unwrap();
        drop(log);
        let path = dir.path().join("catalog.log");
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
        for cut in first..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut log, records) = CatalogLog::open(dir.path()).unwrap();
            assert_eq!(records, [drop_of("a")], "cut at {cut}");
            log.append(&drop_of("c")).unwrap();
            drop(log);
            assert_eq!(CatalogLog::open(dir.path()).unwrap().1, [drop_of("a"), drop_of("c")]);
        }
    }

    #[test]
    fn damage_before_the_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = CatalogLog::open(dir.path()).unwrap();
        log.append(&drop_of("a")).unwrap();
        log.append(&drop_of("b")).unwrap();
        drop(log);
        let path = dir.path().join("catalog.log");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[12] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(CatalogLog::open(dir.path()).unwrap_err().kind(), millpond_core::ErrorKind::Corrupt);
    }

    #[test]
    fn a_second_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _log = CatalogLog::open(dir.path()).unwrap();
        let error = CatalogLog::open(dir.path()).unwrap_err();
        assert!(error.message().contains("in use"), "{error}");
    }
}
