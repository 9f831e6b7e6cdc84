//! Sessions: statements in, outcomes out. The second corridor, from a SQL string to running tasks:
//!
//! ```text
//! execute ─▶ parse ─▶ run ─▶ (create | insert | query | …) ─▶ plan ─▶ cut ─▶ start
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::{Schema, SchemaRef};
use millpond_connect::ConnectorTable;
use millpond_connect::factory::{TableSpec, open_table};
use millpond_core::{ChangelogMode, Error, JobId, Location, Result};
use millpond_planner::{
    BoundTable, CreateTable, CreateView, Insert, NodeKind, ParsedStatement, PlannedQuery, Planner,
    PlannerSettings, Statement, StatementSource, StreamPlan, TableColumnKind, TableFacts, TableRows,
    ViewEntry, is_unsupported, parse_one, split_statements,
};
use millpond_runtime::{Environment, JobGraph, JobOptions, RestartPolicy, start_job};
use millpond_state::{Backend, StoreOptions};

use crate::answer::{Changes, Outcome, QueryResult, Rows};
use crate::catalog_log::CatalogRecord;
use crate::dead_letters::DeadLetterMemory;
use crate::deploy::Deployment;
use crate::engine::Engine;
use crate::job::{Job, JobRecord};
use crate::native_table;
use crate::settings::{SettingRow, Settings};

/// A conversation with the engine: its settings, and statements run one after the other.
#[derive(Debug)]
pub struct Session {
    pub(crate) engine: Engine,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    settings: Settings,
    /// How often each INSERT text was seen: identical statements are told apart by their ordinal.
    ordinals: BTreeMap<u64, u32>,
}

/// Microseconds between the in-memory checkpoints by which two-phase sinks commit when there is
/// no data directory.
const EPHEMERAL_COMMIT_INTERVAL: i64 = 10_000_000;

impl Session {
    pub(crate) fn new(engine: Engine, settings: Settings) -> Self {
        Self { engine, state: Mutex::new(SessionState { settings, ordinals: BTreeMap::new() }) }
    }

    /// Runs every statement of a text in turn and gives what the last one gave. Jobs over bounded
    /// input are waited for, except the last.
    ///
    /// Errors: that of the first statement that fails, with its place; later ones are not run.
    pub async fn execute(&self, sql: &str) -> Result<Outcome> {
        let mut last = Outcome::Done(None);
        for source in split_statements(sql) {
            if let Outcome::Job(job) = &last
                && job.is_bounded()
            {
                job.wait().await?;
            }
            last = self.run(&source).await?;
        }
        Ok(last)
    }

    /// Runs one query.
    ///
    /// Errors: *Invalid* if the text is not one query.
    pub async fn query(&self, sql: &str) -> Result<QueryResult> {
        match self.execute(sql).await? {
            Outcome::Rows(rows) => Ok(QueryResult::rows(rows)),
            Outcome::Changes(changes) => Ok(QueryResult::changes(changes)),
            Outcome::Done(_) | Outcome::Job(_) => {
                Err(Error::invalid("the statement gives no rows").with_hint("use Session::execute for it"))
            }
        }
    }

    /// Runs one statement of a script, as [`split_statements`] gives it.
    pub async fn run(&self, source: &StatementSource) -> Result<Outcome> {
        let parsed = parse_one(source)?;
        self.statement(&parsed).await.map_err(|error| error.with_location(Some(parsed.location)))
    }

    async fn statement(&self, parsed: &ParsedStatement) -> Result<Outcome> {
        match &parsed.statement {
            Statement::CreateTable(create) => self.create_table(create, &parsed.text),
            Statement::CreateView(create) => self.create_view(create, &parsed.text),
            Statement::DropTable { name, if_exists } => self.drop_object("table", &name.value, *if_exists),
            Statement::DropView { name, if_exists } => self.drop_object("view", &name.value, *if_exists),
            Statement::Insert(insert) => self.insert(std::slice::from_ref(insert), &parsed.text).await,
            Statement::StatementSet(inserts) => self.insert(inserts, &parsed.text).await,
            Statement::Query { query, emit_changes } => self.select(query, *emit_changes, &parsed.text).await,
            Statement::Set { key, value, location } => self.set(key, value, *location),
            Statement::Reset { key } => self.reset(key.as_deref()),
            Statement::Show(show) => self.show(*show),
            Statement::Describe { name } => self.describe(&name.value),
            Statement::Explain { kind, statement } => self.explain(*kind, statement),
            Statement::Checkpoint { job } => self.checkpoint(job.map(JobId)).await,
            Statement::CreateSavepoint { job, folder } => self.savepoint(JobId(*job), folder).await,
            Statement::StopJob { job, savepoint, drain } => self.stop(JobId(*job), savepoint, *drain).await,
            Statement::AlterJob { job, options } => self.alter_job(JobId(*job), options),
            Statement::DescribeCheckpoint { checkpoint, job } => {
                self.describe_checkpoint(checkpoint, job.map(JobId))
            }
            Statement::ExplainRestore { place, statement } => self.explain_restore(place, statement),
            Statement::CancelJob { job } => self.cancel(JobId(*job)).await,
        }
    }

    /// The engine that the session speaks to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The session's settings now.
    pub fn settings(&self) -> Settings {
        self.lock().settings.clone()
    }

    /// Sets a setting, as `SET 'key' = 'value'` does.
    pub fn set_setting(&self, key: &str, value: &str) -> Result<()> {
        let mut state = self.lock();
        let before = state.settings.memory_limit();
        state.settings.set(key, value, "session")?;
        // Also where this session had the same value and another one has set another since.
        let before = if key == "memory.limit" { None } else { Some(before) };
        self.hand_on_limit(before, &state.settings);
        Ok(())
    }

    /// All settings with their values.
    pub fn setting_rows(&self) -> Vec<SettingRow> {
        self.lock().settings.rows()
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn planner(&self) -> Result<Planner> {
        let settings = self.settings();
        let mut planner = Planner::new(PlannerSettings {
            time_zone: Some(settings.time_zone()),
            cdc_duplicates: settings.cdc_duplicates(),
            drop_nulls_at_sinks: settings.drop_nulls_at_sinks(),
            fit_texts_at_sinks: settings.fit_texts_at_sinks(),
            state_ttl: settings.state_ttl(),
            require_bounded_state: settings.require_bounded_state(),
        })?;
        let state = self.engine.state();
        planner.catalog = state.catalog.clone();
        for function in &state.aggregates {
            planner.register_aggregate(Arc::clone(function))?;
        }
        drop(state);
        Ok(planner)
    }

    fn set(&self, key: &str, value: &str, location: Location) -> Result<Outcome> {
        self.set_setting(key, value).map_err(|error| error.with_location(Some(location)))?;
        Ok(Outcome::Done(None))
    }

    fn reset(&self, key: Option<&str>) -> Result<Outcome> {
        let mut state = self.lock();
        let before = state.settings.memory_limit();
        state.settings.reset(key)?;
        self.hand_on_limit(Some(before), &state.settings);
        Ok(Outcome::Done(None))
    }

    /// `memory.limit` is one for everything: it is the engine's, whoever sets it.
    fn hand_on_limit(&self, before: Option<usize>, settings: &Settings) {
        let limit = settings.memory_limit();
        if before != Some(limit) {
            self.engine.shared.memory.budget.set_limit(limit);
        }
    }
}

/// CREATE and DROP.
impl Session {
    fn create_table(&self, create: &CreateTable, text: &str) -> Result<Outcome> {
        let name = &create.name.value;
        if self.exists_alike(name, create.if_not_exists, text)? {
            return Ok(Outcome::Done(None));
        }
        let (bound, connector) = self.bind(create)?;
        if is_native(create) {
            native_table::create(&self.engine.table_dir(name))?;
        }
        self.record_creation(name, text, create.temporary)?;
        self.add_table(bound, connector, text)?;
        Ok(Outcome::Done(None))
    }

    fn bind(&self, create: &CreateTable) -> Result<(BoundTable, ConnectorTable)> {
        let bound = self.planner()?.bind_table(create)?;
        let spec = TableSpec {
            name: create.name.value.clone(),
            schema: with_metadata_keys(&bound),
            primary_key: create.primary_key.iter().map(|column| column.value.clone()).collect(),
            partition_keys: create.partitioned_by.iter().map(|column| column.value.clone()).collect(),
            options: match is_native(create) {
                true => native_table::options(&self.engine.table_dir(&create.name.value)),
                false => create.options.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect(),
            },
            time_zone: self.settings().time_zone(),
        };
        let connector = open_table(spec).map_err(|error| locate_option(error, create))?;
        Ok((bound, connector))
    }

    fn add_table(&self, bound: BoundTable, connector: ConnectorTable, text: &str) -> Result<()> {
        let source = connector.source.as_ref();
        let facts = TableFacts {
            bounded: source.is_none_or(|source| source.is_bounded()),
            source: source.map(|source| source.mode()),
            sink: connector.sink.as_ref().map(|sink| sink.mode()),
            ignores_update_before: connector.sink.as_ref().is_some_and(|sink| sink.ignores_update_before()),
            max_future: connector.max_future.or(self.settings().max_future()),
        };
        let name = bound.name.clone();
        let mut state = self.engine.state();
        state.catalog.add_table(bound, facts);
        state.connectors.insert(name.clone(), Arc::new(connector));
        state.definitions.insert(name, normalise(text));
        Ok(())
    }

    fn create_view(&self, create: &CreateView, text: &str) -> Result<Outcome> {
        let name = &create.name.value;
        if self.exists_alike(name, create.if_not_exists, text)? {
            return Ok(Outcome::Done(None));
        }
        self.planner()?.check_view(create)?;
        self.record_creation(name, text, create.temporary)?;
        self.add_view(create, text);
        Ok(Outcome::Done(None))
    }

    fn add_view(&self, create: &CreateView, text: &str) {
        let view = ViewEntry {
            name: create.name.value.clone(),
            columns: create.columns.iter().map(|column| column.value.clone()).collect(),
            query: create.query.clone(),
        };
        let mut state = self.engine.state();
        state.definitions.insert(view.name.clone(), normalise(text));
        state.catalog.add_view(view);
    }

    /// Whether an identical definition is there already.
    ///
    /// Errors: *Invalid* if a different one is.
    fn exists_alike(&self, name: &str, if_not_exists: bool, text: &str) -> Result<bool> {
        let state = self.engine.state();
        match state.definitions.get(name) {
            None => Ok(false),
            Some(_) if if_not_exists => Ok(true),
            Some(old) if *old == normalise(text) && self.engine.data_dir().is_some() => Ok(true),
            Some(old) => Err(Error::invalid(format!("{name:?} exists already with another definition"))
                .with_detail(difference(old, &normalise(text)))
                .with_hint(format!("DROP TABLE {name} or DROP VIEW {name} first, or choose another name"))),
        }
    }

    fn record_creation(&self, name: &str, text: &str, temporary: bool) -> Result<()> {
        if temporary {
            return Ok(());
        }
        let settings = self.settings().changed();
        let record = CatalogRecord::Create { name: name.into(), text: text.into(), settings };
        self.engine.state().record(&record)
    }

    /// Creates what the catalog log says exists, without writing it down again.
    pub(crate) fn create_again(&self, text: &str) -> Result<()> {
        for source in split_statements(text) {
            match parse_one(&source)?.statement {
                Statement::CreateTable(create) => {
                    let (bound, connector) = self.bind(&create)?;
                    if is_native(&create) {
                        native_table::ensure(&self.engine.table_dir(&create.name.value))?;
                    }
                    self.add_table(bound, connector, text)?;
                }
                Statement::CreateView(create) => {
                    self.planner()?.check_view(&create)?;
                    self.add_view(&create, text);
                }
                other => {
                    return Err(Error::corrupt(format!("the catalog log holds {other:?} as a definition")));
                }
            }
        }
        Ok(())
    }

    fn drop_object(&self, kind: &str, name: &str, if_exists: bool) -> Result<Outcome> {
        let known = self.engine.state().kind_of(name);
        match known {
            Some(found) if found == kind => {}
            Some(found) => {
                return Err(Error::invalid(format!("{name:?} is a {found}, not a {kind}"))
                    .with_hint(format!("use DROP {} {name}", found.to_uppercase())));
            }
            None if if_exists => return Ok(Outcome::Done(None)),
            None => return Err(Error::invalid(format!("there is no {kind} {name:?}"))),
        }
        let mut state = self.engine.state();
        state.refuse_drop_under_jobs(name)?;
        let views = state.views_over(name);
        state.record(&CatalogRecord::Drop { name: name.into() })?;
        drop(state);
        self.engine.forget(name);
        native_table::remove(&self.engine.table_dir(name))?;
        let note =
            format!("{} cannot be used until there is {name:?} again: views over it", views.join(", "));
        Ok(Outcome::Done((!views.is_empty()).then_some(note)))
    }
}

/// INSERT: jobs.
impl Session {
    async fn insert(&self, inserts: &[Insert], text: &str) -> Result<Outcome> {
        let plan = self.planner()?.plan_insert(inserts)?;
        let identity = self.identity(text);
        if let Some(outcome) = self.found_again(&identity, text, &plan)? {
            return Ok(outcome);
        }
        let record = self.record_of(identity, text, inserts)?;
        let started = self.start(&record, &plan);
        if started.is_err() {
            self.forget_job(&record)?;
        }
        Ok(Outcome::Job(started?))
    }

    /// `job.name`, else the hash of the text and its ordinal in the session.
    fn identity(&self, text: &str) -> String {
        let mut state = self.lock();
        if let Some(name) = state.settings.job_name() {
            return name;
        }
        let hash = millpond_core::key::text_hash(&normalise(text));
        let ordinal = state.ordinals.entry(hash).or_default();
        // A job of this text that was stopped is meant, rather than a second one beside it.
        let stopped = (1..=*ordinal).map(|ordinal| format!("{hash:016x}-{ordinal}")).find(|identity| {
            let engine = self.engine.state();
            engine
                .jobs
                .values()
                .any(|job| job.identity == *identity && job.ended.as_deref() == Some("stopped"))
        });
        stopped.unwrap_or_else(|| {
            *ordinal += 1;
            format!("{hash:016x}-{ordinal}")
        })
    }

    /// What to answer for a job that was there before: finished, or at work.
    fn found_again(&self, identity: &str, text: &str, plan: &StreamPlan) -> Result<Option<Outcome>> {
        if self.engine.data_dir().is_none() {
            return Ok(None);
        }
        let state = self.engine.state();
        let Some(record) = state.jobs.values().find(|job| job.identity == identity) else { return Ok(None) };
        if record.ended.as_deref() == Some("finished") {
            let note = format!("job {} ({}) has finished already", record.id, record.name);
            return Ok(Some(Outcome::Done(Some(note))));
        }
        if let Some(job) = record.handle.as_ref().filter(|job| job.is_running()) {
            return Ok(Some(Outcome::Job(job.clone())));
        }
        let mut record = record.clone();
        drop(state);
        self.refuse_lost_state(&record)?;
        let settings = self.settings().changed();
        let changed = record.text != text || record.settings != settings || record.ended.is_some();
        (record.text, record.settings) = (text.into(), settings);
        let job = self.start(&record, plan)?;
        // From now on the catalog starts what was started now.
        if changed {
            let mut state = self.engine.state();
            state.record(&record.as_fact())?;
            if let Some(known) = state.jobs.get_mut(&record.id) {
                (known.text, known.settings) = (record.text, record.settings);
            }
        }
        Ok(Some(Outcome::Job(job)))
    }

    /// A job whose state was in the memory of a process that is gone cannot go on: its output may
    /// be visible, and would be written again.
    fn refuse_lost_state(&self, record: &JobRecord) -> Result<()> {
        let lost = self.settings().backend() == Backend::Memory
            && self.engine.data_dir().is_some()
            && !self.engine.state().memory_stores.contains_key(&record.id);
        if !lost {
            return Ok(());
        }
        let (id, name) = (record.id, &record.name);
        Err(Error::invalid(format!("job {id} ({name}) cannot go on: its state was in memory and is gone"))
            .with_hint(format!("CANCEL JOB {id}, remove its output and run it anew; 'state.backend' = 'rocksdb' survives restarts")))
    }

    /// A job that could not be started never was.
    fn forget_job(&self, record: &JobRecord) -> Result<()> {
        let mut state = self.engine.state();
        state.record(&CatalogRecord::JobEnded { id: record.id, how: "failed".into() })?;
        state.jobs.remove(&record.id);
        Ok(())
    }

    fn record_of(&self, identity: String, text: &str, inserts: &[Insert]) -> Result<JobRecord> {
        let settings = self.settings();
        let targets: Vec<&str> = inserts.iter().map(|insert| insert.table.value.as_str()).collect();
        let name = settings.job_name().unwrap_or_else(|| format!("insert-into-{}", targets.join("-")));
        let mut state = self.engine.state();
        if let Some((other, table)) = state.other_writer(&identity, &targets) {
            let (id, name) = (other.id, &other.name);
            tracing::warn!(
                "job {id} ({name}) writes into {table:?} too, and what it has written stays there; \
                 to go on with a job after changing its query, SET 'job.name' before its INSERT"
            );
        }
        let id = state.jobs.keys().next_back().map_or(JobId(1), |last| last.next());
        let record = JobRecord::new(id, identity, name, text.into(), settings.changed());
        state.record(&record.as_fact())?;
        state.jobs.insert(id, record.clone());
        Ok(record)
    }

    /// Starts a job of the catalog again from its own text.
    pub(crate) fn start_again(&self, record: &JobRecord) -> Result<Job> {
        self.hand_on_limit(Some(self.engine.shared.base_settings.memory_limit()), &self.settings());
        let mut plans = Vec::new();
        for source in split_statements(&record.text) {
            match parse_one(&source)?.statement {
                Statement::Insert(insert) => plans.push(self.planner()?.plan_insert(&[insert])?),
                Statement::StatementSet(inserts) => plans.push(self.planner()?.plan_insert(&inserts)?),
                other => return Err(Error::corrupt(format!("the catalog log holds {other:?} as a job"))),
            }
        }
        self.refuse_lost_state(record)?;
        let plan =
            plans.pop().ok_or_else(|| Error::corrupt("the catalog log holds a job without a statement"))?;
        self.start(record, &plan)
    }

    fn start(&self, record: &JobRecord, plan: &StreamPlan) -> Result<Job> {
        let settings = self.settings();
        let graph = self.cut(plan)?;
        let environment = Environment {
            clock: Arc::clone(&self.engine.shared.clock),
            store: self.engine.open_store(record.id, &settings)?,
            dead_letters: self.engine.dead_letters(record.id, &settings),
            log_dir: self.engine.job_dir(record.id, &settings).map(|dir| dir.join("replay")),
            memory: self.engine.shared.memory.clone(),
        };
        let mut options = job_options(&settings, format!("job-{}", record.id));
        options.writer = match self.engine.state().directory.as_str() {
            "" => options.job.clone(),
            directory => format!("{directory}-{}", options.job),
        };
        options.restore_from = self.restore_place(&settings)?;
        if self.engine.data_dir().is_none() && options.checkpoint_interval.is_none() {
            options.checkpoint_interval = Some(EPHEMERAL_COMMIT_INTERVAL);
        }
        let job = Job {
            id: record.id,
            name: record.name.clone(),
            bounded: is_bounded(plan),
            handle: start_job(graph, options, environment)?,
            engine: Arc::downgrade(&self.engine.shared),
        };
        if let Some(record) = self.engine.state().jobs.get_mut(&record.id) {
            record.handle = Some(job.clone());
            record.ended = None;
        }
        Ok(job)
    }

    pub(crate) fn cut(&self, plan: &StreamPlan) -> Result<JobGraph> {
        let settings = self.settings();
        let deployment = Deployment {
            connector: &|table| self.connector(table),
            parallelism: settings.parallelism().min(usize::from(settings.max_parallelism())),
            max_parallelism: settings.max_parallelism(),
            bad_rows: settings.bad_rows(),
            on_missing_file: settings.on_missing_file(),
            idle_timeout: settings.idle_timeout(),
        };
        deployment.cut(plan)
    }

    fn connector(&self, table: &str) -> Result<Arc<ConnectorTable>> {
        let state = self.engine.state();
        state
            .connectors
            .get(table)
            .cloned()
            .ok_or_else(|| Error::invalid(format!("there is no table {table:?}")))
    }
}

/// SELECT.
impl Session {
    async fn select(&self, query: &sqlparser::ast::Query, emit_changes: bool, text: &str) -> Result<Outcome> {
        if mentions_state(text) {
            return self.select_from_state(query).await.map(Outcome::Rows);
        }
        if self.settings().is_batch() && !emit_changes {
            return self.select_in_batch(query).await.map(Outcome::Rows);
        }
        let planner = self.planner()?;
        match planner.plan_query(query) {
            Ok(planned) => self.run_query(planned, emit_changes).await,
            // What streams cannot do yet, batch can, as long as the input ends and no watermark
            // has a say in the answer.
            Err(error) if is_unsupported(&error) && !emit_changes && !planner.reads_windows(query)? => {
                match self.select_in_batch(query).await {
                    Ok(rows) => Ok(Outcome::Rows(rows)),
                    Err(batch) if batch.message().contains("unbounded") => Err(error),
                    Err(batch) => Err(batch),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn run_query(&self, planned: PlannedQuery, emit_changes: bool) -> Result<Outcome> {
        if emit_changes && !planned.presentation.is_plain() {
            return Err(Error::invalid(
                "EMIT CHANGES shows changes as they come: ORDER BY and LIMIT have no place in it",
            )
            .with_hint("leave out ORDER BY and LIMIT, or EMIT CHANGES"));
        }
        let changes = self.changes_of(&planned.plan)?;
        if !planned.bounded || emit_changes {
            return Ok(Outcome::Changes(changes));
        }
        changes.fold(&planned.presentation).await.map(Outcome::Rows)
    }

    /// Starts a query and gives its changes.
    pub(crate) fn changes_of(&self, plan: &StreamPlan) -> Result<Changes> {
        let settings = self.settings();
        let schema = plan.nodes.last().map(|node| Arc::clone(&node.schema));
        let schema = schema.ok_or_else(|| Error::internal("an empty plan"))?;
        let environment = Environment {
            clock: Arc::clone(&self.engine.shared.clock),
            store: millpond_state::open_store(&StoreOptions { backend: Backend::Memory, dir: None })?,
            dead_letters: Arc::new(DeadLetterMemory::default()),
            log_dir: None,
            memory: self.engine.shared.memory.clone(),
        };
        let mut options = job_options(&settings, "query".into());
        options.checkpoint_interval = None;
        options.checkpoint_every_rows = None;
        let job = start_job(self.cut(plan)?, options, environment)?;
        Changes::new(schema, job, unkeyed_table(plan))
    }

    /// Answers a query by batch execution over the whole bounded input.
    async fn select_in_batch(&self, query: &sqlparser::ast::Query) -> Result<Rows> {
        self.answer_in_batch(&self.planner()?, query, TableRows::new()).await
    }

    /// As [`Session::select_in_batch`], with rows of some tables given.
    pub(crate) async fn answer_in_batch(
        &self,
        planner: &Planner,
        query: &sqlparser::ast::Query,
        mut tables: TableRows,
    ) -> Result<Rows> {
        let mut rejected = 0;
        for table in planner.tables_read(query)? {
            if tables.contains_key(&table) {
                continue;
            }
            let scan = planner.plan_scan(&table)?;
            if !scan.bounded {
                return Err(Error::invalid(format!(
                    "table {table:?} is unbounded and cannot be read in batch"
                )));
            }
            let rows = self.changes_of(&scan.plan)?.fold(&scan.presentation).await?;
            rejected += rows.rejected;
            tables.insert(table, rows.batches);
        }
        let batches = planner.run_batch(query, &tables, self.engine.shared.clock.now()).await?;
        let rows = Rows::complete(planner.query_schema(query)?, batches);
        Ok(Rows { rejected, ..rows })
    }
}

pub(crate) fn job_options(settings: &Settings, job: String) -> JobOptions {
    JobOptions {
        writer: job.clone(),
        job,
        epoch_interval: settings.epoch_interval(),
        epoch_rows: settings.epoch_rows(),
        in_flight_max: settings.epochs_in_flight_max() as u64,
        checkpoint_interval: settings.checkpoint_interval(),
        checkpoint_every_rows: settings.checkpoint_every_rows(),
        trigger: settings.checkpoint_trigger(),
        mode: settings.checkpoint_mode(),
        max_concurrent: settings.checkpoint_max_concurrent(),
        restore_from: None,
        checkpoint_timeout: settings.checkpoint_timeout(),
        min_pause: settings.checkpoint_min_pause(),
        retained: settings.checkpoint_retained(),
        tolerable_failures: settings.tolerable_failures(),
        batch_rows: settings.batch_rows(),
        verify: settings.verify(),
        allow_non_restored_state: settings.allow_non_restored_state(),
        checkpoint_at_every_epoch: false,
        restart: RestartPolicy { attempts: Some(settings.restart_attempts()), ..RestartPolicy::default() },
    }
}

fn is_bounded(plan: &StreamPlan) -> bool {
    plan.nodes.iter().all(|node| node.properties.bounded)
}

/// Whether a query reads snapshots.
fn mentions_state(text: &str) -> bool {
    text.to_ascii_lowercase().contains("checkpoint_state(")
}

/// The text with runs of white space outside quotes made one blank, and comments left out.
pub(crate) fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.trim().chars().peekable();
    let mut quote = None;
    while let Some(c) = chars.next() {
        match quote {
            Some(q) => {
                out.push(c);
                if c == q {
                    quote = None;
                }
            }
            None if c == '-' && chars.peek() == Some(&'-') => {
                for c in chars.by_ref() {
                    if c == '\n' {
                        break;
                    }
                }
                blank(&mut out);
            }
            None if c.is_whitespace() => blank(&mut out),
            None => {
                if matches!(c, '\'' | '"' | '`') {
                    quote = Some(c);
                }
                out.push(c);
            }
        }
    }
    out.trim_end().into()
}

fn blank(out: &mut String) {
    if !out.is_empty() && !out.ends_with(' ') {
        out.push(' ');
    }
}

/// Where two definitions part ways.
fn difference(old: &str, new: &str) -> String {
    let same = old
        .char_indices()
        .zip(new.chars())
        .take_while(|((_, a), b)| a == b)
        .map(|((at, a), _)| at + a.len_utf8())
        .last()
        .unwrap_or(0);
    let from = old[..same].rfind([',', '(']).map_or(0, |at| at + 1);
    let excerpt = |text: &str| -> String { text[from..].trim().chars().take(80).collect() };
    format!("it has «{}», the new one «{}»", excerpt(old), excerpt(new))
}

/// The connector's columns, of which it fills some by their metadata keys.
fn with_metadata_keys(bound: &BoundTable) -> SchemaRef {
    let mut fields: Vec<_> = bound.connector_schema.fields().iter().cloned().collect();
    for column in &bound.columns {
        if let TableColumnKind::Metadata { index, key, .. } = &column.kind {
            let marked = [(TableSpec::METADATA_KEY.to_string(), key.clone())];
            fields[*index] = Arc::new(fields[*index].as_ref().clone().with_metadata(marked.into()));
        }
    }
    Arc::new(Schema::new(fields))
}

/// A table of the plan whose change events have no key.
fn unkeyed_table(plan: &StreamPlan) -> Option<String> {
    plan.nodes.iter().find_map(|node| match &node.kind {
        NodeKind::Source { table, .. } if node.properties.mode == ChangelogMode::Retract => {
            Some(table.clone())
        }
        _ => None,
    })
}

/// A table without options is one that the engine keeps.
fn is_native(create: &CreateTable) -> bool {
    create.options.is_empty()
}

/// Puts the place of the option that an error speaks of into it.
fn locate_option(error: Error, create: &CreateTable) -> Error {
    let found = create.options.iter().find(|(key, _, _)| error.message().contains(&format!("'{key}'")));
    error.with_location(found.map(|(_, _, location)| *location))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalising_keeps_quoted_text() {
        assert_eq!(normalise("a  b\n -- c\n 'x  -- y' ;"), "a b 'x  -- y' ;");
    }

    #[test]
    fn a_difference_is_shown_from_its_clause_on() {
        let detail = difference("CREATE TABLE t (a INT, b INT)", "CREATE TABLE t (a INT, b BIGINT)");
        assert_eq!(detail, "it has «b INT)», the new one «b BIGINT)»");
    }
}
