//! ImageLocality: nodes that have the images already are liked better, the more so the bigger the images. Answers for
//! upstream's `pkg/scheduler/framework/plugins/imagelocality` (`sumImageScores`).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::framework::domains::Touched;
use crate::framework::plugin::{Context, MAX_NODE_SCORE, Plugin, Score};
use crate::framework::rule::{NodeRule, Rules};
use crate::framework::{CycleState, ProfileError};
use crate::model::{Demand, NodeInfo, PodInfo, Snapshot};

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
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(ImageLocality);
    Ok(Plugin::new(NAME).score(&it).rules(&it))
}

/// The score of a node that has the pod's images in these sizes (0 for those it lacks).
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
fn judge(cx: Context<'_>, pod: &Demand, sizes: impl Iterator<Item = i64>) -> i64 {
    let total = cx.snapshot.nodes().len().max(1) as f64;
    let weigh = |(image, size): (&Arc<str>, i64)| {
        if size == 0 { 0 } else { (size as f64 * (f64::from(cx.snapshot.image_spread(image)) / total)) as i64 }
    };
    let sum: i64 = pod.images.iter().zip(sizes).map(weigh).sum();
    let max = MAX_PER_CONTAINER * i64::try_from(pod.containers.max(1)).unwrap_or(1);
    MAX_NODE_SCORE * (sum.clamp(MIN, max) - MIN) / (max - MIN)
}

fn sizes<'a>(pod: &'a Demand, node: &'a NodeInfo) -> impl Iterator<Item = i64> + 'a {
    pod.images.iter().map(|image| node.base.images.get(image).copied().unwrap_or(0))
}

impl Score for ImageLocality {
    fn score(&self, cx: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        if node.base.images.is_empty() { 0 } else { judge(cx, pod, sizes(pod, node)) }
    }

    fn is_relative(&self) -> bool {
        false
    }
}

impl Rules for ImageLocality {
    fn soft(&self, _: Context<'_>, pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        Some(Box::new(ImageRule { pod: Arc::clone(&pod.demand), shown: Vec::new(), scores: HashMap::new() }))
    }
}

/// Nodes show which of the pod's images they have, in which size: how common an image is changes for all nodes at once.
struct ImageRule {
    pod: Arc<Demand>,
    /// Sizes by slot and image; empty where there is no image at all.
    shown: Vec<Box<[i64]>>,
    scores: HashMap<Box<[i64]>, i64>,
}

impl NodeRule for ImageRule {
    fn fingerprint(&self) -> u64 {
        0
    }

    fn update(&mut self, snapshot: &Snapshot, slot: usize, _: &mut Touched) {
        if self.shown.len() <= slot {
            self.shown.resize(slot + 1, Box::default());
        }
        let node = snapshot.nodes().get(slot).filter(|n| !n.base.images.is_empty());
        let sizes: Option<Box<[i64]>> = node.map(|n| sizes(&self.pod, n).collect());
        self.shown[slot] = sizes.filter(|s| s.iter().any(|size| *size != 0)).unwrap_or_default();
    }

    fn facet(&self, slot: usize, out: &mut Vec<i64>) {
        let shown = self.shown.get(slot).map_or(&[][..], |s| s);
        out.extend((0..self.pod.images.len()).map(|i| shown.get(i).copied().unwrap_or(0)));
    }

    fn width(&self) -> usize {
        self.pod.images.len()
    }

    fn prepare(&mut self, cx: Context<'_>, fitting: &[(&[i64], usize)]) {
        self.scores.clear();
        for (facet, _) in fitting {
            if facet.iter().any(|size| *size != 0) {
                self.scores.insert((*facet).into(), judge(cx, &self.pod, facet.iter().copied()));
            }
        }
    }

    fn score(&self, facet: &[i64]) -> i64 {
        self.scores.get(facet).copied().unwrap_or(0)
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
