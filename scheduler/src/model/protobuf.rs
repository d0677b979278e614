//! A pod as it is read from protobuf, the form in which it comes from the API server.
//!
//! HOT: runs for every watch event of every pod (held by `e2e/examples/scheduler`). Pods of one template say the same of
//! what they demand, byte for byte, so those bytes are only hashed: a [`Demand`] is made for the first pod of its kind, by
//! way of JSON, and found again for the others. What is left are a few fields that every pod has for itself. Must not read
//! anything that [`super::pod::PodInfo::from_api`] does not, nor less.

use std::sync::Arc;

use jiff::Timestamp;
use proto::numbers::core_v1::{
    container, container_status, pod, pod_condition, pod_spec, pod_status, volume, volume_source,
};
use proto::numbers::meta_v1::{self, object_meta};
use proto::protobuf::{self, Error, Wire, fields, sign_parts};
use proto::schema;
use shared::informer::Memo;
use shared::typed::ReadError;

use super::demand::{Demand, Interner};
use super::pod::PodInfo;

/// Fields of `spec` that a demand is made of, besides containers and volumes.
const SPEC: [u32; 11] = [
    pod_spec::NODE_SELECTOR,
    pod_spec::AFFINITY,
    pod_spec::SCHEDULER_NAME,
    pod_spec::TOLERATIONS,
    pod_spec::PRIORITY,
    pod_spec::PREEMPTION_POLICY,
    pod_spec::OVERHEAD,
    pod_spec::TOPOLOGY_SPREAD_CONSTRAINTS,
    pod_spec::SCHEDULING_GATES,
    pod_spec::RESOURCES,
    pod_spec::WORKLOAD_REF,
];
/// Fields of a container that a demand is made of.
const CONTAINER: [u32; 6] = [
    container::NAME,
    container::IMAGE,
    container::PORTS,
    container::RESOURCES,
    container::RESTART_POLICY,
    container::RESTART_POLICY_RULES,
];
/// Fields of a container's status that a demand is made of.
const CONTAINER_STATUS: [u32; 3] =
    [container_status::NAME, container_status::ALLOCATED_RESOURCES, container_status::RESOURCES];
/// Sources of volumes that matter.
const VOLUMES: [u32; 9] = [
    volume_source::GCE_PERSISTENT_DISK,
    volume_source::AWS_ELASTIC_BLOCK_STORE,
    volume_source::ISCSI,
    volume_source::PERSISTENT_VOLUME_CLAIM,
    volume_source::RBD,
    volume_source::CINDER,
    volume_source::AZURE_DISK,
    volume_source::PORTWORX_VOLUME,
    volume_source::EPHEMERAL,
];

/// See the module.
#[derive(Debug, Default)]
pub struct PodReader {
    /// Demands that pods share, however they are read.
    pub interner: Interner,
    known: Memo<Demand>,
    signature: Vec<u8>,
}

/// Fields that a pod has for itself.
#[derive(Default)]
struct Own<'a> {
    name: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    generation: i64,
    created: Option<Timestamp>,
    terminating: bool,
    node_name: &'a str,
    nominated: &'a str,
    phase: &'a str,
    started: Option<Timestamp>,
    preempted: Option<bool>,
    unscheduled: Option<Option<Box<(String, String)>>>,
}

fn text<'a>(value: Wire<'a>, field: &str) -> Result<&'a str, Error> {
    // Broken text names nothing that exists.
    Ok(std::str::from_utf8(value.bytes(field)?).unwrap_or_default())
}

/// A time as JSON has it, in whole seconds.
fn time(value: Wire<'_>, field: &str) -> Result<Option<Timestamp>, Error> {
    let message = value.bytes(field)?;
    if message.is_empty() {
        return Ok(None);
    }
    let mut seconds = 0;
    for field in fields(message) {
        if let (meta_v1::time::SECONDS, value) = field? {
            seconds = value.int("seconds")?;
        }
    }
    Ok(Timestamp::from_second(seconds).ok())
}

impl PodReader {
    /// Reads a pod without its envelope.
    ///
    /// # Errors
    /// Bytes that are no pod.
    pub fn read(&mut self, raw: &[u8]) -> Result<PodInfo, ReadError> {
        let mut signature = std::mem::take(&mut self.signature);
        signature.clear();
        let own = survey(raw, &mut signature);
        let key = self.known.signature(&signature);
        self.signature = signature;
        let Some(own) = own? else { return self.read_fully(raw) };
        let Some(demand) = self.known.find(key) else {
            let pod = self.read_fully(raw)?;
            self.known.keep(key, &pod.demand);
            return Ok(pod);
        };
        Ok(self.assemble(&own, demand))
    }

    fn assemble(&mut self, own: &Own<'_>, demand: Arc<Demand>) -> PodInfo {
        let interner = &mut self.interner;
        let mut named = |name: &str| (!name.is_empty()).then(|| interner.text(name));
        PodInfo {
            name: own.name.into(),
            uid: own.uid.into(),
            resource_version: own.resource_version.into(),
            generation: Some(own.generation).filter(|n| *n != 0),
            node_name: named(own.node_name),
            nominated: named(own.nominated),
            created: own.created.unwrap_or(Timestamp::UNIX_EPOCH),
            started: own.started,
            terminating: own.terminating,
            preempted: own.preempted.unwrap_or(false),
            finished: matches!(own.phase, "Succeeded" | "Failed"),
            unscheduled: own.unscheduled.clone().flatten(),
            resource_claims: None,
            demand,
        }
    }

    /// By way of JSON.
    fn read_fully(&mut self, raw: &[u8]) -> Result<PodInfo, ReadError> {
        let mut json = Vec::new();
        protobuf::to_json(schema::pod(), "v1", "Pod", raw, &mut json)?;
        let mut pod: PodInfo = serde_json::from_slice(&json)?;
        pod.intern(&mut self.interner);
        Ok(pod)
    }
}

/// Reads the fields that the pod has for itself, and the signature of its demand; `None` for pods that have more for
/// themselves.
fn survey<'a>(raw: &'a [u8], signature: &mut Vec<u8>) -> Result<Option<Own<'a>>, Error> {
    let mut own = Own::default();
    for field in fields(raw) {
        match field? {
            (pod::METADATA, value) => metadata(value.bytes("metadata")?, &mut own, signature)?,
            (pod::SPEC, value) => {
                if !spec(value.bytes("spec")?, &mut own, signature)? {
                    return Ok(None);
                }
            }
            (pod::STATUS, value) => status(value.bytes("status")?, &mut own, signature)?,
            _ => {}
        }
    }
    Ok(Some(own))
}

fn metadata<'a>(message: &'a [u8], own: &mut Own<'a>, signature: &mut Vec<u8>) -> Result<(), Error> {
    for field in fields(message) {
        let (number, value) = field?;
        match number {
            object_meta::NAME => own.name = text(value, "name")?,
            object_meta::UID => own.uid = text(value, "uid")?,
            object_meta::RESOURCE_VERSION => own.resource_version = text(value, "resourceVersion")?,
            object_meta::GENERATION => own.generation = value.int("generation")?,
            object_meta::CREATION_TIMESTAMP => own.created = time(value, "creationTimestamp")?,
            object_meta::DELETION_TIMESTAMP => own.terminating = true,
            object_meta::NAMESPACE | object_meta::LABELS | object_meta::OWNER_REFERENCES => {
                value.sign(number, signature)
            }
            _ => {}
        }
    }
    Ok(())
}

/// `false` when the pod has claims of its own.
fn spec<'a>(message: &'a [u8], own: &mut Own<'a>, signature: &mut Vec<u8>) -> Result<bool, Error> {
    const PLACE: u32 = 1 << 16;
    for field in fields(message) {
        let (number, value) = field?;
        match number {
            pod_spec::VOLUMES => volume(value.bytes("volumes")?, own, signature)?,
            pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS => {
                sign_parts(value.bytes("containers")?, PLACE + number, &CONTAINER, signature)?
            }
            pod_spec::NODE_NAME => own.node_name = text(value, "nodeName")?,
            pod_spec::RESOURCE_CLAIMS => return Ok(false),
            number if SPEC.contains(&number) => value.sign(PLACE + number, signature),
            _ => {}
        }
    }
    Ok(true)
}

fn volume(message: &[u8], own: &Own<'_>, signature: &mut Vec<u8>) -> Result<(), Error> {
    const PLACE: u32 = 2 << 16;
    for field in fields(message) {
        let (volume::VOLUME_SOURCE, source) = field? else { continue };
        for field in fields(source.bytes("volumeSource")?) {
            let (number, value) = field?;
            if number == volume_source::EPHEMERAL {
                // Its claim is named after the pod and the volume.
                Wire::Bytes(own.name.as_bytes()).sign(PLACE, signature);
                Wire::Bytes(message).sign(PLACE + volume_source::EPHEMERAL, signature);
            } else if VOLUMES.contains(&number) {
                value.sign(PLACE + number, signature);
            }
        }
    }
    Ok(())
}

fn status<'a>(message: &'a [u8], own: &mut Own<'a>, signature: &mut Vec<u8>) -> Result<(), Error> {
    const PLACE: u32 = 3 << 16;
    for field in fields(message) {
        let (number, value) = field?;
        match number {
            pod_status::PHASE => own.phase = text(value, "phase")?,
            pod_status::CONDITIONS => condition(value.bytes("conditions")?, own, signature)?,
            pod_status::START_TIME => own.started = time(value, "startTime")?,
            pod_status::CONTAINER_STATUSES | pod_status::INIT_CONTAINER_STATUSES => {
                container_status(value.bytes("containerStatuses")?, PLACE + number, signature)?
            }
            pod_status::NOMINATED_NODE_NAME => own.nominated = text(value, "nominatedNodeName")?,
            _ => {}
        }
    }
    Ok(())
}

/// A status counts as soon as it names an amount.
fn container_status(message: &[u8], place: u32, signature: &mut Vec<u8>) -> Result<(), Error> {
    let before = signature.len();
    sign_parts(message, place, &CONTAINER_STATUS, signature)?;
    let mut amounts = false;
    for field in fields(message) {
        amounts |= matches!(field?.0, container_status::ALLOCATED_RESOURCES | container_status::RESOURCES);
    }
    if !amounts {
        signature.truncate(before);
    }
    Ok(())
}

fn condition(message: &[u8], own: &mut Own<'_>, signature: &mut Vec<u8>) -> Result<(), Error> {
    const PLACE: u32 = 4 << 16;
    let (mut kind, mut status, mut reason, mut note) = ("", "", "", "");
    for field in fields(message) {
        match field? {
            (pod_condition::TYPE, value) => kind = text(value, "type")?,
            (pod_condition::STATUS, value) => status = text(value, "status")?,
            (pod_condition::REASON, value) => reason = text(value, "reason")?,
            (pod_condition::MESSAGE, value) => note = text(value, "message")?,
            _ => {}
        }
    }
    match kind {
        "DisruptionTarget" if own.preempted.is_none() => {
            own.preempted = Some(status == "True" && reason == "PreemptionByScheduler");
        }
        "PodScheduled" if own.unscheduled.is_none() => {
            own.unscheduled = Some((status == "False").then(|| Box::new((reason.to_owned(), note.to_owned()))));
        }
        "PodResizePending" => {
            Wire::Bytes(status.as_bytes()).sign(PLACE, signature);
            Wire::Bytes(reason.as_bytes()).sign(PLACE, signature);
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn full() -> Value {
        json!({
            "metadata": {"name": "p-1", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"app": "a", "z": "1"}, "annotations": {"x": "y"}, "creationTimestamp": "2026-01-02T03:04:05Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n", "priority": 5, "schedulerName": "s", "nodeSelector": {"a": "b"}, "preemptionPolicy": "Never",
                "workloadRef": {"name": "w", "podGroup": "g", "podGroupReplicaKey": "r"},
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}},
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "a"}}}],
                "overhead": {"cpu": "10m"}, "schedulingGates": [{"name": "g"}],
                "volumes": [{"name": "kube-api-access-abcde", "projected": {"sources": []}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}}],
                "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
                "containers": [{"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}],
                    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}], "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z", "nominatedNodeName": "m",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "why"}],
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": {"cpu": "500m"}, "resources": {"requests": {"cpu": "400m"}}, "state": {"running": {}}}]},
        })
    }

    fn with(pointer: &str, key: &str, value: Value) -> Value {
        let mut pod = full();
        pod.pointer_mut(pointer).expect("pointer")[key] = value;
        pod
    }

    fn bytes(pod: &Value) -> Vec<u8> {
        protobuf::encode(schema::pod(), pod)
    }

    fn of_json(pod: &Value) -> PodInfo {
        serde_json::from_value(pod.clone()).expect("pod")
    }

    #[test]
    fn reads_what_json_says_also_when_the_demand_is_known() {
        let mut reader = PodReader::default();
        let bare = json!({"metadata": {"name": "bare", "namespace": "ns"}, "spec": {"containers": []}});
        for pod in [full(), with("/metadata", "name", json!("p-2")), bare] {
            for _ in 0..2 {
                let read = reader.read(&bytes(&pod)).expect("pod");
                assert_eq!(format!("{read:?}"), format!("{:?}", of_json(&pod)));
            }
        }
    }

    #[test]
    fn pods_of_one_template_share_their_demand() {
        let mut reader = PodReader::default();
        let no_ephemeral = |name: &str, token: &str, node: &str| {
            let mut pod = with("/metadata", "name", json!(name));
            pod["metadata"]["uid"] = json!(name);
            pod["spec"]["nodeName"] = json!(node);
            pod["spec"]["volumes"] = json!([{"name": token, "projected": {"sources": []}}]);
            pod["status"]["containerStatuses"][0]["restartCount"] = json!(name.len());
            pod["spec"]["containers"][0]["env"][0]["value"] = json!(name);
            pod
        };
        let a = reader.read(&bytes(&no_ephemeral("a", "t-1", "x"))).expect("pod");
        let b = reader.read(&bytes(&no_ephemeral("bb", "t-2", "y"))).expect("pod");
        assert!(Arc::ptr_eq(&a.demand, &b.demand));
        assert_eq!((&*b.name, b.node_name.as_deref()), ("bb", Some("y")));
    }

    #[test]
    fn whatever_changes_a_demand_is_seen() {
        let changed = [
            with("/metadata", "namespace", json!("other")),
            with("/metadata/labels", "app", json!("b")),
            with("/metadata/ownerReferences/0", "name", json!("other")),
            with("/spec", "priority", json!(6)),
            with("/spec", "schedulerName", json!("other")),
            with("/spec", "nodeSelector", json!({"a": "c"})),
            with("/spec", "preemptionPolicy", json!("PreemptLowerPriority")),
            with("/spec", "affinity", json!({})),
            with("/spec/tolerations/0", "key", json!("other")),
            with("/spec/topologySpreadConstraints/0", "maxSkew", json!(2)),
            with("/spec", "overhead", json!({"cpu": "20m"})),
            with("/spec", "schedulingGates", json!([])),
            with("/spec", "resources", json!({"requests": {"cpu": "9"}})),
            with("/spec/volumes/1/persistentVolumeClaim", "claimName", json!("d")),
            with("/spec/volumes/2", "name", json!("f")),
            with("/spec/volumes/0", "cinder", json!({"volumeID": "v"})),
            with("/spec/volumes/0", "azureDisk", json!({"diskName": "v", "diskURI": "v"})),
            with("/spec/volumes/0", "portworxVolume", json!({"volumeID": "v"})),
            with("/metadata", "name", json!("p-2")),
            with("/spec/initContainers/0", "restartPolicy", Value::Null),
            with("/spec/containers/0", "restartPolicyRules", json!([{"action": "RestartAllContainers"}])),
            with("/spec/containers/0", "image", json!("other")),
            with("/spec/containers/0/ports/0", "hostPort", json!(81)),
            with("/spec/containers/0/resources", "requests", json!({"cpu": "3"})),
            with("/status/containerStatuses/0", "allocatedResources", json!({"cpu": "3"})),
            with("/status/containerStatuses/0", "resources", json!({"requests": {"cpu": "4"}})),
            with(
                "/status",
                "conditions",
                json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]),
            ),
        ];
        let mut reader = PodReader::default();
        let first = reader.read(&bytes(&full())).expect("pod");
        for pod in changed {
            let (read, want) = (reader.read(&bytes(&pod)).expect("pod"), of_json(&pod));
            assert_eq!(read.demand, want.demand);
            assert_ne!(read.demand, first.demand, "{pod}");
        }
    }

    #[test]
    fn claims_are_the_pods_own() {
        let pod = with("/spec", "resourceClaims", json!([{"name": "gpu", "resourceClaimName": "claim"}]));
        let mut reader = PodReader::default();
        for _ in 0..2 {
            let read = reader.read(&bytes(&pod)).expect("pod");
            assert_eq!(read.resource_claims, of_json(&pod).resource_claims);
        }
        assert!(reader.read(&[0x0a, 0xff]).is_err());
    }
}
