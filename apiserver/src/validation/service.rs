//! Services. Addresses and node ports are allocated after this. Answers for upstream's `ValidateService`,
//! `ValidateServiceUpdate`.

use std::collections::BTreeSet;

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::fields::choice;
use super::meta;
use super::names::{
    between, cidr, complain, dns1123_label, dns1123_subdomain, ip, port_number, qualified_name, special_ip,
};
use super::networking;
use super::pod::handlers::port_or_name;
use super::tree::{at, get, has, int, list, text, texts};
use crate::rules::options::FieldErrors;

/// Annotation of a load balancer's allowed source ranges.
pub(super) const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const BALANCED_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";

fn is_headless(spec: &Value) -> bool {
    addresses(spec) == ["None"]
}

/// The cluster addresses, whichever of the two fields holds them.
fn addresses(spec: &Value) -> Vec<&str> {
    let all = texts(spec, "clusterIPs");
    match text(spec, "clusterIP") {
        one if all.is_empty() && !one.is_empty() => vec![one],
        _ => all,
    }
}

/// A service.
pub(crate) fn create(object: &Value, out: &mut FieldErrors) {
    topology(object, out);
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let kind = text(spec, "type");
    let headless = is_headless(spec);
    if list(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        out.push(Error::required(path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let message = format!("may not be set to 'None' for {kind} services");
            out.push(Error::invalid(path.child("clusterIPs").index(0), "None", &message));
        }
        "ExternalName" => external_name(spec, &path, out),
        _ => {}
    }
    ports(spec, &path.child("ports"), out);
    meta::labels(spec, "selector", &path.child("selector"), out);
    choice(spec, "sessionAffinity", &["ClientIP", "None"], &path, out);
    affinity(spec, &path.child("sessionAffinityConfig"), out);
    cluster_ips(spec, &path, out);
    for (i, address) in texts(spec, "externalIPs").iter().enumerate() {
        let path = path.child("externalIPs").index(i);
        if ip(out, &path, address).is_some() {
            special_ip(out, &path, address);
        }
    }
    choice(spec, "type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], &path, out);
    node_ports(spec, &path.child("ports"), out);
    load_balancer(spec, at(object, &["metadata", "annotations"]), &path, out);
    policies(spec, &path, out);
}

/// Two annotations for one thing agree.
fn topology(object: &Value, out: &mut FieldErrors) {
    const OLD: &str = "service.kubernetes.io/topology-aware-hints";
    const NEW: &str = "service.kubernetes.io/topology-mode";
    let annotations = at(object, &["metadata", "annotations"]);
    if has(annotations, OLD) && has(annotations, NEW) && text(annotations, OLD) != text(annotations, NEW) {
        let why = format!("must match annotations[{OLD}] when both are specified");
        let path = Path::of(&["metadata", "annotations"]).key(NEW);
        out.push(Error::invalid(path, text(annotations, NEW), &why));
    }
}

fn external_name(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let message = "may not be set for ExternalName services";
    if !addresses(spec).is_empty() {
        out.push(Error::forbidden(path.child("clusterIPs"), message));
    }
    if !list(spec, "ipFamilies").is_empty() {
        out.push(Error::forbidden(path.child("ipFamilies"), message));
    }
    if has(spec, "ipFamilyPolicy") {
        out.push(Error::forbidden(path.child("ipFamilyPolicy"), message));
    }
    let name = text(spec, "externalName");
    match name.strip_suffix('.').unwrap_or(name) {
        "" => out.push(Error::required(path.child("externalName"), "")),
        name => complain(out, &path.child("externalName"), name, dns1123_subdomain(name)),
    }
}

fn ports(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let all = list(spec, "ports");
    let mut names = BTreeSet::new();
    for (i, port) in all.iter().enumerate() {
        let path = path.index(i);
        let name = text(port, "name");
        if name.is_empty() {
            if all.len() > 1 {
                out.push(Error::required(path.child("name"), ""));
            }
        } else {
            complain(out, &path.child("name"), name, dns1123_label(name));
            if !names.insert(name) {
                out.push(Error::duplicate(path.child("name"), name));
            }
        }
        let number = int(port, "port").unwrap_or_default();
        out.extend(port_number(number).into_iter().map(|m| Error::invalid(path.child("port"), number, &m)));
        choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, out);
        port_or_name(get(port, "targetPort"), &path.child("targetPort"), out);
        if has(port, "appProtocol") {
            let protocol = text(port, "appProtocol");
            complain(out, &path.child("appProtocol"), protocol, qualified_name(protocol));
        }
    }
}

fn affinity(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let config = get(spec, "sessionAffinityConfig");
    match text(spec, "sessionAffinity") {
        "ClientIP" => {
            let seconds = at(config, &["clientIP", "timeoutSeconds"]);
            let message = "when session affinity type is ClientIP";
            if config.is_null() {
                out.push(Error::required(path, message));
            } else if get(config, "clientIP").is_null() {
                out.push(Error::required(path.child("clientIP"), message));
            } else if seconds.is_null() {
                out.push(Error::required(path.child("clientIP").child("timeoutSeconds"), message));
            } else if let Some(value) = seconds.as_i64().filter(|s| !(1..=86_400).contains(s)) {
                let message = "must be greater than 0 and less than 86400";
                out.push(Error::invalid(path.child("clientIP").child("timeoutSeconds"), value, message));
            }
        }
        "None" if !config.is_null() => {
            out.push(Error::forbidden(path, "must not be set when session affinity is None"));
        }
        _ => {}
    }
}

/// Validates a new service's addresses and families, before anything is allocated.
pub fn addressed(object: &Value) -> Vec<Error> {
    let mut out = FieldErrors::default();
    cluster_ips(get(object, "spec"), &Path::new("spec"), &mut out);
    out.into_vec()
}

fn cluster_ips(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let (one, all) = (text(spec, "clusterIP"), texts(spec, "clusterIPs"));
    let list_path = path.child("clusterIPs");
    if let Some(first) = all.first() {
        if one.is_empty() {
            out.push(Error::invalid(&list_path, json!(all), "must be empty when `clusterIP` is not specified"));
        } else if *first != one {
            out.push(Error::invalid(&list_path, json!(all), "first value must match `clusterIP`"));
        }
    }
    let families = texts(spec, "ipFamilies");
    for (i, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(i);
        if !matches!(*family, "IPv4" | "IPv6") {
            out.push(Error::not_supported(&path, *family, &["IPv4", "IPv6"]));
        }
        if families[..i].contains(family) {
            out.push(Error::duplicate(&path, *family));
        }
    }
    let policy = text(spec, "ipFamilyPolicy");
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if has(spec, "ipFamilyPolicy") && !policies.contains(&policy) {
        out.push(Error::not_supported(path.child("ipFamilyPolicy"), policy, &policies));
    }
    let effective = addresses(spec);
    if is_headless(spec) {
        return;
    }
    let none = usize::from(effective.first() == Some(&"None"));
    if none > 0 {
        out.push(Error::invalid(&list_path, json!(effective), "'None' must be the first and only value"));
    }
    let after = effective.iter().enumerate().skip(none);
    let parsed: Vec<_> = after.filter_map(|(i, one)| ip(out, &list_path.index(i), one)).collect();
    if effective.len() > 2 {
        out.push(Error::invalid(&list_path, json!(effective), "may only hold up to 2 values"));
    }
    if parsed.len() < effective.len() {
        return;
    }
    if parsed.len() > 1 && parsed.iter().all(|one| one.is_ipv4() == parsed[0].is_ipv4()) {
        let why = "may specify no more than one IP for each IP family";
        out.push(Error::invalid(&list_path, json!(effective), why));
    }
    for (i, (address, family)) in parsed.iter().zip(&families).enumerate() {
        if matches!(*family, "IPv4" | "IPv6") && address.is_ipv4() != (*family == "IPv4") {
            let why = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            out.push(Error::invalid(list_path.index(i), effective[i], &why));
        }
    }
}

fn node_ports(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (mut nodes, mut ports) = (BTreeSet::new(), BTreeSet::new());
    let all = list(spec, "ports");
    if text(spec, "type") == "ClusterIP" {
        for (i, _) in all.iter().enumerate().filter(|(_, p)| int(p, "nodePort").unwrap_or_default() != 0) {
            let message = "may not be used when `type` is 'ClusterIP'";
            out.push(Error::forbidden(path.index(i).child("nodePort"), message));
        }
    }
    for (i, port) in all.iter().enumerate() {
        let number = int(port, "nodePort").unwrap_or_default();
        if number != 0 && !nodes.insert((text(port, "protocol"), number)) {
            out.push(Error::duplicate(path.index(i).child("nodePort"), number));
        }
    }
    for (i, port) in all.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), int(port, "port").unwrap_or_default());
        if !ports.insert((protocol, number)) {
            out.push(Error::duplicate(path.index(i), json!({"protocol": protocol, "port": number})));
        }
    }
}

fn load_balancer(spec: &Value, annotations: &Value, path: &Path, out: &mut FieldErrors) {
    let balanced = text(spec, "type") == "LoadBalancer";
    let ranges = texts(spec, "loadBalancerSourceRanges");
    let ranges_path = path.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !balanced {
        out.push(Error::forbidden(&ranges_path, BALANCED_ONLY));
    }
    for (i, range) in ranges.iter().enumerate() {
        cidr(out, &ranges_path.index(i), range.trim());
    }
    if ranges.is_empty() && has(annotations, SOURCE_RANGES) {
        let (given, path) =
            (text(annotations, SOURCE_RANGES), Path::of(&["metadata", "annotations"]).key(SOURCE_RANGES));
        if !balanced {
            out.push(Error::forbidden(&path, BALANCED_ONLY));
        }
        for range in given.trim().split(',').filter(|_| !given.trim().is_empty()) {
            cidr(out, &path, range.trim());
        }
    }
    if has(spec, "allocateLoadBalancerNodePorts") && !balanced {
        out.push(Error::forbidden(path.child("allocateLoadBalancerNodePorts"), BALANCED_ONLY));
    }
    balancer_class(spec, path, out);
}

/// `loadBalancerClass` by itself.
fn balancer_class(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if !has(spec, "loadBalancerClass") {
        return;
    }
    let (class, path) = (text(spec, "loadBalancerClass"), path.child("loadBalancerClass"));
    if text(spec, "type") == "LoadBalancer" {
        complain(out, &path, class, qualified_name(class));
    } else {
        out.push(Error::forbidden(path, BALANCED_ONLY));
    }
}

fn is_external(spec: &Value) -> bool {
    let kind = text(spec, "type");
    matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && !list(spec, "externalIPs").is_empty())
}

fn policies(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let external = text(spec, "externalTrafficPolicy");
    let external_path = path.child("externalTrafficPolicy");
    match (is_external(spec), external) {
        (_, "") => {}
        (false, _) => {
            out.push(Error::invalid(&external_path, external, "may only be set for externally-accessible services"));
        }
        (true, "Cluster" | "Local") => {}
        (true, other) => out.push(Error::not_supported(&external_path, other, &["Cluster", "Local"])),
    }
    let port = int(spec, "healthCheckNodePort").unwrap_or_default();
    let checked = text(spec, "type") == "LoadBalancer" && external == "Local";
    if port != 0 && !checked {
        let message = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        out.push(Error::invalid(path.child("healthCheckNodePort"), port, message));
    } else if port != 0 && !(1..=65535).contains(&port) {
        out.push(Error::invalid(path.child("healthCheckNodePort"), port, &between(1, 65535)));
    }
    let internal = text(spec, "internalTrafficPolicy");
    if has(spec, "internalTrafficPolicy") && !matches!(internal, "Cluster" | "Local") {
        out.push(Error::not_supported(path.child("internalTrafficPolicy"), internal, &["Cluster", "Local"]));
    }
    let distribution = text(spec, "trafficDistribution");
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if has(spec, "trafficDistribution") && !known.contains(&distribution) {
        out.push(Error::not_supported(path.child("trafficDistribution"), distribution, &known));
    }
}

/// Validates an update of a service.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    let (class, was) = (get(spec, "loadBalancerClass"), get(before, "loadBalancerClass"));
    if text(spec, "type") == "LoadBalancer" && text(before, "type") == "LoadBalancer" && class != was {
        out.push(Error::invalid(path.child("loadBalancerClass"), class.clone(), "may not change once set"));
    }
    // Upstream looks at it here as well.
    balancer_class(spec, &path, out);
    if text(spec, "type") == "ExternalName" || text(before, "type") == "ExternalName" {
        return;
    }
    let (now, was) = (addresses(spec), addresses(before));
    // Addresses left out are taken over from the stored service later on.
    let headless = is_headless(spec) && is_headless(before);
    if !now.is_empty() && !headless {
        let list_path = path.child("clusterIPs");
        for (i, address) in was.iter().enumerate() {
            if now.get(i).is_some_and(|n| n != address) {
                out.push(Error::invalid(list_path.index(i), json!(now), "may not change once set"));
            }
        }
        if was.len() > now.len() && text(spec, "ipFamilyPolicy") != "SingleStack" {
            let message = "must be set to 'SingleStack' when releasing the secondary clusterIP";
            out.push(Error::invalid(path.child("ipFamilyPolicy"), get(spec, "ipFamilyPolicy").clone(), message));
        }
    }
    families_stay(spec, before, &path, out);
    let health = |s: &Value| int(s, "healthCheckNodePort").unwrap_or_default();
    let checked = |s: &Value| text(s, "type") == "LoadBalancer" && text(s, "externalTrafficPolicy") == "Local";
    if checked(before) && checked(spec) && ![0, health(before)].contains(&health(spec)) {
        out.push(Error::forbidden(path.child("healthCheckNodePort"), "field is immutable"));
    }
}

/// The first family of a service stays; the second one goes only where nothing but one is asked for.
fn families_stay(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    let (now, was) = (texts(spec, "ipFamilies"), texts(before, "ipFamilies"));
    if now.is_empty() || is_headless(spec) || is_headless(before) {
        return;
    }
    let list_path = path.child("ipFamilies").index(0);
    let once = "may not change once set";
    if now.len() == was.len() {
        for _ in now.iter().zip(&was).filter(|(a, b)| a != b) {
            out.push(Error::invalid(&list_path, json!(now), once));
        }
        return;
    }
    if was.first().is_some_and(|first| now.first() != Some(first)) {
        out.push(Error::invalid(&list_path, json!(addresses(spec)), once));
    }
    if now.len() == 1 && was.len() > 1 && text(spec, "ipFamilyPolicy") != "SingleStack" {
        let why = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        out.push(Error::invalid(path.child("ipFamilyPolicy"), get(spec, "ipFamilyPolicy").clone(), why));
    }
}

/// `status`: where a load balancer answers.
pub(crate) fn status(new: &Value, old: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["status", "loadBalancer", "ingress"]);
    let of = |service| list(at(service, &["status", "loadBalancer"]), "ingress");
    let (entries, before) = (of(new), of(old));
    if text(get(new, "spec"), "type") != "LoadBalancer" && !entries.is_empty() {
        out.push(Error::forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'"));
        return;
    }
    for (i, entry) in entries.iter().enumerate() {
        let path = path.index(i);
        let (address, mode) = (text(entry, "ip"), text(entry, "ipMode"));
        // What is there may stay.
        if !address.is_empty() && !before.iter().any(|entry| text(entry, "ip") == address) {
            ip(out, &path.child("ip"), address);
        }
        if address.is_empty() && has(entry, "ipMode") {
            out.push(Error::forbidden(path.child("ipMode"), "may not be specified when `ip` is not set"));
        } else if !address.is_empty() && !has(entry, "ipMode") {
            out.push(Error::required(path.child("ipMode"), "must be specified when `ip` is set"));
        } else if has(entry, "ipMode") && !matches!(mode, "Proxy" | "VIP") {
            out.push(Error::not_supported(path.child("ipMode"), mode, &["Proxy", "VIP"]));
        }
        networking::host_not_address(text(entry, "hostname"), &path.child("hostname"), out);
    }
}
