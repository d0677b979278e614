//! An etcd and several servers as processes, which can be killed and started again.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::pki::{Identity, Pki};

/// See the module. Everything ends with it.
pub struct World {
    dir: PathBuf,
    binary: String,
    etcd: Option<Child>,
    servers: Vec<Option<Child>>,
    etcd_ports: (u16, u16),
    pub ports: Vec<u16>,
    pub pki: Pki,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }
}

impl World {
    /// Starts all of them and waits until they are ready.
    pub async fn start(binary: &str, servers: usize) -> Self {
        let dir = std::env::temp_dir().join(format!("histories-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let pki = Pki::new(&dir);
        let ports = (0..servers).map(|_| free_port()).collect();
        let none = (0..servers).map(|_| None).collect();
        let etcd_ports = (free_port(), free_port());
        let mut world = Self { dir, binary: binary.to_owned(), etcd: None, servers: none, etcd_ports, ports, pki };
        world.start_etcd();
        (0..servers).for_each(|n| world.start_server(n));
        world.ready().await;
        world
    }

    fn run(&self, command: &mut Command, log: &str) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.dir.join(log)).expect("a log");
        let also = log.try_clone().expect("a log");
        command.stdin(Stdio::null()).stdout(also).stderr(log).spawn().expect("it starts")
    }

    pub fn start_etcd(&mut self) {
        let at = |port: u16| format!("http://127.0.0.1:{port}");
        let (c, p) = (at(self.etcd_ports.0), at(self.etcd_ports.1));
        let mut command = Command::new("etcd");
        command
            .args(["--listen-client-urls", &c, "--advertise-client-urls", &c, "--listen-peer-urls", &p])
            .args(["--initial-advertise-peer-urls", &p, "--initial-cluster", &format!("default={p}")])
            .arg("--data-dir")
            .arg(self.dir.join("etcd"));
        self.etcd = Some(self.run(&mut command, "etcd.log"));
    }

    pub fn kill_etcd(&mut self) {
        end(self.etcd.take());
    }

    /// `STOP` or `CONT`.
    pub fn signal_etcd(&self, signal: &str) {
        let id = self.etcd.as_ref().expect("etcd runs").id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().expect("a signal").success());
    }

    pub fn start_server(&mut self, n: usize) {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut command = Command::new(&self.binary);
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_ports.0),
            format!("--secure-port={}", self.ports[n]),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=192.0.2.10".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            "--service-account-issuer=https://test".to_owned(),
            format!("--service-account-key-file={}", file("sa.key")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
        ]);
        self.servers[n] = Some(self.run(&mut command, &format!("server-{n}.log")));
    }

    pub fn kill_server(&mut self, n: usize) {
        end(self.servers[n].take());
    }

    /// Waits until all servers are ready.
    pub async fn ready(&self) {
        let give_up = Instant::now() + Duration::from_secs(90);
        for port in &self.ports {
            let client = Client::new(*port, &self.pki, Identity::Admin);
            while !client.try_get("/readyz").await.is_ok_and(|a| a.code == 200) {
                assert!(Instant::now() < give_up, "not ready; see {}", self.dir.display());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(|server| end(server.take()));
        end(self.etcd.take());
        // Left-overs in a temporary folder.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
