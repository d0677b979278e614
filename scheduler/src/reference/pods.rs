//! Other pods: spreading, affinity and anti-affinity.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{BEST, World, int, list, nodes, selectors, text};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// The pod's own constraints; without any the cluster's, about the pods of its services and its controller.
fn constraints(world: &World, pod: &Value, when: &str) -> Vec<Value> {
    let own = &pod["spec"]["topologySpreadConstraints"];
    if list(own).next().is_some() {
        return list(own).filter(|c| c["whenUnsatisfiable"] == when).map(|c| with_label_keys(c, pod)).collect();
    }
    let mut requirements = Vec::new();
    let mut add = |labels: &Value| {
        for (key, value) in labels.as_object().into_iter().flatten() {
            requirements.push(json!({"key": key, "operator": "In", "values": [value]}));
        }
    };
    let here = |o: &&Value| o["metadata"]["namespace"] == pod["metadata"]["namespace"];
    for service in world.all("Service").iter().filter(here) {
        let selector = &service["spec"]["selector"];
        if !selector.is_null() && selectors::selects(&json!({"matchLabels": selector}), &pod["metadata"]["labels"]) {
            add(selector);
        }
    }
    let owner = list(&pod["metadata"]["ownerReferences"]).find(|o| o["controller"] == true);
    let set = owner.and_then(|o| world.find("ReplicaSet", &pod["metadata"]["namespace"], &o["name"]));
    if let Some(set) = set {
        add(&set["spec"]["selector"]["matchLabels"]);
    }
    if when != "ScheduleAnyway" || requirements.is_empty() {
        return Vec::new();
    }
    let wish = |key: &str, skew: i64| json!({"topologyKey": key, "maxSkew": skew, "labelSelector": {"matchExpressions": requirements}});
    vec![wish(HOSTNAME, 3), wish(ZONE, 5)]
}

/// `matchLabelKeys` select pods that have the pod's own values.
fn with_label_keys(constraint: &Value, pod: &Value) -> Value {
    let mut out = constraint.clone();
    let mut more: Vec<Value> = list(&constraint["labelSelector"]["matchExpressions"]).cloned().collect();
    for key in list(&constraint["matchLabelKeys"]) {
        let value = &pod["metadata"]["labels"][text(key)];
        if !value.is_null() {
            more.push(json!({"key": key, "operator": "In", "values": [value]}));
        }
    }
    out["labelSelector"]["matchExpressions"] = json!(more);
    out
}

fn label<'a>(node: &'a Value, key: &Value) -> Option<&'a str> {
    node["metadata"]["labels"][text(key)].as_str()
}

fn has_all_keys(constraints: &[Value], node: &Value) -> bool {
    constraints.iter().all(|c| label(node, &c["topologyKey"]).is_some())
}

/// Reports whether a constraint counts the pods of a node.
fn counts_node(c: &Value, pod: &Value, node: &Value) -> bool {
    (c["nodeAffinityPolicy"] == "Ignore" || nodes::selected(pod, node))
        && (c["nodeTaintsPolicy"] != "Honor" || nodes::tolerated(pod, node))
}

fn count(world: &World, c: &Value, pod: &Value, node: &Value) -> i64 {
    if selectors::is_empty(&c["labelSelector"]) {
        return 0;
    }
    let counted = |other: &&Value| {
        other["metadata"]["deletionTimestamp"].is_null()
            && other["metadata"]["namespace"] == pod["metadata"]["namespace"]
            && selectors::selects(&c["labelSelector"], &other["metadata"]["labels"])
    };
    i64::try_from(world.pods_on(node).filter(counted).count()).expect("few")
}

/// No domain gets further ahead of the emptiest one than each constraint allows.
pub(super) fn spreads(world: &World, pod: &Value, node: &Value) -> bool {
    let hard = constraints(world, pod, "DoNotSchedule");
    hard.iter().all(|c| {
        let Some(mine) = label(node, &c["topologyKey"]) else { return false };
        let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
        for n in world.all("Node").iter().filter(|n| has_all_keys(&hard, n) && counts_node(c, pod, n)) {
            *domains.entry(label(n, &c["topologyKey"]).expect("has all")).or_default() += count(world, c, pod, n);
        }
        let wanted = c["minDomains"].as_u64().unwrap_or(1);
        let enough = domains.len() as u64 >= wanted;
        let least = if enough { domains.values().copied().min().unwrap_or(0) } else { 0 };
        let here = domains.get(mine).copied().unwrap_or(0);
        let itself = i64::from(selectors::selects(&c["labelSelector"], &pod["metadata"]["labels"]));
        here + itself - least <= int(&c["maxSkew"])
    })
}

/// Few matching pods in a node's domains are good; domains of which there are more count for more.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
pub(super) fn spread_scores(world: &World, pod: &Value, fitting: &[&Value]) -> Vec<i64> {
    let soft = constraints(world, pod, "ScheduleAnyway");
    if soft.is_empty() {
        return vec![0; fitting.len()];
    }
    // The cluster's own constraints bear with nodes that are in no zone.
    let strict = list(&pod["spec"]["topologySpreadConstraints"]).next().is_some();
    let ignored = |n: &Value| strict && !has_all_keys(&soft, n);
    let judged: Vec<&Value> = fitting.iter().copied().filter(|n| !ignored(n)).collect();
    let weight = |c: &Value| {
        let values: BTreeSet<&str> = judged.iter().map(|n| label(n, &c["topologyKey"]).unwrap_or("")).collect();
        let size = if c["topologyKey"] == HOSTNAME { judged.len() } else { values.len() };
        ((size + 2) as f64).ln()
    };
    let around = |c: &Value, node: &Value| {
        if c["topologyKey"] == HOSTNAME {
            return count(world, c, pod, node);
        }
        let mine = label(node, &c["topologyKey"]);
        let same = |n: &&Value| label(n, &c["topologyKey"]) == mine && !ignored(n) && counts_node(c, pod, n);
        world.all("Node").iter().filter(same).map(|n| count(world, c, pod, n)).sum()
    };
    let raw = |node: &Value| -> i64 {
        let mut sum = 0.0;
        for c in soft.iter().filter(|c| label(node, &c["topologyKey"]).is_some()) {
            sum += around(c, node) as f64 * weight(c) + (int(&c["maxSkew"]) - 1) as f64;
        }
        sum.round() as i64
    };
    let least = judged.iter().map(|n| raw(n)).min().unwrap_or(0);
    let most = judged.iter().map(|n| raw(n)).max().unwrap_or(0);
    let score = |n: &&Value| match most {
        _ if ignored(n) => 0,
        0 => BEST,
        _ => BEST * (most + least - raw(n)) / most,
    };
    fitting.iter().map(score).collect()
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Reports whether a term of a pod speaks of another one.
fn speaks_of(world: &World, term: &Value, pod: &Value, other: &Value) -> bool {
    let namespace = &other["metadata"]["namespace"];
    let named = list(&term["namespaces"]).next().is_some();
    let in_namespace = if !named && term["namespaceSelector"].is_null() {
        *namespace == pod["metadata"]["namespace"]
    } else {
        let labels =
            world.find("Namespace", &Value::Null, namespace).map_or(&Value::Null, |n| &n["metadata"]["labels"]);
        list(&term["namespaces"]).any(|n| n == namespace) || selectors::selects(&term["namespaceSelector"], labels)
    };
    in_namespace && selectors::selects(&term["labelSelector"], &other["metadata"]["labels"])
}

/// Pods on nodes in the same domain as a node; none when it is in no domain.
fn neighbours<'a>(world: &'a World, key: &Value, node: &Value) -> Vec<&'a Value> {
    let Some(mine) = label(node, key) else { return Vec::new() };
    let same = |n: &&Value| label(n, key) == Some(mine);
    world.all("Node").iter().filter(same).flat_map(|n| world.pods_on(n)).collect()
}

fn terms<'a>(pod: &'a Value, kind: &str, when: &str) -> impl Iterator<Item = &'a Value> {
    list(&pod["spec"]["affinity"][kind][when])
}

/// Reports whether the pod has to be near or far from another, or another on a node far from it.
pub(super) fn concerned(world: &World, pod: &Value) -> bool {
    let own = ["podAffinity", "podAntiAffinity"].iter().any(|kind| terms(pod, kind, REQUIRED).next().is_some());
    let refuses = |n: &Value, other: &Value| {
        terms(other, "podAntiAffinity", REQUIRED)
            .any(|t| label(n, &t["topologyKey"]).is_some() && speaks_of(world, t, other, pod))
    };
    own || world.all("Node").iter().any(|n| world.pods_on(n).any(|p| refuses(n, p)))
}

/// Near whom it must be, and far from whom it or they must be.
pub(super) fn gets_along(world: &World, pod: &Value, node: &Value) -> bool {
    let near: Vec<&Value> = terms(pod, "podAffinity", REQUIRED).collect();
    let friend = |other: &Value| near.iter().all(|t| speaks_of(world, t, pod, other));
    let labelled = near.iter().all(|t| label(node, &t["topologyKey"]).is_some());
    let company = near.iter().all(|t| neighbours(world, &t["topologyKey"], node).into_iter().any(&friend));
    // The first of those that want to be with one another may go anywhere.
    let alone = || {
        let counted = |n: &&Value| near.iter().any(|t| label(n, &t["topologyKey"]).is_some());
        !world.all("Node").iter().filter(counted).flat_map(|n| world.pods_on(n)).any(&friend)
    };
    if !near.is_empty() && !(labelled && (company || alone() && friend(pod))) {
        return false;
    }
    let mut far = terms(pod, "podAntiAffinity", REQUIRED);
    let disturbed = far.any(|t| neighbours(world, &t["topologyKey"], node).iter().any(|p| speaks_of(world, t, pod, p)));
    let same_domain = |t: &Value, n: &Value| {
        let mine = label(node, &t["topologyKey"]);
        mine.is_some() && label(n, &t["topologyKey"]) == mine
    };
    let refuses = |other: &Value, n: &Value| {
        let mut far = terms(other, "podAntiAffinity", REQUIRED);
        far.any(|t| same_domain(t, n) && speaks_of(world, t, other, pod))
    };
    !disturbed && !world.all("Node").iter().any(|n| world.pods_on(n).any(|p| refuses(p, n)))
}

/// Sums of the weights of all wishes, its own and others' about it; the least made 0, the most 100.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
pub(super) fn affinity_scores(world: &World, pod: &Value, fitting: &[&Value]) -> Vec<i64> {
    let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
    for node in world.all("Node") {
        let mut add = |term: &Value, weight: i64| {
            if let Some(value) = label(node, &term["topologyKey"]) {
                *sums.entry((text(&term["topologyKey"]), value.to_owned())).or_default() += weight;
            }
        };
        for other in world.pods_on(node) {
            for (kind, sign) in [("podAffinity", 1), ("podAntiAffinity", -1)] {
                for (from, to) in [(pod, other), (other, pod)] {
                    for w in terms(from, kind, PREFERRED).filter(|w| speaks_of(world, &w["podAffinityTerm"], from, to))
                    {
                        add(&w["podAffinityTerm"], sign * int(&w["weight"]));
                    }
                }
            }
            // What pods already there must have counts for one.
            terms(other, "podAffinity", REQUIRED).filter(|t| speaks_of(world, t, other, pod)).for_each(|t| add(t, 1));
        }
    }
    let raw = |node: &&Value| -> i64 {
        sums.iter().filter(|((key, value), _)| label(node, &json!(key)) == Some(value)).map(|(_, n)| n).sum()
    };
    let all: Vec<i64> = fitting.iter().map(raw).collect();
    let (least, most) = (all.iter().copied().min().unwrap_or(0), all.iter().copied().max().unwrap_or(0));
    let score = |n: &i64| {
        if most == least { 0 } else { (BEST as f64 * ((n - least) as f64 / (most - least) as f64)) as i64 }
    };
    all.iter().map(score).collect()
}
