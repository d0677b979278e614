//! A pod as it is read from protobuf, the form in which it comes from the API server.
//!
//! HOT: runs for every change of every pod (held by `e2e/examples/controllers`). What replicas have in common is the same
//! byte for byte, so those bytes are only hashed: the [`Template`], the labels and the owners are made for the first of
//! them and found again for the others. The few pods that have claims of dynamic resources or volumes made for them, or
//! that name disks themselves, are read by way of JSON, as is the first pod of each template. Must not read anything that
//! [`Pod`] does not name, nor less.

use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use proto::numbers::core_v1::{container, container_status, pod, pod_spec, pod_status, volume, volume_source};
use proto::numbers::map_entry;
use proto::numbers::meta_v1::object_meta;
use proto::protobuf::{self, Error, Wire, fields, sign_parts};
use proto::schema;
use shared::informer::{Interned, Memo, Signature};
use shared::typed::ReadError;

use super::pod::{
    Amounts, ContainerState, ContainerStatus, DISKS, Infeasible, Labels, Meta, Pod, PodCondition, PodIp, PodSpec,
    PodStatus, Template, Terminated, Volume, Waiting, slim, worth_keeping,
};
use super::wire::{Wired, optional, text, wired};

/// Fields of a specification that are in its template, besides containers.
const TEMPLATE: [u32; 8] = [
    pod_spec::ACTIVE_DEADLINE_SECONDS,
    pod_spec::SUBDOMAIN,
    pod_spec::AFFINITY,
    pod_spec::TOLERATIONS,
    pod_spec::PRIORITY_CLASS_NAME,
    pod_spec::OVERHEAD,
    pod_spec::SCHEDULING_GATES,
    pod_spec::RESOURCES,
];
/// Fields of a container that are in the template.
const CONTAINER: [u32; 4] = [container::NAME, container::PORTS, container::RESOURCES, container::RESTART_POLICY];

/// See the module.
#[derive(Default)]
pub struct PodReader {
    templates: Memo<Template>,
    labels: Memo<Labels>,
    granted: Memo<ResourceRequirements>,
    promised: Memo<Amounts>,
    owners: Memo<Vec<OwnerReference>>,
    /// A specification of which nothing is read yet.
    blank: PodSpec,
    signature: Vec<u8>,
}

impl PodReader {
    /// Reads a pod without its envelope.
    ///
    /// # Errors
    /// Bytes that are no pod.
    pub fn read(&mut self, raw: &[u8]) -> Result<Pod, ReadError> {
        let mut pod = Pod::default();
        match self.survey(raw, &mut pod)? {
            PodContents::All => Ok(pod),
            PodContents::NewTemplate(signature) => {
                let pod = fully(raw)?;
                if let Some(spec) = &pod.spec {
                    self.templates.keep(signature, spec.template.arc());
                }
                Ok(pod)
            }
            PodContents::TooMuch => fully(raw),
        }
    }

    fn survey(&mut self, raw: &[u8], pod: &mut Pod) -> Result<PodContents, Error> {
        let mut found = PodContents::All;
        for field in fields(raw) {
            match field? {
                (pod::METADATA, value) => self.metadata(value.bytes("metadata")?, &mut pod.metadata)?,
                (pod::SPEC, value) => {
                    let spec = pod.spec.get_or_insert_with(|| self.blank.clone());
                    found = self.spec(value.bytes("spec")?, spec)?;
                }
                (pod::STATUS, value) => {
                    if !self.status(value.bytes("status")?, pod.status.get_or_insert_default())? {
                        return Ok(PodContents::TooMuch);
                    }
                }
                _ => {}
            }
            if !matches!(found, PodContents::All) {
                break;
            }
        }
        Ok(found)
    }

    fn metadata(&mut self, message: &[u8], meta: &mut Meta) -> Result<(), Error> {
        let mut finalizers: Option<Vec<String>> = None;
        for field in fields(message) {
            let (number, value) = field?;
            match number {
                object_meta::NAME => meta.name.add(value)?,
                object_meta::NAMESPACE => meta.namespace.add(value)?,
                object_meta::UID => meta.uid.add(value)?,
                object_meta::RESOURCE_VERSION => meta.resource_version.add(value)?,
                object_meta::GENERATION => meta.generation = Some(value.int("generation")?).filter(|n| *n != 0),
                object_meta::CREATION_TIMESTAMP => meta.creation_timestamp.add(value)?,
                object_meta::DELETION_TIMESTAMP => meta.deletion_timestamp.add(value)?,
                object_meta::DELETION_GRACE_PERIOD_SECONDS => meta.deletion_grace_period_seconds.add(value)?,
                object_meta::ANNOTATIONS => annotation(value, &mut meta.annotations)?,
                object_meta::FINALIZERS => finalizers.add(value)?,
                _ => {}
            }
        }
        meta.labels = shared(&mut self.labels, message, object_meta::LABELS, &mut self.signature)?;
        meta.owner_references = shared(&mut self.owners, message, object_meta::OWNER_REFERENCES, &mut self.signature)?;
        meta.finalizers = finalizers.map(Interned::from);
        Ok(())
    }

    fn spec(&mut self, message: &[u8], spec: &mut PodSpec) -> Result<PodContents, Error> {
        const PLACE: u32 = 1 << 16;
        let signature = &mut self.signature;
        signature.clear();
        let mut volumes = Vec::new();
        for field in fields(message) {
            let (number, value) = field?;
            match number {
                pod_spec::VOLUMES => {
                    if !volume(value, &mut volumes)? {
                        return Ok(PodContents::TooMuch);
                    }
                }
                pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS => {
                    sign_parts(value.bytes("containers")?, PLACE + number, &CONTAINER, signature)?
                }
                pod_spec::NODE_NAME => spec.node_name.add(value)?,
                pod_spec::HOSTNAME => spec.hostname.add(value)?,
                pod_spec::RESOURCE_CLAIMS => return Ok(PodContents::TooMuch),
                number if TEMPLATE.contains(&number) => value.sign(PLACE + number, signature),
                _ => {}
            }
        }
        spec.volumes = (!volumes.is_empty()).then(|| volumes.into_boxed_slice());
        let signature = self.templates.signature(signature);
        match self.templates.find(signature) {
            Some(template) => {
                spec.template = Interned::known(template);
                Ok(PodContents::All)
            }
            None => Ok(PodContents::NewTemplate(signature)),
        }
    }
}

impl PodReader {
    /// `false` when it tells of claims of dynamic resources.
    fn status(&mut self, message: &[u8], status: &mut PodStatus) -> Result<bool, Error> {
        let (mut conditions, mut ips) = (Vec::<PodCondition>::new(), Vec::<PodIp>::new());
        let (mut containers, mut inits) = (Vec::<ContainerStatus>::new(), Vec::<ContainerStatus>::new());
        for field in fields(message) {
            let (number, value) = field?;
            match number {
                pod_status::PHASE => status.phase.add(value)?,
                pod_status::CONDITIONS => conditions.add(value)?,
                pod_status::REASON => status.reason.add(value)?,
                pod_status::POD_IP => status.pod_ip.add(value)?,
                pod_status::START_TIME => status.start_time.add(value)?,
                pod_status::CONTAINER_STATUSES => containers.push(self.container(value)?),
                pod_status::INIT_CONTAINER_STATUSES => inits.push(self.container(value)?),
                pod_status::POD_IPS => ips.add(value)?,
                pod_status::RESOURCE_CLAIM_STATUSES | pod_status::EXTENDED_RESOURCE_CLAIM_STATUS => return Ok(false),
                _ => {}
            }
        }
        status.conditions = some(conditions);
        status.pod_ips = some(ips);
        status.container_statuses = some(containers);
        status.init_container_statuses = some(inits);
        Ok(true)
    }

    fn container(&mut self, value: Wire<'_>) -> Result<ContainerStatus, Error> {
        let message = value.bytes("containerStatuses")?;
        let mut container = ContainerStatus::default();
        container.add(value)?;
        container.allocated_resources =
            shared(&mut self.promised, message, container_status::ALLOCATED_RESOURCES, &mut self.signature)?;
        container.resources = shared(&mut self.granted, message, container_status::RESOURCES, &mut self.signature)?;
        Ok(container)
    }
}

enum PodContents {
    All,
    /// The template is not known yet.
    NewTemplate(Signature),
    /// There is what only JSON tells.
    TooMuch,
}

/// By way of JSON.
fn fully(raw: &[u8]) -> Result<Pod, ReadError> {
    let mut json = Vec::new();
    protobuf::to_json(schema::pod(), "v1", "Pod", raw, &mut json)?;
    let mut pod = serde_json::from_slice(&json)?;
    slim(&mut pod);
    Ok(pod)
}

/// The value of a repeated field, or the one that another pod has too.
fn shared<T>(
    memo: &mut Memo<T>,
    message: &[u8],
    wanted: u32,
    signature: &mut Vec<u8>,
) -> Result<Option<Interned<T>>, Error>
where
    T: Wired + Default + PartialEq + serde::Serialize + Send + Sync + 'static,
{
    signature.clear();
    for field in fields(message) {
        let (number, value) = field?;
        if number == wanted {
            value.sign(number, signature);
        }
    }
    if signature.is_empty() {
        return Ok(None);
    }
    let signature = memo.signature(signature);
    if let Some(known) = memo.find(signature) {
        return Ok(Some(Interned::known(known)));
    }
    let mut value = T::default();
    for field in fields(message) {
        if let (number, part) = field?
            && number == wanted
        {
            value.add(part)?;
        }
    }
    let value = Interned::from(value);
    memo.keep(signature, value.arc());
    Ok(Some(value))
}

fn annotation(entry: Wire<'_>, annotations: &mut Option<Box<Labels>>) -> Result<(), Error> {
    for field in fields(entry.bytes("annotations")?) {
        if let (map_entry::KEY, key) = field?
            && worth_keeping(text(key)?)
        {
            return annotations.get_or_insert_default().add(entry);
        }
    }
    Ok(())
}

/// `false` for a volume whose claim is made for the pod, and for one that names a disk itself.
fn volume(value: Wire<'_>, volumes: &mut Vec<Volume>) -> Result<bool, Error> {
    let (mut name, mut claim) = (None, None);
    for field in fields(value.bytes("volumes")?) {
        match field? {
            (volume::NAME, value) => name = Some(value),
            (volume::VOLUME_SOURCE, source) => {
                for field in fields(source.bytes("volumeSource")?) {
                    match field? {
                        (volume_source::PERSISTENT_VOLUME_CLAIM, value) => claim.add(value)?,
                        (volume_source::EPHEMERAL, _) => return Ok(false),
                        (number, _) if DISKS.contains(&number) => return Ok(false),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if claim.is_some() {
        let mut volume = Volume { persistent_volume_claim: claim, ..Volume::default() };
        if let Some(name) = name {
            volume.name.add(name)?;
        }
        volumes.push(volume);
    }
    Ok(true)
}

fn some<T>(all: Vec<T>) -> Option<Box<[T]>> {
    (!all.is_empty()).then(|| all.into_boxed_slice())
}

impl Wired for Waiting {
    fn add(&mut self, _: Wire<'_>) -> Result<(), Error> {
        Ok(())
    }
}

impl<T: Wired> Wired for Box<T> {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        (**self).add(value)
    }
}

impl Wired for Infeasible {
    fn add(&mut self, value: Wire<'_>) -> Result<(), Error> {
        *self = text(value)?.into();
        Ok(())
    }
}

optional!(PersistentVolumeClaimVolumeSource, ContainerState, Waiting, Box<Terminated>);
wired!(PersistentVolumeClaimVolumeSource as core_v1::persistent_volume_claim_volume_source { CLAIM_NAME => claim_name, READ_ONLY => read_only });
wired!(PodCondition as core_v1::pod_condition { TYPE => type_, STATUS => status, LAST_TRANSITION_TIME => last_transition_time, REASON => infeasible });
wired!(PodIp as core_v1::pod_ip { IP => ip });
wired!(ContainerStatus as core_v1::container_status { NAME => name, STATE => state, READY => ready, RESTART_COUNT => restart_count });
wired!(ResourceRequirements as core_v1::resource_requirements { LIMITS => limits, REQUESTS => requests, CLAIMS => claims });
wired!(ResourceClaim as core_v1::resource_claim { NAME => name, REQUEST => request });
wired!(ContainerState as core_v1::container_state { WAITING => waiting, TERMINATED => terminated });
wired!(Terminated as core_v1::container_state_terminated { EXIT_CODE => exit_code, FINISHED_AT => finished_at });

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn full() -> Value {
        let container = |name: &str| {
            json!({"name": name, "image": "i", "env": [{"name": "A", "value": name}], "restartPolicy": "Always",
                "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}], "resources": {"requests": {"cpu": "1"}}})
        };
        let status = |state: Value| {
            json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 3, "state": state,
                "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}, "claims": [{"name": "g", "request": "r"}]}})
        };
        json!({
            "metadata": {"name": "p-1", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2, "generateName": "p-",
                "labels": {"app": "a", "z": "1"}, "annotations": {"controller.kubernetes.io/pod-deletion-cost": "5", "tool": "x"},
                "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
                "deletionGracePeriodSeconds": 30, "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n", "hostname": "h", "subdomain": "s", "priorityClassName": "high", "activeDeadlineSeconds": 5,
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]}},
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
                "overhead": {"cpu": "10m"}, "schedulingGates": [{"name": "g"}], "resources": {"requests": {"cpu": "9"}},
                "volumes": [{"name": "token", "projected": {"sources": []}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}}],
                "initContainers": [container("i")], "containers": [container("c"), container("d")]},
            "status": {"phase": "Running", "reason": "r", "startTime": "2026-01-02T03:04:05Z", "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "message": "m"},
                    {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
                "containerStatuses": [status(json!({"waiting": {"reason": "w"}})),
                    status(json!({"terminated": {"exitCode": 137, "finishedAt": "2026-01-02T03:04:05Z"}}))],
                "initContainerStatuses": [status(json!({"running": {}}))]},
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

    /// Reads a pod from the server's JSON.
    fn of_json(pod: &Value) -> Pod {
        let pod = protobuf::decode(schema::pod(), &bytes(pod)).expect("a tree");
        let mut pod = serde_json::from_value(pod).expect("pod");
        slim(&mut pod);
        pod
    }

    #[test]
    fn reads_what_json_says_also_when_the_template_is_known() {
        let bare = json!({"metadata": {"name": "bare", "namespace": "ns"}, "spec": {"containers": []}, "status": {}});
        let claims = with("/spec", "resourceClaims", json!([{"name": "gpu", "resourceClaimName": "claim"}]));
        let told = with("/status", "resourceClaimStatuses", json!([{"name": "gpu", "resourceClaimName": "claim"}]));
        let extended =
            with("/status", "extendedResourceClaimStatus", json!({"resourceClaimName": "c", "requestMappings": []}));
        let made = with(
            "/spec",
            "volumes",
            json!([{"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {}}}}}]),
        );
        let mut reader = PodReader::default();
        let disk = with("/spec", "volumes", json!([{"name": "d", "gcePersistentDisk": {"pdName": "d"}}]));
        for pod in [full(), with("/metadata", "name", json!("p-2")), bare, claims, told, extended, made, disk] {
            for _ in 0..2 {
                assert_eq!(reader.read(&bytes(&pod)).expect("a pod"), of_json(&pod));
            }
        }
        assert!(reader.read(&[0x0a, 0xff]).is_err());
    }

    #[test]
    fn replicas_share_what_they_have_in_common() {
        let mut other = with("/metadata", "name", json!("p-2"));
        other["spec"]["nodeName"] = json!("m");
        other["spec"]["containers"][0]["env"][0]["value"] = json!("its own");
        let mut reader = PodReader::default();
        let [a, b] = [full(), other].map(|pod| reader.read(&bytes(&pod)).expect("pod"));
        let at = |pod: &Pod| {
            let meta = &pod.metadata;
            let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).expect("statuses");
            let template = &*pod.spec.as_ref().expect("spec").template;
            (
                std::ptr::from_ref(template).addr(),
                meta.labels.as_deref().map(|l| std::ptr::from_ref(l).addr()),
                meta.owner_references.as_deref().map(|o| std::ptr::from_ref(o).addr()),
                status[0].resources.as_deref().map(|r| std::ptr::from_ref(r).addr()),
                status[0].allocated_resources.as_deref().map(|r| std::ptr::from_ref(r).addr()),
            )
        };
        assert_eq!(at(&a), at(&b));
    }

    #[test]
    fn whatever_changes_a_template_is_seen() {
        let changed = [
            with("/metadata/labels", "app", json!("b")),
            with("/metadata/ownerReferences/0", "name", json!("other")),
            with("/spec", "subdomain", json!("other")),
            with("/spec", "priorityClassName", json!("low")),
            with("/spec", "activeDeadlineSeconds", json!(6)),
            with("/spec", "affinity", json!({})),
            with("/spec/tolerations/0", "key", json!("other")),
            with("/spec", "overhead", json!({"cpu": "20m"})),
            with("/spec", "schedulingGates", json!([])),
            with("/spec", "resources", json!({"requests": {"cpu": "8"}})),
            with("/spec/initContainers/0", "restartPolicy", Value::Null),
            with("/spec/containers/0", "name", json!("other")),
            with("/spec/containers/0/ports/0", "containerPort", json!(81)),
            with("/spec/containers/0/resources", "requests", json!({"cpu": "3"})),
        ];
        let mut reader = PodReader::default();
        let first = reader.read(&bytes(&full())).expect("pod");
        for pod in changed {
            let read = reader.read(&bytes(&pod)).expect("pod");
            assert_eq!(read, of_json(&pod));
            assert_ne!(read, first, "{pod}");
        }
    }
}
