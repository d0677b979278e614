//! Connections that leave through the proxies of `--egress-selector-config-file`.

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::{CLOSED, Cluster, Identity, Proxy, Remote, Speaks, etcd_is_missing, eventually, file};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The flag with a configuration that leads some networks through a proxy.
fn selecting(names: &[&str], proxy: &Proxy, protocol: &str, dir: &Path) -> String {
    let uds = json!({"uds": {"udsName": proxy.socket()}});
    let selection = |name| json!({"name": name, "connection": {"proxyProtocol": protocol, "transport": uds}});
    let config = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": names.iter().map(selection).collect::<Vec<_>>(),
    });
    format!("--egress-selector-config-file={}", file(dir, "egress.yaml", &config.to_string()))
}

/// A server that reaches the cluster through a proxy, and a pod that nothing else reaches.
async fn behind(proxy: &Proxy, protocol: &str) -> Cluster {
    let cluster = Cluster::start_with(|dir, _| vec![selecting(&["cluster"], proxy, protocol, dir)]).await;
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
    // What both say of an answer is said twice; of pages of other origins only the server says anything.
    let said = |name: &str| -> Vec<&str> {
        answer.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
    };
    assert_eq!(said("cache-control"), ["no-cache, private", "max-age=5"]);
    let ids = said("audit-id");
    assert!(matches!(ids[..], [ours, "theirs"] if ours.len() == 36), "{ids:?}");
    assert!(said("access-control-allow-origin").is_empty());
    assert_eq!(said("x-seen-host"), [format!("127.0.0.1:{}", cluster.port())], "the host is whom the client means");
    assert_eq!(said("x-seen-x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(said("x-seen-x-forwarded-uri"), [format!("{PODS}/p:8080/proxy/a")]);
    assert!(said("x-seen-x-forwarded-host").is_empty() && said("x-seen-x-forwarded-proto").is_empty());
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
async fn connections_through_konnectivity_are_closed() {
    if etcd_is_missing() {
        return;
    }
    let proxy = Proxy::start(Speaks::Grpc);
    let cluster = behind(&proxy, "GRPC").await;
    let last = Some(Bytes::from(r#"{"headers": {"connection": "close"}}"#));
    let answer = cluster.send("POST", &format!("{PODS}/p:8080/proxy/says"), "application/json", last).await;
    assert_eq!(answer.code, 200);
    eventually("the close of a connection", async || proxy.was_asked_for(CLOSED).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_reached_through_konnectivity() {
    pods_are_reached(Speaks::Grpc, "GRPC", "no agent reaches it").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_pages_lead_through_the_server() {
    if etcd_is_missing() {
        return;
    }
    let proxy = Proxy::start(Speaks::Http);
    let cluster = behind(&proxy, "HTTPConnect").await;
    let at = format!("{PODS}/p:8080/proxy");
    let says = async |answer: Value| {
        let asked = Some(Bytes::from(answer.to_string()));
        cluster.send("POST", &format!("{at}/a/says"), "application/json", asked).await
    };
    // A page that nobody asked to be packed comes unpacked.
    for encoding in ["identity", "gzip"] {
        let mut headers = json!({"content-type": "text/html"});
        if encoding == "gzip" {
            headers["content-encoding"] = json!(encoding);
        }
        let page = says(json!({"headers": headers, "body": "<A HREF=/x>x</A><a href=y>"})).await;
        assert_eq!(page.text(), format!("<a href=\"{at}/x\">x</A><a href=\"y\">"), "{encoding}");
        assert!(!page.headers.contains_key("content-encoding"));
    }
    let host = format!("127.0.0.1:{}", cluster.port());
    for (to, want) in [
        ("/x?y", format!("{at}/x?y")),
        ("http://10.1.2.3:8080/x/", format!("{at}/x/")),
        (&format!("https://{host}/x"), format!("https://{host}{at}/x")),
        ("https://example.com/x", "https://example.com/x".to_owned()),
    ] {
        let redirect = says(json!({"code": 302, "headers": {"location": to}})).await;
        assert_eq!(redirect.headers["location"], want.as_str(), "{to}");
    }
    let (code, reason, message) = says(json!({"code": 302, "headers": {"location": "%zz"}})).await.failure();
    let why =
        "Internal error occurred: error trying to parse Location header: parse \"%zz\": invalid URL escape \"%zz\"";
    assert_eq!((code, reason.as_str(), message.as_str()), (500, "InternalError", why));
    // The other side sees a path in its plain form, and hears what was asked for.
    let answer = cluster.get(&format!("{at}/a%2fb/../c//d%20e/?x=%2f")).await;
    assert_eq!(answer.text(), "GET /a/c/d%20e/?x=%2f at 10.1.2.3:8080: ");
    assert_eq!(answer.headers["x-seen-x-forwarded-uri"], format!("{at}/a/c/d e/a/c/d%20e/").as_str());
    assert_eq!(answer.headers["x-seen-accept-encoding"], "gzip");
    let answer = cluster.get(&format!("{at}?x=y")).await;
    assert_eq!((answer.code, &answer.headers["location"]), (301, &format!("{at}/?x=y").parse().expect("a value")));
}

/// Knows the token `sesame`, lets everybody do everything, and takes every event.
fn authority(path: &str, body: &[u8]) -> (u16, String) {
    let mut review: Value = serde_json::from_slice(body).unwrap_or_default();
    match path.split('?').next() {
        Some("/authenticate") => {
            let known = review["spec"]["token"] == "sesame";
            review["status"] = json!({"authenticated": known, "user": {"username": "ali"}});
        }
        Some("/authorize") => review["status"] = json!({"allowed": true}),
        _ => {}
    }
    (200, review.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_selection_reaches_etcd_and_webhooks() {
    if etcd_is_missing() {
        return;
    }
    let mut cluster = Cluster::start().await;
    let (store, others) = (Proxy::start(Speaks::Tunnel), Proxy::start(Speaks::Tunnel));
    let mut webhooks = Vec::new();
    for _ in 0..3 {
        webhooks.push(Remote::start(cluster.pki(), authority).await);
    }
    let dir = cluster.dir().to_owned();
    let config = |at: usize, path: &str| webhooks[at].kubeconfig(&dir, &format!("webhook-{at}"), path);
    let policy = dir.join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
        .expect("written");
    let flags = vec![
        format!("--authentication-token-webhook-config-file={}", config(0, "/authenticate")),
        "--authorization-mode=RBAC,Webhook".to_owned(),
        format!("--authorization-webhook-config-file={}", config(1, "/authorize")),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-webhook-config-file={}", config(2, "/audit")),
        "--audit-webhook-mode=blocking".to_owned(),
    ];
    let address = |at: usize| format!("127.0.0.1:{}", webhooks[at].port());
    let etcd = format!("127.0.0.1:{}", cluster.etcd_port());
    for (name, proxy, reached) in
        [("etcd", &store, vec![etcd]), ("controlplane", &others, (0..3).map(address).collect())]
    {
        let mut flags = flags.clone();
        flags.push(selecting(&[name], proxy, "HTTPConnect", &dir));
        cluster.restart_with(flags).await;
        let ali = cluster.client(Identity::Token("sesame".to_owned()));
        eventually("the webhooks let him in", async || (ali.get("/api/v1/nodes").await.code == 200).then_some(()))
            .await;
        assert_eq!(cluster.client(Identity::Token("parsley".to_owned())).get("/api/v1/nodes").await.code, 401);
        for address in reached {
            assert!(proxy.was_asked_for(&address), "{name}: {address}");
        }
    }
    assert!(!others.was_asked_for(&format!("127.0.0.1:{}", cluster.etcd_port())), "each network goes its own way");
    assert!(!store.was_asked_for(&address(0)), "each network goes its own way");
}
