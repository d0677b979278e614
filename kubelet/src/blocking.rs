//! Work that blocks, on threads for it. Work on file systems that may be away goes by lanes: however many of them hang, the
//! rest of the node has threads.

use std::io;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// Longest wait for a thread of a lane.
const WAIT: Duration = Duration::from_secs(30);

/// Set-up of what lies on other file systems than the kubelet's own.
pub(crate) static MOUNTING: Lane = Lane::new("volume set-up", 6, WAIT);
/// Unmounts, and what follows them.
pub(crate) static UNMOUNTING: Lane = Lane::new("volume tear-down", 6, WAIT);
/// Numbers of file systems that may be away.
pub(crate) static STATISTICS: Lane = Lane::new("volume statistics", 4, WAIT);
/// Walks through folders on the kubelet's own file system: they end, but may take their time.
pub(crate) static WALKS: Lane = Lane::new("walks through folders", 4, WAIT);
/// Removal of the trees of pods that are gone.
pub(crate) static REMOVAL: Lane = Lane::new("removal of folders", 4, WAIT);

/// Failures of work that blocks.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Every thread of the lane of this name hangs.
    #[error("timed out waiting for other operations of {0} that do not end")]
    Hanging(&'static str),
    /// The work failed.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// The work panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// A kind of work of which only so much blocks at a time. All of them together leave a quarter of the process' threads alone.
pub(crate) struct Lane {
    name: &'static str,
    threads: Semaphore,
    wait: Duration,
}

impl Lane {
    const fn new(name: &'static str, threads: usize, wait: Duration) -> Self {
        Self { name, threads: Semaphore::const_new(threads), wait }
    }

    /// Runs work that may block for ever: its result.
    ///
    /// # Errors
    /// The work fails, or every thread of the lane hangs.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, WorkError> {
        let waited = tokio::time::timeout(self.wait, self.threads.acquire()).await;
        let Ok(Ok(thread)) = waited else {
            return Err(WorkError::Hanging(self.name));
        };
        blocking(move || {
            let _thread = thread;
            work()
        })
        .await
    }
}

/// Runs work that blocks: its result.
///
/// # Errors
/// The work fails or panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, WorkError> {
    Ok(tokio::task::spawn_blocking(work).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, mpsc};

    #[tokio::test]
    async fn work_that_hangs_takes_the_threads_of_its_own_lane_alone() {
        static HUNG: Lane = Lane::new("tests", 2, Duration::from_millis(50));
        static OTHER: Lane = Lane::new("others", 1, Duration::from_secs(30));
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (begun, mut beginning) = tokio::sync::mpsc::unbounded_channel();
        let hang = || {
            let (wait, begun) = (Arc::clone(&wait), begun.clone());
            tokio::spawn(HUNG.run(move || {
                begun.send(()).map_err(io::Error::other)?;
                wait.lock().map_err(|_| io::Error::other("poisoned"))?.recv().map_err(io::Error::other)
            }))
        };
        let hanging = [hang(), hang()];
        for _ in &hanging {
            beginning.recv().await.expect("begun");
        }
        let refused = HUNG.run(|| Ok(())).await;
        let refused = refused.expect_err("every thread hangs").to_string();
        assert_eq!(refused, "timed out waiting for other operations of tests that do not end");
        assert_eq!(OTHER.run(|| Ok(1)).await.expect("another lane"), 1);
        // Either may be the one that waits first.
        for _ in &hanging {
            release.send(()).expect("they wait");
        }
        for work in hanging {
            work.await.expect("ended").expect("done");
        }
        assert_eq!(HUNG.run(|| Ok(2)).await.expect("done"), 2);
        let failed = HUNG.run(|| Err::<(), _>(io::Error::other("no"))).await;
        assert!(matches!(&failed, Err(WorkError::Failed(error)) if error.to_string() == "no"), "{failed:?}");
    }

    #[test]
    fn lanes_leave_threads_for_the_rest() {
        let lanes = [&MOUNTING, &UNMOUNTING, &STATISTICS, &WALKS, &REMOVAL];
        let threads: usize = lanes.iter().map(|lane| lane.threads.available_permits()).sum();
        assert!(threads * 4 <= shared::run::BLOCKING_THREADS * 3, "{threads}");
    }
}
