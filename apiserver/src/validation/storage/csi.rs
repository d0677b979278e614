//! CSI drivers, the drivers of nodes, the capacity drivers have left. Answers for upstream's `ValidateCSIDriver`,
//! `ValidateCSINode`, `ValidateCSIStorageCapacity`.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::meta::immutable;
use crate::rules::names::{complain, dns1123_subdomain, not_negative, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{get, has, int, list, quantity, same, text, texts, without};
use crate::validation::selectors::own_selector;
use crate::validation::volume::driver_name;

const GROUP_POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
const MODES: [&str; 2] = ["Ephemeral", "Persistent"];
const MAX_NODE_ID: usize = 256;

/// A CSI driver.
pub(crate) fn driver(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    for key in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
        if !has(spec, key) {
            out.push(Error::required(path.child(misnamed(key)), ""));
        }
    }
    let policy = text(spec, "fsGroupPolicy");
    if !has(spec, "fsGroupPolicy") {
        out.push(Error::required(path.child("fsGroupPolicy"), ""));
    } else if !GROUP_POLICIES.contains(&policy) {
        out.push(Error::not_supported(path.child("fsGroupPolicy"), policy, &GROUP_POLICIES));
    }
    tokens(spec, &path.child("tokenRequests"), out);
    let modes = path.child("volumeLifecycleModes");
    for mode in texts(spec, "volumeLifecycleModes").into_iter().filter(|m| !MODES.contains(m)) {
        out.push(Error::not_supported(&modes, mode, &["Persistent", "Ephemeral"]));
    }
    if !has(spec, "seLinuxMount") && !out.allows(ValidationOption::UnsetSELinuxMount) {
        out.push(Error::required(path.child("seLinuxMount"), ""));
    }
    if let Some(seconds) = int(spec, "nodeAllocatableUpdatePeriodSeconds").filter(|s| *s < 10) {
        let why = "must be greater than or equal to 10 seconds";
        out.push(Error::invalid(path.child("nodeAllocatableUpdatePeriodSeconds"), seconds, why));
    }
    let key = "serviceAccountTokenInSecrets";
    if has(spec, key) && list(spec, "tokenRequests").is_empty() {
        let why = format!("{key} is set but no tokenRequests are specified");
        out.push(Error::invalid(path.child(key), get(spec, key).clone(), &why));
    }
}

/// A field as upstream's complaints spell it.
fn misnamed(key: &str) -> &str {
    if key == "attachRequired" { "attachedRequired" } else { key }
}

fn tokens(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let mut audiences = BTreeSet::new();
    for (i, token) in list(spec, "tokenRequests").iter().enumerate() {
        let (path, audience) = (path.index(i), text(token, "audience"));
        if !audiences.insert(audience) {
            out.push(Error::duplicate(path.child("audience"), audience));
            continue;
        }
        let Some(seconds) = int(token, "expirationSeconds") else { continue };
        let path = path.child("expirationSeconds");
        if seconds < 600 {
            out.push(Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
        }
        if seconds > 1 << 32 {
            out.push(Error::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"));
        }
    }
}

/// Validates an update of a CSI driver.
pub(crate) fn driver_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    for key in ["attachRequired", "volumeLifecycleModes"] {
        immutable(get(spec, key), get(before, key), &path.child(misnamed(key)), out);
    }
}

/// A node's CSI drivers.
pub(crate) fn node(object: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["spec", "drivers"]);
    let mut names = BTreeSet::new();
    for (i, driver) in list(get(object, "spec"), "drivers").iter().enumerate() {
        let (path, name) = (path.index(i), text(driver, "name"));
        driver_name(name, &path.child("name"), out);
        let id = text(driver, "nodeID");
        if id.is_empty() {
            out.push(Error::required(path.child("nodeID"), ""));
        }
        if id.len() > MAX_NODE_ID {
            let why = format!("must be {MAX_NODE_ID} characters or less");
            out.push(Error::invalid(path.child("nodeID"), id, &why));
        }
        not_negative(out, path.child("allocatable").child("count"), int(get(driver, "allocatable"), "count"));
        if !names.insert(name) {
            out.push(Error::duplicate(path.child("name"), name));
        }
        topology_keys(driver, &path, out);
    }
}

fn topology_keys(driver: &Value, path: &Path, out: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for key in texts(driver, "topologyKeys") {
        if key.is_empty() {
            out.push(Error::required(path, ""));
        }
        if !seen.insert(key) {
            out.push(Error::duplicate(path, key));
        }
        complain(out, path, key, qualified_name(key));
    }
}

/// A driver that stays on a node stays as it was, except for how many volumes it can attach.
pub(crate) fn node_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["spec", "drivers"]);
    let bare = |d: &Value| without(d, &["allocatable"]);
    for before in list(get(old, "spec"), "drivers") {
        let name = text(before, "name");
        for driver in list(get(new, "spec"), "drivers").iter().filter(|d| text(d, "name") == name) {
            immutable(&bare(driver), &bare(before), &path, out);
        }
    }
}

/// Validates that the allocatable count of a driver that stays on a CSI node does not change.
pub(crate) fn counts_stay(new: &Value, old: &Value) -> Vec<Error> {
    let path = Path::of(&["spec", "drivers"]);
    let drivers = |node| list(get(node, "spec"), "drivers");
    let changed = |driver: &&Value| {
        let mut before = drivers(old).iter().filter(|d| text(d, "name") == text(driver, "name"));
        before.any(|d| !same(get(d, "allocatable"), get(driver, "allocatable")))
    };
    let changed = drivers(new).iter().filter(changed);
    changed.map(|driver| Error::invalid(&path, driver.clone(), "field is immutable")).collect()
}

/// The capacity of a storage class somewhere.
pub(crate) fn capacity(object: &Value, out: &mut FieldErrors) {
    own_selector(get(object, "nodeTopology"), &Path::new("nodeTopology"), out);
    let class = text(object, "storageClassName");
    complain(out, &Path::new("storageClassName"), class, dns1123_subdomain(class));
    // How much one volume can have is not looked at.
    let amount = quantity(get(object, "capacity"));
    if amount.sign() < 0 {
        out.push(Error::invalid("capacity", amount.to_string(), "must be greater than or equal to 0"));
    }
}

/// Validates an update of a storage capacity.
pub(crate) fn capacity_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    for key in ["nodeTopology", "storageClassName"] {
        immutable(get(new, key), get(old, key), &Path::new(key), out);
    }
}
