//! A node, its pods, another node and a client outside, each a network namespace of its own.
//!
//! ```text
//! outside 192.0.2.100 ─┐
//! remote  192.0.2.2 ───┤ lan ─── 192.0.2.1 node 10.244.0.1 ─┬─ a      10.244.0.2
//!   (c    10.244.1.2)  │                                    ├─ b      10.244.0.3
//!   (lb   203.0.113.99)┘                                    └─ client 10.244.0.9
//! ```
//!
//! IPv6 has the same last parts in 2001:db8:1::/64 (LAN), 2001:db8:244::/64 and 2001:db8:245::/64 (pods). A namespace is held by
//! a thread, and goes with it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};

use crate::connections::Via;

/// Port of all servers of the suite.
pub const PORT: u16 = 8080;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace.
pub struct Space {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    task: i32,
}

impl Space {
    /// Makes one.
    ///
    /// # Errors
    /// The process may not.
    pub fn new() -> Result<Self, nix::Error> {
        let (jobs, work) = channel::<Job>();
        let (started, outcome) = channel();
        let thread = std::thread::spawn(move || {
            let made = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid().as_raw());
            let is_made = made.is_ok();
            started.send(made).ok();
            if is_made {
                work.into_iter().for_each(|job| job());
            }
        });
        let task = outcome.recv().map_err(|_| nix::Error::EPERM)??;
        let space = Self { jobs: Some(jobs), thread: Some(thread), task };
        space.command("ip", &["link", "set", "lo", "up"]);
        Ok(space)
    }

    /// Does something in the namespace. Threads and processes that it starts are there, too.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = channel();
        let job: Job = Box::new(move || {
            done.send(work()).ok();
        });
        self.jobs.as_ref().expect("it runs").send(job).expect("it runs");
        outcome.recv().expect("no panic in the namespace")
    }

    /// Runs a tool that must succeed.
    pub fn command(&self, program: &str, arguments: &[&str]) {
        let program = program.to_owned();
        let owned: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let (text, output) = (owned.join(" "), self.run(move || Command::new(program).args(owned).output()));
        let output = output.expect("the tool is installed");
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Gives an address to a device.
    pub fn address(&self, device: &str, address: &str) {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        self.command("ip", &[&["address", "add", address, "dev", device], nodad].concat());
    }

    /// Sends what is for a network to a gateway.
    pub fn route(&self, network: &str, gateway: &str) {
        self.command("ip", &["route", "add", network, "via", gateway]);
    }

    /// Connects `device` to `peer` of another namespace; both are up.
    pub fn connect(&self, device: &str, other: &Self, peer: &str) {
        let task = other.task.to_string();
        self.command("ip", &["link", "add", device, "type", "veth", "peer", "name", peer, "netns", &task]);
        self.command("ip", &["link", "set", device, "up"]);
        other.command("ip", &["link", "set", peer, "up"]);
    }

    /// Serves an address by TCP and UDP: answers with its name and the address that asked.
    fn serve(&self, name: &'static str, address: IpAddr) {
        self.run(move || {
            let tcp = TcpListener::bind((address, PORT)).expect("a port");
            std::thread::spawn(move || {
                for stream in tcp.incoming() {
                    let Ok(mut stream) = stream else { continue };
                    let Ok(peer) = stream.peer_addr() else { continue };
                    stream.write_all(format!("{name} {}", peer.ip()).as_bytes()).ok();
                }
            });
            let udp = UdpSocket::bind((address, PORT)).expect("a port");
            std::thread::spawn(move || {
                let mut buffer = [0; 16];
                while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                    udp.send_to(format!("{name} {}", peer.ip()).as_bytes(), peer).ok();
                }
            });
            let at = SocketAddr::new(address, PORT);
            let Ok(sctp) = sctp(at) else { return };
            sctp.bind(&at.into()).and_then(|()| sctp.listen(64)).expect("a port");
            std::thread::spawn(move || {
                while let Ok((mut stream, peer)) = sctp.accept() {
                    let Some(peer) = peer.as_socket() else { continue };
                    stream.write_all(format!("{name} {}", peer.ip()).as_bytes()).ok();
                }
            });
        });
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Outcome of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Name of the server that answered, and the address that it saw.
    Answer(String, IpAddr),
    /// Refused at once.
    Refused,
    /// No answer in time, or no way there.
    Nothing,
}

/// Asks a server once and waits so long for its answer.
pub fn ask(target: SocketAddr, via: Via, patience: Duration) -> Outcome {
    let mut text = String::new();
    let asked = match via {
        Via::Tcp => ask_tcp(target, patience, &mut text),
        Via::Udp => ask_udp(target, patience, &mut text),
        Via::Sctp => ask_sctp(target, patience, &mut text),
    };
    match asked {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Outcome::Refused,
        Err(_) => Outcome::Nothing,
        Ok(()) => match text.split_once(' ') {
            Some((name, seen)) => Outcome::Answer(name.to_owned(), seen.parse().expect("an address")),
            None => Outcome::Nothing,
        },
    }
}

fn ask_tcp(target: SocketAddr, patience: Duration, text: &mut String) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.read_to_string(text).map(drop)
}

fn ask_udp(target: SocketAddr, patience: Duration, text: &mut String) -> std::io::Result<()> {
    let local: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(local)?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(patience))?;
    socket.send(b"who")?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer)?;
    text.push_str(&String::from_utf8_lossy(&buffer[..length]));
    Ok(())
}

fn sctp(address: SocketAddr) -> std::io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::from(libc::IPPROTO_SCTP)))
}

/// True where the kernel has SCTP.
pub fn has_sctp() -> bool {
    sctp(([0, 0, 0, 0], 0).into()).is_ok()
}

fn ask_sctp(target: SocketAddr, patience: Duration, text: &mut String) -> std::io::Result<()> {
    // All addresses of a client are told to its server, unless it is bound to one: the one that the route has.
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let route = UdpSocket::bind(any)?;
    route.connect(target)?;
    let mut socket = sctp(target)?;
    socket.bind(&SocketAddr::new(route.local_addr()?.ip(), 0).into())?;
    socket.connect_timeout(&target.into(), patience)?;
    socket.set_read_timeout(Some(patience))?;
    socket.read_to_string(text).map(drop)
}

/// The whole network.
pub struct Network {
    pub node: Space,
    pub client: Space,
    pub a: Space,
    b: Space,
    pub remote: Space,
    pub outside: Space,
    lan: Space,
}

/// Prefixes of one family: LAN, pods of the node, pods of the other node; and the lengths of networks and of addresses.
pub struct Prefixes {
    pub lan: &'static str,
    pub pods: &'static str,
    pub other_pods: &'static str,
    bits: u8,
}

/// Of IPv4 and of IPv6.
pub const FAMILIES: [Prefixes; 2] = [
    Prefixes { lan: "192.0.2.", pods: "10.244.0.", other_pods: "10.244.1.", bits: 24 },
    Prefixes { lan: "2001:db8:1::", pods: "2001:db8:244::", other_pods: "2001:db8:245::", bits: 64 },
];

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// The process may not.
    pub fn new() -> Result<Self, nix::Error> {
        let space = Space::new;
        let network = Self {
            node: space()?,
            client: space()?,
            a: space()?,
            b: space()?,
            remote: space()?,
            outside: space()?,
            lan: space()?,
        };
        network.wire();
        FAMILIES.iter().for_each(|prefixes| network.number(prefixes));
        Ok(network)
    }

    fn wire(&self) {
        self.lan.command("ip", &["link", "add", "lan", "type", "bridge"]);
        self.lan.command("ip", &["link", "set", "lan", "up"]);
        for (space, port) in [(&self.node, "lan0"), (&self.remote, "lan1"), (&self.outside, "lan2")] {
            self.lan.connect(port, space, "eth0");
            self.lan.command("ip", &["link", "set", port, "master", "lan"]);
        }
        for (pod, port, _) in self.pods() {
            self.node.connect(port, pod, "eth0");
        }
        for space in [&self.node, &self.remote] {
            for (setting, value) in [
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                // A refusal for each connection that is refused.
                ("ipv4/icmp_ratelimit", "0"),
                ("ipv6/icmp/ratelimit", "0"),
            ] {
                space.run(move || std::fs::write(format!("/proc/sys/net/{setting}"), value).expect("written"));
            }
        }
    }

    /// Pods of the node: the pod, its port on the node, and its address in the network of pods.
    fn pods(&self) -> [(&Space, &'static str, &'static str); 3] {
        [(&self.a, "pod0", "2"), (&self.b, "pod1", "3"), (&self.client, "pod2", "9")]
    }

    fn number(&self, prefixes: &Prefixes) {
        let Prefixes { lan, pods, other_pods, bits } = prefixes;
        let v4 = *bits == 24;
        let one = if v4 { 32 } else { 128 };
        let at = |prefix: &str, host: &str| format!("{prefix}{host}");
        let network = |prefix: &str| format!("{prefix}{}/{bits}", if v4 { "0" } else { "" });
        self.node.address("eth0", &format!("{lan}1/{bits}"));
        self.remote.address("eth0", &format!("{lan}2/{bits}"));
        self.remote.address("lo", &format!("{other_pods}2/{one}"));
        self.remote.address("lo", &format!("{}/{one}", balancer(v4)));
        self.outside.address("eth0", &format!("{lan}100/{bits}"));
        let family = if v4 { "-4" } else { "-6" };
        for (pod, port, host) in self.pods() {
            // No network between pods: each goes through the node.
            self.node.address(port, &format!("{pods}1/{one}"));
            self.node.command("ip", &["route", "add", &format!("{pods}{host}/{one}"), "dev", port]);
            pod.address("eth0", &format!("{pods}{host}/{one}"));
            pod.command("ip", &[family, "route", "add", "default", "via", &at(pods, "1"), "dev", "eth0", "onlink"]);
        }
        // The router of the LAN, which is away: services' addresses have a way out of the node, as everywhere.
        self.node.command("ip", &[family, "route", "add", "default", "via", &at(lan, "99")]);
        self.node.route(&network(other_pods), &at(lan, "2"));
        self.node.route(&format!("{}/{one}", balancer(v4)), &at(lan, "2"));
        self.remote.route(&network(pods), &at(lan, "1"));
        for client in [&self.outside, &self.remote] {
            let services =
                if v4 { ["10.96.0.0/16", "203.0.113.0/24"] } else { ["2001:db8:96::/64", "2001:db8:113::/64"] };
            services.into_iter().for_each(|network| client.route(network, &at(lan, "1")));
        }
        let parse = |text: String| text.parse::<IpAddr>().expect("an address");
        self.a.serve("a", parse(at(pods, "2")));
        self.b.serve("b", parse(at(pods, "3")));
        self.remote.serve("c", parse(at(other_pods, "2")));
        self.remote.serve("lb", parse(balancer(v4).to_owned()));
        self.node.serve("host", parse(at(lan, "1")));
    }
}

/// Address that a load balancer outside has for itself.
pub fn balancer(v4: bool) -> &'static str {
    if v4 { "203.0.113.99" } else { "2001:db8:113::99" }
}
