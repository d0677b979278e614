//! An etcd and a server as processes of their own, with what can be said about them from outside.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::http2::Client;
use crate::pki::{Identity, Pki};
use crate::process::Process;
use crate::server;

/// See the module. Everything ends with it.
pub struct World {
    dir: PathBuf,
    etcd: Process,
    server: Process,
    etcd_port: u16,
    port: u16,
    pki: Arc<Pki>,
    /// Milliseconds from its start until the server was ready, and of its CPU until then.
    pub start: (f64, f64),
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Folder of files that need not outlive the machine.
const MEMORY: &str = "/dev/shm";

fn start_etcd(dir: &Path, port: u16, peer: u16) -> anyhow::Result<Process> {
    let mut command = server::etcd(dir, port, peer);
    command.args(["--quota-backend-bytes", "8589934592"]);
    if dir.starts_with(MEMORY) {
        command.arg("--unsafe-no-fsync");
    }
    Process::start(&mut command, &dir.join("etcd.log")).context("etcd does not start")
}

/// Waits until an etcd has a leader: its start is no part of the server's.
async fn answers(port: u16) -> anyhow::Result<()> {
    let asked = async {
        loop {
            let client = etcd_client::Client::connect([format!("127.0.0.1:{port}")], None).await;
            if let Ok(mut client) = client
                && client.get("ready", None).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(30), asked).await?)
}

impl World {
    /// Starts both and waits until the server is ready.
    pub async fn start(binary: &str) -> anyhow::Result<Self> {
        Self::start_with(binary, &[]).await
    }

    /// Starts the server as `start` does, with more flags.
    pub async fn start_with(binary: &str, flags: &[&str]) -> anyhow::Result<Self> {
        Self::launch(binary, |_, _| Ok(flags.iter().map(|flag| (*flag).to_owned()).collect())).await
    }

    /// With what it takes to pass requests on to other servers.
    pub async fn start_behind_a_proxy(binary: &str) -> anyhow::Result<Self> {
        let flags = |dir: &Path, pki: &Pki| {
            let (certificate, key) = pki.pair(&Identity::Alice).context("alice has a certificate")?;
            fs::write(dir.join("proxy.crt"), certificate)?;
            fs::write(dir.join("proxy.key"), key)?;
            let file = |name: &str| dir.join(name).display().to_string();
            Ok(vec![
                format!("--proxy-client-cert-file={}", file("proxy.crt")),
                format!("--proxy-client-key-file={}", file("proxy.key")),
                format!("--requestheader-client-ca-file={}", file("ca.crt")),
                "--requestheader-allowed-names=alice".to_owned(),
                "--requestheader-username-headers=X-Remote-User".to_owned(),
                "--requestheader-group-headers=X-Remote-Group".to_owned(),
            ])
        };
        Self::launch(binary, flags).await
    }

    async fn launch(
        binary: &str,
        more: impl FnOnce(&Path, &Pki) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Self> {
        let base = match std::env::var_os("DATA") {
            Some(disk) => disk.into(),
            None if Path::new(MEMORY).is_dir() => MEMORY.into(),
            None => std::env::temp_dir(),
        };
        let dir = base.join(format!("apiserver-bench-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let (pki, port, etcd_port) = (Arc::new(Pki::new(&dir)), free_port()?, free_port()?);
        let etcd = start_etcd(&dir, etcd_port, free_port()?)?;
        answers(etcd_port).await.context("etcd does not answer")?;
        let mut command = Command::new(binary);
        command.args(server::flags(&dir, etcd_port, port)).args(more(&dir, &pki)?);
        let began = Instant::now();
        let server = Process::start(&mut command, &dir.join("server.log")).context("the server does not start")?;
        let mut world = Self { dir, etcd, server, etcd_port, port, pki, start: (0.0, 0.0) };
        world.ready().await?;
        world.start = (began.elapsed().as_secs_f64() * 1e3, world.cpu().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(world)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(mut client) = self.client().await
                && client.get("/readyz", "*/*").await.is_ok()
            {
                return Ok(());
            }
            if Instant::now() > give_up {
                bail!("the server is not ready; see {}", self.dir.join("server.log").display());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The certificates.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// A connection of its own, as the administrator.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(self.port, &self.pki, &Identity::Admin).await
    }

    /// Requests a path of another program on this machine as the administrator, and returns the body.
    pub async fn text_of(&self, port: u16, path: &str) -> anyhow::Result<String> {
        crate::http2::text_of(port, &self.pki, path).await
    }

    /// The administrator's kubeconfig, as a file.
    pub fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        self.kubeconfig_of("admin", &Identity::Admin)
    }

    /// The kubeconfig of somebody with a certificate, as a file under a name.
    pub fn kubeconfig_of(&self, name: &str, identity: &Identity) -> anyhow::Result<PathBuf> {
        let (certificate, key) = self.pki.pair(identity).context("an identity with a certificate")?;
        let path = |end: &str| self.dir.join(format!("{name}.{end}"));
        fs::write(path("crt"), certificate)?;
        fs::write(path("key"), key)?;
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port), "certificate-authority": self.dir.join("ca.crt")}}],
            "users": [{"name": name, "user": {"client-certificate": path("crt"), "client-key": path("key")}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": name}}]});
        fs::write(path("conf"), config.to_string())?;
        Ok(path("conf"))
    }

    /// The server as a process.
    pub fn server(&self) -> &Process {
        &self.server
    }

    /// A connection of its own, as nobody.
    pub async fn anonymous(&self) -> anyhow::Result<Client> {
        self.door()().await
    }

    /// Returns a function that connects without credentials, from any task.
    pub fn door(&self) -> impl AsyncFn() -> anyhow::Result<Client> + Send + use<> {
        let (port, pki) = (self.port, self.pki.clone());
        async move || Client::connect(port, &pki, &Identity::Anonymous).await
    }

    /// A client of the etcd below.
    pub async fn etcd(&self) -> anyhow::Result<etcd_client::Client> {
        Ok(etcd_client::Client::connect([format!("127.0.0.1:{}", self.etcd_port)], None).await?)
    }

    /// CPU time that the server has used.
    pub fn cpu(&self) -> Duration {
        self.server.cpu()
    }

    /// CPU time that etcd has used.
    pub fn etcd_cpu(&self) -> Duration {
        self.etcd.cpu()
    }

    /// Memory of the server that is resident now.
    pub fn rss_mb(&self) -> f64 {
        self.server.rss_mb()
    }

    /// Folder for files of other programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Milliseconds of the server's CPU that `work` takes.
    pub async fn cpu_of<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, f64)> {
        let before = self.cpu();
        let outcome = work.await?;
        // What the server does after the last byte is its cost as well.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok((outcome, (self.cpu() - before).as_secs_f64() * 1e3))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.stop();
        self.etcd.stop();
        fs::remove_dir_all(&self.dir).ok();
    }
}
