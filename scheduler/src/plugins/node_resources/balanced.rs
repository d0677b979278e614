//! NodeResourcesBalancedAllocation: likes nodes whose resources would be used up evenly. Answers for upstream's
//! `balancedResourceScorer`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::ResourceSpec;
use crate::framework::plugin::{Context, Plugin, PreScore, Score};
use crate::framework::{CycleState, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo};
use crate::plugins::read_args;

/// Upstream's name.
pub const NAME: &str = "NodeResourcesBalancedAllocation";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Balanced {
    resources: Vec<ResourceSpec>,
}

impl Default for Balanced {
    fn default() -> Self {
        Self { resources: ResourceSpec::defaults() }
    }
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(read_args::<Balanced>(NAME, args)?);
    Ok(Plugin::new(NAME).pre_score(&it).score(&it).node_only())
}

impl PreScore for Balanced {
    fn pre_score(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo, _: &[&NodeInfo]) -> Status {
        if self.resources.iter().all(|r| r.asked(pod) == 0) { Status::SKIP } else { Status::SUCCESS }
    }
}

impl Score for Balanced {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
    fn score(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let part = |r: &ResourceSpec| {
            let (has, taken) = r.allocatable_and_taken(pod, node, false);
            (has != 0).then(|| (taken as f64 / has as f64).min(1.0))
        };
        let parts = || self.resources.iter().filter_map(part);
        let n = parts().count() as f64;
        let mean = parts().sum::<f64>() / n;
        let deviation = match n {
            0.0 | 1.0 => 0.0,
            // Scores are cut to whole numbers, so it matters how they are reckoned.
            2.0 => parts().reduce(|a, b| ((a - b) / 2.0).abs()).unwrap_or(0.0),
            _ => (parts().map(|p| (p - mean) * (p - mean)).sum::<f64>() / n).sqrt(),
        };
        ((1.0 - deviation) * 100.0) as i64
    }

    fn is_relative(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;

    #[test]
    fn score() {
        let sized = |name: &str, cpu: &str, memory: &str| node(name).has("cpu", cpu).has("memory", memory).with(&[]);
        let nodes = [sized("even", "10", "10Gi"), sized("uneven", "10", "5Gi"), sized("full", "1", "1Gi")];
        let p = pod("p").cpu("3").memory("3Gi").info();
        assert_eq!(Check::of(super::build, json!(null)).scores(&p, &nodes), [100, 85, 100]);
        assert!(Check::of(super::build, json!(null)).scores(&pod("best-effort").info(), &nodes).is_empty());
    }
}
