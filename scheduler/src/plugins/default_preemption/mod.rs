//! DefaultPreemption: makes room for a pod by taking away lesser ones, as few and as unimportant as will do. Answers
//! for upstream's `pkg/scheduler/framework/preemption` (`Evaluator.Preempt`).
//!
//! Pure: it only names the node and the victims ([`Rescue`]); the driver deletes them.

mod candidate;
mod remembered;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::Rng;
use serde::Deserialize;
use serde_json::Value;

use self::candidate::{Candidate, Rank, Search};
use self::remembered::{Asking, Remembered};
use super::read_args;
use crate::framework::extender::{self, Victims};
use crate::framework::plugin::{Context, Plugin, PostFilter, Requeue, Rescue};
use crate::framework::{ClusterEvent, Code, CycleState, Diagnosis, Hint, Profile, ProfileError, Rejected, Status};
use crate::model::PodInfo;

/// Upstream's name.
pub const NAME: &str = "DefaultPreemption";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DefaultPreemption {
    min_candidate_nodes_percentage: usize,
    min_candidate_nodes_absolute: usize,
}

impl Default for DefaultPreemption {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

/// Builds the plugin.
///
/// # Errors
/// Unreadable arguments.
pub fn build(args: &Value) -> Result<Plugin, ProfileError> {
    let it: DefaultPreemption = read_args(NAME, args)?;
    if it.min_candidate_nodes_percentage > 100 {
        return Err(ProfileError::Args(NAME, "minCandidateNodesPercentage: not in valid range [0, 100]".to_owned()));
    }
    if it.min_candidate_nodes_percentage == 0 && it.min_candidate_nodes_absolute == 0 {
        let text = "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero";
        return Err(ProfileError::Args(NAME, text.to_owned()));
    }
    let it = Arc::new(Preemption { args: it, remembered: Mutex::default() });
    Ok(Plugin::new(NAME).post_filter(&it).requeue(&it))
}

/// Returns why a pod may not preempt others, if it may not (upstream's PodEligibleToPreemptOthers).
fn ineligible(cx: Context<'_>, pod: &PodInfo, rejected: &Rejected) -> Option<&'static str> {
    if !pod.preempts {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let at = cx.snapshot.position(pod.nominated.as_ref()?)?;
    // No filter looks at a node that PreFilter has excluded.
    let unresolvable = rejected.get(at).is_none_or(|s| s.code() == Code::UnschedulableAndUnresolvable);
    let leaving = |p: &Arc<PodInfo>| p.terminating && p.preempted && p.priority < pod.priority;
    (!unresolvable && cx.snapshot.nodes()[at].pods.iter().any(leaving))
        .then_some("not eligible due to a terminating pod on the nominated node.")
}

fn candidate_at(asking: &Asking<'_>, at: usize) -> Option<Candidate> {
    (**asking.answer(at)?).as_ref().ok().cloned()
}

/// Returns the candidates that extenders leave; `None` when there are none to ask.
fn agreed(
    profile: &Profile,
    pod: &PodInfo,
    candidates: &[(Rank, usize)],
    asking: &Asking<'_>,
) -> Result<Option<Vec<Candidate>>, Status> {
    if profile.extenders.is_empty() || candidates.is_empty() {
        return Ok(None);
    }
    let all: Vec<Candidate> = candidates.iter().filter_map(|(_, at)| candidate_at(asking, *at)).collect();
    let named = |c: &Candidate| (c.node.to_string(), Victims { pods: c.victims.clone(), violations: c.violations });
    let mut left = extender::preempt(&profile.extenders, pod, all.iter().map(named).collect())?;
    let keep = |c: Candidate| {
        let Victims { pods, violations } = left.remove(&*c.node)?;
        Some(Candidate { node: c.node, victims: pods, violations })
    };
    Ok(Some(all.into_iter().filter_map(keep).collect()))
}

/// Returns why no node is a candidate.
fn diagnosis(cx: Context<'_>, promising: &[usize], asking: &Asking<'_>) -> Diagnosis {
    let mut diagnosis = Diagnosis {
        nodes: cx.snapshot.nodes().len(),
        others: Some(Status::unresolvable("Preemption is not helpful for scheduling")),
        ..Diagnosis::default()
    };
    for at in promising {
        if let Some(Err(status)) = asking.answer(*at).map(|answer| &**answer) {
            diagnosis.reject(*at, status.clone());
        }
    }
    diagnosis
}

struct Preemption {
    args: DefaultPreemption,
    remembered: Mutex<Remembered>,
}

impl DefaultPreemption {
    fn wanted(&self, nodes: usize) -> usize {
        (nodes * self.min_candidate_nodes_percentage / 100).max(self.min_candidate_nodes_absolute).min(nodes)
    }
}

#[async_trait]
impl PostFilter for Preemption {
    fn post_filter(
        &self,
        cx: Context<'_>,
        profile: &Profile,
        state: &CycleState,
        pod: &PodInfo,
        rejected: &Rejected,
    ) -> (Option<Rescue>, Status) {
        if let Some(reason) = ineligible(cx, pod, rejected) {
            return (None, Status::unschedulable(format!("preemption: {reason}")));
        }
        let promising: Vec<usize> =
            rejected.iter().filter(|(_, s)| s.code() == Code::Unschedulable).map(|(slot, _)| slot).collect();
        let search = Search::new(cx, profile, state, pod);
        let wanted = self.args.wanted(promising.len());
        let offset = if promising.is_empty() { 0 } else { rand::rng().random_range(0..promising.len()) };
        let mut candidates: Vec<(Rank, usize)> = Vec::new();
        let mut unprotected = false;
        let mut remembered = self.remembered.lock();
        let mut asking = remembered.ask(search, cx, state, pod);
        for at in promising[offset..].iter().chain(&promising[..offset]) {
            if let Some(rank) = asking.rank(*at) {
                unprotected |= rank.is_unprotected();
                candidates.push((rank, *at));
            }
            if candidates.len() >= wanted && unprotected {
                break;
            }
        }
        let agreed = match agreed(profile, pod, &candidates, &asking) {
            Ok(agreed) => agreed,
            Err(status) => return (None, status),
        };
        let best = match agreed {
            Some(agreed) => candidate::pick(agreed.into_iter().map(|c| (c.rank(), c)), cx.now),
            None => candidate::pick(candidates.into_iter(), cx.now).and_then(|at| candidate_at(&asking, at)),
        };
        let Some(best) = best else {
            let diagnosis = diagnosis(cx, &promising, &asking);
            return (Some(Rescue::default()), Status::unschedulable(format!("preemption: {diagnosis}")));
        };
        let demoted = cx.nominated.on(&best.node).iter().filter(|p| p.priority < pod.priority).cloned().collect();
        (Some(Rescue { nominate: Some(Arc::clone(&best.node)), victims: best.victims, demoted }), Status::SUCCESS)
    }
}

impl Requeue for Preemption {
    fn hint(&self, _: &PodInfo, _: &ClusterEvent) -> Hint {
        Hint::Skip
    }
}

#[cfg(test)]
mod tests;
