//! Which files a path stands for: a file, a directory, a glob.
//!
//! Names that begin with `.` or `_`, and files still being written (`*.tmp`, `*.inprogress*`,
//! `*.pending*`), are never input. Files come in natural order (`2.json` before `10.json`), so
//! that the order of splits is the same everywhere.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use millpond_core::{Error, Result};

/// Deeper directories are taken for a loop of symbolic links.
const DEPTH_MAX: usize = 64;
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// A path and how it is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    path: String,
    recursive: bool,
    partition_keys: Vec<String>,
}

impl Listing {
    /// Files at `path` (which may begin with `file://`).
    ///
    /// Errors: *Invalid* for an address that is not of this machine.
    pub fn new(path: &str, recursive: bool, partition_keys: &[String]) -> Result<Self> {
        let local = local_path(path)?;
        Ok(Self { path: local, recursive, partition_keys: partition_keys.to_vec() })
    }

    /// The path as it was given.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The files there are now, absolute, in natural order.
    ///
    /// Errors: *Invalid* if the path does not exist.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for root in self.roots()? {
            let root =
                std::path::absolute(&root).map_err(|error| Error::io(format!("find {root:?}"), &error))?;
            match root.is_dir() {
                true => self.collect(&root, 0, &mut files)?,
                false => files.push(root),
            }
        }
        files.sort_by(|a, b| natural_order(&a.to_string_lossy(), &b.to_string_lossy()));
        files.dedup();
        Ok(files)
    }

    /// As [`Listing::files`], when no file is going to come later: a glob then matches something.
    pub fn files_for_good(&self) -> Result<Vec<PathBuf>> {
        let files = self.files()?;
        if files.is_empty() && !Path::new(&self.path).exists() {
            return Err(Error::invalid(format!("no file matches {:?}", self.path))
                .with_hint("check the option 'path'; it is relative to the working directory"));
        }
        Ok(files)
    }

    /// The path itself, or what the glob matches.
    fn roots(&self) -> Result<Vec<PathBuf>> {
        if Path::new(&self.path).exists() {
            return Ok(vec![self.path.clone().into()]);
        }
        if !self.path.contains(['*', '?', '[']) {
            return Err(Error::invalid(format!("no file or directory {:?}", self.path))
                .with_hint("check the option 'path'; it is relative to the working directory"));
        }
        self.matches()
    }

    /// What the glob matches.
    fn matches(&self) -> Result<Vec<PathBuf>> {
        let paths = glob::glob(&self.path)
            .map_err(|error| Error::invalid(format!("{:?} is not a pattern: {error}", self.path)))?;
        let found = paths
            .map(|path| path.map_err(|error| Error::io(format!("list {:?}", error.path()), error.error())));
        let found: Result<Vec<PathBuf>> = found.collect();
        Ok(found?.into_iter().filter(|path| is_input(path)).collect())
    }

    fn collect(&self, directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("{directory:?} is nested too deeply"))
                .with_hint("look for a symbolic link that leads to its own directory"));
        }
        let failed = |error: std::io::Error| Error::io(format!("list {directory:?}"), &error);
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !is_input(&path) {
                continue;
            }
            match path.is_dir() {
                true if self.recursive || self.is_partition(&path) => {
                    self.collect(&path, depth + 1, files)?
                }
                true => {}
                false => files.push(path),
            }
        }
        Ok(())
    }

    fn is_partition(&self, directory: &Path) -> bool {
        let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.split_once('=')
            .is_some_and(|(key, _)| self.partition_keys.iter().any(|known| *known == decoded(key)))
    }
}

/// A path of this machine's.
pub(crate) fn local_path(path: &str) -> Result<String> {
    let Some((scheme, rest)) = path.split_once("://") else {
        return Ok(path.strip_prefix("file:").unwrap_or(path).to_string());
    };
    match scheme {
        "file" => Ok(rest.strip_prefix("localhost").unwrap_or(rest).to_string()),
        _ => Err(Error::invalid(format!("{path:?} is not a local path"))
            .with_hint("the filesystem connector reads local files and directories so far")),
    }
}

/// Whether a path's last name may be input.
fn is_input(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let unfinished = name.ends_with(".tmp") || name.contains(".inprogress") || name.contains(".pending");
    !name.starts_with(['.', '_']) && !unfinished
}

/// The value of a partition column from a file's directories: `None` if there is none,
/// `Some(None)` for NULL.
pub(crate) fn partition_value(file: &Path, key: &str) -> Option<Option<String>> {
    file.parent()?.iter().rev().find_map(|name| {
        let name = name.to_string_lossy();
        let (found, value) = name.split_once('=')?;
        (decoded(found) == key).then(|| match value {
            NULL_PARTITION => None,
            value => Some(decoded(value)),
        })
    })
}

/// Undoes `%XX`; what is no such escape stays.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Digits count as numbers, everything else by character.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) else {
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        let ((m, left_rest), (n, right_rest)) = (digits(left), digits(right));
        let order = match m.is_empty() || n.is_empty() {
            true => x.cmp(&y),
            false => compare_digits(m, n),
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = match m.is_empty() {
            true => (&left[x.len_utf8()..], &right[y.len_utf8()..]),
            false => (left_rest, right_rest),
        };
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn compare_digits(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path, recursive: bool, keys: &[&str]) -> Vec<String> {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let listing = Listing::new(&directory.to_string_lossy(), recursive, &keys).unwrap();
        let files = listing.files().unwrap();
        files
            .iter()
            .map(|file| file.strip_prefix(directory).unwrap().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn directories_give_their_finished_files() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in [
            "10.json",
            "2.json",
            "_SUCCESS",
            ".hidden.json",
            "3.json.inprogress.uuid",
            "5.json.tmp",
            "sub/4.json",
            "dt=2024-01-01/hour=10/6.json",
            "dt=2024-01-01/hour=__HIVE_DEFAULT_PARTITION__/7.json",
        ] {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(names(root, false, &[]), ["2.json", "10.json"]);
        let partitions = [
            "2.json",
            "10.json",
            "dt=2024-01-01/hour=10/6.json",
            "dt=2024-01-01/hour=__HIVE_DEFAULT_PARTITION__/7.json",
        ];
        assert_eq!(names(root, false, &["dt", "hour"]), partitions);
        assert_eq!(names(root, true, &[]).len(), 5);
        let pattern = Listing::new(&format!("{}/*.json", root.display()), false, &[]).unwrap();
        assert_eq!(pattern.files().unwrap().len(), 2);
    }

    #[test]
    fn partition_values_come_from_directories() {
        let value = |path: &str, key: &str| partition_value(Path::new(path), key);
        assert_eq!(value("/a/dt=2024-01-01/h=1/f", "dt"), Some(Some("2024-01-01".into())));
        assert_eq!(value("/a/c=a%2Fb%20c%C3%BC/f", "c"), Some(Some("a/b cü".into())));
        assert_eq!(value("/a/h=__HIVE_DEFAULT_PARTITION__/f", "h"), Some(None));
        assert_eq!(value("/a/dt=1", "dt"), None);
    }

    #[test]
    fn other_machines_and_missing_paths_are_refused() {
        assert!(Listing::new("s3://bucket/a", false, &[]).is_err());
        assert_eq!(local_path("file:///tmp/a").unwrap(), "/tmp/a");
        let error = Listing::new("/no/such/place", false, &[]).unwrap().files().unwrap_err();
        assert_eq!(error.message(), "no file or directory \"/no/such/place\"");
    }
}
