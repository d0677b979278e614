//! The controller manager as a process, with what can be said about it from outside.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::world::World;

/// The kernel counts CPU in these.
const TICK: Duration = Duration::from_millis(10);
/// The process is at rest when it used less than this in one of [`WINDOW`].
const REST: Duration = Duration::from_millis(30);
const WINDOW: Duration = Duration::from_secs(2);
const GIVE_UP: Duration = Duration::from_mins(10);

/// See the module. Ends with it.
pub struct Manager {
    child: Child,
    log: PathBuf,
    /// Time of the start.
    pub since: Instant,
}

impl Manager {
    /// Starts it against the server of `world`. Nodes may stay silent for long: nobody runs them.
    pub fn start(world: &World, binary: &str) -> anyhow::Result<Self> {
        Self::start_with(world, binary, &[])
    }

    /// With more flags.
    pub fn start_with(world: &World, binary: &str, more: &[&str]) -> anyhow::Result<Self> {
        let config = world.kubeconfig()?;
        let path = config.with_file_name("manager.log");
        let log = fs::File::create(&path)?;
        let since = Instant::now();
        let mut command = Command::new(binary);
        command
            .arg(format!("--kubeconfig={}", config.display()))
            .args(["--leader-elect=false", "--secure-port=0", "--kube-api-qps=100000", "--kube-api-burst=100000"])
            .args(["--node-monitor-grace-period=3h", "--node-startup-grace-period=3h"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Self { child: command.spawn().context("the controller manager does not start")?, log: path, since })
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or("");
        // utime and stime are fields 14 and 15; the first one here is the third.
        let ticks: u32 = after_name.split(' ').skip(11).take(2).filter_map(|t| t.parse::<u32>().ok()).sum();
        TICK * ticks
    }

    /// Memory that is resident now, in MB.
    pub fn rss_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("");
        line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap_or(f64::NAN) * 1024.0 / 1e6
    }

    /// The most processor time for which a task has held its thread, in milliseconds; 0 where none was long enough to be told
    /// of, which takes `--v=2` and 100 ms.
    pub fn longest_hold_ms(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(&self.log)?;
        let held = text.lines().filter_map(|line| {
            let rest = line.split(" used=").nth(1)?.trim_start_matches('"');
            let value = rest.split(['"', ' ']).next()?;
            match value.strip_suffix("ms") {
                Some(milliseconds) => milliseconds.parse::<f64>().ok(),
                None => value.strip_suffix('s')?.parse::<f64>().ok().map(|seconds| seconds * 1e3),
            }
        });
        Ok(held.fold(0.0, f64::max))
    }

    /// Waits until it has nothing to do.
    pub async fn at_rest(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let before = self.cpu();
            tokio::time::sleep(WINDOW).await;
            ensure!(self.child.try_wait()?.is_none(), "the controller manager has ended");
            if self.cpu().saturating_sub(before) < REST {
                return Ok(());
            }
            ensure!(began.elapsed() < GIVE_UP, "the controller manager does not come to rest");
        }
    }

    /// Milliseconds of CPU until it rests again after `work`, and how long `work` took.
    pub async fn cpu_of(&mut self, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<(f64, Duration)> {
        let (before, began) = (self.cpu(), Instant::now());
        work.await?;
        let took = began.elapsed();
        self.at_rest().await?;
        Ok(((self.cpu() - before).as_secs_f64() * 1e3, took))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).ok();
    }
}
