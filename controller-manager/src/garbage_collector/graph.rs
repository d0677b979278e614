//! Who owns whom, as far as watches have shown: a graph of every object's metadata.
//!
//! Owners that were named but never seen are virtual nodes: they are looked up before anything is concluded from their
//! absence.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use serde::Deserialize;

/// An object's unique id.
pub type Uid = Arc<str>;

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// Group and version.
    pub api_version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Unique id.
    pub uid: Uid,
    /// Whether foreground deletion of the owner waits for this dependent.
    #[serde(default)]
    pub block_owner_deletion: Option<bool>,
}

/// Where an object is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Group and version.
    pub api_version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Namespace; for virtual nodes the namespace of the dependent that named it.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// An object in the graph.
#[derive(Debug)]
pub struct Node {
    /// Where it is.
    pub identity: Identity,
    /// Its owners.
    pub owners: Vec<Owner>,
    /// Who names it as owner.
    pub dependents: HashSet<Uid>,
    /// Only named, never seen.
    pub virtual_: bool,
    /// Deletion was asked for.
    pub deleting: bool,
    /// It waits for its dependents to go first.
    pub deleting_dependents: bool,
    /// The version that was seen last; none for virtual nodes and for versions that are no numbers.
    pub version: Option<NonZeroU64>,
    /// Has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// Has the finalizer `orphan`.
    pub orphan: bool,
}

impl Node {
    /// Whether a reference from an object in `namespace` leads here.
    fn is_meant_by(&self, owner: &Owner, namespace: &str) -> bool {
        let at = &self.identity;
        let near = at.namespace.is_empty() || *at.namespace == *namespace;
        near && at.kind == owner.kind && at.name == owner.name && at.api_version == owner.api_version
    }
}

/// Metadata of an object as a watch shows it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Where it is.
    pub identity: Identity,
    /// Unique id.
    pub uid: Uid,
    /// Its owners.
    pub owners: Vec<Owner>,
    /// Deletion was asked for.
    pub deleting: bool,
    /// Has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// Has the finalizer `orphan`.
    pub orphan: bool,
    /// Version, where it is a number.
    pub version: Option<NonZeroU64>,
}

/// What an event makes worth looking at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Objects that may have to be deleted.
    pub delete: Vec<Uid>,
    /// Owners whose dependents are to be set free.
    pub orphan: Vec<Uid>,
}

/// The graph.
#[derive(Debug, Default)]
pub struct Graph {
    /// Boxed, as half of a large table is empty.
    nodes: HashMap<Uid, Box<Node>>,
}

impl Graph {
    /// A node by uid.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid).map(|node| &**node)
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Uids of seen objects of one kind, for reconciling a fresh list.
    pub fn of_kind<'a>(&'a self, api_version: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Uid> + 'a {
        self.nodes
            .iter()
            .filter(move |(_, n)| !n.virtual_ && *n.identity.api_version == *api_version && *n.identity.kind == *kind)
            .map(|(uid, _)| uid)
    }

    /// Dependents of `uid` that are in the graph.
    pub fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a Uid, &'a Node)> + 'a {
        self.nodes
            .get(uid)
            .into_iter()
            .flat_map(|n| n.dependents.iter())
            .filter_map(|d| self.nodes.get_key_value(d))
            .map(|(uid, node)| (uid, &**node))
    }

    /// An object changed in ways that do not matter here.
    pub fn touch(&mut self, uid: &str, version: Option<NonZeroU64>) {
        if let Some(node) = self.nodes.get_mut(uid) {
            node.version = version;
        }
    }

    /// An object appeared or changed.
    pub fn observe(&mut self, seen: Seen) -> Work {
        let mut work = Work::default();
        let uid = seen.uid.clone();
        let mut unveiled = false;
        let (before, was_deleting, was_waiting) = match self.nodes.get_mut(&uid) {
            Some(node) => {
                unveiled = std::mem::replace(&mut node.virtual_, false);
                node.identity = seen.identity;
                (node.version, node.foreground, node.orphan) = (seen.version, seen.foreground, seen.orphan);
                let waited = node.deleting_dependents;
                (
                    std::mem::replace(&mut node.owners, seen.owners.clone()),
                    std::mem::replace(&mut node.deleting, seen.deleting),
                    waited,
                )
            }
            None => {
                let node = Node {
                    identity: seen.identity,
                    owners: seen.owners.clone(),
                    dependents: HashSet::new(),
                    virtual_: false,
                    deleting: seen.deleting,
                    deleting_dependents: false,
                    version: seen.version,
                    foreground: seen.foreground,
                    orphan: seen.orphan,
                };
                self.nodes.insert(uid.clone(), Box::new(node));
                (Vec::new(), false, false)
            }
        };
        self.unlink(&uid, &before, &seen.owners, &mut work);
        self.link(&uid, &seen.owners, &mut work);
        if unveiled {
            // Those who took it for another object, or looked in another place, have no owner in it.
            work.delete.extend(self.mistaken(&uid));
        }
        if seen.deleting && seen.orphan && !was_deleting {
            work.orphan.push(uid.clone());
        }
        if seen.deleting && seen.foreground && !was_waiting {
            let dependents: Vec<Uid> =
                self.nodes.get(&uid).map(|n| n.dependents.iter().cloned().collect()).unwrap_or_default();
            work.delete.extend(dependents);
            work.delete.push(uid.clone());
        }
        if let Some(node) = self.nodes.get_mut(&uid) {
            node.deleting_dependents = seen.deleting && seen.foreground;
        }
        work
    }

    /// Forget owners that are no longer named. An owner that waits for its dependents may now go.
    fn unlink(&mut self, uid: &Uid, before: &[Owner], after: &[Owner], work: &mut Work) {
        for old in before {
            let new = after.iter().find(|o| o.uid == old.uid);
            let blocked = old.block_owner_deletion == Some(true);
            let unblocked = blocked && new.is_none_or(|n| n.block_owner_deletion != Some(true));
            if let Some(owner) = self.nodes.get_mut(&old.uid) {
                if new.is_none() {
                    owner.dependents.remove(uid);
                }
                if unblocked && owner.deleting_dependents {
                    work.delete.push(old.uid.clone());
                }
            }
        }
    }

    /// Dependents that name this object by other coordinates than its own.
    fn mistaken(&self, uid: &Uid) -> Vec<Uid> {
        let Some(owner) = self.nodes.get(uid) else { return Vec::new() };
        let wrong = |d: &Node| d.owners.iter().any(|o| o.uid == *uid && !owner.is_meant_by(o, &d.identity.namespace));
        self.dependents(uid).filter(|(_, d)| wrong(d)).map(|(u, _)| u.clone()).collect()
    }

    fn link(&mut self, uid: &Uid, owners: &[Owner], work: &mut Work) {
        let namespace = self.nodes.get(uid).map(|n| n.identity.namespace.clone()).unwrap_or_else(|| "".into());
        for owner in owners {
            let node = self.nodes.entry(owner.uid.clone()).or_insert_with(|| {
                // Named but not seen: look it up.
                work.delete.push(owner.uid.clone());
                Box::new(Node {
                    identity: Identity {
                        api_version: owner.api_version.clone(),
                        kind: owner.kind.clone(),
                        namespace: namespace.clone(),
                        name: owner.name.clone(),
                    },
                    owners: Vec::new(),
                    dependents: HashSet::new(),
                    virtual_: true,
                    deleting: false,
                    deleting_dependents: false,
                    version: None,
                    foreground: false,
                    orphan: false,
                })
            });
            node.dependents.insert(uid.clone());
            if !node.virtual_ && !node.is_meant_by(owner, &namespace) {
                work.delete.push(uid.clone());
            }
        }
    }

    /// An object is gone (or a virtual one proved not to exist).
    pub fn remove(&mut self, uid: &str) -> Work {
        let mut work = Work::default();
        let Some(node) = self.nodes.remove(uid) else { return work };
        work.delete.extend(node.dependents.iter().cloned());
        for owner in node.owners {
            if let Some(o) = self.nodes.get_mut(&owner.uid) {
                o.dependents.remove(uid);
                if o.deleting_dependents {
                    work.delete.push(owner.uid);
                } else if o.virtual_ && o.dependents.is_empty() {
                    self.nodes.remove(&owner.uid);
                }
            }
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(uid: &str, owners: &[(&str, bool)], state: &str) -> Seen {
        let owner = |(uid, block): &(&str, bool)| Owner {
            api_version: "v1".into(),
            kind: "X".into(),
            name: (*uid).into(),
            uid: (*uid).into(),
            block_owner_deletion: Some(*block),
        };
        Seen {
            identity: Identity { api_version: "v1".into(), kind: "X".into(), namespace: "ns".into(), name: uid.into() },
            uid: uid.into(),
            owners: owners.iter().map(owner).collect(),
            deleting: !state.is_empty(),
            foreground: state == "foreground",
            orphan: state == "orphan",
            version: None,
        }
    }

    fn deletes(work: &Work) -> Vec<&str> {
        let mut out: Vec<&str> = work.delete.iter().map(AsRef::as_ref).collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn background_deletion_follows_the_owner() {
        let mut g = Graph::default();
        assert_eq!(g.observe(seen("rs", &[], "")), Work::default());
        assert_eq!(g.observe(seen("pod", &[("rs", true)], "")), Work::default());
        assert_eq!(deletes(&g.remove("rs")), ["pod"]);
    }

    #[test]
    fn unseen_owners_are_looked_up() {
        let mut g = Graph::default();
        assert_eq!(deletes(&g.observe(seen("pod", &[("rs", true)], ""))), ["rs"]);
        assert!(g.get("rs").is_some_and(|n| n.virtual_));
        assert_eq!(g.observe(seen("rs", &[], "")), Work::default());
        assert!(g.get("rs").is_some_and(|n| !n.virtual_ && n.dependents.contains("pod")));
    }

    #[test]
    fn foreground_deletion_goes_down_and_comes_back_up() {
        let mut g = Graph::default();
        g.observe(seen("rs", &[], ""));
        g.observe(seen("pod", &[("rs", true)], ""));
        assert_eq!(deletes(&g.observe(seen("rs", &[], "foreground"))), ["pod", "rs"]);
        assert_eq!(g.observe(seen("rs", &[], "foreground")), Work::default(), "once");
        assert_eq!(deletes(&g.remove("pod")), ["rs"]);
    }

    #[test]
    fn unblocking_lets_the_owner_go() {
        let mut g = Graph::default();
        g.observe(seen("rs", &[], "foreground"));
        g.observe(seen("pod", &[("rs", true)], ""));
        assert_eq!(deletes(&g.observe(seen("pod", &[("rs", false)], ""))), ["rs"]);
    }

    #[test]
    fn orphaning() {
        let mut g = Graph::default();
        g.observe(seen("rs", &[], ""));
        let work = g.observe(seen("rs", &[], "orphan"));
        assert_eq!(work.orphan, ["rs".into()]);
    }

    #[test]
    fn dropped_owners_leave_no_trace() {
        let mut g = Graph::default();
        g.observe(seen("pod", &[("gone", true)], ""));
        g.observe(seen("pod", &[], ""));
        g.remove("gone");
        g.remove("pod");
        assert!(g.is_empty());
    }
}
