//! Capacities that CSI drivers still have, place by place (`CSIStorageCapacity`). Answers for upstream's
//! `hasEnoughCapacity`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::framework::plugin::Context;
use crate::model::resource::value;
use crate::model::{NodeBase, Selector};

/// Reports whether a driver publishes its capacity, so that it counts.
pub(super) fn published(driver: &CSIDriver) -> bool {
    driver.spec.storage_capacity == Some(true)
}

/// Reports whether a driver has more capacity than before.
pub(super) fn grew(old: &CSIStorageCapacity, new: &CSIStorageCapacity) -> bool {
    let more =
        |old: &Option<Quantity>, new: &Option<Quantity>| new.as_ref().map_or(0, value) > old.as_ref().map_or(0, value);
    more(&old.maximum_volume_size, &new.maximum_volume_size) || more(&old.capacity, &new.capacity)
}

/// Place where a volume can be made.
pub(super) enum Place {
    /// Drivers that publish nothing are trusted.
    Untold,
    /// So much can still be made there.
    Told(Arc<CSIStorageCapacity>),
    /// Nowhere within the node's reach.
    Nowhere,
}

/// Place where a volume for the claim can be made so that the node can reach it.
pub(super) fn place(cx: Context<'_>, claim: &PersistentVolumeClaim, class: &StorageClass, node: &NodeBase) -> Place {
    let wanted = requested(claim);
    if wanted == 0 || !cx.listers.csi_driver(&class.provisioner).is_some_and(|d| published(&d)) {
        return Place::Untold;
    }
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let found = cx.listers.storage_capacities(name).into_iter().find(|c| fits(c, wanted) && reaches(c, node));
    found.map_or(Place::Nowhere, Place::Told)
}

/// Bytes that a claim asks for.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let resources = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
    resources.and_then(|r| r.requests.as_ref()?.get("storage")).map_or(0, value)
}

/// The largest single volume counts when it is known, otherwise all that is left.
fn fits(capacity: &CSIStorageCapacity, wanted: i64) -> bool {
    let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
    limit.is_some_and(|l| value(l) >= wanted)
}

fn reaches(capacity: &CSIStorageCapacity, node: &NodeBase) -> bool {
    capacity.node_topology.as_ref().is_some_and(|t| Selector::from_api(Some(t)).matches(&node.labels))
}
