//! Plugins that count how often they are asked, at the points where upstream counts it.

use std::sync::Arc;

use prometheus::Counter;

use super::plugin::{Context, Filter, PreFilter, PreFiltered, PreScore, Score};
use super::profile::Named;
use super::state::CycleState;
use super::status::Status;
use crate::metrics::{Point, evaluations};
use crate::model::{NodeInfo, PodInfo};

/// A plugin at one point of one profile.
struct Counted<T: ?Sized> {
    plugin: Arc<T>,
    count: Counter,
}

fn wrap<T: ?Sized>(plugin: Arc<T>, name: &str, point: Point, profile: &str) -> Arc<Counted<T>> {
    Arc::new(Counted { plugin, count: evaluations(name, point, profile) })
}

/// Lets PreFilter plugins count.
pub(super) fn pre_filters(list: Vec<Named<dyn PreFilter>>, profile: &str) -> Vec<Named<dyn PreFilter>> {
    list.into_iter().map(|(n, it)| (n, wrap(it, n, Point::PreFilter, profile) as Arc<dyn PreFilter>)).collect()
}

/// Lets Filter plugins count.
pub(super) fn filters(list: Vec<Named<dyn Filter>>, profile: &str) -> Vec<Named<dyn Filter>> {
    list.into_iter().map(|(n, it)| (n, wrap(it, n, Point::Filter, profile) as Arc<dyn Filter>)).collect()
}

/// Lets PreScore plugins count.
pub(super) fn pre_scores(list: Vec<Named<dyn PreScore>>, profile: &str) -> Vec<Named<dyn PreScore>> {
    list.into_iter().map(|(n, it)| (n, wrap(it, n, Point::PreScore, profile) as Arc<dyn PreScore>)).collect()
}

/// Lets Score plugins count; weights stay.
pub(super) fn scores(list: Vec<(Named<dyn Score>, i64)>, profile: &str) -> Vec<(Named<dyn Score>, i64)> {
    let counted =
        |((n, it), w): (Named<dyn Score>, i64)| ((n, wrap(it, n, Point::Score, profile) as Arc<dyn Score>), w);
    list.into_iter().map(counted).collect()
}

impl PreFilter for Counted<dyn PreFilter> {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        self.count.inc();
        self.plugin.pre_filter(cx, state, pod)
    }

    fn add_pod(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        self.plugin.add_pod(cx, state, pod, added, node);
    }

    fn remove_pod(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        self.plugin.remove_pod(cx, state, pod, removed, node);
    }
}

impl Filter for Counted<dyn Filter> {
    fn filter(&self, cx: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        self.count.inc();
        self.plugin.filter(cx, state, pod, node)
    }
}

impl PreScore for Counted<dyn PreScore> {
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, nodes: &[&NodeInfo]) -> Status {
        self.count.inc();
        self.plugin.pre_score(cx, state, pod, nodes)
    }
}

impl Score for Counted<dyn Score> {
    fn score(&self, cx: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        self.count.inc();
        self.plugin.score(cx, state, pod, node)
    }

    fn is_relative(&self) -> bool {
        self.plugin.is_relative()
    }

    fn normalize(&self, scores: &mut [i64]) {
        self.plugin.normalize(scores);
    }
}
