//! Gates of pods whose fields do not simply go: some are set, or go with others.

use std::collections::BTreeSet;

use proto::Value;

use crate::registry::field_gates::PodRule;

pub(super) const RULES: &[(&str, PodRule)] =
    &[("ContainerRestartRules", restart_rules), ("ImageVolume", image_volumes), ("ProcMountType", proc_mounts)];

const INIT: &str = "initContainers";
const KINDS: [&str; 3] = ["containers", INIT, "ephemeralContainers"];

fn items<'v>(holder: &'v Value, key: &str) -> &'v [Value] {
    holder.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn items_mut<'v>(holder: &'v mut Value, key: &str) -> impl Iterator<Item = &'v mut Value> {
    holder.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

fn remove(holder: &mut Value, key: &str) {
    if let Some(fields) = holder.as_object_mut() {
        fields.remove(key);
    }
}

/// Sidecars are older than rules: they go on always.
fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn uses_rules(spec: &Value) -> bool {
    let says = |container: &Value| container["restartPolicy"].is_string();
    items(spec, "containers").iter().any(says)
        || items(spec, INIT).iter().any(|c| says(c) && !is_sidecar(c) || !items(c, "restartPolicyRules").is_empty())
}

fn restart_rules(spec: &mut Value, old: Option<&Value>) {
    if old.is_some_and(uses_rules) {
        return;
    }
    for kind in KINDS {
        for container in items_mut(spec, kind) {
            remove(container, "restartPolicyRules");
            if kind != INIT || !is_sidecar(container) {
                remove(container, "restartPolicy");
            }
        }
    }
}

/// Volumes go, and what mounts them.
fn image_volumes(spec: &mut Value, old: Option<&Value>) {
    let of_image = |volume: &Value| volume["image"].is_object();
    if old.is_some_and(|old| items(old, "volumes").iter().any(of_image)) {
        return;
    }
    let gone: BTreeSet<String> = items(spec, "volumes")
        .iter()
        .filter(|v| of_image(v))
        .filter_map(|v| v["name"].as_str())
        .map(str::to_owned)
        .collect();
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !of_image(volume));
    }
    for kind in KINDS {
        for container in items_mut(spec, kind) {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|mount| !mount["name"].as_str().is_some_and(|name| gone.contains(name)));
            }
        }
    }
}

const PROC: &str = "/securityContext/procMount";
const DEFAULT: &str = "Default";

/// Keeps a set `procMount`, so that stored objects do not look changed, but resets it to the default.
fn proc_mounts(spec: &mut Value, old: Option<&Value>) {
    let differs =
        |container: &Value| container.pointer(PROC).is_some_and(|mount| mount.is_string() && mount != DEFAULT);
    if old.is_some_and(|old| KINDS.iter().any(|kind| items(old, kind).iter().any(differs))) {
        return;
    }
    for kind in KINDS {
        items_mut(spec, kind).filter_map(|c| c.pointer_mut(PROC)).filter(|mount| mount.is_string()).for_each(|mount| {
            *mount = Value::from(DEFAULT);
        });
    }
}
