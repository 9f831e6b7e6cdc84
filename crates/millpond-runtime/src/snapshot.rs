//! Snapshots: the frozen state of one task on its way to the store and into the metadata.
//!
//! At a barrier a task freezes (which copies nothing) and forwards the mark at once. Between the
//! batches that follow it drains: it copies what was frozen, a slice at a time. The rest is left to
//! a background thread: pre-commits of sinks first, because their committables are owed whatever
//! becomes of the checkpoint, then the delta of each table.
//!
//! ```text
//! task: freeze ─ drain … drain ──FrozenTask──▶ background: pre-commit, write_delta ─┐
//!                                              driver ◀──────────────SnapshotEvent──┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_connect::{Committable, PreCommit};
use millpond_core::clock::Stopwatch;
use millpond_core::{CheckpointId, Error, OperatorUid, Result, TaskId, Timestamp, Watermark};
use millpond_state::{Frozen, OperatorSnapshot, StateStore, TableDef, TablePart, TableSnapshot};

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
    pub(crate) drain: Duration,
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
    pub(crate) drain: Duration,
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

/// Tables whose delta could not be made, with their operators: the store has not got it.
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
        let mut writer =
            Writer { task, checkpoint, max_parallelism, store, background, lost: Vec::new(), failure: None };
        let operators = self.operators.into_iter().map(|operator| writer.write(operator)).collect();
        let Writer { lost, failure, .. } = writer;
        let Self { align, freeze, drain, .. } = self;
        let mut stored = TaskSnapshot { operators, align, freeze, drain, ..TaskSnapshot::default() };
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

/// Hands the tables of a task to the store, all of them: a delta whose write fails is kept there
/// and becomes part of the next one, but only if the store has got it.
struct Writer<'a> {
    task: TaskId,
    checkpoint: CheckpointId,
    max_parallelism: u16,
    store: &'a dyn StateStore,
    background: &'a Background,
    lost: LostTables,
    failure: Option<Error>,
}

impl Writer<'_> {
    fn write(&mut self, operator: FrozenOperator) -> StoredOperator {
        let FrozenOperator { uid, name, tables, lists } = operator;
        let tables = tables.into_iter().filter_map(|table| self.write_table(&uid, table)).collect();
        StoredOperator { uid, name, tables, lists }
    }

    fn write_table(&mut self, uid: &OperatorUid, table: FrozenTable) -> Option<(TableDef, Vec<TablePart>)> {
        let FrozenTable { def, frozen, base } = table;
        let delta = self.background.check_halted().and_then(|()| frozen.into_delta());
        let delta = delta.inspect_err(|_| self.lost.push((uid.clone(), def.name.clone())));
        let (task, checkpoint, max_parallelism) = (self.task.index, self.checkpoint, self.max_parallelism);
        let write = |delta| self.store.write_delta(uid, &def, task, checkpoint, max_parallelism, delta, base);
        match delta.and_then(write) {
            Ok(parts) => Some((def, parts)),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }
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

    /// The definitions of the stored tables, by address.
    pub(crate) fn tables(&self) -> impl Iterator<Item = ((OperatorUid, String), TableDef)> + '_ {
        self.operators.iter().flat_map(|operator| {
            let address = |def: &TableDef| (operator.uid.clone(), def.name.clone());
            operator.tables.iter().map(move |(def, _)| (address(def), def.clone()))
        })
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
                let table =
                    operator.tables.entry(def.name.clone()).or_insert_with(|| TableSnapshot::describe(def));
                table.parts.insert(task, parts.clone());
            }
        }
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
