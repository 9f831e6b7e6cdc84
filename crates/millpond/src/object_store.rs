//! Places on object stores: `state.checkpoints.dir`, savepoints and `restore.from` by URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond_connect::object_files::{ObjectFiles, is_object_store};
use millpond_core::{Error, Result};
use millpond_state::{RemoteFiles, fetch_snapshot, prepare_savepoint, send_snapshot};

use crate::settings::Settings;

/// A folder on an object store, as the state sees it.
#[derive(Debug)]
struct Remote(ObjectFiles);

impl RemoteFiles for Remote {
    fn put(&self, name: &str, content: Vec<u8>) -> Result<()> {
        self.0.put(name, content)
    }
    fn create(&self, name: &str, content: Vec<u8>) -> Result<bool> {
        self.0.create(name, content)
    }
    fn get(&self, name: &str) -> Result<Vec<u8>> {
        self.0.get(name)
    }
    fn list(&self) -> Result<Vec<String>> {
        self.0.list()
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.0.delete(name)
    }
}

/// The folder at a URL.
pub(crate) fn open(url: &str, settings: &Settings) -> Result<Arc<dyn RemoteFiles>> {
    Ok(Arc::new(Remote(ObjectFiles::open(url, &settings.s3())?)))
}

/// Where a savepoint is written: in the folder itself, or here first and then sent to a URL.
#[derive(Debug)]
pub(crate) struct SavepointPlace {
    pub(crate) folder: PathBuf,
    sent_to: Option<(String, Arc<dyn RemoteFiles>)>,
}

impl SavepointPlace {
    /// The place that a statement names, found to be empty and writable; what goes elsewhere is
    /// first written below `scratch`. What can be known to fail fails here: a job is neither
    /// stopped nor asked for a checkpoint that has no place.
    pub(crate) fn prepare(place: &str, scratch: &Path, settings: &Settings) -> Result<Self> {
        let place = match is_object_store(place) {
            true => {
                let url = place.trim_end_matches('/').to_owned();
                let remote = open(&url, settings)?;
                if !remote.list()?.is_empty() {
                    return Err(Error::invalid(format!("the folder {url:?} is not empty"))
                        .with_hint("a savepoint needs a folder of its own"));
                }
                Self { folder: scratch.to_path_buf(), sent_to: Some((url, remote)) }
            }
            false => {
                let folder = PathBuf::from(place.strip_prefix("file://").unwrap_or(place));
                if folder.as_os_str().is_empty() {
                    return Err(Error::invalid("the folder has no name"));
                }
                Self { folder, sent_to: None }
            }
        };
        prepare_savepoint(&place.folder)?;
        Ok(place)
    }

    /// What was written goes where it belongs; gives the place's name.
    pub(crate) fn send(self) -> Result<String> {
        let Some((url, remote)) = self.sent_to else { return Ok(self.folder.display().to_string()) };
        let sent = send_snapshot(&self.folder, remote.as_ref());
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "a copy of a savepoint stays behind");
        }
        sent.map(|()| url)
    }
}

/// The snapshot at a place, fetched into `scratch` if it is elsewhere.
pub(crate) fn snapshot_at(place: &str, scratch: &Path, settings: &Settings) -> Result<PathBuf> {
    if !is_object_store(place) {
        let folder = PathBuf::from(place.strip_prefix("file://").unwrap_or(place));
        return match folder.as_os_str().is_empty() {
            true => Err(Error::invalid("the folder has no name")),
            false => Ok(folder),
        };
    }
    let place = place.trim_end_matches('/');
    let (root, checkpoint) = match place.rsplit_once('/') {
        Some((root, last)) if last.starts_with("chk-") => (root, last),
        Some(_) | None => (place, ""),
    };
    let remote = open(root, settings)?;
    fetch_snapshot(remote.as_ref(), checkpoint, scratch).map_err(|error| error.context(format!("{place:?}")))
}
