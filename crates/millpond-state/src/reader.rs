//! Reading snapshots from outside the job: what `checkpoint_state(…)` shows.
//!
//! Nothing is locked, written or renamed, so it works beside a running job. A checkpoint that
//! retention removes meanwhile is an error, never a wrong answer: every file's CRC32C is checked.

use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millpond_core::{CheckpointId, Error, KeyGroupRange, OperatorUid, Result};

use crate::snapshot::{self, PartRows};
use crate::store::{CheckpointMetadata, TablePart, TableSnapshot};
use crate::table::{TableDef, TableKind};
use crate::{files, metadata};

/// A job's folder, read only.
#[derive(Debug, Clone)]
pub struct SnapshotReader {
    folder: PathBuf,
}

/// A table of a snapshot: its columns (the table's own, as in the Parquet parts) and live rows.
#[derive(Debug, Clone)]
pub struct SnapshotRows {
    /// Columns.
    pub schema: SchemaRef,
    /// Live rows.
    pub batches: Vec<RecordBatch>,
}

impl SnapshotReader {
    /// The checkpoints in a job's folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Completed checkpoints, newest first.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointMetadata>> {
        let mut ids: Vec<CheckpointId> = files::names(&self.folder)?
            .iter()
            .filter_map(|name| files::parse_checkpoint_folder(name))
            .collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        let mut found = Vec::new();
        for id in ids {
            found.extend(metadata::read(&self.folder.join(files::checkpoint_folder(id)), id)?);
        }
        Ok(found)
    }

    /// The live rows of one table of an operator; `None` for a table that never held a row.
    ///
    /// Errors: *Invalid* when there is no such operator or table, with those there are.
    pub fn rows(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        table: &str,
    ) -> Result<Option<SnapshotRows>> {
        let operator = checkpoint.operators.get(uid).ok_or_else(|| {
            let known: Vec<&str> = checkpoint.operators.keys().map(|uid| uid.0.as_str()).collect();
            Error::invalid(format!("checkpoint {} holds no operator \"{uid}\"", checkpoint.checkpoint))
                .with_hint(format!("it holds {}", known.join(", ")))
        })?;
        let snapshot = operator.tables.get(table).ok_or_else(|| {
            let known: Vec<&str> = operator.tables.keys().map(String::as_str).collect();
            Error::invalid(format!("operator \"{uid}\" has no state table \"{table}\""))
                .with_hint(format!("it has {}", known.join(", ")))
        })?;
        let Some(def) = self.definition(table, snapshot)? else { return Ok(None) };
        let range = KeyGroupRange::all(checkpoint.max_parallelism);
        let mut batches = Vec::new();
        for parts in snapshot.parts.values() {
            let read = parts.iter().map(|part| self.part(&def, part, range)).collect::<Result<Vec<_>>>()?;
            let folded = snapshot::fold(&def, &read, true, None)?;
            batches.extend(
                folded.batches.iter().map(|batch| table_columns(&def, batch)).collect::<Result<Vec<_>>>()?,
            );
        }
        Ok(Some(SnapshotRows { schema: def.schema, batches }))
    }

    fn definition(&self, name: &str, snapshot: &TableSnapshot) -> Result<Option<TableDef>> {
        let mut parts = snapshot.parts.values().flatten();
        let Some(file) = parts.find_map(|part| part.file.as_ref()) else { return Ok(None) };
        let schema = snapshot::table_columns(files::read_checked(&self.folder, file)?)?;
        let kind = match snapshot.kind.as_str() {
            "window" => TableKind::Window,
            "multimap" => TableKind::Multimap,
            _ => TableKind::Value,
        };
        let identity_columns = snapshot.columns.iter().filter(|(_, _, role)| role != "state").count();
        let partition_columns = (0..identity_columns).filter(|i| snapshot.columns[*i].2 == "key").collect();
        Ok(Some(TableDef { name: name.into(), kind, schema, identity_columns, partition_columns }))
    }

    fn part(&self, def: &TableDef, part: &TablePart, range: KeyGroupRange) -> Result<PartRows> {
        let batches = match &part.file {
            Some(file) => snapshot::read_part(def, files::read_checked(&self.folder, file)?, range)?,
            None => Vec::new(),
        };
        Ok(PartRows { batches, base: part.base, expired_through: part.expired_through })
    }
}

/// The table's own columns, without key group and op.
fn table_columns(def: &TableDef, batch: &RecordBatch) -> Result<RecordBatch> {
    let first = batch.num_columns() - def.schema.fields().len();
    let columns: Vec<usize> = (first..batch.num_columns()).collect();
    Ok(batch.project(&columns)?)
}
