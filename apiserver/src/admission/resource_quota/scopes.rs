//! Which pods (and claims) a quota with scopes is about. Pure.

use serde_json::Value;

use crate::access::tree;

struct Scope<'a> {
    name: &'a str,
    operator: &'a str,
    values: Vec<String>,
}

fn scopes(quota: &Value) -> Vec<Scope<'_>> {
    let plain = tree::list(quota, "/spec/scopes").iter().filter_map(Value::as_str);
    let plain = plain.map(|name| Scope { name, operator: "Exists", values: Vec::new() });
    let selected = tree::list(quota, "/spec/scopeSelector/matchExpressions").iter().map(|e| Scope {
        name: tree::text(e, "/scopeName"),
        operator: tree::text(e, "/operator"),
        values: tree::strings(e, "/values"),
    });
    plain.chain(selected).collect()
}

/// Whether an object is in all scopes of a quota. Kinds without scopes are in none.
pub(super) fn matches(quota: &Value, group: &str, plural: &str, object: &Value) -> bool {
    scopes(quota).iter().all(|scope| match (group, plural) {
        ("", "pods") => pod(scope, object),
        ("", "persistentvolumeclaims") => claim(scope, object),
        _ => false,
    })
}

/// Whether a quota has a scope of this name.
pub(super) fn names(quota: &Value, name: &str) -> bool {
    scopes(quota).iter().any(|s| s.name == name)
}

/// `{PriorityClass In [high]}`
pub(super) fn describe(scope: &Value) -> String {
    let text = |field: &str| tree::text(scope, field);
    format!("{{{} {} [{}]}}", text("/scopeName"), text("/operator"), tree::strings(scope, "/values").join(" "))
}

fn pod(scope: &Scope<'_>, pod: &Value) -> bool {
    let terminating = tree::int(pod, "/spec/activeDeadlineSeconds").is_some_and(|s| s >= 0);
    match scope.name {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort(pod),
        "NotBestEffort" => !best_effort(pod),
        "PriorityClass" => selects(scope, tree::text(pod, "/spec/priorityClassName")),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn claim(scope: &Scope<'_>, claim: &Value) -> bool {
    scope.name == "VolumeAttributesClass" && selects(scope, tree::text(claim, "/spec/volumeAttributesClassName"))
}

fn selects(scope: &Scope<'_>, value: &str) -> bool {
    match scope.operator {
        "In" => scope.values.iter().any(|v| v == value),
        "NotIn" => !scope.values.iter().any(|v| v == value),
        "DoesNotExist" => value.is_empty(),
        _ => !value.is_empty(),
    }
}

/// Whether no container asks for processor or memory.
pub(in super::super) fn best_effort(pod: &Value) -> bool {
    let silent = |resources: &Value| {
        ["/requests", "/limits"]
            .iter()
            .filter_map(|l| tree::map(resources, l))
            .all(|l| !l.contains_key("cpu") && !l.contains_key("memory"))
    };
    let containers = ["/spec/containers", "/spec/initContainers"].iter().flat_map(|l| tree::list(pod, l));
    let whole = pod.pointer("/spec/resources").is_none_or(silent);
    whole && containers.filter_map(|c| c.get("resources")).all(silent)
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
        for (quota, object, want) in [
            (scope("BestEffort"), &best_effort, true),
            (scope("BestEffort"), &important, false),
            (scope("NotBestEffort"), &important, true),
            (scope("Terminating"), &important, false),
            (scope("NotTerminating"), &important, true),
            (selector("In"), &important, true),
            (selector("In"), &best_effort, false),
            (selector("NotIn"), &best_effort, true),
            (scope("PriorityClass"), &best_effort, false),
            (json!({"spec": {}}), &best_effort, true),
        ] {
            assert_eq!(matches(&quota, "", "pods", object), want, "{quota} {object}");
        }
        assert!(!matches(&scope("BestEffort"), "", "secrets", &json!({})));
    }
}
