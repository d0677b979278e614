//! The typed API (`k8s-openapi`) under short names, and what at least two components ask of these types.

pub mod selector;
pub mod taints;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use k8s_openapi;
pub use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
pub use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
pub use k8s_openapi::api::authorization::v1::SubjectAccessReview;
pub use k8s_openapi::api::batch::v1::{CronJob, Job};
pub use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
pub use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
pub use k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Container, ContainerPort, ContainerState, ContainerStatus, EndpointAddress,
    EndpointPort as CoreEndpointPort, EndpointSubset, Endpoints, EnvVar, Event as CoreEvent, EventSource, LimitRange,
    Namespace, Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, ObjectReference, PersistentVolume,
    PersistentVolumeClaim, Pod, PodCondition, PodSpec, PodStatus, PodTemplateSpec, Probe, ReplicationController,
    ResourceQuota, Secret, Service, ServiceAccount, ServicePort, ServiceSpec, Taint, Toleration, Volume, VolumeMount,
};
pub use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
pub use k8s_openapi::api::events::v1::Event as EventsEvent;
pub use k8s_openapi::api::networking::v1::{IPAddress, Ingress, NetworkPolicy, ServiceCIDR};
pub use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
pub use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
pub use k8s_openapi::api::scheduling::v1::PriorityClass;
pub use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    Condition, LabelSelector, LabelSelectorRequirement, MicroTime, ObjectMeta, OwnerReference, Time,
};
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use kube::Resource;

/// Now, to the second, as API times are written.
pub fn now() -> Time {
    let now = jiff::Timestamp::now();
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Now with microseconds.
pub fn now_micro() -> MicroTime {
    let now = jiff::Timestamp::now();
    MicroTime(jiff::Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

/// The owner that controls an object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref()?.iter().find(|o| o.controller == Some(true))
}

/// True when `uid` controls the object.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|o| o.uid == uid)
}

/// A controlling owner reference with `blockOwnerDeletion`, as controllers write it.
pub fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
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

/// A node's condition.
pub fn node_condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_deref()?.iter().find(|c| c.type_ == kind)
}

/// The pod's phase, or empty.
pub fn pod_phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

/// Condition `Ready` is `True`.
pub fn is_pod_ready(pod: &Pod) -> bool {
    pod_condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// `Succeeded` or `Failed`.
pub fn is_pod_terminal(pod: &Pod) -> bool {
    matches!(pod_phase(pod), "Succeeded" | "Failed")
}

/// Neither terminal nor being deleted.
pub fn is_pod_active(pod: &Pod) -> bool {
    !is_pod_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Ready for at least `min_ready_seconds` at `now`.
pub fn is_pod_available(pod: &Pod, min_ready_seconds: i32, now: jiff::Timestamp) -> bool {
    let Some(ready) = pod_condition(pod, "Ready").filter(|c| c.status == "True") else { return false };
    if min_ready_seconds <= 0 {
        return true;
    }
    let since = ready.last_transition_time.as_ref().map(|t| t.0);
    since.is_some_and(|t| now.as_second() - t.as_second() >= i64::from(min_ready_seconds))
}

/// Condition `Ready` of a node is `True`.
pub fn is_node_ready(node: &Node) -> bool {
    node_condition(node, "Ready").is_some_and(|c| c.status == "True")
}

/// The name of the node a pod is bound to, or empty.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

/// An object of a tree, by way of its text: so a program has one decoder of each API type, that of bytes, which informers
/// use. Another one for trees is half a megabyte for pods alone.
///
/// # Errors
/// The tree is none of such an object.
pub fn from_tree<T: DeserializeOwned>(tree: &Value) -> serde_json::Result<T> {
    serde_json::from_slice(&serde_json::to_vec(tree)?)
}
