//! Desired destinations of traffic: a pure, mode-neutral view of services and endpoint slices.
//!
//! In: services, endpoint slices, facts about the node. Out: [`Desired`], which the back
//! ends turn into rules. Answers for upstream's `pkg/proxy` service and endpoint trackers
//! and `topology.go`. Must not know of iptables, nftables or the clock.

mod endpoints;
mod service;
#[cfg(test)]
mod tests;

pub use endpoints::{EndpointUse, Judged};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// IP family of a back end's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Reports whether an address is of this family.
    #[must_use]
    pub fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }

    /// Returns the value of `EndpointSlice.addressType`.
    #[must_use]
    pub fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Lower case, as rules spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Number in the headers of IP.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}

/// A port of a service, `namespace/name:port`; a port without a name is `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The service's namespace.
    pub namespace: String,
    /// The service's name.
    pub service: String,
    /// The port's name, empty when it has none.
    pub port: String,
    /// Two ports may share a name if their protocols differ.
    pub protocol: Protocol,
}

impl fmt::Display for PortName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(formatter, ":{}", self.port) }
    }
}

/// Destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The pod's address.
    pub address: IpAddr,
    /// The pod's port.
    pub port: u16,
    /// The endpoint is on this node.
    pub local: bool,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", std::net::SocketAddr::new(self.address, self.port))
    }
}

/// Traffic policies: whether traffic may leave the node for its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    #[default]
    Cluster,
    /// Only endpoints of this node.
    Local,
}

/// One service port with its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Cluster IP.
    pub cluster_ip: IpAddr,
    /// The service's port.
    pub port: u16,
    /// The port on every node, if it has one.
    pub node_port: Option<u16>,
    /// External IPs.
    pub external_ips: Vec<IpAddr>,
    /// Load-balancer ingress IPs that this node answers for (`ipMode: VIP`).
    pub load_balancer_ips: Vec<IpAddr>,
    /// Networks of clients that may use the load-balancer IPs; empty for everyone.
    pub source_ranges: Vec<IpNet>,
    /// Client-IP affinity in seconds.
    pub affinity: Option<u32>,
    /// Policy for the cluster IP.
    pub internal: TrafficPolicy,
    /// Policy for node ports, external and load-balancer IPs.
    pub external: TrafficPolicy,
    /// Port for health checks of load balancers (external policy Local).
    pub health_check_node_port: Option<u16>,
    /// Endpoints for cluster-policy traffic.
    pub cluster_endpoints: Vec<Endpoint>,
    /// Endpoints for local-policy traffic.
    pub local_endpoints: Vec<Endpoint>,
    /// The service has an endpoint somewhere, usable from here or not.
    pub has_endpoints: bool,
    /// Endpoints that serve, chosen for this node or not; of UDP ports alone, whose flows outlive a choice.
    pub serving: Vec<SocketAddr>,
    /// Addresses of endpoints on this node that are ready; of ports with a health-check node port alone.
    pub ready_local: BTreeSet<IpAddr>,
}

impl ServicePort {
    /// One with these endpoints for everybody, and nothing special about it.
    #[cfg(test)]
    pub(crate) fn plain(cluster_ip: &str, port: u16, endpoints: Vec<Endpoint>) -> Self {
        Self {
            cluster_ip: cluster_ip.parse().expect("ip"),
            port,
            node_port: None,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            affinity: None,
            internal: TrafficPolicy::Cluster,
            external: TrafficPolicy::Cluster,
            health_check_node_port: None,
            has_endpoints: !endpoints.is_empty(),
            serving: Vec::new(),
            ready_local: BTreeSet::new(),
            cluster_endpoints: endpoints,
            local_endpoints: Vec::new(),
        }
    }

    /// The endpoints that traffic under a policy may reach.
    #[must_use]
    pub fn endpoints(&self, policy: TrafficPolicy) -> &[Endpoint] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster_endpoints,
            TrafficPolicy::Local => &self.local_endpoints,
        }
    }

    /// Reports whether the port can be reached from outside of the cluster at all.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// Reports whether any traffic of the port uses a policy.
    #[must_use]
    pub fn uses(&self, policy: TrafficPolicy) -> bool {
        self.internal == policy || (self.is_external() && (self.external == policy || policy == TrafficPolicy::Cluster))
    }
}

/// Known facts of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
}

impl NodeFacts {
    /// Reads a node object.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let labels = node.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get("topology.kubernetes.io/zone").cloned());
        Self { name: node.metadata.name.clone().unwrap_or_default(), zone }
    }
}

/// Desired state of the rules of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// All service ports, in order of their names.
    pub ports: BTreeMap<PortName, ServicePort>,
    without_local: WithoutLocal,
    endpoints: usize,
}

/// Service ports with endpoints elsewhere alone, whose policy asks for endpoints of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutLocal {
    /// By internal traffic policy.
    pub internal: usize,
    /// By external traffic policy, of ports that can be reached from outside.
    pub external: usize,
}

/// Ports that a change of services or endpoints was about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Ports that are new, other than before, or gone.
    pub ports: BTreeSet<PortName>,
    /// A health-check node port is among what they were or are.
    pub checks: bool,
}

impl Delta {
    /// True when UDP flows may be concerned.
    #[must_use]
    pub fn has_udp(&self) -> bool {
        self.ports.iter().any(|name| name.protocol == Protocol::Udp)
    }
}

impl From<BTreeMap<PortName, ServicePort>> for Desired {
    fn from(ports: BTreeMap<PortName, ServicePort>) -> Self {
        let mut desired = Self::default();
        for (name, port) in ports {
            desired.put(name, Some(port));
        }
        desired
    }
}

impl Desired {
    /// Puts a port in the place of the one that was there, which is returned.
    fn put(&mut self, name: PortName, port: Option<ServicePort>) -> Option<ServicePort> {
        let count = |port: &ServicePort| {
            let lacks =
                |policy| policy == TrafficPolicy::Local && port.has_endpoints && port.local_endpoints.is_empty();
            (usize::from(lacks(port.internal)), usize::from(port.is_external() && lacks(port.external)))
        };
        let (internal, external) = port.as_ref().map(count).unwrap_or_default();
        let endpoints = |port: Option<&ServicePort>| {
            port.map_or(0, |port| port.cluster_endpoints.len().max(port.local_endpoints.len()))
        };
        let added = endpoints(port.as_ref());
        let before = match port {
            Some(port) => self.ports.insert(name, port),
            None => self.ports.remove(&name),
        };
        let (was_internal, was_external) = before.as_ref().map(count).unwrap_or_default();
        self.endpoints = self.endpoints + added - endpoints(before.as_ref());
        self.without_local.internal = self.without_local.internal + internal - was_internal;
        self.without_local.external = self.without_local.external + external - was_external;
        before
    }

    /// Number of endpoints of all ports.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Ports that have no endpoint here although they ask for one.
    #[must_use]
    pub fn without_local(&self) -> WithoutLocal {
        self.without_local
    }

    /// Plans one service anew, from the service, if there is one, and its slices. Notes in `delta` what that changed.
    pub fn replace(
        &mut self,
        (namespace, name): (&str, &str),
        service: Option<&Service>,
        slices: &[Arc<EndpointSlice>],
        (node, family): (&NodeFacts, Family),
        delta: &mut Delta,
    ) {
        let first = PortName {
            namespace: namespace.to_owned(),
            service: name.to_owned(),
            port: String::new(),
            protocol: Protocol::Tcp,
        };
        let of_service = |(port, _): &(&PortName, &ServicePort)| port.namespace == namespace && port.service == name;
        let old: Vec<PortName> =
            self.ports.range(first..).take_while(of_service).map(|(port, _)| port.clone()).collect();
        let mut new: BTreeMap<PortName, ServicePort> = BTreeMap::new();
        for (name, port) in service.map(|service| ports(service, slices, node, family)).unwrap_or_default() {
            new.insert(name, port);
        }
        for name in old.into_iter().filter(|name| !new.contains_key(name)) {
            delta.checks |= self.put(name.clone(), None).is_some_and(|port| port.health_check_node_port.is_some());
            delta.ports.insert(name);
        }
        for (name, port) in new {
            if self.ports.get(&name) == Some(&port) {
                continue;
            }
            delta.checks |= port.health_check_node_port.is_some();
            let before = self.put(name.clone(), Some(port));
            delta.checks |= before.is_some_and(|before| before.health_check_node_port.is_some());
            delta.ports.insert(name);
        }
    }
}

/// The ports of a service with their endpoints out of its slices.
fn ports(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeFacts,
    family: Family,
) -> Vec<(PortName, ServicePort)> {
    let slices: Vec<&EndpointSlice> =
        slices.iter().map(Arc::as_ref).filter(|slice| slice.address_type == family.address_type()).collect();
    let mut ports = service::ports(service, family);
    for (name, port) in &mut ports {
        endpoints::fill(port, name, &slices, node);
    }
    ports
}

/// Tells about every endpoint of a service port whether this node sends traffic there, and why.
#[must_use]
pub fn judge(name: &PortName, slices: &[Arc<EndpointSlice>], node: &NodeFacts, family: Family) -> Vec<Judged> {
    let slices: Vec<&EndpointSlice> =
        slices.iter().map(Arc::as_ref).filter(|slice| slice.address_type == family.address_type()).collect();
    endpoints::judge(name, &slices, node)
}

/// The service that a slice belongs to, by its `kubernetes.io/service-name` label: namespace and name.
#[must_use]
pub fn service_of(slice: &EndpointSlice) -> Option<(&str, &str)> {
    endpoints::service_of(slice)
}
