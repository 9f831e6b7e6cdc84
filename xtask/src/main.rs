//! Project chores: `cargo xtask tidy` checks the house rules, `cargo xtask torture` runs every SQL
//! file in every mode and judges generated queries.

use std::io::Write;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy(),
        Some("torture") => torture(),
        _ => {
            say("usage: cargo xtask tidy | torture\n");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    match xtask::tidy(&xtask::root()) {
        Ok(offences) if offences.is_empty() => ExitCode::SUCCESS,
        Ok(offences) => {
            say(&format!("{}\n", offences.join("\n")));
            ExitCode::from(1)
        }
        Err(error) => {
            say(&format!("cannot read the sources: {error}\n"));
            ExitCode::from(1)
        }
    }
}

fn torture() -> ExitCode {
    let run = Command::new("cargo")
        .args(["run", "--quiet", "--package", "millpond-cli", "--bin", "millpond", "--"])
        .args(["test", "sql-tests", "--torture", "--generate", "500"])
        .current_dir(xtask::root())
        .status();
    match run {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            say(&format!("cannot run cargo: {error}\n"));
            ExitCode::from(1)
        }
    }
}

/// There is nowhere to report a failure of the terminal to.
fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
