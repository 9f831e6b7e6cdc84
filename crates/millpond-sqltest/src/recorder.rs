//! Recorders: operators put behind each operator of a plan, that pass everything on and keep it.
//!
//! ```text
//! Source ─▶ Recorder ─▶ Calc ─▶ Recorder ─▶ Exchange ─▶ Aggregate ─▶ Recorder ─▶ Client
//! ```
//!
//! When the client has an epoch's mark, every recorder before it has seen that mark too, so the
//! epoch's tapes can be read as a whole.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use millpond_core::{ChangelogBatch, EpochTime, OperatorUid, Result, Watermark};
use millpond_operators::{
    BuildContext, EpochOutcome, InputIndex, KeySets, Operator, OperatorContext, OperatorFactory, Progress,
    Residency,
};
use millpond_planner::{NodeKind, StateBound, StreamNode, StreamPlan};
use millpond_state::StateTable;

/// What one task of a node gave in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Take {
    pub(crate) batches: Vec<ChangelogBatch>,
    /// The watermark behind the node from this epoch's end on.
    pub(crate) watermark: Option<Watermark>,
}

/// A node that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The node as the planner made it.
    pub(crate) node: StreamNode,
    tape: Tape,
}

impl Watched {
    /// The next epoch of every task, by the task's index; `None` for one that has not ended it.
    pub(crate) fn next_epoch(&self) -> BTreeMap<usize, Option<Take>> {
        self.tape.lock().iter_mut().map(|(task, takes)| (*task, takes.pop_front())).collect()
    }
}

/// Puts a recorder behind every source and operator; gives what is watched, in the plan's order.
pub(crate) fn instrument(plan: &mut StreamPlan) -> Vec<Watched> {
    let mut watched = Vec::new();
    let mut nodes: Vec<StreamNode> = Vec::new();
    let mut places = Vec::new();
    for mut node in std::mem::take(&mut plan.nodes) {
        node.inputs.iter_mut().for_each(|input| *input = places[*input]);
        nodes.push(node.clone());
        if matches!(node.kind, NodeKind::Source { .. } | NodeKind::Rows { .. } | NodeKind::Operator(_)) {
            let tape = Tape::default();
            nodes.push(recorder(&node, nodes.len() - 1, tape.clone()));
            watched.push(Watched { node, tape });
        }
        places.push(nodes.len() - 1);
    }
    plan.nodes = nodes;
    watched
}

fn recorder(node: &StreamNode, id: usize, tape: Tape) -> StreamNode {
    let mut properties = node.properties.clone();
    properties.state = StateBound::None;
    StreamNode {
        uid: OperatorUid(format!("recorder-{id}")),
        kind: NodeKind::Operator(Arc::new(RecorderFactory { tape, schema: Arc::clone(&node.schema) })),
        inputs: vec![id],
        schema: Arc::clone(&node.schema),
        properties,
    }
}

/// The epochs recorded and not yet read, by task.
#[derive(Debug, Clone, Default)]
struct Tape(Arc<Mutex<BTreeMap<usize, VecDeque<Take>>>>);

impl Tape {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, VecDeque<Take>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct RecorderFactory {
    tape: Tape,
    schema: SchemaRef,
}

impl OperatorFactory for RecorderFactory {
    fn name(&self) -> &'static str {
        "Recorder"
    }
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        self.tape.lock().entry(context.index).or_default();
        Ok(Box::new(Recorder { tape: self.tape.clone(), task: context.index, take: Take::default() }))
    }
    fn describe(&self) -> String {
        String::new()
    }
}

struct Recorder {
    tape: Tape,
    task: usize,
    take: Take,
}

impl Operator for Recorder {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }
    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        self.take.batches.push(batch.clone());
        ctx.emit(batch);
        Ok(Progress::Done)
    }
    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        let take = Take { watermark, ..std::mem::take(&mut self.take) };
        self.tape.lock().entry(self.task).or_default().push_back(take);
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }
    fn resume(&mut self, _: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }
    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }
    fn restored(&mut self, _: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}
