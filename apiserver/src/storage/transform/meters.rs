//! Metrics of encryption at rest and KMS, under upstream's names.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{CounterVec, GaugeVec, HistogramVec};
use shared::metrics;

use crate::machinery::identity;
use crate::reloads::hashed;

/// Keys of services that are told apart, by what was done with them; the oldest are forgotten.
const KEYS: usize = 100;

/// Seconds of sealing, opening and of making keys.
fn seconds(count: usize) -> Vec<f64> {
    metrics::exponential(5e-6, 2.0, count)
}

/// Shows how many keys were made before the first is.
pub fn publish() {
    made_key(None);
}

/// A data encryption key, or the seed of such, is made. Nothing is known to go wrong with that.
pub(super) fn made_key(since: Option<Instant>) {
    let took = metrics::histogram(
        "apiserver_storage_data_key_generation_duration_seconds",
        "[ALPHA] Duration of data encryption key generation in seconds.",
        &[],
        seconds(14),
    )
    .with_label_values::<&str>(&[]);
    let failures = "[ALPHA] Number of failed data encryption key generations.";
    metrics::counter("apiserver_storage_data_key_generation_failures_total", failures, &[])
        .with_label_values::<&str>(&[]);
    if let Some(since) = since {
        took.observe(since.elapsed().as_secs_f64());
    }
}

/// A value was sealed or opened. `prefix` is empty where it is stored as it is, `resource` that of the key.
pub(super) fn transformed(resource: &str, way: Transformation, prefix: &[u8], since: Instant, done: bool) {
    static TOOK: LazyLock<HistogramVec> = LazyLock::new(|| {
        metrics::histogram(
            "apiserver_storage_transformation_duration_seconds",
            "[ALPHA] Duration of value transformations in seconds, by transformation type and prefix.",
            &["transformation_type", "transformer_prefix"],
            seconds(25),
        )
    });
    static COUNT: LazyLock<CounterVec> = LazyLock::new(|| {
        metrics::counter(
            "apiserver_storage_transformation_operations_total",
            "[ALPHA] Number of value transformations, by resource, transformation type, prefix and status.",
            &["resource", "transformation_type", "transformer_prefix", "status"],
        )
    });
    let prefix = if prefix.is_empty() { Cow::Borrowed("identity") } else { String::from_utf8_lossy(prefix) };
    let way = way.name();
    let status = if done { "OK" } else { "Unknown" };
    COUNT.with_label_values(&[resource, way, &*prefix, status]).inc();
    if done {
        TOOK.with_label_values(&[way, &*prefix]).observe(since.elapsed().as_secs_f64());
    }
}

/// Direction of a transformation.
#[derive(Clone, Copy)]
pub(super) enum Transformation {
    /// To etcd.
    ToStorage,
    /// From etcd.
    FromStorage,
}

impl Transformation {
    fn name(self) -> &'static str {
        match self {
            Self::ToStorage => "to_storage",
            Self::FromStorage => "from_storage",
        }
    }
}

pub(super) struct Metrics {
    latency: HistogramVec,
    cached: GaugeVec,
    invalid: CounterVec,
    used: CounterVec,
    used_at: GaugeVec,
    named_at: GaugeVec,
    server: String,
    /// Labels of keys that were used, and of such as the service named.
    known: [Mutex<VecDeque<Vec<String>>>; 2],
}

fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}

/// Notes labels; those that have to go for them are given back.
fn noted(known: &Mutex<VecDeque<Vec<String>>>, labels: &[&str]) -> Option<Vec<String>> {
    let mut known = known.lock();
    if known.iter().any(|old| old == labels) {
        return None;
    }
    known.push_back(labels.iter().map(|label| (*label).to_owned()).collect());
    if known.len() > KEYS { known.pop_front() } else { None }
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            latency: metrics::histogram(
                "apiserver_envelope_encryption_kms_operations_latency_seconds",
                "[ALPHA] KMS operation duration with gRPC error code status total.",
                &["provider_name", "method_name", "grpc_status_code"],
                metrics::exponential(0.0001, 2.0, 20),
            ),
            cached: metrics::gauge(
                "apiserver_envelope_encryption_dek_source_cache_size",
                "[ALPHA] Number of records in data encryption key (DEK) source cache. On a restart, this value is an approximation of the number of decrypt RPC calls the server will make to the KMS plugin.",
                &["provider_name"],
            ),
            invalid: metrics::counter(
                "apiserver_envelope_encryption_invalid_key_id_from_status_total",
                "[ALPHA] Number of times an invalid keyID is returned by the Status RPC call split by error.",
                &["provider_name", "error"],
            ),
            used: metrics::counter(
                "apiserver_envelope_encryption_key_id_hash_total",
                "[ALPHA] Number of times a keyID is used split by transformation type, provider, and apiserver identity.",
                &["transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"],
            ),
            used_at: metrics::gauge(
                "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
                "[ALPHA] The last time in seconds when a keyID was used.",
                &["transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"],
            ),
            named_at: metrics::gauge(
                "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
                "[ALPHA] The last time in seconds when a keyID was returned by the Status RPC call.",
                &["provider_name", "key_id_hash", "apiserver_id_hash"],
            ),
            server: hashed(identity::server_id().as_bytes()),
            known: Default::default(),
        }
    }

    /// A value was sealed, or opened, with a key of the service.
    pub(super) fn used_key(&self, way: Transformation, provider: &str, key: &str) {
        let key = hashed(key.as_bytes());
        let labels = [way.name(), provider, &key, &self.server];
        if let Some(gone) = noted(&self.known[0], &labels) {
            // An error: it was deleted already.
            let _ = (self.used.remove_label_values(&gone), self.used_at.remove_label_values(&gone));
        }
        self.used.with_label_values(&labels).inc();
        self.used_at.with_label_values(&labels).set(now());
    }

    /// The service says that this is its key.
    pub(super) fn named_key(&self, provider: &str, key: &str) {
        let key = hashed(key.as_bytes());
        let labels = [provider, &key, &self.server];
        if let Some(gone) = noted(&self.known[1], &labels) {
            let _ = self.named_at.remove_label_values(&gone);
        }
        self.named_at.with_label_values(&labels).set(now());
    }

    /// A call ended.
    pub(super) fn observe_call(&self, provider: &str, method: &str, code: &str, took: Duration) {
        self.latency.with_label_values(&[provider, method, code]).observe(took.as_secs_f64());
    }

    /// So many seeds are kept opened.
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    pub(super) fn remembers(&self, provider: &str, seeds: usize) {
        self.cached.with_label_values(&[provider]).set(seeds as f64);
    }

    /// The service named a key by an id that cannot be used.
    pub(super) fn invalid_key(&self, provider: &str, error: &str) {
        self.invalid.with_label_values(&[provider, error]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_id_labels_are_bounded() {
        let known = Mutex::default();
        for i in 0..KEYS {
            assert_eq!(noted(&known, &["p", &i.to_string()]), None);
        }
        assert_eq!(noted(&known, &["p", "0"]), None);
        assert_eq!(noted(&known, &["p", "new"]), Some(vec!["p".to_owned(), "0".to_owned()]));
    }
}
