//! The subcommands: one file each, wiring rooms together and talking to a person.

mod bench;
mod demo;
mod gateway;
mod load;
mod mine;
mod plan;
mod verify;

use std::process::ExitCode;

use crate::cli::{BenchCommand, Command};

/// Runs a command to its end.
///
/// # Errors
/// With a message for a person: one line that says what happened and what to do.
pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    crate::tls::install();
    match command {
        Command::Mine(args) => mine::run(*args).await,
        Command::Gateway(args) => gateway::run(args).await,
        Command::Verify(args) => verify::run(args).await,
        Command::Demo(args) => demo::run(args).await,
        Command::Plan(args) => plan::run(&args),
        Command::Bench(BenchCommand::Engine(args)) => bench::engine(args).await,
    }
}

/// Resolves on Ctrl-C or a termination signal.
async fn interrupted() {
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
}
