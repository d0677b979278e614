//! A pod as it is read from the wire: only what placing pods asks for is decoded and kept.
//!
//! HOT: runs for every watch event of every pod. Managed fields, annotations and most
//! of the status are skipped while reading.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

use super::pod::PodInfo;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    resources: Option<core::ResourceRequirements>,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<core::PodCondition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    resource_claim_statuses: Option<Vec<core::PodResourceClaimStatus>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pod {
    metadata: WireMeta,
    spec: Option<core::PodSpec>,
    status: Option<WireStatus>,
}

fn container_statuses(list: Option<Vec<ContainerStatus>>) -> Option<Vec<core::ContainerStatus>> {
    let full = |s: ContainerStatus| core::ContainerStatus {
        name: s.name,
        resources: s.resources,
        allocated_resources: s.allocated_resources,
        ..core::ContainerStatus::default()
    };
    list.map(|list| list.into_iter().map(full).collect())
}

impl From<Pod> for core::Pod {
    fn from(pod: Pod) -> Self {
        let m = pod.metadata;
        let status = pod.status.map(|s| core::PodStatus {
            phase: s.phase,
            start_time: s.start_time,
            nominated_node_name: s.nominated_node_name,
            conditions: s.conditions,
            container_statuses: container_statuses(s.container_statuses),
            init_container_statuses: container_statuses(s.init_container_statuses),
            resource_claim_statuses: s.resource_claim_statuses,
            ..core::PodStatus::default()
        });
        Self {
            metadata: ObjectMeta {
                name: m.name,
                namespace: m.namespace,
                uid: m.uid,
                resource_version: m.resource_version,
                generation: m.generation,
                labels: m.labels,
                owner_references: m.owner_references,
                creation_timestamp: m.creation_timestamp,
                deletion_timestamp: m.deletion_timestamp,
                ..ObjectMeta::default()
            },
            spec: pod.spec,
            status,
        }
    }
}

impl<'de> Deserialize<'de> for PodInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pod::deserialize(deserializer).map(|pod| Self::from_api(&pod.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_matters_is_lost() {
        let text = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"app": "a"}, "annotations": {"x": "y"}, "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "2026-01-02T03:04:06Z", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n", "priority": 5, "containers": [{"name": "c", "image": "i", "env": [{"name": "A"}],
                "resources": {"requests": {"cpu": "1"}}}], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
            "status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z", "nominatedNodeName": "m",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "why"}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "1"}}, "state": {"running": {}}}],
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]},
        });
        let full: core::Pod = serde_json::from_value(text.clone()).expect("pod");
        let (read, want) = (serde_json::from_value::<PodInfo>(text).expect("pod"), PodInfo::from_api(&full));
        assert_eq!(format!("{read:?}"), format!("{want:?}"));
        assert_eq!((read.requests.milli_cpu, read.preempted, read.terminating), (2000, true, true));
    }
}
