//! Scopes of quotas: the pods (and claims) that a quota counts. Pure. Answers for upstream's `podMatchesScopeFunc`,
//! `pvcMatchesScopeFunc`.

use serde_json::Value;

use super::super::resource_list as list;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;

/// A scope, of a quota or of what is limited by the configuration.
pub(super) struct QuotaScope<'a> {
    /// Name of the scope.
    pub(super) name: &'a str,
    operator: &'a str,
    values: Vec<String>,
}

impl<'a> QuotaScope<'a> {
    /// From an expression that selects.
    pub(super) fn of(expression: &'a Value) -> Self {
        let text = |field: &str| tree::text(expression, field);
        Self { name: text("/scopeName"), operator: text("/operator"), values: tree::strings(expression, "/values") }
    }
}

fn scopes(quota: &Value) -> impl Iterator<Item = QuotaScope<'_>> {
    let plain = tree::list(quota, "/spec/scopes").iter().filter_map(Value::as_str);
    let plain = plain.map(|name| QuotaScope { name, operator: "Exists", values: Vec::new() });
    plain.chain(tree::list(quota, "/spec/scopeSelector/matchExpressions").iter().map(QuotaScope::of))
}

/// Reports whether an object matches all scopes of a quota. Kinds without scopes match none.
pub(super) fn matches(quota: &Value, group: &str, plural: &str, object: &Value) -> bool {
    scopes(quota).all(|scope| is_in(&scope, group, plural, object))
}

/// Reports whether an object matches a scope.
pub(super) fn is_in(scope: &QuotaScope<'_>, group: &str, plural: &str, object: &Value) -> bool {
    match GroupResource::new(group, plural) {
        PODS => pod(scope, object),
        PERSISTENT_VOLUME_CLAIMS => claim(scope, object),
        _ => false,
    }
}

/// Reports whether a quota has a scope of this name that an object matches, whatever its other scopes are.
pub(super) fn covers(quota: &Value, name: &str, group: &str, plural: &str, object: &Value) -> bool {
    scopes(quota).any(|scope| scope.name == name && is_in(&scope, group, plural, object))
}

/// `{PriorityClass In [high]}`
pub(super) fn describe(scope: &Value) -> String {
    let text = |field: &str| tree::text(scope, field);
    format!("{{{} {} [{}]}}", text("/scopeName"), text("/operator"), tree::strings(scope, "/values").join(" "))
}

/// Reports whether a pod has an active deadline: the one scope that an update can change.
pub(super) fn terminates(pod: &Value) -> bool {
    tree::int(pod, "/spec/activeDeadlineSeconds").is_some_and(|s| s >= 0)
}

fn pod(scope: &QuotaScope<'_>, pod: &Value) -> bool {
    match scope.name {
        "Terminating" => terminates(pod),
        "NotTerminating" => !terminates(pod),
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "PriorityClass" => selects(scope, &[tree::text(pod, "/spec/priorityClassName")]),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn claim(scope: &QuotaScope<'_>, claim: &Value) -> bool {
    scope.name == "VolumeAttributesClass" && selects(scope, &attributes_classes(claim))
}

/// The attributes classes that a claim asks for, has, or is on its way to; "" where there is none of these.
pub(super) fn attributes_classes(claim: &Value) -> [&str; 3] {
    [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ]
    .map(|field| tree::text(claim, field))
}

/// Reports whether a scope's operator selects one of the values, or their absence.
fn selects(scope: &QuotaScope<'_>, values: &[&str]) -> bool {
    let values: Vec<&str> = values.iter().copied().filter(|v| !v.is_empty()).collect();
    let listed = |value: &&str| scope.values.iter().any(|v| v == value);
    match scope.operator {
        "In" => values.iter().any(listed),
        "NotIn" => values.is_empty() || !values.iter().all(listed),
        "DoesNotExist" => values.is_empty(),
        "Exists" => !values.is_empty(),
        _ => false,
    }
}

/// Reports whether a pod's QoS class is BestEffort. Pod-level resources alone decide where they are set.
pub(in super::super) fn best_effort(pod: &Value) -> bool {
    match tree::text(pod, "/status/qosClass") {
        "" => {}
        class => return class == "BestEffort",
    }
    let silent = |resources: &Value| {
        let lists = ["/requests", "/limits"].map(|which| list::read(resources, which));
        !lists.iter().flatten().any(|(name, q)| matches!(name.as_str(), "cpu" | "memory") && q.sign() > 0)
    };
    if let Some(whole) = pod.pointer("/spec/resources").filter(|r| !r.is_null()) {
        return silent(whole);
    }
    let containers = ["/spec/containers", "/spec/initContainers"].iter().flat_map(|l| tree::list(pod, l));
    containers.filter_map(|c| c.get("resources")).all(silent)
}

fn crosses_namespaces(pod: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let required =
            tree::list(pod, &format!("/spec/affinity/{kind}/requiredDuringSchedulingIgnoredDuringExecution"));
        let preferred =
            tree::list(pod, &format!("/spec/affinity/{kind}/preferredDuringSchedulingIgnoredDuringExecution"));
        let terms = required.iter().chain(preferred.iter().filter_map(|p| p.get("podAffinityTerm")));
        terms.into_iter().any(|t| !tree::list(t, "/namespaces").is_empty() || tree::has(t, "/namespaceSelector"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scopes_of_pods() {
        let best_effort = json!({"spec": {"containers": [{}]}});
        let important =
            json!({"spec": {"priorityClassName": "high", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}});
        let selector = |operator: &str| json!({"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": ["high"]}]}}});
        let scope = |name: &str| json!({"spec": {"scopes": [name]}});
        let nothing = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "0"}}}]}});
        let as_a_whole = json!({"spec": {"resources": {"requests": {"cpu": "1"}}, "containers": [{}]}});
        let said = json!({"spec": {"containers": [{}]}, "status": {"qosClass": "Burstable"}});
        let far = |term: Value| json!({"spec": {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}});
        for (quota, object, want) in [
            (scope("BestEffort"), &best_effort, true),
            (scope("BestEffort"), &important, false),
            (scope("BestEffort"), &nothing, true),
            (scope("BestEffort"), &as_a_whole, false),
            (scope("BestEffort"), &said, false),
            (scope("NotBestEffort"), &important, true),
            (scope("Terminating"), &important, false),
            (scope("NotTerminating"), &important, true),
            (selector("In"), &important, true),
            (selector("In"), &best_effort, false),
            (selector("NotIn"), &best_effort, true),
            (selector("NotIn"), &important, false),
            (selector("Exists"), &important, true),
            (selector("Exists"), &best_effort, false),
            (selector("DoesNotExist"), &important, false),
            (selector("DoesNotExist"), &best_effort, true),
            (scope("PriorityClass"), &best_effort, false),
            (scope("CrossNamespacePodAffinity"), &best_effort, false),
            (scope("CrossNamespacePodAffinity"), &far(json!({"topologyKey": "t"})), false),
            (scope("CrossNamespacePodAffinity"), &far(json!({"namespaces": ["a"]})), true),
            (scope("CrossNamespacePodAffinity"), &far(json!({"namespaceSelector": {}})), true),
            (scope("VolumeAttributesClass"), &important, false),
            (json!({"spec": {}}), &best_effort, true),
        ] {
            assert_eq!(matches(&quota, "", "pods", object), want, "{quota} {object}");
        }
        assert!(!matches(&scope("BestEffort"), "", "secrets", &json!({})));
    }

    #[test]
    fn scopes_of_claims() {
        let selector = |operator: &str| json!({"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator, "values": ["gold"]}]}}});
        let none = json!({"spec": {}});
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        // On its way from gold to silver.
        let both = json!({"spec": {"volumeAttributesClassName": "silver"}, "status": {"currentVolumeAttributesClassName": "gold"}});
        let target = json!({"spec": {}, "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "gold"}}});
        for (operator, want) in [
            ("In", [false, true, true, true]),
            ("NotIn", [true, false, true, false]),
            ("Exists", [false, true, true, true]),
            ("DoesNotExist", [true, false, false, false]),
        ] {
            for (object, want) in [&none, &gold, &both, &target].into_iter().zip(want) {
                let quota = selector(operator);
                assert_eq!(matches(&quota, "", "persistentvolumeclaims", object), want, "{operator} {object}");
            }
        }
    }
}
