//! Topology-aware hints: which zone each endpoint serves, so that every zone has endpoints in proportion to its CPUs.
//!
//! Hints are given only where no zone gets overloaded by them; otherwise there are none, and the service is told why.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use proto::quantity::Quantity;

use super::draft::{Draft, Hints};
use super::plan::ZONE;
use crate::engine::{nodes, object};

/// How much more than its share an endpoint may get.
const OVERLOAD: f64 = 0.2;
/// Nodes with these labels do not count.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The share of each zone in the CPUs of the ready nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Zones {
    /// By zone; they add up to one.
    Shares(BTreeMap<String, f64>),
    /// A node lacks a zone or says nothing of its CPUs.
    Unknown,
    /// All ready nodes are in one zone, or there are none.
    One,
}

/// Whether the service asks for hints.
#[must_use]
pub fn wanted(service: &Service) -> bool {
    let mode = ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"]
        .iter()
        .find_map(|a| object::annotation(&service.metadata, a));
    matches!(mode, Some("Auto" | "auto"))
}

/// What of a node matters here.
#[must_use]
pub fn view(node: &Node) -> (Option<String>, bool, bool, Option<String>) {
    let cpu = node.status.as_ref().and_then(|s| s.allocatable.as_ref()?.get("cpu")).map(|q| q.0.clone());
    let excluded = EXCLUDED.iter().any(|l| object::label(&node.metadata, l).is_some());
    (object::label(&node.metadata, ZONE).map(str::to_owned), nodes::ready(node), excluded, cpu)
}

impl Zones {
    /// Of these nodes.
    #[must_use]
    pub fn of(all: &[Arc<Node>]) -> Self {
        let mut by_zone: BTreeMap<String, f64> = BTreeMap::new();
        for node in all {
            let (zone, ready, excluded, cpu) = view(node);
            if excluded || !ready {
                continue;
            }
            let cpu = cpu.and_then(|c| Quantity::parse(&c).ok()).and_then(|q| milli(&q)).filter(|m| *m > 0.0);
            let (Some(zone), Some(cpu)) = (zone.filter(|z| !z.is_empty()), cpu) else { return Self::Unknown };
            *by_zone.entry(zone).or_default() += cpu;
        }
        if by_zone.len() < 2 {
            return Self::One;
        }
        let total: f64 = by_zone.values().sum();
        Self::Shares(by_zone.into_iter().map(|(z, cpu)| (z, cpu / total)).collect())
    }
}

fn milli(q: &Quantity) -> Option<f64> {
    let text = q.to_string();
    match text.strip_suffix('m') {
        Some(n) => n.parse().ok(),
        None => text.parse::<f64>().ok().map(|n| n * 1000.0),
    }
}

/// Give every ready endpoint the zone it serves; or say why there are no hints.
pub fn allocate<'a>(zones: &'a Zones, endpoints: &mut [&mut Draft<'a>]) -> Result<(), String> {
    for e in endpoints.iter_mut() {
        e.hints = None;
    }
    let mut ready: Vec<&mut &mut Draft<'a>> = endpoints.iter_mut().filter(|e| e.ready).collect();
    ready.sort_by(|a, b| a.addresses().cmp(b.addresses()));
    let shares = match zones {
        Zones::Shares(shares) => shares,
        Zones::Unknown => {
            return Err(
                "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes".into()
            );
        }
        Zones::One => return Err("Nodes only ready in one zone".into()),
    };
    let counts = format!("({} endpoints, {} zones)", ready.len(), shares.len());
    if shares.len() > ready.len() {
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small counts"
    )]
    let minimum = |share: f64| (share * ready.len() as f64 / (1.0 + OVERLOAD)).ceil() as usize;
    let needs: BTreeMap<&'a str, usize> = shares.iter().map(|(z, s)| (z.as_str(), minimum(*s))).collect();
    if needs.values().sum::<usize>() > ready.len() {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {counts}"
        ));
    }
    let mut serves: Vec<&'a str> = Vec::with_capacity(ready.len());
    for e in &ready {
        let Some(zone) = e.zone.filter(|z| !z.is_empty()) else {
            return Err("One or more endpoints do not have a zone specified".into());
        };
        serves.push(zone);
    }
    balance(&mut serves, &needs);
    for (e, zone) in ready.into_iter().zip(serves) {
        e.hints = Some(Hints { zone: Some(zone), node: None });
    }
    Ok(())
}

/// Move endpoints from the zones with the most to spare to those that lack some.
fn balance<'a>(serves: &mut [&'a str], needs: &BTreeMap<&'a str, usize>) {
    let count = |serves: &[&str], zone: &str| serves.iter().filter(|z| **z == zone).count();
    for (poor, need) in needs {
        while count(serves, poor) < *need {
            let spare = |i: &usize| {
                let zone = serves[*i];
                count(serves, zone).saturating_sub(needs.get(zone).copied().unwrap_or(0))
            };
            let giver =
                (0..serves.len()).filter(|i| serves[*i] != *poor && spare(i) > 0).max_by_key(|i| (spare(i), *i));
            let Some(giver) = giver else { return };
            serves[giver] = poor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pod::Pod;
    use serde_json::json;

    fn node(zone: &str, cpu: &str, ready: &str) -> Arc<Node> {
        Arc::new(
            serde_json::from_value(
                json!({"metadata": {"labels": {ZONE: zone}}, "status": {"allocatable": {"cpu": cpu},
                "conditions": [{"type": "Ready", "status": ready}]}}),
            )
            .expect("node"),
        )
    }

    fn hints(zones: &Zones, of: &[&str]) -> Result<Vec<String>, String> {
        let pod = |i: usize| json!({"status": {"podIP": format!("10.0.0.{i:02}")}});
        let pods: Vec<Pod> = (0..of.len()).map(|i| serde_json::from_value(pod(i)).expect("pod")).collect();
        let mut all: Vec<Draft<'_>> = of.iter().zip(&pods).map(|(zone, pod)| Draft::ready(pod, zone)).collect();
        allocate(zones, &mut all.iter_mut().collect::<Vec<_>>())?;
        Ok(all.iter().filter_map(|e| e.hints?.zone.map(str::to_owned)).collect())
    }

    #[test]
    fn endpoints_serve_their_zone_where_that_is_fair() {
        let even = Zones::of(&[node("a", "2", "True"), node("b", "2000m", "True"), node("c", "64", "False")]);
        assert_eq!(even, Zones::Shares(BTreeMap::from([("a".into(), 0.5), ("b".into(), 0.5)])));
        assert_eq!(hints(&even, &["a", "a", "b", "b"]).expect("hints"), ["a", "a", "b", "b"]);
        assert_eq!(
            hints(&even, &["a", "a", "a", "a"]).expect("hints"),
            ["a", "a", "b", "b"],
            "one zone gives to the other"
        );
        assert_eq!(hints(&even, &["a"]).unwrap_err(), "Insufficient number of endpoints (1 endpoints, 2 zones)");
        assert_eq!(
            hints(&even, &["a", "", "b", "b"]).unwrap_err(),
            "One or more endpoints do not have a zone specified"
        );
        assert_eq!(hints(&Zones::of(&[node("a", "1", "True")]), &["a"]).unwrap_err(), "Nodes only ready in one zone");
        assert!(hints(&Zones::of(&[node("", "1", "True")]), &["a"]).unwrap_err().starts_with("Insufficient Node"));
        let skewed = Zones::Shares(BTreeMap::from([("a".into(), 0.45), ("b".into(), 0.45), ("c".into(), 0.1)]));
        let refused = hints(&skewed, &["a", "b", "c"]).unwrap_err();
        assert!(refused.starts_with("Unable to allocate minimum required endpoints"), "{refused}");
    }
}
