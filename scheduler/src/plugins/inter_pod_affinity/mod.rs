//! InterPodAffinity: pods that want to be, or must not be, in one domain with others. Answers for upstream's
//! `pkg/scheduler/framework/plugins/interpodaffinity`.
//!
//! HOT (held by `examples/throughput.rs`, shapes `*affinity`). `hard` keeps pods away, `soft` weighs wishes, the pod's own
//! and those of pods already there; both judge by what a node shows ([`NodeRule`]), whether the counts were kept current or
//! taken just now.

mod hard;
mod soft;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::read_args;
use crate::framework::domains::Domains;
use crate::framework::plugin::{Context, Plugin, Requeue};
use crate::framework::rule::{NodeRule, Rules};
use crate::framework::{ClusterEvent, ExternalChange, Hint, ProfileError};
use crate::model::{AffinityTerm, NodeBase, PodInfo, Selector};

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
pub fn build(args: &Value) -> Result<Plugin, ProfileError> {
    let it: InterPodAffinity = read_args(NAME, args)?;
    if !(0..=100).contains(&it.hard_pod_affinity_weight) {
        return Err(ProfileError::Args(NAME, "hardPodAffinityWeight: not in valid range [0-100]".to_owned()));
    }
    let it = Arc::new(it);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).pre_score(&it).score(&it).requeue(&it).rules(&it))
}

impl Rules for InterPodAffinity {
    fn hard(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        Some(Box::new(hard::FilterRule::new(hard::Plan::of(cx, pod))))
    }

    fn soft(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        self.soft_plan(cx, pod).map(|plan| Box::new(soft::ScoreRule::new(plan)) as Box<dyn NodeRule>)
    }
}

/// The term with its namespace selector turned into names, unless it selects all namespaces.
fn resolved(cx: Context<'_>, term: &AffinityTerm) -> AffinityTerm {
    let mut out = term.clone();
    if out.namespace_selector.0.as_ref().is_some_and(|requirements| !requirements.is_empty()) {
        out.namespaces.extend(cx.listers.namespaces(&term.namespace_selector));
        out.namespaces.sort_unstable();
        out.namespaces.dedup();
        out.namespace_selector = Selector::NOTHING;
    }
    out
}

/// Amounts of a node by topology key, of those that the node has: terms may name any number of others.
#[derive(Debug, Default)]
struct Amounts<'a>(Vec<(&'a str, i64)>);

impl<'a> Amounts<'a> {
    fn add(&mut self, node: &NodeBase, key: &'a str, n: i64) {
        if !node.labels.contains_key(key) {
            return;
        }
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, sum)) => *sum += n,
            None => self.0.push((key, n)),
        }
    }
}

/// Counts a node's amounts in the domains of each key.
fn count(list: &mut Vec<Domains>, node: &NodeBase, amounts: &Amounts<'_>) {
    for (key, n) in &amounts.0 {
        match list.iter_mut().find(|d| d.key() == *key) {
            Some(domains) => domains.count(node, *n),
            None => {
                let mut domains = Domains::new(key);
                domains.count(node, *n);
                list.push(domains);
            }
        }
    }
}

/// Pretends that amounts came to a node.
fn shift(list: &mut Vec<Domains>, node: &NodeBase, amounts: &Amounts<'_>) {
    for (key, n) in &amounts.0 {
        match list.iter_mut().find(|d| d.key() == *key) {
            Some(domains) => domains.shift(node, *n),
            None => {
                let mut domains = Domains::new(key);
                domains.shift(node, *n);
                list.push(domains);
            }
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
                // One pod has to meet all terms.
                let helps = |p: &PodInfo| !pod.affinity.is_empty() && pod.affinity.iter().all(|t| speaks(t, p));
                let hurts = |p: &PodInfo| {
                    pod.anti_affinity.iter().any(|t| speaks(t, p)) || p.anti_affinity.iter().any(|t| speaks(t, pod))
                };
                let (was, is) = (old.as_deref(), new.as_deref());
                (is.is_some_and(helps) && !was.is_some_and(helps) || was.is_some_and(hurts) && !is.is_some_and(hurts))
                    .into()
            }
            ClusterEvent::Node { old, new } => node_helps(pod, old.as_deref(), new).into(),
            ClusterEvent::Target { old, new } => (old.labels != new.labels).into(),
            ClusterEvent::Object(ExternalChange::Namespace(_)) => Hint::Queue,
            _ => Hint::Skip,
        }
    }
}

/// Reports whether a node that came or changed may take a pod that none would take. Keys of terms of existing pods are not known
/// here: a pod without terms of its own was turned down by those, so that any label may matter to it.
fn node_helps(pod: &PodInfo, old: Option<&NodeBase>, new: &NodeBase) -> bool {
    let Some(old) = old else {
        let near = pod.affinity.iter().all(|t| new.labels.contains_key(&t.topology_key));
        return near || !pod.anti_affinity.is_empty();
    };
    if pod.affinity.is_empty() && pod.anti_affinity.is_empty() {
        return old.labels != new.labels;
    }
    // A domain that the node has here and not there.
    let differs = |t: &AffinityTerm, here: &NodeBase, there: &NodeBase| {
        let domain = here.labels.get(&t.topology_key);
        domain.is_some() && domain != there.labels.get(&t.topology_key)
    };
    pod.affinity.iter().any(|t| differs(t, new, old)) || pod.anti_affinity.iter().any(|t| differs(t, old, new))
}

#[cfg(test)]
mod tests;
