//! The interactive shell: statements over several lines, history, Ctrl-C cancels what runs.

use std::path::PathBuf;
use std::process::ExitCode;

use millpond::{Engine, Session, is_complete, render, split_statements};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, history::History};

use crate::render::{Printer, to_stderr};
use crate::script::print_outcome;

const PROMPT: &str = "millpond> ";
const CONTINUED: &str = "     ...> ";

/// Runs until `exit`, `quit` or Ctrl-D.
pub(crate) async fn run(engine: Engine, printer: Printer) -> ExitCode {
    let mut editor = match DefaultEditor::new() {
        Ok(editor) => editor,
        Err(error) => {
            to_stderr(&format!("error: cannot open the terminal: {error}\n"));
            return ExitCode::from(1);
        }
    };
    let history = history_file();
    if let Some(path) = &history {
        // A first start has no history yet.
        let _ = editor.load_history(path);
    }
    greet(&engine, &printer).await;
    let session = engine.session();
    converse(&mut editor, &session, &printer).await;
    if let Some(path) = &history
        && !editor.history().is_empty()
        && let Err(error) = editor.save_history(path)
    {
        to_stderr(&format!("the history was not saved: {error}\n"));
    }
    match engine.close().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr(&render(&error, None, "", 0));
            ExitCode::from(1)
        }
    }
}

async fn greet(engine: &Engine, printer: &Printer) {
    if !printer.quiet {
        let place = match engine.data_dir() {
            Some(dir) => format!("data in {}", dir.display()),
            None => "in memory".into(),
        };
        to_stderr(&format!(
            "Millpond {} ({place}). End statements with ;  Ctrl-D leaves.\n",
            env!("CARGO_PKG_VERSION")
        ));
    }
    match engine.resume_jobs().await {
        Ok(jobs) => {
            for job in jobs {
                to_stderr(&format!("job {} ({}) goes on\n", job.id(), job.name()));
            }
        }
        Err(error) => to_stderr(&render(&error, None, "", 0)),
    }
}

async fn converse(editor: &mut DefaultEditor, session: &Session, printer: &Printer) {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { PROMPT } else { CONTINUED };
        match tokio::task::block_in_place(|| editor.readline(prompt)) {
            Ok(line) if text.is_empty() && matches!(line.trim(), "exit" | "quit" | "exit;" | "quit;") => {
                return;
            }
            Ok(line) => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&line);
                if text.trim().is_empty() {
                    text.clear();
                } else if is_complete(&text) {
                    // History is a convenience; a line that cannot be kept is still run.
                    let _ = editor.add_history_entry(text.as_str());
                    statements(session, printer, &text).await;
                    text.clear();
                }
            }
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return,
            Err(error) => {
                to_stderr(&format!("error: cannot read the terminal: {error}\n"));
                return;
            }
        }
    }
}

/// Runs the statements of an entry until one fails or Ctrl-C is pressed.
async fn statements(session: &Session, printer: &Printer, text: &str) {
    for source in split_statements(text) {
        let statement = async {
            let outcome = session.run(&source).await?;
            print_outcome(session, printer, outcome).await
        };
        let outcome = tokio::select! {
            outcome = statement => outcome,
            _ = tokio::signal::ctrl_c() => {
                to_stderr("cancelled\n");
                for job in session.engine().jobs().into_iter().filter(millpond::Job::is_running) {
                    let (id, name) = (job.id(), job.name());
                    to_stderr(&format!("job {id} ({name}) goes on; STOP JOB {id} or CANCEL JOB {id} ends it\n"));
                }
                return;
            }
        };
        if let Err(error) = outcome {
            to_stderr(&render(&error, None, text, 0));
            return;
        }
    }
}

fn history_file() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    Some(PathBuf::from(home).join(".millpond_history"))
}
