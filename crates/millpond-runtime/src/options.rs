//! Options of a job, and the components that it is given.

use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{Clock, DeadLetterOffice};
use millpond_state::{StateStore, Verify};

use crate::admission::TriggerPolicy;
use crate::coordinator::CoordinatorOptions;
use crate::memory::Memory;

/// How a job runs. Durations in microseconds.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// The job's identity, kept over restarts.
    pub job: String,
    /// The name under which its sinks prepare output: unlike `job` it tells the jobs of several
    /// engines apart, which may write to one place.
    pub writer: String,
    /// `epoch.interval`: the age at which an epoch ends under load.
    pub epoch_interval: i64,
    /// `epoch.rows`: rows of an epoch, over all sources.
    pub epoch_rows: Option<u64>,
    /// `epoch.in-flight-max`.
    pub in_flight_max: u64,
    /// `checkpoint.interval`; `None`: no periodic checkpoints.
    pub checkpoint_interval: Option<i64>,
    /// `checkpoint.every-rows`.
    pub checkpoint_every_rows: Option<u64>,
    /// `checkpoint.trigger`: when the automatic ones are made.
    pub trigger: TriggerPolicy,
    /// `checkpoint.mode`.
    pub mode: CheckpointMode,
    /// `checkpoint.max-concurrent`.
    pub max_concurrent: usize,
    /// `checkpoint.timeout`.
    pub checkpoint_timeout: i64,
    /// `checkpoint.min-pause`.
    pub min_pause: i64,
    /// `checkpoint.retained`.
    pub retained: usize,
    /// `checkpoint.tolerable-failures`: failures in a row; `None`: unlimited.
    pub tolerable_failures: Option<u32>,
    /// A checkpoint at every epoch (torture).
    pub checkpoint_at_every_epoch: bool,
    /// Rows that a source takes at once, at most.
    pub batch_rows: usize,
    /// `restore.verify`.
    pub verify: Verify,
    /// `restore.from`: where a job without checkpoints of its own begins.
    pub restore_from: Option<PathBuf>,
    /// `restore.allow-non-restored-state`.
    pub allow_non_restored_state: bool,
    /// `restart.*`.
    pub restart: RestartPolicy,
}

/// What a job promises of its output (`checkpoint.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointMode {
    /// No row is lost and none is doubled, as far as the sinks can: transactional ones publish with
    /// the checkpoint.
    #[default]
    ExactlyOnce,
    /// No row is lost: sinks publish at the end of each epoch, and a restart repeats what they
    /// published since the last checkpoint.
    AtLeastOnce,
}

impl CheckpointMode {
    /// As settings and metadata name it.
    pub fn name(self) -> &'static str {
        match self {
            CheckpointMode::ExactlyOnce => "exactly_once",
            CheckpointMode::AtLeastOnce => "at_least_once",
        }
    }
}

/// How often and how soon a job that fails for the moment is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Restarts in a row without a completed checkpoint between them; `None`: unlimited.
    pub attempts: Option<u32>,
    /// The first pause, in microseconds; it doubles.
    pub delay: i64,
    /// The longest pause, in microseconds.
    pub delay_max: i64,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self { attempts: None, delay: 100_000, delay_max: 60_000_000 }
    }
}

impl Default for JobOptions {
    /// The documented defaults without a data directory.
    fn default() -> Self {
        Self {
            job: String::new(),
            writer: String::new(),
            epoch_interval: 50_000,
            epoch_rows: None,
            in_flight_max: 2,
            checkpoint_interval: None,
            checkpoint_every_rows: None,
            trigger: TriggerPolicy::Always,
            mode: CheckpointMode::ExactlyOnce,
            max_concurrent: 1,
            checkpoint_timeout: 600_000_000,
            min_pause: 0,
            retained: 3,
            tolerable_failures: None,
            checkpoint_at_every_epoch: false,
            batch_rows: BATCH_ROWS_MAX,
            verify: Verify::Size,
            restore_from: None,
            allow_non_restored_state: false,
            restart: RestartPolicy::default(),
        }
    }
}

impl JobOptions {
    pub(crate) fn of_coordinator(&self) -> CoordinatorOptions {
        CoordinatorOptions {
            interval: self.checkpoint_interval,
            every_rows: self.checkpoint_every_rows,
            policy: self.trigger,
            timeout: self.checkpoint_timeout,
            min_pause: self.min_pause,
            concurrent_max: self.max_concurrent.max(1),
            tolerable_failures: self.tolerable_failures,
        }
    }

    /// Whether checkpoints are made without being asked for.
    pub(crate) fn makes_checkpoints(&self) -> bool {
        self.checkpoint_interval.is_some()
            || self.checkpoint_every_rows.is_some()
            || self.checkpoint_at_every_epoch
    }
}

/// The components that a job is given.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Processing time.
    pub clock: Arc<dyn Clock>,
    /// Where the job's state goes.
    pub store: Arc<dyn StateStore>,
    /// Where unusable records go.
    pub dead_letters: Arc<dyn DeadLetterOffice>,
    /// Where input that cannot be read again is written down, a folder per source; `None`: nowhere.
    pub log_dir: Option<PathBuf>,
    /// How much state stays in memory, and where the rest goes.
    pub memory: Memory,
}
