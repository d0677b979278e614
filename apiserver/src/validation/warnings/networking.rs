//! Services and what is behind them; addresses in odd spellings anywhere. Answers for upstream's
//! `GetWarningsForService`.

use proto::Value;
use shared::address::{ip_warning, network_warnings};
use shared::status::go_quote;

use crate::rules::meta::annotation;
use crate::rules::options::Warnings;
use crate::rules::tree::{get, has, list, text, texts};

/// An address of a field that takes any spelling.
pub(super) fn ip(value: &str, path: &str, out: &mut Warnings) {
    out.extend(ip_warning(value).map(|warning| format!("{path}: {warning}")));
}

/// A network of a field that takes any spelling.
pub(super) fn network(value: &str, path: &str, out: &mut Warnings) {
    out.extend(network_warnings(value).into_iter().map(|warning| format!("{path}: {warning}")));
}

pub(crate) fn service(new: &Value, out: &mut Warnings) {
    let spec = get(new, "spec");
    let external = texts(spec, "externalIPs");
    let (kind, balancer) = (text(spec, "type"), text(spec, "loadBalancerIP"));
    if has(get(get(new, "metadata"), "annotations"), "service.kubernetes.io/topology-aware-hints") {
        out.push("annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead".to_owned());
    }
    let mut own = texts(spec, "clusterIPs");
    if own.is_empty() {
        own.push(text(spec, "clusterIP"));
    }
    for (i, address) in own.iter().enumerate() {
        ip(address, &format!("spec.clusterIPs[{i}]"), out);
    }
    if kind == "ClusterIP" && text(spec, "clusterIP") == "None" {
        let ignored = [
            ("loadBalancerIP", !balancer.is_empty()),
            ("externalIPs", !external.is_empty()),
            ("SessionAffinity", text(spec, "sessionAffinity") != "None"),
        ];
        let ignored = ignored.iter().filter(|(_, set)| *set);
        out.extend(ignored.map(|(field, _)| format!("spec.{field} is ignored for headless services")));
    }
    for (i, address) in external.iter().enumerate() {
        ip(address, &format!("spec.externalIPs[{i}]"), out);
    }
    ip(balancer, "spec.loadBalancerIP", out);
    for (i, range) in texts(spec, "loadBalancerSourceRanges").iter().enumerate() {
        network(range, &format!("spec.loadBalancerSourceRanges[{i}]"), out);
    }
    if kind == "ExternalName" && !external.is_empty() {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !text(spec, "externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
}

pub(crate) fn service_status(new: &Value, out: &mut Warnings) {
    let ingress = list(get(get(new, "status"), "loadBalancer"), "ingress");
    for (i, entry) in ingress.iter().enumerate() {
        ip(text(entry, "ip"), &format!("status.loadBalancer.ingress[{i}]"), out);
    }
}

pub(crate) fn pod_status(new: &Value, out: &mut Warnings) {
    for key in ["podIPs", "hostIPs"] {
        for (i, entry) in list(get(new, "status"), key).iter().enumerate() {
            ip(text(entry, "ip"), &format!("status.{key}[{i}].ip"), out);
        }
    }
}

/// The controller mends the spellings that it finds.
pub(crate) fn endpoints(new: &Value, out: &mut Warnings) {
    if is_managed_by(new, "endpoints.kubernetes.io/managed-by", &["endpoint-controller"]) {
        return;
    }
    for (i, subset) in list(new, "subsets").iter().enumerate() {
        for key in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(subset, key).iter().enumerate() {
                ip(text(address, "ip"), &format!("subsets[{i}].{key}[{j}].ip"), out);
            }
        }
    }
}

/// Warns like [`endpoints`].
pub(crate) fn slice(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    const CONTROLLERS: &[&str] = &["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    if text(new, "addressType") == "FQDN" {
        if old.is_none() {
            out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        return;
    }
    if is_managed_by(new, "endpointslice.kubernetes.io/managed-by", CONTROLLERS) {
        return;
    }
    for (i, endpoint) in list(new, "endpoints").iter().enumerate() {
        for (j, address) in texts(endpoint, "addresses").iter().enumerate() {
            ip(address, &format!("endpoints[{i}].addresses[{j}]"), out);
        }
    }
}

pub(crate) fn policy(new: &Value, out: &mut Warnings) {
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list(get(new, "spec"), direction).iter().enumerate() {
            for (j, peer) in list(rule, peers).iter().enumerate() {
                let (block, path) = (get(peer, "ipBlock"), format!("spec.{direction}[{i}].{peers}[{j}].ipBlock"));
                network(text(block, "cidr"), &format!("{path}.cidr"), out);
                for (k, except) in texts(block, "except").iter().enumerate() {
                    network(except, &format!("{path}.except[{k}]"), out);
                }
            }
        }
    }
}

pub(crate) fn ingress(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    const CLASS: &str = "kubernetes.io/ingress.class";
    if old.is_none() && !annotation(new, CLASS).is_empty() {
        let advice = "is deprecated, please use 'spec.ingressClassName' instead";
        out.push(format!("annotation {} {advice}", go_quote(CLASS)));
    }
}

fn is_managed_by(object: &Value, label: &str, controllers: &[&str]) -> bool {
    controllers.contains(&text(get(get(object, "metadata"), "labels"), label))
}
