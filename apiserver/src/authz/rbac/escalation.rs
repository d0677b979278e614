//! Escalation check of writes of roles and bindings: users cannot grant permissions they lack. Answers for upstream's
//! `ConfirmNoEscalation`, `EscalationAllowed`.
//!
//! A write passes when the writer is in `system:masters`, may `escalate` the role (or `bind` it), or holds
//! every rule himself.

use serde_json::{Value, json};
use shared::authn::{SYSTEM_MASTERS, UserInfo};
use shared::authz::Attributes;
use shared::status::Status;
use shared::status::field::aggregate;

use super::rule::{Rule, compact, missing, quoted_list};
use super::{GROUP, Index, MissingRole, RoleRef};
use crate::machinery::tree;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::registry::rbac::role::ROLES;
use crate::registry::rbac::role_binding::ROLE_BINDINGS;

/// One write of a role or binding.
pub struct Write<'a> {
    /// User who writes.
    pub user: &'a UserInfo,
    /// `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`.
    pub plural: &'a str,
    /// Namespace, empty at cluster scope.
    pub namespace: &'a str,
    /// The object's name.
    pub name: &'a str,
    /// New object.
    pub new: &'a Value,
    /// Stored object.
    pub old: Option<&'a Value>,
}

impl Write<'_> {
    fn binds(&self) -> bool {
        [ROLE_BINDINGS.plural, CLUSTER_ROLE_BINDINGS.plural].contains(&self.plural)
    }

    fn role(&self) -> RoleRef {
        if self.binds() {
            return RoleRef::from_binding(self.new);
        }
        let kind = if self.plural == ROLES.plural { "Role" } else { "ClusterRole" };
        RoleRef { kind: kind.to_owned(), name: self.name.to_owned() }
    }
}

/// Attributes of the verbs `escalate` and `bind`; permission makes [`check`] unnecessary. `None` when the write grants
/// nothing or the user may do everything.
pub fn question(write: &Write<'_>) -> Option<Attributes> {
    if !write.binds() && ![ROLES.plural, CLUSTER_ROLES.plural].contains(&write.plural) {
        return None;
    }
    if write.user.in_group(SYSTEM_MASTERS) || write.old.is_some_and(|old| only_bookkeeping_changed(old, write.new)) {
        return None;
    }
    let role = write.role();
    let resource = if role.kind == "ClusterRole" { CLUSTER_ROLES } else { ROLES };
    Some(Attributes {
        user: write.user.clone(),
        verb: if write.binds() { "bind" } else { "escalate" }.to_owned(),
        namespace: write.namespace.to_owned(),
        api_group: GROUP.to_owned(),
        api_version: "*".to_owned(),
        resource: resource.plural.to_owned(),
        name: role.name,
        resource_request: true,
        ..Attributes::default()
    })
}

/// Refuses a write that would grant more than the writer holds.
pub fn check(rbac: &Index, write: &Write<'_>) -> Result<(), Status> {
    let wanted = if write.binds() {
        let role = write.role();
        let found = rbac.rules_of(&role, write.namespace).map(<[Rule]>::to_vec);
        found.map_err(|_| Status::not_found(GROUP, write.plural, &role.name))?
    } else {
        Rule::list_of(write.new)
    };
    let refuse = |text: &str| Status::forbidden(GROUP, write.plural, write.name, text);
    confirm(rbac, write, &wanted).map_err(|why| refuse(&why.to_string()))?;
    let aggregates = |o: &Value| !tree::list(o, "/aggregationRule/clusterRoleSelectors").is_empty();
    if write.plural == CLUSTER_ROLES.plural && (aggregates(write.new) || write.old.is_some_and(aggregates)) {
        confirm(rbac, write, &everything())
            .map_err(|_| refuse("must have cluster-admin privileges to use the aggregationRule"))?;
    }
    Ok(())
}

/// Rights that a writer would grant and does not hold.
#[derive(Debug, thiserror::Error)]
enum Escalation {
    /// Missing rights.
    #[error("{0}")]
    NotHeld(LackingRights),
    /// Missing rights, which the writer may hold by roles that are not found.
    #[error("{lacking}; resolution errors: [{}]", aggregate(.missing))]
    Unresolved { lacking: LackingRights, missing: Vec<MissingRole> },
}

/// The writer, and a line for each of the rights.
#[derive(Debug, thiserror::Error)]
#[error("user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{}", .lines.join("\n"))]
struct LackingRights {
    user: String,
    groups: String,
    lines: Vec<String>,
}

fn confirm(rbac: &Index, write: &Write<'_>, wanted: &[Rule]) -> Result<(), Escalation> {
    let (held, unresolved) = rbac.rules_for(write.user, write.namespace);
    let lacking = missing(&held, wanted);
    if lacking.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = compact(lacking).iter().map(Rule::describe).collect();
    lines.sort();
    lines.dedup();
    let lacking = LackingRights { user: write.user.name.clone(), groups: quoted_list(&write.user.groups), lines };
    Err(match unresolved.is_empty() {
        true => Escalation::NotHeld(lacking),
        false => Escalation::Unresolved { lacking, missing: unresolved },
    })
}

/// The rules of who may do everything.
pub fn everything() -> [Rule; 2] {
    let star = || vec!["*".to_owned()];
    [
        Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() },
        Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() },
    ]
}

/// Reports whether an update changes only metadata that the garbage collector writes: owner references and finalizers.
fn only_bookkeeping_changed(old: &Value, new: &Value) -> bool {
    let bare = |o: &Value| {
        let mut o = o.clone();
        if let Some(meta) = o.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                meta.remove(field);
            }
        }
        o
    };
    let same = |a: &Value, b: &Value, field: &str| {
        a.pointer(field).unwrap_or(&json!(null)) == b.pointer(field).unwrap_or(&json!(null))
    };
    let touched = !same(old, new, "/metadata/ownerReferences") || !same(old, new, "/metadata/finalizers");
    touched && bare(old) == bare(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::follow::Observer as _;

    fn alice() -> UserInfo {
        UserInfo { name: "alice".into(), groups: vec!["system:authenticated".into()], ..UserInfo::default() }
    }

    fn try_write(plural: &str, namespace: &str, new: &Value, allowed: bool) -> Result<(), String> {
        let mut rbac = Index::default();
        let dns =
            json!({"rules": [{"apiGroups": [""], "resources": ["endpoints", "services"], "verbs": ["list", "watch"]}]});
        rbac.observe(CLUSTER_ROLES, "", "system:kube-dns", Some(&dns));
        let user = alice();
        let write = Write { user: &user, plural, namespace, name: "x", new, old: None };
        assert_eq!(question(&write).expect("a question").user.name, "alice");
        if allowed { Ok(()) } else { check(&rbac, &write).map_err(|s| s.message) }
    }

    #[test]
    fn a_role_beyond_the_writers_own_rights_is_refused() {
        let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]});
        assert_eq!(
            try_write("roles", "e", &role, false).unwrap_err(),
            "roles.rbac.authorization.k8s.io \"x\" is forbidden: user \"alice\" (groups=[\"system:authenticated\"]) is \
             attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"*\"]}"
        );
        assert!(try_write("roles", "e", &role, true).is_ok());
    }

    #[test]
    fn a_binding_to_such_a_role_is_refused() {
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "system:kube-dns"}});
        assert_eq!(
            try_write("rolebindings", "e2", &binding, false).unwrap_err(),
            "rolebindings.rbac.authorization.k8s.io \"x\" is forbidden: user \"alice\" (groups=[\"system:authenticated\"]) is \
             attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"endpoints\"], Verbs:[\"list\" \"watch\"]}\n\
             {APIGroups:[\"\"], Resources:[\"services\"], Verbs:[\"list\" \"watch\"]}"
        );
        let missing = json!({"roleRef": {"kind": "ClusterRole", "name": "nope"}});
        assert_eq!(
            try_write("rolebindings", "e2", &missing, false).unwrap_err(),
            "rolebindings.rbac.authorization.k8s.io \"nope\" not found"
        );
    }

    #[test]
    fn missing_roles_are_one_aggregated_error() {
        let told = |bindings: &[&str]| {
            let mut rbac = Index::default();
            for role in bindings {
                let binding = json!({"metadata": {"name": role}, "roleRef": {"kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "User", "name": "alice"}]});
                rbac.observe(CLUSTER_ROLE_BINDINGS, "", role, Some(&binding));
            }
            let (user, new) = (alice(), Value::Null);
            let write = Write { user: &user, plural: "clusterroles", namespace: "", name: "x", new: &new, old: None };
            let text = confirm(&rbac, &write, &everything()).unwrap_err().to_string();
            text.split_once("; resolution errors: ").map(|(_, told)| told.to_owned())
        };
        let missing = |role: &str| format!("clusterrole.rbac.authorization.k8s.io \"{role}\" not found");
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["a"]), Some(format!("[{}]", missing("a"))));
        assert_eq!(told(&["a", "b"]), Some(format!("[[{}, {}]]", missing("a"), missing("b"))));
    }
}
