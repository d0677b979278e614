//! Addresses and ranges of services.

use proto::Value;
use serde_json::json;
use shared::address::{strict_ip, strict_network};
use shared::status::field::{Error, Path};

use crate::validation::fields::{shaped, shaped_if_said};
use crate::validation::meta::immutable;
use crate::validation::names::{dns1123_label, dns1123_subdomain, path_segment};
use crate::validation::tree::{get, text, texts};

/// An address: named by itself.
pub(in crate::validation) fn address(object: &Value, out: &mut Vec<Error>) {
    let name = text(get(object, "metadata"), "name");
    let path = Path::of(&["metadata", "name"]);
    if let Err(why) = strict_ip(name) {
        out.push(Error::invalid(path, name, &why));
    }
    let (parent, path) = (get(get(object, "spec"), "parentRef"), Path::of(&["spec", "parentRef"]));
    if parent.is_null() {
        out.push(Error::required(path, ""));
        return;
    }
    shaped_if_said(parent, "group", dns1123_subdomain, &path, out);
    for key in ["resource", "name"] {
        shaped(parent, key, |name| path_segment(name, false), &path, out);
    }
    shaped_if_said(parent, "namespace", dns1123_label, &path, out);
}

/// An address keeps whose it is.
pub(in crate::validation) fn address_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let parent = |o| get(get(o, "spec"), "parentRef");
    immutable(parent(new), parent(old), &Path::of(&["spec", "parentRef"]), out);
}

/// The ranges addresses come from.
pub(in crate::validation) fn ranges(object: &Value, out: &mut Vec<Error>) {
    let (all, path) = (texts(get(object, "spec"), "cidrs"), Path::of(&["spec", "cidrs"]));
    if all.is_empty() {
        out.push(Error::required(&path, "at least one CIDR required"));
        return;
    }
    if all.len() > 2 {
        out.push(Error::invalid(&path, json!(all), "may only hold up to 2 values"));
        return;
    }
    let before = out.len();
    let mut networks = Vec::new();
    for (i, one) in all.iter().enumerate() {
        match strict_network(one) {
            Ok(network) => networks.push(network),
            Err(why) => out.push(Error::invalid(path.index(i), *one, &why)),
        }
    }
    if let [a, b] = networks[..]
        && out.len() == before
        && a.addr().is_ipv4() == b.addr().is_ipv4()
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        out.push(Error::invalid(&path, json!(all), why));
    }
}

/// Ranges stay; a second one may come.
pub(in crate::validation) fn ranges_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (now, was) = (texts(get(new, "spec"), "cidrs"), texts(get(old, "spec"), "cidrs"));
    let path = Path::of(&["spec", "cidrs"]);
    if now.len() == was.len() {
        for (i, (now, was)) in now.iter().zip(&was).enumerate() {
            immutable(&json!(now), &json!(was), &path.index(i), out);
        }
    } else if was.len() == 1 && now.len() == 2 {
        immutable(&json!(now[0]), &json!(was[0]), &path.index(0), out);
        ranges(new, out);
    } else {
        immutable(&json!(now), &json!(was), &path, out);
    }
}
