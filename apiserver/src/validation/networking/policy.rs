//! Network policies. Answers for upstream's `ValidateNetworkPolicy`.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::names::{cidr, port_number};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, has, int, list, text, texts};
use crate::validation::pod::handlers::port_or_name;
use crate::validation::selectors::own_selector;

/// A network policy.
pub(crate) fn policy(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    own_selector(get(spec, "podSelector"), &path.child("podSelector"), out);
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
            out.push(Error::not_supported(path.child("policyTypes").index(i), *kind, &["Ingress", "Egress"]));
        }
    }
}

fn policy_port(port: &Value, path: &Path, out: &mut FieldErrors) {
    let protocol = text(port, "protocol");
    if has(port, "protocol") && !matches!(protocol, "TCP" | "UDP" | "SCTP") {
        out.push(Error::not_supported(path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]));
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
    let (at_port, at_end) = (path.child("port"), path.child("endPort"));
    if let Some(end) = end.filter(|_| number.is_string()) {
        out.push(Error::invalid(at_end, end, "may not be specified when `port` is non-numeric"));
        return port_or_name(number, &at_port, out);
    }
    port_or_name(number, &at_port, out);
    if let Some(end) = end {
        let first = number.as_i64().unwrap_or_default();
        if end < first {
            // Upstream shows the port.
            out.push(Error::invalid(&at_end, first, "must be greater than or equal to `port`"));
        }
        out.extend(port_number(end).into_iter().map(|m| Error::invalid(&at_end, end, &m)));
    }
}

fn policy_peer(peer: &Value, path: &Path, out: &mut FieldErrors) {
    let mut found = 0;
    for key in ["podSelector", "namespaceSelector"] {
        if has(peer, key) {
            found += 1;
            own_selector(get(peer, key), &path.child(key), out);
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
                out.push(Error::invalid(&path, *except, "must be a strict subset of `cidr`"));
            }
        }
    }
    if found > 0 {
        out.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}
