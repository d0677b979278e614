//! Paths, names and addresses of a cluster.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::clusters;

/// Prefix length of the node network.
pub const NODE_PREFIX: u8 = 24;
/// Prefix length of the node network's IPv6 addresses, in a dual-stack cluster.
pub const NODE_PREFIX_6: u8 = 64;
/// Cluster DNS of a cluster's own choice of Services: `manifests/addons/coredns.yaml` asks for it.
pub const DNS_SERVICE: &str = "10.96.0.10";
/// The `kubernetes` Service has the first address of its range, and cluster DNS the tenth.
const KUBERNETES_NUMBER: u32 = 1;
const DNS_NUMBER: u32 = 10;
/// The port the API server listens on.
pub const APISERVER_PORT: u16 = 6443;
/// etcd's client port, on loopback.
pub const ETCD_PORT: u16 = 2379;
/// etcd's peer port, on loopback.
pub const ETCD_PEER_PORT: u16 = 2380;
/// Name of the control-plane machine, and of its node when it runs as static pods.
pub const CONTROL_PLANE: &str = "control-plane";
/// Name of the first worker.
const FIRST: &str = "node-1";
/// Sandbox image of every pod, built here and imported into each node.
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// The most nodes that one machine can host.
pub const MAX_NODES: usize = 9;

/// Paths of one cluster below its run directory.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The run directory, absolute.
    pub root: PathBuf,
    /// Folder of the built binaries.
    pub binaries: PathBuf,
    /// Pods, nodes and services have IPv6 addresses beside those of IPv4.
    pub dual_stack: bool,
    /// The network between its nodes.
    pub network: Network,
}

/// The network of one of the clusters on this machine: names and addresses that no other has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Beginning of the names of its namespaces and control groups.
    pub name: String,
    /// Beginning of the names of its links.
    pub link: String,
    /// The bridge that stands for it.
    pub bridge: String,
    /// Address of this machine there.
    pub host: String,
    /// IPv6 address of this machine there.
    pub host_6: String,
    /// Loopback address of the control plane's parts that talk to nobody else.
    pub loopback: String,
    /// Addresses of pods; every node gets a /24 of it from node-ipam.
    pub pods: String,
    /// IPv6 addresses of pods; every node gets a /64.
    pub pods_6: String,
    /// Service addresses unless the cluster is made with others: see [`Layout::service_cidr`].
    pub services: String,
    /// IPv6 addresses of Services.
    pub services_6: String,
    /// Addresses of Services of type `LoadBalancer`, beside the node network.
    pub load_balancers: String,
    /// IPv6 addresses of Services of type `LoadBalancer`.
    pub load_balancers_6: String,
}

impl Network {
    /// The network of the cluster with this number among those of this machine.
    #[must_use]
    pub fn numbered(number: u8) -> Self {
        // The first has the names and addresses that the documentation tells; the others' are beside them.
        let (nodes, suffix) = if number == 0 { (89, String::new()) } else { (79 + number, number.to_string()) };
        let (pods, services) = (u16::from(number) + 244, u16::from(number) * 16 + 96);
        Self {
            name: format!("ironclad{suffix}"),
            link: format!("ic{suffix}"),
            bridge: format!("ironclad{number}"),
            host: format!("10.{nodes}.0.1"),
            host_6: format!("fd00:10:{nodes}::1"),
            loopback: format!("127.0.0.{}", u16::from(number) + 1),
            pods: format!("10.{pods}.0.0/16"),
            pods_6: format!("fd00:10:{pods}::/48"),
            services: format!("10.{services}.0.0/12"),
            services_6: format!("fd00:10:{services}::/112"),
            load_balancers: format!("10.{nodes}.1.0/24"),
            load_balancers_6: format!("fd00:10:{nodes}:1::/120"),
        }
    }

    /// The network of the cluster in a run directory.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self::numbered(clusters::number(root).unwrap_or_default())
    }

    /// The address of the node network with this last part.
    #[must_use]
    pub fn address(&self, last: usize) -> String {
        with_last(&self.host, '.', last)
    }

    /// The node with the given number, counted from one.
    #[must_use]
    pub fn node(&self, number: usize) -> Node {
        self.host_named(&format!("node-{number}"), 10 + number)
    }

    /// A machine of this name with this last part of its address.
    #[must_use]
    pub fn host_named(&self, name: &str, last: usize) -> Node {
        Node {
            name: name.to_owned(),
            address: self.address(last),
            address_6: with_last(&self.host_6, ':', last),
            namespace: format!("{}-{name}", self.name),
            link: format!("{}-{name}", self.link),
            cgroup: format!("/{}/{name}", self.name),
        }
    }

    /// The node whose static pods are the control plane. It is on the host's network.
    #[must_use]
    pub fn control_plane(&self) -> Node {
        self.host_named(CONTROL_PLANE, 1)
    }
}

/// An address with another last part.
fn with_last(address: &str, separator: char, last: usize) -> String {
    let start = address.rfind(separator).map_or("", |at| &address[..=at]);
    format!("{start}{last}")
}

/// One node: its name and addresses.
#[derive(Clone, Debug)]
pub struct Node {
    /// Node name, also its host name in certificates.
    pub name: String,
    /// Address on the node network.
    pub address: String,
    /// IPv6 address on the node network, in a dual-stack cluster.
    pub address_6: String,
    /// The network namespace of this node.
    pub namespace: String,
    /// The end of its link that is on this machine.
    pub link: String,
    /// The node's cgroup root, below every controller's mount point.
    pub cgroup: String,
}

impl Node {
    /// Reports whether this is the control plane's node.
    #[must_use]
    pub fn is_control_plane(&self) -> bool {
        self.name == CONTROL_PLANE
    }

    /// Reports whether the node joins with a bootstrap token: every worker but the first, which brings its certificates
    /// along.
    #[must_use]
    pub fn bootstraps(&self) -> bool {
        !self.is_control_plane() && self.name != FIRST
    }

    /// Returns the address of the family that `other`, an address or a range, is of.
    #[must_use]
    pub fn address_like(&self, other: &str) -> &str {
        if other.contains(':') { &self.address_6 } else { &self.address }
    }
}

impl Layout {
    /// The layout below `root`, with binaries from the folder of the running program.
    ///
    /// # Errors
    /// When the current directory or program path cannot be read.
    pub fn new(root: &Path) -> std::io::Result<Self> {
        let binaries = std::env::current_exe()?.parent().unwrap_or(Path::new("/")).to_path_buf();
        let root = std::path::absolute(root)?;
        Ok(Self { network: Network::of(&root), root, binaries, dual_stack: false })
    }

    /// The value of a flag that takes an address or a range of each family.
    #[must_use]
    pub fn of_families(&self, v4: &str, v6: &str) -> String {
        if self.dual_stack { format!("{v4},{v6}") } else { v4.to_owned() }
    }

    /// Service addresses of this cluster.
    #[must_use]
    pub fn service_cidr(&self) -> String {
        let kept = std::fs::read_to_string(self.service_cidr_file()).unwrap_or_default();
        if kept.is_empty() { self.network.services.clone() } else { kept }
    }

    /// Sets the Service addresses of a cluster that is new; of another they cannot be changed.
    ///
    /// # Errors
    /// When it is no range of IPv4 with room for cluster DNS, or the cluster has another.
    pub fn set_service_cidr(&self, range: &str) -> Result<()> {
        if service(range, DNS_NUMBER).is_none() {
            bail!("{range} is no range for Services; use one such as {}", self.network.services);
        }
        let made = self.machine(CONTROL_PLANE).exists();
        if made && self.service_cidr() != range {
            bail!("this cluster's Services are in {}; take it down first: make down", self.service_cidr());
        }
        std::fs::create_dir_all(&self.root).with_context(|| format!("cannot make {}", self.root.display()))?;
        let file = self.service_cidr_file();
        std::fs::write(&file, range).with_context(|| format!("cannot write {}", file.display()))
    }

    fn service_cidr_file(&self) -> PathBuf {
        self.root.join("service-cidr")
    }

    /// The address of the Service `kubernetes`.
    #[must_use]
    pub fn kubernetes_service(&self) -> String {
        service(&self.service_cidr(), KUBERNETES_NUMBER).unwrap_or_default()
    }

    /// The address of cluster DNS, where there is one.
    #[must_use]
    pub fn dns_service(&self) -> String {
        service(&self.service_cidr(), DNS_NUMBER).unwrap_or_default()
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn admin_conf(&self) -> PathBuf {
        self.root.join("admin.conf")
    }

    /// Certificates and keys, laid out as kubeadm does.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// Supervisors' specifications, pids and logs, one folder a machine.
    #[must_use]
    pub fn machine(&self, name: &str) -> PathBuf {
        self.root.join("machines").join(name)
    }

    /// A node's disk: the sources of its bind mounts.
    #[must_use]
    pub fn disk(&self, node: &str) -> PathBuf {
        self.root.join("nodes").join(node)
    }

    /// A kubeconfig of a component.
    #[must_use]
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.root.join("kubeconfig").join(format!("{user}.conf"))
    }

    /// A built binary.
    #[must_use]
    pub fn binary(&self, name: &str) -> String {
        self.binaries.join(name).display().to_string()
    }

    /// Every node of this cluster, with the control plane's when it has one.
    #[must_use]
    pub fn all_nodes(&self) -> Vec<Node> {
        let own = Some(self.network.control_plane()).filter(|node| self.disk(&node.name).exists());
        own.into_iter().chain(self.nodes()).collect()
    }

    /// The workers that this cluster has machines for, in order.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        (1..=MAX_NODES)
            .map(|number| self.network.node(number))
            .filter(|node| self.machine(&node.name).exists())
            .collect()
    }
}

/// An address of a range, counted from its start; none when the range is none or too small.
fn service(range: &str, number: u32) -> Option<String> {
    let (start, length) = range.split_once('/')?;
    let (start, length): (Ipv4Addr, u32) = (start.parse().ok()?, length.parse().ok()?);
    let size = 1_u64.checked_shl(32_u32.checked_sub(length)?)?;
    let network = u32::from(start) & !u32::try_from(size - 1).ok()?;
    (u64::from(number) + 1 < size).then(|| Ipv4Addr::from(network + number).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_counted_from_the_start_of_their_range() {
        for (range, number, expected) in [
            ("10.96.0.0/12", KUBERNETES_NUMBER, Some("10.96.0.1")),
            ("10.96.0.0/12", DNS_NUMBER, Some(DNS_SERVICE)),
            ("169.169.0.0/16", KUBERNETES_NUMBER, Some("169.169.0.1")),
            ("10.97.3.4/16", DNS_NUMBER, Some("10.97.0.10")),
            ("10.97.0.0/29", DNS_NUMBER, None),
            ("10.97.0.0/33", DNS_NUMBER, None),
            ("10.97.0.0", DNS_NUMBER, None),
            ("fd00::/112", DNS_NUMBER, None),
        ] {
            assert_eq!(service(range, number).as_deref(), expected, "{range}");
        }
    }

    #[test]
    fn first_cluster_has_the_documented_addresses() {
        let network = Network::numbered(0);
        let expected = ["ironclad0", "10.89.0.1", "127.0.0.1", "10.244.0.0/16", "10.96.0.0/12", "10.89.1.0/24"];
        let Network { bridge, host, loopback, pods, services, load_balancers, .. } = &network;
        assert_eq!([bridge, host, loopback, pods, services, load_balancers], expected.map(str::to_owned).each_ref());
        let node = network.node(1);
        assert_eq!([&node.address, &node.address_6], ["10.89.0.11", "fd00:10:89::11"]);
        assert_eq!([&node.namespace, &node.link, &node.cgroup], ["ironclad-node-1", "ic-node-1", "/ironclad/node-1"]);
    }

    #[test]
    fn clusters_have_nothing_in_common() {
        let networks: Vec<Network> = (0..7).map(Network::numbered).collect();
        let ranges = |network: &Network| {
            let of = |range: &str| range.parse::<ipnet::IpNet>().expect("a range");
            let (nodes, nodes_6) = (format!("{}/{NODE_PREFIX}", network.host), format!("{}/64", network.host_6));
            let pods = [of(&network.pods), of(&network.pods_6), of(&network.services), of(&network.services_6)];
            let others = [of(&network.load_balancers), of(&network.load_balancers_6), of(&nodes), of(&nodes_6)];
            [pods, others].concat()
        };
        let all: Vec<ipnet::IpNet> = networks.iter().flat_map(ranges).collect();
        for (at, range) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert!(!range.contains(&other.addr()) && !other.contains(&range.addr()), "{range} and {other}");
            }
        }
        let names: std::collections::BTreeSet<String> = networks
            .iter()
            .flat_map(|network| {
                let node = network.node(9);
                [network.bridge.clone(), network.loopback.clone(), node.namespace, node.link, node.cgroup]
            })
            .collect();
        assert_eq!(names.len(), 5 * networks.len());
        assert!(names.iter().all(|name| name.starts_with('/') || name.len() < 32));
        // The kernel's limit for names of links.
        assert!(networks.iter().all(|network| network.node(9).link.len() < 16));
    }
}
