//! Roles and bindings, laid out for the question "which rules hold for this user here?". Answers for upstream's
//! `pkg/registry/rbac/validation` (`VisitRulesFor`).
//!
//! Fed one object at a time from the watch cache; knows no storage and never blocks on one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use shared::authn::UserInfo;

use super::rule::{Reach, Rule};
use crate::authz::follow::Observer;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::rbac::cluster_role::CLUSTER_ROLES;
use crate::registry::rbac::cluster_role_binding::CLUSTER_ROLE_BINDINGS;
use crate::registry::rbac::role::ROLES;
use crate::registry::rbac::role_binding::ROLE_BINDINGS;

/// A binding's reference to a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRef {
    /// `ClusterRole` or `Role`.
    pub kind: String,
    /// The role's name.
    pub name: String,
}

impl RoleRef {
    /// Reads the `roleRef` of a binding.
    pub fn from_binding(binding: &Value) -> RoleRef {
        RoleRef {
            kind: tree::text(binding, "/roleRef/kind").to_owned(),
            name: tree::text(binding, "/roleRef/name").to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    fn describe(&self) -> String {
        if self.kind == "ServiceAccount" {
            format!("{} {:?}", self.kind, format!("{}/{}", self.name, self.namespace))
        } else {
            format!("{} {:?}", self.kind, self.name)
        }
    }

    fn user(&self) -> Option<String> {
        match self.kind.as_str() {
            "User" => Some(self.name.clone()),
            "ServiceAccount" if !self.namespace.is_empty() => {
                Some(format!("system:serviceaccount:{}:{}", self.namespace, self.name))
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
struct IndexedBinding {
    name: String,
    namespace: String,
    role: RoleRef,
    /// Slot of the role, whether it exists or not.
    slot: usize,
    subjects: Vec<Subject>,
}

impl IndexedBinding {
    fn read(namespace: &str, object: &Value, slot: usize) -> IndexedBinding {
        let subjects = tree::list(object, "/subjects")
            .iter()
            .map(|s| {
                let kind = tree::text(s, "/kind").to_owned();
                let own = tree::text(s, "/namespace");
                let at = if kind == "ServiceAccount" && own.is_empty() { namespace } else { own };
                Subject { kind, name: tree::text(s, "/name").to_owned(), namespace: at.to_owned() }
            })
            .collect();
        let (name, role) = (tree::name(object).to_owned(), RoleRef::from_binding(object));
        IndexedBinding { name, namespace: namespace.to_owned(), role, slot, subjects }
    }

    fn reason(&self, subject: &Subject) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        format!("RBAC: allowed by {kind} {name:?} of {} {:?} to {}", self.role.kind, self.role.name, subject.describe())
    }
}

/// The bindings of one scope, found by user or group.
#[derive(Debug, Default)]
struct Bindings {
    by_name: BTreeMap<String, Arc<IndexedBinding>>,
    users: HashMap<String, Vec<(Arc<IndexedBinding>, usize)>>,
    groups: HashMap<String, Vec<(Arc<IndexedBinding>, usize)>>,
}

impl Bindings {
    /// Takes a binding out; the slot of its role.
    fn remove(&mut self, name: &str) -> Option<usize> {
        let old = self.by_name.remove(name)?;
        for subject in &old.subjects {
            let (map, key) = match subject.user() {
                Some(user) => (&mut self.users, user),
                None => (&mut self.groups, subject.name.clone()),
            };
            if let Some(list) = map.get_mut(&key) {
                list.retain(|(b, _)| b.name != name);
                if list.is_empty() {
                    map.remove(&key);
                }
            }
        }
        Some(old.slot)
    }

    fn insert(&mut self, binding: IndexedBinding) {
        let binding = Arc::new(binding);
        for (at, subject) in binding.subjects.iter().enumerate() {
            let list = match (subject.user(), subject.kind.as_str()) {
                (Some(user), _) => self.users.entry(user).or_default(),
                (None, "Group") => self.groups.entry(subject.name.clone()).or_default(),
                _ => continue,
            };
            let place = list.partition_point(|(b, _)| b.name <= binding.name);
            list.insert(place, (Arc::clone(&binding), at));
        }
        self.by_name.insert(binding.name.clone(), binding);
    }

    fn of<'a>(&'a self, user: &'a UserInfo) -> impl Iterator<Item = &'a (Arc<IndexedBinding>, usize)> {
        self.users
            .get(user.name.as_str())
            .into_iter()
            .flatten()
            .chain(user.groups.iter().filter_map(|g| self.groups.get(g.as_str())).flatten())
    }
}

/// Item of a visit: one rule and its explanation, or a missing role.
pub enum RuleVisit<'a> {
    /// A rule, and a closure-free handle to its explanation.
    Rule(&'a Rule, Explanation<'a>),
    /// `clusterrole.rbac.authorization.k8s.io "x" not found`.
    Missing(MissingRole),
}

/// Explains a rule when asked: the text is only built for the one that matters.
#[derive(Clone, Copy)]
pub struct Explanation<'a> {
    binding: &'a IndexedBinding,
    subject: usize,
}

impl Explanation<'_> {
    /// Upstream's reason text.
    pub fn reason(&self) -> String {
        match self.binding.subjects.get(self.subject) {
            Some(subject) => self.binding.reason(subject),
            None => String::new(),
        }
    }
}

/// One place for a role: bindings point to it, so that no name is looked up when a request is decided.
#[derive(Debug, Default)]
struct Slot {
    /// Namespace (empty for a ClusterRole) and name.
    key: (String, String),
    /// None while bindings name a role that does not exist.
    rules: Option<Vec<Rule>>,
    /// Upper bound of what the rules can match.
    reach: Reach,
    bindings: usize,
}

/// Roles by slot.
#[derive(Debug, Default)]
struct Roles {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slot by namespace and name.
    places: HashMap<String, HashMap<String, usize>>,
}

impl Roles {
    fn find(&self, namespace: &str, name: &str) -> Option<usize> {
        self.places.get(namespace)?.get(name).copied()
    }

    fn place(&mut self, namespace: &str, name: &str) -> usize {
        if let Some(slot) = self.find(namespace, name) {
            return slot;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[at].key = (namespace.to_owned(), name.to_owned());
        self.places.entry(namespace.to_owned()).or_default().insert(name.to_owned(), at);
        at
    }

    fn set(&mut self, namespace: &str, name: &str, rules: Option<Vec<Rule>>) {
        if rules.is_none() && self.find(namespace, name).is_none() {
            return;
        }
        let at = self.place(namespace, name);
        self.slots[at].reach = rules.as_deref().map(Reach::of).unwrap_or_default();
        self.slots[at].rules = rules;
        self.tidy(at);
    }

    fn unbind(&mut self, at: usize) {
        self.slots[at].bindings -= 1;
        self.tidy(at);
    }

    /// Frees a slot that holds no role and that no binding points to.
    fn tidy(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.rules.is_some() || slot.bindings > 0 {
            return;
        }
        let (namespace, name) = std::mem::take(&mut slot.key);
        if let Some(names) = self.places.get_mut(&namespace) {
            names.remove(&name);
            if names.is_empty() {
                self.places.remove(&namespace);
            }
        }
        self.free.push(at);
    }
}

/// All roles and bindings.
#[derive(Debug, Default)]
pub struct Index {
    roles: Roles,
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
}

/// The namespace a role is found in.
fn scope_of<'a>(role: &RoleRef, namespace: &'a str) -> &'a str {
    if role.kind == "ClusterRole" { "" } else { namespace }
}

/// A role that a binding names and that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MissingRole {
    /// A role of a namespace.
    #[error("role.rbac.authorization.k8s.io {0:?} not found")]
    Role(String),
    /// A role of the cluster.
    #[error("clusterrole.rbac.authorization.k8s.io {0:?} not found")]
    ClusterRole(String),
}

fn not_found(role: &RoleRef) -> MissingRole {
    let name = role.name.clone();
    if role.kind == "ClusterRole" { MissingRole::ClusterRole(name) } else { MissingRole::Role(name) }
}

impl Observer for Index {
    fn observe(&mut self, resource: GroupResource<'_>, namespace: &str, name: &str, object: Option<&Value>) {
        match resource {
            CLUSTER_ROLES => self.roles.set("", name, object.map(Rule::list_of)),
            ROLES => self.roles.set(namespace, name, object.map(Rule::list_of)),
            CLUSTER_ROLE_BINDINGS => self.bind("", name, object),
            ROLE_BINDINGS => self.bind(namespace, name, object),
            _ => {}
        }
    }

    fn known(&self, resource: GroupResource<'_>) -> Vec<(String, String)> {
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        match resource {
            CLUSTER_ROLE_BINDINGS => self.cluster_bindings.by_name.keys().map(|name| key("", name)).collect(),
            ROLE_BINDINGS => {
                self.bindings.iter().flat_map(|(ns, b)| b.by_name.keys().map(|name| key(ns, name))).collect()
            }
            _ => {
                let held = self.roles.slots.iter().filter(|s| s.rules.is_some());
                held.filter(|s| s.key.0.is_empty() == (resource == CLUSTER_ROLES)).map(|s| s.key.clone()).collect()
            }
        }
    }
}

impl Index {
    fn bind(&mut self, namespace: &str, name: &str, object: Option<&Value>) {
        let bindings = match namespace {
            "" => &mut self.cluster_bindings,
            _ => self.bindings.entry(namespace.to_owned()).or_default(),
        };
        let before = bindings.remove(name);
        if let Some(object) = object {
            let role = RoleRef::from_binding(object);
            let slot = self.roles.place(scope_of(&role, namespace), &role.name);
            self.roles.slots[slot].bindings += 1;
            bindings.insert(IndexedBinding::read(namespace, object, slot));
        }
        if bindings.by_name.is_empty() {
            self.bindings.remove(namespace);
        }
        if let Some(slot) = before {
            self.roles.unbind(slot);
        }
    }

    /// The rules of a role.
    ///
    /// # Errors
    /// [`MissingRole`].
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<&[Rule], MissingRole> {
        let slot = self.roles.find(scope_of(role, namespace), &role.name);
        slot.and_then(|at| self.roles.slots[at].rules.as_deref()).ok_or_else(|| not_found(role))
    }

    /// Visits every rule that holds for a user in a namespace ("" for the cluster) and may be about `wanted`, until
    /// `false` comes back.
    pub fn visit<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &str,
        wanted: Reach,
        mut see: impl FnMut(RuleVisit<'a>) -> bool,
    ) {
        let local = (!namespace.is_empty()).then(|| self.bindings.get(namespace)).flatten();
        let all = self.cluster_bindings.of(user).chain(local.into_iter().flat_map(|b| b.of(user)));
        for (binding, subject) in all {
            let slot = &self.roles.slots[binding.slot];
            let Some(rules) = &slot.rules else {
                if !see(RuleVisit::Missing(not_found(&binding.role))) {
                    return;
                }
                continue;
            };
            if !slot.reach.meets(wanted) {
                continue;
            }
            for rule in rules {
                if !see(RuleVisit::Rule(rule, Explanation { binding, subject: *subject })) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unreferenced_slots_are_reused() {
        let mut index = Index::default();
        let role = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "eve"}]});
        for _ in 0..3 {
            index.observe(CLUSTER_ROLE_BINDINGS, "", "b", Some(&binding));
            index.observe(CLUSTER_ROLE_BINDINGS, "", "b", Some(&binding));
            index.observe(CLUSTER_ROLES, "", "r", Some(&role));
            assert_eq!(index.known(CLUSTER_ROLES), [(String::new(), "r".to_owned())]);
            index.observe(CLUSTER_ROLES, "", "r", None);
            assert_eq!(index.roles.slots.len() - index.roles.free.len(), 1, "a binding still names it");
            index.observe(CLUSTER_ROLE_BINDINGS, "", "b", None);
            assert_eq!((index.roles.slots.len(), index.roles.free.len()), (1, 1));
        }
        assert!(index.roles.places.is_empty() && index.known(CLUSTER_ROLE_BINDINGS).is_empty());
    }
}
