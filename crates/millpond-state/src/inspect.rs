//! Looking at snapshots from outside, without an engine: what `millpond checkpoints` shows.
//!
//! Nothing is locked, written or renamed, so it also works beside a running job.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::row::{OwnedRow, RowConverter, SortField};
use millpond_core::{Error, OperatorUid, Result};

use crate::files;
use crate::metadata;
use crate::savepoint::Snapshot;

/// A folder with a snapshot, and the snapshot or why it cannot be used.
#[derive(Debug)]
pub struct FoundSnapshot {
    /// The folder in which `metadata.json` lies, or should.
    pub folder: PathBuf,
    /// What is in it.
    pub snapshot: Result<Snapshot>,
}

/// How deep below a data directory snapshots lie: `jobs/job-1/chk-1`.
const DEPTH_MAX: usize = 3;

/// All snapshots in a folder and below it: of a data directory, of a job, or one. In order of
/// their paths, checkpoints by number.
///
/// Errors: *Invalid* when there is no such folder.
pub fn find_snapshots(folder: &Path) -> Result<Vec<FoundSnapshot>> {
    if !folder.is_dir() {
        return Err(Error::invalid(format!("there is no folder {folder:?}")));
    }
    let mut found = Vec::new();
    search(folder, DEPTH_MAX, &mut found)?;
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<FoundSnapshot>) -> Result<()> {
    if let Some(snapshot) = snapshot_in(folder) {
        found.push(FoundSnapshot { folder: folder.to_path_buf(), snapshot });
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    let mut names = files::names(folder)?;
    names.sort_by_cached_key(|name| (files::parse_checkpoint_folder(name), name.clone()));
    for name in names {
        let below = folder.join(name);
        if below.is_dir() {
            search(&below, depth - 1, found)?;
        }
    }
    Ok(())
}

fn snapshot_in(folder: &Path) -> Option<Result<Snapshot>> {
    if folder.join(metadata::FILE).is_file() {
        return Some(Snapshot::open(folder));
    }
    let corrupt = folder.join(metadata::CORRUPT).is_file();
    corrupt.then(|| Err(Error::corrupt("it was found damaged and is kept for inspection")))
}

/// How the rows of one state table differ between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDifference {
    /// The operator.
    pub uid: OperatorUid,
    /// Its readable name.
    pub operator: String,
    /// The table.
    pub table: String,
    /// Rows whose key only the second has.
    pub added: u64,
    /// Rows whose key only the first has.
    pub removed: u64,
    /// Rows of the same key with other values.
    pub changed: u64,
    /// Rows that are the same in both.
    pub same: u64,
}

/// Compares all state tables of two snapshots, row by row.
pub fn compare(first: &Snapshot, second: &Snapshot) -> Result<Vec<TableDifference>> {
    let mut addresses = tables_of(first);
    addresses.extend(tables_of(second));
    addresses.sort();
    addresses.dedup();
    addresses.into_iter().map(|(uid, table)| compare_table(first, second, uid, table)).collect()
}

fn tables_of(snapshot: &Snapshot) -> Vec<(OperatorUid, String)> {
    let operators = snapshot.metadata().operators.iter();
    let tables = |(uid, operator): (&OperatorUid, &crate::OperatorSnapshot)| {
        operator.tables.keys().map(|table| (uid.clone(), table.clone())).collect::<Vec<_>>()
    };
    operators.flat_map(tables).collect()
}

/// Values by key, both in a form that can be compared.
type Content = HashMap<OwnedRow, OwnedRow>;

fn compare_table(
    first: &Snapshot,
    second: &Snapshot,
    uid: OperatorUid,
    table: String,
) -> Result<TableDifference> {
    let (before, after) = (content(first, &uid, &table)?, content(second, &uid, &table)?);
    let name = |snapshot: &Snapshot| snapshot.metadata().operators.get(&uid).map(|found| found.name.clone());
    let mut difference = TableDifference {
        operator: name(second).or_else(|| name(first)).unwrap_or_default(),
        uid: uid.clone(),
        table,
        added: 0,
        removed: 0,
        changed: 0,
        same: 0,
    };
    for (key, values) in &before {
        match after.get(key) {
            None => difference.removed += 1,
            Some(now) if now == values => difference.same += 1,
            Some(_) => difference.changed += 1,
        }
    }
    difference.added = after.keys().filter(|key| !before.contains_key(*key)).count() as u64;
    Ok(difference)
}

fn content(snapshot: &Snapshot, uid: &OperatorUid, table: &str) -> Result<Content> {
    let stored = snapshot.metadata().operators.get(uid).and_then(|operator| operator.tables.get(table));
    let Some(stored) = stored else { return Ok(Content::new()) };
    let identity = stored.columns.iter().filter(|(_, _, role)| role != "state").count();
    let mut content = Content::new();
    if let Some(rows) = snapshot.rows(uid, table)? {
        for batch in &rows.batches {
            add_rows(&mut content, batch, identity)?;
        }
    }
    Ok(content)
}

fn add_rows(content: &mut Content, batch: &RecordBatch, identity: usize) -> Result<()> {
    let (keys, values) = batch.columns().split_at(identity);
    let convert = |columns: &[arrow::array::ArrayRef]| -> Result<Vec<OwnedRow>> {
        if columns.is_empty() {
            let empty = RowConverter::new(vec![SortField::new(arrow::datatypes::DataType::Null)])?;
            let nulls = arrow::array::new_null_array(&arrow::datatypes::DataType::Null, batch.num_rows());
            return Ok(empty.convert_columns(&[nulls])?.iter().map(|row| row.owned()).collect());
        }
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let rows = RowConverter::new(fields)?.convert_columns(columns)?;
        Ok(rows.iter().map(|row| row.owned()).collect())
    };
    content.extend(convert(keys)?.into_iter().zip(convert(values)?));
    Ok(())
}
