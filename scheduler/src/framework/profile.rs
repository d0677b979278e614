//! A profile: the plugins that take part, point by point, and running them. Answers for upstream's
//! `pkg/scheduler/framework/runtime` (`frameworkImpl`).
//!
//! HOT: `filter` and `score` run per pod and node. No allocation there but for reasons of nodes that say no.

use std::sync::Arc;

use serde_json::Value;

use super::config::{Features, Plugins, ProfileConfig};
use super::counted;
use super::diagnosis::{NO_NODES, Rejected};
use super::event::{ClusterEvent, Hint};
use super::extender::Extenders;
use super::lister::Listers;
use super::parallel::Threads;
use super::plugin::{
    Bind, Context, Filter, MAX_NODE_SCORE, NodeNames, Permission, Permit, Plugin, PostBind, PostFilter, PreBind,
    PreEnqueue, PreFilter, PreFiltered, PreScore, QueueSort, Requeue, Rescue, Reserve, Score,
};
pub use super::profile_error::ProfileError;
use super::state::CycleState;
use super::status::{Code, Reason, Status};
use super::table::{Layout, invalid_score};
use crate::metrics::{self, Point, timed};
use crate::model::{NodeInfo, PodInfo};

pub(super) type Named<T> = (&'static str, Arc<T>);

/// Scores of a plugin: its name, its weight, and a score for each node.
pub type PluginScores = (&'static str, i64, Vec<i64>);

/// See the module.
pub struct Profile {
    /// The `schedulerName` it answers to.
    pub name: Arc<str>,
    /// Overrides the global percentage of nodes to score.
    pub percentage: Option<i32>,
    /// Programs outside that are asked, too; whoever builds the profile puts them in.
    pub extenders: Extenders,
    /// The node that a pod is about to get is told where its binding takes time.
    pub announces: bool,
    pub(super) threads: Threads,
    pre_enqueue: Vec<Named<dyn PreEnqueue>>,
    queue_sort: Arc<dyn QueueSort>,
    pub(super) pre_filter: Vec<Named<dyn PreFilter>>,
    filter: Vec<Named<dyn Filter>>,
    post_filter: Vec<Named<dyn PostFilter>>,
    pre_score: Vec<Named<dyn PreScore>>,
    score: Vec<(Named<dyn Score>, i64)>,
    reserve: Vec<Named<dyn Reserve>>,
    pub(super) permit: Vec<Named<dyn Permit>>,
    pre_bind: Vec<Named<dyn PreBind>>,
    bind: Vec<Named<dyn Bind>>,
    post_bind: Vec<Named<dyn PostBind>>,
    requeue: Vec<(&'static str, Option<Arc<dyn Requeue>>)>,
    /// Layout of remembered answers; `None` when this order of plugins does not allow it.
    pub(super) layout: Option<Layout>,
    pub(super) batch: metrics::Batch,
}

impl Profile {
    /// Builds a profile from its configuration, of plugins that `build` makes by name, arguments and features.
    ///
    /// # Errors
    /// [`ProfileError`] when it names what is not there.
    pub fn with_plugins(
        config: &ProfileConfig,
        build: impl Fn(&str, &Value, Features) -> Result<Plugin, ProfileError>,
    ) -> Result<Self, ProfileError> {
        let own = config.plugins.clone().unwrap_or_default();
        let mut built: Vec<Plugin> = Vec::new();
        for name in named(config, &own) {
            built.push(build(&name, &config.args(&name), config.features)?);
        }
        macro_rules! collect {
            ($point:ident, $label:literal) => {{
                let has = |n: &str| built.iter().any(|p| p.name == n && p.$point.is_some());
                let mut list = Vec::new();
                for r in config.at_point(&own.$point, has) {
                    let found =
                        built.iter().find(|p| p.name == r.name).and_then(|p| p.$point.clone().map(|it| (p.name, it)));
                    match found {
                        Some(found) => list.push((found, r.weight)),
                        None => return Err(ProfileError::Point(r.name, $label)),
                    }
                }
                list
            }};
        }
        fn plain<T>(list: Vec<(T, i64)>) -> Vec<T> {
            list.into_iter().map(|(it, _)| it).collect()
        }
        let name = config.scheduler_name.clone();
        let mut sorts = plain(collect!(queue_sort, "QueueSort"));
        let queue_sort = match (sorts.len(), sorts.pop()) {
            (1, Some((_, sort))) => sort,
            (n, _) => return Err(ProfileError::QueueSort(name, n)),
        };
        let bind = plain(collect!(bind, "Bind"));
        if bind.is_empty() {
            return Err(ProfileError::Bind(name));
        }
        let pre_filter = counted::pre_filters(plain(collect!(pre_filter, "PreFilter")), &name);
        let filter = counted::filters(plain(collect!(filter, "Filter")), &name);
        let pre_score = counted::pre_scores(plain(collect!(pre_score, "PreScore")), &name);
        let score = collect!(score, "Score").into_iter().map(|(it, w): (_, i64)| (it, w.max(1))).collect();
        let score = counted::scores(score, &name);
        Ok(Self {
            layout: Layout::of(&built, &pre_filter, &filter, &pre_score, &score),
            percentage: config.percentage_of_nodes_to_score,
            extenders: Extenders::new(),
            announces: config.features.announces,
            threads: Threads::ONE,
            pre_enqueue: plain(collect!(pre_enqueue, "PreEnqueue")),
            queue_sort,
            pre_filter,
            filter,
            post_filter: plain(collect!(post_filter, "PostFilter")),
            pre_score,
            score,
            reserve: plain(collect!(reserve, "Reserve")),
            permit: plain(collect!(permit, "Permit")),
            pre_bind: plain(collect!(pre_bind, "PreBind")),
            bind,
            post_bind: plain(collect!(post_bind, "PostBind")),
            requeue: built.iter().map(|p| (p.name, p.requeue.clone())).collect(),
            batch: metrics::Batch::of(&name),
            name: name.into(),
        })
    }

    /// Returns the static form of the name of one of its plugins.
    pub(super) fn plugin_name(&self, name: &str) -> Option<&'static str> {
        self.requeue.iter().map(|(known, _)| *known).find(|known| *known == name)
    }

    /// Lets questions about many nodes be asked on several threads.
    #[must_use]
    pub fn on(mut self, threads: Threads) -> Self {
        self.threads = threads;
        if let Some(layout) = &mut self.layout {
            layout.threads = threads;
        }
        self
    }

    /// The queue's order.
    pub fn queue_sort(&self) -> Arc<dyn QueueSort> {
        Arc::clone(&self.queue_sort)
    }

    /// Reports whether there is anything to try when no node fits.
    pub fn has_post_filter(&self) -> bool {
        !self.post_filter.is_empty()
    }

    /// May the pod enter the queue?
    pub fn pre_enqueue(&self, listers: Option<&dyn Listers>, pod: &PodInfo) -> Status {
        for (name, plugin) in &self.pre_enqueue {
            let status = plugin.pre_enqueue(listers, pod);
            if !status.is_success() {
                return status.by(name);
            }
        }
        Status::SUCCESS
    }

    /// Reports whether an event may help a pod that `rejectors` turned down. A plugin that gives no hints always says
    /// yes.
    pub fn hint(&self, pod: &PodInfo, event: &ClusterEvent, rejectors: impl IntoIterator<Item = &'static str>) -> Hint {
        let mut any = false;
        for rejector in rejectors {
            any = true;
            if rejector == NO_NODES {
                if matches!(event, ClusterEvent::Node { .. }) {
                    return Hint::Queue;
                }
                continue;
            }
            match self.requeue.iter().find(|(name, _)| *name == rejector) {
                Some((name, Some(requeue)))
                    if !metrics::hinted(name, event.label(), || requeue.hint(pod, event) == Hint::Queue) => {}
                _ => return Hint::Queue,
            }
        }
        Hint::from(!any)
    }

    /// Runs PreFilter. On success the names of the nodes to look at, if limited.
    pub fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<Option<Limit>, Status> {
        let mut limit: Option<Limit> = None;
        for (name, plugin) in &self.pre_filter {
            let said = metrics::plugin(state.sampled, Point::PreFilter, name, || plugin.pre_filter(cx, state, pod));
            match said {
                Ok(PreFiltered::All) => {}
                Ok(PreFiltered::Nodes(names)) => {
                    let mut now = limit.take().unwrap_or(Limit { plugins: Vec::new(), names: None });
                    now.plugins.push(name);
                    now.names = Some(match now.names {
                        None => names,
                        Some(old) => old.intersection(&names).cloned().collect(),
                    });
                    if now.names.as_ref().is_some_and(NodeNames::is_empty) {
                        let text = if now.plugins.len() == 1 {
                            format!("node(s) didn't satisfy plugin {name}")
                        } else {
                            format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", now.plugins.join(" "))
                        };
                        return Err(Status::unresolvable(text).by(name));
                    }
                    limit = Some(now);
                }
                Err(status) if status.is_skip() => state.skip_filter.push(name),
                Err(status) => return Err(status.failed_in("PreFilter", name)),
            }
        }
        Ok(limit)
    }

    /// The filters that this cycle runs.
    pub fn active_filters<'a>(&'a self, state: &CycleState) -> Vec<&'a Named<dyn Filter>> {
        self.filter.iter().filter(|(name, _)| !state.skip_filter.contains(name)).collect()
    }

    /// Runs the filters on one node, once more without promised pods if there are any.
    pub fn filter_node(
        &self,
        cx: Context<'_>,
        state: &CycleState,
        filters: &[&Named<dyn Filter>],
        pod: &PodInfo,
        node: &NodeInfo,
    ) -> Status {
        let promised = cx.nominated.on(node.name());
        if !promised.is_empty() {
            let mut with = None;
            for other in promised.iter().filter(|o| o.priority >= pod.priority && o.uid != pod.uid) {
                let (state, node) = with.get_or_insert_with(|| (state.clone(), node.clone()));
                node.add(Arc::clone(other));
                self.add_pod(cx, state, pod, other, node);
            }
            if let Some((state, node)) = with {
                let status = run_filters(cx, &state, filters, pod, &node);
                if !status.is_success() {
                    return status;
                }
            }
        }
        run_filters(cx, state, filters, pod, node)
    }

    /// Tells PreFilter plugins of a pod that is pretended to run on a node.
    pub fn add_pod(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        for (name, plugin) in &self.pre_filter {
            if !state.skip_filter.contains(name) {
                plugin.add_pod(cx, state, pod, added, node);
            }
        }
    }

    /// Tells PreFilter plugins of a pod that is pretended to be gone.
    pub fn remove_pod(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        removed: &PodInfo,
        node: &NodeInfo,
    ) {
        for (name, plugin) in &self.pre_filter {
            if !state.skip_filter.contains(name) {
                plugin.remove_pod(cx, state, pod, removed, node);
            }
        }
    }

    /// Runs PostFilter until one finds a way out; otherwise all their reasons.
    pub fn post_filter(
        &self,
        cx: Context<'_>,
        state: &CycleState,
        pod: &PodInfo,
        rejected: &Rejected,
    ) -> (Option<Rescue>, Status) {
        let mut reasons: Vec<Reason> = Vec::new();
        let mut rescue = None;
        let mut code = Code::UnschedulableAndUnresolvable;
        for (name, plugin) in &self.post_filter {
            let (found, status) = metrics::plugin(state.sampled, Point::PostFilter, name, || {
                plugin.post_filter(cx, self, state, pod, rejected)
            });
            match status.code() {
                Code::Success => return (found, status.by(name)),
                Code::Unschedulable => code = Code::Unschedulable,
                Code::UnschedulableAndUnresolvable => {}
                _ => return (None, status.by(name)),
            }
            reasons.extend_from_slice(status.reasons());
            rescue = found.or(rescue);
        }
        (rescue, Status::with_reasons(code, reasons))
    }

    /// PostFilter plugins that have something to do after their decision.
    pub fn post_filters_to_act(&self, state: &CycleState) -> Vec<Arc<dyn PostFilter>> {
        self.post_filter.iter().filter(|(_, p)| p.acts(state)).map(|(_, p)| Arc::clone(p)).collect()
    }

    /// Total weighted scores, in the order of `nodes`.
    pub fn score(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        nodes: &[&NodeInfo],
    ) -> Result<Vec<i64>, Status> {
        let mut total = vec![0_i64; nodes.len()];
        for (_, weight, scores) in self.scores_by_plugin(cx, state, pod, nodes)? {
            for (sum, s) in total.iter_mut().zip(scores) {
                *sum += s * weight;
            }
        }
        Ok(total)
    }

    /// Returns the scores of each plugin with its weight, in the order of `nodes`.
    pub fn scores_by_plugin(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        nodes: &[&NodeInfo],
    ) -> Result<Vec<PluginScores>, Status> {
        timed(Point::PreScore, &self.name, || {
            for (name, plugin) in &self.pre_score {
                let status =
                    metrics::plugin(state.sampled, Point::PreScore, name, || plugin.pre_score(cx, state, pod, nodes));
                if status.is_skip() {
                    state.skip_score.push(name);
                } else if !status.is_success() {
                    return Err(status.failed_in("PreScore", name));
                }
            }
            Ok(())
        })?;
        timed(Point::Score, &self.name, || {
            let mut parts = Vec::with_capacity(self.score.len());
            for ((name, plugin), weight) in &self.score {
                if state.skip_score.contains(name) {
                    continue;
                }
                let asked: &CycleState = state;
                let mut scores = self.threads.map(nodes, |node| plugin.score(cx, asked, pod, node));
                plugin.normalize(&mut scores);
                if let Some(bad) = scores.iter().find(|s| !(0..=MAX_NODE_SCORE).contains(*s)) {
                    return Err(invalid_score(name, *bad));
                }
                parts.push((*name, *weight, scores));
            }
            Ok(parts)
        })
    }

    /// Runs Reserve; undoes it all when one says no.
    pub fn reserve(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, node: &Arc<NodeInfo>) -> Status {
        for (name, plugin) in &self.reserve {
            let status = metrics::plugin(state.sampled, Point::Reserve, name, || plugin.reserve(cx, state, pod, node));
            if !status.is_success() {
                self.unreserve(state, pod, node.name());
                return status.failed_in("Reserve", name);
            }
        }
        Status::SUCCESS
    }

    /// Gives back what was reserved, last first.
    pub fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) {
        timed(Point::Unreserve, &self.name, || {
            for (name, plugin) in self.reserve.iter().rev() {
                metrics::plugin(state.sampled, Point::Unreserve, name, || {
                    plugin.unreserve(state, pod, node);
                    Status::SUCCESS
                });
            }
            Status::SUCCESS
        });
    }

    /// Runs Permit; the shortest wait asked for comes with `Wait`: each plugin ends the waiting when its own is over.
    pub fn permit(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, node: &str) -> Permission {
        let mut all = Permission::default();
        for (name, plugin) in &self.permit {
            let said = metrics::plugin(state.sampled, Point::Permit, name, || plugin.permit(cx, state, pod, node));
            match said.status.code() {
                Code::Success => {}
                Code::Wait => {
                    if all.status.is_success() || said.patience < all.patience {
                        (all.status, all.patience) = (said.status.by(name), said.patience);
                    }
                }
                _ => return said.status.failed_in("Permit", name).into(),
            }
            all.allow.extend(said.allow);
            all.activate.extend(said.activate);
        }
        all
    }

    /// PreBind plugins.
    pub fn pre_binders(&self) -> &[Named<dyn PreBind>] {
        &self.pre_bind
    }

    /// Bind plugins.
    pub fn binders(&self) -> &[Named<dyn Bind>] {
        &self.bind
    }

    /// Tells PostBind plugins.
    pub fn post_bind(&self, state: &CycleState, pod: &PodInfo, node: &str) {
        if self.post_bind.is_empty() {
            return;
        }
        timed(Point::PostBind, &self.name, || {
            for (_, plugin) in &self.post_bind {
                plugin.post_bind(state, pod, node);
            }
            Status::SUCCESS
        });
    }
}

/// The only nodes to look at, and who said so.
#[derive(Debug)]
pub struct Limit {
    /// Plugins.
    pub plugins: Vec<&'static str>,
    /// Names; always there once a plugin has spoken.
    pub names: Option<NodeNames>,
}

fn run_filters(
    cx: Context<'_>,
    state: &CycleState,
    filters: &[&Named<dyn Filter>],
    pod: &PodInfo,
    node: &NodeInfo,
) -> Status {
    for (name, plugin) in filters {
        let status = metrics::plugin(state.sampled, Point::Filter, name, || plugin.filter(cx, state, pod, node));
        match status.code() {
            Code::Success => {}
            Code::Error => return Status::error(format!("running {name:?} filter plugin: {status}")).by(name),
            _ => return status.by(name),
        }
    }
    Status::SUCCESS
}

/// Every plugin a configuration names, once.
fn named(config: &ProfileConfig, own: &Plugins) -> Vec<String> {
    let sets = [
        &own.pre_enqueue,
        &own.queue_sort,
        &own.pre_filter,
        &own.filter,
        &own.post_filter,
        &own.pre_score,
        &own.score,
        &own.reserve,
        &own.permit,
        &own.pre_bind,
        &own.bind,
        &own.post_bind,
    ];
    let mut out: Vec<String> = Vec::new();
    let multi = config.multi_point();
    for r in multi.iter().chain(sets.iter().flat_map(|s| &s.enabled)) {
        if !out.contains(&r.name) {
            out.push(r.name.clone());
        }
    }
    out
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}
