//! A real etcd and an apiserver in this process, on free ports of the loopback, with certificates of their own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;
use shared::flags::FlagSet;
use shared::run::Shutdown;

type Https = hyper_rustls::HttpsConnector<HttpConnector>;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

/// `None`, with the reason printed, on machines without etcd.
pub fn etcd_is_missing() -> bool {
    let missing = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err();
    if missing {
        eprintln!("skipped: etcd is not installed");
    }
    missing
}

struct Pki {
    ca: String,
    server: (String, String),
    admin: (String, String),
}

fn pki(dir: &Path) -> Pki {
    let ca_key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let ca = params.self_signed(&ca_key).expect("ca");
    let issuer = Issuer::new(params, ca_key);
    let leaf = |common: &str, group: Option<&str>| {
        let key = KeyPair::generate().expect("key");
        let mut p = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        p.distinguished_name.push(DnType::CommonName, common);
        if let Some(g) = group {
            p.distinguished_name.push(DnType::OrganizationName, g);
        }
        p.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        (p.signed_by(&key, &issuer).expect("signed").pem(), key.serialize_pem())
    };
    let pki = Pki { ca: ca.pem(), server: leaf("kube-apiserver", None), admin: leaf("admin", Some("system:masters")) };
    for (name, text) in [("ca.crt", &pki.ca), ("server.crt", &pki.server.0), ("server.key", &pki.server.1), ("sa.key", &pki.server.1)] {
        std::fs::write(dir.join(name), text).expect("pki file");
    }
    pki
}

/// See the module. Everything ends with it.
pub struct Cluster {
    dir: PathBuf,
    etcd: Option<Child>,
    etcd_port: u16,
    peer_port: u16,
    port: u16,
    server: Option<(Shutdown, JoinHandle<anyhow::Result<()>>)>,
    client: HttpClient<Https, Full<Bytes>>,
}

/// An answer.
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub bytes: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }
}

impl Cluster {
    /// Starts both.
    pub async fn start() -> Self {
        // Another test of this process may have done it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = std::env::temp_dir().join(format!("apiserver-test-{}-{}", std::process::id(), free_port()));
        std::fs::create_dir_all(&dir).expect("temporary folder");
        let pki = pki(&dir);
        let roots = shared::cert::root_store(pki.ca.as_bytes()).expect("roots");
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                shared::cert::certificates(pki.admin.0.as_bytes()).expect("certificate"),
                shared::cert::private_key(pki.admin.1.as_bytes()).expect("key"),
            )
            .expect("client tls");
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().enable_http2().build();
        let client = HttpClient::builder(TokioExecutor::new()).build(https);
        let mut cluster =
            Self { dir, etcd: None, etcd_port: free_port(), peer_port: free_port(), port: free_port(), server: None, client };
        cluster.start_etcd();
        cluster.start_server().await;
        cluster
    }

    pub fn start_etcd(&mut self) {
        let (c, p) = (format!("http://127.0.0.1:{}", self.etcd_port), format!("http://127.0.0.1:{}", self.peer_port));
        let child = Command::new("etcd")
            .args(["--listen-client-urls", &c, "--advertise-client-urls", &c, "--listen-peer-urls", &p])
            .args(["--initial-advertise-peer-urls", &p, "--initial-cluster", &format!("default={p}")])
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        self.etcd = Some(child);
    }

    pub fn kill_etcd(&mut self) {
        if let Some(mut child) = self.etcd.take() {
            child.kill().and_then(|()| child.wait()).expect("etcd ends");
        }
    }

    pub async fn start_server(&mut self) {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let args = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--shutdown-delay-duration=0s".to_owned(),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            "--service-account-issuer=https://test".to_owned(),
            format!("--service-account-key-file={}", file("sa.key")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let flags = FlagSet::of("kube-apiserver", &args).unwrap_or_else(|_| panic!("flags"));
        let shutdown = Shutdown::new();
        let seen = shutdown.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(apiserver::run(flags, seen))
        });
        self.server = Some((shutdown, thread));
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            match self.try_send(Method::GET, "/readyz", "", None).await {
                Some(a) if a.code == 200 => return,
                _ if Instant::now() > give_up => panic!("the server did not become ready"),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub fn stop_server(&mut self) {
        if let Some((shutdown, thread)) = self.server.take() {
            shutdown.trigger();
            thread.join().expect("no panic").expect("a clean end");
        }
    }

    fn request(&self, method: Method, path: &str, content_type: &str, body: Option<Bytes>) -> Request<Full<Bytes>> {
        let mut b = Request::builder().method(method).uri(format!("https://127.0.0.1:{}{path}", self.port)).header("User-Agent", "test/1");
        if !content_type.is_empty() {
            let name = if body.is_some() { "Content-Type" } else { "Accept" };
            b = b.header(name, content_type);
        }
        b.body(Full::new(body.unwrap_or_default())).expect("request")
    }

    async fn try_send(&self, method: Method, path: &str, content_type: &str, body: Option<Bytes>) -> Option<Answer> {
        let response = self.client.request(self.request(method, path, content_type, body)).await.ok()?;
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer { code, headers, bytes })
    }

    /// Any request; `content_type` is `Accept` where there is no body.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: Option<Bytes>) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).expect("method");
        self.try_send(method, path, content_type, body).await.expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", None).await
    }

    pub async fn post(&self, path: &str, object: Value) -> Answer {
        self.send("POST", path, "application/json", Some(Bytes::from(object.to_string()))).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send("PUT", path, "application/json", Some(Bytes::from(object.to_string()))).await
    }

    pub async fn patch(&self, path: &str, kind: &str, patch: Value) -> Answer {
        self.send("PATCH", path, &format!("application/{kind}"), Some(Bytes::from(patch.to_string()))).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "", None).await
    }

    /// Frames of a watch, until `enough` or its end.
    pub async fn watch(&self, path: &str, enough: usize) -> Vec<Value> {
        let response = self.client.request(self.request(Method::GET, path, "", None)).await.expect("a watch");
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        let (mut text, mut frames) = (Vec::new(), Vec::new());
        while frames.len() < enough {
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(data) = frame.data_ref() {
                text.extend_from_slice(data);
            }
            while let Some(end) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                frames.push(serde_json::from_slice(&line).expect("a frame"));
            }
        }
        frames
    }

    /// A key as etcd holds it.
    pub async fn stored(&self, key: &str) -> Option<(Vec<u8>, i64)> {
        let client = self.etcd_client().await;
        let found = client.kv_client().get(key, None).await.expect("etcd answers");
        found.kvs().first().map(|kv| (kv.value().to_vec(), kv.lease()))
    }

    pub async fn etcd_client(&self) -> Arc<etcd_client::Client> {
        Arc::new(etcd_client::Client::connect([format!("127.0.0.1:{}", self.etcd_port)], None).await.expect("etcd"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((shutdown, thread)) = self.server.take() {
            shutdown.trigger();
            // A failure was reported by the test itself.
            let _ = thread.join();
        }
        if let Some(mut child) = self.etcd.take() {
            // Gone already is as good.
            let _ = child.kill().and_then(|()| child.wait());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
