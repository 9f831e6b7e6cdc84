//! A machine whose power goes off at every single step of storage and sinks, in turn: whatever was
//! done stays, nothing more is; the job started again gives what an undisturbed run gives.
//!
//! ```text
//! run, power off at step n ─▶ run, power off during the restore ─▶ run to the end, compare
//! ```
//!
//! Every operation is a step before it and a step behind it, so that each stop between two effects is
//! met: a barrier without deltas, deltas without acknowledgement, prepared output without metadata,
//! metadata without commits, some commits, commits without retention, retention half-way, a restore
//! that has read, that has committed, that has removed.

use std::collections::BTreeSet;
use std::path::Path;

use arrow::array::RecordBatch;
use millpond_core::{KeyGroupRange, OperatorUid};
use millpond_state::{
    Backend, CheckpointMetadata, Delta, StateStore, StoreOptions, StoredCheckpoint, TableDef, TablePart,
    Verify, open_store,
};

use super::*;

/// A store on a machine whose power may be off.
#[derive(Debug)]
struct FragileStore {
    disk: Arc<dyn StateStore>,
    power: Arc<Power>,
}

impl FragileStore {
    fn around<T>(&self, what: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.power.around(what, work)
    }
}

impl StateStore for FragileStore {
    fn generation(&self) -> u64 {
        self.disk.generation()
    }
    fn next_generation(&self) -> Result<u64> {
        self.around("next generation", || self.disk.next_generation())
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        self.disk.last_checkpoint_id()
    }
    fn newest_completed(&self) -> CheckpointId {
        self.disk.newest_completed()
    }
    fn write_delta(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        max_parallelism: u16,
        delta: Delta,
        base: bool,
    ) -> Result<Vec<TablePart>> {
        self.around("write delta", || {
            self.disk.write_delta(uid, def, task, checkpoint, max_parallelism, delta, base)
        })
    }
    fn link_native(&self, checkpoint: CheckpointId) -> Result<Option<String>> {
        self.around("link native", || self.disk.link_native(checkpoint))
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        self.around("commit", || self.disk.commit(metadata))
    }
    fn retain(&self, retained: usize) -> Result<()> {
        self.around("retain", || self.disk.retain(retained))
    }
    fn abort(&self, checkpoint: CheckpointId) -> Result<()> {
        self.around("abort", || self.disk.abort(checkpoint))
    }
    fn checkpoints(&self, verify: Verify) -> Result<Vec<StoredCheckpoint>> {
        self.around("list checkpoints", || self.disk.checkpoints(verify))
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        range: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        self.around("read table", || self.disk.read_table(checkpoint, uid, def, range))
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &std::collections::BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        self.around("continue from", || self.disk.continue_from(checkpoint, tasks))
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        self.disk.needs_base(uid, table, task)
    }
}

/// A job over a bounded source into two transactional sinks.
struct Machine<'a> {
    backend: Backend,
    folder: &'a Path,
    source: Arc<FakeSource>,
    sinks: [Arc<FakeSink>; 2],
}

impl Machine<'_> {
    /// Runs the job until it has ended or the power is off; what it did is what stays.
    async fn run(&self, power: &Arc<Power>, parallelism: usize) {
        let options = StoreOptions { backend: self.backend, dir: Some(self.folder.to_path_buf()) };
        let store = Arc::new(FragileStore { disk: open_store(&options).unwrap(), power: Arc::clone(power) });
        for sink in &self.sinks {
            sink.plug_into(power);
        }
        let mut graph = pipeline(&self.source, counting(), parallelism, sink_tail(&self.sinks[0]));
        let Tail::Sink(second) = sink_tail(&self.sinks[1]) else { unreachable!("it is a sink") };
        graph.fragments[1].tail.push(Tail::Sink(crate::SinkNode { uid: uid("second"), ..second }));
        let options = JobOptions {
            checkpoint_at_every_epoch: true,
            epoch_rows: Some(20),
            batch_rows: 20,
            retained: 1,
            ..options_without_delay()
        };
        let environment = Environment { store, ..environment(FakeStore::new()) };
        let job = start_job(graph, options, environment).unwrap();
        while !power.is_off() && !job.status().is_terminal() {
            tokio::task::yield_now().await;
        }
        job.crash().await;
        if !power.is_off() {
            assert_eq!(job.status(), JobStatus::Finished);
        }
    }
}

fn options_without_delay() -> JobOptions {
    JobOptions { restart: RestartPolicy { attempts: Some(0), delay: 0, delay_max: 0 }, ..options() }
}

/// Runs with a stop at every step; answers the steps that were stopped at.
async fn stop_everywhere(backend: Backend) -> BTreeSet<String> {
    let numbers = numbers(40, 7);
    let expected = counted(&numbers);
    let mut met = BTreeSet::new();
    for step in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine {
            backend,
            folder: folder.path(),
            source: FakeSource::new(true, vec![numbers.clone()]),
            sinks: [FakeSink::transactional(), FakeSink::transactional()],
        };
        let power = Power::until(step);
        machine.run(&power, 1).await;
        let Some(stopped_at) = power.stopped_at() else { break };
        // The next start is stopped early on its way, as a kill during recovery would.
        let again = Power::until(1 + step % 17);
        machine.run(&again, 2).await;
        let then = again.stopped_at();
        machine.run(&Power::forever(), 1 + (step % 2) as usize).await;
        for sink in &machine.sinks {
            let visible = sink.visible();
            assert_eq!(visible, expected, "{backend:?}, stopped {stopped_at} (step {step}), then {then:?}");
            assert_eq!(sink.prepared(), 0, "{backend:?}, stopped {stopped_at} (step {step}), then {then:?}");
        }
        met.insert(stopped_at);
        met.extend(then);
    }
    met
}

fn all_steps(operations: &[&str]) -> BTreeSet<String> {
    operations.iter().flat_map(|name| [format!("before {name}"), format!("behind {name}")]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_step_loses_nothing_and_doubles_nothing() {
    let met = stop_everywhere(Backend::Filesystem).await;
    let operations = [
        "write delta",
        "prepare output",
        "link native",
        "commit",
        "commit output",
        "retain",
        "list checkpoints",
        "continue from",
        "abort dangling output",
    ];
    let missing: Vec<String> = all_steps(&operations).difference(&met).cloned().collect();
    assert_eq!(missing, [] as [&str; 0], "met {met:?}");
    assert!(met.iter().any(|step| step.ends_with("read table")), "met {met:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_step_with_rocksdb_beside() {
    let met = stop_everywhere(Backend::Rocksdb).await;
    assert!(met.contains("before commit") && met.contains("behind link native"), "{met:?}");
}
