//! The graph in the language of Graphviz, as `/debug/controllers/garbage-collector-controller/graph` shows it: for whoever
//! wonders what keeps an object, or what took it away. Answers for upstream's
//! `pkg/controller/garbagecollector/dump.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use shared::status::go_quote;

use super::graph::{Graph, GraphNode, Identity, Uid};

/// The objects that own or are owned; with `uids`, only those that have to do with one of these.
#[must_use]
pub fn dot(graph: &Graph, uids: &[String]) -> String {
    let tied = |node: &GraphNode| !node.dependents.is_empty() || !node.owners.is_empty();
    let shown: BTreeMap<&Uid, &GraphNode> = match uids {
        [] => graph.nodes().filter(|(_, node)| tied(node)).collect(),
        some => kin(graph, some).into_iter().filter(|(_, node)| tied(node)).collect(),
    };
    let mut vertices: BTreeMap<&Uid, String> =
        shown.iter().map(|(uid, node)| (*uid, vertex(uid, &node.identity, State::of(node)))).collect();
    let mut edges = BTreeSet::new();
    for (uid, node) in &shown {
        for owner in &node.owners {
            vertices.entry(&owner.uid).or_insert_with(|| {
                let identity = Identity::named(owner, &"".into());
                vertex(&owner.uid, &identity, State { missing: true, ..State::default() })
            });
            edges.insert((*uid, &owner.uid));
        }
    }
    let mut out = "strict digraph full {\n".to_owned();
    if !vertices.is_empty() {
        out.push_str("  // Node definitions.\n");
        out.extend(vertices.into_values());
    }
    if !edges.is_empty() {
        out.push_str("  // Edge definitions.\n");
    }
    for (from, to) in edges {
        let _ = writeln!(out, "  {} -> {};", go_quote(from), go_quote(to));
    }
    out + "}\n"
}

/// Returns these objects with all owners and dependents, over any number of steps.
fn kin<'a>(graph: &'a Graph, uids: &[String]) -> BTreeMap<&'a Uid, &'a GraphNode> {
    let mut found = BTreeMap::new();
    let mut next: Vec<&str> = uids.iter().map(String::as_str).collect();
    while let Some(uid) = next.pop() {
        let Some((uid, node)) = graph.entry(uid) else { continue };
        if found.insert(uid, node).is_none() {
            next.extend(node.owners.iter().map(|owner| &*owner.uid));
            next.extend(node.dependents.iter().map(|uid| &**uid));
        }
    }
    found
}

#[derive(Default)]
struct State {
    missing: bool,
    deleting: bool,
    deleting_dependents: bool,
    virtual_: bool,
}

impl State {
    fn of(node: &GraphNode) -> Self {
        Self {
            missing: false,
            deleting: node.deleting,
            deleting_dependents: node.deleting_dependents,
            virtual_: node.virtual_,
        }
    }

    /// Lists the flags that are set, in the order in which labels show them.
    fn words(&self) -> String {
        let all = [
            (self.deleting, "beingDeleted"),
            (self.deleting_dependents, "deletingDependents"),
            (self.virtual_, "virtual"),
            (self.missing, "missingFromGraph"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect::<Vec<_>>().join(",")
    }
}

fn vertex(uid: &str, at: &Identity, state: State) -> String {
    let (group, version) = at.api_version.split_once('/').unwrap_or(("", &at.api_version));
    let dot = if group.is_empty() { "" } else { "." };
    let mut label = format!("uid={uid}\nnamespace={}\n{}.{version}{dot}{group}/{}\n", at.namespace, at.kind, at.name);
    let words = state.words();
    if !words.is_empty() {
        label = format!("{label}{words}\n");
    }
    let mut out = format!("  {} [\n", go_quote(uid));
    for (key, value) in [
        ("label", label.as_str()),
        ("group", group),
        ("version", version),
        ("kind", &at.kind),
        ("namespace", &at.namespace),
        ("name", &at.name),
        ("uid", uid),
        ("missing", truth(state.missing)),
        ("beingDeleted", truth(state.deleting)),
        ("deletingDependents", truth(state.deleting_dependents)),
        ("virtual", truth(state.virtual_)),
    ] {
        let _ = writeln!(out, "    {key}={}", go_quote(value));
    }
    out + "  ];\n"
}

fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::metadata::Owner;
    use crate::garbage_collector::graph::SeenMetadata;

    fn seen(kind: &str, name: &str, owner: Option<(&str, &str)>, deleting: bool) -> SeenMetadata {
        SeenMetadata {
            identity: Identity {
                api_version: if kind == "Pod" { "v1".into() } else { "apps/v1".into() },
                kind: kind.into(),
                namespace: "ns".into(),
                name: name.into(),
            },
            uid: format!("u-{name}").into(),
            owners: owner
                .map(|(kind, name)| Owner {
                    api_version: "apps/v1".into(),
                    kind: kind.into(),
                    name: name.into(),
                    uid: format!("u-{name}").into(),
                    block_owner_deletion: None,
                })
                .into_iter()
                .collect(),
            deleting,
            foreground: deleting,
            orphan: false,
            version: None,
        }
    }

    fn graph() -> Graph {
        let mut graph = Graph::default();
        for object in [
            seen("Pod", "alone", None, false),
            seen("ReplicaSet", "set", None, true),
            seen("Pod", "a", Some(("ReplicaSet", "set")), false),
            seen("Pod", "b", Some(("StatefulSet", "unseen")), false),
        ] {
            drop(graph.observe(object));
        }
        graph
    }

    #[test]
    fn as_upstream_draws_it() {
        let want = r#"strict digraph full {
  // Node definitions.
  "u-a" [
    label="uid=u-a\nnamespace=ns\nPod.v1/a\n"
    group=""
    version="v1"
    kind="Pod"
    namespace="ns"
    name="a"
    uid="u-a"
    missing="false"
    beingDeleted="false"
    deletingDependents="false"
    virtual="false"
  ];
  "u-set" [
    label="uid=u-set\nnamespace=ns\nReplicaSet.v1.apps/set\nbeingDeleted,deletingDependents\n"
    group="apps"
    version="v1"
    kind="ReplicaSet"
    namespace="ns"
    name="set"
    uid="u-set"
    missing="false"
    beingDeleted="true"
    deletingDependents="true"
    virtual="false"
  ];
  // Edge definitions.
  "u-a" -> "u-set";
}
"#;
        assert_eq!(dot(&graph(), &["u-set".into()]), want);
    }

    #[test]
    fn who_is_shown() {
        for (uids, want) in [
            (&[][..], "u-a u-b u-set u-unseen"),
            (&["u-a"], "u-a u-set"),
            (&["u-unseen"], "u-b u-unseen"),
            (&["u-a", "u-b"], "u-a u-b u-set u-unseen"),
            (&["u-alone"], ""),
            (&["nobody"], ""),
        ] {
            let uids: Vec<String> = uids.iter().map(|uid| (*uid).to_owned()).collect();
            let text = dot(&graph(), &uids);
            let shown: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("    uid=\"")?.strip_suffix('"')).collect();
            assert_eq!(shown.join(" "), want, "{uids:?}");
        }
        assert!(dot(&graph(), &["u-b".into()]).contains("StatefulSet.v1.apps/unseen\\nvirtual\\n"));
        assert_eq!(dot(&Graph::default(), &[]), "strict digraph full {\n}\n");
    }
}
