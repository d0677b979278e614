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
use crate::machinery::tree;

const LEASES: &str = "kube-node-lease";
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

pub(super) type CheckResult = Result<(), String>;

#[async_trait]
impl Plugin for NodeRestriction {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(node) = identity(a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(a.forbidden(format!("could not determine node from user {:?}", a.user.name)));
        }
        let verdict = match (a.resource.group.as_ref(), a.resource.plural.as_ref(), a.subresource) {
            ("", "pods", "") => self.pod(a, node).await?,
            ("", "pods", "status") => pod_status(a, node),
            ("", "pods", "eviction") => self.eviction(a, node).await?,
            ("", "pods", other) => {
                Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
            }
            ("", "nodes", _) => own_node(a, node),
            ("", "persistentvolumeclaims", "status") => claim_status(a, node),
            ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
            ("", "serviceaccounts", "token") if a.operation == Operation::Create => self.token(a, node).await?,
            ("coordination.k8s.io", "leases", _) => lease(a, node),
            ("storage.k8s.io", "csinodes", _) => {
                same_name(a, node, "can only access CSINode with the same name as the requesting node")
            }
            ("resource.k8s.io", "resourceslices", _) => slice(a, node),
            ("certificates.k8s.io", "certificatesigningrequests", "")
                if self.requests && a.operation == Operation::Create =>
            {
                signing_request(a, node)
            }
            ("certificates.k8s.io", "podcertificaterequests", _) => self.pod_certificate(a, node).await?,
            _ => Ok(()),
        };
        verdict.map_err(|why| a.forbidden(why))
    }
}

fn own_node(a: &Attributes<'_>, node: &str) -> CheckResult {
    let object = a.object().unwrap_or(NOTHING);
    let mut name = a.name;
    if a.operation == Operation::Create {
        if tree::has(object, "/spec/configSource") {
            return Err("is not allowed to create pods with a non-nil configSource".to_owned());
        }
        let forbidden = forbidden_labels(NOTHING, object);
        if !forbidden.is_empty() {
            return Err(format!("is not allowed to set the following labels: {}", join(&forbidden)));
        }
        if name.is_empty() {
            name = tree::name(object);
        }
    }
    if name != node {
        return Err(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    if a.operation == Operation::Update {
        let old = a.old_object.unwrap_or(NOTHING);
        if tree::list(object, "/spec/taints") != tree::list(old, "/spec/taints") {
            return Err("is not allowed to modify taints".to_owned());
        }
        let forbidden = forbidden_labels(old, object);
        if !forbidden.is_empty() {
            return Err(format!("is not allowed to modify labels: {}", join(&forbidden)));
        }
        if tree::list(object, "/metadata/ownerReferences") != tree::list(old, "/metadata/ownerReferences") {
            return Err("is not allowed to modify ownerReferences".to_owned());
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

fn pod_status(a: &Attributes<'_>, node: &str) -> CheckResult {
    if a.operation != Operation::Update {
        return Err(format!("unexpected operation {:?}", a.operation.as_str()));
    }
    let (old, new) = (a.old_object.unwrap_or(NOTHING), a.object().unwrap_or(NOTHING));
    if tree::text(old, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    let labels = |o: &Value| tree::map(o, "/metadata/labels").cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    if tree::list(old, "/status/resourceClaimStatuses") != tree::list(new, "/status/resourceClaimStatuses") {
        return Err(format!("node {node:?} cannot update resource claim statuses"));
    }
    Ok(())
}

fn claim_status(a: &Attributes<'_>, node: &str) -> CheckResult {
    if a.operation != Operation::Update {
        return Err(format!("unexpected operation {:?}", a.operation.as_str()));
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
    Err(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

fn same_name(a: &Attributes<'_>, node: &str, text: &str) -> CheckResult {
    let name = if a.operation == Operation::Create { a.object().map_or("", tree::name) } else { a.name };
    if name == node { Ok(()) } else { Err(text.to_owned()) }
}

fn lease(a: &Attributes<'_>, node: &str) -> CheckResult {
    if a.namespace != LEASES {
        return Err(format!("can only access leases in the {LEASES:?} system namespace"));
    }
    same_name(a, node, "can only access node lease with the same name as the requesting node")
}

fn slice(a: &Attributes<'_>, node: &str) -> CheckResult {
    let of = |o: Option<&Value>| tree::text(o.unwrap_or(NOTHING), "/spec/nodeName").to_owned();
    match a.operation {
        Operation::Create if of(a.object()) != node => {
            Err("can only create ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        Operation::Delete if of(a.old_object) != node => {
            Err("can only delete ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        _ => Ok(()),
    }
}

fn signing_request(a: &Attributes<'_>, node: &str) -> CheckResult {
    let request = a.object().unwrap_or(NOTHING);
    if !NODE_SIGNERS.contains(&tree::text(request, "/spec/signerName")) {
        return Ok(());
    }
    let name = super::certificates::common_name(tree::text(request, "/spec/request"));
    match name {
        None => Err("unable to parse csr".to_owned()),
        Some(name) if name == format!("system:node:{node}") => Ok(()),
        Some(_) => Err(format!("can only create a node CSR with CN=system:node:{node}")),
    }
}

impl NodeRestriction {
    /// From the cache, else from storage.
    pub(super) async fn find(&self, plural: &str, namespace: &str, name: &str) -> Result<Arc<Value>, Status> {
        match self.reader.get("", plural, namespace, name) {
            Some(object) => Ok(object),
            None => self.api.get("", plural, namespace, name).await.map(Arc::new),
        }
    }

    async fn pod(&self, a: &Attributes<'_>, node: &str) -> Result<CheckResult, Status> {
        match a.operation {
            Operation::Create => self.mirror_pod(a, node).await,
            Operation::Delete => {
                let pod = match a.old_object {
                    Some(pod) => Arc::new(pod.clone()),
                    None => self.find("pods", a.namespace, a.name).await?,
                };
                if tree::text(&pod, "/spec/nodeName") == node {
                    return Ok(Ok(()));
                }
                Ok(Err(format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
            }
            other => Ok(Err(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                other.as_str()
            ))),
        }
    }

    async fn mirror_pod(&self, a: &Attributes<'_>, node: &str) -> Result<CheckResult, Status> {
        let pod = a.object().unwrap_or(NOTHING);
        if tree::annotation(pod, MIRROR).is_none() {
            return Ok(Err(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            )));
        }
        if tree::text(pod, "/spec/nodeName") != node {
            return Ok(Err(format!("node {node:?} can only create pods with spec.nodeName set to itself")));
        }
        if let Err(why) = owners(pod, node) {
            return Ok(Err(why));
        }
        if let [owner] = tree::list(pod, "/metadata/ownerReferences") {
            let own = self.find("nodes", "", node).await?;
            let (wanted, got) = (tree::text(&own, "/metadata/uid"), tree::text(owner, "/uid"));
            if wanted != got {
                return Ok(Err(format!("node {node} UID mismatch: expected {wanted} got {got}")));
            }
        }
        Ok(leans_on(pod).map_or(Ok(()), |what| Err(format!("node {node:?} can not create pods that reference {what}"))))
    }

    async fn eviction(&self, a: &Attributes<'_>, node: &str) -> Result<CheckResult, Status> {
        if a.operation != Operation::Create {
            return Ok(Err(format!("unexpected operation {}", a.operation.as_str())));
        }
        let name = if a.name.is_empty() { a.object().map_or("", tree::name) } else { a.name };
        if name.is_empty() {
            return Ok(Err("could not determine pod from request data".to_owned()));
        }
        let pod = self.find("pods", a.namespace, name).await?;
        if tree::text(&pod, "/spec/nodeName") == node {
            return Ok(Ok(()));
        }
        Ok(Err(format!("node {node} can only evict pods with spec.nodeName set to itself")))
    }

    async fn token(&self, a: &Attributes<'_>, node: &str) -> Result<CheckResult, Status> {
        let request = a.object().unwrap_or(NOTHING);
        let of = |f: &str| tree::text(request, &format!("/spec/boundObjectRef/{f}"));
        if (of("apiVersion"), of("kind")) != ("v1", "Pod") || of("name").is_empty() {
            return Ok(Err("node requested token not bound to a pod".to_owned()));
        }
        if of("uid").is_empty() {
            return Ok(Err("node requested token with a pod binding without a uid".to_owned()));
        }
        let pod = self.find("pods", a.namespace, of("name")).await?;
        if tree::text(&pod, "/metadata/uid") != of("uid") {
            return Ok(Err(format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                of("uid")
            )));
        }
        if tree::text(&pod, "/spec/nodeName") != node {
            return Ok(Err("node requested token bound to a pod scheduled on a different node".to_owned()));
        }
        if !self.audiences {
            return Ok(Ok(()));
        }
        let meant = self.audiences(&pod);
        let asked = tree::strings(request, "/spec/audiences");
        // The issuer fills in its own audience after admission: a volume that names none wants the empty one here.
        let audience = match asked.as_slice() {
            [] => "",
            [audience] => audience,
            _ => return Ok(Err("node may only request 0 or 1 audiences".to_owned())),
        };
        if meant.contains(audience) || self.may_ask_for(a, audience).await {
            return Ok(Ok(()));
        }
        Ok(Err(format!(
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
            if let Some(driver) =
                self.reader.get("storage.k8s.io", "csidrivers", "", &driver).filter(|_| !driver.is_empty())
            {
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
        let claim = self.reader.get("", "persistentvolumeclaims", tree::namespace(pod), &claim);
        let name = claim.map(|c| tree::text(&c, "/spec/volumeName").to_owned()).unwrap_or_default();
        let volume = self.reader.get("", "persistentvolumes", "", &name);
        volume.map(|v| tree::text(&v, "/spec/csi/driver").to_owned()).unwrap_or_default()
    }
}

fn owners(pod: &Value, node: &str) -> CheckResult {
    let owner = match tree::list(pod, "/metadata/ownerReferences") {
        [] => return Ok(()),
        [one] => one,
        _ => return Err(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    let of = |f: &str| tree::text(owner, f);
    if (of("/apiVersion"), of("/kind"), of("/name")) != ("v1", "Node", node) {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if !tree::flag(owner, "/controller") {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if tree::flag(owner, "/blockOwnerDeletion") {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    Ok(())
}

/// Names an API object that a pod refers to, of those that static pods may not.
fn leans_on(pod: &Value) -> Option<&'static str> {
    if !tree::text(pod, "/spec/serviceAccountName").is_empty() {
        return Some("a service account");
    }
    if !pod_secrets(pod).is_empty() {
        return Some("secrets");
    }
    if !pod_config_maps(pod).is_empty() {
        return Some("configmaps");
    }
    let volumes = tree::list(pod, "/spec/volumes");
    if volumes.iter().any(|v| tree::has(v, "/persistentVolumeClaim")) {
        return Some("persistentvolumeclaims");
    }
    let sources = || volumes.iter().flat_map(|v| tree::list(v, "/projected/sources"));
    if sources().any(|s| tree::has(s, "/clusterTrustBundle")) {
        return Some("clustertrustbundles");
    }
    (pod.pointer("/spec/resourceClaims").is_some_and(|c| *c != json!([]) && !c.is_null())).then_some("resourceclaims")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{Fixed, Write};
    use crate::authz::Mode;
    use shared::authn::UserInfo;

    fn n1() -> UserInfo {
        UserInfo { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..UserInfo::default() }
    }

    async fn try_it(cluster: &Arc<Fixed>, write: Write<'_>) -> Result<(), String> {
        try_with(cluster, write, true, true).await
    }

    async fn try_with(cluster: &Arc<Fixed>, write: Write<'_>, audiences: bool, requests: bool) -> Result<(), String> {
        let authorization = Arc::new(Authorization::of(Vec::new()));
        let (reader, api) = (cluster.clone(), cluster.api());
        let plugin = NodeRestriction { reader, api, authorization, audiences, requests };
        write.by(&n1()).admit(&plugin).await.map(drop).map_err(|s| s.message)
    }

    #[tokio::test]
    async fn its_own_node_without_reserved_labels() {
        let cluster = Arc::new(Fixed::default());
        let node = |label: &str| json!({"metadata": {"name": "n1", "labels": {label: "b"}}});
        let table: &[(&str, Value, Result<(), &str>)] = &[
            ("n1", node("example.com/a"), Ok(())),
            ("n1", node("node.kubernetes.io/a"), Ok(())),
            ("n1", node("topology.kubernetes.io/zone"), Ok(())),
            (
                "n1",
                node("node-restriction.kubernetes.io/a"),
                Err("nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a"),
            ),
            (
                "n1",
                node("kubernetes.io/zzz"),
                Err("nodes \"n1\" is forbidden: is not allowed to modify labels: kubernetes.io/zzz"),
            ),
            (
                "n1",
                json!({"spec": {"taints": [{"key": "a"}]}}),
                Err("nodes \"n1\" is forbidden: is not allowed to modify taints"),
            ),
            ("n2", node("a"), Err("nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"")),
        ];
        for (name, new, want) in table {
            let write = Write::update("", "nodes", "", name, new.clone(), json!({"metadata": {"name": name}}));
            assert_eq!(try_it(&cluster, write).await, want.map_err(str::to_owned), "{new}");
        }
    }

    #[tokio::test]
    async fn mirror_pods_only() {
        let cluster = Arc::new(Fixed::default());
        let pod = |node: &str, mirror: bool| {
            let annotations = if mirror { json!({MIRROR: "x"}) } else { json!({}) };
            json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": node}})
        };
        assert_eq!(try_it(&cluster, Write::create("", "pods", "e", pod("n1", true))).await, Ok(()));
        for (pod, text) in [
            (
                pod("n1", false),
                "pods \"p\" is forbidden: pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
            ),
            (
                pod("n2", true),
                "pods \"p\" is forbidden: node \"n1\" can only create pods with spec.nodeName set to itself",
            ),
        ] {
            assert_eq!(try_it(&cluster, Write::create("", "pods", "e", pod)).await, Err(text.to_owned()));
        }
        let status = Write::update("", "pods", "status", "p", pod("n2", true), pod("n2", true));
        assert_eq!(
            try_it(&cluster, status).await,
            Err("pods \"p\" is forbidden: node \"n1\" can only update pod status for pods with spec.nodeName set to itself".into())
        );
    }

    #[tokio::test]
    async fn tokens_for_its_own_pods() {
        let cluster = Arc::new(Fixed::default());
        let volumes = json!([{"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
        cluster.put("", "pods", json!({"metadata": {"name": "p", "namespace": "e", "uid": "u"}, "spec": {"nodeName": "n1", "volumes": volumes}}));
        cluster.put(
            "",
            "pods",
            json!({"metadata": {"name": "q", "namespace": "e", "uid": "u"}, "spec": {"nodeName": "n2"}}),
        );
        let ask = |bound: Value| {
            Write::create("", "serviceaccounts", "e", json!({"spec": {"boundObjectRef": bound}})).on("token", "sa")
        };
        let bound = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        assert_eq!(try_it(&cluster, ask(bound("p", "u"))).await, Ok(()));
        for (bound, text) in [
            (Value::Null, "node requested token not bound to a pod"),
            (bound("p", ""), "node requested token with a pod binding without a uid"),
            (bound("q", "u"), "node requested token bound to a pod scheduled on a different node"),
        ] {
            let refused = try_it(&cluster, ask(bound)).await.expect_err("refused");
            assert_eq!(refused, format!("serviceaccounts \"sa\" is forbidden: {text}"));
        }
    }

    #[tokio::test]
    async fn audiences_of_no_volume_need_a_permission() {
        let cluster = Arc::new(Fixed::default());
        cluster.put(
            "",
            "pods",
            json!({"metadata": {"name": "p", "namespace": "e", "uid": "u"}, "spec": {"nodeName": "n1"}}),
        );
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        let rules = |audience: &str, account: &str| {
            json!({"metadata": {"name": "audiences"}, "rules": [{"apiGroups": [""], "resources": [audience],
                "verbs": ["request-serviceaccounts-token-audience"], "resourceNames": [account]}]})
        };
        let binding = json!({"metadata": {"name": "audiences"}, "subjects": [{"kind": "Group", "name": "system:nodes"}],
            "roleRef": {"kind": "ClusterRole", "name": "audiences"}});
        cluster.put("rbac.authorization.k8s.io", "clusterrolebindings", binding);
        for (audience, account, allowed) in [("vault", "sa", true), ("other", "sa", false), ("vault", "other", false)] {
            cluster.put("rbac.authorization.k8s.io", "clusterroles", rules(audience, account));
            let authorization = Arc::new(Authorization::new(&[Mode::Rbac], cluster.clone(), Vec::new()));
            let (reader, api) = (cluster.clone(), cluster.api());
            let plugin = NodeRestriction { reader, api, authorization, audiences: true, requests: true };
            let request = json!({"spec": {"boundObjectRef": bound, "audiences": ["vault"]}});
            let write = Write::create("", "serviceaccounts", "e", request).on("token", "sa");
            assert_eq!(write.by(&n1()).admit(&plugin).await.is_ok(), allowed, "{audience} {account}");
        }
    }

    #[tokio::test]
    async fn feature_gates_restrict_nodes_to_their_own_objects() {
        let cluster = Arc::new(Fixed::default());
        let volumes =
            json!([{"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]}}]);
        cluster.put("", "pods", json!({"metadata": {"name": "p", "namespace": "e", "uid": "u"}, "spec": {"nodeName": "n1", "volumes": volumes}}));
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        let request = json!({"spec": {"boundObjectRef": bound, "audiences": ["other"]}});
        let token = || Write::create("", "serviceaccounts", "e", request.clone()).on("token", "sa");
        // The volume of every pod wants a token without an audience, which gives no right to one with it.
        let usual = json!([{"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
        cluster.put("", "pods", json!({"metadata": {"name": "q", "namespace": "e", "uid": "v"}, "spec": {"nodeName": "n1", "volumes": usual}}));
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "v"});
        for (audiences, allowed) in [(json!([]), true), (json!(["vault"]), false), (json!(["", ""]), false)] {
            let request = json!({"spec": {"boundObjectRef": bound, "audiences": audiences}});
            let write = Write::create("", "serviceaccounts", "e", request).on("token", "sa");
            assert_eq!(try_with(&cluster, write, true, true).await.is_ok(), allowed, "{audiences}");
        }
        let csr = json!({"spec": {"signerName": "kubernetes.io/kubelet-serving", "request": "eA=="}});
        let csr = || Write::create("certificates.k8s.io", "certificatesigningrequests", "", csr.clone());
        for strict in [true, false] {
            assert_eq!(
                try_with(&cluster, token(), strict, true).await.is_ok(),
                !strict,
                "ServiceAccountNodeAudienceRestriction"
            );
            let allowed = try_with(&cluster, csr(), true, strict).await.is_ok();
            assert_eq!(allowed, !strict, "AllowInsecureKubeletCertificateSigningRequests");
        }
    }

    #[tokio::test]
    async fn its_own_lease() {
        let cluster = Arc::new(Fixed::default());
        let lease = |namespace: &'static str, name: &str| {
            Write::create("coordination.k8s.io", "leases", namespace, json!({"metadata": {"name": name}}))
        };
        assert_eq!(try_it(&cluster, lease("kube-node-lease", "n1")).await, Ok(()));
        assert!(try_it(&cluster, lease("kube-node-lease", "n2")).await.is_err());
        assert!(try_it(&cluster, lease("default", "n1")).await.is_err());
    }
}
