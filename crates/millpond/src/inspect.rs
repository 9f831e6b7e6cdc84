//! The files of a stopped engine: what `millpond checkpoints list|inspect|verify|diff` shows.

use std::path::Path;

use millpond_core::Result;
use millpond_core::quantity::format_duration;
use millpond_state::{FoundSnapshot, Snapshot, bytes_of, compare, find_snapshots, rows_of};

use crate::answer::Rows;
use crate::snapshot_rows::state_rows;

/// All snapshots in a data directory, a job's folder or a savepoint's.
pub fn list_snapshots(folder: &Path) -> Result<Rows> {
    let row = |found: &FoundSnapshot| -> Vec<Option<String>> {
        let place = Some(found.folder.display().to_string());
        let snapshot = match &found.snapshot {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let status = Some(format!("DAMAGED: {}", error.message()));
                return [place, None, None, None, None, status, None, None, None, None].to_vec();
            }
        };
        let metadata = snapshot.metadata();
        let micros = metadata.completed_at.0.saturating_sub(metadata.triggered_at.0);
        let texts = [
            metadata.job.clone(),
            metadata.checkpoint.to_string(),
            metadata.kind.clone(),
            metadata.trigger.clone(),
            "COMPLETED".into(),
            metadata.completed_at.to_string(),
            format_duration(micros / 1000 * 1000),
            bytes_of(metadata).to_string(),
            rows_of(metadata).to_string(),
        ];
        std::iter::once(place).chain(texts.map(Some)).collect()
    };
    let rows: Vec<Vec<Option<String>>> = find_snapshots(folder)?.iter().map(row).collect();
    let names = [
        "folder",
        "job",
        "checkpoint id",
        "kind",
        "trigger",
        "status",
        "completed at",
        "duration",
        "bytes",
        "rows",
    ];
    Ok(Rows::of_texts(&names, &rows))
}

/// The operators and state tables of a snapshot; of a job's folder, those of the newest one.
pub fn inspect_snapshot(folder: &Path) -> Result<Rows> {
    let snapshot = Snapshot::open(folder)?;
    Ok(Rows::of_texts(&crate::snapshot_rows::STATE_COLUMNS, &state_rows(snapshot.metadata())))
}

/// Reads every file of every snapshot in a folder and below it; also answers whether all are whole.
pub fn verify_snapshots(folder: &Path) -> Result<(Rows, bool)> {
    let mut rows = Vec::new();
    let mut whole = true;
    for found in find_snapshots(folder)? {
        let damages = match &found.snapshot {
            Ok(snapshot) => snapshot.damages(),
            Err(error) => vec![error.clone()],
        };
        whole &= damages.is_empty();
        let place = found.folder.display().to_string();
        if damages.is_empty() {
            rows.push([place.clone(), "whole".into()].map(Some).to_vec());
        }
        let told = damages.iter().map(|damage| match damage.detail() {
            Some(detail) => format!("DAMAGED: {}: {detail}", damage.message()),
            None => format!("DAMAGED: {}", damage.message()),
        });
        rows.extend(told.map(|told| [place.clone(), told].map(Some).to_vec()));
    }
    Ok((Rows::of_texts(&["folder", "status"], &rows), whole))
}

/// How the state tables of two snapshots differ, in rows.
pub fn compare_snapshots(first: &Path, second: &Path) -> Result<Rows> {
    let differences = compare(&Snapshot::open(first)?, &Snapshot::open(second)?)?;
    let row = |difference: &millpond_state::TableDifference| {
        let counts = [difference.added, difference.removed, difference.changed, difference.same];
        let texts = [difference.uid.to_string(), difference.operator.clone(), difference.table.clone()];
        texts.into_iter().chain(counts.map(|count| count.to_string())).map(Some).collect()
    };
    let rows: Vec<Vec<Option<String>>> = differences.iter().map(row).collect();
    let names = ["operator uid", "operator", "table", "added", "removed", "changed", "same"];
    Ok(Rows::of_texts(&names, &rows))
}
