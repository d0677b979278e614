//! Scores by how full storage would be (StorageCapacityScoring): of volumes that are there where the pod gets such, else of
//! the places where volumes are made. Answers for upstream's `buildScorerFunction`.

use std::collections::BTreeMap;

use super::{BindingState, Plan, VolumeBinding, capacity, class_of, plan};
use crate::framework::plugin::{Context, MAX_NODE_SCORE, PreScore, Score};
use crate::framework::{CycleState, Status};
use crate::model::resource::value;
use crate::model::{NodeInfo, PodInfo};
use crate::plugins::node_resources::strategy::{ShapePoint, shaped};

/// The shape where none is configured: the emptier, the better.
pub(super) fn usual_shape() -> Vec<ShapePoint> {
    vec![ShapePoint { utilization: 0, score: 10 }, ShapePoint { utilization: 100, score: 0 }]
}

/// Amounts asked for and amounts there are, by class.
type ByClass = BTreeMap<String, (i64, i64)>;

impl PreScore for VolumeBinding {
    fn pre_score(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, _: &[&NodeInfo]) -> Status {
        if state.get::<BindingState>().is_some() { Status::SUCCESS } else { Status::SKIP }
    }
}

impl Score for VolumeBinding {
    fn score(&self, cx: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> i64 {
        let plan = state.get::<BindingState>().and_then(|notes| plan(cx, notes, &node.base));
        match (plan, &self.shape) {
            (Some(plan), Some(shape)) => mean(&by_class(&plan), shape),
            _ => 0,
        }
    }

    fn is_relative(&self) -> bool {
        false
    }
}

fn by_class(plan: &Plan) -> ByClass {
    let mut out = ByClass::new();
    if !plan.take.is_empty() {
        for (volume, claim) in &plan.take {
            let size = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage")).map_or(0, value);
            let class = out.entry(class_of(claim).to_owned()).or_default();
            class.0 += capacity::requested(claim);
            class.1 += size;
        }
        return out;
    }
    for room in &plan.rooms {
        let class = out.entry(class_of(&room.claim).to_owned()).or_default();
        class.0 += capacity::requested(&room.claim);
        // All volumes of a class are made of the same.
        class.1 = room.place.capacity.as_ref().map_or(0, value);
    }
    out
}

/// The mean of all classes, rounded half up.
fn mean(classes: &ByClass, shape: &[ShapePoint]) -> i64 {
    let used = |(asked, there): &(i64, i64)| match *there {
        there if there == 0 || *asked > there => MAX_NODE_SCORE,
        there => i64::try_from(i128::from(*asked) * i128::from(MAX_NODE_SCORE) / i128::from(there)).unwrap_or(0),
    };
    let count = i64::try_from(classes.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return 0;
    }
    let sum: i64 = classes.values().map(|class| shaped(shape, used(class))).sum();
    (2 * sum + count) / (2 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_count_alike_and_halves_are_rounded_up() {
        let of = |classes: &[(i64, i64)]| -> ByClass {
            classes.iter().enumerate().map(|(i, class)| (i.to_string(), *class)).collect()
        };
        let fuller = [ShapePoint { utilization: 0, score: 0 }, ShapePoint { utilization: 100, score: 10 }];
        for (classes, emptier_is_better, fuller_is_better) in [
            (vec![], 0, 0),
            (vec![(25, 100)], 75, 25),
            (vec![(25, 100), (50, 100)], 63, 38),
            (vec![(200, 100)], 0, 100),
            (vec![(5, 0)], 0, 100),
            (vec![(0, 100)], 100, 0),
        ] {
            let scores = [usual_shape(), fuller.to_vec()].map(|shape| mean(&of(&classes), &shape));
            assert_eq!(scores, [emptier_is_better, fuller_is_better], "{classes:?}");
        }
    }
}
