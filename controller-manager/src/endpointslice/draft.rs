//! Endpoints of a slice before they are written: what is said of each pod. Answers for upstream's `podToEndpoint`.

use k8s_openapi::api::core::v1::{Node, Service, ServiceSpec};
use proto::numbers::discovery_v1::{endpoint, endpoint_conditions, endpoint_hints, endpoint_port, for_node, for_zone};
use proto::protobuf::{write_bytes, write_nested, write_number};

use crate::engine::nodes::ZONE;
use crate::engine::pod::Pod;
use crate::engine::services::{self, Port};
use crate::engine::{object, pods};

/// The ways in which a service may want its traffic distributed.
pub const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];

/// Zones and nodes that an endpoint should be used from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints<'a> {
    /// Name of the zone.
    pub zone: Option<&'a str>,
    /// Name of the node.
    pub node: Option<&'a str>,
}

/// An endpoint.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    pod: &'a Pod,
    /// Of which family its addresses are.
    v6: bool,
    /// May be used.
    pub ready: bool,
    serving: bool,
    hostname: Option<&'a str>,
    /// The zone of its node.
    pub zone: Option<&'a str>,
    /// From where it should be used.
    pub hints: Option<Hints<'a>>,
}

impl<'a> Draft<'a> {
    /// Drafts the endpoint of a service's pod; nothing where it has no address of the family.
    #[must_use]
    pub fn of(
        service: &'a Service,
        spec: &ServiceSpec,
        pod: &'a Pod,
        node: Option<&'a Node>,
        family: &str,
    ) -> Option<Self> {
        let serving = pods::ready(pod);
        let publish = spec.publish_not_ready_addresses == Some(true);
        let ready = publish || (serving && !object::deleting(&pod.metadata));
        let zone = node.and_then(|n| object::label(&n.metadata, ZONE)).filter(|zone| !zone.is_empty());
        let hints = hints(spec, ready, zone, pods::node(pod));
        let hostname = services::hostname(pod, service);
        let draft = Self { pod, v6: family == "IPv6", ready, serving, hostname, zone, hints };
        let has_any = draft.addresses().next().is_some();
        has_any.then_some(draft)
    }

    /// Iterates over the addresses.
    pub fn addresses(&self) -> impl Iterator<Item = &'a str> {
        let v6 = self.v6;
        services::pod_ips(self.pod).filter(move |ip| ip.contains(':') == v6)
    }

    /// A ready one.
    #[cfg(test)]
    pub fn ready(pod: &'a Pod, zone: &'a str) -> Self {
        Self { pod, v6: false, ready: true, serving: true, hostname: None, zone: Some(zone), hints: None }
    }

    /// Writes it.
    pub fn write(&self, out: &mut Vec<u8>) {
        for ip in self.addresses() {
            write_bytes(endpoint::ADDRESSES, ip.as_bytes(), out);
        }
        let terminating = object::deleting(&self.pod.metadata);
        write_nested(endpoint::CONDITIONS, out, |out| {
            use endpoint_conditions::{READY, SERVING, TERMINATING};
            for (number, is) in [(READY, self.ready), (SERVING, self.serving), (TERMINATING, terminating)] {
                write_number(number, i64::from(is), out);
            }
        });
        write_some(endpoint::HOSTNAME, self.hostname, out);
        write_nested(endpoint::TARGET_REF, out, |out| services::write_pod_reference(self.pod, out));
        write_some(endpoint::NODE_NAME, Some(pods::node(self.pod)).filter(|node| !node.is_empty()), out);
        write_some(endpoint::ZONE, self.zone, out);
        let Some(hints) = self.hints else { return };
        write_nested(endpoint::HINTS, out, |out| {
            if let Some(zone) = hints.zone {
                write_nested(endpoint_hints::FOR_ZONES, out, |out| write_bytes(for_zone::NAME, zone.as_bytes(), out));
            }
            if let Some(node) = hints.node {
                write_nested(endpoint_hints::FOR_NODES, out, |out| write_bytes(for_node::NAME, node.as_bytes(), out));
            }
        });
    }
}

/// Writes a port. A slice always names its ports, if only with the empty name.
pub fn write_port(port: &Port<'_>, out: &mut Vec<u8>) {
    write_bytes(endpoint_port::NAME, port.name.as_bytes(), out);
    write_bytes(endpoint_port::PROTOCOL, port.protocol.as_bytes(), out);
    write_number(endpoint_port::PORT, port.number.into(), out);
    write_some(endpoint_port::APP_PROTOCOL, Some(port.app_protocol).filter(|p| !p.is_empty()), out);
}

fn write_some(number: u32, text: Option<&str>, out: &mut Vec<u8>) {
    if let Some(text) = text {
        write_bytes(number, text.as_bytes(), out);
    }
}

/// Returns where a ready endpoint should be used from, when the service asks to keep traffic close.
fn hints<'a>(spec: &ServiceSpec, ready: bool, zone: Option<&'a str>, node: &'a str) -> Option<Hints<'a>> {
    // The annotation for hints by topology, if there is one, comes before this field.
    let wish = spec.traffic_distribution.as_deref().filter(|_| ready)?;
    let node = Some(node).filter(|n| wish == "PreferSameNode" && !n.is_empty());
    DISTRIBUTIONS.contains(&wish).then_some(Hints { zone, node }).filter(|h| h.zone.is_some() || h.node.is_some())
}
