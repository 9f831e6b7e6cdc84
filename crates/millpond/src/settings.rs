//! Settings: every key with its aliases, default and meaning; typed once, at SET.
//!
//! An unknown key is an error with the nearest name. A job's settings are those of its session
//! when it was created.

use std::collections::BTreeMap;

use millpond_connect::object_files::S3Options;
use millpond_connect::options::nearest;
use millpond_core::limits::{BATCH_ROWS_MAX, MAX_PARALLELISM_DEFAULT};
use millpond_core::quantity::{format_duration, parse_duration, parse_size};
use millpond_core::{BadRows, Error, OnMissingFile, Result};
use millpond_runtime::{CheckpointMode, TriggerPolicy};
use millpond_state::{Backend, Verify};

use crate::trigger;

/// One setting as `SHOW SETTINGS` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRow {
    /// The key.
    pub key: &'static str,
    /// Its value now.
    pub value: String,
    /// Its default.
    pub default: String,
    /// `default`, `session` or `command line`.
    pub set_by: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// How a value is checked.
#[derive(Debug, Clone, Copy)]
enum Check {
    Duration,
    Number(u64, u64),
    Flag,
    Words(&'static [(&'static str, &'static str)]),
    Trigger,
    TimeZone,
    /// Bytes, or nothing.
    Size,
    Text,
}

struct Definition {
    key: &'static str,
    aliases: &'static [&'static str],
    check: Check,
    default: &'static str,
    meaning: &'static str,
}

const fn define(
    key: &'static str,
    aliases: &'static [&'static str],
    check: Check,
    default: &'static str,
    meaning: &'static str,
) -> Definition {
    Definition { key, aliases, check, default, meaning }
}

const BACKENDS: &[(&str, &str)] = &[
    ("memory", "memory"),
    ("hashmap", "memory"),
    ("MemoryStateBackend", "memory"),
    ("filesystem", "filesystem"),
    ("FsStateBackend", "filesystem"),
    ("rocksdb", "rocksdb"),
    ("RocksDBStateBackend", "rocksdb"),
];
const BAD_ROWS: &[(&str, &str)] = &[("fail", "fail"), ("skip", "skip"), ("dead-letter", "dead-letter")];
const ON_MISSING_FILE: &[(&str, &str)] = &[("fail", "fail"), ("skip", "skip")];
const MODES: &[(&str, &str)] = &[("streaming", "streaming"), ("batch", "batch")];
const VERIFY: &[(&str, &str)] = &[("size", "size"), ("crc", "crc")];
const NOT_NULL_ENFORCERS: &[(&str, &str)] =
    &[("error", "error"), ("ERROR", "error"), ("drop", "drop"), ("DROP", "drop")];
const TYPE_LENGTH_ENFORCERS: &[(&str, &str)] =
    &[("ignore", "ignore"), ("IGNORE", "ignore"), ("trim_pad", "trim_pad"), ("TRIM_PAD", "trim_pad")];
const CHECKPOINT_MODES: &[(&str, &str)] = &[
    ("exactly_once", "exactly_once"),
    ("exactly-once", "exactly_once"),
    ("at_least_once", "at_least_once"),
    ("at-least-once", "at_least_once"),
];

/// The default that depends on whether there is a data directory.
const WITH_DATA_DIR: &str = "";

const DEFINITIONS: &[Definition] = &[
    define(
        "bad-rows",
        &[],
        Check::Words(BAD_ROWS),
        "fail",
        "what happens to unreadable rows: fail, skip or dead-letter",
    ),
    define("batch.rows", &[], Check::Number(1, BATCH_ROWS_MAX as u64), "8192", "rows of a batch, at most"),
    define(
        "checkpoint.every-rows",
        &[],
        Check::Number(0, u64::MAX),
        "0",
        "checkpoint after so many source rows; 0 is off",
    ),
    define(
        "checkpoint.interval",
        &["checkpointing.interval", "execution.checkpointing.interval"],
        Check::Duration,
        WITH_DATA_DIR,
        "time between periodic checkpoints; 0 is off (default 10 s with a data directory, off without)",
    ),
    define(
        "checkpoint.max-concurrent",
        &["execution.checkpointing.max-concurrent-checkpoints"],
        Check::Number(1, 16),
        "1",
        "checkpoints under way at once",
    ),
    define(
        "checkpoint.min-pause",
        &["execution.checkpointing.min-pause"],
        Check::Duration,
        "0",
        "time between the end of a checkpoint and the start of the next, at least",
    ),
    define(
        "checkpoint.mode",
        &["checkpointing.mode", "execution.checkpointing.mode"],
        Check::Words(CHECKPOINT_MODES),
        "exactly_once",
        "exactly_once, or at_least_once: sinks publish at the end of each epoch",
    ),
    define(
        "checkpoint.retained",
        &["state.checkpoints.num-retained", "execution.checkpointing.num-retained"],
        Check::Number(1, 1_000),
        "3",
        "checkpoints kept",
    ),
    define(
        "checkpoint.timeout",
        &["checkpointing.timeout", "execution.checkpointing.timeout"],
        Check::Duration,
        "10 min",
        "a checkpoint that takes longer is aborted and counted as failed",
    ),
    define(
        "checkpoint.tolerable-failures",
        &["execution.checkpointing.tolerable-failed-checkpoints"],
        Check::Number(0, u32::MAX as u64),
        "4294967295",
        "failed checkpoints in a row before the job restarts",
    ),
    define(
        "checkpoint.trigger",
        &[],
        Check::Trigger,
        "ALWAYS",
        "when automatic ones are made: ALWAYS, MANUAL, START_AT '<time>', END_AT '<time>', PROCESSING_TIME '<duration>'",
    ),
    define("epoch.in-flight-max", &[], Check::Number(1, 1_000), "2", "epochs in the graph at once"),
    define(
        "epoch.interval",
        &["table.exec.mini-batch.allow-latency"],
        Check::Duration,
        "50 ms",
        "the age at which an epoch ends under load",
    ),
    define(
        "epoch.rows",
        &["table.exec.mini-batch.size"],
        Check::Number(0, u64::MAX),
        "0",
        "source rows at which an epoch ends; 0 is off",
    ),
    define("job.name", &["pipeline.name"], Check::Text, "", "identity of the next INSERT over restarts"),
    define(
        "max-parallelism",
        &["pipeline.max-parallelism"],
        Check::Number(1, 32_768),
        "256",
        "number of key groups; fixed for a job's life",
    ),
    define(
        "memory.limit",
        &[],
        Check::Size,
        "",
        "memory for all state of the process; above half of it state spills (default 60 % of the machine's)",
    ),
    define(
        "on-missing-file",
        &[],
        Check::Words(ON_MISSING_FILE),
        "fail",
        "what happens when a file that was read in part is gone: fail or skip",
    ),
    define(
        "parallelism",
        &["parallelism.default"],
        Check::Number(1, 1_024),
        "",
        "tasks per fragment (default: cores)",
    ),
    define(
        "restart.attempts",
        &[
            "restart-strategy.fixed-delay.attempts",
            "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        ],
        Check::Number(0, 1_000_000),
        "10",
        "restarts after failures that may pass",
    ),
    define(
        "restore.allow-non-restored-state",
        &["execution.state-recovery.ignore-unclaimed-state", "execution.savepoint.ignore-unclaimed-state"],
        Check::Flag,
        "false",
        "start although the checkpoint holds state of operators that are gone",
    ),
    define(
        "restore.from",
        &["execution.state-recovery.path", "execution.savepoint.path"],
        Check::Text,
        "",
        "where a job without checkpoints of its own begins: the folder of a savepoint or checkpoint, or latest",
    ),
    define(
        "restore.verify",
        &[],
        Check::Words(VERIFY),
        "size",
        "what is checked before a checkpoint is chosen",
    ),
    define(
        "runtime-mode",
        &["execution.runtime-mode"],
        Check::Words(MODES),
        "streaming",
        "batch: bounded queries by batch execution",
    ),
    define(
        "s3.access-key",
        &["s3.access.key"],
        Check::Text,
        "",
        "key of an S3 store (default: AWS_ACCESS_KEY_ID)",
    ),
    define(
        "s3.endpoint",
        &[],
        Check::Text,
        "",
        "server of an S3 store other than Amazon's (default: AWS_ENDPOINT)",
    ),
    define(
        "s3.path-style-access",
        &["s3.path.style.access"],
        Check::Flag,
        "true",
        "whether the bucket of an S3 store stands in the path; else it is part of the host's name",
    ),
    define(
        "s3.region",
        &["s3.endpoint.region"],
        Check::Text,
        "",
        "region of an S3 store (default: AWS_REGION)",
    ),
    define(
        "s3.secret-key",
        &["s3.secret.key"],
        Check::Text,
        "",
        "secret of an S3 store (default: AWS_SECRET_ACCESS_KEY)",
    ),
    define(
        "sink.not-null-enforcer",
        &["table.exec.sink.not-null-enforcer"],
        Check::Words(NOT_NULL_ENFORCERS),
        "error",
        "what happens to rows with NULL for a column of a sink that is NOT NULL: error or drop",
    ),
    define(
        "sink.type-length-enforcer",
        &["table.exec.sink.type-length-enforcer"],
        Check::Words(TYPE_LENGTH_ENFORCERS),
        "ignore",
        "texts for a column of a sink that is CHAR(n) or VARCHAR(n): ignore the length, or trim_pad: cut them, or \
         fill CHAR with blanks",
    ),
    define(
        "source.cdc-duplicates",
        &["table.exec.source.cdc-events-duplicate"],
        Check::Flag,
        "false",
        "change events may come twice: their tables must have a PRIMARY KEY, by which rows replace each other",
    ),
    define(
        "source.idle-timeout",
        &["table.exec.source.idle-timeout"],
        Check::Duration,
        "0",
        "an input without rows for so long no longer holds the watermark; 0 is never",
    ),
    define("source.max-future", &[], Check::Duration, "0", "rows further in the future are bad; 0 is off"),
    define(
        "state.backend",
        &["state.backend.type"],
        Check::Words(BACKENDS),
        WITH_DATA_DIR,
        "memory, filesystem or rocksdb (default rocksdb with a data directory, memory without)",
    ),
    define(
        "state.checkpoints.dir",
        &["execution.checkpointing.dir"],
        Check::Text,
        "",
        "folder of the checkpoints (default <data dir>/jobs)",
    ),
    define(
        "state.require-bounded",
        &[],
        Check::Flag,
        "false",
        "refuse queries whose state grows without bound",
    ),
    define(
        "state.savepoints.dir",
        &["execution.checkpointing.savepoint-dir"],
        Check::Text,
        "",
        "folder of savepoints for which no folder is named (default <data dir>/savepoints)",
    ),
    define(
        "state.ttl",
        &["table.exec.state.ttl"],
        Check::Duration,
        "0",
        "Top-N and deduplication forget a key that nothing changes for so long (GROUP BY and joins do not yet); 0 is never",
    ),
    define(
        "time-zone",
        &["table.local-time-zone"],
        Check::TimeZone,
        "UTC",
        "time zone of TIMESTAMP_LTZ and CURRENT_DATE",
    ),
];

/// Documented keys that this version does not have yet: refused by name rather than as typing errors.
const NOT_YET: &[&str] = &["restart.delay", "restart.strategy", "source.max-drift", "allowed-paths"];

/// Flink keys that change how Flink runs and have nothing to say here: accepted, without effect.
const ACCEPTED: &[&str] = &[
    "table.exec.mini-batch.enabled",
    "pipeline.object-reuse",
    "sql-client.execution.result-mode",
    "table.dml-sync",
];

/// What `ALTER JOB` can change.
const ALTERABLE: &[&str] = &[
    "checkpoint.every-rows",
    "checkpoint.interval",
    "checkpoint.max-concurrent",
    "checkpoint.min-pause",
    "checkpoint.retained",
    "checkpoint.timeout",
    "checkpoint.tolerable-failures",
    "checkpoint.trigger",
    "epoch.interval",
    "restart.attempts",
];

/// The settings of a session.
#[derive(Debug, Clone)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, &'static str)>,
    durable: bool,
}

fn definition(key: &str) -> Result<&'static Definition> {
    if let Some(found) = DEFINITIONS.iter().find(|d| d.key == key || d.aliases.contains(&key)) {
        return Ok(found);
    }
    if NOT_YET.contains(&key) {
        return Err(Error::invalid(format!("the setting '{key}' is not supported yet")));
    }
    let keys = DEFINITIONS.iter().flat_map(|d| d.aliases.iter().copied().chain([d.key]));
    let error = Error::invalid(format!("unknown setting '{key}'"));
    Err(match nearest(key, keys) {
        Some(word) => error.with_hint(format!("did you mean '{word}'? SHOW SETTINGS lists all")),
        None => error.with_hint("SHOW SETTINGS lists all"),
    })
}

impl Check {
    /// The canonical text of a value.
    fn canonical(self, text: &str) -> Result<String> {
        match self {
            Check::Duration => Ok(format_duration(parse_duration(text)?)),
            Check::Number(min, max) => match text.trim().parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
                _ => Err(Error::invalid(format!("{text:?} is not a whole number between {min} and {max}"))),
            },
            Check::Flag => match text.to_ascii_lowercase().as_str() {
                "true" => Ok("true".into()),
                "false" => Ok("false".into()),
                _ => Err(Error::invalid(format!("{text:?} is neither true nor false"))),
            },
            Check::Words(words) => words
                .iter()
                .find(|(word, _)| word.eq_ignore_ascii_case(text))
                .map(|(_, value)| (*value).into())
                .ok_or_else(|| {
                    let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                    Error::invalid(format!("{text:?} is not one of {}", all.join(", ")))
                }),
            Check::Trigger => trigger::parse(text, "UTC").map(|_| text.trim().into()),
            Check::TimeZone => match text.parse::<chrono_tz::Tz>() {
                Ok(zone) => Ok(zone.name().into()),
                Err(_) => Err(Error::invalid(format!("{text:?} is not a time zone"))
                    .with_hint("use a name of the IANA database, for example 'Europe/Berlin' or 'UTC'")),
            },
            Check::Size if text.trim().is_empty() => Ok(String::new()),
            Check::Size => Ok(parse_size(text)?.to_string()),
            Check::Text => Ok(text.into()),
        }
    }
}

impl Settings {
    /// The defaults, with or without a data directory.
    pub fn new(durable: bool) -> Self {
        Self { values: BTreeMap::new(), durable }
    }

    /// Sets a key.
    ///
    /// Errors: *Invalid* for an unknown key (with the nearest one) or an unusable value.
    pub fn set(&mut self, key: &str, value: &str, set_by: &'static str) -> Result<()> {
        if ACCEPTED.contains(&key) {
            return Ok(());
        }
        let definition = definition(key)?;
        let value =
            definition.check.canonical(value).map_err(|error| error.context(format!("setting '{key}'")))?;
        self.values.insert(definition.key, (value, set_by));
        Ok(())
    }

    /// Sets a key of a running job; answers the key's own name and the value in its own notation.
    ///
    /// Errors: as of [`Settings::set`]; *Invalid* for a key that a running job cannot change.
    pub(crate) fn alter(&mut self, key: &str, value: &str) -> Result<(String, String)> {
        let definition = definition(key)?;
        if !ALTERABLE.contains(&definition.key) {
            return Err(Error::invalid(format!("'{}' cannot change while a job runs", definition.key))
                .with_detail(format!("these can: {}", ALTERABLE.join(", ")))
                .with_hint("STOP JOB, SET it, and run the statement again"));
        }
        self.set(key, value, "job")?;
        Ok((definition.key.into(), self.value(definition.key)))
    }

    /// Puts a key, or all, back to the default.
    pub fn reset(&mut self, key: Option<&str>) -> Result<()> {
        match key {
            None => self.values.clear(),
            Some(key) => {
                self.values.remove(definition(key)?.key);
            }
        }
        Ok(())
    }

    /// All settings, for `SHOW SETTINGS`.
    pub fn rows(&self) -> Vec<SettingRow> {
        DEFINITIONS
            .iter()
            .map(|d| {
                let default = self.default_of(d);
                let (value, set_by) = self.values.get(d.key).cloned().unwrap_or((default.clone(), "default"));
                SettingRow { key: d.key, value, default, set_by, meaning: d.meaning }
            })
            .collect()
    }

    /// What was set, for the catalog log.
    pub(crate) fn changed(&self) -> BTreeMap<String, String> {
        self.values.iter().map(|(key, (value, _))| ((*key).to_string(), value.clone())).collect()
    }

    fn default_of(&self, definition: &Definition) -> String {
        match definition.key {
            "checkpoint.interval" if self.durable => "10 s".into(),
            "checkpoint.interval" => "0".into(),
            "state.backend" if self.durable => "rocksdb".into(),
            "state.backend" => "memory".into(),
            "parallelism" => cores().to_string(),
            _ => definition.default.into(),
        }
    }

    fn value(&self, key: &str) -> String {
        let definition = definition(key).expect("the engine asks for keys it has defined");
        match self.values.get(definition.key) {
            Some((value, _)) => value.clone(),
            None => self.default_of(definition),
        }
    }
    fn micros(&self, key: &str) -> i64 {
        parse_duration(&self.value(key)).expect("durations are checked at SET")
    }
    fn number(&self, key: &str) -> u64 {
        self.value(key).parse().expect("numbers are checked at SET")
    }

    /// `bad-rows`.
    pub fn bad_rows(&self) -> BadRows {
        match self.value("bad-rows").as_str() {
            "skip" => BadRows::Skip,
            "dead-letter" => BadRows::DeadLetter,
            _ => BadRows::Fail,
        }
    }
    /// `on-missing-file`.
    pub fn on_missing_file(&self) -> OnMissingFile {
        match self.value("on-missing-file").as_str() {
            "skip" => OnMissingFile::Skip,
            _ => OnMissingFile::Fail,
        }
    }
    /// `batch.rows`.
    pub fn batch_rows(&self) -> usize {
        self.number("batch.rows") as usize
    }
    /// `checkpoint.interval` in microseconds; `None` is off.
    pub fn checkpoint_interval(&self) -> Option<i64> {
        Some(self.micros("checkpoint.interval")).filter(|micros| *micros > 0)
    }
    /// `checkpoint.every-rows`; `None` is off.
    pub fn checkpoint_every_rows(&self) -> Option<u64> {
        Some(self.number("checkpoint.every-rows")).filter(|rows| *rows > 0)
    }
    /// `checkpoint.trigger`.
    pub fn checkpoint_trigger(&self) -> TriggerPolicy {
        trigger::parse(&self.value("checkpoint.trigger"), &self.time_zone())
            .expect("triggers are checked at SET")
    }
    /// `checkpoint.mode`.
    pub fn checkpoint_mode(&self) -> CheckpointMode {
        match self.value("checkpoint.mode").as_str() {
            "at_least_once" => CheckpointMode::AtLeastOnce,
            _ => CheckpointMode::ExactlyOnce,
        }
    }
    /// `checkpoint.max-concurrent`.
    pub fn checkpoint_max_concurrent(&self) -> usize {
        self.number("checkpoint.max-concurrent") as usize
    }
    /// `checkpoint.timeout` in microseconds.
    pub fn checkpoint_timeout(&self) -> i64 {
        self.micros("checkpoint.timeout")
    }
    /// `checkpoint.min-pause` in microseconds.
    pub fn checkpoint_min_pause(&self) -> i64 {
        self.micros("checkpoint.min-pause")
    }
    /// `checkpoint.retained`.
    pub fn checkpoint_retained(&self) -> usize {
        self.number("checkpoint.retained") as usize
    }
    /// `checkpoint.tolerable-failures`; `None` is unlimited.
    pub fn tolerable_failures(&self) -> Option<u32> {
        u32::try_from(self.number("checkpoint.tolerable-failures")).ok().filter(|n| *n < u32::MAX)
    }
    /// `epoch.interval` in microseconds.
    pub fn epoch_interval(&self) -> i64 {
        self.micros("epoch.interval")
    }
    /// `epoch.rows`; `None` is off.
    pub fn epoch_rows(&self) -> Option<u64> {
        Some(self.number("epoch.rows")).filter(|rows| *rows > 0)
    }
    /// `epoch.in-flight-max`.
    pub fn epochs_in_flight_max(&self) -> usize {
        self.number("epoch.in-flight-max") as usize
    }
    /// `job.name`.
    pub fn job_name(&self) -> Option<String> {
        Some(self.value("job.name")).filter(|name| !name.is_empty())
    }
    /// `parallelism`.
    pub fn parallelism(&self) -> usize {
        self.number("parallelism") as usize
    }
    /// `max-parallelism`.
    pub fn max_parallelism(&self) -> u16 {
        u16::try_from(self.number("max-parallelism")).unwrap_or(MAX_PARALLELISM_DEFAULT)
    }
    /// `restart.attempts`.
    pub fn restart_attempts(&self) -> u32 {
        self.number("restart.attempts") as u32
    }
    /// `restore.from`.
    pub fn restore_from(&self) -> Option<String> {
        Some(self.value("restore.from")).filter(|place| !place.is_empty())
    }
    /// `restore.allow-non-restored-state`.
    pub fn allow_non_restored_state(&self) -> bool {
        self.value("restore.allow-non-restored-state") == "true"
    }
    /// `restore.verify`.
    pub fn verify(&self) -> Verify {
        match self.value("restore.verify").as_str() {
            "crc" => Verify::Crc,
            _ => Verify::Size,
        }
    }
    /// Whether `runtime-mode` is `batch`.
    pub fn is_batch(&self) -> bool {
        self.value("runtime-mode") == "batch"
    }
    /// Whether `sink.not-null-enforcer` is `drop`.
    pub fn drop_nulls_at_sinks(&self) -> bool {
        self.value("sink.not-null-enforcer") == "drop"
    }
    /// Whether `sink.type-length-enforcer` is `trim_pad`.
    pub fn fit_texts_at_sinks(&self) -> bool {
        self.value("sink.type-length-enforcer") == "trim_pad"
    }
    /// `state.require-bounded`.
    pub fn require_bounded_state(&self) -> bool {
        self.value("state.require-bounded") == "true"
    }
    /// `source.cdc-duplicates`.
    pub fn cdc_duplicates(&self) -> bool {
        self.value("source.cdc-duplicates") == "true"
    }
    /// `source.idle-timeout` in microseconds; 0 is never.
    pub fn idle_timeout(&self) -> i64 {
        self.micros("source.idle-timeout")
    }
    /// `source.max-future` in microseconds; `None` is off.
    pub fn max_future(&self) -> Option<i64> {
        Some(self.micros("source.max-future")).filter(|micros| *micros > 0)
    }
    /// `state.backend`.
    pub fn backend(&self) -> Backend {
        match self.value("state.backend").as_str() {
            "filesystem" => Backend::Filesystem,
            "rocksdb" => Backend::Rocksdb,
            _ => Backend::Memory,
        }
    }
    /// `memory.limit` in bytes.
    pub fn memory_limit(&self) -> usize {
        self.value("memory.limit").parse().unwrap_or_else(|_| default_limit())
    }
    /// `s3.…`.
    pub fn s3(&self) -> S3Options {
        let given = |key: &str| Some(self.value(key)).filter(|value| !value.is_empty());
        S3Options {
            endpoint: given("s3.endpoint"),
            access_key: given("s3.access-key"),
            secret_key: given("s3.secret-key"),
            region: given("s3.region"),
            bucket_in_host: self.value("s3.path-style-access") == "false",
        }
    }
    /// `state.checkpoints.dir`.
    pub fn checkpoints_dir(&self) -> Option<String> {
        Some(self.value("state.checkpoints.dir")).filter(|dir| !dir.is_empty())
    }
    /// `state.savepoints.dir`.
    pub fn savepoints_dir(&self) -> Option<String> {
        Some(self.value("state.savepoints.dir")).filter(|dir| !dir.is_empty())
    }
    /// `state.ttl` in microseconds; `None` is never.
    pub fn state_ttl(&self) -> Option<i64> {
        Some(self.micros("state.ttl")).filter(|micros| *micros > 0)
    }
    /// `time-zone`.
    pub fn time_zone(&self) -> String {
        self.value("time-zone")
    }
}

/// 60 % of what the machine, or the container, has; no limit where that cannot be told.
fn default_limit() -> usize {
    let number = |text: String| text.split_whitespace().find_map(|word| word.parse::<usize>().ok());
    let read = |path: &str| std::fs::read_to_string(path).ok().and_then(number);
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?.to_string();
        number(line).map(|kilobytes| kilobytes << 10)
    });
    let container = read("/sys/fs/cgroup/memory.max");
    machine.into_iter().chain(container).min().map_or(usize::MAX, |bytes| bytes / 10 * 6)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_name_the_nearest() {
        let mut settings = Settings::new(false);
        let error = settings.set("checkpoint.intervall", "1 s", "session").unwrap_err();
        assert_eq!(error.message(), "unknown setting 'checkpoint.intervall'");
        assert!(error.hint().unwrap().contains("'checkpoint.interval'"), "{error}");
    }

    #[test]
    fn flink_names_and_values_are_understood() {
        let mut settings = Settings::new(true);
        settings.set("execution.checkpointing.interval", "500", "session").unwrap();
        settings.set("state.backend.type", "RocksDBStateBackend", "session").unwrap();
        assert_eq!(settings.checkpoint_interval(), Some(500_000));
        assert_eq!(settings.backend(), Backend::Rocksdb);
        settings.reset(Some("checkpoint.interval")).unwrap();
        assert_eq!(settings.checkpoint_interval(), Some(10_000_000));
    }

    #[test]
    fn values_are_checked_at_set() {
        let mut settings = Settings::new(false);
        for (key, value) in [
            ("parallelism", "0"),
            ("epoch.interval", "soon"),
            ("time-zone", "Mars/Olympus"),
            ("bad-rows", "drop"),
        ] {
            let error = settings.set(key, value, "session").unwrap_err();
            assert!(error.message().contains(key), "{error}");
        }
    }

    #[test]
    fn every_default_is_a_value_its_check_accepts() {
        for durable in [false, true] {
            for row in Settings::new(durable).rows() {
                let definition = definition(row.key).unwrap();
                definition.check.canonical(&row.default).unwrap();
            }
        }
    }
}
