//! Runs one plugin on given nodes.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::lister::Fixed;
use crate::framework::plugin::PreFiltered;
use crate::framework::{Context, CycleState, Nominated, Plugin, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo, Snapshot};

/// A plugin and what it may look up.
pub struct Check {
    plugin: Plugin,
    /// Objects for the plugin.
    pub listers: Fixed,
    nominated: Nominated,
}

impl Check {
    /// Builds the plugin.
    #[allow(clippy::needless_pass_by_value, reason = "a table of tests gives its values away")]
    pub fn of(build: fn(&Value) -> Result<Plugin, ProfileError>, args: Value) -> Self {
        let plugin = build(&args).unwrap_or_default();
        assert!(!plugin.name.is_empty(), "arguments refused: {args}");
        Self { plugin, listers: Fixed::default(), nominated: Nominated::default() }
    }

    fn context<'a>(&'a self, snapshot: &'a Snapshot) -> Context<'a> {
        Context { snapshot, listers: &self.listers, nominated: &self.nominated, now: jiff::Timestamp::UNIX_EPOCH }
    }

    /// The answer for one node that is the whole cluster, reasons joined; empty for yes.
    pub fn filter(&self, pod: &PodInfo, node: &Arc<NodeInfo>) -> String {
        self.status(pod, node).to_string()
    }

    /// Returns the answer as a status.
    pub fn status(&self, pod: &PodInfo, node: &Arc<NodeInfo>) -> Status {
        self.statuses(pod, std::slice::from_ref(node)).pop().unwrap_or_default()
    }

    /// Each node's answer.
    pub fn statuses(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Vec<Status> {
        let snapshot = Snapshot::of(nodes.to_vec());
        let cx = self.context(&snapshot);
        let mut state = CycleState::default();
        if let Some(pre) = &self.plugin.pre_filter {
            match pre.pre_filter(cx, &mut state, pod) {
                Err(status) if status.is_skip() => return vec![Status::SUCCESS; nodes.len()],
                Err(status) => return vec![status; nodes.len()],
                Ok(PreFiltered::Nodes(names)) => {
                    return nodes
                        .iter()
                        .map(|n| {
                            if names.contains(&**n.name()) {
                                self.one(cx, &state, pod, n)
                            } else {
                                Status::unresolvable("not listed")
                            }
                        })
                        .collect();
                }
                Ok(PreFiltered::All) => {}
            }
        }
        nodes.iter().map(|n| self.one(cx, &state, pod, n)).collect()
    }

    fn one(&self, cx: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        self.plugin.filter.as_ref().map_or(Status::SUCCESS, |f| f.filter(cx, state, pod, node))
    }

    /// Returns the nodes that pass.
    pub fn fits(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Vec<String> {
        let statuses = self.statuses(pod, nodes);
        nodes.iter().zip(statuses).filter(|(_, s)| s.is_success()).map(|(n, _)| n.name().to_string()).collect()
    }

    /// Takes another plugin, or one with other features.
    pub fn replace(&mut self, plugin: Plugin) {
        self.plugin = plugin;
    }

    /// Returns scores as [`Self::scores`] does, with the notes that PreFilter leaves.
    pub fn scores_after_filter(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Vec<i64> {
        let snapshot = Snapshot::of(nodes.to_vec());
        let cx = self.context(&snapshot);
        let mut state = CycleState::default();
        if let Some(pre) = &self.plugin.pre_filter {
            // A plugin that skips leaves no notes.
            let _ = pre.pre_filter(cx, &mut state, pod);
        }
        self.scores_of(cx, state, pod, nodes)
    }

    /// Normalised scores; empty when the plugin skips.
    pub fn scores(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Vec<i64> {
        let snapshot = Snapshot::of(nodes.to_vec());
        self.scores_of(self.context(&snapshot), CycleState::default(), pod, nodes)
    }

    fn scores_of(&self, cx: Context<'_>, mut state: CycleState, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Vec<i64> {
        let nodes: Vec<&NodeInfo> = nodes.iter().map(|n| &**n).collect();
        let nodes = nodes.as_slice();
        if self.plugin.pre_score.as_ref().is_some_and(|p| p.pre_score(cx, &mut state, pod, nodes).is_skip()) {
            return Vec::new();
        }
        let Some(score) = &self.plugin.score else { return Vec::new() };
        let mut out: Vec<i64> = nodes.iter().map(|n| score.score(cx, &state, pod, n)).collect();
        score.normalize(&mut out);
        out
    }
}
