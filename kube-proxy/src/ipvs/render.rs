//! A service port as virtual servers and members of sets. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::sets::Set;
use crate::plan::{Endpoint, PortName, Protocol, ServicePort, TrafficPolicy};

/// Address, port and protocol that clients send to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VirtualServer {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
}

/// Behaviour of a virtual server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VirtualServerOptions {
    /// Seconds for which clients stay with their real server.
    pub(super) affinity: Option<u32>,
    /// True for an address on our device, false for one of the node's own.
    pub(super) is_bound: bool,
    /// Real servers.
    pub(super) reals: BTreeSet<SocketAddr>,
}

/// Virtual servers and members of sets of one service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) servers: BTreeMap<VirtualServer, VirtualServerOptions>,
    pub(super) members: BTreeSet<(Set, String)>,
}

/// Addresses of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeAddresses {
    /// Addresses that node ports answer on.
    pub(super) node_ports: BTreeSet<IpAddr>,
    /// Primary addresses, for source ranges that the node is within.
    pub(super) own: Vec<IpAddr>,
}

/// Renders a service port.
pub(super) fn part(name: &PortName, port: &ServicePort, node: &NodeAddresses) -> Part {
    let mut renderer = Renderer { protocol: name.protocol, port, node, part: Part::default() };
    renderer.cluster_ip();
    renderer.external_ips();
    renderer.load_balancers();
    renderer.node_port();
    renderer.hairpins();
    if let Some(number) = port.health_check_node_port {
        renderer.member(Set::HealthCheckNodePort, number.to_string());
    }
    renderer.part
}

struct Renderer<'a> {
    protocol: Protocol,
    port: &'a ServicePort,
    node: &'a NodeAddresses,
    part: Part,
}

impl Renderer<'_> {
    fn member(&mut self, set: Set, member: String) {
        self.part.members.insert((set, member));
    }

    /// `address,protocol:port`, as sets of addresses and ports have it.
    fn at(&self, address: IpAddr, port: u16) -> String {
        format!("{address},{}:{port}", self.protocol.as_str())
    }

    fn serve(&mut self, address: IpAddr, port: u16, policy: TrafficPolicy, is_bound: bool) {
        let key = VirtualServer { address, port, protocol: self.protocol };
        let reals = self.endpoints(policy).iter().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port));
        let server = VirtualServerOptions { affinity: self.port.affinity, is_bound, reals: reals.collect() };
        self.part.servers.insert(key, server);
        if is_bound {
            self.member(Set::IpvsIps, address.to_string());
        }
    }

    /// Endpoints of a policy. Without one on this node the others are used: pods of this node may reach them, and answers to
    /// others get lost.
    fn endpoints(&self, policy: TrafficPolicy) -> &[Endpoint] {
        match self.port.endpoints(policy) {
            [] => &self.port.cluster_endpoints,
            endpoints => endpoints,
        }
    }

    fn cluster_ip(&mut self) {
        let (address, number) = (self.port.cluster_ip, self.port.port);
        self.member(Set::ClusterIp, self.at(address, number));
        self.serve(address, number, self.port.internal, true);
    }

    fn external_ips(&mut self) {
        let set = if self.port.external == TrafficPolicy::Local { Set::ExternalIpLocal } else { Set::ExternalIp };
        for address in &self.port.external_ips {
            self.member(set, self.at(*address, self.port.port));
            self.serve(*address, self.port.port, self.port.external, true);
        }
    }

    fn load_balancers(&mut self) {
        for address in &self.port.load_balancer_ips {
            let at = self.at(*address, self.port.port);
            self.member(Set::LoadBalancer, at.clone());
            if self.port.external == TrafficPolicy::Local {
                self.member(Set::LoadBalancerLocal, at.clone());
            }
            self.source_ranges(*address, &at);
            self.serve(*address, self.port.port, self.port.external, true);
        }
    }

    fn source_ranges(&mut self, address: IpAddr, at: &str) {
        if self.port.source_ranges.is_empty() {
            return;
        }
        self.member(Set::LoadBalancerFirewall, at.to_owned());
        for range in &self.port.source_ranges {
            self.member(Set::LoadBalancerSourceCidr, format!("{at},{range}"));
            // A node within the ranges that has the balancer's address as one of its own talks to it from that very one.
            if self.node.own.iter().any(|own| range.contains(own)) {
                self.member(Set::LoadBalancerSourceIp, format!("{at},{address}"));
            }
        }
    }

    fn node_port(&mut self) {
        let Some(number) = self.port.node_port else { return };
        let is_local = self.port.external == TrafficPolicy::Local;
        let (set, local) = match self.protocol {
            Protocol::Tcp => (Set::NodePortTcp, Set::NodePortLocalTcp),
            Protocol::Udp => (Set::NodePortUdp, Set::NodePortLocalUdp),
            Protocol::Sctp => (Set::NodePortSctp, Set::NodePortLocalSctp),
        };
        let node = self.node;
        for address in &node.node_ports {
            let member = if self.protocol == Protocol::Sctp { self.at(*address, number) } else { number.to_string() };
            if is_local {
                self.member(local, member.clone());
            }
            self.member(set, member);
            self.serve(*address, number, self.port.external, false);
        }
    }

    /// Pods of this node that reach themselves through their service.
    fn hairpins(&mut self) {
        let all = self.port.cluster_endpoints.iter().chain(&self.port.local_endpoints);
        for endpoint in all.filter(|endpoint| endpoint.local) {
            let address = endpoint.address;
            self.member(Set::LoopBack, format!("{},{address}", self.at(address, endpoint.port)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("ip")
    }

    fn name(protocol: Protocol) -> PortName {
        PortName { namespace: "n".into(), service: "s".into(), port: String::new(), protocol }
    }

    fn endpoint(address: &str, local: bool) -> Endpoint {
        Endpoint { address: ip(address), port: 8080, local }
    }

    fn port() -> ServicePort {
        ServicePort::plain("10.96.0.5", 80, vec![endpoint("10.244.0.2", true), endpoint("10.244.1.2", false)])
    }

    fn node() -> NodeAddresses {
        NodeAddresses { node_ports: [ip("192.0.2.7")].into(), own: vec![ip("192.0.2.7")] }
    }

    fn reals(part: &Part, at: &str) -> Vec<String> {
        let at: SocketAddr = at.parse().expect("an address");
        let found = part.servers.iter().find(|(key, _)| (key.address, key.port) == (at.ip(), at.port()));
        found.map(|(_, server)| server.reals.iter().map(ToString::to_string).collect()).unwrap_or_default()
    }

    fn members(part: &Part, set: Set) -> Vec<&str> {
        part.members.iter().filter(|(of, _)| *of == set).map(|(_, member)| member.as_str()).collect()
    }

    #[test]
    fn every_address_of_a_service_is_a_virtual_server() {
        let port = ServicePort {
            node_port: Some(30080),
            external_ips: vec![ip("203.0.113.1")],
            load_balancer_ips: vec![ip("203.0.113.2")],
            ..port()
        };
        let part = part(&name(Protocol::Tcp), &port, &node());
        let all = ["10.244.0.2:8080", "10.244.1.2:8080"];
        for at in ["10.96.0.5:80", "203.0.113.1:80", "203.0.113.2:80", "192.0.2.7:30080"] {
            assert_eq!(reals(&part, at), all, "{at}");
        }
        assert_eq!(members(&part, Set::ClusterIp), ["10.96.0.5,tcp:80"]);
        assert_eq!(members(&part, Set::ExternalIp), ["203.0.113.1,tcp:80"]);
        assert_eq!(members(&part, Set::LoadBalancer), ["203.0.113.2,tcp:80"]);
        assert_eq!(members(&part, Set::NodePortTcp), ["30080"]);
        assert_eq!(members(&part, Set::LoopBack), ["10.244.0.2,tcp:8080,10.244.0.2"]);
        assert_eq!(members(&part, Set::IpvsIps), ["10.96.0.5", "203.0.113.1", "203.0.113.2"], "the node's own is not");
    }

    #[test]
    fn local_policy_uses_the_nodes_endpoints_and_any_without_one() {
        let local = ServicePort {
            node_port: Some(30080),
            external: TrafficPolicy::Local,
            local_endpoints: vec![endpoint("10.244.0.2", true)],
            ..port()
        };
        let rendered = part(&name(Protocol::Udp), &local, &node());
        assert_eq!(reals(&rendered, "192.0.2.7:30080"), ["10.244.0.2:8080"]);
        assert_eq!(members(&rendered, Set::NodePortLocalUdp), ["30080"]);
        let none = part(&name(Protocol::Udp), &ServicePort { local_endpoints: Vec::new(), ..local }, &node());
        assert_eq!(reals(&none, "192.0.2.7:30080").len(), 2);
    }

    #[test]
    fn source_ranges_are_members_and_let_the_node_in_that_is_within() {
        let ranges = |range: &str| ServicePort {
            load_balancer_ips: vec![ip("203.0.113.2")],
            source_ranges: vec![range.parse().expect("a network")],
            ..port()
        };
        let rendered = part(&name(Protocol::Tcp), &ranges("192.0.2.0/24"), &node());
        assert_eq!(members(&rendered, Set::LoadBalancerFirewall), ["203.0.113.2,tcp:80"]);
        assert_eq!(members(&rendered, Set::LoadBalancerSourceCidr), ["203.0.113.2,tcp:80,192.0.2.0/24"]);
        assert_eq!(members(&rendered, Set::LoadBalancerSourceIp), ["203.0.113.2,tcp:80,203.0.113.2"]);
        let rendered = part(&name(Protocol::Tcp), &ranges("198.51.100.0/24"), &node());
        assert!(members(&rendered, Set::LoadBalancerSourceIp).is_empty());
    }

    #[test]
    fn sctp_node_ports_are_members_by_address() {
        let port = ServicePort { node_port: Some(30080), ..port() };
        let rendered = part(&name(Protocol::Sctp), &port, &node());
        assert_eq!(members(&rendered, Set::NodePortSctp), ["192.0.2.7,sctp:30080"]);
    }
}
