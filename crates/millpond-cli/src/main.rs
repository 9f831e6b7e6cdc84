//! The `millpond` command: shell, scripts, rendering. Uses nothing but the engine's public face.

mod args;
mod log;
mod progress;
mod render;
mod script;
mod shell;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use millpond::{Engine, EngineOptions, Result};

use crate::args::{Args, CheckpointsCommand, Command};
use crate::render::Printer;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // clap says what is wrong itself; --help and --version are no errors.
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    if !args.quiet {
        log::to_terminal();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("error: cannot start: {error}\n")),
    };
    let code = runtime.block_on(run(args));
    runtime.shutdown_background();
    code
}

async fn run(args: Args) -> ExitCode {
    if let Some(Command::Test(test)) = &args.command {
        return match millpond_sqltest::run(test.options()).await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(error) => fail(&millpond::render(&error, None, "", 0)),
        };
    }
    if let Some(Command::Checkpoints(command)) = &args.command {
        return checkpoints(command, &Printer::new(&args));
    }
    match open(&args) {
        Ok(engine) => {
            #[cfg(unix)]
            if let Err(error) = engine.checkpoint_on_signal() {
                return fail(&millpond::render(&error, None, "", 0));
            }
            if let Some(address) = args.listen
                && let Err(error) = millpond_server::listen(engine.clone(), address).await
            {
                return fail(&millpond::render(&error, None, "", 0));
            }
            let printer = Printer::new(&args);
            if args.command_text.is_empty() && args.file.is_none() && std::io::stdin().is_terminal() {
                shell::run(engine, printer).await
            } else {
                script::run(engine, &args, printer).await
            }
        }
        Err(error) => fail(&millpond::render(&error, None, "", 0)),
    }
}

fn checkpoints(command: &CheckpointsCommand, printer: &Printer) -> ExitCode {
    let shown = match command {
        CheckpointsCommand::List { dir } => millpond::list_snapshots(dir).map(|rows| (rows, true)),
        CheckpointsCommand::Inspect { dir } => millpond::inspect_snapshot(dir).map(|rows| (rows, true)),
        CheckpointsCommand::Verify { dir } => millpond::verify_snapshots(dir),
        CheckpointsCommand::Diff { first, second } => {
            millpond::compare_snapshots(first, second).map(|rows| (rows, true))
        }
    };
    match shown.and_then(|(rows, whole)| printer.rows(&rows, "UTC").map(|()| whole)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&millpond::render(&error, None, "", 0)),
    }
}

fn open(args: &Args) -> Result<Engine> {
    Engine::with_options(EngineOptions {
        data_dir: args.data_dir(),
        settings: args.settings(),
        ..EngineOptions::default()
    })
}

/// Says what went wrong on stderr.
fn fail(text: &str) -> ExitCode {
    render::to_stderr(text);
    ExitCode::from(1)
}
