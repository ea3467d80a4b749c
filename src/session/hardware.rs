//! The machine, as a hello shows it.

use crate::machine;
use crate::protocol::Hardware;

/// Host, CPUs and memory of this machine. What cannot be read stays empty: nothing routes by it.
pub(super) fn describe() -> Hardware {
    let total = machine::memory().map_or(0, |memory| memory.total);
    Hardware {
        host: machine::host_name(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        ram_gb: (total as f64 / f64::from(1 << 30) * 10.0).round() / 10.0,
        ..Hardware::default()
    }
}
