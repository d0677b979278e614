//! Ingresses and their classes. Answers for upstream's `ValidateIngressCreate`, `ValidateIngressClass`.

pub(crate) mod addresses;
pub(crate) mod policy;

use proto::Value;
use shared::address;
use shared::status::field::{Error, Path};

use super::fields::{shaped, shaped_if_said};
use super::meta::{annotation, immutable};
use super::names::{
    NameRule, SUBDOMAIN_MAX, complain, dns1035_label, dns1123_label, dns1123_subdomain, ip, is_subdomain, path_segment,
    pattern, port_name, port_number, too_long,
};
use super::tree::{get, has, int, list, text, texts};
use crate::rules::options::{FieldErrors, ValidationOption};

/// A new or changed ingress.
pub(super) fn ingress(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if list(spec, "rules").is_empty() && !has(spec, "defaultBackend") {
        let message = "either `defaultBackend` or `rules` must be specified";
        out.push(Error::invalid(&path, get(spec, "rules").clone(), message));
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
        if !out.allows(ValidationOption::InvalidSecretName) {
            secret_name(tls, &path, out);
        }
    }
    if has(spec, "ingressClassName") {
        let class = text(spec, "ingressClassName");
        complain(out, &path.child("ingressClassName"), class, dns1123_subdomain(class));
    }
}

fn secret_name(tls: &Value, path: &Path, out: &mut FieldErrors) {
    shaped_if_said(tls, "secretName", dns1123_subdomain, path, out);
}

/// Reports whether an ingress names an invalid secret.
pub(crate) fn has_invalid_secret_names(spec: &Value) -> bool {
    let mut wrong = FieldErrors::default();
    list(spec, "tls").iter().for_each(|tls| secret_name(tls, &Path::default(), &mut wrong));
    !wrong.is_empty()
}

/// Reports whether rules for wildcard hosts are invalid, which earlier releases did not check.
pub(crate) fn has_invalid_wildcard_host_rules(spec: &Value) -> bool {
    let mut wrong = FieldErrors::default();
    let rules = list(spec, "rules").iter().filter(|rule| text(rule, "host").contains('*'));
    rules.for_each(|rule| paths(rule, &Path::default(), &mut wrong));
    !wrong.is_empty()
}

/// A new ingress.
pub(crate) fn new_ingress(object: &Value, out: &mut FieldErrors) {
    const KEY: &str = "kubernetes.io/ingress.class";
    ingress(object, out);
    let (spec, annotated) = (get(object, "spec"), annotation(object, KEY));
    if !annotated.is_empty() && has(spec, "ingressClassName") && annotated != text(spec, "ingressClassName") {
        let why = "must match `ingressClassName` when both are specified";
        out.push(Error::invalid(Path::new("annotations").child(KEY), annotated, why));
    }
}

/// A changed ingress.
pub(crate) fn ingress_update(new: &Value, _: &Value, out: &mut FieldErrors) {
    ingress(new, out);
}

/// Reports whether an ingress names a service by a name that is not a DNS-1035 label.
pub(crate) fn has_relaxed_names(spec: &Value) -> bool {
    let named = |backend| text(get(backend, "service"), "name");
    let rules = list(spec, "rules").iter().flat_map(|rule| list(get(rule, "http"), "paths"));
    let names = rules.map(|path| named(get(path, "backend"))).chain([named(get(spec, "defaultBackend"))]);
    names.filter(|name| !name.is_empty()).any(|name| !dns1035_label(name).is_empty())
}

/// `status` of an ingress.
pub(crate) fn ingress_status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["status", "loadBalancer", "ingress"]);
    for (i, entry) in list(get(get(new, "status"), "loadBalancer"), "ingress").iter().enumerate() {
        let (path, address) = (path.index(i), text(entry, "ip"));
        if !address.is_empty() {
            ip(out, &path.child("ip"), address);
        }
        host_not_address(text(entry, "hostname"), &path.child("hostname"), out);
    }
}

/// A host name that is not an address; none is fine.
pub(super) fn host_not_address(host: &str, path: &Path, out: &mut FieldErrors) {
    if host.is_empty() {
        return;
    }
    complain(out, path, host, dns1123_subdomain(host));
    if address::ip(host).is_some() {
        out.push(Error::invalid(path, host, "must be a DNS name, not an IP address"));
    }
}

/// A host, where `*` may stand for the first label.
fn host_name(host: &str) -> Vec<String> {
    if !host.contains('*') {
        return dns1123_subdomain(host);
    }
    let mut out = Vec::new();
    if host.len() > SUBDOMAIN_MAX {
        out.push(too_long(SUBDOMAIN_MAX));
    }
    match host.strip_prefix("*.") {
        Some(rest) if is_subdomain(rest) => {}
        _ => {
            let message = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
            let regex = "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
            out.push(pattern(message, regex, &["*.example.com"]));
        }
    }
    out
}

fn ingress_rule(rule: &Value, path: &Path, out: &mut FieldErrors) {
    let host = text(rule, "host");
    if !host.is_empty() {
        if address::ip(host).is_some() {
            out.push(Error::invalid(path.child("host"), host, "must be a DNS name, not an IP address"));
        }
        complain(out, &path.child("host"), host, host_name(host));
    }
    if !(host.contains('*') && out.allows(ValidationOption::InvalidWildcardHostRule)) {
        paths(rule, path, out);
    }
}

fn paths(rule: &Value, path: &Path, out: &mut FieldErrors) {
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
        if !has(one, "pathType") {
            out.push(Error::required(path.child("pathType"), "pathType must be specified"));
            continue;
        }
        ingress_path(one, &path, out);
        backend(get(one, "backend"), &path.child("backend"), out);
    }
}

fn ingress_path(one: &Value, path: &Path, out: &mut FieldErrors) {
    let (kind, target) = (text(one, "pathType"), text(one, "path"));
    let at = path.child("path");
    match kind {
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

fn backend(backend: &Value, path: &Path, out: &mut FieldErrors) {
    let (resource, service) = (has(backend, "resource"), has(backend, "service"));
    match (resource, service) {
        (true, true) => out.push(Error::invalid(path, "", "cannot set both resource and service backends")),
        (true, false) => {
            typed_reference(get(backend, "resource"), &path.child("resource"), out);
        }
        (false, true) => {
            let (service, rule) = (get(backend, "service"), NameRule::Service.relaxed(out.options()));
            shaped(service, "name", |name| rule.check(name, false), &path.child("service"), out);
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
pub(crate) fn ingress_class(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let controller = text(spec, "controller");
    if controller.len() > 250 {
        out.push(Error::too_long(path.child("controller"), 250));
    }
    domain_path(controller, &path.child("controller"), out);
    let parameters = get(spec, "parameters");
    if !parameters.is_null() {
        let path = path.child("parameters");
        typed_reference(parameters, &path, out);
        scope(parameters, &path, out);
    }
}

/// A group, kind and name.
fn typed_reference(reference: &Value, path: &Path, out: &mut FieldErrors) {
    let group = text(reference, "apiGroup");
    if has(reference, "apiGroup") {
        complain(out, &path.child("apiGroup"), group, dns1123_subdomain(group));
    }
    for key in ["kind", "name"] {
        match text(reference, key) {
            "" => out.push(Error::required(path.child(key), &format!("{key} is required"))),
            value => complain(out, &path.child(key), value, path_segment(value, false)),
        }
    }
}

/// Validates the scope and namespace of an ingress class's parameters.
fn scope(parameters: &Value, path: &Path, out: &mut FieldErrors) {
    if !has(parameters, "scope") {
        out.push(Error::required(path.child("scope"), ""));
        return;
    }
    let (scope, namespaced) = (text(parameters, "scope"), has(parameters, "namespace"));
    if !matches!(scope, "Cluster" | "Namespace") {
        out.push(Error::not_supported(path.child("scope"), scope, &["Cluster", "Namespace"]));
    }
    let path = path.child("namespace");
    match scope {
        "Namespace" if !namespaced => {
            out.push(Error::required(path, "`parameters.scope` is set to 'Namespace'"));
        }
        "Namespace" => {
            let namespace = text(parameters, "namespace");
            complain(out, &path, namespace, dns1123_label(namespace));
        }
        "Cluster" if namespaced => {
            out.push(Error::forbidden(path, "`parameters.scope` is set to 'Cluster'"));
        }
        _ => {}
    }
}

/// `example.com/path`.
pub(crate) fn domain_path(value: &str, path: &Path, out: &mut FieldErrors) {
    match value.split_once('/') {
        None if value.is_empty() => out.push(Error::required(path, "")),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            complain(out, path, domain, dns1123_subdomain(domain));
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:/%".contains(&b);
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
pub(crate) fn ingress_class_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let controller = |o| get(get(o, "spec"), "controller");
    immutable(controller(new), controller(old), &Path::of(&["spec", "controller"]), out);
}
