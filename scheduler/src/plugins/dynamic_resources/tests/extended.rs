//! Extended resources that devices stand for.

use super::*;

const GPU: &str = "example.com/gpu";

fn plugin() -> DynamicResources {
    let features = Features { extended_resources: true, ..Features::default() };
    DynamicResources { features, ..super::plugin() }
}

/// Node a has two devices, node b as many of the resource in its own books, and node c has nothing.
fn world(claims: &[Value]) -> World {
    let mut world = World::new(&[on("a", json!([gpu("g0", "x", 0), gpu("g1", "x", 0)]))], claims);
    let class = json!({"metadata": {"name": "gpu", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
    world.listers.device_classes.insert("gpu".into(), Arc::new(read(&class)));
    world.nodes = vec![node("a").with(&[]), node("b").has(GPU, "2").with(&[]), node("c").with(&[])];
    world
}

fn asking(resource: &str, amount: &str) -> PodBuilder {
    pod("p").set("/spec/containers/0", "resources", json!({"requests": {"cpu": "1", resource: amount}}))
}

fn left() -> Value {
    let mut left = claim("left", requests(&[exactly("r", json!({}))]));
    left["metadata"]["annotations"] = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    left["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}]);
    left
}

#[test]
fn where_devices_stand_for_extended_resources() {
    let implicit = "deviceclass.resource.kubernetes.io/gpu";
    let stale = "cannot schedule extended resource claim";
    for (what, claims, p, want) in [
        ("two devices, and two in the books", vec![], asking(GPU, "2"), ["", "", NO]),
        ("more than devices", vec![], asking(GPU, "3"), [NO, "", NO]),
        ("by the name of the class", vec![], asking(implicit, "1"), ["", NO, NO]),
        ("one of an earlier attempt", vec![left()], asking(GPU, "1"), [stale; 3]),
    ] {
        let said = world(&claims).answers(&plugin(), &p.info()).1;
        assert_eq!(said.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{what}");
    }
    for p in [asking("example.com/other", "1"), asking(GPU, "0"), pod("p")] {
        let said = world(&[]).answers(&plugin(), &p.info()).1;
        assert!(matches!(said.as_slice(), [skipped] if skipped.code() == Code::Skip), "{said:?}");
    }
    let off = world(&[]).answers(&super::plugin(), &asking(GPU, "1").info()).1;
    assert_eq!(off[0].code(), Code::Skip, "the gate is off");
}

#[test]
fn newest_class_stands_for_a_resource() {
    let mut world = world(&[]);
    for (name, at) in [("newer", "2026-02-01T00:00:00Z"), ("also-newer", "2026-02-01T00:00:00Z")] {
        let class = json!({"metadata": {"name": name, "creationTimestamp": at}, "spec": {"extendedResourceName": GPU}});
        world.listers.device_classes.insert(name.into(), Arc::new(read(&class)));
    }
    let class = crate::framework::Listers::class_of_resource(&world.listers, GPU).expect("a class");
    assert_eq!(class.metadata.name.as_deref(), Some("also-newer"));
}

#[tokio::test]
async fn claim_is_made_before_the_pod_is_bound_and_deleted_when_binding_fails() {
    let (world, it, p) = (world(&[]), plugin(), asking(GPU, "2").info());
    let (state, found) = world.reserve(&it, &p, 0);
    assert_eq!(found[0]["devices"]["results"].as_array().map(Vec::len), Some(2));
    let in_use =
        |device: &str| world.listers.ledger.in_use().whole(&format!("gpu.example.com/a/{device}").as_str().into());
    assert!(in_use("g0") && in_use("g1"), "they are promised");
    let server = Server::default();
    assert!(it.applies(&state, &p));
    let status = it.pre_bind(&server, &state, &p, "a").await;
    assert!(status.is_success(), "{status}");
    assert!(in_use("g0") && in_use("g1"), "they are the claim's");
    let patch = json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "p-extended-resources-x",
        "requestMappings": [{"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-1"}]}}});
    let made =
        ["create p-extended-resources-", "update claim p-extended-resources-x", "update status p-extended-resources-x"];
    let mut want: Vec<String> = made.map(str::to_owned).to_vec();
    want.push(format!("patch {patch}"));
    assert_eq!(*server.calls.lock(), want);
    it.undo(&server, &state, &p).await;
    let calls = server.calls.lock().split_off(want.len());
    assert_eq!(calls, ["update claim p-extended-resources-x", "delete p-extended-resources-x"]);
    assert!(!in_use("g0") && !in_use("g1"), "they are free");
}

#[tokio::test]
async fn nothing_is_made_where_the_node_has_the_resource() {
    let (world, it, p) = (world(&[]), plugin(), asking(GPU, "2").info());
    let (state, found) = world.reserve(&it, &p, 1);
    assert!(found.is_empty());
    let server = Server::default();
    assert!(it.pre_bind(&server, &state, &p, "b").await.is_success());
    assert!(server.calls.lock().is_empty());
}

#[test]
fn promise_is_withdrawn_when_the_pod_goes_elsewhere() {
    let (world, it, p) = (world(&[]), plugin(), asking(GPU, "1").info());
    let (mut state, _) = world.reserve(&it, &p, 0);
    let in_use = || world.listers.ledger.in_use().whole(&"gpu.example.com/a/g0".into());
    assert!(in_use());
    it.unreserve(&mut state, &p, "a");
    assert!(!in_use());
}

#[tokio::test]
async fn claim_of_an_earlier_attempt_is_deleted_and_the_pod_tried_again() {
    let (world, it, p) = (world(&[left()]), plugin(), asking(GPU, "1").info());
    let (state, all) = world.answers(&it, &p);
    let mut rejected = Rejected::default();
    all.iter().enumerate().for_each(|(at, status)| rejected.push(at, status.clone()));
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let (_, status) = world.cycle(|cx| it.post_filter(cx, &profile, &state, &p, &rejected));
    assert_eq!(status.to_string(), "deletion of ResourceClaim completed");
    assert!(it.acts(&state));
    let server = Server::default();
    it.act(&server, &state, &p).await;
    assert_eq!(*server.calls.lock(), ["update claim left", "delete left"]);
    let gone = Delta { old: Some(Arc::new(read::<ResourceClaim>(&left()))), new: None };
    let hint = it.hint(&p, &ClusterEvent::Object(ExternalChange::ResourceClaim(gone)));
    assert_eq!(hint, Hint::Queue);
}
