//! What checkpoints cost: pauses, throughput, bytes, and how fast state comes back.
//!
//! One task adds up three sums by a BIGINT key in a value table, as fast as it can, and every
//! second (of its processor time) takes a checkpoint as the runtime does: freeze, drain a slice
//! after each batch, store on another thread. `benches/checkpoint/run` builds and runs it.
//!
//! ```text
//! checkpoint_speed [keys=10000000] [runs=5] [seconds=5] [backend=filesystem|rocksdb] [dir=/tmp/…]
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for developers")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use millpond_core::key::stable_hashes;
use millpond_core::limits::{BATCH_ROWS_MAX, DRAIN_ROWS};
use millpond_core::{CheckpointId, KeyGroupRange, OperatorUid, Result, Timestamp};
use millpond_state::{
    Backend, CheckpointMetadata, Frozen, OperatorSnapshot, Scope, StateStore, StateTable, StoreOptions,
    TableDef, TableKind, TablePart, TableSnapshot, ValueTable, open_store,
};

const KEY_GROUPS: u16 = 256;
const NANOS: f64 = 1e9;

/// What the command line says.
struct Settings {
    keys: u64,
    runs: usize,
    seconds: f64,
    backend: Backend,
    dir: PathBuf,
}

impl Settings {
    fn read() -> Self {
        let mut settings = Self {
            keys: 10_000_000,
            runs: 5,
            seconds: 5.0,
            backend: Backend::Filesystem,
            dir: std::env::temp_dir().join(format!("millpond-checkpoint-speed-{}", std::process::id())),
        };
        for argument in std::env::args().skip(1) {
            let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
            match name {
                "keys" => settings.keys = value.parse().unwrap(),
                "runs" => settings.runs = value.parse().unwrap(),
                "seconds" => settings.seconds = value.parse().unwrap(),
                "backend" if value == "rocksdb" => settings.backend = Backend::Rocksdb,
                "backend" => settings.backend = Backend::Filesystem,
                "dir" => settings.dir = value.into(),
                _ => panic!("unknown argument {argument:?}"),
            }
        }
        settings
    }
}

fn main() -> Result<()> {
    let settings = Settings::read();
    let store = open_store(&StoreOptions { backend: settings.backend, dir: Some(settings.dir.join("job")) })?;
    let mut bench = Bench::new(&settings, store)?;
    bench.preload()?;
    println!(
        "{} keys, {:?}, {} runs of {} s",
        settings.keys, settings.backend, settings.runs, settings.seconds
    );
    for pattern in [Pattern::Hot, Pattern::All] {
        let mut runs = Vec::new();
        for _ in 0..settings.runs {
            let quiet = bench.run(pattern, settings.seconds, false)?;
            runs.push((quiet, bench.run(pattern, settings.seconds, true)?));
        }
        report(pattern, &runs);
    }
    bench.restore(settings.runs)?;
    drop(bench);
    std::fs::remove_dir_all(&settings.dir).unwrap();
    Ok(())
}

/// Which keys change.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// Nine of ten rows go to one key of a hundred.
    Hot,
    /// All keys alike.
    All,
}

/// What a run has cost.
#[derive(Debug, Default)]
struct Run {
    rows: u64,
    task_nanos: u64,
    /// Of all other threads.
    background_nanos: u64,
    checkpoints: u64,
    freezes: Vec<u64>,
    /// Batches while nothing is drained, and batches with a slice.
    plain: Vec<u64>,
    draining: Vec<u64>,
    changed: u64,
    bytes: u64,
    storing_nanos: u64,
}

impl Run {
    fn nanos_per_row(&self) -> f64 {
        self.task_nanos as f64 / self.rows as f64
    }
}

/// The task, its table and the store behind it.
struct Bench {
    store: Arc<dyn StateStore>,
    uid: OperatorUid,
    table: ValueTable,
    keys: u64,
    seed: u64,
    checkpoint: u64,
    clock: TaskClock,
    last: Option<CheckpointMetadata>,
    slots: Vec<u32>,
    native_bytes: u64,
    dir: PathBuf,
}

impl Bench {
    fn new(settings: &Settings, store: Arc<dyn StateStore>) -> Result<Self> {
        Ok(Self {
            store,
            uid: OperatorUid("1".into()),
            table: ValueTable::new(def(), KEY_GROUPS)?,
            keys: settings.keys,
            seed: 88_172_645_463_325_252,
            checkpoint: 0,
            clock: TaskClock::new(),
            last: None,
            slots: Vec::new(),
            native_bytes: 0,
            dir: settings.dir.join("job"),
        })
    }

    /// Every key once; then a base, in slices.
    fn preload(&mut self) -> Result<()> {
        let mut next = 0;
        while next < self.keys {
            let end = self.keys.min(next + BATCH_ROWS_MAX as u64);
            let keys = Int64Array::from_iter_values((next..end).map(|key| spread(key) as i64));
            self.add(Arc::new(keys))?;
            next = end;
        }
        let (start, process) = (self.clock.nanos(), process_nanos());
        let frozen = self.table.freeze_all()?;
        let drained = self.clock.nanos() - start;
        let parts = self.store(frozen, true)?;
        let all = process_nanos() - process;
        let bytes: u64 = parts.iter().filter_map(|part| part.file.as_ref()).map(|file| file.bytes).sum();
        println!(
            "base: {:.0} ns drained and {:.2} µs in all per key, {:.1} bytes of Parquet per key",
            drained as f64 / self.keys as f64,
            all as f64 / self.keys as f64 / 1e3,
            bytes as f64 / self.keys as f64
        );
        Ok(())
    }

    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn batch(&mut self, pattern: Pattern) -> ArrayRef {
        let (keys, hot) = (self.keys, self.keys / 100);
        let key = |bench: &mut Self| {
            let random = bench.random();
            match pattern {
                Pattern::Hot if !random.is_multiple_of(10) => (random >> 8) % hot,
                Pattern::Hot | Pattern::All => (random >> 8) % keys,
            }
        };
        Arc::new(Int64Array::from_iter_values((0..BATCH_ROWS_MAX).map(|_| spread(key(self)) as i64)))
    }

    /// What an aggregate with three sums does with a batch.
    fn add(&mut self, keys: ArrayRef) -> Result<()> {
        let values = keys.as_primitive::<Int64Type>().values().clone();
        let hashes = stable_hashes(std::slice::from_ref(&keys), keys.len())?;
        self.table.slots_for(&[keys], &hashes, &mut self.slots)?;
        for (place, column) in self.table.columns_mut().iter_mut().enumerate() {
            let sums = column.i64s_mut();
            for (slot, value) in self.slots.iter().zip(&values) {
                let sum = &mut sums[*slot as usize];
                *sum = match place {
                    0 => *sum + 1,
                    1 => *sum + value % 1000,
                    _ => (*sum).max(value % 1000),
                };
            }
        }
        Ok(())
    }

    /// As many rows as fit in some seconds of the task's processor time.
    fn run(&mut self, pattern: Pattern, seconds: f64, checkpoints: bool) -> Result<Run> {
        let mut run = Run::default();
        let (process, thread) = (process_nanos(), self.clock.nanos());
        let mut since_barrier = 0;
        let mut draining = false;
        let mut storing: Option<mpsc::Receiver<(Result<Vec<TablePart>>, u64)>> = None;
        while (run.task_nanos as f64) < seconds * NANOS {
            let batch = self.batch(pattern);
            let start = self.clock.nanos();
            self.add(batch)?;
            run.rows += BATCH_ROWS_MAX as u64;
            let mut frozen = None;
            if draining {
                frozen = self.table.drain(&mut { DRAIN_ROWS })?;
            }
            let mut nanos = self.clock.nanos() - start;
            if draining {
                run.draining.push(nanos)
            } else {
                run.plain.push(nanos)
            }
            if let Some(frozen) = frozen {
                draining = false;
                storing = Some(self.start_storing(frozen));
            }
            let stored = storing.as_ref().and_then(|answer| answer.try_recv().ok());
            if let Some((parts, nanos)) = stored {
                storing = None;
                run.storing_nanos += nanos;
                self.count(&mut run, parts?)?;
            }
            since_barrier += nanos;
            if checkpoints && since_barrier as f64 >= NANOS && !draining && storing.is_none() {
                let start = self.clock.nanos();
                self.table.begin_freeze(Scope::Changes)?;
                let freeze = self.clock.nanos() - start;
                run.freezes.push(freeze);
                nanos += freeze;
                (draining, since_barrier) = (true, 0);
            }
            run.task_nanos += nanos;
        }
        // What is under way belongs to this run.
        while draining {
            let start = self.clock.nanos();
            if let Some(frozen) = self.table.drain(&mut { DRAIN_ROWS })? {
                draining = false;
                storing = Some(self.start_storing(frozen));
            }
            run.task_nanos += self.clock.nanos() - start;
        }
        if let Some(answer) = storing {
            let (parts, nanos) = answer.recv().unwrap();
            run.storing_nanos += nanos;
            self.count(&mut run, parts?)?;
        }
        run.background_nanos = (process_nanos() - process).saturating_sub(self.clock.nanos() - thread);
        if !checkpoints {
            // The next run's first delta is to hold only what that run changes.
            let frozen = self.table.freeze()?;
            self.store(frozen, false)?;
        }
        Ok(run)
    }

    fn count(&mut self, run: &mut Run, parts: Vec<TablePart>) -> Result<()> {
        let checkpoint = CheckpointId(self.checkpoint);
        for part in parts.iter().filter(|part| part.checkpoint == checkpoint) {
            run.changed += part.rows;
            run.bytes += part.file.as_ref().map_or(0, |file| file.bytes);
        }
        run.checkpoints += 1;
        self.commit(parts)
    }

    fn start_storing(&mut self, frozen: Frozen) -> mpsc::Receiver<(Result<Vec<TablePart>>, u64)> {
        self.checkpoint += 1;
        let (store, uid, checkpoint) = (self.store.clone(), self.uid.clone(), self.checkpoint);
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || {
            let mut clock = TaskClock::new();
            let start = clock.nanos();
            let parts = frozen.into_delta().and_then(|delta| {
                store.write_delta(&uid, &def(), 0, CheckpointId(checkpoint), KEY_GROUPS, delta, false)
            });
            answer.send((parts, clock.nanos() - start)).unwrap();
        });
        answered
    }

    fn store(&mut self, frozen: Frozen, base: bool) -> Result<Vec<TablePart>> {
        self.checkpoint += 1;
        let checkpoint = CheckpointId(self.checkpoint);
        let delta = frozen.into_delta()?;
        let parts = self.store.write_delta(&self.uid, &def(), 0, checkpoint, KEY_GROUPS, delta, base)?;
        self.commit(parts.clone())?;
        Ok(parts)
    }

    fn commit(&mut self, parts: Vec<TablePart>) -> Result<()> {
        let checkpoint = CheckpointId(self.checkpoint);
        let mut table = TableSnapshot::describe(&def());
        table.parts.insert(0, parts);
        let operator = OperatorSnapshot {
            name: "Sums".into(),
            tables: BTreeMap::from([("sums".into(), table)]),
            lists: BTreeMap::new(),
        };
        let native = self.store.link_native(checkpoint)?;
        if let Some(native) = &native {
            self.native_bytes = folder_bytes(&self.dir.join(native));
        }
        let metadata = CheckpointMetadata {
            format: "millpond-checkpoint/1".into(),
            engine_version: env!("CARGO_PKG_VERSION").into(),
            job: "1".into(),
            generation: self.store.generation(),
            writer: String::new(),
            checkpoint,
            kind: "checkpoint".into(),
            trigger: "interval".into(),
            mode: "exactly_once".into(),
            triggered_at: Timestamp(0),
            completed_at: Timestamp(0),
            max_parallelism: KEY_GROUPS,
            finished: false,
            operators: BTreeMap::from([(self.uid.clone(), operator)]),
            native,
        };
        self.store.commit(&metadata)?;
        self.store.retain(2)?;
        self.last = Some(metadata);
        Ok(())
    }

    /// Reads everything back into an empty table.
    fn restore(&mut self, runs: usize) -> Result<()> {
        let metadata = self.last.take().unwrap();
        let (mut reads, mut loads) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let mut table = ValueTable::new(def(), KEY_GROUPS)?;
            let all = KeyGroupRange::all(KEY_GROUPS);
            let start = self.clock.nanos();
            let rows = self.store.read_table(&metadata, &self.uid, &def(), all)?;
            reads.push(self.clock.nanos() - start);
            let start = self.clock.nanos();
            for batch in &rows {
                table.load(batch, all)?;
            }
            loads.push(self.clock.nanos() - start);
            assert_eq!(table.rows() as u64, self.keys);
        }
        let total: Vec<u64> = reads.iter().zip(&loads).map(|(read, load)| read + load).collect();
        println!(
            "restore: {:.2} million keys/s per core (read {:.2} s, load {:.2} s)",
            self.keys as f64 / median(&total) as f64 * 1e3,
            median(&reads) as f64 / NANOS,
            median(&loads) as f64 / NANOS
        );
        if self.native_bytes > 0 {
            println!(
                "rocksdb: {:.1} bytes per key of its files",
                self.native_bytes as f64 / self.keys as f64
            );
        }
        Ok(())
    }
}

fn report(pattern: Pattern, runs: &[(Run, Run)]) {
    let of = |figure: &dyn Fn(&(Run, Run)) -> f64| {
        let mut figures: Vec<f64> = runs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let name = match pattern {
        Pattern::Hot => "90 % of rows on 1 % of keys",
        Pattern::All => "all keys change",
    };
    let loss = of(&|(quiet, busy)| (1.0 - quiet.nanos_per_row() / busy.nanos_per_row()) * 100.0);
    let freezes: Vec<u64> = runs.iter().flat_map(|(_, busy)| busy.freezes.clone()).collect();
    let slowest = of(&|(quiet, busy)| {
        busy.draining.iter().max().copied().unwrap_or(0) as f64 / median(&quiet.plain) as f64
    });
    let p999 = of(&|(quiet, busy)| quantile(&busy.draining, 0.999) as f64 / median(&quiet.plain) as f64);
    println!("{name}:");
    println!(
        "  row: {:.0} ns without checkpoints, {:.0} ns with: {loss:.1} % less throughput",
        of(&|(quiet, _)| quiet.nanos_per_row()),
        of(&|(_, busy)| busy.nanos_per_row())
    );
    println!("  freeze: p99 {:.3} ms of {}", quantile(&freezes, 0.99) as f64 / 1e6, freezes.len());
    println!(
        "  batch: median {:.2} ms; while draining median {:.2} ms, slowest {slowest:.1} × (p99.9 {p999:.1} ×) the median",
        of(&|(quiet, _)| median(&quiet.plain) as f64 / 1e6),
        of(&|(_, busy)| median(&busy.draining) as f64 / 1e6)
    );
    println!(
        "  changed keys per checkpoint: {:.0}; {:.2} µs of storing and {:.2} µs in all per changed key; {:.1} bytes of Parquet",
        of(&|(_, busy)| busy.changed as f64 / busy.checkpoints as f64),
        of(&|(_, busy)| busy.storing_nanos as f64 / busy.changed as f64 / 1e3),
        of(&|(quiet, busy)| {
            let extra = (busy.nanos_per_row() - quiet.nanos_per_row()) * busy.rows as f64;
            (busy.background_nanos as f64 + extra) / busy.changed as f64 / 1e3
        }),
        of(&|(_, busy)| busy.bytes as f64 / busy.changed as f64)
    );
}

fn median(figures: &[u64]) -> u64 {
    quantile(figures, 0.5)
}

fn quantile(figures: &[u64], share: f64) -> u64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable();
    let at = (figures.len() as f64 * share) as usize;
    figures.get(at.min(figures.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Keys are not dense: neighbours in the sequence are far apart.
fn spread(key: u64) -> u64 {
    key.wrapping_mul(2_654_435_761) % 100_000_000_003
}

fn def() -> TableDef {
    let field = |name| Field::new(name, DataType::Int64, false);
    TableDef {
        name: "sums".into(),
        kind: TableKind::Value,
        schema: Arc::new(Schema::new(vec![field("key"), field("count"), field("sum"), field("max")])),
        identity_columns: 1,
        partition_columns: vec![0],
    }
}

/// Processor time of this thread.
struct TaskClock(std::fs::File);

impl TaskClock {
    fn new() -> Self {
        Self(std::fs::File::open("/proc/thread-self/schedstat").unwrap())
    }

    fn nanos(&mut self) -> u64 {
        use std::os::unix::fs::FileExt;
        // The kernel brings the figure up to date when a thread yields.
        std::thread::yield_now();
        let mut text = [0u8; 64];
        let length = self.0.read_at(&mut text, 0).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

/// Processor time of this process, in steps of 10 ms.
fn process_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10_000_000
}

fn folder_bytes(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() { folder_bytes(&entry.path()) } else { metadata.len() }
        })
        .sum()
}
