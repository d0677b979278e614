//! Topology-aware hints: which zone each endpoint serves, so that every zone has endpoints in proportion to its CPUs.
//! Answers for upstream's `k8s.io/endpointslice/topologycache`.
//!
//! Hints are given only where no zone gets overloaded by them; otherwise there are none, and the service is told why.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use proto::quantity::Quantity;

use super::draft::{Draft, Hints};
use crate::engine::nodes::ZONE;
use crate::engine::{metrics, nodes, object};

/// Fraction above its share that an endpoint may get.
const OVERLOAD: f64 = 0.2;
/// Nodes with these labels do not count.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The share of each zone in the CPUs of the ready nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Zones {
    /// By zone; they add up to one.
    Shares(BTreeMap<String, f64>),
    /// A node lacks a zone or says nothing of its CPUs, or all ready nodes are in one zone.
    Unknown,
}

/// Reports whether the service asks for hints; the older annotation comes first.
#[must_use]
pub fn wanted(service: &Service) -> bool {
    let mode = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"]
        .iter()
        .find_map(|a| object::annotation(&service.metadata, a));
    matches!(mode, Some("Auto" | "auto"))
}

/// Reports whether a changed node changes the zones. Upstream asks no more of it.
#[must_use]
pub fn moved(old: &Node, new: &Node) -> bool {
    let zone = |n: &Node| object::label(&n.metadata, ZONE).map(str::to_owned);
    nodes::ready(old) != nodes::ready(new) || zone(old) != zone(new)
}

/// Returns the fields of a node that matter here.
fn view(node: &Node) -> (Option<String>, bool, bool, Option<String>) {
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
            return Self::Unknown;
        }
        let total: f64 = by_zone.values().sum();
        Self::Shares(by_zone.into_iter().map(|(z, cpu)| (z, cpu / total)).collect())
    }
}

/// Number of endpoints that serve each zone.
pub type Served = BTreeMap<String, usize>;

/// Reports whether hints that were given leave a zone with too little, now that the zones are these.
#[must_use]
pub fn overloaded(served: &Served, zones: &Zones) -> bool {
    if served.is_empty() {
        return false;
    }
    let Zones::Shares(shares) = zones else { return true };
    let total = float(served.values().sum());
    shares.iter().any(|(zone, share)| served.get(zone).is_none_or(|n| float(*n) < minimum(*share, total)))
}

/// The least that a zone with this share may be given.
fn minimum(share: f64, total: f64) -> f64 {
    (share * total * (1.0 / (1.0 + OVERLOAD))).ceil()
}

fn milli(q: &Quantity) -> Option<f64> {
    let text = q.to_string();
    match text.strip_suffix('m') {
        Some(n) => n.parse().ok(),
        None => text.parse::<f64>().ok().map(|n| n * 1000.0),
    }
}

/// Reasons for which slices have no hints, in upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoHints {
    /// A node has no zone, or does not say how much CPU it has.
    #[error("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes")]
    Nodes,
    /// There are more zones than endpoints.
    #[error("Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)")]
    Endpoints {
        /// Ready endpoints.
        endpoints: usize,
        /// Zones.
        zones: usize,
    },
    /// A zone would have too much to do.
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold ({endpoints} endpoints, {zones} zones)"
    )]
    Overload {
        /// Ready endpoints.
        endpoints: usize,
        /// Zones.
        zones: usize,
    },
    /// An endpoint is in no zone.
    #[error("One or more endpoints do not have a zone specified")]
    NoZone,
}

/// Gives every ready endpoint the zone it serves.
///
/// # Errors
/// [`NoHints`].
pub fn allocate<'a>(zones: &'a Zones, endpoints: &mut [&mut Draft<'a>]) -> Result<(), NoHints> {
    for e in endpoints.iter_mut() {
        e.hints = None;
    }
    let mut ready: Vec<&mut &mut Draft<'a>> = endpoints.iter_mut().filter(|e| e.ready).collect();
    ready.sort_by(|a, b| a.addresses().cmp(b.addresses()));
    let Zones::Shares(shares) = zones else {
        return Err(NoHints::Nodes);
    };
    let (endpoints, zones) = (ready.len(), shares.len());
    if zones > endpoints {
        return Err(NoHints::Endpoints { endpoints, zones });
    }
    let total = float(ready.len());
    if shares.values().map(|share| minimum(*share, total)).sum::<f64>() > total {
        return Err(NoHints::Overload { endpoints, zones });
    }
    let mut have: BTreeMap<&str, usize> = BTreeMap::new();
    for e in &ready {
        let Some(zone) = e.zone.filter(|z| !z.is_empty()) else {
            return Err(NoHints::NoZone);
        };
        *have.entry(zone).or_default() += 1;
    }
    // What each zone has too much, or lacks.
    let spare = shares.iter().map(|(zone, share)| {
        let wanted = (share * total).max(minimum(*share, total));
        (zone.as_str(), float(have.get(zone.as_str()).copied().unwrap_or(0)) - wanted)
    });
    let (mut gives, mut takes) = moves(spare.collect());
    for e in ready {
        let own = e.zone.unwrap_or_default();
        let left = gives.get_mut(own).filter(|n| **n > 0);
        let zone = match (left, takes.iter_mut().find(|(_, n)| **n > 0)) {
            (Some(left), Some((zone, needs))) => {
                (*left, *needs) = (*left - 1, *needs - 1);
                *zone
            }
            _ => own,
        };
        e.hints = Some(Hints { zone: Some(zone), node: None });
    }
    Ok(())
}

fn float(n: usize) -> f64 {
    metrics::float(n)
}

type Counts<'a> = BTreeMap<&'a str, usize>;

/// Returns how many endpoints each zone gives away and takes over, one after the other from the zone with the most to
/// the zone with the least, as long as that makes them more even.
fn moves(spare: BTreeMap<&str, f64>) -> (Counts<'_>, Counts<'_>) {
    fn most<'a>(of: &BTreeMap<&'a str, f64>) -> Option<(&'a str, f64)> {
        of.iter().map(|(zone, n)| (*zone, *n)).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(a.0)))
    }
    let (mut rich, mut poor): (BTreeMap<&str, f64>, BTreeMap<&str, f64>) =
        spare.into_iter().partition(|(_, n)| *n > 0.0);
    poor.values_mut().for_each(|n| *n = -*n);
    let (mut gives, mut takes) = (Counts::new(), Counts::new());
    while let (Some((giver, spare)), Some((taker, lacks))) = (most(&rich), most(&poor)) {
        if spare < 0.5 || lacks < 0.5 || (spare < 1.0 && lacks < 1.0) {
            break;
        }
        for (zone, left, counts) in [(giver, &mut rich, &mut gives), (taker, &mut poor, &mut takes)] {
            *left.entry(zone).or_default() -= 1.0;
            *counts.entry(zone).or_default() += 1;
        }
    }
    (gives, takes)
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
        allocate(zones, &mut all.iter_mut().collect::<Vec<_>>()).map_err(|e| e.to_string())?;
        Ok(all.iter().filter_map(|e| e.hints?.zone.map(str::to_owned)).collect())
    }

    #[test]
    fn the_older_annotation_comes_first() {
        let of = |old: &str, new: &str| {
            let annotations =
                json!({"service.kubernetes.io/topology-aware-hints": old, "service.kubernetes.io/topology-mode": new});
            wanted(&serde_json::from_value(json!({"metadata": {"annotations": annotations}})).expect("service"))
        };
        assert_eq!([of("Auto", "Disabled"), of("Disabled", "Auto")], [true, false]);
    }

    #[test]
    fn hints_hold_until_a_zone_has_too_little() {
        let zones = |all: &[(&str, f64)]| Zones::Shares(all.iter().map(|(z, n)| ((*z).to_owned(), *n)).collect());
        let served = |all: &[(&str, usize)]| all.iter().map(|(z, n)| ((*z).to_owned(), *n)).collect::<Served>();
        let even = [("a", 0.5), ("b", 0.5)];
        for (name, given, now, want) in [
            ("nothing was given", served(&[]), Zones::Unknown, false),
            ("as it was", served(&[("a", 5), ("b", 5)]), zones(&even), false),
            ("a little less is borne", served(&[("a", 5), ("b", 5)]), zones(&[("a", 0.6), ("b", 0.4)]), false),
            ("too little", served(&[("a", 5), ("b", 5)]), zones(&[("a", 0.7), ("b", 0.3)]), true),
            ("a zone of its own", served(&[("a", 5), ("b", 5)]), zones(&[("a", 0.4), ("b", 0.4), ("c", 0.2)]), true),
            ("nobody knows the zones", served(&[("a", 5), ("b", 5)]), Zones::Unknown, true),
        ] {
            assert_eq!(overloaded(&given, &now), want, "{name}");
        }
    }

    #[test]
    fn zones_come_closer_to_their_share() {
        for (spare, gives, takes) in [
            (vec![("a", 1.0), ("b", -1.0)], vec![("a", 1)], vec![("b", 1)]),
            (vec![("a", 0.9), ("b", -0.9)], vec![], vec![]),
            (vec![("a", 1.2), ("b", -0.6), ("c", -0.6)], vec![("a", 1)], vec![("b", 1)]),
            (vec![("a", 2.0), ("b", -1.5), ("c", -0.5)], vec![("a", 2)], vec![("b", 2)]),
        ] {
            let got = moves(spare.into_iter().collect());
            assert_eq!(got, (gives.into_iter().collect(), takes.into_iter().collect()));
        }
    }

    #[test]
    fn endpoints_serve_their_zone_where_that_is_fair() {
        let even = Zones::of(&[node("a", "2", "True"), node("b", "2000m", "True"), node("c", "64", "False")]);
        assert_eq!(even, Zones::Shares(BTreeMap::from([("a".into(), 0.5), ("b".into(), 0.5)])));
        assert_eq!(hints(&even, &["a", "a", "b", "b"]).expect("hints"), ["a", "a", "b", "b"]);
        assert_eq!(
            hints(&even, &["a", "a", "a", "a"]).expect("hints"),
            ["b", "b", "a", "a"],
            "one zone gives to the other"
        );
        let crowd = [["a"; 11].as_slice(), ["b"; 9].as_slice()].concat();
        let got = hints(&even, &crowd).expect("hints");
        assert_eq!(got.iter().filter(|z| *z == "b").count(), 10, "not only what would be too little");
        assert_eq!(hints(&even, &["a"]).unwrap_err(), "Insufficient number of endpoints (1 endpoints, 2 zones)");
        assert_eq!(
            hints(&even, &["a", "", "b", "b"]).unwrap_err(),
            "One or more endpoints do not have a zone specified"
        );
        let one = hints(&Zones::of(&[node("a", "1", "True")]), &["a"]).unwrap_err();
        assert!(one.starts_with("Insufficient Node information"), "{one}");
        assert!(hints(&Zones::of(&[node("", "1", "True")]), &["a"]).unwrap_err().starts_with("Insufficient Node"));
        let skewed = Zones::Shares(BTreeMap::from([("a".into(), 0.45), ("b".into(), 0.45), ("c".into(), 0.1)]));
        let refused = hints(&skewed, &["a", "b", "c"]).unwrap_err();
        assert!(refused.starts_with("Unable to allocate minimum required endpoints"), "{refused}");
    }
}
