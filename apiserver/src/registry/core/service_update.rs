//! Update of a Service: values patched from the stored object, and allocations that it has no more. Pure; [`super::service`]
//! holds the fields they depend on. Answers for upstream's `patchAllocatedValues`, `dropTypeDependentFields`.

use std::collections::{BTreeMap, BTreeSet};

use proto::Value;
use serde_json::json;

use super::service::{Spec, may_have_node_ports, needs_cluster_ip, needs_health_port, number, ports_of, strings, text};

/// Before an update is judged.
pub(crate) fn prepare(new: &mut Value, old: &Value) {
    if let Some((spec, old)) = new["spec"].as_object_mut().zip(old["spec"].as_object()) {
        outgrow(spec, old);
    }
}

/// A PUT that leaves allocated values out keeps them, as long as the type still has use for them.
pub(crate) fn inherit(spec: &mut Spec, old: &Spec) {
    if needs_cluster_ip(spec) && needs_cluster_ip(old) {
        inherit_addresses(spec, old);
    }
    // Also those of a load balancer that asks for none by itself.
    if may_have_node_ports(spec) && may_have_node_ports(old) {
        inherit_node_ports(spec, old);
    }
    if !may_have_node_ports(spec) && may_have_node_ports(old) {
        drop_carried_ports(spec, old);
    }
    if needs_health_port(spec)
        && needs_health_port(old)
        && spec.get("healthCheckNodePort").map_or(0, number) == 0
        && let Some(p) = old.get("healthCheckNodePort")
    {
        spec.insert("healthCheckNodePort".to_owned(), p.clone());
    }
}

pub(crate) fn inherit_addresses(spec: &mut Spec, old: &Spec) {
    if text(spec, "clusterIP").is_empty()
        && let Some(ip) = old.get("clusterIP")
    {
        spec.insert("clusterIP".to_owned(), ip.clone());
    }
    let same = text(spec, "clusterIP") == text(old, "clusterIP");
    let first_same = strings(spec, "clusterIPs").first().map(String::as_str) == Some(text(spec, "clusterIP"));
    if strings(spec, "clusterIPs").is_empty() && same {
        fill(spec, old, "clusterIPs");
    } else if !first_same && !same && strings(spec, "clusterIPs") == strings(old, "clusterIPs") {
        let ip = text(spec, "clusterIP").to_owned();
        spec.insert("clusterIPs".to_owned(), json!([ip]));
    }
    fill(spec, old, "ipFamilies");
    fill(spec, old, "ipFamilyPolicy");
}

/// Takes over what is not there.
fn fill(spec: &mut Spec, old: &Spec, key: &str) {
    if let Some(value) = old.get(key).filter(|_| spec.get(key).is_none_or(Value::is_null)) {
        spec.insert(key.to_owned(), value.clone());
    }
}

/// A port is the same as before when it has the same name, whatever else of it changed.
pub(crate) fn inherit_node_ports(spec: &mut Spec, old: &Spec) {
    let said: BTreeSet<u16> = ports_of(spec).into_iter().collect();
    let theirs = old.get("ports").and_then(Value::as_array).into_iter().flatten();
    let known: BTreeMap<&str, &Value> =
        theirs.map(|port| (port["name"].as_str().unwrap_or_default(), &port["nodePort"])).collect();
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let before = known.get(port["name"].as_str().unwrap_or_default()).filter(|_| number(&port["nodePort"]) == 0);
        if let Some(before) = before.filter(|before| number(before) != 0 && !said.contains(&number(before))) {
            port["nodePort"] = (*before).clone();
        }
    }
}

/// From NodePort back to ClusterIP: ports that were only carried along go, unless one of them is new.
fn drop_carried_ports(spec: &mut Spec, old: &Spec) {
    let had: BTreeSet<u16> = ports_of(old).into_iter().collect();
    if ports_of(spec).iter().any(|port| *port != 0 && !had.contains(port)) {
        return;
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.remove("nodePort");
        }
    }
}

/// Drops fields that only the old type needs, unless the client changed them.
fn outgrow(spec: &mut Spec, old: &Spec) {
    fn balanced(spec: &Spec) -> bool {
        text(spec, "type") == "LoadBalancer"
    }
    fn reached(spec: &Spec) -> bool {
        balanced(spec) || text(spec, "type") == "NodePort" || !strings(spec, "externalIPs").is_empty()
    }
    fn routed(spec: &Spec) -> bool {
        text(spec, "type") != "ExternalName"
    }
    type Uses = fn(&Spec) -> bool;
    let uses: [(&str, Uses); 9] = [
        ("clusterIP", needs_cluster_ip),
        ("clusterIPs", needs_cluster_ip),
        ("ipFamilies", needs_cluster_ip),
        ("ipFamilyPolicy", needs_cluster_ip),
        ("healthCheckNodePort", needs_health_port),
        ("allocateLoadBalancerNodePorts", balanced),
        ("loadBalancerClass", balanced),
        ("externalTrafficPolicy", reached),
        ("internalTrafficPolicy", routed),
    ];
    for (field, used) in uses {
        if used(old) && !used(spec) && spec.get(field) == old.get(field) {
            spec.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(v: Value) -> Spec {
        v.as_object().cloned().expect("object")
    }

    #[test]
    fn put_keeps_allocated_values() {
        let old = spec(
            json!({"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"name": "a", "port": 80, "protocol": "TCP", "nodePort": 30001}]}),
        );
        let mut new = spec(
            json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "protocol": "TCP"}, {"name": "b", "port": 81, "protocol": "TCP"}]}),
        );
        inherit(&mut new, &old);
        assert_eq!(new["clusterIPs"], json!(["10.96.0.9"]));
        assert_eq!(new["ports"][0]["nodePort"], 30001);
        assert!(new["ports"][1].get("nodePort").is_none());
        let mut back = spec(
            json!({"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"name": "a", "port": 80, "protocol": "TCP", "nodePort": 30001}]}),
        );
        inherit(&mut back, &old);
        assert!(back["ports"][0].get("nodePort").is_none());
    }

    #[test]
    fn node_ports_follow_port_names() {
        let port = |name: &str, port: u16, node: u16| json!({"name": name, "port": port, "nodePort": node});
        let of = |kind: &str, ports: &[Value]| spec(json!({"type": kind, "ports": ports}));
        let old = of("NodePort", &[port("a", 80, 30001), port("b", 81, 30002)]);
        let mut balanced = of("LoadBalancer", &[port("a", 80, 0)]);
        balanced.insert("allocateLoadBalancerNodePorts".to_owned(), json!(false));
        inherit(&mut balanced, &old);
        assert_eq!(balanced["ports"][0]["nodePort"], 30001);
        for (kind, ports, want) in [
            // Another number is the same port, another name is not.
            ("NodePort", [port("a", 90, 0), port("c", 81, 0)], [30001, 0]),
            ("NodePort", [port("b", 80, 0), port("a", 81, 0)], [30002, 30001]),
            // What one port asks for is not kept for another.
            ("NodePort", [port("a", 80, 30002), port("b", 81, 0)], [30002, 0]),
            ("ClusterIP", [port("a", 80, 30001), port("c", 81, 0)], [0, 0]),
            ("ClusterIP", [port("a", 80, 30001), port("c", 81, 30003)], [30001, 30003]),
        ] {
            let mut new = of(kind, &ports);
            inherit(&mut new, &old);
            assert_eq!([0, 1].map(|i| number(&new["ports"][i]["nodePort"])), want, "{kind} {ports:?}");
        }
    }

    #[test]
    fn fields_of_the_old_type_are_dropped() {
        let balanced = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30002,
            "allocateLoadBalancerNodePorts": true, "internalTrafficPolicy": "Cluster"});
        for (kind, want) in [
            (
                "NodePort",
                json!({"type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster"}),
            ),
            ("ClusterIP", json!({"type": "ClusterIP", "internalTrafficPolicy": "Cluster"})),
            ("ExternalName", json!({"type": "ExternalName"})),
        ] {
            let old = json!({"spec": balanced});
            let mut new = old.clone();
            new["spec"]["type"] = json!(kind);
            prepare(&mut new, &old);
            assert_eq!(new["spec"], want, "{kind}");
        }
    }

    #[test]
    fn a_name_elsewhere_needs_no_address() {
        let old = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster"});
        let mut new = json!({"spec": old});
        (new["spec"]["type"], new["spec"]["externalName"]) = (json!("ExternalName"), json!("a.example.com"));
        prepare(&mut new, &json!({"spec": old}));
        assert_eq!(new["spec"], json!({"type": "ExternalName", "externalName": "a.example.com"}));
        // An address that somebody chose is not overlooked.
        new = json!({"spec": {"type": "ExternalName", "clusterIP": "10.0.0.8"}});
        prepare(&mut new, &json!({"spec": old}));
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.8");
    }
}
