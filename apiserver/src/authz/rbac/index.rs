//! Roles and bindings, laid out for the question "which rules hold for this user here?".
//!
//! Fed one object at a time from the watch cache; knows no storage and never blocks on one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use shared::authn::UserInfo;

use super::rule::Rule;
use crate::access::tree;

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
struct Binding {
    name: String,
    namespace: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

impl Binding {
    fn read(namespace: &str, object: &Value) -> Binding {
        let subjects = tree::list(object, "/subjects")
            .iter()
            .map(|s| {
                let kind = tree::text(s, "/kind").to_owned();
                let own = tree::text(s, "/namespace");
                let at = if kind == "ServiceAccount" && own.is_empty() { namespace } else { own };
                Subject { kind, name: tree::text(s, "/name").to_owned(), namespace: at.to_owned() }
            })
            .collect();
        Binding {
            name: tree::name(object).to_owned(),
            namespace: namespace.to_owned(),
            role: RoleRef::from_binding(object),
            subjects,
        }
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
    by_name: BTreeMap<String, Arc<Binding>>,
    users: HashMap<String, Vec<(Arc<Binding>, usize)>>,
    groups: HashMap<String, Vec<(Arc<Binding>, usize)>>,
}

impl Bindings {
    fn remove(&mut self, name: &str) {
        let Some(old) = self.by_name.remove(name) else { return };
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
    }

    fn insert(&mut self, binding: Binding) {
        self.remove(&binding.name);
        let binding = Arc::new(binding);
        for (at, subject) in binding.subjects.iter().enumerate() {
            let list = match (subject.user(), subject.kind.as_str()) {
                (Some(user), _) => self.users.entry(user).or_default(),
                (None, "Group") => self.groups.entry(subject.name.clone()).or_default(),
                _ => continue,
            };
            list.push((Arc::clone(&binding), at));
            list.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        }
        self.by_name.insert(binding.name.clone(), binding);
    }

    fn of<'a>(&'a self, user: &'a UserInfo) -> impl Iterator<Item = &'a (Arc<Binding>, usize)> {
        self.users
            .get(user.name.as_str())
            .into_iter()
            .flatten()
            .chain(user.groups.iter().filter_map(|g| self.groups.get(g.as_str())).flatten())
    }
}

/// What a visitor sees: one rule and why it holds, or a role that is missing.
pub enum Found<'a> {
    /// A rule, and a closure-free handle to its explanation.
    Rule(&'a Rule, Why<'a>),
    /// `clusterrole.rbac.authorization.k8s.io "x" not found`.
    Missing(String),
}

/// Explains a rule when asked: the text is only built for the one that matters.
#[derive(Clone, Copy)]
pub struct Why<'a> {
    binding: &'a Binding,
    subject: usize,
}

impl Why<'_> {
    /// Upstream's reason text.
    pub fn reason(&self) -> String {
        match self.binding.subjects.get(self.subject) {
            Some(subject) => self.binding.reason(subject),
            None => String::new(),
        }
    }
}

/// All roles and bindings.
#[derive(Debug, Default)]
pub struct Index {
    cluster_roles: HashMap<String, Vec<Rule>>,
    roles: HashMap<String, HashMap<String, Vec<Rule>>>,
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
}

impl Index {
    /// Takes over one object's current state; `None` when it is gone. Other resources are ignored.
    pub fn observe(&mut self, plural: &str, namespace: &str, name: &str, object: Option<&Value>) {
        match plural {
            "clusterroles" => match object {
                Some(o) => drop(self.cluster_roles.insert(name.to_owned(), Rule::list_of(o))),
                None => drop(self.cluster_roles.remove(name)),
            },
            "roles" => {
                let roles = self.roles.entry(namespace.to_owned()).or_default();
                match object {
                    Some(o) => drop(roles.insert(name.to_owned(), Rule::list_of(o))),
                    None => drop(roles.remove(name)),
                }
            }
            "clusterrolebindings" => match object {
                Some(o) => self.cluster_bindings.insert(Binding::read("", o)),
                None => self.cluster_bindings.remove(name),
            },
            "rolebindings" => {
                let bindings = self.bindings.entry(namespace.to_owned()).or_default();
                match object {
                    Some(o) => bindings.insert(Binding::read(namespace, o)),
                    None => bindings.remove(name),
                }
                if bindings.by_name.is_empty() {
                    self.bindings.remove(namespace);
                }
            }
            _ => {}
        }
    }

    /// The rules of a role, or the text that says it does not exist.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<&[Rule], String> {
        let (found, resource) = if role.kind == "ClusterRole" {
            (self.cluster_roles.get(&role.name), "clusterrole")
        } else {
            (self.roles.get(namespace).and_then(|r| r.get(&role.name)), "role")
        };
        found
            .map(Vec::as_slice)
            .ok_or_else(|| format!("{resource}.rbac.authorization.k8s.io {:?} not found", role.name))
    }

    /// Visits every rule that holds for a user in a namespace ("" for the cluster), until `false` comes back.
    pub fn visit<'a>(&'a self, user: &'a UserInfo, namespace: &str, mut see: impl FnMut(Found<'a>) -> bool) {
        let local = (!namespace.is_empty()).then(|| self.bindings.get(namespace)).flatten();
        let all = self.cluster_bindings.of(user).chain(local.into_iter().flat_map(|b| b.of(user)));
        for (binding, subject) in all {
            match self.rules_of(&binding.role, namespace) {
                Err(text) => {
                    if !see(Found::Missing(text)) {
                        return;
                    }
                }
                Ok(rules) => {
                    for rule in rules {
                        if !see(Found::Rule(rule, Why { binding, subject: *subject })) {
                            return;
                        }
                    }
                }
            }
        }
    }
}
