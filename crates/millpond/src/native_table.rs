//! Native tables: tables without a connector, whose rows the engine keeps.
//!
//! Their rows are files of change events in a folder of the data directory (without one, in a
//! folder that goes with the engine), so a job writes them exactly once as it does any files, and
//! what has been committed is there after a crash. Rows replace each other by the primary key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::{Error, Result};

/// The folder of native tables of an engine without a data directory.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A folder of its own; it is made with the first table.
    pub(crate) fn new() -> Self {
        static ENGINES: AtomicU64 = AtomicU64::new(0);
        let number = ENGINES.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("millpond-{}-{number}", std::process::id())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            tracing::warn!(%error, "a folder of temporary tables is left behind");
        }
    }
}

/// The options of the connector behind a native table.
pub(crate) fn options(folder: &Path) -> BTreeMap<String, String> {
    let path = folder.to_string_lossy().into_owned();
    [("connector", "filesystem".to_string()), ("format", "debezium-json".to_string()), ("path", path)]
        .map(|(key, value)| (key.to_string(), value))
        .into()
}

/// The folder of a table below that of all tables: other characters are percent-encoded.
pub(crate) fn folder(tables: &Path, name: &str) -> PathBuf {
    let mut folder = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => folder.push(byte as char),
            _ => folder.push_str(&format!("%{byte:02X}")),
        }
    }
    // Names that differ in case only are one folder on some systems.
    tables.join(format!("{folder}-{:08x}", millpond_core::key::text_hash(name) as u32))
}

/// Makes the folder of a table that has no rows yet, and clears away what a table of the same
/// name has left.
pub(crate) fn create(folder: &Path) -> Result<()> {
    remove(folder)?;
    ensure(folder)
}

/// Makes the folder if it is not there.
pub(crate) fn ensure(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io(format!("create {folder:?}"), &error))
}

/// Removes the rows of a table.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {folder:?}"), &error))
        }
        _ => Ok(()),
    }
}
