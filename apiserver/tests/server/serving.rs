//! The secure port itself: certificates, versions, headers that every answer carries, and what servers tell one
//! another.

use std::sync::Arc;

use proto::openapi;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::{Cluster, Identity, etcd_is_missing, file};

async fn handshake(c: &Cluster, tls: rustls::ClientConfig, name: &str) -> std::io::Result<Vec<u8>> {
    let socket = TcpStream::connect(("127.0.0.1", c.port())).await?;
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().map(|leaf| leaf.to_vec()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn serving_flags_are_honored() {
    if etcd_is_missing() {
        return;
    }
    let pair = shared::cert::self_signed("named.example", &[], &[]).expect("a pair");
    let named = shared::cert::certificates(pair.certificate.as_bytes()).expect("PEM")[0].to_vec();
    let c = Cluster::start_with(|dir, _| {
        let (certificate, key) = (file(dir, "named.crt", &pair.certificate), file(dir, "named.key", &pair.key));
        vec![
            "--tls-min-version=VersionTLS13".to_owned(),
            format!("--tls-sni-cert-key={certificate},{key}:*.named.example,named.example"),
            "--strict-transport-security-directives=max-age=31536000,includeSubDomains".to_owned(),
            r"--cors-allowed-origins=//web\.example(:|$)".to_owned(),
        ]
    })
    .await;

    let trusting = || shared::cert::client_tls(shared::cert::Trust::Anybody, None).expect("a configuration");
    assert_eq!(handshake(&c, trusting(), "named.example").await.expect("secured"), named);
    assert_eq!(handshake(&c, trusting(), "api.named.example").await.expect("secured"), named);
    assert_ne!(handshake(&c, trusting(), "localhost").await.expect("secured"), named);
    let roots = shared::cert::root_store(c.pki().ca.as_bytes()).expect("roots");
    let old = rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
        .with_root_certificates(roots)
        .with_no_client_auth();
    assert!(handshake(&c, old, "localhost").await.is_err(), "TLS 1.2 is too old for this server");

    let from = |origin: &'static str| [("Origin", origin)];
    let shown = c.call("GET", "/version", &from("https://web.example:8443"), None).await;
    assert_eq!(shown.header("access-control-allow-origin"), "https://web.example:8443");
    assert_eq!(shown.header("access-control-allow-credentials"), "true");
    assert_eq!(shown.header("strict-transport-security"), "max-age=31536000; includeSubDomains");
    let foreign = c.call("GET", "/version", &from("https://web.example.evil"), None).await;
    assert_eq!(foreign.header("access-control-allow-origin"), "");
    let asked = c.client(Identity::Anonymous).call("OPTIONS", "/api/v1/pods", &from("https://web.example"), None).await;
    assert_eq!((asked.code, asked.header("access-control-expose-headers")), (204, "Date"));
    let foreign = c.client(Identity::Anonymous).call("OPTIONS", "/api/v1/pods", &from("https://evil"), None).await;
    assert!(matches!(foreign.code, 401 | 403), "{}", foreign.code);

    let profiles =
        [("/debug/pprof", 302), ("/debug/pprof/", 200), ("/debug/pprof/cmdline", 200), ("/debug/pprof/heap", 404)];
    for (path, code) in profiles {
        assert_eq!(c.get(path).await.code, code, "{path}");
        assert_eq!(c.client(Identity::Alice).get(path).await.code, 403, "{path}");
    }
    let private = Cluster::start_with(|_, _| vec!["--profiling=false".to_owned()]).await;
    for (method, path) in [("GET", "/debug/pprof/"), ("GET", "/debug/flags"), ("PUT", "/debug/flags/v")] {
        assert_eq!(private.call(method, path, &[], None).await.code, 404, "{path}");
    }

    let said = "invalid timeout specified in the request URL - time: invalid duration \"soon\"";
    c.get("/api/v1/pods?timeout=soon").await.fails(400, "BadRequest", said);
    let indicators = c.get("/metrics/slis").await.text();
    assert!(indicators.contains(r#"kubernetes_healthcheck{name="etcd",type="readyz"} 1"#), "{indicators}");

    // Servers know one another by leases, and clients find them by keys that end with them.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
    let lease = c.watch_until(&format!("{leases}&watch=1"), |_| true).await;
    let name = lease["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with("apiserver-") && name.len() == "apiserver-".len() + 26, "{name}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    assert!(lease["spec"]["holderIdentity"].as_str().is_some_and(|h| h.starts_with(&format!("{name}_"))), "{lease}");
    let key = c.stored("/registry/masterleases/192.0.2.10").await.expect("a key of this server");
    assert!(key.1 > 0, "it ends with its lease");
}

/// A connection over HTTP/2 that tells its limits, and the task that keeps it going.
async fn http2(c: &Cluster) -> (h2::client::SendRequest<bytes::Bytes>, tokio::task::JoinHandle<Result<(), h2::Error>>) {
    let roots = shared::cert::Authorities::from_pem(c.pki().ca.as_bytes()).expect("roots");
    let mut tls = shared::cert::client_tls(shared::cert::Trust::Authorities(roots), None).expect("a configuration");
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(("127.0.0.1", c.port())).await.expect("a connection");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await.expect("TLS");
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    (requests, tokio::spawn(connection))
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_has_its_limits() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| {
        let gates = "--feature-gates=ComponentStatusz=true,ComponentFlagz=true";
        ["--goaway-chance=0.02", "--http2-max-streams-per-connection=7", gates].map(str::to_owned).into()
    })
    .await;
    let (requests, ended) = http2(&c).await;
    let live = |head: &str| {
        let request = http::Request::get("https://localhost/livez").header("x-a", head);
        request.body(()).expect("a request")
    };
    let mut requests = requests.ready().await.expect("open");
    let mut answered = 0;
    // One in fifty ends the connection, after its own answer.
    while let Ok(ready) = requests.clone().ready().await {
        requests = ready;
        let Ok((response, _)) = requests.send_request(live(""), true) else { break };
        let Ok(response) = response.await else { break };
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("connection").is_none());
        answered += 1;
        assert_eq!(requests.current_max_send_streams(), 7);
        assert!(answered < 5000, "it is never sent away");
    }
    assert!(answered > 0);
    ended.await.expect("no panic").expect("a clean end, not a broken one");

    // A head that is too large is refused, and the connection stays.
    let (requests, _connection) = http2(&c).await;
    let mut requests = requests.ready().await.expect("open");
    let (refused, _) = requests.send_request(live(&"a".repeat(2 << 20)), true).expect("sent");
    match refused.await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(error.is_reset() || error.is_go_away(), "{error}"),
    }
    assert_eq!(c.get("/livez").await.code, 200, "the server goes on");

    // HTTP/1.1 has no GOAWAY: nobody is sent away.
    assert_eq!(c.get("/livez").await.code, 200);

    // Behind their gates there are pages about the server itself.
    let (flags, status) = (c.get("/flagz").await.text(), c.get("/statusz").await.text());
    assert!(flags.starts_with("\nkube-apiserver flagz\n") && flags.contains("\ngoaway-chance=0.02\n"), "{flags}");
    assert!(status.starts_with("\nkube-apiserver statusz\n") && status.contains(" /statusz "), "{status}");
    let paths = c.get("/").await.ok();
    assert!(paths["paths"].as_array().is_some_and(|paths| paths.contains(&json!("/flagz"))), "{paths}");
    let structured = "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz";
    let status = c.call("GET", "/statusz", &[("Accept", structured)], None).await;
    assert_eq!(status.header("content-type"), "application/json;g=config.k8s.io;v=v1alpha1;as=Statusz");
    assert_eq!(status.ok()["metadata"]["name"], "kube-apiserver");
    let refused = c.call("GET", "/flagz", &[("Accept", "application/json")], None).await;
    assert!(refused.code == 406 && refused.text().contains("application/vnd.kubernetes.protobuf, text/plain"));
    assert_eq!((c.get("/readyz/").await.code, c.get("/readyz/ping").await.text()), (404, "ok".to_owned()));
    // A watch of one object is not of another.
    let other = c.get("/api/v1/watch/namespaces/default?fieldSelector=metadata.name%3Dother").await;
    assert!(
        other.code == 400 && other.text().contains("metadata.name doesn't match requested name"),
        "{}",
        other.text()
    );
}

/// The addresses under which pods find the servers of a cluster.
fn addresses(endpoints: &Value) -> Vec<String> {
    let all = endpoints["subsets"][0]["addresses"].as_array().into_iter().flatten();
    all.filter_map(|a| a["ip"].as_str()).map(str::to_owned).collect()
}

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints?watch=1&fieldSelector=metadata.name%3Dkubernetes";

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_service_is_restored() {
    if etcd_is_missing() {
        return;
    }
    // Also where its endpoints are somebody else's affair.
    let cluster = Cluster::start_with(|_, _| vec!["--endpoint-reconciler-type=none".to_owned()]).await;
    let c = cluster.client(Identity::Admin);
    let services = "/api/v1/namespaces/default/services";
    let before = c.get(&format!("{services}/kubernetes")).await.ok();
    c.delete(&format!("{services}/kubernetes")).await.ok();
    let watch = format!("{services}?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3Dkubernetes");
    let after = c.watch_until(&watch, |service| service["metadata"]["uid"] != before["metadata"]["uid"]).await;
    assert_eq!(after["spec"], before["spec"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_share_its_service() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let become_ = async |c: &Cluster, wanted: &[&str]| c.watch_until(ENDPOINTS, |e| addresses(e) == wanted).await;
    become_(&c, &["192.0.2.10"]).await;
    let other = c.join(&["--advertise-address=192.0.2.11".to_owned()]);
    let endpoints = become_(&c, &["192.0.2.10", "192.0.2.11"]).await;
    assert_eq!(endpoints["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"], "true");
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let watched = format!("{slice}?watch=1&fieldSelector=metadata.name%3Dkubernetes");
    c.watch_until(&watched, |s| s["endpoints"].as_array().is_some_and(|e| e.len() == 2)).await;
    // One that leaves takes itself out; one that dies is missed when its key ends.
    tokio::task::block_in_place(|| drop(other));
    become_(&c, &["192.0.2.10"]).await;
    let etcd = c.etcd_client().await;
    let dead = "/registry/masterleases/192.0.2.12";
    etcd.kv_client().put(dead, "", None).await.expect("written");
    become_(&c, &["192.0.2.10", "192.0.2.12"]).await;
    etcd.kv_client().delete(dead, None).await.expect("removed");
    become_(&c, &["192.0.2.10"]).await;

    // Without keys, by their number.
    let counted = |address: &str| {
        let flags = ["--endpoint-reconciler-type=master-count", "--apiserver-count=2"].map(str::to_owned);
        flags.into_iter().chain([format!("--advertise-address={address}")]).collect::<Vec<_>>()
    };
    c.restart_with(counted("192.0.2.10")).await;
    let other = c.join(&counted("192.0.2.11"));
    become_(&c, &["192.0.2.10", "192.0.2.11"]).await;
    tokio::task::block_in_place(|| drop(other));
    become_(&c, &["192.0.2.10"]).await;
    assert!(c.stored("/registry/masterleases/192.0.2.11").await.is_none());

    // Somebody else's business: what is there stays.
    c.restart_with(vec!["--endpoint-reconciler-type=none".to_owned(), "--advertise-address=192.0.2.13".to_owned()])
        .await;
    assert!(
        !addresses(&c.get("/api/v1/namespaces/default/endpoints/kubernetes").await.ok())
            .contains(&"192.0.2.13".to_owned())
    );
}

/// Metrics that dashboards and alerts use are served.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_measured() {
    let Some((c, ns)) = crate::workspace("measured").await else { return };
    let path = format!("{ns}/configmaps");
    c.post(&path, json!({"metadata": {"name": "a"}})).await.ok();
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    c.patch(&format!("{path}/a?fieldManager=m"), "apply-patch+yaml", config).await.ok();
    c.get(&path).await.ok();
    c.get(&format!("{ns}/endpoints")).await.ok();
    c.watch(&format!("{path}?watch=1&timeoutSeconds=1"), 2).await;
    let metrics = c.get("/metrics").await.text();
    let of = |name: &str, verb: &str, scope: &str| {
        metrics.lines().any(|l| {
            let labels =
                [format!("verb=\"{verb}\""), format!("scope=\"{scope}\""), "resource=\"configmaps\"".to_owned()];
            l.starts_with(&format!("{name}{{")) && labels.iter().all(|label| l.contains(label))
        })
    };
    for (verb, scope) in [("POST", "resource"), ("APPLY", "resource"), ("LIST", "namespace"), ("WATCH", "namespace")] {
        assert!(of("apiserver_request_total", verb, scope), "{verb} {scope}");
    }
    assert!(of("apiserver_request_sli_duration_seconds_count", "LIST", "namespace"));
    assert!(of("apiserver_response_sizes_count", "LIST", "namespace"));
    assert!(of("apiserver_longrunning_requests", "WATCH", "namespace"));
    for line in [
        "apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"} 1",
        "apiserver_current_inflight_requests{request_kind=\"mutating\"}",
        "apiserver_client_certificate_expiration_seconds_bucket{le=\"3600\"}",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

/// A version 3 document says the same in protobuf, under the same tag.
#[tokio::test(flavor = "multi_thread")]
async fn openapi_is_served_in_protobuf() {
    let Some(c) = crate::cluster().await else { return };
    let path = "/openapi/v3/apis/apps/v1";
    let plain = c.get(path).await;
    for (accept, kind) in [
        (openapi::V3_PROTOBUF_ACCEPT, openapi::V3_PROTOBUF),
        (openapi::V3_PROTOBUF, openapi::V3_PROTOBUF),
        ("text/html, application/com.github.proto-openapi.spec.v3@v1.0+protobuf", openapi::V3_PROTOBUF),
        ("application/json, application/com.github.proto-openapi.spec.v3@v1.0+protobuf", "application/json"),
        ("*/*", "application/json"),
    ] {
        let answer = c.call("GET", path, &[("Accept", accept)], None).await;
        assert_eq!((answer.code, answer.header("content-type")), (200, kind), "{accept}");
        assert_eq!(answer.header("etag"), plain.header("etag"), "{accept}");
        let same =
            if kind == openapi::V3_PROTOBUF { openapi::v3_protobuf(&plain.bytes) } else { Some(plain.bytes.to_vec()) };
        assert!(same.is_some_and(|same| same == answer.bytes), "{accept}");
    }
    assert_eq!(c.call("GET", path, &[("Accept", "text/html")], None).await.code, 406);
}

/// CPU profiles are served, unless profiling is disabled.
#[tokio::test(flavor = "multi_thread")]
async fn cpu_profiles_are_served() {
    let Some(server) = crate::cluster().await else { return };
    let c = server.client(Identity::Admin);
    let profile = c.get("/debug/pprof/profile?seconds=1").await;
    assert_eq!((profile.code, profile.header("content-type")), (200, "application/octet-stream"));
    assert_eq!(profile.header("content-disposition"), "attachment; filename=\"profile\"");
    assert!(profile.bytes.starts_with(&[0x1f, 0x8b]), "it is compressed");
    assert_eq!(server.client(Identity::Alice).get("/debug/pprof/profile?seconds=1").await.code, 403);
}
