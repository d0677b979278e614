//! Flags about the process and what it keeps: sockets, the way down, where objects go.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::harness::{Client, Cluster, Identity, Webhook, etcd_is_missing, eventually};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

type Connection = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;

pub(crate) async fn say(connection: &mut Connection, text: &str) {
    connection.write_all(text.as_bytes()).await.expect("asked");
    connection.flush().await.expect("asked");
}

/// Reads a connection until it is closed.
pub(crate) async fn heard(mut connection: Connection) -> String {
    let mut said = String::new();
    let end = tokio::time::timeout(Duration::from_secs(30), connection.read_to_string(&mut said)).await;
    end.expect("closed in time").expect("closed, not broken");
    said
}

/// A request whose body of two bytes does not come: the server is busy with it.
pub(crate) async fn unfinished(c: &Cluster, method: &str, path: &str) -> Connection {
    let mut connection = c.connection().await;
    let line = format!("{method} {path} HTTP/1.1\r\nHost: x");
    say(&mut connection, &format!("{line}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n")).await;
    let running = "apiserver_current_inflight_requests{request_kind=\"mutating\"} 1";
    eventually("a busy server", async || c.get("/metrics").await.text().contains(running).then_some(())).await;
    connection
}

/// Tells the server to stop, until nothing is taken any more.
pub(crate) async fn stop_taking(c: &Cluster) {
    c.tell_to_stop();
    let late: Client = c.client(Identity::Admin);
    eventually("a closed port", async || late.try_get("/livez").await.err()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_server_rejects_requests() {
    if etcd_is_missing() {
        return;
    }
    let flags = ["--shutdown-send-retry-after", "--shutdown-watch-termination-grace-period=1m"];
    let mut c = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let mut watch = c.connection().await;
    say(&mut watch, &format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await;
    let mut begun = [0; 12];
    watch.read_exact(&mut begun).await.expect("an answer");
    assert_eq!(&begun, b"HTTP/1.1 200");
    let mut idle = c.connection().await;
    let busy = unfinished(&c, "POST", MAPS).await;
    c.tell_to_stop();
    assert!(heard(watch).await.ends_with("\r\n0\r\n\r\n"), "watches end in order, and before requests");
    let late: Client = c.client(Identity::Admin);
    let refused =
        eventually("a refusal", async || late.try_get(MAPS).await.ok().filter(|answer| answer.code == 429)).await;
    assert_eq!(refused.text(), "The apiserver is shutting down, please try again later.\n");
    assert_eq!(refused.header("retry-after"), "5");
    // It is known to audit already, and to nothing that says how answers are kept.
    assert_eq!((refused.header("audit-id").len(), refused.header("cache-control")), (36, ""));
    say(&mut idle, &format!("GET {MAPS} HTTP/1.1\r\nHost: x\r\nAudit-Id: mine\r\n\r\n")).await;
    let refused = heard(idle).await.to_lowercase();
    assert!(refused.contains("\r\nconnection: close\r\n") && refused.contains("\r\naudit-id: mine\r\n"), "{refused}");
    let probe = c.client(Identity::Admin).get("/readyz").await;
    assert!(probe.code == 500 && probe.text().contains("[-]shutdown failed"), "{}", probe.text());
    drop(busy);
    tokio::task::block_in_place(|| c.stop_server());
}

/// Watches that are given no time go on, and hear of changes, as long as a request may take; then they end in order.
#[tokio::test(flavor = "multi_thread")]
async fn watches_outlast_the_port() {
    if etcd_is_missing() {
        return;
    }
    let flags = ["--request-timeout=3s", "--min-request-timeout=600"];
    let mut c = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let (port, beside) = c.start_beside().await;
    let mut watch = c.connection().await;
    say(&mut watch, &format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    let mut begun = [0; 12];
    watch.read_exact(&mut begun).await.expect("an answer");
    assert_eq!(&begun, b"HTTP/1.1 200");
    stop_taking(&c).await;
    let other = Client::new(port, c.pki(), Identity::Admin);
    other.post(MAPS, json!({"metadata": {"name": "late"}})).await.ok();
    let said = heard(watch).await;
    assert!(said.contains("\"name\":\"late\"") && said.ends_with("\r\n0\r\n\r\n"), "{said}");
    tokio::task::block_in_place(|| c.stop_server());
    tokio::task::block_in_place(|| drop(beside));
}

/// Requests in flight are served to the end after the port is closed.
#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_outlast_the_closed_port() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let mut busy = unfinished(&c, "DELETE", MAPS).await;
    stop_taking(&c).await;
    // What it deletes it finds by a list that is as new as etcd.
    say(&mut busy, "{}").await;
    let answer = heard(busy).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    tokio::task::block_in_place(|| c.stop_server());
}

/// Between the order to go down and the last answer others are asked as before, and what happens is written down.
#[tokio::test(flavor = "multi_thread")]
async fn requests_on_the_way_down_are_like_others() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start_with(|dir, _| {
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, verbs: [create]}]\n";
        std::fs::write(dir.join("audit.yaml"), policy).expect("written");
        let file = |name: &str| dir.join(name).display().to_string();
        vec![
            "--shutdown-delay-duration=4s".to_owned(),
            format!("--audit-policy-file={}", file("audit.yaml")),
            format!("--audit-log-path={}", file("audit.log")),
            "--audit-log-mode=batch".to_owned(),
        ]
    })
    .await;
    let hook = Webhook::start(c.pki(), |_, _| Some(json!({"allowed": true}))).await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let webhook = json!({"name": "a.example.com", "clientConfig": hook.config("/"), "rules": [rule], "sideEffects": "None",
        "admissionReviewVersions": ["v1"]});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    c.post(hooks, json!({"metadata": {"name": "a"}, "webhooks": [webhook]})).await.ok();
    c.tell_to_stop();
    eventually("a server that goes", async || (c.get("/readyz").await.code == 500).then_some(())).await;
    c.post(MAPS, json!({"metadata": {"name": "late"}})).await.ok();
    tokio::task::block_in_place(|| c.stop_server());
    let log = std::fs::read_to_string(c.dir().join("audit.log")).expect("a log");
    assert!(log.lines().any(|line| line.contains("\"name\":\"late\"")), "{log}");
}

async fn ask_socket(path: &std::path::Path, line: &str) -> String {
    let mut socket = UnixStream::connect(path).await.expect("a socket");
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("answered");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn process_flags_are_honored() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|dir, _| {
        vec![
            "--permit-port-sharing".to_owned(),
            "--permit-address-sharing".to_owned(),
            "--kubernetes-service-node-port=30443".to_owned(),
            "--enable-logs-handler".to_owned(),
            "--livez-grace-period=1m".to_owned(),
            "--feature-gates=WatchCacheInitializationPostStartHook=true".to_owned(),
            "--storage-initialization-timeout=10s".to_owned(),
            format!("--debug-socket-path={}", dir.join("debug.sock").display()),
        ]
    })
    .await;
    let service = c.get("/api/v1/namespaces/default/services/kubernetes").await.ok();
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 30443);

    // Another server on the same port.
    let port = format!("--secure-port={}", c.port());
    let other = c.join(&["--permit-port-sharing".to_owned(), port, "--advertise-address=192.0.2.11".to_owned()]);
    let both = |e: &Value| e["subsets"][0]["addresses"].as_array().is_some_and(|a| a.len() == 2);
    c.watch_until("/api/v1/namespaces/default/endpoints?watch=1&fieldSelector=metadata.name%3Dkubernetes", both).await;
    tokio::task::block_in_place(|| drop(other));

    let own = c.client(Identity::Admin);
    let logs = own.get("/logs/").await;
    assert_eq!((logs.code, logs.header("content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(own.get("/logs/../../etc/passwd").await.code, 400);
    assert_eq!(c.client(Identity::Alice).get("/logs/").await.code, 403);
    let level = own.call("PUT", "/debug/flags/v", &[], Some("x".into())).await;
    assert!(level.code == 400 && level.text().starts_with("strconv.ParseUint: parsing \"x\""), "{}", level.text());
    let ready = own.get("/readyz?verbose").await.text();
    assert!(ready.contains("[+]poststarthook/storage-readiness ok\n"), "{ready}");
    let socket = c.dir().join("debug.sock");
    assert!(ask_socket(&socket, "GET /debug/pprof/").await.contains("<a href='cmdline'>"));
    assert!(ask_socket(&socket, "GET /api").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn object_flags_are_honored() {
    if etcd_is_missing() {
        return;
    }
    let flags = [
        "--storage-media-type=application/json",
        "--enable-garbage-collector=false",
        "--delete-collection-workers=4",
        "--lease-reuse-duration-seconds=0",
        "--event-ttl=10m",
        "--etcd-count-metric-poll-period=0",
    ];
    let mut c = Cluster::start_with(|_, _| flags.map(str::to_owned).into()).await;
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"k": "v"}});
    let made = c.post(MAPS, map("a")).await.ok();
    let (stored, _) = c.stored("/registry/configmaps/default/a").await.expect("stored");
    let stored: Value = serde_json::from_slice(&stored).expect("JSON");
    assert_eq!((&stored["kind"], &stored["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(c.get(&format!("{MAPS}/a")).await.ok(), made);
    let packed = c.call("GET", &format!("{MAPS}/a"), &[("Accept", "application/vnd.kubernetes.protobuf")], None).await;
    assert!(packed.bytes.starts_with(b"k8s\0"));
    assert_eq!(c.patch(&format!("{MAPS}/a"), "merge-patch+json", json!({"data": {"k": "w"}})).await.code, 200);

    // Each event has a lease of its own, as long as it lives.
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    c.post("/api/v1/namespaces/default/events", event).await.ok();
    let (_, lease) = c.stored("/registry/events/default/e").await.expect("stored");
    let lease = c.etcd_client().await.lease_client().time_to_live(lease, None).await.expect("a lease");
    assert_eq!(lease.granted_ttl(), 600);

    // Nobody collects: it is not waited for who would.
    let gone = c.delete_with(&format!("{MAPS}/a"), json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(gone.code, 200);
    assert_eq!(c.get(&format!("{MAPS}/a")).await.code, 404);
    for i in 0..10 {
        c.post(MAPS, map(&format!("m{i}"))).await.ok();
    }
    assert_eq!(c.delete(MAPS).await.ok()["items"].as_array().map(Vec::len), Some(10));
    assert_eq!(c.get(MAPS).await.ok()["items"], json!([]));
    assert!(!c.get("/metrics").await.text().contains("\napiserver_resource_objects{"));

    // What was stored as JSON is read by servers that store protobuf.
    c.post(MAPS, map("b")).await.ok();
    c.restart_with(Vec::new()).await;
    assert_eq!(c.get(&format!("{MAPS}/b")).await.ok()["data"], json!({"k": "v"}));
}
