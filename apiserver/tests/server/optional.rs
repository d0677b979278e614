//! Kinds that are off by default, each written, read, listed as a table, changed and deleted where they are on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, etcd_is_missing};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const GATES: &str = "--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true,CoordinatedLeaderElection=true,DRADeviceTaints=true,DRADeviceTaintRules=true,GenericWorkload=true,StorageVersionMigrator=true";
const UID: &str = "6a1c1d5c-0000-4000-8000-000000000001";

async fn start() -> Cluster {
    Cluster::start_with(|_, _| vec!["--runtime-config=api/all=true".to_owned(), GATES.to_owned()]).await
}

fn pod_certificate() -> Value {
    let key = KeyPair::generate().expect("a key");
    let proof = key.sign(UID.as_bytes()).expect("signed");
    json!({"signerName": "a.b/c", "podName": "p", "podUID": UID, "serviceAccountName": "s", "serviceAccountUID": "u",
        "nodeName": "n", "nodeUID": "u", "pkixPublicKey": STANDARD.encode(key.subject_public_key_info()),
        "proofOfPossession": STANDARD.encode(proof)})
}

/// Group, version that is stored and another one, plural, namespace, spec, and what its row in a table begins with.
type Kind = (&'static str, [&'static str; 2], &'static str, &'static str, Value, Value);

fn kinds() -> Vec<Kind> {
    vec![
        (
            "certificates.k8s.io",
            ["v1beta1", "v1alpha1"],
            "clustertrustbundles",
            "",
            json!({"trustBundle": authority()}),
            json!(["x", "<none>"]),
        ),
        (
            "certificates.k8s.io",
            ["v1beta1"; 2],
            "podcertificaterequests",
            "default",
            pod_certificate(),
            json!(["x", "p", "s", "n", "a.b/c", "Pending", "<none>"]),
        ),
        (
            "coordination.k8s.io",
            ["v1beta1", "v1alpha2"],
            "leasecandidates",
            "default",
            json!({"leaseName": "l", "binaryVersion": "1.35.0", "emulationVersion": "1.35.0", "strategy": "OldestEmulationVersion"}),
            json!(["x", "l", "1.35.0", "1.35.0"]),
        ),
        (
            "scheduling.k8s.io",
            ["v1alpha1"; 2],
            "workloads",
            "default",
            json!({"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 2}}}]}),
            json!(["x"]),
        ),
        (
            "storagemigration.k8s.io",
            ["v1beta1"; 2],
            "storageversionmigrations",
            "",
            json!({"resource": {"group": "apps", "resource": "deployments"}}),
            json!(["x", "deployments.apps", ""]),
        ),
        (
            "resource.k8s.io",
            ["v1alpha3"; 2],
            "devicetaintrules",
            "",
            json!({"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "k", "value": "v", "effect": "NoExecute"}}),
            json!(["x", "k", "v", "NoExecute"]),
        ),
    ]
}

fn authority() -> String {
    let mut parameters = rcgen::CertificateParams::default();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate").pem()
}

#[tokio::test(flavor = "multi_thread")]
async fn optional_resources_are_fully_served() {
    if etcd_is_missing() {
        return;
    }
    let c = start().await;
    let facts: Value =
        serde_json::from_str(include_str!("../../../proto/testdata/discovery-optional.json")).expect("JSON");
    let all = c.call("GET", "/apis", &[("accept", AGGREGATED)], None).await.ok();
    let groups = all["items"].as_array().cloned().unwrap_or_default();
    for (version, want) in facts.as_object().into_iter().flatten() {
        let (group, version) = version.split_once('/').expect("a group version");
        let found = groups.iter().find(|g| g["metadata"]["name"] == group).and_then(|g| g["versions"].as_array());
        let found = found.into_iter().flatten().find(|v| v["version"] == version).expect("a version");
        assert_eq!(&found["resources"], want, "{group}/{version}");
    }
    for (group, [version, other], plural, namespace, spec, cells) in kinds() {
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        let list = |version: &str| format!("/apis/{group}/{version}/{place}{plural}");
        let made = c.post(&list(other), json!({"metadata": {"name": "x"}, "spec": spec})).await.ok();
        let path = format!("{}/x", list(version));
        let read = c.get(&path).await.ok();
        assert_eq!(read["apiVersion"], format!("{group}/{version}"), "{plural}");
        assert_eq!(read["spec"], made["spec"], "{plural}");
        assert_eq!(c.get(&list(version)).await.ok()["items"].as_array().map(Vec::len), Some(1), "{plural}");
        let table = c.call("GET", &list(version), &[("accept", TABLE)], None).await.ok();
        let shown = table["rows"][0]["cells"].as_array().cloned().unwrap_or_default();
        let wanted = cells.as_array().cloned().unwrap_or_default();
        assert!(shown.starts_with(&wanted), "{plural}: {shown:?}");
        let key = format!("/registry/{plural}/{}x", if namespace.is_empty() { "" } else { "default/" });
        let (stored, _) = c.stored(&key).await.expect("stored");
        let stored = String::from_utf8_lossy(&stored).into_owned();
        assert!(stored.starts_with("k8s\0") && stored.contains(&format!("{group}/{version}")), "{plural}");
        let mut changed = read.clone();
        changed["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(c.put(&path, &changed).await.ok()["metadata"]["labels"]["a"], "b", "{plural}");
        if !matches!(plural, "clustertrustbundles" | "leasecandidates" | "workloads") {
            let condition = json!({"type": "Failed", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let mut status = json!({"conditions": [condition]});
            if plural == "storageversionmigrations" {
                status["resourceVersion"] = json!("7");
            }
            let patch = json!({"status": status});
            let answered = c.patch(&format!("{path}/status"), "merge-patch+json", patch).await.ok();
            assert_eq!(answered["status"]["conditions"][0]["type"], "Failed", "{plural}");
        }
        c.delete(&path).await.ok();
        assert_eq!(c.get(&path).await.code, 404, "{plural}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trust_bundles_need_signer_permission() {
    if etcd_is_missing() {
        return;
    }
    let c = start().await;
    let group = "/apis/certificates.k8s.io/v1beta1";
    let (bundles, requests) = (format!("{group}/clustertrustbundles"), format!("{group}/podcertificaterequests"));
    let rights = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles", "podcertificaterequests", "podcertificaterequests/status"], "verbs": ["*"]}]);
    c.post(&format!("{rights}/clusterroles"), json!({"metadata": {"name": "trust"}, "rules": rules})).await.ok();
    let binding = json!({"metadata": {"name": "trust"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "trust"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    c.post(&format!("{rights}/clusterrolebindings"), binding).await.ok();
    let alice = c.client(Identity::Alice);
    let bundle = json!({"metadata": {"name": "a.b:c:x"}, "spec": {"signerName": "a.b/c", "trustBundle": authority()}});
    alice.post(&bundles, bundle.clone()).await.fails(
        403,
        "Forbidden",
        r#"clustertrustbundles.certificates.k8s.io "a.b:c:x" is forbidden: user not permitted to attest for signerName "a.b/c""#,
    );
    c.post(&bundles, bundle).await.ok();
    let found = async |selector: &str| {
        let list = c.get(&format!("{bundles}?fieldSelector=spec.signerName%3D{selector}")).await.ok();
        list["items"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((found("a.b%2Fc").await, found("a.b%2Fd").await), (1, 0));
    // Everybody in a pod may read what is trusted.
    c.get(&format!("{rights}/clusterrolebindings/system:cluster-trust-bundle-discovery")).await.ok();

    let request = json!({"metadata": {"name": "r"}, "spec": pod_certificate()});
    let own = format!("{group}/namespaces/default/podcertificaterequests");
    c.post(&own, request.clone()).await.ok();
    let node = c.client(Identity::Node);
    assert_eq!(node.get(&requests).await.code, 403);
    node.get(&format!("{requests}?fieldSelector=spec.nodeName%3Dn1")).await.ok();
    assert_eq!(node.get(&format!("{own}/r")).await.code, 403, "another node's");
    node.get(&bundles).await.ok();
    let refused = node.post(&own, json!({"metadata": {"name": "q"}, "spec": request["spec"]})).await;
    let why = r#"PodCertificateRequest.Spec.NodeName="n", which is not the requesting node "n1""#;
    let (code, _, message) = refused.failure();
    assert!(code == 403 && message.ends_with(why), "{message}");
    // Who denies needs no right to sign.
    let denied = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "R"}]}});
    let answer = alice.patch(&format!("{own}/r/status"), "merge-patch+json", denied).await.ok();
    assert_eq!(answer["status"]["conditions"][0]["type"], "Denied");
}
