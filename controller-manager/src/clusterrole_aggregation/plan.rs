//! The union of the selected roles' rules.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde_json::json;

use crate::engine::action::{Action, PatchKind};
use crate::engine::object;

/// Write the role's rules, if they are not what its selectors bring together.
#[must_use]
pub fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Vec<Action> {
    let Some(aggregation) = role.aggregation_rule.as_ref() else { return Vec::new() };
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
    if role.rules.as_deref().unwrap_or_default() == rules {
        return Vec::new();
    }
    vec![Action::patch::<ClusterRole>(&role.metadata, PatchKind::Merge, json!({"rules": rules}))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
        let got = plan(&role(view.clone()), &all);
        let [Action::Patch { path, body, .. }] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(path, "/apis/rbac.authorization.k8s.io/v1/clusterroles/view");
        assert_eq!(body["rules"], json!([rule("secrets"), rule("pods"), rule("nodes")]));
        let mut done = view;
        done["rules"] = body["rules"].clone();
        assert!(plan(&role(done), &all).is_empty());
        assert!(plan(&all[2], &all).is_empty());
    }
}
