//! Recorded files of cgroups of both versions.

use super::*;

/// Makes files below a folder.
pub(in crate::stats) fn write(base: &Path, files: &[(&str, &str)]) {
    for (file, text) in files {
        let path = base.join(file);
        fs::create_dir_all(path.parent().expect("folder")).expect("folders");
        fs::write(path, text).expect("file");
    }
}

fn read_write(read: u64, write: u64) -> Vec<(String, u64)> {
    vec![("Read".to_owned(), read), ("Write".to_owned(), write)]
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
            ("a/memory.stat", "anon 300\nfile 500\ninactive_file 100\nkernel 9\npgfault 8\npgmajfault 1\n"),
            ("a/memory.events", "low 0\nmax 6\noom 1\noom_kill 2\n"),
            ("a/memory.max", "max\n"),
            ("a/memory.min", "5\n"),
            ("a/memory.swap.current", "7\n"),
            ("a/memory.swap.max", "50\n"),
            ("a/cpu.max", "200000 100000\n"),
            ("a/cpu.weight", "39\n"),
            ("a/io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n"),
            (
                "a/memory.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=10\n",
            ),
            ("a/pids.current", "3\n"),
            ("a/cgroup.events", "populated 1\n"),
            ("a/cgroup.procs", "1\n"),
            ("a/b/cgroup.procs", "7\n2\n"),
            ("unlimited/cpu.max", "max 100000\n"),
            ("unlimited/cpu.stat", "usage_usec 5\nnr_periods 7\n"),
        ],
    );
    let mut reader = CgroupReader::new(base.path(), CgroupVersion::V2);
    let stats = reader.read("/a").expect("there");
    assert_eq!((stats.cpu, stats.throttling), ([5000, 3000, 2000].map(Some), [7, 1, 4000].map(Some)));
    assert_eq!((stats.memory, stats.working_set(), stats.parts.rss), (Some(1000), 900, 300));
    assert_eq!((stats.parts.faults, stats.parts.faults_below, stats.parts.swap), ([8, 1], [8, 1], Some(7)));
    assert_eq!((stats.memory_failures, stats.oom_kills, stats.kernel_memory), (Some(6), Some(2), Some(9)));
    assert_eq!((stats.memory_limit, stats.memory_reservation, stats.swap_limit), (None, Some(5), Some(50)));
    assert_eq!((stats.quota, stats.period, stats.shares), (Some(200_000), Some(100_000), Some(998)));
    let io = DeviceIo { major: 8, minor: 0, bytes: read_write(1, 2), requests: read_write(3, 4) };
    assert_eq!(stats.io, [io]);
    assert_eq!(stats.pressure, [None, Some([11, 10]), None]);
    assert_eq!((stats.processes.as_slice(), stats.threads), ([1].as_slice(), Some(3)), "its own processes");
    assert_eq!((reader.first_process("/a"), reader.first_process("/a/b")), (Some(1), Some(2)));
    assert!(stats.made.is_some());
    assert_eq!((reader.children("/a"), reader.read("/c")), (vec!["b".to_owned()], None));
    let unlimited = reader.read("/unlimited").expect("there");
    assert_eq!((unlimited.quota, unlimited.throttling[0]), (None, None), "nothing is throttled without a quota");
}

#[test]
fn files_of_separate_hierarchies_are_read() {
    let base = tempfile::tempdir().expect("folder");
    write(
        base.path(),
        &[
            ("cpuacct/a/cpuacct.usage", "5\n"),
            ("cpuacct/a/cpuacct.stat", "user 3\nsystem 2\n"),
            ("cpu/a/cpu.stat", "nr_periods 7\nnr_throttled 1\nthrottled_time 4\n"),
            ("cpu/a/cpu.shares", "1024\n"),
            ("cpu/a/cpu.cfs_quota_us", "-1\n"),
            ("memory/a/cgroup.clone_children", "0\n"),
            ("memory/a/memory.usage_in_bytes", "1000\n"),
            ("memory/a/memory.failcnt", "3\n"),
            (
                "memory/a/memory.stat",
                "cache 1\npgfault 4\ntotal_cache 2\ntotal_swap 200\ntotal_inactive_file 100\ntotal_pgfault 9\n",
            ),
            ("memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("memory/b/memory.limit_in_bytes", "4096\n"),
            ("memory/b/memory.failcnt", "3\n"),
            ("cpu/b/cpu.stat", "nr_periods 7\nnr_throttled 1\nthrottled_time 4\n"),
            ("cpu/b/cpu.cfs_quota_us", "50000\n"),
            (
                "blkio/a/blkio.throttle.io_service_bytes_recursive",
                "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 12288\n254:0 Total 12288\nTotal 12288\n",
            ),
            ("blkio/a/blkio.throttle.io_serviced_recursive", "254:0 Read 1\n254:0 Write 2\nTotal 3\n"),
        ],
    );
    let mut reader = CgroupReader::new(base.path(), CgroupVersion::V1);
    let stats = reader.read("/a").expect("there");
    assert_eq!(stats.cpu, [Some(5), Some(30_000_000), Some(20_000_000)]);
    assert_eq!((stats.throttling[2], stats.shares, stats.quota), (None, Some(1024), None));
    assert_eq!((stats.parts.swap, stats.working_set(), stats.memory_limit), (Some(200), 900, None));
    assert_eq!((stats.oom_kills, stats.memory_failures), (Some(3), Some(0)));
    assert_eq!((stats.parts.cache, stats.parts.faults[0], stats.parts.faults_below[0]), (2, 4, 9));
    let [io] = stats.io.as_slice() else { panic!("one device: {:?}", stats.io) };
    assert_eq!((io.major, io.minor, io.requests.clone()), (254, 0, read_write(1, 2)));
    assert_eq!([DeviceIo::of(&io.bytes, "Sync"), DeviceIo::of(&io.bytes, "Discard")], [12_288, 0]);
    let limited = reader.read("/b").expect("there");
    assert_eq!((limited.throttling, limited.memory_failures), ([7, 1, 4].map(Some), Some(3)));
}

#[test]
fn files_and_sockets_of_a_process_are_counted() {
    let _socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let own = i32::try_from(std::process::id()).expect("a pid");
    let stats = CgroupStats { processes: vec![own, i32::MAX], ..CgroupStats::default() };
    let (files, sockets) = stats.files();
    assert!(files >= 4 && (1..files).contains(&sockets), "{files} {sockets}");
}

#[test]
fn longer_lists_are_read_whole() {
    let base = tempfile::tempdir().expect("folder");
    let list: String = (1..20_000).map(|pid| format!("{pid}\n")).collect();
    write(base.path(), &[("a/cgroup.procs", list.as_str())]);
    let stats = CgroupReader::new(base.path(), CgroupVersion::V2).read("/a").expect("there");
    assert_eq!((stats.processes.len(), stats.processes.last()), (19_999, Some(&19_999)));
}
