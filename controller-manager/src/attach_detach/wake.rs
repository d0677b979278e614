//! Changes that are worth a look at a node. Answers for upstream's `pkg/controller/volume/attachdetach` (`podAdd`,
//! `enqueuePVC`).

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use super::plan;
use crate::engine::pod::Pod;
use crate::engine::{nodes, object, pods};

/// Reports whether a node changed in what this controller reads; heartbeats do not count.
pub(super) fn concerns(event: &Event<Node>) -> bool {
    let Event::Updated { old, new } = event else { return true };
    let status = |n: &Node| n.status.as_ref().map(|s| (s.volumes_in_use.clone(), s.volumes_attached.clone()));
    let notes = |n: &Node| {
        [plan::MANAGED, plan::KEEP_TERMINATED].map(|a| object::annotation(&n.metadata, a).map(str::to_owned))
    };
    status(old) != status(new)
        || notes(old) != notes(new)
        || nodes::ready(old) != nodes::ready(new)
        || nodes::taints(old) != nodes::taints(new)
}

/// Reports whether a claim has become bound to a volume.
pub(super) fn bound_now(event: &Event<PersistentVolumeClaim>) -> bool {
    let volume = |c: &PersistentVolumeClaim| c.spec.as_ref().and_then(|s| s.volume_name.clone());
    let phase = |c: &PersistentVolumeClaim| c.status.as_ref().and_then(|s| s.phase.clone());
    match event {
        Event::Added(claim) => phase(claim).as_deref() == Some("Bound"),
        Event::Updated { old, new } => (volume(old), phase(old)) != (volume(new), phase(new)),
        Event::Deleted(_) => false,
    }
}

/// Look at the nodes of the pods that use a claim.
pub(super) fn wake_users(pods: &Store<Pod>, namespace: &str, claim: &str, queue: &Queue<String>) {
    for pod in pods::users_of(pods, namespace, claim) {
        if !pods::node(&pod).is_empty() {
            queue.add(pods::node(&pod).to_owned());
        }
    }
}
