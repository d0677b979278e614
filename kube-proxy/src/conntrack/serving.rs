//! The rule by which an entry is stale.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::netlink::Flow;
use crate::plan::{Desired, Protocol, ServicePort};

type Endpoints = Arc<BTreeSet<SocketAddr>>;

/// Endpoints that may answer a UDP flow, by where the client sent it. Only what serves counts, not what policy or
/// topology would choose today: a flow that works stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// By cluster, external or load-balancer address and the service's port.
    addresses: HashMap<SocketAddr, Endpoints>,
    /// By node port, on whatever address of the node.
    node_ports: HashMap<u16, Endpoints>,
}

impl Serving {
    /// Reads what rules serve by UDP.
    #[must_use]
    pub fn of(desired: &Desired) -> Self {
        let mut serving = Self::default();
        for (_, port) in desired.ports.iter().filter(|(name, _)| name.protocol == Protocol::Udp) {
            let endpoints: Endpoints = Arc::new(port.serving.iter().copied().collect());
            for address in addresses(port) {
                serving.addresses.insert(address, Arc::clone(&endpoints));
            }
            if let Some(number) = port.node_port {
                serving.node_ports.insert(number, endpoints);
            }
        }
        serving
    }

    /// Adds to it the addresses and ports that were served before and are not any more: nobody answers there.
    #[must_use]
    pub fn with_removed_of(&self, before: Option<&Self>) -> Self {
        let mut all = self.clone();
        let Some(before) = before else { return all };
        for address in before.addresses.keys() {
            all.addresses.entry(*address).or_default();
        }
        for port in before.node_ports.keys() {
            all.node_ports.entry(*port).or_default();
        }
        all
    }

    /// True for a flow to a service that is answered by something else than a serving endpoint of it: an endpoint that
    /// is gone, or nobody, since the flow began before the service had an endpoint.
    #[must_use]
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let by_address = self.addresses.get(&flow.destination);
        let endpoints = by_address.or_else(|| self.node_ports.get(&flow.destination.port()));
        endpoints.is_some_and(|endpoints| !endpoints.contains(&flow.answers))
    }
}

fn addresses(port: &ServicePort) -> impl Iterator<Item = SocketAddr> {
    let all = [port.cluster_ip].into_iter().chain(port.external_ips.iter().copied());
    all.chain(port.load_balancer_ips.iter().copied()).map(|address| SocketAddr::new(address, port.port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::{Endpoint, PortName};

    fn desired(protocol: Protocol, endpoints: &[&str]) -> Desired {
        let name = PortName { namespace: "kube-system".into(), service: "dns".into(), port: "dns".into(), protocol };
        let serving: Vec<SocketAddr> = endpoints.iter().map(|endpoint| at(endpoint)).collect();
        let chosen = serving.iter().take(1);
        let chosen = chosen.map(|at| Endpoint { address: at.ip(), port: at.port(), local: false }).collect();
        let port = ServicePort {
            node_port: Some(30053),
            external_ips: vec!["192.0.2.7".parse().expect("ip")],
            serving,
            ..ServicePort::plain("10.0.0.10", 53, chosen)
        };
        Desired::from(BTreeMap::from([(name, port)]))
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn flow(destination: &str, answers: &str) -> Flow {
        Flow { destination: at(destination), answers: at(answers) }
    }

    #[test]
    fn flows_are_stale_by_who_answers_them() {
        let serving = Serving::of(&desired(Protocol::Udp, &["10.1.0.1:5353", "10.1.0.2:5353"]));
        let cases = [
            ("an endpoint", "10.0.0.10:53", "10.1.0.1:5353", false),
            ("an endpoint that serves but is not chosen", "10.0.0.10:53", "10.1.0.2:5353", false),
            ("an endpoint that is gone", "10.0.0.10:53", "10.1.0.9:5353", true),
            ("another port of an endpoint", "10.0.0.10:53", "10.1.0.1:53", true),
            ("nobody yet", "10.0.0.10:53", "10.0.0.10:53", true),
            ("another port of the address", "10.0.0.10:54", "10.1.0.9:5353", false),
            ("an external address", "192.0.2.7:53", "10.1.0.9:5353", true),
            ("a node port", "192.0.2.1:30053", "10.1.0.9:5353", true),
            ("a node port with an endpoint", "192.0.2.1:30053", "10.1.0.2:5353", false),
            ("no service", "192.0.2.1:53", "192.0.2.1:53", false),
        ];
        for (name, destination, answers, stale) in cases {
            assert_eq!(serving.is_stale(&flow(destination, answers)), stale, "{name}");
        }
    }

    #[test]
    fn nothing_is_stale_but_what_was_or_is_served_by_udp() {
        let tcp = Serving::of(&desired(Protocol::Tcp, &[]));
        assert_eq!(tcp, Serving::default());
        assert!(!tcp.is_stale(&flow("10.0.0.10:53", "10.1.0.9:5353")));
    }

    #[test]
    fn flows_to_removed_services_are_stale() {
        let before = Serving::of(&desired(Protocol::Udp, &["10.1.0.1:5353"]));
        let after = Serving::default().with_removed_of(Some(&before));
        assert!(after.is_stale(&flow("10.0.0.10:53", "10.1.0.1:5353")));
        assert!(after.is_stale(&flow("192.0.2.1:30053", "10.1.0.1:5353")));
        assert!(!Serving::default().with_removed_of(None).is_stale(&flow("10.0.0.10:53", "10.1.0.1:5353")));
    }
}
