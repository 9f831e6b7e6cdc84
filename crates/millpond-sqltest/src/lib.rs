//! How a test file is run and tortured.
//!
//! A file is run in *modes*; every mode expects the same text, because results are folded. A mode
//! is a set of settings and, for `crash`, a way of treating the engine between and inside
//! statements. Each run has an empty engine, a data directory and a `$TEST_DIR` of its own. The mode
//! `differential` also judges each query after every epoch; see `judge`.
//!
//! Statements known only here: `CRASH`, `RESTART [PARALLELISM n]`, `ADVANCE TIME '5 s'`, `EPOCH`.

mod database;
mod difference;
mod generate;
mod judge;
mod mode;
mod recorder;
mod report;
mod window_check;
mod window_model;

use std::path::{Path, PathBuf};

use futures::StreamExt;
use millpond::{Error, Result};

use crate::judge::Tally;
pub use crate::mode::Mode;
use crate::report::Report;

/// What is run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files, or folders of `.slt` files.
    pub paths: Vec<PathBuf>,
    /// Every mode instead of the chosen ones.
    pub torture: bool,
    /// Names of modes; none means `plain`.
    pub modes: Vec<String>,
    /// Write what the engine answers into the files.
    pub update: bool,
    /// Files run at once.
    pub jobs: usize,
    /// Generated queries and window cases judged beside the files.
    pub generate: u64,
    /// Seed of random choices.
    pub seed: Option<u64>,
}

/// Runs the files; whether all passed. What failed is told on stdout.
///
/// Errors: *Invalid* for an unknown mode or a path that is not there.
pub async fn run(options: Options) -> Result<bool> {
    let files =
        if options.paths.is_empty() && options.generate > 0 { Vec::new() } else { files(&options.paths)? };
    let seed = options.seed.unwrap_or_else(|| millpond::Random::fresh().next_u64());
    let modes = modes(&options, seed)?;
    let mut report = Report::default();
    if options.update {
        for file in &files {
            database::update(file).await?;
        }
        report.updated(files.len());
        return Ok(true);
    }
    let runs = files.iter().flat_map(|file| modes.iter().map(move |mode| (file.clone(), mode.clone())));
    let mut outcomes = futures::stream::iter(runs)
        .map(|(file, mode)| async move {
            let outcome = run_one(&file, &mode).await;
            (file, mode, outcome)
        })
        .buffered(options.jobs.max(1));
    while let Some((file, mode, outcome)) = outcomes.next().await {
        report.add(&file, &mode, seed, outcome);
    }
    for seed in (0..options.generate).map(|case| seed.wrapping_add(case)) {
        report.add_generated(seed, generate::check_query(seed).await);
        report.add_windows(seed, window_check::check_windows(seed).await);
    }
    Ok(report.finish())
}

/// What came of a run.
#[derive(Debug)]
pub(crate) enum RunOutcome {
    Passed(Tally),
    /// The file asks not to be run in this mode.
    Skipped,
    Failed(String),
}

async fn run_one(file: &Path, mode: &Mode) -> RunOutcome {
    match std::fs::read_to_string(file) {
        Err(error) => RunOutcome::Failed(format!("cannot read: {error}")),
        Ok(text) if skips(&text, mode) => RunOutcome::Skipped,
        Ok(_) => {
            let (path, mode) = (file.to_path_buf(), mode.clone());
            match tokio::spawn(async move { database::run(&path, &mode).await }).await {
                Ok(Ok(tally)) => RunOutcome::Passed(tally),
                Ok(Err(text)) => RunOutcome::Failed(text),
                Err(panic) => RunOutcome::Failed(format!("the engine panicked: {panic}")),
            }
        }
    }
}

/// `# torture: skip <mode> because …` at the top of a file excludes a mode.
fn skips(text: &str, mode: &Mode) -> bool {
    text.lines()
        .take_while(|line| line.starts_with('#') || line.trim().is_empty())
        .filter_map(|line| line.strip_prefix("# torture: skip "))
        .filter_map(|rest| rest.split_once(" because "))
        .any(|(name, _)| mode.includes(name.trim()))
}

fn modes(options: &Options, seed: u64) -> Result<Vec<Mode>> {
    if options.torture {
        return Ok(Mode::all(seed));
    }
    if options.modes.is_empty() {
        return Ok(vec![Mode::plain()]);
    }
    options.modes.iter().map(|name| Mode::named(name, seed)).collect()
}

fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files).map_err(|error| Error::io(format!("read {path:?}"), &error))?;
    }
    if files.is_empty() {
        return Err(Error::invalid("no .slt file found"));
    }
    files.sort();
    Ok(files)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.metadata()?.is_dir() {
        files.push(path.canonicalize()?);
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "slt") {
            collect(&path, files)?;
        }
    }
    Ok(())
}
