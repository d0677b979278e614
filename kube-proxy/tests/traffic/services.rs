//! The services of the suite, as a cluster has them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_proxy::plan::{Delta, Desired, Family, NodeFacts};
use serde_json::{Value, json};

use testkit::network::{FAMILIES, PORT, Prefixes, balancer};

/// Name of the node.
pub const NODE: &str = "node";

/// Addresses of services in one family.
pub struct Addresses {
    pub v4: bool,
    prefixes: &'static Prefixes,
}

impl Addresses {
    pub fn of(family: Family) -> Self {
        let v4 = family == Family::V4;
        Self { v4, prefixes: &FAMILIES[usize::from(!v4)] }
    }

    /// Cluster IP number `n`.
    pub fn cluster(&self, n: u16) -> String {
        if self.v4 { format!("10.96.0.{n}") } else { format!("2001:db8:96::{n}") }
    }

    /// External or load-balancer address number `n`.
    pub fn external(&self, n: u16) -> String {
        if self.v4 { format!("203.0.113.{n}") } else { format!("2001:db8:113::{n}") }
    }

    /// Address of the LAN with this last part.
    pub fn lan(&self, host: &str) -> String {
        format!("{}{host}", self.prefixes.lan)
    }

    /// Pods of both nodes.
    pub fn pods(&self) -> String {
        if self.v4 { "10.244.0.0/16".to_owned() } else { "2001:db8:244::/47".to_owned() }
    }

    /// Networks of cluster IPs.
    pub fn services(&self) -> &'static str {
        if self.v4 { "10.96.0.0/16" } else { "2001:db8:96::/64" }
    }

    fn one(&self, address: &str) -> String {
        format!("{address}/{}", if self.v4 { 32 } else { 128 })
    }

    /// Address and node of a server.
    fn server(&self, name: &str) -> (String, &'static str) {
        match name {
            "a" => (format!("{}2", self.prefixes.pods), NODE),
            "b" => (format!("{}3", self.prefixes.pods), NODE),
            "c" => (format!("{}2", self.prefixes.other_pods), "other"),
            "host" => (self.lan("1"), NODE),
            other => panic!("no server {other}"),
        }
    }

    /// An endpoint: its server's name, and marks. `t` terminates and serves, `n` is not ready, `1` and `2` are for zones z1
    /// and z2, `h` is for this node and `o` for the other one.
    fn endpoint(&self, text: &str) -> Value {
        let (name, marks) = text.split_once(':').unwrap_or((text, ""));
        let (address, node) = self.server(name);
        let has = |mark: char| marks.contains(mark);
        let mut endpoint = json!({
            "addresses": [address], "nodeName": node,
            "conditions": {"ready": !has('t') && !has('n'), "serving": !has('n'), "terminating": has('t')},
        });
        for (mark, hints) in [
            ('1', json!({"forZones": [{"name": "z1"}]})),
            ('2', json!({"forZones": [{"name": "z2"}]})),
            ('h', json!({"forNodes": [{"name": NODE}]})),
            ('o', json!({"forNodes": [{"name": "other"}]})),
        ] {
            if has(mark) {
                endpoint["hints"] = hints;
            }
        }
        endpoint
    }
}

/// A service: its number (of its addresses), its endpoints, and what its spec and status have besides.
struct Row(u16, &'static str, Value);

fn rows(addresses: &Addresses) -> Vec<Row> {
    let ingress = |ip: String, mode: &str| json!({"ingress": [{"ip": ip, "ipMode": mode}]});
    let vip = |n: u16| ingress(addresses.external(n), "VIP");
    let ranges = |host: &str| json!([addresses.one(&addresses.lan(host))]);
    vec![
        Row(10, "a b c", json!({})),
        Row(11, "a c", json!({"internalTrafficPolicy": "Local"})),
        Row(12, "c", json!({"internalTrafficPolicy": "Local"})),
        Row(13, "", json!({"node": 30013, "externalIPs": [addresses.external(13)], "balancer": vip(113)})),
        Row(14, "a c", json!({"node": 30014})),
        Row(15, "a c", json!({"node": 30015, "externalTrafficPolicy": "Local"})),
        Row(16, "c", json!({"node": 30016, "externalTrafficPolicy": "Local"})),
        Row(17, "a c", json!({"externalIPs": [addresses.external(17)]})),
        Row(
            18,
            "a c",
            json!({"externalIPs": [addresses.external(18)], "externalTrafficPolicy": "Local", "node": 30018}),
        ),
        Row(19, "a c", json!({"node": 30019, "balancer": vip(19)})),
        Row(20, "a c", json!({"node": 30020, "balancer": vip(20), "externalTrafficPolicy": "Local", "health": 32020})),
        Row(21, "a", json!({"node": 30021, "balancer": vip(21), "loadBalancerSourceRanges": ranges("100")})),
        Row(22, "a", json!({"node": 30022, "balancer": vip(22), "loadBalancerSourceRanges": ranges("1")})),
        Row(23, "a", json!({"node": 30023, "balancer": ingress(balancer(addresses.v4).to_owned(), "Proxy")})),
        Row(24, "a b c", json!({"sessionAffinity": "ClientIP", "node": 30024})),
        Row(25, "a:t", json!({})),
        Row(26, "a:t b", json!({})),
        Row(27, "a:t c", json!({"node": 30027, "externalTrafficPolicy": "Local"})),
        Row(28, "a:n c:n", json!({"node": 30028})),
        Row(29, "a:1 c:2", json!({})),
        Row(30, "a:1 c", json!({})),
        Row(31, "a:h c:o", json!({})),
        Row(32, "a:2 c:2", json!({})),
        Row(33, "host", json!({"node": 30033})),
        Row(34, "a c", json!({"protocol": "UDP", "node": 30034})),
        Row(35, "", json!({"protocol": "UDP", "node": 30035})),
        Row(36, "a c", json!({"protocol": "UDP", "node": 30036, "externalTrafficPolicy": "Local"})),
        Row(37, "a", json!({"node": 30037, "externalIPs": [addresses.external(17)], "port": 81})),
        Row(38, "a b", json!({"sessionAffinity": "ClientIP", "protocol": "UDP"})),
        Row(39, "c:t a:n", json!({"node": 30039})),
        Row(40, "a", json!({"clusterIP": "None"})),
        Row(41, "a", json!({"type": "ExternalName", "externalName": "example.com"})),
        Row(42, "a c", json!({"labels": {"service.kubernetes.io/service-proxy-name": "other"}})),
        Row(44, "a c", json!({"protocol": "SCTP", "node": 30044})),
        Row(45, "a", json!({"protocol": "SCTP", "node": 30045, "externalTrafficPolicy": "Local"})),
        Row(46, "a b", json!({"protocol": "SCTP", "sessionAffinity": "ClientIP"})),
        Row(47, "", json!({"protocol": "SCTP"})),
        Row(43, "a", json!({"protocol": "UDP", "externalIPs": [addresses.external(43)]})),
    ]
}

fn objects(addresses: &Addresses, Row(n, endpoints, more): &Row) -> (Service, EndpointSlice) {
    let name = format!("s{n}");
    let protocol = more.get("protocol").cloned().unwrap_or_else(|| json!("TCP"));
    let cluster_ip = more["clusterIP"].as_str().map_or_else(|| addresses.cluster(*n), str::to_owned);
    let kind = if more["balancer"].is_object() {
        "LoadBalancer"
    } else if more["node"].is_u64() {
        "NodePort"
    } else {
        "ClusterIP"
    };
    let mut spec = json!({
        "type": kind, "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
        "ports": [{"port": more["port"].as_u64().unwrap_or(80), "protocol": protocol, "nodePort": more["node"]}],
        "healthCheckNodePort": more["health"],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        if !matches!(field.as_str(), "protocol" | "node" | "balancer" | "health" | "port" | "labels" | "clusterIP") {
            spec[field] = value.clone();
        }
    }
    let service = json!({
        "metadata": {"namespace": "n", "name": name, "labels": more["labels"]},
        "spec": spec, "status": {"loadBalancer": more["balancer"]},
    });
    let slice = json!({
        "metadata": {"namespace": "n", "name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": if addresses.v4 { "IPv4" } else { "IPv6" },
        "ports": [{"port": PORT, "protocol": protocol}],
        "endpoints": endpoints.split_whitespace().map(|text| addresses.endpoint(text)).collect::<Vec<_>>(),
    });
    let service = serde_json::from_value(service).expect("a service");
    (service, serde_json::from_value(slice).expect("a slice"))
}

/// Plan for all services, and the ports that are in it.
pub fn desired(family: Family) -> (Desired, Delta) {
    let addresses = Addresses::of(family);
    let node = NodeFacts { name: NODE.to_owned(), zone: Some("z1".to_owned()) };
    let (mut desired, mut delta) = (Desired::default(), Delta::default());
    for row in rows(&addresses) {
        let (service, slice) = objects(&addresses, &row);
        let name = service.metadata.name.clone().expect("a name");
        desired.replace(("n", &name), Some(&service), &[Arc::new(slice)], (&node, family), &mut delta);
    }
    (desired, delta)
}
