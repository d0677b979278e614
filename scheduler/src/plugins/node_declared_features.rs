//! NodeDeclaredFeatures: pods that need a feature are placed on nodes that declare it. Answers for upstream's
//! `pkg/scheduler/framework/plugins/nodedeclaredfeatures`.
//!
//! Behind the gate NodeDeclaredFeatures; without it the plugin has nothing to say. What a pod needs is read with its demand.

use std::sync::Arc;

use serde_json::Value;
use shared::declared_features::missing;

use crate::framework::config::Features;
use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{ClusterEvent, CycleState, Hint, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodeDeclaredFeatures";

struct NodeDeclaredFeatures {
    enabled: bool,
}

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let it = Arc::new(NodeDeclaredFeatures { enabled: features.declared_features });
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it))
}

impl PreFilter for NodeDeclaredFeatures {
    fn pre_filter(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if self.enabled && !pod.needed_features.is_empty() { Ok(PreFiltered::All) } else { Err(Status::SKIP) }
    }
}

impl Filter for NodeDeclaredFeatures {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let missing = missing(&pod.needed_features, &node.base.declared_features);
        if !self.enabled || missing.is_empty() {
            return Status::SUCCESS;
        }
        let missing = missing.join(", ");
        Status::unresolvable(format!("node declared features check failed - unsatisfied requirements: {missing}"))
    }
}

impl Requeue for NodeDeclaredFeatures {
    fn hint(&self, _: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Target { old, new } => (old.needed_features != new.needed_features).into(),
            _ => event.node_if(|old, new| old.declared_features != new.declared_features).is_some().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::framework::{Profile, ProfileConfig};
    use crate::simulation::{Attempt, Simulation};
    use crate::testing::{node, pod};

    fn placed(enabled: bool) -> Simulation {
        let features = Features { declared_features: enabled, ..Features::default() };
        let profile = Profile::build(&ProfileConfig { features, ..ProfileConfig::default() }).expect("a profile");
        let mut sim = Simulation::new(profile, 1);
        (0..20).for_each(|n| sim.set_node(node(&format!("older-{n}")).base()));
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
        let containers = json!([{"name": "c", "image": "i", "restartPolicyRules": rules}]);
        let needs = pod("needs").set("/spec", "containers", containers);
        let needs = Arc::new(PodInfo::interned(&needs.api(), &mut sim.interner));
        sim.add_pod(needs);
        sim
    }

    #[test]
    fn pods_go_where_the_features_that_they_need_are_declared() {
        let mut sim = placed(true);
        let Some(Attempt::Waits(_, why, _)) = sim.step() else { panic!("no node has it") };
        assert!(why.contains("20 node declared features check failed - unsatisfied requirements: RestartAllContainersOnContainerExits"), "{why}");
        let newer = node("newer").set("/status", "declaredFeatures", json!(["RestartAllContainersOnContainerExits"]));
        sim.set_node(newer.base());
        assert!(sim.skip_backoff(), "the node that came has it tried again");
        let Some(Attempt::Bound(on)) = sim.step() else { panic!("a node has it") };
        assert_eq!(on.node_name.as_deref(), Some("newer"));
    }

    #[test]
    fn a_node_that_comes_to_declare_a_feature_has_pods_tried_again() {
        let mut sim = placed(true);
        assert!(matches!(sim.step(), Some(Attempt::Waits(..))));
        sim.set_node(node("older-3").label("a", "b").base());
        assert!(!sim.skip_backoff(), "it still lacks it");
        let declares = node("older-3").label("a", "b");
        sim.set_node(
            declares.set("/status", "declaredFeatures", json!(["RestartAllContainersOnContainerExits"])).base(),
        );
        assert!(sim.skip_backoff());
        let Some(Attempt::Bound(on)) = sim.step() else { panic!("a node has it") };
        assert_eq!(on.node_name.as_deref(), Some("older-3"));
    }

    #[test]
    fn without_the_gate_any_node_will_do() {
        assert!(matches!(placed(false).step(), Some(Attempt::Bound(_))));
    }
}
