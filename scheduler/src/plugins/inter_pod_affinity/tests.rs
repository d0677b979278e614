use crate::model::PodInfo;
use crate::testing::{NodeBuilder, PodBuilder, check::Check, node, pod};
use serde_json::{Value, json};

fn term(app: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"})
}

fn required(p: PodBuilder, kind: &str, terms: Value) -> PodInfo {
    p.set("/spec", "affinity", json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}})).info()
}

fn zoned(name: &str, zone: &str) -> NodeBuilder {
    node(name).label("zone", zone)
}

#[test]
fn filter() {
    let nodes = [
        zoned("a1", "a").with(&[pod("web").label("app", "web").info()]),
        zoned("a2", "a").with(&[]),
        zoned("b1", "b").with(&[required(
            pod("lonely").label("app", "lonely"),
            "podAntiAffinity",
            json!([term("noisy")]),
        )]),
        node("bare").with(&[]),
    ];
    let check = Check::of(super::build, json!(null));
    let mine = || pod("p").label("app", "mine");
    for (what, pod, want) in [
        ("nothing asked", mine().info(), vec!["a1", "a2", "b1", "bare"]),
        ("near", required(mine(), "podAffinity", json!([term("web")])), vec!["a1", "a2"]),
        ("far", required(mine(), "podAntiAffinity", json!([term("web")])), vec!["b1", "bare"]),
        ("refused", pod("p").label("app", "noisy").info(), vec!["a1", "a2", "bare"]),
        ("the first of its kind", required(mine(), "podAffinity", json!([term("mine")])), vec!["a1", "a2", "b1"]),
        ("near nobody", required(mine(), "podAffinity", json!([term("ghost")])), vec![]),
        (
            "other namespace",
            required(mine().namespace("other"), "podAntiAffinity", json!([term("web")])),
            vec!["a1", "a2", "b1", "bare"],
        ),
    ] {
        assert_eq!(check.fits(&pod, &nodes), want, "{what}");
    }
    let said = |p: &PodInfo, at: usize| check.statuses(p, &nodes)[at].to_string();
    assert_eq!(
        said(&required(mine(), "podAffinity", json!([term("web")])), 2),
        "node(s) didn't match pod affinity rules"
    );
    assert_eq!(
        said(&required(mine(), "podAntiAffinity", json!([term("web")])), 0),
        "node(s) didn't match pod anti-affinity rules"
    );
    assert_eq!(
        said(&pod("p").label("app", "noisy").info(), 2),
        "node(s) didn't satisfy existing pods anti-affinity rules"
    );
}

#[test]
fn namespaces_by_label() {
    let nodes =
        [zoned("a", "a").with(&[pod("web").namespace("prod").label("app", "web").info()]), zoned("b", "b").with(&[])];
    let mut check = Check::of(super::build, json!(null));
    check.listers.namespaces.insert("prod".into(), [("env".to_owned(), "prod".to_owned())].into());
    let mut t = term("web");
    t["namespaceSelector"] = json!({"matchLabels": {"env": "prod"}});
    assert_eq!(check.fits(&required(pod("p"), "podAffinity", json!([t])), &nodes), ["a"]);
    assert!(check.fits(&required(pod("p"), "podAffinity", json!([term("web")])), &nodes).is_empty());
}

#[test]
fn score() {
    let nodes = [
        zoned("a", "a").with(&[pod("web").label("app", "web").info()]),
        zoned("b", "b").with(&[pod("db").label("app", "db").info()]),
        zoned("c", "c").with(&[]),
    ];
    let check = Check::of(super::build, json!(null));
    let wish = |kind: &str, app: &str| {
        pod("p")
            .set(
                "/spec",
                "affinity",
                json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution":
        [{"weight": 10, "podAffinityTerm": term(app)}]}}),
            )
            .info()
    };
    assert_eq!(check.scores(&wish("podAffinity", "web"), &nodes), [100, 0, 0]);
    assert_eq!(check.scores(&wish("podAntiAffinity", "db"), &nodes), [100, 0, 100]);
    assert!(check.scores(&pod("p").info(), &nodes).is_empty());
}

#[test]
fn required_affinity_of_others_attracts() {
    let nodes = [
        zoned("a", "a").with(&[required(pod("fan").label("app", "fan"), "podAffinity", json!([term("star")]))]),
        zoned("b", "b").with(&[]),
    ];
    assert_eq!(Check::of(super::build, json!(null)).scores(&pod("p").label("app", "star").info(), &nodes), [100, 0]);
}

/// A tenant may name ten thousand keys; only those that nodes have cost anything.
#[test]
fn keys_that_a_node_lacks_are_not_counted() {
    let base = zoned("n", "a").base();
    let mut amounts = super::Amounts::default();
    for key in ["zone", "rack", "zone"] {
        amounts.add(&base, key, 1);
    }
    assert_eq!(amounts.0, [("zone", 2)]);
}

#[test]
fn terms_of_ten_thousand_keys_leave_other_pods_alone() {
    let terms: Vec<Value> = (0..10_000)
        .map(|n| json!({"labelSelector": {}, "namespaceSelector": {}, "topologyKey": format!("example.com/k{n}")}))
        .collect();
    let hostile = required(pod("hostile"), "podAntiAffinity", json!(terms));
    let nodes = [zoned("a", "a").with(&[hostile]), zoned("b", "b").with(&[])];
    assert_eq!(Check::of(super::build, json!(null)).fits(&pod("web").info(), &nodes), ["a", "b"]);
}
