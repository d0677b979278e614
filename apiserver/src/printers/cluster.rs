//! Rows of the cluster's furniture: nodes, namespaces, configuration, events, volumes, classes. Answers for upstream's
//! `printNode`, `printNamespace`, `printPersistentVolumeClaim`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use proto::Value;
use serde_json::json;
use shared::types::OLD_CLASS;

use super::text::{access_modes, condition, flag, int, list, since, size, text, text_or};
use super::text::{age, name};

pub(crate) fn node(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = vec![match condition(o, "Ready") {
        "True" => "Ready",
        "" => "Unknown",
        _ => "NotReady",
    }];
    if flag(o, "/spec/unschedulable") {
        status.push("SchedulingDisabled");
    }
    let labels = o.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles = BTreeSet::new();
    for (key, value) in labels.into_iter().flatten() {
        match (key.strip_prefix("node-role.kubernetes.io/"), key.as_str()) {
            (Some(role), _) if !role.is_empty() => {
                roles.insert(role);
            }
            (_, "kubernetes.io/role") => {
                roles.extend(value.as_str().filter(|v| !v.is_empty()));
            }
            _ => {}
        }
    }
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.into_iter().collect::<Vec<_>>().join(",") };
    let address = |kind: &str| {
        list(o, "/status/addresses")
            .iter()
            .find(|a| a["type"] == kind)
            .map_or("<none>", |a| text_or(a, "/address", "<none>"))
    };
    let info = |key: &str| json!(text_or(o, &format!("/status/nodeInfo/{key}"), "<unknown>"));
    vec![
        name(o),
        json!(status.join(",")),
        json!(roles),
        age(o, now),
        json!(text(o, "/status/nodeInfo/kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

pub(crate) fn namespace(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text(o, "/status/phase")), age(o, now)]
}

pub(crate) fn component_status(o: &Value, _: Timestamp) -> Vec<Value> {
    let healthy = list(o, "/conditions").iter().find(|c| c["type"] == "Healthy");
    let (status, message, error) = match healthy {
        None => ("Unknown", "", ""),
        Some(c) => {
            (if c["status"] == "True" { "Healthy" } else { "Unhealthy" }, text(c, "/message"), text(c, "/error"))
        }
    };
    vec![name(o), json!(status), json!(message), json!(error)]
}

pub(crate) fn config_map(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(size(o, "/data") + size(o, "/binaryData")), age(o, now)]
}

pub(crate) fn secret(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text(o, "/type")), json!(size(o, "/data")), age(o, now)]
}

/// Names of an event's fields in its two versions.
struct EventFields {
    about: &'static str,
    message: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    component: &'static str,
    host: &'static str,
    reporter: &'static str,
}

fn event_with(o: &Value, now: Timestamp, f: &EventFields) -> Vec<Value> {
    let ago = |pointer: &str| o.pointer(pointer).filter(|t| !t.is_null()).map(|t| since(Some(t), now));
    let first = ago(f.first).or_else(|| ago("/eventTime")).unwrap_or_else(|| "<unknown>".to_owned());
    let series = o.get("series").filter(|s| s.is_object());
    let last = match series {
        Some(s) => since(s.get("lastObservedTime"), now),
        None => ago(f.last).unwrap_or_else(|| first.clone()),
    };
    let count = match (series, int(o, f.count)) {
        (Some(s), _) => int(s, "/count"),
        (None, 0) => 1,
        (None, n) => n,
    };
    let about = &o[f.about];
    let kind = text(about, "/kind").to_lowercase();
    let object = match text(about, "/name") {
        "" => kind,
        n => format!("{kind}/{n}"),
    };
    let component = text_or(o, f.component, text(o, f.reporter));
    let host = text_or(o, f.host, text(o, "/reportingInstance"));
    let source = [component, host].iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join(", ");
    vec![
        json!(last),
        json!(text(o, "/type")),
        json!(text(o, "/reason")),
        json!(object),
        json!(text(about, "/fieldPath")),
        json!(source),
        json!(text(o, f.message).trim()),
        json!(first),
        json!(count),
        name(o),
    ]
}

pub(crate) fn event(o: &Value, now: Timestamp) -> Vec<Value> {
    let f = EventFields {
        about: "involvedObject",
        message: "/message",
        first: "/firstTimestamp",
        last: "/lastTimestamp",
        count: "/count",
        component: "/source/component",
        host: "/source/host",
        reporter: "/reportingComponent",
    };
    event_with(o, now, &f)
}

pub(crate) fn event_v1(o: &Value, now: Timestamp) -> Vec<Value> {
    let f = EventFields {
        about: "regarding",
        message: "/note",
        first: "/deprecatedFirstTimestamp",
        last: "/deprecatedLastTimestamp",
        count: "/deprecatedCount",
        component: "/deprecatedSource/component",
        host: "/deprecatedSource/host",
        reporter: "/reportingController",
    };
    event_with(o, now, &f)
}

fn phase(o: &Value) -> Value {
    json!(if o["metadata"]["deletionTimestamp"].is_null() { text(o, "/status/phase") } else { "Terminating" })
}

/// A class given by field or by its old annotation.
fn class(o: &Value) -> &str {
    let old = o.pointer("/metadata/annotations").and_then(|a| a.get(OLD_CLASS)).and_then(Value::as_str);
    old.unwrap_or_else(|| text(o, "/spec/storageClassName"))
}

pub(crate) fn volume(o: &Value, now: Timestamp) -> Vec<Value> {
    let claim = match o.pointer("/spec/claimRef").filter(|c| c.is_object()) {
        Some(c) => format!("{}/{}", text(c, "/namespace"), text(c, "/name")),
        None => String::new(),
    };
    vec![
        name(o),
        json!(text(o, "/spec/capacity/storage")),
        json!(access_modes(list(o, "/spec/accessModes"))),
        json!(text(o, "/spec/persistentVolumeReclaimPolicy")),
        phase(o),
        json!(claim),
        json!(class(o)),
        json!(text_or(o, "/spec/volumeAttributesClassName", "<unset>")),
        json!(text(o, "/status/reason")),
        age(o, now),
        json!(text_or(o, "/spec/volumeMode", "<unset>")),
    ]
}

pub(crate) fn claim(o: &Value, now: Timestamp) -> Vec<Value> {
    let bound = !text(o, "/spec/volumeName").is_empty();
    let (capacity, modes) = if bound {
        (text(o, "/status/capacity/storage"), access_modes(list(o, "/status/accessModes")))
    } else {
        ("", String::new())
    };
    vec![
        name(o),
        phase(o),
        json!(text(o, "/spec/volumeName")),
        json!(capacity),
        json!(modes),
        json!(class(o)),
        json!(text_or(o, "/spec/volumeAttributesClassName", "<unset>")),
        age(o, now),
        json!(text_or(o, "/spec/volumeMode", "<unset>")),
    ]
}

pub(crate) fn storage_class(o: &Value, now: Timestamp) -> Vec<Value> {
    let annotations = &o["metadata"]["annotations"];
    let default = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let shown = if default.iter().any(|k| annotations[*k] == "true") {
        format!("{} (default)", text(o, "/metadata/name"))
    } else {
        text(o, "/metadata/name").to_owned()
    };
    vec![
        json!(shown),
        json!(text(o, "/provisioner")),
        json!(text_or(o, "/reclaimPolicy", "Delete")),
        json!(text_or(o, "/volumeBindingMode", "Immediate")),
        json!(flag(o, "/allowVolumeExpansion")),
        age(o, now),
    ]
}

pub(crate) fn csi_driver(o: &Value, now: Timestamp) -> Vec<Value> {
    let audiences: Vec<&str> = list(o, "/spec/tokenRequests").iter().map(|t| text(t, "/audience")).collect();
    let modes: Vec<&str> = list(o, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    let shown = |l: &[&str], absent: &str| if l.is_empty() { absent.to_owned() } else { l.join(",") };
    vec![
        name(o),
        json!(o.pointer("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true)),
        json!(flag(o, "/spec/podInfoOnMount")),
        json!(flag(o, "/spec/storageCapacity")),
        json!(shown(&audiences, "<unset>")),
        json!(flag(o, "/spec/requiresRepublish")),
        json!(shown(&modes, "<none>")),
        age(o, now),
    ]
}

pub(crate) fn csi_node(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(list(o, "/spec/drivers").len()), age(o, now)]
}

pub(crate) fn volume_attachment(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        json!(text(o, "/spec/attacher")),
        json!(text(o, "/spec/source/persistentVolumeName")),
        json!(text(o, "/spec/nodeName")),
        json!(flag(o, "/status/attached")),
        age(o, now),
    ]
}

pub(crate) fn volume_attributes_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text(o, "/driverName")), age(o, now)]
}

pub(crate) fn lease(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text(o, "/spec/holderIdentity")), age(o, now)]
}

/// Servers that are shown by name.
const MOST_SERVERS: usize = 3;

pub(crate) fn storage_version(o: &Value, now: Timestamp) -> Vec<Value> {
    let servers = list(o, "/status/storageVersions");
    let said = |server: &Value| format!("{}={}", text(server, "/apiServerID"), text(server, "/encodingVersion"));
    let mut shown = servers.iter().take(MOST_SERVERS).map(said).collect::<Vec<_>>().join(",");
    if servers.len() > MOST_SERVERS {
        shown.push_str(&format!(" + {} more...", servers.len() - MOST_SERVERS));
    }
    let common = text_or(o, "/status/commonEncodingVersion", "<unset>");
    vec![name(o), json!(common), json!(shown), age(o, now)]
}

pub(crate) fn lease_candidate(o: &Value, now: Timestamp) -> Vec<Value> {
    let of = |field: &str| json!(text(o, &format!("/spec/{field}")));
    vec![name(o), of("leaseName"), of("binaryVersion"), of("emulationVersion"), age(o, now)]
}

pub(crate) fn storage_migration(o: &Value, _: Timestamp) -> Vec<Value> {
    let (group, plural) = (text(o, "/spec/resource/group"), text(o, "/spec/resource/resource"));
    let migrated = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let mut held = list(o, "/status/conditions").iter().filter(|c| c["status"] == "True").map(|c| text(c, "/type"));
    let state = held.rfind(|kind| matches!(*kind, "Running" | "Succeeded" | "Failed")).unwrap_or("");
    vec![name(o), json!(migrated), json!(state)]
}

pub(crate) fn api_service(o: &Value, now: Timestamp) -> Vec<Value> {
    let service = match o.pointer("/spec/service").filter(|s| s.is_object()) {
        Some(s) => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
        None => "Local".to_owned(),
    };
    let available = list(o, "/status/conditions").iter().find(|c| c["type"] == "Available");
    let available = match available.map(|c| (text(c, "/status"), text(c, "/reason"))) {
        None => "Unknown".to_owned(),
        Some(("True", _)) => "True".to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
    };
    vec![name(o), json!(service), json!(available), age(o, now)]
}

pub(crate) fn runtime_class(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(text(o, "/handler")), age(o, now)]
}

pub(crate) fn priority_class(o: &Value, now: Timestamp) -> Vec<Value> {
    let policy = text_or(o, "/preemptionPolicy", "PreemptLowerPriority");
    vec![name(o), json!(int(o, "/value")), json!(flag(o, "/globalDefault")), age(o, now), json!(policy)]
}

pub(crate) fn resource_claim(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut states = Vec::new();
    if !o["metadata"]["deletionTimestamp"].is_null() {
        states.push("deleted");
    }
    match o.pointer("/status/allocation").is_some_and(Value::is_object) {
        false if !o["metadata"]["deletionTimestamp"].is_null() => {}
        false => states.push("pending"),
        true => states.push("allocated"),
    }
    if !list(o, "/status/reservedFor").is_empty() {
        states.push("reserved");
    }
    vec![name(o), json!(states.join(",")), age(o, now)]
}

pub(crate) fn resource_slice(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(o),
        json!(text(o, "/spec/nodeName")),
        json!(text(o, "/spec/driver")),
        json!(text(o, "/spec/pool/name")),
        age(o, now),
    ]
}

pub(crate) fn device_taint_rule(o: &Value, now: Timestamp) -> Vec<Value> {
    let of = |field: &str| json!(text(o, &format!("/spec/taint/{field}")));
    let since = since(o.pointer("/spec/taint/timeAdded"), now);
    vec![name(o), of("key"), of("value"), of("effect"), json!(since), age(o, now)]
}
