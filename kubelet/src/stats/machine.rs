//! Usage of the machine, from `/proc` and the file systems.

pub use crate::disk::{Disk, disk};
use std::fs;
use std::path::Path;

/// Clock ticks a second in `/proc/stat`; the kernel's interface has fixed it.
const TICK_NS: u64 = 1_000_000_000 / 100;

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// In use, caches included.
    pub used: u64,
    /// In use without file pages that were not touched for a while.
    pub working_set: u64,
    /// Anonymous.
    pub rss: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that read a disk.
    pub major_page_faults: u64,
}

impl Memory {
    /// Returns the bytes that pods can still get.
    pub fn available(&self) -> u64 {
        self.total.saturating_sub(self.working_set)
    }
}

/// Counters of an interface: bytes, packets, errors and drops received, then sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Name of the interface.
    pub interface: String,
    /// Counters.
    pub counters: [u64; 8],
}

/// Interfaces that are not told of: the loop, and the ends of pods' links. By the first letters, as upstream has them.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Traffic of a process' network, or of the kubelet's own (`self`), but that of interfaces that are not told of.
pub fn traffic(pid: &str) -> Vec<Traffic> {
    parse_traffic(&fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default())
}

fn parse_traffic(text: &str) -> Vec<Traffic> {
    let parse = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let fields: Vec<u64> = rest.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let counters = [0, 1, 2, 3, 8, 9, 10, 11].map(|index| fields.get(index).copied().unwrap_or(0));
        Some(Traffic { interface: name.trim().to_owned(), counters })
    };
    let is_told = |traffic: &Traffic| {
        let name = traffic.interface.to_ascii_lowercase();
        !IGNORED.iter().any(|ignored| name.starts_with(ignored))
    };
    text.lines().skip(2).filter_map(parse).filter(is_told).collect()
}

/// A file system on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounted {
    /// The device.
    pub device: String,
    /// Size of the disk.
    pub disk: Disk,
    /// The device's line in `/proc/diskstats` behind the name; empty where it has none.
    pub counters: Vec<u64>,
}

impl Mounted {
    /// A counter by its place.
    pub fn counter(&self, index: usize) -> Option<u64> {
        self.counters.get(index).copied()
    }
}

/// File systems on devices of the machine, each device once.
pub fn mounted() -> Vec<Mounted> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let counters = parse_disks(&fs::read_to_string("/proc/diskstats").unwrap_or_default());
    let mut seen = std::collections::BTreeSet::new();
    let mut all = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split_whitespace();
        let (Some(device), Some(point)) = (fields.next(), fields.next()) else { continue };
        if !device.starts_with("/dev/") || !seen.insert(device) {
            continue;
        }
        let Some(disk) = disk(Path::new(&point.replace("\\040", " "))) else { continue };
        let name = fs::canonicalize(device).ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let counters = name.and_then(|name| counters.get(&name).cloned()).unwrap_or_default();
        all.push(Mounted { device: device.to_owned(), disk, counters });
    }
    all
}

fn parse_disks(text: &str) -> std::collections::BTreeMap<String, Vec<u64>> {
    let parse = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        Some((fields.next()?.to_owned(), fields.filter_map(|field| field.parse().ok()).collect()))
    };
    text.lines().filter_map(parse).collect()
}

/// Sockets and cores of the machine's processors.
pub fn processors(folder: &Path) -> (u64, u64) {
    let (mut sockets, mut cores) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(entry.path().join("topology").join(file)).ok();
        let (Some(socket), Some(core)) = (read("physical_package_id"), read("core_id")) else { continue };
        sockets.insert(socket.clone());
        cores.insert((socket, core));
    }
    let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    (count(sockets.len()), count(cores.len()))
}

/// The cgroup that the kubelet itself is in, where it is not the root.
pub fn own_cgroup() -> Option<String> {
    parse_own_cgroup(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
}

fn parse_own_cgroup(text: &str) -> Option<String> {
    let path = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        (controllers.is_empty() || controllers.split(',').any(|name| name == "memory")).then(|| path.to_owned())
    };
    text.lines().find_map(path).filter(|path| path != "/")
}

/// Bytes of swap in use.
pub fn swap_used() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    value("SwapTotal").saturating_sub(value("SwapFree"))
}

/// Reads `/proc/meminfo`.
pub fn memory() -> Memory {
    let faults = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let fault = |name: &str| faults.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
    Memory {
        page_faults: fault("pgfault "),
        major_page_faults: fault("pgmajfault "),
        ..parse_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }
}

fn parse_memory(text: &str) -> Memory {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let total = value("MemTotal");
    let used = total.saturating_sub(value("MemFree"));
    Memory {
        total,
        used,
        working_set: used.saturating_sub(value("Inactive(file)")),
        rss: value("AnonPages"),
        ..Memory::default()
    }
}

/// Nanoseconds that all CPUs were busy.
pub fn cpu_ns() -> u64 {
    parse_cpu(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_cpu(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal: all but the two idle ones.
    let busy: u64 =
        fields.iter().take(8).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks)| ticks).sum();
    busy * TICK_NS
}

/// The most processes there can be, and how many there are.
pub fn processes() -> (u64, u64) {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let limits = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let most = limits.into_iter().flatten().min().unwrap_or(0);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let now = load.split_whitespace().nth(3).and_then(|field| field.split_once('/')?.1.parse().ok()).unwrap_or(0);
    (most, now)
}

/// Returns the start time of the machine, in nanoseconds since the epoch.
pub fn boot_time() -> i64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
    seconds.unwrap_or(0).saturating_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let memory = parse_memory("MemTotal: 100 kB\nMemFree: 40 kB\nInactive(file): 10 kB\nAnonPages: 5 kB\n");
        assert_eq!((memory.used, memory.working_set, memory.available()), (60 * 1024, 50 * 1024, 50 * 1024));
        assert_eq!(parse_cpu("cpu  1 2 3 100 100 4 5 6 0 0\ncpu0 1\n"), 21 * TICK_NS);
        let dev = "Inter-| Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 1 2 0 0 0 0 0 20 1 3 0 0 0 0 0\n";
        let traffic = Traffic { interface: "eth0".into(), counters: [10, 1, 2, 0, 20, 1, 3, 0] };
        assert_eq!(parse_traffic(dev), [traffic]);
        assert_eq!(parse_traffic(&dev.replace("eth0", "veth0")), [], "the other end of a pod's link");
        assert_eq!(
            parse_own_cgroup("0::/system.slice/kubelet.service\n").as_deref(),
            Some("/system.slice/kubelet.service")
        );
        assert_eq!(parse_own_cgroup("5:cpu:/x\n4:memory:/y\n").as_deref(), Some("/y"));
        assert_eq!(parse_own_cgroup("0::/\n"), None);
        assert_eq!(parse_disks("   8       0 sda 1 2 3\n")["sda"], [1, 2, 3]);
    }
}
