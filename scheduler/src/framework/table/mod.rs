//! Answers that pods with equal demands share.
//!
//! HOT (held by `examples/throughput.rs`). The first pod of a kind is placed the plain way, by looking at nodes until
//! enough fit. For the second a [`Table`] of all nodes is made, and from then on only nodes that changed in between are
//! looked at. Whatever a table cannot answer exactly goes the plain way: plugins that do not say what they depend on (and
//! do not ask to be skipped), nodes limited by name, promised nodes that rules would have to take into account.

mod layout;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;

pub use self::layout::Layout;
use self::layout::MAX_ROWS;
use self::rows::Table;
pub(super) use self::rows::invalid as invalid_score;
use super::diagnosis::{Diagnosis, Failure};
use super::plugin::Context;
use super::profile::Profile;
use super::schedule::Placement;
use super::state::CycleState;
use super::status::Status;
use crate::metrics::{Flushed, Point, observe_point, timed};
use crate::model::{Demand, PodInfo};

/// Demands that are remembered at all.
const MAX_DEMANDS: usize = 4096;
/// Clusters of up to this many nodes get their tables at once: all nodes would be looked at anyway.
const SMALL: usize = super::schedule::MIN_FEASIBLE_NODES;

/// Answers remembered for one demand.
struct DemandEntry {
    /// Keeps the address, which is the key, from being used again.
    demand: Arc<Demand>,
    /// The profile's address: two profiles may share a demand no longer, but this costs nothing to check.
    profile: usize,
    used: u64,
    table: Option<Box<Table>>,
}

/// See the module.
#[derive(Default)]
pub struct Tables {
    entries: HashMap<usize, DemandEntry>,
    pub(crate) rows: usize,
    clock: u64,
}

impl Tables {
    /// The entry of a demand; says whether it was there before.
    fn entry(&mut self, profile: &Profile, demand: &Arc<Demand>) -> (bool, &mut DemandEntry) {
        self.clock += 1;
        let key = Arc::as_ptr(demand) as usize;
        let profile = std::ptr::from_ref(profile) as usize;
        if self.entries.get(&key).is_some_and(|e| e.profile != profile) {
            self.forget(key);
        }
        let known = self.entries.contains_key(&key);
        if !known && self.entries.len() >= MAX_DEMANDS {
            self.evict(self.rows, MAX_DEMANDS * 7 / 8);
        }
        let used = self.clock;
        let entry = self.entries.entry(key).or_insert_with(|| DemandEntry {
            demand: Arc::clone(demand),
            profile,
            used,
            table: None,
        });
        entry.used = used;
        (known, entry)
    }

    fn forget(&mut self, key: usize) {
        if let Some(entry) = self.entries.remove(&key) {
            self.rows -= entry.table.map_or(0, |t| t.weight());
        }
    }

    /// Forgets those used longest ago until no more than so many rows and demands are left.
    fn evict(&mut self, rows: usize, demands: usize) {
        let mut by_age: Vec<(u64, usize)> = self.entries.iter().map(|(key, e)| (e.used, *key)).collect();
        by_age.sort_unstable();
        for (_, key) in by_age {
            if self.rows <= rows && self.entries.len() <= demands {
                return;
            }
            self.forget(key);
        }
    }

    /// Takes the table out, to work on it; [`Tables::give`] brings it back.
    fn take(&mut self, profile: &Profile, demand: &Arc<Demand>, nodes: usize) -> Option<Box<Table>> {
        let (known, entry) = self.entry(profile, demand);
        debug_assert!(Arc::ptr_eq(&entry.demand, demand));
        match entry.table.take() {
            Some(table) => {
                self.rows -= table.weight();
                Some(table)
            }
            None if known || nodes <= SMALL => Some(Box::default()),
            None => None,
        }
    }

    fn give(&mut self, demand: &Arc<Demand>, table: Box<Table>) {
        // Rules may have found more on the nodes than there is room for.
        if table.weight() > MAX_ROWS {
            return;
        }
        if self.rows + table.weight() > MAX_ROWS {
            self.evict(MAX_ROWS - table.weight(), usize::MAX);
        }
        if let Some(entry) = self.entries.get_mut(&(Arc::as_ptr(demand) as usize)) {
            self.rows += table.weight();
            entry.table = Some(table);
        }
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("demands", &self.entries.len()).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Profile {
    /// Decides by what is remembered; `None` when that cannot be done for this pod. Either way `state` is left with the
    /// notes that whoever comes after needs.
    pub(super) fn recall(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        tables: &mut Tables,
        rng: &mut impl Rng,
    ) -> Option<Result<Placement, Failure>> {
        let begun = Instant::now();
        let hint = self.table_of(cx, state, pod, tables);
        let (layout, mut table) = match hint {
            Ok(hint) => {
                self.batch.used(begun.elapsed());
                hint
            }
            Err(why) => {
                self.batch.unused(begun.elapsed(), why);
                return None;
            }
        };
        observe_point(Point::Filter, &self.name, "Success", begun.elapsed());
        let answer = self.ask(&mut table, layout, cx, state, pod, rng);
        let decided = Instant::now();
        tables.give(&pod.demand, table);
        self.batch.stored(decided.elapsed());
        Some(answer)
    }

    /// The pod's table, brought up to date; why there is none, unless the pod is the first of its kind.
    fn table_of(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        tables: &mut Tables,
    ) -> Result<(&Layout, Box<Table>), Option<Flushed>> {
        let layout = self.layout.as_ref().filter(|_| pod.node_name.is_none()).ok_or(None)?;
        let mut table = tables.take(self, &pod.demand, cx.snapshot.nodes().len()).ok_or(None)?;
        let signed = self.signed(layout, cx, state, pod);
        if signed && table.refresh(layout, cx, pod) {
            return Ok((layout, table));
        }
        tables.give(&pod.demand, table);
        *state = CycleState::new(state.sampled);
        Err(Some(if signed { Flushed::Incompatible } else { Flushed::NotBatchable }))
    }

    /// Reports whether the pod's demand alone decides its answers.
    fn signed(&self, layout: &Layout, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> bool {
        let begun = state.sampled.then(Instant::now);
        let skip = layout.others_skip(cx, state, pod);
        if let Some(begun) = begun {
            observe_point(Point::Sign, &self.name, "Success", begun.elapsed());
        }
        skip
    }

    fn ask(
        &self,
        table: &mut Table,
        layout: &Layout,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        rng: &mut impl Rng,
    ) -> Result<Placement, Failure> {
        let all = cx.snapshot.nodes();
        if let Some(at) = self.promised_slot(cx, pod) {
            table.note(layout, state);
            if self.filter_node(cx, state, &self.active_filters(state), pod, &all[at]).is_success() {
                return Ok(Placement { node: Arc::clone(&all[at]), evaluated: 1, feasible: 1 });
            }
        }
        let chosen = timed(Point::Score, &self.name, || table.choose(layout, cx, rng)).map_err(Failure::Broken)?;
        if let Some((slot, feasible)) = chosen {
            return Ok(Placement { node: Arc::clone(&all[slot]), evaluated: all.len(), feasible });
        }
        table.note(layout, state);
        let mut diagnosis = Diagnosis { nodes: all.len(), rejected: table.rejected(layout), ..Diagnosis::default() };
        let said: Vec<Status> = diagnosis.rejected.tally().into_iter().map(|(status, _)| status.clone()).collect();
        said.iter().for_each(|status| diagnosis.blame(status));
        Err(Failure::Unfit(Box::new(diagnosis)))
    }

    /// The slot of the node that the pod was promised.
    pub(super) fn promised_slot(&self, cx: Context<'_>, pod: &PodInfo) -> Option<usize> {
        cx.nominated.node_of(&pod.uid).or(pod.nominated.as_ref()).and_then(|n| cx.snapshot.position(n))
    }
}

#[cfg(test)]
mod tests;
