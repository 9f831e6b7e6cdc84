//! Restore: from which checkpoint a job continues, and what of it each task gets.
//!
//! The newest valid checkpoint is chosen (the store leaves out damaged ones, loudly); state finds
//! its operator by uid and table (invariant 11); what sinks are owed is committed, what they began
//! and never promised is removed (invariant 9). All of it blocks and runs in the background.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use millpond_core::{
    CheckpointId, Error, ErrorKind, KeyGroupRange, OperatorMetrics, OperatorUid, Result, Watermark,
};
use millpond_operators::BuildContext;
use millpond_state::{CheckpointMetadata, OperatorSnapshot, Snapshot, StateStore, TableDef};

use crate::background::Background;
use crate::chain::{Chain, Link};
use crate::graph::{Head, JobGraph, OperatorNode, SinkNode, Tail};
use crate::memory::Memory;
use crate::options::JobOptions;
use crate::pending::{Pending, sink_identity};
use crate::restore_plan::{TakenOver, take_over};
use crate::snapshot::{SPLITS, restored_watermark};
use crate::splits::Discovered;

/// The checkpoint that an attempt continues from, if there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restored {
    metadata: Option<Arc<CheckpointMetadata>>,
    /// Where its tables are read from, if it is none of the job's own.
    foreign: Option<Arc<Snapshot>>,
    /// Operators that start empty although the checkpoint has state of theirs.
    dropped: Vec<OperatorUid>,
}

impl Restored {
    /// Chooses the checkpoint, declares to the store that the job continues from it, and settles
    /// what sinks are owed.
    ///
    /// A repeated attempt advances the fence: nothing of the one before may be taken for its own.
    pub(crate) fn recover(
        repeated: bool,
        graph: &JobGraph,
        sinks: &[SinkNode],
        options: &JobOptions,
        store: &dyn StateStore,
        background: &Background,
    ) -> Result<Self> {
        if repeated {
            store.next_generation()?;
        }
        let newest = store.checkpoints(options.verify)?.into_iter().next();
        let chosen = newest.as_ref().map(|stored| stored.metadata.checkpoint);
        refuse_to_repeat(chosen, store.newest_completed(), sinks, options)?;
        let restored = match (newest, &options.restore_from) {
            (Some(own), _) => Self { metadata: Some(Arc::new(own.metadata)), ..Self::default() },
            (None, Some(folder)) => Self::from_outside(folder, options)?,
            (None, None) => Self::default(),
        };
        let Some(metadata) = restored.metadata.clone() else {
            settle(sinks, &Pending::default(), options, background)?;
            return Ok(restored);
        };
        let TakenOver { metadata, renamed, dropped } =
            take_over(graph, &metadata, options.allow_non_restored_state)?;
        let metadata = Arc::new(metadata);
        let restored = Self { metadata: Some(Arc::clone(&metadata)), dropped, ..restored };
        // Files of others are not ours to refer to, and what is dropped must not come back: such
        // tables write a base first.
        let continued = match &restored.foreign {
            None => without_parts(&metadata, |uid| restored.dropped.contains(uid)),
            Some(_) => CheckpointMetadata { native: None, ..without_parts(&metadata, |_| true) },
        };
        store.continue_from(&continued, &tasks_by_uid(graph))?;
        if restored.foreign.is_some() {
            refuse_to_repeat_others(&metadata, sinks, &renamed, options)?;
        }
        settle(sinks, &Pending::restored(&metadata)?, options, background)?;
        // What a sink began under its former uid is as dangling as what it began under this one.
        for sink in sinks {
            if let Some(former) = renamed.get(&sink.uid).filter(|_| restored.foreign.is_none()) {
                sink.connector.abort_dangling(&sink_identity(&options.writer, former), &[])?;
            }
        }
        tracing::info!(job = %options.job, checkpoint = %metadata.checkpoint, "job continues from a {}", metadata.kind);
        Ok(restored)
    }

    /// A savepoint, or a checkpoint of another job.
    fn from_outside(folder: &Path, options: &JobOptions) -> Result<Self> {
        let told = |error: Error| error.context(format!("'restore.from' = '{}'", folder.display()));
        let snapshot = Snapshot::open(folder).map_err(told)?;
        snapshot.verify(options.verify).map_err(told)?;
        let metadata = CheckpointMetadata { finished: false, ..snapshot.metadata().clone() };
        Ok(Self { metadata: Some(Arc::new(metadata)), foreign: Some(Arc::new(snapshot)), ..Self::default() })
    }

    /// Whether the job had already come to its end.
    pub(crate) fn is_finished(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| metadata.finished)
    }

    fn operator(&self, uid: &OperatorUid) -> Option<&OperatorSnapshot> {
        self.metadata.as_ref().and_then(|metadata| metadata.operators.get(uid))
    }

    fn read_table(
        &self,
        store: &dyn StateStore,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        let read = match (&self.foreign, &self.metadata) {
            (Some(snapshot), Some(metadata)) => snapshot.read_as(metadata, uid, def, range),
            (None, Some(metadata)) => store.read_table(metadata, uid, def, range),
            (_, None) => Ok(Vec::new()),
        };
        read.map_err(|error| match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Invalid => self.named(error),
            ErrorKind::Data | ErrorKind::Unavailable | ErrorKind::Internal | ErrorKind::Cancelled => error,
        })
    }

    /// Says of which checkpoint an error speaks.
    fn named(&self, error: Error) -> Error {
        match &self.metadata {
            Some(metadata) => {
                error.context(format!("{} {} of {}", metadata.kind, metadata.checkpoint, metadata.job))
            }
            None => error,
        }
    }

    /// The splits of a source, with their positions; `None` if the checkpoint does not know it.
    pub(crate) fn splits(&self, uid: &OperatorUid) -> Result<Option<Discovered>> {
        let entries = self.operator(uid).and_then(|operator| operator.lists.get(SPLITS));
        entries.map(|entries| Discovered::restored(entries)).transpose()
    }

    /// The watermark that a task of an operator or source had reached.
    pub(crate) fn watermark(&self, uid: &OperatorUid, task: usize, tasks: usize) -> Option<Watermark> {
        self.operator(uid).and_then(|operator| restored_watermark(operator, task, tasks))
    }

    /// Builds the operators of one task and loads its key groups' state.
    pub(crate) fn build_chain(
        &self,
        nodes: &[OperatorNode],
        context: BuildContext,
        metrics: Vec<Arc<OperatorMetrics>>,
        store: &dyn StateStore,
        memory: &Memory,
    ) -> Result<Chain> {
        let links = nodes.iter().zip(metrics).map(|(node, metrics)| {
            let mut link = self.build(node, context, metrics, store)?;
            link.account(memory)?;
            Ok(link)
        });
        Ok(Chain::new(links.collect::<Result<_>>()?))
    }

    fn build(
        &self,
        node: &OperatorNode,
        context: BuildContext,
        metrics: Arc<OperatorMetrics>,
        store: &dyn StateStore,
    ) -> Result<Link> {
        let watermark = self.watermark(&node.uid, context.index, context.parallelism);
        let operator = node.factory.build(context)?;
        let mut link = Link::new(node.uid.clone(), node.factory.name(), operator, metrics, watermark);
        let snapshot = self.operator(&node.uid);
        for table in link.operator.tables() {
            let def = table.def().clone();
            if !knows(snapshot, &def.name) || self.dropped.contains(&node.uid) {
                continue;
            }
            for rows in self.read_table(store, &node.uid, &def, context.key_groups)? {
                table.load(&rows, context.key_groups)?;
            }
        }
        if snapshot.is_some() {
            link.operator.restored(watermark)?;
            link.wake_at_once();
        }
        Ok(link)
    }
}

/// A snapshot of which a store has no file of some operators.
fn without_parts(metadata: &CheckpointMetadata, of: impl Fn(&OperatorUid) -> bool) -> CheckpointMetadata {
    let mut bare = metadata.clone();
    for (_, operator) in bare.operators.iter_mut().filter(|(uid, _)| of(uid)) {
        operator.tables.values_mut().for_each(|table| table.parts.clear());
    }
    bare
}

fn knows(snapshot: Option<&OperatorSnapshot>, table: &str) -> bool {
    snapshot.is_some_and(|operator| operator.tables.contains_key(table))
}

/// Falling back behind a checkpoint whose output may be visible would write that output again.
fn refuse_to_repeat(
    chosen: Option<CheckpointId>,
    completed: CheckpointId,
    sinks: &[SinkNode],
    options: &JobOptions,
) -> Result<()> {
    if chosen.unwrap_or_default() >= completed {
        return Ok(());
    }
    let from = chosen.map_or_else(|| "the start".to_string(), |chosen| format!("checkpoint {chosen}"));
    let Some(sink) = sinks.iter().find(|sink| sink.connector.is_transactional()) else {
        tracing::warn!(job = %options.job, %completed, "checkpoint {completed} is damaged or gone: going on from {from}");
        return Ok(());
    };
    Err(Error::corrupt(format!("checkpoint {completed} of {} is damaged or gone", options.job))
        .with_detail(format!(
            "its output in table \"{}\" is visible already; going on from {from} would write it twice",
            sink.table
        ))
        .with_hint(
            "put the checkpoint's files back, or remove the job's output and its state and run it anew",
        ))
}

/// Going on from a snapshot of a job that has gone on itself, into the same output, would write what
/// that one has written since.
fn refuse_to_repeat_others(
    snapshot: &CheckpointMetadata,
    sinks: &[SinkNode],
    renamed: &BTreeMap<OperatorUid, OperatorUid>,
    options: &JobOptions,
) -> Result<()> {
    let writer = if snapshot.writer.is_empty() { &snapshot.job } else { &snapshot.writer };
    for sink in sinks {
        let former = sink_identity(writer, renamed.get(&sink.uid).unwrap_or(&sink.uid));
        if let Some(file) = sink.connector.committed_after(&former, snapshot.checkpoint)? {
            return Err(Error::invalid(format!(
                "{} {} of {} is older than output in table \"{}\": going on from it would write rows twice",
                snapshot.kind, snapshot.checkpoint, snapshot.job, sink.table
            ))
            .with_detail(format!("that job has written {file} since"))
            .with_hint("write to another place, or remove what the job has written since the snapshot"));
        }
    }
    tracing::debug!(job = %options.job, "no output is newer than the snapshot");
    Ok(())
}

/// Commits what is owed and removes what earlier starts have begun.
fn settle(sinks: &[SinkNode], owed: &Pending, options: &JobOptions, background: &Background) -> Result<()> {
    owed.commit(sinks, background)?;
    for sink in sinks {
        background.check_halted()?;
        sink.connector.abort_dangling(&sink_identity(&options.writer, &sink.uid), &owed.of(&sink.uid))?;
    }
    Ok(())
}

/// Number of tasks of every operator, source and sink.
fn tasks_by_uid(graph: &JobGraph) -> BTreeMap<OperatorUid, usize> {
    let mut tasks = BTreeMap::new();
    for fragment in &graph.fragments {
        let source = match &fragment.head {
            Head::Source(source) => Some(&source.uid),
            Head::Inputs(_) => None,
        };
        let sinks = fragment.tail.iter().filter_map(|tail| match tail {
            Tail::Sink(sink) => Some(&sink.uid),
            Tail::Edge { .. } | Tail::Client => None,
        });
        let uids = fragment.chain.iter().map(|node| &node.uid).chain(source).chain(sinks);
        tasks.extend(uids.map(|uid| (uid.clone(), fragment.parallelism)));
    }
    tasks
}
