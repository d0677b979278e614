//! The RBAC authoriser: in comes a request's attributes, out goes Allow with the binding that allowed it,
//! or no opinion. Answers for upstream's `rbac` authoriser and for the escalation checks of its registry.
//!
//! Hot path: no object is cloned, no storage is read; only the index is, under a read lock never held
//! across an await.

mod escalation;
mod index;
mod rule;

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;
use shared::authn::UserInfo;
use shared::authz::{Attributes, Decision};

pub use escalation::{Write, check as check_escalation};
pub use index::{Found, Index, RoleRef};
pub use rule::{Rule, compact, missing, quoted_list};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The authoriser; clones share one index.
#[derive(Debug, Clone, Default)]
pub struct Rbac {
    index: Arc<RwLock<Index>>,
}

impl Rbac {
    /// Takes over one object's current state from the watch cache.
    pub fn observe(&self, plural: &str, namespace: &str, name: &str, object: Option<&Value>) {
        self.index.write().observe(plural, namespace, name, object);
    }

    /// Decides one request.
    pub fn decide(&self, request: &Attributes) -> (Decision, String) {
        let index = self.index.read();
        let mut allowed = None;
        let mut missing: Vec<String> = Vec::new();
        index.visit(&request.user, &request.namespace, |found| match found {
            Found::Rule(rule, why) if rule.allows(request) => {
                allowed = Some(why.reason());
                false
            }
            Found::Rule(..) => true,
            Found::Missing(text) => {
                missing.push(text);
                true
            }
        });
        match allowed {
            Some(reason) => (Decision::Allow, reason),
            None if missing.is_empty() => (Decision::NoOpinion, String::new()),
            None => (Decision::NoOpinion, format!("RBAC: {}", join_errors(missing))),
        }
    }

    /// Every rule a user holds in a namespace, and the texts of roles that were not found.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let index = self.index.read();
        let (mut rules, mut missing) = (Vec::new(), Vec::new());
        index.visit(user, namespace, |found| {
            match found {
                Found::Rule(rule, _) => rules.push(rule.clone()),
                Found::Missing(text) => missing.push(text),
            }
            true
        });
        (rules, missing)
    }

    /// The rules of one role.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Vec<Rule>, String> {
        self.index.read().rules_of(role, namespace).map(<[Rule]>::to_vec)
    }
}

/// One error as it is, several in brackets, each text once.
pub(crate) fn join_errors(mut errors: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    errors.retain(|e| seen.insert(e.clone()));
    match errors.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..UserInfo::default() }
    }

    fn ask(rbac: &Rbac, user: UserInfo, verb: &str, ns: &str, resource: &str) -> (Decision, String) {
        rbac.decide(&Attributes {
            user,
            verb: verb.into(),
            namespace: ns.into(),
            resource: resource.into(),
            resource_request: true,
            ..Attributes::default()
        })
    }

    fn sample() -> Rbac {
        let rbac = Rbac::default();
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        rbac.observe("clusterroles", "", "reader", Some(&json!({"rules": rules})));
        rbac.observe("roles", "a", "local", Some(&json!({"rules": rules})));
        rbac.observe(
            "clusterrolebindings",
            "",
            "everyone",
            Some(&json!({"metadata": {"name": "everyone"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "Group", "name": "staff"}]})),
        );
        rbac.observe(
            "rolebindings",
            "a",
            "sa",
            Some(&json!({"metadata": {"name": "sa", "namespace": "a"}, "roleRef": {"kind": "Role", "name": "local"},
                "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "b"}]})),
        );
        rbac
    }

    #[test]
    fn bindings_reach_their_subjects_in_their_scope() {
        let rbac = sample();
        let (decision, reason) = ask(&rbac, user("eve", &["staff"]), "get", "x", "pods");
        assert_eq!(decision, Decision::Allow);
        assert_eq!(
            reason,
            r#"RBAC: allowed by ClusterRoleBinding "everyone" of ClusterRole "reader" to Group "staff""#
        );
        let bot = || user("system:serviceaccount:b:bot", &[]);
        let (decision, reason) = ask(&rbac, bot(), "get", "a", "pods");
        assert_eq!(decision, Decision::Allow);
        assert_eq!(reason, r#"RBAC: allowed by RoleBinding "sa/a" of Role "local" to ServiceAccount "bot/b""#);
        for (who, verb, ns) in [(bot(), "get", "b"), (bot(), "get", ""), (user("eve", &[]), "get", "a")] {
            assert_eq!(ask(&rbac, who, verb, ns, "pods").0, Decision::NoOpinion);
        }
    }

    #[test]
    fn a_missing_role_is_named() {
        let rbac = sample();
        rbac.observe("clusterroles", "", "reader", None);
        let (decision, reason) = ask(&rbac, user("eve", &["staff"]), "get", "x", "pods");
        assert_eq!(decision, Decision::NoOpinion);
        assert_eq!(reason, r#"RBAC: clusterrole.rbac.authorization.k8s.io "reader" not found"#);
    }

    #[test]
    fn a_deleted_binding_no_longer_counts() {
        let rbac = sample();
        rbac.observe("clusterrolebindings", "", "everyone", None);
        assert_eq!(ask(&rbac, user("eve", &["staff"]), "get", "x", "pods"), (Decision::NoOpinion, String::new()));
    }
}
