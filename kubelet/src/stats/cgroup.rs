//! Usage and limits of one cgroup, as the kernel's files tell them. Answers for the part of cAdvisor's container handlers
//! that reads cgroups and `/proc`.

use crate::resources::CgroupVersion;
use crate::trees;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Most processes of a cgroup whose files and sockets are counted.
const MOST_PROCESSES: usize = 4096;
const MICRO: u64 = 1000;

/// Contents of a cgroup's files; those that are missing are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CgroupStats {
    /// Nanoseconds of processors: in all, in user mode, in the kernel.
    pub(super) cpu: [Option<u64>; 3],
    /// Periods, those in which the quota was used up, and nanoseconds spent waiting for the next one.
    pub(super) throttling: [Option<u64>; 3],
    pub(super) memory: Option<u64>,
    pub(super) memory_peak: Option<u64>,
    pub(super) memory_failures: Option<u64>,
    /// Bytes by the kernel's names.
    pub(super) memory_parts: BTreeMap<String, u64>,
    pub(super) kernel_memory: Option<u64>,
    pub(super) swap: Option<u64>,
    pub(super) oom_kills: Option<u64>,
    /// By device: bytes read, bytes written, reads, writes.
    pub(super) io: BTreeMap<String, [u64; 4]>,
    /// By `cpu`, `memory`, `io`: microseconds in which some waited and in which all did.
    pub(super) pressure: BTreeMap<&'static str, [u64; 2]>,
    /// Processes that the cgroup and those below it have.
    pub(super) processes: Vec<i32>,
    pub(super) threads: Option<u64>,
    pub(super) threads_max: Option<u64>,
    pub(super) shares: Option<u64>,
    pub(super) quota: Option<u64>,
    pub(super) period: Option<u64>,
    pub(super) memory_limit: Option<u64>,
    pub(super) swap_limit: Option<u64>,
    /// Seconds since the epoch at which it was made.
    pub(super) made: Option<u64>,
}

/// Reads cgroups below the mounts of the host.
#[derive(Clone, Debug)]
pub(super) struct CgroupReader {
    base: PathBuf,
    version: CgroupVersion,
}

impl CgroupReader {
    pub(super) fn new(base: &Path, version: CgroupVersion) -> Self {
        Self { base: base.to_owned(), version }
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

    /// Reads all statistics of a cgroup; none where there is no such one.
    pub(super) fn read(&self, path: &str) -> Option<CgroupStats> {
        let folder = self.folder("memory", path);
        let made = folder.metadata().ok()?.modified().ok()?;
        let made = made.duration_since(std::time::UNIX_EPOCH).ok().map(|age| age.as_secs());
        let stats = match self.version {
            CgroupVersion::V1 => self.read_v1(path),
            CgroupVersion::V2 => self.read_v2(path),
        };
        Some(CgroupStats { made, processes: processes_below(&folder).into_iter().collect(), ..stats })
    }

    fn read_v2(&self, path: &str) -> CgroupStats {
        let folder = self.folder("", path);
        let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let number = |file: &str| number(&text(file));
        let cpu = pairs(&text("cpu.stat"));
        let time = |name: &str| cpu.get(name).map(|micros| micros.saturating_mul(MICRO));
        let memory_parts = pairs(&text("memory.stat"));
        let events = pairs(&text("memory.events"));
        let quota = text("cpu.max");
        let mut quota = quota.split_whitespace().map(str::parse);
        CgroupStats {
            cpu: [time("usage_usec"), time("user_usec"), time("system_usec")],
            throttling: [cpu.get("nr_periods").copied(), cpu.get("nr_throttled").copied(), time("throttled_usec")],
            memory: number("memory.current"),
            memory_peak: number("memory.peak"),
            memory_failures: events.get("max").copied(),
            kernel_memory: memory_parts.get("kernel").copied(),
            memory_parts,
            swap: number("memory.swap.current"),
            oom_kills: events.get("oom_kill").copied(),
            io: io(&text("io.stat")),
            pressure: ["cpu", "memory", "io"]
                .into_iter()
                .filter_map(|resource| Some((resource, pressure(&text(&format!("{resource}.pressure")))?)))
                .collect(),
            threads: number("pids.current"),
            threads_max: number("pids.max"),
            shares: number("cpu.weight").map(shares),
            quota: quota.next().and_then(Result::ok),
            period: quota.next().and_then(Result::ok),
            memory_limit: number("memory.max"),
            swap_limit: number("memory.swap.max"),
            ..CgroupStats::default()
        }
    }

    fn read_v1(&self, path: &str) -> CgroupStats {
        let text = |controller: &str, file: &str| {
            fs::read_to_string(self.folder(controller, path).join(file)).unwrap_or_default()
        };
        let value = |controller: &str, file: &str| number(&text(controller, file));
        let cpu = pairs(&text("cpu", "cpu.stat"));
        let memory_parts = pairs(&text("memory", "memory.stat"));
        // The kernel tells no limit by the largest whole number of pages.
        let limit = |file: &str| value("memory", file).filter(|bytes| *bytes < 1 << 62);
        let used = value("memory", "memory.usage_in_bytes");
        let with_swap = value("memory", "memory.memsw.usage_in_bytes");
        CgroupStats {
            cpu: ["cpuacct.usage", "cpuacct.usage_user", "cpuacct.usage_sys"].map(|file| value("cpuacct", file)),
            throttling: ["nr_periods", "nr_throttled", "throttled_time"].map(|name| cpu.get(name).copied()),
            memory: used,
            memory_peak: value("memory", "memory.max_usage_in_bytes"),
            memory_failures: value("memory", "memory.failcnt"),
            kernel_memory: value("memory", "memory.kmem.usage_in_bytes"),
            memory_parts,
            swap: with_swap.zip(used).map(|(with, without)| with.saturating_sub(without)),
            oom_kills: pairs(&text("memory", "memory.oom_control")).get("oom_kill").copied(),
            threads: value("pids", "pids.current"),
            threads_max: value("pids", "pids.max"),
            shares: value("cpu", "cpu.shares"),
            quota: value("cpu", "cpu.cfs_quota_us"),
            period: value("cpu", "cpu.cfs_period_us"),
            memory_limit: limit("memory.limit_in_bytes"),
            swap_limit: limit("memory.memsw.limit_in_bytes"),
            ..CgroupStats::default()
        }
    }
}

impl CgroupStats {
    /// Bytes of a kind of memory, by the first of its names that the kernel uses: version 1 counts those below by `total_`.
    pub(super) fn part(&self, names: &[&str]) -> u64 {
        names.iter().find_map(|name| self.memory_parts.get(*name)).copied().unwrap_or(0)
    }

    /// Memory that cannot be had back at once.
    pub(super) fn working_set(&self) -> u64 {
        self.memory.unwrap_or(0).saturating_sub(self.part(&["total_inactive_file", "inactive_file"]))
    }

    /// Open files and sockets of its processes.
    pub(super) fn files(&self) -> (u64, u64) {
        let (mut files, mut sockets) = (0, 0);
        for pid in self.processes.iter().take(MOST_PROCESSES) {
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                files += 1;
                let is_socket = fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
                sockets += u64::from(is_socket);
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
fn pairs(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4`.
fn io(text: &str) -> BTreeMap<String, [u64; 4]> {
    let line = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let field = |name: &str| {
            let field = rest.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            field.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Some((device.to_owned(), ["rbytes", "wbytes", "rios", "wios"].map(field)))
    };
    text.lines().filter_map(line).collect()
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

fn processes_below(folder: &Path) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let walked = trees::walk_folders(folder, |cgroup| {
        let own = trees::read(cgroup, c"cgroup.procs").unwrap_or_default();
        found.extend(own.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
    });
    if let Err(error) = walked {
        tracing::debug!(folder = %folder.display(), %error, "Not all processes of a cgroup are known");
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes files below a folder.
    pub(in super::super) fn write(base: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = base.join(file);
            fs::create_dir_all(path.parent().expect("folder")).expect("folders");
            fs::write(path, text).expect("file");
        }
    }

    #[test]
    fn files_of_the_unified_hierarchy_are_read() {
        let base = tempfile::tempdir().expect("folder");
        write(
            base.path(),
            &[
                (
                    "a/cpu.stat",
                    "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nnr_throttled 1\nthrottled_usec 4\n",
                ),
                ("a/memory.current", "1000\n"),
                ("a/memory.stat", "anon 300\nfile 500\ninactive_file 100\nkernel 9\n"),
                ("a/memory.events", "low 0\nmax 6\noom 1\noom_kill 2\n"),
                ("a/memory.max", "max\n"),
                ("a/memory.swap.max", "50\n"),
                ("a/cpu.max", "200000 100000\n"),
                ("a/cpu.weight", "39\n"),
                ("a/io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n"),
                (
                    "a/memory.pressure",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=10\n",
                ),
                ("a/pids.current", "3\n"),
                ("a/cgroup.procs", "1\n"),
                ("a/b/cgroup.procs", "2\n1\n"),
            ],
        );
        let reader = CgroupReader::new(base.path(), CgroupVersion::V2);
        let stats = reader.read("/a").expect("there");
        assert_eq!((stats.cpu, stats.throttling), ([5000, 3000, 2000].map(Some), [7, 1, 4000].map(Some)));
        assert_eq!((stats.memory, stats.working_set(), stats.part(&["total_rss", "anon"])), (Some(1000), 900, 300));
        assert_eq!((stats.memory_failures, stats.oom_kills, stats.kernel_memory), (Some(6), Some(2), Some(9)));
        assert_eq!((stats.memory_limit, stats.swap_limit), (None, Some(50)));
        assert_eq!((stats.quota, stats.period, stats.shares), (Some(200_000), Some(100_000), Some(998)));
        assert_eq!(stats.io["8:0"], [1, 2, 3, 4]);
        assert_eq!(stats.pressure, BTreeMap::from([("memory", [11, 10])]));
        assert_eq!((stats.processes.as_slice(), stats.threads), ([1, 2].as_slice(), Some(3)));
        assert_eq!((reader.children("/a"), reader.read("/c")), (vec!["b".to_owned()], None));
    }

    #[test]
    fn files_of_separate_hierarchies_are_read() {
        let base = tempfile::tempdir().expect("folder");
        write(
            base.path(),
            &[
                ("cpuacct/a/cpuacct.usage", "5\n"),
                ("cpu/a/cpu.stat", "nr_periods 7\nnr_throttled 1\nthrottled_time 4\n"),
                ("cpu/a/cpu.shares", "1024\n"),
                ("cpu/a/cpu.cfs_quota_us", "-1\n"),
                ("memory/a/memory.usage_in_bytes", "1000\n"),
                ("memory/a/memory.memsw.usage_in_bytes", "1200\n"),
                ("memory/a/memory.stat", "cache 1\ntotal_cache 2\ntotal_inactive_file 100\n"),
                ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ],
        );
        let stats = CgroupReader::new(base.path(), CgroupVersion::V1).read("/a").expect("there");
        assert_eq!(
            (stats.cpu[0], stats.throttling[2], stats.shares, stats.quota),
            (Some(5), Some(4), Some(1024), None)
        );
        assert_eq!(
            (stats.swap, stats.working_set(), stats.memory_limit, stats.oom_kills),
            (Some(200), 900, None, Some(3))
        );
        assert_eq!(stats.part(&["total_cache", "file"]), 2);
    }
}
