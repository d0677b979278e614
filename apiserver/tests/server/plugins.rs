//! The admission plugins that are on by default, each seen through the server's own port: what it lets in, adds, and
//! refuses. Those with a subject of their own (limits, quotas, pod security, webhooks, policies) are in `admission` and
//! `policies`.

use base64::Engine as _;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};

use crate::harness::{Client, Identity, eventually};
use crate::{cluster, workspace};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const STORAGE: &str = "/apis/storage.k8s.io/v1";

/// A pod that asks for nothing but what is merged into its spec.
pub(crate) fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_have_a_life() {
    let Some((c, ns)) = workspace("lifecycle").await else { return };
    let map = json!({"metadata": {"name": "m"}});
    c.post("/api/v1/namespaces/nowhere/configmaps", map.clone()).await.fails(
        404,
        "NotFound",
        r#"namespaces "nowhere" not found"#,
    );
    c.delete("/api/v1/namespaces/default").await.fails(
        403,
        "Forbidden",
        r#"namespaces "default" is forbidden: this namespace may not be deleted"#,
    );
    c.post(&format!("{ns}/configmaps"), map).await.ok();
    // Without its controller a namespace goes on ending.
    c.delete(&ns).await.ok();
    let late = c.post(&format!("{ns}/configmaps"), json!({"metadata": {"name": "late"}})).await;
    late.fails(
        403,
        "Forbidden",
        r#"configmaps "late" is forbidden: unable to create new content in namespace lifecycle because it is being terminated"#,
    );
    let cause = json!([{"reason": "NamespaceTerminating", "message": "namespace lifecycle is being terminated", "field": "metadata.namespace"}]);
    assert_eq!(late.json()["details"]["causes"], cause);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    c.patch(&format!("{ns}/configmaps/m"), "merge-patch+json", label).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn default_plugins_complete_pods() {
    let Some((c, ns)) = workspace("equipped").await else { return };
    let pods = format!("{ns}/pods");
    let made = c.post(&pods, pod("p", json!({}))).await.ok();
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let tolerations = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    assert_eq!(made["spec"]["tolerations"], tolerations);
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]),
        (&json!(0), &json!("PreemptLowerPriority"))
    );
    let own = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
    let patient = c.post(&pods, pod("own", json!({"tolerations": own}))).await.ok();
    assert_eq!(patient["spec"]["tolerations"][0]["tolerationSeconds"], 5);
    assert_eq!(patient["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
    c.post(&pods, pod("x", json!({"serviceAccountName": "robot"}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: error looking up service account equipped/robot: serviceaccount "robot" not found"#,
    );
    let mut mirror = pod("mirror", json!({"serviceAccountName": "default", "nodeName": "n"}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    c.post(&pods, mirror).await.fails(
        403,
        "Forbidden",
        r#"pods "mirror" is forbidden: a mirror pod may not reference service accounts"#,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_is_resolved_from_classes() {
    let Some((c, ns)) = workspace("prioritised").await else { return };
    let (pods, classes) = (format!("{ns}/pods"), "/apis/scheduling.k8s.io/v1/priorityclasses");
    c.post(classes, json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})).await.ok();
    let made = c.post(&pods, pod("p", json!({"priorityClassName": "high"}))).await.ok();
    assert_eq!((&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]), (&json!(1000), &json!("Never")));
    c.post(&pods, pod("x", json!({"priorityClassName": "nope"}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: no PriorityClass with name nope was found"#,
    );
    c.post(&pods, pod("x", json!({"priorityClassName": "high", "priority": 5}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name"#,
    );
    c.post(&pods, pod("x", json!({"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}))).await.fails(
        403,
        "Forbidden",
        r#"pods "x" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name"#,
    );
    c.delete(&format!("{classes}/system-node-critical")).await.fails(
        403,
        "Forbidden",
        r#"priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden: this is a system priority class and cannot be deleted"#,
    );
    c.delete(&format!("{classes}/high")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn new_nodes_are_tainted_and_bindings_copy_topology_labels() {
    let Some((c, ns)) = workspace("placed").await else { return };
    let labels = json!({"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "other": "o"});
    let node = c.post("/api/v1/nodes", json!({"metadata": {"name": "placed", "labels": labels}})).await.ok();
    assert_eq!(node["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    let ready = c.patch("/api/v1/nodes/placed", "merge-patch+json", json!({"spec": {"taints": null}})).await.ok();
    assert!(ready["spec"]["taints"].is_null(), "only new nodes are tainted: {ready}");
    c.post(&format!("{ns}/pods"), pod("p", json!({}))).await.ok();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "placed"}});
    c.post(&format!("{ns}/pods/p/binding"), binding).await.ok();
    let bound = c.get(&format!("{ns}/pods/p")).await.ok();
    assert_eq!(bound["spec"]["nodeName"], "placed");
    let wanted = json!({"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"});
    assert_eq!(bound["metadata"]["labels"], wanted);
    let direct = c.post(&format!("{ns}/pods"), pod("q", json!({"nodeName": "placed"}))).await.ok();
    assert_eq!(direct["metadata"]["labels"], wanted);
    c.delete("/api/v1/nodes/placed").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_get_a_default_class_and_resize_if_allowed() {
    let Some((c, ns)) = workspace("claims").await else { return };
    let classes = format!("{STORAGE}/storageclasses");
    let default = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let class = |name: &str, annotations: Value, grows: bool| json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "p", "allowVolumeExpansion": grows});
    c.post(&classes, class("usual", default, false)).await.ok();
    c.post(&classes, class("growing", json!({}), true)).await.ok();
    // Admission knows what the caches know.
    c.watch_until(&format!("{classes}?watch=1"), |o| o["metadata"]["name"] == "growing").await;
    let claims = format!("{ns}/persistentvolumeclaims");
    let claim = |name: &str, class: Value| {
        let resources = json!({"requests": {"storage": "1Gi"}});
        json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": class}})
    };
    let made = c.post(&claims, claim("fixed", Value::Null)).await.ok();
    assert_eq!(made["spec"]["storageClassName"], "usual");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let none = c.post(&claims, claim("none", json!(""))).await.ok();
    assert_eq!(none["spec"]["storageClassName"], "", "who asks for no class gets none");
    c.post(&claims, claim("elastic", json!("growing"))).await.ok();
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let grow = async |name: &str| c.patch(&format!("{claims}/{name}"), "merge-patch+json", more.clone()).await;
    assert_eq!(grow("elastic").await.code, 422, "it has no volume yet that could grow");
    for name in ["fixed", "elastic"] {
        let bind = json!({"spec": {"volumeName": "v"}});
        c.patch(&format!("{claims}/{name}"), "merge-patch+json", bind).await.ok();
        let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
        c.patch(&format!("{claims}/{name}/status"), "merge-patch+json", bound).await.ok();
    }
    grow("fixed").await.fails(
        403,
        "Forbidden",
        r#"persistentvolumeclaims "fixed" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"#,
    );
    assert_eq!(grow("elastic").await.ok()["spec"]["resources"]["requests"]["storage"], "2Gi");
    let volume = json!({"metadata": {"name": "claims-v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let volume = c.post("/api/v1/persistentvolumes", volume).await.ok();
    assert_eq!(volume["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    for name in ["usual", "growing"] {
        c.delete(&format!("{classes}/{name}")).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_class_sets_overhead() {
    let Some((c, ns)) = workspace("runtimes").await else { return };
    let (pods, classes) = (format!("{ns}/pods"), "/apis/node.k8s.io/v1/runtimeclasses");
    let overhead = json!({"podFixed": {"cpu": "250m"}});
    let scheduling =
        json!({"nodeSelector": {"sandbox": "yes"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]});
    let class = json!({"metadata": {"name": "heavy"}, "handler": "h", "overhead": overhead, "scheduling": scheduling});
    c.post(classes, class).await.ok();
    let made = c.post(&pods, pod("p", json!({"runtimeClassName": "heavy"}))).await.ok();
    assert_eq!(made["spec"]["overhead"], json!({"cpu": "250m"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"sandbox": "yes"}));
    assert!(made["spec"]["tolerations"].as_array().is_some_and(|t| t.iter().any(|t| t["key"] == "sandbox")), "{made}");
    for (spec, why) in [
        (json!({"runtimeClassName": "nope"}), r#"pod rejected: RuntimeClass "nope" not found"#),
        (
            json!({"runtimeClassName": "heavy", "overhead": {"cpu": "1"}}),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            json!({"overhead": {"cpu": "1"}}),
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
    ] {
        let why = format!("pods \"x\" is forbidden: {why}");
        c.post(&pods, pod("x", spec)).await.fails(403, "Forbidden", &why);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ingresses_get_the_default_class() {
    let Some((c, ns)) = workspace("ingresses").await else { return };
    let path = "/apis/networking.k8s.io/v1";
    let default = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class = json!({"metadata": {"name": "door", "annotations": default}, "spec": {"controller": "a.io/b"}});
    c.post(&format!("{path}/ingressclasses"), class).await.ok();
    let ingresses = format!("{path}/namespaces/{}/ingresses", ns.rsplit('/').next().unwrap_or(""));
    let ingress = |name: &str, class: Value| {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        json!({"metadata": {"name": name}, "spec": {"ingressClassName": class, "defaultBackend": backend}})
    };
    // Admission knows classes from a cache, which a new one reaches a moment later.
    let trial = format!("{ingresses}?dryRun=All");
    eventually("the class is given", async || {
        let made = c.post(&trial, ingress("a", Value::Null)).await.ok();
        (made["spec"]["ingressClassName"] == "door").then_some(())
    })
    .await;
    let own = c.post(&ingresses, ingress("b", json!("window"))).await.ok();
    assert_eq!(own["spec"]["ingressClassName"], "window");
    c.delete(&format!("{path}/ingressclasses/door")).await.ok();
}

/// A certificate request for `name` in `group`, as it is put into an object.
fn request(name: &str, group: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    let pem = params.serialize_request(&KeyPair::generate().expect("a key")).and_then(|r| r.pem()).expect("a request");
    base64::engine::general_purpose::STANDARD.encode(pem)
}

/// Lets alice do `verbs` to cluster-wide `resources`, by a role named `name`.
async fn grant(c: &Client, name: &str, rules: Value) {
    c.post(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})).await.ok();
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    c.post(&format!("{RBAC}/clusterrolebindings"), binding).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn approving_and_signing_need_permission() {
    let Some((c, _)) = workspace("signers").await else { return };
    let Some(server) = cluster().await else { return };
    let alice = server.client(Identity::Alice);
    let (path, signer) =
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", "kubernetes.io/kube-apiserver-client");
    let csr = |name: &str, group: &str| json!({"metadata": {"name": name}, "spec": {"request": request("jane", group), "signerName": signer, "usages": ["client auth"]}});
    c.post(path, csr("masters", "system:masters")).await.fails(
        403,
        "Forbidden",
        r#"certificatesigningrequests.certificates.k8s.io "masters" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"#,
    );
    c.post(path, csr("jane", "dev")).await.ok();
    let group = "certificates.k8s.io";
    grant(&c, "signers-write", json!([
        {"apiGroups": [group], "resources": ["certificatesigningrequests"], "verbs": ["get"]},
        {"apiGroups": [group], "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"], "verbs": ["update", "patch"]}
    ]))
    .await;
    let condition = json!({"type": "Approved", "status": "True", "reason": "r", "message": "m"});
    let approve = json!({"status": {"conditions": [condition]}});
    let approving = async || alice.patch(&format!("{path}/jane/approval"), "merge-patch+json", approve.clone()).await;
    let refused = |what: &str| {
        format!(
            r#"certificatesigningrequests.certificates.k8s.io "jane" is forbidden: user not permitted to {what} signerName "{signer}""#
        )
    };
    approving().await.fails(403, "Forbidden", &refused("approve requests with"));
    let by_domain = json!([{"apiGroups": [group], "resources": ["signers"], "resourceNames": ["kubernetes.io/*"], "verbs": ["approve"]}]);
    grant(&c, "signers-approve", by_domain).await;
    approving().await.ok();
    // A signer is not who approves.
    let pem = base64::engine::general_purpose::STANDARD.encode(&server.pki().server.0);
    let sign = json!({"status": {"certificate": pem}});
    let signing = async || alice.patch(&format!("{path}/jane/status"), "merge-patch+json", sign.clone()).await;
    signing().await.fails(403, "Forbidden", &refused("sign requests with"));
    let one = json!([{"apiGroups": [group], "resources": ["signers"], "resourceNames": [signer], "verbs": ["sign"]}]);
    grant(&c, "signers-sign", one).await;
    signing().await.ok();
}
