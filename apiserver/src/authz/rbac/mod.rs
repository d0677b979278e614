//! The RBAC authoriser: in comes a request's attributes, out goes Allow with the binding that allowed it,
//! or no opinion. Answers for upstream's `rbac` authoriser and for the escalation checks of its registry.
//!
//! Hot path: no object is cloned, no storage is read; only the index is, under a read lock never held
//! across an await.

mod escalation;
mod index;
mod rule;

use shared::authn::UserInfo;
use shared::authz::{Attributes, Decision};
use shared::status::field::aggregate;

pub use escalation::{Write, check as check_escalation, everything, question as escalation_question};
pub use index::{Index, MissingRole, RoleRef, RuleVisit};
pub use rule::{Reach, Rule, compact, missing, quoted_list};

use super::follow::Follower;
use crate::machinery::GroupResource;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::registry::rbac::role::ROLES;
use crate::registry::rbac::role_binding::ROLE_BINDINGS;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The resources it is made of.
pub const SOURCES: &[GroupResource<'static>] = &[CLUSTER_ROLES, ROLES, CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS];

/// The authoriser: the index, kept up to date.
pub type Rbac = Follower<Index>;

impl Index {
    /// Decides one request.
    pub fn decide(&self, request: &Attributes) -> (Decision, String) {
        let mut allowed = None;
        let mut missing: Vec<MissingRole> = Vec::new();
        self.visit(&request.user, &request.namespace, Reach::wanted(request), |found| match found {
            RuleVisit::Rule(rule, why) if rule.allows(request) => {
                allowed = Some(why.reason());
                false
            }
            RuleVisit::Rule(..) => true,
            RuleVisit::Missing(role) => {
                missing.push(role);
                true
            }
        });
        match allowed {
            Some(reason) => (Decision::Allow, reason),
            None if missing.is_empty() => (Decision::NoOpinion, String::new()),
            None => (Decision::NoOpinion, format!("RBAC: {}", aggregate(&missing))),
        }
    }

    /// Every rule a user holds in a namespace, and the roles that were not found.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<MissingRole>) {
        let (mut rules, mut missing) = (Vec::new(), Vec::new());
        self.visit(user, namespace, Reach::ALL, |found| {
            match found {
                RuleVisit::Rule(rule, _) => rules.push(rule.clone()),
                RuleVisit::Missing(role) => missing.push(role),
            }
            true
        });
        (rules, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::follow::Observer as _;
    use serde_json::json;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..UserInfo::default() }
    }

    fn ask(rbac: &Index, user: UserInfo, verb: &str, ns: &str, resource: &str) -> (Decision, String) {
        rbac.decide(&Attributes {
            user,
            verb: verb.into(),
            namespace: ns.into(),
            resource: resource.into(),
            resource_request: true,
            ..Attributes::default()
        })
    }

    fn sample() -> Index {
        let mut rbac = Index::default();
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        rbac.observe(CLUSTER_ROLES, "", "reader", Some(&json!({"rules": rules})));
        rbac.observe(ROLES, "a", "local", Some(&json!({"rules": rules})));
        rbac.observe(
            CLUSTER_ROLE_BINDINGS,
            "",
            "everyone",
            Some(&json!({"metadata": {"name": "everyone"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "Group", "name": "staff"}]})),
        );
        rbac.observe(
            ROLE_BINDINGS,
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
        let mut rbac = sample();
        rbac.observe(CLUSTER_ROLES, "", "reader", None);
        let (decision, reason) = ask(&rbac, user("eve", &["staff"]), "get", "x", "pods");
        assert_eq!(decision, Decision::NoOpinion);
        assert_eq!(reason, r#"RBAC: clusterrole.rbac.authorization.k8s.io "reader" not found"#);
    }

    #[test]
    fn a_decision_is_quick_among_many_roles() {
        let mut rbac = Index::default();
        let rules = |i: usize| {
            json!({"rules": [
                {"verbs": ["get", "list", "watch"], "apiGroups": ["apps"], "resources": [format!("r{i}"), "deployments"]},
                {"verbs": ["update", "patch"], "apiGroups": [""], "resources": [format!("s{i}"), "configmaps"]},
                {"verbs": ["*"], "apiGroups": ["example.com"], "resources": ["*/scale"]}]})
        };
        for i in 0..2500 {
            rbac.observe(CLUSTER_ROLES, "", &format!("c{i}"), Some(&rules(i)));
            rbac.observe(ROLES, &format!("ns{}", i % 100), &format!("l{i}"), Some(&rules(i)));
        }
        for i in 0..5000 {
            let subject = json!([{"kind": "User", "name": format!("u{}", i % 500)}, {"kind": "Group", "name": format!("g{}", i % 250)}]);
            rbac.observe(
                CLUSTER_ROLE_BINDINGS,
                "",
                &format!("cb{i}"),
                Some(&json!({"metadata": {"name": format!("cb{i}")},
                "roleRef": {"kind": "ClusterRole", "name": format!("c{}", i % 2500)}, "subjects": subject})),
            );
            let ns = format!("ns{}", i % 100);
            rbac.observe(
                ROLE_BINDINGS,
                &ns,
                &format!("rb{i}"),
                Some(&json!({"metadata": {"name": format!("rb{i}"), "namespace": ns},
                "roleRef": {"kind": "Role", "name": format!("l{}", i % 2500)}, "subjects": subject})),
            );
        }
        let question = |verb: &str, resource: &str| Attributes {
            user: user("u7", &["g7", "system:authenticated"]),
            verb: verb.into(),
            namespace: "ns7".into(),
            api_group: "apps".into(),
            resource: resource.into(),
            resource_request: true,
            ..Attributes::default()
        };
        // The last rule that is looked at decides, or none: the dearest questions.
        for (request, wanted) in
            [(question("list", "r2007"), Decision::Allow), (question("delete", "deployments"), Decision::NoOpinion)]
        {
            let rounds = 2_000;
            let started = thread_time();
            for _ in 0..rounds {
                assert_eq!(std::hint::black_box(&rbac).decide(std::hint::black_box(&request)).0, wanted);
            }
            let each = thread_time().saturating_sub(started).as_secs_f64() / f64::from(rounds) * 1e6;
            // Tests are not optimised: the example `decisions` measures the release build.
            assert!(each < 300.0, "{each} µs");
        }
    }

    /// Time this thread was on a processor, so that others on the machine do not count.
    fn thread_time() -> std::time::Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
        std::time::Duration::from_nanos(nanos.unwrap_or(0))
    }

    #[test]
    fn a_deleted_binding_no_longer_counts() {
        let mut rbac = sample();
        rbac.observe(CLUSTER_ROLE_BINDINGS, "", "everyone", None);
        assert_eq!(ask(&rbac, user("eve", &["staff"]), "get", "x", "pods"), (Decision::NoOpinion, String::new()));
    }
}
