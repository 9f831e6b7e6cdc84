//! The report of a test run, on stdout.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use millpond::{Error, Result};

use crate::RunOutcome;
use crate::generate::Verdict;
use crate::judge::Tally;
use crate::mode::Mode;

/// Counts runs and tells what failed as soon as it is known.
#[derive(Debug, Default)]
pub(crate) struct Report {
    passed: usize,
    failed: usize,
    skipped: usize,
    by_mode: BTreeMap<String, usize>,
    judged: Tally,
    /// What generated queries have asked for in vain, and how often.
    lacking: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn add(&mut self, file: &Path, mode: &Mode, seed: u64, outcome: RunOutcome) {
        match outcome {
            RunOutcome::Passed(tally) => {
                self.passed += 1;
                self.judged.add(tally);
                *self.by_mode.entry(mode.name.clone()).or_default() += 1;
            }
            RunOutcome::Skipped => self.skipped += 1,
            RunOutcome::Failed(text) => {
                self.failed += 1;
                let (file, mode) = (file.display(), &mode.name);
                say(&format!("FAILED {file} in mode {mode} (seed {seed})\n{text}\n"));
                say(&format!("repeat it with: millpond test {file} --mode '{mode}' --seed {seed}\n"));
            }
        }
    }

    /// A generated query.
    pub(crate) fn add_generated(&mut self, seed: u64, outcome: Result<Verdict>) {
        match outcome {
            Ok(Verdict::Agrees(tally)) => {
                self.judged.add(tally);
                self.passed_as("generated queries");
            }
            Ok(Verdict::Lacking(what)) => {
                self.skipped += 1;
                *self.lacking.entry(what).or_default() += 1;
            }
            Err(error) => self.failed_case(seed, &error),
        }
    }

    /// A case of windows; whether the engine has them.
    pub(crate) fn add_windows(&mut self, seed: u64, outcome: Result<bool>) {
        match outcome {
            Ok(true) => self.passed_as("generated windows"),
            Ok(false) => self.skipped += 1,
            Err(error) => self.failed_case(seed, &error),
        }
    }

    fn passed_as(&mut self, what: &str) {
        self.passed += 1;
        *self.by_mode.entry(what.into()).or_default() += 1;
    }

    fn failed_case(&mut self, seed: u64, error: &Error) {
        self.failed += 1;
        say(&format!("FAILED {error}\nrepeat it with: millpond test --generate 1 --seed {seed}\n"));
    }

    pub(crate) fn updated(&mut self, files: usize) {
        say(&format!("{files} files updated\n"));
    }

    /// Tells the sum; whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        for (mode, count) in &self.by_mode {
            let within = if mode.starts_with("generated") { "of" } else { "in mode" };
            say(&format!("  {count:>4} passed {within} {mode}\n"));
        }
        for (what, count) in &self.lacking {
            say(&format!("  {count:>4} skipped: {what}\n"));
        }
        if self.judged != Tally::default() {
            let Tally { queries, epochs, passed_over } = self.judged;
            say(&format!(
                "  {queries} queries judged after {epochs} epochs; {passed_over} cannot be judged\n"
            ));
        }
        say(&format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped));
        self.failed == 0
    }
}

/// A report that nobody reads is no reason to fail.
fn say(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
