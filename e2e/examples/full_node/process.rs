//! Memory and processor time of the kubelet, from `/proc`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::machine;

/// A clock tick of the kernel.
const TICK: Duration = Duration::from_millis(10);

/// The process of the kubelet.
pub(crate) struct Process(String);

impl Process {
    /// The process whose number is in a file.
    pub(crate) fn of(file: &Path) -> Result<Self> {
        let pid = machine::alive(file).with_context(|| format!("no process of {}", file.display()))?;
        Ok(Self(format!("/proc/{pid}")))
    }

    /// Resident megabytes.
    pub(crate) fn rss(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("{}/status", self.0)).context("the kubelet has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is a number")?;
        Ok(kilobytes * 1024.0 / 1e6)
    }

    /// Processor time so far, in user mode and in the kernel.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("{}/stat", self.0)).context("the kubelet has ended")?;
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u32 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok()).sum();
        Ok(TICK * ticks)
    }
}
