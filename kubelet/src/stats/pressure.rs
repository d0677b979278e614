//! Pressure stall information as `/stats/summary` has it: how long tasks waited for processors, memory and devices.

use crate::resources::CgroupVersion;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of one cgroup, or of the machine.
#[derive(Clone, Debug)]
pub(super) struct Pressure(PathBuf, &'static str);

impl Pressure {
    /// Of the machine.
    pub(super) fn of_machine() -> Self {
        Self("/proc/pressure".into(), "")
    }

    /// Of a cgroup; the old version of cgroups counts none.
    pub(super) fn of_cgroup(path: &str, version: CgroupVersion) -> Option<Self> {
        let below = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
        (version == CgroupVersion::V2).then_some(Self(below, ".pressure"))
    }

    /// Returns the pressure of `cpu`, `memory` or `io`; none where the kernel does not count it.
    pub(super) fn read(&self, resource: &str) -> Option<Value> {
        parse(&fs::read_to_string(self.0.join(format!("{resource}{}", self.1))).ok()?)
    }
}

fn parse(text: &str) -> Option<Value> {
    let kind = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let field = |name: &str| line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| field(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
        // The kernel counts microseconds, the answer nanoseconds.
        let total = field("total")?.parse::<u64>().ok()?.saturating_mul(1000);
        Some(json!({"total": total, "avg10": average("avg10"), "avg60": average("avg60"), "avg300": average("avg300")}))
    };
    let some = kind("some ")?;
    let none = || json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
    Some(json!({"full": kind("full ").unwrap_or_else(none), "some": some}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_and_averages_are_read() {
        let text = "some avg10=1.50 avg60=0.20 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        let expected = json!({
            "some": {"total": 12000, "avg10": 1.5, "avg60": 0.2, "avg300": 0.0},
            "full": {"total": 3000, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
        });
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("some avg10=0.00 total=1\n").map(|found| found["full"]["total"].clone()), Some(json!(0)));
        assert_eq!(parse(""), None);
    }
}
