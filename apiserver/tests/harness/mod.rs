//! A real etcd and an apiserver in this process, on free ports of the loopback, with certificates of their own.
#![allow(dead_code, reason = "each test binary uses its part of it")]

mod egress;
mod extension;
mod extension_schemas;
mod kms;
mod kubelet;

use std::net::TcpListener;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shared::flags::FlagSet;
use shared::run::Shutdown;
use testkit::server;
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub use testkit::{
    client::{Answer, Client},
    collector::Collector,
    pki::{Identity, Pki},
    remote::Remote,
    webhook::Webhook,
};

#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub use egress::{CLOSED, Proxy, Speaks};
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub use extension::{Extension, GROUP as EXTENSION};
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub use kms::Kms;
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub use kubelet::{Kubelet, head};

/// A port that nobody has, and that no connection is given as its own: whoever asks for a server that does not listen
/// yet would else be connected to himself now and then, and hold its port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 17_000;
    let own = u16::try_from(std::process::id() % u32::from(COUNT)).expect("less than that");
    let ports = std::iter::repeat_with(|| FIRST + (own + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.take(usize::from(COUNT)).find(free).expect("a free port")
}

/// Reports whether etcd is missing, and prints so; in CI that is a failure.
pub fn etcd_is_missing() -> bool {
    let missing = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err();
    if missing {
        eprintln!("skipped: etcd is not installed (Debian: apt-get install etcd-server)");
        assert!(std::env::var_os("CI").is_none(), "etcd is not installed, and tests may not be skipped here");
    }
    missing
}

/// A file in a folder; its path, as flags name it.
pub fn file(dir: &std::path::Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// Flags for an audit log by a policy, which is `audit.log` in the folder.
pub fn audited(dir: &std::path::Path, policy: &str) -> Vec<String> {
    let log = dir.join("audit.log");
    vec![
        format!("--audit-policy-file={}", file(dir, "audit.yaml", policy)),
        format!("--audit-log-path={}", log.display()),
    ]
}

type Running = (Shutdown, JoinHandle<anyhow::Result<()>>);

fn run(flags: FlagSet) -> Running {
    let shutdown = Shutdown::new();
    let seen = shutdown.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(apiserver::run(flags, seen))
    });
    (shutdown, thread)
}

/// A server of a cluster. It ends in good order when this is dropped.
pub struct Member(Option<Running>);

impl Drop for Member {
    fn drop(&mut self) {
        if let Some((shutdown, thread)) = self.0.take() {
            shutdown.trigger();
            let ended = thread.join().expect("no panic");
            // A test that has failed says more.
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

/// Longest wait for an expected state.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer. For what no watch tells of, as a file that the server looks at by time.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < give_up, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ends a child and removes a folder with this process, however that ends.
pub fn guard(child: &Child, dir: &std::path::Path) -> Child {
    // Its input ends with this process.
    Command::new("sh")
        .args([
            "-c",
            r#"cat >/dev/null; kill -9 "$1"; while kill -0 "$1" 2>/dev/null; do sleep 0.1; done; rm -rf "$2""#,
            "sh",
            &child.id().to_string(),
        ])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

/// Sends a child a signal by its name, such as `STOP`.
pub fn send_signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &id]).status().expect("a signal");
    assert!(sent.success(), "{signal}");
}

/// See the module. Everything ends with it. Requests sent through it are the administrator's.
pub struct Cluster {
    dir: PathBuf,
    etcd: Option<Child>,
    guard: Option<Child>,
    etcd_port: u16,
    peer_port: u16,
    port: u16,
    server: Option<Running>,
    pki: Pki,
    admin: Client,
    /// Flags of this server; they take the place of those every server has.
    flags: Vec<String>,
    /// More flags of etcd.
    etcd_flags: Vec<String>,
}

impl Deref for Cluster {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.admin
    }
}

impl Cluster {
    /// Starts both.
    pub async fn start() -> Self {
        Self::start_with(|_, _| Vec::new()).await
    }

    /// Starts both with flags of one's own, which may name files in the folder given.
    pub async fn start_with(flags: impl FnOnce(&std::path::Path, &Pki) -> Vec<String>) -> Self {
        Self::start_on(Vec::new(), flags).await
    }

    /// Starts a cluster on an etcd with flags of its own.
    pub async fn start_on(etcd_flags: Vec<String>, flags: impl FnOnce(&std::path::Path, &Pki) -> Vec<String>) -> Self {
        // Another test of this process may have done it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Memory, where there is some for files: etcd waits for the disk on every write.
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = base.join(format!("apiserver-test-{}-{}", std::process::id(), free_port()));
        std::fs::create_dir_all(&dir).expect("temporary folder");
        let (pki, port) = (Pki::new(&dir), free_port());
        let admin = Client::new(port, &pki, Identity::Admin);
        let (etcd_port, peer_port) = (free_port(), free_port());
        let flags = flags(&dir, &pki);
        let mut cluster = Self {
            flags,
            etcd_flags,
            dir,
            etcd: None,
            guard: None,
            etcd_port,
            peer_port,
            port,
            server: None,
            pki,
            admin,
        };
        cluster.start_etcd();
        cluster.start_server().await;
        cluster
    }

    /// A client with connections of its own.
    pub fn client(&self, identity: Identity) -> Client {
        Client::new(self.port, &self.pki, identity)
    }

    /// Folder of this cluster's files.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Port of this cluster's etcd.
    pub fn etcd_port(&self) -> u16 {
        self.etcd_port
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// A connection to the server, as the administrator, for what is not plain HTTP.
    pub async fn connection(&self) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        self.connection_of(Identity::Admin).await
    }

    /// Connects with a client certificate.
    pub async fn connection_of(&self, whose: Identity) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
        let roots = shared::cert::root_store(self.pki.ca.as_bytes()).expect("roots");
        let (certificate, key) = self.pki.pair(&whose).expect("a pair");
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(
            shared::cert::certificates(certificate.as_bytes()).expect("certificate"),
            shared::cert::private_key(key.as_bytes()).expect("key"),
        );
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.expect("a connection");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls.expect("client tls")));
        connector.connect(name, tcp).await.expect("TLS")
    }

    pub fn start_etcd(&mut self) {
        let child = server::etcd(&self.dir, self.etcd_port, self.peer_port)
            .args(&self.etcd_flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        let guard = guard(&child, &self.dir);
        (self.etcd, self.guard) = (Some(child), Some(guard));
    }

    pub fn kill_etcd(&mut self) {
        for child in [self.guard.take(), self.etcd.take()].iter_mut().flatten() {
            child.kill().and_then(|()| child.wait()).expect("it ends");
        }
    }

    /// Stops etcd's process in its tracks (`STOP`), or lets it go on (`CONT`).
    pub fn signal_etcd(&self, signal: &str) {
        send_signal(self.etcd.as_ref().expect("etcd runs"), signal);
    }

    /// Tells the server to go down, as SIGTERM does, and does not wait.
    pub fn tell_to_stop(&self) {
        if let Some((shutdown, _)) = &self.server {
            shutdown.trigger();
        }
    }

    /// Another server on the same etcd, ready, with its port.
    pub async fn start_beside(&self) -> (u16, Member) {
        let port = free_port();
        let member = Member(Some(run(self.arguments(port, &self.flags))));
        let client = Client::new(port, &self.pki, Identity::Admin);
        let give_up = Instant::now() + Duration::from_secs(60);
        while !client.try_get("/readyz").await.is_ok_and(|a| a.code == 200) {
            assert!(Instant::now() < give_up, "the second server did not become ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (port, member)
    }

    /// The command line of a server on a port, with flags of its own.
    fn arguments(&self, port: u16, flags: &[String]) -> FlagSet {
        let more = ["--enable-admission-plugins=NodeRestriction", "--shutdown-delay-duration=0s"].map(str::to_owned);
        let args = [server::flags(&self.dir, self.etcd_port, port), more.into()].concat();
        let name = |arg: &String| arg.split('=').next().unwrap_or("").to_owned();
        let own: Vec<String> = flags.iter().map(name).collect();
        let args = args.iter().filter(|a| !own.contains(&name(a))).chain(flags);
        // `--name=` takes a flag away.
        let args: Vec<&str> = args.map(String::as_str).filter(|a| !a.ends_with('=')).collect();
        FlagSet::of("kube-apiserver", &args).unwrap_or_else(|_| panic!("flags"))
    }

    /// One more server of the same cluster, which ends with what is returned.
    pub fn join(&self, flags: &[String]) -> Member {
        Member(Some(run(self.arguments(free_port(), flags))))
    }

    /// Starts the server and does not wait for it.
    pub fn launch_server(&mut self) {
        self.server = Some(run(self.arguments(self.port, &self.flags)));
    }

    pub async fn start_server(&mut self) {
        self.start_server_until("/readyz").await;
    }

    /// Starts the server and waits until a path answers 200.
    pub async fn start_server_until(&mut self, path: &str) {
        self.launch_server();
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = match self.admin.try_get(path).await {
                Ok(a) if a.code == 200 => return,
                Ok(a) => format!("{} {}", a.code, a.text()),
                Err(e) => e,
            };
            if Instant::now() > give_up || self.server.as_ref().is_some_and(|(_, thread)| thread.is_finished()) {
                let ended = self.server.take().filter(|(_, t)| t.is_finished()).map(|(_, t)| t.join());
                panic!("the server did not become ready: {seen} {ended:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts the server again with other flags of its own.
    pub async fn restart_with(&mut self, flags: Vec<String>) {
        self.stop_server();
        self.flags = flags;
        self.start_server().await;
    }

    pub fn stop_server(&mut self) {
        drop(Member(self.server.take()));
    }

    /// A key as etcd holds it, and its lease.
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
        for child in [self.guard.take(), self.etcd.take()].iter_mut().flatten() {
            // Gone already is as good.
            let _ = child.kill().and_then(|()| child.wait());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
