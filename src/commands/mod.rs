//! The subcommands: one file each, wiring rooms together and talking to a person.

mod bench;
mod bench_proof;
mod collectives;
mod demo;
mod doctor;
mod fake_serve;
mod gateway;
mod load;
mod mine;
mod overhead;
mod plan;
mod verify;

use std::io;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

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
        Command::Doctor(args) => doctor::run(args).await,
        Command::Bench(BenchCommand::Engine(args)) => bench::engine(*args).await,
        Command::Bench(BenchCommand::Overhead(args)) => overhead::run(*args).await,
        Command::Bench(BenchCommand::Collectives(args)) => collectives::run(args).await,
        Command::Bench(BenchCommand::Proof(args)) => bench_proof::run(&args),
        Command::FakeServe(args) => fake_serve::run(*args).await,
    }
}

/// Resolves on Ctrl-C or a termination signal. Listens from the call on, not only once it is waited for: a signal in between
/// would end the process without a word.
fn interrupted() -> impl Future<Output = ()> {
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let first = |listener: io::Result<Signal>| async move {
        match listener {
            Ok(mut listener) => drop(listener.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    async move {
        tokio::select! {
            () = first(interrupt) => {}
            () = first(terminate) => {}
        }
    }
}
