//! Readings of cgroups that stand until their processes run again.
//!
//! Most cgroups of a node are idle most of the time: sandboxes, and services that nobody asks. A cgroup whose counters of CPU
//! time and of memory are what they were has had no process that ran, and neither have those below it: what was read of
//! them before is true now. cAdvisor tells values that are up to `max_housekeeping_interval` old instead.

use super::cgroup::{CgroupReader, CgroupStats, UseCounters};
use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Age at which a reading is made anew although nothing ran: others set limits, and pressure grows, without CPU time of the
/// cgroup itself.
const LONGEST: Duration = Duration::from_secs(60);

/// Statistics of one cgroup, with the counters by which they are known to hold.
pub(super) struct Reading {
    pub(super) stats: CgroupStats,
    counters: UseCounters,
    read_at: Instant,
    files: OnceLock<(u64, u64)>,
    open_files_limit: OnceLock<Option<f64>>,
}

impl Reading {
    /// Open files and sockets of its processes.
    pub(super) fn files(&self) -> (u64, u64) {
        *self.files.get_or_init(|| self.stats.files())
    }

    /// Soft limit of open files of its first process; -1 for none.
    pub(super) fn open_files_limit(&self) -> Option<f64> {
        let first = self.stats.processes.first();
        *self.open_files_limit.get_or_init(|| open_files_limit(*first?))
    }
}

/// Soft limit of open files of a process; -1 for none.
pub(super) fn open_files_limit(pid: i32) -> Option<f64> {
    open_files_in(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// Soft limit of open files in the text of a process' limits.
fn open_files_in(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1.0),
        limit => limit.parse().ok(),
    }
}

/// The last reading of each cgroup, by its path.
#[derive(Default)]
pub(super) struct Readings(HashMap<String, Arc<Reading>>);

impl Readings {
    /// Begins a look at cgroups.
    pub(super) fn pass(&mut self, reader: CgroupReader) -> Pass<'_> {
        self.pass_at(reader, Instant::now())
    }

    fn pass_at(&mut self, reader: CgroupReader, now: Instant) -> Pass<'_> {
        self.0.retain(|_, reading| now.saturating_duration_since(reading.read_at) < LONGEST);
        Pass { known: &mut self.0, reader, still: None }
    }
}

/// A look at cgroups; cheapest where each comes after the one above it.
pub(super) struct Pass<'a> {
    known: &'a mut HashMap<String, Arc<Reading>>,
    reader: CgroupReader,
    /// The last cgroup in which nothing ran since it was read, with the time of that.
    still: Option<(String, Instant)>,
}

impl Pass<'_> {
    /// Reads a cgroup, or returns what was read of it when nothing ran in it since; none where there is no such one.
    pub(super) fn read(&mut self, path: &str) -> Option<Arc<Reading>> {
        if let Some(known) = self.known.get(path) {
            if self.is_below_still(path, known) {
                return Some(Arc::clone(known));
            }
            if self.reader.counters(path) == Some(known.counters) {
                self.still = Some((path.to_owned(), known.read_at));
                return Some(Arc::clone(known));
            }
        }
        // The counters come first: what runs meanwhile makes the next look find others.
        let (read_at, counters) = (Instant::now(), self.reader.counters(path)?);
        let stats = self.reader.read(path)?;
        let (files, open_files_limit) = (OnceLock::new(), OnceLock::new());
        let reading = Arc::new(Reading { stats, counters, read_at, files, open_files_limit });
        self.known.insert(path.to_owned(), Arc::clone(&reading));
        Some(reading)
    }

    /// Nothing ran in the cgroup above since before this one was read.
    fn is_below_still(&self, path: &str, known: &Reading) -> bool {
        let Some((above, since)) = &self.still else { return false };
        let is_below = path.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'));
        is_below && known.read_at >= *since
    }
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::tests::write;
    use super::*;
    use crate::resources::CgroupVersion;

    /// Cgroups of both versions with the files that tell of use: a pod and a container in it.
    struct Tree {
        base: tempfile::TempDir,
        version: CgroupVersion,
    }

    impl Tree {
        fn new(version: CgroupVersion) -> Self {
            let tree = Self { base: tempfile::tempdir().expect("folder"), version };
            tree.set("pod", 10, 100, 1);
            tree.set("pod/c", 5, 50, 1);
            tree
        }

        fn set(&self, path: &str, cpu: u64, memory: u64, threads: u64) {
            let (cpu_v2, cpu) = (format!("usage_usec {cpu}\nuser_usec 1\n"), cpu.to_string());
            let (memory, threads) = (memory.to_string(), threads.to_string());
            let file = |name: &str| match self.version {
                CgroupVersion::V1 => format!("{}/{path}/{name}", name.split('.').next().unwrap_or_default()),
                CgroupVersion::V2 => format!("{path}/{name}"),
            };
            let (usage, current) = match self.version {
                CgroupVersion::V1 => (("cpuacct.usage", cpu.as_str()), "memory.usage_in_bytes"),
                CgroupVersion::V2 => (("cpu.stat", cpu_v2.as_str()), "memory.current"),
            };
            let files = [usage, (current, memory.as_str()), ("pids.current", threads.as_str())];
            let files: Vec<(String, &str)> = files.iter().map(|(name, text)| (file(name), *text)).collect();
            let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            write(self.base.path(), &files);
        }

        /// Numbers of threads that a look finds in both.
        fn threads(&self, readings: &mut Readings, age: Duration) -> [Option<u64>; 2] {
            let reader = CgroupReader::new(self.base.path(), self.version);
            let mut pass = readings.pass_at(reader, Instant::now() + age);
            ["/pod", "/pod/c"].map(|path| pass.read(path)?.stats.threads)
        }
    }

    fn on_both_versions(test: impl Fn(&Tree, &mut Readings)) {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            test(&Tree::new(version), &mut Readings::default());
        }
    }

    #[test]
    fn reading_stands_while_nothing_runs_and_for_a_minute() {
        on_both_versions(|tree, readings| {
            assert_eq!(tree.threads(readings, Duration::ZERO), [Some(1), Some(1)]);
            tree.set("pod", 10, 100, 2);
            tree.set("pod/c", 5, 50, 2);
            assert_eq!(tree.threads(readings, Duration::ZERO), [Some(1), Some(1)], "nothing ran");
            assert_eq!(tree.threads(readings, LONGEST), [Some(2), Some(2)], "too old");
        });
    }

    #[test]
    fn cpu_time_or_memory_ends_what_was_read() {
        on_both_versions(|tree, readings| {
            tree.threads(readings, Duration::ZERO);
            tree.set("pod", 11, 100, 2);
            tree.set("pod/c", 6, 50, 2);
            assert_eq!(tree.threads(readings, Duration::ZERO), [Some(2), Some(2)], "it ran");
            tree.set("pod", 11, 101, 3);
            tree.set("pod/c", 6, 50, 3);
            assert_eq!(tree.threads(readings, Duration::ZERO), [Some(3), Some(2)], "memory of the pod alone");
        });
    }

    #[test]
    fn still_pod_does_not_vouch_for_a_container_that_was_read_before_it() {
        on_both_versions(|tree, readings| {
            tree.threads(readings, Duration::ZERO);
            tree.set("pod", 11, 100, 2);
            tree.set("pod/c", 6, 50, 2);
            let reader = CgroupReader::new(tree.base.path(), tree.version);
            readings.pass(reader).read("/pod").expect("the pod is there");
            assert_eq!(tree.threads(readings, Duration::ZERO), [Some(2), Some(2)], "the container ran before that");
        });
    }

    #[test]
    fn cgroup_that_is_gone_is_not_read() {
        on_both_versions(|tree, readings| {
            let reader = CgroupReader::new(tree.base.path(), tree.version);
            assert!(readings.pass(reader).read("/pod/other").is_none());
        });
    }

    #[test]
    fn limit_of_open_files_is_that_of_a_process() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(open_files_limit(own).is_some_and(|limit| limit == -1.0 || limit >= 64.0));
        assert_eq!(open_files_limit(i32::MAX), None);
        for (text, expected) in [
            ("Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n", Some(1024.0)),
            ("Max open files  unlimited  unlimited  files\n", Some(-1.0)),
            ("", None),
        ] {
            assert_eq!(open_files_in(text), expected);
        }
    }
}
