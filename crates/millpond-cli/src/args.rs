//! What stands on the command line, as types.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Streaming SQL, right at every moment.
///
/// Without -c or -f an interactive shell. Without DATA_DIR everything is in memory and gone at the end.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Folder in which tables, jobs and checkpoints are kept; `:memory:`: none
    data_dir: Option<PathBuf>,
    /// Run this SQL and print; may be given several times
    #[arg(short = 'c', value_name = "SQL", conflicts_with = "file")]
    pub(crate) command_text: Vec<String>,
    /// Run this script and print; `-` reads stdin
    #[arg(short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// How rows are printed
    #[arg(long, value_enum, default_value_t = Format::Box)]
    pub(crate) format: Format,
    /// Text for NULL [default: NULL; empty in csv]
    #[arg(long, value_name = "TEXT")]
    pub(crate) null: Option<String>,
    /// No line with the columns' names
    #[arg(long)]
    pub(crate) no_header: bool,
    /// Set a setting before the first statement
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Tasks per fragment; short for --set parallelism=N
    #[arg(long, value_name = "N")]
    parallelism: Option<usize>,
    /// Answer HTTP requests about jobs and their checkpoints at this address, as 127.0.0.1:8081
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Only results and errors
    #[arg(long)]
    pub(crate) quiet: bool,
    /// A progress line even when stderr is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
    /// With -f and -c: go on after a statement that fails
    #[arg(long)]
    pub(crate) keep_going: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Args {
    /// The data directory; `:memory:` is none, as in other shells.
    pub(crate) fn data_dir(&self) -> Option<PathBuf> {
        self.data_dir.clone().filter(|dir| dir.as_os_str() != ":memory:")
    }

    /// Settings that sessions begin with.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let parallelism = self.parallelism.map(|n| ("parallelism".to_string(), n.to_string()));
        self.set.iter().cloned().chain(parallelism).collect()
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.trim().into(), value.trim().into())),
        None => Err("expected KEY=VALUE, for example checkpoint.interval=1s".into()),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run sqllogictest files
    Test(TestArgs),
    /// Look at the checkpoints and savepoints in a stopped engine's files
    #[command(subcommand)]
    Checkpoints(CheckpointsCommand),
}

/// `millpond checkpoints`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointsCommand {
    /// All checkpoints and savepoints below a folder
    List {
        /// A data directory, a job's folder or a savepoint's
        dir: PathBuf,
    },
    /// The operators and state tables of one
    Inspect {
        /// A folder with metadata.json, or a job's folder: its newest checkpoint
        dir: PathBuf,
    },
    /// Read every file and check it against its checksum; exit status 1 when one is damaged
    Verify {
        /// A data directory, a job's folder or a savepoint's
        dir: PathBuf,
    },
    /// How the rows of each state table differ between two
    Diff {
        /// The earlier one
        first: PathBuf,
        /// The later one
        second: PathBuf,
    },
}

/// `millpond test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Files, or folders of .slt files
    #[arg(required_unless_present = "generate")]
    paths: Vec<PathBuf>,
    /// Run each file in every torture mode
    #[arg(long)]
    torture: bool,
    /// Run each file in these modes (plain, random, one-row-epochs, …); default: plain
    #[arg(long = "mode", value_name = "MODE")]
    modes: Vec<String>,
    /// Write what the engine answers into the files
    #[arg(long)]
    update: bool,
    /// Files run at once
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Also judge this many generated queries
    #[arg(long, value_name = "N", default_value_t = 0)]
    generate: u64,
    /// Seed of random modes; printed when a run fails
    #[arg(long)]
    seed: Option<u64>,
}

impl TestArgs {
    pub(crate) fn options(&self) -> millpond_sqltest::Options {
        millpond_sqltest::Options {
            paths: self.paths.clone(),
            torture: self.torture,
            modes: self.modes.clone(),
            update: self.update,
            jobs: self.jobs,
            generate: self.generate,
            seed: self.seed,
        }
    }
}

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns under a line of names
    Table,
    /// A drawn box
    Box,
    /// RFC 4180; an empty field is NULL
    Csv,
    /// One object per line
    Jsonl,
    /// One array of objects
    Json,
    /// A Markdown table
    Markdown,
    /// One column per line
    Line,
    /// Values separated by |
    List,
}
