//! Addresses of this machine that node ports answer on (`nodePortAddresses`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::backend::NodePorts;
use crate::plan::Family;

/// Addresses of the node that answer on node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of them.
    #[default]
    All,
    /// Addresses that the Node object names (`primary`).
    Primary,
    /// Addresses in these networks.
    Networks(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Reports whether 127.0.0.0/8 may be among them: `ContainsIPv4Loopback` in upstream.
    pub(crate) fn contains_loopback(&self) -> bool {
        match self {
            Self::All => true,
            Self::Primary => false,
            Self::Networks(networks) => networks.iter().any(|network| match network {
                IpNet::V4(network) => network.network().is_loopback() || network.prefix_len() == 0,
                IpNet::V6(_) => false,
            }),
        }
    }
}

/// Finds the addresses out of the configuration and what the machine has.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodePortResolver {
    /// Addresses in the configuration.
    pub configured: NodePortAddresses,
    /// The node's own addresses, for `primary`.
    pub node: Vec<IpAddr>,
}

impl NodePortResolver {
    /// The addresses of a family, out of those that the machine has now; all, where none is named for that family.
    #[must_use]
    pub(crate) fn resolve(&self, family: Family) -> NodePorts {
        self.resolve_among(family, machine_addresses)
    }

    fn resolve_among(&self, family: Family, machine: impl FnOnce() -> Vec<IpAddr>) -> NodePorts {
        match &self.configured {
            NodePortAddresses::All => NodePorts::All,
            NodePortAddresses::Primary => {
                let own: BTreeSet<IpAddr> = self.node.iter().copied().filter(|ip| family.holds(*ip)).collect();
                if own.is_empty() { NodePorts::All } else { NodePorts::Addresses(own) }
            }
            NodePortAddresses::Networks(networks) => {
                let networks: Vec<&IpNet> = networks.iter().filter(|network| family.holds(network.addr())).collect();
                if networks.is_empty() || networks.iter().any(|network| network.prefix_len() == 0) {
                    return NodePorts::All;
                }
                let named = |ip: &IpAddr| networks.iter().any(|network| network.contains(ip));
                NodePorts::Addresses(machine().into_iter().filter(named).collect())
            }
        }
    }
}

fn machine_addresses() -> Vec<IpAddr> {
    interface_addresses().into_iter().map(|(_, address)| address).collect()
}

/// All addresses of the machine, with the names of their interfaces.
pub(crate) fn interface_addresses() -> Vec<(String, IpAddr)> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        let address = v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))?;
        Some((interface.interface_name, address))
    };
    interfaces.filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_choose_among_the_machines_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("ip");
        let machine = || ["127.0.0.1", "192.0.2.7", "198.51.100.7", "::1", "2001:db8::7"].map(ip).to_vec();
        let resolver = |configured| NodePortResolver { configured, node: vec![ip("192.0.2.7")] };
        let networks = |all: &[&str]| {
            resolver(NodePortAddresses::Networks(all.iter().map(|text| text.parse().expect("a network")).collect()))
        };
        let chosen = |of: NodePortResolver, family| match of.resolve_among(family, machine) {
            NodePorts::All => vec!["all".to_owned()],
            NodePorts::Addresses(addresses) => addresses.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(chosen(networks(&["192.0.2.0/24"]), Family::V4), ["192.0.2.7"]);
        assert_eq!(chosen(networks(&["192.0.2.0/24"]), Family::V6), ["all"], "no network of that family");
        assert_eq!(chosen(networks(&["0.0.0.0/0"]), Family::V4), ["all"]);
        assert_eq!(chosen(networks(&["127.0.0.0/8", "2001:db8::/32"]), Family::V6), ["2001:db8::7"]);
        assert_eq!(chosen(resolver(NodePortAddresses::Primary), Family::V4), ["192.0.2.7"]);
        assert_eq!(chosen(resolver(NodePortAddresses::Primary), Family::V6), ["all"]);
    }
}
