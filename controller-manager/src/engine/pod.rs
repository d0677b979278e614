//! A pod as controllers see it: the fields that one of them reads, under their API names, and nothing else.
//!
//! What is not named here is skipped while a pod is decoded, and what replicas have in common is held once for all of
//! them, so that tens of thousands of pods fit in little memory. A field that a controller comes to need is added here.
//! These pods are never written back whole; controllers create pods of the API's own type.

#![allow(missing_docs, reason = "fields have the names that the API describes")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::Resource as _;
use proto::numbers::core_v1::volume_source;
use proto::schema::Message;
use serde::{Deserialize, Serialize};
use shared::csi;
use shared::informer::{Cached, Interned, Text};

use super::object::{Held, Metadata};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata of the pod.
    pub metadata: Meta,
    /// Specification of the pod.
    pub spec: Option<PodSpec>,
    /// Status of the pod.
    pub status: Option<PodStatus>,
}

/// Fields of a pod's metadata that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct Meta {
    pub name: Option<Arc<str>>,
    pub namespace: Option<Text>,
    pub uid: Option<Arc<str>>,
    pub resource_version: Option<Box<str>>,
    pub generation: Option<i64>,
    pub creation_timestamp: Option<Time>,
    pub deletion_timestamp: Option<Time>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: Option<Interned<Labels>>,
    /// Without those of tools, once [`slim`] has seen it.
    pub annotations: Option<Box<Labels>>,
    pub owner_references: Option<Interned<Vec<OwnerReference>>>,
    pub finalizers: Option<Interned<Vec<String>>>,
}

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

impl Metadata for Meta {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_deref()
    }

    fn annotations(&self) -> Option<&Labels> {
        self.annotations.as_deref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    fn created(&self) -> Option<&Time> {
        self.creation_timestamp.as_ref()
    }

    fn deleted(&self) -> Option<&Time> {
        self.deletion_timestamp.as_ref()
    }

    fn held_name(&self) -> Arc<str> {
        self.name.clone().unwrap_or_default()
    }

    fn held_uid(&self) -> Arc<str> {
        self.uid.clone().unwrap_or_default()
    }
}

/// Fields of a pod's specification that controllers read. Reads as its [`Template`], besides what it has for itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct PodSpec {
    pub node_name: Option<Text>,
    pub hostname: Option<Box<str>>,
    pub resource_claims: Option<Box<[core::PodResourceClaim]>>,
    #[serde(deserialize_with = "claims")]
    pub volumes: Option<Box<[Volume]>>,
    /// Fields that it has in common with its replicas.
    #[serde(flatten)]
    pub template: Interned<Template>,
}

impl Deref for PodSpec {
    type Target = Template;

    fn deref(&self) -> &Template {
        &self.template
    }
}

/// The part of a specification that all replicas share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct Template {
    pub subdomain: Option<Text>,
    pub priority_class_name: Option<Text>,
    pub active_deadline_seconds: Option<i64>,
    #[serde(deserialize_with = "or_none")]
    pub containers: Vec<Container>,
    pub init_containers: Option<Vec<Container>>,
    pub tolerations: Option<Vec<core::Toleration>>,
    pub affinity: Option<core::Affinity>,
    pub resources: Option<core::ResourceRequirements>,
    pub overhead: Option<Amounts>,
    pub scheduling_gates: Option<Vec<core::PodSchedulingGate>>,
}

/// By resource.
pub type Amounts = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

/// Fields of a container that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct Container {
    pub name: String,
    pub ports: Option<Vec<core::ContainerPort>>,
    pub resources: Option<core::ResourceRequirements>,
    pub restart_policy: Option<String>,
}

/// A volume that is a claim, or one that is attached to the pod's node without any; others are of no interest.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the API's names")]
pub struct Volume {
    pub name: String,
    pub persistent_volume_claim: Option<core::PersistentVolumeClaimVolumeSource>,
    pub ephemeral: Option<Box<core::EphemeralVolumeSource>>,
    /// One that names a disk itself, as it is written.
    pub disk: Option<Box<core::Volume>>,
}

/// Fields of a volume's source that name a disk.
pub(super) const DISKS: [u32; 10] = [
    volume_source::GCE_PERSISTENT_DISK,
    volume_source::AWS_ELASTIC_BLOCK_STORE,
    volume_source::ISCSI,
    volume_source::FLEX_VOLUME,
    volume_source::CINDER,
    volume_source::FC,
    volume_source::AZURE_FILE,
    volume_source::VSPHERE_VOLUME,
    volume_source::AZURE_DISK,
    volume_source::PORTWORX_VOLUME,
];

impl Volume {
    fn kept(mut volume: core::Volume) -> Option<Self> {
        let is_listed = volume.fc.is_some() || volume.iscsi.is_some() || volume.flex_volume.is_some();
        let disk = is_listed || csi::plugin_of(&volume).is_some();
        let (claim, ephemeral) = (volume.persistent_volume_claim.take(), volume.ephemeral.take().map(Box::new));
        (disk || claim.is_some() || ephemeral.is_some()).then(|| Self {
            name: volume.name.clone(),
            persistent_volume_claim: claim,
            ephemeral,
            disk: disk.then(|| Box::new(volume)),
        })
    }
}

/// Go writes an empty list as null.
fn or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Container>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn claims<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<[Volume]>>, D::Error> {
    let all = Option::<Vec<core::Volume>>::deserialize(deserializer)?.unwrap_or_default();
    let kept: Vec<Volume> = all.into_iter().filter_map(Volume::kept).collect();
    Ok((!kept.is_empty()).then(|| kept.into_boxed_slice()))
}

/// Fields of a pod's status that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct PodStatus {
    pub phase: Option<Text>,
    pub reason: Option<Text>,
    pub start_time: Option<Time>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<Box<str>>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Box<[PodIp]>>,
    pub conditions: Option<Box<[PodCondition]>>,
    pub container_statuses: Option<Box<[ContainerStatus]>>,
    pub init_container_statuses: Option<Box<[ContainerStatus]>>,
    pub resource_claim_statuses: Option<Box<[core::PodResourceClaimStatus]>>,
    pub extended_resource_claim_status: Option<Box<ExtendedClaim>>,
}

/// The claim that the scheduler made for a pod's extended resources.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct ExtendedClaim {
    pub resource_claim_name: Box<str>,
}

/// One address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the API's names")]
pub struct PodIp {
    pub ip: Box<str>,
}

/// A condition without its words, of which a single one matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub type_: Text,
    pub status: Text,
    #[serde(default)]
    pub last_transition_time: Option<Time>,
    #[serde(default, rename = "reason")]
    pub infeasible: Infeasible,
}

/// Records that a reason is `Infeasible`: the requested resources cannot be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Infeasible(pub bool);

impl From<&str> for Infeasible {
    fn from(reason: &str) -> Self {
        Self(reason == "Infeasible")
    }
}

impl<'de> Deserialize<'de> for Infeasible {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Cow<'de, str>>::deserialize(deserializer)?.as_deref().unwrap_or_default().into())
    }
}

/// Fields of a container's status that controllers read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct ContainerStatus {
    pub name: Text,
    #[serde(default)]
    pub ready: bool,
    #[serde(default)]
    pub restart_count: i32,
    #[serde(default)]
    pub state: Option<ContainerState>,
    /// Resources of the container. Replicas share them, as they mostly do with their requests.
    #[serde(default)]
    pub resources: Option<Interned<core::ResourceRequirements>>,
    /// Resources that the kubelet has promised.
    #[serde(default)]
    pub allocated_resources: Option<Interned<Amounts>>,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the API's names")]
pub struct ContainerState {
    pub waiting: Option<Waiting>,
    pub terminated: Option<Box<Terminated>>,
}

/// The container is not started yet, or not again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Waiting {}

/// The container has ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the API's names")]
pub struct Terminated {
    pub exit_code: i32,
    pub finished_at: Option<Time>,
}

/// Pods are found where the API has them.
impl Cached for Pod {
    fn kind_name() -> Cow<'static, str> {
        core::Pod::kind(&())
    }

    fn collection_path(namespace: Option<&str>) -> String {
        core::Pod::url_path(&(), namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        (self.metadata.namespace().unwrap_or_default(), self.metadata.name().unwrap_or_default())
    }

    fn cache_version(&self) -> Option<&str> {
        self.metadata.resource_version()
    }

    fn schema() -> Option<&'static Message> {
        Some(proto::schema::pod())
    }
}

impl Held for Pod {
    type Api = core::Pod;
    type Meta = Meta;

    fn metadata(&self) -> &Meta {
        &self.metadata
    }
}

/// Reports whether a controller may read an annotation: those of tools are not kept.
pub(super) fn worth_keeping(annotation: &str) -> bool {
    annotation.contains("kubernetes.io/") && !annotation.starts_with("kubectl.kubernetes.io/")
}

/// Leaves out the annotations that no controller reads.
pub fn slim(pod: &mut Pod) {
    let meta = &mut pod.metadata;
    if let Some(annotations) = meta.annotations.as_mut() {
        annotations.retain(|key, _| worth_keeping(key));
    }
    meta.annotations.take_if(|all| all.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keeps_what_controllers_read() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}",
                "controller.kubernetes.io/pod-deletion-cost": "5", "tool.example.com/x": "y"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}],
                "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}}],
                "volumes": [{"name": "e", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "d"}},
                    {"name": "c", "cinder": {"volumeID": "x"}}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "message": "m"}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "x", "ready": true, "restartCount": 2}]}}))
        .expect("pod");
        slim(&mut pod);
        assert_eq!(pod.metadata.annotations.as_ref().map(|a| a.len()), Some(1));
        let spec = pod.spec.expect("spec");
        assert_eq!(spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["d", "c"]);
        assert_eq!(spec.containers.iter().filter(|c| c.ports.is_some() && c.resources.is_some()).count(), 1);
        let status = pod.status.expect("status");
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.container_statuses.iter().flatten().map(|c| c.restart_count).sum::<i32>(), 2);
    }

    #[test]
    fn is_small() {
        assert!(size_of::<Pod>() <= 448, "{}", size_of::<Pod>());
    }
}
