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
        // Where standard error is gone there is nobody to tell, least of all that it is gone: telling would panic.
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_target(false)
        .try_init();
    log_faults();
}

/// Longest text of an error line. Longer ones repeat somebody's file or frame.
const LONGEST_LINE: usize = 1000;

/// Foreign text as part of one line: control characters escaped, the rest cut.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars() {
        if line.len() >= LONGEST_LINE {
            line.push_str(" ...");
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Makes a fault of this program one line in the log, like everything else that it says.
fn log_faults() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(place, text = one_line(text), "a fault of this program");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_one_line() {
        assert_eq!(one_line("a\u{1b}[2J\nb é"), "a\\u{1b}[2J\\nb é");
        assert!(one_line(&"x".repeat(100_000)).len() < LONGEST_LINE + 10);
    }
}
