//! PodTopologySpread: spreads pods evenly over zones, nodes or whatever domain a label makes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde_json::Value;

use super::read_args;
use crate::framework::plugin::{
    Context, Filter, MAX_NODE_SCORE, Plugin, PreFilter, PreFiltered, PreScore, Requeue, Score,
};
use crate::framework::{ClusterEvent, ConfigError, CycleState, Hint, Status};
use crate::model::selector::Labels;
use crate::model::{NodeBase, NodeInfo, PodInfo, Selector, SpreadConstraint};

/// Upstream's name.
pub const NAME: &str = "PodTopologySpread";

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    default_constraints: Vec<core::TopologySpreadConstraint>,
    defaulting_type: Option<String>,
}

struct PodTopologySpread {
    defaults: Vec<SpreadConstraint>,
    system: bool,
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value) -> Result<Plugin, ConfigError> {
    let args: Args = read_args(NAME, args)?;
    let system = args.defaulting_type.as_deref() != Some("List");
    if system && !args.default_constraints.is_empty() {
        return Err(ConfigError::Args(
            NAME,
            "when .defaultingType is System, .defaultConstraints must be empty".to_owned(),
        ));
    }
    let none = Labels::new();
    let soft = |key: &str, max_skew| SpreadConstraint {
        max_skew,
        topology_key: key.to_owned(),
        hard: false,
        selector: Selector::NOTHING,
        min_domains: 1,
        honor_affinity: true,
        honor_taints: false,
    };
    let defaults = if system {
        vec![soft(HOSTNAME, 3), soft(ZONE, 5)]
    } else {
        args.default_constraints.iter().map(|c| SpreadConstraint::from_api(c, &none)).collect()
    };
    let it = Arc::new(PodTopologySpread { defaults, system });
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).pre_score(&it).score(&it).requeue(&it))
}

impl PodTopologySpread {
    /// The pod's own constraints of one kind, or the defaults with a selector made from its Services and controller.
    fn constraints(&self, cx: Context<'_>, pod: &PodInfo, hard: bool) -> Vec<SpreadConstraint> {
        if !pod.spread.is_empty() {
            return pod.spread.iter().filter(|c| c.hard == hard).cloned().collect();
        }
        if !self.defaults.iter().any(|c| c.hard == hard) {
            return Vec::new();
        }
        let selector = cx.listers.spread_selector(pod);
        if selector.0.as_ref().is_none_or(Vec::is_empty) {
            return Vec::new();
        }
        let mine = self.defaults.iter().filter(|c| c.hard == hard);
        mine.map(|c| SpreadConstraint { selector: selector.clone(), ..c.clone() }).collect()
    }
}

/// Whether a constraint counts pods on a node.
fn counts_node(c: &SpreadConstraint, pod: &PodInfo, node: &NodeBase) -> bool {
    (!c.honor_affinity || pod.selects_node(&node.name, &node.labels))
        && (!c.honor_taints || node.hard_taints().all(|taint| pod.tolerations.iter().any(|t| t.tolerates(taint))))
}

fn counts_pod(c: &SpreadConstraint, namespace: &str, other: &PodInfo) -> bool {
    let empty = c.selector.0.as_ref().is_none_or(Vec::is_empty);
    !empty && !other.terminating && *other.namespace == *namespace && c.selector.matches(&other.labels)
}

fn count(c: &SpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> i64 {
    let n = node.pods.iter().filter(|p| counts_pod(c, &pod.namespace, p)).count();
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn has_all_keys(constraints: &[SpreadConstraint], node: &NodeBase) -> bool {
    constraints.iter().all(|c| node.labels.contains_key(&c.topology_key))
}

/// Pods per domain, and how many domains have how many.
#[derive(Clone, Debug, Default)]
struct Domains {
    pods: HashMap<String, i64>,
    sizes: BTreeMap<i64, usize>,
}

impl Domains {
    fn add(&mut self, domain: &str, n: i64) {
        let (before, after) = match self.pods.get_mut(domain) {
            Some(have) => {
                let before = *have;
                *have += n;
                (Some(before), *have)
            }
            None => {
                self.pods.insert(domain.to_owned(), n);
                (None, n)
            }
        };
        if before == Some(after) {
            return;
        }
        if let Some(before) = before
            && let Some(size) = self.sizes.get_mut(&before)
        {
            *size -= 1;
            if *size == 0 {
                self.sizes.remove(&before);
            }
        }
        *self.sizes.entry(after).or_default() += 1;
    }

    fn min(&self, min_domains: i32) -> i64 {
        if self.pods.len() < usize::try_from(min_domains).unwrap_or(0) {
            return 0;
        }
        self.sizes.keys().next().copied().unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
struct Hard {
    constraint: SpreadConstraint,
    /// 1 when the pod itself is counted.
    own: i64,
    domains: Domains,
}

#[derive(Clone, Debug)]
struct HardNotes(Vec<Hard>);

impl HardNotes {
    fn shift(&mut self, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, by: i64) {
        if !self.0.iter().all(|h| node.base.labels.contains_key(&h.constraint.topology_key)) {
            return;
        }
        for h in &mut self.0 {
            if let Some(domain) = node.base.labels.get(&h.constraint.topology_key)
                && counts_node(&h.constraint, pod, &node.base)
                && counts_pod(&h.constraint, &pod.namespace, other)
            {
                h.domains.add(domain, by);
            }
        }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        let constraints = self.constraints(cx, pod, true);
        if constraints.is_empty() {
            return Err(Status::SKIP);
        }
        let mut notes: Vec<Hard> = constraints
            .iter()
            .map(|c| Hard {
                own: i64::from(c.selector.matches(&pod.labels)),
                constraint: c.clone(),
                domains: Domains::default(),
            })
            .collect();
        for node in cx.snapshot.nodes().iter().filter(|n| has_all_keys(&constraints, &n.base)) {
            for h in &mut notes {
                if let Some(domain) = node.base.labels.get(&h.constraint.topology_key)
                    && counts_node(&h.constraint, pod, &node.base)
                {
                    h.domains.add(domain, count(&h.constraint, pod, node));
                }
            }
        }
        state.put(HardNotes(notes));
        Ok(PreFiltered::All)
    }

    fn add_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<HardNotes>() {
            notes.shift(pod, added, node, 1);
        }
    }

    fn remove_pod(&self, _: Context<'_>, state: &mut CycleState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<HardNotes>() {
            notes.shift(pod, removed, node, -1);
        }
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        for h in state.get::<HardNotes>().iter().flat_map(|n| &n.0) {
            let Some(domain) = node.base.labels.get(&h.constraint.topology_key) else {
                return Status::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let here = h.domains.pods.get(domain).copied().unwrap_or(0);
            if here + h.own - h.domains.min(h.constraint.min_domains) > h.constraint.max_skew.into() {
                return Status::unschedulable("node(s) didn't match pod topology spread constraints");
            }
        }
        Status::SUCCESS
    }
}

#[derive(Clone, Debug)]
struct Soft {
    constraint: SpreadConstraint,
    weight: f64,
    /// Pods per domain; unused for hostnames, which are counted node by node.
    pods: HashMap<String, i64>,
}

#[derive(Clone, Debug)]
struct SoftNotes {
    soft: Vec<Soft>,
    /// Nodes that lack a label count for nothing.
    require_all: bool,
}

impl SoftNotes {
    fn ignores(&self, node: &NodeBase) -> bool {
        self.require_all && !self.soft.iter().all(|s| node.labels.contains_key(&s.constraint.topology_key))
    }
}

impl PreScore for PodTopologySpread {
    #[allow(clippy::cast_precision_loss)]
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, nodes: &[&NodeInfo]) -> Status {
        let constraints = self.constraints(cx, pod, false);
        if constraints.is_empty() {
            return Status::SKIP;
        }
        let require_all = !pod.spread.is_empty() || !self.system;
        let fit = |n: &&&NodeInfo| !require_all || has_all_keys(&constraints, &n.base);
        let mut soft: Vec<Soft> = Vec::new();
        for c in &constraints {
            let mut pods = HashMap::new();
            let size = if c.topology_key == HOSTNAME {
                nodes.iter().filter(fit).count()
            } else {
                for domain in nodes.iter().filter(fit).filter_map(|n| n.base.labels.get(&c.topology_key)) {
                    pods.entry(domain.clone()).or_insert(0_i64);
                }
                pods.len()
            };
            soft.push(Soft { constraint: c.clone(), weight: ((size + 2) as f64).ln(), pods });
        }
        let mut notes = SoftNotes { soft, require_all };
        if notes.soft.iter().any(|s| !s.pods.is_empty()) {
            for node in cx.snapshot.nodes().iter().filter(|n| !notes_ignore(require_all, &constraints, &n.base)) {
                for s in notes.soft.iter_mut().filter(|s| !s.pods.is_empty()) {
                    if let Some(domain) = node.base.labels.get(&s.constraint.topology_key)
                        && let Some(pods) = s.pods.get_mut(domain)
                        && counts_node(&s.constraint, pod, &node.base)
                    {
                        *pods += count(&s.constraint, pod, node);
                    }
                }
            }
        }
        state.put(notes);
        Status::SUCCESS
    }
}

fn notes_ignore(require_all: bool, constraints: &[SpreadConstraint], node: &NodeBase) -> bool {
    require_all && !has_all_keys(constraints, node)
}

impl Score for PodTopologySpread {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn score(&self, _: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let Some(notes) = state.get::<SoftNotes>().filter(|n| !n.ignores(&node.base)) else { return 0 };
        let mut score = 0.0;
        for s in &notes.soft {
            let Some(domain) = node.base.labels.get(&s.constraint.topology_key) else { continue };
            let pods = if s.constraint.topology_key == HOSTNAME {
                count(&s.constraint, pod, node)
            } else {
                s.pods.get(domain).copied().unwrap_or(0)
            };
            score += pods as f64 * s.weight + f64::from(s.constraint.max_skew - 1);
        }
        score.round() as i64
    }

    fn normalize(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let Some(notes) = state.get::<SoftNotes>() else { return };
        let counted = || nodes.iter().zip(scores.iter()).filter(|(n, _)| !notes.ignores(&n.base)).map(|(_, s)| *s);
        let (min, max) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            *score = if notes.ignores(&node.base) {
                0
            } else if max == 0 {
                MAX_NODE_SCORE
            } else {
                MAX_NODE_SCORE * (max + min - *score) / max
            };
        }
    }
}

impl Requeue for PodTopologySpread {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        let hard = || pod.spread.iter().filter(|c| c.hard);
        let keys = |n: &NodeBase| hard().all(|c| n.labels.contains_key(&c.topology_key));
        match event {
            _ if pod.spread.is_empty() => Hint::Queue,
            ClusterEvent::AssignedPod { old, new } => {
                let counted = |p: &Arc<PodInfo>| hard().any(|c| counts_pod(c, &pod.namespace, p));
                (old.as_ref().is_some_and(counted) != new.as_ref().is_some_and(counted)).into()
            }
            ClusterEvent::Node { old: None, new } => keys(new).into(),
            ClusterEvent::Node { old: Some(old), new } => {
                (old.labels != new.labels && (keys(old) || keys(new)) || old.taints != new.taints).into()
            }
            ClusterEvent::NodeGone => Hint::Queue,
            ClusterEvent::Target { old, new } => (old.labels != new.labels).into(),
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Domains;
    use crate::model::{PodInfo, Selector};
    use crate::testing::{NodeBuilder, check::Check, node, pod};
    use serde_json::{Value, json};

    fn constraint(key: &str, skew: i32, when: &str) -> Value {
        json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "a"}}})
    }

    fn app(name: &str) -> PodInfo {
        pod(name).label("app", "a").info()
    }

    fn spread(constraints: &[Value]) -> PodInfo {
        pod("p").label("app", "a").set("/spec", "topologySpreadConstraints", json!(constraints)).info()
    }

    fn zoned(name: &str, zone: &str) -> NodeBuilder {
        node(name).label("zone", zone)
    }

    #[test]
    fn hard() {
        let nodes = [
            zoned("a1", "a").with(&[app("1"), app("2")]),
            zoned("b1", "b").with(&[app("3")]),
            zoned("b2", "b").with(&[pod("other").info()]),
            node("none").with(&[]),
        ];
        let check = Check::of(super::build, json!(null));
        for (what, constraints, want) in [
            ("skew 1", vec![constraint("zone", 1, "DoNotSchedule")], vec!["b1", "b2"]),
            ("skew 2", vec![constraint("zone", 2, "DoNotSchedule")], vec!["a1", "b1", "b2"]),
            (
                "zone and host",
                vec![constraint("zone", 1, "DoNotSchedule"), constraint("kubernetes.io/hostname", 1, "DoNotSchedule")],
                vec!["b2"],
            ),
            ("soft ones do not filter", vec![constraint("zone", 1, "ScheduleAnyway")], vec!["a1", "b1", "b2", "none"]),
        ] {
            assert_eq!(check.fits(&spread(&constraints), &nodes), want, "{what}");
        }
        let mut few = constraint("zone", 1, "DoNotSchedule");
        few["minDomains"] = json!(3);
        assert!(check.fits(&spread(&[few]), &nodes).is_empty(), "with too few domains the minimum is 0");
        let statuses = check.statuses(&spread(&[constraint("zone", 1, "DoNotSchedule")]), &nodes);
        assert_eq!(statuses[0].to_string(), "node(s) didn't match pod topology spread constraints");
        assert_eq!(
            statuses[3].to_string(),
            "node(s) didn't match pod topology spread constraints (missing required label)"
        );
    }

    #[test]
    fn inclusion_policies() {
        let nodes = [zoned("a", "a").with(&[app("1")]), zoned("b", "b").taint("x", "", "NoSchedule").with(&[])];
        let check = Check::of(super::build, json!(null));
        let mut c = constraint("zone", 1, "DoNotSchedule");
        assert_eq!(check.fits(&spread(std::slice::from_ref(&c)), &nodes), ["b"]);
        c["nodeTaintsPolicy"] = json!("Honor");
        assert_eq!(check.fits(&spread(&[c]), &nodes), ["a", "b"], "a tainted zone does not count");
    }

    #[test]
    fn soft() {
        let nodes = [
            zoned("a", "a").with(&[app("1"), app("2")]),
            zoned("b", "b").with(&[app("3")]),
            zoned("c", "c").with(&[]),
            node("none").with(&[]),
        ];
        let scores =
            Check::of(super::build, json!(null)).scores(&spread(&[constraint("zone", 1, "ScheduleAnyway")]), &nodes);
        assert_eq!((scores[2], scores[3]), (100, 0));
        assert!(scores[0] < scores[1] && scores[1] < scores[2], "{scores:?}");
    }

    #[test]
    fn system_defaults_follow_services() {
        let nodes = [node("a").with(&[app("1")]), node("b").with(&[])];
        let mut check = Check::of(super::build, json!(null));
        assert!(check.scores(&app("p"), &nodes).is_empty());
        check.listers.spread = Some(Selector::from_map(&app("p").labels));
        let scores = check.scores(&app("p"), &nodes);
        assert!(scores[0] < scores[1], "{scores:?}");
    }

    #[test]
    fn minimum_is_kept() {
        let mut d = Domains::default();
        for (domain, n, want) in
            [("a", 2, 2), ("b", 1, 1), ("b", 2, 2), ("a", -2, 0), ("c", 0, 0), ("a", 3, 0), ("c", 5, 3)]
        {
            d.add(domain, n);
            assert_eq!(d.min(1), want, "after {n} in {domain}");
        }
    }
}
