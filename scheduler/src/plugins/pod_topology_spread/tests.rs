use crate::framework::Features;
use crate::model::{PodInfo, Selector};
use crate::testing::{NodeBuilder, check::Check, node, pod};
use serde_json::{Value, json};

fn constraint(key: &str, skew: i32, when: &str) -> Value {
    json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "a"}}})
}

fn app(name: &str) -> PodInfo {
    pod(name).label("app", "a").info()
}

fn spread(constraints: &[Value]) -> PodInfo {
    pod("p").label("app", "a").set("/spec", "topologySpreadConstraints", json!(constraints)).info()
}

fn zoned(name: &str, zone: &str) -> NodeBuilder {
    node(name).label("zone", zone)
}

#[test]
fn hard() {
    let nodes = [
        zoned("a1", "a").with(&[app("1"), app("2")]),
        zoned("b1", "b").with(&[app("3")]),
        zoned("b2", "b").with(&[pod("other").info()]),
        node("none").with(&[]),
    ];
    let check = Check::of(|args| super::build(args, Features::default()), json!(null));
    for (what, constraints, want) in [
        ("skew 1", vec![constraint("zone", 1, "DoNotSchedule")], vec!["b1", "b2"]),
        ("skew 2", vec![constraint("zone", 2, "DoNotSchedule")], vec!["a1", "b1", "b2"]),
        (
            "zone and host",
            vec![constraint("zone", 1, "DoNotSchedule"), constraint("kubernetes.io/hostname", 1, "DoNotSchedule")],
            vec!["b2"],
        ),
        ("soft ones do not filter", vec![constraint("zone", 1, "ScheduleAnyway")], vec!["a1", "b1", "b2", "none"]),
    ] {
        assert_eq!(check.fits(&spread(&constraints), &nodes), want, "{what}");
    }
    let mut few = constraint("zone", 1, "DoNotSchedule");
    few["minDomains"] = json!(3);
    assert!(check.fits(&spread(&[few]), &nodes).is_empty(), "with too few domains the minimum is 0");
    let statuses = check.statuses(&spread(&[constraint("zone", 1, "DoNotSchedule")]), &nodes);
    assert_eq!(statuses[0].to_string(), "node(s) didn't match pod topology spread constraints");
    assert_eq!(
        statuses[3].to_string(),
        "node(s) didn't match pod topology spread constraints (missing required label)"
    );
}

#[test]
fn inclusion_policies() {
    let nodes = [zoned("a", "a").with(&[app("1")]), zoned("b", "b").taint("x", "", "NoSchedule").with(&[])];
    let check = Check::of(|args| super::build(args, Features::default()), json!(null));
    let mut c = constraint("zone", 1, "DoNotSchedule");
    assert_eq!(check.fits(&spread(std::slice::from_ref(&c)), &nodes), ["b"]);
    c["nodeTaintsPolicy"] = json!("Honor");
    assert_eq!(check.fits(&spread(&[c]), &nodes), ["a", "b"], "a tainted zone does not count");
}

#[test]
fn soft() {
    let nodes = [
        zoned("a", "a").with(&[app("1"), app("2")]),
        zoned("b", "b").with(&[app("3")]),
        zoned("c", "c").with(&[]),
        node("none").with(&[]),
    ];
    let scores = Check::of(|args| super::build(args, Features::default()), json!(null))
        .scores(&spread(&[constraint("zone", 1, "ScheduleAnyway")]), &nodes);
    assert_eq!((scores[2], scores[3]), (100, 0));
    assert!(scores[0] < scores[1] && scores[1] < scores[2], "{scores:?}");
}

#[test]
fn system_defaults_follow_services() {
    let nodes = [node("a").with(&[app("1")]), node("b").with(&[])];
    let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
    assert!(check.scores(&app("p"), &nodes).is_empty());
    check.listers.spread = Some(Selector::from_map(&app("p").labels));
    let scores = check.scores(&app("p"), &nodes);
    assert!(scores[0] < scores[1], "{scores:?}");
}

#[test]
fn labels_of_the_pod_select_behind_their_gate() {
    // Two of another version in one zone, one of the pod's own in the other.
    let of = |name: &str, version: &str| pod(name).label("app", "a").label("version", version).info();
    let nodes = [zoned("a", "a").with(&[of("1", "old"), of("2", "old")]), zoned("b", "b").with(&[of("3", "new")])];
    let mut c = constraint("zone", 1, "DoNotSchedule");
    c["matchLabelKeys"] = json!(["version"]);
    let p = pod("p").label("app", "a").label("version", "new").set("/spec", "topologySpreadConstraints", json!([c]));
    for (on, want) in [(true, "a"), (false, "b")] {
        let features = Features { match_label_keys: on, ..Features::default() };
        let mut check = Check::of(|args| super::build(args, Features::default()), json!(null));
        check.replace(super::build(&json!(null), features).expect("plugin"));
        assert_eq!(check.fits(&p.info(), &nodes), [want], "{on}");
    }
}
