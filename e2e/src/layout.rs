//! Paths, names and addresses of a cluster.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The bridge that stands for the network between the nodes.
pub const BRIDGE: &str = "ironclad0";
/// The control plane's address on the bridge.
pub const HOST_ADDRESS: &str = "10.89.0.1";
/// Prefix length of the node network.
pub const NODE_PREFIX: u8 = 24;
/// Pod addresses; every node gets a /24 of it from node-ipam.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// Service addresses unless a cluster was made with others: see [`Layout::service_cidr`].
pub const SERVICE_CIDR: &str = "10.96.0.0/12";
/// Addresses that a dual-stack cluster has in addition: the control plane's address, the node network's prefix length,
/// pods (every node gets a /64) and services.
pub const HOST_ADDRESS_6: &str = "fd00:10:89::1";
/// See [`HOST_ADDRESS_6`].
pub const NODE_PREFIX_6: u8 = 64;
/// See [`HOST_ADDRESS_6`].
pub const CLUSTER_CIDR_6: &str = "fd00:10:244::/48";
/// See [`HOST_ADDRESS_6`].
pub const SERVICE_CIDR_6: &str = "fd00:10:96::/112";
/// Addresses of Services of type `LoadBalancer`, beside the node network.
pub const LOAD_BALANCER_CIDR: &str = "10.89.1.0/24";
/// See [`LOAD_BALANCER_CIDR`].
pub const LOAD_BALANCER_CIDR_6: &str = "fd00:10:89:1::/120";
/// Cluster DNS in [`SERVICE_CIDR`]: `manifests/addons/coredns.yaml` asks for it.
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

/// A network between nodes.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The bridge that stands for it.
    pub bridge: &'static str,
    /// Address of this machine there.
    pub host: &'static str,
}

impl Default for Network {
    fn default() -> Self {
        Self { bridge: BRIDGE, host: HOST_ADDRESS }
    }
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
}

impl Node {
    /// The node with the given number, counted from one.
    #[must_use]
    pub fn new(number: usize) -> Self {
        let last = 10 + number;
        Self {
            name: format!("node-{number}"),
            address: format!("10.89.0.{last}"),
            address_6: format!("fd00:10:89::{last}"),
        }
    }

    /// The node whose static pods are the control plane. It is on the host's network.
    #[must_use]
    pub fn control_plane() -> Self {
        Self { name: CONTROL_PLANE.into(), address: HOST_ADDRESS.into(), address_6: HOST_ADDRESS_6.into() }
    }

    /// Reports whether this is the control plane's node.
    #[must_use]
    pub fn is_control_plane(&self) -> bool {
        self.name == CONTROL_PLANE
    }

    /// Reports whether the node joins with a bootstrap token: every worker but the first, which brings its certificates
    /// along.
    #[must_use]
    pub fn bootstraps(&self) -> bool {
        !self.is_control_plane() && self.name != Self::new(1).name
    }

    /// Returns the address of the family that `other`, an address or a range, is of.
    #[must_use]
    pub fn address_like(&self, other: &str) -> &str {
        if other.contains(':') { &self.address_6 } else { &self.address }
    }

    /// The network namespace of this node.
    #[must_use]
    pub fn netns(&self) -> String {
        format!("ironclad-{}", self.name)
    }

    /// The node's cgroup root, below every controller's mount point.
    #[must_use]
    pub fn cgroup(&self) -> String {
        format!("/ironclad/{}", self.name)
    }
}

impl Layout {
    /// The layout below `root`, with binaries from the folder of the running program.
    ///
    /// # Errors
    /// When the current directory or program path cannot be read.
    pub fn new(root: &Path) -> std::io::Result<Self> {
        let binaries = std::env::current_exe()?.parent().unwrap_or(Path::new("/")).to_path_buf();
        Ok(Self { root: std::path::absolute(root)?, binaries, dual_stack: false, network: Network::default() })
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
        if kept.is_empty() { SERVICE_CIDR.into() } else { kept }
    }

    /// Sets the Service addresses of a cluster that is new; of another they cannot be changed.
    ///
    /// # Errors
    /// When it is no range of IPv4 with room for cluster DNS, or the cluster has another.
    pub fn set_service_cidr(&self, range: &str) -> Result<()> {
        if service(range, DNS_NUMBER).is_none() {
            bail!("{range} is no range for Services; use one such as {SERVICE_CIDR}");
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
        let own = Some(Node::control_plane()).filter(|node| self.disk(&node.name).exists());
        own.into_iter().chain(self.nodes()).collect()
    }

    /// The workers that this cluster has machines for, in order.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        (1..=MAX_NODES).map(Node::new).filter(|node| self.machine(&node.name).exists()).collect()
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
            (SERVICE_CIDR, KUBERNETES_NUMBER, Some("10.96.0.1")),
            (SERVICE_CIDR, DNS_NUMBER, Some(DNS_SERVICE)),
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
}
