//! Tests of how devices are counted, given and placed.

use super::*;
use serde_json::{Value, json};

const GPU: &str = "vendor.test/gpu";

fn state(devices: &[(&str, bool)]) -> State {
    let devices = devices
        .iter()
        .map(|(id, is_healthy)| ((*id).to_owned(), Device { is_healthy: *is_healthy, ..Device::default() }));
    let mut state = State::default();
    state.update(GPU, devices.collect());
    state
}

fn pod(uid: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec})).expect("a pod")
}

fn container(name: &str, number: u32) -> Value {
    json!({"name": name, "resources": {"limits": {GPU: number.to_string(), "cpu": "1", "foreign.test/x": "1"}}})
}

/// Gives every container of a pod what it wants; the devices that each has, or the first error.
fn allocate(state: &mut State, pod: &Pod) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut given = Vec::new();
    for (container, _) in pods::by_start(pod) {
        for (resource, number) in state.wanted(pod, container) {
            let choices = state.choices(pod, (&container.name, &resource, number), None);
            let ids = choices.map_err(|error| error.to_string())?.pick(&[]);
            state.take(&(pods::uid(pod).to_owned(), container.name.clone(), resource), &ids);
            given.push((container.name.clone(), ids));
        }
    }
    Ok(given)
}

#[test]
fn devices_are_given_once_and_come_back() {
    let mut state = state(&[("a", true), ("b", true), ("c", false), ("d", true)]);
    let two = |uid: &str| pod(uid, json!({"containers": [container("c", 2)]}));
    let given = allocate(&mut state, &two("u")).expect("devices");
    assert_eq!(given, [("c".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    assert_eq!(allocate(&mut state, &two("u")), Ok(Vec::new()), "it has them");
    let short = format!("requested number of devices unavailable for {GPU}. Requested: 2, Available: 1");
    assert_eq!(allocate(&mut state, &two("v")), Err(short));
    assert!(state.retain(|uid| uid != "u") && !state.retain(|_| true));
    assert_eq!(allocate(&mut state, &two("v")).expect("devices")[0].1, ["a", "b"]);
}

#[test]
fn init_containers_pass_their_devices_on_and_sidecars_keep_theirs() {
    let mut state = state(&[("a", true), ("b", true), ("c", true)]);
    let sidecar = json!({"name": "side", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}});
    let spec = json!({"initContainers": [container("first", 1), container("second", 2), sidecar],
        "containers": [container("one", 1), container("two", 1)]});
    let given = allocate(&mut state, &pod("u", spec)).expect("three are enough");
    let ids = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
    let expected = [
        ("first".to_owned(), ids(&["a"])),
        ("second".to_owned(), ids(&["a", "b"])),
        ("side".to_owned(), ids(&["a"])),
        ("one".to_owned(), ids(&["b"])),
        ("two".to_owned(), ids(&["c"])),
    ];
    assert_eq!(given, expected);
}

#[test]
fn devices_that_are_ill_or_gone_are_given_to_nobody() {
    let one = pod("u", json!({"containers": [container("c", 1)]}));
    let ill = format!("no healthy devices present; cannot allocate unhealthy devices {GPU}");
    assert_eq!(allocate(&mut state(&[("a", false)]), &one), Err(ill.clone()));
    let mut away = state(&[("a", true)]);
    away.fail(GPU);
    assert_eq!(allocate(&mut away, &one), Err(ill));
    assert_eq!(away.counts()[GPU], Count { capacity: 1, allocatable: 0 });
    assert!(away.update(GPU, BTreeMap::new()));
    assert_eq!(allocate(&mut away, &one), Err(format!("cannot allocate unregistered device {GPU}")));
    assert_eq!(allocate(&mut State::default(), &one), Ok(Vec::new()), "nobody's devices are not the kubelet's");
}

#[test]
fn plugins_choose_among_what_is_free() {
    let choices = |own: &[&str], needed| Choices {
        own: own.iter().map(|id| (*id).to_owned()).collect(),
        free: ["a", "b", "c"].map(str::to_owned).to_vec(),
        needed,
    };
    let preferred = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
    assert_eq!(choices(&[], 2).pick(&preferred(&["c", "b"])), ["c", "b"]);
    assert_eq!(choices(&[], 2).pick(&preferred(&["x", "c", "c"])), ["c", "a"]);
    assert_eq!(choices(&["o"], 1).pick(&preferred(&["b", "a"])), ["o", "b"]);
    assert_eq!(choices(&["o"], 0).pick(&preferred(&["b"])), ["o"]);
}

#[test]
fn pods_tell_of_devices_that_are_ill() {
    let device = |health: &str| Device::from(&api::Device { health: health.to_owned(), ..Default::default() });
    let list = |healths: [(&str, &str); 3]| -> BTreeMap<String, Device> {
        healths.into_iter().map(|(id, health)| (id.to_owned(), device(health))).collect()
    };
    let mut state = State::default();
    let owner = |uid: &str| (uid.to_owned(), "c".to_owned(), "r".to_owned());
    state.update("r", list([("a", HEALTHY), ("b", HEALTHY), ("c", HEALTHY)]));
    state.take(&owner("u"), &["a".to_owned(), "b".to_owned()]);
    state.take(&owner("v"), &["c".to_owned()]);
    let ill = list([("a", HEALTHY), ("b", "Unhealthy"), ("c", HEALTHY)]);
    assert_eq!(state.pods_told_of("r", &ill), BTreeSet::from(["u".to_owned()]));
    state.update("r", ill.clone());
    assert_eq!(state.pods_told_of("r", &ill), BTreeSet::new(), "nothing is another");
    let expected = |healths: &[(&str, &str)]| {
        let devices = healths.iter().map(|(id, health)| health_of(id, health)).collect();
        ResourceHealths::from([("r".to_owned(), devices)])
    };
    assert_eq!(state.health("u", "c"), expected(&[("a", HEALTHY), ("b", "Unhealthy")]));
    // A plugin that is away has told nothing of them.
    state.fail("r");
    assert_eq!(state.health("v", "c"), expected(&[("c", HEALTHY)]));
    state.update("r", BTreeMap::new());
    assert_eq!(state.health("u", "c"), expected(&[("a", HEALTHY), ("b", HEALTHY)]));
    let back = list([("a", HEALTHY), ("b", HEALTHY), ("x", HEALTHY)]);
    assert_eq!(state.pods_told_of("r", &back), BTreeSet::from(["u".to_owned()]), "it has been away");
    assert_eq!(state.health("u", "other"), ResourceHealths::new());
}

#[test]
fn devices_are_written_down_by_numa_node() {
    let near = |nodes: &[i64]| Device { is_healthy: true, nodes: nodes.to_vec(), is_told_ill: false };
    let mut state = State::default();
    let devices = [("a", near(&[0])), ("b", near(&[0, 1])), ("c", near(&[]))];
    state.update(GPU, devices.map(|(id, device)| (id.to_owned(), device)).into());
    let owner = ("u".to_owned(), "c".to_owned(), GPU.to_owned());
    state.take(&owner, &["a", "b", "c"].map(str::to_owned));
    let expected = [(-1, vec!["c"]), (0, vec!["a", "b"]), (1, vec!["b"])];
    let by_node = &state.allocations[&owner].by_node;
    let found: Vec<(i64, Vec<&str>)> =
        by_node.iter().map(|(node, ids)| (*node, ids.iter().map(String::as_str).collect())).collect();
    assert_eq!(found, expected);
    assert_eq!(state.allocations[&owner].ids().len(), 3);
}

/// Devices with the NUMA nodes that they are near.
fn placed(devices: &[(&str, &[i64])]) -> State {
    let devices = devices
        .iter()
        .map(|(id, nodes)| ((*id).to_owned(), Device { is_healthy: true, nodes: nodes.to_vec(), is_told_ill: false }));
    let mut state = State::default();
    state.update(GPU, devices.collect());
    state
}

fn told(hints: &Hints) -> String {
    let list = |hint: &Hint| {
        let nodes: Vec<String> = hint.affinity.iter().flat_map(|mask| mask.nodes()).map(|id| id.to_string()).collect();
        format!("{}{}", nodes.join("+"), if hint.preferred { "!" } else { "" })
    };
    hints[GPU].as_ref().map_or_else(|| "anywhere".to_owned(), |all| all.iter().map(list).collect::<Vec<_>>().join(" "))
}

#[test]
fn placements_of_devices_are_told() {
    let hints = |state: &State, uid: &str, number: u32| {
        let pod = pod(uid, json!({"containers": [container("c", number)]}));
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        let hints = state.hints(&[0, 1], &pod, container);
        assert_eq!(state.pod_hints(&[0, 1], &pod), hints);
        told(&hints)
    };
    let state = placed(&[("a", &[0]), ("b", &[0]), ("c", &[1]), ("d", &[0, 1])]);
    for (number, expected) in [(1, "0! 1! 0+1"), (3, "0! 0+1"), (4, "0+1!"), (5, "")] {
        assert_eq!(hints(&state, "u", number), expected, "{number}");
    }
    assert_eq!(hints(&placed(&[("a", &[]), ("b", &[])]), "u", 1), "anywhere");
    let mut used = state.clone();
    used.take(&("u".into(), "c".into(), GPU.into()), &["a".into(), "b".into()]);
    assert_eq!(hints(&used, "u", 2), "0! 0+1", "it has them");
    assert_eq!(hints(&used, "u", 1), "", "it has others");
    assert_eq!(hints(&used, "v", 2), "1! 0+1");
    assert_eq!(hints(&used, "v", 3), "", "two are left");
}

#[test]
fn devices_near_the_placement_come_first() {
    let state = placed(&[("a", &[1]), ("b", &[0]), ("c", &[]), ("d", &[1]), ("e", &[0, 1])]);
    let pod = pod("u", json!({"containers": [container("c", 1)]}));
    let near = Some([1].into_iter().collect());
    let choices = |number, near| state.choices(&pod, ("c", GPU, number), near).expect("enough");
    let ids = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>();
    assert_eq!(choices(2, near), Choices { own: vec![], free: ids(&["a", "d", "e"]), needed: 2 });
    assert_eq!(choices(4, near), Choices { own: ids(&["a", "d", "e"]), free: ids(&["b", "c"]), needed: 1 });
    assert_eq!(choices(4, near).pick(&ids(&["c"])), ["a", "d", "e", "c"], "the plugin chooses the rest");
    assert_eq!(choices(1, None).free.len(), 5);
}
