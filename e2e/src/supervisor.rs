//! The supervisor of one machine: enters its namespaces, keeps its processes alive and
//! stops them in order. A process that ends is started again after a short pause; while a
//! file `NAME.stopped` lies in the machine's folder it stays down.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use crate::machine::{Machine, Process};
use crate::shell;

/// Pause before a process that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time that a process has to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(8);
const TICK: Duration = Duration::from_millis(50);

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_stop(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// Runs the machine until SIGTERM.
///
/// # Errors
/// When its namespaces or bind mounts cannot be made.
pub fn supervise(machine: &Machine) -> Result<()> {
    catch_stop_signals()?;
    enter(machine)?;
    let pid = std::process::id().to_string();
    fs::write(machine.folder.join("supervisor.pid"), pid)?;

    let mut running: Vec<Slot> = machine.processes.iter().map(Slot::new).collect();
    while !STOP.load(Ordering::Relaxed) {
        for slot in &mut running {
            slot.tick(&machine.folder);
        }
        std::thread::sleep(TICK);
    }
    for slot in running.iter_mut().rev() {
        slot.stop();
    }
    fs::remove_file(machine.folder.join("supervisor.pid")).ok();
    Ok(())
}

#[allow(unsafe_code, reason = "a signal handler is installed by an unsafe call")]
fn catch_stop_signals() -> Result<()> {
    for caught in [Signal::SIGTERM, Signal::SIGINT] {
        // SAFETY: the handler does nothing but store to an atomic, which is async-signal-safe.
        unsafe { signal(caught, SigHandler::Handler(on_stop)) }?;
    }
    Ok(())
}

/// Enters the network namespace, makes a mount namespace and fills it.
fn enter(machine: &Machine) -> Result<()> {
    if let Some(netns) = &machine.netns {
        let file = File::open(netns).with_context(|| format!("cannot open {}", netns.display()))?;
        setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter the network namespace")?;
    }
    if let Some(name) = &machine.hostname {
        unshare(CloneFlags::CLONE_NEWUTS).context("cannot make a namespace for the host name")?;
        nix::unistd::sethostname(name).context("cannot set the host name")?;
    }
    if machine.binds.is_empty() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    // Private first, so that nothing reaches the host; shared then, because kubelet and
    // containerd expect mounts to travel between their namespaces and the containers'.
    for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | propagation, None::<&str>)
            .context("cannot change mount propagation")?;
    }
    for (source, target) in &machine.binds {
        bind(source, target)?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    // A file is bound over one that is there.
    if !source.is_file() {
        fs::create_dir_all(source).with_context(|| format!("cannot make {}", source.display()))?;
        fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    }
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot bind {} to {}", source.display(), target.display()))
}

/// A process and what has become of it.
struct Slot<'a> {
    process: &'a Process,
    child: Option<Child>,
    not_before: Instant,
    prepared: usize,
}

impl<'a> Slot<'a> {
    fn new(process: &'a Process) -> Self {
        Self { process, child: None, not_before: Instant::now(), prepared: 0 }
    }

    fn tick(&mut self, folder: &Path) {
        let stopped = folder.join(format!("{}.stopped", self.process.name)).exists();
        match &mut self.child {
            Some(child) => {
                if let Ok(Some(status)) = child.try_wait() {
                    eprintln!("{} ended: {status}", self.process.name);
                    self.child = None;
                    self.not_before = Instant::now() + RESTART_PAUSE;
                } else if stopped {
                    self.stop();
                }
            }
            None if !stopped && Instant::now() >= self.not_before => self.start(folder),
            None => {}
        }
    }

    fn start(&mut self, folder: &Path) {
        self.not_before = Instant::now() + RESTART_PAUSE;
        while let Some(command) = self.process.before.get(self.prepared) {
            let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            if let Err(error) = shell::run(&command[0], &arguments) {
                eprintln!("{} waits: {error:#}", self.process.name);
                self.not_before = Instant::now() + Duration::from_millis(200);
                return;
            }
            self.prepared += 1;
        }
        match spawn(self.process, folder) {
            Ok(child) => self.child = Some(child),
            Err(error) => eprintln!("{} does not start: {error:#}", self.process.name),
        }
    }

    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        // A process that is stopped by SIGSTOP must go on to be able to end.
        for stop in [Signal::SIGTERM, Signal::SIGCONT] {
            kill(pid, stop).ok();
        }
        let limit = Instant::now() + STOP_LIMIT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > limit {
                child.kill().ok();
                child.wait().ok();
                break;
            }
            std::thread::sleep(TICK);
        }
    }
}

fn spawn(process: &Process, folder: &Path) -> Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(log_file(folder, &process.name))?;
    let environment: BTreeMap<String, String> =
        std::env::vars().filter(|(name, _)| matches!(name.as_str(), "PATH" | "HOME" | "TZ" | "LANG")).collect();
    let child = Command::new(&process.command[0])
        .args(&process.command[1..])
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| process.command[0].clone())?;
    fs::write(folder.join(format!("{}.pid", process.name)), child.id().to_string())?;
    Ok(child)
}

/// The log of one process of a machine.
#[must_use]
pub fn log_file(folder: &Path, process: &str) -> PathBuf {
    folder.join(format!("{process}.log"))
}
