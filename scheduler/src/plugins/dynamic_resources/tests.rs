//! Claims against devices: each documented rule a row.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::diagnosis::Rejected;
use crate::framework::lister::Fixed;
use crate::framework::plugin::{Filter, PostFilter, PreBind, PreEnqueue, PreFilter, Requeue, Reserve, Score};
use crate::framework::{
    ClusterEvent, Code, Context, CycleState, Delta, ExternalChange, Features, Hint, Nominated, Profile, ProfileConfig,
    Status,
};
use crate::model::{NodeInfo, PodInfo, Snapshot};
use crate::testing::{PodBuilder, node, pod};

use super::{DynamicResources, claims};

mod conditions;
mod extended;
mod limits;
mod partitions;
mod sharing;

const NO: &str = "cannot allocate all claims";

fn plugin() -> DynamicResources {
    DynamicResources {
        selectors: Default::default(),
        timeout: None,
        binding_timeout: std::time::Duration::from_secs(600),
        pause: std::time::Duration::from_millis(1),
        features: Features::default(),
    }
}

fn user(name: &str, claims: &[&str]) -> PodBuilder {
    let entries: Vec<Value> = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect();
    pod(name).set("/spec", "resourceClaims", json!(entries))
}

fn claim(name: &str, devices: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"devices": devices}})
}

fn exactly(name: &str, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    for (k, v) in more.as_object().into_iter().flatten() {
        exactly[k] = v.clone();
    }
    json!({"name": name, "exactly": exactly})
}

fn gpu(name: &str, model: &str, numa: i64) -> Value {
    json!({"name": name, "attributes": {"model": {"string": model}, "numa": {"int": numa}}, "capacity": {"memory": {"value": "40Gi"}}})
}

fn slice(name: &str, reach: Value, devices: Value) -> Value {
    let mut spec = json!({"driver": "gpu.example.com", "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices});
    for (k, v) in reach.as_object().into_iter().flatten() {
        spec[k] = v.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn on(node: &str, devices: Value) -> Value {
    slice(node, json!({"nodeName": node}), devices)
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"))
}

struct World {
    listers: Fixed,
    nodes: Vec<Arc<NodeInfo>>,
}

impl World {
    fn new(slices: &[Value], claims: &[Value]) -> Self {
        let mut listers = Fixed::default();
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
            "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"mode": "class"}}}]}});
        listers.device_classes.insert("gpu".into(), Arc::new(read(&class)));
        listers.slices = slices.iter().map(|s| Arc::new(read(s))).collect();
        for c in claims {
            listers.add_resource_claim(read(c));
        }
        let nodes = ["a", "b"].map(|n| node(n).label("zone", n).with(&[])).to_vec();
        Self { listers, nodes }
    }

    fn cycle<T>(&self, act: impl FnOnce(Context<'_>) -> T) -> T {
        let (snapshot, nominated) = (Snapshot::of(self.nodes.clone()), Nominated::default());
        let now = jiff::Timestamp::UNIX_EPOCH;
        act(Context { snapshot: &snapshot, listers: &self.listers, nominated: &nominated, now })
    }

    /// Returns the answer of each node, or of PreFilter for all.
    fn answers(&self, plugin: &DynamicResources, pod: &PodInfo) -> (CycleState, Vec<Status>) {
        self.cycle(|cx| {
            let mut state = CycleState::default();
            match plugin.pre_filter(cx, &mut state, pod) {
                Err(status) => (state, vec![status]),
                Ok(_) => {
                    let all = self.nodes.iter().map(|n| plugin.filter(cx, &state, pod, n).by(super::NAME)).collect();
                    (state, all)
                }
            }
        })
    }

    fn texts(&self, pod: &PodInfo) -> Vec<String> {
        self.answers(&plugin(), pod).1.iter().map(ToString::to_string).collect()
    }

    /// Reserves on a node; the allocations, claim by claim.
    fn reserve(&self, plugin: &DynamicResources, pod: &PodInfo, node: usize) -> (CycleState, Vec<Value>) {
        let (mut state, _) = self.answers(plugin, pod);
        let status = self.cycle(|cx| plugin.reserve(cx, &mut state, pod, &self.nodes[node]));
        assert!(status.is_success(), "{status}");
        let notes = state.get::<super::CycleClaims>().expect("notes");
        let found = notes.later.lock().allocations.values().map(|a| serde_json::to_value(a).expect("value")).collect();
        (state, found)
    }

    fn devices(&self, pod: &PodInfo, node: usize) -> Vec<String> {
        let (_, found) = self.reserve(&plugin(), pod, node);
        let results = found.iter().flat_map(|a| a["devices"]["results"].as_array().cloned().unwrap_or_default());
        results
            .map(|r| format!("{}={}", r["request"].as_str().unwrap_or(""), r["device"].as_str().unwrap_or("")))
            .collect()
    }
}

fn requests(list: &[Value]) -> Value {
    json!({"requests": list})
}

#[test]
fn where_claims_can_be_allocated() {
    let two = json!([gpu("g0", "A100", 0), gpu("g1", "H100", 1)]);
    let mut updating = on("a", two.clone());
    updating["spec"]["pool"]["resourceSliceCount"] = json!(2);
    let selector = |e: &str| json!({"selectors": [{"cel": {"expression": e}}]});
    for (what, slices, devices, want) in [
        ("one device", vec![on("a", two.clone())], requests(&[exactly("r", json!({}))]), ["", NO]),
        ("two devices", vec![on("a", two.clone())], requests(&[exactly("r", json!({"count": 2}))]), ["", NO]),
        ("too many", vec![on("a", two.clone())], requests(&[exactly("r", json!({"count": 3}))]), [NO, NO]),
        (
            "two requests share no device",
            vec![on("a", json!([gpu("g0", "A100", 0)]))],
            requests(&[exactly("r", json!({})), exactly("s", json!({}))]),
            [NO, NO],
        ),
        (
            "selected",
            vec![on("a", two.clone()), on("b", json!([gpu("g0", "A100", 0)]))],
            requests(&[exactly("r", selector("device.attributes['gpu.example.com'].model == 'H100'"))]),
            ["", NO],
        ),
        (
            "everywhere",
            vec![slice("net", json!({"allNodes": true}), two.clone())],
            requests(&[exactly("r", json!({}))]),
            ["", ""],
        ),
        (
            "by node label",
            vec![slice(
                "net",
                json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}),
                two.clone(),
            )],
            requests(&[exactly("r", json!({}))]),
            [NO, ""],
        ),
        (
            "all of them",
            vec![on("a", two.clone())],
            requests(&[exactly("r", json!({"allocationMode": "All", "count": null}))]),
            ["", NO],
        ),
        (
            "same model wanted, none have it",
            vec![on("a", two.clone())],
            json!({"requests": [exactly("r", json!({"count": 2}))], "constraints": [{"matchAttribute": "gpu.example.com/model"}]}),
            [NO, NO],
        ),
        (
            "same model",
            vec![
                on("a", two.clone()),
                on("b", json!([gpu("g0", "A100", 0), gpu("g1", "H100", 1), gpu("g2", "H100", 0)])),
            ],
            json!({"requests": [exactly("r", json!({"count": 2}))], "constraints": [{"matchAttribute": "gpu.example.com/model"}]}),
            [NO, ""],
        ),
        (
            "a constraint on other requests",
            vec![on("a", two.clone())],
            json!({"requests": [exactly("r", json!({"count": 2}))], "constraints": [{"matchAttribute": "gpu.example.com/model", "requests": ["other"]}]}),
            ["", NO],
        ),
        (
            "an attribute nobody has",
            vec![on("a", two.clone())],
            json!({"requests": [exactly("r", json!({}))], "constraints": [{"matchAttribute": "gpu.example.com/nope"}]}),
            [NO, NO],
        ),
        (
            "the second choice",
            vec![on("a", two.clone())],
            requests(&[json!({"name": "r", "firstAvailable": [
                {"name": "many", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 8},
                {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]})]),
            ["", NO],
        ),
        (
            "an unfinished pool is no place for all",
            vec![{
                let mut s = on("a", two.clone());
                s["spec"]["pool"]["resourceSliceCount"] = json!(2);
                s
            }],
            requests(&[exactly("r", json!({"allocationMode": "All", "count": null}))]),
            [
                "claim default/c, request r: asks for all devices, but resource pool gpu.example.com/a is currently being updated",
                NO,
            ],
        ),
        (
            "a pool that contradicts itself",
            vec![on("a", json!([gpu("g0", "A100", 0), gpu("g0", "A100", 0)]))],
            requests(&[exactly("r", json!({}))]),
            ["invalid resource pools were encountered", NO],
        ),
        (
            "a pool that contradicts itself beside one that does not",
            vec![
                slice("bad", json!({"nodeName": "a"}), json!([gpu("g0", "A100", 0), gpu("g0", "A100", 0)])),
                slice("good", json!({"nodeName": "a"}), json!([gpu("g0", "A100", 0)])),
            ],
            requests(&[exactly("r", json!({}))]),
            ["", NO],
        ),
        ("a pool that is being updated", vec![updating], requests(&[exactly("r", json!({}))]), [NO, NO]),
        (
            "devices of shared counters are switched off",
            vec![on("a", json!([{"name": "p", "consumesCounters": [{"counterSet": "s", "counters": {}}]}]))],
            requests(&[exactly("r", json!({}))]),
            [NO, NO],
        ),
    ] {
        let world = World::new(&slices, &[claim("c", devices)]);
        assert_eq!(world.texts(&user("p", &["c"]).info()), want, "{what}");
    }
}

#[test]
fn only_the_newest_generation_counts() {
    let mut old = on("a", json!([gpu("g0", "A100", 0), gpu("g1", "A100", 0)]));
    old["metadata"]["name"] = json!("old");
    let mut new = on("a", json!([gpu("g0", "A100", 0)]));
    new["spec"]["pool"]["generation"] = json!(2);
    let world = World::new(&[old, new], &[claim("c", requests(&[exactly("r", json!({"count": 2}))]))]);
    assert_eq!(world.texts(&user("p", &["c"]).info()), [NO, NO]);
}

#[test]
fn devices_in_use_are_left_alone() {
    let allocated = |device: &str, admin: bool| {
        let mut c = claim("other", requests(&[exactly("r", json!({}))]));
        let result =
            json!({"request": "r", "driver": "gpu.example.com", "pool": "a", "device": device, "adminAccess": admin});
        c["status"] = json!({"allocation": {"devices": {"results": [result]}}});
        c
    };
    let slices = [on("a", json!([gpu("g0", "A100", 0)]))];
    let mine = claim("c", requests(&[exactly("r", json!({}))]));
    let admin = claim("c", requests(&[exactly("r", json!({"adminAccess": true}))]));
    for (what, claims, want) in [
        ("free", vec![mine.clone()], ""),
        ("in use", vec![mine.clone(), allocated("g0", false)], NO),
        ("looked into by an administrator", vec![mine.clone(), allocated("g0", true)], ""),
        ("administrators look into any", vec![admin, allocated("g0", false)], ""),
    ] {
        assert_eq!(World::new(&slices, &claims).texts(&user("p", &["c"]).info())[0], want, "{what}");
    }
}

#[test]
fn what_keeps_a_pod_from_every_node() {
    let slices = [on("a", json!([gpu("g0", "A100", 0)]))];
    let of = |devices: Value| claim("c", devices);
    let mut going = of(requests(&[]));
    going["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    let mut classless = exactly("r", json!({}));
    classless["exactly"]["deviceClassName"] = json!("tpu");
    let generated = |status: Value| {
        pod("p")
            .set("/spec", "resourceClaims", json!([{"name": "x", "resourceClaimTemplateName": "t"}]))
            .set("/status", "resourceClaimStatuses", status)
            .info()
    };
    let named = user("p", &["c"]).info();
    for (what, claims, pod, want) in [
        ("no such claim", vec![], named.clone(), "could not find resource claim \"default/c\""),
        ("a claim that goes", vec![going], named.clone(), "resourceclaim \"c\" is being deleted"),
        (
            "no such class",
            vec![of(requests(&[classless]))],
            named.clone(),
            "request r: device class tpu does not exist",
        ),
        (
            "an empty request",
            vec![of(requests(&[json!({"name": "r"})]))],
            named.clone(),
            "resource claim default/c, request r: unknown request type",
        ),
        ("not made yet", vec![], generated(json!([])), "pod \"default/p\": ResourceClaim not created yet"),
        (
            "made for another pod",
            vec![of(requests(&[]))],
            generated(json!([{"name": "x", "resourceClaimName": "c"}])),
            "ResourceClaim default/c was not created for pod default/p (pod is not owner)",
        ),
        (
            "a constraint of an unknown kind",
            vec![of(json!({"constraints": [{}]}))],
            named.clone(),
            "claim default/c, constraint #0: empty constraint (unsupported constraint type?)",
        ),
        (
            "a selector that is none",
            vec![of(requests(&[exactly("r", json!({"selectors": [{}]}))]))],
            named.clone(),
            "claim default/c, request r, selector #0: CEL expression empty (unsupported selector type?)",
        ),
    ] {
        assert_eq!(World::new(&slices, &claims).texts(&pod), [want], "{what}");
    }
    let none_needed = generated(json!([{"name": "x"}]));
    let (_, all) = World::new(&slices, &[]).answers(&plugin(), &none_needed);
    assert!(all[0].is_skip());
    assert!(plugin().pre_enqueue(None, &none_needed).is_success());
    assert_eq!(
        plugin().pre_enqueue(None, &generated(json!([]))).to_string(),
        "pod \"default/p\": ResourceClaim not created yet"
    );
    let world = World::new(&slices, &[claim("c", json!({}))]);
    assert!(plugin().pre_enqueue(Some(&world.listers), &user("p", &["c"]).info()).is_success());
    assert_eq!(
        plugin().pre_enqueue(Some(&world.listers), &user("p", &["d"]).info()).to_string(),
        "could not find resource claim \"default/d\""
    );
}

#[test]
fn broken_selectors() {
    let slices = [on("a", json!([gpu("g0", "A100", 0)]))];
    let with = |e: &str| claim("c", requests(&[exactly("r", json!({"selectors": [{"cel": {"expression": e}}]}))]));
    let (_, all) = World::new(&slices, &[with("device.attributes[")]).answers(&plugin(), &user("p", &["c"]).info());
    assert_eq!(all[0].code(), Code::Error);
    assert!(all[0].to_string().starts_with("claim default/c: selector #0: CEL compile error: "), "{}", all[0]);
    let run = with("device.attributes['gpu.example.com'].nope == 1");
    let (_, all) = World::new(&slices, &[run]).answers(&plugin(), &user("p", &["c"]).info());
    assert_eq!(all[0].code(), Code::UnschedulableAndUnresolvable);
    assert!(all[0].to_string().starts_with("claim default/c: selector #0: CEL runtime error: "), "{}", all[0]);
}

#[test]
fn which_devices() {
    let four = json!([gpu("g0", "A100", 0), gpu("g1", "A100", 1), gpu("g2", "H100", 1), gpu("g3", "H100", 1)]);
    let p = user("p", &["c"]).info();
    for (what, devices, want) in [
        ("the first that fits", requests(&[exactly("r", json!({}))]), vec!["r=g0"]),
        (
            "each its own",
            requests(&[exactly("r", json!({})), exactly("s", json!({"count": 2}))]),
            vec!["r=g0", "s=g1", "s=g2"],
        ),
        ("all", requests(&[exactly("r", json!({"allocationMode": "All"}))]), vec!["r=g0", "r=g1", "r=g2", "r=g3"]),
        (
            "two that share two attributes",
            json!({"requests": [exactly("r", json!({"count": 2}))],
                "constraints": [{"matchAttribute": "gpu.example.com/model"}, {"matchAttribute": "gpu.example.com/numa"}]}),
            vec!["r=g2", "r=g3"],
        ),
        (
            "the second choice, named as such",
            requests(&[json!({"name": "r", "firstAvailable": [
                {"name": "b200", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
                    "selectors": [{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'B200'"}}]},
                {"name": "h100", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1,
                    "selectors": [{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'H100'"}}]}]})]),
            vec!["r/h100=g2"],
        ),
    ] {
        assert_eq!(World::new(&[on("a", four.clone())], &[claim("c", devices)]).devices(&p, 0), want, "{what}");
    }
}

#[test]
fn what_is_written() {
    let devices = json!({"requests": [exactly("r", json!({"adminAccess": true}))],
        "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"mode": "all"}}},
            {"requests": ["r"], "opaque": {"driver": "gpu.example.com", "parameters": {"mode": "r"}}},
            {"requests": ["s"], "opaque": {"driver": "gpu.example.com", "parameters": {"mode": "s"}}}]});
    let world = World::new(&[on("a", json!([gpu("g0", "A100", 0)]))], &[claim("c", devices)]);
    let (_, found) = world.reserve(&plugin(), &user("p", &["c"]).info(), 0);
    let opaque = |mode: &str| json!({"driver": "gpu.example.com", "parameters": {"mode": mode}});
    assert_eq!(
        found,
        [json!({
            "devices": {
                "results": [{"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "g0", "adminAccess": true}],
                "config": [{"source": "FromClass", "requests": ["r"], "opaque": opaque("class")}, {"source": "FromClaim", "opaque": opaque("all")},
                    {"source": "FromClaim", "requests": ["r"], "opaque": opaque("r")}],
            },
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]},
        })]
    );
    // Devices that some nodes reach limit the claim to those; devices that all reach do not.
    let zone =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]});
    for (reach, want) in [(json!({"nodeSelector": zone}), zone.clone()), (json!({"allNodes": true}), Value::Null)] {
        let world = World::new(
            &[slice("net", reach, json!([gpu("g0", "A100", 0)]))],
            &[claim("c", requests(&[exactly("r", json!({}))]))],
        );
        let (_, found) = world.reserve(&plugin(), &user("p", &["c"]).info(), 0);
        assert_eq!(found[0].get("nodeSelector").cloned().unwrap_or_default(), want);
    }
}

#[test]
fn configuration_of_a_class_names_the_requests_of_that_class() {
    let class = |name: &str| exactly(name, json!({}));
    let other = exactly("o", json!({"deviceClassName": "other"}));
    let claim = claim("c", requests(&[class("r"), other, class("s")]));
    let devices = json!([gpu("g0", "A100", 0), gpu("g1", "A100", 0), gpu("g2", "A100", 0)]);
    let mut world = World::new(&[on("a", devices)], &[claim]);
    let config = json!([{"opaque": {"driver": "gpu.example.com", "parameters": {"mode": "other"}}}]);
    let second = json!({"metadata": {"name": "other"}, "spec": {"config": config}});
    world.listers.device_classes.insert("other".into(), Arc::new(read(&second)));
    let (_, found) = world.reserve(&plugin(), &user("p", &["c"]).info(), 0);
    let requests: Vec<&Value> =
        found[0]["devices"]["config"].as_array().expect("list").iter().map(|c| &c["requests"]).collect();
    assert_eq!(requests, [&json!(["r", "s"]), &json!(["o"])]);
}

#[test]
fn earlier_choices_are_liked_better() {
    let choice = json!({"name": "r", "firstAvailable": [
        {"name": "two", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
        {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]});
    let slices = [on("a", json!([gpu("g0", "A100", 0)])), on("b", json!([gpu("g0", "A100", 0), gpu("g1", "A100", 0)]))];
    let world = World::new(&slices, &[claim("c", requests(&[choice]))]);
    let (it, p) = (plugin(), user("p", &["c"]).info());
    let (state, _) = world.answers(&it, &p);
    let mut scores: Vec<i64> = world.cycle(|cx| world.nodes.iter().map(|n| it.score(cx, &state, &p, n)).collect());
    assert_eq!(scores, [7, 8]);
    it.normalize(&mut scores);
    assert_eq!(scores, [87, 100]);
}

#[test]
fn promises() {
    let slices = [on("a", json!([gpu("g0", "A100", 0)]))];
    let one = |name: &str| claim(name, requests(&[exactly("r", json!({}))]));
    let world = World::new(&slices, &[one("c"), one("d")]);
    let (it, first, second) = (plugin(), user("p", &["c"]).info(), user("q", &["d"]).info());
    let (mut state, _) = world.reserve(&it, &first, 0);
    assert_eq!(world.texts(&second), [NO, NO], "promised devices are in use");
    assert_eq!(
        world.texts(&user("r", &["c"]).info()),
        ["resource claim default/c is in the process of being allocated"]
    );
    it.unreserve(&mut state, &first, "a");
    it.unreserve(&mut state, &first, "a");
    assert_eq!(world.texts(&second), ["", NO], "a promise that is withdrawn frees them");
}

#[test]
fn claims_that_are_allocated_limit_the_nodes_and_are_freed_when_idle() {
    let allocated = |users: Value| {
        let mut c = claim("c", requests(&[exactly("r", json!({}))]));
        let only_a = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]});
        c["status"] = json!({"allocation": {"devices": {"results": []}, "nodeSelector": only_a}, "reservedFor": users});
        c
    };
    let by = |uid: &str| json!([{"resource": "pods", "name": "x", "uid": uid}]);
    for (what, users, want) in [
        ("nobody uses it", json!([]), "deallocation of ResourceClaim completed"),
        ("only the pod itself", by("uid-p"), "deallocation of ResourceClaim completed"),
        ("somebody else", by("uid-other"), "still not schedulable"),
    ] {
        let world = World::new(&[], &[allocated(users)]);
        let (it, p) = (plugin(), user("p", &["c"]).info());
        let (state, all) = world.answers(&it, &p);
        let said: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["", "resourceclaim not available on the node"], "{what}");
        let mut rejected = Rejected::default();
        rejected.push(1, all[1].clone());
        let profile = Profile::build(&ProfileConfig::default()).expect("profile");
        let (_, status) = world.cycle(|cx| it.post_filter(cx, &profile, &state, &p, &rejected));
        assert_eq!(status.to_string(), want, "{what}");
        assert_eq!(it.acts(&state), want.starts_with("dealloc"), "{what}");
    }
}

/// Writes go through, but for conflicts as many as asked for.
#[derive(Default)]
struct Server {
    stored: Mutex<Vec<ResourceClaim>>,
    calls: Mutex<Vec<String>>,
    conflicts: Mutex<u32>,
}

#[async_trait]
impl Api for Server {
    async fn bind(&self, _: &PodInfo, _: &str) -> Result<(), ApiError> {
        Ok(())
    }
    async fn node_of(&self, _: &PodInfo) -> Result<Option<String>, ApiError> {
        Ok(None)
    }

    async fn patch_status(&self, _: &PodInfo, patch: Value) -> Result<(), ApiError> {
        self.calls.lock().push(format!("patch {patch}"));
        Ok(())
    }
    async fn delete(&self, _: &PodInfo) -> Result<(), ApiError> {
        Ok(())
    }
    async fn update_claim(&self, _: &PersistentVolumeClaim) -> Result<(), ApiError> {
        Ok(())
    }
    async fn update_volume(&self, _: &PersistentVolume) -> Result<(), ApiError> {
        Ok(())
    }
    async fn claims_bound(
        &self,
        _: &PodInfo,
        _: &[AwaitedClaim],
        _: &str,
        _: std::time::Duration,
    ) -> Result<(), ApiError> {
        Ok(())
    }
    async fn resource_claim(&self, _: &str, name: &str) -> Result<ResourceClaim, ApiError> {
        self.calls.lock().push(format!("get {name}"));
        let found = self.stored.lock().iter().find(|c| claims::name(c) == name).cloned();
        found.ok_or(ApiError { code: 404, message: "not found".into() })
    }
    async fn update_resource_claim(&self, claim: &ResourceClaim, status: bool) -> Result<ResourceClaim, ApiError> {
        let what = if status { "status" } else { "claim" };
        self.calls.lock().push(format!("update {what} {}", claims::name(claim)));
        let mut conflicts = self.conflicts.lock();
        if status && *conflicts > 0 {
            *conflicts -= 1;
            return Err(ApiError { code: 409, message: "conflict".into() });
        }
        Ok(claim.clone())
    }
    async fn create_resource_claim(&self, claim: &ResourceClaim) -> Result<ResourceClaim, ApiError> {
        assert_eq!((&claim.metadata.name, &claim.metadata.uid, &claim.status), (&None, &None, &None));
        let prefix = claim.metadata.generate_name.as_deref().unwrap_or_default();
        self.calls.lock().push(format!("create {prefix}"));
        let mut made = claim.clone();
        (made.metadata.name, made.metadata.uid) = (Some(format!("{prefix}x")), Some("uid-made".into()));
        self.stored.lock().push(made.clone());
        Ok(made)
    }
    async fn delete_resource_claim(&self, claim: &ResourceClaim) -> Result<(), ApiError> {
        self.calls.lock().push(format!("delete {}", claims::name(claim)));
        Ok(())
    }
    async fn unreserve_resource_claim(&self, claim: &ResourceClaim, pod: &PodInfo) -> Result<ResourceClaim, ApiError> {
        self.calls.lock().push(format!("unreserve {} {}", claims::name(claim), pod.name));
        Ok(claim.clone())
    }
}

#[tokio::test]
async fn allocations_are_written_before_the_pod_is_bound() {
    let c = claim("c", requests(&[exactly("r", json!({}))]));
    let world = World::new(&[on("a", json!([gpu("g0", "A100", 0)]))], std::slice::from_ref(&c));
    let (it, p) = (plugin(), user("p", &["c"]).info());
    let (state, _) = world.reserve(&it, &p, 0);
    let server = Server::default();
    *server.conflicts.lock() = 1;
    server.stored.lock().push(read(&c));
    assert!(it.applies(&state, &p));
    let status = it.pre_bind(&server, &state, &p, "a").await;
    assert!(status.is_success(), "{status}");
    it.undo(&server, &state, &p).await;
    let calls = server.calls.lock().clone();
    let want = ["update claim c", "update status c", "get c", "update claim c", "update status c", "unreserve c p"];
    assert_eq!(calls, want);
    assert!(!world.listers.ledger.pending("uid-c"));
    assert!(world.listers.ledger.in_use().whole(&"gpu.example.com/a/g0".into()));
}

#[tokio::test]
async fn failed_binding_gives_back_what_an_earlier_attempt_reserved() {
    let mut reserved = claim("d", requests(&[exactly("r", json!({}))]));
    let by = json!([{"resource": "pods", "name": "p", "uid": "uid-p"}]);
    reserved["status"] = json!({"allocation": {"devices": {"results": []}}, "reservedFor": by});
    let open = claim("c", requests(&[exactly("r", json!({}))]));
    let world = World::new(&[on("a", json!([gpu("g0", "A100", 0)]))], &[open, reserved]);
    let (it, p) = (plugin(), user("p", &["c", "d"]).info());
    let (state, _) = world.reserve(&it, &p, 0);
    // The write for the first claim fails, so that this attempt does not come to the second.
    let server = Server::default();
    *server.conflicts.lock() = u32::MAX;
    assert!(!it.pre_bind(&server, &state, &p, "a").await.is_success());
    it.undo(&server, &state, &p).await;
    let calls = server.calls.lock().clone();
    assert_eq!(calls.last().map(String::as_str), Some("unreserve d p"), "{calls:?}");
    assert!(!calls.contains(&"unreserve c p".to_owned()), "{calls:?}");
}

#[tokio::test]
async fn a_claim_that_was_allocated_meanwhile_is_left_alone() {
    let c = claim("c", requests(&[exactly("r", json!({}))]));
    let world = World::new(&[on("a", json!([gpu("g0", "A100", 0)]))], std::slice::from_ref(&c));
    let (it, p) = (plugin(), user("p", &["c"]).info());
    let (state, _) = world.reserve(&it, &p, 0);
    let server = Server::default();
    *server.conflicts.lock() = 1;
    let mut elsewhere = c.clone();
    elsewhere["status"] = json!({"allocation": {}});
    server.stored.lock().push(read(&elsewhere));
    let status = it.pre_bind(&server, &state, &p, "a").await;
    assert_eq!(status.to_string(), "claim default/c got allocated elsewhere in the meantime");
}

#[test]
fn what_brings_a_pod_back() {
    let p = user("p", &["c"]).info();
    let with = |name: &str, status: Value| -> Arc<ResourceClaim> {
        let mut c = claim(name, requests(&[]));
        c["status"] = status;
        Arc::new(read(&c))
    };
    let held = || json!({"allocation": {}});
    let changed = |old: Option<Arc<ResourceClaim>>, new: Option<Arc<ResourceClaim>>| {
        ClusterEvent::Object(ExternalChange::ResourceClaim(Delta { old, new }))
    };
    for (what, event, want) in [
        ("its claim came", changed(None, Some(with("c", json!({})))), Hint::Queue),
        ("another claim came", changed(None, Some(with("d", json!({})))), Hint::Skip),
        ("another claim was freed", changed(Some(with("d", held())), Some(with("d", json!({})))), Hint::Queue),
        ("another claim was allocated", changed(Some(with("d", json!({}))), Some(with("d", held()))), Hint::Skip),
        ("its claim was allocated", changed(Some(with("c", json!({}))), Some(with("c", held()))), Hint::Queue),
        ("nothing that matters", changed(Some(with("c", held())), Some(with("c", held()))), Hint::Skip),
        ("its claim went", changed(Some(with("c", held())), None), Hint::Skip),
        ("a node came", ClusterEvent::Node { old: None, new: Arc::new(node("n").base()) }, Hint::Queue),
        ("a node went", ClusterEvent::NodeGone, Hint::Skip),
    ] {
        assert_eq!(plugin().hint(&p, &event), want, "{what}");
    }
}

#[test]
fn a_claim_that_two_entries_name_gets_its_devices_once() {
    let world = World::new(&[on("a", json!([gpu("g0", "x", 0)]))], &[claim("c", requests(&[exactly("r", json!({}))]))]);
    assert_eq!(world.devices(&user("p", &["c", "c"]).info(), 0), ["r=g0"]);
}

#[test]
fn lists_and_access_of_administrators_belong_to_their_gates() {
    let slices = [on("a", json!([gpu("g0", "A100", 0)]))];
    let either = json!({"name": "r", "firstAvailable": [
        {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]});
    let off = Features { admin_access: false, prioritized_list: false, ..Features::default() };
    for (what, request, want) in [
        (
            "a list",
            either,
            "resource claim default/c, request r: has subrequests, but the DRAPrioritizedList feature is disabled",
        ),
        (
            "access",
            exactly("r", json!({"adminAccess": true})),
            "claim default/c, request r: admin access is requested, but the feature is disabled",
        ),
    ] {
        let world = World::new(&slices, &[claim("c", requests(&[request]))]);
        let p = user("p", &["c"]).info();
        assert_eq!(world.texts(&p)[0], "", "{what} with the gate");
        let without = DynamicResources { features: off, ..plugin() };
        assert_eq!(world.answers(&without, &p).1[0].to_string(), want, "{what}");
    }
}

#[test]
fn time_limit_of_a_search_belongs_to_its_gate() {
    let off = Features { filter_timeout: false, ..Features::default() };
    let seconds = |args: Value, features: Features| {
        super::filter_timeout(&args, features).expect("a duration").map(|limit| limit.as_secs())
    };
    assert_eq!(seconds(json!(null), Features::default()), Some(10));
    assert_eq!(seconds(json!({"filterTimeout": "3s"}), Features::default()), Some(3));
    assert_eq!(seconds(json!({"filterTimeout": "0s"}), Features::default()), None);
    assert_eq!(seconds(json!(null), off), None);
}
