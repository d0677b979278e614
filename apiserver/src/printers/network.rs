//! Rows of services and what belongs to them. Answers for upstream's `printService`, `printEndpointSlice`,
//! `printIngress`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use proto::Value;
use serde_json::json;
use shared::host_port;

use super::text::{age, name};
use super::text::{int, labels, list, selector, some, text, text_or};

/// Most characters of a load balancer's addresses in a narrow column.
const NARROW: usize = 16;

fn load_balancer(o: &Value) -> String {
    let all: BTreeSet<&str> = list(o, "/status/loadBalancer/ingress")
        .iter()
        .map(|i| text_or(i, "/ip", text(i, "/hostname")))
        .filter(|t| !t.is_empty())
        .collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

fn strings(o: &Value, pointer: &str) -> Vec<String> {
    list(o, pointer).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn external(o: &Value) -> String {
    let external = strings(o, "/spec/externalIPs");
    let given = if external.is_empty() { "<none>".to_owned() } else { external.join(",") };
    match text(o, "/spec/type") {
        "LoadBalancer" => {
            let balanced = load_balancer(o);
            match (balanced.is_empty(), external.is_empty()) {
                (true, true) => "<pending>".to_owned(),
                (false, true) => balanced,
                (true, false) => external.join(","),
                (false, false) => format!("{balanced},{}", external.join(",")),
            }
        }
        "ExternalName" => text(o, "/spec/externalName").to_owned(),
        _ => given,
    }
}

pub(crate) fn service(o: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(o, "/spec/ports")
        .iter()
        .map(|p| match int(p, "/nodePort") {
            0 => format!("{}/{}", int(p, "/port"), text_or(p, "/protocol", "TCP")),
            n => format!("{}:{n}/{}", int(p, "/port"), text_or(p, "/protocol", "TCP")),
        })
        .collect();
    let ip = strings(o, "/spec/clusterIPs").into_iter().next().unwrap_or_default();
    vec![
        name(o),
        json!(text(o, "/spec/type")),
        json!(if ip.is_empty() { "<none>".to_owned() } else { ip }),
        json!(external(o)),
        json!(if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") }),
        age(o, now),
        json!(labels(o.pointer("/spec/selector"))),
    ]
}

pub(crate) fn endpoints(o: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(o, "/subsets") {
        let addresses = list(subset, "/addresses");
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses.iter().map(|a| text(a, "/ip").to_owned()));
        }
        for p in ports {
            all.extend(addresses.iter().map(|a| host_port::join(text(a, "/ip"), int(p, "/port"))));
        }
    }
    let shown = if all.is_empty() { "<none>".to_owned() } else { some(&all, 3, ",") };
    vec![name(o), json!(shown), age(o, now)]
}

pub(crate) fn endpoint_slice(o: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(o, "/ports")
        .iter()
        .map(|p| match (p["port"].as_i64(), text(p, "/name")) {
            (Some(n), _) => n.to_string(),
            (None, "") => "*".to_owned(),
            (None, name) => name.to_owned(),
        })
        .collect();
    let addresses: Vec<String> = list(o, "/endpoints").iter().flat_map(|e| strings(e, "/addresses")).collect();
    let shown = |all: &[String]| if all.is_empty() { "<unset>".to_owned() } else { some(all, 3, ",") };
    vec![name(o), json!(text(o, "/addressType")), json!(shown(&ports)), json!(shown(&addresses)), age(o, now)]
}

pub(crate) fn ingress(o: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<String> =
        list(o, "/spec/rules").iter().map(|r| text(r, "/host").to_owned()).filter(|h| !h.is_empty()).collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { some(&hosts, 3, ",") };
    let mut address = load_balancer(o);
    if address.len() > NARROW {
        let cut = (0..=NARROW - 3).rev().find(|i| address.is_char_boundary(*i)).unwrap_or(0);
        address = format!("{}...", &address[..cut]);
    }
    let ports = if list(o, "/spec/tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name(o),
        json!(text_or(o, "/spec/ingressClassName", "<none>")),
        json!(hosts),
        json!(address),
        json!(ports),
        age(o, now),
    ]
}

pub(crate) fn ingress_class(o: &Value, now: Timestamp) -> Vec<Value> {
    let p = &o["spec"]["parameters"];
    let parameters = match (p.is_object(), text(p, "/apiGroup")) {
        (false, _) => "<none>".to_owned(),
        (true, "") => format!("{}/{}", text(p, "/kind"), text(p, "/name")),
        (true, group) => format!("{}.{group}/{}", text(p, "/kind"), text(p, "/name")),
    };
    vec![name(o), json!(text(o, "/spec/controller")), json!(parameters), age(o, now)]
}

pub(crate) fn network_policy(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(selector(o.pointer("/spec/podSelector"))), age(o, now)]
}

pub(crate) fn service_cidr(o: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(o), json!(strings(o, "/spec/cidrs").join(",")), age(o, now)]
}

pub(crate) fn ip_address(o: &Value, _: Timestamp) -> Vec<Value> {
    let r = &o["spec"]["parentRef"];
    let mut parts = vec![match text(r, "/group") {
        "" => text(r, "/resource").to_owned(),
        g => format!("{}.{g}", text(r, "/resource")),
    }];
    parts.extend(["/namespace", "/name"].iter().map(|p| text(r, p).to_owned()).filter(|t| !t.is_empty()));
    let parent = if r.is_object() { parts.join("/") } else { "<none>".to_owned() };
    vec![name(o), json!(parent)]
}
