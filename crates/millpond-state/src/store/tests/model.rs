//! A job of three tables whose contents are known, and the store under test.

use super::*;

pub(super) const GROUPS: u16 = 32;

/// Identity (number, text) → values.
pub(super) type Rows = BTreeMap<(i64, String), (Option<i64>, Option<String>)>;

pub(super) fn uid() -> OperatorUid {
    OperatorUid("agg/1 ä".into())
}

/// A table whose identity is a number and a text, in this or the other order.
pub(super) struct Shape {
    pub(super) def: TableDef,
}

impl Shape {
    fn new(name: &str, kind: TableKind) -> Self {
        let number = if kind == TableKind::Multimap { DataType::UInt64 } else { DataType::Int64 };
        let mut fields = vec![Field::new("number", number, false), Field::new("text", DataType::Utf8, false)];
        if kind == TableKind::Multimap {
            fields.reverse();
        }
        fields.extend([Field::new("v", DataType::Int64, true), Field::new("w", DataType::Utf8, true)]);
        let partition_columns = match kind {
            TableKind::Value => vec![0, 1],
            TableKind::Window => vec![1],
            TableKind::Multimap => vec![0],
        };
        let schema = std::sync::Arc::new(Schema::new(fields));
        Self { def: TableDef { name: name.into(), kind, schema, identity_columns: 2, partition_columns } }
    }

    fn identity(&self, keys: &[&(i64, String)]) -> Vec<ArrayRef> {
        let numbers: Vec<i64> = keys.iter().map(|key| key.0).collect();
        let texts: ArrayRef =
            std::sync::Arc::new(StringArray::from_iter_values(keys.iter().map(|key| &key.1)));
        if self.def.kind == TableKind::Multimap {
            let numbers = UInt64Array::from_iter_values(numbers.iter().map(|number| *number as u64));
            return vec![texts, std::sync::Arc::new(numbers)];
        }
        vec![std::sync::Arc::new(Int64Array::from(numbers)), texts]
    }

    pub(super) fn delta(
        &self,
        upserts: &Rows,
        deletes: &[(i64, String)],
        expired_through: Option<i64>,
    ) -> Delta {
        let mut columns = self.identity(&upserts.keys().collect::<Vec<_>>());
        columns.push(std::sync::Arc::new(upserts.values().map(|values| values.0).collect::<Int64Array>()));
        columns.push(std::sync::Arc::new(
            upserts.values().map(|values| values.1.clone()).collect::<StringArray>(),
        ));
        let identity = std::sync::Arc::new(self.def.schema.project(&[0, 1]).unwrap());
        Delta {
            upserts: RecordBatch::try_new(self.def.schema.clone(), columns).unwrap(),
            deletes: RecordBatch::try_new(identity, self.identity(&deletes.iter().collect::<Vec<_>>()))
                .unwrap(),
            expired_through,
        }
    }

    /// The task that owns a key.
    fn task(&self, key: &(i64, String), tasks: usize) -> usize {
        let identity = self.identity(&[key]);
        let partition: Vec<ArrayRef> =
            self.def.partition_columns.iter().map(|i| identity[*i].clone()).collect();
        let hashes = stable_hashes(&partition, 1).unwrap();
        KeyGroupRange::task_of(key_group(hashes[0], GROUPS), tasks, GROUPS)
    }

    /// The rows of batches; each identity must be there once.
    fn collect(&self, batches: &[RecordBatch], rows: &mut Rows) {
        for batch in batches {
            assert_eq!(batch.schema(), self.def.schema);
            let values = batch.column(2).as_primitive::<Int64Type>();
            let texts = batch.column(3).as_string::<i32>();
            for row in 0..batch.num_rows() {
                let key = match self.def.kind {
                    TableKind::Multimap => {
                        let number = batch.column(1).as_primitive::<UInt64Type>().value(row) as i64;
                        (number, batch.column(0).as_string::<i32>().value(row).to_string())
                    }
                    TableKind::Value | TableKind::Window => {
                        let number = batch.column(0).as_primitive::<Int64Type>().value(row);
                        (number, batch.column(1).as_string::<i32>().value(row).to_string())
                    }
                };
                let value = values.is_valid(row).then(|| values.value(row));
                let text = texts.is_valid(row).then(|| texts.value(row).to_string());
                assert!(rows.insert(key, (value, text)).is_none(), "a row came twice");
            }
        }
    }
}

/// The tables of the job.
pub(super) struct Tables {
    pub(super) value: Shape,
    window: Shape,
    multimap: Shape,
}

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            value: Shape::new("value", TableKind::Value),
            window: Shape::new("window", TableKind::Window),
            multimap: Shape::new("multi map", TableKind::Multimap),
        }
    }
    /// The definitions of all tables.
    pub(super) fn defs(&self) -> impl Iterator<Item = &TableDef> {
        self.all().into_iter().map(|shape| &shape.def)
    }

    /// Reads a snapshot by so many tasks.
    pub(super) fn read_from(&self, snapshot: &crate::savepoint::Snapshot, tasks: usize) -> Contents {
        let mut contents = Contents::default();
        for (shape, rows) in self.all().into_iter().zip(&mut contents) {
            for task in 0..tasks {
                let range = KeyGroupRange::of_task(task, tasks, GROUPS);
                shape.collect(&snapshot.read_table(&uid(), &shape.def, range).unwrap(), rows);
            }
        }
        contents
    }

    fn all(&self) -> [&Shape; 3] {
        [&self.value, &self.window, &self.multimap]
    }
}

/// What the tables hold.
pub(super) type Contents = [Rows; 3];

/// What changed since the last freeze.
#[derive(Default, Clone)]
struct Changes {
    upserts: Rows,
    deletes: Vec<(i64, String)>,
    expired_through: Option<i64>,
}

/// A job: its store, the model of its state, and the model's state at every checkpoint.
pub(super) struct Job {
    store: Option<Arc<dyn StateStore>>,
    options: StoreOptions,
    /// Where the truth is, if it is elsewhere.
    remote: Option<Arc<dyn RemoteFiles>>,
    tables: Tables,
    tasks: usize,
    contents: Contents,
    changes: [Changes; 3],
    expired_through: i64,
    pub(super) history: BTreeMap<CheckpointId, Contents>,
}

impl Job {
    pub(super) fn open(backend: Backend, dir: &Path, tasks: usize) -> Self {
        let options = options(backend, dir);
        Self {
            store: Some(open_store(&options).unwrap()),
            options,
            remote: None,
            tables: Tables::new(),
            tasks,
            contents: Contents::default(),
            changes: Default::default(),
            expired_through: 0,
            history: BTreeMap::new(),
        }
    }

    /// A job whose checkpoints are elsewhere.
    pub(super) fn open_remote(
        backend: Backend,
        dir: &Path,
        tasks: usize,
        remote: Arc<dyn RemoteFiles>,
    ) -> Self {
        let mut job = Self::open(Backend::Memory, dir, tasks);
        job.options = options(backend, dir);
        job.store = Some(Arc::new(RemoteStore::open(&job.options, remote.clone()).unwrap()));
        job.remote = Some(remote);
        job
    }

    /// Starts again on a machine that has nothing of the job.
    pub(super) fn move_away(&mut self, tasks: usize) {
        self.store = None;
        std::fs::remove_dir_all(self.options.dir.as_ref().unwrap()).unwrap();
        self.restart(tasks);
    }

    pub(super) fn store(&self) -> &dyn StateStore {
        self.store.as_deref().unwrap()
    }

    pub(super) fn newest(&self) -> StoredCheckpoint {
        self.store().checkpoints(Verify::Size).unwrap().remove(0)
    }

    /// Makes about `count` random changes to each table.
    pub(super) fn change(&mut self, random: &mut Random, count: u64) {
        for table in 0..3 {
            for _ in 0..random.below(count) + 1 {
                let number = random.below(count / 2 + 5) as i64
                    + if table == 1 { self.expired_through + 1 } else { 0 };
                let key = (number, format!("k{}", random.below(6)));
                if random.below(4) == 0 { self.delete(table, key) } else { self.upsert(table, key, random) }
            }
        }
        if random.below(3) == 0 {
            self.expire(random.below(5) as i64);
        }
    }

    fn upsert(&mut self, table: usize, key: (i64, String), random: &mut Random) {
        let text = (random.below(3) > 0).then(|| "x".repeat(random.below(9) as usize));
        let values = ((random.below(3) > 0).then(|| random.next_u64() as i64), text);
        self.contents[table].insert(key.clone(), values.clone());
        self.changes[table].deletes.retain(|deleted| *deleted != key);
        self.changes[table].upserts.insert(key, values);
    }

    fn delete(&mut self, table: usize, key: (i64, String)) {
        if self.contents[table].remove(&key).is_some() {
            self.changes[table].upserts.remove(&key);
            self.changes[table].deletes.push(key);
        }
    }

    fn expire(&mut self, by: i64) {
        self.expired_through += by;
        let through = self.expired_through;
        self.contents[1].retain(|key, _| key.0 > through);
        let changes = &mut self.changes[1];
        changes.upserts.retain(|key, _| key.0 > through);
        changes.deletes.retain(|key| key.0 > through);
        changes.expired_through = Some(through);
    }

    /// The deltas of all tasks, as frozen at a barrier; the changes are the store's from here on.
    fn write(&mut self, checkpoint: CheckpointId) -> Result<OperatorSnapshot> {
        let changes = std::mem::take(&mut self.changes);
        let mut operator = OperatorSnapshot { name: "Model".into(), ..Default::default() };
        let mut failed = None;
        for ((shape, changes), contents) in self.tables.all().into_iter().zip(&changes).zip(&self.contents) {
            let mut snapshot = TableSnapshot::describe(&shape.def);
            for task in 0..self.tasks {
                let name = &shape.def.name;
                let base = self.store().needs_base(&uid(), name, task);
                let delta =
                    if base { self.base(shape, contents, task) } else { self.delta(shape, changes, task) };
                match self.store().write_delta(&uid(), &shape.def, task, checkpoint, GROUPS, delta, base) {
                    Ok(parts) => drop(snapshot.parts.insert(task, parts)),
                    Err(error) => failed = Some(error),
                }
            }
            operator.tables.insert(shape.def.name.clone(), snapshot);
        }
        failed.map_or(Ok(operator), Err)
    }

    fn delta(&self, shape: &Shape, changes: &Changes, task: usize) -> Delta {
        let mine = |key: &(i64, String)| shape.task(key, self.tasks) == task;
        let upserts = changes.upserts.iter().filter(|(key, _)| mine(key));
        let upserts = upserts.map(|(key, values)| (key.clone(), values.clone())).collect();
        let deletes: Vec<_> = changes.deletes.iter().filter(|key| mine(key)).cloned().collect();
        shape.delta(&upserts, &deletes, changes.expired_through)
    }

    fn base(&self, shape: &Shape, contents: &Rows, task: usize) -> Delta {
        let mine = contents.iter().filter(|(key, _)| shape.task(key, self.tasks) == task);
        shape.delta(&mine.map(|(key, values)| (key.clone(), values.clone())).collect(), &[], None)
    }

    pub(super) fn checkpoint(&mut self) {
        self.try_checkpoint().unwrap();
    }

    pub(super) fn try_checkpoint(&mut self) -> Result<()> {
        let checkpoint = self.store().last_checkpoint_id().next();
        let operator = match self.write(checkpoint) {
            Ok(operator) => operator,
            Err(error) => {
                self.store().abort(checkpoint)?;
                return Err(error);
            }
        };
        let native = self.store().link_native(checkpoint)?;
        let metadata = metadata(self.store().generation(), checkpoint, operator, native);
        self.store().commit(&metadata)?;
        self.history.insert(checkpoint, self.contents.clone());
        self.store().retain(3)
    }

    /// All parts are written, then the checkpoint is given up.
    pub(super) fn fail_checkpoint(&mut self) {
        let checkpoint = self.store().last_checkpoint_id().next();
        self.write(checkpoint).unwrap();
        self.store().link_native(checkpoint).unwrap();
        self.store().abort(checkpoint).unwrap();
    }

    /// Crashes and restores from the newest checkpoint, with another number of tasks.
    pub(super) fn restart(&mut self, tasks: usize) {
        self.restart_as(self.options.backend, tasks);
    }

    pub(super) fn restart_as(&mut self, backend: Backend, tasks: usize) {
        self.options.backend = backend;
        if backend == Backend::Memory {
            self.store().next_generation().unwrap();
        } else {
            self.store = None;
            self.store = Some(match &self.remote {
                None => open_store(&self.options).unwrap(),
                Some(remote) => Arc::new(RemoteStore::open(&self.options, remote.clone()).unwrap()),
            });
        }
        self.tasks = tasks;
        self.changes = Default::default();
        self.contents = Contents::default();
        if let Some(newest) = self.store().checkpoints(Verify::Crc).unwrap().first() {
            self.contents = self.read(&newest.metadata, tasks);
            let tasks = BTreeMap::from([(uid(), tasks)]);
            self.store().continue_from(&newest.metadata, &tasks).unwrap();
        }
    }

    /// Reads a checkpoint by so many tasks.
    pub(super) fn read(&self, metadata: &CheckpointMetadata, tasks: usize) -> Contents {
        self.try_read(metadata, tasks).unwrap()
    }

    pub(super) fn try_read(&self, metadata: &CheckpointMetadata, tasks: usize) -> Result<Contents> {
        let mut contents = Contents::default();
        for (shape, rows) in self.tables.all().into_iter().zip(&mut contents) {
            for task in 0..tasks {
                let range = KeyGroupRange::of_task(task, tasks, GROUPS);
                shape.collect(&self.store().read_table(metadata, &uid(), &shape.def, range)?, rows);
            }
        }
        Ok(contents)
    }

    /// Every retained checkpoint has the rows that it had.
    pub(super) fn verify(&self) {
        for stored in self.store().checkpoints(Verify::Crc).unwrap() {
            let checkpoint = stored.metadata.checkpoint;
            for tasks in 1..=3 {
                assert_eq!(
                    self.read(&stored.metadata, tasks),
                    self.history[&checkpoint],
                    "checkpoint {checkpoint}"
                );
            }
        }
    }

    /// Ends without a word, as a crash does.
    pub(super) fn crash(self) -> BTreeMap<CheckpointId, Contents> {
        self.history
    }

    /// A job on a folder that another has left.
    pub(super) fn reopen(
        backend: Backend,
        dir: &Path,
        history: &BTreeMap<CheckpointId, Contents>,
    ) -> Result<Self> {
        let options = options(backend, dir);
        Ok(Self {
            store: Some(open_store(&options)?),
            options,
            remote: None,
            tables: Tables::new(),
            tasks: 1,
            contents: Contents::default(),
            changes: Default::default(),
            expired_through: 0,
            history: history.clone(),
        })
    }
}

pub(super) fn metadata(
    generation: u64,
    checkpoint: CheckpointId,
    operator: OperatorSnapshot,
    native: Option<String>,
) -> CheckpointMetadata {
    CheckpointMetadata {
        format: FORMAT.into(),
        engine_version: "0".into(),
        job: "model".into(),
        writer: "0-model".into(),
        generation,
        checkpoint,
        kind: "checkpoint".into(),
        trigger: "manual".into(),
        mode: "exactly_once".into(),
        triggered_at: Timestamp(0),
        completed_at: Timestamp(0),
        max_parallelism: GROUPS,
        finished: false,
        operators: BTreeMap::from([(uid(), operator)]),
        native,
    }
}

/// The paths of all files below a folder, sorted.
pub(super) fn files_below(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, below: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(folder, &path, files);
            } else {
                files.push(path.strip_prefix(folder).unwrap().to_str().unwrap().into());
            }
        }
    }
    let mut files = Vec::new();
    walk(folder, folder, &mut files);
    files.sort();
    files
}
