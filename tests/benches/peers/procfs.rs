//! What Linux knows of a process.

use std::fs;

/// The kernel counts in these towards programs, whatever it counts in itself.
const TICKS_A_SECOND: f64 = 100.0;

/// The processor time that a process has used so far, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = read(pid, "stat");
    // The name of the program is in brackets, and may have any other character in it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    ticks.iter().sum::<f64>() / TICKS_A_SECOND
}

/// A number of `/proc/PID/status`: `VmRSS` in KiB, `Threads`.
pub(crate) fn status(pid: u32, name: &str) -> f64 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("/proc/{pid}/status has no {name}"))
}

fn read(pid: u32, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}
