//! Families and samples of recorded cgroups.

use super::super::cgroup::CgroupReader;
use super::super::cgroup::tests::write as write_files;
use super::super::readings::Readings;
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
            ("cgroup.events", "populated 1"),
        ];
        let files: Vec<(String, &str)> = files.iter().map(|(name, text)| (file(name), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        write_files(base, &files);
    }
    let mut readings = Readings::default();
    let mut pass = readings.pass(CgroupReader::new(base, CgroupVersion::V2));
    let root = MeasuredCgroup { id: "/".to_owned(), ..MeasuredCgroup::default() };
    let container = MeasuredCgroup {
        id: "/kubepods/podu/c".to_owned(),
        name: "c".to_owned(),
        namespace: "n".to_owned(),
        pod: "p".to_owned(),
        container: "app".to_owned(),
        ..MeasuredCgroup::default()
    };
    [root, container].into_iter().filter_map(|subject| Row::read(&mut pass, &subject)).collect()
}

fn told(rows: &[Row]) -> String {
    let machine = MachineInfo::default();
    let disk = machine::Disk { capacity: 10, available: 4, inodes: 2, inodes_free: 1 };
    let mounted = vec![Mounted { device: "/dev/sda1".to_owned(), disk, counters: (0..11).collect() }];
    let host = Host { machine: &machine, processors: (1, 2), mounted };
    let mut text = String::new();
    let mut sink = |chunk: bytes::Bytes| {
        text.push_str(std::str::from_utf8(&chunk).expect("text"));
        true
    };
    write(&host, rows, &DeviceNames::from([((8, 0), "/dev/sda".to_owned())]), &mut sink);
    text
}

#[test]
fn every_family_of_upstream_is_told_with_its_labels() {
    let base = tempfile::tempdir().expect("folder");
    let told = told(&rows(base.path()));
    let mut missing = Vec::new();
    for family in OBSERVED.split_whitespace() {
        let (name, own) = family.split_once(':').unwrap_or((family, ""));
        let sample =
            told.lines().find(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
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
    let rows = rows(base.path());
    let (told, at) = (told(&rows), rows[1].at.clone());
    let of = |own: [&str; 4]| {
        let [after_container, after_image, after_namespace, after_pod] = own;
        format!(
            "container=\"app\",{after_container}id=\"/kubepods/podu/c\",image=\"\",{after_image}name=\"c\",\
             namespace=\"n\",{after_namespace}pod=\"p\"{after_pod}"
        )
    };
    let (plain, device) = (of([""; 4]), "device=\"/dev/sda\",");
    let read = of([device, "major=\"8\",minor=\"0\",", "operation=\"Read\",", ""]);
    for line in [
        format!("container_memory_rss{{{plain}}} 300{at}"),
        format!("container_cpu_cfs_throttled_periods_total{{{plain}}} 1{at}"),
        format!("container_pressure_memory_waiting_seconds_total{{{plain}}} 2{at}"),
        format!("container_spec_cpu_quota{{{plain}}} 200000"),
        format!("container_spec_memory_limit_bytes{{{plain}}} 0"),
        format!("container_fs_reads_bytes_total{{{}}} 1{at}", of([device, "", "", ""])),
        format!("container_fs_writes_total{{{}}} 4{at}", of([device, "", "", ""])),
        format!("container_blkio_device_usage_total{{{read}}} 1{at}"),
        format!("container_cpu_usage_seconds_total{{{}}} 5{at}", of(["cpu=\"total\",", "", "", ""])),
        format!("container_tasks_state{{{}}} 0{at}", of(["", "", "", ",state=\"running\""])),
        format!(
            "container_memory_failures_total{{{}}} 8{at}",
            of(["failure_type=\"pgfault\",", "", "", ",scope=\"hierarchy\""])
        ),
        format!("container_processes{{{plain}}} 1{at}"),
    ] {
        assert!(told.lines().any(|found| found == line), "{line}\n{told}");
    }
    let declared: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(declared.iter().collect::<BTreeSet<_>>().len(), declared.len(), "families are declared once");
}

#[test]
fn what_a_cgroup_is_given_has_no_time_and_what_is_measured_has() {
    let base = tempfile::tempdir().expect("folder");
    let told = told(&rows(base.path()));
    let samples = told.lines().filter(|line| line.starts_with("container_") && line.contains('{'));
    for sample in samples {
        let has_time = sample.rsplit_once('}').is_some_and(|(_, rest)| rest.split_whitespace().count() == 2);
        let is_given = sample.starts_with("container_spec_") || sample.starts_with("container_start_time_seconds");
        assert_ne!(has_time, is_given, "{sample}");
    }
}

#[test]
fn only_the_machine_and_containers_have_a_first_process() {
    let base = tempfile::tempdir().expect("folder");
    let told = told(&rows(base.path()));
    let limits: Vec<&str> = told.lines().filter(|line| line.starts_with("container_ulimits_soft{")).collect();
    assert!(limits.len() == 2 && limits[0].contains("id=\"/\""), "{limits:?}");
}
