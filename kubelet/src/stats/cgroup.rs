//! Usage and limits of one cgroup, as the kernel's files tell them. Answers for the part of cAdvisor's container handlers
//! that reads cgroups and `/proc`.
//!
//! Read for every cgroup of every scrape: each file is one open and one read into a buffer that is used again, and a file
//! whose content follows from another one is not read.

use crate::resources::{CgroupVersion, Usage};
use crate::trees;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, readlinkat, statat};
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Most processes of a cgroup whose files and sockets are counted.
const MOST_PROCESSES: usize = 4096;
/// Most bytes of one file that are read.
const LARGEST: usize = 1 << 20;
/// Bytes of a file that holds one number or a short list: all of it comes by one read.
const SHORT: usize = 16 << 10;
/// Nanoseconds of a microsecond.
const MICRO: u64 = 1000;
/// Nanoseconds of a clock tick, which is a hundredth of a second for all programs.
const TICK: u64 = 10_000_000;
/// More memory than this is no limit; the kernel rounds it.
const UNLIMITED: u64 = 1 << 62;

/// Kinds of memory in a cgroup and those below it, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryParts {
    pub(super) cache: u64,
    pub(super) rss: u64,
    pub(super) mapped_file: u64,
    pub(super) swap: Option<u64>,
    pub(super) active_file: u64,
    pub(super) inactive_file: u64,
    pub(super) kernel: Option<u64>,
    /// Page faults: all, and those that read a disk. The old hierarchy counts those below apart, which come second.
    pub(super) faults: [u64; 2],
    pub(super) faults_below: [u64; 2],
}

/// Traffic of a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceIo {
    pub(super) major: u32,
    pub(super) minor: u32,
    /// Bytes by operation, as the kernel calls it.
    pub(super) bytes: Vec<(String, u64)>,
    /// Requests by operation.
    pub(super) requests: Vec<(String, u64)>,
}

impl DeviceIo {
    /// Number of an operation: zero where the kernel has none.
    pub(super) fn of(list: &[(String, u64)], operation: &str) -> u64 {
        list.iter().find(|(known, _)| known == operation).map_or(0, |(_, value)| *value)
    }
}

/// Contents of a cgroup's files; those that are missing are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CgroupStats {
    /// Nanoseconds of processors: in all, in user mode, in the kernel.
    pub(super) cpu: [Option<u64>; 3],
    /// Periods, those in which the quota was used up, and nanoseconds spent waiting for the next one. Only read where there
    /// is a quota.
    pub(super) throttling: [Option<u64>; 3],
    pub(super) memory: Option<u64>,
    pub(super) memory_peak: Option<u64>,
    pub(super) memory_failures: Option<u64>,
    pub(super) parts: MemoryParts,
    pub(super) kernel_memory: Option<u64>,
    pub(super) oom_kills: Option<u64>,
    pub(super) io: Vec<DeviceIo>,
    /// Microseconds in which some waited for processors, memory and devices, and in which all did.
    pub(super) pressure: [Option<[u64; 2]>; 3],
    /// Processes of the cgroup itself.
    pub(super) processes: Vec<i32>,
    pub(super) threads: Option<u64>,
    pub(super) threads_max: Option<u64>,
    pub(super) shares: Option<u64>,
    pub(super) quota: Option<u64>,
    pub(super) period: Option<u64>,
    pub(super) memory_limit: Option<u64>,
    pub(super) memory_reservation: Option<u64>,
    pub(super) swap_limit: Option<u64>,
    /// Seconds since the epoch at which it was made.
    pub(super) made: Option<u64>,
}

/// UseCounters that stand still while no process of a cgroup, or of one below it, runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UseCounters {
    cpu: u64,
    memory: u64,
}

/// Controllers of the separate hierarchies that are read, that of memory first.
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "blkio"];

/// Folders of one cgroup, one in each hierarchy.
type Folders = Rc<Vec<Folder>>;

/// Reads cgroups below the mounts of the host.
pub(super) struct CgroupReader {
    base: PathBuf,
    version: CgroupVersion,
    buffer: Vec<u8>,
    /// Cgroups that are open, each below the one before it: the kernel looks up every part of a path anew.
    open: Vec<(String, Folders)>,
}

/// A cgroup's folder in one hierarchy; opened when something of it is read.
struct Folder {
    /// The folder above, which `name` starts from; none for a whole path.
    above: Option<(Folders, usize)>,
    name: PathBuf,
    opened: OnceCell<Option<OwnedFd>>,
}

impl Folder {
    fn at(path: PathBuf) -> Self {
        Self { above: None, name: path, opened: OnceCell::new() }
    }

    /// The folder of this name right below those of a hierarchy.
    fn below(above: &Folders, hierarchy: usize, name: &str) -> Self {
        Self { above: Some((Rc::clone(above), hierarchy)), name: PathBuf::from(name), opened: OnceCell::new() }
    }

    /// Opens the folder, once; none where there is no such one.
    fn open(&self) -> Option<&OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || match &self.above {
            None => openat(CWD, &self.name, flags, Mode::empty()).ok(),
            Some((above, hierarchy)) => openat(above[*hierarchy].open()?, &self.name, flags, Mode::empty()).ok(),
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// Text of a short file; empty where there is none.
    fn text<'b>(&self, file: &str, buffer: &'b mut Vec<u8>) -> &'b str {
        self.read(file, buffer, SHORT)
    }

    /// Text of a file, no more than so many bytes of it.
    fn read<'b>(&self, file: &str, buffer: &'b mut Vec<u8>, most: usize) -> &'b str {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = self.open().and_then(|folder| openat(folder, file, flags, Mode::empty()).ok());
        let Some(opened) = opened else { return "" };
        let mut length = 0;
        while length < most {
            if buffer.len() == length {
                buffer.resize((length * 2).max(SHORT), 0);
            }
            match rustix::io::read(&opened, &mut buffer[length..]) {
                Ok(0) | Err(_) => break,
                Ok(more) => length += more,
            }
            if most == SHORT {
                break;
            }
        }
        std::str::from_utf8(&buffer[..length]).unwrap_or_default()
    }

    fn number(&self, file: &str, buffer: &mut Vec<u8>) -> Option<u64> {
        number(self.text(file, buffer))
    }

    /// Seconds since the epoch at which the cgroup was made: of a file in it that nobody writes to. The folder's own time
    /// changes with what is below.
    fn made(&self) -> Option<u64> {
        let folder = self.open()?;
        let times = ["cgroup.clone_children", "cgroup.events"].into_iter();
        let time = times.filter_map(|file| statat(folder, file, AtFlags::empty()).ok()).next()?.st_mtime;
        u64::try_from(time).ok()
    }

    /// Numbers of the cgroup's own processes.
    fn processes(&self, buffer: &mut Vec<u8>) -> Vec<i32> {
        self.read("cgroup.procs", buffer, LARGEST).lines().filter_map(|line| line.trim().parse().ok()).collect()
    }
}

impl CgroupReader {
    pub(super) fn new(base: &Path, version: CgroupVersion) -> Self {
        Self { base: base.to_owned(), version, buffer: vec![0; SHORT], open: Vec::new() }
    }

    /// Reads the cgroups of this machine.
    pub(super) fn of_machine() -> Self {
        Self::new(Path::new("/sys/fs/cgroup"), crate::resources::cgroup_version())
    }

    fn folder(&self, controller: &str, path: &str) -> PathBuf {
        let mount = match self.version {
            CgroupVersion::V1 => self.base.join(controller),
            CgroupVersion::V2 => self.base.clone(),
        };
        mount.join(path.trim_start_matches('/'))
    }

    /// Names of the cgroups right below one.
    pub(super) fn children(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.folder("memory", path)).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The lowest number of a process in a cgroup or below it.
    pub(super) fn first_process(&self, path: &str) -> Option<i32> {
        let mut first = None;
        let walked = trees::walk_folders(&self.folder("memory", path), |cgroup| {
            let own = trees::read(cgroup, c"cgroup.procs").unwrap_or_default();
            first = own.lines().filter_map(|line| line.trim().parse::<i32>().ok()).chain(first).min();
        });
        walked.ok().and(first)
    }

    /// Reads the counters of a cgroup; none where there is no such one.
    pub(super) fn counters(&mut self, path: &str) -> Option<UseCounters> {
        let folders = self.folders(path);
        let buffer = &mut self.buffer;
        match (self.version, folders.as_slice()) {
            (CgroupVersion::V1, [memory, _, cpuacct, ..]) => Some(UseCounters {
                cpu: cpuacct.number("cpuacct.usage", buffer)?,
                memory: memory.number("memory.usage_in_bytes", buffer)?,
            }),
            (_, [folder, ..]) => {
                let cpu = pairs(folder.text("cpu.stat", buffer)).find(|(name, _)| *name == "usage_usec")?.1;
                // The root has none: its memory is the machine's.
                Some(UseCounters { cpu, memory: folder.number("memory.current", buffer).unwrap_or(0) })
            }
            _ => None,
        }
    }

    /// Reads all statistics of a cgroup; none where there is no such one.
    pub(super) fn read(&mut self, path: &str) -> Option<CgroupStats> {
        let folders = self.folders(path);
        let memory = folders.first()?;
        memory.open()?;
        let mut stats = match (self.version, folders.as_slice()) {
            (CgroupVersion::V1, [memory, cpu, cpuacct, pids, blkio]) => {
                self.read_v1([memory, cpu, cpuacct, pids, blkio])
            }
            _ => self.read_v2(memory),
        };
        stats.made = memory.made();
        stats.processes = memory.processes(&mut self.buffer);
        Some(stats)
    }

    /// Folders of a cgroup, from those of the one above it, which stay open for those beside it.
    fn folders(&mut self, path: &str) -> Folders {
        if let Some((_, folders)) = self.open.last().filter(|(open, _)| open == path) {
            return Rc::clone(folders);
        }
        let (above, name) = path.rsplit_once('/').unwrap_or_default();
        while self.open.last().is_some_and(|(open, _)| open != above) {
            self.open.pop();
        }
        if self.open.is_empty() && !above.is_empty() {
            self.open.push((above.to_owned(), self.whole(above)));
        }
        let folders = match self.open.last() {
            Some((_, above)) => Rc::new((0..above.len()).map(|place| Folder::below(above, place, name)).collect()),
            None => self.whole(path),
        };
        self.open.push((path.to_owned(), Rc::clone(&folders)));
        folders
    }

    /// Folders of a cgroup by its whole path.
    fn whole(&self, path: &str) -> Folders {
        let controllers = match self.version {
            CgroupVersion::V1 => &CONTROLLERS[..],
            CgroupVersion::V2 => &CONTROLLERS[..1],
        };
        Rc::new(controllers.iter().map(|controller| Folder::at(self.folder(controller, path))).collect())
    }

    fn read_v2(&mut self, folder: &Folder) -> CgroupStats {
        let buffer = &mut self.buffer;
        let mut stats = CgroupStats::default();
        let mut throttling = [None; 3];
        for (name, value) in pairs(folder.text("cpu.stat", buffer)) {
            match name {
                "usage_usec" => stats.cpu[0] = Some(value.saturating_mul(MICRO)),
                "user_usec" => stats.cpu[1] = Some(value.saturating_mul(MICRO)),
                "system_usec" => stats.cpu[2] = Some(value.saturating_mul(MICRO)),
                "nr_periods" => throttling[0] = Some(value),
                "nr_throttled" => throttling[1] = Some(value),
                "throttled_usec" => throttling[2] = Some(value.saturating_mul(MICRO)),
                _ => {}
            }
        }
        stats.parts = MemoryParts::unified(folder.text("memory.stat", buffer));
        for (name, value) in pairs(folder.text("memory.events", buffer)) {
            match name {
                "max" => stats.memory_failures = Some(value),
                "oom_kill" => stats.oom_kills = Some(value),
                _ => {}
            }
        }
        let quota = folder.text("cpu.max", buffer);
        let mut quota = quota.split_whitespace().map(str::parse);
        stats.quota = quota.next().and_then(Result::ok);
        stats.period = quota.next().and_then(Result::ok);
        stats.throttling = if stats.quota.is_some() { throttling } else { [None; 3] };
        stats.memory = folder.number("memory.current", buffer);
        stats.memory_peak = folder.number("memory.peak", buffer);
        stats.kernel_memory = stats.parts.kernel;
        stats.parts.swap = folder.number("memory.swap.current", buffer);
        stats.io = io_unified(folder.text("io.stat", buffer));
        for (place, file) in ["cpu.pressure", "memory.pressure", "io.pressure"].into_iter().enumerate() {
            stats.pressure[place] = pressure(folder.text(file, buffer));
        }
        stats.threads = folder.number("pids.current", buffer);
        stats.threads_max = folder.number("pids.max", buffer);
        stats.shares = folder.number("cpu.weight", buffer).map(shares);
        stats.memory_limit = folder.number("memory.max", buffer);
        stats.memory_reservation = folder.number("memory.min", buffer);
        stats.swap_limit = folder.number("memory.swap.max", buffer);
        stats
    }

    fn read_v1(&mut self, [memory, cpu, cpuacct, pids, blkio]: [&Folder; 5]) -> CgroupStats {
        let buffer = &mut self.buffer;
        let limit = |file: &str, buffer: &mut Vec<u8>| memory.number(file, buffer).filter(|bytes| *bytes < UNLIMITED);
        let mut stats = CgroupStats {
            cpu: [cpuacct.number("cpuacct.usage", buffer), None, None],
            memory: memory.number("memory.usage_in_bytes", buffer),
            memory_peak: memory.number("memory.max_usage_in_bytes", buffer),
            kernel_memory: memory.number("memory.kmem.usage_in_bytes", buffer),
            parts: MemoryParts::separate(memory.text("memory.stat", buffer)),
            threads: pids.number("pids.current", buffer),
            threads_max: pids.number("pids.max", buffer),
            shares: cpu.number("cpu.shares", buffer),
            quota: cpu.number("cpu.cfs_quota_us", buffer),
            period: cpu.number("cpu.cfs_period_us", buffer),
            memory_limit: limit("memory.limit_in_bytes", buffer),
            memory_reservation: limit("memory.soft_limit_in_bytes", buffer),
            swap_limit: limit("memory.memsw.limit_in_bytes", buffer),
            ..CgroupStats::default()
        };
        for (name, ticks) in pairs(cpuacct.text("cpuacct.stat", buffer)) {
            match name {
                "user" => stats.cpu[1] = Some(ticks.saturating_mul(TICK)),
                "system" => stats.cpu[2] = Some(ticks.saturating_mul(TICK)),
                _ => {}
            }
        }
        if stats.quota.is_some() {
            for (name, value) in pairs(cpu.text("cpu.stat", buffer)) {
                match name {
                    "nr_periods" => stats.throttling[0] = Some(value),
                    "nr_throttled" => stats.throttling[1] = Some(value),
                    "throttled_time" => stats.throttling[2] = Some(value),
                    _ => {}
                }
            }
        }
        // Without a limit none is reached.
        stats.memory_failures = match stats.memory_limit {
            Some(_) => memory.number("memory.failcnt", buffer),
            None => Some(0),
        };
        let oom = pairs(memory.text("memory.oom_control", buffer)).find(|(name, _)| *name == "oom_kill");
        stats.oom_kills = oom.map(|(_, kills)| kills);
        stats.io = io_separate(blkio, buffer);
        stats
    }
}

impl MemoryParts {
    fn unified(text: &str) -> Self {
        let mut parts = Self::default();
        for (name, value) in pairs(text) {
            match name {
                "anon" => parts.rss = value,
                "file" => parts.cache = value,
                "file_mapped" => parts.mapped_file = value,
                "kernel" => parts.kernel = Some(value),
                "active_file" => parts.active_file = value,
                "inactive_file" => parts.inactive_file = value,
                "pgfault" => (parts.faults[0], parts.faults_below[0]) = (value, value),
                "pgmajfault" => (parts.faults[1], parts.faults_below[1]) = (value, value),
                _ => {}
            }
        }
        parts
    }

    fn separate(text: &str) -> Self {
        let mut parts = Self::default();
        for (name, value) in pairs(text) {
            match name {
                "total_cache" => parts.cache = value,
                "total_rss" => parts.rss = value,
                "total_mapped_file" => parts.mapped_file = value,
                "total_swap" => parts.swap = Some(value),
                "total_active_file" => parts.active_file = value,
                "total_inactive_file" => parts.inactive_file = value,
                "pgfault" => parts.faults[0] = value,
                "pgmajfault" => parts.faults[1] = value,
                "total_pgfault" => parts.faults_below[0] = value,
                "total_pgmajfault" => parts.faults_below[1] = value,
                _ => {}
            }
        }
        parts
    }
}

impl CgroupStats {
    /// Memory that cannot be had back at once.
    pub(super) fn working_set(&self) -> u64 {
        self.memory.unwrap_or(0).saturating_sub(self.parts.inactive_file)
    }

    /// The part of it that pods are ranked and told by.
    pub(super) fn usage(&self) -> Usage {
        let [page_faults, major_page_faults] = self.parts.faults_below;
        Usage {
            cpu_ns: self.cpu[0].unwrap_or(0),
            memory_usage: self.memory.unwrap_or(0),
            working_set: self.working_set(),
            rss: self.parts.rss,
            page_faults,
            major_page_faults,
            processes: self.threads.unwrap_or(0),
            swap: self.parts.swap,
            swap_limit: self.swap_limit,
            memory_limit: self.memory_limit,
        }
    }

    /// Open files and sockets of its processes.
    pub(super) fn files(&self) -> (u64, u64) {
        let (mut files, mut sockets) = (0, 0);
        let mut target = Vec::with_capacity(64);
        for pid in self.processes.iter().take(MOST_PROCESSES) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(folder) = openat(CWD, format!("/proc/{pid}/fd").as_str(), flags, Mode::empty()) else { continue };
            let Ok(entries) = Dir::read_from(&folder) else { continue };
            for entry in entries.flatten().filter(|entry| !entry.file_name().to_bytes().starts_with(b".")) {
                files += 1;
                if let Ok(found) = readlinkat(&folder, entry.file_name(), std::mem::take(&mut target)) {
                    sockets += u64::from(found.as_bytes().starts_with(b"socket:"));
                    target = found.into_bytes();
                }
            }
        }
        (files, sockets)
    }
}

/// A number; `max` is none.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Lines of a name and a number.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name, value.trim().parse().ok()?))
    })
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4`.
fn io_unified(text: &str) -> Vec<DeviceIo> {
    let line = |line: &str| {
        let (number, rest) = line.split_once(' ')?;
        let (major, minor) = device(number)?;
        let field = |name: &str| {
            let field = rest.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            field.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let both = |read: &str, write: &str| vec![("Read".to_owned(), field(read)), ("Write".to_owned(), field(write))];
        Some(DeviceIo { major, minor, bytes: both("rbytes", "wbytes"), requests: both("rios", "wios") })
    };
    text.lines().filter_map(line).collect()
}

/// Files of lines such as `8:0 Read 1`, in the order of devices.
fn io_separate(folder: &Folder, buffer: &mut Vec<u8>) -> Vec<DeviceIo> {
    let mut all: Vec<DeviceIo> = Vec::new();
    for (place, file) in ["blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"].into_iter().enumerate() {
        // Older kernels do not count what is below.
        let found = match folder.text(&format!("{file}_recursive"), buffer).len() {
            0 => folder.text(file, buffer),
            length => std::str::from_utf8(&buffer[..length]).unwrap_or_default(),
        };
        for line in found.lines() {
            let mut words = line.split(' ');
            let (Some(at), Some(operation), Some(value)) =
                (words.next().and_then(device), words.next(), words.next().and_then(|value| value.parse().ok()))
            else {
                continue;
            };
            let index = all.iter().position(|known| (known.major, known.minor) == at).unwrap_or_else(|| {
                all.push(DeviceIo { major: at.0, minor: at.1, ..DeviceIo::default() });
                all.len() - 1
            });
            let known = &mut all[index];
            let list = if place == 0 { &mut known.bytes } else { &mut known.requests };
            list.push((operation.to_owned(), value));
        }
    }
    all
}

/// Totals of `some` and of `full`; none where the kernel does not count.
fn pressure(text: &str) -> Option<[u64; 2]> {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
    };
    Some([total("some ")?, total("full ").unwrap_or(0)])
}

/// Shares of a weight, the other way round than they are set.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

#[cfg(test)]
pub(super) mod tests;
