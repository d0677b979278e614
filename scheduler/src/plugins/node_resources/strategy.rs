//! Scoring strategies of NodeResourcesFit: from how full the node would be to a score. Answers for upstream's
//! `leastResourceScorer`, `mostResourceScorer`, `requestedToCapacityRatioScorer`.

use serde::Deserialize;

use super::ResourceSpec;
use crate::framework::plugin::MAX_NODE_SCORE;
use crate::model::{NodeInfo, PodInfo};

const MAX_UTILIZATION: i64 = 100;
/// The highest score of a shape point.
const MAX_SHAPE_SCORE: i64 = 10;

/// A point of the shape: at this utilisation, this score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShapePoint {
    /// 0 to 100.
    pub utilization: i64,
    /// 0 to 10.
    pub score: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum StrategyType {
    #[default]
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Ratio {
    shape: Vec<ShapePoint>,
}

/// A strategy with its resources.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Strategy {
    #[serde(rename = "type")]
    kind: StrategyType,
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

impl Default for Strategy {
    fn default() -> Self {
        Self { kind: StrategyType::default(), resources: ResourceSpec::defaults(), requested_to_capacity_ratio: None }
    }
}

impl Strategy {
    /// Returns the fault of the strategy, if there is one.
    pub fn problem(&self) -> Option<String> {
        if self.kind != StrategyType::RequestedToCapacityRatio {
            return None;
        }
        let shape = self.requested_to_capacity_ratio.as_ref().map(|r| r.shape.as_slice()).unwrap_or_default();
        if shape.is_empty() {
            return Some("at least one point must be specified".to_owned());
        }
        let in_range =
            |p: &ShapePoint| (0..=MAX_UTILIZATION).contains(&p.utilization) && (0..=MAX_SHAPE_SCORE).contains(&p.score);
        if !shape.iter().all(in_range) {
            return Some("utilization must be within 0..100 and score within 0..10".to_owned());
        }
        (!shape.is_sorted_by(|a, b| a.utilization < b.utilization))
            .then(|| "utilization values must be sorted in increasing order".to_owned())
    }

    /// The score of a node with the pod on it.
    pub fn score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0_i64, 0_i64);
        let ratio = self.kind == StrategyType::RequestedToCapacityRatio;
        for r in &self.resources {
            let (has, taken) = r.allocatable_and_taken(pod, node, true);
            if has == 0 {
                continue;
            }
            let score = match self.kind {
                StrategyType::LeastAllocated => {
                    if taken > has {
                        0
                    } else {
                        part(has - taken, has)
                    }
                }
                StrategyType::MostAllocated => part(taken.min(has), has),
                StrategyType::RequestedToCapacityRatio => {
                    let used = if taken > has { MAX_UTILIZATION } else { part(taken, has) };
                    let score = self.shape(used);
                    if score <= 0 {
                        continue;
                    }
                    score
                }
            };
            sum += score * r.weight;
            weights += r.weight;
        }
        match (weights, ratio) {
            (0, _) => 0,
            (_, true) => (sum + weights / 2) / weights,
            _ => sum / weights,
        }
    }

    fn shape(&self, used: i64) -> i64 {
        shaped(self.requested_to_capacity_ratio.as_ref().map(|r| r.shape.as_slice()).unwrap_or_default(), used)
    }
}

/// The score of a shape at a utilisation, 0 to 100: straight lines between its points.
pub(crate) fn shaped(points: &[ShapePoint], used: i64) -> i64 {
    let scale = |s: i64| s * (MAX_NODE_SCORE / MAX_SHAPE_SCORE);
    let Some(after) = points.iter().position(|p| used <= p.utilization) else {
        return points.last().map_or(0, |p| scale(p.score));
    };
    let b = points[after];
    if after == 0 {
        return scale(b.score);
    }
    let a = points[after - 1];
    scale(a.score) + (scale(b.score) - scale(a.score)) * (used - a.utilization) / (b.utilization - a.utilization)
}

/// `amount` of `whole`, from 0 to 100.
fn part(amount: i64, whole: i64) -> i64 {
    amount.checked_mul(MAX_NODE_SCORE).map_or_else(
        || i64::try_from(i128::from(amount) * i128::from(MAX_NODE_SCORE) / i128::from(whole)).unwrap_or(0),
        |v| v / whole,
    )
}
