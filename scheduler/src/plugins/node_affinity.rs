//! NodeAffinity: `spec.nodeSelector`, required and preferred node affinity, and affinity added by the profile. Answers
//! for upstream's `pkg/scheduler/framework/plugins/nodeaffinity`.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde_json::Value;

use super::read_args;
use crate::framework::plugin::{
    Context, Filter, NodeNames, Plugin, PreFilter, PreFiltered, PreScore, Requeue, Score, normalize_by_max,
};
use crate::framework::{ClusterEvent, CycleState, Hint, ProfileError, Status};
use crate::model::demand::Weighted;
use crate::model::selector::NodeTerm;
use crate::model::{NodeBase, NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodeAffinity";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    added_affinity: Option<core::NodeAffinity>,
}

#[derive(Default)]
struct NodeAffinity {
    required: Option<Vec<NodeTerm>>,
    preferred: Vec<Weighted<NodeTerm>>,
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value) -> Result<Plugin, ProfileError> {
    let added = read_args::<Args>(NAME, args)?.added_affinity.unwrap_or_default();
    let it = Arc::new(NodeAffinity {
        required: added
            .required_during_scheduling_ignored_during_execution
            .map(|s| s.node_selector_terms.iter().map(NodeTerm::from_api).collect()),
        preferred: added
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten()
            .map(|p| Weighted { weight: p.weight.into(), term: NodeTerm::from_api(&p.preference) })
            .collect(),
    });
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).pre_score(&it).score(&it).requeue(&it).node_only())
}

impl NodeAffinity {
    fn added_allows(&self, node: &NodeBase) -> bool {
        self.required.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(&node.name, &node.labels)))
    }
}

impl PreFilter for NodeAffinity {
    fn pre_filter(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.node_selector.is_empty() && pod.required_nodes.is_none() && self.required.is_none() {
            return Err(Status::SKIP);
        }
        let mut all = NodeNames::new();
        for term in pod.required_nodes.iter().flatten() {
            match term.names() {
                None => return Ok(PreFiltered::All),
                Some(names) => all.extend(names.into_iter().map(str::to_owned)),
            }
        }
        match &pod.required_nodes {
            Some(terms) if !terms.is_empty() => {
                if all.is_empty() {
                    return Err(Status::unresolvable("pod affinity terms conflict"));
                }
                Ok(PreFiltered::Nodes(all))
            }
            _ => Ok(PreFiltered::All),
        }
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if !self.added_allows(&node.base) {
            return Status::unresolvable("node(s) didn't match scheduler-enforced node affinity");
        }
        if !pod.selects_node(node.name(), &node.base.labels) {
            return Status::unresolvable("node(s) didn't match Pod's node affinity/selector");
        }
        Status::SUCCESS
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo, _: &[&NodeInfo]) -> Status {
        if pod.preferred_nodes.is_empty() && self.preferred.is_empty() { Status::SKIP } else { Status::SUCCESS }
    }
}

impl Score for NodeAffinity {
    fn score(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let all = self.preferred.iter().chain(&pod.preferred_nodes);
        all.filter(|w| w.term.matches(node.name(), &node.base.labels)).map(|w| w.weight).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_by_max(scores, false);
    }
}

impl Requeue for NodeAffinity {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Target { old, new } => {
                (old.node_selector != new.node_selector || old.required_nodes != new.required_nodes).into()
            }
            ClusterEvent::Node { old, new } => {
                let allowed = |n: &NodeBase| self.added_allows(n) && pod.selects_node(&n.name, &n.labels);
                (allowed(new) && !old.as_deref().is_some_and(allowed)).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::{Value, json};

    const NO: &str = "node(s) didn't match Pod's node affinity/selector";

    fn required(terms: Value) -> crate::model::PodInfo {
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        pod("p").set("/spec", "affinity", affinity).info()
    }

    #[test]
    fn filter() {
        let n = node("n1").label("disk", "ssd").with(&[]);
        let check = Check::of(super::build, json!(null));
        let expr = |op: &str, values: Value| json!([{"matchExpressions": [{"key": "disk", "operator": op, "values": values}]}]);
        for (what, pod, want) in [
            ("nothing asked", pod("p").info(), ""),
            ("selector", pod("p").set("/spec", "nodeSelector", json!({"disk": "ssd"})).info(), ""),
            ("other selector", pod("p").set("/spec", "nodeSelector", json!({"disk": "hdd"})).info(), NO),
            ("in", required(expr("In", json!(["ssd"]))), ""),
            ("not in", required(expr("NotIn", json!(["ssd"]))), NO),
            ("no term", required(json!([])), NO),
            ("empty term", required(json!([{}])), NO),
            (
                "one of two",
                required(
                    json!([{"matchExpressions": [{"key": "none", "operator": "Exists"}]}, {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]),
                ),
                "",
            ),
            (
                "by name",
                required(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])),
                "",
            ),
        ] {
            assert_eq!(check.filter(&pod, &n), want, "{what}");
        }
        let enforced = Check::of(
            super::build,
            json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]}}}),
        );
        assert_eq!(enforced.filter(&pod("p").info(), &n), "node(s) didn't match scheduler-enforced node affinity");
    }

    #[test]
    fn score() {
        let p = pod("p").set("/spec", "affinity", json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 80, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}},
            {"weight": 20, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}},
        ]}}));
        let nodes = [
            node("a").label("disk", "ssd").label("zone", "a").with(&[]),
            node("b").label("zone", "a").with(&[]),
            node("c").with(&[]),
        ];
        assert_eq!(Check::of(super::build, json!(null)).scores(&p.info(), &nodes), [100, 20, 0]);
    }
}
