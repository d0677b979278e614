//! Changes of the files in a folder.

use std::path::Path;
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Errors of watching a folder.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The machine gave no watcher.
    #[error(transparent)]
    NoWatcher(Arc<notify::Error>),
    /// The folder cannot be watched.
    #[error(transparent)]
    Folder(#[from] notify::Error),
}

/// Tells when files of folders changed. Reading them is no change: whoever reads because of one must not wake himself.
pub struct FolderWatch {
    watcher: Result<RecommendedWatcher, Arc<notify::Error>>,
    changed: Arc<Notify>,
}

impl Default for FolderWatch {
    fn default() -> Self {
        let changed = Arc::new(Notify::new());
        let waker = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error is lost events.
            if event.is_ok_and(|event| is_reading(event.kind)) {
                return;
            }
            waker.notify_one();
        });
        Self { watcher: watcher.map_err(Arc::new), changed }
    }
}

fn is_reading(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    }
}

impl FolderWatch {
    /// Watches a folder, or one file.
    ///
    /// # Errors
    /// It is not there, or the machine has no watch left.
    pub fn watch(&mut self, path: &Path) -> Result<(), WatchError> {
        match &mut self.watcher {
            Ok(watcher) => Ok(watcher.watch(path, RecursiveMode::NonRecursive)?),
            Err(error) => Err(WatchError::NoWatcher(Arc::clone(error))),
        }
    }

    /// Waits for a change since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn writing_wakes_and_reading_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "1").expect("written");
        let mut watch = FolderWatch::default();
        watch.watch(folder.path()).expect("watched");
        for round in 0..3 {
            std::fs::read(&file).expect("read");
            std::fs::read_dir(folder.path()).expect("listed").count();
            let woken = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
            assert!(woken.is_err(), "round {round}");
        }
        std::fs::write(&file, "2").expect("written");
        tokio::time::timeout(PATIENCE, watch.changed()).await.expect("a change");
        std::fs::write(folder.path().join("new"), "").expect("written");
        tokio::time::timeout(PATIENCE, watch.changed()).await.expect("a new file");
        assert!(watch.watch(&folder.path().join("nowhere")).is_err());
    }
}
