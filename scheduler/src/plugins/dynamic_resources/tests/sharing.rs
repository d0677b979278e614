//! Devices that are given to several claims, and devices that are tainted.

use super::super::selectors::Selectors;
use super::*;

/// With devices that are given to several claims.
fn sharing() -> DynamicResources {
    DynamicResources {
        selectors: Selectors::of_shared(),
        features: Features { consumable_capacity: true, ..Features::default() },
        ..plugin()
    }
}

fn shared_gpu(name: &str) -> Value {
    let mut device = gpu(name, name, 0);
    device["allowMultipleAllocations"] = json!(true);
    device
}

fn takes(memory: &str) -> Value {
    json!({"capacity": {"requests": {"memory": memory}}})
}

#[test]
fn devices_are_shared_by_their_capacity() {
    let one = || vec![on("a", json!([shared_gpu("g0")]))];
    let two = || vec![on("a", json!([shared_gpu("g0"), shared_gpu("g1")]))];
    let three = || {
        let mut like_g1 = shared_gpu("g2");
        like_g1["attributes"]["model"]["string"] = json!("g1");
        vec![on("a", json!([shared_gpu("g0"), shared_gpu("g1"), like_g1]))]
    };
    let held = |memory: &str| {
        let mut c = claim("other", requests(&[exactly("r", takes(memory))]));
        c["status"] = json!({"allocation": {"devices": {"results": [{"request": "r", "driver": "gpu.example.com", "pool": "a",
            "device": "g0", "shareID": "s", "consumedCapacity": {"memory": memory}}]}}});
        c
    };
    let alone = || {
        let mut c = held("1Gi");
        let result = &mut c["status"]["allocation"]["devices"]["results"][0];
        (result["shareID"], result["consumedCapacity"]) = (Value::Null, Value::Null);
        c
    };
    let of = |list: &[Value]| claim("c", requests(list));
    let distinct = |n: i64| {
        let mut wanted = takes("1Gi");
        wanted["count"] = json!(n);
        claim(
            "c",
            json!({"requests": [exactly("r", wanted)], "constraints": [{"distinctAttribute": "gpu.example.com/model"}]}),
        )
    };
    let mut pair = takes("1Gi");
    pair["count"] = json!(2);
    for (what, slices, claims, want) in [
        ("room for both", one(), vec![of(&[exactly("r", takes("20Gi")), exactly("s", takes("20Gi"))])], ""),
        ("room for one", one(), vec![of(&[exactly("r", takes("20Gi")), exactly("s", takes("21Gi"))])], NO),
        ("beside another claim", one(), vec![of(&[exactly("r", takes("10Gi"))]), held("30Gi")], ""),
        ("no room beside it", one(), vec![of(&[exactly("r", takes("10Gi"))]), held("31Gi")], NO),
        ("another claim has it alone", one(), vec![of(&[exactly("r", takes("1Gi"))]), alone()], NO),
        ("all of it", one(), vec![of(&[exactly("r", json!({}))]), held("1Gi")], NO),
        ("one request, two devices", one(), vec![of(&[exactly("r", pair.clone())])], NO),
        ("one request, two devices of two", two(), vec![of(&[exactly("r", pair)])], ""),
        ("each on its own", two(), vec![of(&[exactly("r", takes("30Gi")), exactly("s", takes("30Gi"))])], ""),
        ("two models", three(), vec![distinct(2)], ""),
        ("three models of two", three(), vec![distinct(3)], NO),
        ("no such capacity", one(), vec![of(&[exactly("r", json!({"capacity": {"requests": {"cores": "1"}}}))])], NO),
        (
            "a device for one alone",
            vec![on("a", json!([gpu("g0", "A", 0)]))],
            vec![of(&[exactly("r", takes("40Gi"))])],
            "",
        ),
        (
            "too little of one alone",
            vec![on("a", json!([gpu("g0", "A", 0)]))],
            vec![of(&[exactly("r", takes("41Gi"))])],
            NO,
        ),
    ] {
        let world = World::new(&slices, &claims);
        let said = world.answers(&sharing(), &user("p", &["c"]).info()).1[0].to_string();
        assert_eq!(said, want, "{what}");
    }
}

#[test]
fn what_is_taken_is_written_down() {
    let selected = json!({"capacity": {"requests": {"memory": "3Gi"}},
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}]});
    let c = claim("c", requests(&[exactly("r", selected.clone())]));
    let slices = [on("a", json!([gpu("g0", "A", 0), shared_gpu("g1")]))];
    let world = World::new(&slices, std::slice::from_ref(&c));
    let p = user("p", &["c"]).info();
    let (_, found) = world.reserve(&sharing(), &p, 0);
    let result = &found[0]["devices"]["results"][0];
    assert_eq!((&result["device"], &result["consumedCapacity"]), (&json!("g1"), &json!({"memory": "3Gi"})));
    assert_eq!(result["shareID"].as_str().map(str::len), Some(36));
    let off = World::new(&slices, &[c]).texts(&p);
    assert_eq!(
        off,
        ["claim default/c, request r: has capacity requests, but the DRAConsumableCapacity feature is disabled"]
    );
    let plain = World::new(&[on("a", json!([shared_gpu("g0")]))], &[claim("c", requests(&[exactly("r", json!({}))]))]);
    let (_, found) = plain.reserve(&plugin(), &p, 0);
    assert_eq!(found[0]["devices"]["results"][0]["shareID"], Value::Null, "without the gate a device is for one alone");
}

#[test]
fn tainted_devices_are_for_those_who_tolerate_it() {
    let tainted = |effect: &str| {
        let mut device = gpu("g0", "A", 0);
        device["taints"] = json!([{"key": "broken", "value": "fan", "effect": effect}]);
        device
    };
    let tolerating = |t: Value| requests(&[exactly("r", json!({"tolerations": [t]}))]);
    let none = || requests(&[exactly("r", json!({}))]);
    let with = DynamicResources { features: Features { device_taints: true, ..Features::default() }, ..plugin() };
    for (what, effect, wanted, want) in [
        ("kept away", "NoSchedule", none(), NO),
        ("kept away, too", "NoExecute", none(), NO),
        ("only told", "None", none(), ""),
        ("what nobody knows", "Later", none(), ""),
        ("tolerates all", "NoSchedule", tolerating(json!({"operator": "Exists"})), ""),
        (
            "tolerates another effect",
            "NoExecute",
            tolerating(json!({"operator": "Exists", "effect": "NoSchedule"})),
            NO,
        ),
        ("tolerates the value", "NoExecute", tolerating(json!({"key": "broken", "value": "fan"})), ""),
        ("tolerates another value", "NoExecute", tolerating(json!({"key": "broken", "value": "bus"})), NO),
        ("tolerates another key", "NoExecute", tolerating(json!({"key": "hot", "operator": "Exists"})), NO),
        (
            "all, one of them tainted",
            "NoSchedule",
            requests(&[exactly("r", json!({"allocationMode": "All", "count": null}))]),
            NO,
        ),
    ] {
        let slices = [on(
            "a",
            if what.starts_with("all") {
                json!([gpu("g1", "A", 0), tainted(effect)])
            } else {
                json!([tainted(effect)])
            },
        )];
        let world = World::new(&slices, &[claim("c", wanted)]);
        let said = world.answers(&with, &user("p", &["c"]).info()).1[0].to_string();
        assert_eq!(said, want, "{what}");
    }
    let world =
        World::new(&[on("a", json!([tainted("NoExecute")]))], &[claim("c", tolerating(json!({"operator": "Exists"})))]);
    let p = user("p", &["c"]).info();
    let (_, found) = world.reserve(&with, &p, 0);
    assert_eq!(found[0]["devices"]["results"][0]["tolerations"], json!([{"operator": "Exists"}]));
    let bare = World::new(&[on("a", json!([tainted("NoExecute")]))], &[claim("c", none())]);
    assert_eq!(bare.texts(&p)[0], "", "without the gate taints are nothing");
}
