//! Families of `/metrics` that say the same as long as the server runs.

use shared::metrics;

/// Metric families of upstream's internal consistency checks. There is one validation here and one way to write a
/// label, so they stay zero; alerts that name them keep working.
const NEVER: [(&str, &str); 5] = [
    (
        "apiserver_validation_declarative_validation_mismatch_total",
        "[BETA] Times that declarative and handwritten validation disagreed.",
    ),
    ("apiserver_validation_declarative_validation_panic_total", "[BETA] Times that declarative validation panicked."),
    (
        "apiserver_validation_duplicate_validation_error_total",
        "[INTERNAL] Errors of a field that were reported more than once.",
    ),
    (
        "cardinality_enforcement_unexpected_categorizations_total",
        "[ALPHA] Labels of metrics that were none of the allowed.",
    ),
    (
        "apiserver_storage_envelope_transformation_cache_misses_total",
        "[ALPHA] Data encryption keys that were not remembered, where keys are sealed one by one (KMS v1).",
    ),
];

/// Shows them, and what is seldom counted.
pub(super) fn publish(emulation: shared::flags::Emulation) {
    for of in ["webhooks", "kube_aggregator"] {
        crate::admission::outdated(of);
    }
    crate::storage::transform::publish();
    crate::crd::publish();
    for (name, help) in NEVER {
        metrics::counter(name, help, &[]).with_label_values::<&str>(&[]);
    }
    let filled = "[ALPHA] Percent of the remembered data encryption keys that are in use (KMS v1).";
    metrics::gauge("apiserver_envelope_encryption_dek_cache_fill_percent", filled, &[]).with_label_values::<&str>(&[]);
    // This server asks no helper program for credentials.
    let expires = "[ALPHA] Seconds until the certificate that a helper program gave expires.";
    metrics::gauge("rest_client_exec_plugin_ttl_seconds", expires, &[])
        .with_label_values::<&str>(&[])
        .set(f64::INFINITY);
    let info = shared::version::info_of(emulation);
    let release = |major: &str, minor: &str| {
        format!("{}.{}", info[major].as_str().unwrap_or_default(), info[minor].as_str().unwrap_or_default())
    };
    let binary = shared::version::GIT_VERSION.trim_start_matches('v');
    let emulated = release("emulationMajor", "emulationMinor");
    let least = release("minCompatibilityMajor", "minCompatibilityMinor");
    metrics::gauge(
        "version_info",
        "[ALPHA] The release this process stands in for, the one it behaves as, and the oldest it goes together with.",
        &["component", "binary", "emulation", "min_compat"],
    )
    .with_label_values(&["kube", binary, emulated.as_str(), least.as_str()])
    .set(1.0);
}
