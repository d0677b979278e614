use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::*;
use crate::authn::{Anonymous, GroupAdder, Union, X509};
use crate::authz::{self, PathAllowList, PrivilegedGroups};

struct Running {
    tasks: TaskGroup,
    shutdown: Shutdown,
    address: SocketAddr,
}

fn start(server: impl FnOnce(SocketAddr) -> Server) -> Running {
    let (tasks, shutdown) = (TaskGroup::new(), Shutdown::new());
    let address = server("127.0.0.1:0".parse().expect("address")).start(&tasks, &shutdown).expect("starts");
    Running { tasks, shutdown, address }
}

impl Running {
    async fn stop(self) {
        self.shutdown.trigger();
        assert!(self.tasks.drain(Duration::from_secs(20)).await);
    }
}

async fn ask(config: Option<rustls::ClientConfig>, url: String) -> hyper::Response<hyper::body::Incoming> {
    let uri: hyper::Uri = url.parse().expect("uri");
    let response = match config {
        Some(tls) => {
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_only()
                .enable_all_versions()
                .build();
            Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector).get(uri).await
        }
        None => Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>().get(uri).await,
    };
    response.expect("response")
}

async fn get(config: Option<rustls::ClientConfig>, url: String) -> (u16, String, String) {
    let response = ask(config, url).await;
    let code = response.status().as_u16();
    let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let body = response.into_body().collect().await.expect("body").to_bytes();
    (code, kind, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_port() {
    let flags = FlagSet::of("kube-scheduler", &["--feature-gates=ComponentFlagz=true,ComponentStatusz=true"]);
    let flags = flags.expect("flags");
    let debugging = Debugging::default();
    debugging.add("/debug/controllers/a/graph", "text/vnd.graphviz", |query| format!("{query:?}"));
    let running = start(|address| {
        Server::plain("test", address)
            .debugging(&debugging)
            .health(&Health::with_ping())
            .metrics()
            .config("componentconfig", serde_json::json!({"a": 1}))
            .flags(&flags)
            .routes(|config| {
                config.route("/mine", actix_web::web::get().to(|| async { "yes" }));
            })
    });
    let base = format!("http://{}", running.address);
    for (path, code, kind, start) in [
        ("/healthz", 200, "text/plain; charset=utf-8", "ok"),
        ("/livez?verbose", 200, "text/plain; charset=utf-8", "[+]ping ok\nlivez check passed\n"),
        ("/readyz/ping", 200, "text/plain; charset=utf-8", "ok"),
        ("/readyz/nothing", 404, "text/plain; charset=utf-8", "404 page not found\n"),
        ("/nothing", 404, "text/plain; charset=utf-8", "404 page not found\n"),
        ("/configz", 200, "application/json", r#"{"componentconfig":{"a":1}}"#),
        ("/debug/controllers/a/graph?uid=x&uid=y", 200, "text/vnd.graphviz", r#"[("uid", "x"), ("uid", "y")]"#),
        ("/debug/controllers/b/graph", 404, "text/plain; charset=utf-8", "404 page not found\n"),
        ("/debug/pprof/", 200, "text/html; charset=utf-8", "<html>\n<head><title>/debug/pprof/"),
        ("/debug/pprof/cmdline", 200, "text/plain; charset=utf-8", "/"),
        ("/debug/pprof/symbol", 200, "text/plain; charset=utf-8", "num_symbols: 0\n"),
        ("/debug/pprof/heap", 404, "text/plain; charset=utf-8", "Unknown profile\n"),
        ("/mine", 200, "text/plain; charset=utf-8", "yes"),
        ("/flagz", 200, "text/plain; charset=utf-8", "\nkube-scheduler flagz\nWarning: "),
        ("/statusz", 200, "text/plain; charset=utf-8", "\nkube-scheduler statusz\nWarning: "),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "# HELP "),
    ] {
        let got = get(None, format!("{base}{path}")).await;
        assert_eq!((got.0, got.1.as_str()), (code, kind), "{path}");
        assert!(got.2.starts_with(start), "{path}: {}", got.2);
    }
    let moved = ask(None, format!("{base}/debug/pprof")).await;
    let to = moved.headers().get("location").and_then(|v| v.to_str().ok());
    assert_eq!((moved.status().as_u16(), to), (302, Some("/debug/pprof/")));
    assert!(get(None, format!("{base}/version")).await.2.contains(r#""gitVersion":"v1.35.4""#));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profilers_find_nothing_where_they_are_not_wanted() {
    for (flag, code) in [("--profiling=true", 200), ("--profiling=false", 404)] {
        let flags = FlagSet::of("kube-controller-manager", &[flag]).expect("flags");
        let running = start(|address| Server::plain("test", address).flags(&flags));
        assert_eq!(get(None, format!("http://{}/debug/pprof/", running.address)).await.0, code, "{flag}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secure_port_knows_its_clients() {
    let serving = crate::cert::self_signed("localhost", &["127.0.0.1".parse().expect("ip")], &[]).expect("pair");
    let (ca, admin) = client_pair("system:masters");
    let (_, stranger) = client_pair("system:masters");
    let key = crate::cert::ReloadingKey::from_pem(&serving).expect("key");
    let x509: Arc<dyn Authenticator> = Arc::new(X509::new(ca.as_bytes()).expect("x509"));
    let authenticator =
        Arc::new(crate::authn::OrAnonymous { chain: GroupAdder(Union::new(vec![x509])), paths: Vec::new() });
    let authorizer = Arc::new(authz::Union::new(vec![
        Arc::new(PrivilegedGroups(vec!["system:masters".into()])) as Arc<dyn Authorizer>,
        Arc::new(PathAllowList::new(&["/healthz".into()])),
    ]));
    let tls = Tls::new(Arc::new(key));
    let running = start(|address| {
        Server::secure("test", address, tls).access(authenticator, authorizer).health(&Health::with_ping()).metrics()
    });
    let base = format!("https://localhost:{}", running.address.port());
    let roots = crate::cert::Authorities::from_pem(serving.certificate.as_bytes()).expect("roots");
    let config = |pair: Option<&crate::cert::PemPair>| {
        let pair = pair.map(|pair| Arc::new(crate::cert::ReloadingKey::from_pem(pair).expect("a key")));
        crate::cert::client_tls(crate::cert::Trust::Authorities(roots.clone()), pair).expect("config")
    };
    let anonymous = get(Some(config(None)), format!("{base}/metrics")).await;
    assert_eq!((anonymous.0, anonymous.1.as_str()), (403, "application/json"));
    assert!(
        anonymous.2.contains(r#"forbidden: User \"system:anonymous\" cannot get path \"/metrics\""#),
        "{}",
        anonymous.2
    );
    assert_eq!(get(Some(config(None)), format!("{base}/healthz")).await.0, 200);
    assert_eq!(get(Some(config(Some(&admin))), format!("{base}/metrics")).await.0, 200);
    let foreign = get(Some(config(Some(&stranger))), format!("{base}/healthz")).await;
    assert_eq!(foreign.0, 401, "{}", foreign.2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secure_ports_speak_http2_unless_told_not_to() {
    for (flag, version) in [
        ("--disable-http2-serving=false", hyper::Version::HTTP_2),
        ("--disable-http2-serving", hyper::Version::HTTP_11),
    ] {
        let flags = FlagSet::of("kube-scheduler", &[flag, "--permit-port-sharing"]).expect("flags");
        let options = SecureOptions { cert_dir: String::new(), ..SecureOptions::from_flags(&flags).expect("options") };
        let tls = options.tls(&[], &[]).expect("a pair");
        let server =
            |address| Server::secure("test", address, tls.clone()).listening(&options).health(&Health::with_ping());
        let running = start(server);
        let other = server(running.address).start(&running.tasks, &running.shutdown);
        assert_eq!(other.expect("both listen"), running.address);
        let config = crate::cert::client_tls(crate::cert::Trust::Anybody, None).expect("config");
        let response = ask(Some(config), format!("https://localhost:{}/healthz", running.address.port())).await;
        assert_eq!((response.status().as_u16(), response.version()), (200, version), "{flag}");
        drop(response);
        running.stop().await;
    }
}

#[test]
fn everybody_is_somebody_only_when_asked() {
    let _: Arc<dyn Authenticator> = Arc::new(Anonymous);
    assert!(DelegatedOptions::default().anonymous);
}

/// A new CA and a client certificate of it with an organisation.
fn client_pair(organization: &str) -> (String, crate::cert::PemPair) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    let ca_key = KeyPair::generate().expect("key");
    let ca_certificate = ca.self_signed(&ca_key).expect("ca");
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name.push(DnType::CommonName, "admin");
    leaf.distinguished_name.push(DnType::OrganizationName, organization);
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("key");
    let certificate = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).expect("signs");
    (ca_certificate.pem(), crate::cert::PemPair { certificate: certificate.pem(), key: key.serialize_pem() })
}
