//! Metrics of configuration reloads, under upstream's names.

use prometheus::{CounterVec, GaugeVec};
use sha2::{Digest, Sha256};
use shared::metrics;

use crate::machinery::identity;

/// The metrics of a configuration file that is reloaded.
pub(crate) struct Reloads {
    total: CounterVec,
    last: GaugeVec,
    info: GaugeVec,
    server: String,
}

/// Hash of a value, for labels that must not contain it.
pub(crate) fn hashed(bytes: &[u8]) -> String {
    let hash: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hash}")
}

impl Reloads {
    /// `what` is configured, and how stable the metrics are about that.
    pub(crate) fn new(what: &str, stage: &str) -> Self {
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
            server: hashed(identity::server_id().as_bytes()),
        }
    }

    /// A configuration is in force.
    pub(crate) fn success(&self, content: &[u8]) {
        self.reloaded(&hashed(content));
    }

    /// One of such a hash is in force.
    pub(crate) fn reloaded(&self, hash: &str) {
        self.count("success");
        self.in_force(hash);
    }

    /// One of such a hash was in force from the start.
    pub(crate) fn in_force(&self, hash: &str) {
        self.info.reset();
        self.info.with_label_values(&[&*self.server, hash]).set(1.0);
    }

    /// One could not be used.
    pub(crate) fn failure(&self) {
        self.count("failure");
    }

    fn count(&self, status: &str) {
        let labels = [self.server.as_str(), status];
        self.total.with_label_values(&labels).inc();
        self.last.with_label_values(&labels).set(jiff::Timestamp::now().as_duration().as_secs_f64());
    }
}
