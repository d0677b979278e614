//! The userspace back end, upstream's first mode: the kernel leads packets for a service port to a listener of this process,
//! which carries them to an endpoint. Slow, and at home wherever there is iptables.
//!
//! A change of endpoints is one of the listeners' choice alone, without any rule; connections that are open stay.

mod balancer;
mod rules;
mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use shared::config::Settings as Fields;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

use crate::backend::{Backend, Environment, Mode, Options, SyncError, SyncExtent};
use crate::iptables::{Batch, CANARY, Tables};
use crate::plan::{Desired, Family, PortName, Protocol, ServicePort, TrafficPolicy};
use balancer::Balancer;
use rules::{CHAINS, JUMPS, Listening, Part, part};

/// The mode.
pub(crate) const MODE: Mode = Mode {
    name: "userspace",
    is_historic: true,
    periods: "iptables",
    masquerading: "iptables",
    localhost_node_ports: false,
    primary_node_ports: false,
    backend: |options, settings| Box::new(Userspace::new(options, settings)),
};

/// A chain that no other mode has.
const OURS: (&str, &str) = CHAINS[0];
/// Ports that are tried before the configured range is taken for full.
const ATTEMPTS: u16 = 64;

/// Keeps listeners, and the rules that lead to them.
pub(crate) struct Userspace {
    options: Options,
    tables: Tables,
    ports: PortRange,
    /// Listeners outlive a failure to write rules.
    listeners: BTreeMap<PortName, Listeners>,
    applied: Option<BTreeMap<PortName, Part>>,
}

/// Ports of this machine to listen on: the first, and their number; any port where that is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PortRange {
    first: u16,
    count: u16,
    next: u16,
}

impl PortRange {
    /// Reads `first-last`, `first+more` or one port.
    fn parse(text: &str) -> Self {
        let number = |text: &str| text.trim().parse::<u16>().ok();
        let bounds = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => number(first).zip(number(last)),
            (None, Some((first, more))) => {
                number(first).and_then(|first| Some((first, first.checked_add(number(more)?)?)))
            }
            (None, None) => number(text).map(|only| (only, only)),
        };
        match bounds {
            Some((first, last)) if first > 0 && first <= last => {
                Self { first, count: (last - first).saturating_add(1), next: 0 }
            }
            _ => Self::default(),
        }
    }

    /// The next port to try; zero lets the kernel choose.
    fn next(&mut self) -> u16 {
        if self.count == 0 {
            return 0;
        }
        let port = self.first + self.next;
        self.next = (self.next + 1) % self.count;
        port
    }
}

/// Listeners of a service port, by policy.
#[derive(Default)]
struct Listeners {
    cluster: Option<Listener>,
    local: Option<Listener>,
}

/// A listener with the endpoints of its connections.
struct Listener {
    port: u16,
    balancer: Arc<Mutex<Balancer>>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Userspace {
    fn new(options: Options, fields: &Fields) -> Self {
        let tables = Tables::new(&options);
        let ports = PortRange::parse(&fields.string("portRange"));
        Self { options, tables, ports, listeners: BTreeMap::new(), applied: None }
    }

    /// Brings the listeners of a service port to its endpoints, and tells where they are.
    async fn listen(&mut self, name: &PortName, port: &ServicePort) -> Result<Listening, SyncError> {
        let mut listeners = self.listeners.remove(name).unwrap_or_default();
        for (policy, listener) in
            [(TrafficPolicy::Cluster, &mut listeners.cluster), (TrafficPolicy::Local, &mut listeners.local)]
        {
            let endpoints = port.endpoints(policy);
            if endpoints.is_empty() || !port.uses(policy) || !port.has_endpoints {
                *listener = None;
                continue;
            }
            if listener.is_none() {
                *listener = Some(self.open(name.protocol).await?);
            }
            let endpoints = endpoints.iter().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect();
            let affinity = port.affinity.map(|seconds| Duration::from_secs(seconds.into()));
            if let Some(listener) = listener {
                listener.balancer.lock().set(endpoints, affinity);
            }
        }
        let port = |listener: &Option<Listener>| listener.as_ref().map(|listener| listener.port);
        let listening = Listening { cluster: port(&listeners.cluster), local: port(&listeners.local) };
        self.listeners.insert(name.clone(), listeners);
        Ok(listening)
    }

    async fn open(&mut self, protocol: Protocol) -> Result<Listener, SyncError> {
        let mut failed = io::Error::other("no port");
        for _ in 0..ATTEMPTS.min(self.ports.count.max(1)) {
            let number = self.ports.next();
            match open(protocol, self.options.family, number, self.options.dry_run.is_some()).await {
                Ok(listener) => return Ok(listener),
                Err(error) => failed = error,
            }
        }
        Err(SyncError::Kernel { what: "a listener of a service port", error: failed })
    }

    async fn render(&mut self, name: &PortName, port: Option<&ServicePort>) -> Result<Option<Part>, SyncError> {
        // There are no listeners of SCTP.
        let Some(port) = port.filter(|_| name.protocol != Protocol::Sctp) else {
            self.listeners.remove(name);
            return Ok(None);
        };
        let listening = self.listen(name, port).await?;
        Ok(Some(part(name, port, listening, &self.options)))
    }

    /// Writes these chains, each out of the rules of all ports, with what is in the batch already.
    async fn write(
        &self,
        mut batch: Batch,
        parts: &BTreeMap<PortName, Part>,
        touched: [bool; CHAINS.len()],
    ) -> Result<(), SyncError> {
        for (index, (table, chain)) in CHAINS.iter().enumerate().filter(|(index, _)| touched[*index]) {
            let rules: Vec<String> = parts.values().flat_map(|part| part[index].iter().cloned()).collect();
            batch.write(table, chain, &rules);
        }
        self.tables.restore(&mut batch).await
    }
}

/// Opens a listener. In a dry run there is only its number.
async fn open(protocol: Protocol, family: Family, number: u16, is_dry: bool) -> io::Result<Listener> {
    let any: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let balancer = Arc::new(Mutex::new(Balancer::default()));
    if is_dry {
        return Ok(Listener { port: number.max(1), balancer, task: tokio::spawn(async {}) });
    }
    let socket = |kind| socket(family, kind, SocketAddr::new(any, number));
    let (port, task) = match protocol {
        Protocol::Udp => {
            let socket = UdpSocket::from_std(socket(socket2::Type::DGRAM)?.into())?;
            udp::prepare(&socket, family == Family::V4)?;
            (socket.local_addr()?.port(), tokio::spawn(udp::serve(socket, Arc::clone(&balancer))))
        }
        Protocol::Tcp | Protocol::Sctp => {
            let socket = socket(socket2::Type::STREAM)?;
            socket.listen(BACKLOG)?;
            let listener = TcpListener::from_std(socket.into())?;
            (listener.local_addr()?.port(), tokio::spawn(tcp::serve(listener, Arc::clone(&balancer))))
        }
    };
    Ok(Listener { port, balancer, task })
}

/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;

/// A bound socket of one family alone: the other one has a back end of its own.
fn socket(family: Family, kind: socket2::Type, at: SocketAddr) -> io::Result<socket2::Socket> {
    let domain = if family == Family::V4 { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = socket2::Socket::new(domain, kind, None)?;
    if family == Family::V6 {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    Ok(socket)
}

/// Lets the process have as many files open as it may: each connection has two, and pipes.
fn raise_file_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "Failed to raise the limit of open files");
    }
}

#[async_trait]
impl Backend for Userspace {
    async fn check_support(&self) -> Result<(), SyncError> {
        self.tables.check_support().await
    }

    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError> {
        let Some(mut parts) = self.applied.take() else {
            raise_file_limit();
            let mut parts = BTreeMap::new();
            for (name, port) in &desired.ports {
                if let Some(part) = self.render(name, Some(port)).await? {
                    parts.insert(name.clone(), part);
                }
            }
            self.listeners.retain(|name, _| desired.ports.contains_key(name));
            let mut batch = Batch::default();
            batch.write("mangle", CANARY, &[]);
            self.write(batch, &parts, [true; CHAINS.len()]).await?;
            self.tables.ensure_jumps(JUMPS.iter()).await?;
            self.applied = Some(parts);
            return Ok(SyncExtent::Everything);
        };
        let mut touched = [false; CHAINS.len()];
        for name in changed {
            let before = parts.remove(name).unwrap_or_default();
            let after = self.render(name, desired.ports.get(name)).await?;
            let rules = after.clone().unwrap_or_default();
            touched.iter_mut().enumerate().for_each(|(index, touched)| *touched |= before[index] != rules[index]);
            if let Some(part) = after {
                parts.insert(name.clone(), part);
            }
        }
        self.write(Batch::default(), &parts, touched).await?;
        self.applied = Some(parts);
        Ok(if changed.is_empty() { SyncExtent::Nothing } else { SyncExtent::Changes })
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    fn set_environment(&mut self, environment: &Environment) {
        if self.options.moves_node_ports(environment) {
            self.forget();
        }
    }

    async fn tend(&mut self) -> bool {
        self.tables.has_chain("mangle", CANARY).await
    }

    async fn is_present(&self) -> bool {
        // Each start of another mode asks: a list of all chains would be long.
        self.tables.run(&["-t", OURS.0, "-S", OURS.1]).await.is_ok()
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        self.applied = None;
        self.listeners.clear();
        self.tables.remove_jumps(&JUMPS).await;
        self.tables.remove_chains(CHAINS.into_iter()).await?;
        self.tables.run(&["-t", "mangle", "-X", CANARY]).await.ok();
        Ok(())
    }
}
