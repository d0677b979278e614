//! Helpers for objects of the typed API (`k8s-openapi`).

use k8s_openapi::api::core::v1::{
    Container, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use proto::selector::format::qualified_name;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::informer::Cached;
use crate::typed::{self, ReadError};

/// The annotation that named the storage class of claims and volumes before there was a field.
pub const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On the pod that stands for one of a kubelet's own: which version of it.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Node labels that are the kubelet's: it brings them up to date on a node that is there already, and NodeRestriction lets
/// it. Answers for upstream's `kubeletLabels`.
pub const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Now, to the second, as API times are written.
pub fn now() -> Time {
    let now = jiff::Timestamp::now();
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The owner that controls an object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref()?.iter().find(|o| o.controller == Some(true))
}

/// A reference for events.
pub fn object_reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// A pod's condition.
pub fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_deref()?.iter().find(|c| c.type_ == kind)
}

/// `Succeeded` or `Failed`.
pub fn is_pod_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Reports whether a resource is native to Kubernetes.
pub fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Reports whether a resource is an extended one: of another domain, and with a name that is valid in a quota.
pub fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name)
        && !name.starts_with("requests.")
        && qualified_name(&format!("requests.{name}")).is_empty()
}

/// The name of the claim that is made for an ephemeral volume of a pod.
pub fn ephemeral_claim(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

/// Reports whether an init container is a sidecar.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The storage class that a claim names, by the field or in the old way; the empty string asks for none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    old_class(&claim.metadata).or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
}

/// The storage class of a volume; the empty string for none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let named = || volume.spec.as_ref()?.storage_class_name.as_deref();
    old_class(&volume.metadata).or_else(named).unwrap_or_default()
}

fn old_class(meta: &ObjectMeta) -> Option<&str> {
    meta.annotations.as_ref()?.get(OLD_CLASS).map(String::as_str)
}

/// Reads an object of a tree as leniently as Go ([`typed::from_json`]), by way of its text: so a program has one decoder of
/// each API type, that of bytes, which informers use. Another one for trees is half a megabyte for pods alone.
///
/// # Errors
/// The tree is none of such an object.
pub fn from_tree<T: Cached>(tree: &Value) -> Result<T, ReadError> {
    typed::from_json(T::schema, tree.to_string().as_bytes())
}

/// Reads a part of an object that was made here, such as a container.
///
/// # Errors
/// The tree is no such part.
pub fn part_of_tree<T: DeserializeOwned>(tree: &Value) -> serde_json::Result<T> {
    serde_json::from_slice(&serde_json::to_vec(tree)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn trees_are_read_as_gos_decoder_reads_them() {
        let condition = json!({"type": "Ready", "status": "True", "lastTransitionTime": null});
        let service = json!({"metadata": {"name": "s"}, "status": {"conditions": [condition]}});
        assert!(from_tree::<k8s_openapi::api::core::v1::Service>(&service).is_ok());
    }

    #[test]
    fn resources_of_other_domains_are_extended() {
        for (name, want) in [
            ("example.com/gpu", true),
            ("cpu", false),
            ("kubernetes.io/gpu", false),
            ("sub.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/two/parts", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended_resource(name), want, "{name}");
        }
    }

    #[test]
    fn the_old_way_to_name_a_class_counts_first() {
        let old = |class: &str| json!({"annotations": {OLD_CLASS: class}});
        for (metadata, named, want) in [
            (json!({}), None, None),
            (json!({}), Some("new"), Some("new")),
            (old("old"), None, Some("old")),
            (old("old"), Some("new"), Some("old")),
            (old(""), Some("new"), Some("")),
        ] {
            let object = json!({"metadata": metadata, "spec": {"storageClassName": named}});
            assert_eq!(claim_class(&from_tree(&object).expect("claim")), want, "{object}");
            assert_eq!(volume_class(&from_tree(&object).expect("volume")), want.unwrap_or_default(), "{object}");
        }
    }
}
