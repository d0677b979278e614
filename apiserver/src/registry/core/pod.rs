//! Pods: phase and quality of service at creation, what an update leaves alone, how long a delete waits.

use proto::Value;
use proto::quantity::Quantity;
use serde_json::json;

use super::{addresses, app_armor};
use crate::access::tree::find;
use crate::registry::strategy::{StrategyCx, restore};

/// A new pod is pending; its class follows from its resources; gated pods say so.
pub(in crate::registry) fn prepare_create(object: &mut Value, cx: &mut StrategyCx<'_>) {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(object)});
    if find(object, "/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    object["status"] = status;
    select_own_labels(object, !cx.gated.unmerged_keys);
    app_armor::settle(object, cx.warnings);
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
fn keep(new: &mut Value, old: &Value, field: &str) {
    let unsaid = match &new[field] {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        value => value == 0,
    };
    if let (true, Some(was)) = (unsaid, old.get(field)) {
        new[field] = was.clone();
    }
}

/// What old kubelets drop stays: the class, and of which generation the status and its conditions are. Addresses agree.
pub(in crate::registry) fn prepare_status(new: &mut Value, old: &Value) {
    let before = old.get("status").unwrap_or(&Value::Null);
    if new.get("status").is_none_or(Value::is_null) && before.is_null() {
        return;
    }
    let status = &mut new["status"];
    keep(status, before, "qosClass");
    keep(status, before, OBSERVED);
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let was = before["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == condition["type"]);
        if let Some(was) = was {
            keep(condition, was, OBSERVED);
        }
    }
    addresses::POD.settle(status);
}

/// A write of `ephemeralcontainers`: only they change.
pub fn ephemeral_containers(new: &mut Value, old: &Value) {
    let containers = find(new, "/spec/ephemeralContainers").cloned();
    keep_all_but_spec(new, old);
    if let Some(c) = containers {
        new["spec"]["ephemeralContainers"] = c;
    }
}

/// A write of `resize`: only container resources and resize policies change. Other containers than were there are left
/// for validation to refuse.
pub fn resize(new: &mut Value, old: &Value) {
    let names = |pod: &Value, kind: &str| -> Vec<Value> {
        let all = pod["spec"][kind].as_array().into_iter().flatten();
        all.map(|c| c["name"].clone()).collect()
    };
    if ["containers", "initContainers"].iter().any(|kind| names(new, kind) != names(old, kind)) {
        return;
    }
    let wanted = new.clone();
    keep_all_but_spec(new, old);
    for list in ["containers", "initContainers"] {
        let Some(containers) = new.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut) else {
            continue;
        };
        for c in containers {
            let source = find(&wanted, &format!("/spec/{list}")).and_then(Value::as_array);
            let Some(w) = source.and_then(|l| l.iter().find(|w| w["name"] == c["name"])) else { continue };
            for field in ["resources", "resizePolicy"] {
                restore(c, w, field);
            }
        }
    }
}

fn keep_all_but_spec(new: &mut Value, old: &Value) {
    let (revision, managed) =
        (find(new, "/metadata/resourceVersion").cloned(), find(new, "/metadata/managedFields").cloned());
    *new = old.clone();
    for (field, value) in [("resourceVersion", revision), ("managedFields", managed)] {
        if let Some(v) = value {
            new["metadata"][field] = v;
        }
    }
}

/// Nothing runs yet, or no more: gone at once. Otherwise what was asked, or what the pod asks for.
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

/// The quality of service class of a pod.
pub fn qos_class(pod: &Value) -> &'static str {
    let containers = ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .filter_map(|p| find(pod, p).and_then(Value::as_array))
        .flatten();
    let pod_level = find(pod, "/spec/resources").filter(|r| !r.as_object().is_none_or(serde_json::Map::is_empty));
    let resources: Vec<&Value> = match pod_level {
        Some(r) => vec![r],
        None => containers.filter_map(|c| c.get("resources").or(Some(&Value::Null))).collect(),
    };
    let mut any = false;
    let mut guaranteed = !resources.is_empty();
    for r in resources {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(&r["requests"][name]), amount(&r["limits"][name]));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|q| Some(q) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// A non-zero amount.
fn amount(v: &Value) -> Option<Quantity> {
    let text = match v {
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        _ => return None,
    };
    Quantity::parse(&text).ok().filter(|q| !q.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_old_kubelets_drop_stays() {
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
    fn classes() {
        let pod = |r: Value| json!({"spec": {"containers": [{"name": "c", "resources": r}]}});
        for (r, class) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}}),
                "Guaranteed",
            ),
            (json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": {"memory": "1Gi"}}), "Burstable"),
        ] {
            assert_eq!(qos_class(&pod(r.clone())), class, "{r}");
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
