//! The `process_*` families, read from `/proc/self` when asked for.

use std::fmt::Write;
use std::sync::OnceLock;

/// The page size and clock tick of every Linux this runs on are asked of the system once.
fn constants() -> (f64, f64) {
    static CONSTANTS: OnceLock<(f64, f64)> = OnceLock::new();
    *CONSTANTS.get_or_init(|| (system(libc::_SC_PAGESIZE, 4096.0), system(libc::_SC_CLK_TCK, 100.0)))
}

#[allow(unsafe_code, reason = "sysconf is an unsafe call")]
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn system(name: libc::c_int, otherwise: f64) -> f64 {
    // SAFETY: sysconf reads a constant and has no preconditions.
    let value = unsafe { libc::sysconf(name) };
    if value > 0 { value as f64 } else { otherwise }
}

/// Seconds since the epoch at which the process started.
pub(super) fn start_time() -> f64 {
    static START: OnceLock<f64> = OnceLock::new();
    *START.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/stat").ok().and_then(|text| {
            text.lines().find_map(|l| l.strip_prefix("btime ")).and_then(|v| v.trim().parse::<f64>().ok())
        });
        let ticks = stat().get(19).copied();
        match (boot, ticks) {
            (Some(boot), Some(ticks)) => boot + ticks / constants().1,
            _ => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
        }
    })
}

/// The numbers after the command name in `/proc/self/stat`; the first is the state, as 0.
fn stat() -> Vec<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit_once(')').map_or("", |(_, tail)| tail);
    after.split_whitespace().map(|w| w.parse().unwrap_or(0.0)).collect()
}

/// Bytes received and sent, as the kernel counts them for this network namespace.
fn octets() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/net/netstat").unwrap_or_default();
    let mut rows = text.lines().filter_map(|l| l.strip_prefix("IpExt:"));
    let (names, values) = (rows.next().unwrap_or(""), rows.next().unwrap_or(""));
    let find = |wanted: &str| {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        pairs.find(|(name, _)| *name == wanted).and_then(|(_, v)| v.parse().ok()).unwrap_or(0.0)
    };
    (find("InOctets"), find("OutOctets"))
}

fn limits() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        line[name.len()..].split_whitespace().next()?.parse().ok()
    };
    // Go reports an unlimited address space as the largest number.
    (soft("Max open files").unwrap_or(0.0), soft("Max address space").unwrap_or(1.844_674_407_370_955_2e19))
}

/// The one family of a process that `/metrics/slis` has as well.
pub(super) fn start_time_family() -> String {
    let name = "process_start_time_seconds";
    let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}\n", super::number(start_time()))
}

pub(super) fn render(out: &mut String) {
    let stat = stat();
    let at = |i: usize| stat.get(i).copied().unwrap_or(0.0);
    let (page, tick) = constants();
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let (max_open, max_virtual) = limits();
    let mut family = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {}\n", super::number(value));
    };
    family(
        "process_cpu_seconds_total",
        "counter",
        "User and system CPU time spent, in seconds.",
        (at(11) + at(12)) / tick,
    );
    family("process_max_fds", "gauge", "File descriptors allowed.", max_open);
    let (received, sent) = octets();
    family("process_network_receive_bytes_total", "counter", "Bytes received over the network.", received);
    family("process_network_transmit_bytes_total", "counter", "Bytes sent over the network.", sent);
    family("process_open_fds", "gauge", "File descriptors open.", f64::from(u32::try_from(open).unwrap_or(u32::MAX)));
    family("process_resident_memory_bytes", "gauge", "Resident memory, in bytes.", at(21) * page);
    family(
        "process_start_time_seconds",
        "gauge",
        "[ALPHA] Start time of the component in seconds since the Unix epoch.",
        start_time(),
    );
    family("process_virtual_memory_bytes", "gauge", "Virtual memory, in bytes.", at(20));
    family("process_virtual_memory_max_bytes", "gauge", "Virtual memory allowed, in bytes.", max_virtual);
}
