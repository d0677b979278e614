//! A process of its own, and what can be said about it from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// See the module. Ends with the value.
pub struct Process(Child);

impl Process {
    /// Starts a program whose output goes to a file.
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = fs::File::create(log)?;
        Ok(Self(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?))
    }

    /// Sends a signal by its name, as `STOP`; it is an error that it has ended.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status()?;
        anyhow::ensure!(sent.success(), "SIG{name} was not sent");
        Ok(())
    }

    /// Reports whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_some())
    }

    /// Ends it.
    pub fn stop(&mut self) {
        // Fails only when it has ended already.
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }

    /// CPU time that it has used, of all its threads that live.
    pub fn cpu(&self) -> Duration {
        self.cpu_of_threads().iter().sum()
    }

    /// CPU time that each of its threads has used that live.
    pub fn cpu_of_threads(&self) -> Vec<Duration> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.0.id())) else { return Vec::new() };
        let of =
            |path: PathBuf| fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok();
        tasks.flatten().filter_map(|t| of(t.path())).map(Duration::from_nanos).collect()
    }

    /// Memory that is resident now.
    pub fn rss_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or("");
        line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap_or(f64::NAN) * 1024.0 / 1e6
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
