//! Endpoints of a service port that this node sends traffic to: readiness, termination, locality and topology hints.

use super::{Endpoint, NodeFacts, PortName, Protocol, ServicePort, TrafficPolicy};
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use shared::address;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The service that a slice belongs to.
pub(super) fn service_of(slice: &EndpointSlice) -> Option<(&str, &str)> {
    let name = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
    Some((slice.metadata.namespace.as_deref()?, name))
}

/// An endpoint with what decides about its use.
#[derive(Clone, Debug)]
struct Candidate {
    endpoint: Endpoint,
    ready: bool,
    serving: bool,
    terminating: bool,
    zones: Vec<String>,
    nodes: Vec<String>,
}

/// An endpoint of a service port, and what traffic from this node has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Conditions: ready, serving, terminating.
    pub conditions: [bool; 3],
    /// For traffic of cluster policy.
    pub cluster: EndpointUse,
    /// For traffic of local policy.
    pub local: EndpointUse,
}

/// Use of an endpoint, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointUse {
    /// Gets connections.
    Chosen,
    /// Gets connections although it terminates, as no endpoint is ready.
    LastResort,
    /// Is not ready.
    NotReady,
    /// Terminates, and others are ready.
    Terminating,
    /// Is on another node.
    OtherNode,
    /// Hints are for these nodes.
    HintedToNodes(Vec<String>),
    /// Hints are for these zones.
    HintedToZones(Vec<String>),
}

/// Tells about every endpoint of a service port what [`fill`] makes of it.
pub(super) fn judge(name: &PortName, slices: &[&EndpointSlice], node: &NodeFacts) -> Vec<Judged> {
    let candidates = candidates(name, slices, node);
    let cluster = endpoints(&chosen(&candidates, node));
    let local = endpoints(&usable(candidates.iter().filter(|candidate| candidate.endpoint.local)));
    let any_ready = candidates.iter().any(|candidate| candidate.ready);
    let of = |candidate: &Candidate, chosen: &[Endpoint], is_local: bool| match candidate {
        _ if chosen.contains(&candidate.endpoint) && candidate.ready => EndpointUse::Chosen,
        _ if chosen.contains(&candidate.endpoint) => EndpointUse::LastResort,
        _ if is_local && !candidate.endpoint.local => EndpointUse::OtherNode,
        Candidate { ready: false, serving: true, terminating: true, .. } if any_ready => EndpointUse::Terminating,
        Candidate { ready: false, .. } => EndpointUse::NotReady,
        // A ready one that is not chosen is hinted away; hints for nodes are asked first.
        Candidate { nodes, zones, .. } => match chosen.iter().any(|other| is_hinted(&candidates, other, node)) {
            true => EndpointUse::HintedToNodes(nodes.clone()),
            false => EndpointUse::HintedToZones(zones.clone()),
        },
    };
    let judged = |candidate: &Candidate| Judged {
        endpoint: candidate.endpoint,
        conditions: [candidate.ready, candidate.serving, candidate.terminating],
        cluster: of(candidate, &cluster, false),
        local: of(candidate, &local, true),
    };
    candidates.iter().map(judged).collect()
}

/// Reports whether hints send this node to an endpoint, and not only its zone.
fn is_hinted(candidates: &[Candidate], endpoint: &Endpoint, node: &NodeFacts) -> bool {
    let complete = candidates.iter().filter(|candidate| candidate.ready).all(|candidate| !candidate.nodes.is_empty());
    complete && candidates.iter().any(|c| c.endpoint == *endpoint && c.nodes.contains(&node.name))
}

/// Fills in the endpoints of one service port.
pub(super) fn fill(port: &mut ServicePort, name: &PortName, slices: &[&EndpointSlice], node: &NodeFacts) {
    let candidates = candidates(name, slices, node);
    if port.uses(TrafficPolicy::Cluster) {
        port.cluster_endpoints = endpoints(&chosen(&candidates, node));
    }
    if port.uses(TrafficPolicy::Local) {
        port.local_endpoints = endpoints(&usable(candidates.iter().filter(|candidate| candidate.endpoint.local)));
    }
    if port.health_check_node_port.is_some() {
        let ready = candidates.iter().filter(|candidate| candidate.endpoint.local && candidate.ready);
        port.ready_local = ready.map(|candidate| candidate.endpoint.address).collect();
    }
    port.has_endpoints = !usable(candidates.iter()).is_empty();
    if name.protocol == Protocol::Udp {
        let serving = candidates.iter().filter(|candidate| candidate.serving);
        port.serving =
            serving.map(|candidate| SocketAddr::new(candidate.endpoint.address, candidate.endpoint.port)).collect();
    }
}

fn candidates(name: &PortName, slices: &[&EndpointSlice], node: &NodeFacts) -> Vec<Candidate> {
    let mut found: BTreeMap<(IpAddr, u16), Candidate> = BTreeMap::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten().filter(|port| {
            let protocol = Protocol::parse(port.protocol.as_deref().unwrap_or_default());
            port.name.as_deref().unwrap_or_default() == name.port && protocol == Some(name.protocol)
        });
        for number in ports.filter_map(|port| u16::try_from(port.port?).ok()).filter(|port| *port > 0) {
            for endpoint in &slice.endpoints {
                let Some(candidate) = candidate(endpoint, number, node) else { continue };
                let key = (candidate.endpoint.address, number);
                // While an endpoint moves between slices it is in both; the better news counts.
                match found.get(&key) {
                    Some(known) if known.ready || !candidate.ready => {}
                    _ => {
                        found.insert(key, candidate);
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

fn candidate(endpoint: &SliceEndpoint, port: u16, node: &NodeFacts) -> Option<Candidate> {
    let address = address::ip(endpoint.addresses.first()?)?;
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).unwrap_or_default();
    Some(Candidate {
        endpoint: Endpoint { address, port, local: endpoint.node_name.as_deref() == Some(node.name.as_str()) },
        ready,
        serving: conditions.and_then(|conditions| conditions.serving).unwrap_or(true),
        terminating: conditions.and_then(|conditions| conditions.terminating).unwrap_or(false),
        zones: zones.iter().map(|zone| zone.name.clone()).collect(),
        nodes: nodes.iter().map(|node| node.name.clone()).collect(),
    })
}

/// The ready ones; when none is, those that still serve while they terminate (KEP-1669).
fn usable<'a>(candidates: impl Iterator<Item = &'a Candidate> + Clone) -> Vec<&'a Candidate> {
    let ready: Vec<_> = candidates.clone().filter(|candidate| candidate.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    candidates.filter(|candidate| candidate.serving && candidate.terminating).collect()
}

/// The usable ones for traffic of cluster policy. Hints are for the ready ones: what terminates is taken from anywhere.
fn chosen<'a>(candidates: &'a [Candidate], node: &NodeFacts) -> Vec<&'a Candidate> {
    let ready: Vec<_> = candidates.iter().filter(|candidate| candidate.ready).collect();
    if ready.is_empty() { usable(candidates.iter()) } else { near(ready, node) }
}

/// Follows hints for this node, then for its zone; hints count only when every endpoint
/// has one and at least one is for us, so that an incomplete slice never hides endpoints.
fn near<'a>(candidates: Vec<&'a Candidate>, node: &NodeFacts) -> Vec<&'a Candidate> {
    let complete = |hints: fn(&Candidate) -> &[String]| candidates.iter().all(|candidate| !hints(candidate).is_empty());
    if complete(|candidate| &candidate.nodes) {
        let chosen: Vec<_> = candidates.iter().copied().filter(|c| c.nodes.contains(&node.name)).collect();
        if !chosen.is_empty() {
            return chosen;
        }
    }
    if let Some(zone) = &node.zone
        && complete(|candidate| &candidate.zones)
    {
        let chosen: Vec<_> = candidates.iter().copied().filter(|c| c.zones.contains(zone)).collect();
        if !chosen.is_empty() {
            return chosen;
        }
    }
    candidates
}

fn endpoints(candidates: &[&Candidate]) -> Vec<Endpoint> {
    candidates.iter().map(|candidate| candidate.endpoint).collect()
}
