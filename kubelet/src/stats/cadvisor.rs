//! `/metrics/cadvisor`: series of the machine, of the cgroups of pods and of containers, read when they are asked for.
//! Answers for cAdvisor's `metrics/prometheus.go` with the families that upstream's kubelet lets through.

use super::cgroup::{CgroupReader, CgroupStats};
use super::machine::{self, Mounted};
use super::text::Families;
use crate::resources::MachineInfo;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Subject of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The cgroup.
    pub(super) id: String,
    pub(super) image: String,
    /// Id of the container or sandbox.
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// Nanoseconds since the epoch at which it was started; none for a cgroup, which tells when it was made.
    pub(super) started: Option<i64>,
    /// The network is that of its processes.
    pub(super) has_network: bool,
}

/// A cgroup that was read.
pub(super) struct Row {
    about: About,
    stats: CgroupStats,
    files: (u64, u64),
    ulimit: Option<u64>,
    network: Vec<machine::Traffic>,
}

impl Row {
    /// Reads a cgroup; none where there is no such one any more.
    pub(super) fn read(reader: &CgroupReader, about: About) -> Option<Self> {
        let mut stats = reader.read(&about.id)?;
        let first = stats.processes.first().copied();
        let is_root = about.id == "/";
        if is_root && stats.memory.is_none() {
            // The unified hierarchy does not tell of its root.
            stats.memory = Some(machine::memory().used);
        }
        // The machine's own are too many to look at, and are not a container's.
        let files = if is_root { (0, 0) } else { stats.files() };
        let network = match first {
            _ if is_root => machine::traffic("self"),
            Some(pid) if about.has_network => machine::traffic(&pid.to_string()),
            _ => Vec::new(),
        };
        let ulimit = first.filter(|_| !is_root).and_then(|pid| max_open_files(&format!("/proc/{pid}/limits")));
        Some(Self { about, stats, files, ulimit, network })
    }
}

fn max_open_files(path: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The machine's own part.
pub(super) struct Host<'a> {
    pub(super) machine: &'a MachineInfo,
    /// Sockets and cores of the machine's processors.
    pub(super) processors: (u64, u64),
    pub(super) mounted: Vec<Mounted>,
    /// Milliseconds since the epoch.
    pub(super) now: i64,
}

#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
fn float(value: u64) -> f64 {
    value as f64
}

fn seconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e9
}

/// Value of a family with no labels of its own.
type Value = fn(&Row) -> Option<f64>;

/// Families with a sample a cgroup: name, type, help, value.
const PLAIN: [(&str, &str, &str, Value); 38] = [
    ("container_cpu_cfs_periods_total", "counter", "Elapsed periods of the quota", |r| r.stats.limited(0).map(float)),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Periods in which the quota was used up", |r| {
        r.stats.limited(1).map(float)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Seconds spent waiting for the next period", |r| {
        r.stats.limited(2).map(seconds)
    }),
    ("container_cpu_load_average_10s", "gauge", "Load, which is not measured", |_| Some(0.0)),
    ("container_cpu_load_d_average_10s", "gauge", "Uninterruptible load, which is not measured", |_| Some(0.0)),
    ("container_cpu_system_seconds_total", "counter", "Seconds of processors in the kernel", |r| {
        r.stats.cpu[2].map(seconds)
    }),
    ("container_cpu_user_seconds_total", "counter", "Seconds of processors in user mode", |r| {
        r.stats.cpu[1].map(seconds)
    }),
    ("container_file_descriptors", "gauge", "Open files", |r| Some(float(r.files.0))),
    ("container_last_seen", "gauge", "Time at which it was there, in seconds since the epoch", |_| {
        u64::try_from(jiff::Timestamp::now().as_second()).ok().map(float)
    }),
    ("container_memory_cache", "gauge", "Bytes of page cache", |r| Some(float(r.stats.part(&["total_cache", "file"])))),
    ("container_memory_failcnt", "counter", "Times at which the limit of memory was reached", |r| {
        Some(float(r.stats.memory_failures.unwrap_or(0)))
    }),
    ("container_memory_kernel_usage", "gauge", "Bytes of memory of the kernel", |r| {
        Some(float(r.stats.kernel_memory.unwrap_or(0)))
    }),
    ("container_memory_mapped_file", "gauge", "Bytes of mapped files", |r| {
        Some(float(r.stats.part(&["total_mapped_file", "file_mapped"])))
    }),
    ("container_memory_max_usage_bytes", "gauge", "Most bytes of memory so far", |r| {
        Some(float(r.stats.memory_peak.unwrap_or(0)))
    }),
    ("container_memory_rss", "gauge", "Bytes of anonymous memory", |r| {
        Some(float(r.stats.part(&["total_rss", "anon"])))
    }),
    ("container_memory_swap", "gauge", "Bytes of swap", |r| Some(float(r.stats.swap.unwrap_or(0)))),
    ("container_memory_total_active_file_bytes", "gauge", "Bytes of page cache that was used lately", |r| {
        Some(float(r.stats.part(&["total_active_file", "active_file"])))
    }),
    ("container_memory_total_inactive_file_bytes", "gauge", "Bytes of page cache that was not used lately", |r| {
        Some(float(r.stats.part(&["total_inactive_file", "inactive_file"])))
    }),
    ("container_memory_usage_bytes", "gauge", "Bytes of memory, caches included", |r| r.stats.memory.map(float)),
    ("container_memory_working_set_bytes", "gauge", "Bytes of memory without caches that were not used lately", |r| {
        r.stats.memory.map(|_| float(r.stats.working_set()))
    }),
    ("container_oom_events_total", "counter", "Processes ended for want of memory", |r| {
        Some(float(r.stats.oom_kills.unwrap_or(0)))
    }),
    ("container_pressure_cpu_stalled_seconds_total", "counter", "Seconds in which all waited for processors", |r| {
        r.stats.waited("cpu", 1)
    }),
    ("container_pressure_cpu_waiting_seconds_total", "counter", "Seconds in which some waited for processors", |r| {
        r.stats.waited("cpu", 0)
    }),
    ("container_pressure_io_stalled_seconds_total", "counter", "Seconds in which all waited for devices", |r| {
        r.stats.waited("io", 1)
    }),
    ("container_pressure_io_waiting_seconds_total", "counter", "Seconds in which some waited for devices", |r| {
        r.stats.waited("io", 0)
    }),
    ("container_pressure_memory_stalled_seconds_total", "counter", "Seconds in which all waited for memory", |r| {
        r.stats.waited("memory", 1)
    }),
    ("container_pressure_memory_waiting_seconds_total", "counter", "Seconds in which some waited for memory", |r| {
        r.stats.waited("memory", 0)
    }),
    ("container_processes", "gauge", "Processes", |r| Some(float(u64::try_from(r.stats.processes.len()).ok()?))),
    ("container_sockets", "gauge", "Open sockets", |r| Some(float(r.files.1))),
    ("container_spec_cpu_period", "gauge", "Microseconds of the quota's period", |r| r.stats.period.map(float)),
    ("container_spec_cpu_quota", "gauge", "Microseconds of processors in a period", |r| r.stats.quota.map(float)),
    ("container_spec_cpu_shares", "gauge", "Shares of processors", |r| r.stats.shares.map(float)),
    ("container_spec_memory_limit_bytes", "gauge", "Limit of memory; zero for none", |r| {
        Some(float(r.stats.memory_limit.unwrap_or(0)))
    }),
    ("container_spec_memory_reservation_limit_bytes", "gauge", "Memory to be left to it; zero for none", |_| Some(0.0)),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Limit of swap; zero for none", |r| {
        Some(float(r.stats.swap_limit.unwrap_or(0)))
    }),
    ("container_start_time_seconds", "gauge", "Time of its start, in seconds since the epoch", |r| {
        let told = r.about.started.and_then(|nanos| u64::try_from(nanos).ok()).map(seconds);
        told.or_else(|| r.stats.made.map(float))
    }),
    ("container_threads", "gauge", "Threads", |r| r.stats.threads.map(float)),
    ("container_threads_max", "gauge", "Most threads; zero for no limit", |r| {
        Some(float(r.stats.threads_max.unwrap_or(0)))
    }),
];

impl CgroupStats {
    /// Numbers of throttling, where there is a quota.
    fn limited(&self, which: usize) -> Option<u64> {
        self.quota?;
        self.throttling[which]
    }

    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    fn waited(&self, resource: &str, which: usize) -> Option<f64> {
        self.pressure.get(resource).map(|totals| totals[which] as f64 / 1e6)
    }
}

/// Labels of a series with those of the family in between, in the order of their names.
fn labels<'a>(about: &'a About, own: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("container", about.container.as_str()),
        ("id", &about.id),
        ("image", &about.image),
        ("name", &about.name),
        ("namespace", &about.namespace),
        ("pod", &about.pod),
    ];
    all.extend(own);
    all.sort_unstable_by_key(|(name, _)| *name);
    all
}

/// Counters of a network interface: end of the family's name, position in [`machine::Traffic`].
const NETWORK: [(&str, usize); 8] = [
    ("receive_bytes_total", 0),
    ("receive_errors_total", 2),
    ("receive_packets_dropped_total", 3),
    ("receive_packets_total", 1),
    ("transmit_bytes_total", 4),
    ("transmit_errors_total", 6),
    ("transmit_packets_dropped_total", 7),
    ("transmit_packets_total", 5),
];

/// States of tasks, which nobody counts.
const STATES: [&str; 5] = ["iowaiting", "running", "sleeping", "stopped", "uninterruptible"];

/// Value of a file system's family.
type OfDisk = fn(&Mounted) -> Option<f64>;

/// Families of the machine's file systems.
const DISKS: [(&str, &str, OfDisk); 15] = [
    ("container_fs_inodes_free", "gauge", |m| Some(float(m.disk.inodes_free))),
    ("container_fs_inodes_total", "gauge", |m| Some(float(m.disk.inodes))),
    ("container_fs_io_current", "gauge", |m| m.counter(8).map(float)),
    ("container_fs_io_time_seconds_total", "counter", |m| m.counter(9).map(|millis| float(millis) / 1e3)),
    ("container_fs_io_time_weighted_seconds_total", "counter", |m| m.counter(10).map(|millis| float(millis) / 1e3)),
    ("container_fs_limit_bytes", "gauge", |m| Some(float(m.disk.capacity))),
    ("container_fs_read_seconds_total", "counter", |m| m.counter(3).map(|millis| float(millis) / 1e3)),
    ("container_fs_reads_merged_total", "counter", |m| m.counter(1).map(float)),
    ("container_fs_reads_total", "counter", |m| m.counter(0).map(float)),
    ("container_fs_sector_reads_total", "counter", |m| m.counter(2).map(float)),
    ("container_fs_sector_writes_total", "counter", |m| m.counter(6).map(float)),
    ("container_fs_usage_bytes", "gauge", |m| Some(float(m.disk.capacity.saturating_sub(m.disk.available)))),
    ("container_fs_write_seconds_total", "counter", |m| m.counter(7).map(|millis| float(millis) / 1e3)),
    ("container_fs_writes_merged_total", "counter", |m| m.counter(5).map(float)),
    ("container_fs_writes_total", "counter", |m| m.counter(4).map(float)),
];

/// Returns the exposition of all series.
pub(super) fn text(host: &Host<'_>, rows: &[Row], devices: &BTreeMap<String, String>) -> String {
    let mut out = Families::default();
    let at = Some(host.now);
    version(&mut out, host);
    for (name, kind, help, of) in PLAIN {
        let samples: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, of(row)?))).collect();
        if !samples.is_empty() {
            out.family(name, kind, help);
        }
        for (row, value) in samples {
            out.sample(name, &labels(&row.about, &[]), value, at);
        }
    }
    cpu_and_failures(&mut out, rows, at);
    devices_of(&mut out, rows, devices, at);
    disks(&mut out, host, rows, at);
    for (name, position) in NETWORK {
        let name = format!("container_network_{name}");
        out.family(&name, "counter", "Cumulative count of the network");
        for (row, traffic) in rows.iter().flat_map(|row| row.network.iter().map(move |traffic| (row, traffic))) {
            let labels = labels(&row.about, &[("interface", &traffic.interface)]);
            out.sample(&name, &labels, float(traffic.counters[position]), at);
        }
    }
    out.family("container_scrape_error", "gauge", "1 where containers could not be read, else 0");
    out.sample("container_scrape_error", &[], 0.0, None);
    of_machine(&mut out, host);
    out.into_text()
}

fn version(out: &mut Families, host: &Host<'_>) {
    out.family("cadvisor_version_info", "gauge", "Versions of the kernel and of the system; always 1");
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.machine.kernel_version.as_str()),
        ("osVersion", &host.machine.os_image),
    ];
    out.sample("cadvisor_version_info", &labels, 1.0, None);
}

fn cpu_and_failures(out: &mut Families, rows: &[Row], at: Option<i64>) {
    let name = "container_cpu_usage_seconds_total";
    out.family(name, "counter", "Seconds of processors in all");
    for (row, used) in rows.iter().filter_map(|row| Some((row, row.stats.cpu[0]?))) {
        out.sample(name, &labels(&row.about, &[("cpu", "total")]), seconds(used), at);
    }
    let name = "container_memory_failures_total";
    out.family(name, "counter", "Page faults");
    for row in rows {
        for (kind, file) in [("pgfault", "pgfault"), ("pgmajfault", "pgmajfault")] {
            let below = format!("total_{file}");
            for (scope, value) in
                [("container", row.stats.part(&[file])), ("hierarchy", row.stats.part(&[below.as_str(), file]))]
            {
                let own = [("failure_type", kind), ("scope", scope)];
                out.sample(name, &labels(&row.about, &own), float(value), at);
            }
        }
    }
    let name = "container_tasks_state";
    out.family(name, "gauge", "Tasks by state, which are not counted");
    for (row, state) in rows.iter().flat_map(|row| STATES.map(|state| (row, state))) {
        out.sample(name, &labels(&row.about, &[("state", state)]), 0.0, at);
    }
    let name = "container_ulimits_soft";
    out.family(name, "gauge", "Soft limits of the first process");
    for (row, limit) in rows.iter().filter_map(|row| Some((row, row.ulimit?))) {
        out.sample(name, &labels(&row.about, &[("ulimit", "max_open_files")]), float(limit), at);
    }
}

/// Devices by cgroup.
fn devices_of(out: &mut Families, rows: &[Row], devices: &BTreeMap<String, String>, at: Option<i64>) {
    for (name, position) in [("container_fs_reads_bytes_total", 0), ("container_fs_writes_bytes_total", 1)] {
        let samples = rows.iter().flat_map(|row| row.stats.io.iter().map(move |(device, io)| (row, device, io)));
        let mut samples = samples.peekable();
        if samples.peek().is_some() {
            out.family(name, "counter", "Bytes of the device");
        }
        for (row, number, io) in samples {
            let device = devices.get(number).map_or(number.as_str(), String::as_str);
            out.sample(name, &labels(&row.about, &[("device", device)]), float(io[position]), at);
        }
    }
}

fn disks(out: &mut Families, host: &Host<'_>, rows: &[Row], at: Option<i64>) {
    let Some(root) = rows.iter().find(|row| row.about.id == "/") else { return };
    for (name, kind, of) in DISKS {
        out.family(name, kind, "Of the file system");
        for (mounted, value) in host.mounted.iter().filter_map(|mounted| Some((mounted, of(mounted)?))) {
            out.sample(name, &labels(&root.about, &[("device", &mounted.device)]), value, at);
        }
    }
}

fn of_machine(out: &mut Families, host: &Host<'_>) {
    let machine = host.machine;
    let ids = [
        ("boot_id", machine.boot_id.as_str()),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ];
    let (sockets, cores) = host.processors;
    for (name, help, value) in [
        ("machine_cpu_cores", "Logical processors", machine.cpu_millis / 1000),
        ("machine_cpu_physical_cores", "Cores", cores),
        ("machine_cpu_sockets", "Sockets of processors", sockets),
        ("machine_memory_bytes", "Bytes of memory", machine.memory),
        ("machine_nvm_avg_power_budget_watts", "Power of persistent memory, which is not looked for", 0),
        ("machine_swap_bytes", "Bytes of swap", machine.swap),
    ] {
        out.family(name, "gauge", help);
        out.sample(name, &ids, float(value), None);
    }
    out.family("machine_nvm_capacity", "gauge", "Bytes of persistent memory, which is not looked for");
    for mode in ["app_direct_mode", "memory_mode"] {
        let labels = [ids[0], ids[1], ("mode", mode), ids[2]];
        out.sample("machine_nvm_capacity", &labels, 0.0, None);
    }
    out.family("machine_scrape_error", "gauge", "1 where the machine could not be read, else 0");
    out.sample("machine_scrape_error", &[], 0.0, None);
}

/// Names of block devices by their numbers.
pub(super) fn block_devices(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let name = target.file_name()?.to_str()?;
        Some((entry.file_name().into_string().ok()?, format!("/dev/{name}")))
    };
    entries.filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write;
    use super::*;
    use crate::resources::CgroupVersion;
    use std::collections::BTreeSet;

    /// Families of upstream's kubelet v1.35.4 on a node without pods, with their labels besides those of every series.
    const OBSERVED: &str = "
        cadvisor_version_info container_cpu_load_average_10s container_cpu_load_d_average_10s
        container_cpu_system_seconds_total container_cpu_usage_seconds_total:cpu container_cpu_user_seconds_total
        container_file_descriptors container_fs_inodes_free:device container_fs_inodes_total:device
        container_fs_io_current:device container_fs_io_time_seconds_total:device
        container_fs_io_time_weighted_seconds_total:device container_fs_limit_bytes:device
        container_fs_read_seconds_total:device container_fs_reads_merged_total:device container_fs_reads_total:device
        container_fs_sector_reads_total:device container_fs_sector_writes_total:device container_fs_usage_bytes:device
        container_fs_write_seconds_total:device container_fs_writes_merged_total:device container_fs_writes_total:device
        container_last_seen container_memory_cache container_memory_failcnt
        container_memory_failures_total:failure_type,scope container_memory_kernel_usage container_memory_mapped_file
        container_memory_max_usage_bytes container_memory_rss container_memory_swap
        container_memory_total_active_file_bytes container_memory_total_inactive_file_bytes container_memory_usage_bytes
        container_memory_working_set_bytes container_network_receive_bytes_total:interface
        container_network_receive_errors_total:interface container_network_receive_packets_dropped_total:interface
        container_network_receive_packets_total:interface container_network_transmit_bytes_total:interface
        container_network_transmit_errors_total:interface container_network_transmit_packets_dropped_total:interface
        container_network_transmit_packets_total:interface container_oom_events_total
        container_pressure_cpu_stalled_seconds_total container_pressure_cpu_waiting_seconds_total
        container_pressure_io_stalled_seconds_total container_pressure_io_waiting_seconds_total
        container_pressure_memory_stalled_seconds_total container_pressure_memory_waiting_seconds_total
        container_processes container_scrape_error container_sockets container_spec_cpu_period container_spec_cpu_shares
        container_spec_memory_limit_bytes container_spec_memory_reservation_limit_bytes
        container_spec_memory_swap_limit_bytes container_start_time_seconds container_tasks_state:state container_threads
        container_threads_max container_ulimits_soft:ulimit machine_cpu_cores machine_cpu_physical_cores
        machine_cpu_sockets machine_memory_bytes machine_nvm_avg_power_budget_watts machine_nvm_capacity:mode
        machine_scrape_error machine_swap_bytes";

    fn rows(base: &Path) -> Vec<Row> {
        let pressure = "some avg10=0 avg60=0 avg300=0 total=2000000\nfull avg10=0 avg60=0 avg300=0 total=1000000\n";
        let pid = std::process::id().to_string();
        for folder in ["", "kubepods/podu/c"] {
            let file = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            let files = [
                (
                    "cpu.stat",
                    "usage_usec 5000000\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nnr_throttled 1\nthrottled_usec 4",
                ),
                ("memory.current", "1000"),
                ("memory.stat", "anon 300\nfile 500\npgfault 8\npgmajfault 1\n"),
                ("cpu.max", "200000 100000"),
                ("cpu.weight", "39"),
                ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4"),
                ("cpu.pressure", pressure),
                ("memory.pressure", pressure),
                ("io.pressure", pressure),
                ("pids.current", "3"),
                ("cgroup.procs", pid.as_str()),
            ];
            let files: Vec<(String, &str)> = files.iter().map(|(name, text)| (file(name), *text)).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            write(base, &files);
        }
        let reader = CgroupReader::new(base, CgroupVersion::V2);
        let root = About { id: "/".to_owned(), ..About::default() };
        let container = About {
            id: "/kubepods/podu/c".to_owned(),
            name: "c".to_owned(),
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            container: "app".to_owned(),
            ..About::default()
        };
        [root, container].into_iter().filter_map(|about| Row::read(&reader, about)).collect()
    }

    fn told(rows: &[Row]) -> String {
        let machine = MachineInfo::default();
        let disk = machine::Disk { capacity: 10, available: 4, inodes: 2, inodes_free: 1 };
        let mounted = vec![Mounted { device: "/dev/sda1".to_owned(), disk, counters: (0..11).collect() }];
        let host = Host { machine: &machine, processors: (1, 2), mounted, now: 1 };
        text(&host, rows, &BTreeMap::from([("8:0".to_owned(), "/dev/sda".to_owned())]))
    }

    #[test]
    fn every_family_of_upstream_is_told_with_its_labels() {
        let base = tempfile::tempdir().expect("folder");
        let told = told(&rows(base.path()));
        let mut missing = Vec::new();
        for family in OBSERVED.split_whitespace() {
            let (name, own) = family.split_once(':').unwrap_or((family, ""));
            let sample = told
                .lines()
                .find(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
            let Some(sample) = sample else {
                missing.push(name);
                continue;
            };
            let labels: BTreeSet<&str> = sample
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or("", |(labels, _)| labels)
                .split(',')
                .filter_map(|label| label.split_once('=').map(|(name, _)| name))
                .collect();
            let mut expected: BTreeSet<&str> = own.split(',').filter(|name| !name.is_empty()).collect();
            if name.starts_with("container_") && name != "container_scrape_error" {
                expected.extend(["container", "id", "image", "name", "namespace", "pod"]);
                assert_eq!(labels, expected, "{name}");
            } else {
                assert!(labels.is_superset(&expected), "{name}: {labels:?}");
            }
        }
        // A network of its own has only what has interfaces besides the loop.
        missing.retain(|name| !name.starts_with("container_network_"));
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn samples_are_what_the_cgroup_says() {
        let base = tempfile::tempdir().expect("folder");
        let told = told(&rows(base.path()));
        let of = "container=\"app\",id=\"/kubepods/podu/c\",image=\"\",name=\"c\",namespace=\"n\",pod=\"p\"";
        for line in [
            format!("container_memory_rss{{{of}}} 300 1"),
            format!("container_cpu_cfs_throttled_periods_total{{{of}}} 1 1"),
            format!("container_pressure_memory_waiting_seconds_total{{{of}}} 2 1"),
            format!("container_spec_cpu_quota{{{of}}} 200000 1"),
            "container_fs_reads_bytes_total{container=\"app\",device=\"/dev/sda\",id=\"/kubepods/podu/c\",image=\"\",name=\"c\",namespace=\"n\",pod=\"p\"} 1 1".to_owned(),
            "container_cpu_usage_seconds_total{container=\"app\",cpu=\"total\",id=\"/kubepods/podu/c\",image=\"\",name=\"c\",namespace=\"n\",pod=\"p\"} 5 1".to_owned(),
        ] {
            assert!(told.lines().any(|found| found == line), "{line}\n{told}");
        }
        let declared: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(declared.iter().collect::<BTreeSet<_>>().len(), declared.len(), "families are declared once");
    }
}
