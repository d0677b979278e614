//! Validation of a claim's status: allocation, reservations, devices. Answers for upstream's
//! `ValidateResourceClaimStatusUpdate`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::configuration::{object, opaque};
use super::names::{Requests, pool_name, share_id};
use super::{MAX_ENTRIES, binding_conditions, each, unique};
use crate::rules::meta::immutable;
use crate::rules::names::{complain, dns1123_label};
use crate::rules::options::FieldErrors;
use crate::rules::tree::{at, get, has, list, text, texts};
use crate::validation::conditions::conditions;
use crate::validation::fields::choice;
use crate::validation::selectors::node_selector;
use crate::validation::volume::driver_name;

const MAX_CONSUMERS: usize = 256;
const MAX_CONDITIONS: usize = 8;
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACE: usize = 256;
const MAX_HARDWARE: usize = 128;

/// A write of a claim's status.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, before, path) = (get(new, "status"), get(old, "status"), Path::new("status"));
    let requests = Requests::of(at(new, &["spec", "devices"]));
    consumers(status, &path, out);
    let allocation = get(status, "allocation");
    devices(status, &path, out);
    let path_of = path.child("reservedFor");
    if !list(status, "reservedFor").is_empty() {
        let known = list(before, "reservedFor");
        if allocation.is_null() {
            out.push(Error::forbidden(path_of, "may not be specified when `allocated` is not set"));
        } else if has(get(new, "metadata"), "deletionTimestamp")
            && list(status, "reservedFor").iter().any(|c| !known.contains(c))
        {
            let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            out.push(Error::forbidden(path_of, why));
        }
    }
    match (allocation.is_null(), has(before, "allocation")) {
        (true, _) => {}
        // What was allocated stays as it is until it is given back.
        (false, true) => immutable(allocation, get(before, "allocation"), &path.child("allocation"), out),
        (false, false) => allocated(allocation, &requests, &path.child("allocation"), out),
    }
}

fn consumers(status: &Value, path: &Path, out: &mut FieldErrors) {
    let all = each(status, "reservedFor", MAX_CONSUMERS, path, out, |consumer, path, out| {
        for key in ["resource", "name", "uid"] {
            if text(consumer, key).is_empty() {
                out.push(Error::required(path.child(key), ""));
            }
        }
    });
    unique(all.iter().map(|c| text(c, "uid")), &path.child("reservedFor"), out);
}

fn allocated(allocation: &Value, requests: &Requests<'_>, path: &Path, out: &mut FieldErrors) {
    let (devices, devices_path) = (get(allocation, "devices"), path.child("devices"));
    each(devices, "results", MAX_ENTRIES, &devices_path, out, |r, path, out| result(r, requests, path, out));
    // As many as the claim and its classes can have together.
    each(devices, "config", 2 * MAX_ENTRIES, &devices_path, out, |c, path, out| {
        choice(c, "source", &["FromClaim", "FromClass"], path, out);
        requests.references(c, path, out);
        opaque(c, true, path, out);
    });
    if has(allocation, "nodeSelector") {
        node_selector(get(allocation, "nodeSelector"), true, &path.child("nodeSelector"), out);
    }
}

fn result(result: &Value, requests: &Requests<'_>, path: &Path, out: &mut FieldErrors) {
    requests.reference(text(result, "request"), &path.child("request"), out);
    identity(result, path, out);
    binding_conditions(result, path, out);
    if has(result, "shareID") {
        share_id(text(result, "shareID"), &path.child("shareID"), out);
    }
}

/// Validates the driver, pool and device that identify a device.
fn identity(holder: &Value, path: &Path, out: &mut FieldErrors) {
    driver_name(text(holder, "driver"), &path.child("driver"), out);
    pool_name(text(holder, "pool"), &path.child("pool"), out);
    complain(out, &path.child("device"), text(holder, "device"), dns1123_label(text(holder, "device")));
}

/// Formats a device ID as upstream does.
fn shown(holder: &Value) -> String {
    let mut name = format!("{}/{}/{}", text(holder, "driver"), text(holder, "pool"), text(holder, "device"));
    if has(holder, "shareID") {
        name.push('/');
        name.push_str(text(holder, "shareID"));
    }
    name
}

/// Validates the device status that drivers report.
fn devices(status: &Value, path: &Path, out: &mut FieldErrors) {
    let results = list(at(status, &["allocation", "devices"]), "results");
    let allocated: BTreeSet<String> = results.iter().map(shown).collect();
    let path = path.child("devices");
    let bare = |mut error: Error, name: &str| {
        error.shown = Some(name.to_owned());
        error
    };
    for (i, device) in list(status, "devices").iter().enumerate() {
        let (path, name) = (path.index(i), shown(device));
        identity(device, &path, out);
        if has(device, "shareID") {
            share_id(text(device, "shareID"), &path.child("shareID"), out);
        }
        if !allocated.contains(&name) {
            let error = Error::invalid(&path, name.as_str(), "must be an allocated device in the claim");
            out.push(bare(error, &name));
        }
        report(device, &path, out);
    }
    let mut seen = BTreeSet::new();
    for (i, name) in list(status, "devices").iter().map(shown).enumerate() {
        if !seen.insert(name.clone()) {
            out.push(bare(Error::duplicate(path.index(i), name.as_str()), &name));
        }
    }
}

fn report(device: &Value, path: &Path, out: &mut FieldErrors) {
    let count = list(device, "conditions").len();
    if count > MAX_CONDITIONS {
        out.push(Error::too_many(path.child("conditions"), count, MAX_CONDITIONS));
    }
    conditions(device, path, out);
    if has(device, "data") {
        object(get(device, "data"), true, &path.child("data"), out);
    }
    let (network, path) = (get(device, "networkData"), path.child("networkData"));
    for (key, most) in [("interfaceName", MAX_INTERFACE), ("hardwareAddress", MAX_HARDWARE)] {
        if text(network, key).len() > most {
            out.push(Error::too_long(path.child(key), most));
        }
    }
    each(network, "ips", MAX_ADDRESSES, &path, out, |ip, path, out| {
        interface_address(ip.as_str().unwrap_or_default(), path, out);
    });
    if texts(network, "ips").len() <= MAX_ADDRESSES {
        unique(texts(network, "ips").into_iter(), &path.child("ips"), out);
    }
}

/// An address with the length of its network's prefix.
fn interface_address(value: &str, path: &Path, out: &mut FieldErrors) {
    match value.parse::<ipnet::IpNet>().map(|net| net.to_string()) {
        Err(_) => {
            let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            out.push(Error::invalid(path, value, why));
        }
        Ok(canonical) if canonical != value => {
            out.push(Error::invalid(path, value, &format!("must be in canonical form ({canonical:?})")));
        }
        Ok(_) => {}
    }
}
