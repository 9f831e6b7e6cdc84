//! A test file's database: an engine on a data directory of its own, treated as its mode says.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use millpond::{
    Engine, EngineOptions, Error, Job, ManualClock, Outcome, Random, Result, Rows, Session, StatementSource,
    TextFormat, Timestamp, split_statements,
};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};

use crate::judge::{Tally, judge};
use crate::mode::Mode;

/// The processing time at which every file starts: 2024-01-01 00:00:00.
const START_MS: i64 = 1_704_067_200_000;

/// Runs a file in a mode; the text of what differs.
pub(crate) async fn run(file: &Path, mode: &Mode) -> Result<Tally, String> {
    let (file, mode) = (file.to_path_buf(), mode.clone());
    let runner_file = file.clone();
    let labels = mode.labels();
    let tally = Arc::new(Mutex::new(Tally::default()));
    let told = Arc::clone(&tally);
    let mut runner = Runner::new(move || {
        let database = Database::open(&file, &mode, Arc::clone(&told)).map_err(TestError);
        async { database }
    });
    runner.with_column_validator(sqllogictest::default_column_validator);
    for label in labels {
        runner.add_label(&label);
    }
    let outcome = runner.run_file_async(&runner_file).await.map_err(|error| error.to_string());
    runner.shutdown_async().await;
    outcome.map(|()| *tally.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Writes what the engine answers into a file.
pub(crate) async fn update(file: &Path) -> Result<()> {
    let path = file.to_path_buf();
    let mut runner = Runner::new(move || {
        let database = Database::open(&path, &Mode::plain(), Arc::default()).map_err(TestError);
        async { database }
    });
    runner
        .update_test_file(
            file,
            " ",
            sqllogictest::default_validator,
            sqllogictest::default_normalizer,
            sqllogictest::default_column_validator,
        )
        .await
        .map_err(|error| Error::invalid(format!("cannot update {file:?}: {error}")))?;
    runner.shutdown_async().await;
    Ok(())
}

/// An engine under test.
struct Database {
    engine: Engine,
    session: Session,
    clock: Arc<ManualClock>,
    mode: Mode,
    file_dir: PathBuf,
    /// Holds `data` and `$TEST_DIR`; removed at the end.
    folder: tempfile::TempDir,
    /// SETs of the file so far: a reopened engine gets them again.
    set: Vec<String>,
    random: Random,
    /// What the judge has done; read when the file is through.
    tally: Arc<Mutex<Tally>>,
}

/// The engine's error, as sqllogictest shows it.
#[derive(Debug)]
pub(crate) struct TestError(Error);

impl std::fmt::Display for TestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for TestError {}

impl Database {
    fn open(file: &Path, mode: &Mode, tally: Arc<Mutex<Tally>>) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|e| Error::io("make a temporary folder", &e))?;
        std::fs::create_dir(folder.path().join("test"))
            .map_err(|e| Error::io("make a temporary folder", &e))?;
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(START_MS)));
        let engine = engine(folder.path(), &clock, mode)?;
        Ok(Self {
            session: engine.session(),
            engine,
            clock,
            mode: mode.clone(),
            file_dir: file.parent().unwrap_or(Path::new(".")).to_path_buf(),
            folder,
            set: Vec::new(),
            random: Random::seeded(mode.crash.or(mode.differential).unwrap_or(0)),
            tally,
        })
    }

    async fn statement(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>> {
        let test_dir = self.folder.path().join("test");
        let sql = sql
            .replace("$TEST_DIR", &test_dir.to_string_lossy())
            .replace("$FILE_DIR", &self.file_dir.to_string_lossy());
        if let Some(command) = Command::parse(&sql)? {
            self.command(command).await?;
            return Ok(DBOutput::StatementComplete(0));
        }
        if self.mode.crash.is_some() && self.engine.jobs().iter().all(|job| !job.is_running()) {
            self.reopen()?;
        }
        let mut output = DBOutput::StatementComplete(0);
        for source in split_statements(&sql) {
            let verdict = self.judge(&source).await;
            let outcome = self.session.run(&source).await?;
            // A query that fails does so in every mode; then its own error is the one to tell.
            verdict?;
            output = self.output(outcome).await?;
            if source.text.trim_start().get(..3).is_some_and(|word| word.eq_ignore_ascii_case("set")) {
                self.set.push(source.text.clone());
            }
        }
        Ok(output)
    }

    /// In differential mode: judges the statement's queries with epochs, batches and tasks of sizes
    /// that the seed chooses.
    async fn judge(&mut self, source: &StatementSource) -> Result<()> {
        if self.mode.differential.is_none() {
            return Ok(());
        }
        let session = self.engine.session();
        for text in &self.set {
            session.execute(text).await?;
        }
        let cuts = [
            ("epoch.rows", ["1", "2", "3", "7", "50"]),
            ("batch.rows", ["1", "2", "5", "8192", "8192"]),
            ("parallelism", ["1", "1", "2", "3", "4"]),
        ];
        let mut told = Vec::new();
        for (key, values) in cuts {
            let value = values[self.random.below(values.len() as u64) as usize];
            session.set_setting(key, value)?;
            told.push(format!("{key} = {value}"));
        }
        let tally = judge(&session, source).await.map_err(|error| error.context(told.join(", ")))?;
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).add(tally);
        Ok(())
    }

    async fn output(&mut self, outcome: Outcome) -> Result<DBOutput<DefaultColumnType>> {
        match outcome {
            Outcome::Done(_) => Ok(DBOutput::StatementComplete(0)),
            Outcome::Rows(rows) => texts(&rows, &self.session.settings().time_zone()),
            Outcome::Changes(changes) => changelog(changes, &self.session.settings().time_zone()).await,
            Outcome::Job(job) if job.is_bounded() => {
                let job = self.torment(job).await?;
                job.wait().await?;
                job.metrics().check_accounting()?;
                Ok(DBOutput::StatementComplete(0))
            }
            Outcome::Job(_) => Ok(DBOutput::StatementComplete(0)),
        }
    }

    /// In crash mode: kills the job a few times on its way, each time at another row.
    async fn torment(&mut self, job: Job) -> Result<Job> {
        let mut job = job;
        if self.mode.crash.is_none() {
            return Ok(job);
        }
        for _ in 0..3 {
            let rows = job.metrics().rows_read() + self.random.below(20);
            while job.is_running() && job.metrics().rows_read() < rows {
                tokio::task::yield_now().await;
            }
            if !job.is_running() {
                break;
            }
            self.engine.crash_and_restore().await?;
            job = self.engine.job(job.id())?;
        }
        Ok(job)
    }

    async fn command(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Crash => {
                self.engine.crash_and_restore().await?;
            }
            Command::Restart(parallelism) => {
                if let Some(parallelism) = parallelism {
                    self.set.push(format!("SET 'parallelism' = '{parallelism}'"));
                }
                self.engine.close().await?;
                self.reopen()?;
                self.apply_sets().await?;
                self.engine.resume_jobs_with(self.parallelism()).await?;
            }
            Command::AdvanceTime(micros) => {
                self.clock.advance(micros);
                self.end_epochs().await?;
            }
            Command::Epoch => self.end_epochs().await?,
        }
        Ok(())
    }

    fn parallelism(&self) -> Option<usize> {
        Some(self.session.settings().parallelism())
    }

    async fn end_epochs(&self) -> Result<()> {
        for job in self.engine.jobs().into_iter().filter(Job::is_running) {
            job.end_epoch().await?;
        }
        Ok(())
    }

    /// Drops the engine and opens it again on what it has left.
    fn reopen(&mut self) -> Result<()> {
        self.engine = Engine::ephemeral()?;
        self.session = self.engine.session();
        self.engine = engine(self.folder.path(), &self.clock, &self.mode)?;
        self.session = self.engine.session();
        for text in self.set.clone() {
            for source in split_statements(&text) {
                futures::executor::block_on(self.session.run(&source))?;
            }
        }
        Ok(())
    }

    async fn apply_sets(&self) -> Result<()> {
        for text in &self.set {
            self.session.execute(text).await?;
        }
        Ok(())
    }
}

fn engine(folder: &Path, clock: &Arc<ManualClock>, mode: &Mode) -> Result<Engine> {
    let defaults = [("time-zone", "UTC"), ("parallelism", "2")];
    let defaults = defaults.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string()));
    Engine::with_options(EngineOptions {
        data_dir: Some(folder.join("data")),
        clock: Some(Arc::clone(clock) as Arc<dyn millpond::Clock>),
        settings: defaults.chain(mode.settings.iter().cloned()).collect(),
        ..EngineOptions::default()
    })
}

fn texts(rows: &Rows, time_zone: &str) -> Result<DBOutput<DefaultColumnType>> {
    let mut lines = Vec::with_capacity(rows.num_rows());
    for batch in &rows.batches {
        lines.extend(lines_of(batch, time_zone)?);
    }
    Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; rows.schema.fields().len()], rows: lines })
}

fn lines_of(batch: &millpond::RecordBatch, time_zone: &str) -> Result<Vec<Vec<String>>> {
    let zone = time_zone.parse().map_err(|_| Error::invalid(format!("{time_zone:?} is not a time zone")))?;
    let format = TextFormat::display(zone);
    let columns =
        batch.columns().iter().map(|column| format.formatter(column)).collect::<Result<Vec<_>>>()?;
    let value = |row: usize, column: &millpond::ColumnText| -> String {
        if column.is_null(row) {
            return "NULL".into();
        }
        let mut text = String::new();
        column.write(row, &mut text);
        // sqllogictest's files need something to stand where an empty text is.
        if text.is_empty() { "(empty)".into() } else { text }
    };
    Ok((0..batch.num_rows()).map(|row| columns.iter().map(|column| value(row, column)).collect()).collect())
}

/// The changes of a query as rows with their kind in front.
async fn changelog(mut changes: millpond::Changes, time_zone: &str) -> Result<DBOutput<DefaultColumnType>> {
    let columns = changes.schema().fields().len() + 1;
    let mut lines = Vec::new();
    while let Some(epoch) = changes.next().await? {
        for batch in epoch {
            for (row, mut line) in lines_of(&batch.rows, time_zone)?.into_iter().enumerate() {
                line.insert(0, batch.kind(row).symbol().into());
                lines.push(line);
            }
        }
    }
    Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows: lines })
}

/// A statement that only test files know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Crash,
    Restart(Option<usize>),
    AdvanceTime(i64),
    Epoch,
}

impl Command {
    fn parse(sql: &str) -> Result<Option<Self>> {
        let words: Vec<&str> = sql.trim().trim_end_matches(';').split_whitespace().collect();
        let upper: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
        let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
        Ok(Some(match upper.as_slice() {
            ["CRASH"] => Self::Crash,
            ["EPOCH"] => Self::Epoch,
            ["RESTART"] => Self::Restart(None),
            ["RESTART", "PARALLELISM", n] => Self::Restart(Some(
                n.parse().map_err(|_| Error::invalid(format!("{n:?} is not a number of tasks")))?,
            )),
            ["ADVANCE", "TIME", ..] => {
                let duration = words[2..].join(" ");
                Self::AdvanceTime(millpond::parse_duration(duration.trim_matches('\''))?)
            }
            _ => return Ok(None),
        }))
    }
}

#[async_trait]
impl AsyncDB for Database {
    type Error = TestError;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, TestError> {
        self.statement(sql).await.map_err(TestError)
    }

    async fn shutdown(&mut self) {
        for job in self.engine.jobs().into_iter().filter(Job::is_running) {
            job.cancel().await;
        }
    }

    fn engine_name(&self) -> &str {
        "millpond"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_sql() {
        assert_eq!(Command::parse("crash").unwrap(), Some(Command::Crash));
        assert_eq!(Command::parse("RESTART PARALLELISM 4").unwrap(), Some(Command::Restart(Some(4))));
        assert_eq!(Command::parse("ADVANCE TIME '5 s'").unwrap(), Some(Command::AdvanceTime(5_000_000)));
        assert_eq!(Command::parse("SELECT 1").unwrap(), None);
        assert!(Command::parse("RESTART PARALLELISM many").is_err());
    }
}
