//! Heads of requests over HTTP/1 that few clients send: taken and refused as Go's server does.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Cluster, etcd_is_missing};

/// All answers on a connection on which this is said; it ends with the last of them.
async fn answers(c: &Cluster, said: &str) -> String {
    let mut connection = c.connection().await;
    // A server that has heard enough does not listen for ever.
    let _ = connection.write_all(said.as_bytes()).await;
    let mut answers = Vec::new();
    let read = connection.read_to_end(&mut answers);
    // Upstream's does not say goodbye either.
    tokio::time::timeout(std::time::Duration::from_secs(20), read).await.expect("it ends").ok();
    String::from_utf8_lossy(&answers).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn request_heads_are_validated_like_gos() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let last = "Host: h\r\nConnection: close\r\n";
    let get = |target: &str, more: &str| format!("GET {target} HTTP/1.1\r\n{last}{more}\r\n");
    let post =
        |more: &str| format!("POST /api/v1/namespaces HTTP/1.1\r\n{last}Content-Type: application/json\r\n{more}");
    for (said, code, body) in [
        (get("/version?a=<é", ""), 200, "\"major\""),
        (get("/api/v1/namespaces/<é", ""), 404, "é\\\" not found"),
        (get("/api/v1/namespaces/a%zz", ""), 400, "\r\n\r\n400 Bad Request"),
        (get("version", ""), 400, "\r\n\r\n400 Bad Request"),
        (get("/version", "Expect: 100-continue\r\n"), 200, "\"major\""),
        (get("/version", "A: b\r\n c\r\n"), 200, "\"major\""),
        (get("/version", &format!("A: {}\r\n", "a".repeat(100_000))), 200, "\"major\""),
        (get("/version", &format!("A: {}\r\n", "a".repeat(1_000_000))), 200, "\"major\""),
        (get("/version", &"A: b\r\n".repeat(2000)), 200, "\"major\""),
        (get(&format!("/version?a={}", "a".repeat(70_000)), ""), 414, "414 Request URI Too Long"),
        (get("http://h/version", ""), 200, "\"major\""),
        (post("Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n"), 500, "\"message\":\"invalid byte in chunk length\""),
        (get("/version", &format!("A: {}\r\n", "a".repeat(2 << 20))), 431, "431 Request Header Fields Too Large"),
        (get("/version", "a b: c\r\n"), 400, "400 Bad Request: invalid header name"),
        (get("/version", "Expect: x\r\n"), 417, ""),
        ("GET /version HTTP/1.1\r\n\r\n".to_owned(), 400, "400 Bad Request: missing required Host header"),
        ("GET /version HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), 400, "400 Bad Request: malformed Host header"),
        (
            "GET /version HTTP/3.0\r\n\r\n".to_owned(),
            505,
            "505 HTTP Version Not Supported: unsupported protocol version",
        ),
        ("GET /version\r\n".to_owned(), 400, "400 Bad Request"),
        ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 200, ""),
        (get("/version", "").replace("\r\n", "\n"), 200, "\"major\""),
        (post("Transfer-Encoding: gzip\r\n\r\n"), 501, "Unsupported transfer encoding"),
        (post("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), 400, "400 Bad Request"),
        (
            post("Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
            422,
            "Required value: name or generateName is required",
        ),
        (
            post("Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
            422,
            "Required value: name or generateName is required",
        ),
    ] {
        let answer = answers(&c, &said).await;
        let said = said.get(..200).unwrap_or(&said);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")) && answer.contains(body), "{said}: {answer}");
        let audited = answer.to_ascii_lowercase().contains("\r\naudit-id: ");
        assert_eq!(
            audited,
            body.starts_with(['"', 'é', 'R']),
            "nobody knows of a request without a head: {said}: {answer}"
        );
    }
    let many = "A: b\r\n".repeat(200);
    let seen = answers(&c, &get("/api/v1/namespaces/none", &format!("{many}Accept: application/yaml\r\n"))).await;
    assert!(seen.contains("\r\n\r\napiVersion: v1\n"), "what the library is not given is there all the same: {seen}");
    // What is refused has its turn.
    let kept = "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";
    let all = answers(&c, &format!("{kept}{kept}GET /% HTTP/1.1\r\nHost: h\r\n\r\n{kept}")).await;
    // What holds of the next request does not hold of this one: the first answer has no body, and is not the last.
    let head = answers(&c, &format!("{}{}", kept.replace("GET", "HEAD"), get("/version", ""))).await;
    let (first, second) = head.split_once("\r\n\r\n").expect("two answers");
    assert!(!first.to_ascii_lowercase().contains("connection: close"), "{head}");
    assert!(second.starts_with("HTTP/1.1 200 OK\r\n") && second.contains("\"major\""), "{head}");
    let codes: Vec<&str> = all.match_indices("HTTP/1.1 ").filter_map(|(at, _)| all.get(at + 9..at + 12)).collect();
    assert_eq!(codes, ["200", "200", "400"], "{all}");
}

/// Reads what begins with these words.
async fn hears(connection: &mut (impl tokio::io::AsyncRead + Unpin), words: &str) {
    let mut heard = vec![0; words.len()];
    connection.read_exact(&mut heard).await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&heard), words);
}

/// `100 Continue` is sent when the body is read, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn continue_is_sent_when_the_body_is_read() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let post = |path: &str, media: &str, more: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {media}\r\nContent-Length: 2\r\n{more}\r\n")
    };
    let waits = "Expect: 100-continue\r\n";
    let mut connection = c.connection().await;
    connection.write_all(post("/api/v1/namespaces", "application/json", waits).as_bytes()).await.expect("open");
    hears(&mut connection, "HTTP/1.1 100 Continue\r\n\r\n").await;
    connection.write_all(b"{}").await.expect("open");
    hears(&mut connection, "HTTP/1.1 422 ").await;
    for (path, media, code) in [("/none", "application/json", 404), ("/api/v1/namespaces", "a/b", 415)] {
        let answer = answers(&c, &post(path, media, waits)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{answer}");
        // What nobody reads is read to its end, and the connection goes on.
        let next = "GET /version HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        let both = answers(&c, &format!("{}{{}}{next}", post(path, media, ""))).await;
        assert!(both.starts_with(&format!("HTTP/1.1 {code} ")) && both.contains("HTTP/1.1 200 OK\r\n"), "{both}");
    }
}

/// A client that says goodbye waits for no changes.
#[tokio::test(flavor = "multi_thread")]
async fn watches_end_with_their_clients() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let mut connection = c.connection().await;
    let watch = "GET /api/v1/namespaces?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: h\r\n\r\n";
    connection.write_all(watch.as_bytes()).await.expect("open");
    hears(&mut connection, "HTTP/1.1 200 OK\r\n").await;
    connection.shutdown().await.expect("open");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), connection.read_to_end(&mut rest)).await;
    ended.expect("it ends").expect("well");
    assert!(rest.ends_with(b"\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
}
