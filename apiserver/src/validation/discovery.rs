//! Endpoints and endpoint slices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{complain, dns1123_label, dns1123_subdomain, ip, port_number, special_ip};
use super::pod::containers::choice;
use super::tree::{get, int, list, text, texts};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;

/// Endpoints.
pub(super) fn endpoints(object: &Value, out: &mut Vec<Error>) {
    for (i, subset) in list(object, "subsets").iter().enumerate() {
        let path = Path::new("subsets").index(i);
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            out.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(subset, key).iter().enumerate() {
                let path = path.child(key).index(j);
                let text_of = text(address, "ip");
                if ip(out, &path.child("ip"), text_of).is_some() {
                    special_ip(out, &path.child("ip"), text_of);
                }
                let host = text(address, "hostname");
                if !host.is_empty() {
                    complain(out, &path.child("hostname"), host, dns1123_label(host));
                }
                let node = text(address, "nodeName");
                if !node.is_empty() {
                    complain(out, &path.child("nodeName"), node, dns1123_subdomain(node));
                }
            }
        }
        let ports = list(subset, "ports");
        for (j, port) in ports.iter().enumerate() {
            let path = path.child("ports").index(j);
            match text(port, "name") {
                "" if ports.len() > 1 => out.push(Error::required(path.child("name"), "")),
                "" => {}
                name => complain(out, &path.child("name"), name, dns1123_label(name)),
            }
            let number = int(port, "port").unwrap_or_default();
            out.extend(port_number(number).into_iter().map(|m| Error::invalid(path.child("port"), number, &m)));
            choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, out);
        }
    }
}

/// An endpoint slice.
pub(super) fn slice(object: &Value, out: &mut Vec<Error>) {
    let kind = text(object, "addressType");
    match kind {
        "" => out.push(Error::required("addressType", "")),
        "IPv4" | "IPv6" | "FQDN" => {}
        other => out.push(Error::not_supported("addressType", other, &["FQDN", "IPv4", "IPv6"])),
    }
    let all = list(object, "endpoints");
    if all.len() > MAX_ENDPOINTS {
        out.push(Error::too_many("endpoints", all.len(), MAX_ENDPOINTS));
        return;
    }
    for (i, endpoint) in all.iter().enumerate() {
        one(endpoint, kind, &Path::new("endpoints").index(i), out);
    }
    let ports = list(object, "ports");
    if ports.len() > MAX_PORTS {
        out.push(Error::too_many("ports", ports.len(), MAX_PORTS));
        return;
    }
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = Path::new("ports").index(i);
        let name = text(port, "name");
        if !name.is_empty() {
            complain(out, &path.child("name"), name, dns1123_label(name));
        }
        if !names.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, out);
    }
}

fn one(endpoint: &Value, kind: &str, path: &Path, out: &mut Vec<Error>) {
    let addresses = texts(endpoint, "addresses");
    let at = path.child("addresses");
    if addresses.is_empty() {
        out.push(Error::required(&at, "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        out.push(Error::too_many(&at, addresses.len(), MAX_ADDRESSES));
        return;
    }
    for (i, address) in addresses.iter().enumerate() {
        let path = at.index(i);
        match kind {
            "FQDN" => complain(out, &path, address, dns1123_subdomain(address.trim_end_matches('.'))),
            "IPv4" | "IPv6" => {
                let Some(parsed) = ip(out, &path, address) else { continue };
                match (kind, parsed) {
                    ("IPv4", IpAddr::V6(_)) => out.push(Error::invalid(&path, *address, "must be an IPv4 address")),
                    ("IPv6", IpAddr::V4(_)) => out.push(Error::invalid(&path, *address, "must be an IPv6 address")),
                    _ => {}
                }
                special_ip(out, &path, address);
            }
            _ => {}
        }
    }
    for (key, check) in [("nodeName", dns1123_subdomain as fn(&str) -> Vec<String>), ("hostname", dns1123_label)] {
        let value = text(endpoint, key);
        if !value.is_empty() {
            complain(out, &path.child(key), value, check(value));
        }
    }
}

/// The kind of addresses may not change.
pub(super) fn slice_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    immutable(get(new, "addressType"), get(old, "addressType"), &Path::new("addressType"), out);
}
