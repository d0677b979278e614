//! TLS bootstrap against an API server that approves of everything and signs with an authority of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bootstrap;
use super::request::CertificateContents;
use super::rotation::Rotation;
use super::store::Store;

/// Request as it came: the object.
#[derive(Default)]
struct Asked {
    requests: Vec<Value>,
    signed: BTreeMap<String, Value>,
}

/// Signs for `life` from now.
fn sign(pem: &str, life: Duration) -> String {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "ca");
    let mut request = CertificateSigningRequestParams::from_pem(pem).expect("a request");
    request.params.not_before = std::time::SystemTime::now().into();
    request.params.not_after = (std::time::SystemTime::now() + life).into();
    request.signed_by(&Issuer::new(authority, key)).expect("signed").pem()
}

/// A client of that API server. Requests are signed for `life`; those whose number `refuse` names are denied.
fn server(asked: Arc<Mutex<Asked>>, life: Duration, refuse: usize) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let asked = Arc::clone(&asked);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let base64 = base64::engine::general_purpose::STANDARD;
            let answer = if parts.method == http::Method::POST {
                let mut csr: Value = serde_json::from_slice(&body).expect("an object");
                let mut asked = asked.lock();
                let name = format!("csr-{}", asked.requests.len());
                csr["metadata"]["name"] = json!(name);
                asked.requests.push(csr.clone());
                let pem = base64.decode(csr["spec"]["request"].as_str().unwrap_or_default()).expect("base64");
                let pem = String::from_utf8(pem).expect("PEM");
                let refused = asked.requests.len() == refuse;
                let condition = if refused { "Denied" } else { "Approved" };
                let mut signed = csr.clone();
                signed["status"] =
                    json!({"conditions": [{"type": condition, "status": "True", "reason": "r", "message": "m"}]});
                if !refused {
                    signed["status"]["certificate"] = json!(base64.encode(sign(&pem, life)));
                }
                asked.signed.insert(name, signed);
                csr.to_string()
            } else {
                // First as it was made, then as it was decided.
                let query = parts.uri.query().unwrap_or_default();
                let name = query.split("metadata.name%3D").nth(1).and_then(|q| q.split('&').next()).unwrap_or_default();
                let signed = asked.lock().signed.get(name).cloned().unwrap_or_default();
                let mut pending = signed.clone();
                pending.as_object_mut().map(|csr| csr.remove("status"));
                let event = |kind: &str, object: &Value| json!({"type": kind, "object": object}).to_string();
                format!("{}\n{}\n", event("ADDED", &pending), event("MODIFIED", &signed))
            };
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(bytes::Bytes::from(answer))))
        }
    });
    kube::Client::new(service, "default")
}

fn folder() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("certificates-{}", uuid::Uuid::new_v4()))
}

#[tokio::test]
async fn a_certificate_is_obtained() {
    let (asked, folder) = (Arc::<Mutex<Asked>>::default(), folder());
    let client = server(Arc::clone(&asked), Duration::from_secs(3600), 2);
    let wanted = CertificateContents::serving("n1", "n1", &["192.0.2.1".parse().expect("ip")]).expect("an address");
    let (certificate, key) = wanted.obtain(&client).await.expect("issued");
    let store = Store::new(&folder, "kubelet-server");
    store.update(&certificate, &key, jiff::Timestamp::now()).expect("a pair");
    assert!(wanted.is_met_by(&store.load().expect("a certificate")));
    let spec = asked.lock().requests[0]["spec"].clone();
    assert_eq!(spec["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(spec["usages"], json!(["digital signature", "server auth"]));
    assert_eq!(asked.lock().requests[0]["metadata"]["generateName"], "csr-");
    let refused = CertificateContents::client("n1").obtain(&client).await.expect_err("denied").to_string();
    assert_eq!(refused, "certificate signing request csr-1 is denied, reason: r, message: m");
    crate::trees::remove(&folder).expect("clean");
}

/// A certificate that lives for seconds is renewed while the kubelet runs; a refusal is not the end of it.
#[tokio::test]
async fn a_certificate_is_renewed_before_it_ends() {
    let (asked, folder) = (Arc::<Mutex<Asked>>::default(), folder());
    let client = server(Arc::clone(&asked), Duration::from_secs(4), 1);
    let store = Store::new(&folder, "kubelet-client");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let ended = CancellationToken::new();
    let renewed = move || {
        // The test may have seen enough.
        tell.send(()).ok();
    };
    let rotation = Rotation {
        store: store.clone(),
        wanted: watch::channel(Some(CertificateContents::client("n1"))).1,
        at_once: false,
    };
    let keep = rotation.keep(move |_| client.clone(), renewed, ended.clone());
    let seen = async {
        let mut leaves = Vec::new();
        for _ in 0..2 {
            told.recv().await.expect("it goes on");
            leaves.push(store.load().expect("a certificate"));
        }
        ended.cancel();
        leaves
    };
    let (leaves, ()) = tokio::join!(seen, keep);
    assert!(leaves[1].not_before > leaves[0].not_before, "{leaves:?}");
    assert!(leaves[1].not_before < leaves[0].not_after, "in time: {leaves:?}");
    assert_eq!(asked.lock().requests.len(), 3, "one was refused");
    crate::trees::remove(&folder).expect("clean");
}

/// A certificate is asked for once there is an address, and anew when the node has others.
#[tokio::test]
async fn a_serving_certificate_follows_the_addresses_of_its_node() {
    let (asked, folder) = (Arc::<Mutex<Asked>>::default(), folder());
    let client = server(Arc::clone(&asked), Duration::from_secs(3600), 0);
    let store = Store::new(&folder, "kubelet-server");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let ended = CancellationToken::new();
    let renewed = move || {
        tell.send(()).ok();
    };
    let (contents, wanted) = watch::channel(None);
    let rotation = Rotation { store: store.clone(), wanted, at_once: false };
    let keep = rotation.keep(move |_| client.clone(), renewed, ended.clone());
    let of = |addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        CertificateContents::serving("n1", "n1", &addresses)
    };
    let seen = async {
        for addresses in [&["192.0.2.1"][..], &["192.0.2.1", "192.0.2.2"]] {
            contents.send_replace(of(addresses));
            told.recv().await.expect("a certificate");
            let leaf = store.load().expect("a certificate");
            assert!(of(addresses).is_some_and(|wanted| wanted.is_met_by(&leaf)), "{leaf:?}");
        }
        // What changes nothing asks for nothing.
        contents.send_replace(of(&["192.0.2.2", "192.0.2.1"]));
        tokio::time::sleep(Duration::from_millis(100)).await;
        ended.cancel();
    };
    let ((), ()) = tokio::join!(seen, keep);
    assert_eq!(asked.lock().requests.len(), 2);
    crate::trees::remove(&folder).expect("clean");
}

/// A kubeconfig of this user.
fn kubeconfig(user: &Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    })
    .to_string()
}

fn embedded(pair: &shared::cert::PemPair) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    json!({"client-certificate-data": encode(&pair.certificate), "client-key-data": encode(&pair.key)})
}

#[tokio::test]
async fn a_kubeconfig_without_a_living_certificate_is_bootstrapped_anew() {
    let folder = folder();
    std::fs::create_dir_all(&folder).expect("a folder");
    let pair = shared::cert::self_signed("n1", &[], &[]).expect("a pair");
    let (pem, gone) = (folder.join("pair.pem"), folder.join("gone.pem"));
    std::fs::write(&pem, format!("{}{}", pair.certificate, pair.key)).expect("written");
    let file = |path: &std::path::Path| json!({"client-certificate": path, "client-key": path});
    let now = jiff::Timestamp::now();
    let later = now + jiff::SignedDuration::from_hours(24 * 365 * 100);
    let kubeconfig_file = folder.join("kubelet.conf").display().to_string();
    assert!(!bootstrap::is_valid(&kubeconfig_file, now).await, "it is not there");
    for (user, at, valid) in [
        (embedded(&pair), now, true),
        (embedded(&pair), later, false),
        (file(&pem), now, true),
        (file(&gone), now, false),
        (json!({"token": "abcdef.0123456789abcdef"}), now, false),
        (json!({"client-certificate-data": "!", "client-key-data": "!"}), now, false),
    ] {
        std::fs::write(&kubeconfig_file, kubeconfig(&user)).expect("written");
        assert_eq!(bootstrap::is_valid(&kubeconfig_file, at).await, valid, "{user} at {at}");
    }
    crate::trees::remove(&folder).expect("clean");
}

/// The pair that kubeadm embeds in the first control plane's kubeconfig becomes the pair that is rotated.
#[tokio::test]
async fn an_embedded_pair_is_adopted_once() {
    let folder = folder();
    let store = Store::new(&folder, "kubelet-client");
    let user = |value: &Value| serde_json::from_value::<kube::config::AuthInfo>(value.clone()).expect("a user");
    let now: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
    let pair = shared::cert::self_signed("n1", &[], &[]).expect("a pair");
    let other = shared::cert::self_signed("n2", &[], &[]).expect("a pair");
    let halved = shared::cert::PemPair { certificate: pair.certificate.clone(), key: "nonsense".to_owned() };
    assert!(!bootstrap::adopt(&user(&json!({"token": "t"})), &store, now));
    assert!(!bootstrap::adopt(&user(&embedded(&halved)), &store, now), "no pair");
    assert!(!store.current().exists());
    assert!(bootstrap::adopt(&user(&embedded(&pair)), &store, now));
    let held = std::fs::read_to_string(store.current()).expect("a pair");
    assert_eq!(held, format!("{}{}", pair.certificate, pair.key));
    assert!(!bootstrap::adopt(&user(&embedded(&other)), &store, now), "there is one");
    assert_eq!(std::fs::read_to_string(store.current()).expect("a pair"), held);
    crate::trees::remove(&folder).expect("clean");
}

/// The first certificate is asked for with the bootstrap credential, those that follow with the certificate itself; one
/// out of a kubeconfig is replaced before its time, also when that is refused at first.
#[tokio::test]
async fn certificates_are_asked_for_with_what_is_valid() {
    for (adopted, want) in [(false, [false, true]), (true, [true, true])] {
        let (asked, folder) = (Arc::<Mutex<Asked>>::default(), folder());
        let client = server(Arc::clone(&asked), Duration::from_secs(4), usize::from(adopted));
        let store = Store::new(&folder, "kubelet-client");
        if adopted {
            let pair = shared::cert::self_signed("n1", &[], &[]).expect("a pair");
            store.update(&pair.certificate, &pair.key, jiff::Timestamp::now()).expect("stored");
        }
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let ended = CancellationToken::new();
        let rotation = Rotation {
            store: store.clone(),
            wanted: watch::channel(Some(CertificateContents::client("n1"))).1,
            at_once: adopted,
        };
        let clients = move |valid| {
            // The test may have seen enough.
            tell.send(valid).ok();
            client.clone()
        };
        let keep = rotation.keep(clients, || {}, ended.clone());
        let seen = async {
            let seen = [told.recv().await.expect("it asks"), told.recv().await.expect("it goes on")];
            ended.cancel();
            seen
        };
        let (seen, ()) = tokio::join!(seen, keep);
        assert_eq!(seen, want);
        crate::trees::remove(&folder).expect("clean");
    }
}
