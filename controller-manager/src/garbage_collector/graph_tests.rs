//! Changes of the graph by events.

use super::*;

fn seen(uid: &str, owners: &[(&str, bool)], state: &str) -> SeenMetadata {
    let owner = |(uid, block): &(&str, bool)| Owner {
        api_version: "v1".into(),
        kind: "X".into(),
        name: (*uid).into(),
        uid: (*uid).into(),
        block_owner_deletion: Some(*block),
    };
    SeenMetadata {
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

fn placed(mut seen: SeenMetadata, namespace: &str) -> SeenMetadata {
    seen.identity.namespace = namespace.into();
    seen
}

fn of_kind(mut seen: SeenMetadata, version: &str) -> SeenMetadata {
    seen.identity.api_version = version.into();
    seen
}

#[test]
fn from_foreground_to_orphaning() {
    let mut g = Graph::default();
    g.observe(seen("rs", &[], ""));
    g.observe(seen("pod", &[("rs", true)], ""));
    g.observe(seen("rs", &[], "foreground"));
    let work = g.observe(seen("rs", &[], "orphan"));
    assert_eq!((work.orphan, work.delete.len()), (vec!["rs".into()], 0), "deleted again with another policy");
    assert!(g.get("rs").is_some_and(|n| !n.deleting_dependents));
    let both = SeenMetadata { foreground: true, ..seen("rs", &[], "orphan") };
    assert_eq!(g.observe(both), Work::default(), "nothing is deleted of what is set free");
}

#[test]
fn owners_in_other_namespaces_are_told_of_once() {
    let stray = |w: &Work| w.strays.iter().map(|s| (s.uid.to_string(), s.owner.uid.to_string())).collect::<Vec<_>>();
    let wrong = vec![("pod".to_owned(), "rs".to_owned())];
    // The owner first.
    let mut g = Graph::default();
    g.observe(seen("rs", &[], ""));
    let child = || placed(seen("pod", &[("rs", true)], ""), "far");
    let work = g.observe(child());
    assert_eq!((deletes(&work), stray(&work)), (vec!["pod"], wrong.clone()));
    assert_eq!(g.observe(child()), Work::default());
    // The dependent first.
    let mut g = Graph::default();
    assert_eq!(stray(&g.observe(child())), []);
    let work = g.observe(seen("rs", &[], ""));
    assert_eq!((deletes(&work), stray(&work)), (vec!["pod"], wrong.clone()));
    // A dependent outside of namespaces.
    let mut g = Graph::default();
    g.observe(seen("rs", &[], ""));
    assert_eq!(stray(&g.observe(placed(seen("pod", &[("rs", true)], ""), ""))), wrong);
}

#[test]
fn what_is_named_in_two_ways_is_looked_up_under_both() {
    let mut g = Graph::default();
    let bad = placed(seen("bad", &[("rs", true)], ""), "a");
    g.observe(bad);
    assert_eq!(deletes(&g.observe(seen("good", &[("rs", true)], ""))), ["good"], "names another place than the first");
    let first = g.get("rs").map(|n| n.identity.clone()).expect("a stand-in");
    assert_eq!(&*first.namespace, "a");
    assert_eq!(deletes(&g.absent(&"rs".into(), &first)), ["bad"], "those who meant that place");
    assert_eq!(g.get("rs").map(|n| &*n.identity.namespace), Some("ns"));
    g.observe(seen("rs", &[], ""));
    assert_eq!(deletes(&g.absent(&"rs".into(), &first)), ["bad"], "news from before it was seen");
    assert!(g.get("rs").is_some_and(|n| !n.virtual_ && n.dependents.contains("good")), "the link has lasted");
    let last = g.get("rs").map(|n| n.identity.clone()).expect("rs");
    assert_eq!(deletes(&g.absent(&"rs".into(), &last)), ["bad", "good"]);
    assert!(g.get("rs").is_none());
}

#[test]
fn what_is_shown_in_another_version_stays_itself() {
    let mut g = Graph::default();
    g.observe(of_kind(seen("rs", &[], ""), "g/v1"));
    g.observe(seen("pod", &[("rs", true)], ""));
    assert_eq!(g.of_kind("g/v2", "X").count(), 1);
    assert_eq!(g.of_kind("h/v2", "X").count(), 0);
    g.observe(of_kind(seen("rs", &[], ""), "g/v2"));
    assert_eq!(deletes(&g.remove("rs")), ["pod"]);
}

#[test]
fn what_is_there_and_unseen_is_counted() {
    let mut g = Graph::default();
    g.observe(seen("pod", &[("rs", true)], ""));
    assert_eq!([g.found_unseen("rs"), g.found_unseen("rs")], [Some(0), Some(1)]);
    g.observe(seen("rs", &[], ""));
    assert_eq!(g.found_unseen("rs"), None);
}
