use serde_json::{Value, json};

use super::*;

fn pools() -> Vec<IpNet> {
    ["10.89.1.0/30", "fd00::/126"].map(|pool| pool.parse().expect("a network")).into()
}

fn service(name: &str, second: u32, spec: Value, ingress: &[&str]) -> Arc<Service> {
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    let mut spec = spec;
    for (field, value) in [("type", json!("LoadBalancer")), ("ipFamilies", json!(["IPv4"]))] {
        if spec.get(field).is_none() {
            spec[field] = value;
        }
    }
    let object = json!({
        "metadata": {"namespace": "n", "name": name, "uid": name,
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
        "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
    Arc::new(serde_json::from_value(object).expect("a service"))
}

fn node(name: &str, address: &str, ready: bool, labels: Value) -> Arc<Node> {
    let object = json!({"metadata": {"name": name, "labels": labels}, "status": {
        "addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
    Arc::new(serde_json::from_value(object).expect("a node"))
}

/// A slice of service `a`: node, ready, serving of each endpoint.
fn slice(endpoints: &[(&str, bool, bool)]) -> Arc<EndpointSlice> {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(node, ready, serving)| {
            json!({"addresses": ["10.0.0.1"], "nodeName": node, "conditions": {"ready": ready, "serving": serving}})
        })
        .collect();
    let object = json!({"metadata": {"namespace": "n", "name": "a-1", "labels": {"kubernetes.io/service-name": "a"}},
        "addressType": "IPv4", "endpoints": endpoints});
    Arc::new(serde_json::from_value(object).expect("a slice"))
}

fn addresses(services: Vec<Arc<Service>>) -> (Vec<String>, Vec<String>) {
    let plan = plan(&View { services, ..View::default() }, &pools());
    let written = |ingress: &Ingress| {
        let all: Vec<String> = ingress.addresses.iter().map(ToString::to_string).collect();
        format!("{} {}", ingress.name, all.join(" ")).trim_end().to_owned()
    };
    (plan.ingresses.iter().map(written).collect(), plan.pending)
}

#[test]
fn services_get_free_addresses_of_their_families_and_keep_them() {
    let none = json!({});
    for (services, written) in [
        (
            vec![service("b", 2, none.clone(), &[]), service("a", 1, none.clone(), &[])],
            vec!["a 10.89.1.1", "b 10.89.1.2"],
        ),
        (vec![service("a", 1, none.clone(), &[]), service("b", 2, none.clone(), &["10.89.1.1"])], vec!["a 10.89.1.2"]),
        // Two that show the same: the older one keeps it.
        (
            vec![service("a", 1, none.clone(), &["10.89.1.1"]), service("b", 2, none.clone(), &["10.89.1.1"])],
            vec!["b 10.89.1.2"],
        ),
        (vec![service("a", 1, json!({"ipFamilies": ["IPv6", "IPv4"]}), &[])], vec!["a fd00:: 10.89.1.1"]),
        (vec![service("a", 1, json!({"loadBalancerIP": "10.89.1.2"}), &["10.89.1.1"])], vec!["a 10.89.1.2"]),
        // What another implementation is named for, and what is no load balancer any more.
        (vec![service("a", 1, json!({"loadBalancerClass": "example.com/lb"}), &[])], vec![]),
        (vec![service("a", 1, json!({"type": "ClusterIP"}), &["10.89.1.1"])], vec!["a"]),
        (vec![service("a", 1, json!({"type": "ClusterIP"}), &["192.0.2.1"])], vec![]),
    ] {
        assert_eq!(addresses(services), (written.into_iter().map(str::to_owned).collect(), vec![]));
    }
}

#[test]
fn services_without_an_address_are_pending() {
    let full: Vec<_> = ["a", "b", "c"].into_iter().map(|name| service(name, 1, json!({}), &[])).collect();
    for (services, pending) in [
        (full, "n/c: 10.89.1.0/30 has no free address"),
        (vec![service("a", 1, json!({"loadBalancerIP": "192.0.2.1"}), &[])], "n/a: 192.0.2.1 is not in 10.89.1.0/30"),
        (
            vec![
                service("b", 1, json!({}), &["10.89.1.1"]),
                service("a", 2, json!({"loadBalancerIP": "10.89.1.1"}), &[]),
            ],
            "n/a: 10.89.1.1 is taken",
        ),
    ] {
        assert_eq!(addresses(services).1, [pending]);
    }
}

#[test]
fn addresses_lead_to_nodes_that_take_traffic() {
    let nodes = || {
        vec![
            node("one", "10.89.0.11", true, json!({})),
            node("two", "10.89.0.12", true, json!({})),
            node("away", "10.89.0.13", false, json!({})),
            node("apart", "10.89.0.14", true, json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""})),
        ]
    };
    let local = json!({"externalTrafficPolicy": "Local"});
    for (spec, endpoints, hops) in [
        (json!({}), vec![], "10.89.0.11 10.89.0.12"),
        (local.clone(), vec![("two", true, true), ("away", true, true)], "10.89.0.12"),
        (local.clone(), vec![("one", false, false), ("two", false, true)], "10.89.0.12"),
        (local.clone(), vec![("one", true, true), ("two", false, true)], "10.89.0.11"),
        (local, vec![], ""),
    ] {
        let view = View {
            services: vec![service("a", 1, spec, &["10.89.1.1"])],
            slices: vec![slice(&endpoints)],
            nodes: nodes(),
        };
        let plan = plan(&view, &pools());
        let found: Vec<String> = plan.routes.values().flatten().map(ToString::to_string).collect();
        assert_eq!((plan.routes.len(), found.join(" ").as_str()), (1, hops), "{endpoints:?}");
    }
}
