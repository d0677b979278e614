//! Bounds of a search: its time, and the stack that it needs.

use std::collections::HashSet;

use super::*;

#[test]
fn very_many_claims_need_no_deep_stack() {
    let names: Vec<String> = (0..3000).map(|n| format!("c{n}")).collect();
    let devices: Vec<Value> = (0..3000).map(|n| json!({"name": format!("g{n}")})).collect();
    let mut claims: Vec<Value> = names.iter().map(|n| claim(n, requests(&[exactly("r", json!({}))]))).collect();
    claims.push(claim("empty", json!({})));
    let world = World::new(&[on("a", json!(devices))], &claims);
    let mut entries: Vec<&str> = names.iter().map(String::as_str).collect();
    entries.extend(std::iter::repeat_n("empty", 30_000));
    let small = std::thread::Builder::new().stack_size(256 * 1024);
    let search =
        move || world.answers(&plugin(), &user("p", &entries.iter().map(|n| &**n).collect::<Vec<_>>()).info()).1;
    let said =
        std::thread::scope(|scope| small.spawn_scoped(scope, search).expect("a thread").join().expect("an answer"));
    assert!(said[0].is_success(), "{}", said[0]);
    assert_eq!(said[1].to_string(), NO);
}

#[test]
fn slow_selectors_end_with_the_time_for_a_node() {
    let ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]";
    let slow = format!("{ten}.all(a, {ten}.all(b, {ten}.all(c, a + b + c < 100))) && device.driver == 'other'");
    let devices: Vec<Value> =
        (0..2000).map(|i| json!({"name": format!("g{i}"), "attributes": {"n": {"int": i}}})).collect();
    for mode in ["ExactCount", "All"] {
        let wanted = json!({"selectors": [{"cel": {"expression": slow}}], "allocationMode": mode});
        let world = World::new(&[on("a", json!(devices))], &[claim("c", requests(&[exactly("r", wanted)]))]);
        let hasty = DynamicResources { timeout: Some(std::time::Duration::from_millis(5)), ..plugin() };
        let ((_, all), took) = shared::run::measured(|| world.answers(&hasty, &user("p", &["c"]).info()));
        assert_eq!(all[0].to_string(), "timed out trying to allocate devices");
        assert!(took < std::time::Duration::from_millis(500), "{mode}: {took:?}");
    }
}

#[test]
fn a_search_without_end_is_cut_off() {
    // 20 devices of 20 kinds, 10 wanted of one model that none share: more orders than anybody can try.
    let devices: Vec<Value> = (0..20)
        .map(|i| json!({"name": format!("g{i}"), "attributes": {"n": {"int": i}, "half": {"bool": i % 2 == 0}}}))
        .collect();
    let devices_wanted = json!({"requests": [exactly("r", json!({"count": 10})), exactly("s", json!({"count": 1}))],
        "constraints": [{"matchAttribute": "gpu.example.com/half", "requests": ["r"]}, {"matchAttribute": "gpu.example.com/nope", "requests": ["s"]}]});
    let world = World::new(&[on("a", json!(devices))], &[claim("c", devices_wanted)]);
    let hasty = DynamicResources { timeout: Some(std::time::Duration::from_millis(20)), ..plugin() };
    let (_, all) = world.answers(&hasty, &user("p", &["c"]).info());
    let said: HashSet<String> = all.iter().map(ToString::to_string).collect();
    assert!(said.contains("timed out trying to allocate devices"), "{said:?}");
}
