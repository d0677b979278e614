//! Attacks, each of which has to fail; docs/SECURITY.md names them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::{Cluster, Identity};
use crate::{cluster, workspace};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn role(rules: Value) -> Value {
    json!({"metadata": {"name": "r"}, "rules": rules})
}

/// Lets alice do something in a namespace.
async fn grant(c: &crate::harness::Client, namespace: &str, rules: Value) {
    c.post(&format!("{RBAC}/namespaces/{namespace}/roles"), role(rules)).await.ok();
    let binding = json!({"metadata": {"name": "r"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    c.post(&format!("{RBAC}/namespaces/{namespace}/rolebindings"), binding).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn privilege_escalation_is_forbidden() {
    let Some((c, _)) = workspace("escalation").await else { return };
    let Some(server) = cluster().await else { return };
    let all = json!(["create", "update", "patch", "get", "list", "delete"]);
    grant(
        &c,
        "escalation",
        json!([
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": all},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
        ]),
    )
    .await;
    let alice = server.client(Identity::Alice);
    let (roles, bindings) =
        (format!("{RBAC}/namespaces/escalation/roles"), format!("{RBAC}/namespaces/escalation/rolebindings"));
    let groups = r#"(groups=["system:authenticated"])"#;
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let lacking = format!(
        "user \"alice\" {groups} is attempting to grant RBAC permissions not currently held:\n{{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}}"
    );
    // A new role, and an old one made larger.
    alice.post(&roles, json!({"metadata": {"name": "new"}, "rules": secrets})).await.fails(
        403,
        "Forbidden",
        &format!("roles.rbac.authorization.k8s.io \"new\" is forbidden: {lacking}"),
    );
    alice.post(&roles, json!({"metadata": {"name": "mine"}, "rules": pods})).await.ok();
    alice.patch(&format!("{roles}/mine"), "merge-patch+json", json!({"rules": secrets})).await.fails(
        403,
        "Forbidden",
        &format!("roles.rbac.authorization.k8s.io \"mine\" is forbidden: {lacking}"),
    );
    // A binding to a role that holds more, whoever it is for.
    for subject in ["alice", "bob"] {
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": subject}]});
        let (code, reason, message) = alice.post(&bindings, binding).await.failure();
        assert_eq!((code, reason.as_str()), (403, "Forbidden"), "{message}");
        assert!(message.contains("is attempting to grant RBAC permissions not currently held:"), "{message}");
    }
    // A role that is said to be the sum of others.
    let sum = json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    assert_eq!(alice.post(&format!("{RBAC}/clusterroles"), sum).await.code, 403);
    // What is held may be granted.
    let binding = json!({"metadata": {"name": "ok"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mine"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]});
    alice.post(&bindings, binding).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_headers_are_ignored() {
    let Some((_, ns)) = workspace("impersonation").await else { return };
    let Some(server) = cluster().await else { return };
    let alice = server.client(Identity::Alice);
    let pods = format!("{ns}/pods");
    for (headers, message) in [
        (
            &[("Impersonate-User", "admin")][..],
            r#"users "admin" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope"#,
        ),
        (
            &[("Impersonate-User", "system:serviceaccount:kube-system:default")],
            r#"serviceaccounts "default" is forbidden: User "alice" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "kube-system""#,
        ),
    ] {
        alice.call("GET", &pods, headers, None).await.fails(403, "Forbidden", message);
    }
    assert_eq!(alice.call("GET", &pods, &[("Impersonate-Group", "system:masters")], None).await.code, 400);
    // What a front proxy says is believed from a front proxy only.
    for headers in [
        &[("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")][..],
        &[("x-remote-user", "admin"), ("x-remote-group", "system:masters"), ("X-Forwarded-For", "127.0.0.1")],
    ] {
        assert_eq!(alice.call("GET", &pods, headers, None).await.code, 403);
        assert_eq!(server.client(Identity::Anonymous).call("GET", &pods, headers, None).await.code, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_watch_opens_no_session() {
    let Some((c, ns)) = workspace("sessions").await else { return };
    let Some(server) = cluster().await else { return };
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    c.post(&format!("{ns}/pods"), pod).await.ok();
    grant(
        &c,
        "sessions",
        json!([{"apiGroups": [""], "resources": ["*"], "verbs": ["list", "watch", "update", "delete"]}]),
    )
    .await;
    let alice = server.client(Identity::Alice);
    alice.get(&format!("{ns}/pods")).await.ok();
    for subresource in ["exec?command=id", "attach?stdout=1", "portforward?ports=80", "proxy/", "log"] {
        let watched = format!("/api/v1/watch/namespaces/sessions/pods/p/{subresource}");
        assert_eq!(alice.get(&watched).await.code, 404, "{subresource}");
        let changed = alice.put(&format!("{ns}/pods/p/{subresource}"), &json!({})).await;
        assert_eq!(changed.code, if subresource == "proxy/" { 400 } else { 405 }, "{subresource}: {}", changed.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn non_ascii_impersonation_headers_are_rejected() {
    let Some((c, ns)) = workspace("letters").await else { return };
    let maps = format!("{ns}/configmaps");
    let message = "configmaps is forbidden: User \"m\u{fc}ller\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"letters\"";
    c.call("GET", &maps, &[("Impersonate-User", "m\u{fc}ller")], None).await.fails(403, "Forbidden", message);
}

#[tokio::test(flavor = "multi_thread")]
async fn little_does_not_become_much() {
    let Some((c, ns)) = workspace("little").await else { return };
    let maps = format!("{ns}/configmaps");
    // A list of a thousand names of one long text.
    let names = vec!["*a"; 1000].join(",");
    let yaml = format!("kind: ConfigMap\napiVersion: v1\nx: &a {}\ny: [{names}]\n", "x".repeat(1 << 20));
    let made = c.send("POST", &maps, "application/yaml", Some(yaml.into())).await;
    assert_eq!(made.code, 400, "{}", made.code);
    assert!(made.failure().2.contains("document contains excessive aliasing"));
    // Objects in objects.
    let mut nested = Vec::new();
    for _ in 0..20_000 {
        let envelope = proto::protobuf::wrap("apps/v1", "ControllerRevision", &nested);
        nested.clear();
        proto::protobuf::write_nested(2, &mut nested, |out| proto::protobuf::write_bytes(1, &envelope, out));
    }
    let body = proto::protobuf::wrap("apps/v1", "ControllerRevision", &nested);
    let revisions = "/apis/apps/v1/namespaces/little/controllerrevisions";
    let made = c.send("POST", revisions, "application/vnd.kubernetes.protobuf", Some(body.into())).await;
    assert_eq!(made.code, 400, "{}", made.text());
    // A watch until the end of time begins.
    let long = format!(
        "{maps}?watch=1&timeoutSeconds={}&allowWatchBookmarks=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        i64::MAX
    );
    assert!(!c.watch(&long, 1).await.is_empty());
    c.get(&maps).await.ok();
}

/// Made-up resources create no metric series, because series are kept.
#[tokio::test(flavor = "multi_thread")]
async fn made_up_resources_create_no_series() {
    let Some((c, ns)) = workspace("counted").await else { return };
    let Some(server) = cluster().await else { return };
    let anybody = server.client(Identity::Anonymous);
    for path in ["/apis/made.up/v1/things", "/api/v1/madeups", "/api/v1/pods/x/madeup", "/api/v9madeup/pods"] {
        assert!(matches!(anybody.get(path).await.code, 401 | 403), "{path}");
        assert_eq!(c.get(path).await.code, 404, "{path}");
        c.post(path, json!({})).await;
    }
    assert_eq!(anybody.get(&format!("{ns}/configmaps")).await.code, 403);
    let metrics = c.get("/metrics").await.text();
    let of_requests = metrics.lines().filter(|line| line.starts_with("apiserver_request"));
    let made_up: Vec<&str> = of_requests.filter(|line| line.contains("made")).collect();
    assert_eq!(made_up, Vec::<&str>::new());
    assert!(metrics.contains(
        "apiserver_request_total{code=\"403\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\""
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_lead_to_no_machines_insides() {
    let Some((c, ns)) = workspace("proxies").await else { return };
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    c.post(&format!("{ns}/pods"), pod).await.ok();
    for ip in ["127.0.0.1", "169.254.169.254", "::1"] {
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        c.patch(&format!("{ns}/pods/p/status"), "merge-patch+json", status).await.ok();
        c.get(&format!("{ns}/pods/p/proxy/")).await.fails(400, "BadRequest", "address not allowed");
    }
    c.post("/api/v1/nodes", json!({"metadata": {"name": "metadata"}})).await.ok();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "169.254.169.254"}]}});
    c.patch("/api/v1/nodes/metadata/status", "merge-patch+json", status).await.ok();
    c.get("/api/v1/nodes/metadata:80/proxy/latest").await.fails(400, "BadRequest", "address not allowed");
    c.get("/api/v1/nodes/metadata/proxy/").await.fails(400, "BadRequest", "address not allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_lead_nowhere_else() {
    let Some((c, ns)) = workspace("traversal").await else { return };
    let maps = format!("{ns}/configmaps");
    for name in ["..", ".", "a/b", "../secrets/x", "a%b", "A"] {
        let made = c.post(&maps, json!({"metadata": {"name": name}})).await;
        assert_eq!(made.code, 422, "{name:?}: {}", made.text());
    }
    for path in ["..%2fsecrets", "%2e%2e%2fsecrets%2fx", "x%00y", "..%2f..%2f..%2fregistry"] {
        let found = c.get(&format!("{maps}/{path}")).await;
        assert!(matches!(found.code, 400 | 404), "{path}: {} {}", found.code, found.text());
        assert_ne!(found.json()["kind"], "SecretList", "{path}");
    }
    // Whoever may read one resource reads no other by a crooked path.
    grant(&c, "traversal", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])).await;
    let Some(server) = cluster().await else { return };
    let alice = server.client(Identity::Alice);
    alice.get(&maps).await.ok();
    for path in ["../secrets", "%2e%2e/secrets", "..%2fsecrets", "/../secrets", "./../secrets"] {
        let found = alice.get(&format!("{maps}/{path}")).await;
        assert!(matches!(found.code, 301 | 400 | 403 | 404), "{path}: {} {}", found.code, found.text());
    }
}

/// A connection without a client certificate, on which anything may be said.
async fn connection(server: &Cluster, protocol: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
    let roots = shared::cert::root_store(server.pki().ca.as_bytes()).expect("roots");
    let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![protocol.to_vec()];
    let socket = TcpStream::connect(("127.0.0.1", server.port())).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(tls)).connect(name, socket).await.expect("secured")
}

/// Sends raw bytes; returns the response until the server closes or pauses.
async fn said(server: &Cluster, request: &[u8]) -> String {
    let mut stream = connection(server, b"http/1.1").await;
    // A server that has heard enough may close before all is sent.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(Ok(n)) = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut buffer)).await {
        if n == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..n]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn request_smuggling_is_rejected() {
    let Some(server) = cluster().await else { return };
    let answers = |text: &str| text.matches("HTTP/1.1 ").count();
    // Two lengths that disagree hide a second request from whoever believes the other.
    let both = "POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
    let twice = "POST /api/v1/namespaces HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
    for request in [both, twice] {
        let text = said(server, request.as_bytes()).await;
        assert!(answers(&text) <= 1, "{text}");
        assert!(!text.contains("200 OK"), "{text}");
    }
    let spaced = said(server, b"GET /api HTTP/1.1\r\nHost: a\r\nX-Remote-User : admin\r\n\r\n").await;
    assert!(!spaced.contains("200 OK"), "{spaced}");
    let folded = said(server, b"GET /api HTTP/1.1\r\nHost: a\r\nX-A: b\r\n Impersonate-User: admin\r\n\r\n").await;
    assert!(!folded.contains("200 OK"), "{folded}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_an_end() {
    let Some(server) = cluster().await else { return };
    let large = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n\r\n", "a".repeat(4 << 20));
    let text = said(server, large.as_bytes()).await;
    assert!(!text.contains("200 OK"), "{text}");
    let many = format!("GET /livez HTTP/1.1\r\nHost: a\r\n{}\r\n", "X-A: b\r\n".repeat(200_000));
    let text = said(server, many.as_bytes()).await;
    assert!(!text.contains("200 OK"), "{text}");
    assert_eq!(server.get("/livez").await.code, 200, "the server goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_reset_at_once_end_the_connection() {
    let Some(server) = cluster().await else { return };
    let mut stream = connection(server, b"h2").await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // An empty SETTINGS frame.
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // GET https / with indexed fields of the static table, and at once RST_STREAM with CANCEL.
    for stream_id in (1_u32..40_001).step_by(2) {
        let id = stream_id.to_be_bytes();
        bytes.extend_from_slice(&[0, 0, 3, 1, 5, id[0], id[1], id[2], id[3], 0x82, 0x87, 0x84]);
        bytes.extend_from_slice(&[0, 0, 4, 3, 0, id[0], id[1], id[2], id[3], 0, 0, 0, 8]);
    }
    let (mut reading, mut writing) = tokio::io::split(&mut stream);
    let send = async {
        // The server closes long before all is sent.
        let _ = writing.write_all(&bytes).await;
        let _ = writing.flush().await;
    };
    let ended = async {
        let mut buffer = [0; 16_384];
        while let Ok(n) = reading.read(&mut buffer).await {
            if n == 0 {
                break;
            }
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(send, ended) }).await;
    assert!(outcome.is_ok(), "the connection is still open");
    assert_eq!(server.get("/livez").await.code, 200, "the server goes on");
}
