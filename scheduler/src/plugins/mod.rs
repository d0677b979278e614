//! The plugins, by upstream's names. Each is pure but for those that bind.

pub mod default_binder;
pub mod default_preemption;
pub mod dynamic_resources;
pub mod gang_scheduling;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod priority_sort;
pub mod registry;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::framework::ProfileError;
use crate::model::PodInfo;

/// Reports whether a pod uses a volume claim.
pub(crate) fn uses_claim(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.namespace.as_deref() == Some(&pod.namespace)
        && pod.claims().any(|(name, _)| claim.metadata.name.as_deref() == Some(name))
}

/// Reports whether a claim was made for this very pod (generic ephemeral volumes).
pub(crate) fn pod_owns(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    shared::types::controller_of(&claim.metadata).is_some_and(|owner| owner.uid == *pod.uid)
}

/// Reads a plugin's arguments; `null` gives the defaults.
pub(crate) fn read_args<T: DeserializeOwned + Default>(plugin: &'static str, args: &Value) -> Result<T, ProfileError> {
    let mut args = args.clone();
    let Some(map) = args.as_object_mut() else { return Ok(T::default()) };
    map.remove("apiVersion");
    map.remove("kind");
    serde_json::from_value(args).map_err(|e| ProfileError::Args(plugin, e.to_string()))
}

#[cfg(test)]
mod tests;
