//! Limits of a cgroup as the kernel's control files and as systemd's properties have them. Pure. Answers for the
//! conversions of upstream's `cgroup_manager_linux.go` and of the cgroup library below it.

use super::CgroupVersion;
use super::systemd::Property;
use crate::cpu_set::CpuSet;
use std::collections::BTreeMap;

/// systemd keeps quotas in hundredths of a processor: 10 ms of a second.
const QUOTA_STEP: u64 = 10_000;
/// systemd's way to say that there is no limit.
const INFINITY: u64 = u64::MAX;
const MICROS: u64 = 1_000_000;
/// CPU weight of the most shares.
const MAX_WEIGHT: i64 = 10_000;
const MAX_SHARES: i64 = 262_144;

/// The most that a cgroup may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// There is none.
    None,
    /// A number in the unit of what is limited.
    Is(i64),
}

/// Time of processors in a period, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) micros: Limit,
    pub(super) period: i64,
}

/// Limits of a cgroup; what is none stays as it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    pub(super) shares: Option<i64>,
    pub(super) quota: Option<Quota>,
    /// Bytes.
    pub(super) memory: Option<Limit>,
    /// Bytes that are not taken from the cgroup for others; on cgroup v2 alone.
    pub(super) memory_min: Option<i64>,
    pub(super) pids: Option<i64>,
    /// Page size in bytes → bytes.
    pub(super) huge_pages: BTreeMap<u64, u64>,
    pub(super) cpus: Option<CpuSet>,
}

impl Limits {
    /// Control files with their values.
    pub(super) fn files(&self, version: CgroupVersion) -> Vec<(String, String)> {
        let v1 = version == CgroupVersion::V1;
        let mut files: Vec<(String, String)> = Vec::new();
        let mut add = |file: &str, value: String| files.push((file.to_owned(), value));
        if let Some(shares) = self.shares {
            if v1 { add("cpu.shares", shares.to_string()) } else { add("cpu.weight", weight(shares).to_string()) }
        }
        if let Some(Quota { micros, period }) = self.quota {
            if v1 {
                add("cpu.cfs_period_us", period.to_string());
                add("cpu.cfs_quota_us", text(micros, "-1"));
            } else {
                add("cpu.max", format!("{} {period}", text(micros, "max")));
            }
        }
        if let Some(memory) = self.memory {
            if v1 { add("memory.limit_in_bytes", text(memory, "-1")) } else { add("memory.max", text(memory, "max")) }
        }
        if let Some(bytes) = self.memory_min.filter(|_| !v1) {
            add("memory.min", bytes.to_string());
        }
        if let Some(pids) = self.pids {
            add("pids.max", pids.to_string());
        }
        for (size, bytes) in &self.huge_pages {
            let (size, file) = (page_name(*size), if v1 { "limit_in_bytes" } else { "max" });
            add(&format!("hugetlb.{size}.{file}"), bytes.to_string());
            add(&format!("hugetlb.{size}.rsvd.{file}"), bytes.to_string());
        }
        if let Some(cpus) = &self.cpus {
            add("cpuset.cpus", cpus.to_string());
        }
        files
    }

    /// Properties of the slice; it has none for huge pages.
    pub(super) fn properties(&self, version: CgroupVersion) -> Vec<(&'static str, Property)> {
        let v1 = version == CgroupVersion::V1;
        let number = |value: i64| Property::Number(u64::try_from(value).unwrap_or(INFINITY));
        let mut all = Vec::new();
        if let Some(memory) = self.memory {
            let bytes = if let Limit::Is(bytes) = memory { number(bytes) } else { Property::Number(INFINITY) };
            all.push((if v1 { "MemoryLimit" } else { "MemoryMax" }, bytes));
        }
        if let Some(bytes) = self.memory_min.filter(|_| !v1) {
            all.push(("MemoryMin", number(bytes)));
        }
        if let Some(shares) = self.shares {
            all.push(if v1 { ("CPUShares", number(shares)) } else { ("CPUWeight", number(weight(shares))) });
        }
        if let Some(quota) = self.quota {
            all.push(("CPUQuotaPeriodUSec", number(quota.period)));
            all.push(("CPUQuotaPerSecUSec", Property::Number(per_second(quota))));
        }
        if let Some(pids) = self.pids {
            all.push(("TasksMax", number(pids)));
        }
        if let Some(cpus) = &self.cpus {
            all.push(("AllowedCPUs", Property::Bytes(mask(cpus))));
        }
        all
    }
}

fn text(limit: Limit, none: &str) -> String {
    match limit {
        Limit::None => none.to_owned(),
        Limit::Is(value) => value.to_string(),
    }
}

/// CPU weight (1 to 10000) for shares (2 to 262144).
fn weight(shares: i64) -> i64 {
    if shares >= MAX_SHARES { MAX_WEIGHT } else { 1 + (shares.max(2) - 2) * 9999 / 262_142 }
}

/// A quota in microseconds of a second, rounded up to what systemd can keep: containers inside must not exceed it.
fn per_second(quota: Quota) -> u64 {
    let Limit::Is(micros) = quota.micros else { return INFINITY };
    let micros = u64::try_from(micros).unwrap_or_default();
    let period = u64::try_from(quota.period).unwrap_or_default().max(1);
    (micros.saturating_mul(MICROS) / period).div_ceil(QUOTA_STEP).saturating_mul(QUOTA_STEP)
}

/// `2MB`, `1GB`: a size of huge pages as the kernel's files have it.
fn page_name(bytes: u64) -> String {
    super::machine::page_size(bytes).replace('i', "") + "B"
}

/// A bit for each processor, the lowest first.
fn mask(cpus: &CpuSet) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cpu in cpus.ids() {
        let cpu = usize::try_from(cpu).unwrap_or_default();
        if bytes.len() <= cpu / 8 {
            bytes.resize(cpu / 8 + 1, 0);
        }
        bytes[cpu / 8] |= 1 << (cpu % 8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use CgroupVersion::{V1, V2};
    use Property::{Bytes, Number};

    fn all() -> Limits {
        Limits {
            shares: Some(1024),
            quota: Some(Quota { micros: Limit::Is(150_500), period: 100_000 }),
            memory: Some(Limit::Is(4096)),
            memory_min: Some(1024),
            pids: Some(7),
            huge_pages: BTreeMap::from([(2 << 20, 4 << 20), (64 << 10, 0)]),
            cpus: Some("0,9".parse().expect("cpus")),
        }
    }

    fn none() -> Limits {
        let quota = Some(Quota { micros: Limit::None, period: 100_000 });
        Limits { quota, memory: Some(Limit::None), ..Limits::default() }
    }

    fn lines(files: Vec<(String, String)>) -> Vec<String> {
        files.into_iter().map(|(file, value)| format!("{file} {value}")).collect()
    }

    #[test]
    fn control_files_of_both_versions() {
        assert_eq!(
            lines(all().files(V2)),
            [
                "cpu.weight 39",
                "cpu.max 150500 100000",
                "memory.max 4096",
                "memory.min 1024",
                "pids.max 7",
                "hugetlb.64KB.max 0",
                "hugetlb.64KB.rsvd.max 0",
                "hugetlb.2MB.max 4194304",
                "hugetlb.2MB.rsvd.max 4194304",
                "cpuset.cpus 0,9",
            ]
        );
        let v1 = lines(all().files(V1));
        let wanted = ["cpu.shares 1024", "cpu.cfs_quota_us 150500", "hugetlb.2MB.limit_in_bytes 4194304"];
        assert!(wanted.iter().all(|line| v1.iter().any(|found| found == line)), "{v1:?}");
        assert_eq!(lines(none().files(V2)), ["cpu.max max 100000", "memory.max max"]);
        assert!(lines(none().files(V1)).contains(&"memory.limit_in_bytes -1".to_owned()));
        assert!(Limits::default().files(V2).is_empty() && Limits::default().properties(V2).is_empty());
    }

    #[test]
    fn properties_of_both_versions() {
        assert_eq!(
            all().properties(V2),
            [
                ("MemoryMax", Number(4096)),
                ("MemoryMin", Number(1024)),
                ("CPUWeight", Number(39)),
                ("CPUQuotaPeriodUSec", Number(100_000)),
                ("CPUQuotaPerSecUSec", Number(1_510_000)),
                ("TasksMax", Number(7)),
                ("AllowedCPUs", Bytes(vec![1, 2])),
            ]
        );
        let v1 = all().properties(V1);
        assert_eq!(v1[..2], [("MemoryLimit", Number(4096)), ("CPUShares", Number(1024))]);
        let unlimited = none().properties(V2);
        assert_eq!(unlimited[0], ("MemoryMax", Number(u64::MAX)));
        assert_eq!(unlimited[2], ("CPUQuotaPerSecUSec", Number(u64::MAX)));
    }

    #[test]
    fn weights_follow_shares() {
        for (shares, expected) in [(2, 1), (1024, 39), (262_144, 10_000), (300_000, 10_000)] {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }
}
