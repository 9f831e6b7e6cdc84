//! Scripts: `-c` and `-f`. One statement after the other; the first that fails ends the script.
//!
//! INSERT jobs over bounded input are waited for where they stand; jobs over unbounded input run
//! on, and the script's end waits for them until Ctrl-C, which stops them with a last checkpoint
//! where there is a data directory.

use std::io::Read;
use std::process::ExitCode;

use millpond::{Engine, Error, Job, Outcome, Result, Session, StatementSource, render, split_statements};

use crate::args::Args;
use crate::progress;
use crate::render::{Printer, to_stderr};

/// Runs what the command line names.
pub(crate) async fn run(engine: Engine, args: &Args, printer: Printer) -> ExitCode {
    let (name, text) = match source(args) {
        Ok(source) => source,
        Err(error) => {
            to_stderr(&render(&error, None, "", 0));
            return ExitCode::from(1);
        }
    };
    let script = Script { session: engine.session(), printer, name, text };
    let failed = tokio::select! {
        failed = script.statements(args.keep_going) => failed,
        _ = tokio::signal::ctrl_c() => true,
    };
    let waited = if failed { Ok(()) } else { script.wait_for_jobs(&engine).await };
    let closed = engine.close().await;
    match waited.and(closed) {
        Ok(()) if !failed => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(1),
        Err(error) => {
            to_stderr(&render(&error, None, "", 0));
            ExitCode::from(1)
        }
    }
}

/// The script's name for messages, and its text.
fn source(args: &Args) -> Result<(String, String)> {
    match &args.file {
        None if args.command_text.is_empty() => read_stdin(),
        None => {
            millpond::offer_stdin(Box::new(std::io::stdin()));
            Ok(("<command>".into(), args.command_text.join(";\n")))
        }
        Some(path) if path.as_os_str() == "-" => read_stdin(),
        Some(path) => {
            millpond::offer_stdin(Box::new(std::io::stdin()));
            let text = std::fs::read_to_string(path).map_err(|e| Error::io(format!("read {path:?}"), &e))?;
            Ok((path.display().to_string(), text))
        }
    }
}

fn read_stdin() -> Result<(String, String)> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| Error::io("read stdin", &e))?;
    Ok(("<stdin>".into(), text))
}

struct Script {
    session: Session,
    printer: Printer,
    name: String,
    text: String,
}

impl Script {
    /// Whether a statement failed.
    async fn statements(&self, keep_going: bool) -> bool {
        let mut failed = false;
        for source in split_statements(&self.text) {
            if let Err(error) = self.statement(&source).await {
                to_stderr(&render(&error, Some(&self.name), &self.text, 0));
                failed = true;
                if !keep_going {
                    break;
                }
            }
        }
        failed
    }

    async fn statement(&self, source: &StatementSource) -> Result<()> {
        let outcome = self.session.run(source).await?;
        print_outcome(&self.session, &self.printer, outcome).await
    }

    async fn wait_for_jobs(&self, engine: &Engine) -> Result<()> {
        for job in engine.jobs().into_iter().filter(Job::is_running) {
            tokio::select! {
                outcome = progress::follow(&job, self.printer.progress) => outcome?,
                _ = tokio::signal::ctrl_c() => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Prints what a statement gave; waits for bounded jobs, follows changes to their end.
pub(crate) async fn print_outcome(session: &Session, printer: &Printer, outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Done(None) => Ok(()),
        Outcome::Done(Some(note)) => {
            if !printer.quiet {
                to_stderr(&format!("{note}\n"));
            }
            Ok(())
        }
        Outcome::Rows(rows) => {
            printer.rows(&rows, &session.settings().time_zone())?;
            if !printer.quiet && rows.late + rows.rejected > 0 {
                to_stderr(&format!(
                    "not in the answer: {} rows late, {} rows rejected\n",
                    rows.late, rows.rejected
                ));
            }
            Ok(())
        }
        Outcome::Changes(mut changes) => {
            printer.changes_header(&changes.schema())?;
            while let Some(epoch) = changes.next().await? {
                printer.changes(&epoch, &session.settings().time_zone())?;
            }
            Ok(())
        }
        Outcome::Job(job) if job.is_bounded() => {
            progress::follow(&job, printer.progress).await?;
            report_losses(printer, &job);
            Ok(())
        }
        Outcome::Job(job) => {
            if !printer.quiet {
                to_stderr(&format!("job {} ({}) is running\n", job.id(), job.name()));
            }
            Ok(())
        }
    }
}

/// Nothing is lost silently: late and rejected rows are told at the end of a job.
fn report_losses(printer: &Printer, job: &Job) {
    let metrics = job.metrics();
    let (late, rejected) = (metrics.rows_late(), metrics.rows_rejected());
    if !printer.quiet && late + rejected > 0 {
        to_stderr(&format!(
            "job {} ({}): {late} rows late, {rejected} rows rejected\n",
            job.id(),
            job.name()
        ));
    }
}
