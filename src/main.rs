//! The program: parse flags, run the command, say in one line what went wrong.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use engy_miner::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    engy_miner::telemetry::init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the system gives no threads: {error}")),
    };
    let outcome = runtime.block_on(engy_miner::commands::run(cli.command));
    // Work that cannot be called off (a huge prompt being tokenised) must not hold the process.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(message: &str) -> ExitCode {
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "engy-miner: {}", engy_miner::telemetry::one_line(message));
    ExitCode::FAILURE
}
