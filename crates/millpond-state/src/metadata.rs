//! `metadata.json`: the file that makes a checkpoint valid (invariant 8).
//!
//! Its last field is the CRC32C of its own text with that field empty, so that every changed
//! byte is found before the text is believed. The text, not a re-serialised value, is summed:
//! another order of keys or another notation of a float must not make a good file bad.
//!
//! ```text
//! { "format": "millpond-checkpoint/1", …, "crc32c": "0a1b2c3d" }
//! ```
//!
//! Deleting is two steps, so that a crash never leaves metadata which names missing files:
//! `metadata.json` → `metadata.json.deleted`, then the files.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use millpond_core::{CheckpointId, Error, Result};

use crate::files;
use crate::store::{CheckpointMetadata, FileHandle};

/// The format that this version writes and reads.
pub const FORMAT: &str = "millpond-checkpoint/1";

pub(crate) const FILE: &str = "metadata.json";
pub(crate) const CORRUPT: &str = "metadata.json.corrupt";
pub(crate) const DELETED: &str = "metadata.json.deleted";
const TEMPORARY: &str = "metadata.json.tmp";

const CRC_FIELD: &str = ",\n  \"crc32c\": \"";
const TAIL: &str = "\"\n}\n";

/// The files that a checkpoint refers to.
pub(crate) fn files_of(metadata: &CheckpointMetadata) -> impl Iterator<Item = &FileHandle> {
    let tables = metadata.operators.values().flat_map(|operator| operator.tables.values());
    tables.flat_map(|table| table.parts.values()).flatten().filter_map(|part| part.file.as_ref())
}

/// Writes the metadata of a checkpoint: the commit point.
///
/// When it fails the checkpoint does not exist: what may be visible already is taken back.
pub(crate) fn write(folder: &Path, metadata: &CheckpointMetadata) -> Result<()> {
    let path = folder.join(FILE);
    let text = seal(metadata)?;
    let written = files::write_durably(&path, |file| {
        file.write_all(text.as_bytes()).map_err(|e| Error::io(format!("write {path:?}"), &e))
    });
    if written.is_err() && path.exists() {
        retire(folder, DELETED)?;
    }
    written.map(|_| ())
}

/// The JSON text of an object, with its CRC32C as last field.
pub(crate) fn seal(object: &impl serde::Serialize) -> Result<String> {
    let body = serde_json::to_string_pretty(object).map_err(|e| Error::internal(e.to_string()))?;
    let body = body.strip_suffix("\n}").ok_or_else(|| Error::internal("metadata is not an object"))?;
    let head = format!("{body}{CRC_FIELD}");
    let crc32c = checksum(&head);
    Ok(format!("{head}{crc32c}{TAIL}"))
}

fn checksum(head: &str) -> String {
    files::hexadecimal(crc32c::crc32c_append(crc32c::crc32c(head.as_bytes()), TAIL.as_bytes()))
}

/// Reads the metadata of a checkpoint; `None` when there is none.
///
/// Errors: *Corrupt* when it is not what was written, *Invalid* when another version wrote it.
pub(crate) fn read(folder: &Path, checkpoint: CheckpointId) -> Result<Option<CheckpointMetadata>> {
    let Some(metadata) = read_any(folder)? else { return Ok(None) };
    if metadata.checkpoint == checkpoint {
        return Ok(Some(metadata));
    }
    let path = folder.join(FILE);
    Err(Error::corrupt(format!("{path:?} is of checkpoint {}", metadata.checkpoint)))
}

/// Reads the metadata that lies in a folder, whatever checkpoint it is of.
pub(crate) fn read_any(folder: &Path) -> Result<Option<CheckpointMetadata>> {
    let path = folder.join(FILE);
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(files::read_failure(&path, &error)),
    };
    decode(&content).map(Some).map_err(|error| error.context(format!("{path:?}")))
}

/// Checks the CRC32C of a sealed text.
pub(crate) fn unseal(content: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(content).map_err(|_| Error::corrupt("metadata is not text"))?;
    let body = text.strip_suffix(TAIL);
    let Some((head, crc32c)) = body.and_then(|body| body.split_at_checked(body.len().saturating_sub(8)))
    else {
        return Err(Error::corrupt("metadata is cut short"));
    };
    if checksum(head) != crc32c {
        return Err(Error::corrupt("metadata does not match its CRC32C"));
    }
    Ok(text)
}

pub(crate) fn decode(content: &[u8]) -> Result<CheckpointMetadata> {
    parse(unseal(content)?)
}

#[derive(serde::Deserialize)]
struct Format {
    format: String,
}

fn parse(text: &str) -> Result<CheckpointMetadata> {
    let unreadable = |e: serde_json::Error| Error::corrupt(format!("metadata cannot be read: {e}"));
    let Format { format } = serde_json::from_str(text).map_err(unreadable)?;
    if format != FORMAT {
        return Err(Error::invalid(format!("metadata has the format {format:?} instead of {FORMAT:?}"))
            .with_hint("use the version of millpond that wrote it"));
    }
    serde_json::from_str(text).map_err(unreadable)
}

/// The files that damaged metadata seems to refer to, so that they are kept for inspection;
/// `None` when it cannot even be parsed.
pub(crate) fn files_of_corrupt(folder: &Path) -> Option<Vec<String>> {
    let metadata: CheckpointMetadata = serde_json::from_slice(&fs::read(folder.join(CORRUPT)).ok()?).ok()?;
    Some(files_of(&metadata).map(|file| file.path.clone()).collect())
}

/// Takes the checkpoint out of existence by renaming its metadata, durably.
pub(crate) fn retire(folder: &Path, name: &str) -> Result<()> {
    files::rename_durably(&folder.join(FILE), &folder.join(name))
}

/// Removes a checkpoint's folder: first the metadata ceases to be, then the rest goes. Names that
/// are not ours stay, and the folder with them.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    if folder.join(FILE).exists() {
        retire(folder, DELETED)?;
    }
    for name in [TEMPORARY, CORRUPT, DELETED] {
        files::discard(&folder.join(name));
    }
    // Fails when something of the user's is in it.
    if fs::remove_dir(folder).is_err() && folder.exists() {
        tracing::debug!(?folder, "a removed checkpoint's folder holds other files and stays");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millpond_core::ErrorKind;
    use millpond_core::Timestamp;

    use super::*;
    use crate::store::{OperatorSnapshot, TablePart, TableSnapshot};

    fn example() -> CheckpointMetadata {
        let file = FileHandle { path: "shared/a".into(), bytes: 3, crc32c: "00000001".into() };
        let part = TablePart {
            file: Some(file),
            checkpoint: CheckpointId(4),
            base: true,
            rows: 1,
            expired_through: Some(-5),
            window_max: None,
            key_groups: None,
        };
        let table =
            TableSnapshot { parts: BTreeMap::from([(0, vec![part]), (1, vec![])]), ..Default::default() };
        let operator = OperatorSnapshot {
            name: "Join".into(),
            tables: BTreeMap::from([("left".into(), table)]),
            lists: BTreeMap::from([(
                "splits".into(),
                vec![serde_json::json!({"b": 0.1, "a": [1e300, null]})],
            )]),
        };
        CheckpointMetadata {
            format: FORMAT.into(),
            engine_version: "0.1.0".into(),
            job: "j".into(),
            writer: String::new(),
            generation: 2,
            checkpoint: CheckpointId(4),
            kind: "checkpoint".into(),
            trigger: "manual".into(),
            mode: "exactly_once".into(),
            triggered_at: Timestamp(1),
            completed_at: Timestamp(2),
            max_parallelism: 256,
            finished: false,
            operators: BTreeMap::from([(millpond_core::OperatorUid("u".into()), operator)]),
            native: None,
        }
    }

    #[test]
    fn metadata_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &example()).unwrap();
        assert_eq!(read(folder.path(), CheckpointId(4)).unwrap(), Some(example()));
        assert_eq!(read(folder.path(), CheckpointId(5)).unwrap_err().kind(), ErrorKind::Corrupt);
        remove(folder.path()).unwrap();
        assert!(!folder.path().exists());
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_found() {
        let text = seal(&example()).unwrap().into_bytes();
        for byte in 0..text.len() {
            let mut changed = text.clone();
            changed[byte] ^= 1 << (byte % 8);
            assert_eq!(decode(&changed).unwrap_err().kind(), ErrorKind::Corrupt, "byte {byte}");
            assert_eq!(decode(&text[..byte]).unwrap_err().kind(), ErrorKind::Corrupt, "cut at {byte}");
        }
    }

    #[test]
    fn another_format_is_refused_rather_than_called_damaged() {
        let newer = CheckpointMetadata { format: "millpond-checkpoint/2".into(), ..example() };
        let text = seal(&newer).unwrap();
        assert_eq!(decode(text.as_bytes()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
