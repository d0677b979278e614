//! PodTopologySpread: spreads pods evenly over zones, nodes or whatever domain a label makes. Answers for upstream's
//! `pkg/scheduler/framework/plugins/podtopologyspread`.
//!
//! HOT (held by `examples/throughput.rs`, shapes `spread` and `preferred-spread`). `hard` keeps pods away from domains
//! that have too many already, `soft` likes domains with few; both judge by what a node shows ([`NodeRule`]), whether the
//! counts were kept current or taken just now.

mod hard;
mod soft;

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde_json::Value;

use super::read_args;
use crate::framework::plugin::{Context, Plugin, Requeue};
use crate::framework::rule::{NodeRule, Rules};
use crate::framework::{ClusterEvent, Features, Hint, ProfileError};
use crate::model::selector::Labels;
use crate::model::{Demand, NodeBase, NodeInfo, PodInfo, Selector, SpreadConstraint};

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
    /// Tolerations may compare numbers.
    compares: bool,
    /// `matchLabelKeys` count (MatchLabelKeysInPodTopologySpread).
    matches_keys: bool,
    defaults: Vec<SpreadConstraint>,
    system: bool,
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let args: Args = read_args(NAME, args)?;
    let system = args.defaulting_type.as_deref() != Some("List");
    if system && !args.default_constraints.is_empty() {
        return Err(ProfileError::Args(
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
        without_keys: None,
        min_domains: 1,
        honor_affinity: true,
        honor_taints: false,
        compares: features.comparisons,
    };
    let defaults = if system {
        vec![soft(HOSTNAME, 3), soft(ZONE, 5)]
    } else {
        args.default_constraints.iter().map(|c| SpreadConstraint::from_api(c, &none)).collect()
    };
    let (compares, matches_keys) = (features.comparisons, features.match_label_keys);
    let it = Arc::new(PodTopologySpread { compares, matches_keys, defaults, system });
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).pre_score(&it).score(&it).requeue(&it).rules(&it))
}

impl PodTopologySpread {
    /// The selector of a constraint of a pod as the gates have it.
    fn selector_of<'a>(&self, c: &'a SpreadConstraint) -> &'a Selector {
        c.without_keys.as_deref().filter(|_| !self.matches_keys).unwrap_or(&c.selector)
    }

    /// A constraint of a pod as the gates have it.
    fn as_it_counts(&self, c: &SpreadConstraint) -> SpreadConstraint {
        let mut c = SpreadConstraint { compares: self.compares, ..c.clone() };
        if let Some(plain) = c.without_keys.take().filter(|_| !self.matches_keys) {
            c.selector = *plain;
        }
        c
    }

    /// The pod's own constraints of one kind, or the defaults with a selector made from its Services and controller.
    fn constraints(&self, cx: Context<'_>, pod: &Demand, hard: bool) -> Vec<SpreadConstraint> {
        if !pod.spread.is_empty() {
            let mine = pod.spread.iter().filter(|c| c.hard == hard);
            return mine.map(|c| self.as_it_counts(c)).collect();
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

impl Rules for PodTopologySpread {
    fn hard(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        self.hard_plan(cx, pod).map(|plan| Box::new(hard::FilterRule::new(plan)) as Box<dyn NodeRule>)
    }

    fn soft(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        self.soft_plan(cx, pod).map(|plan| Box::new(soft::ScoreRule::new(plan)) as Box<dyn NodeRule>)
    }
}

/// Reports whether a constraint counts pods on a node.
fn counts_node(c: &SpreadConstraint, pod: &Demand, node: &NodeBase) -> bool {
    (!c.honor_affinity || pod.selects_node(&node.name, &node.labels))
        && (!c.honor_taints
            || node.hard_taints().all(|taint| pod.tolerations.iter().any(|t| t.tolerates(taint, c.compares))))
}

fn counts_pod(selector: &Selector, namespace: &str, other: &PodInfo) -> bool {
    let empty = selector.0.as_ref().is_none_or(Vec::is_empty);
    !empty && !other.terminating && *other.namespace == *namespace && selector.matches(&other.labels)
}

/// Counts the pods on a node that a constraint selects.
fn count(c: &SpreadConstraint, pod: &Demand, node: &NodeInfo) -> i64 {
    let mut last: Option<(*const Demand, bool)> = None;
    let mut sum = 0;
    for other in node.pods.iter().filter(|p| !p.terminating) {
        let demand = Arc::as_ptr(&other.demand);
        // Neighbours are often of one kind.
        let counts = match last {
            Some((known, counts)) if known == demand => counts,
            _ => counts_pod(&c.selector, &pod.namespace, other),
        };
        last = Some((demand, counts));
        sum += i64::from(counts);
    }
    sum
}

fn has_all_keys(constraints: &[SpreadConstraint], node: &NodeBase) -> bool {
    constraints.iter().all(|c| node.labels.contains_key(&c.topology_key))
}

impl Requeue for PodTopologySpread {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        let hard = || pod.spread.iter().filter(|c| c.hard);
        let keys = |n: &NodeBase| hard().all(|c| n.labels.contains_key(&c.topology_key));
        match event {
            ClusterEvent::WaitingPod(_) => Hint::Skip,
            _ if pod.spread.is_empty() => Hint::Queue,
            ClusterEvent::AssignedPod { old, new } => {
                let counted = |c: &SpreadConstraint, p: &Option<Arc<PodInfo>>| {
                    p.as_ref().is_some_and(|p| counts_pod(self.selector_of(c), &pod.namespace, p))
                };
                hard().any(|c| counted(c, old) != counted(c, new)).into()
            }
            ClusterEvent::Node { old: None, new } => keys(new).into(),
            ClusterEvent::Node { old: Some(old), new } => {
                let moved = || hard().any(|c| old.labels.get(&c.topology_key) != new.labels.get(&c.topology_key));
                (keys(old) != keys(new) || keys(new) && (old.taints != new.taints || moved())).into()
            }
            ClusterEvent::NodeGone => Hint::Queue,
            ClusterEvent::Target { old, new } => {
                // Nodes whose taints it did not tolerate did not count.
                let honors = old.tolerations != new.tolerations && hard().any(|c| c.honor_taints);
                let matched = |c: &SpreadConstraint, p: &PodInfo| self.selector_of(c).matches(&p.labels);
                let counts = || hard().any(|c| matched(c, old) != matched(c, new));
                (honors || old.spread != new.spread || counts()).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests;
