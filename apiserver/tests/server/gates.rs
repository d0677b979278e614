//! Feature gates that are off by default: what they let pass, and that what passed stays usable without them. And such
//! as are on: what goes when they are turned off.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::custom::{define, definition};
use crate::harness::{Cluster, Identity, Remote, etcd_is_missing, eventually};

const NS: &str = "/api/v1/namespaces/default";

fn workload(spec: Value) -> Value {
    let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
    proto::merge::merge_patch::apply(&mut pod, spec);
    json!({"metadata": {"name": "w"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_fields_survive_a_disabled_gate() {
    if etcd_is_missing() {
        return;
    }
    let gates = [
        "HPAScaleToZero",
        "RelaxedServiceNameValidation",
        "TaintTolerationComparisonOperators",
        "UserNamespacesHostNetworkSupport",
        "MutablePVNodeAffinity",
    ];
    let on = gates.map(|gate| format!("{gate}=true")).join(",");
    let mut c = Cluster::start().await;
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"minReplicas": 0, "maxReplicas": 1,
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}}]}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"service": {"name": "1s", "port": {"number": 80}}}}});
    let tolerant = json!({"tolerations": [{"key": "k", "operator": "Lt", "value": "10"}]});
    let objects = [
        ("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", scaler),
        (&format!("{NS}/services"), json!({"metadata": {"name": "1s"}, "spec": {"ports": [{"port": 80}]}})),
        ("/apis/networking.k8s.io/v1/namespaces/default/ingresses", ingress),
        ("/apis/apps/v1/namespaces/default/deployments", workload(tolerant)),
        ("/apis/apps/v1/namespaces/default/daemonsets", workload(json!({"hostNetwork": true, "hostUsers": false}))),
    ];
    let node = |name: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": [name]}]}]}});
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/d"}, "nodeAffinity": node("a")}});
    for (path, object) in &objects {
        let (code, reason, message) = c.post(path, object.clone()).await.failure();
        assert_eq!((code, reason.as_str()), (422, "Invalid"), "{path}: {message}");
    }
    c.post("/api/v1/persistentvolumes", volume).await.ok();
    let moved = json!({"spec": {"nodeAffinity": node("b")}});
    let place = "/api/v1/persistentvolumes/v";
    assert_eq!(c.patch(place, "merge-patch+json", moved.clone()).await.code, 422);

    c.restart_with(vec![format!("--feature-gates={on}")]).await;
    for (path, object) in &objects {
        c.post(path, object.clone()).await.ok();
    }
    c.patch(place, "merge-patch+json", moved).await.ok();

    c.restart_with(Vec::new()).await;
    for (path, object) in &objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let labelled = json!({"metadata": {"labels": {"x": "y"}}});
        c.patch(&format!("{path}/{name}"), "merge-patch+json", labelled).await.ok();
    }
}

/// Lets Alice get sessions, and not create them.
async fn sessions_by_get(c: &Cluster) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/attach"], "verbs": ["get"]}]);
    c.post(&format!("{rbac}/roles"), json!({"metadata": {"name": "sessions"}, "rules": rules})).await.ok();
    let user = json!({"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"});
    let role = json!({"kind": "Role", "name": "sessions", "apiGroup": "rbac.authorization.k8s.io"});
    let binding = json!({"metadata": {"name": "sessions"}, "subjects": [user], "roleRef": role});
    c.post(&format!("{rbac}/rolebindings"), binding).await.ok();
    let path = format!("{NS}/pods/none/attach");
    eventually("the role is known", async || (c.client(Identity::Alice).get(&path).await.code != 403).then_some(()))
        .await;
}

/// Code of Alice's opening of a session by GET.
async fn opened(c: &Cluster, pod: &str) -> u16 {
    let mut connection = c.connection_of(Identity::Alice).await;
    let ask = format!(
        "GET {NS}/pods/{pod}/exec?command=id&stdout=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    connection.write_all(ask.as_bytes()).await.expect("written");
    let mut line = [0; 12];
    connection.read_exact(&mut line).await.expect("an answer");
    String::from_utf8_lossy(&line[9..]).parse().expect("a code")
}

#[tokio::test(flavor = "multi_thread")]
async fn default_gates_can_be_disabled() {
    if etcd_is_missing() {
        return;
    }
    let gates = [
        "APIResponseCompression",
        "AuthorizePodWebsocketUpgradeCreatePermission",
        "DeploymentReplicaSetTerminatingReplicas",
        "HostnameOverride",
        "KubeletFineGrainedAuthz",
        "MatchLabelKeysInPodTopologySpreadSelectorMerge",
        "OpenAPIEnums",
        "PodTopologyLabelsAdmission",
        "SELinuxMountReadWriteOncePod",
        "SizeBasedListCostEstimate",
        "StorageVersionHash",
        "TokenRequestServiceAccountUIDValidation",
        "UserNamespacesSupport",
        "WatchList",
    ];
    let off = gates.map(|gate| format!("{gate}=false")).join(",");
    let mut c = Cluster::start_with(|_, _| vec![format!("--feature-gates={off}")]).await;
    let account = json!({"metadata": {"name": "default"}});
    c.post(&format!("{NS}/serviceaccounts"), account).await.ok();
    let spread = json!([{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
        "matchLabelKeys": ["a"], "labelSelector": {"matchLabels": {"b": "c"}}}]);
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"a": "x"}}, "spec": {"hostUsers": false, "hostnameOverride": "h",
            "topologySpreadConstraints": spread, "containers": [{"name": "c", "image": "i"}]}})
    };
    let shown = |pod: &Value| {
        let spec = &pod["spec"];
        let selector = &spec["topologySpreadConstraints"][0]["labelSelector"];
        [spec.get("hostUsers"), spec.get("hostnameOverride"), selector.get("matchExpressions")].map(|v| v.is_some())
    };
    let driver = json!({"metadata": {"name": "a.b"}, "spec": {"seLinuxMount": true}});
    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    let status = json!({"status": {"replicas": 1, "terminatingReplicas": 1}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let claim = json!({"metadata": {"uid": "another"}, "spec": {"expirationSeconds": 600}});
    let token = format!("{NS}/serviceaccounts/default/token");
    let hashed = async |c: &Cluster| c.get("/api/v1").await.text().contains("storageVersionHash");
    let watch = format!("{NS}/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1");
    let admin = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:kubelet-api-admin";

    let node = json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}}});
    c.post("/api/v1/nodes", node).await.ok();
    let labelled = async |c: &Cluster, name: &str| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!("n");
        c.post(&format!("{NS}/pods"), pod).await.ok()["metadata"]["labels"].get("topology.kubernetes.io/zone").is_some()
    };
    let words = async |c: &Cluster| c.get("/openapi/v3/apis/apps/v1").await.text().contains("\"enum\":");
    // A group that no other server of this process has: they all share the metrics.
    let versions =
        json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]);
    define(&c, definition("sizes.example.com", "boxes", "Box", versions)).await;
    c.get("/apis/sizes.example.com/v1/boxes").await.ok();
    let sized = async |c: &Cluster| {
        let text = c.get("/metrics").await.text();
        let has = |name: &str| text.contains(&format!("{name}{{group=\"sizes.example.com\",resource=\"boxes\"}}"));
        assert!(has("watch_cache_capacity"));
        has("apiserver_resource_size_estimate_bytes")
    };
    assert!(!sized(&c).await);
    sessions_by_get(&c).await;
    assert_eq!(opened(&c, "z").await, 404);
    assert!(!labelled(&c, "y").await && !words(&c).await);
    assert_eq!(shown(&c.post(&format!("{NS}/pods"), pod("a")).await.ok()), [false; 3]);
    assert!(c.post(drivers, driver.clone()).await.ok()["spec"].get("seLinuxMount").is_none());
    c.post(deployments, workload(json!({}))).await.ok();
    let patched = c.patch(&format!("{deployments}/w/status"), "merge-patch+json", status.clone()).await.ok();
    assert!(patched["status"].get("terminatingReplicas").is_none());
    c.post(&token, claim.clone()).await.ok();
    assert!(!hashed(&c).await);
    let (code, _, message) = c.get(&watch).await.failure();
    assert!(code == 422 && message.ends_with("unless the WatchList feature gate is enabled"), "{message}");
    let big = c.call("GET", "/openapi/v2", &[("Accept-Encoding", "gzip")], None).await;
    assert_eq!(big.header("content-encoding"), "");
    assert!(!c.get(admin).await.text().contains("configz"));

    c.restart_with(Vec::new()).await;
    c.get("/apis/sizes.example.com/v1/boxes").await.ok();
    assert!(sized(&c).await);
    assert_eq!(opened(&c, "z").await, 403);
    assert!(labelled(&c, "z").await && words(&c).await);
    assert_eq!(shown(&c.post(&format!("{NS}/pods"), pod("b")).await.ok()), [true; 3]);
    let patched = c.patch(&format!("{drivers}/a.b"), "merge-patch+json", driver).await.ok();
    assert_eq!(patched["spec"]["seLinuxMount"], true);
    let patched = c.patch(&format!("{deployments}/w/status"), "merge-patch+json", status).await.ok();
    assert_eq!(patched["status"]["terminatingReplicas"], 1);
    assert_eq!(c.post(&token, claim).await.code, 409);
    assert!(hashed(&c).await);
    assert_eq!(c.get(&watch).await.code, 200);
    let big = c.call("GET", "/openapi/v2", &[("Accept-Encoding", "gzip")], None).await;
    assert_eq!(big.header("content-encoding"), "gzip");
    assert!(c.get(admin).await.text().contains("configz"));

    // What is in use stays.
    c.restart_with(vec![format!("--feature-gates={off}")]).await;
    let labelled = json!({"metadata": {"labels": {"x": "y"}}});
    let patched = c.patch(&format!("{NS}/pods/b"), "merge-patch+json", labelled).await.ok();
    assert_eq!(shown(&patched), [true; 3]);
}

/// A kubelet that nobody vouches for: logs are read of it by those who say that they do not mind.
#[tokio::test(flavor = "multi_thread")]
async fn logs_handler_follows_its_flag() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    let kubelet = Remote::start(c.pki(), move |path, _| {
        heard.lock().expect("a list").push(path.to_owned());
        (200, "a line".to_owned())
    })
    .await;
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}}}});
    c.post("/api/v1/nodes", node).await.ok();
    c.post(&format!("{NS}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await.ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"operator": "Exists"}]}});
    c.post(&format!("{NS}/pods"), pod).await.ok();
    let log = |query: &str| format!("{NS}/pods/p/log?{query}");

    let stranger = c.dir().join("stranger.crt");
    std::fs::write(&stranger, &c.pki().foreign_ca).expect("written");
    let authority = format!("--kubelet-certificate-authority={}", stranger.display());
    c.restart_with(vec![authority.clone()]).await;
    let (code, _, message) = c.get(&log("")).await.failure();
    assert!(
        code == 500
            && message
                .starts_with(&format!("Get \"https://127.0.0.1:{}/containerLogs/default/p/c\": ", kubelet.port())),
        "{message}"
    );
    let answer = c.get(&log("insecureSkipTLSVerifyBackend=true&tailLines=3")).await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "a line"));
    c.get(&log("insecureSkipTLSVerifyBackend=true&stream=All")).await.fails(
        422,
        "Invalid",
        "PodLogOptions \"p\" is invalid: stream: Forbidden: may not be specified",
    );
    c.restart_with(vec![authority, "--feature-gates=PodLogsQuerySplitStreams=true".to_owned()]).await;
    assert_eq!(c.get(&log("insecureSkipTLSVerifyBackend=true&stream=Stderr")).await.code, 200);
    let want = ["tailLines=3", "stream=Stderr"].map(|query| format!("/containerLogs/default/p/c?{query}"));
    assert_eq!(*asked.lock().expect("a list"), want);
}
