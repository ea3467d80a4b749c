//! What this machine is, read from `/proc`.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, Timespec, clock_gettime};

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

/// Lets [`peak_memory`] begin anew from what is held now. False where the system does not allow it.
pub fn forget_peak_memory() -> bool {
    // See proc(5): 5 resets the peak.
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Processor time of this process so far, all threads together.
#[must_use]
pub fn cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// Processor time of the calling thread so far.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// Processor time so far of this process's threads whose names begin with one of these; `None` where the system does not tell. Threads
/// that have ended do not count.
#[must_use]
pub fn cpu_time_of(names: &[&str]) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        // One that ended since it was listed.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        if names.iter().any(|known| name.starts_with(known)) {
            // Nanoseconds on a processor, nanoseconds of waiting for one, times that it got one.
            let times = fs::read_to_string(task.join("schedstat")).ok()?;
            sum += Duration::from_nanos(times.split_whitespace().next()?.parse().ok()?);
        }
    }
    Some(sum)
}

/// Processor time of all programs since the machine started, over all its processors; `None` where the system does not tell.
#[must_use]
pub fn busy_time() -> Option<Duration> {
    let ticks = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// The machine's processors, those too that this program may not use; `None` where the system does not tell.
#[must_use]
pub fn processors() -> Option<usize> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let count = text.lines().filter(|line| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '))).count();
    (count > 0).then_some(count)
}

/// The processor's name; empty where the system does not tell.
#[must_use]
pub fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}

/// The system's name and version; empty where it does not tell.
#[must_use]
pub fn system() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim()).trim().to_owned()
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal; time of guests is part of the user's.
fn busy_ticks(stat: &str) -> Option<u64> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = ticks.map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
    Some(ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks).sum())
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

    #[test]
    fn busy_is_all_but_idle_and_waiting() {
        let stat = "cpu  100 20 3 4000 500 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(stat), Some(100 + 20 + 3 + 6 + 7 + 80));
        assert_eq!(busy_ticks("intr 1"), None);
    }

    #[test]
    fn a_named_threads_work_is_its_own() {
        let work = || {
            let began = thread_cpu_time();
            while thread_cpu_time() - began < Duration::from_millis(30) {
                std::hint::black_box(());
            }
            (cpu_time_of(&["busy-bee"]).unwrap(), cpu_time_of(&["lazy-bee"]).unwrap())
        };
        let thread = std::thread::Builder::new().name("busy-bee-1".into()).spawn(work).unwrap();
        let (busy, lazy) = thread.join().unwrap();
        // The system counts as it switches threads, a few milliseconds late at most.
        assert!(busy >= Duration::from_millis(10) && lazy.is_zero(), "{busy:?} {lazy:?}");
        assert!(cpu_time() >= busy);
    }

    #[test]
    fn work_takes_processor_time_and_a_peak_can_be_forgotten() {
        let before = cpu_time();
        let block = vec![1_u8; 256 << 20];
        let peak = peak_memory().unwrap();
        assert!(
            peak > 256 << 20 && std::hint::black_box(&block).iter().map(|x| u64::from(*x)).sum::<u64>() == 256 << 20
        );
        assert!(cpu_time() > before && busy_time().unwrap() > Duration::ZERO);
        assert!(processors().unwrap() >= std::thread::available_parallelism().unwrap().get());
        drop(block);
        // Other tests of this process may hold much, but not that much more than before.
        assert!(!forget_peak_memory() || peak_memory().unwrap() < peak);
    }
}
