//! Manifests to static pods: decoding, defaults, identity. Pure.
//! Answers for upstream's `pkg/kubelet/config/common.go` (`applyDefaults`, `tryDecodeSinglePod`, `generatePodName`).

use super::references::{self, ReferenceError};
use super::{annotations, validation};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use proto::selector::format as names;
use sha2::{Digest, Sha256};
use shared::types::from_tree;
use std::collections::{BTreeMap, BTreeSet};

/// Faults of a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not YAML or JSON, or not a pod.
    #[error("couldn't parse as pod({0}), please check config file")]
    Parse(String),
    /// Fields that only make sense with an API server, or are missing.
    #[error("invalid pod: {0}")]
    Invalid(String),
    /// A field that no API server would take.
    #[error("invalid pod: {0}")]
    Field(#[from] FieldError),
    /// Objects of the API server are needed.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// Fields of a pod that no API server would take, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A value that the field cannot have.
    #[error("{path}: Invalid value: {value:?}: {why}")]
    Invalid {
        /// The field.
        path: String,
        /// Value of it.
        value: String,
        /// Reason.
        why: String,
    },
    /// A name that another entry has.
    #[error("{path}: Duplicate value: {value:?}")]
    Duplicate {
        /// The field.
        path: String,
        /// Value of it.
        value: String,
    },
    /// Nothing.
    #[error("{0}: Required value")]
    Required(String),
    /// A name that no entry has.
    #[error("{path}: Not found: {value:?}")]
    NotFound {
        /// The field.
        path: String,
        /// Value of it.
        value: String,
    },
    /// A restart policy that there is not.
    #[error("spec.restartPolicy: Unsupported value: {0:?}: supported values: \"Always\", \"OnFailure\", \"Never\"")]
    RestartPolicy(String),
}

/// Node that static pods belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Name of the node.
    pub node_name: String,
    /// `PreventStaticPodAPIReferences`: they refer to nothing that only an API server has.
    pub prevents_references: bool,
}

/// Pods of a manifest: a Pod or a PodList in YAML or JSON.
pub fn decode(text: &str) -> Result<Vec<Pod>, ManifestError> {
    let value = proto::yaml::decode_any(text.as_bytes()).map_err(|e| ManifestError::Parse(e.to_string()))?;
    let kind = value.get("kind").and_then(|k| k.as_str()).unwrap_or_default().to_owned();
    let pods = match kind.as_str() {
        "Pod" => vec![value],
        "PodList" | "List" => value.get("items").and_then(|i| i.as_array()).cloned().unwrap_or_default(),
        other => return Err(ManifestError::Parse(format!("object is of kind {other:?}, not Pod"))),
    };
    pods.iter().map(|v| from_tree(v).map_err(|e| ManifestError::Parse(e.to_string()))).collect()
}

/// Gives a pod from a manifest its identity on this node: name suffix, namespace, uid, annotations, defaults.
/// `origin` is the file path or URL.
pub fn adopt(mut pod: Pod, source: &str, origin: &str, owner: &Owner, now: Timestamp) -> Result<Pod, ManifestError> {
    let node_name = owner.node_name.as_str();
    let name = pod
        .metadata
        .name
        .clone()
        .filter(|n| !n.is_empty())
        .ok_or_else(|| ManifestError::Invalid("name must be set".into()))?;
    let content = serde_json::to_vec(&pod).map_err(|e| ManifestError::Invalid(e.to_string()))?;
    let mut digest = Sha256::new();
    digest.update(&content);
    digest.update(node_name.as_bytes());
    digest.update(origin.as_bytes());
    let hash: String = digest.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
    pod.metadata.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.uid = Some(hash.clone());
    }
    pod.metadata.generation.get_or_insert(1);
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let marks = pod.metadata.annotations.get_or_insert_with(BTreeMap::new);
    marks.insert(annotations::HASH.to_owned(), uid);
    marks.insert(annotations::SOURCE.to_owned(), source.to_owned());
    marks.insert(annotations::SEEN.to_owned(), now.to_string());
    pod.status = None;
    let spec = pod.spec.as_mut().ok_or_else(|| ManifestError::Invalid("spec must be set".into()))?;
    if spec.containers.is_empty() {
        return Err(ManifestError::Invalid("spec.containers: Required value".into()));
    }
    spec.node_name = Some(node_name.to_owned());
    // A static pod outlives every taint but those that keep it from running at all.
    let tolerations = spec.tolerations.get_or_insert_with(Vec::new);
    if !tolerations
        .iter()
        .any(|t| t.operator.as_deref() == Some("Exists") && t.effect.as_deref() == Some("NoExecute") && t.key.is_none())
    {
        tolerations.push(k8s_openapi::api::core::v1::Toleration {
            operator: Some("Exists".into()),
            effect: Some("NoExecute".into()),
            ..Default::default()
        });
    }
    default(spec);
    check(&pod)?;
    if let Some(spec) = &pod.spec {
        if let Some(problem) = validation::problems(spec).into_iter().next() {
            return Err(ManifestError::Invalid(problem.to_string()));
        }
        references::check(spec, owner.prevents_references)?;
    }
    Ok(pod)
}

fn invalid(path: &str, value: &str, why: impl IntoIterator<Item = String>) -> Result<(), FieldError> {
    let why = why.into_iter().next();
    why.map_or(Ok(()), |why| Err(FieldError::Invalid { path: path.to_owned(), value: value.to_owned(), why }))
}

/// Refuses what would be no pod at an API server either, as far as the kubelet makes paths, names and mounts of it. The
/// first reason is told (upstream's `ValidatePodCreate`).
fn check(pod: &Pod) -> Result<(), FieldError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (name, namespace, uid) = (text(&pod.metadata.name), text(&pod.metadata.namespace), text(&pod.metadata.uid));
    let label = |path: &str, value: &str| invalid(path, value, names::dns1123_label(value));
    invalid("metadata.name", &name, names::dns1123_subdomain(&name))?;
    label("metadata.namespace", &namespace)?;
    // A UID is a folder's name.
    let is_folder = uid.contains('/') || uid == "." || uid == "..";
    invalid("metadata.uid", &uid, is_folder.then(|| "must be a path segment".to_owned()))?;
    let Some(spec) = &pod.spec else { return Ok(()) };
    let mut volumes = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}].name");
        label(&path, &volume.name)?;
        if !volumes.insert(volume.name.as_str()) {
            return Err(FieldError::Duplicate { path, value: volume.name.clone() });
        }
    }
    let mut containers = BTreeSet::new();
    let lists = [("initContainers", spec.init_containers.as_deref()), ("containers", Some(spec.containers.as_slice()))];
    let all = lists.iter().flat_map(|(list, containers)| {
        containers.unwrap_or_default().iter().enumerate().map(move |(index, container)| (list, index, container))
    });
    for (list, index, container) in all {
        let path = format!("spec.{list}[{index}]");
        label(&format!("{path}.name"), &container.name)?;
        if !containers.insert(container.name.as_str()) {
            return Err(FieldError::Duplicate { path: format!("{path}.name"), value: container.name.clone() });
        }
        if container.image.as_deref().unwrap_or_default().is_empty() {
            return Err(FieldError::Required(format!("{path}.image")));
        }
        for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
            if !volumes.contains(mount.name.as_str()) {
                let path = format!("{path}.volumeMounts[{at}].name");
                return Err(FieldError::NotFound { path, value: mount.name.clone() });
            }
        }
    }
    match spec.restart_policy.as_deref() {
        Some("Always" | "OnFailure" | "Never") => Ok(()),
        other => Err(FieldError::RestartPolicy(other.unwrap_or_default().to_owned())),
    }
}

/// Defaults that the API server would have filled in and that the kubelet relies on.
fn default(spec: &mut k8s_openapi::api::core::v1::PodSpec) {
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".to_owned());
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    for volume in spec.volumes.iter_mut().flatten() {
        let bare = Volume { name: volume.name.clone(), ..Volume::default() };
        if *volume == bare {
            volume.empty_dir = Some(EmptyDirVolumeSource::default());
        }
    }
    let has_host_network = spec.host_network.unwrap_or(false);
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in containers {
        container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
        container.termination_message_policy.get_or_insert_with(|| "File".to_owned());
        let image = container.image.clone().unwrap_or_default();
        container.image_pull_policy.get_or_insert_with(|| default_pull_policy(&image).to_owned());
        for port in container.ports.iter_mut().flatten() {
            port.protocol.get_or_insert_with(|| "TCP".to_owned());
            if has_host_network && port.host_port.unwrap_or(0) == 0 {
                port.host_port = Some(port.container_port);
            }
        }
        if let Some(resources) = &mut container.resources
            && let Some(limits) = resources.limits.clone()
        {
            let requests = resources.requests.get_or_insert_with(BTreeMap::new);
            for (name, quantity) in limits {
                requests.entry(name).or_insert(quantity);
            }
        }
        for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
            .into_iter()
            .flatten()
        {
            probe.timeout_seconds.get_or_insert(1);
            probe.period_seconds.get_or_insert(10);
            probe.success_threshold.get_or_insert(1);
            probe.failure_threshold.get_or_insert(3);
            if let Some(http) = &mut probe.http_get {
                http.path.get_or_insert_with(|| "/".to_owned());
                http.scheme.get_or_insert_with(|| "HTTP".to_owned());
            }
        }
    }
}

/// `Always` for the tag `latest` or none, `IfNotPresent` otherwise.
pub fn default_pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains('@') {
        return "IfNotPresent";
    }
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(node: &str) -> Owner {
        Owner { node_name: node.to_owned(), prevents_references: true }
    }

    #[test]
    fn static_pods_that_refer_to_the_api_server_are_refused() {
        let text = "kind: Pod\nmetadata: {name: p}\nspec: {serviceAccountName: a, containers: [{name: a, image: i}]}\n";
        let pod = decode(text).expect("decodes").remove(0);
        let refused = adopt(pod.clone(), "file", "f", &owner("n"), Timestamp::UNIX_EPOCH).expect_err("it refers");
        assert_eq!(refused.to_string(), "static pods may not reference serviceaccounts");
        let lenient = Owner { prevents_references: false, ..owner("n") };
        adopt(pod, "file", "f", &lenient, Timestamp::UNIX_EPOCH).expect("with the gate off");
    }

    #[test]
    fn static_pods_get_their_identity() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: etcd, namespace: kube-system}\nspec:\n  containers:\n  - {name: e, image: 'etcd:3'}\n";
        let pods = decode(text).expect("decodes");
        let adopt_at = |node: &str| {
            adopt(pods[0].clone(), "file", "/m/etcd.yaml", &owner(node), Timestamp::UNIX_EPOCH).expect("pod")
        };
        let pod = adopt_at("Node1");
        assert_eq!(pod.metadata.name.as_deref(), Some("etcd-node1"));
        let marks = pod.metadata.annotations.clone().expect("annotations");
        assert_eq!(marks[annotations::SOURCE], "file");
        assert_eq!(Some(&marks[annotations::HASH]), pod.metadata.uid.as_ref());
        assert_eq!(marks[annotations::HASH].len(), 32);
        assert_ne!(adopt_at("node2").metadata.uid, pod.metadata.uid);
        assert_eq!(pod.spec.expect("spec").containers[0].image_pull_policy.as_deref(), Some("IfNotPresent"));
    }

    #[test]
    fn volumes_without_a_source_and_ports_of_the_host_have_upstreams_defaults() {
        let text = "kind: Pod\nmetadata: {name: p}\nspec: {hostNetwork: true, volumes: [{name: v}], \
            containers: [{name: a, image: i, ports: [{containerPort: 5}]}]}\n";
        let pod = decode(text).expect("decodes").remove(0);
        let spec = adopt(pod, "file", "f", &owner("n"), Timestamp::UNIX_EPOCH).expect("a pod").spec.expect("a spec");
        assert!(spec.volumes.expect("volumes")[0].empty_dir.is_some());
        assert_eq!(spec.containers[0].ports.as_ref().expect("ports")[0].host_port, Some(5));
    }

    #[test]
    fn what_is_no_pod_is_no_static_pod() {
        let adopted = |metadata: &str, spec: &str| {
            let pods = decode(&format!("kind: Pod\nmetadata: {metadata}\nspec: {spec}\n")).expect("decodes");
            adopt(pods[0].clone(), "file", "f", &owner("n"), Timestamp::UNIX_EPOCH)
                .map(drop)
                .map_err(|why| why.to_string())
        };
        let plain = "{containers: [{name: a, image: i}]}";
        assert_eq!(adopted("{name: p}", plain), Ok(()));
        for (metadata, spec, path) in [
            ("{name: p/../q}", plain, "metadata.name"),
            ("{name: p, namespace: ../kube-system}", plain, "metadata.namespace"),
            ("{name: p, uid: ..}", plain, "metadata.uid"),
            ("{name: p, uid: a/b}", plain, "metadata.uid"),
            ("{name: p}", "{containers: [{name: ../a, image: i}]}", "spec.containers[0].name"),
            ("{name: p}", "{containers: [{name: a, image: i}, {name: a, image: i}]}", "spec.containers[1].name"),
            ("{name: p}", "{containers: [{name: a}]}", "spec.containers[0].image"),
            ("{name: p}", "{containers: [{name: a, image: i}], volumes: [{name: ../v}]}", "spec.volumes[0].name"),
            (
                "{name: p}",
                "{containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}]}",
                "spec.containers[0].volumeMounts[0].name",
            ),
            (
                "{name: p}",
                "{containers: [{name: a, image: i, livenessProbe: {periodSeconds: 1}}]}",
                "spec.containers[0].livenessProbe",
            ),
            ("{name: p}", "{restartPolicy: Sometimes, containers: [{name: a, image: i}]}", "spec.restartPolicy"),
        ] {
            let refused = adopted(metadata, spec).expect_err(path);
            assert!(refused.starts_with(&format!("invalid pod: {path}: ")), "{refused}");
        }
    }

    #[test]
    fn manifests_are_read_as_leniently_as_objects_of_the_api_server() {
        let text = "kind: Pod\nmetadata: {name: p, creationTimestamp: null, labels: null}\nspec: {containers: [{name: a, image: i, \
            resources: {limits: {cpu: 1, memory: null}}}], volumes: null}\nstatus: {conditions: [{type: Ready, lastTransitionTime: null}]}\n";
        assert!(
            adopt(decode(text).expect("decodes").remove(0), "file", "f", &owner("n"), Timestamp::UNIX_EPOCH).is_ok()
        );
    }

    #[test]
    fn bad_manifests_are_refused() {
        for text in ["{", "kind: Deployment", "kind: Pod\nspec: 5\n"] {
            assert!(decode(text).is_err(), "{text}");
        }
        let nameless = decode("kind: Pod\nspec: {containers: [{name: a}]}").expect("decodes").remove(0);
        assert!(adopt(nameless, "file", "f", &owner("n"), Timestamp::UNIX_EPOCH).is_err());
    }
}
