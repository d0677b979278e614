//! Specification of a machine, which a supervisor runs.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::shell::wait_for;

/// Time that a process gets to end; its supervisor kills it before that.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A supervisor's work: namespaces to enter, folders to bind, processes to keep alive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Machine name; also its folder below `machines/`.
    pub name: String,
    /// Folder for pids, logs and stop marks.
    pub folder: PathBuf,
    /// Network namespace to enter; none stays on the host's network.
    pub netns: Option<PathBuf>,
    /// Host name in a UTS namespace of its own; none keeps this machine's.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Bind mounts (source, target) in a mount namespace of the machine's own.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Processes, started in this order and stopped in the opposite one.
    pub processes: Vec<Process>,
}

/// One supervised process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Name: of its log, its pid file and its stop mark.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Commands that must succeed, in order, before the process starts; retried.
    pub before: Vec<Vec<String>>,
}

impl Process {
    /// A process without preparation.
    #[must_use]
    pub fn new(name: &str, program: String, arguments: Vec<String>) -> Self {
        let mut command = vec![program];
        command.extend(arguments);
        Self { name: name.into(), command, before: Vec::new() }
    }
}

impl Machine {
    /// Path of the specification of a machine.
    #[must_use]
    pub fn file(folder: &Path) -> PathBuf {
        folder.join("machine.json")
    }

    /// Reads a specification.
    ///
    /// # Errors
    /// When it is missing or not ours.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Starts the machine's supervisor, unless it is running already.
    ///
    /// # Errors
    /// When the supervisor cannot be started or does not come up.
    pub fn start(&self, layout: &Layout) -> Result<()> {
        if running(&self.folder).is_some() {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        let file = Self::file(&self.folder);
        fs::write(&file, serde_json::to_vec_pretty(self)?)?;
        let log = fs::File::create(self.folder.join("supervisor.log"))?;
        Command::new("setsid")
            .args([layout.binary("cluster"), "supervise".into(), file.display().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start setsid; is util-linux installed?")?;
        let log = self.folder.join("supervisor.log");
        wait_for(&format!("{} did not start", self.name), Duration::from_secs(10), &log, || {
            running(&self.folder).is_some()
        })
    }
}

/// Has a process stopped by the mark that its supervisor looks for, and returns when it has ended: who removes the mark gets
/// another one.
///
/// # Errors
/// When it does not end.
pub fn stop(mark: &Path) -> Result<()> {
    fs::write(mark, "").context("cannot write the stop mark")?;
    let (pid, folder) = (mark.with_extension("pid"), mark.parent().context("no folder")?);
    let told = format!("{} does not stop", mark.with_extension("").display());
    wait_for(&told, STOP_LIMIT, folder, || alive(&pid).is_none())
}

/// The supervisor's pid, if it is alive: a process that got the pid of one that died is none.
#[must_use]
pub fn running(folder: &Path) -> Option<Pid> {
    let file = Machine::file(folder);
    alive(&folder.join("supervisor.pid")).filter(|pid| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        supervises(&command, &file)
    })
}

/// Reports whether a command line, of words that end with zeros, is that of a supervisor of this machine.
fn supervises(command: &[u8], file: &Path) -> bool {
    let mut words = command.split(|byte| *byte == 0).skip(1);
    words.next() == Some(b"supervise") && words.next() == Some(file.as_os_str().as_bytes())
}

/// The pid in a file, if that process is alive.
#[must_use]
pub fn alive(pid_file: &Path) -> Option<Pid> {
    let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok().map(Pid::from_raw)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    (!zombie && kill(pid, None).is_ok()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machines_own_supervisor_is_one() {
        let file = Path::new("/run/x/machine.json");
        for (command, expected) in [
            (&b"/bin/cluster\0supervise\0/run/x/machine.json\0"[..], true),
            (b"/bin/cluster\0supervise\0/run/y/machine.json\0", false),
            (b"vi\0/run/x/machine.json\0", false),
            (b"", false),
        ] {
            assert_eq!(supervises(command, file), expected, "{}", String::from_utf8_lossy(command));
        }
    }

    #[test]
    fn process_with_the_pid_of_a_dead_supervisor_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("ironclad-reused-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("supervisor.pid"), std::process::id().to_string()).expect("a file");
        assert!(alive(&folder.join("supervisor.pid")).is_some());
        assert_eq!(running(&folder), None);
        fs::remove_dir_all(&folder).expect("it goes");
    }
}
