//! Answers that come from a kubelet: what of them is the server's, and what becomes of a connection that is lost.

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tungstenite::Message;

use crate::harness::{Cluster, Kubelet, etcd_is_missing, head};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

/// Response of the fake kubelet: the requested number of log lines, or whatever the command is named after.
fn says(head: &str) -> String {
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no such container","reason":"NotFound","code":404}"#;
    let answer = |line: &str, body: &str| {
        format!(
            "HTTP/1.1 {line}\r\nX-Own: 1\r\nCache-Control: max-age=5\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let query = head.split(' ').nth(1).and_then(|path| path.split_once('?')).map_or("", |(_, query)| query);
    match query.split('&').next().and_then(|first| first.split_once('=')).map_or("", |(_, value)| value) {
        "1" => answer("200 OK\r\nContent-Type: text/own\r\nContent-Encoding: x", "a line\n"),
        "2" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\na line\n\r\n".to_owned(),
        "3" => answer("302 Found\r\nLocation: /elsewhere?a=b", ""),
        "400" => answer("400 Bad", "what?\n"),
        "500" => answer("500 Bad", "boom\n"),
        "refused" => answer("404 Not Found\r\nContent-Type: application/json", status),
        "plain" | "403" => answer("403 Forbidden", "not you\n"),
        "same" => answer("200 OK", "hello"),
        _ => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Own: 1\r\n\r\n"
            .to_owned(),
    }
}

/// A cluster with a pod at such a kubelet.
async fn with_a_kubelet() -> Cluster {
    let c = Cluster::start().await;
    let kubelet = Kubelet::start(c.pki(), says).await;
    let node = json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}}}});
    c.post("/api/v1/nodes", node).await.ok();
    c.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await.ok();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"operator": "Exists"}]}});
    c.post(PODS, pod).await.ok();
    c
}

/// The head and the body of an answer on a connection of its own, which ends.
async fn raw(c: &Cluster, path: &str, headers: &str) -> (String, String) {
    let mut connection = c.connection().await;
    let request = format!("GET {PODS}/p/{path} HTTP/1.1\r\nHost: x\r\nAudit-Id: mine\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).await.expect("asked");
    let head = head(&mut connection).await.to_ascii_lowercase();
    let mut body = Vec::new();
    // Upstream's does not say goodbye either.
    connection.read_to_end(&mut body).await.ok();
    (head, String::from_utf8_lossy(&body).into_owned())
}

/// Reports for each of some headers whether a response has it.
fn has(head: &str, names: &[&str]) -> Vec<bool> {
    names.iter().map(|name| head.contains(&format!("\r\n{name}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_the_servers_answer() {
    if etcd_is_missing() {
        return;
    }
    let c = with_a_kubelet().await;
    for lines in ["1", "2"] {
        // The second breaks off: there is no more of it.
        let answer = c.call("GET", &format!("{PODS}/p/log?tailLines={lines}"), &[("Audit-Id", "mine")], None).await;
        assert_eq!((answer.code, answer.text().as_str()), (200, "a line\n"), "{lines}");
        assert_eq!((answer.header("content-type"), answer.header("audit-id")), ("text/plain", "mine"));
        assert_eq!(answer.header("cache-control"), "no-cache, private");
        assert_eq!([answer.header("x-own"), answer.header("content-encoding")], [""; 2]);
        let (_, body) = raw(&c, &format!("log?tailLines={lines}"), "Connection: close\r\n").await;
        assert_eq!(body, "7\r\na line\n\r\n0\r\n\r\n", "over HTTP/1.1 it ends in order, too");
    }
    let failed = async |lines: u16| c.get(&format!("{PODS}/p/log?tailLines={lines}")).await;
    failed(3).await.fails(500, "", "Get \"/elsewhere?a=b\": redirects forbidden");
    failed(400).await.fails(400, "BadRequest", "what?\n");
    failed(500).await.fails(500, "InternalError", "Internal error occurred: boom\n");

    let (head, said) = raw(&c, "log?tailLines=1", SOCKET).await;
    assert!(head.starts_with("http/1.1 101 ") && said.contains("a line\n"), "{head}{said}");
    assert_eq!(has(&head, &["audit-id", "sec-websocket-protocol: \r\n"]), [false, true], "{head}");
    for (headers, code, why) in [
        (SOCKET.replace("13", "12"), "400", "missing or bad WebSocket Version"),
        (SOCKET.replace("-Key", "-Lock"), "400", "mismatch challenge/response"),
        (format!("{SOCKET}Sec-WebSocket-Protocol: x\r\n"), "403", ""),
    ] {
        let (head, body) = raw(&c, "log?tailLines=1", &headers).await;
        assert!(head.starts_with(&format!("http/1.1 {code} ")) && body == why, "{head}{body}");
        assert_eq!(has(&head, &["audit-id", "cache-control"]), [false; 2], "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_handed_over_is_the_kubelets() {
    if etcd_is_missing() {
        return;
    }
    let c = with_a_kubelet().await;
    let names = ["x-own", "audit-id", "cache-control: no-cache"];
    let tunnel = format!("{SOCKET}Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n");
    for (path, headers, code, body, want) in [
        ("exec?stdout=1&command=x", SPDY, "101", "", [true, false, false]),
        ("exec?command=refused", SPDY, "404", "no such container", [true, false, false]),
        ("attach?command=plain", SPDY, "101", "", [true, false, false]),
        ("exec?command=plain", SPDY, "403", "not you\n", [true, false, false]),
        (
            "exec?command=same",
            &format!("{SPDY}Connection: close\r\n"),
            "500",
            "invalid upgrade response: status code 200",
            [false, true, true],
        ),
        ("exec?command=x", "Connection: close\r\n", "400", "Upgrade request required", [false, true, true]),
        ("portforward?ports=80", &tunnel, "101", "", [false, false, false]),
        ("portforward?ports=403", &tunnel, "403", "not you\n", [true, false, false]),
        ("portforward?ports=80", &tunnel.replace("13", "12"), "400", "Bad Request\n", [false, true, true]),
    ] {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), raw(&c, path, headers)).await;
        let (head, said) = answer.unwrap_or_else(|_| panic!("{path} {headers} never ends"));
        assert!(head.starts_with(&format!("http/1.1 {code} ")) && said.contains(body), "{path}: {head}{said}");
        assert_eq!(has(&head, &names), want, "{path}: {head}");
    }
}

/// Message on the error channel of a WebSocket session.
async fn told(c: &Cluster, command: &str) -> Value {
    let url = format!("wss://localhost{PODS}/p/exec?stdout=1&command={command}");
    let mut asked = tungstenite::client::IntoClientRequest::into_client_request(url).expect("a request");
    asked.headers_mut().insert("Sec-WebSocket-Protocol", http::HeaderValue::from_static("v5.channel.k8s.io"));
    let (socket, answer) = tokio_tungstenite::client_async(asked, c.connection().await).await.expect("a handshake");
    assert_eq!(answer.status(), 101, "the kubelet is asked later");
    let heard: Vec<Message> = socket.filter_map(|message| async { message.ok() }).collect().await;
    let [begun, told, Message::Close(Some(frame))] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((begun, u16::from(frame.code)), (&Message::Binary(vec![1].into()), 1000));
    let told = told.clone().into_data();
    assert_eq!(told[0], 3);
    serde_json::from_slice(&told[1..]).expect("a status")
}

#[tokio::test(flavor = "multi_thread")]
async fn session_ends_with_a_status() {
    if etcd_is_missing() {
        return;
    }
    let mut c = with_a_kubelet().await;
    // The kubelet is lost at once, of which upstream's library knows nothing.
    assert_eq!(told(&c, "x").await, json!({"metadata": {}, "status": "Success"}));
    let refused =
        json!({"metadata": {}, "status": "Failure", "message": "no such container", "reason": "NotFound", "code": 404});
    assert_eq!(told(&c, "refused").await, refused);
    let plain = told(&c, "plain").await;
    assert_eq!(plain["message"], "Internal error occurred: unable to upgrade connection: not you");
    let node = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    c.patch("/api/v1/nodes/n/status", "merge-patch+json", node).await.ok();
    let nobody = told(&c, "x").await;
    let why = "Internal error occurred: error sending request: Post \"https://127.0.0.1:1/exec/default/p/c?command=x&output=1\": dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!((nobody["message"].as_str(), nobody["code"].as_u64()), (Some(why), Some(500)));
    c.stop_server();
}
