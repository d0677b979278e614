//! Servers of another version beside this one: what only they serve is asked of them.

use std::sync::{Arc, Mutex};

use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, Pki, Remote, etcd_is_missing, eventually, file};

const ALL: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const ALONE: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer";
const WIDGETS: &str = "/apis/peer.example/v1/namespaces/default/widgets";

fn flags(dir: &std::path::Path, pki: &Pki) -> Vec<String> {
    let (certificate, key) = pki.pair(&Identity::Admin).expect("a pair");
    let file = |name: &str, text: &str| file(dir, name, text);
    vec![
        "--feature-gates=UnknownVersionInteroperabilityProxy=true".to_owned(),
        format!("--peer-ca-file={}", file("peers.crt", &pki.ca)),
        format!("--proxy-client-cert-file={}", file("proxy.crt", certificate)),
        format!("--proxy-client-key-file={}", file("proxy.key", key)),
    ]
}

/// A server that has a group which this one has not, and what it was asked.
async fn newer(c: &Cluster) -> (Remote, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    let remote = Remote::start(c.pki(), move |path, _| {
        heard.lock().expect("a list").push(path.to_owned());
        let group = |name: &str, plural: &str| {
            json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [{"resource": plural,
                "scope": "Namespaced", "responseKind": {"group": name, "version": "v1", "kind": "W"}}]}]})
        };
        let groups = match path {
            "/api" => json!([]),
            "/apis" => json!([group("apps", "newthings"), group("peer.example", "widgets")]),
            _ => return (200, json!({"kind": "WidgetList", "asked": path}).to_string()),
        };
        (200, json!({"kind": "APIGroupDiscoveryList", "items": groups}).to_string())
    })
    .await;
    (remote, asked)
}

async fn announce(c: &Cluster, port: u16) {
    let message = schema::kind("", "v1", "Endpoints").expect("a kind");
    let there = json!({"metadata": {"generation": 1, "labels": {"apiserverIdentity": "apiserver-newer"}},
        "subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]});
    let bytes = protobuf::wrap("v1", "Endpoints", &protobuf::encode(message, &there));
    let key = "/registry/peerserverleases/apiserver-newer";
    c.etcd_client().await.kv_client().put(key, bytes, None).await.expect("written");
    let lease = json!({"metadata": {"name": "apiserver-newer", "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}},
        "spec": {"holderIdentity": "apiserver-newer_1", "leaseDurationSeconds": 3600, "renewTime": "2099-01-01T00:00:00.000000Z"}});
    c.post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease).await.ok();
}

fn names(document: &Value) -> Vec<&str> {
    let items = document["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|group| group["metadata"]["name"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_proxied_to_capable_peers() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start_with(flags).await;
    assert_eq!(c.get(WIDGETS).await.code, 404);
    let (remote, asked) = newer(&c).await;
    announce(&c, remote.port()).await;
    let answer = eventually("the other server is asked", async || {
        let answer = c.get(&format!("{WIDGETS}?limit=3")).await;
        (answer.code == 200).then_some(answer)
    });
    assert_eq!(answer.await.json()["asked"], format!("{WIDGETS}?limit=3"));
    // Nobody sends on what was sent on, nor what is served here.
    assert_eq!(c.call("GET", WIDGETS, &[("X-Kubernetes-Peer-Proxied", "true")], None).await.code, 404);
    c.get("/apis/apps/v1/deployments").await.ok();
    assert_eq!(c.get("/apis/apps/v1/newthings").await.json()["asked"], "/apis/apps/v1/newthings");
    assert_eq!(c.get("/apis/apps/v1/nobodys").await.code, 404);
    // Who may not ask is not sent on.
    assert_eq!(c.client(Identity::Alice).get(WIDGETS).await.code, 403);
    let seen = asked.lock().expect("a list").clone();
    assert!(!seen.iter().any(|path| path.contains("deployments") || path.contains("nobodys")), "{seen:?}");

    let all = c.send("GET", "/apis", ALL, None).await;
    assert_eq!(all.header("content-type"), ALL);
    let all = all.json();
    assert!(names(&all).contains(&"peer.example") && names(&all).contains(&"batch"), "{:?}", names(&all));
    let apps =
        all["items"].as_array().into_iter().flatten().find(|g| g["metadata"]["name"] == "apps").expect("a group");
    let resources = apps["versions"][0]["resources"].as_array().cloned().unwrap_or_default();
    let has = |plural: &str| resources.iter().any(|r| r["resource"] == plural);
    assert!(has("newthings") && has("deployments"));
    let alone = c.send("GET", "/apis", ALONE, None).await.json();
    assert!(!names(&alone).contains(&"peer.example") && names(&alone).contains(&"batch"));

    // This server says where it is as long as it is there.
    let own = async |c: &Cluster| {
        let prefix = etcd_client::GetOptions::new().with_prefix();
        let found = c.etcd_client().await.kv_client().get("/registry/peerserverleases/", Some(prefix)).await;
        let found = found.expect("etcd answers");
        found.kvs().iter().filter(|kv| !kv.key().ends_with(b"newer")).map(|kv| kv.lease() != 0).collect::<Vec<_>>()
    };
    assert_eq!(own(&c).await, [true]);
    c.stop_server();
    assert_eq!(own(&c).await, [false; 0]);
}
