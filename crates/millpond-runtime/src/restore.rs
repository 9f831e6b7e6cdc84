//! Restore: from which checkpoint a job continues, and what of it each task gets.
//!
//! The newest valid checkpoint is chosen (the store leaves out damaged ones, loudly); state finds
//! its operator by uid and table (invariant 11); what sinks are owed is committed, what they began
//! and never promised is removed (invariant 9). All of it blocks and runs in the background.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_core::{CheckpointId, Error, OperatorMetrics, OperatorUid, Result, Watermark};
use millpond_operators::BuildContext;
use millpond_state::{CheckpointMetadata, OperatorSnapshot, StateStore};

use crate::background::Background;
use crate::chain::{Chain, Link};
use crate::graph::{Head, JobGraph, OperatorNode, SinkNode, Tail};
use crate::options::JobOptions;
use crate::pending::{Pending, sink_identity};
use crate::snapshot::{COMMITTABLES, SPLITS, restored_watermark};
use crate::splits::Discovered;

/// The checkpoint that an attempt continues from, if there is one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restored(Option<Arc<CheckpointMetadata>>);

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
        let Some(metadata) = newest.map(|stored| stored.metadata) else {
            settle(sinks, &Pending::default(), options, background)?;
            return Ok(Self(None));
        };
        check(&metadata, graph, options)?;
        store.continue_from(&metadata, &tasks_by_uid(graph))?;
        settle(sinks, &Pending::restored(&metadata)?, options, background)?;
        tracing::info!(job = %options.job, checkpoint = %metadata.checkpoint, "job continues from a checkpoint");
        Ok(Self(Some(Arc::new(metadata))))
    }

    /// Whether the job had already come to its end.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.as_ref().is_some_and(|metadata| metadata.finished)
    }

    fn operator(&self, uid: &OperatorUid) -> Option<&OperatorSnapshot> {
        self.0.as_ref().and_then(|metadata| metadata.operators.get(uid))
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
    ) -> Result<Chain> {
        let links =
            nodes.iter().zip(metrics).map(|(node, metrics)| self.build(node, context, metrics, store));
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
            let Some(metadata) = self.0.as_ref().filter(|_| knows(snapshot, &def.name)) else { continue };
            for rows in store.read_table(metadata, &node.uid, &def, context.key_groups)? {
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

/// Commits what is owed and removes what earlier starts have begun.
fn settle(sinks: &[SinkNode], owed: &Pending, options: &JobOptions, background: &Background) -> Result<()> {
    owed.commit(sinks, background)?;
    for sink in sinks {
        background.check_halted()?;
        sink.connector.abort_dangling(&sink_identity(&options.job, &sink.uid), &owed.of(&sink.uid))?;
    }
    Ok(())
}

/// Invariant 11: unmatched state is an error unless its loss is allowed.
fn check(metadata: &CheckpointMetadata, graph: &JobGraph, options: &JobOptions) -> Result<()> {
    if metadata.max_parallelism != graph.max_parallelism {
        let (then, now) = (metadata.max_parallelism, graph.max_parallelism);
        let what = format!("checkpoint {} has {then} key groups and the job {now}", metadata.checkpoint);
        return Err(Error::invalid(what).with_hint(format!("SET 'max-parallelism' = '{then}'")));
    }
    let known = tasks_by_uid(graph);
    let lost =
        metadata.operators.iter().find(|(uid, operator)| !known.contains_key(*uid) && holds_state(operator));
    match lost {
        Some((uid, operator)) if !options.allow_non_restored_state => {
            let what = format!("checkpoint {} has state of {} {uid}", metadata.checkpoint, operator.name);
            Err(Error::invalid(format!("{what}, which the job no longer has")).with_hint(
                "SET 'restore.allow-non-restored-state' = 'true' to drop it, or use another job.name",
            ))
        }
        Some(_) | None => Ok(()),
    }
}

fn holds_state(operator: &OperatorSnapshot) -> bool {
    let listed = |name| operator.lists.get(name).is_some_and(|list| !list.is_empty());
    !operator.tables.is_empty() || listed(SPLITS) || listed(COMMITTABLES)
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
