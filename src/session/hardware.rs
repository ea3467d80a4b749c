//! The machine, as a hello shows it.

use std::fs;

use crate::protocol::Hardware;

/// Host, CPUs and memory of this machine. What cannot be read stays empty: nothing routes by it.
#[must_use]
pub fn describe() -> Hardware {
    Hardware {
        host: host_name(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        ram_gb: memory_gib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
        ..Hardware::default()
    }
}

fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// `MemTotal` of `/proc/meminfo` in GiB, one decimal.
fn memory_gib(meminfo: &str) -> f64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: f64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    (kib / f64::from(1 << 20) * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_meminfo() {
        assert_eq!(memory_gib("MemTotal:       264032464 kB\nMemFree: 1 kB\n"), 251.8);
        assert_eq!(memory_gib(""), 0.0);
    }
}
