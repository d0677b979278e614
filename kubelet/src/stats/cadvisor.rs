//! `/metrics/cadvisor`: series of the machine, of the cgroups of pods and of containers, read when they are asked for.
//! Answers for cAdvisor's `metrics/prometheus.go` with the families that upstream's kubelet lets through.

use super::cgroup::{CgroupStats, DeviceIo};
use super::exposition::{Exposition, LabelSlot, Labels, Sink};
use super::machine::{self, Mounted};
use super::readings::{Pass, Reading, open_files_limit};
use super::subjects::MeasuredCgroup;
use crate::resources::MachineInfo;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A cgroup that was read.
pub(super) struct Row {
    labels: Labels,
    is_root: bool,
    reading: Arc<Reading>,
    files: (u64, u64),
    /// Soft limit of open files of the first process; -1 for none.
    ulimit: Option<f64>,
    network: Vec<machine::Traffic>,
    /// End of the line of a sample that was measured now: its time.
    at: String,
}

impl Row {
    /// Reads a cgroup; none where there is no such one any more.
    pub(super) fn read(pass: &mut Pass<'_>, subject: &MeasuredCgroup) -> Option<Self> {
        let reading = pass.read(&subject.id)?;
        let is_root = subject.id == "/";
        let first = reading.stats.processes.first().filter(|_| subject.has_network);
        let network = match first {
            _ if is_root => machine::traffic("self"),
            Some(pid) => machine::traffic(&pid.to_string()),
            None => Vec::new(),
        };
        let at = format!(" {}", jiff::Timestamp::now().as_millisecond());
        // The machine's own are too many to look at.
        let files = if is_root { (0, 0) } else { reading.files() };
        let ulimit = match is_root {
            true => open_files_limit(1),
            false => reading.open_files_limit().filter(|_| subject.is_container()),
        };
        Some(Self { labels: subject.labels(), is_root, reading, files, ulimit, network, at })
    }

    fn stats(&self) -> &CgroupStats {
        &self.reading.stats
    }

    /// Bytes of memory. The unified hierarchy does not tell those of its root.
    fn memory(&self) -> Option<u64> {
        self.stats().memory.or_else(|| self.is_root.then(|| machine::memory().used))
    }
}

/// The machine's own part.
pub(super) struct Host<'a> {
    pub(super) machine: &'a MachineInfo,
    /// Sockets and cores of the machine's processors.
    pub(super) processors: (u64, u64),
    pub(super) mounted: Vec<Mounted>,
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

/// A family with a sample a cgroup: name, type, help, value.
type Plain = (&'static str, &'static str, &'static str, Value);

/// Families of what a cgroup is given. Their samples have no time: they are not measured.
const SPEC: [Plain; 7] = [
    ("container_spec_cpu_period", "gauge", "Microseconds of the quota's period", |r| {
        Some(float(r.stats().period.unwrap_or(0)))
    }),
    ("container_spec_cpu_quota", "gauge", "Microseconds of processors in a period", |r| r.stats().quota.map(float)),
    ("container_spec_cpu_shares", "gauge", "Shares of processors", |r| Some(float(r.stats().shares.unwrap_or(0)))),
    ("container_spec_memory_limit_bytes", "gauge", "Limit of memory; zero for none", |r| {
        Some(float(r.stats().memory_limit.unwrap_or(0)))
    }),
    ("container_spec_memory_reservation_limit_bytes", "gauge", "Memory to be left to it; zero for none", |r| {
        Some(float(r.stats().memory_reservation.unwrap_or(0)))
    }),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Limit of swap; zero for none", |r| {
        Some(float(r.stats().swap_limit.unwrap_or(0)))
    }),
    ("container_start_time_seconds", "gauge", "Time at which it was made, in seconds since the epoch", |r| {
        r.stats().made.map(float)
    }),
];

/// Families of what a cgroup uses.
const PLAIN: [Plain; 31] = [
    ("container_cpu_cfs_periods_total", "counter", "Elapsed periods of the quota", |r| {
        r.stats().throttling[0].map(float)
    }),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Periods in which the quota was used up", |r| {
        r.stats().throttling[1].map(float)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Seconds spent waiting for the next period", |r| {
        r.stats().throttling[2].map(seconds)
    }),
    ("container_cpu_load_average_10s", "gauge", "Load, which is not measured", |_| Some(0.0)),
    ("container_cpu_load_d_average_10s", "gauge", "Uninterruptible load, which is not measured", |_| Some(0.0)),
    ("container_cpu_system_seconds_total", "counter", "Seconds of processors in the kernel", |r| {
        r.stats().cpu[2].map(seconds)
    }),
    ("container_cpu_user_seconds_total", "counter", "Seconds of processors in user mode", |r| {
        r.stats().cpu[1].map(seconds)
    }),
    ("container_file_descriptors", "gauge", "Open files", |r| Some(float(r.files.0))),
    ("container_last_seen", "gauge", "Time at which it was there, in seconds since the epoch", |_| {
        u64::try_from(jiff::Timestamp::now().as_second()).ok().map(float)
    }),
    ("container_memory_cache", "gauge", "Bytes of page cache", |r| Some(float(r.stats().parts.cache))),
    ("container_memory_failcnt", "counter", "Times at which the limit of memory was reached", |r| {
        Some(float(r.stats().memory_failures.unwrap_or(0)))
    }),
    ("container_memory_kernel_usage", "gauge", "Bytes of memory of the kernel", |r| {
        Some(float(r.stats().kernel_memory.unwrap_or(0)))
    }),
    ("container_memory_mapped_file", "gauge", "Bytes of mapped files", |r| Some(float(r.stats().parts.mapped_file))),
    ("container_memory_max_usage_bytes", "gauge", "Most bytes of memory so far", |r| {
        Some(float(r.stats().memory_peak.unwrap_or(0)))
    }),
    ("container_memory_rss", "gauge", "Bytes of anonymous memory", |r| Some(float(r.stats().parts.rss))),
    ("container_memory_swap", "gauge", "Bytes of swap", |r| Some(float(r.stats().parts.swap.unwrap_or(0)))),
    ("container_memory_total_active_file_bytes", "gauge", "Bytes of page cache that was used lately", |r| {
        Some(float(r.stats().parts.active_file))
    }),
    ("container_memory_total_inactive_file_bytes", "gauge", "Bytes of page cache that was not used lately", |r| {
        Some(float(r.stats().parts.inactive_file))
    }),
    ("container_memory_usage_bytes", "gauge", "Bytes of memory, caches included", |r| r.memory().map(float)),
    ("container_memory_working_set_bytes", "gauge", "Bytes of memory without caches that were not used lately", |r| {
        r.memory().map(|used| float(used.saturating_sub(r.stats().parts.inactive_file)))
    }),
    ("container_oom_events_total", "counter", "Processes ended for want of memory", |r| {
        Some(float(r.stats().oom_kills.unwrap_or(0)))
    }),
    ("container_pressure_cpu_stalled_seconds_total", "counter", "Seconds in which all waited for processors", |r| {
        r.stats().waited(0, 1)
    }),
    ("container_pressure_cpu_waiting_seconds_total", "counter", "Seconds in which some waited for processors", |r| {
        r.stats().waited(0, 0)
    }),
    ("container_pressure_io_stalled_seconds_total", "counter", "Seconds in which all waited for devices", |r| {
        r.stats().waited(2, 1)
    }),
    ("container_pressure_io_waiting_seconds_total", "counter", "Seconds in which some waited for devices", |r| {
        r.stats().waited(2, 0)
    }),
    ("container_pressure_memory_stalled_seconds_total", "counter", "Seconds in which all waited for memory", |r| {
        r.stats().waited(1, 1)
    }),
    ("container_pressure_memory_waiting_seconds_total", "counter", "Seconds in which some waited for memory", |r| {
        r.stats().waited(1, 0)
    }),
    ("container_processes", "gauge", "Processes", |r| Some(float(u64::try_from(r.stats().processes.len()).ok()?))),
    ("container_sockets", "gauge", "Open sockets", |r| Some(float(r.files.1))),
    ("container_threads", "gauge", "Threads", |r| Some(float(r.stats().threads.unwrap_or(0)))),
    ("container_threads_max", "gauge", "Most threads; zero for no limit", |r| {
        Some(float(r.stats().threads_max.unwrap_or(0)))
    }),
];

impl CgroupStats {
    fn waited(&self, resource: usize, which: usize) -> Option<f64> {
        self.pressure[resource].map(|totals| float(totals[which]) / 1e6)
    }
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
/// Value of a device's family for a cgroup.
type OfDevice = fn(&DeviceIo) -> u64;

/// A family of devices: name, type, what the machine's file systems have in it, what a cgroup has.
type Device = (&'static str, &'static str, Option<OfDisk>, Option<OfDevice>);

/// Families of file systems and devices.
const DISKS: [Device; 17] = [
    ("container_fs_inodes_free", "gauge", Some(|m| Some(float(m.disk.inodes_free))), None),
    ("container_fs_inodes_total", "gauge", Some(|m| Some(float(m.disk.inodes))), None),
    ("container_fs_io_current", "gauge", Some(|m| m.counter(8).map(float)), None),
    ("container_fs_io_time_seconds_total", "counter", Some(|m| m.counter(9).map(|millis| float(millis) / 1e3)), None),
    (
        "container_fs_io_time_weighted_seconds_total",
        "counter",
        Some(|m| m.counter(10).map(|millis| float(millis) / 1e3)),
        None,
    ),
    ("container_fs_limit_bytes", "gauge", Some(|m| Some(float(m.disk.capacity))), None),
    ("container_fs_read_seconds_total", "counter", Some(|m| m.counter(3).map(|millis| float(millis) / 1e3)), None),
    ("container_fs_reads_bytes_total", "counter", None, Some(|io| DeviceIo::of(&io.bytes, "Read"))),
    ("container_fs_reads_merged_total", "counter", Some(|m| m.counter(1).map(float)), None),
    (
        "container_fs_reads_total",
        "counter",
        Some(|m| m.counter(0).map(float)),
        Some(|io| DeviceIo::of(&io.requests, "Read")),
    ),
    ("container_fs_sector_reads_total", "counter", Some(|m| m.counter(2).map(float)), None),
    ("container_fs_sector_writes_total", "counter", Some(|m| m.counter(6).map(float)), None),
    (
        "container_fs_usage_bytes",
        "gauge",
        Some(|m| Some(float(m.disk.capacity.saturating_sub(m.disk.available)))),
        None,
    ),
    ("container_fs_write_seconds_total", "counter", Some(|m| m.counter(7).map(|millis| float(millis) / 1e3)), None),
    ("container_fs_writes_bytes_total", "counter", None, Some(|io| DeviceIo::of(&io.bytes, "Write"))),
    ("container_fs_writes_merged_total", "counter", Some(|m| m.counter(5).map(float)), None),
    (
        "container_fs_writes_total",
        "counter",
        Some(|m| m.counter(4).map(float)),
        Some(|io| DeviceIo::of(&io.requests, "Write")),
    ),
];

/// Names of devices by their numbers.
pub(super) type DeviceNames = BTreeMap<(u32, u32), String>;

/// Writes the exposition of all series.
pub(super) fn write(host: &Host<'_>, rows: &[Row], devices: &DeviceNames, sink: Sink<'_>) {
    let mut page = Exposition::new(sink);
    version(&mut page, host);
    for (timed, family) in SPEC.iter().map(|f| (false, f)).chain(PLAIN.iter().map(|f| (true, f))) {
        plain(&mut page, rows, family, timed);
        if !page.is_wanted() {
            return;
        }
    }
    cpu_and_failures(&mut page, rows);
    disks(&mut page, host, rows, devices);
    usage_of_devices(&mut page, rows, devices);
    for (name, position) in NETWORK {
        let name = format!("container_network_{name}");
        page.family(&name, "counter", "Cumulative count of the network");
        for (row, traffic) in rows.iter().flat_map(|row| row.network.iter().map(move |traffic| (row, traffic))) {
            let own = [(LabelSlot::Image, "interface", traffic.interface.as_str())];
            page.series(&name, &row.labels, &own, float(traffic.counters[position]), &row.at);
        }
    }
    page.family("container_scrape_error", "gauge", "1 where containers could not be read, else 0");
    page.sample("container_scrape_error", &[], 0.0);
    of_machine(&mut page, host);
}

fn version(page: &mut Exposition<'_>, host: &Host<'_>) {
    page.family("cadvisor_version_info", "gauge", "Versions of the kernel and of the system; always 1");
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.machine.kernel_version.as_str()),
        ("osVersion", &host.machine.os_image),
    ];
    page.sample("cadvisor_version_info", &labels, 1.0);
}

/// Writes a family that has a sample of each cgroup, or of some.
fn plain(page: &mut Exposition<'_>, rows: &[Row], (name, kind, help, of): &Plain, timed: bool) {
    let mut samples = rows.iter().filter_map(|row| Some((row, of(row)?))).peekable();
    if samples.peek().is_some() {
        page.family(name, kind, help);
    }
    for (row, value) in samples {
        page.series(name, &row.labels, &[], value, if timed { &row.at } else { "" });
    }
}

fn cpu_and_failures(page: &mut Exposition<'_>, rows: &[Row]) {
    let name = "container_cpu_usage_seconds_total";
    page.family(name, "counter", "Seconds of processors in all");
    for (row, used) in rows.iter().filter_map(|row| Some((row, row.stats().cpu[0].filter(|used| *used > 0)?))) {
        page.series(name, &row.labels, &[(LabelSlot::Container, "cpu", "total")], seconds(used), &row.at);
    }
    let name = "container_memory_failures_total";
    page.family(name, "counter", "Exposition faults");
    for row in rows {
        for (place, kind) in ["pgfault", "pgmajfault"].into_iter().enumerate() {
            for scope in ["container", "hierarchy"] {
                let own = [(LabelSlot::Container, "failure_type", kind), (LabelSlot::Pod, "scope", scope)];
                page.series(name, &row.labels, &own, float(row.stats().parts.faults[place]), &row.at);
            }
        }
    }
    let name = "container_tasks_state";
    page.family(name, "gauge", "Tasks by state, which are not counted");
    for (row, state) in rows.iter().flat_map(|row| STATES.map(|state| (row, state))) {
        page.series(name, &row.labels, &[(LabelSlot::Pod, "state", state)], 0.0, &row.at);
    }
    let name = "container_ulimits_soft";
    page.family(name, "gauge", "Soft limits of the first process");
    for (row, limit) in rows.iter().filter_map(|row| Some((row, row.ulimit?))) {
        page.series(name, &row.labels, &[(LabelSlot::Pod, "ulimit", "max_open_files")], limit, &row.at);
    }
}

fn disks(page: &mut Exposition<'_>, host: &Host<'_>, rows: &[Row], devices: &DeviceNames) {
    let root = rows.iter().find(|row| row.is_root);
    for (name, kind, of_disk, of_device) in DISKS {
        let of_machine = root.zip(of_disk).into_iter().flat_map(|(root, of)| {
            let told = move |mounted: &Mounted| Some((mounted.device.clone(), of(mounted)?));
            host.mounted.iter().filter_map(told).map(move |(device, value)| (root, device, value))
        });
        let of_cgroups = rows.iter().filter_map(|row| of_device.map(|of| (row, of))).flat_map(|(row, of)| {
            row.stats().io.iter().map(move |io| (row, name_of(devices, io).to_owned(), float(of(io))))
        });
        let mut samples = of_cgroups.chain(of_machine).peekable();
        if samples.peek().is_some() {
            page.family(name, kind, "Of the file system or device");
        }
        for (row, device, value) in samples {
            page.series(name, &row.labels, &[(LabelSlot::Container, "device", &device)], value, &row.at);
        }
    }
}

fn name_of<'a>(devices: &'a DeviceNames, io: &DeviceIo) -> &'a str {
    devices.get(&(io.major, io.minor)).map_or("", String::as_str)
}

/// Bytes by device and operation.
fn usage_of_devices(page: &mut Exposition<'_>, rows: &[Row], devices: &DeviceNames) {
    let name = "container_blkio_device_usage_total";
    let mut samples = rows.iter().flat_map(|row| row.stats().io.iter().map(move |io| (row, io))).peekable();
    if samples.peek().is_some() {
        page.family(name, "counter", "Bytes of devices by operation");
    }
    for (row, io) in samples {
        let (major, minor) = (io.major.to_string(), io.minor.to_string());
        for (operation, bytes) in &io.bytes {
            let own = [
                (LabelSlot::Container, "device", name_of(devices, io)),
                (LabelSlot::Image, "major", &major),
                (LabelSlot::Image, "minor", &minor),
                (LabelSlot::Namespace, "operation", operation),
            ];
            page.series(name, &row.labels, &own, float(*bytes), &row.at);
        }
    }
}

fn of_machine(page: &mut Exposition<'_>, host: &Host<'_>) {
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
        page.family(name, "gauge", help);
        page.sample(name, &ids, float(value));
    }
    page.family("machine_nvm_capacity", "gauge", "Bytes of persistent memory, which is not looked for");
    for mode in ["app_direct_mode", "memory_mode"] {
        let labels = [ids[0], ids[1], ("mode", mode), ids[2]];
        page.sample("machine_nvm_capacity", &labels, 0.0);
    }
    page.family("machine_scrape_error", "gauge", "1 where the machine could not be read, else 0");
    page.sample("machine_scrape_error", &[], 0.0);
}

/// Names of block devices by their numbers.
pub(super) fn block_devices(folder: &Path) -> DeviceNames {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let name = target.file_name()?.to_str()?;
        let number = entry.file_name().into_string().ok()?;
        let (major, minor) = number.split_once(':')?;
        Some(((major.parse().ok()?, minor.parse().ok()?), format!("/dev/{name}")))
    };
    entries.filter_map(named).collect()
}

#[cfg(test)]
mod tests;
