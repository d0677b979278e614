//! Features that nodes declare in their status, and pods that need them: a pod is kept away from nodes of another release, or
//! of another configuration, that could not run it as it asks. Answers for upstream's
//! `k8s.io/component-helpers/nodedeclaredfeatures`.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use proto::quantity::Quantity;
use serde_json::Value;

use crate::flags::FeatureGates;
use crate::typed::ReadError;
use crate::types::from_tree;

/// Feature gate of all of this.
pub const GATE: &str = "NodeDeclaredFeatures";
/// Restart rules may start all containers of a pod again.
pub const RESTARTS_ALL: &str = "RestartAllContainersOnContainerExits";
/// CPUs of Guaranteed pods are resized in place.
pub const RESIZES_GUARANTEED: &str = "GuaranteedQoSPodCPUResize";
/// Resources that a pod has as a whole are resized in place.
pub const RESIZES_WHOLE: &str = "InPlacePodLevelResourcesVerticalScaling";

/// A feature: its name, and the configurations of a node that has it.
struct Feature {
    name: &'static str,
    has: fn(&FeatureGates, &str) -> bool,
}

/// In the order of their names, as nodes declare them.
const FEATURES: [Feature; 3] = [
    Feature {
        name: RESIZES_GUARANTEED,
        has: |gates, policy| match policy {
            "static" => gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
            policy => policy == "none",
        },
    },
    Feature { name: RESIZES_WHOLE, has: |gates, _| gates.enabled(RESIZES_WHOLE) },
    Feature { name: RESTARTS_ALL, has: |gates, _| gates.enabled(RESTARTS_ALL) },
];

/// Returns those of the features in `built` that a node of this configuration has, in order.
#[must_use]
pub fn declared(built: &[&str], gates: &FeatureGates, cpu_policy: &str) -> Vec<String> {
    let built = FEATURES.iter().filter(|feature| built.contains(&feature.name));
    built.filter(|feature| (feature.has)(gates, cpu_policy)).map(|feature| feature.name.to_owned()).collect()
}

/// Features that a node must have to run a pod.
#[must_use]
pub fn needed_to_run(spec: &PodSpec) -> Vec<&'static str> {
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers")
        .then_some(RESTARTS_ALL)
        .into_iter()
        .collect()
}

/// Features that a node must have to change a pod that it runs.
#[must_use]
pub fn needed_to_change(old: &Pod, new: &Pod) -> Vec<&'static str> {
    let (Some(before), Some(after)) = (&old.spec, &new.spec) else { return Vec::new() };
    let resized = resizes_guaranteed(old, before, after).then_some(RESIZES_GUARANTEED);
    let whole = (before.resources != after.resources).then_some(RESIZES_WHOLE);
    resized.into_iter().chain(whole).collect()
}

/// Does as [`needed_to_change`] for pods that are trees.
///
/// # Errors
/// A tree that is no pod.
pub fn needed_to_change_trees(old: &Value, new: &Value) -> Result<Vec<&'static str>, ReadError> {
    Ok(needed_to_change(&from_tree(old)?, &from_tree(new)?))
}

fn resizes_guaranteed(old: &Pod, before: &PodSpec, after: &PodSpec) -> bool {
    let class = old.status.as_ref().map(|status| status.qos_class.as_deref().unwrap_or_default());
    class.is_none_or(|class| class == "Guaranteed")
        && before.containers.iter().zip(&after.containers).any(|(before, after)| cpu(before) != cpu(after))
}

/// Thousandths of CPUs that a container requests.
fn cpu(container: &Container) -> i64 {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let amount = requests.and_then(|all| all.get("cpu")?.0.parse::<Quantity>().ok());
    amount.map_or(0, |amount| amount.milli_value())
}

/// Features that are needed and not declared.
#[must_use]
pub fn missing<'a>(needed: &[&'a str], declared: &[String]) -> Vec<&'a str> {
    needed.iter().copied().filter(|name| !declared.iter().any(|d| d == name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::FlagSet;
    use serde_json::json;

    fn pod(class: &str, cpu: &str, whole: Value, action: &str) -> Pod {
        let rules = json!([{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]);
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        serde_json::from_value(json!({"spec": {"containers": [container], "resources": whole,
            "initContainers": [{"name": "i", "restartPolicyRules": rules}]}, "status": {"qosClass": class}}))
        .expect("a pod")
    }

    #[test]
    fn nodes_declare_what_their_configuration_has() {
        let all = [RESTARTS_ALL, RESIZES_WHOLE, RESIZES_GUARANTEED];
        let exclusive = "InPlacePodVerticalScalingExclusiveCPUs=true";
        let both = "RestartAllContainersOnContainerExits=true,InPlacePodLevelResourcesVerticalScaling=true";
        for (gates, policy, built, wanted) in [
            ("", "none", &all[..], vec![RESIZES_GUARANTEED]),
            ("", "static", &all, vec![]),
            (exclusive, "static", &all, vec![RESIZES_GUARANTEED]),
            (both, "static", &all, vec![RESIZES_WHOLE, RESTARTS_ALL]),
            (both, "none", &all[2..], vec![RESIZES_GUARANTEED]),
        ] {
            let flags = FlagSet::of("kubelet", &[&format!("--feature-gates={gates}")]).expect("flags");
            assert_eq!(declared(built, &flags.feature_gates(), policy), wanted, "{gates} {policy}");
        }
    }

    #[test]
    fn pods_need_features_for_restarts_of_all_and_for_some_resizes() {
        let run = |action: &str| needed_to_run(pod("", "1", Value::Null, action).spec.as_ref().expect("a spec"));
        assert_eq!((run("RestartAllContainers"), run("Restart")), (vec![RESTARTS_ALL], vec![]));
        let whole = |cpu: &str| json!({"requests": {"cpu": cpu}});
        for (class, from, to, wanted) in [
            ("Guaranteed", ("1", whole("2")), ("2", whole("2")), vec![RESIZES_GUARANTEED]),
            ("Guaranteed", ("1", whole("2")), ("1000m", whole("2")), vec![]),
            ("Burstable", ("1", whole("2")), ("2", whole("2")), vec![]),
            ("Burstable", ("1", whole("2")), ("1", whole("3")), vec![RESIZES_WHOLE]),
            ("Burstable", ("1", Value::Null), ("1", Value::Null), vec![]),
        ] {
            let (old, new) = (pod(class, from.0, from.1, "Restart"), pod(class, to.0, to.1, "Restart"));
            assert_eq!(needed_to_change(&old, &new), wanted, "{class}: {} to {}", from.0, to.0);
        }
    }

    #[test]
    fn what_is_not_declared_is_missing() {
        let declared = [RESIZES_GUARANTEED.to_owned()];
        assert_eq!(missing(&[RESIZES_GUARANTEED, RESTARTS_ALL], &declared), [RESTARTS_ALL]);
        assert!(missing(&[], &[]).is_empty());
    }
}
