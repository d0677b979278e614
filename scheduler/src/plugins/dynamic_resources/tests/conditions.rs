//! Devices that have to get ready before their pod is bound.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::DynamicResources;
use super::super::conditions::{Readiness, is_overdue, is_stuck, readiness};
use super::*;

const ELSEWHERE: &str = "resourceclaim not available on the node";

/// A device of a fabric that every node reaches, attached to the node that is chosen.
fn attachable() -> Value {
    let mut device = gpu("g0", "A100", 0);
    device["bindingConditions"] = json!(["Attached", "Powered"]);
    device["bindingFailureConditions"] = json!(["Broken", "Stolen"]);
    device["bindsToNode"] = json!(true);
    slice("fabric", json!({"allNodes": true}), json!([device]))
}

fn judging() -> DynamicResources {
    DynamicResources { features: Features { bindings: true, ..Features::default() }, ..plugin() }
}

/// The claim as it is when its device was allocated at a time, and its driver has said so much.
fn allocated(at: &str, said: Value) -> Value {
    let mut claim = claim("c", requests(&[exactly("r", json!({}))]));
    let result = json!({"request": "r", "driver": "gpu.example.com", "pool": "fabric", "device": "g0",
        "bindingConditions": ["Attached", "Powered"], "bindingFailureConditions": ["Broken", "Stolen"]});
    let condition = |(kind, status): (&String, &Value)| {
        json!({"type": kind, "status": status, "reason": "Said", "message": "by the \"driver\"",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions: Vec<Value> = said.as_object().into_iter().flatten().map(condition).collect();
    let device = json!({"driver": "gpu.example.com", "pool": "fabric", "device": "g0", "conditions": conditions});
    claim["status"] = json!({"allocation": {"allocationTimestamp": at, "devices": {"results": [result]}},
        "devices": if said.is_null() { json!([]) } else { json!([device]) }});
    claim
}

#[test]
fn devices_are_ready_when_all_their_conditions_are_true() {
    let failed =
        || Readiness::Failed("claim c binding failed: reason=Said, message=\"by the \\\"driver\\\"\"".to_owned());
    let minute = Duration::from_secs(60);
    let (early, late): (Timestamp, Timestamp) =
        ("2026-01-01T00:00:30Z".parse().expect("time"), "2026-01-01T00:01:30Z".parse().expect("time"));
    for (what, said, ready, stuck) in [
        ("nothing said", json!(null), Readiness::Waiting, [false, true]),
        ("one of two", json!({"Attached": "True"}), Readiness::Waiting, [false, true]),
        ("one is false", json!({"Attached": "True", "Powered": "False"}), Readiness::Waiting, [false, true]),
        ("both", json!({"Attached": "True", "Powered": "True"}), Readiness::Ready, [false, false]),
        ("failed", json!({"Stolen": "True"}), failed(), [true, true]),
        (
            "failed though ready",
            json!({"Attached": "True", "Powered": "True", "Broken": "True"}),
            failed(),
            [true, true],
        ),
        (
            "not failed",
            json!({"Attached": "True", "Powered": "True", "Broken": "False"}),
            Readiness::Ready,
            [false, false],
        ),
    ] {
        let claim = read(&allocated("2026-01-01T00:00:00Z", said));
        assert_eq!(readiness(&claim), ready, "{what}");
        assert_eq!([early, late].map(|now| is_stuck(&claim, minute, now)), stuck, "{what}");
    }
    let plain = read(&claim("c", requests(&[])));
    assert!(!is_overdue(&plain, minute, late) && !is_stuck(&plain, minute, late));
}

#[test]
fn claim_says_what_its_device_awaits_and_where() {
    let c = claim("c", requests(&[exactly("r", json!({}))]));
    let mut world = World::new(&[attachable()], std::slice::from_ref(&c));
    assert_eq!(world.texts(&user("p", &["c"]).info()), [NO, NO], "the gate is off");
    world = World::new(&[attachable()], &[c]);
    world.listers.bindings = true;
    let (_, allocations) = world.reserve(&judging(), &user("p", &["c"]).info(), 1);
    let result = &allocations[0]["devices"]["results"][0];
    assert_eq!(result["bindingConditions"], json!(["Attached", "Powered"]));
    assert_eq!(result["bindingFailureConditions"], json!(["Broken", "Stolen"]));
    let field = &allocations[0]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["b"]));
}

#[test]
fn claim_whose_devices_failed_is_given_back() {
    let soon = Timestamp::now().to_string();
    for (what, at, said, want) in [
        ("in time", soon.as_str(), json!(null), ["", ""]),
        ("failed", soon.as_str(), json!({"Broken": "True"}), [ELSEWHERE, ELSEWHERE]),
        ("too late", "1960-01-01T00:00:00Z", json!(null), [ELSEWHERE, ELSEWHERE]),
    ] {
        let world = World::new(&[], &[allocated(at, said)]);
        let (it, p) = (judging(), user("p", &["c"]).info());
        let (state, all) = world.answers(&it, &p);
        assert_eq!(all.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{what}");
        let mut rejected = Rejected::default();
        all.iter().enumerate().filter(|(_, s)| !s.is_success()).for_each(|(at, s)| rejected.push(at, s.clone()));
        let profile = Profile::build(&ProfileConfig::default()).expect("profile");
        world.cycle(|cx| it.post_filter(cx, &profile, &state, &p, &rejected));
        assert_eq!(it.acts(&state), !want[0].is_empty(), "{what}");
    }
}

#[tokio::test]
async fn pod_is_bound_when_its_devices_are_ready() {
    let reserved = |mut claim: Value| {
        claim["status"]["reservedFor"] = json!([{"resource": "pods", "name": "p", "uid": "uid-p"}]);
        claim
    };
    let soon = Timestamp::now().to_string();
    let ready = json!({"Attached": "True", "Powered": "True"});
    let late = "claim c binding timeout";
    let failed = "claim c binding failed: reason=Said, message=\"by the \\\"driver\\\"\"";
    for (what, now, then, want) in [
        ("ready at once", allocated(&soon, ready.clone()), None, ""),
        ("ready later", allocated(&soon, json!(null)), Some(allocated(&soon, ready)), ""),
        ("failed", allocated(&soon, json!(null)), Some(allocated(&soon, json!({"Broken": "True"}))), failed),
        ("too late", allocated("2020-01-01T00:00:00Z", json!(null)), None, late),
    ] {
        let world = World::new(&[], &[reserved(allocated(&soon, json!(null)))]);
        let (it, p) = (judging(), user("p", &["c"]).info());
        let (state, _) = world.answers(&it, &p);
        let server = Server::default();
        server.stored.lock().push(read(&now));
        let change = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Some(then) = then {
                *server.stored.lock() = vec![read(&then)];
            }
        };
        let (status, ()) = tokio::join!(it.pre_bind(&server, &state, &p, "a"), change);
        assert_eq!(status.to_string(), want, "{what}");
    }
}
