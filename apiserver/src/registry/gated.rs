//! What feature gates change of writes. Fields behind gates that are off are lost, unless the stored object uses the
//! gate's fields already; gates that are on may refuse more, and allow more (`validation/relaxed.rs`).
//!
//! A table and one walk; a gate of another field is one line.

use proto::Value;
use proto::resources::Resource;
use shared::flags::FeatureGates;
use shared::status::field::Error;

use crate::validation::{PODS, Relaxed, strict_addresses};

/// The fields of a gate in some resources. In a path `*` stands for all elements of a list or map; a part with `?` at
/// its end goes with its last field, one with `!` with the field that follows.
struct Gate {
    name: &'static str,
    /// Where: `plural.group`, and what its paths begin with.
    within: &'static [(&'static str, &'static str)],
    fields: &'static [&'static str],
}

const fn gate(
    name: &'static str,
    within: &'static [(&'static str, &'static str)],
    fields: &'static [&'static str],
) -> Gate {
    Gate { name, within, fields }
}

const POD_STATUS: &[(&str, &str)] = &[("pods", "status")];
const CLAIMS: &[(&str, &str)] = &[
    ("resourceclaims.resource.k8s.io", "spec.devices"),
    ("resourceclaimtemplates.resource.k8s.io", "spec.spec.devices"),
];
const CLAIM_STATUS: &[(&str, &str)] = &[("resourceclaims.resource.k8s.io", "status")];
const SLICES: &[(&str, &str)] = &[("resourceslices.resource.k8s.io", "spec")];

static GATES: &[Gate] = &[
    gate("ClusterTrustBundleProjection", PODS, &["volumes.*.projected.sources.*.clusterTrustBundle"]),
    gate("PodCertificateRequest", PODS, &["volumes.*.projected.sources.*.podCertificate"]),
    gate(
        "ContainerStopSignals",
        PODS,
        &[
            "containers.*.lifecycle?.stopSignal",
            "initContainers.*.lifecycle?.stopSignal",
            "ephemeralContainers.*.lifecycle?.stopSignal",
        ],
    ),
    gate("GenericWorkload", PODS, &["workloadRef"]),
    gate("CrossNamespaceVolumeDataSource", &[("persistentvolumeclaims", "spec")], &["dataSourceRef!.namespace"]),
    gate(
        "ResourceHealthStatus",
        POD_STATUS,
        &[
            "containerStatuses.*.allocatedResourcesStatus",
            "initContainerStatuses.*.allocatedResourcesStatus",
            "ephemeralContainerStatuses.*.allocatedResourcesStatus",
        ],
    ),
    gate("InPlacePodLevelResourcesVerticalScaling", POD_STATUS, &["resources", "allocatedResources"]),
    gate("DRAExtendedResource", POD_STATUS, &["extendedResourceClaimStatus"]),
    gate("DRAExtendedResource", &[("deviceclasses.resource.k8s.io", "spec")], &["extendedResourceName"]),
    gate("DRAAdminAccess", CLAIMS, &["requests.*.exactly.adminAccess"]),
    gate("DRAAdminAccess", CLAIM_STATUS, &["allocation.devices.results.*.adminAccess"]),
    gate("DRADeviceTaints", CLAIMS, &["requests.*.exactly.tolerations", "requests.*.firstAvailable.*.tolerations"]),
    gate("DRADeviceTaints", CLAIM_STATUS, &["allocation.devices.results.*.tolerations"]),
    gate("DRADeviceTaints", SLICES, &["devices.*.taints"]),
    gate(
        "DRAConsumableCapacity",
        CLAIMS,
        &["requests.*.exactly.capacity", "requests.*.firstAvailable.*.capacity", "constraints.*.distinctAttribute"],
    ),
    gate(
        "DRAConsumableCapacity",
        CLAIM_STATUS,
        &["allocation.devices.results.*.consumedCapacity", "allocation.devices.results.*.shareID", "devices.*.shareID"],
    ),
    gate(
        "DRAConsumableCapacity",
        SLICES,
        &["devices.*.allowMultipleAllocations", "devices.*.capacity.*.requestPolicy"],
    ),
    gate(
        "DRADeviceBindingConditions",
        CLAIM_STATUS,
        &[
            "allocation.allocationTimestamp",
            "allocation.devices.results.*.bindingConditions",
            "allocation.devices.results.*.bindingFailureConditions",
        ],
    ),
    gate(
        "DRADeviceBindingConditions",
        SLICES,
        &["devices.*.bindsToNode", "devices.*.bindingConditions", "devices.*.bindingFailureConditions"],
    ),
    gate(
        "DRAPartitionableDevices",
        SLICES,
        &[
            "perDeviceNodeSelection",
            "sharedCounters",
            "devices.*.consumesCounters",
            "devices.*.nodeName",
            "devices.*.nodeSelector",
            "devices.*.allNodes",
        ],
    ),
    gate("NodeDeclaredFeatures", &[("nodes", "status")], &["declaredFeatures"]),
    gate(
        "MaxUnavailableStatefulSet",
        &[("statefulsets.apps", "spec.updateStrategy")],
        &["rollingUpdate.maxUnavailable"],
    ),
    gate("CoordinatedLeaderElection", &[("leases.coordination.k8s.io", "spec")], &["strategy", "preferredHolder"]),
    gate(
        "CRDObservedGenerationTracking",
        &[("customresourcedefinitions.apiextensions.k8s.io", "status")],
        &["observedGeneration", "conditions.*.observedGeneration"],
    ),
];

/// Fields of one gate in one resource.
struct Fields {
    plural: &'static str,
    group: &'static str,
    paths: Vec<Vec<String>>,
}

/// The fields of the gates that are off.
#[derive(Default)]
pub struct Gated {
    off: Vec<Fields>,
    /// `StrictIPCIDRValidation`
    strict_addresses: bool,
    /// What validation lets pass.
    pub relaxed: Relaxed,
}

impl Gated {
    /// Of a server with these gates.
    pub fn new(gates: &FeatureGates) -> Self {
        let of = |gate: &'static Gate, (row, prefix): &(&'static str, &'static str)| {
            let (plural, group) = row.split_once('.').unwrap_or((row, ""));
            let path = |field: &&str| format!("{prefix}.{field}").split('.').map(str::to_owned).collect();
            Fields { plural, group, paths: gate.fields.iter().map(path).collect() }
        };
        let off = GATES.iter().filter(|gate| !gates.enabled(gate.name));
        Self {
            off: off.flat_map(|gate| gate.within.iter().map(move |row| of(gate, row))).collect(),
            strict_addresses: gates.enabled("StrictIPCIDRValidation"),
            relaxed: Relaxed::new(gates),
        }
    }

    /// What gates that are on find wrong with an object, beside what everybody does.
    pub fn refuse(&self, row: &Resource, subresource: &str, new: &Value, old: Option<&Value>) -> Vec<Error> {
        if self.strict_addresses { strict_addresses::check(row, subresource, new, old) } else { Vec::new() }
    }

    /// Takes what is behind a gate that is off out of an object about to be stored in the place of `old`.
    pub fn drop_from(&self, row: &Resource, object: &mut Value, old: Option<&Value>) {
        if row.custom.is_some() {
            return;
        }
        for Fields { paths, .. } in self.off.iter().filter(|f| f.plural == row.plural && f.group == row.group) {
            if old.is_none_or(|old| !paths.iter().any(|path| has(old, path))) {
                for path in paths {
                    take(object, path);
                }
            }
        }
    }
}

fn name(part: &str) -> &str {
    part.trim_end_matches(['?', '!'])
}

/// Whether there is something at a path.
fn has(value: &Value, path: &[String]) -> bool {
    let Some((part, rest)) = path.split_first() else { return !value.is_null() };
    match value {
        Value::Array(items) => items.iter().any(|item| has(item, rest)),
        Value::Object(map) if part == "*" => map.values().any(|item| has(item, rest)),
        Value::Object(map) => map.get(name(part)).is_some_and(|inner| has(inner, rest)),
        _ => false,
    }
}

/// Removes what is at a path. True when something was there.
fn take(value: &mut Value, path: &[String]) -> bool {
    let Some((part, rest)) = path.split_first() else { return false };
    match value {
        Value::Array(items) => take_of(items.iter_mut(), rest),
        Value::Object(map) if part == "*" => take_of(map.values_mut(), rest),
        Value::Object(map) if rest.is_empty() => map.remove(name(part)).is_some(),
        Value::Object(map) => {
            let Some(inner) = map.get_mut(name(part)) else { return false };
            let taken = take(inner, rest);
            let emptied = part.ends_with('?') && inner.as_object().is_some_and(|left| left.is_empty());
            if taken && (emptied || part.ends_with('!')) {
                map.remove(name(part));
            }
            taken
        }
        _ => false,
    }
}

/// The same of all of them.
fn take_of<'v>(items: impl Iterator<Item = &'v mut Value>, path: &[String]) -> bool {
    let mut taken = false;
    for item in items {
        taken |= take(item, path);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::builtin;
    use serde_json::json;

    #[test]
    fn fields_go_with_their_gates() {
        let gated = Gated::new(&FeatureGates::default());
        let taint = json!([{"key": "a", "effect": "NoSchedule"}]);
        for (group, plural, object, old, want) in [
            (
                "",
                "pods",
                json!({"spec": {"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGTERM"}}], "workloadRef": {"name": "w"}}}),
                None,
                json!({"spec": {"containers": [{"name": "c"}]}}),
            ),
            (
                "",
                "pods",
                json!({"spec": {"containers": [{"lifecycle": {"stopSignal": "SIGTERM", "preStop": {}}}]}}),
                None,
                json!({"spec": {"containers": [{"lifecycle": {"preStop": {}}}]}}),
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x", "namespace": "n"}}}),
                None,
                json!({"spec": {}}),
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x"}}}),
                None,
                json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x"}}}),
            ),
            // What was let in stays usable.
            (
                "",
                "pods",
                json!({"spec": {"workloadRef": {"name": "w"}}}),
                Some(json!({"spec": {"workloadRef": {"name": "v"}}})),
                json!({"spec": {"workloadRef": {"name": "w"}}}),
            ),
            (
                "resource.k8s.io",
                "resourceslices",
                json!({"spec": {"devices": [{"name": "d", "taints": taint, "capacity": {"m": {"value": "1", "requestPolicy": {}}}}]}}),
                Some(json!({"spec": {"devices": [{"name": "d"}]}})),
                json!({"spec": {"devices": [{"name": "d", "capacity": {"m": {"value": "1"}}}]}}),
            ),
            (
                "resource.k8s.io",
                "resourceclaimtemplates",
                json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"count": 1, "capacity": {}}}]}}}}),
                None,
                json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"count": 1}}]}}}}),
            ),
            (
                "apps",
                "statefulsets",
                json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0, "maxUnavailable": 1}}}}),
                None,
                json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}),
            ),
        ] {
            let row = builtin(group, plural).expect("a row");
            let mut object = object;
            gated.drop_from(&row, &mut object, old.as_ref());
            assert_eq!(object, want, "{plural}");
        }
    }

    /// Every path leads to a field.
    #[test]
    fn paths_are_of_fields() {
        for gate in GATES {
            assert!(FeatureGates::default().all().any(|(name, _, _)| name == gate.name), "{}", gate.name);
            for (of, prefix) in gate.within {
                let (plural, group) = of.split_once('.').unwrap_or((of, ""));
                let row = builtin(group, plural).expect("a row");
                for field in gate.fields {
                    let storage = row.storage();
                    let mut message = storage.schema();
                    let path = format!("{prefix}.{field}");
                    let parts: Vec<&str> = path.split('.').filter(|part| *part != "*").map(name).collect();
                    for (i, part) in parts.iter().enumerate() {
                        let found = message.and_then(|m: &proto::schema::Message| m.field(part));
                        assert!(found.is_some(), "{of} {path}: {part}");
                        if i + 1 < parts.len() {
                            message = found.and_then(|f| f.message());
                        }
                    }
                }
            }
        }
    }
}
