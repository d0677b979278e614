//! Graph of owners and dependents, as far as watches have shown: every object's metadata. Answers for upstream's
//! `pkg/controller/garbagecollector/graph_builder.go` (`uidToNode`).
//!
//! Owners that were named but never seen are virtual nodes: they are looked up before anything is concluded from their
//! absence.

use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use crate::engine::metadata::Owner;

/// An object's unique id.
pub type Uid = Arc<str>;

/// Identity of an object.
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
pub struct GraphNode {
    /// Identity of the object.
    pub identity: Identity,
    /// Owners of the object.
    pub owners: Vec<Owner>,
    /// Objects that name it as owner.
    pub dependents: HashSet<Uid>,
    /// Only named, never seen.
    pub virtual_: bool,
    /// Deletion was asked for.
    pub deleting: bool,
    /// The object waits for its dependents to go first.
    pub deleting_dependents: bool,
    /// The version that was seen last; none for virtual nodes and for versions that are no numbers.
    pub version: Option<NonZeroU64>,
    /// Has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// Has the finalizer `orphan`.
    pub orphan: bool,
    /// Number of lookups that found the object, though no watch has shown it.
    pub lookups: u8,
}

impl GraphNode {
    /// Reports whether a reference from an object in `namespace` leads here.
    fn is_meant_by(&self, owner: &Owner, namespace: &str) -> bool {
        !self.identity.is_far_from(namespace) && self.identity.is_called(owner)
    }

    /// Reports whether such a reference has to be verified. An object that was never seen may well be in a namespace,
    /// even if the first that named it is in none.
    fn is_doubted(&self, owner: &Owner, namespace: &str) -> bool {
        let unsure = self.virtual_ && *self.identity.namespace != *namespace;
        unsure || !self.is_meant_by(owner, namespace)
    }
}

impl Identity {
    fn is_called(&self, owner: &Owner) -> bool {
        self.kind == owner.kind && self.name == owner.name && self.api_version == owner.api_version
    }

    /// Reports whether the object is in a namespace, and in another one.
    fn is_far_from(&self, namespace: &str) -> bool {
        !self.namespace.is_empty() && *self.namespace != *namespace
    }

    /// An owner as a dependent in `namespace` names it.
    pub(super) fn named(owner: &Owner, namespace: &Arc<str>) -> Self {
        Self {
            api_version: Arc::clone(&owner.api_version),
            kind: Arc::clone(&owner.kind),
            namespace: Arc::clone(namespace),
            name: Arc::clone(&owner.name),
        }
    }

    /// Another name for what is not here. A kind outside of namespaces stays outside.
    fn otherwise(&self, owner: &Owner, namespace: &Arc<str>) -> Self {
        let mut other = Self::named(owner, namespace);
        if self.namespace.is_empty() && other.kind == self.kind && other.api_version == self.api_version {
            other.namespace = Arc::clone(&self.namespace);
        }
        other
    }

    /// Kinds count most, so that the order of two does not depend on where they are.
    fn order(&self) -> (&str, &str, &str, &str) {
        (&self.kind, &self.api_version, &self.namespace, &self.name)
    }
}

/// Metadata of an object as a watch shows it.
#[derive(Clone, Debug)]
pub struct SeenMetadata {
    /// Identity of the object.
    pub identity: Identity,
    /// Unique id.
    pub uid: Uid,
    /// Owners of the object.
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

/// Objects that an event makes worth looking at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Objects that may have to be deleted.
    pub delete: Vec<Uid>,
    /// Owners whose dependents are to be set free.
    pub orphan: Vec<Uid>,
    /// Dependents that name an owner in another namespace.
    pub strays: Vec<Stray>,
}

/// An object that names an owner which is known to be in another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Identity of the object.
    pub at: Identity,
    /// Unique id of the owner.
    pub uid: Uid,
    /// The owner as it names it.
    pub owner: Owner,
}

/// The graph.
#[derive(Debug, Default)]
pub struct Graph {
    /// Boxed, as half of a large table is empty.
    nodes: HashMap<Uid, Box<GraphNode>>,
}

impl Graph {
    /// A node by uid.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&GraphNode> {
        self.nodes.get(uid).map(|node| &**node)
    }

    /// A node and its uid.
    #[must_use]
    pub fn entry(&self, uid: &str) -> Option<(&Uid, &GraphNode)> {
        self.nodes.get_key_value(uid).map(|(uid, node)| (uid, &**node))
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&Uid, &GraphNode)> {
        self.nodes.iter().map(|(uid, node)| (uid, &**node))
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Reports whether nothing was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Uids of seen objects of one kind in whatever version, for reconciling a fresh list.
    pub fn of_kind<'a>(&'a self, api_version: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Uid> + 'a {
        let is = move |at: &Identity| *at.kind == *kind && group(&at.api_version) == group(api_version);
        self.nodes.iter().filter(move |(_, n)| !n.virtual_ && is(&n.identity)).map(|(uid, _)| uid)
    }

    /// Dependents of `uid` that are in the graph.
    pub fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a Uid, &'a GraphNode)> + 'a {
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
    pub fn observe(&mut self, seen: SeenMetadata) -> Work {
        let mut work = Work::default();
        let uid = seen.uid.clone();
        let mut unveiled = false;
        let (before, was_orphaning, was_waiting) = match self.nodes.get_mut(&uid) {
            Some(node) => {
                unveiled = std::mem::replace(&mut node.virtual_, false);
                node.identity = seen.identity;
                let (orphaned, waited) = (node.deleting && node.orphan, node.deleting_dependents);
                (node.version, node.foreground, node.orphan) = (seen.version, seen.foreground, seen.orphan);
                node.deleting = seen.deleting;
                (std::mem::replace(&mut node.owners, seen.owners.clone()), orphaned, waited)
            }
            None => {
                let node = GraphNode {
                    identity: seen.identity,
                    owners: seen.owners.clone(),
                    dependents: HashSet::default(),
                    virtual_: false,
                    deleting: seen.deleting,
                    deleting_dependents: false,
                    version: seen.version,
                    foreground: seen.foreground,
                    orphan: seen.orphan,
                    lookups: 0,
                };
                self.nodes.insert(uid.clone(), Box::new(node));
                (Vec::new(), false, false)
            }
        };
        self.unlink(&uid, &before, &seen.owners, &mut work);
        self.link(&uid, &before, &seen.owners, &mut work);
        if unveiled {
            // Those who took it for another object, or looked in another place, have no owner in it.
            self.mistaken(&uid, &mut work);
        }
        // Who sets its dependents free does not wait for them to go.
        if seen.deleting && seen.orphan && !was_orphaning {
            work.orphan.push(uid.clone());
        } else if seen.deleting && seen.foreground && !seen.orphan && !was_waiting {
            let dependents: Vec<Uid> =
                self.nodes.get(&uid).map(|n| n.dependents.iter().cloned().collect()).unwrap_or_default();
            work.delete.extend(dependents);
            work.delete.push(uid.clone());
        }
        if let Some(node) = self.nodes.get_mut(&uid) {
            node.deleting_dependents = seen.deleting && seen.foreground && !seen.orphan;
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
    fn mistaken(&self, uid: &Uid, work: &mut Work) {
        let Some(owner) = self.nodes.get(uid) else { return };
        for (dependent, d) in self.dependents(uid) {
            let namespace = &d.identity.namespace;
            if d.owners.iter().any(|o| o.uid == *uid && !owner.is_meant_by(o, namespace)) {
                work.delete.push(dependent.clone());
                work.strays.extend(stray(uid, owner, dependent, d));
            }
        }
    }

    fn link(&mut self, uid: &Uid, before: &[Owner], owners: &[Owner], work: &mut Work) {
        let Some(at) = self.nodes.get(uid).map(|n| n.identity.clone()) else { return };
        let mut doubted = false;
        for owner in owners {
            let node = self.nodes.entry(owner.uid.clone()).or_insert_with(|| {
                // Named but not seen: look it up.
                work.delete.push(owner.uid.clone());
                Box::new(GraphNode {
                    identity: Identity::named(owner, &at.namespace),
                    owners: Vec::new(),
                    dependents: HashSet::default(),
                    virtual_: true,
                    deleting: false,
                    deleting_dependents: false,
                    version: None,
                    foreground: false,
                    orphan: false,
                    lookups: 0,
                })
            });
            node.dependents.insert(uid.clone());
            let new = before.iter().all(|o| o.uid != owner.uid);
            if new && !doubted && node.is_doubted(owner, &at.namespace) {
                doubted = true;
                work.delete.push(uid.clone());
                if !node.virtual_ && node.identity.is_far_from(&at.namespace) {
                    work.strays.push(Stray { at: at.clone(), uid: uid.clone(), owner: owner.clone() });
                }
            }
        }
    }

    /// The server has no object of this uid at `there`. Those who name it so have lost it; while others name it otherwise,
    /// it may be there after all, and is looked up under the next of its names.
    pub fn absent(&mut self, uid: &Uid, there: &Identity) -> Work {
        let mut work = Work::default();
        let Some(node) = self.nodes.get(uid) else { return work };
        let (is_virtual, same) = (node.virtual_, node.identity == *there);
        let (mut meant, mut others) = (Vec::new(), Vec::new());
        for (dependent, d) in self.dependents(uid) {
            let namespace = &d.identity.namespace;
            for owner in d.owners.iter().filter(|o| o.uid == *uid) {
                if there.is_called(owner) && !there.is_far_from(namespace) {
                    meant.push(dependent.clone());
                } else {
                    others.push(there.otherwise(owner, namespace));
                }
            }
        }
        let gone = if is_virtual { others.is_empty() } else { same };
        if gone {
            return self.remove(uid);
        }
        work.delete = meant;
        if is_virtual && same {
            let next = others.iter().filter(|o| o.order() > there.order()).min_by_key(|o| o.order());
            let next = next.or_else(|| others.iter().min_by_key(|o| o.order())).cloned();
            if let (Some(next), Some(node)) = (next, self.nodes.get_mut(uid)) {
                node.identity = next;
            }
        }
        work
    }

    /// Takes note that a lookup found an object which no watch has shown, and returns how often that was so before.
    pub fn found_unseen(&mut self, uid: &str) -> Option<u8> {
        let node = self.nodes.get_mut(uid).filter(|n| n.virtual_)?;
        let before = node.lookups;
        node.lookups = before.saturating_add(1);
        Some(before)
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

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn stray(uid: &Uid, owner: &GraphNode, dependent: &Uid, d: &GraphNode) -> Option<Stray> {
    let far = owner.identity.is_far_from(&d.identity.namespace);
    let named = d.owners.iter().find(|o| o.uid == *uid).filter(|_| far)?;
    Some(Stray { at: d.identity.clone(), uid: dependent.clone(), owner: named.clone() })
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
