//! The kernel's word that a cgroup's use of memory has crossed a threshold (`kernelMemcgNotification`), so that a node that
//! runs short of memory does not wait for the next look. On cgroup v1 alone: v2 has no such notification, and upstream's
//! notifier does nothing there. Answers for upstream's `threshold_notifier_linux.go` and `memory_threshold_notifier.go`.

use super::signals::{Observed, Signal, Threshold};
use crate::files::pollable;
use crate::resources::Usage;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Mount point of the controller of memory.
const MOUNT: &str = "/sys/fs/cgroup/memory";
const USAGE: &str = "memory.usage_in_bytes";
const CONTROL: &str = "cgroup.event_control";

/// Use of memory at which less is left than a threshold wants: the working set may grow up to it, and what the kernel can
/// take back counts besides. Pure.
pub(super) fn crossing(threshold: &Threshold, capacity: u64, (used, working_set): (u64, u64)) -> u64 {
    capacity.saturating_sub(threshold.amount(capacity)).saturating_add(used.saturating_sub(working_set))
}

/// Notifications that are waited for.
#[derive(Default)]
pub(super) struct Notifiers(Vec<AsyncFd<File>>);

impl Notifiers {
    /// Asks the kernel anew, for what the thresholds come to now; `pods` are use and path of the cgroup of all pods.
    pub(super) fn arm(thresholds: &[Threshold], observed: &Observed, pods: Option<(&Usage, &str)>) -> Self {
        Self::at(Path::new(MOUNT), thresholds, observed, pods)
    }

    fn at(mount: &Path, thresholds: &[Threshold], observed: &Observed, pods: Option<(&Usage, &str)>) -> Self {
        let place = |threshold: &Threshold| -> Option<(PathBuf, u64)> {
            match threshold.signal {
                Signal::Memory => {
                    let memory = &observed.memory;
                    let at = crossing(threshold, memory.total, (memory.used, memory.working_set));
                    Some((mount.to_owned(), at))
                }
                Signal::PodsMemory => {
                    let ((limit, _), (usage, path)) = (observed.pods_memory?, pods?);
                    let at = crossing(threshold, limit, (usage.memory_usage, usage.working_set));
                    Some((mount.join(path.trim_start_matches('/')), at))
                }
                _ => None,
            }
        };
        let armed = thresholds.iter().filter_map(place).filter_map(|(folder, at)| match ask(&folder, at) {
            Ok(events) => Some(events),
            Err(error) => {
                tracing::info!(%error, "Eviction manager: failed to update notifier");
                None
            }
        });
        Self(armed.collect())
    }

    /// Waits for the first crossing; for ever where none is asked for.
    pub(super) async fn crossed(&self) {
        let waits: Vec<_> = self.0.iter().map(|events| Box::pin(events.readable())).collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        if let (Err(error), ..) = futures::future::select_all(waits).await {
            tracing::info!(%error, "Eviction manager: error while waiting for memcg events");
            return std::future::pending().await;
        }
        tracing::info!("Eviction manager: memory eviction threshold crossed");
    }
}

/// Asks for a notification, which ends with the descriptor.
fn ask(folder: &Path, at: u64) -> io::Result<AsyncFd<File>> {
    let usage = File::open(folder.join(USAGE))?;
    let events = event_descriptor()?;
    let request = format!("{} {} {at}", events.as_raw_fd(), usage.as_raw_fd());
    fs::OpenOptions::new().write(true).open(folder.join(CONTROL)).and_then(|mut control| {
        use io::Write as _;
        control.write_all(request.as_bytes())
    })?;
    pollable(events)
}

#[allow(unsafe_code, reason = "the descriptor is made by a system call that no safe crate here wraps")]
fn event_descriptor() -> io::Result<File> {
    // SAFETY: the call takes no pointers.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was made above and nobody else has it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::super::signals::Least;
    use super::*;
    use crate::stats::machine::Memory;
    use std::io::Write as _;
    use std::time::Duration;

    fn threshold(signal: Signal) -> Threshold {
        Threshold { signal, least: Least::Amount(100), grace: None, reclaim: None }
    }

    #[test]
    fn thresholds_are_crossed_when_the_working_set_has_grown_up_to_them() {
        assert_eq!(crossing(&threshold(Signal::Memory), 1000, (700, 400)), 1200, "900, and 300 that can be taken back");
        assert_eq!(crossing(&threshold(Signal::Memory), 50, (10, 10)), 0);
    }

    #[tokio::test]
    async fn crossings_are_asked_for_and_waited_for() {
        let mount = tempfile::tempdir().expect("folder");
        let pods = mount.path().join("kubepods");
        fs::create_dir(&pods).expect("folder");
        for folder in [mount.path(), &pods] {
            fs::write(folder.join(USAGE), "700").expect("file");
            fs::write(folder.join(CONTROL), "").expect("file");
        }
        let observed = Observed {
            memory: Memory { total: 1000, used: 700, working_set: 400, ..Memory::default() },
            pods_memory: Some((500, 100)),
            ..Observed::default()
        };
        let usage = Usage { memory_usage: 150, working_set: 100, ..Usage::default() };
        let thresholds = [threshold(Signal::Memory), threshold(Signal::NodeDisk), threshold(Signal::PodsMemory)];
        let notifiers = Notifiers::at(mount.path(), &thresholds, &observed, Some((&usage, "/kubepods")));
        let asked = |folder: &Path| {
            let text = fs::read_to_string(folder.join(CONTROL)).expect("asked");
            text.rsplit(' ').next().and_then(|at| at.parse::<u64>().ok())
        };
        assert_eq!((asked(mount.path()), asked(&pods)), (Some(1200), Some(450)));
        let short = Duration::from_millis(50);
        tokio::time::timeout(short, notifiers.crossed()).await.expect_err("nothing has happened");
        let mut events = notifiers.0[1].get_ref();
        events.write_all(&1u64.to_ne_bytes()).expect("the kernel's part");
        tokio::time::timeout(Duration::from_secs(5), notifiers.crossed()).await.expect("crossed");
        tokio::time::timeout(short, Notifiers::default().crossed()).await.expect_err("nothing is asked for");
    }
}
