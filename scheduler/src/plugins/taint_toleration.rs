//! TaintToleration: taints keep pods away that do not tolerate them; soft taints make a node less liked. Answers for
//! upstream's `pkg/scheduler/framework/plugins/tainttoleration`.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, Filter, Plugin, Requeue, Score, normalize_by_max};
use crate::framework::{ClusterEvent, CycleState, Features, Hint, ProfileError, Status};
use crate::model::selector::Effect;
use crate::model::{NodeBase, NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "TaintToleration";

struct TaintToleration {
    /// Tolerations may compare numbers.
    compares: bool,
}

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let it = Arc::new(TaintToleration { compares: features.comparisons });
    Ok(Plugin::new(NAME).filter(&it).score(&it).requeue(&it).node_only())
}

impl TaintToleration {
    fn tolerated(&self, pod: &PodInfo, node: &NodeBase) -> bool {
        node.hard_taints().all(|taint| pod.tolerations.iter().any(|t| t.tolerates(taint, self.compares)))
    }
}

impl Filter for TaintToleration {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if self.tolerated(pod, &node.base) {
            Status::SUCCESS
        } else {
            Status::unresolvable("node(s) had untolerated taint(s)")
        }
    }
}

impl Score for TaintToleration {
    fn score(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let soft = || pod.tolerations.iter().filter(|t| t.effect.is_none_or(|e| e == Effect::PreferNoSchedule));
        let disliked = |effect| effect == Effect::PreferNoSchedule;
        let count = node
            .base
            .taints
            .iter()
            .filter(|t| disliked(t.effect) && !soft().any(|s| s.tolerates(t, self.compares)))
            .count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_by_max(scores, true);
    }
}

impl Requeue for TaintToleration {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Target { old, new } => (old.tolerations != new.tolerations).into(),
            ClusterEvent::Node { old, new } => {
                (self.tolerated(pod, new) && !old.as_deref().is_some_and(|old| self.tolerated(pod, old))).into()
            }
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::framework::Features;
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;

    fn built(args: &serde_json::Value) -> Result<crate::framework::Plugin, crate::framework::ProfileError> {
        super::build(args, Features::default())
    }

    #[test]
    fn numbers_are_compared_behind_their_gate() {
        let patient = |hours: &str| {
            let toleration = json!({"key": "sla", "operator": "Gt", "value": hours});
            pod("p").set("/spec", "tolerations", json!([toleration])).info()
        };
        let spot = node("n").taint("sla", "95", "NoSchedule").with(&[]);
        let comparing =
            Check::of(|args| super::build(args, Features { comparisons: true, ..Features::default() }), json!(null));
        let no = "node(s) had untolerated taint(s)";
        assert_eq!(comparing.filter(&patient("90"), &spot), "");
        assert_eq!(comparing.filter(&patient("99"), &spot), no);
        assert_eq!(Check::of(built, json!(null)).filter(&patient("90"), &spot), no, "the gate is off");
    }

    #[test]
    fn filter() {
        let tolerating = |t: serde_json::Value| pod("p").set("/spec", "tolerations", json!([t])).info();
        let gpu = node("n").taint("gpu", "yes", "NoSchedule").with(&[]);
        let gone = node("n").taint("gone", "", "NoExecute").with(&[]);
        let soft = node("n").taint("soft", "", "PreferNoSchedule").with(&[]);
        let check = Check::of(built, json!(null));
        for (what, pod, node, want) in [
            ("no toleration", pod("p").info(), &gpu, "node(s) had untolerated taint(s)"),
            ("equal", tolerating(json!({"key": "gpu", "value": "yes"})), &gpu, ""),
            ("other value", tolerating(json!({"key": "gpu", "value": "no"})), &gpu, "node(s) had untolerated taint(s)"),
            ("everything", tolerating(json!({"operator": "Exists"})), &gone, ""),
            (
                "other effect",
                tolerating(json!({"operator": "Exists", "effect": "NoSchedule"})),
                &gone,
                "node(s) had untolerated taint(s)",
            ),
            ("soft taints do not keep away", pod("p").info(), &soft, ""),
        ] {
            assert_eq!(check.filter(&pod, node), want, "{what}");
        }
    }

    #[test]
    fn score() {
        let nodes = [
            node("a").with(&[]),
            node("b").taint("x", "", "PreferNoSchedule").with(&[]),
            node("c").taint("x", "", "PreferNoSchedule").taint("y", "", "PreferNoSchedule").with(&[]),
        ];
        assert_eq!(Check::of(built, json!(null)).scores(&pod("p").info(), &nodes), [100, 50, 0]);
    }
}
