//! NodeRestriction: a kubelet changes its own Node, its own pods' status, its own Lease and CSINode, and little else.
//! Answers for upstream's `plugin/pkg/admission/noderestriction` (`admitPod`, `admitNode`, `admitPVCStatus`).

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::authz;
use shared::status::Status;
use shared::types::{KUBELET_LABELS, MIRROR, ephemeral_claim};

use super::{Attributes, NOTHING, Operation, Plugin};
use crate::api::{Api, Reader};
use crate::authz::Authorization;
use crate::authz::node::{identity, pod_config_maps, pod_secrets};
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::certificates::certificate_signing_request::CERTIFICATE_SIGNING_REQUESTS;
use crate::registry::certificates::cluster_trust_bundle::CLUSTER_TRUST_BUNDLES;
use crate::registry::certificates::pod_certificate_request::POD_CERTIFICATE_REQUESTS;
use crate::registry::coordination::lease::LEASES;
use crate::registry::core::config_map::CONFIG_MAPS;
use crate::registry::core::node::NODES;
use crate::registry::core::persistent_volume::PERSISTENT_VOLUMES;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;
use crate::registry::core::secret::SECRETS;
use crate::registry::core::service_account::SERVICE_ACCOUNTS;
use crate::registry::resource::resource_claim::RESOURCE_CLAIMS;
use crate::registry::resource::resource_slice::RESOURCE_SLICES;
use crate::registry::storage::csi_driver::CSI_DRIVERS;
use crate::registry::storage::csi_node::CSI_NODES;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const KUBELET_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const NODE_SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

/// The plugin.
pub(super) struct NodeRestriction {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Live reads.
    pub api: Api,
    /// Asked whether a node may have tokens for other audiences.
    pub authorization: Arc<Authorization>,
    /// `ServiceAccountNodeAudienceRestriction`: tokens are for whom a pod's volumes name.
    pub audiences: bool,
    /// Nodes ask for certificates of their own, unless `AllowInsecureKubeletCertificateSigningRequests`.
    pub requests: bool,
}

#[async_trait]
impl Plugin for NodeRestriction {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(node) = identity(a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(a.forbidden(format!("could not determine node from user {:?}", a.user.name)));
        }
        match (GroupResource::of(a.resource), a.subresource) {
            (PODS, "") => self.pod(a, node).await,
            (PODS, "status") => pod_status(a, node),
            (PODS, "eviction") => self.eviction(a, node).await,
            (PODS, other) => Err(
                a.forbidden(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
            ),
            (NODES, _) => own_node(a, node),
            (PERSISTENT_VOLUME_CLAIMS, "status") => claim_status(a, node),
            (PERSISTENT_VOLUME_CLAIMS, _) => Err(a.forbidden("may only update PVC status")),
            (SERVICE_ACCOUNTS, "token") if a.operation == Operation::Create => self.token(a, node).await,
            (LEASES, _) => lease(a, node),
            (CSI_NODES, _) => same_name(a, node, "can only access CSINode with the same name as the requesting node"),
            (RESOURCE_SLICES, _) => slice(a, node),
            (CERTIFICATE_SIGNING_REQUESTS, "") if self.requests && a.operation == Operation::Create => {
                signing_request(a, node)
            }
            (POD_CERTIFICATE_REQUESTS, _) => self.pod_certificate(a, node).await,
            _ => Ok(()),
        }
    }
}

fn own_node(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let object = a.object().unwrap_or(NOTHING);
    let mut name = a.name;
    if a.operation == Operation::Create {
        if tree::has(object, "/spec/configSource") {
            return Err(a.forbidden("is not allowed to create pods with a non-nil configSource"));
        }
        let forbidden = forbidden_labels(NOTHING, object);
        if !forbidden.is_empty() {
            return Err(a.forbidden(format!("is not allowed to set the following labels: {}", join(&forbidden))));
        }
        if name.is_empty() {
            name = tree::name(object);
        }
    }
    if name != node {
        return Err(a.forbidden(format!("node {node:?} is not allowed to modify node {name:?}")));
    }
    if a.operation == Operation::Update {
        let old = a.old_object.unwrap_or(NOTHING);
        if tree::list(object, "/spec/taints") != tree::list(old, "/spec/taints") {
            return Err(a.forbidden("is not allowed to modify taints"));
        }
        let forbidden = forbidden_labels(old, object);
        if !forbidden.is_empty() {
            return Err(a.forbidden(format!("is not allowed to modify labels: {}", join(&forbidden))));
        }
        if tree::list(object, "/metadata/ownerReferences") != tree::list(old, "/metadata/ownerReferences") {
            return Err(a.forbidden("is not allowed to modify ownerReferences"));
        }
    }
    Ok(())
}

fn join(labels: &BTreeSet<String>) -> String {
    labels.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The labels that differ and that are not a kubelet's to set.
fn forbidden_labels(old: &Value, new: &Value) -> BTreeSet<String> {
    let keys = |o: &Value| {
        tree::map(o, "/metadata/labels").into_iter().flat_map(|m| m.keys().cloned()).collect::<BTreeSet<_>>()
    };
    let all: BTreeSet<String> = keys(old).union(&keys(new)).cloned().collect();
    all.into_iter().filter(|k| tree::label(old, k) != tree::label(new, k) && !may_set(k)).collect()
}

fn may_set(label: &str) -> bool {
    let namespace = label.split_once('/').map_or("", |(n, _)| n);
    let within = |domain: &str| namespace == domain || namespace.ends_with(&format!(".{domain}"));
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let kubernetes = within("kubernetes.io") || within("k8s.io");
    !kubernetes || KUBELET_LABELS.contains(&label) || KUBELET_NAMESPACES.iter().any(|n| within(n))
}

fn pod_status(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.operation != Operation::Update {
        return Err(a.forbidden(format!("unexpected operation {:?}", a.operation.as_str())));
    }
    let (old, new) = (a.old_object.unwrap_or(NOTHING), a.object().unwrap_or(NOTHING));
    if tree::text(old, "/spec/nodeName") != node {
        return Err(
            a.forbidden(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
        );
    }
    let labels = |o: &Value| tree::map(o, "/metadata/labels").cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return Err(a.forbidden(format!("node {node:?} cannot update labels through pod status")));
    }
    if tree::list(old, "/status/resourceClaimStatuses") != tree::list(new, "/status/resourceClaimStatuses") {
        return Err(a.forbidden(format!("node {node:?} cannot update resource claim statuses")));
    }
    Ok(())
}

fn claim_status(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.operation != Operation::Update {
        return Err(a.forbidden(format!("unexpected operation {:?}", a.operation.as_str())));
    }
    let bare = |o: Option<&Value>| {
        let mut o = o.cloned().unwrap_or_default();
        if let Some(status) = tree::map_mut(&mut o, &["status"]) {
            for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
                status.remove(field);
            }
        }
        if let Some(meta) = tree::map_mut(&mut o, &["metadata"]) {
            meta.remove("managedFields");
            meta.remove("resourceVersion");
        }
        o
    };
    if bare(a.object()) == bare(a.old_object) {
        return Ok(());
    }
    Err(a.forbidden(format!(
        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
    )))
}

fn same_name(a: &Attributes<'_>, node: &str, text: &str) -> Result<(), Status> {
    let name = if a.operation == Operation::Create { a.object().map_or("", tree::name) } else { a.name };
    if name == node { Ok(()) } else { Err(a.forbidden(text)) }
}

fn lease(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.namespace != LEASE_NAMESPACE {
        return Err(a.forbidden(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace")));
    }
    same_name(a, node, "can only access node lease with the same name as the requesting node")
}

fn slice(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let of = |o: Option<&Value>| tree::text(o.unwrap_or(NOTHING), "/spec/nodeName").to_owned();
    match a.operation {
        Operation::Create if of(a.object()) != node => {
            Err(a.forbidden("can only create ResourceSlice with the same NodeName as the requesting node"))
        }
        Operation::Delete if of(a.old_object) != node => {
            Err(a.forbidden("can only delete ResourceSlice with the same NodeName as the requesting node"))
        }
        _ => Ok(()),
    }
}

fn signing_request(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let request = a.object().unwrap_or(NOTHING);
    if !NODE_SIGNERS.contains(&tree::text(request, "/spec/signerName")) {
        return Ok(());
    }
    let name = super::certificates::common_name(tree::text(request, "/spec/request"));
    match name {
        None => Err(a.forbidden("unable to parse csr")),
        Some(name) if name == format!("system:node:{node}") => Ok(()),
        Some(_) => Err(a.forbidden(format!("can only create a node CSR with CN=system:node:{node}"))),
    }
}

impl NodeRestriction {
    /// From the cache, else from storage.
    pub(super) async fn find(
        &self,
        resource: GroupResource<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Value>, Status> {
        match self.reader.get(resource, namespace, name) {
            Some(object) => Ok(object),
            None => self.api.get(resource, namespace, name).await.map(Arc::new),
        }
    }

    async fn pod(&self, a: &Attributes<'_>, node: &str) -> Result<(), Status> {
        match a.operation {
            Operation::Create => self.mirror_pod(a, node).await,
            Operation::Delete => {
                let pod = match a.old_object {
                    Some(pod) => Arc::new(pod.clone()),
                    None => self.find(PODS, a.namespace, a.name).await?,
                };
                if tree::text(&pod, "/spec/nodeName") == node {
                    return Ok(());
                }
                Err(a.forbidden(format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
            }
            other => Err(a.forbidden(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                other.as_str()
            ))),
        }
    }

    async fn mirror_pod(&self, a: &Attributes<'_>, node: &str) -> Result<(), Status> {
        let pod = a.object().unwrap_or(NOTHING);
        if tree::annotation(pod, MIRROR).is_none() {
            return Err(a.forbidden(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            )));
        }
        if tree::text(pod, "/spec/nodeName") != node {
            return Err(a.forbidden(format!("node {node:?} can only create pods with spec.nodeName set to itself")));
        }
        owners(a, pod, node)?;
        if let [owner] = tree::list(pod, "/metadata/ownerReferences") {
            let own = self.find(NODES, "", node).await?;
            let (wanted, got) = (tree::text(&own, "/metadata/uid"), tree::text(owner, "/uid"));
            if wanted != got {
                return Err(a.forbidden(format!("node {node} UID mismatch: expected {wanted} got {got}")));
            }
        }
        match leans_on(pod) {
            Some(what) => Err(a.forbidden(format!("node {node:?} can not create pods that reference {what}"))),
            None => Ok(()),
        }
    }

    async fn eviction(&self, a: &Attributes<'_>, node: &str) -> Result<(), Status> {
        if a.operation != Operation::Create {
            return Err(a.forbidden(format!("unexpected operation {}", a.operation.as_str())));
        }
        let name = if a.name.is_empty() { a.object().map_or("", tree::name) } else { a.name };
        if name.is_empty() {
            return Err(a.forbidden("could not determine pod from request data"));
        }
        let pod = self.find(PODS, a.namespace, name).await?;
        if tree::text(&pod, "/spec/nodeName") == node {
            return Ok(());
        }
        Err(a.forbidden(format!("node {node} can only evict pods with spec.nodeName set to itself")))
    }

    async fn token(&self, a: &Attributes<'_>, node: &str) -> Result<(), Status> {
        let request = a.object().unwrap_or(NOTHING);
        let of = |f: &str| tree::text(request, &format!("/spec/boundObjectRef/{f}"));
        if (of("apiVersion"), of("kind")) != ("v1", "Pod") || of("name").is_empty() {
            return Err(a.forbidden("node requested token not bound to a pod"));
        }
        if of("uid").is_empty() {
            return Err(a.forbidden("node requested token with a pod binding without a uid"));
        }
        let pod = self.find(PODS, a.namespace, of("name")).await?;
        if tree::text(&pod, "/metadata/uid") != of("uid") {
            return Err(a.forbidden(format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                of("uid")
            )));
        }
        if tree::text(&pod, "/spec/nodeName") != node {
            return Err(a.forbidden("node requested token bound to a pod scheduled on a different node"));
        }
        if !self.audiences {
            return Ok(());
        }
        let meant = self.audiences(&pod);
        let asked = tree::strings(request, "/spec/audiences");
        // The issuer fills in its own audience after admission: a volume that names none wants the empty one here.
        let audience = match asked.as_slice() {
            [] => "",
            [audience] => audience,
            _ => return Err(a.forbidden("node may only request 0 or 1 audiences")),
        };
        if meant.contains(audience) || self.may_ask_for(a, audience).await {
            return Ok(());
        }
        Err(a.forbidden(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            a.user.name
        )))
    }

    /// True where the node was given the verb for an audience, as a resource, and this service account, as its name.
    async fn may_ask_for(&self, a: &Attributes<'_>, audience: &str) -> bool {
        let question = authz::Attributes {
            user: a.user.clone(),
            verb: "request-serviceaccounts-token-audience".to_owned(),
            namespace: a.namespace.to_owned(),
            api_version: "*".to_owned(),
            resource: audience.to_owned(),
            name: a.name.to_owned(),
            resource_request: true,
            ..authz::Attributes::default()
        };
        self.authorization.allows(&question).await
    }

    /// The audiences a pod's volumes may want tokens for.
    fn audiences(&self, pod: &Value) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for volume in tree::list(pod, "/spec/volumes") {
            for source in tree::list(volume, "/projected/sources").iter().filter_map(|s| s.get("serviceAccountToken")) {
                found.insert(tree::text(source, "/audience").to_owned());
            }
            let driver = match tree::text(volume, "/csi/driver") {
                "" => self.claim_driver(pod, volume),
                driver => driver.to_owned(),
            };
            if let Some(driver) = self.reader.get(CSI_DRIVERS, "", &driver).filter(|_| !driver.is_empty()) {
                found.extend(
                    tree::list(&driver, "/spec/tokenRequests").iter().map(|r| tree::text(r, "/audience").to_owned()),
                );
            }
        }
        found
    }

    fn claim_driver(&self, pod: &Value, volume: &Value) -> String {
        let claim = match tree::text(volume, "/persistentVolumeClaim/claimName") {
            "" if tree::has(volume, "/ephemeral") => ephemeral_claim(tree::name(pod), tree::name_field(volume)),
            claim => claim.to_owned(),
        };
        let claim = self.reader.get(PERSISTENT_VOLUME_CLAIMS, tree::namespace(pod), &claim);
        let name = claim.map(|c| tree::text(&c, "/spec/volumeName").to_owned()).unwrap_or_default();
        let volume = self.reader.get(PERSISTENT_VOLUMES, "", &name);
        volume.map(|v| tree::text(&v, "/spec/csi/driver").to_owned()).unwrap_or_default()
    }
}

fn owners(a: &Attributes<'_>, pod: &Value, node: &str) -> Result<(), Status> {
    let owner = match tree::list(pod, "/metadata/ownerReferences") {
        [] => return Ok(()),
        [one] => one,
        _ => {
            return Err(
                a.forbidden(format!("node {node:?} can only create pods with a single owner reference set to itself"))
            );
        }
    };
    let of = |f: &str| tree::text(owner, f);
    if (of("/apiVersion"), of("/kind"), of("/name")) != ("v1", "Node", node) {
        return Err(a.forbidden(format!("node {node:?} can only create pods with an owner reference set to itself")));
    }
    if !tree::flag(owner, "/controller") {
        return Err(
            a.forbidden(format!("node {node:?} can only create pods with a controller owner reference set to itself"))
        );
    }
    if tree::flag(owner, "/blockOwnerDeletion") {
        return Err(a.forbidden(format!("node {node:?} must not set blockOwnerDeletion on an owner reference")));
    }
    Ok(())
}

/// Names an API object that a pod refers to, of those that static pods may not.
fn leans_on(pod: &Value) -> Option<&'static str> {
    if !tree::text(pod, "/spec/serviceAccountName").is_empty() {
        return Some("a service account");
    }
    if !pod_secrets(pod).is_empty() {
        return Some(SECRETS.plural);
    }
    if !pod_config_maps(pod).is_empty() {
        return Some(CONFIG_MAPS.plural);
    }
    let volumes = tree::list(pod, "/spec/volumes");
    if volumes.iter().any(|v| tree::has(v, "/persistentVolumeClaim")) {
        return Some(PERSISTENT_VOLUME_CLAIMS.plural);
    }
    let sources = || volumes.iter().flat_map(|v| tree::list(v, "/projected/sources"));
    if sources().any(|s| tree::has(s, "/clusterTrustBundle")) {
        return Some(CLUSTER_TRUST_BUNDLES.plural);
    }
    (pod.pointer("/spec/resourceClaims").is_some_and(|c| *c != json!([]) && !c.is_null()))
        .then_some(RESOURCE_CLAIMS.plural)
}

#[cfg(test)]
mod tests;
