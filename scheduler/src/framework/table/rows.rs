//! The answers of all nodes for one demand.
//!
//! HOT (held by `examples/throughput.rs`). Each slot is a row: what the filters that look at the node alone said, or else
//! the row's *group* (all rows for which the remaining plugins cannot tell the nodes apart) and the sum of the scores that
//! stand for themselves. Verdicts and relative scores are computed per group when a pod asks; within a group the rows lie
//! in buckets by score, so that the best node is at the end of one of a few lists.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rand::Rng;

use super::layout::{Layout, MAX_ROWS, Skips};
use crate::framework::domains::Touched;
use crate::framework::plugin::{Context, MAX_NODE_SCORE, Score};
use crate::framework::rule::NodeRule;
use crate::framework::{CycleState, Rejected, Status};
use crate::model::{NodeInfo, PodInfo};

const NO_GROUP: u32 = u32::MAX;
/// Distinct answers that are kept; past this they are collected anew.
const MAX_STATUSES: usize = 4096;
/// Values that rules keep of a node for which it counts as one more row: a value takes 12 to 20 bytes in its rule and 8 in
/// the key of a group, of which there may be as many as nodes.
const VALUES_OF_ROW: usize = 2;
/// Nodes that may come beyond two for each that is there before a table is made anew.
pub(super) const SLACK: u64 = 1024;

#[derive(Debug, Clone)]
struct Row {
    /// The slot's change that this row has seen.
    seen: u64,
    /// One more than the position of the filters' answer; 0 when they said yes.
    verdict: u32,
    group: u32,
    /// Position in the bucket.
    at: u32,
    fixed: i64,
}

const BLANK: Row = Row { seen: 0, verdict: 0, group: NO_GROUP, at: 0, fixed: 0 };

#[derive(Debug, Default)]
struct RowGroup {
    key: Box<[i64]>,
    /// Slots by the scores that stand for themselves.
    buckets: BTreeMap<i64, Vec<u32>>,
    len: usize,
    /// Set while the group is among the table's emptied groups.
    emptied: bool,
}

/// A rule and where in a group's key its facet is.
struct Placed {
    /// Position in the layout's list.
    at: usize,
    rule: Box<dyn NodeRule>,
    facet: Range<usize>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Table {
    made: bool,
    /// The latest change that the table has seen.
    seen: u64,
    /// Nodes that had come to the snapshot when the table was made.
    pub(super) arrivals: u64,
    /// Versions of other objects and promises that the rows are of.
    listers: u64,
    promises: u64,
    skips: Skips,
    rows: Vec<Row>,
    groups: Vec<RowGroup>,
    /// Groups that ran empty at some time.
    emptied: Vec<u32>,
    by_key: HashMap<Box<[i64]>, u32>,
    statuses: Vec<Status>,
    hard: Vec<Placed>,
    soft: Vec<Placed>,
    key: Vec<i64>,
}

impl Table {
    /// Number of rows, where what rules keep of each node is counted as the rows that would take as much memory.
    pub(super) fn weight(&self) -> usize {
        self.weight_of(self.rows.len())
    }

    fn weight_of(&self, nodes: usize) -> usize {
        let values: usize = self.hard.iter().chain(&self.soft).map(|placed| placed.rule.width()).sum();
        nodes.saturating_mul(1 + values / VALUES_OF_ROW)
    }

    /// Looks at what has changed. `false` when this pod's answers cannot be remembered now.
    pub(super) fn refresh(&mut self, layout: &Layout, cx: Context<'_>, pod: &PodInfo) -> bool {
        if self.made && self.listers != cx.listers.version() {
            self.listers = cx.listers.version();
            self.made = self.same_rules(layout, cx, pod);
        }
        if self.statuses.len() > MAX_STATUSES || self.is_outlived(cx) {
            self.made = false;
        }
        let changes: Option<Vec<usize>> = if self.made { self.changes(cx) } else { None };
        match changes {
            Some(changes) => self.follow(layout, cx, pod, &changes),
            None => {
                if !self.make(layout, cx, pod) {
                    return false;
                }
            }
        }
        self.seen = cx.snapshot.epoch();
        self.promises = cx.nominated.version();
        self.rules_ignore_promises(cx, pod)
    }

    /// Reports whether most nodes that the table has seen are gone: rules remember the domain of each.
    fn is_outlived(&self, cx: Context<'_>) -> bool {
        let came = cx.snapshot.arrivals().checked_sub(self.arrivals);
        came.is_none_or(|came| came > 2 * cx.snapshot.nodes().len() as u64 + SLACK)
    }

    /// Slots to look at; `None` for all.
    fn changes(&self, cx: Context<'_>) -> Option<Vec<usize>> {
        let mut out: Vec<usize> = cx.snapshot.changes_since(self.seen)?.collect();
        if self.promises != cx.nominated.version() {
            let names = cx.nominated.changes_since(self.promises)?;
            out.extend(names.filter_map(|name| cx.snapshot.position(name)));
        } else {
            out.retain(|&slot| self.rows.get(slot).is_none_or(|row| row.seen != cx.snapshot.changed_at(slot)));
        }
        out.sort_unstable();
        out.dedup();
        (out.len() <= cx.snapshot.nodes().len() / 2 + 64).then_some(out)
    }

    /// Pods that have been promised a node count there. Filters that look at nodes alone take that into account, rules do
    /// not.
    fn rules_ignore_promises(&self, cx: Context<'_>, pod: &PodInfo) -> bool {
        cx.nominated.is_empty() || self.hard.iter().all(|p| p.rule.is_idle()) || !cx.nominated.has_rivals(pod)
    }

    fn rules_of(layout: &Layout, cx: Context<'_>, pod: &PodInfo) -> (Vec<Placed>, Vec<Placed>) {
        let placed = |(at, rule)| Some(Placed { at, rule: rule?, facet: 0..0 });
        let hard = layout.hard.iter().map(|(_, rules)| rules.hard(cx, pod)).enumerate().filter_map(placed).collect();
        let soft =
            layout.soft.iter().map(|((_, rules), ..)| rules.soft(cx, pod)).enumerate().filter_map(placed).collect();
        (hard, soft)
    }

    fn same_rules(&self, layout: &Layout, cx: Context<'_>, pod: &PodInfo) -> bool {
        let (hard, soft) = Self::rules_of(layout, cx, pod);
        let same = |a: &[Placed], b: &[Placed]| {
            a.len() == b.len()
                && a.iter().zip(b).all(|(a, b)| a.at == b.at && a.rule.fingerprint() == b.rule.fingerprint())
        };
        same(&hard, &self.hard) && same(&soft, &self.soft)
    }

    /// Starts anew.
    fn make(&mut self, layout: &Layout, cx: Context<'_>, pod: &PodInfo) -> bool {
        *self = Self::default();
        let Some(skips) = layout.skips(cx, pod) else { return false };
        self.skips = skips;
        (self.hard, self.soft) = Self::rules_of(layout, cx, pod);
        if self.weight_of(cx.snapshot.nodes().len()) > MAX_ROWS {
            *self = Self::default();
            return false;
        }
        self.listers = cx.listers.version();
        self.arrivals = cx.snapshot.arrivals();
        self.made = true;
        let every: Vec<usize> = (0..cx.snapshot.nodes().len()).collect();
        self.follow(layout, cx, pod, &every);
        true
    }

    fn follow(&mut self, layout: &Layout, cx: Context<'_>, pod: &PodInfo, changes: &[usize]) {
        let nodes = cx.snapshot.nodes();
        let mut touched = Touched::default();
        for placed in self.hard.iter_mut().chain(&mut self.soft) {
            for &slot in changes {
                placed.rule.update(cx.snapshot, slot, &mut touched);
            }
        }
        let grown = nodes.len().max(self.rows.len());
        self.rows.resize(grown, BLANK);
        let judge = |slot: &usize| nodes.get(*slot).map(|node| (node, self.judge(layout, cx, pod, node)));
        let judged = layout.threads.map(changes, judge);
        for (&slot, judged) in changes.iter().zip(judged).filter(|(slot, _)| **slot < grown) {
            self.leave(slot);
            if let Some((node, (status, fixed))) = judged {
                self.rows[slot].seen = cx.snapshot.changed_at(slot);
                self.rows[slot].verdict = if status.is_success() { 0 } else { self.keep(status) };
                if self.rows[slot].verdict == 0 {
                    self.rows[slot].fixed = fixed;
                }
                // When all of them are put into groups anew, once is enough.
                if !touched.all {
                    self.join(layout, cx, pod, slot, node);
                }
            }
        }
        self.rows.truncate(nodes.len());
        if touched.all {
            self.rows.iter_mut().for_each(|row| row.group = NO_GROUP);
            self.groups.clear();
            self.emptied.clear();
            self.by_key.clear();
            (0..nodes.len()).for_each(|slot| self.join(layout, cx, pod, slot, &nodes[slot]));
        } else {
            for slot in touched.slots.into_iter().filter(|slot| *slot < nodes.len()) {
                self.leave(slot);
                self.join(layout, cx, pod, slot, &nodes[slot]);
            }
        }
    }

    /// Asks everybody who looks at the node alone: what filters say, and the sum of the scores that stand for themselves.
    fn judge(&self, layout: &Layout, cx: Context<'_>, pod: &PodInfo, node: &NodeInfo) -> (Status, i64) {
        let status = self.filter(layout, cx, pod, node);
        if !status.is_success() {
            return (status, 0);
        }
        let state = CycleState::default();
        let scores = layout.fixed.iter().filter(|((name, _), _)| !self.skips.scores.contains(name));
        (status, scores.map(|((_, it), weight)| it.score(cx, &state, pod, node) * weight).sum())
    }

    /// Filters like [`crate::framework::Profile::filter_node`], by filters that look at the node alone.
    fn filter(&self, layout: &Layout, cx: Context<'_>, pod: &PodInfo, node: &NodeInfo) -> Status {
        let promised = cx.nominated.on(node.name());
        // A pod that was promised this very node has asked for it before it came here.
        let mut others = promised.iter().filter(|o| o.priority >= pod.priority).peekable();
        if others.peek().is_some() {
            let mut node = node.clone();
            others.for_each(|o| node.add(o.clone()));
            let status = self.run_filters(layout, cx, pod, &node);
            if !status.is_success() {
                return status;
            }
        }
        self.run_filters(layout, cx, pod, node)
    }

    fn run_filters(&self, layout: &Layout, cx: Context<'_>, pod: &PodInfo, node: &NodeInfo) -> Status {
        let state = CycleState::default();
        for (name, plugin) in &layout.filters {
            if self.skips.filters.contains(name) {
                continue;
            }
            let status = plugin.filter(cx, &state, pod, node);
            if !status.is_success() {
                return status.by(name);
            }
        }
        Status::SUCCESS
    }

    /// One more than the status's position among those kept.
    fn keep(&mut self, status: Status) -> u32 {
        let at = self.statuses.iter().position(|s| *s == status).unwrap_or_else(|| {
            self.statuses.push(status);
            self.statuses.len() - 1
        });
        u32::try_from(at + 1).unwrap_or(u32::MAX)
    }

    /// Puts a row that passed into its group.
    fn join(&mut self, layout: &Layout, cx: Context<'_>, pod: &PodInfo, slot: usize, node: &NodeInfo) {
        if self.rows[slot].verdict != 0 {
            return;
        }
        let state = CycleState::default();
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        let active = layout.relative.iter().filter(|((name, _), _)| !self.skips.scores.contains(name));
        key.extend(active.map(|((_, it), _)| it.score(cx, &state, pod, node)));
        for placed in self.hard.iter_mut().chain(&mut self.soft) {
            let start = key.len();
            placed.rule.facet(slot, &mut key);
            placed.facet = start..key.len();
        }
        let id = self.group(&key);
        self.key = key;
        let fixed = self.rows[slot].fixed;
        let group = &mut self.groups[id as usize];
        let bucket = group.buckets.entry(fixed).or_default();
        self.rows[slot].group = id;
        self.rows[slot].at = u32::try_from(bucket.len()).unwrap_or(u32::MAX);
        bucket.push(u32::try_from(slot).unwrap_or(u32::MAX));
        group.len += 1;
    }

    fn group(&mut self, key: &[i64]) -> u32 {
        if let Some(id) = self.by_key.get(key) {
            return *id;
        }
        // A group that has run empty is given a new key.
        let id = match self.take_emptied() {
            Some(id) => {
                self.by_key.remove(&self.groups[id].key);
                id
            }
            None => {
                self.groups.push(RowGroup::default());
                self.groups.len() - 1
            }
        };
        self.groups[id].key = key.into();
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        self.by_key.insert(key.into(), id);
        id
    }

    /// A group that ran empty and has not been filled again.
    fn take_emptied(&mut self) -> Option<usize> {
        while let Some(id) = self.emptied.pop() {
            let group = &mut self.groups[id as usize];
            group.emptied = false;
            if group.len == 0 {
                return Some(id as usize);
            }
        }
        None
    }

    /// Takes a row out of its group.
    fn leave(&mut self, slot: usize) {
        let Row { group: id, at, fixed, .. } = self.rows[slot];
        self.rows[slot].group = NO_GROUP;
        let Some(group) = self.groups.get_mut(id as usize) else { return };
        let Some(bucket) = group.buckets.get_mut(&fixed) else { return };
        bucket.swap_remove(at as usize);
        if let Some(&moved) = bucket.get(at as usize) {
            self.rows[moved as usize].at = at;
        } else if bucket.is_empty() {
            group.buckets.remove(&fixed);
        }
        group.len -= 1;
        if group.len == 0 && !std::mem::replace(&mut group.emptied, true) {
            self.emptied.push(id);
        }
    }

    /// Verdict of the rules on a group.
    fn verdict(&self, layout: &Layout, group: &RowGroup) -> Status {
        for placed in &self.hard {
            let status = placed.rule.filter(&group.key[placed.facet.clone()]);
            if !status.is_success() {
                return status.by(layout.hard[placed.at].0);
            }
        }
        Status::SUCCESS
    }

    /// One of the best nodes, each with the same chance, and how many fit.
    pub(super) fn choose(
        &mut self,
        layout: &Layout,
        cx: Context<'_>,
        rng: &mut impl Rng,
    ) -> Result<Option<(usize, usize)>, Status> {
        let fitting: Vec<usize> = (0..self.groups.len())
            .filter(|&g| self.groups[g].len > 0 && self.verdict(layout, &self.groups[g]).is_success())
            .collect();
        let feasible = fitting.iter().map(|&g| self.groups[g].len).sum();
        if feasible == 0 {
            return Ok(None);
        }
        let scores = self.group_scores(layout, cx, &fitting)?;
        let top = |g: usize| self.groups[g].buckets.last_key_value();
        let total = |(i, &g): (usize, &usize)| Some((top(g)?.0 + scores[i], top(g)?.1));
        let best = fitting.iter().enumerate().filter_map(total).map(|(score, _)| score).max();
        let tied = || fitting.iter().enumerate().filter_map(total).filter(|(score, _)| Some(*score) == best);
        let ties: usize = tied().map(|(_, slots)| slots.len()).sum();
        let mut left = rng.random_range(0..ties.max(1));
        for (_, slots) in tied() {
            match slots.get(left) {
                Some(slot) => return Ok(Some((*slot as usize, feasible))),
                None => left -= slots.len(),
            }
        }
        Ok(None)
    }

    /// The weighted relative scores of groups.
    fn group_scores(&mut self, layout: &Layout, cx: Context<'_>, fitting: &[usize]) -> Result<Vec<i64>, Status> {
        let mut totals = vec![0_i64; fitting.len()];
        if fitting.len() == 1 && self.groups[fitting[0]].len == 1 {
            return Ok(totals);
        }
        let mut scores = vec![0_i64; fitting.len()];
        let mut add = |name: &str, it: &dyn Score, weight: i64, scores: &mut [i64]| {
            it.normalize(scores);
            for (total, score) in totals.iter_mut().zip(scores.iter()) {
                if !(0..=MAX_NODE_SCORE).contains(score) {
                    return Err(invalid(name, *score));
                }
                *total += score * weight;
            }
            Ok(())
        };
        let active = layout.relative.iter().filter(|((name, _), _)| !self.skips.scores.contains(name));
        for (i, ((name, it), weight)) in active.enumerate() {
            scores.iter_mut().zip(fitting).for_each(|(score, &g)| *score = self.groups[g].key[i]);
            add(name, &**it, *weight, &mut scores)?;
        }
        for placed in &mut self.soft {
            let facets: Vec<(&[i64], usize)> =
                fitting.iter().map(|&g| (&self.groups[g].key[placed.facet.clone()], self.groups[g].len)).collect();
            placed.rule.prepare(cx, &facets);
            scores.iter_mut().zip(&facets).for_each(|(score, (facet, _))| *score = placed.rule.score(facet));
            let ((name, _), it, weight) = &layout.soft[placed.at];
            add(name, &**it, *weight, &mut scores)?;
        }
        Ok(totals)
    }

    /// Reasons of each node that rejected the pod.
    pub(super) fn rejected(&self, layout: &Layout) -> Rejected {
        let mut statuses = self.statuses.clone();
        let by_group: Vec<u32> = self
            .groups
            .iter()
            .map(|g| match self.verdict(layout, g) {
                status if g.len == 0 || status.is_success() => 0,
                status => {
                    let at = statuses.iter().position(|s| *s == status).unwrap_or_else(|| {
                        statuses.push(status);
                        statuses.len() - 1
                    });
                    u32::try_from(at + 1).unwrap_or(u32::MAX)
                }
            })
            .collect();
        let of = |row: &Row| {
            if row.verdict > 0 { row.verdict } else { by_group.get(row.group as usize).copied().unwrap_or(0) }
        };
        Rejected::from_parts(statuses, self.rows.iter().map(of).collect())
    }

    /// Leaves the notes and skips that PreFilter would have left.
    pub(super) fn note(&self, layout: &Layout, state: &mut CycleState) {
        state.skip_filter.extend(&self.skips.filters);
        state.node_only = true;
        for (at, (name, _)) in layout.hard.iter().enumerate() {
            match self.hard.iter().find(|p| p.at == at && !p.rule.is_idle()) {
                Some(placed) => {
                    placed.rule.note(state);
                    state.node_only = false;
                }
                None => state.skip_filter.push(name),
            }
        }
    }
}

pub(in crate::framework) fn invalid(plugin: &str, score: i64) -> Status {
    Status::error(format!(
        "plugin {plugin:?} returns an invalid score {score}, it should in the range of [0, {MAX_NODE_SCORE}] after normalizing"
    ))
}
