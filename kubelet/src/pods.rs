//! Short questions about pod objects.

use crate::annotations;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use shared::types::is_sidecar;

/// The pod's uid; static pods carry their hash, mirror pods their own.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// `name_namespace`, the name that static and mirror pods share.
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// `name_namespace(uid)`, as messages carry it.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// An annotation's value.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The API server's image of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, annotations::MIRROR).is_some()
}

/// Reports whether a mirror pod was made from this very manifest.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    annotation(pod, annotations::HASH) == annotation(mirror, annotations::MIRROR)
}

/// A pod from a file or URL.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, annotations::SOURCE).is_some_and(|s| s != annotations::SOURCE_API)
}

/// Uses the node's network.
pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.host_network.unwrap_or(false))
}

/// The grace period that a stop of this pod has to honour.
pub fn grace(pod: &Pod) -> i64 {
    pod.metadata
        .deletion_timestamp
        .as_ref()
        .and(pod.metadata.deletion_grace_period_seconds)
        .or_else(|| pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds))
        .unwrap_or(30)
}

/// Containers of a pod in the order in which they get what they have to themselves, with whether it passes that on: an init
/// container that ends before the next one starts.
pub fn by_start(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    pod.spec.iter().flat_map(|spec| {
        let first = spec.init_containers.iter().flatten().map(|container| (container, !is_sidecar(container)));
        first.chain(spec.containers.iter().map(|container| (container, false)))
    })
}

/// Status of a container in the pod object, where it is of the container with this runtime id.
pub fn told<'a>(pod: &'a Pod, name: &str, id: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let mut all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let told = all.find(|status| status.name == name)?;
    let (_, known) = told.container_id.as_deref()?.split_once("://")?;
    (known == id).then_some(told)
}

/// Must not be evicted for want of resources: static pods and those of the system priorities.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM_PRIORITY: i32 = 2_000_000_000;
    is_static(pod) || is_mirror(pod) || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_PRIORITY)
}
/// Time left of `activeDeadlineSeconds`. Answers for `pastActiveDeadline` of upstream's `activeDeadlineHandler`.
pub(crate) fn deadline_left(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<SignedDuration> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = status.start_time.as_ref()?.0;
    Some(SignedDuration::from_secs(seconds) - now.duration_since(start))
}
