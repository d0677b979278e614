//! Capacity of the machine, and how much of it pods may request.
//! Answers for `GetNodeAllocatableReservation` and `GetNodeAllocatableAbsolute` of upstream's
//! `node_container_manager_linux.go`.

use super::{CgroupVersion, MachineInfo, ResourceConfig};
use crate::cpu_set::CpuSet;
use crate::topology::machine::hugepages;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::{Format, Quantity as Amount};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Reads [`MachineInfo`] from `/proc`, `/sys` and `/etc`; what cannot be read is zero or empty.
pub fn machine_info(root_dir: &Path) -> MachineInfo {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    MachineInfo {
        cpu_millis: cpus(&online).unwrap_or_else(own_cpus).saturating_mul(1000),
        memory: meminfo_bytes(&meminfo, "MemTotal:"),
        swap: meminfo_bytes(&meminfo, "SwapTotal:"),
        swap_is_limited: swap_is_limited(cgroup_version()),
        max_pids: max_pids(Path::new("/proc/sys/kernel")),
        hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        ephemeral_storage: filesystem_bytes(root_dir),
        machine_id: first_of(&["/etc/machine-id", "/var/lib/dbus/machine-id"]),
        system_uuid: first_of(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
        boot_id: first_of(&["/proc/sys/kernel/random/boot_id"]),
        kernel_version: first_of(&["/proc/sys/kernel/osrelease"]),
        os_image: os_image(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
    }
}

/// Counts the processors of a list such as `0-3,8`; none when it is not one.
fn cpus(list: &str) -> Option<u64> {
    let cpus = list.parse::<CpuSet>().ok()?;
    u64::try_from(cpus.ids().count()).ok().filter(|count| *count > 0)
}

/// The processors that this process may use: fewer than the machine has where it is held to some.
fn own_cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// The machine's processors, where the kernel tells.
pub(super) fn online_cpus() -> Option<CpuSet> {
    fs::read_to_string("/sys/devices/system/cpu/online").ok()?.parse().ok()
}

/// The lower of the kernel's two limits for tasks; zero where neither is told.
fn max_pids(folder: &Path) -> u64 {
    let limits = ["pid_max", "threads-max"].map(|file| fs::read_to_string(folder.join(file)).ok());
    limits.into_iter().flatten().filter_map(|text| text.trim().parse().ok()).min().unwrap_or(0)
}

fn first_of(paths: &[&str]) -> String {
    let read = |path: &&str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    paths.iter().filter_map(read).find(|text| !text.is_empty()).unwrap_or_default()
}

/// A line `Name:  123 kB` of `/proc/meminfo` in bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default() * 1024
}

/// Size of the file system of the nearest folder that exists.
fn filesystem_bytes(folder: &Path) -> u64 {
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    nix::sys::statvfs::statvfs(existing).map_or(0, |stat| stat.blocks() * stat.fragment_size())
}

fn os_image(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".into(), |name| name.trim_matches('"').to_owned())
}

/// `status.capacity`.
pub fn capacity(machine: &MachineInfo, config: &ResourceConfig) -> BTreeMap<String, Quantity> {
    let mut amounts = hugepage_amounts(machine);
    amounts.insert("cpu".into(), millis(machine.cpu_millis));
    amounts.insert("memory".into(), kibibytes(machine.memory));
    if config.local_storage {
        amounts.insert("ephemeral-storage".into(), kibibytes(machine.ephemeral_storage));
    }
    amounts.insert("pods".into(), Quantity(max_pods(machine, config).to_string()));
    amounts
}

/// `status.allocatable`: capacity without what is reserved for the system and the kubelet, without the hard
/// eviction thresholds, and for memory without huge pages.
pub fn allocatable(machine: &MachineInfo, config: &ResourceConfig) -> BTreeMap<String, Quantity> {
    let reserved = |name: &str| reserved(config, name);
    let bytes = |name: &str| u64::try_from(reserved(name).value()).unwrap_or_default();
    let threshold = |signal: &str, total: u64| {
        config.eviction_hard.get(signal).map_or(0, |threshold| threshold_bytes(threshold, total))
    };
    let huge: u64 = machine.hugepages.iter().map(|(size, pages)| size * pages).sum();
    let memory = machine.memory.saturating_sub(bytes("memory") + threshold("memory.available", machine.memory) + huge);
    let storage = machine
        .ephemeral_storage
        .saturating_sub(bytes("ephemeral-storage") + threshold("nodefs.available", machine.ephemeral_storage));
    let cpu = machine.cpu_millis.saturating_sub(u64::try_from(reserved("cpu").milli_value()).unwrap_or_default());

    let mut amounts = hugepage_amounts(machine);
    amounts.insert("cpu".into(), millis(cpu));
    amounts.insert("memory".into(), kibibytes(memory));
    // Upstream prints this one in bytes: the threshold is rarely a whole number of kibibytes.
    if config.local_storage {
        amounts.insert("ephemeral-storage".into(), Quantity(storage.to_string()));
    }
    amounts.insert("pods".into(), Quantity(max_pods(machine, config).to_string()));
    amounts
}

/// Limits of all pods of a node together: its capacity less the reservations. Answers for upstream's
/// `getNodeAllocatableAbsolute`: pods are evicted before the threshold is reached, not killed at it.
pub fn enforced(machine: &MachineInfo, config: &ResourceConfig) -> BTreeMap<String, Quantity> {
    let cpu = u64::try_from(reserved(config, "cpu").milli_value()).unwrap_or_default();
    let memory = u64::try_from(reserved(config, "memory").value()).unwrap_or_default();
    let mut amounts = hugepage_amounts(machine);
    amounts.insert("cpu".into(), millis(machine.cpu_millis.saturating_sub(cpu)));
    amounts.insert("memory".into(), kibibytes(machine.memory.saturating_sub(memory)));
    if machine.max_pids > 0 {
        let pids = u64::try_from(reserved(config, "pid").value()).unwrap_or_default();
        amounts.insert("pid".into(), Quantity(machine.max_pids.saturating_sub(pids).to_string()));
    }
    amounts
}

/// Memory that the node keeps from pods, by kind: for the system, the kubelet and evictions. Answers for upstream's
/// `GetNodeAllocatableReservation`.
pub fn kept_memory(machine: &MachineInfo, config: &ResourceConfig) -> BTreeMap<String, Amount> {
    let huge = machine.hugepages.keys().map(|size| format!("hugepages-{}", page_size(*size)));
    let mut kept: BTreeMap<String, Amount> = huge.map(|kind| (kind.clone(), reserved(config, &kind))).collect();
    let threshold =
        config.eviction_hard.get("memory.available").map_or(0, |text| threshold_bytes(text, machine.memory));
    let mut memory = reserved(config, "memory");
    memory.add(&Amount::from_int(i64::try_from(threshold).unwrap_or(i64::MAX), Format::BinarySI));
    kept.insert("memory".to_owned(), memory);
    kept.retain(|_, amount| !amount.is_zero());
    kept
}

/// Amounts reserved for the system or for the kubelet, of what can be limited; without memory and tasks where only what
/// can be compressed is to be.
pub fn reservation(of: &BTreeMap<String, String>, compressible: bool) -> BTreeMap<String, Quantity> {
    let limits = |name: &str| name == "cpu" || (!compressible && matches!(name, "memory" | "pid"));
    of.iter().filter(|(name, _)| limits(name)).map(|(name, text)| (name.clone(), Quantity(text.clone()))).collect()
}

/// Looks whether this kernel counts the swap of cgroups.
pub(super) fn swap_is_limited(version: CgroupVersion) -> bool {
    if version == CgroupVersion::V1 {
        return Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new("/sys/fs/cgroup").join(own).join("memory.swap.max").exists()
}

/// Sum of the reservations for the kubelet and for the system.
fn reserved(config: &ResourceConfig, name: &str) -> Amount {
    let of = |map: &BTreeMap<String, String>| map.get(name).and_then(|text| text.parse::<Amount>().ok());
    let mut sum = of(&config.kube_reserved).unwrap_or_default();
    sum.add(&of(&config.system_reserved).unwrap_or_default());
    sum
}

fn max_pods(machine: &MachineInfo, config: &ResourceConfig) -> i64 {
    if config.pods_per_core <= 0 {
        return config.max_pods;
    }
    let cores = i64::try_from(machine.cpu_millis / 1000).unwrap_or(i64::MAX);
    config.pods_per_core.saturating_mul(cores).min(config.max_pods)
}

fn hugepage_amounts(machine: &MachineInfo) -> BTreeMap<String, Quantity> {
    let amount = |(size, pages): (&u64, &u64)| {
        (format!("hugepages-{}", page_size(*size)), Quantity(hugepage_text(size * pages)))
    };
    machine.hugepages.iter().map(amount).collect()
}

fn hugepage_text(bytes: u64) -> String {
    if bytes == 0 { "0".into() } else { kibibytes(bytes).0 }
}

/// `2Mi`, `1Gi`: the largest binary unit that divides the size.
pub fn page_size(bytes: u64) -> String {
    [(30, "Gi"), (20, "Mi"), (10, "Ki")]
        .iter()
        .find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift))
        .map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

fn millis(value: u64) -> Quantity {
    Quantity(if value.is_multiple_of(1000) { (value / 1000).to_string() } else { format!("{value}m") })
}

fn kibibytes(bytes: u64) -> Quantity {
    Quantity(if bytes.is_multiple_of(1024) { format!("{}Ki", bytes / 1024) } else { bytes.to_string() })
}

/// A hard eviction threshold, a quantity or a percentage, in bytes.
fn threshold_bytes(threshold: &str, total: u64) -> u64 {
    if let Some(percent) = threshold.strip_suffix('%') {
        let share = percent.trim().parse::<f64>().unwrap_or_default().clamp(0.0, 100.0) / 100.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a capacity; casts of floats saturate"
        )]
        return (total as f64 * share) as u64;
    }
    threshold.parse::<Amount>().map_or(0, |amount| u64::try_from(amount.value()).unwrap_or_default())
}

/// Looks at `/sys/fs/cgroup`.
pub fn cgroup_version() -> CgroupVersion {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { CgroupVersion::V2 } else { CgroupVersion::V1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_from_the_kernels_list() {
        for (list, expected) in [
            ("0-3\n", Some(4)),
            ("0", Some(1)),
            ("0-1,4,6-7\n", Some(5)),
            ("", None),
            ("3-1", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(cpus(list), expected, "{list}");
        }
    }
}
