//! Connections that leave through the proxies of `--egress-selector-config-file`.

use bytes::Bytes;
use serde_json::json;

use crate::harness::{Cluster, Proxy, Speaks, etcd_is_missing};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server that reaches the cluster through a proxy, and a pod that nothing else reaches.
async fn behind(proxy: &Proxy, protocol: &str) -> Cluster {
    let cluster = Cluster::start_with(|dir, _| {
        let file = dir.join("egress.yaml");
        let uds = json!({"uds": {"udsName": proxy.socket()}});
        let selection = json!({"name": "cluster", "connection": {"proxyProtocol": protocol, "transport": uds}});
        let config = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
            "egressSelections": [selection],
        });
        std::fs::write(&file, config.to_string()).expect("written");
        vec![format!("--egress-selector-config-file={}", file.display())]
    })
    .await;
    let account = json!({"metadata": {"name": "default"}});
    cluster.post("/api/v1/namespaces/default/serviceaccounts", account).await.ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.post(PODS, pod).await.ok();
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}});
    cluster.patch(&format!("{PODS}/p/status"), "merge-patch+json", status).await.ok();
    cluster
}

async fn pods_are_reached(speaks: Speaks, protocol: &str, refused: &str) {
    if etcd_is_missing() {
        return;
    }
    let proxy = Proxy::start(speaks);
    let cluster = behind(&proxy, protocol).await;
    let answer = cluster.get(&format!("{PODS}/p:8080/proxy/a?b=c")).await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "GET /a?b=c at 10.1.2.3:8080: "));
    // More than one packet, there and back.
    let large = "x".repeat(300_000);
    let answer =
        cluster.send("POST", &format!("{PODS}/p:80/proxy/"), "text/plain", Some(Bytes::from(large.clone()))).await;
    assert_eq!((answer.code, answer.text()), (200, format!("POST / at 10.1.2.3:80: {large}")));
    let (code, reason, message) = cluster.get(&format!("{PODS}/p:81/proxy/")).await.failure();
    assert_eq!((code, reason.as_str()), (503, "ServiceUnavailable"));
    assert!(message.contains(refused), "{message}");
    let metrics = cluster.get("/metrics").await.text();
    assert!(metrics.contains("apiserver_egress_dialer_dial_failure_count{"), "what failed is counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_reached_through_a_proxy_that_speaks_http() {
    pods_are_reached(Speaks::Http, "HTTPConnect", "while dialing 10.1.2.3:81, code 502").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_reached_through_konnectivity() {
    pods_are_reached(Speaks::Grpc, "GRPC", "no agent reaches it").await;
}
