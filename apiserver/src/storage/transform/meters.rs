//! What encryption and key management services cost, under upstream's names.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use prometheus::{CounterVec, GaugeVec, HistogramVec};
use shared::metrics;

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
        "[ALPHA] Seconds that making a data encryption key takes.",
        &[],
        seconds(14),
    )
    .with_label_values::<&str>(&[]);
    let failures = "[ALPHA] Data encryption keys that could not be made.";
    metrics::counter("apiserver_storage_data_key_generation_failures_total", failures, &[])
        .with_label_values::<&str>(&[]);
    if let Some(since) = since {
        took.observe(since.elapsed().as_secs_f64());
    }
}

/// A value was sealed or opened. `prefix` is empty where it is stored as it is, `resource` that of the key.
pub(super) fn transformed(resource: &str, way: Way, prefix: &[u8], since: Instant, done: bool) {
    static TOOK: LazyLock<HistogramVec> = LazyLock::new(|| {
        metrics::histogram(
            "apiserver_storage_transformation_duration_seconds",
            "[ALPHA] Seconds that sealing and opening values takes.",
            &["transformation_type", "transformer_prefix"],
            seconds(25),
        )
    });
    static COUNT: LazyLock<CounterVec> = LazyLock::new(|| {
        metrics::counter(
            "apiserver_storage_transformation_operations_total",
            "[ALPHA] Values sealed and opened, by resource, provider and outcome.",
            &["resource", "transformation_type", "transformer_prefix", "status"],
        )
    });
    let prefix = if prefix.is_empty() { Cow::Borrowed("identity") } else { String::from_utf8_lossy(prefix) };
    let way = match way {
        Way::Seal => "to_storage",
        Way::Open => "from_storage",
    };
    let status = if done { "OK" } else { "Unknown" };
    COUNT.with_label_values(&[resource, way, &*prefix, status]).inc();
    if done {
        TOOK.with_label_values(&[way, &*prefix]).observe(since.elapsed().as_secs_f64());
    }
}

/// Which way a value goes.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// To etcd.
    Seal,
    /// From etcd.
    Open,
}

pub(super) struct Meters {
    latency: HistogramVec,
    cached: GaugeVec,
    invalid: CounterVec,
}

impl Meters {
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
        }
    }

    /// A call ended.
    pub(super) fn asked(&self, provider: &str, method: &str, code: &str, took: Duration) {
        self.latency.with_label_values(&[provider, method, code]).observe(took.as_secs_f64());
    }

    /// So many seeds are kept opened.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn remembers(&self, provider: &str, seeds: usize) {
        self.cached.with_label_values(&[provider]).set(seeds as f64);
    }

    /// The service named a key by an id that cannot be used.
    pub(super) fn invalid_key(&self, provider: &str, error: &str) {
        self.invalid.with_label_values(&[provider, error]).inc();
    }
}
