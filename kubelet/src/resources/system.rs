//! Cgroups of the machine's own processes: the kubelet's (`kubeletCgroups`), and one for everything else that is in the root
//! (`systemCgroups`). Answers for upstream's `ensureProcessInContainerWithOOMScore` and `ensureSystemCgroups`.
//!
//! Moves processes and nothing else; what other users of the machine have put into a cgroup stays there.

use super::CgroupVersion;
use super::cgroups::{inherit, join, v1_mounts};
use super::name::Name;
use std::fs;
use std::io;
use std::num::TryFromIntError;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval at which processes are looked after.
const PERIOD: Duration = Duration::from_secs(60);
/// Tries to move all processes out of the root.
const TRIES: usize = 11;

/// Failures of keeping the machine's processes in cgroups, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum SystemCgroupError {
    /// The root is to be the cgroup of the system.
    #[error("system container cannot be root (\"/\")")]
    Root,
    /// The namespace of a process cannot be told.
    #[error(transparent)]
    Namespace(#[from] io::Error),
    /// A number is that of no process.
    #[error(transparent)]
    Pid(#[from] TryFromIntError),
    /// The kubelet cannot be moved.
    #[error("failed to move PID {pid} to {cgroup:?}: {cause}")]
    Kubelet {
        /// The process.
        pid: i32,
        /// The cgroup.
        cgroup: String,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// A process cannot be moved.
    #[error("failed to move PID {pid} into the system container {cgroup:?}: {cause}")]
    System {
        /// The process.
        pid: i32,
        /// The cgroup.
        cgroup: String,
        /// Cause.
        #[source]
        cause: io::Error,
    },
}

/// Cgroups that the machine's processes are kept in.
#[derive(Clone, Debug)]
pub struct SystemCgroups {
    mounts: Vec<PathBuf>,
    proc: PathBuf,
    /// `systemCgroups`; empty for none.
    system: String,
    /// `kubeletCgroups`; empty for none.
    kubelet: String,
}

impl SystemCgroups {
    /// From the configuration; none where processes stay where they are.
    ///
    /// # Errors
    /// The root cannot be the cgroup of the system: upstream's text.
    pub fn new(version: CgroupVersion, system: &str, kubelet: &str) -> Result<Option<Self>, SystemCgroupError> {
        let base = Path::new("/sys/fs/cgroup");
        let mounts = match version {
            CgroupVersion::V2 => vec![base.to_path_buf()],
            CgroupVersion::V1 => v1_mounts(base),
        };
        Self::at(mounts, Path::new("/proc"), system, kubelet)
    }

    fn at(mounts: Vec<PathBuf>, proc: &Path, system: &str, kubelet: &str) -> Result<Option<Self>, SystemCgroupError> {
        if system == "/" {
            return Err(SystemCgroupError::Root);
        }
        let made = Self { mounts, proc: proc.to_owned(), system: system.to_owned(), kubelet: kubelet.to_owned() };
        Ok((!system.is_empty() || !kubelet.is_empty()).then_some(made))
    }

    /// Runs until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        loop {
            let cgroups = self.clone();
            let looked_after = tokio::task::spawn_blocking(move || cgroups.ensure(std::process::id())).await;
            for (name, error) in looked_after.unwrap_or_default() {
                tracing::info!(container_name = name, %error, "Failed to ensure state");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// Moves what is not in its place; the cgroups with what failed.
    fn ensure(&self, own: u32) -> Vec<(String, SystemCgroupError)> {
        let mut failed = Vec::new();
        if !self.system.is_empty()
            && let Err(error) = self.ensure_system()
        {
            failed.push((self.system.clone(), error));
        }
        if !self.kubelet.is_empty()
            && let Err(error) = self.ensure_kubelet(own)
        {
            failed.push((self.kubelet.clone(), error));
        }
        failed
    }

    /// A kubelet in a container stays in its cgroup.
    fn ensure_kubelet(&self, own: u32) -> Result<(), SystemCgroupError> {
        let namespace = |pid: &str| fs::read_link(self.proc.join(pid).join("ns/pid"));
        if namespace("1")? != namespace(&own.to_string())? {
            return Ok(());
        }
        let pid = i32::try_from(own)?;
        let moved = self.move_to(&self.kubelet, pid);
        moved.map_err(|cause| SystemCgroupError::Kubelet { pid, cgroup: self.kubelet.clone(), cause })
    }

    fn ensure_system(&self) -> Result<(), SystemCgroupError> {
        let mut outcome = Ok(());
        for _ in 0..TRIES {
            let all = self.mounts.iter().flat_map(|mount| pids_in(mount));
            let pids: Vec<i32> = all.filter(|pid| *pid != 1 && !self.is_kernels(*pid)).collect();
            if pids.is_empty() {
                return Ok(());
            }
            outcome = Ok(());
            for pid in pids {
                if let Err(cause) = self.move_to(&self.system, pid) {
                    outcome = Err(SystemCgroupError::System { pid, cgroup: self.system.clone(), cause });
                }
            }
        }
        outcome
    }

    /// Kernel threads have no executable.
    fn is_kernels(&self, pid: i32) -> bool {
        let link = fs::read_link(self.proc.join(pid.to_string()).join("exe"));
        link.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// Puts a process into a cgroup, which is made where it is not there, in every hierarchy.
    fn move_to(&self, cgroup: &str, pid: i32) -> std::io::Result<()> {
        let path = Name::of_path(cgroup).cgroupfs();
        for mount in &self.mounts {
            let folder = join(mount, &path);
            fs::create_dir_all(&folder)?;
            inherit(mount, &path);
            if !pids_in(&folder).contains(&pid) {
                fs::write(folder.join("cgroup.procs"), pid.to_string())?;
            }
        }
        Ok(())
    }
}

/// Processes that are in a cgroup itself.
fn pids_in(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with processes 1 to 4 in its root: init, a kernel thread, a daemon, and the kubelet.
    fn machine() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().expect("folder");
        let (mount, proc) = (root.path().join("cgroup"), root.path().join("proc"));
        fs::create_dir(&mount).expect("folder");
        fs::write(mount.join("cgroup.procs"), "1\n2\n3\n4\n").expect("file");
        for pid in ["1", "2", "3", "4"] {
            fs::create_dir_all(proc.join(pid).join("ns")).expect("folder");
            std::os::unix::fs::symlink("pid:[1]", proc.join(pid).join("ns/pid")).expect("link");
            if pid != "2" {
                std::os::unix::fs::symlink("/sbin/x", proc.join(pid).join("exe")).expect("link");
            }
        }
        (root, mount, proc)
    }

    #[test]
    fn processes_of_the_root_are_moved_but_for_init_and_the_kernels() {
        let (_root, mount, proc) = machine();
        let cgroups = SystemCgroups::at(vec![mount.clone()], &proc, "/system", "").expect("usable").expect("one");
        fs::create_dir(mount.join("system")).expect("folder");
        // No kernel takes the processes out of the root here: all tries are made, and none fails.
        assert!(cgroups.ensure(4).is_empty());
        let moved = fs::read_to_string(mount.join("system/cgroup.procs")).expect("written");
        assert_eq!(moved, "4", "the last that was written");
        fs::write(mount.join("cgroup.procs"), "1\n2\n").expect("file");
        fs::remove_file(mount.join("system/cgroup.procs")).expect("removed");
        assert!(cgroups.ensure(4).is_empty());
        assert!(!mount.join("system/cgroup.procs").exists(), "nothing to move");
    }

    #[test]
    fn the_kubelet_is_moved_unless_it_is_in_a_container() {
        let (_root, mount, proc) = machine();
        let cgroups = SystemCgroups::at(vec![mount.clone()], &proc, "", "/kubelet").expect("usable").expect("one");
        assert!(cgroups.ensure(4).is_empty());
        let procs = mount.join("kubelet/cgroup.procs");
        assert_eq!(fs::read_to_string(&procs).expect("written"), "4");
        fs::remove_file(&procs).expect("removed");
        fs::remove_file(proc.join("4/ns/pid")).expect("removed");
        std::os::unix::fs::symlink("pid:[2]", proc.join("4/ns/pid")).expect("link");
        assert!(cgroups.ensure(4).is_empty());
        assert!(!procs.exists());
    }

    #[test]
    fn the_root_is_no_cgroup_of_the_system() {
        let error = SystemCgroups::new(CgroupVersion::V2, "/", "").expect_err("refused");
        assert_eq!(error.to_string(), "system container cannot be root (\"/\")");
        assert!(SystemCgroups::new(CgroupVersion::V2, "", "").expect("none").is_none());
    }
}
