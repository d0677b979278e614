//! The union of the selected roles' rules. Answers for upstream's `syncClusterRole`.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::{Value, json};

use crate::engine::action::object_path;
use crate::engine::object;

/// Under which name this controller applies, and acts.
pub const MANAGER: &str = "clusterrole-aggregation-controller";

/// The rules to apply, if the role's own are not what its selectors bring together.
#[must_use]
pub fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten() {
        let mut selected: Vec<&Arc<ClusterRole>> = all
            .iter()
            .filter(|r| {
                r.metadata.name != role.metadata.name && object::matches_selector(selector, r.metadata.labels.as_ref())
            })
            .collect();
        selected.sort_by_key(|r| object::name(&r.metadata));
        for rule in selected.into_iter().flat_map(|r| r.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (role.rules.as_deref().unwrap_or_default() != rules).then_some(rules)
}

/// Returns the path and the body of the apply: the rules are this controller's, whoever wrote them before.
#[must_use]
pub fn application(role: &ClusterRole, rules: &[PolicyRule]) -> (String, Value) {
    let path = object_path::<ClusterRole>(&role.metadata);
    let mut body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": role.metadata.name}});
    if !rules.is_empty() {
        body["rules"] = json!(rules);
    }
    (format!("{path}?fieldManager={MANAGER}&force=true"), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(v: Value) -> Arc<ClusterRole> {
        Arc::new(serde_json::from_value(v).expect("role"))
    }

    #[test]
    fn union_in_order_of_names() {
        let rule = |r: &str| json!({"apiGroups": [""], "resources": [r], "verbs": ["get"]});
        let part = |name: &str, rules: Value| {
            role(json!({"metadata": {"name": name, "labels": {"to": "view"}}, "rules": rules}))
        };
        let all = [
            part("b", json!([rule("pods"), rule("nodes")])),
            part("a", json!([rule("secrets"), rule("pods")])),
            role(json!({"metadata": {"name": "c"}, "rules": [rule("other")]})),
        ];
        let view = json!({"metadata": {"name": "view", "labels": {"to": "view"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]}});
        let rules = plan(&role(view.clone()), &all).expect("rules");
        let (path, body) = application(&role(view.clone()), &rules);
        let want = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view?fieldManager=clusterrole-aggregation-controller&force=true";
        assert_eq!(path, want);
        assert_eq!(body["rules"], json!([rule("secrets"), rule("pods"), rule("nodes")]));
        let mut done = view;
        done["rules"] = body["rules"].clone();
        assert_eq!(plan(&role(done.clone()), &all), None);
        assert_eq!(plan(&all[2], &all), None);
        let none = plan(&role(done), &[]).expect("a change");
        assert_eq!(application(&all[0], &none).1.get("rules"), None, "nothing to select is nothing to apply");
    }
}
