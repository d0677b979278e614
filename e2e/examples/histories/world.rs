//! An etcd and several servers as processes, which can be killed and started again.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::pki::{Identity, Pki};
use testkit::server;

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
        let (port, peer) = self.etcd_ports;
        let mut command = server::etcd(&self.dir, port, peer);
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
        let mut command = Command::new(&self.binary);
        command.args(server::flags(&self.dir, self.etcd_ports.0, self.ports[n]));
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
