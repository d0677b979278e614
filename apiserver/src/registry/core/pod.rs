//! Pods: phase and quality of service at creation, what an update leaves alone, how long a delete waits. Answers for
//! upstream's `pkg/registry/core/pod` (`podStrategy.PrepareForCreate`, `CheckGracefulDelete`).

use proto::Value;
use proto::merge::apply::Ownable;
use serde_json::json;

use super::{addresses, app_armor};
use crate::machinery::GroupResource;
use crate::machinery::tree::find;
use crate::printers;
use crate::registry::gated_fields::gated;
use crate::registry::kind::KindDefinition;
use crate::registry::selectable::{Selectable, text};
use crate::registry::strategy::{METADATA, Strategy, StrategyCx, WITH_GENERATION, restore};
use crate::validation;
use crate::validation::kind_rules::ValidationPhase::{Immutable, ObjectMeta, ObjectMetaUpdate};
use crate::validation::kind_rules::rules;
use crate::validation::qos_class;
use crate::validation::strict_addresses::{AddressRules, ip_at};
use crate::validation::warnings;

pub(crate) const PODS: GroupResource<'static> = GroupResource::new("", "pods");

pub(crate) static KIND: KindDefinition = KindDefinition::new(PODS)
    // What it was called before there was a v1.
    .label_alias(|label| if label == "spec.host" { "spec.nodeName" } else { label })
    .ownership(ownable)
    .gated(&[
        gated(
            "ResourceHealthStatus",
            "status",
            &[
                "containerStatuses.*.allocatedResourcesStatus",
                "initContainerStatuses.*.allocatedResourcesStatus",
                "ephemeralContainerStatuses.*.allocatedResourcesStatus",
            ],
        )
        .always(),
        gated("InPlacePodLevelResourcesVerticalScaling", "status", &["resources", "allocatedResources"]),
        gated("DRAExtendedResource", "status", &["extendedResourceClaimStatus"]),
    ])
    .addresses(AddressRules::of(&[
        ip_at("status.podIPs.*.ip=").with("status").kept(),
        ip_at("status.hostIPs.*.ip=").with("status").kept(),
    ]))
    .describes_pods(&[])
    .strategy(Strategy {
        prepare_create: Some(prepare_create),
        prepare_update: Some(prepare_update),
        prepare_status: Some(prepare_status),
        status_restores: &["deletionTimestamp", "ownerReferences"],
        grace: Some(grace),
        ..WITH_GENERATION
    })
    .rules(
        rules(validation::pod::create)
            .update(validation::pod::update::update)
            .changed(&[ObjectMetaUpdate, ObjectMeta, Immutable])
            .status(validation::pod::status::update),
    )
    .warns(warnings::of_pod)
    .warns_of_status(|new, _, out| warnings::networking::pod_status(new, out))
    .cells(printers::workloads::pod)
    .selectable(&[
        text("spec.nodeName", &["/spec/nodeName"]),
        text("spec.restartPolicy", &["/spec/restartPolicy"]),
        text("spec.schedulerName", &["/spec/schedulerName"]),
        text("spec.serviceAccountName", &["/spec/serviceAccountName"]),
        Selectable { label: "spec.hostNetwork", pointers: &["/spec/hostNetwork"], absent: "false" },
        text("status.phase", &["/status/phase"]),
        text("status.podIP", &["/status/podIP"]),
        // Known, and never found: nobody ever filled it in.
        text("status.podIPs", &[]),
        text("status.nominatedNodeName", &["/status/nominatedNodeName"]),
    ]);

/// A new pod is pending; its class follows from its resources; gated pods say so.
pub(in crate::registry) fn prepare_create(object: &mut Value, cx: &mut StrategyCx<'_>) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(&object["spec"])});
    if find(object, "/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    object["status"] = status;
    mend(object);
    select_own_labels(object, !cx.gated.unmerged_keys);
    app_armor::sync_fields_and_annotations(object, cx.warnings);
}

/// Prepares an update of a pod.
pub(in crate::registry) fn prepare_update(new: &mut Value, _: &Value) {
    mend(new);
}

/// Mends what upstream mends when it reads a pod, and no template of pods, whoever sends it (`Convert_v1_Pod_To_core_Pod`):
/// a negative grace period is one second.
fn mend(pod: &mut Value) {
    if let Some(seconds) = pod.pointer_mut("/spec/terminationGracePeriodSeconds")
        && seconds.as_i64().is_some_and(|seconds| seconds < 0)
    {
        *seconds = json!(1);
    }
}

/// Pods that are to be near or away from others like them are selected by the values the pod's own labels have now, and
/// so are those they are spread with, where that is asked for.
fn select_own_labels(pod: &mut Value, spread: bool) {
    let Some(labels) = find(pod, "/metadata/labels").and_then(Value::as_object).cloned() else { return };
    let mut merge = |term: &mut Value| {
        for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
            let keys: Vec<String> =
                term[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else { return };
            for key in keys {
                let Some(value) = labels.get(&key) else { continue };
                let all = selector.entry("matchExpressions").or_insert_with(|| json!([]));
                if let Some(all) = all.as_array_mut() {
                    all.push(json!({"key": key, "operator": operator, "values": [value]}));
                }
            }
        }
    };
    let spec = &mut pod["spec"];
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = format!("/affinity/{kind}/requiredDuringSchedulingIgnoredDuringExecution");
        spec.pointer_mut(&required).and_then(Value::as_array_mut).into_iter().flatten().for_each(&mut merge);
        let preferred = format!("/affinity/{kind}/preferredDuringSchedulingIgnoredDuringExecution");
        let weighted = spec.pointer_mut(&preferred).and_then(Value::as_array_mut).into_iter().flatten();
        weighted.filter_map(|w| w.get_mut("podAffinityTerm")).for_each(&mut merge);
    }
    let constraints = spec.get_mut("topologySpreadConstraints").and_then(Value::as_array_mut);
    constraints.filter(|_| spread).into_iter().flatten().for_each(&mut merge);
}

/// The generation that something is about.
const OBSERVED: &str = "observedGeneration";

/// Keeps a field that is not said any more.
fn backfill(new: &mut Value, old: &Value, field: &str) {
    let unsaid = match &new[field] {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        value => value == 0,
    };
    if let (true, Some(was)) = (unsaid, old.get(field)) {
        new[field] = was.clone();
    }
}

/// Prepares an update of a pod's status: keeps the QoS class and observed generations that old kubelets drop, and makes
/// `podIP` and `podIPs` agree.
pub(in crate::registry) fn prepare_status(new: &mut Value, old: &Value) {
    let before = old.get("status").unwrap_or(&Value::Null);
    if new.get("status").is_none_or(Value::is_null) && before.is_null() {
        return;
    }
    let status = &mut new["status"];
    backfill(status, before, "qosClass");
    backfill(status, before, OBSERVED);
    // Who has a condition twice has two of them: each goes by its own.
    let mut left: Vec<&Value> = before["conditions"].as_array().into_iter().flatten().collect();
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(at) = left.iter().position(|was| was["type"] == condition["type"]) {
            backfill(condition, left.remove(at), OBSERVED);
        }
    }
    addresses::POD.sync(status);
}

/// A write of `ephemeralcontainers`: only they change.
pub(crate) fn ephemeral_containers(new: &mut Value, old: &Value) {
    let sent = new["spec"].take();
    keep(new, old);
    restore(&mut new["spec"], &sent, "ephemeralContainers");
}

/// A write of `resize`: only resources and resize policies of containers change, and those of the pod as a whole where
/// that is allowed. Other containers than were there are left for validation to refuse.
pub(crate) fn resize(new: &mut Value, old: &Value, whole: bool) {
    const KINDS: [&str; 2] = ["containers", "initContainers"];
    let names = |pod: &Value, kind: &str| -> Vec<Value> {
        pod["spec"][kind].as_array().into_iter().flatten().map(|c| c["name"].clone()).collect()
    };
    if KINDS.iter().any(|kind| names(new, kind).len() != names(old, kind).len()) {
        return;
    }
    let renamed = KINDS.map(|kind| names(new, kind) != names(old, kind));
    let sent = new["spec"].take();
    keep(new, old);
    if whole {
        restore(&mut new["spec"], &sent, "resources");
    }
    for (kind, renamed) in KINDS.into_iter().zip(renamed) {
        if renamed {
            new["spec"][kind] = sent[kind].clone();
            continue;
        }
        let containers = new["spec"].get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, sent) in containers.zip(sent[kind].as_array().into_iter().flatten()) {
            for field in ["resources", "resizePolicy"] {
                restore(container, sent, field);
            }
        }
    }
}

/// All but what a subresource is for stays as it is.
fn keep(new: &mut Value, old: &Value) {
    for part in ["spec", "status"] {
        restore(new, old, part);
    }
    for field in METADATA {
        restore(&mut new["metadata"], &old["metadata"], field);
    }
}

/// Grace period of a pod's deletion in seconds: 0 when it is not scheduled or has finished, else the requested one or
/// the pod's own.
pub(in crate::registry) fn grace(pod: &Value, requested: Option<i64>) -> i64 {
    let asked =
        requested.or_else(|| find(pod, "/spec/terminationGracePeriodSeconds").and_then(Value::as_i64)).unwrap_or(30);
    let unscheduled = find(pod, "/spec/nodeName").and_then(Value::as_str).unwrap_or("").is_empty();
    let over = matches!(find(pod, "/status/phase").and_then(Value::as_str), Some("Failed" | "Succeeded"));
    if unscheduled || over {
        0
    } else if asked < 0 {
        1
    } else {
        asked
    }
}

/// Fields of the subresource `resize`.
const RESIZED: &[&[&str]] = &[
    &["spec", "containers", "*", "resources"],
    &["spec", "containers", "*", "resizePolicy"],
    &["spec", "initContainers", "*", "resources"],
    &["spec", "initContainers", "*", "resizePolicy"],
];

fn ownable(subresource: &str) -> Option<Ownable> {
    match subresource {
        "resize" => Some(Ownable::Only(RESIZED)),
        "ephemeralcontainers" => Some(Ownable::Only(&[&["spec", "ephemeralContainers"]])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_old_kubelets_drop_are_kept() {
        let old = json!({"status": {"qosClass": "Burstable", "observedGeneration": 3,
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 2}]}});
        for (sent, stored) in [
            (Value::Null, json!({"qosClass": "Burstable", "observedGeneration": 3})),
            (
                json!({"phase": "Running", "observedGeneration": 0, "conditions": [{"type": "Ready"}, {"type": "Other"}]}),
                json!({"phase": "Running", "observedGeneration": 3, "qosClass": "Burstable",
                    "conditions": [{"type": "Ready", "observedGeneration": 2}, {"type": "Other"}]}),
            ),
            (
                json!({"observedGeneration": 4, "qosClass": "x", "conditions": [{"type": "Ready", "observedGeneration": 4}]}),
                json!({"observedGeneration": 4, "qosClass": "x", "conditions": [{"type": "Ready", "observedGeneration": 4}]}),
            ),
        ] {
            let mut new = json!({"status": sent});
            prepare_status(&mut new, &old);
            assert_eq!(new["status"], stored);
        }
    }

    #[test]
    fn pods_are_mended_whenever_they_are_written() {
        let old = json!({"metadata": {}, "spec": {"terminationGracePeriodSeconds": -1}});
        for (seconds, stored) in [(-1, 1), (-30, 1), (0, 0), (30, 30)] {
            let mut new = json!({"metadata": {}, "spec": {"terminationGracePeriodSeconds": seconds}});
            prepare_update(&mut new, &old);
            assert_eq!(new["spec"]["terminationGracePeriodSeconds"], stored, "{seconds}");
        }
    }

    #[test]
    fn conditions_that_are_there_twice() {
        let one = |kind: &str, observed: i64| json!({"type": kind, "observedGeneration": observed});
        let old = json!({"status": {"conditions": [one("a", 1), one("b", 2), one("a", 3)]}});
        let mut new = json!({"status": {"conditions": [one("b", 0), one("a", 0), one("a", 0), one("a", 0)]}});
        prepare_status(&mut new, &old);
        assert_eq!(new["status"]["conditions"], json!([one("b", 2), one("a", 1), one("a", 3), one("a", 0)]));
    }

    #[test]
    fn resizes() {
        let container = |name: &str, image: &str, cpu: &str| json!({"name": name, "image": image, "resources": {"requests": {"cpu": cpu}}});
        let pod = |containers: Value, whole: &str| json!({"metadata": {"name": "p"}, "spec": {"containers": containers, "resources": {"limits": {"cpu": whole}}}});
        let old = pod(json!([container("a", "i", "1"), container("b", "i", "1")]), "1");
        let sent = |containers: Value| {
            let mut sent = pod(containers, "2");
            sent["metadata"]["labels"] = json!({"k": "v"});
            sent["spec"]["nodeName"] = json!("n");
            sent
        };
        let resized = |new: &Value, whole: bool| {
            let mut new = new.clone();
            resize(&mut new, &old, whole);
            new
        };
        let more = sent(json!([container("a", "j", "2"), container("b", "i", "1")]));
        let now = json!([container("a", "i", "2"), container("b", "i", "1")]);
        assert_eq!(resized(&more, false), pod(now.clone(), "1"));
        assert_eq!(resized(&more, true), pod(now, "2"));
        let renamed = sent(json!([container("a", "j", "2"), container("c", "i", "1")]));
        assert_eq!(resized(&renamed, false), pod(renamed["spec"]["containers"].clone(), "1"));
        let fewer = sent(json!([container("a", "i", "1")]));
        assert_eq!(resized(&fewer, false), fewer, "as it was sent");
    }

    #[test]
    fn ephemeral_containers_change_nothing_else() {
        let pod = |label: &str, all: Value| {
            let mut pod = json!({"metadata": {"name": "p", "labels": {"l": label}}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
            if !all.is_null() {
                pod["spec"]["ephemeralContainers"] = all;
            }
            pod
        };
        let old = pod("a", json!([{"name": "x"}]));
        // Who leaves out those that are there is told that they cannot go.
        for sent in [json!([{"name": "x"}, {"name": "y"}]), Value::Null] {
            let mut new = pod("b", sent.clone());
            new["spec"]["nodeName"] = json!("other");
            new["metadata"]["generateName"] = json!("p-");
            ephemeral_containers(&mut new, &old);
            let mut want = pod("a", sent);
            want["metadata"]["generateName"] = json!("p-");
            assert_eq!(new, want);
        }
    }

    #[test]
    fn pods_select_by_their_own_labels() {
        let term =
            json!({"topologyKey": "k", "matchLabelKeys": ["a", "x"], "mismatchLabelKeys": ["b"], "labelSelector": {}});
        let mut pod = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
            "topologySpreadConstraints": [{"matchLabelKeys": ["a"]}, {"matchLabelKeys": ["a"], "labelSelector": {}}],
        }});
        let mut unmerged = pod.clone();
        select_own_labels(&mut pod, true);
        assert_eq!(
            pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"],
            json!({"matchExpressions": [
                {"key": "a", "operator": "In", "values": ["1"]}, {"key": "b", "operator": "NotIn", "values": ["2"]}]})
        );
        // Without a selector there is nothing to add to.
        let constraints = json!([{"matchLabelKeys": ["a"]}, {"matchLabelKeys": ["a"], "labelSelector":
            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}}]);
        assert_eq!(pod["spec"]["topologySpreadConstraints"], constraints);
        let before = unmerged["spec"]["topologySpreadConstraints"].clone();
        select_own_labels(&mut unmerged, false);
        assert_eq!(unmerged["spec"]["topologySpreadConstraints"], before, "the scheduler looks at the keys by itself");
    }

    #[test]
    fn grace_periods() {
        let pod = |node: &str, phase: &str| json!({"spec": {"nodeName": node, "terminationGracePeriodSeconds": 20}, "status": {"phase": phase}});
        for (p, asked, want) in [
            (pod("", "Pending"), None, 0),
            (pod("n", "Running"), None, 20),
            (pod("n", "Running"), Some(5), 5),
            (pod("n", "Running"), Some(0), 0),
            (pod("n", "Succeeded"), Some(5), 0),
            (pod("n", "Running"), Some(-1), 1),
        ] {
            assert_eq!(grace(&p, asked), want);
        }
    }
}
