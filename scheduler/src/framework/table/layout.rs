//! Plugins of a profile that a table asks, and how it asks them.

use std::sync::Arc;

use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, PreScore, Score};
use crate::framework::profile::Named;
use crate::framework::rule::{Depends, Rules};
use crate::framework::{CycleState, Threads};
use crate::model::PodInfo;

/// Rows in all tables together; about 60 bytes each.
pub(super) const MAX_ROWS: usize = 1 << 20;

/// Rules in place of a Score, with the Score that normalises and its weight.
pub(super) type Soft = (Named<dyn Rules>, Arc<dyn Score>, i64);

/// See the module.
pub struct Layout {
    /// PreFilters of plugins that look at nodes alone.
    pub(super) pre_filters: Vec<Named<dyn PreFilter>>,
    /// Filters that look at nodes alone.
    pub(super) filters: Vec<Named<dyn Filter>>,
    /// PreScores of plugins that look at nodes alone.
    pub(super) pre_scores: Vec<Named<dyn PreScore>>,
    /// Scores that look at nodes alone and stand for themselves, with their weights.
    pub(super) fixed: Vec<(Named<dyn Score>, i64)>,
    /// Scores that look at nodes alone and are compared with those of other nodes, with their weights.
    pub(super) relative: Vec<(Named<dyn Score>, i64)>,
    /// Rules in place of Filters.
    pub(super) hard: Vec<Named<dyn Rules>>,
    /// Rules in place of Scores.
    pub(super) soft: Vec<Soft>,
    /// Plugins that may depend on anything, and must skip themselves.
    others: Vec<Other>,
    /// Threads of the profile.
    pub(in crate::framework) threads: Threads,
}

/// A plugin that says nothing about itself.
struct Other {
    name: &'static str,
    pre_filter: Option<Arc<dyn PreFilter>>,
    filters: bool,
    pre_score: Option<Arc<dyn PreScore>>,
    scores: bool,
}

fn find<'a, T: ?Sized>(list: &'a [Named<T>], name: &str) -> Option<&'a Named<T>> {
    list.iter().find(|(n, _)| *n == name)
}

impl Layout {
    /// From the plugins at the points of a profile. `None` when a rule would have to speak before a filter that looks at
    /// nodes alone: the reasons given would not be those of the plain way.
    pub(in crate::framework) fn of(
        built: &[Plugin],
        pre_filter: &[Named<dyn PreFilter>],
        filter: &[Named<dyn Filter>],
        pre_score: &[Named<dyn PreScore>],
        score: &[(Named<dyn Score>, i64)],
    ) -> Option<Self> {
        let mut out = Self {
            pre_filters: Vec::new(),
            filters: Vec::new(),
            pre_scores: Vec::new(),
            fixed: Vec::new(),
            relative: Vec::new(),
            hard: Vec::new(),
            soft: Vec::new(),
            others: Vec::new(),
            threads: Threads::ONE,
        };
        let plugin = |name: &str| built.iter().find(|p| p.name == name);
        for (name, it) in filter {
            let plugin = plugin(name)?;
            match (plugin.depends, &plugin.rules) {
                (Depends::Node, _) if !out.hard.is_empty() => return None,
                (Depends::Node, _) => {
                    out.filters.push((name, Arc::clone(it)));
                    out.pre_filters.extend(find(pre_filter, name).cloned());
                }
                (Depends::Rules, Some(rules)) => out.hard.push((name, Arc::clone(rules))),
                _ => {}
            }
        }
        for ((name, it), weight) in score {
            let plugin = plugin(name)?;
            match (plugin.depends, &plugin.rules) {
                (Depends::Node, _) => {
                    out.pre_scores.extend(find(pre_score, name).cloned());
                    let list = if it.is_relative() { &mut out.relative } else { &mut out.fixed };
                    list.push(((name, Arc::clone(it)), *weight));
                }
                (Depends::Rules, Some(rules)) => out.soft.push(((name, Arc::clone(rules)), Arc::clone(it), *weight)),
                _ => {}
            }
        }
        for p in built.iter().filter(|p| p.depends == Depends::Anything) {
            let other = Other {
                name: p.name,
                pre_filter: find(pre_filter, p.name).map(|(_, it)| Arc::clone(it)),
                filters: find(filter, p.name).is_some(),
                pre_score: find(pre_score, p.name).map(|(_, it)| Arc::clone(it)),
                scores: score.iter().any(|((n, _), _)| *n == p.name),
            };
            if other.pre_filter.is_some() || other.filters || other.scores {
                out.others.push(other);
            }
        }
        Some(out)
    }

    /// Reports whether all plugins that may depend on anything have nothing to say about a pod.
    pub(super) fn others_skip(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> bool {
        self.others.iter().all(|other| {
            let skips_filter = match &other.pre_filter {
                Some(it) => matches!(it.pre_filter(cx, state, pod), Err(status) if status.is_skip()),
                None => !other.filters,
            };
            if !skips_filter {
                return false;
            }
            state.skip_filter.push(other.name);
            let skips_score = match &other.pre_score {
                Some(it) => it.pre_score(cx, state, pod, &[]).is_skip(),
                None => !other.scores,
            };
            state.skip_score.push(other.name);
            skips_score
        })
    }

    /// Runs PreFilter and PreScore of plugins that look at nodes alone, and says which skip; `None` when one of them
    /// limits the nodes or turns the pod down.
    pub(super) fn skips(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Skips> {
        let mut state = CycleState::default();
        for (name, plugin) in &self.pre_filters {
            match plugin.pre_filter(cx, &mut state, pod) {
                Ok(PreFiltered::All) => {}
                Err(status) if status.is_skip() => state.skip_filter.push(name),
                Ok(PreFiltered::Nodes(_)) | Err(_) => return None,
            }
        }
        for (name, plugin) in &self.pre_scores {
            match plugin.pre_score(cx, &mut state, pod, &[]) {
                status if status.is_skip() => state.skip_score.push(name),
                status if status.is_success() => {}
                _ => return None,
            }
        }
        Some(Skips { filters: state.skip_filter, scores: state.skip_score })
    }
}

/// Plugins that have nothing to say about a pod.
#[derive(Debug, Default)]
pub(super) struct Skips {
    pub(super) filters: Vec<&'static str>,
    pub(super) scores: Vec<&'static str>,
}
