//! Claims made, kept, freed.

use super::*;
use serde_json::{Value, json};

fn pod(v: Value) -> Pod {
    serde_json::from_value(v).expect("pod")
}

fn entry(v: Value) -> PodResourceClaim {
    serde_json::from_value(v).expect("entry")
}

fn claim(status: Value, finalizers: Value, deleted: bool) -> ResourceClaim {
    let deleted = deleted.then_some("2026-01-01T00:00:00Z");
    serde_json::from_value(json!({"metadata": {"name": "c", "finalizers": finalizers, "deletionTimestamp": deleted},
        "spec": {}, "status": status}))
    .expect("claim")
}

#[test]
fn claims_of_entries() {
    let p = pod(json!({"metadata": {"name": "p"}, "status": {"resourceClaimStatuses": [
        {"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}]}}));
    for (e, want) in [
        (json!({"name": "a", "resourceClaimName": "c"}), Named::Claim { name: "c".into(), own: false }),
        (
            json!({"name": "made", "resourceClaimTemplateName": "t"}),
            Named::Claim { name: "p-made-x".into(), own: true },
        ),
        (json!({"name": "none", "resourceClaimTemplateName": "t"}), Named::Nothing),
        (json!({"name": "new", "resourceClaimTemplateName": "t"}), Named::Missing { template: "t".into() }),
        (json!({"name": "empty"}), Named::Nothing),
    ] {
        assert_eq!(named(&p, &entry(e.clone())), want, "{e}");
    }
}

#[test]
fn a_claim_from_a_template() {
    let p = pod(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}));
    let template: ResourceClaimTemplate = serde_json::from_value(json!({"spec": {
        "metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}}}))
    .expect("template");
    let made = from_template(&p, &entry(json!({"name": "gpu", "resourceClaimTemplateName": "t"})), &template);
    let json = serde_json::to_value(&made).expect("json");
    assert_eq!(json["metadata"]["generateName"], "p-gpu-");
    assert_eq!(json["metadata"]["annotations"], json!({"x": "y", POD_CLAIM: "gpu"}));
    assert_eq!(
        json["metadata"]["ownerReferences"][0],
        json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u",
        "controller": true})
    );
    assert_eq!(json["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"], "gpu");
    assert!(belongs(&made, &p) && !belongs(&made, &pod(json!({"metadata": {"uid": "v"}}))));
}

#[test]
fn long_names_are_cut_in_proportion() {
    let name = |pod: usize, claim: usize| base(&"p".repeat(pod), &"c".repeat(claim));
    let cut = |pod: usize, claim: usize| format!("{}-{}", "p".repeat(pod), "c".repeat(claim));
    assert_eq!(name(50, 5), format!("{}-", cut(50, 5)));
    assert_eq!(name(50, 6), cut(50 * 57 / 58, 6 * 57 / 58), "no hyphen is left at the end");
    assert_eq!(name(80, 40), cut(80 * 57 / 122, 40 * 57 / 122));
}

#[test]
fn what_templates_may_ask_for() {
    let (admin, list) = (
        "admin access is requested, but the feature is disabled",
        "template includes a prioritized list of subrequests, but the feature is disabled",
    );
    let exactly = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "adminAccess": true}});
    let first = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]});
    for (request, admin_access, prioritized_list, want) in [
        (&exactly, true, false, None),
        (&exactly, false, true, Some(admin)),
        (&first, false, true, None),
        (&first, true, false, Some(list)),
    ] {
        let template = json!({"spec": {"spec": {"devices": {"requests": [request]}}}});
        let template: ResourceClaimTemplate = serde_json::from_value(template).expect("template");
        assert_eq!(refused(&template, admin_access, prioritized_list), want, "{request}");
    }
}

#[test]
fn who_made_a_claim() {
    for (notes, want) in [
        (json!({}), ""),
        (json!({POD_CLAIM: ""}), ""),
        (json!({POD_CLAIM: "gpu"}), "resource_claim_template"),
        (json!({POD_CLAIM: "gpu", EXTENDED: "true"}), "extended_resource"),
    ] {
        let c: ResourceClaim =
            serde_json::from_value(json!({"metadata": {"annotations": notes}, "spec": {}})).expect("claim");
        assert_eq!(source(&c), want);
    }
}

#[test]
fn reservations() {
    let r = |uid: &str| json!({"resource": "pods", "name": uid, "uid": uid});
    let reference = |uid: &str| serde_json::from_value::<ResourceClaimConsumerReference>(r(uid)).expect("reference");
    let used = json!({"allocation": {}, "reservedFor": [r("a"), r("b")]});
    let ours = json!([FINALIZER]);
    let c = claim(used.clone(), ours.clone(), false);
    assert_eq!(upkeep(&c, vec![reference("a"), reference("b")], false), Upkeep::default());

    let one = upkeep(&c, vec![reference("a")], false);
    let status = one.status.expect("written").status.expect("status");
    assert_eq!(
        (status.reserved_for.map(|l| l.len()), status.allocation.is_some(), one.release),
        (Some(1), true, false)
    );

    let none = upkeep(&c, Vec::new(), true);
    let status = none.status.expect("written").status.expect("status");
    assert_eq!((status.reserved_for, status.allocation), (None, None));
    assert!(none.release && none.delete);

    let kept = upkeep(&claim(used, json!([]), false), Vec::new(), false);
    assert!(kept.status.expect("written").status.expect("status").allocation.is_some(), "another's allocation");
    assert!(!kept.release);

    let idle = claim(json!({"allocation": {}}), ours.clone(), false);
    assert_eq!(upkeep(&idle, Vec::new(), false), Upkeep::default(), "it may be used yet");
    let deleted = upkeep(&claim(json!({"allocation": {}}), ours, true), Vec::new(), false);
    assert!(deleted.release && deleted.status.is_some());
}

#[test]
fn pods_that_are_over() {
    let deleted = "2026-01-01T00:00:00Z";
    for (p, want) in [
        (json!({"status": {"phase": "Running"}}), false),
        (json!({"status": {"phase": "Failed"}}), true),
        (json!({"metadata": {"deletionTimestamp": deleted}}), true),
        (json!({"metadata": {"deletionTimestamp": deleted}, "spec": {"nodeName": "n", "containers": []}}), false),
    ] {
        assert_eq!(done(&pod(p.clone())), want, "{p}");
    }
    let p = pod(json!({"metadata": {"name": "p", "uid": "u"}}));
    assert!(reservable(&claim(json!({"allocation": {}}), json!([]), false), &p));
    assert!(!reservable(&claim(json!({}), json!([]), false), &p), "nothing is allocated");
    let reserved = claim(json!({"allocation": {}, "reservedFor": [reservation(&p)]}), json!([]), false);
    assert!(!reservable(&reserved, &p));
}
