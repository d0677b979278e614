//! Limits of dead containers, eviction thresholds by default, and memory that is kept and throttled, out of flags and
//! configuration.

use super::KubeletConfiguration;
use crate::resources;
use crate::settings::ContainerGcPolicy;
use shared::flags::{FeatureGates, FlagSet};

/// `memoryThrottlingFactor` where nothing else is configured.
const MEMORY_THROTTLING_FACTOR: f64 = 0.9;

/// Hard eviction thresholds when neither file nor flags name any.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Limits of dead containers; a negative number is none.
pub(super) fn dead_containers(flags: &FlagSet) -> ContainerGcPolicy {
    ContainerGcPolicy {
        min_age: flags.duration("minimum-container-ttl-duration"),
        per_container: usize::try_from(flags.integer("maximum-dead-containers-per-container")).ok(),
        total: usize::try_from(flags.integer("maximum-dead-containers")).ok(),
    }
}

/// Part of the way from request to limit at which containers are throttled; none with the gate off.
pub(super) fn throttling_factor(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Option<f64> {
    gates.enabled("MemoryQoS").then(|| kubelet.memory_throttling_factor.unwrap_or(MEMORY_THROTTLING_FACTOR))
}

/// Share of memory that better tiers are kept; none with the gate off. What cannot be read was refused at start.
pub(super) fn reserved(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> Option<i64> {
    let reserved = resources::parse_qos_reserved(&kubelet.qos_reserved).ok().flatten();
    reserved.filter(|_| gates.enabled("QOSReserved"))
}

/// Sets the hard thresholds that are not configured.
pub(super) fn eviction_defaults(kubelet: &mut KubeletConfiguration) {
    let defaults = EVICTION_HARD.iter().map(|(signal, value)| ((*signal).to_owned(), (*value).to_owned()));
    if kubelet.eviction_hard.is_empty() {
        kubelet.eviction_hard = defaults.collect();
    } else if kubelet.merge_default_eviction_settings {
        for (signal, value) in defaults {
            kubelet.eviction_hard.entry(signal).or_insert(value);
        }
    } else {
        for (signal, _) in EVICTION_HARD {
            kubelet.eviction_hard.entry(signal.to_owned()).or_insert_with(|| "0%".to_owned());
        }
    }
}
