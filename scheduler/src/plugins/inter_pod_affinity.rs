//! InterPodAffinity: pods that want to be, or must not be, in one domain with others.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::read_args;
use crate::framework::plugin::{
    Context, Filter, MAX_NODE_SCORE, Plugin, PreFilter, PreFiltered, PreScore, Requeue, Score,
};
use crate::framework::{Change, ClusterEvent, ConfigError, CycleState, Hint, Status};
use crate::model::demand::Weighted;
use crate::model::selector::Labels;
use crate::model::{AffinityTerm, NodeBase, NodeInfo, PodInfo, Selector};

/// Upstream's name.
pub const NAME: &str = "InterPodAffinity";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct InterPodAffinity {
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments, or a weight out of range.
pub fn build(args: &Value) -> Result<Plugin, ConfigError> {
    let it: InterPodAffinity = read_args(NAME, args)?;
    if !(0..=100).contains(&it.hard_pod_affinity_weight) {
        return Err(ConfigError::Args(NAME, "hardPodAffinityWeight: not in valid range [0-100]".to_owned()));
    }
    let it = Arc::new(it);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).pre_score(&it).score(&it).requeue(&it))
}

/// Domains by label and value.
#[derive(Clone, Debug, Default)]
struct Domains(HashMap<String, HashMap<String, i64>>);

impl Domains {
    fn add(&mut self, node: &NodeBase, key: &str, n: i64) {
        let Some(value) = node.labels.get(key) else { return };
        if let Some(sum) = self.0.get_mut(key).and_then(|m| m.get_mut(value)) {
            *sum += n;
            return;
        }
        self.0.entry(key.to_owned()).or_default().insert(value.clone(), n);
    }

    fn get(&self, node: &NodeBase, key: &str) -> i64 {
        let value = node.labels.get(key);
        value.and_then(|v| self.0.get(key)?.get(v)).copied().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.0.values().all(|m| m.values().all(|n| *n <= 0))
    }

    /// Whether any label of the node is a domain with something in it.
    fn touches(&self, node: &NodeBase) -> bool {
        self.0.iter().any(|(key, m)| node.labels.get(key).and_then(|v| m.get(v)).is_some_and(|n| *n > 0))
    }
}

#[derive(Clone, Debug)]
struct Notes {
    affinity: Vec<AffinityTerm>,
    anti_affinity: Vec<AffinityTerm>,
    namespace_labels: Option<Labels>,
    /// Domains that pods already there keep this one out of.
    refused: Domains,
    /// Domains with pods this one must be near.
    near: Domains,
    /// Domains with pods this one must not be near.
    far: Domains,
}

impl Notes {
    fn shift(&mut self, pod: &PodInfo, other: &PodInfo, node: &NodeBase, by: i64) {
        for term in other.anti_affinity.iter().filter(|t| t.matches(pod, self.namespace_labels.as_ref())) {
            self.refused.add(node, &term.topology_key, by);
        }
        self.count(other, node, by);
    }

    fn count(&mut self, other: &PodInfo, node: &NodeBase, by: i64) {
        if !self.affinity.is_empty() && self.affinity.iter().all(|t| t.matches(other, None)) {
            for term in &self.affinity {
                self.near.add(node, &term.topology_key, by);
            }
        }
        for term in self.anti_affinity.iter().filter(|t| t.matches(other, None)) {
            self.far.add(node, &term.topology_key, by);
        }
    }
}

/// The term with its namespace selector turned into names.
fn resolved(cx: Context<'_>, term: &AffinityTerm) -> AffinityTerm {
    let mut out = term.clone();
    if out.namespace_selector.0.is_some() {
        out.namespaces.extend(cx.listers.namespaces(&term.namespace_selector));
        out.namespace_selector = Selector::NOTHING;
    }
    out
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.affinity.is_empty() && pod.anti_affinity.is_empty() && !cx.snapshot.any_anti_affinity() {
            return Err(Status::SKIP);
        }
        let mut notes = Notes {
            affinity: pod.affinity.iter().map(|t| resolved(cx, t)).collect(),
            anti_affinity: pod.anti_affinity.iter().map(|t| resolved(cx, t)).collect(),
            namespace_labels: cx.listers.namespace_labels(&pod.namespace),
            refused: Domains::default(),
            near: Domains::default(),
            far: Domains::default(),
        };
        for node in cx.snapshot.with_anti_affinity() {
            for term in node.with_anti_affinity.iter().flat_map(|p| &p.anti_affinity) {
                if term.matches(pod, notes.namespace_labels.as_ref()) {
                    notes.refused.add(&node.base, &term.topology_key, 1);
                }
            }
        }
        if !(pod.affinity.is_empty() && pod.anti_affinity.is_empty()) {
            for node in cx.snapshot.nodes() {
                for other in &node.pods {
                    notes.count(other, &node.base, 1);
                }
            }
        }
        if notes.refused.is_empty() && pod.affinity.is_empty() && pod.anti_affinity.is_empty() {
            return Err(Status::SKIP);
        }
        state.put(notes);
        Ok(PreFiltered::All)
    }

    fn add_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<Notes>() {
            notes.shift(pod, added, &node.base, 1);
        }
    }

    fn remove_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<Notes>() {
            notes.shift(pod, removed, &node.base, -1);
        }
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, _: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(notes) = state.get::<Notes>() else { return Status::SUCCESS };
        let labelled = notes.affinity.iter().all(|t| node.base.labels.contains_key(&t.topology_key));
        let near = || notes.affinity.iter().all(|t| notes.near.get(&node.base, &t.topology_key) > 0);
        // The first of a group that wants to be with itself may go anywhere.
        let first =
            || notes.near.is_empty() && notes.affinity.iter().all(|t| t.matches(pod, notes.namespace_labels.as_ref()));
        if !labelled || !(near() || first()) {
            return Status::unresolvable("node(s) didn't match pod affinity rules");
        }
        if notes.anti_affinity.iter().any(|t| notes.far.get(&node.base, &t.topology_key) > 0) {
            return Status::unschedulable("node(s) didn't match pod anti-affinity rules");
        }
        if notes.refused.touches(&node.base) {
            return Status::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        Status::SUCCESS
    }
}

#[derive(Clone, Debug)]
struct Wishes(Domains);

impl PreScore for InterPodAffinity {
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, _: &[&NodeInfo]) -> Status {
        let own = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
        let mut sums = Domains::default();
        let resolve = |list: &[Weighted<AffinityTerm>], sign: i64| -> Vec<(i64, AffinityTerm)> {
            list.iter().map(|w| (sign * w.weight, resolved(cx, &w.term))).collect()
        };
        let mut wishes = resolve(&pod.preferred_affinity, 1);
        wishes.extend(resolve(&pod.preferred_anti_affinity, -1));
        let labels = cx.listers.namespace_labels(&pod.namespace);
        let of_other = |other: &PodInfo, node: &NodeBase, sums: &mut Domains| {
            let theirs = |t: &AffinityTerm| t.matches(pod, labels.as_ref());
            if self.hard_pod_affinity_weight > 0 {
                for t in other.affinity.iter().filter(|t| theirs(t)) {
                    sums.add(node, &t.topology_key, self.hard_pod_affinity_weight);
                }
            }
            for w in other.preferred_affinity.iter().filter(|w| theirs(&w.term)) {
                sums.add(node, &w.term.topology_key, w.weight);
            }
            for w in other.preferred_anti_affinity.iter().filter(|w| theirs(&w.term)) {
                sums.add(node, &w.term.topology_key, -w.weight);
            }
        };
        if !own && self.ignore_preferred_terms_of_existing_pods {
            return Status::SKIP;
        }
        for node in cx.snapshot.with_affinity() {
            for other in &node.with_affinity {
                of_other(other, &node.base, &mut sums);
            }
        }
        if own {
            for node in cx.snapshot.nodes() {
                for other in &node.pods {
                    for (weight, term) in wishes.iter().filter(|(_, t)| t.matches(other, None)) {
                        sums.add(&node.base, &term.topology_key, *weight);
                    }
                }
            }
        }
        if sums.0.is_empty() {
            return Status::SKIP;
        }
        state.put(Wishes(sums));
        Status::SUCCESS
    }
}

impl Score for InterPodAffinity {
    fn score(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> i64 {
        state.get::<Wishes>().map_or(0, |w| w.0.0.keys().map(|key| w.0.get(&node.base, key)).sum())
    }

    fn normalize(&self, _: Context<'_>, _: &CycleState, _: &PodInfo, _: &[&NodeInfo], scores: &mut [i64]) {
        let (min, max) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
        for s in scores {
            *s = if max > min { MAX_NODE_SCORE * (*s - min) / (max - min) } else { 0 };
        }
    }
}

impl Requeue for InterPodAffinity {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        // Namespaces given by label are not resolved here: such terms count as matching whenever the labels do.
        let speaks = |t: &AffinityTerm, p: &PodInfo| {
            t.namespace_selector.0.is_some() && t.selector.matches(&p.labels) || t.matches(p, None)
        };
        match event {
            ClusterEvent::AssignedPod { old, new } => {
                let helps = |p: &PodInfo| pod.affinity.iter().any(|t| speaks(t, p));
                let hurts = |p: &PodInfo| {
                    pod.anti_affinity.iter().any(|t| speaks(t, p)) || p.anti_affinity.iter().any(|t| speaks(t, pod))
                };
                let (was, is) = (old.as_deref(), new.as_deref());
                (is.is_some_and(helps) && !was.is_some_and(helps) || was.is_some_and(hurts) && !is.is_some_and(hurts))
                    .into()
            }
            ClusterEvent::Node { .. } => event.node_if(|old, new| old.labels != new.labels).is_some().into(),
            ClusterEvent::Target { old, new } => (old.labels != new.labels).into(),
            ClusterEvent::Object(Change::Namespace(_)) => Hint::Queue,
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::PodInfo;
    use crate::testing::{NodeBuilder, PodBuilder, check::Check, node, pod};
    use serde_json::{Value, json};

    fn term(app: &str) -> Value {
        json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"})
    }

    fn required(p: PodBuilder, kind: &str, terms: Value) -> PodInfo {
        p.set("/spec", "affinity", json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}})).info()
    }

    fn zoned(name: &str, zone: &str) -> NodeBuilder {
        node(name).label("zone", zone)
    }

    #[test]
    fn filter() {
        let nodes = [
            zoned("a1", "a").with(&[pod("web").label("app", "web").info()]),
            zoned("a2", "a").with(&[]),
            zoned("b1", "b").with(&[required(
                pod("lonely").label("app", "lonely"),
                "podAntiAffinity",
                json!([term("noisy")]),
            )]),
            node("bare").with(&[]),
        ];
        let check = Check::of(super::build, json!(null));
        let mine = || pod("p").label("app", "mine");
        for (what, pod, want) in [
            ("nothing asked", mine().info(), vec!["a1", "a2", "b1", "bare"]),
            ("near", required(mine(), "podAffinity", json!([term("web")])), vec!["a1", "a2"]),
            ("far", required(mine(), "podAntiAffinity", json!([term("web")])), vec!["b1", "bare"]),
            ("refused", pod("p").label("app", "noisy").info(), vec!["a1", "a2", "bare"]),
            ("the first of its kind", required(mine(), "podAffinity", json!([term("mine")])), vec!["a1", "a2", "b1"]),
            ("near nobody", required(mine(), "podAffinity", json!([term("ghost")])), vec![]),
            (
                "other namespace",
                required(mine().namespace("other"), "podAntiAffinity", json!([term("web")])),
                vec!["a1", "a2", "b1", "bare"],
            ),
        ] {
            assert_eq!(check.fits(&pod, &nodes), want, "{what}");
        }
        let said = |p: &PodInfo, at: usize| check.statuses(p, &nodes)[at].to_string();
        assert_eq!(
            said(&required(mine(), "podAffinity", json!([term("web")])), 2),
            "node(s) didn't match pod affinity rules"
        );
        assert_eq!(
            said(&required(mine(), "podAntiAffinity", json!([term("web")])), 0),
            "node(s) didn't match pod anti-affinity rules"
        );
        assert_eq!(
            said(&pod("p").label("app", "noisy").info(), 2),
            "node(s) didn't satisfy existing pods anti-affinity rules"
        );
    }

    #[test]
    fn namespaces_by_label() {
        let nodes = [
            zoned("a", "a").with(&[pod("web").namespace("prod").label("app", "web").info()]),
            zoned("b", "b").with(&[]),
        ];
        let mut check = Check::of(super::build, json!(null));
        check.listers.namespaces.insert("prod".into(), [("env".to_owned(), "prod".to_owned())].into());
        let mut t = term("web");
        t["namespaceSelector"] = json!({"matchLabels": {"env": "prod"}});
        assert_eq!(check.fits(&required(pod("p"), "podAffinity", json!([t])), &nodes), ["a"]);
        assert!(check.fits(&required(pod("p"), "podAffinity", json!([term("web")])), &nodes).is_empty());
    }

    #[test]
    fn score() {
        let nodes = [
            zoned("a", "a").with(&[pod("web").label("app", "web").info()]),
            zoned("b", "b").with(&[pod("db").label("app", "db").info()]),
            zoned("c", "c").with(&[]),
        ];
        let check = Check::of(super::build, json!(null));
        let wish = |kind: &str, app: &str| {
            pod("p")
                .set(
                    "/spec",
                    "affinity",
                    json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 10, "podAffinityTerm": term(app)}]}}),
                )
                .info()
        };
        assert_eq!(check.scores(&wish("podAffinity", "web"), &nodes), [100, 0, 0]);
        assert_eq!(check.scores(&wish("podAntiAffinity", "db"), &nodes), [100, 0, 100]);
        assert!(check.scores(&pod("p").info(), &nodes).is_empty());
    }

    #[test]
    fn required_affinity_of_others_attracts() {
        let nodes = [
            zoned("a", "a").with(&[required(pod("fan").label("app", "fan"), "podAffinity", json!([term("star")]))]),
            zoned("b", "b").with(&[]),
        ];
        assert_eq!(
            Check::of(super::build, json!(null)).scores(&pod("p").label("app", "star").info(), &nodes),
            [100, 0]
        );
    }
}
