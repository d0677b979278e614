//! Metrics of probes, which have a page of their own: `/metrics/probes`.

use std::sync::LazyLock;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use shared::metrics::{CounterVec, HistogramVec, MetricsPage, default_buckets};

use super::ProbeKind;
use super::check::ProbeOutcome;
use crate::pods;

struct Families {
    page: MetricsPage,
    results: CounterVec,
    durations: HistogramVec,
}

static FAMILIES: LazyLock<Families> = LazyLock::new(|| {
    let page = MetricsPage::default();
    let labels = ["probe_type", "result", "container", "pod", "namespace", "pod_uid"];
    let help = "[BETA] Number of probes of a container, by kind and result";
    let results = page.counter("prober_probe_total", help, &labels);
    let labels = ["probe_type", "container", "pod", "namespace"];
    let help = "[ALPHA] Duration of probes that did not fail in seconds";
    let durations = page.histogram("prober_probe_duration_seconds", help, &labels, default_buckets());
    Families { page, results, durations }
});

/// The page.
pub fn text() -> String {
    shared::metrics::start_time_family() + &FAMILIES.page.text()
}

/// Metrics of one probe, which leave the page when it is dropped.
pub(super) struct Counted {
    kind: &'static str,
    container: String,
    pod: String,
    namespace: String,
    uid: String,
}

/// Results, as upstream calls them.
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl Counted {
    pub(super) fn new(kind: ProbeKind, pod: &Pod, container: &str) -> Self {
        Self {
            kind: kind.name(),
            container: container.to_owned(),
            pod: pods::name(pod).to_owned(),
            namespace: pods::namespace(pod).to_owned(),
            uid: pods::uid(pod).to_owned(),
        }
    }

    fn result_labels<'a>(&'a self, result: &'a str) -> [&'a str; 6] {
        [self.kind, result, &self.container, &self.pod, &self.namespace, &self.uid]
    }

    fn labels(&self) -> [&str; 4] {
        [self.kind, &self.container, &self.pod, &self.namespace]
    }

    /// Counts one attempt.
    pub(super) fn attempt(&self, outcome: &ProbeOutcome, took: Duration) {
        let result = match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning(_) => RESULTS[0],
            ProbeOutcome::Failure(_) => RESULTS[1],
            ProbeOutcome::Error(_) => RESULTS[2],
        };
        FAMILIES.results.with_label_values(&self.result_labels(result)).inc();
        if result != RESULTS[1] {
            FAMILIES.durations.with_label_values(&self.labels()).observe(took.as_secs_f64());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // What was never counted is not there.
        for result in RESULTS {
            let _ = FAMILIES.results.remove_label_values(&self.result_labels(result));
        }
        let _ = FAMILIES.durations.remove_label_values(&self.labels());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn probes_are_counted_while_they_last() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).expect("pod");
        let counted = Counted::new(ProbeKind::Liveness, &pod, "c");
        counted.attempt(&ProbeOutcome::Success, Duration::from_millis(3));
        counted.attempt(&ProbeOutcome::Failure("no".to_owned()), Duration::from_millis(3));
        let text = super::text();
        let labels = r#"container="c",namespace="n",pod="p",pod_uid="u",probe_type="Liveness",result"#;
        for wanted in [
            format!("prober_probe_total{{{labels}=\"successful\"}} 1"),
            format!("prober_probe_total{{{labels}=\"failed\"}} 1"),
            "prober_probe_duration_seconds_count{container=\"c\",namespace=\"n\",pod=\"p\",probe_type=\"Liveness\"} 1"
                .to_owned(),
        ] {
            assert!(text.contains(&wanted), "{wanted} in {text}");
        }
        drop(counted);
        assert!(!super::text().contains("pod_uid=\"u\""));
    }
}
