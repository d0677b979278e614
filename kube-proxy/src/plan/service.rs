//! A service object as service ports, without endpoints.

use super::{Family, PortName, Protocol, ServicePort, TrafficPolicy};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use shared::address;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Seconds of client-IP affinity when the service does not say.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;

pub(super) fn key(service: &Service) -> Option<(&str, &str)> {
    Some((service.metadata.namespace.as_deref()?, service.metadata.name.as_deref()?))
}

/// The ports of a service that rules of this family are needed for: none for headless and
/// `ExternalName` services and those that another proxy looks after.
pub(super) fn ports(service: &Service, family: Family) -> Vec<(PortName, ServicePort)> {
    let (Some((namespace, name)), Some(spec)) = (key(service), &service.spec) else { return Vec::new() };
    let foreign = service.metadata.labels.as_ref().is_some_and(|labels| {
        labels.contains_key("service.kubernetes.io/service-proxy-name")
            || labels.contains_key("service.kubernetes.io/headless")
    });
    if foreign || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let Some(cluster_ip) = cluster_ip(spec, family) else { return Vec::new() };
    let balancer = load_balancer_ips(service, family);
    let mut found = Vec::new();
    for port in spec.ports.iter().flatten() {
        let Some(protocol) = Protocol::parse(port.protocol.as_deref().unwrap_or_default()) else { continue };
        let Some(number) = positive(port.port) else { continue };
        let name = PortName {
            namespace: namespace.to_owned(),
            service: name.to_owned(),
            port: port.name.clone().unwrap_or_default(),
            protocol,
        };
        let external = policy(spec.external_traffic_policy.as_deref());
        found.push((
            name,
            ServicePort {
                cluster_ip,
                port: number,
                node_port: port.node_port.and_then(positive),
                external_ips: addresses(spec.external_ips.as_deref(), family),
                load_balancer_ips: balancer.clone(),
                source_ranges: source_ranges(spec, family),
                affinity: affinity(spec),
                internal: policy(spec.internal_traffic_policy.as_deref()),
                external,
                health_check_node_port: spec
                    .health_check_node_port
                    .and_then(positive)
                    .filter(|_| external == TrafficPolicy::Local),
                cluster_endpoints: Vec::new(),
                local_endpoints: Vec::new(),
                has_endpoints: false,
                serving: Vec::new(),
                ready_local: BTreeSet::new(),
            },
        ));
    }
    found
}

fn positive(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

fn policy(name: Option<&str>) -> TrafficPolicy {
    if name == Some("Local") { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn cluster_ip(spec: &ServiceSpec, family: Family) -> Option<IpAddr> {
    let all = spec.cluster_ips.iter().flatten().chain(spec.cluster_ip.iter());
    all.filter_map(|ip| address::ip(ip)).find(|ip| family.holds(*ip))
}

fn addresses(list: Option<&[String]>, family: Family) -> Vec<IpAddr> {
    let parsed = list.unwrap_or_default().iter().filter_map(|ip| address::ip(ip));
    parsed.filter(|ip| family.holds(*ip)).collect()
}

/// Addresses with `ipMode: Proxy` are the balancer's own: traffic for them must leave the node.
fn load_balancer_ips(service: &Service, family: Family) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    let own = ingress.iter().filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    own.filter_map(|ingress| address::ip(ingress.ip.as_ref()?)).filter(|ip| family.holds(*ip)).collect()
}

/// None where everybody is among them.
fn source_ranges(spec: &ServiceSpec, family: Family) -> Vec<IpNet> {
    let ranges = spec.load_balancer_source_ranges.iter().flatten();
    let ranges: Vec<IpNet> =
        ranges.filter_map(|range| address::network(range.trim())).filter(|range| family.holds(range.addr())).collect();
    if ranges.iter().any(|range| range.prefix_len() == 0) { Vec::new() } else { ranges }
}

fn affinity(spec: &ServiceSpec) -> Option<u32> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let client = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client.and_then(|client| client.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    u32::try_from(seconds).ok()
}
