//! Ingresses, ingress classes, network policies.

use std::net::IpAddr;

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{cidr, complain, dns1035_label, dns1123_subdomain, pattern, port_name, port_number};
use super::pod::handlers::port_or_name;
use super::selectors::label_selector;
use super::tree::{get, has, int, list, text, texts};

/// An ingress.
pub(super) fn ingress(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if list(spec, "rules").is_empty() && !has(spec, "defaultBackend") {
        let message = "either `defaultBackend` or `rules` must be specified";
        out.push(Error::invalid(&path, spec.clone(), message));
    }
    if has(spec, "defaultBackend") {
        backend(get(spec, "defaultBackend"), &path.child("defaultBackend"), out);
    }
    for (i, rule) in list(spec, "rules").iter().enumerate() {
        ingress_rule(rule, &path.child("rules").index(i), out);
    }
    for (i, tls) in list(spec, "tls").iter().enumerate() {
        let path = path.child("tls").index(i);
        for (j, host) in texts(tls, "hosts").iter().enumerate() {
            complain(out, &path.child("hosts").index(j), host, host_name(host));
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            complain(out, &path.child("secretName"), secret, dns1123_subdomain(secret));
        }
    }
    let class = text(spec, "ingressClassName");
    if has(spec, "ingressClassName") {
        complain(out, &path.child("ingressClassName"), class, dns1123_subdomain(class));
        let annotation = super::meta::annotation(object, "kubernetes.io/ingress.class");
        if !annotation.is_empty() && annotation != class {
            let path = Path::of(&["metadata", "annotations"]).child("kubernetes.io/ingress.class");
            out.push(Error::invalid(path, annotation, "must match `ingressClassName` when both are specified"));
        }
    }
}

/// A host, where `*` may stand for the first label.
fn host_name(host: &str) -> Vec<String> {
    if !host.contains('*') {
        return dns1123_subdomain(host);
    }
    match host.strip_prefix("*.") {
        Some(rest) if dns1123_subdomain(rest).is_empty() => Vec::new(),
        _ => {
            let message = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
            let regex = "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
            vec![pattern(message, regex, &["*.example.com"])]
        }
    }
}

fn ingress_rule(rule: &Value, path: &Path, out: &mut Vec<Error>) {
    let host = text(rule, "host");
    if !host.is_empty() {
        if host.parse::<IpAddr>().is_ok() {
            out.push(Error::invalid(path.child("host"), host, "must be a DNS name, not an IP address"));
        } else {
            complain(out, &path.child("host"), host, host_name(host));
        }
    }
    if !has(rule, "http") {
        return;
    }
    let path = path.child("http").child("paths");
    let paths = list(get(rule, "http"), "paths");
    if paths.is_empty() {
        out.push(Error::required(&path, ""));
    }
    for (i, one) in paths.iter().enumerate() {
        let path = path.index(i);
        ingress_path(one, &path, out);
        backend(get(one, "backend"), &path.child("backend"), out);
    }
}

fn ingress_path(one: &Value, path: &Path, out: &mut Vec<Error>) {
    let (kind, target) = (text(one, "pathType"), text(one, "path"));
    let at = path.child("path");
    match kind {
        "" => out.push(Error::required(path.child("pathType"), "pathType must be specified")),
        "Exact" | "Prefix" => {
            if !target.starts_with('/') {
                out.push(Error::invalid(&at, target, "must be an absolute path"));
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|b| target.contains(b)) {
                out.push(Error::invalid(&at, target, &format!("must not contain '{bad}'")));
            }
            for bad in ["/..", "/."].into_iter().filter(|b| target.ends_with(b)) {
                out.push(Error::invalid(&at, target, &format!("cannot end with '{bad}'")));
            }
        }
        "ImplementationSpecific" => {
            if !target.is_empty() && !target.starts_with('/') {
                out.push(Error::invalid(&at, target, "must be an absolute path"));
            }
        }
        other => {
            let supported = ["Exact", "ImplementationSpecific", "Prefix"];
            out.push(Error::not_supported(path.child("pathType"), other, &supported));
        }
    }
}

fn backend(backend: &Value, path: &Path, out: &mut Vec<Error>) {
    let (resource, service) = (has(backend, "resource"), has(backend, "service"));
    match (resource, service) {
        (true, true) => out.push(Error::invalid(path, "", "cannot set both resource and service backends")),
        (true, false) => {
            for key in ["kind", "name"] {
                if text(get(backend, "resource"), key).is_empty() {
                    out.push(Error::required(path.child("resource").child(key), ""));
                }
            }
        }
        (false, true) => {
            let service = get(backend, "service");
            match text(service, "name") {
                "" => out.push(Error::required(path.child("service").child("name"), "")),
                name => complain(out, &path.child("service").child("name"), name, dns1035_label(name)),
            }
            let port = get(service, "port");
            let number = int(port, "number").unwrap_or_default();
            match (text(port, "name"), number) {
                ("", 0) => out.push(Error::required(path, "port name or number is required")),
                ("", number) => {
                    let path = path.child("service").child("port").child("number");
                    out.extend(port_number(number).into_iter().map(|m| Error::invalid(&path, number, &m)));
                }
                (name, 0) => complain(out, &path.child("service").child("port").child("name"), name, port_name(name)),
                _ => out.push(Error::invalid(path, "", "cannot set both port name & port number")),
            }
        }
        (false, false) => out.push(Error::invalid(path, "", "resource or service backend is required")),
    }
}

/// An ingress class.
pub(super) fn ingress_class(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let controller = text(spec, "controller");
    if controller.is_empty() {
        out.push(Error::required(path.child("controller"), ""));
    } else {
        if controller.len() > 250 {
            out.push(Error::too_long(path.child("controller"), 250));
        }
        domain_path(controller, &path.child("controller"), out);
    }
    let parameters = get(spec, "parameters");
    if !parameters.is_null() {
        let path = path.child("parameters");
        for key in ["kind", "name"] {
            if text(parameters, key).is_empty() {
                out.push(Error::required(path.child(key), ""));
            }
        }
        match (text(parameters, "scope"), has(parameters, "namespace")) {
            ("Namespace", false) => {
                let message = "`parameters.scope` is set to 'Namespace'";
                out.push(Error::required(path.child("namespace"), message));
            }
            ("Cluster", true) => {
                let message = "`parameters.scope` is set to 'Cluster'";
                out.push(Error::forbidden(path.child("namespace"), message));
            }
            ("" | "Namespace" | "Cluster", _) => {}
            (other, _) => out.push(Error::not_supported(path.child("scope"), other, &["Cluster", "Namespace"])),
        }
    }
}

/// `example.com/path`.
fn domain_path(value: &str, path: &Path, out: &mut Vec<Error>) {
    match value.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            complain(out, path, domain, dns1123_subdomain(domain));
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:/@%".contains(&b);
            if !rest.bytes().all(fine) {
                out.push(Error::invalid(
                    path,
                    rest,
                    "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ));
            }
        }
        _ => out.push(Error::invalid(path, value, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
}

/// An ingress class keeps its controller.
pub(super) fn ingress_class_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let controller = |o| get(get(o, "spec"), "controller");
    immutable(controller(new), controller(old), &Path::of(&["spec", "controller"]), out);
}

/// A network policy.
pub(super) fn policy(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    label_selector(get(spec, "podSelector"), &path.child("podSelector"), out);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list(spec, direction).iter().enumerate() {
            let path = path.child(direction).index(i);
            for (j, port) in list(rule, "ports").iter().enumerate() {
                policy_port(port, &path.child("ports").index(j), out);
            }
            for (j, peer) in list(rule, peers).iter().enumerate() {
                policy_peer(peer, &path.child(peers).index(j), out);
            }
        }
    }
    let kinds = texts(spec, "policyTypes");
    if kinds.len() > 2 {
        let value = get(spec, "policyTypes").clone();
        out.push(Error::invalid(path.child("policyTypes"), value, "may not specify more than two policyTypes"));
        return;
    }
    for (i, kind) in kinds.iter().enumerate() {
        if !matches!(*kind, "Egress" | "Ingress") {
            out.push(Error::not_supported(path.child("policyTypes").index(i), *kind, &["Egress", "Ingress"]));
        }
    }
}

fn policy_port(port: &Value, path: &Path, out: &mut Vec<Error>) {
    let protocol = text(port, "protocol");
    if has(port, "protocol") && !matches!(protocol, "TCP" | "UDP" | "SCTP") {
        out.push(Error::not_supported(path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]));
    }
    let number = get(port, "port");
    let end = int(port, "endPort");
    if number.is_null() {
        if end.is_some() {
            let value = end.unwrap_or_default();
            out.push(Error::invalid(path.child("endPort"), value, "may not be specified when `port` is not specified"));
        }
        return;
    }
    port_or_name(number, &path.child("port"), out);
    if let Some(end) = end {
        let path = path.child("endPort");
        if number.is_string() {
            out.push(Error::invalid(&path, end, "may not be specified when `port` is non-numeric"));
        } else if end < number.as_i64().unwrap_or_default() {
            out.push(Error::invalid(&path, end, "must be greater than or equal to `port`"));
        }
        out.extend(port_number(end).into_iter().map(|m| Error::invalid(&path, end, &m)));
    }
}

fn policy_peer(peer: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut found = 0;
    for key in ["podSelector", "namespaceSelector"] {
        if has(peer, key) {
            found += 1;
            label_selector(get(peer, key), &path.child(key), out);
        }
    }
    let block = get(peer, "ipBlock");
    if block.is_null() {
        if found == 0 {
            out.push(Error::required(path, "must specify a peer"));
        }
        return;
    }
    let path_of = path.child("ipBlock");
    if text(block, "cidr").is_empty() {
        out.push(Error::required(path_of.child("cidr"), ""));
    } else if let Some(network) = cidr(out, &path_of.child("cidr"), text(block, "cidr")) {
        for (i, except) in texts(block, "except").iter().enumerate() {
            let path = path_of.child("except").index(i);
            let Some(inner) = cidr(out, &path, except) else { continue };
            if !(network.contains(&inner) && inner.prefix_len() > network.prefix_len()) {
                let message = format!("must be a strict subset of `cidr`: {}", text(block, "cidr"));
                out.push(Error::invalid(&path, *except, &message));
            }
        }
    }
    if found > 0 {
        out.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}
