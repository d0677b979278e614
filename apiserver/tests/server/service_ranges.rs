//! Ranges that cluster addresses come from, what dry runs show of services, and what is mended when the server starts.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::harness::{Cluster, etcd_is_missing, eventually};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    proto::merge::merge_patch::apply(&mut service["spec"], spec);
    service
}

async fn small() -> Option<Cluster> {
    if etcd_is_missing() {
        return None;
    }
    Some(Cluster::start_with(|_, _| vec!["--service-cluster-ip-range=192.168.0.0/29".to_owned()]).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn additional_service_cidrs_are_used_when_one_is_full() {
    let Some(c) = small().await else { return };
    let range = c.get(&format!("{RANGES}/kubernetes")).await.ok();
    assert_eq!(range["spec"]["cidrs"], json!(["192.168.0.0/29"]));
    let mut condition = range["status"]["conditions"][0].clone();
    let since = condition["lastTransitionTime"].take();
    let want = json!({"type": "Ready", "status": "True", "reason": "", "lastTransitionTime": null,
        "message": "Kubernetes default Service CIDR is ready"});
    assert!(since.is_string() && condition == want, "{range}");
    let owners = range["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let ready = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}":
        {".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:status": {}, "f:type": {}}}}});
    let told = owners.iter().find(|entry| entry["manager"] == "kubernetes-service-cidr-controller").expect("an owner");
    assert_eq!(
        (&told["operation"], &told["subresource"], &told["fieldsV1"]),
        (&json!("Apply"), &json!("status"), &ready)
    );
    for i in 0..5 {
        c.post(SERVICES, service(&format!("s{i}"), json!({}))).await.ok();
    }
    let full = "Internal error occurred: failed to allocate a serviceIP: range is full";
    c.post(SERVICES, service("more", json!({}))).await.fails(500, "InternalError", full);
    let here = |ip: &str| service("more", json!({"clusterIP": ip}));
    let nowhere = "Service \"more\" is invalid: spec.clusterIPs: Invalid value: [\"10.168.0.9\"]: failed to allocate IP 10.168.0.9: the provided network does not match the current range";
    c.post(SERVICES, here("10.168.0.9")).await.fails(422, "Invalid", nowhere);

    c.post(RANGES, json!({"metadata": {"name": "second"}, "spec": {"cidrs": ["10.168.0.0/24"]}})).await.ok();
    let made = c.post(SERVICES, service("more", json!({}))).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    assert!(ip.starts_with("10.168.0."), "{made}");
    let address = c.get(&format!("{ADDRESSES}/{ip}")).await.ok();
    assert_eq!(address["spec"]["parentRef"], json!({"resource": "services", "namespace": "default", "name": "more"}));
    assert_eq!(address["metadata"]["managedFields"][0]["manager"], "kube-apiserver");
    c.post(SERVICES, service("chosen", json!({"clusterIP": "10.168.0.9"}))).await.ok();

    // Who looks after ranges says that one is not ready.
    let refused = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "m",
        "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
    c.patch(&format!("{RANGES}/second/status"), "merge-patch+json", refused).await.ok();
    eventually("the range is not used", async || {
        let made = c.post(SERVICES, service("late", json!({}))).await;
        if made.code == 201 {
            c.delete(&format!("{SERVICES}/late")).await.ok();
        }
        (made.code == 500).then_some(())
    })
    .await;
    c.delete(&format!("{SERVICES}/more")).await.ok();
    assert_eq!(c.get(&format!("{ADDRESSES}/{ip}")).await.code, 404, "given back all the same");
    c.delete(&format!("{SERVICES}/s1")).await.ok();
    let made = c.post(SERVICES, service("late", json!({}))).await.ok();
    assert!(made["spec"]["clusterIP"].as_str().is_some_and(|ip| ip.starts_with("192.168.0.")), "{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_runs_show_values_of_their_own() {
    let Some((c, ns)) = crate::workspace("dry-services").await else { return };
    let services = format!("{ns}/services?dryRun=All");
    let ports =
        json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30061}, {"name": "c", "port": 82}]);
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ports});
    let shown = c.post(&services, service("s", spec)).await.ok();
    let spec = &shown["spec"];
    assert_eq!(spec["clusterIPs"], json!(["10.96.0.0"]));
    let got: Vec<i64> = (0..3).filter_map(|i| spec["ports"][i]["nodePort"].as_i64()).collect();
    assert_eq!((got, spec["healthCheckNodePort"].as_i64()), (vec![32769, 30061, 32770], Some(32771)));
    // What is taken is taken.
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30062}]});
    c.post(&format!("{ns}/services"), service("there", taken.clone())).await.ok();
    let why =
        "Service \"s\" is invalid: spec.ports[0].nodePort: Invalid value: 30062: provided port is already allocated";
    c.post(&services, service("s", taken)).await.fails(422, "Invalid", why);
}

/// A port for the health of nodes is no port of the service.
#[tokio::test(flavor = "multi_thread")]
async fn health_check_node_port_is_not_reused() {
    let Some((c, ns)) = crate::workspace("health-port").await else { return };
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let made = c.post(&format!("{ns}/services"), service("s", spec)).await.ok();
    let health = made["spec"]["healthCheckNodePort"].as_i64().expect("a port");
    let change = json!({"spec": {"ports": [{"port": 80, "nodePort": health}]}});
    let refused = c.patch(&format!("{ns}/services/s"), "merge-patch+json", change).await;
    let why = format!(
        "Service \"s\" is invalid: spec.ports[0].nodePort: Invalid value: {health}: provided port is already allocated"
    );
    refused.fails(422, "Invalid", &why);
}

#[tokio::test(flavor = "multi_thread")]
async fn allocations_are_repaired_at_start() {
    let Some(mut c) = small().await else { return };
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30007}]});
    let made = c.post(SERVICES, service("s", spec)).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    c.stop_server();
    // As a server leaves it that ended at the wrong moment, or that was of an older release.
    let etcd = c.etcd_client().await;
    let address = format!("/registry/ipaddresses/{ip}");
    assert_eq!(etcd.kv_client().delete(address, None).await.expect("deleted").deleted(), 1);
    let leaked = base64::engine::general_purpose::STANDARD.encode([1_u8]);
    let ports =
        json!({"apiVersion": "v1", "kind": "RangeAllocation", "range": "30000-32767", "data": leaked}).to_string();
    etcd.kv_client().put("/registry/ranges/servicenodeports", ports, None).await.expect("written");
    c.start_server().await;
    let address = c.get(&format!("{ADDRESSES}/{ip}")).await.ok();
    assert_eq!(address["spec"]["parentRef"]["name"], "s");
    let port = |number: u16| service("o", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]}));
    for number in [30007, 30000] {
        let why = format!(
            "Service \"o\" is invalid: spec.ports[0].nodePort: Invalid value: {number}: provided port is already allocated"
        );
        c.post(SERVICES, port(number)).await.fails(422, "Invalid", &why);
    }
    let told = eventually("both are told of", async || {
        let events = c.get("/apis/events.k8s.io/v1/namespaces/default/events").await.ok();
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let mut told: Vec<String> = events
            .iter()
            .filter(|e| e["regarding"]["name"] == "s")
            .map(|e| {
                ["reason", "action", "reportingController", "note"].map(|f| e[f].as_str().unwrap_or_default()).join(" ")
            })
            .collect();
        told.sort();
        (told.len() == 2).then_some(told)
    })
    .await;
    let want = [
        format!(
            "ClusterIPNotAllocated ClusterIPAllocation ipallocator-repair-controller Cluster IP [IPv4]: {ip} is not allocated; repairing"
        ),
        "PortNotAllocated PortAllocation portallocator-repair-controller Port 30007 is not allocated; repairing"
            .to_owned(),
    ];
    assert_eq!(told, want);
}

/// Unreadable services keep their allocations: nothing is released while one cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_services_keep_their_allocations() {
    let Some(mut c) = small().await else { return };
    let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30007}]});
    let made = c.post(SERVICES, service("s", spec)).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    let address = format!("{ADDRESSES}/{ip}");
    let mut old = c.get(&address).await.ok();
    c.stop_server();
    let etcd = c.etcd_client().await;
    etcd.kv_client()
        .put("/registry/services/specs/default/s", b"k8s\0\xff\xff".as_slice(), None)
        .await
        .expect("written");
    old["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    etcd.kv_client().put(format!("/registry/ipaddresses/{ip}"), old.to_string(), None).await.expect("written");
    c.launch_server();
    let hook = "/readyz/poststarthook/start-service-ip-repair-controllers";
    let failures = eventually("ports are looked at again and again", async || {
        let metrics = c.try_get("/metrics").await.ok()?.text();
        let line = metrics.lines().find_map(|l| l.strip_prefix("apiserver_nodeport_repair_reconcile_errors_total "));
        line?.parse::<u64>().ok().filter(|count| *count > 2)
    });
    assert!(failures.await > 2);
    assert_eq!(c.get(&address).await.ok()["metadata"]["creationTimestamp"], "2020-01-01T00:00:00Z");
    assert_eq!(c.get(hook).await.code, 500);

    etcd.kv_client().delete("/registry/services/specs/default/s", None).await.expect("deleted");
    eventually("all is in line", async || (c.get(hook).await.code == 200).then_some(())).await;
    eventually("the address is given back", async || (c.get(&address).await.code == 404).then_some(())).await;
}
