//! Certificates of pods in projected volumes.

use super::number;
use shared::metrics::gauge;
use std::collections::BTreeMap;

/// Tells how many certificates pods have in projected volumes, by signer and state.
pub(crate) fn tell(counts: &BTreeMap<(String, &'static str), usize>) {
    let (name, help) =
        ("kubelet_podcertificate_states", "[ALPHA] Number of sources of pod certificates, by signer and state");
    let states = gauge(name, help, &["signer_name", "state"]);
    states.reset();
    for ((signer, state), count) in counts {
        states.with_label_values(&[signer.as_str(), *state]).set(number(*count));
    }
}
