//! The lock by which one kubelet of a machine knows of another (`--lock-file`, `--exit-on-lock-contention`). Answers for
//! upstream's `pkg/util/flock` and the watch of its file.

use crate::config::CommandLine;
use crate::files;
use anyhow::Context as _;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use shared::run::Shutdown;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Takes the lock, waiting for another kubelet that has it; none where no file is named. With
/// `--exit-on-lock-contention` the kubelet ends when another one opens the file.
///
/// # Errors
/// The file cannot be made, locked or watched.
pub(crate) async fn acquire(line: &CommandLine, shutdown: &Shutdown) -> anyhow::Result<Option<Flock<File>>> {
    if line.lock_file.is_empty() {
        return Ok(None);
    }
    let path = line.lock_file.clone();
    tracing::info!(path, "Acquiring file lock");
    let lock = tokio::task::spawn_blocking(move || take(Path::new(&path))).await?;
    let lock = lock.with_context(|| format!("unable to acquire file lock on {:?}", line.lock_file))?;
    if line.exit_on_lock_contention {
        let shutdown = shutdown.clone();
        let opened = watch(&line.lock_file).context("unable to start lock file watcher")?;
        tokio::spawn(async move {
            opened.await;
            tracing::info!("Another process opened the lock file, exiting");
            shutdown.trigger();
        });
    }
    Ok(Some(lock))
}

/// Begins to watch a file; the answer ends when another process opens or removes it.
fn watch(path: &str) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    inotify.add_watch(path, AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DELETE_SELF)?;
    let events = files::pollable(OwnedFd::from(inotify).into())?;
    Ok(async move { drop(events.readable().await) })
}

fn take(path: &Path) -> std::io::Result<Flock<File>> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn the_second_kubelet_waits_and_the_first_hears_of_it() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lock");
        let first = take(&path).expect("taken");
        let opened = watch(&path.to_string_lossy()).expect("watched");
        let other = path.clone();
        let second = tokio::task::spawn_blocking(move || take(&other).expect("taken"));
        tokio::time::timeout(Duration::from_secs(10), opened).await.expect("heard of");
        assert!(!second.is_finished());
        drop(first);
        second.await.expect("taken after the first");
    }
}
