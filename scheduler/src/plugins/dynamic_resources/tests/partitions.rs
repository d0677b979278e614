//! Devices that share counters, that are reached each from nodes of its own, and that rules taint.

use serde_json::{Value, json};

use super::super::DynamicResources;
use super::{NO, World, claim, exactly, gpu, on, plugin, read, requests, slice, user};
use crate::framework::Features;

const INVALID: &str = "invalid resource pools were encountered";

/// A device that takes so much memory of the set `gpu`.
fn part(name: &str, memory: &str) -> Value {
    json!({"name": name, "attributes": {"kind": {"string": name.split('-').next()}},
        "consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": memory}}}]})
}

/// The two slices of node a's pool: its counters, and its devices.
fn partitioned(sets: Value, devices: Value) -> [Value; 2] {
    let pool = json!({"name": "a", "generation": 1, "resourceSliceCount": 2});
    let mut counters = slice("counters", json!({"sharedCounters": sets, "pool": pool}), json!(null));
    counters["spec"].as_object_mut().expect("spec").remove("devices");
    [counters, slice("devices", json!({"nodeName": "a", "pool": pool}), devices)]
}

fn memory(amount: &str) -> Value {
    json!([{"name": "gpu", "counters": {"memory": {"value": amount}}}])
}

fn world_of(slices: &[Value], claims: &[Value]) -> World {
    let mut world = World::new(slices, claims);
    world.listers.partitions = true;
    world
}

fn of_kind(claim_name: &str, kinds: &[&str]) -> Value {
    let asks = |kind: &&str| {
        let cel = format!("device.attributes['gpu.example.com'].kind == '{kind}'");
        exactly(kind, json!({"selectors": [{"cel": {"expression": cel}}]}))
    };
    claim(claim_name, requests(&kinds.iter().map(asks).collect::<Vec<_>>()))
}

/// A claim that holds a device of node a.
fn holding(device: &str) -> Value {
    let mut held = claim("held", requests(&[exactly("r", json!({}))]));
    let result = json!({"request": "r", "driver": "gpu.example.com", "pool": "a", "device": device});
    held["status"] = json!({"allocation": {"devices": {"results": [result]}}});
    held
}

fn parts() -> Value {
    json!([part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi"), part("third", "15Gi")])
}

#[test]
fn partitions_share_what_their_device_has() {
    let two_halves = claim("c", requests(&[exactly("r", json!({"count": 2}))]));
    for (what, held, wanted, want) in [
        ("the whole device", None, of_kind("c", &["whole"]), ""),
        ("a half of it", None, of_kind("c", &["half"]), ""),
        ("the whole and a half", None, of_kind("c", &["whole", "half"]), NO),
        ("a half and a third", None, of_kind("c", &["half", "third"]), ""),
        ("any two: the search goes past the whole", None, two_halves, ""),
        ("the whole beside a half in use", Some("half-0"), of_kind("c", &["whole"]), NO),
        ("the other half beside a half in use", Some("half-0"), of_kind("c", &["half"]), ""),
        ("anything beside the whole in use", Some("whole"), of_kind("c", &["third"]), NO),
    ] {
        let mut claims = vec![wanted];
        claims.extend(held.map(holding));
        let world = world_of(&partitioned(memory("40Gi"), parts()), &claims);
        assert_eq!(world.texts(&user("p", &["c"]).info()), [want, NO], "{what}");
    }
    let off = World::new(&partitioned(memory("40Gi"), parts()), &[of_kind("c", &["half"])]);
    assert_eq!(off.texts(&user("p", &["c"]).info()), [NO, NO], "the gate is off");
}

#[test]
fn pods_share_counters_through_their_promises() {
    let world = world_of(&partitioned(memory("40Gi"), parts()), &[of_kind("c", &["half"]), of_kind("d", &["whole"])]);
    world.reserve(&plugin(), &user("p", &["c"]).info(), 0);
    assert_eq!(world.texts(&user("q", &["d"]).info()), [NO, NO]);
}

#[test]
fn counters_that_contradict_themselves_close_their_pool() {
    let twice = json!([memory("40Gi")[0].clone(), memory("9Gi")[0].clone()]);
    let other = json!([{"name": "other", "counters": {"memory": {"value": "40Gi"}}}]);
    let cores = json!([{"name": "gpu", "counters": {"cores": {"value": "4"}}}]);
    for (what, sets) in [("a set twice", twice), ("no such set", other), ("no such counter", cores)] {
        let world = world_of(&partitioned(sets, parts()), &[of_kind("c", &["half"])]);
        assert_eq!(world.texts(&user("p", &["c"]).info()), [INVALID, NO], "{what}");
    }
    // Before all slices are there nothing is taken, and nothing is said.
    let [_, devices] = partitioned(memory("40Gi"), parts());
    let incomplete = world_of(&[devices], &[of_kind("c", &["half"])]);
    assert_eq!(incomplete.texts(&user("p", &["c"]).info()), [NO, NO]);
}

#[test]
fn devices_are_reached_each_from_its_own_nodes() {
    let mut devices = [gpu("g0", "A100", 0), gpu("g1", "A100", 1), gpu("g2", "A100", 2)];
    devices[0]["nodeName"] = json!("a");
    let zone_b = json!([{"key": "zone", "operator": "In", "values": ["b"]}]);
    devices[1]["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": zone_b}]});
    let apart = slice("fabric", json!({"perDeviceNodeSelection": true}), json!(devices));
    let two = claim("two", requests(&[exactly("r", json!({"count": 2}))]));
    let one = claim("one", requests(&[exactly("r", json!({}))]));
    let world = world_of(std::slice::from_ref(&apart), &[one.clone(), two]);
    assert_eq!(world.texts(&user("p", &["two"]).info()), [NO, NO], "each node reaches one");
    for (node, device, at) in
        [(0, "g0", json!({"key": "metadata.name", "operator": "In", "values": ["a"]})), (1, "g1", zone_b[0].clone())]
    {
        let fresh = world_of(std::slice::from_ref(&apart), std::slice::from_ref(&one));
        let (_, allocations) = fresh.reserve(&plugin(), &user("p", &["one"]).info(), node);
        assert_eq!(allocations[0]["devices"]["results"][0]["device"], device);
        let term = &allocations[0]["nodeSelector"]["nodeSelectorTerms"][0];
        let field = if node == 0 { "matchFields" } else { "matchExpressions" };
        assert_eq!(term[field], json!([at]));
    }
    let off = World::new(std::slice::from_ref(&apart), &[one]);
    assert_eq!(off.texts(&user("p", &["one"]).info()), [NO, NO], "the gate is off");
}

#[test]
fn rules_taint_the_devices_that_they_select() {
    let rule = |selector: Value, effect: &str| {
        let taint = json!({"key": "broken", "value": "fan", "effect": effect});
        let mut spec = json!({"taint": taint});
        if !selector.is_null() {
            spec["deviceSelector"] = selector;
        }
        std::sync::Arc::new(read(&json!({"metadata": {"name": "r"}, "spec": spec})))
    };
    let tolerant = json!({"tolerations": [{"key": "broken", "operator": "Exists"}]});
    let judging = DynamicResources {
        features: Features { device_taints: true, taint_rules: true, ..Features::default() },
        ..plugin()
    };
    for (what, rules, request, want) in [
        ("no rule", vec![], json!({}), ["", ""]),
        ("one device", vec![rule(json!({"device": "g0"}), "NoSchedule")], json!({}), [NO, ""]),
        ("that is tolerated", vec![rule(json!({"device": "g0"}), "NoExecute")], tolerant, ["", ""]),
        ("without an effect", vec![rule(json!({"device": "g0"}), "None")], json!({}), ["", ""]),
        ("a pool", vec![rule(json!({"pool": "b"}), "NoSchedule")], json!({}), ["", NO]),
        ("a driver", vec![rule(json!({"driver": "gpu.example.com"}), "NoSchedule")], json!({}), [NO, NO]),
        ("another driver", vec![rule(json!({"driver": "nic.example.com"}), "NoSchedule")], json!({}), ["", ""]),
        ("no selector", vec![rule(json!(null), "NoSchedule")], json!({}), [NO, NO]),
        (
            "one of two rules",
            vec![rule(json!({"device": "x"}), "NoSchedule"), rule(json!({"device": "h0"}), "NoSchedule")],
            json!({}),
            ["", NO],
        ),
    ] {
        let slices = [on("a", json!([gpu("g0", "A100", 0)])), on("b", json!([gpu("h0", "A100", 0)]))];
        let mut world = World::new(&slices, &[claim("c", requests(&[exactly("r", request)]))]);
        world.listers.rules = rules;
        let (_, said) = world.answers(&judging, &user("p", &["c"]).info());
        assert_eq!(said.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{what}");
    }
}
