//! Graph of objects and nodes: node ← pod ← secrets, config maps, claims, service accounts; claim ← volume ← volume
//! secrets; attachments and resource slices by their node name. Answers for upstream's
//! `plugin/pkg/auth/authorizer/node` (`Graph`).
//!
//! Pure: fed one object at a time, asked by (kind, namespace, name).

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;
use shared::types::{MIRROR, ephemeral_claim};

use super::meters;
use crate::authz::follow::Observer;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::certificates::pod_certificate_request::POD_CERTIFICATE_REQUESTS;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::pod::PODS;
use crate::registry::resource::resource_slice::RESOURCE_SLICES;
use crate::registry::storage::volume_attachment::VOLUME_ATTACHMENTS;

/// Kind of a vertex's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VertexKind {
    /// Pod.
    Pod,
    /// Secret.
    Secret,
    /// ConfigMap.
    ConfigMap,
    /// PersistentVolumeClaim.
    Claim,
    /// PersistentVolume.
    Volume,
    /// ServiceAccount.
    ServiceAccount,
    /// ResourceClaim.
    ResourceClaim,
    /// ResourceSlice.
    ResourceSlice,
    /// VolumeAttachment.
    VolumeAttachment,
    /// PodCertificateRequest.
    PodCertificateRequest,
}

type Vertex = (VertexKind, String, String);

#[derive(Debug, Default, PartialEq, Eq)]
struct PodEntry {
    node: String,
    refs: BTreeSet<Vertex>,
}

/// The graph.
#[derive(Debug, Default)]
pub struct Graph {
    pods: HashMap<(String, String), PodEntry>,
    /// Object → pods that use it.
    users: HashMap<Vertex, HashSet<(String, String)>>,
    /// Volume → its claim and its secrets.
    volumes: HashMap<String, (Option<Vertex>, Vec<Vertex>)>,
    /// Secret → volumes that use it.
    volume_secrets: HashMap<Vertex, HashSet<String>>,
    /// Node of each object that names its node itself.
    direct: HashMap<Vertex, String>,
}

impl Observer for Graph {
    fn observe(&mut self, resource: GroupResource<'_>, namespace: &str, name: &str, object: Option<&Value>) {
        let _timed = meters::of(resource, object.is_some()).map(|times| times.start_timer());
        match resource {
            PODS => self.pod(namespace, name, object),
            PERSISTENT_VOLUMES => self.volume(name, object),
            _ => {
                if let Some(kind) = direct(resource) {
                    self.direct((kind, namespace.to_owned(), name.to_owned()), object);
                }
            }
        }
    }

    fn known(&self, resource: GroupResource<'_>) -> Vec<(String, String)> {
        let bare = |name: &String| (String::new(), name.clone());
        match resource {
            PODS => self.pods.keys().cloned().collect(),
            PERSISTENT_VOLUMES => self.volumes.keys().map(bare).collect(),
            _ => {
                let own = self.direct.keys().filter(|(kind, ..)| direct(resource) == Some(*kind));
                own.map(|(_, namespace, name)| (namespace.clone(), name.clone())).collect()
            }
        }
    }
}

/// Of what names its node itself.
fn direct(resource: GroupResource<'_>) -> Option<VertexKind> {
    match resource {
        VOLUME_ATTACHMENTS => Some(VertexKind::VolumeAttachment),
        RESOURCE_SLICES => Some(VertexKind::ResourceSlice),
        POD_CERTIFICATE_REQUESTS => Some(VertexKind::PodCertificateRequest),
        _ => None,
    }
}

impl Graph {
    fn direct(&mut self, vertex: Vertex, object: Option<&Value>) {
        match object.map_or("", |o| tree::text(o, "/spec/nodeName")) {
            "" => self.direct.remove(&vertex),
            node => self.direct.insert(vertex, node.to_owned()),
        };
    }

    fn pod(&mut self, namespace: &str, name: &str, object: Option<&Value>) {
        let key = (namespace.to_owned(), name.to_owned());
        let entry = object.and_then(|o| {
            let node = tree::text(o, "/spec/nodeName");
            (!node.is_empty()).then(|| PodEntry { node: node.to_owned(), refs: references(namespace, name, o) })
        });
        if self.pods.get(&key) == entry.as_ref() {
            return;
        }
        if let Some(old) = self.pods.remove(&key) {
            for vertex in &old.refs {
                if let Some(users) = self.users.get_mut(vertex) {
                    users.remove(&key);
                    if users.is_empty() {
                        self.users.remove(vertex);
                    }
                }
            }
        }
        if let Some(entry) = entry {
            for vertex in &entry.refs {
                self.users.entry(vertex.clone()).or_default().insert(key.clone());
            }
            self.pods.insert(key, entry);
        }
    }

    fn volume(&mut self, name: &str, object: Option<&Value>) {
        if let Some((_, secrets)) = self.volumes.remove(name) {
            for secret in secrets {
                if let Some(volumes) = self.volume_secrets.get_mut(&secret) {
                    volumes.remove(name);
                }
            }
        }
        let Some(object) = object else { return };
        let claim_name = tree::text(object, "/spec/claimRef/name");
        let claim_namespace = tree::text(object, "/spec/claimRef/namespace");
        let claim =
            (!claim_name.is_empty()).then(|| (VertexKind::Claim, claim_namespace.to_owned(), claim_name.to_owned()));
        let secrets = volume_secrets(object, claim_namespace);
        for secret in &secrets {
            self.volume_secrets.entry(secret.clone()).or_default().insert(name.to_owned());
        }
        self.volumes.insert(name.to_owned(), (claim, secrets));
    }

    /// Reports whether an object is related to a node.
    pub fn related(&self, node: &str, kind: VertexKind, namespace: &str, name: &str) -> bool {
        match kind {
            VertexKind::Pod => self.pods.get(&(namespace.to_owned(), name.to_owned())).is_some_and(|p| p.node == node),
            VertexKind::VolumeAttachment | VertexKind::ResourceSlice | VertexKind::PodCertificateRequest => {
                self.direct.get(&(kind, namespace.to_owned(), name.to_owned())).is_some_and(|n| n == node)
            }
            VertexKind::Volume => self.volume_related(node, name),
            _ => {
                let vertex = (kind, namespace.to_owned(), name.to_owned());
                self.used_on(node, &vertex)
                    || (kind == VertexKind::Secret
                        && self
                            .volume_secrets
                            .get(&vertex)
                            .is_some_and(|volumes| volumes.iter().any(|v| self.volume_related(node, v))))
            }
        }
    }

    fn used_on(&self, node: &str, vertex: &Vertex) -> bool {
        self.users
            .get(vertex)
            .is_some_and(|pods| pods.iter().any(|pod| self.pods.get(pod).is_some_and(|p| p.node == node)))
    }

    fn volume_related(&self, node: &str, name: &str) -> bool {
        matches!(self.volumes.get(name), Some((Some(claim), _)) if self.used_on(node, claim))
    }
}

fn volume_secrets(volume: &Value, claim_namespace: &str) -> Vec<Vertex> {
    let mut found = Vec::new();
    let Some(spec) = volume.get("spec").and_then(Value::as_object) else { return found };
    for source in spec.values() {
        for field in [
            "secretRef",
            "controllerPublishSecretRef",
            "nodeStageSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            if let Some(name) = source.get(field).and_then(|r| r.get("name")).and_then(Value::as_str) {
                let own = source.get(field).map_or("", |r| tree::text(r, "/namespace"));
                let namespace = if own.is_empty() { claim_namespace } else { own };
                found.push((VertexKind::Secret, namespace.to_owned(), name.to_owned()));
            }
        }
        if let Some(name) = source.get("secretName").and_then(Value::as_str) {
            let own = tree::text(source, "/secretNamespace");
            let namespace = if own.is_empty() { claim_namespace } else { own };
            found.push((VertexKind::Secret, namespace.to_owned(), name.to_owned()));
        }
    }
    found
}

/// Names of the secrets a pod mentions anywhere.
pub fn pod_secrets(pod: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut add = |name: &str| {
        if !name.is_empty() {
            found.insert(name.to_owned());
        }
    };
    for pull in tree::list(pod, "/spec/imagePullSecrets") {
        add(tree::text(pull, "/name"));
    }
    for_each_env(pod, |env_from, env| {
        add(env_from.map_or("", |e| tree::text(e, "/secretRef/name")));
        add(env.map_or("", |e| tree::text(e, "/valueFrom/secretKeyRef/name")));
    });
    for volume in tree::list(pod, "/spec/volumes") {
        add(tree::text(volume, "/secret/secretName"));
        add(tree::text(volume, "/azureFile/secretName"));
        for source in ["cephfs", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            add(tree::text(volume, &format!("/{source}/secretRef/name")));
        }
        add(tree::text(volume, "/csi/nodePublishSecretRef/name"));
        for source in tree::list(volume, "/projected/sources") {
            add(tree::text(source, "/secret/name"));
        }
    }
    found
}

/// Names of the config maps a pod mentions anywhere.
pub fn pod_config_maps(pod: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut add = |name: &str| {
        if !name.is_empty() {
            found.insert(name.to_owned());
        }
    };
    for_each_env(pod, |env_from, env| {
        add(env_from.map_or("", |e| tree::text(e, "/configMapRef/name")));
        add(env.map_or("", |e| tree::text(e, "/valueFrom/configMapKeyRef/name")));
    });
    for volume in tree::list(pod, "/spec/volumes") {
        add(tree::text(volume, "/configMap/name"));
        for source in tree::list(volume, "/projected/sources") {
            add(tree::text(source, "/configMap/name"));
        }
    }
    found
}

fn for_each_env(pod: &Value, mut see: impl FnMut(Option<&Value>, Option<&Value>)) {
    for list in ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"] {
        for container in tree::list(pod, list) {
            tree::list(container, "/envFrom").iter().for_each(|e| see(Some(e), None));
            tree::list(container, "/env").iter().for_each(|e| see(None, Some(e)));
        }
    }
}

fn references(namespace: &str, name: &str, pod: &Value) -> BTreeSet<Vertex> {
    let mut refs = BTreeSet::new();
    // A mirror pod is the kubelet's own: nothing it names becomes readable through it.
    if tree::annotation(pod, MIRROR).is_some() {
        return refs;
    }
    let mut add = |kind: VertexKind, name: &str| {
        if !name.is_empty() {
            refs.insert((kind, namespace.to_owned(), name.to_owned()));
        }
    };
    add(VertexKind::ServiceAccount, tree::text(pod, "/spec/serviceAccountName"));
    pod_secrets(pod).iter().for_each(|s| add(VertexKind::Secret, s));
    pod_config_maps(pod).iter().for_each(|c| add(VertexKind::ConfigMap, c));
    for volume in tree::list(pod, "/spec/volumes") {
        add(VertexKind::Claim, tree::text(volume, "/persistentVolumeClaim/claimName"));
        if tree::has(volume, "/ephemeral") {
            add(VertexKind::Claim, &ephemeral_claim(name, tree::text(volume, "/name")));
        }
    }
    for claim in tree::list(pod, "/spec/resourceClaims") {
        add(VertexKind::ResourceClaim, tree::text(claim, "/resourceClaimName"));
    }
    for status in tree::list(pod, "/status/resourceClaimStatuses") {
        add(VertexKind::ResourceClaim, tree::text(status, "/resourceClaimName"));
    }
    add(VertexKind::ResourceClaim, tree::text(pod, "/status/extendedResourceClaimStatus/resourceClaimName"));
    refs
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Graph {
        let mut graph = Graph::default();
        let pod = json!({"spec": {"nodeName": "n1", "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"envFrom": [{"secretRef": {"name": "env"}}],
                "env": [{"valueFrom": {"configMapKeyRef": {"name": "cm"}}}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "e", "ephemeral": {}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "proj"}}, {"configMap": {"name": "ca"}}]}}]}});
        graph.observe(PODS, "a", "p1", Some(&pod));
        let volume = json!({"spec": {"claimRef": {"namespace": "a", "name": "data"},
            "csi": {"nodeStageSecretRef": {"name": "stage", "namespace": "drivers"}}}});
        graph.observe(PERSISTENT_VOLUMES, "", "pv1", Some(&volume));
        graph.observe(VOLUME_ATTACHMENTS, "", "va1", Some(&json!({"spec": {"nodeName": "n1"}})));
        graph.observe(POD_CERTIFICATE_REQUESTS, "a", "pcr", Some(&json!({"spec": {"nodeName": "n1"}})));
        graph
    }

    #[test]
    fn node_reaches_the_objects_of_its_pods() {
        let graph = sample();
        for (kind, namespace, name) in [
            (VertexKind::Pod, "a", "p1"),
            (VertexKind::Secret, "a", "pull"),
            (VertexKind::Secret, "a", "env"),
            (VertexKind::Secret, "a", "proj"),
            (VertexKind::ConfigMap, "a", "cm"),
            (VertexKind::ConfigMap, "a", "ca"),
            (VertexKind::Claim, "a", "data"),
            (VertexKind::Claim, "a", "p1-e"),
            (VertexKind::Volume, "", "pv1"),
            (VertexKind::Secret, "drivers", "stage"),
            (VertexKind::ServiceAccount, "a", "sa"),
            (VertexKind::VolumeAttachment, "", "va1"),
            (VertexKind::PodCertificateRequest, "a", "pcr"),
        ] {
            assert!(graph.related("n1", kind, namespace, name), "{kind:?} {namespace}/{name}");
            assert!(!graph.related("n2", kind, namespace, name), "{kind:?} {namespace}/{name} from another node");
        }
        assert!(!graph.related("n1", VertexKind::Secret, "b", "env"));
        assert!(!graph.related("n1", VertexKind::Secret, "a", "other"));
    }

    #[test]
    fn deleting_a_pod_removes_its_edges() {
        let mut graph = sample();
        graph.observe(PODS, "a", "p1", None);
        assert!(!graph.related("n1", VertexKind::Secret, "a", "env"));
        assert!(!graph.related("n1", VertexKind::Volume, "", "pv1"));
        assert!(graph.users.is_empty());
    }

    #[test]
    fn mirror_pod_adds_no_edges() {
        let mut graph = Graph::default();
        let pod = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"nodeName": "n1", "imagePullSecrets": [{"name": "pull"}]}});
        graph.observe(PODS, "a", "m", Some(&pod));
        assert!(graph.related("n1", VertexKind::Pod, "a", "m"));
        assert!(!graph.related("n1", VertexKind::Secret, "a", "pull"));
    }
}
