//! What key management services cost, under upstream's names.

use std::time::Duration;

use prometheus::{CounterVec, GaugeVec, HistogramVec};
use shared::metrics;

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
