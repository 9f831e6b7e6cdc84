//! One attempt of a job: deploys the graph as tasks and drives them to their end.
//!
//! ```text
//! recover ─▶ channels ─▶ operators with their state ─▶ tails ─▶ spawn ─▶ drive
//! ```
//!
//! Every (edge, sending task, receiving task) is a channel of its own, so that alignment can hold
//! one sender back without the others.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_connect::{ReaderContext, SinkContext};
use millpond_core::limits::CHANNEL_ELEMENTS_MAX;
use millpond_core::{
    CheckpointId, Element, Error, ErrorKind, KeyGroupRange, OperatorMetrics, Result, SourceMetrics, TaskId,
};
use millpond_operators::{BuildContext, InputIndex};
use millpond_state::Verify;
use tokio::sync::{mpsc, watch};
use tracing::Instrument;

use crate::align::AlignedInputs;
use crate::background::Background;
use crate::chain::Chain;
use crate::clock::{EpochGate, Signals};
use crate::coordinator::Coordinator;
use crate::driver::{Driver, DriverParts, Tasks};
use crate::exchange::EdgeWriter;
use crate::graph::{Exchange, Fragment, Head, JobGraph, SinkNode, SourceNode, Tail};
use crate::options::{Environment, JobOptions};
use crate::pending::{sink_identity, sinks_of};
use crate::release::Releases;
use crate::report::{History, OperatorReport, SourceReport};
use crate::restore::Restored;
use crate::source::{Control, SourceParts, SourceTask};
use crate::splits::{Discovered, Discoverer};
use crate::tail::{SinkTail, TailWriter, Tails};
use crate::task::{self, TaskBody, TaskContext};

/// What every attempt of a job starts from.
#[derive(Debug, Clone)]
pub(crate) struct Deployable {
    pub(crate) graph: Arc<JobGraph>,
    /// As of the last start; [`Deployable::changes`] has them as they are now.
    pub(crate) options: Arc<JobOptions>,
    pub(crate) changes: watch::Receiver<Arc<JobOptions>>,
    pub(crate) environment: Environment,
    pub(crate) history: Arc<History>,
    pub(crate) background: Background,
    pub(crate) client: Option<mpsc::Sender<Result<Element>>>,
}

/// The counters of an attempt.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sources: Vec<SourceReport>,
    pub(crate) operators: Vec<OperatorReport>,
    pub(crate) signals: Option<Arc<Signals>>,
}

/// A deployed attempt: its driver, or that there is nothing left to do.
pub(crate) enum Deployed {
    /// The job had come to its end before.
    AlreadyFinished,
    /// Its tasks run.
    Running(Box<Driver>, Counters),
}

/// The channels of all edges.
#[derive(Default)]
struct Channels {
    /// Per sending task and tail, in the order of the receiving tasks.
    senders: HashMap<(TaskId, usize), Vec<mpsc::Sender<Element>>>,
    receivers: HashMap<TaskId, Vec<(InputIndex, mpsc::Receiver<Element>)>>,
}

/// A deployment in progress.
struct Deployment<'a> {
    job: &'a Deployable,
    restored: Restored,
    context: TaskContext,
    channels: Channels,
    counters: Counters,
    controls: Vec<mpsc::Sender<Control>>,
    numbers: Numbers,
}

/// Numbers given to tasks so far.
#[derive(Default)]
struct Numbers {
    task: usize,
    end: usize,
}

/// Recovers, builds and spawns an attempt.
pub(crate) async fn deploy(
    job: &Deployable,
    attempt: u64,
    next_checkpoint: CheckpointId,
    tasks: &mut Tasks,
) -> Result<Deployed> {
    let verify = job.options.verify;
    match deploy_verified(job, attempt > 0, verify, next_checkpoint, tasks).await {
        // Looked at closely now, the damaged checkpoint is left out.
        Err(error) if error.kind() == ErrorKind::Corrupt && verify == Verify::Size => {
            tracing::warn!(job = %job.options.job, %error, "restore met a damaged file; looking for an older checkpoint");
            // Operators of other tasks may still be reading.
            job.background.join().await;
            let again = deploy_verified(job, true, Verify::Crc, next_checkpoint, tasks).await;
            again.map_err(|other| {
                let detail = other.detail().map(|detail| format!("; {detail}")).unwrap_or_default();
                other.with_detail(format!("{}{detail}", error.message()))
            })
        }
        deployed => deployed,
    }
}

/// As [`deploy`], with checkpoints checked so closely before one is chosen.
async fn deploy_verified(
    job: &Deployable,
    repeated: bool,
    verify: Verify,
    next_checkpoint: CheckpointId,
    tasks: &mut Tasks,
) -> Result<Deployed> {
    let sinks = Arc::new(sinks_of(&job.graph));
    let restored = recover(job, repeated, verify, Arc::clone(&sinks)).await?;
    if restored.is_finished() {
        return Ok(Deployed::AlreadyFinished);
    }
    let ids = task_ids(&job.graph);
    let ends = job
        .graph
        .fragments
        .iter()
        .filter(|fragment| is_end(fragment))
        .map(|fragment| fragment.parallelism)
        .sum();
    let sources = job.graph.fragments.iter().filter(|fragment| matches!(fragment.head, Head::Source(_)));
    let sources = sources.map(|fragment| fragment.parallelism).sum();
    let (events, snapshot_events) = mpsc::channel(2 * ids.len());
    let context = TaskContext {
        clock: Arc::clone(&job.environment.clock),
        store: Arc::clone(&job.environment.store),
        gate: Arc::new(EpochGate::new(job.options.epoch_rows)),
        signals: Arc::new(Signals::new(sources, ends, ids.len())),
        background: job.background.clone(),
        events,
        max_parallelism: job.graph.max_parallelism,
    };
    let mut deployment = Deployment {
        job,
        restored,
        context: context.clone(),
        channels: Channels::connect(&job.graph),
        counters: Counters { signals: Some(Arc::clone(&context.signals)), ..Counters::default() },
        controls: Vec::new(),
        numbers: Numbers::default(),
    };
    deployment.spawn_all(tasks).await?;
    let coordinator =
        Coordinator::new(job.options.of_coordinator(), ids, next_checkpoint, context.clock.now());
    let driver = Driver::new(DriverParts {
        context,
        options: Arc::clone(&job.options),
        changes: job.changes.clone(),
        history: Arc::clone(&job.history),
        sinks,
        releases: Releases::new(&job.graph, job.environment.log_dir.as_ref()),
        controls: deployment.controls,
        snapshot_events,
        coordinator,
    });
    Ok(Deployed::Running(Box::new(driver), deployment.counters))
}

async fn recover(
    job: &Deployable,
    repeated: bool,
    verify: Verify,
    sinks: Arc<Vec<SinkNode>>,
) -> Result<Restored> {
    let (graph, options) = (Arc::clone(&job.graph), JobOptions { verify, ..(*job.options).clone() });
    let (store, background) = (Arc::clone(&job.environment.store), job.background.clone());
    let work = move || Restored::recover(repeated, &graph, &sinks, &options, store.as_ref(), &background);
    job.background.run(work).await
}

fn tasks_of(fragment: usize, graph: &JobGraph) -> impl Iterator<Item = TaskId> + use<> {
    (0..graph.fragments[fragment].parallelism).map(move |index| TaskId { fragment, index })
}

fn task_ids(graph: &JobGraph) -> Vec<TaskId> {
    (0..graph.fragments.len()).flat_map(|fragment| tasks_of(fragment, graph)).collect()
}

/// Whether a fragment has a sink or the client: an epoch is done when it has passed all of these.
fn is_end(fragment: &Fragment) -> bool {
    fragment.tail.iter().any(|tail| matches!(tail, Tail::Sink(_) | Tail::Client))
}

impl Channels {
    fn connect(graph: &JobGraph) -> Self {
        let mut channels = Self::default();
        for (from, fragment) in graph.fragments.iter().enumerate() {
            for (tail, edge) in fragment.tail.iter().enumerate() {
                if let Tail::Edge { to, input, exchange } = edge {
                    channels.connect_edge(graph, from, tail, (*to, *input), exchange);
                }
            }
        }
        channels
    }

    fn connect_edge(
        &mut self,
        graph: &JobGraph,
        from: usize,
        tail: usize,
        (to, input): (usize, InputIndex),
        exchange: &Exchange,
    ) {
        for sender in tasks_of(from, graph) {
            for receiver in tasks_of(to, graph) {
                if *exchange == Exchange::Forward && sender.index != receiver.index {
                    continue;
                }
                let (send, receive) = mpsc::channel(CHANNEL_ELEMENTS_MAX);
                self.senders.entry((sender, tail)).or_default().push(send);
                self.receivers.entry(receiver).or_default().push((input, receive));
            }
        }
    }
}

impl Deployment<'_> {
    /// Builds all tasks, then spawns them: nothing runs before everything stands.
    async fn spawn_all(&mut self, tasks: &mut Tasks) -> Result<()> {
        let graph = Arc::clone(&self.job.graph);
        let mut chains = self.build_chains(&graph).await?;
        let mut ready: Vec<(TaskId, BoxFuture<'static, Result<()>>)> = Vec::new();
        for (at, fragment) in graph.fragments.iter().enumerate() {
            let source = self.discover(fragment).await?;
            for id in tasks_of(at, &graph) {
                let chain =
                    chains.remove(&id).ok_or_else(|| Error::internal(format!("task {id} was not built")))?;
                let watermark = chain.watermark();
                let body = self.body(id, fragment, chain).await?;
                match (&fragment.head, &source) {
                    (Head::Source(node), Some(found)) => {
                        let task = self.source_task(id, node, fragment.parallelism, found.clone(), body);
                        ready.push((id, task.run().boxed()));
                    }
                    _ => {
                        let channels = self.channels.receivers.remove(&id).unwrap_or_default();
                        ready.push((id, task::run(AlignedInputs::new(channels, watermark), body).boxed()));
                    }
                }
            }
        }
        for (id, task) in ready {
            tasks.spawn(named(id, task));
        }
        Ok(())
    }

    /// The operators of all tasks with their state, loaded side by side.
    async fn build_chains(&mut self, graph: &JobGraph) -> Result<HashMap<TaskId, Chain>> {
        let mut building = Vec::new();
        for (at, fragment) in graph.fragments.iter().enumerate() {
            for id in tasks_of(at, graph) {
                let metrics = self.count_operators(id, fragment);
                let context = build_context(id, fragment, graph.max_parallelism);
                let (restored, nodes) = (self.restored.clone(), fragment.chain.clone());
                let store = Arc::clone(&self.context.store);
                let memory = self.job.environment.memory.clone();
                let work = move || restored.build_chain(&nodes, context, metrics, store.as_ref(), &memory);
                building.push((id, self.context.background.start(work)));
            }
        }
        let mut chains = HashMap::with_capacity(building.len());
        for (id, chain) in building {
            chains.insert(id, chain.await.unwrap_or_else(|_| Err(Error::cancelled()))?);
        }
        Ok(chains)
    }

    fn count_operators(&mut self, id: TaskId, fragment: &Fragment) -> Vec<Arc<OperatorMetrics>> {
        let mut count = |node: &crate::graph::OperatorNode| {
            let metrics = Arc::new(OperatorMetrics::default());
            let (uid, name) = (node.uid.clone(), node.factory.name());
            let report = OperatorReport { uid, name, task: id.index, metrics: Arc::clone(&metrics) };
            self.counters.operators.push(report);
            metrics
        };
        fragment.chain.iter().map(&mut count).collect()
    }

    /// The splits of a source: those of the checkpoint; an endless source, or one that the
    /// checkpoint does not know, is asked for its splits too. A bounded input stays the one that
    /// the job began with.
    async fn discover(&self, fragment: &Fragment) -> Result<Option<watch::Sender<Discovered>>> {
        let Head::Source(node) = &fragment.head else { return Ok(None) };
        let restored = self.restored.splits(&node.uid)?;
        let is_complete = restored.is_some() && node.connector.is_bounded();
        let mut discovered = restored.unwrap_or_default();
        if !is_complete {
            let connector = Arc::clone(&node.connector);
            discovered.add(self.context.background.run(move || connector.splits()).await?);
        }
        Ok(Some(watch::Sender::new(discovered)))
    }

    async fn body(&mut self, id: TaskId, fragment: &Fragment, chain: Chain) -> Result<TaskBody> {
        let mut tails = Vec::with_capacity(fragment.tail.len());
        for (at, tail) in fragment.tail.iter().enumerate() {
            tails.push(self.tail(id, at, tail, fragment.parallelism).await?);
        }
        let number = self.numbers.task;
        self.numbers.task += 1;
        let end = is_end(fragment).then_some(self.numbers.end);
        self.numbers.end += usize::from(end.is_some());
        Ok(TaskBody::new(id, number, end, chain, Tails::new(tails), self.context.clone()))
    }

    async fn tail(&mut self, id: TaskId, at: usize, tail: &Tail, parallelism: usize) -> Result<TailWriter> {
        match tail {
            Tail::Edge { exchange, .. } => {
                let receivers = self.channels.senders.remove(&(id, at)).unwrap_or_default();
                Ok(TailWriter::Edge(EdgeWriter::new(
                    exchange.clone(),
                    self.context.max_parallelism,
                    receivers,
                )))
            }
            Tail::Sink(sink) => {
                let context = self.sink_context(id, sink, parallelism);
                let connector = Arc::clone(&sink.connector);
                let writer = self.context.background.run(move || connector.open(context)).await?;
                Ok(TailWriter::Sink(SinkTail { uid: sink.uid.clone(), writer }))
            }
            Tail::Client => {
                let client = self.job.client.clone();
                client.map(TailWriter::Client).ok_or_else(|| Error::internal("the job has no client"))
            }
        }
    }

    fn sink_context(&self, id: TaskId, sink: &SinkNode, parallelism: usize) -> SinkContext {
        SinkContext {
            job: sink_identity(&self.job.options.writer, &sink.uid),
            generation: self.context.store.generation(),
            index: id.index,
            parallelism,
            clock: Arc::clone(&self.context.clock),
        }
    }

    fn source_task(
        &mut self,
        id: TaskId,
        node: &SourceNode,
        parallelism: usize,
        found: watch::Sender<Discovered>,
        body: TaskBody,
    ) -> SourceTask {
        let metrics = Arc::new(SourceMetrics::default());
        let watermark = self.restored.watermark(&node.uid, id.index, parallelism);
        let report = SourceReport {
            uid: node.uid.clone(),
            table: node.table.clone(),
            task: id.index,
            metrics: Arc::clone(&metrics),
            watermark,
        };
        self.context.signals.watermark(self.controls.len(), watermark);
        self.counters.sources.push(report);
        // As many orders as epochs may be in flight, the one that ends the job, and one poll.
        let (order, control) = mpsc::channel(self.job.options.in_flight_max as usize + 2);
        self.controls.push(order);
        let reader_context = ReaderContext {
            table: node.table.clone(),
            projection: node.projection.clone(),
            bad_rows: node.bad_rows,
            on_missing_file: node.on_missing_file,
            log_dir: self.job.environment.log_dir.as_ref().map(|dir| dir.join(&node.uid.0)),
            dead_letters: Arc::clone(&self.job.environment.dead_letters),
            metrics,
            clock: Arc::clone(&self.context.clock),
        };
        let now = self.context.clock.now();
        let looks = id.index == 0;
        let discoverer = looks.then(|| Discoverer::new(Arc::clone(&node.connector), found.clone(), now));
        let parts = SourceParts {
            node: node.clone(),
            index: id.index,
            parallelism,
            number: self.controls.len() - 1,
            batch_rows: self.job.options.batch_rows.max(1),
            control,
            reader_context,
            found,
            discoverer,
            watermark,
        };
        SourceTask::new(parts, body)
    }
}

fn build_context(id: TaskId, fragment: &Fragment, max_parallelism: u16) -> BuildContext {
    BuildContext {
        index: id.index,
        parallelism: fragment.parallelism,
        max_parallelism,
        key_groups: KeyGroupRange::of_task(id.index, fragment.parallelism, max_parallelism),
    }
}

/// A task's future with its name, in logs and in what it answers.
async fn named(id: TaskId, task: BoxFuture<'static, Result<()>>) -> (TaskId, Result<()>) {
    (id, task.instrument(tracing::info_span!("task", %id)).await)
}
