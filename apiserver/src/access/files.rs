//! Files that configure access and may change while the server runs, and what is counted when they, or other such
//! files, do.

use std::time::{Duration, SystemTime};

use prometheus::{CounterVec, GaugeVec};
use sha2::{Digest, Sha256};
use shared::metrics;
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

/// The metrics of a configuration file that is reloaded.
pub struct Reloads {
    total: CounterVec,
    last: GaugeVec,
    info: GaugeVec,
    server: String,
}

/// As metrics name what they do not show.
pub fn hashed(bytes: &[u8]) -> String {
    let hash: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hash}")
}

impl Reloads {
    /// `what` is configured, and how stable the metrics are about that; `server` is the identity of this server.
    #[must_use]
    pub fn new(what: &str, stage: &str, server: &str) -> Self {
        let name = |rest: &str| format!("apiserver_{what}_config_controller_{rest}");
        Self {
            total: metrics::counter(
                &name("automatic_reloads_total"),
                &format!(
                    "[{stage}] Total number of automatic reloads of {what} configuration split by status and apiserver identity."
                ),
                &["apiserver_id_hash", "status"],
            ),
            last: metrics::gauge(
                &name("automatic_reload_last_timestamp_seconds"),
                &format!(
                    "[{stage}] Timestamp of the last automatic reload of {what} configuration split by status and apiserver identity."
                ),
                &["apiserver_id_hash", "status"],
            ),
            info: metrics::gauge(
                &name("last_config_info"),
                &format!(
                    "[ALPHA] Information about the last applied {what} configuration with hash as label, split by apiserver identity."
                ),
                &["apiserver_id_hash", "hash"],
            ),
            server: hashed(server.as_bytes()),
        }
    }

    /// A configuration is in force.
    pub(super) fn success(&self, content: &[u8]) {
        self.reloaded(&hashed(content));
    }

    /// One of such a hash is in force.
    pub fn reloaded(&self, hash: &str) {
        self.count("success");
        self.in_force(hash);
    }

    /// One of such a hash was in force from the start.
    pub fn in_force(&self, hash: &str) {
        self.info.reset();
        self.info.with_label_values(&[&*self.server, hash]).set(1.0);
    }

    /// One could not be used.
    pub fn failure(&self) {
        self.count("failure");
    }

    fn count(&self, status: &str) {
        let labels = [self.server.as_str(), status];
        self.total.with_label_values(&labels).inc();
        self.last.with_label_values(&labels).set(jiff::Timestamp::now().as_duration().as_secs_f64());
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
