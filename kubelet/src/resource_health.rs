//! Health of the resources that containers have to themselves, as their pods' status tells it: `allocatedResourcesStatus`,
//! behind the gate `ResourceHealthStatus`.
//!
//! In: what device plugins and drivers of dynamic resources say. Out: entries of statuses, and the pods whose status is
//! another by now. Upstream's `UpdateAllocatedResourcesStatus` and `resourceupdates`.

use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::Notify;

/// The gate.
pub const GATE: &str = "ResourceHealthStatus";

/// Health of a container's resources by name.
pub type ResourceHealths = BTreeMap<String, Vec<ResourceHealth>>;

/// The health of one device.
pub fn health_of(id: &str, health: &str) -> ResourceHealth {
    ResourceHealth { resource_id: id.to_owned(), health: Some(health.to_owned()) }
}

/// Entries of a container's status.
pub fn statuses(healths: ResourceHealths) -> Vec<ResourceStatus> {
    healths.into_iter().map(|(name, devices)| ResourceStatus { name, resources: Some(devices) }).collect()
}

/// Pods whose resources have another health by now: at most all pods of the node.
#[derive(Default)]
pub struct PodUpdates {
    uids: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl PodUpdates {
    /// Tells of pods.
    pub fn add(&self, uids: impl IntoIterator<Item = String>) {
        let mut known = self.uids.lock();
        known.extend(uids);
        if !known.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Waits for pods, and takes all.
    pub async fn take(&self) -> BTreeSet<String> {
        loop {
            let uids = std::mem::take(&mut *self.uids.lock());
            if !uids.is_empty() {
                return uids;
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pods_are_told_once() {
        let updates = PodUpdates::default();
        updates.add(Vec::new());
        updates.add(["a".to_owned(), "b".to_owned()]);
        updates.add(["a".to_owned()]);
        assert_eq!(updates.take().await.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        tokio::select! {
            biased;
            uids = updates.take() => panic!("{uids:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
}
