//! The secure port itself: certificates, versions, headers that every answer carries, and what servers tell one another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::harness::{Cluster, Identity, etcd_is_missing};

async fn handshake(c: &Cluster, tls: rustls::ClientConfig, name: &str) -> std::io::Result<Vec<u8>> {
    let socket = TcpStream::connect(("127.0.0.1", c.port())).await?;
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().map(|leaf| leaf.to_vec()).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_flags_say_of_serving() {
    if etcd_is_missing() {
        return;
    }
    let pair = shared::cert::self_signed("named.example", &[], &[]).expect("a pair");
    let named = shared::cert::certificates(pair.certificate.as_bytes()).expect("PEM")[0].to_vec();
    let c = Cluster::start_with(|dir, _| {
        let (certificate, key) = (dir.join("named.crt"), dir.join("named.key"));
        std::fs::write(&certificate, &pair.certificate).expect("written");
        std::fs::write(&key, &pair.key).expect("written");
        vec![
            "--tls-min-version=VersionTLS13".to_owned(),
            format!("--tls-sni-cert-key={},{}:*.named.example,named.example", certificate.display(), key.display()),
            "--strict-transport-security-directives=max-age=31536000,includeSubDomains".to_owned(),
            r"--cors-allowed-origins=//web\.example(:|$)".to_owned(),
        ]
    })
    .await;

    let trusting = || shared::cert::client_config_unverified(None).expect("a configuration");
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

    c.get("/api/v1/pods?timeout=soon").await.fails(400, "BadRequest", "invalid timeout specified in the request URL");
    let indicators = c.get("/metrics/slis").await.text();
    assert!(indicators.contains(r#"kubernetes_healthcheck{name="etcd",type="readyz"} 1"#), "{indicators}");

    // Servers know one another by leases, and clients find them by keys that end with them.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
    let give_up = Instant::now() + Duration::from_secs(20);
    let lease = loop {
        if let Some(lease) = c.get(leases).await.ok()["items"].as_array().and_then(|l| l.first().cloned()) {
            break lease;
        }
        assert!(Instant::now() < give_up, "no identity lease");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let name = lease["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with("apiserver-") && name.len() == "apiserver-".len() + 26, "{name}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    assert!(lease["spec"]["holderIdentity"].as_str().is_some_and(|h| h.starts_with(&format!("{name}_"))), "{lease}");
    let key = c.stored("/registry/masterleases/192.0.2.10").await.expect("a key of this server");
    assert!(key.1 > 0, "it ends with its lease");
}
