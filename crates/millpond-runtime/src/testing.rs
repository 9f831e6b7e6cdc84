//! What tests of whole jobs are made of: a source, a transactional sink, a counting operator and a
//! store, all in memory, all able to survive a crash of the job.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use millpond_connect::*;
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::*;
use millpond_operators::event_time::{EventTime, WatermarkSpec};
use millpond_operators::*;
use millpond_state::*;
use tokio::sync::mpsc;

use crate::graph::*;
use crate::memory::Memory;
use crate::options::{Environment, JobOptions};
use crate::tail::{TailWriter, Tails};

/// Columns `n` (a number) and `t` (a time in microseconds).
pub(crate) fn schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("t", time, true)]))
}

/// Rows whose time is their number.
pub(crate) fn rows(numbers: &[i64]) -> ChangelogBatch {
    let n: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
    let t: ArrayRef = Arc::new(TimestampMicrosecondArray::from(numbers.to_vec()));
    ChangelogBatch::append(RecordBatch::try_new(schema(), vec![n, t]).unwrap())
}

/// The numbers of a batch.
pub(crate) fn values(batch: &ChangelogBatch) -> Vec<i64> {
    batch.rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// Tails that lead to a client alone.
pub(crate) fn client_tails(capacity: usize) -> (Tails, mpsc::Receiver<Result<Element>>) {
    let (sender, receiver) = mpsc::channel(capacity);
    (Tails::new(vec![TailWriter::Client(sender)]), receiver)
}

// ---- source -------------------------------------------------------------------------------

/// A source whose splits are lists of numbers that a test may extend.
#[derive(Debug)]
pub(crate) struct FakeSource {
    lists: Lists,
    bounded: bool,
}

type Lists = Arc<Mutex<Vec<Vec<i64>>>>;

impl FakeSource {
    pub(crate) fn new(bounded: bool, splits: Vec<Vec<i64>>) -> Arc<Self> {
        Arc::new(Self { lists: Arc::new(Mutex::new(splits)), bounded })
    }
    pub(crate) fn push(&self, split: usize, numbers: &[i64]) {
        self.lists.lock().unwrap()[split].extend(numbers);
    }
    pub(crate) fn truncate(&self, split: usize, len: usize) {
        self.lists.lock().unwrap()[split].truncate(len);
    }
    pub(crate) fn add_split(&self, numbers: &[i64]) {
        self.lists.lock().unwrap().push(numbers.to_vec());
    }
}

impl SourceConnector for FakeSource {
    fn schema(&self) -> SchemaRef {
        schema()
    }
    fn is_bounded(&self) -> bool {
        self.bounded
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn splits(&self) -> Result<Vec<Split>> {
        let count = self.lists.lock().unwrap().len();
        Ok((0..count).map(|i| Split { id: i.to_string() }).collect())
    }
    fn discovery_interval(&self) -> Option<i64> {
        (!self.bounded).then_some(60_000_000)
    }
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let index = split.id.parse().unwrap();
        let at = position.map_or(0, |position| position.0.as_u64().unwrap() as usize);
        Ok(Box::new(FakeReader { lists: Arc::clone(&self.lists), bounded: self.bounded, index, at, context }))
    }
}

struct FakeReader {
    lists: Lists,
    bounded: bool,
    index: usize,
    at: usize,
    context: ReaderContext,
}

impl SplitReader for FakeReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        let lists = self.lists.lock().unwrap();
        let list = &lists[self.index];
        let numbers: Vec<i64> = list[self.at..].iter().take(rows_max).copied().collect();
        if numbers.is_empty() && self.bounded {
            return Ok(SourcePoll::End);
        }
        if numbers.is_empty() {
            return Ok(SourcePoll::NotYet { retry_at: Timestamp::MIN });
        }
        self.at += numbers.len();
        self.context.metrics.read.add(numbers.len() as u64);
        Ok(SourcePoll::Rows(rows(&numbers)))
    }
    fn position(&self) -> Position {
        Position(serde_json::json!(self.at))
    }
}

/// Both columns as they are; the watermark is the time itself.
pub(crate) fn event_time() -> Arc<EventTime> {
    let column = |name, at| Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>;
    let watermark = WatermarkSpec {
        time: column("t", 1),
        watermark: column("t", 1),
        column: "t".into(),
        max_future: None,
    };
    Arc::new(EventTime {
        columns: vec![column("n", 0), column("t", 1)],
        schema: schema(),
        watermark: Some(watermark),
        keyed: false,
    })
}

// ---- power --------------------------------------------------------------------------

/// The power of a machine: it goes off at a step, and from then on nothing is done any more.
#[derive(Debug)]
pub(crate) struct Power {
    steps: AtomicU64,
    off_at: u64,
    stopped_at: Mutex<Option<String>>,
}

impl Power {
    /// Goes off at this step, counted from 1.
    pub(crate) fn until(step: u64) -> Arc<Self> {
        Arc::new(Self { steps: AtomicU64::new(0), off_at: step, stopped_at: Mutex::default() })
    }
    pub(crate) fn forever() -> Arc<Self> {
        Self::until(u64::MAX)
    }
    pub(crate) fn is_off(&self) -> bool {
        self.stopped_at.lock().unwrap().is_some()
    }
    /// The step at which it went off.
    pub(crate) fn stopped_at(&self) -> Option<String> {
        self.stopped_at.lock().unwrap().clone()
    }
    /// Work between two steps.
    pub(crate) fn around<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.step("before", what)?;
        let done = work();
        self.step("behind", what)?;
        done
    }
    fn step(&self, side: &str, what: &str) -> Result<()> {
        let mut stopped_at = self.stopped_at.lock().unwrap();
        if self.steps.fetch_add(1, Ordering::SeqCst) + 1 == self.off_at {
            stopped_at.get_or_insert(format!("{side} {what}"));
        }
        if stopped_at.is_some() { Err(Error::unavailable("the power is off")) } else { Ok(()) }
    }
}

// ---- sink ---------------------------------------------------------------------------------

/// A sink that remembers what was committed, and what was only prepared.
#[derive(Debug, Default)]
pub(crate) struct FakeSink {
    transactional: bool,
    written: Arc<Mutex<Written>>,
}

#[derive(Debug, Default)]
struct Written {
    power: Option<Arc<Power>>,
    prepared: BTreeMap<String, Vec<i64>>,
    committed: BTreeMap<String, Vec<i64>>,
    published: Vec<i64>,
    commit_failures: u32,
}

impl FakeSink {
    pub(crate) fn transactional() -> Arc<Self> {
        Arc::new(Self { transactional: true, ..Self::default() })
    }
    pub(crate) fn plain() -> Arc<Self> {
        Arc::new(Self::default())
    }
    /// Everything visible, sorted.
    pub(crate) fn visible(&self) -> Vec<i64> {
        let written = self.written.lock().unwrap();
        let mut all: Vec<i64> =
            written.committed.values().flatten().chain(&written.published).copied().collect();
        all.sort_unstable();
        all
    }
    pub(crate) fn prepared(&self) -> usize {
        self.written.lock().unwrap().prepared.len()
    }
    /// From now on its effects need this power.
    pub(crate) fn plug_into(&self, power: &Arc<Power>) {
        self.written.lock().unwrap().power = Some(Arc::clone(power));
    }
    fn powered<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        powered(&self.written, what, work)
    }
    pub(crate) fn fail_commits(&self, times: u32) {
        self.written.lock().unwrap().commit_failures = times;
    }
}

impl SinkConnector for FakeSink {
    fn schema(&self) -> SchemaRef {
        schema()
    }
    fn mode(&self) -> ChangelogMode {
        ChangelogMode::Append
    }
    fn is_transactional(&self) -> bool {
        self.transactional
    }
    fn open(&self, context: SinkContext) -> Result<Box<dyn SinkWriter>> {
        let name = format!("{}/{}/{}", context.job, context.generation, context.index);
        let written = Arc::clone(&self.written);
        Ok(Box::new(FakeWriter { name, transactional: self.transactional, written, open: Vec::new() }))
    }
    fn commit(&self, committables: &[Committable]) -> Result<()> {
        for committable in committables {
            self.powered("commit output", || self.commit_one(committable.0.as_str().unwrap()))?;
        }
        Ok(())
    }
    fn abort_dangling(&self, job: &str, keep: &[Committable]) -> Result<()> {
        self.powered("abort dangling output", || {
            let keep: BTreeSet<&str> =
                keep.iter().map(|committable| committable.0.as_str().unwrap()).collect();
            let mut written = self.written.lock().unwrap();
            written.prepared.retain(|name, _| !name.starts_with(job) || keep.contains(name.as_str()));
            Ok(())
        })
    }
    fn committed_after(&self, _job: &str, _checkpoint: CheckpointId) -> Result<Option<String>> {
        Ok(None)
    }
}

impl FakeSink {
    fn commit_one(&self, name: &str) -> Result<()> {
        let mut written = self.written.lock().unwrap();
        if written.commit_failures > 0 {
            written.commit_failures -= 1;
            return Err(Error::internal("commit fails"));
        }
        if let Some(rows) = written.prepared.remove(name) {
            assert!(written.committed.insert(name.into(), rows).is_none(), "{name} was prepared twice");
        }
        assert!(written.committed.contains_key(name), "{name} is owed but gone");
        Ok(())
    }
}

/// Work that needs the machine's power, if the sink is plugged in.
fn powered<T>(written: &Mutex<Written>, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let power = written.lock().unwrap().power.clone();
    match power {
        Some(power) => power.around(what, work),
        None => work(),
    }
}

struct FakeWriter {
    name: String,
    transactional: bool,
    written: Arc<Mutex<Written>>,
    open: Vec<i64>,
}

impl SinkWriter for FakeWriter {
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        self.open.extend(values(batch));
        Ok(())
    }
    fn end_epoch(&mut self) -> Result<()> {
        if !self.transactional {
            self.written.lock().unwrap().published.append(&mut self.open);
        }
        Ok(())
    }
    fn pre_commit(&mut self, checkpoint: CheckpointId) -> Result<PreCommit> {
        if self.open.is_empty() {
            return Ok(PreCommit::nothing());
        }
        let (rows, written) = (std::mem::take(&mut self.open), Arc::clone(&self.written));
        let name = format!("{}/{checkpoint}", self.name);
        Ok(PreCommit::new(move || {
            powered(&written, "prepare output", || {
                written.lock().unwrap().prepared.insert(name.clone(), rows);
                Ok(vec![Committable(name.into())])
            })
        }))
    }
}

// ---- operators ----------------------------------------------------------------------------

/// What an operator of a test does with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Emits `key * 1000 + how often the key has come`; the count is state.
    Count,
    /// Passes it on.
    Pass,
    /// Fails with this kind when it meets the number.
    Fail(i64, ErrorKind),
    /// Panics when it meets the number.
    Panic(i64),
}

/// Builds operators that act, and counts how many it has built.
#[derive(Debug)]
pub(crate) struct ActFactory {
    pub(crate) act: Act,
    /// Failures stop after so many builds: an error that passes.
    pub(crate) heals_after: u64,
    pub(crate) built: AtomicU64,
}

impl ActFactory {
    pub(crate) fn new(act: Act) -> Self {
        Self { act, heals_after: u64::MAX, built: AtomicU64::new(0) }
    }
}

impl OperatorFactory for ActFactory {
    fn name(&self) -> &'static str {
        "Act"
    }
    fn schema(&self) -> SchemaRef {
        schema()
    }
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        let built = self.built.fetch_add(1, Ordering::SeqCst);
        let act = if built >= self.heals_after { Act::Pass } else { self.act };
        let table = (self.act == Act::Count).then(|| CountTable::new(context));
        Ok(Box::new(ActOperator { act, table, last: None }))
    }
    fn describe(&self) -> String {
        format!("{:?}", self.act)
    }
}

struct ActOperator {
    act: Act,
    table: Option<CountTable>,
    last: Option<Watermark>,
}

impl ActOperator {
    fn act(&mut self, number: i64) -> Result<i64> {
        match self.act {
            Act::Count => Ok(number * 1000 + self.table.as_mut().unwrap().add(number)),
            Act::Fail(at, kind) if at == number => Err(Error::new(kind, format!("met {at}"))),
            Act::Panic(at) if at == number => panic!("met {at}"),
            Act::Pass | Act::Fail(..) | Act::Panic(_) => Ok(number),
        }
    }
}

impl Operator for ActOperator {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }
    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        assert!(ctx.time > Timestamp::MIN, "an epoch has a time before its first row");
        let acted: Vec<i64> = values(&batch).into_iter().map(|n| self.act(n)).collect::<Result<_>>()?;
        ctx.emit(rows(&acted));
        Ok(Progress::Done)
    }
    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        assert!(watermark >= self.last, "invariant 3");
        self.last = watermark;
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }
    fn resume(&mut self, _: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }
    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        self.table.iter_mut().map(|table| table as &mut dyn StateTable).collect()
    }
    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()> {
        self.last = watermark;
        Ok(())
    }
}

/// Answers `v` with the batches `[10 v]`, `[10 v + 1]`, … one call at a time.
pub(crate) struct Expand {
    count: i64,
    left: Vec<i64>,
}

impl Expand {
    pub(crate) fn boxed(count: i64) -> Box<dyn Operator> {
        Box::new(Self { count, left: Vec::new() })
    }
}

impl Operator for Expand {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }
    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        assert!(self.left.is_empty(), "a batch came before the last was answered");
        self.left =
            values(&batch).iter().flat_map(|v| (0..self.count).map(move |k| v * 10 + k)).rev().collect();
        self.resume(ctx)
    }
    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }
    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        if let Some(next) = self.left.pop() {
            ctx.emit(rows(&[next]));
        }
        Ok(if self.left.is_empty() { Progress::Done } else { Progress::More })
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

// ---- state --------------------------------------------------------------------------------

/// How often each key has come.
struct CountTable {
    def: TableDef,
    context: BuildContext,
    counts: BTreeMap<i64, i64>,
    dirty: BTreeSet<i64>,
    frozen: Option<Delta>,
    /// Rows of the frozen delta that wait for a call.
    undrained: usize,
}

fn hash(key: i64) -> u64 {
    stable_hashes(&[Arc::new(Int64Array::from(vec![key]))], 1).unwrap()[0]
}

impl CountTable {
    fn new(context: BuildContext) -> Self {
        let field = |name| Field::new(name, DataType::Int64, false);
        let def = TableDef {
            name: "counts".into(),
            kind: TableKind::Value,
            schema: Arc::new(Schema::new(vec![field("key"), field("count")])),
            identity_columns: 1,
            partition_columns: vec![0],
        };
        Self { def, context, counts: BTreeMap::new(), dirty: BTreeSet::new(), frozen: None, undrained: 0 }
    }
    fn add(&mut self, key: i64) -> i64 {
        let group = key_group(hash(key), self.context.max_parallelism);
        assert!(self.context.key_groups.contains(group), "invariant 5");
        self.dirty.insert(key);
        let count = self.counts.entry(key).or_default();
        *count += 1;
        *count
    }
    fn delta(&self, keys: impl Iterator<Item = i64>) -> Delta {
        let keys: Vec<i64> = keys.collect();
        let counts: Vec<i64> = keys.iter().map(|key| self.counts[key]).collect();
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(keys)), Arc::new(Int64Array::from(counts))];
        let upserts = RecordBatch::try_new(Arc::clone(&self.def.schema), columns).unwrap();
        let deletes = upserts.slice(0, 0).project(&[0]).unwrap();
        Delta { upserts, deletes, expired_through: None }
    }
}

impl StateTable for CountTable {
    fn def(&self) -> &TableDef {
        &self.def
    }
    fn begin_freeze(&mut self, scope: Scope) -> Result<()> {
        assert!(self.frozen.is_none(), "one frozen set at a time");
        let dirty = std::mem::take(&mut self.dirty);
        self.frozen = Some(match scope {
            Scope::Changes => self.delta(dirty.into_iter()),
            Scope::Everything => self.delta(self.counts.keys().copied()),
        });
        self.undrained = self.frozen.as_ref().map_or(0, |delta| delta.upserts.num_rows());
        Ok(())
    }
    /// A row a call, so that rows, marks and crashes come in between.
    fn drain(&mut self, _budget: &mut usize) -> Result<Option<Frozen>> {
        if self.undrained > 0 {
            self.undrained -= 1;
            return Ok(None);
        }
        let delta = self.frozen.take().expect("it was frozen before");
        Ok(Some(Frozen::new(move || Ok(delta))))
    }
    fn load(&mut self, rows: &RecordBatch, range: KeyGroupRange) -> Result<()> {
        let (keys, counts) =
            (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_primitive::<Int64Type>());
        for (key, count) in keys.values().iter().zip(counts.values()) {
            if range.contains(key_group(hash(*key), self.context.max_parallelism)) {
                self.counts.insert(*key, *count);
            }
        }
        Ok(())
    }
    fn rows(&self) -> usize {
        self.counts.len()
    }
    fn used_bytes(&self) -> usize {
        self.bytes()
    }

    fn bytes(&self) -> usize {
        16 * self.counts.len()
    }
}

/// What is on the fake disk: it outlives a crash.
#[derive(Debug, Default)]
struct Disk {
    files: HashMap<String, Delta>,
    checkpoints: Vec<CheckpointMetadata>,
    generation: u64,
    last: CheckpointId,
    write_failures: u32,
    /// Writes wait while it is held.
    held: bool,
    /// Writes that wait.
    waiting: usize,
}

/// A store in memory. Opening it again is a start of the process after a crash.
#[derive(Debug)]
pub(crate) struct FakeStore {
    disk: Arc<Mutex<Disk>>,
    generation: AtomicU64,
    parts: Mutex<PartLists>,
}

#[derive(Debug, Default)]
struct PartLists {
    parts: HashMap<(OperatorUid, String, usize), Vec<TablePart>>,
    rescaled: BTreeSet<(OperatorUid, String, usize)>,
    /// Deltas whose write failed.
    unwritten: HashMap<(OperatorUid, String, usize), Vec<Delta>>,
}

impl FakeStore {
    pub(crate) fn new() -> Arc<Self> {
        Self::open(Arc::default())
    }
    pub(crate) fn reopen(&self) -> Arc<Self> {
        Self::open(Arc::clone(&self.disk))
    }
    fn open(disk: Arc<Mutex<Disk>>) -> Arc<Self> {
        let mut on_disk = disk.lock().unwrap();
        on_disk.generation += 1;
        let generation = on_disk.generation.into();
        drop(on_disk);
        Arc::new(Self { disk, generation, parts: Mutex::default() })
    }
    /// Storage that is so slow that writes do not end until it is let go.
    pub(crate) fn hold(&self, held: bool) {
        self.disk.lock().unwrap().held = held;
    }
    pub(crate) fn is_waited_for(&self) -> bool {
        self.disk.lock().unwrap().waiting > 0
    }
    fn wait_until_let_go(&self) {
        self.disk.lock().unwrap().waiting += 1;
        while self.disk.lock().unwrap().held {
            std::thread::yield_now();
        }
        self.disk.lock().unwrap().waiting -= 1;
    }
    pub(crate) fn fail_writes(&self, times: u32) {
        self.disk.lock().unwrap().write_failures = times;
    }
}

impl StateStore for FakeStore {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
    fn next_generation(&self) -> Result<u64> {
        let mut disk = self.disk.lock().unwrap();
        disk.generation += 1;
        self.generation.store(disk.generation, Ordering::SeqCst);
        *self.parts.lock().unwrap() = PartLists::default();
        Ok(disk.generation)
    }
    fn last_checkpoint_id(&self) -> CheckpointId {
        self.disk.lock().unwrap().last
    }
    fn newest_completed(&self) -> CheckpointId {
        let disk = self.disk.lock().unwrap();
        disk.checkpoints.iter().map(|metadata| metadata.checkpoint).max().unwrap_or_default()
    }
    fn write_delta(
        &self,
        uid: &OperatorUid,
        def: &TableDef,
        task: usize,
        checkpoint: CheckpointId,
        _: u16,
        delta: Delta,
        base: bool,
    ) -> Result<Vec<TablePart>> {
        self.wait_until_let_go();
        let mut disk = self.disk.lock().unwrap();
        disk.last = disk.last.max(checkpoint);
        let address = (uid.clone(), def.name.clone(), task);
        let mut lists = self.parts.lock().unwrap();
        assert!(base || !lists.rescaled.contains(&address), "a delta where a base is needed");
        lists.rescaled.remove(&address);
        let unwritten = lists.unwritten.entry(address.clone()).or_default();
        unwritten.push(delta);
        if disk.write_failures > 0 {
            disk.write_failures -= 1;
            return Err(Error::unavailable("no space"));
        }
        let deltas = std::mem::take(unwritten);
        let list = lists.parts.entry(address).or_default();
        if base {
            list.clear();
        }
        for (at, delta) in deltas.into_iter().enumerate() {
            let (path, rows) =
                (format!("{uid}/{}/{task}/{checkpoint}.{at}", def.name), delta.upserts.num_rows() as u64);
            disk.files.insert(path.clone(), delta);
            let file = FileHandle { path, bytes: rows * 16, crc32c: "00000000".into() };
            list.push(TablePart {
                file: Some(file),
                checkpoint,
                base: base && at == 0,
                rows,
                expired_through: None,
                window_max: None,
                key_groups: None,
            });
        }
        Ok(list.clone())
    }
    fn link_native(&self, _: CheckpointId) -> Result<Option<String>> {
        Ok(None)
    }
    fn commit(&self, metadata: &CheckpointMetadata) -> Result<()> {
        let mut disk = self.disk.lock().unwrap();
        assert_eq!(disk.generation, metadata.generation, "the fence");
        assert!(disk.checkpoints.iter().all(|older| older.checkpoint < metadata.checkpoint));
        disk.checkpoints.push(metadata.clone());
        Ok(())
    }
    fn retain(&self, retained: usize) -> Result<()> {
        let mut disk = self.disk.lock().unwrap();
        let surplus = disk.checkpoints.len().saturating_sub(retained);
        disk.checkpoints.drain(..surplus);
        Ok(())
    }
    fn abort(&self, _: CheckpointId) -> Result<()> {
        Ok(())
    }
    fn checkpoints(&self, _: Verify) -> Result<Vec<StoredCheckpoint>> {
        let disk = self.disk.lock().unwrap();
        let stored =
            |metadata: &CheckpointMetadata| StoredCheckpoint { metadata: metadata.clone(), bytes: 0 };
        Ok(disk.checkpoints.iter().rev().map(stored).collect())
    }
    fn read_table(
        &self,
        checkpoint: &CheckpointMetadata,
        uid: &OperatorUid,
        def: &TableDef,
        _: KeyGroupRange,
    ) -> Result<Vec<RecordBatch>> {
        let disk = self.disk.lock().unwrap();
        let tables = &checkpoint.operators[uid].tables[&def.name];
        // Later parts overwrite earlier ones when they are loaded in order.
        let files = tables.parts.values().flatten().filter_map(|part| part.file.as_ref());
        Ok(files.map(|file| disk.files[&file.path].upserts.clone()).collect())
    }
    fn continue_from(
        &self,
        checkpoint: &CheckpointMetadata,
        tasks: &BTreeMap<OperatorUid, usize>,
    ) -> Result<()> {
        let mut lists = PartLists::default();
        for (uid, operator) in &checkpoint.operators {
            for (name, table) in &operator.tables {
                let count = tasks.get(uid).copied().unwrap_or(0);
                if count != table.parts.len() {
                    lists.rescaled.extend((0..count).map(|task| (uid.clone(), name.clone(), task)));
                    continue;
                }
                for (task, parts) in &table.parts {
                    lists.parts.insert((uid.clone(), name.clone(), *task), parts.clone());
                }
            }
        }
        *self.parts.lock().unwrap() = lists;
        Ok(())
    }
    fn needs_base(&self, uid: &OperatorUid, table: &str, task: usize) -> bool {
        self.parts.lock().unwrap().rescaled.contains(&(uid.clone(), table.to_string(), task))
    }
}

// ---- graphs -------------------------------------------------------------------------------

/// Keeps no dead letters.
#[derive(Debug)]
pub(crate) struct NoDeadLetters;

impl DeadLetterOffice for NoDeadLetters {
    fn keep(&self, _: DeadLetter) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn environment(store: Arc<FakeStore>) -> Environment {
    Environment {
        clock: Arc::new(SystemClock),
        store,
        dead_letters: Arc::new(NoDeadLetters),
        log_dir: None,
        memory: Memory::unlimited(),
    }
}

pub(crate) fn options() -> JobOptions {
    JobOptions {
        job: "j".into(),
        writer: "j".into(),
        restart: crate::options::RestartPolicy { attempts: Some(5), delay: 0, delay_max: 0 },
        ..JobOptions::default()
    }
}

pub(crate) fn uid(name: &str) -> OperatorUid {
    OperatorUid(name.into())
}

pub(crate) fn source_node(name: &str, source: &Arc<FakeSource>) -> SourceNode {
    SourceNode {
        uid: uid(name),
        table: name.into(),
        connector: Arc::clone(source) as Arc<dyn SourceConnector>,
        projection: vec![0, 1],
        event_time: event_time(),
        bad_rows: BadRows::Fail,
        on_missing_file: OnMissingFile::Fail,
        idle_timeout: 0,
    }
}

pub(crate) fn source_fragment(
    name: &str,
    source: &Arc<FakeSource>,
    parallelism: usize,
    tail: Vec<Tail>,
) -> Fragment {
    Fragment { parallelism, head: Head::Source(source_node(name, source)), chain: Vec::new(), tail }
}

pub(crate) fn act_fragment(factory: ActFactory, inputs: usize, parallelism: usize, tail: Tail) -> Fragment {
    let node = OperatorNode { uid: uid("act"), factory: Arc::new(factory) };
    Fragment { parallelism, head: Head::Inputs(inputs), chain: vec![node], tail: vec![tail] }
}

pub(crate) fn edge(to: usize, input: usize, exchange: Exchange) -> Tail {
    Tail::Edge { to, input, exchange }
}

pub(crate) fn sink_tail(sink: &Arc<FakeSink>) -> Tail {
    Tail::Sink(SinkNode {
        uid: uid("sink"),
        table: "out".into(),
        connector: Arc::clone(sink) as Arc<dyn SinkConnector>,
    })
}

/// source ─hash─▶ act ─▶ tail
pub(crate) fn pipeline(
    source: &Arc<FakeSource>,
    act: ActFactory,
    parallelism: usize,
    tail: Tail,
) -> JobGraph {
    let to_act = vec![edge(1, 0, Exchange::Hash(vec![0]))];
    let fragments =
        vec![source_fragment("in", source, parallelism, to_act), act_fragment(act, 1, parallelism, tail)];
    JobGraph { fragments, max_parallelism: 256 }
}

/// What counting gives, sorted.
pub(crate) fn counted(numbers: &[i64]) -> Vec<i64> {
    let mut counts = BTreeMap::<i64, i64>::new();
    let mut count = |number: &i64| {
        let count = counts.entry(*number).or_default();
        *count += 1;
        number * 1000 + *count
    };
    let mut counted: Vec<i64> = numbers.iter().map(&mut count).collect();
    counted.sort_unstable();
    counted
}
