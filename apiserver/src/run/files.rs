//! Files that configure access and may change while the server runs.

use std::time::{Duration, SystemTime};

use shared::run::Shutdown;
use tokio::time::Instant;

/// Interval at which a file's modification is checked.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which unusable content is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Modification time and size, which tell two states of a file apart without reading it.
fn stamp(path: &str) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Hands over the new content whenever it differs from what was `known`, until the shutdown. `changed` says whether it
/// is done with it; if not, it is to have it again.
pub(super) async fn follow(
    path: String,
    mut known: Vec<u8>,
    shutdown: Shutdown,
    mut changed: impl AsyncFnMut(&[u8]) -> bool,
) {
    // Nothing seen yet: it may have changed since it was read.
    let mut seen = None;
    let mut again: Option<Instant> = None;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = stamp(&path);
        if now == seen && again.is_none_or(|at| Instant::now() < at) {
            continue;
        }
        match std::fs::read(&path) {
            Ok(content) => {
                (seen, again) = (now, None);
                if content == known {
                    continue;
                }
                if changed(&content).await {
                    known = content;
                } else {
                    again = Some(Instant::now() + AGAIN);
                }
            }
            // It may be in the middle of being replaced.
            Err(error) => {
                tracing::warn!(path, %error, "Failed to read configuration file, keeping the previous content")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unusable content is reported again after a while, and used content is not.
    #[tokio::test(start_paused = true)]
    async fn only_changes_are_reported() {
        let path = std::env::temp_dir().join(format!("followed-{}", uuid::Uuid::new_v4()));
        let text = path.display().to_string();
        std::fs::write(&path, "one").expect("written");
        let shutdown = Shutdown::new();
        let (tell, mut told) = tokio::sync::mpsc::channel(4);
        let task = tokio::spawn(follow(text, b"one".to_vec(), shutdown.clone(), async move |content: &[u8]| {
            let sent = tell.send((content.to_vec(), Instant::now())).await;
            sent.is_ok() && content != b"two!"
        }));
        std::fs::write(&path, "two!").expect("written");
        let (first, second) = (told.recv().await.expect("told"), told.recv().await.expect("told"));
        assert_eq!((&first.0[..], &second.0[..]), (&b"two!"[..], &b"two!"[..]));
        assert_eq!((second.1 - first.1).as_secs(), AGAIN.as_secs());
        std::fs::write(&path, "three").expect("written");
        let third = told.recv().await.expect("told");
        assert_eq!((&third.0[..], (third.1 - second.1).as_secs()), (&b"three"[..], LOOK.as_secs()));
        assert!(tokio::time::timeout(AGAIN * 2, told.recv()).await.is_err(), "once");
        shutdown.trigger();
        task.await.expect("ends");
        std::fs::remove_file(&path).expect("removed");
    }
}
