//! What components ask of objects of the typed API (`k8s-openapi`).

use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

/// An object of a tree, by way of its text: so a program has one decoder of each API type, that of bytes, which informers
/// use. Another one for trees is half a megabyte for pods alone.
///
/// # Errors
/// The tree is none of such an object.
pub fn from_tree<T: DeserializeOwned>(tree: &Value) -> serde_json::Result<T> {
    serde_json::from_slice(&serde_json::to_vec(tree)?)
}
