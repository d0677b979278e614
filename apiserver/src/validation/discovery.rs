//! Endpoints and endpoint slices. Answers for upstream's `ValidateEndpointSlice`, `ValidateEndpoints`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proto::Value;
use shared::status::field::{Error, Path};

use super::fields::{choice, shaped_if_said};
use super::meta::{immutable, labels};
use super::names::{
    complain, dns1123_label, dns1123_subdomain, ip, label_value, port_number, qualified_name, special_ip,
};
use super::tree::{entries, get, has, int, list, same, text, texts};
use crate::rules::options::FieldErrors;

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_TOPOLOGY: usize = 16;
const MAX_HINTS: usize = 8;

/// Changed endpoints: what is there already may stay, whatever it is.
pub(crate) fn endpoints_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let mut wrong = FieldErrors::new(out.options());
    endpoints(new, &mut wrong);
    if !wrong.is_empty() && !same(get(new, "subsets"), get(old, "subsets")) {
        out.append(&mut wrong);
    }
}

/// Endpoints.
pub(crate) fn endpoints(object: &Value, out: &mut FieldErrors) {
    for (i, subset) in list(object, "subsets").iter().enumerate() {
        let path = Path::new("subsets").index(i);
        if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
            out.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for key in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(subset, key).iter().enumerate() {
                let path = path.child(key).index(j);
                let (given, host) = (text(address, "ip"), text(address, "hostname"));
                let parsed = ip(out, &path.child("ip"), given);
                if !host.is_empty() {
                    complain(out, &path.child("hostname"), host, dns1123_label(host));
                }
                if has(address, "nodeName") {
                    let node = text(address, "nodeName");
                    complain(out, &path.child("nodeName"), node, dns1123_subdomain(node));
                }
                match parsed {
                    Some(_) => special_ip(out, &path.child("ip"), given),
                    // Upstream asks for an address twice.
                    None => out.push(Error::invalid(path.child("ip"), given, "must be a valid IP address")),
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
            application(port, &path, out);
        }
    }
}

/// An endpoint slice.
pub(crate) fn slice(object: &Value, out: &mut FieldErrors) {
    let kind = text(object, "addressType");
    choice(object, "addressType", &["FQDN", "IPv4", "IPv6"], &Path::default(), out);
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
        shaped_if_said(port, "name", dns1123_label, &path, out);
        if !names.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        choice(port, "protocol", &["SCTP", "TCP", "UDP"], &path, out);
        application(port, &path, out);
    }
}

/// Validates `appProtocol`.
fn application(port: &Value, path: &Path, out: &mut FieldErrors) {
    if has(port, "appProtocol") {
        let protocol = text(port, "appProtocol");
        complain(out, &path.child("appProtocol"), protocol, qualified_name(protocol));
    }
}

fn one(endpoint: &Value, kind: &str, path: &Path, out: &mut FieldErrors) {
    let addresses = texts(endpoint, "addresses");
    let at = path.child("addresses");
    if addresses.is_empty() {
        out.push(Error::required(&at, "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        out.push(Error::too_many(&at, addresses.len(), MAX_ADDRESSES));
    }
    for (i, address) in addresses.iter().enumerate() {
        let path = at.index(i);
        match kind {
            "FQDN" => full_name(address, &path, out),
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
    if has(endpoint, "nodeName") {
        let node = text(endpoint, "nodeName");
        complain(out, &path.child("nodeName"), node, dns1123_subdomain(node));
    }
    let topology = path.child("deprecatedTopology");
    let count = entries(endpoint, "deprecatedTopology").count();
    if count > MAX_TOPOLOGY {
        out.push(Error::too_many(&topology, count, MAX_TOPOLOGY));
    }
    labels(endpoint, "deprecatedTopology", &topology, out);
    if has(endpoint, "hostname") {
        let host = text(endpoint, "hostname");
        complain(out, &path.child("hostname"), host, dns1123_label(host));
    }
    let (hints, path) = (get(endpoint, "hints"), path.child("hints"));
    // Too many of the one, and the other is not looked at.
    let _ = places(hints, "forZones", &path, out) && places(hints, "forNodes", &path, out);
}

/// A name with its domain; a dot may end it.
fn full_name(name: &str, path: &Path, out: &mut FieldErrors) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let wrong = dns1123_subdomain(name);
    if !wrong.is_empty() {
        out.push(Error::invalid(path, name, &wrong.join(",")));
    } else if !name.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        out.push(Error::invalid(path, name, why));
    } else if let Some((label, wrong)) =
        name.split('.').map(|l| (l, dns1123_label(l))).find(|(_, wrong)| !wrong.is_empty())
    {
        out.push(Error::invalid(path, label, &wrong.join(",")));
    }
}

/// Validates the hints of an endpoint; returns false when there are too many.
fn places(hints: &Value, key: &str, path: &Path, out: &mut FieldErrors) -> bool {
    let (all, path) = (list(hints, key), path.child(key));
    if all.len() > MAX_HINTS {
        out.push(Error::too_many(path, all.len(), MAX_HINTS));
        return false;
    }
    let mut names = BTreeSet::new();
    for (i, place) in all.iter().enumerate() {
        let (path, name) = (path.index(i).child("name"), text(place, "name"));
        if !names.insert(name) {
            out.push(Error::duplicate(&path, name));
        }
        complain(out, &path, name, if key == "forZones" { label_value(name) } else { dns1123_subdomain(name) });
    }
    true
}

/// The kind of addresses may not change.
pub(crate) fn slice_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "addressType"), get(old, "addressType"), &Path::new("addressType"), out);
}
