//! Metrics of Pod Security admission, under upstream's names.

use prometheus::CounterVec;
use shared::metrics;

use super::level::{LevelVersion, PolicyVersion};
use crate::admission::{Attributes, Operation};
use crate::registry::core::pod::PODS;

/// The minor version of the policies that are newest here. What is asked of a later one is counted without its number.
const NEWEST: u32 = 35;

/// Metrics of Pod Security admission.
pub(super) struct Metrics {
    evaluations: CounterVec,
    exemptions: CounterVec,
    pub(super) errors: CounterVec,
}

/// Labels of a request: operation, resource and subresource. `None` for one that is not counted.
fn called<'a>(a: &'a Attributes<'_>) -> Option<[&'a str; 3]> {
    let operation = match a.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        _ => return None,
    };
    Some([operation, if a.of(PODS) { "pod" } else { "controller" }, a.subresource])
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            evaluations: metrics::counter(
                "pod_security_evaluations_total",
                "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.",
                &["decision", "mode", "policy_level", "policy_version", "request_operation", "resource", "subresource"],
            ),
            exemptions: metrics::counter(
                "pod_security_exemptions_total",
                "[ALPHA] Number of exempt requests, not counting ignored or out of scope requests.",
                &["request_operation", "resource", "subresource"],
            ),
            errors: metrics::counter(
                "pod_security_errors_total",
                "[ALPHA] Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted profile being used for evaluation.",
                &["fatal", "request_operation", "resource", "subresource"],
            ),
        }
    }

    /// Counts a request whose namespace's policy could not be read; it was judged all the same.
    pub(super) fn misread(&self, a: &Attributes<'_>) {
        if let Some([operation, resource, subresource]) = called(a) {
            self.errors.with_label_values(&["false", operation, resource, subresource]).inc();
        }
    }

    /// Counts a request whose namespace could not be read.
    pub(super) fn failed(&self, a: &Attributes<'_>) {
        if let Some([operation, resource, subresource]) = called(a) {
            self.errors.with_label_values(&["true", operation, resource, subresource]).inc();
        }
    }

    /// Counts what a policy said of a request.
    pub(super) fn evaluated(&self, a: &Attributes<'_>, policy: LevelVersion, mode: &str, allowed: bool) {
        let Some([operation, resource, subresource]) = called(a) else { return };
        let version = match policy.version {
            PolicyVersion(Some(minor)) if minor > NEWEST => "future".to_owned(),
            known => known.to_string(),
        };
        let decision = if allowed { "allow" } else { "deny" };
        let labels = [decision, mode, policy.level.as_str(), &version, operation, resource, subresource];
        self.evaluations.with_label_values(&labels).inc();
    }

    /// Counts a request that is let alone.
    pub(super) fn exempted(&self, a: &Attributes<'_>) {
        if let Some(labels) = called(a) {
            self.exemptions.with_label_values(&labels).inc();
        }
    }
}
