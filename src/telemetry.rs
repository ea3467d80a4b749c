//! What the program says of itself while it runs.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// Sends log lines to standard error, so that standard output stays a command's own. `ENGY_LOG` filters them as
/// `RUST_LOG` would (`debug`, `engy_miner::session=trace`, ...); a filter that does not parse counts as none.
pub fn init() {
    let filter = EnvFilter::try_from_env("ENGY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Colours are for people; log files stay plain. A second call, in tests, finds a subscriber already there.
    let _ = tracing_subscriber::fmt()
        .with_ansi(stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_target(false)
        .try_init();
}
