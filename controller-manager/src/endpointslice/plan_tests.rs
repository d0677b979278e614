use super::*;
use crate::engine::nodes::ZONE;
use serde_json::{Value, json};

fn pod(n: usize, ready: bool, deleting: bool) -> Arc<Pod> {
    let mut v = json!({"metadata": {"name": format!("p{n}"), "namespace": "ns", "uid": format!("p{n}")},
        "spec": {"nodeName": "n1", "containers": []},
        "status": {"phase": "Running", "podIP": format!("10.1.0.{n}"),
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
    if deleting {
        v["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    Arc::new(serde_json::from_value(v).expect("pod"))
}

fn world(pods: Vec<Arc<Pod>>, max: usize) -> Snapshot {
    let service = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "svc"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]}});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {ZONE: "z1"}}})).expect("node");
    Snapshot {
        service: Arc::new(serde_json::from_value(service).expect("service")),
        pods,
        nodes: std::iter::once(("n1".to_owned(), Arc::new(node))).collect(),
        slices: vec![],
        max_per_slice: max,
        trigger: None,
        zones: None,
        hinted: false,
    }
}

/// Apply the planned writes, as the server would.
fn apply(s: &mut Snapshot) -> Vec<String> {
    let mut log = Vec::new();
    for write in plan(s).writes {
        match write {
            Write::Create(slice) => {
                let mut tree = slice.tree().expect("a tree");
                tree["metadata"]["name"] = json!(format!("web-{}", s.slices.len()));
                log.push(format!("create {}", slice.endpoints().count()));
                s.slices.push(Arc::new(Slice::of_json(&tree).expect("slice")));
            }
            Write::Update(slice) => {
                log.push(format!("update {}", slice.endpoints().count()));
                let again = Slice::of_json(&slice.tree().expect("a tree")).expect("slice");
                assert!(
                    again.endpoints().eq(slice.endpoints()) && again.ports().eq(slice.ports()),
                    "as the server writes it"
                );
                let at = s.slices.iter().position(|x| x.meta().name() == slice.meta().name()).expect("there");
                s.slices[at] = Arc::new(slice);
            }
            Write::Delete(slice) => {
                log.push("delete".into());
                s.slices.retain(|x| x.meta().name() != slice.meta().name());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(plan(s).writes.is_empty(), "the plan settles");
    log
}

#[test]
fn life_of_a_service() {
    let mut s = world(vec![], 2);
    assert_eq!(apply(&mut s), ["create 0"], "a placeholder");
    let empty = s.slices[0].tree().expect("a tree");
    assert_eq!(empty["metadata"]["labels"], json!({MANAGED_BY: CONTROLLER, SERVICE_NAME: "web"}));
    assert_eq!(empty["metadata"]["generateName"], "web-");
    s.pods = vec![pod(1, true, false)];
    assert_eq!(apply(&mut s), ["update 1"], "the placeholder is used");
    s.pods = (1..=5).map(|n| pod(n, true, false)).collect();
    assert_eq!(apply(&mut s), ["create 2", "create 2"], "whole slices stay as they are");
    s.pods.remove(1);
    assert_eq!(apply(&mut s), ["update 1"]);
    s.pods.push(pod(6, true, false));
    assert_eq!(apply(&mut s), ["update 2"], "fits into the fullest slice with room");
    s.pods.clear();
    let log = apply(&mut s);
    assert_eq!(log.iter().filter(|l| *l == "update 0").count(), 1, "{log:?}");
    assert_eq!(s.slices.len(), 1, "a placeholder remains");
}

#[test]
fn endpoint_fields_and_conditions() {
    let mut s = world(vec![pod(1, true, false), pod(2, false, false), pod(3, true, true)], 100);
    apply(&mut s);
    let v = s.slices[0].tree().expect("a tree");
    let conditions: Vec<Value> =
        v["endpoints"].as_array().expect("list").iter().map(|e| e["conditions"].clone()).collect();
    assert_eq!(
        conditions,
        [
            json!({"ready": true, "serving": true, "terminating": false}),
            json!({"ready": false, "serving": false, "terminating": false}),
            json!({"ready": false, "serving": true, "terminating": true}),
        ]
    );
    assert_eq!(v["endpoints"][0]["zone"], "z1");
    assert_eq!(v["endpoints"][0]["nodeName"], "n1");
    assert_eq!(v["ports"], json!([{"name": "", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(v["metadata"]["ownerReferences"][0]["kind"], "Service");
}

#[test]
fn traffic_distribution_gives_hints() {
    let mut s = world(vec![pod(1, true, false)], 100);
    let mut service = Service::clone(&s.service);
    service.spec.as_mut().expect("spec").traffic_distribution = Some("PreferSameNode".into());
    s.service = Arc::new(service);
    apply(&mut s);
    let v = s.slices[0].tree().expect("a tree");
    assert_eq!(v["endpoints"][0]["hints"], json!({"forNodes": [{"name": "n1"}], "forZones": [{"name": "z1"}]}));
}

#[test]
fn slices_of_an_earlier_service_are_not_used_again() {
    let mut s = world(vec![pod(1, true, false)], 100);
    apply(&mut s);
    let mut tree = s.slices[0].tree().expect("a tree");
    tree["metadata"]["ownerReferences"][0]["uid"] = json!("earlier");
    s.slices = vec![Arc::new(Slice::of_json(&tree).expect("slice"))];
    let writes = plan(&s).writes;
    assert!(matches!(writes.as_slice(), [Write::Create(_), Write::Delete(_)]), "{writes:?}");
}

#[test]
fn a_service_that_goes_gets_no_new_slices() {
    let mut s = world(vec![pod(1, true, false)], 1);
    apply(&mut s);
    let mut service = Service::clone(&s.service);
    service.metadata.deletion_timestamp = Some(object::seconds(Timestamp::UNIX_EPOCH));
    s.service = Arc::new(service);
    s.pods = vec![pod(2, true, false), pod(3, true, false)];
    let writes = plan(&s).writes;
    assert!(matches!(writes.as_slice(), [Write::Update(_)]), "those that are there are kept right: {writes:?}");
}

#[test]
fn pods_on_nodes_that_are_not_there() {
    let mut s = world(vec![pod(1, true, false)], 100);
    s.nodes.clear();
    let got = plan(&s);
    assert_eq!(got.lost, BTreeSet::from([("p1".to_owned(), "n1".to_owned())]));
    assert!(matches!(got.writes.as_slice(), [Write::Create(slice)] if slice.endpoints().count() == 0));
    let mut service = Service::clone(&s.service);
    service.spec.as_mut().expect("spec").publish_not_ready_addresses = Some(true);
    s.service = Arc::new(service);
    let got = plan(&s);
    assert!(got.lost.is_empty());
    assert!(matches!(got.writes.as_slice(), [Write::Create(slice)] if slice.endpoints().count() == 1));
}

#[test]
fn hints_by_topology_are_told_of_when_they_come_and_go() {
    let told = |s: &Snapshot| -> Vec<(bool, &'static str, String)> {
        let writes = plan(s).writes.into_iter();
        let events = writes.filter_map(|w| if let Write::Tell(action) = w { Some(*action) } else { None });
        events
            .map(|a| match a {
                Action::Event { warning, reason, message, .. } => (warning, reason, message),
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let mut s = world(vec![pod(1, true, false)], 100);
    assert_eq!(told(&s), []);
    s.hinted = true;
    let gone = "Topology Aware Hints has been disabled, addressType: IPv4".to_owned();
    assert_eq!(told(&s), [(true, "TopologyAwareHintsDisabled", gone)]);
    assert!(!plan(&s).hinted);
    s.zones = Some(Zones::Shares(BTreeMap::from([("z1".to_owned(), 1.0)])));
    assert_eq!(told(&s), [], "as before");
    s.hinted = false;
    assert_eq!(told(&s)[0].1, "TopologyAwareHintsEnabled");
    assert!(plan(&s).hinted);
    s.zones = Some(Zones::Unknown);
    assert!(told(&s)[0].0);
}
