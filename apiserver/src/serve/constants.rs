//! Families of `/metrics` that say the same as long as the server runs.

use shared::metrics;

/// Metric families of upstream's internal consistency checks. There is one validation here and one way to write a
/// label, so they stay zero; alerts that name them keep working.
const NEVER: [(&str, &str); 5] = [
    (
        "apiserver_validation_declarative_validation_mismatch_total",
        "[BETA] Number of mismatches between declarative and handwritten validation.",
    ),
    ("apiserver_validation_declarative_validation_panic_total", "[BETA] Number of panics in declarative validation."),
    ("apiserver_validation_duplicate_validation_error_total", "[INTERNAL] Number of duplicate validation errors."),
    (
        "cardinality_enforcement_unexpected_categorizations_total",
        "[ALPHA] Number of label values outside the allow-list of cardinality enforcement.",
    ),
    (
        "apiserver_storage_envelope_transformation_cache_misses_total",
        "[ALPHA] Number of cache misses for data encryption keys (KMS v1).",
    ),
];

/// Shows them, and what is seldom counted.
pub(super) fn publish(emulation: shared::version::Emulation) {
    for of in ["webhooks", "kube_aggregator"] {
        crate::admission::outdated(of);
    }
    crate::storage::transform::publish();
    crate::crd::publish();
    for (name, help) in NEVER {
        metrics::counter(name, help, &[]).with_label_values::<&str>(&[]);
    }
    let filled = "[ALPHA] Percentage of the data encryption key cache that is in use (KMS v1).";
    metrics::gauge("apiserver_envelope_encryption_dek_cache_fill_percent", filled, &[]).with_label_values::<&str>(&[]);
    // This server asks no helper program for credentials.
    let expires = "[ALPHA] Shortest TTL in seconds of client certificates managed by an exec credential plugin.";
    metrics::gauge("rest_client_exec_plugin_ttl_seconds", expires, &[])
        .with_label_values::<&str>(&[])
        .set(f64::INFINITY);
    let info = shared::version::info_of(emulation);
    let release = |major: &str, minor: &str| {
        format!("{}.{}", info[major].as_str().unwrap_or_default(), info[minor].as_str().unwrap_or_default())
    };
    let binary = shared::version::git_version().trim_start_matches('v');
    let emulated = release("emulationMajor", "emulationMinor");
    let least = release("minCompatibilityMajor", "minCompatibilityMinor");
    metrics::gauge(
        "version_info",
        "[ALPHA] Binary version, emulation version and minimum compatibility version of this component.",
        &["component", "binary", "emulation", "min_compat"],
    )
    .with_label_values(&["kube", binary, emulated.as_str(), least.as_str()])
    .set(1.0);
}
