//! ImageLocality: nodes that have the images already are liked better, the more so the bigger the images.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, MAX_NODE_SCORE, Plugin, Score};
use crate::framework::{ConfigError, CycleState};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "ImageLocality";

const MB: i64 = 1024 * 1024;
const MIN: i64 = 23 * MB;
const MAX_PER_CONTAINER: i64 = 1000 * MB;

struct ImageLocality;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ConfigError> {
    Ok(Plugin::new(NAME).score(&Arc::new(ImageLocality)))
}

impl Score for ImageLocality {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn score(&self, cx: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        if node.base.images.is_empty() {
            return 0;
        }
        let total = cx.snapshot.nodes().len().max(1) as f64;
        let weigh = |image: &Arc<str>| {
            let size = node.base.images.get(image)?;
            Some((*size as f64 * (f64::from(cx.snapshot.image_spread(image)) / total)) as i64)
        };
        let sum: i64 = pod.images.iter().filter_map(weigh).sum();
        let max = MAX_PER_CONTAINER * i64::try_from(pod.containers.max(1)).unwrap_or(1);
        MAX_NODE_SCORE * (sum.clamp(MIN, max) - MIN) / (max - MIN)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;

    #[test]
    fn score() {
        let has = |name: &str, mb: i64| {
            node(name)
                .set("/status", "images", json!([{"names": ["img:latest"], "sizeBytes": mb * 1024 * 1024}]))
                .with(&[])
        };
        let nodes = [has("a", 500), node("b").with(&[]), has("c", 4000), has("d", 10)];
        // 500 MB on 3 of 4 nodes count as 375, of which 23 are too little to matter.
        assert_eq!(Check::of(super::build, json!(null)).scores(&pod("p").info(), &nodes), [36, 0, 100, 0]);
    }
}
