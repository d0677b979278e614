//! Tests of what kubelets may write.

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
        (pod("n2", true), "pods \"p\" is forbidden: node \"n1\" can only create pods with spec.nodeName set to itself"),
    ] {
        assert_eq!(try_it(&cluster, Write::create("", "pods", "e", pod)).await, Err(text.to_owned()));
    }
    let status = Write::update("", "pods", "status", "p", pod("n2", true), pod("n2", true));
    assert_eq!(
        try_it(&cluster, status).await,
        Err(
            "pods \"p\" is forbidden: node \"n1\" can only update pod status for pods with spec.nodeName set to itself"
                .into()
        )
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
    cluster.put(
        "",
        "pods",
        json!({"metadata": {"name": "q", "namespace": "e", "uid": "v"}, "spec": {"nodeName": "n1", "volumes": usual}}),
    );
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
