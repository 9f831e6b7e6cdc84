//! The engine: a catalog, its jobs and a data directory.
//!
//! An engine owns what exists; sessions say what is to be done. It runs inside the host's tokio
//! runtime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond_connect::ConnectorTable;
use millpond_connect::object_files::is_object_store;
use millpond_core::Timestamp;
use millpond_core::random::Random;
use millpond_core::{Clock, DeadLetterOffice, Error, JobId, Result, SystemClock};
use millpond_planner::datafusion::logical_expr::AggregateUDF;
use millpond_planner::{Catalog, CatalogEntry};
use millpond_runtime::{Memory, MemoryBudget};
use millpond_state::{Backend, SpillArea, StateStore};

use crate::catalog_log::{CatalogLog, CatalogRecord};
use crate::dead_letters::{DeadLetterFile, DeadLetterMemory};
use crate::job::{Job, JobRecord};
use crate::native_table::{self, Scratch};
use crate::session::Session;
use crate::settings::Settings;

/// A streaming SQL engine in this process. Cheap to clone; all clones are the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

/// How an engine is opened.
#[derive(Debug, Default)]
pub struct EngineOptions {
    /// Where everything durable is kept; `None` keeps all in memory.
    pub data_dir: Option<PathBuf>,
    /// Where time comes from; the system's clock if not given.
    pub clock: Option<Arc<dyn Clock>>,
    /// Settings that every session begins with.
    pub settings: Vec<(String, String)>,
    /// Aggregate functions of the host; views that were created with them need them again.
    pub aggregates: Vec<Arc<AggregateUDF>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) base_settings: Settings,
    /// The memory of all jobs.
    pub(crate) memory: Memory,
    /// Where native tables are kept without a data directory.
    scratch: Scratch,
    /// What exists. Held for short lookups and changes only, never across an await.
    state: Mutex<State>,
}

/// The changing part of an engine.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Tells this engine's data directory from all others; empty for one that never got an id.
    pub(crate) directory: String,
    pub(crate) catalog: Catalog,
    pub(crate) connectors: BTreeMap<String, Arc<ConnectorTable>>,
    /// Aggregate functions of the host.
    pub(crate) aggregates: Vec<Arc<AggregateUDF>>,
    /// Per table or view: the normalised text of its definition.
    pub(crate) definitions: BTreeMap<String, String>,
    pub(crate) jobs: BTreeMap<JobId, JobRecord>,
    /// Stores of the `memory` backend, which outlive their job's attempts.
    pub(crate) memory_stores: BTreeMap<JobId, Arc<dyn StateStore>>,
    log: Option<CatalogLog>,
}

impl State {
    /// Makes a fact durable, where there is a data directory.
    pub(crate) fn record(&mut self, record: &CatalogRecord) -> Result<()> {
        match &mut self.log {
            Some(log) => log.append(record),
            None => Ok(()),
        }
    }
}

impl State {
    /// `table` or `view`.
    pub(crate) fn kind_of(&self, name: &str) -> Option<&'static str> {
        self.catalog.find(name).map(|entry| match entry {
            CatalogEntry::Table(_) => "table",
            CatalogEntry::View(_) => "view",
        })
    }
}

impl Engine {
    /// An engine that keeps everything in memory; it is gone with the last clone.
    pub fn ephemeral() -> Result<Self> {
        Self::with_options(EngineOptions::default())
    }

    /// An engine on a data directory, made if it is not there. What was created before exists
    /// again; jobs go on by [`Engine::resume_jobs`] or when their script is run again.
    ///
    /// Errors: *Unavailable* if another process uses the directory.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::with_options(EngineOptions { data_dir: Some(dir.as_ref().into()), ..EngineOptions::default() })
    }

    /// An engine with a clock or settings of its own.
    pub fn with_options(options: EngineOptions) -> Result<Self> {
        let mut base_settings = Settings::new(options.data_dir.is_some());
        for (key, value) in &options.settings {
            base_settings.set(key, value, "command line")?;
        }
        if let Some(file) = options.data_dir.as_ref().filter(|path| path.is_file()) {
            return Err(Error::invalid(format!("{file:?} is a file, not a data directory"))
                .with_hint(format!("to run it as a script: millpond -f {}", file.display())));
        }
        let (mut log, mut records) = match &options.data_dir {
            None => (None, Vec::new()),
            Some(dir) => CatalogLog::open(dir).map(|(log, records)| (Some(log), records))?,
        };
        if records.is_empty() {
            let id = format!("{:08x}", Random::fresh().next_u64() >> 32);
            let first = CatalogRecord::Directory { id };
            log.as_mut().map_or(Ok(()), |log| log.append(&first))?;
            records.push(first);
        }
        let scratch = Scratch::new();
        let spill = options.data_dir.as_deref().unwrap_or(scratch.path()).join("spill");
        let memory = Memory {
            budget: Arc::new(MemoryBudget::new(base_settings.memory_limit())),
            area: SpillArea::new(spill).map(Arc::new),
        };
        let engine = Self {
            shared: Arc::new(Shared {
                memory,
                data_dir: options.data_dir,
                clock: options.clock.unwrap_or_else(|| Arc::new(SystemClock)),
                base_settings,
                scratch,
                state: Mutex::default(),
            }),
        };
        engine.state().aggregates = options.aggregates;
        engine.replay(records)?;
        engine.state().log = log;
        Ok(engine)
    }

    /// Makes an aggregate function of the host known to all sessions, under its name and aliases.
    ///
    /// Rows that change are right whatever the function can take back: it sees all rows of a group
    /// anew, in order of arrival or of the call's ORDER BY, when a result is due.
    pub fn register_aggregate(&self, function: impl Into<Arc<AggregateUDF>>) {
        self.state().aggregates.push(function.into());
    }

    fn replay(&self, records: Vec<CatalogRecord>) -> Result<()> {
        for record in records {
            match record {
                CatalogRecord::Directory { id } => self.state().directory = id,
                CatalogRecord::Create { name, text, settings } => {
                    let session = self.session_with(&settings)?;
                    session.create_again(&text).map_err(|error| {
                        error.context(format!("cannot restore {name:?} from the catalog"))
                    })?;
                }
                CatalogRecord::Drop { name } => self.forget(&name),
                CatalogRecord::Job { id, identity, name, text, settings } => {
                    self.state().jobs.insert(id, JobRecord::new(id, identity, name, text, settings));
                }
                CatalogRecord::JobEnded { id, how } => {
                    if let Some(job) = self.state().jobs.get_mut(&id) {
                        job.ended = Some(how);
                    }
                }
            }
        }
        Ok(())
    }

    /// A session with the engine's own settings.
    pub fn session(&self) -> Session {
        Session::new(self.clone(), self.shared.base_settings.clone())
    }

    pub(crate) fn session_with(&self, settings: &BTreeMap<String, String>) -> Result<Session> {
        let mut all = self.shared.base_settings.clone();
        for (key, value) in settings {
            all.set(key, value, "session")?;
        }
        Ok(Session::new(self.clone(), all))
    }

    /// The time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Bytes of memory that the state of all jobs takes, estimated, and `memory.limit`.
    pub fn state_memory(&self) -> (usize, usize) {
        let budget = &self.shared.memory.budget;
        (budget.used(), budget.limit())
    }

    /// The data directory.
    pub fn data_dir(&self) -> Option<&Path> {
        self.shared.data_dir.as_deref()
    }

    /// All jobs, oldest first.
    pub fn jobs(&self) -> Vec<Job> {
        self.state().jobs.values().filter_map(|record| record.handle.clone()).collect()
    }

    /// A running or ended job of this process.
    pub fn job(&self, id: JobId) -> Result<Job> {
        let state = self.state();
        match state.jobs.get(&id) {
            Some(JobRecord { handle: Some(job), .. }) => Ok(job.clone()),
            Some(record) => {
                let how = record.ended.as_deref().unwrap_or("waiting for its script to be run again");
                Err(Error::invalid(format!("job {id} ({}) is not running: it is {how}", record.name)))
            }
            None => Err(Error::invalid(format!("there is no job {id}")).with_hint("SHOW JOBS lists them")),
        }
    }

    /// Starts the jobs of the catalog that have neither ended nor been started in this process.
    pub async fn resume_jobs(&self) -> Result<Vec<Job>> {
        self.resume_jobs_with(None).await
    }

    /// As [`Engine::resume_jobs`], at another parallelism: state is split anew by key group.
    pub async fn resume_jobs_with(&self, parallelism: Option<usize>) -> Result<Vec<Job>> {
        let waiting: Vec<JobRecord> = {
            let state = self.state();
            state.jobs.values().filter(|job| job.ended.is_none() && job.handle.is_none()).cloned().collect()
        };
        let mut jobs = Vec::new();
        for record in waiting {
            let session = self.session_with(&record.settings)?;
            if let Some(parallelism) = parallelism {
                session.set_setting("parallelism", &parallelism.to_string())?;
            }
            jobs.push(session.start_again(&record)?);
        }
        Ok(jobs)
    }

    /// Stops every job with a last checkpoint (where there is a data directory) and waits.
    pub async fn close(&self) -> Result<()> {
        let jobs: Vec<Job> = self.jobs().into_iter().filter(Job::is_running).collect();
        for job in jobs {
            if self.shared.data_dir.is_some() {
                job.stop().await?;
            } else {
                job.cancel().await;
            }
        }
        Ok(())
    }

    /// Drops every job as a kill of the process would: nothing flushed, nothing committed; then
    /// starts them again from their last checkpoints. For tests of recovery.
    pub async fn crash_and_restore(&self) -> Result<()> {
        let crashed: Vec<JobRecord> = {
            let state = self.state();
            state
                .jobs
                .values()
                .filter(|record| record.handle.as_ref().is_some_and(Job::is_running))
                .cloned()
                .collect()
        };
        for mut record in crashed {
            if let Some(job) = record.handle.take() {
                job.crash().await;
            }
            let session = self.session_with(&record.settings)?;
            session.start_again(&record)?;
        }
        Ok(())
    }

    pub(crate) fn forget(&self, name: &str) {
        let mut state = self.state();
        state.catalog.remove(name);
        state.connectors.remove(name);
        state.definitions.remove(name);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held failed one statement; the catalog itself is changed by
        // single inserts and stays whole.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a job's state.
    /// The folder of a job's checkpoints, or of their copy where they are on an object store.
    pub(crate) fn job_dir(&self, id: JobId, settings: &Settings) -> Option<PathBuf> {
        let base = match settings.checkpoints_dir() {
            Some(url) if is_object_store(&url) => {
                let base = self.shared.data_dir.as_deref().unwrap_or(self.shared.scratch.path());
                base.join("jobs")
            }
            Some(dir) => PathBuf::from(dir.strip_prefix("file://").unwrap_or(&dir)),
            None => self.shared.data_dir.as_ref()?.join("jobs"),
        };
        Some(base.join(format!("job-{id}")))
    }

    /// The folder of a native table's rows.
    pub(crate) fn table_dir(&self, name: &str) -> PathBuf {
        let base = self.shared.data_dir.as_deref().unwrap_or(self.shared.scratch.path());
        native_table::folder(&base.join("tables"), name)
    }

    /// Opens the store of a job.
    pub(crate) fn open_store(&self, id: JobId, settings: &Settings) -> Result<Arc<dyn StateStore>> {
        let backend = settings.backend();
        if backend == Backend::Memory {
            if let Some(store) = self.state().memory_stores.get(&id) {
                return Ok(Arc::clone(store));
            }
            let store = millpond_state::open_store(&millpond_state::StoreOptions { backend, dir: None })?;
            self.state().memory_stores.insert(id, Arc::clone(&store));
            return Ok(store);
        }
        let dir = self.job_dir(id, settings).ok_or_else(|| {
            Error::invalid("state.backend 'filesystem' and 'rocksdb' need a place on disk")
                .with_hint("start millpond with a data directory, or SET 'state.checkpoints.dir'")
        })?;
        let options = millpond_state::StoreOptions { backend, dir: Some(dir) };
        match settings.checkpoints_dir().filter(|url| is_object_store(url)) {
            None => millpond_state::open_store(&options),
            Some(url) => {
                let url = format!("{}/job-{id}", url.trim_end_matches('/'));
                let remote = crate::object_store::open(&url, settings)?;
                Ok(Arc::new(millpond_state::RemoteStore::open(&options, remote)?))
            }
        }
    }

    /// A folder of its own for what is on its way to or from an object store.
    pub(crate) fn scratch_dir(&self) -> PathBuf {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.shared.scratch.path().join(format!("snapshot-{number}"))
    }

    pub(crate) fn dead_letters(&self, id: JobId, settings: &Settings) -> Arc<dyn DeadLetterOffice> {
        match self.job_dir(id, settings) {
            Some(dir) => Arc::new(DeadLetterFile::new(&dir)),
            None => Arc::new(DeadLetterMemory::default()),
        }
    }
}
