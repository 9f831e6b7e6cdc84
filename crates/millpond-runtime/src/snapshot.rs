//! Snapshots: the frozen state of one task on its way to the store and into the metadata.
//!
//! At a barrier a task freezes (cheap), forwards the mark at once, and leaves the rest to a
//! background thread: pre-commits of sinks first, because their committables are owed whatever
//! becomes of the checkpoint (STATE.md § 3.4), then the delta of each table.
//!
//!     task: freeze ──FrozenTask──▶ background: pre-commit, write_delta ──SnapshotEvent──▶ driver

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_connect::{Committable, PreCommit};
use millpond_core::clock::Stopwatch;
use millpond_core::{CheckpointId, Error, OperatorUid, Result, TaskId, Timestamp, Watermark};
use millpond_state::{Frozen, OperatorSnapshot, StateStore, TableDef, TableKind, TablePart, TableSnapshot};

use crate::background::Background;

/// Operator state by list name.
pub(crate) type Lists = BTreeMap<String, Vec<serde_json::Value>>;

/// Name of the list of watermarks in force, one entry per task.
pub(crate) const WATERMARKS: &str = "watermark";
/// Name of a source's list of split states.
pub(crate) const SPLITS: &str = "splits";
/// Name of a sink's list of committables.
pub(crate) const COMMITTABLES: &str = "committables";

/// The frozen state of a task.
pub(crate) struct FrozenTask {
    pub(crate) task: TaskId,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) operators: Vec<FrozenOperator>,
    pub(crate) sinks: Vec<(OperatorUid, PreCommit)>,
    pub(crate) align: Duration,
    pub(crate) freeze: Duration,
}

/// The frozen state of an operator (or the positions of a source).
#[derive(Debug)]
pub(crate) struct FrozenOperator {
    pub(crate) uid: OperatorUid,
    pub(crate) name: String,
    pub(crate) tables: Vec<FrozenTable>,
    pub(crate) lists: Lists,
}

/// A frozen table.
#[derive(Debug)]
pub(crate) struct FrozenTable {
    pub(crate) def: TableDef,
    pub(crate) frozen: Frozen,
    pub(crate) base: bool,
}

/// What a task has to say about a checkpoint.
#[derive(Debug)]
pub(crate) struct SnapshotEvent {
    pub(crate) task: TaskId,
    pub(crate) checkpoint: CheckpointId,
    /// Owed from now on, whatever becomes of the checkpoint.
    pub(crate) committables: Vec<(OperatorUid, Committable)>,
    /// The stored state, or why it could not be stored.
    pub(crate) stored: Result<TaskSnapshot>,
}

/// The stored state of a task.
#[derive(Debug, Default)]
pub(crate) struct TaskSnapshot {
    pub(crate) operators: Vec<StoredOperator>,
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    pub(crate) align: Duration,
    pub(crate) freeze: Duration,
    pub(crate) asynchronous: Duration,
}

/// The stored state of an operator in one task.
#[derive(Debug)]
pub(crate) struct StoredOperator {
    pub(crate) uid: OperatorUid,
    pub(crate) name: String,
    pub(crate) tables: Vec<(TableDef, Vec<TablePart>)>,
    pub(crate) lists: Lists,
}

/// Tables whose delta did not reach the store, with their operators.
pub(crate) type LostTables = Vec<(OperatorUid, String)>;

impl FrozenTask {
    /// Whether storing it is no work, so that a background thread would only cost time.
    pub(crate) fn is_light(&self) -> bool {
        self.sinks.is_empty() && self.operators.iter().all(|operator| operator.tables.is_empty())
    }

    /// Makes everything durable. The event says how it went; the tables whose delta was lost
    /// must write everything next time.
    ///
    /// Errors: a pre-commit that failed has lost rows that only a restart brings back.
    pub(crate) fn store(
        self,
        store: &dyn StateStore,
        max_parallelism: u16,
        background: &Background,
    ) -> Result<(SnapshotEvent, LostTables)> {
        let stopwatch = Stopwatch::start();
        let (task, checkpoint) = (self.task, self.checkpoint);
        let committables = pre_commit(self.sinks, background)?;
        let mut lost: LostTables = Vec::new();
        let mut failure = None;
        let mut stored = TaskSnapshot { align: self.align, freeze: self.freeze, ..TaskSnapshot::default() };
        for operator in self.operators {
            let mut tables = Vec::with_capacity(operator.tables.len());
            for table in operator.tables {
                let name = table.def.name.clone();
                let written = match failure {
                    Some(_) => Err(Error::cancelled()),
                    None => write(
                        table,
                        &operator.uid,
                        task.index,
                        checkpoint,
                        max_parallelism,
                        store,
                        background,
                    ),
                };
                match written {
                    Ok(table) => tables.push(table),
                    Err(error) => {
                        lost.push((operator.uid.clone(), name));
                        failure.get_or_insert(error);
                    }
                }
            }
            stored.operators.push(StoredOperator {
                uid: operator.uid,
                name: operator.name,
                tables,
                lists: operator.lists,
            });
        }
        stored.weigh(checkpoint);
        stored.asynchronous = stopwatch.elapsed();
        let stored = failure.map_or(Ok(stored), Err);
        Ok((SnapshotEvent { task, checkpoint, committables, stored }, lost))
    }
}

fn pre_commit(
    sinks: Vec<(OperatorUid, PreCommit)>,
    background: &Background,
) -> Result<Vec<(OperatorUid, Committable)>> {
    let mut committables = Vec::new();
    for (uid, work) in sinks {
        background.check_halted()?;
        let prepared = work.run().map_err(|error| error.context(format!("pre-commit of sink {uid}")))?;
        committables.extend(prepared.into_iter().map(|committable| (uid.clone(), committable)));
    }
    Ok(committables)
}

fn write(
    table: FrozenTable,
    uid: &OperatorUid,
    task: usize,
    checkpoint: CheckpointId,
    max_parallelism: u16,
    store: &dyn StateStore,
    background: &Background,
) -> Result<(TableDef, Vec<TablePart>)> {
    background.check_halted()?;
    let delta = table.frozen.into_delta()?;
    let parts = store.write_delta(uid, &table.def, task, checkpoint, max_parallelism, delta, table.base)?;
    Ok((table.def, parts))
}

impl TaskSnapshot {
    /// Adds up what was written for this checkpoint.
    fn weigh(&mut self, checkpoint: CheckpointId) {
        let tables = self.operators.iter().flat_map(|operator| &operator.tables);
        for part in tables.flat_map(|(_, parts)| parts).filter(|part| part.checkpoint == checkpoint) {
            self.rows += part.rows;
            self.bytes += part.file.as_ref().map_or(0, |file| file.bytes);
        }
    }

    /// Adds this task's state to the operators of a checkpoint.
    pub(crate) fn add_to(&self, task: usize, operators: &mut BTreeMap<OperatorUid, OperatorSnapshot>) {
        for stored in &self.operators {
            let operator = operators.entry(stored.uid.clone()).or_default();
            operator.name.clone_from(&stored.name);
            for (name, values) in &stored.lists {
                operator.lists.entry(name.clone()).or_default().extend(values.iter().cloned());
            }
            for (def, parts) in &stored.tables {
                let table = operator.tables.entry(def.name.clone()).or_insert_with(|| describe(def));
                table.parts.insert(task, parts.clone());
            }
        }
    }
}

/// A table's description for the metadata, without parts.
fn describe(def: &TableDef) -> TableSnapshot {
    let kind = match def.kind {
        TableKind::Value => "value",
        TableKind::Window => "window",
        TableKind::Multimap => "multimap",
    };
    let column = |(at, field): (usize, &arrow::datatypes::FieldRef)| {
        (field.name().clone(), field.data_type().to_string(), role(def, at).to_string())
    };
    TableSnapshot {
        kind: kind.into(),
        columns: def.schema.fields().iter().enumerate().map(column).collect(),
        parts: BTreeMap::new(),
    }
}

fn role(def: &TableDef, column: usize) -> &'static str {
    let last_identity = column + 1 == def.identity_columns;
    match def.kind {
        _ if column >= def.identity_columns => "state",
        TableKind::Window if column == 0 => "window",
        TableKind::Multimap if last_identity => "row",
        TableKind::Value | TableKind::Window | TableKind::Multimap => "key",
    }
}

/// The list entry by which a watermark in force is kept.
pub(crate) fn watermark_list(task: usize, watermark: Option<Watermark>) -> Lists {
    let entry = serde_json::json!({ "task": task, "watermark": watermark.map(|w| w.0) });
    Lists::from([(WATERMARKS.to_string(), vec![entry])])
}

/// The watermark that the tasks of an operator had reached: a task's own when the number of tasks
/// is the same, else the slowest, for which nothing can have been late.
pub(crate) fn restored_watermark(
    operator: &OperatorSnapshot,
    task: usize,
    tasks: usize,
) -> Option<Watermark> {
    let entries = operator.lists.get(WATERMARKS)?;
    let watermark = |entry: &serde_json::Value| entry["watermark"].as_i64().map(Timestamp);
    if entries.len() == tasks {
        let own = entries.iter().find(|entry| entry["task"].as_u64() == Some(task as u64))?;
        return watermark(own);
    }
    entries.iter().map(watermark).min().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_watermark_is_the_tasks_own_or_the_slowest() {
        let mut operator = OperatorSnapshot::default();
        for (task, watermark) in [(0, Some(9)), (1, Some(5))] {
            let lists = watermark_list(task, watermark.map(Timestamp));
            operator.lists.entry(WATERMARKS.into()).or_default().extend(lists[WATERMARKS].clone());
        }
        assert_eq!(restored_watermark(&operator, 0, 2), Some(Timestamp(9)));
        assert_eq!(restored_watermark(&operator, 0, 1), Some(Timestamp(5)));
        assert_eq!(restored_watermark(&operator, 3, 4), Some(Timestamp(5)));
    }
}
