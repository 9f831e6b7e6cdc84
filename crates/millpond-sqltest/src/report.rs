//! The report of a test run, on stdout.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use crate::RunOutcome;
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

    pub(crate) fn updated(&mut self, files: usize) {
        say(&format!("{files} files updated\n"));
    }

    /// Tells the sum; whether nothing failed.
    pub(crate) fn finish(self) -> bool {
        for (mode, count) in &self.by_mode {
            say(&format!("  {count:>4} passed in mode {mode}\n"));
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
