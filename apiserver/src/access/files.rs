//! Files that configure access and may change while the server runs.

use std::time::{Duration, SystemTime};

use shared::run::Shutdown;

/// How often a file's stamp is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What tells two states of a file apart without reading it.
fn stamp(path: &str) -> Option<(SystemTime, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// Hands over the new content whenever it differs from what was `known`, until the shutdown.
pub(super) async fn follow(path: String, mut known: Vec<u8>, shutdown: Shutdown, mut changed: impl AsyncFnMut(&[u8])) {
    // Nothing seen yet: it may have changed since it was read.
    let mut seen = None;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let now = stamp(&path);
        if now == seen {
            continue;
        }
        match std::fs::read(&path) {
            Ok(content) => {
                seen = now;
                if content != known {
                    changed(&content).await;
                    known = content;
                }
            }
            // It may be in the middle of being replaced.
            Err(error) => tracing::warn!(path, %error, "A configuration file cannot be read, what it said last stays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_told_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("followed-{}", uuid::Uuid::new_v4()));
        let text = path.display().to_string();
        std::fs::write(&path, "one").expect("written");
        let shutdown = Shutdown::new();
        let (tell, mut told) = tokio::sync::mpsc::channel(4);
        let task = tokio::spawn(follow(text, b"one".to_vec(), shutdown.clone(), async move |content: &[u8]| {
            let _ = tell.send(content.to_vec()).await;
        }));
        std::fs::write(&path, "two!").expect("written");
        assert_eq!(told.recv().await.as_deref(), Some(&b"two!"[..]));
        shutdown.trigger();
        task.await.expect("ends");
        std::fs::remove_file(&path).expect("removed");
    }
}
