//! What this machine is, read from `/proc`.

use std::fs;

/// Main memory, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// What could be taken now without swapping.
    pub available: u64,
}

/// The host's name; empty where it cannot be read.
#[must_use]
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// Main memory; `None` where the system does not tell.
#[must_use]
pub fn memory() -> Option<Memory> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// The most memory that this process ever held, bytes; `None` where the system does not tell.
#[must_use]
pub fn peak_memory() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

fn parse(meminfo: &str) -> Option<Memory> {
    Some(Memory { total: field(meminfo, "MemTotal")?, available: field(meminfo, "MemAvailable")? })
}

/// A line such as `MemTotal:  1024 kB`, in bytes.
fn field(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       264032464 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n";
        let memory = Memory { total: 264_032_464 * 1024, available: 1 << 20 };
        assert_eq!(parse(text), Some(memory));
        assert_eq!(parse("MemTotal: x kB"), None);
    }
}
