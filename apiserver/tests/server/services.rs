//! Services of two families, and what is given to a service.

use serde_json::{Value, json};

use crate::harness::{Cluster, etcd_is_missing};

#[tokio::test(flavor = "multi_thread")]
async fn second_family_is_released() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start_with(|_, _| vec!["--service-cluster-ip-range=10.96.0.0/16,fd00:10::/112".to_owned()]).await;
    let services = "/api/v1/namespaces/default/services";
    let (path, addresses) = (format!("{services}/s"), "/apis/networking.k8s.io/v1/ipaddresses");
    let taken = async |service: &Value| -> Vec<u16> {
        let mut codes = Vec::new();
        for ip in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
            codes.push(c.get(&format!("{addresses}/{}", ip.as_str().unwrap_or_default())).await.code);
        }
        codes
    };
    let spec = json!({"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]});
    let dual = c.post(services, json!({"metadata": {"name": "s"}, "spec": spec})).await.ok();
    assert_eq!(dual["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(taken(&dual).await, [200, 200]);

    // What goes is to be said.
    let first = &dual["spec"]["clusterIPs"][0];
    let one = json!({"spec": {"clusterIPs": [first], "ipFamilies": ["IPv4"]}});
    let (code, _, message) = c.patch(&path, "merge-patch+json", one).await.failure();
    for what in ["cluster IP", "IP family"] {
        let want = format!(
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary {what}"
        );
        assert!(code == 422 && message.contains(&want), "{message}");
    }
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let single = c.patch(&path, "merge-patch+json", single).await.ok();
    assert_eq!(single["spec"]["clusterIPs"], json!([first]));
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(taken(&dual).await, [200, 404]);

    let again = json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}});
    let again = c.patch(&path, "merge-patch+json", again).await.ok();
    assert_eq!(again["spec"]["clusterIPs"].as_array().map(Vec::len), Some(2), "{again}");
    let elsewhere = json!({"spec": {"type": "ExternalName", "externalName": "a.example.com"}});
    let elsewhere = c.patch(&path, "merge-patch+json", elsewhere).await.ok();
    assert!(elsewhere["spec"].get("clusterIPs").is_none(), "{elsewhere}");
    assert_eq!(taken(&again).await, [404, 404]);
}

/// Allocation errors precede other errors, and nothing stays allocated.
#[tokio::test(flavor = "multi_thread")]
async fn allocation_errors_precede_validation() {
    let Some((c, ns)) = crate::workspace("given-first").await else { return };
    let services = format!("{ns}/services");
    let service = |change: Value| {
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "sessionAffinity": "Never",
            "ports": [{"port": 80, "nodePort": 30063}]}});
        proto::merge::merge_patch::apply(&mut service, change);
        service
    };
    let invalid = |what: &str| format!("Service \"s\" is invalid: {what}");
    let affinity = "spec.sessionAffinity: Unsupported value: \"Never\": supported values: \"ClientIP\", \"None\"";
    let range = "provided port is not in the valid range. The range of valid ports is 30000-32767";
    for (change, want) in [
        (json!({"spec": {"clusterIP": "10.1.2.3.4"}}), "spec.clusterIPs[0]: Invalid value: \"10.1.2.3.4\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()),
        (json!({"spec": {"clusterIP": "192.0.2.1"}}), "spec.clusterIPs: Invalid value: [\"192.0.2.1\"]: failed to allocate IP 192.0.2.1: the provided network does not match the current range".to_owned()),
        (json!({"spec": {"ports": [{"port": 80, "nodePort": 70000}]}}), format!("spec.ports[0].nodePort: Invalid value: 70000: {range}")),
        (json!({"spec": {"ports": [{"port": 80, "nodePort": -1}]}}), format!("spec.ports[0].nodePort: Invalid value: -1: {range}")),
        (json!({}), affinity.to_owned()),
    ] {
        for dry in ["", "?dryRun=All"] {
            // Dry runs look at ranges otherwise.
            let want = match (dry, want.split_once(": the provided network")) {
                ("", _) => want.clone(),
                (_, Some((begin, _))) => format!(
                    "{begin}: the provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is 10.96.0.0/12"
                ),
                _ if want.ends_with(range) => affinity.to_owned(),
                _ => want.clone(),
            };
            let refused = c.post(&format!("{services}{dry}"), service(change.clone())).await;
            refused.fails(422, "Invalid", &invalid(&want));
        }
    }
    let good = c.post(&services, service(json!({"spec": {"sessionAffinity": "None"}}))).await.ok();
    assert_eq!(good["spec"]["ports"][0]["nodePort"], 30063);

    let elsewhere = json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.0.0.77"}});
    let why = "spec.clusterIPs: Forbidden: may not be set for ExternalName services";
    c.post(&services, elsewhere).await.fails(422, "Invalid", &invalid(why));

    // So it is with changes. A port that is asked for in vain is free afterwards.
    let path = format!("{services}/s");
    let also = |port: i64| json!({"spec": {"sessionAffinity": "Never", "ports": [{"port": 80, "nodePort": 30063}, {"name": "b", "port": 81, "nodePort": port}]}});
    for (change, want) in [
        (also(70000), format!("spec.ports[1].nodePort: Invalid value: 70000: {range}")),
        (also(30064), format!("[spec.ports[0].name: Required value, {affinity}]")),
        (json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "sessionAffinity": "Never"}}), "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services".to_owned()),
        (json!({"spec": {"clusterIP": "10.1.2.3"}}), "spec.clusterIPs[0]: Invalid value: [\"10.1.2.3\"]: may not change once set".to_owned()),
    ] {
        for dry in ["", "?dryRun=All"] {
            let named = format!("[spec.ports[0].name: Required value, {affinity}]");
            let want = if !dry.is_empty() && want.ends_with(range) { &named } else { &want };
            let refused = c.patch(&format!("{path}{dry}"), "merge-patch+json", change.clone()).await;
            refused.fails(422, "Invalid", &invalid(want));
        }
    }
    let other =
        json!({"metadata": {"name": "o"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30064}]}});
    c.post(&services, other).await.ok();
    let twice = json!({"spec": {"ports": [{"name": "a", "port": 80, "nodePort": 30063}, {"name": "b", "port": 81, "nodePort": 30063}]}});
    let (code, _, message) = c.patch(&path, "merge-patch+json", twice).await.failure();
    assert_eq!((code, message.as_str()), (500, "duplicate nodePort: {TCP 30063}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_ports_share_a_node_port() {
    let Some((c, ns)) = crate::workspace("shared-ports").await else { return };
    let services = format!("{ns}/services");
    let port = |name: &str, protocol: &str, port: u16| json!({"name": name, "port": port, "protocol": protocol});
    let ports = json!([port("a", "UDP", 53), port("b", "TCP", 53), port("c", "TCP", 80)]);
    let spec = json!({"type": "NodePort", "ports": ports});
    let made = c.post(&services, json!({"metadata": {"name": "dns"}, "spec": spec})).await.ok();
    let node: Vec<i64> = (0..3).filter_map(|i| made["spec"]["ports"][i]["nodePort"].as_i64()).collect();
    assert!(node.len() == 3 && node[0] == node[1] && node[1] != node[2], "{made}");
    // Load balancers that ask for a port somebody has.
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": node[2], "ports": [{"port": 80}]});
    let (code, reason, message) = c.post(&services, json!({"metadata": {"name": "l"}, "spec": spec})).await.failure();
    let want = format!(
        "Internal error occurred: failed to allocate requested HealthCheck NodePort {}: provided port is already allocated",
        node[2]
    );
    assert_eq!((code, reason.as_str(), message), (500, "InternalError", want));
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_deleted_with_their_service() {
    let Some((c, ns)) = crate::workspace("endpoints-go").await else { return };
    let (services, endpoints) = (format!("{ns}/services"), format!("{ns}/endpoints"));
    for name in ["at-once", "held"] {
        let finalizers = if name == "held" { json!(["a.b/c"]) } else { json!([]) };
        let metadata = json!({"name": name, "finalizers": finalizers});
        c.post(&services, json!({"metadata": metadata, "spec": {"ports": [{"port": 80}]}})).await.ok();
        c.post(&endpoints, json!({"metadata": {"name": name}})).await.ok();
        c.delete(&format!("{services}/{name}")).await.ok();
    }
    assert_eq!(c.get(&format!("{endpoints}/at-once")).await.code, 404);
    c.get(&format!("{endpoints}/held")).await.ok();
    let released = json!({"metadata": {"finalizers": []}});
    c.patch(&format!("{services}/held"), "merge-patch+json", released).await.ok();
    assert_eq!(c.get(&format!("{endpoints}/held")).await.code, 404);
}

/// A new server repairs what one left behind that died between two writes.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_allocations_are_repaired() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let services = "/api/v1/namespaces/default/services";
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    let service = |name: &str, ip: &str| {
        json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "clusterIP": ip,
            "ports": [{"port": 80, "nodePort": 31500}]}})
    };
    let made = c.post(services, json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}})).await.ok();
    let ip = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    let lost = format!("{addresses}/{ip}");
    c.delete(&lost).await.ok();
    c.stop_server();
    c.start_server().await;
    let watch = format!("{addresses}?watch=1&timeoutSeconds=30&fieldSelector=metadata.name%3D{ip}");
    let again = c.watch_until(&watch, |o| o["metadata"]["name"] == ip.as_str()).await;
    assert_eq!(again["spec"]["parentRef"], json!({"resource": "services", "namespace": "default", "name": "a"}));
    let (code, _, message) = c.post(services, service("b", &ip)).await.failure();
    assert!(code == 422 && message.contains("provided IP is already allocated"), "{message}");
}
