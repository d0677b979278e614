//! A second scheduler, written from the documentation alone: which nodes a pod fits and what each of them scores.
//!
//! It reads API objects as JSON, asks every rule about every node and remembers nothing, so that it shares neither code nor
//! mistakes with the plugins: nothing of `model`, `plugins` or `framework` may be used here but by [`tests`], which lets
//! both decide about random clusters. Slow on purpose.

mod devices;
mod nodes;
mod pods;
mod resources;
mod selectors;
mod volumes;

mod random;
mod tests;

use std::collections::BTreeMap;

use serde_json::Value;

use self::resources::Scoring;

/// The best a node can get from one plugin.
const BEST: i64 = 100;

/// Every object there is, by kind.
#[derive(Debug, Clone, Default)]
struct World(BTreeMap<&'static str, Vec<Value>>);

impl World {
    /// Objects of a kind.
    fn all(&self, kind: &str) -> &[Value] {
        self.0.get(kind).map_or(&[], Vec::as_slice)
    }

    fn all_mut(&mut self, kind: &'static str) -> &mut Vec<Value> {
        self.0.entry(kind).or_default()
    }

    /// An object by name; `namespace` is null for what has none.
    fn find(&self, kind: &str, namespace: &Value, name: &Value) -> Option<&Value> {
        let it = |o: &&Value| o["metadata"]["name"] == *name && o["metadata"]["namespace"] == *namespace;
        self.all(kind).iter().find(it)
    }

    /// Pods on a node.
    fn pods_on<'a>(&'a self, node: &'a Value) -> impl Iterator<Item = &'a Value> {
        self.all("Pod").iter().filter(|p| p["spec"]["nodeName"] == node["metadata"]["name"])
    }

    /// Pods that wait, have been promised this node, and come before the pod or with it.
    fn promised(&self, node: &Value, pod: &Value) -> Vec<Value> {
        let waits = |p: &&Value| {
            p["spec"]["nodeName"].is_null()
                && p["status"]["nominatedNodeName"] == node["metadata"]["name"]
                && p["metadata"]["uid"] != pod["metadata"]["uid"]
                && int(&p["spec"]["priority"]) >= int(&pod["spec"]["priority"])
        };
        self.all("Pod").iter().filter(waits).cloned().collect()
    }
}

/// Nodes that fit and the score of each plugin there, weighted and by name.
type Decision = BTreeMap<String, BTreeMap<&'static str, i64>>;

/// Predicate: reports whether a pod may go to a node.
type Rule = fn(&World, &Value, &Value) -> bool;

/// Returns the plugin that keeps a pod off a node; none when it fits.
fn objection(world: &World, pod: &Value, node: &Value) -> Option<&'static str> {
    let rules: [(&str, Rule); 13] = [
        ("NodeUnschedulable", |_, p, n| nodes::schedulable(p, n)),
        ("NodeName", |_, p, n| p["spec"]["nodeName"].is_null() || p["spec"]["nodeName"] == n["metadata"]["name"]),
        ("TaintToleration", |_, p, n| nodes::tolerated(p, n)),
        ("NodeAffinity", |_, p, n| nodes::selected(p, n)),
        ("NodePorts", nodes::ports_are_free),
        ("NodeResourcesFit", resources::fits),
        ("VolumeRestrictions", volumes::no_conflict),
        ("NodeVolumeLimits", volumes::attachable),
        ("VolumeBinding", volumes::bindable),
        ("VolumeZone", volumes::in_zone),
        ("PodTopologySpread", pods::spreads),
        ("InterPodAffinity", pods::gets_along),
        ("DynamicResources", devices::enough),
    ];
    rules.iter().find(|(_, fits)| !fits(world, pod, node)).map(|(name, _)| *name)
}

/// Fits beside those who are there, and beside those who are about to come as well.
fn fits(world: &World, pod: &Value, node: &Value) -> bool {
    let promised = world.promised(node, pod);
    if promised.is_empty() {
        return objection(world, pod, node).is_none();
    }
    let mut crowded = world.clone();
    for p in &promised {
        let all = crowded.all_mut("Pod");
        all.retain(|other| other["metadata"]["uid"] != p["metadata"]["uid"]);
        let mut there = p.clone();
        there["spec"]["nodeName"] = node["metadata"]["name"].clone();
        all.push(there);
    }
    // Whom affinity does not concern as things are is not asked about those who are about to come, either.
    let unconcerned = |plugin: &&str| *plugin == "InterPodAffinity" && !pods::concerned(world, pod);
    objection(&crowded, pod, node).filter(|plugin| !unconcerned(plugin)).is_none()
        && objection(world, pod, node).is_none()
}

/// Decides.
fn decide(world: &World, pod: &Value, scoring: &Scoring) -> Decision {
    let fitting: Vec<&Value> = world.all("Node").iter().filter(|n| fits(world, pod, n)).collect();
    let mut out: Decision = fitting.iter().map(|n| (text(&n["metadata"]["name"]), BTreeMap::new())).collect();
    let scores: [(&'static str, i64, Vec<i64>); 7] = [
        ("TaintToleration", 3, nodes::taint_scores(pod, &fitting)),
        ("NodeAffinity", 2, nodes::affinity_scores(pod, &fitting)),
        ("NodeResourcesFit", 1, fitting.iter().map(|n| scoring.fit(world, pod, n)).collect()),
        ("PodTopologySpread", 2, pods::spread_scores(world, pod, &fitting)),
        ("InterPodAffinity", 2, pods::affinity_scores(world, pod, &fitting)),
        ("NodeResourcesBalancedAllocation", 1, fitting.iter().map(|n| scoring.balance(world, pod, n)).collect()),
        ("ImageLocality", 1, nodes::image_scores(world, pod, &fitting)),
    ];
    for (plugin, weight, of) in scores {
        for (node, score) in fitting.iter().zip(of) {
            assert!((0..=BEST).contains(&score), "{plugin}: {score}");
            out.entry(text(&node["metadata"]["name"])).or_default().insert(plugin, score * weight);
        }
    }
    out
}

fn text(v: &Value) -> String {
    v.as_str().unwrap_or_default().to_owned()
}

fn int(v: &Value) -> i64 {
    v.as_i64().unwrap_or_default()
}

/// Elements of a list; none when there is no list.
fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().into_iter().flatten()
}
