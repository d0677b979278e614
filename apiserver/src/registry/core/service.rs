//! Service, with the fields that its strategy and its allocation depend on. Answers for upstream's
//! `pkg/registry/core/service`.

use std::net::IpAddr;

use crate::machinery::GroupResource;
use crate::printers;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable;
use crate::registry::strategy::{PLAIN, Strategy};
use crate::rules::names::NameRule;
use crate::validation;
use crate::validation::kind_rules::rules;
use crate::validation::strict_addresses::{AddressRules, annotated_ranges, ip_at, network_at};
use crate::validation::warnings;
use proto::Value;
use serde_json::Map;

pub(crate) const SERVICES: GroupResource<'static> = GroupResource::new("", "services");

pub(crate) static KIND: KindDefinition = KindDefinition::new(SERVICES)
    .addresses(
        AddressRules::of(&[
            ip_at("status.loadBalancer.ingress.*.ip").with("status").kept(),
            ip_at("spec.clusterIPs.*").kept(),
            ip_at("spec.externalIPs.*").kept(),
            network_at("spec.loadBalancerSourceRanges=LoadBalancerSourceRanges.*").kept(),
        ])
        .more(annotated_ranges),
    )
    .strategy(Strategy {
        create_on_update: true,
        prepare_update: Some(crate::registry::core::service_update::prepare),
        ..PLAIN
    })
    .rules(
        rules(validation::service::create)
            .named(NameRule::Service)
            .update(validation::service::update)
            .status(validation::service::status),
    )
    .warns(|new, _, out| warnings::networking::service(new, out))
    .warns_of_status(|new, _, out| warnings::networking::service_status(new, out))
    .cells(printers::network::service)
    .selectable(&[
        selectable::text("spec.clusterIP", &["/spec/clusterIP"]),
        selectable::text("spec.type", &["/spec/type"]),
    ]);

/// `spec` of a Service.
pub(crate) type Spec = Map<String, Value>;

pub(crate) fn text<'a>(spec: &'a Spec, key: &str) -> &'a str {
    spec.get(key).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn strings(spec: &Spec, key: &str) -> Vec<String> {
    spec.get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn needs_cluster_ip(spec: &Spec) -> bool {
    matches!(text(spec, "type"), "" | "ClusterIP" | "NodePort" | "LoadBalancer")
}

pub(crate) fn is_headless(spec: &Spec) -> bool {
    text(spec, "clusterIP") == "None" || strings(spec, "clusterIPs").first().is_some_and(|ip| ip == "None")
}

pub(crate) fn needs_node_ports(spec: &Spec) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true),
        _ => false,
    }
}

pub(crate) fn may_have_node_ports(spec: &Spec) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

pub(crate) fn needs_health_port(spec: &Spec) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

pub(crate) fn number(v: &Value) -> u16 {
    v.as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or(0)
}

/// The node port of each port, 0 where it has none.
pub(crate) fn ports_of(spec: &Spec) -> Vec<u16> {
    spec.get("ports").and_then(Value::as_array).into_iter().flatten().map(|p| number(&p["nodePort"])).collect()
}

/// The node ports that a service has, that of its health among them.
pub(crate) fn node_ports_of(spec: &Spec) -> Vec<u16> {
    let mut out = ports_of(spec);
    out.push(spec.get("healthCheckNodePort").map_or(0, number));
    out.retain(|p| *p != 0);
    out.sort_unstable();
    out.dedup();
    out
}

/// The cluster addresses that a service has.
pub(crate) fn ips_of(spec: &Spec) -> Vec<String> {
    let mut ips = strings(spec, "clusterIPs");
    if ips.is_empty() && !text(spec, "clusterIP").is_empty() {
        ips.push(text(spec, "clusterIP").to_owned());
    }
    ips.retain(|ip| ip != "None" && !ip.is_empty());
    ips
}

pub(crate) fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}
