//! Services at random, from a seed.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_proxy::plan::Family;
use serde_json::{Value, json};

/// Numbers from a seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        u32::try_from(number % u64::from(limit)).expect("below a number of 32 bits")
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn choose(&mut self, words: &[&str]) -> String {
        let count = u32::try_from(words.len()).expect("few words");
        words[self.below(count) as usize].to_owned()
    }

    /// A service with its endpoints, or none: it is deleted. Addresses and ports of several services are the same now and
    /// then.
    pub fn service(&mut self, name: &str, family: Family) -> Option<(Service, EndpointSlice)> {
        if self.one_in(6) {
            return None;
        }
        let v4 = family == Family::V4;
        let service_ip = |n: u32| if v4 { format!("10.96.0.{n}") } else { format!("2001:db8:96::{n}") };
        let outside = |n: u32| if v4 { format!("203.0.113.{n}") } else { format!("2001:db8:113::{n}") };
        let number: u32 = name.trim_start_matches('s').parse().expect("a number");
        let cluster_ip = service_ip(if self.one_in(20) { 99 } else { 10 + number });
        let has_node_port = self.one_in(2);
        let protocols = ["TCP", "TCP", "UDP"];
        let ports: Vec<Value> = (0..=self.below(2))
            .map(|at| {
                let node_port = has_node_port.then(|| 30_000 + number * 10 + at);
                json!({"name": format!("p{at}"), "port": 80 + at, "protocol": self.choose(&protocols), "nodePort": node_port})
            })
            .collect();
        let external = self.choose(&["Cluster", "Local"]);
        let mut spec = json!({
            "type": if has_node_port { "LoadBalancer" } else { "ClusterIP" },
            "clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": ports,
            "internalTrafficPolicy": self.choose(&["Cluster", "Cluster", "Local"]),
            "externalTrafficPolicy": external,
        });
        if self.one_in(3) {
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 60 + 60 * self.below(2)}});
        }
        if self.one_in(3) {
            spec["externalIPs"] = json!([outside(1 + self.below(4))]);
        }
        let mut status = json!({});
        if has_node_port && self.one_in(2) {
            status =
                json!({"loadBalancer": {"ingress": [{"ip": outside(20 + number + self.below(2)), "ipMode": "VIP"}]}});
            if self.one_in(2) {
                let ranges =
                    if v4 { ["192.0.2.0/24", "198.51.100.0/24"] } else { ["2001:db8:1::/64", "2001:db8:2::/64"] };
                spec["loadBalancerSourceRanges"] = json!([self.choose(&ranges)]);
            }
            if external == "Local" {
                spec["healthCheckNodePort"] = (32_000 + number).into();
            }
        }
        let slice = json!({
            "metadata": {"namespace": "n", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": family.address_type(),
            "ports": ports.iter().map(|port| json!({"name": port["name"], "port": 8080, "protocol": port["protocol"]})).collect::<Vec<_>>(),
            "endpoints": self.endpoints(v4),
        });
        let service = json!({"metadata": {"namespace": "n", "name": name}, "spec": spec, "status": status});
        Some((serde_json::from_value(service).expect("a service"), serde_json::from_value(slice).expect("a slice")))
    }

    fn endpoints(&mut self, v4: bool) -> Vec<Value> {
        let mut all = Vec::new();
        for pod in 0..6_u32 {
            if self.one_in(2) {
                continue;
            }
            let address = if v4 {
                format!("10.244.{}.{}", pod % 2, 2 + pod)
            } else {
                format!("2001:db8:{}::{}", 244 + pod % 2, 2 + pod)
            };
            let state = self.below(5);
            all.push(json!({
                "addresses": [address], "nodeName": if pod % 2 == 0 { "node" } else { "other" },
                "conditions": {"ready": state > 1, "serving": state > 0, "terminating": state == 1},
            }));
        }
        all
    }
}
