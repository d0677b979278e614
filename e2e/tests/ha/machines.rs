//! Three machines, each a network namespace with an etcd member and an API server that asks all members, and a network
//! between them and the clients that can be cut anywhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::dice::Dice;
use testkit::network::Space;
use testkit::pki::{Identity, MACHINES, Pki};
use testkit::process::Process;
use testkit::server;

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const SERVER_PORT: u16 = 6443;
/// Time in which all API servers are ready once everything runs.
const READY: Duration = Duration::from_secs(120);

/// Fault of one machine, or of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillMember,
    KillServer,
    FreezeMember,
    FreezeServer,
    /// The member and the others do not hear each other; API servers and clients hear all.
    CutMember,
    /// The member does not hear the others, who hear it.
    DeafMember,
    /// Nobody hears the machine, which hears nobody.
    Isolate,
    /// No member hears another.
    Split,
}

const FAULTS: [Fault; 8] = [
    Fault::KillMember,
    Fault::KillServer,
    Fault::FreezeMember,
    Fault::FreezeServer,
    Fault::CutMember,
    Fault::DeafMember,
    Fault::Isolate,
    Fault::Split,
];

impl Fault {
    /// The next fault, and the machine that it is of.
    pub fn roll(dice: &mut Dice) -> (Self, usize) {
        let mut below = |sides: usize| usize::try_from(dice.roll(sides as u64)).unwrap_or_default();
        (FAULTS[below(FAULTS.len())], below(MACHINES.len()))
    }

    /// Rules of the machine's firewall that cut it off, as chain and match.
    fn rules(self) -> &'static [&'static str] {
        match self {
            Self::CutMember | Self::Split => {
                &["INPUT -i eth0 -p tcp --dport 2380", "OUTPUT -o eth0 -p tcp --dport 2380"]
            }
            Self::DeafMember => &["INPUT -i eth0 -p tcp --dport 2380", "INPUT -i eth0 -p tcp --sport 2380"],
            Self::Isolate => &["INPUT -i eth0", "OUTPUT -o eth0"],
            _ => &[],
        }
    }
}

struct Machine {
    space: Space,
    etcd: Option<Process>,
    server: Option<Process>,
    /// Processes started so far, by which logs are told apart.
    started: usize,
}

/// See the module. Everything ends with it.
pub struct Machines {
    folder: PathBuf,
    /// `kube-apiserver`.
    binary: PathBuf,
    machines: Vec<Machine>,
    pub pki: Pki,
    _switch: Space,
}

impl Machines {
    /// Starts all of them; clients in the namespace that comes with them reach them.
    pub fn start(binary: PathBuf) -> Result<(Self, Space), nix::Error> {
        let folder = std::env::temp_dir().join(format!("ironclad-histories-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (switch, clients) = (Space::new()?, Space::new()?);
        switch.command("ip", &["link", "add", "lan", "type", "bridge"]);
        switch.command("ip", &["link", "set", "lan", "up"]);
        let plug = |space: &Space, port: &str, address: &str| {
            switch.connect(port, space, "eth0");
            switch.command("ip", &["link", "set", port, "master", "lan"]);
            space.address("eth0", &format!("{address}/24"));
        };
        plug(&clients, "clients", "192.0.2.100");
        let mut machines = Vec::new();
        for (at, address) in MACHINES.iter().enumerate() {
            let space = Space::new()?;
            plug(&space, &format!("machine{at}"), address);
            machines.push(Machine { space, etcd: None, server: None, started: 0 });
        }
        let mut all = Self { pki: Pki::new(&folder), folder, binary, machines, _switch: switch };
        (0..MACHINES.len()).for_each(|at| all.start_etcd(at));
        (0..MACHINES.len()).for_each(|at| all.start_server(at));
        Ok((all, clients))
    }

    pub fn client(&self, at: usize) -> Client {
        Client::at(&format!("{}:{SERVER_PORT}", MACHINES[at]), &self.pki, Identity::Admin)
    }

    fn spawn(&mut self, at: usize, name: &str, mut command: Command) -> Process {
        let machine = &mut self.machines[at];
        machine.started += 1;
        let log = self.folder.join(format!("{name}-{at}.{}.log", machine.started));
        machine.space.run(move || Process::start(&mut command, &log)).expect("it starts")
    }

    fn start_etcd(&mut self, at: usize) {
        let url = |address: &str, port: u16| format!("http://{address}:{port}");
        let members = MACHINES.iter().enumerate().map(|(at, address)| format!("m{at}={}", url(address, PEER_PORT)));
        let (client, peer) = (url(MACHINES[at], CLIENT_PORT), url(MACHINES[at], PEER_PORT));
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{at}"), "--initial-cluster", &members.collect::<Vec<_>>().join(",")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .arg("--data-dir")
            .arg(self.folder.join(format!("etcd-{at}")));
        self.machines[at].etcd = Some(self.spawn(at, "etcd", command));
    }

    fn start_server(&mut self, at: usize) {
        // Each asks the member beside it first.
        let members = (0..MACHINES.len()).map(|step| MACHINES[(at + step) % MACHINES.len()]);
        let members: Vec<String> = members.map(|address| format!("http://{address}:{CLIENT_PORT}")).collect();
        let own = [
            format!("--etcd-servers={}", members.join(",")),
            format!("--bind-address={}", MACHINES[at]),
            format!("--advertise-address={}", MACHINES[at]),
        ];
        let name = |flag: &str| flag.split_once('=').map_or(flag.to_owned(), |(name, _)| name.to_owned());
        let mut flags = server::flags(&self.folder, CLIENT_PORT, SERVER_PORT);
        flags.retain(|flag| own.iter().all(|own| name(own) != name(flag)));
        let mut command = Command::new(&self.binary);
        command.args(flags).args(own);
        self.machines[at].server = Some(self.spawn(at, "server", command));
    }

    /// Lets a fault begin.
    pub fn begin(&mut self, fault: Fault, at: usize) {
        let machine = &mut self.machines[at];
        match fault {
            Fault::KillMember => drop(machine.etcd.take()),
            Fault::KillServer => drop(machine.server.take()),
            Fault::FreezeMember => signal(machine.etcd.as_ref(), "STOP"),
            Fault::FreezeServer => signal(machine.server.as_ref(), "STOP"),
            Fault::CutMember | Fault::DeafMember | Fault::Isolate => machine.cut(fault.rules()),
            Fault::Split => self.machines.iter().for_each(|machine| machine.cut(fault.rules())),
        }
    }

    /// Lets it end.
    pub fn end(&mut self, fault: Fault, at: usize) {
        match fault {
            Fault::KillMember => self.start_etcd(at),
            Fault::KillServer => self.start_server(at),
            Fault::FreezeMember => signal(self.machines[at].etcd.as_ref(), "CONT"),
            Fault::FreezeServer => signal(self.machines[at].server.as_ref(), "CONT"),
            Fault::CutMember | Fault::DeafMember | Fault::Isolate | Fault::Split => {
                self.machines.iter().for_each(Machine::heal);
            }
        }
    }

    /// Waits until all servers are ready.
    pub async fn ready(&self) {
        let give_up = Instant::now() + READY;
        for at in 0..MACHINES.len() {
            let client = self.client(at);
            let asked = async || tokio::time::timeout(Duration::from_secs(2), client.try_get("/readyz")).await;
            while !matches!(asked().await, Ok(Ok(answer)) if answer.code == 200) {
                assert!(Instant::now() < give_up, "server {at} is not ready; see {}", self.folder.display());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Removes logs and data; without it they stay for whoever looks into a failure.
    pub fn remove(self) {
        let folder = self.folder.clone();
        drop(self);
        fs::remove_dir_all(folder).expect("the folder goes");
    }
}

impl Machine {
    fn cut(&self, rules: &[&str]) {
        for rule in rules {
            let words: Vec<&str> = rule.split(' ').collect();
            self.space.command("iptables", &[&["-w", "-A"], words.as_slice(), &["-j", "DROP"]].concat());
        }
    }

    fn heal(&self) {
        self.space.command("iptables", &["-w", "-F"]);
    }
}

impl Drop for Machine {
    /// Processes end before the namespace that they are in.
    fn drop(&mut self) {
        drop((self.server.take(), self.etcd.take()));
    }
}

fn signal(process: Option<&Process>, name: &str) {
    process.expect("it runs").signal(name).expect("it has not ended by itself");
}
