//! Addresses and ranges of services. Answers for upstream's `ValidateIPAddress`, `ValidateServiceCIDR`.

use proto::Value;
use serde_json::json;
use shared::address::{network, strict_network};
use shared::status::field::{Error, Path};

use crate::rules::meta::immutable;
use crate::rules::names::{dns1123_subdomain, path_segment};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{get, texts};
use crate::validation::fields::{shaped, shaped_if_said};

/// An address.
pub(crate) fn address(object: &Value, out: &mut FieldErrors) {
    let (parent, path) = (get(get(object, "spec"), "parentRef"), Path::of(&["spec", "parentRef"]));
    if parent.is_null() {
        out.push(Error::required(path, ""));
        return;
    }
    shaped_if_said(parent, "group", dns1123_subdomain, &path, out);
    let segment = |name: &str| path_segment(name, false);
    for key in ["resource", "name"] {
        shaped(parent, key, segment, &path, out);
    }
    shaped_if_said(parent, "namespace", segment, &path, out);
}

/// An address keeps whose it is.
pub(crate) fn address_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let parent = |o| get(get(o, "spec"), "parentRef");
    immutable(parent(new), parent(old), &Path::of(&["spec", "parentRef"]), out);
}

/// The ranges addresses come from.
pub(crate) fn ranges(object: &Value, out: &mut FieldErrors) {
    let (all, path) = (texts(get(object, "spec"), "cidrs"), Path::of(&["spec", "cidrs"]));
    if all.is_empty() {
        out.push(Error::required(&path, "at least one CIDR required"));
        return;
    }
    // Upstream shows what holds the ranges.
    let mut refuse = |why: &str| out.push(Error::invalid(&path, json!({"CIDRs": all}), why));
    let families = |all: &[&str]| all.iter().map(|one| network(one).map(|n| n.addr().is_ipv4())).collect::<Vec<_>>();
    match families(&all)[..] {
        [_] | [Some(true), Some(false)] | [Some(false), Some(true)] => {}
        [_, _] => {
            return refuse("may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64");
        }
        _ => return refuse("may only hold up to 2 values"),
    }
    for (i, one) in all.iter().enumerate() {
        if let Err(why) = strict_network(one) {
            out.push(Error::invalid(path.index(i), *one, &why.to_string()));
        }
    }
}

/// Ranges stay; a second one may come.
pub(crate) fn ranges_update(new: &Value, old: &Value, out: &mut FieldErrors) {
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
