//! `engy-miner bench collectives`: what ranks of a world wait for one another.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;

use crate::backend::candle::{Devices, Measurement};
use crate::cli::BenchCollectivesArgs;

pub(super) async fn run(args: BenchCollectivesArgs) -> anyhow::Result<ExitCode> {
    let devices = Devices::new(args.world.devices.as_deref(), args.world.tp_size)?;
    devices.find()?;
    let measurement = Measurement {
        rows: args.rows,
        columns: args.columns,
        samples: args.samples,
        in_a_row: args.in_a_row,
        patience: Duration::from_secs(args.world.collective_timeout),
    };
    // The library's errors carry where in it they arose, which is nothing for a person: their text alone does.
    let times = tokio::task::spawn_blocking(move || measurement.run(&devices).map_err(|error| anyhow!("{error}")));
    let times = times.await??;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:<20} {:>8} {:>5} {:>6} {:>8} {:>12} {:>11} {:>11}",
            "collective", "over", "ranks", "rows", "columns", "bytes a rank", "median us", "p99 us"
        )?;
    }
    for time in times {
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&time)?)?;
        } else {
            writeln!(
                out,
                "{:<20} {:>8} {:>5} {:>6} {:>8} {:>12} {:>11.1} {:>11.1}",
                time.collective,
                time.over,
                time.ranks,
                time.rows,
                time.columns,
                time.bytes,
                time.median_us,
                time.p99_us
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
