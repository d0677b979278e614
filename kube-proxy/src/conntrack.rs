//! Connection-tracking entries of UDP flows that rules no longer lead to. UDP knows no end
//! of a connection: without this a client that keeps sending would reach a dead endpoint
//! for as long as it sends.

use crate::backend::feed;
use crate::plan::{Desired, Endpoint, PortName, Protocol, ServicePort};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// One kind of entry to delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// Flows to an address that led to an endpoint that is gone.
    Endpoint {
        /// Original destination.
        address: IpAddr,
        /// The endpoint.
        endpoint: IpAddr,
    },
    /// Flows to a node port that led to an endpoint that is gone.
    NodePort {
        /// The port.
        port: u16,
        /// The endpoint.
        endpoint: IpAddr,
    },
    /// Flows to an address that had no endpoint until now: they were not translated.
    Address(IpAddr),
    /// The same for a node port.
    Port(u16),
}

/// What has become stale between two states.
#[must_use]
pub fn stale(old: &Desired, new: &Desired) -> BTreeSet<Stale> {
    let mut found = BTreeSet::new();
    for (name, before) in old.ports.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
        let after = new.ports.get(name).map(endpoints).unwrap_or_default();
        for gone in endpoints(before).difference(&after) {
            let to = |address| Stale::Endpoint { address, endpoint: gone.address };
            found.extend(addresses(before).map(to));
            found.extend(before.node_port.map(|port| Stale::NodePort { port, endpoint: gone.address }));
        }
    }
    for (name, after) in new.ports.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
        if !endpoints(after).is_empty() && was_empty(old, name) {
            found.extend(addresses(after).map(Stale::Address));
            found.extend(after.node_port.map(Stale::Port));
        }
    }
    found
}

fn was_empty(old: &Desired, name: &PortName) -> bool {
    old.ports.get(name).is_none_or(|before| endpoints(before).is_empty())
}

fn endpoints(port: &ServicePort) -> BTreeSet<Endpoint> {
    port.cluster_endpoints.iter().chain(&port.local_endpoints).copied().collect()
}

fn addresses(port: &ServicePort) -> impl Iterator<Item = IpAddr> {
    [port.cluster_ip].into_iter().chain(port.external_ips.iter().copied()).chain(port.load_balancer_ips.iter().copied())
}

/// Deletes entries. There being none is no failure; anything else is only logged, since
/// rules are right already.
pub async fn delete(entries: &BTreeSet<Stale>) {
    for entry in entries {
        let arguments = arguments(entry);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if let Err(error) = feed("conntrack", &arguments, "").await
            && !error.to_string().contains("0 flow entries")
        {
            tracing::warn!(%error, ?entry, "Failed to delete stale conntrack entries");
        }
    }
}

fn arguments(entry: &Stale) -> Vec<String> {
    let mut arguments: Vec<String> = ["-D", "-p", "udp"].map(String::from).to_vec();
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|word| (*word).to_owned()));
    match entry {
        Stale::Endpoint { address, endpoint } => {
            add(&["--orig-dst", &address.to_string(), "--dst-nat", &endpoint.to_string()]);
        }
        Stale::NodePort { port, endpoint } => add(&["--dport", &port.to_string(), "--dst-nat", &endpoint.to_string()]),
        Stale::Address(address) => add(&["--orig-dst", &address.to_string()]),
        Stale::Port(port) => add(&["--dport", &port.to_string()]),
    }
    if let Stale::Endpoint { address: IpAddr::V6(_), .. } | Stale::Address(IpAddr::V6(_)) = entry {
        arguments.extend(["-f".to_owned(), "ipv6".to_owned()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(protocol: Protocol, endpoints: &[&str]) -> Desired {
        let endpoint = |address: &&str| Endpoint { address: address.parse().expect("ip"), port: 53, local: false };
        let name = PortName { namespace: "kube-system".into(), service: "dns".into(), port: "dns".into(), protocol };
        let endpoints = endpoints.iter().map(endpoint).collect();
        let port = ServicePort { node_port: Some(30053), ..ServicePort::plain("10.0.0.10", 53, endpoints) };
        Desired { ports: [(name, port)].into() }
    }

    #[test]
    fn flows_to_endpoints_that_went_are_stale() {
        let found = stale(&state(Protocol::Udp, &["10.1.0.1", "10.1.0.2"]), &state(Protocol::Udp, &["10.1.0.2"]));
        let commands: Vec<String> = found.iter().map(|entry| arguments(entry).join(" ")).collect();
        assert_eq!(
            commands,
            ["-D -p udp --orig-dst 10.0.0.10 --dst-nat 10.1.0.1", "-D -p udp --dport 30053 --dst-nat 10.1.0.1"]
        );
    }

    #[test]
    fn flows_from_before_the_first_endpoint_are_stale() {
        let found = stale(&state(Protocol::Udp, &[]), &state(Protocol::Udp, &["10.1.0.1"]));
        assert_eq!(found, BTreeSet::from([Stale::Address("10.0.0.10".parse().expect("ip")), Stale::Port(30053)]));
    }

    #[test]
    fn tcp_ends_by_itself() {
        assert!(stale(&state(Protocol::Tcp, &["10.1.0.1"]), &state(Protocol::Tcp, &[])).is_empty());
    }
}
