//! Number of pods of an application that may be taken down now. Answers for upstream's `getExpectedPodCount`,
//! `countHealthyPods`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use shared::client::path::NameError;
use thiserror::Error;

use crate::deployment::strategy::scaled;
use crate::engine::pod::Pod;
use crate::engine::rest::RestError;
use crate::engine::{object, pods};

/// An eviction that was granted must be seen within this time, or it did not happen.
const GRANTED_FOR: Duration = Duration::from_mins(2);
const ALLOWED: &str = "DisruptionAllowed";

/// The controller of a pod: its uid, and the replicas it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Unique id.
    pub uid: String,
    /// Wanted replicas.
    pub replicas: i32,
}

/// Errors of finding the scale of a pod's controller, in upstream's words.
#[derive(Debug, Clone, Error)]
pub enum ScaleError {
    /// A pod's controller is not there.
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    /// No resource has the controller's kind.
    #[error("no matches for kind {kind:?} in version {version:?}")]
    NoMatch {
        /// The kind.
        kind: String,
        /// Version of the kind.
        version: String,
    },
    /// The controller's resource has no scale.
    #[error("{0} does not implement the scale subresource")]
    NoScale(String),
    /// The controller's name cannot be part of a path.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The server refuses.
    #[error(transparent)]
    Server(#[from] RestError),
}

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The budget.
    pub budget: Arc<PodDisruptionBudget>,
    /// The pods it selects.
    pub pods: Vec<Arc<Pod>>,
    /// The controllers of those pods, by uid; `Err` says why one has no known scale.
    pub scales: Result<HashMap<String, Scale>, ScaleError>,
}

/// The status to store, if it changed, and when to look again.
#[derive(Debug, Default)]
pub struct BudgetDecision {
    /// New status.
    pub status: Option<PodDisruptionBudgetStatus>,
    /// Time until a granted eviction expires.
    pub again: Option<Duration>,
    /// Reason why nothing could be computed.
    pub failure: Option<String>,
    /// Pods without a controller make the numbers wrong.
    pub unmanaged: bool,
    /// Pods whose eviction was granted but that are still there.
    pub not_deleted: Vec<Arc<Pod>>,
}

/// Reports whether the budget selects the pod.
#[must_use]
pub fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| object::matches_selector(s, pod.metadata.labels.as_deref()))
}

/// Returns the message about a pod that several budgets select: it can be evicted by none of them.
#[must_use]
pub fn several(pod: &Pod, budgets: &[Arc<PodDisruptionBudget>]) -> Option<String> {
    let first = budgets.iter().map(|b| object::name(&b.metadata)).min().filter(|_| budgets.len() > 1)?;
    let (space, name) = (object::namespace(&pod.metadata), object::name(&pod.metadata));
    Some(format!("Pod {space:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily."))
}

/// Reports whether a budget is counted by the scales of its pods' controllers, not by the pods alone.
#[must_use]
pub fn needs_scales(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    spec.is_some_and(|s| s.max_unavailable.is_some() || matches!(s.min_available, Some(IntOrString::String(_))))
}

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> BudgetDecision {
    let Some(spec) = s.budget.spec.as_ref() else { return BudgetDecision::default() };
    let old = s.budget.status.clone().unwrap_or_default();
    let total = i32::try_from(s.pods.len()).unwrap_or(i32::MAX);
    let by_scale = || -> Result<i32, ScaleError> {
        let scales = s.scales.as_ref().map_err(Clone::clone)?;
        let distinct: BTreeMap<&str, i32> = scales.values().map(|x| (x.uid.as_str(), x.replicas)).collect();
        Ok(distinct.values().sum())
    };
    let expected = match (&spec.max_unavailable, &spec.min_available) {
        (Some(max), _) => by_scale().map(|n| (n, (n - scaled(Some(max), n, true)).max(0))),
        (None, Some(IntOrString::Int(min))) => Ok((total, *min)),
        (None, Some(min)) => by_scale().map(|n| (n, scaled(Some(min), n, true))),
        (None, None) => Ok((total, 0)),
    };
    let (expected, desired) = match expected {
        Ok(found) => found,
        Err(why) => {
            let why = why.to_string();
            let status = fail_safe(&s.budget, &why, now);
            return BudgetDecision { status, failure: Some(why), ..BudgetDecision::default() };
        }
    };
    let unmanaged = needs_scales(&s.budget) && s.pods.iter().any(|p| object::controller_of(&p.metadata).is_none());
    let (disrupted, not_deleted) = disrupted(&old, &s.pods, now);
    let again = disrupted.values().map(|at| GRANTED_FOR.saturating_sub(age(at, now))).min();
    let healthy = s
        .pods
        .iter()
        .filter(|p| {
            !object::deleting(&p.metadata) && !disrupted.contains_key(object::name(&p.metadata)) && pods::ready(p)
        })
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let generation = s.budget.metadata.generation;
    let condition = if allowed > 0 {
        fresh("True", "SufficientPods", "", generation, now)
    } else {
        fresh("False", "InsufficientPods", "", generation, now)
    };
    let status = PodDisruptionBudgetStatus {
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        disruptions_allowed: allowed,
        disrupted_pods: Some(disrupted).filter(|d| !d.is_empty()),
        observed_generation: generation,
        conditions: Some(with(old.conditions.clone().unwrap_or_default(), condition)),
    };
    let status = Some(status).filter(|n| s.budget.status.as_ref() != Some(n));
    BudgetDecision { status, again, failure: None, unmanaged, not_deleted }
}

/// The status of a budget that could not be dealt with, unless it is there: nothing may be taken down, and the generation
/// is not seen to.
#[must_use]
pub fn fail_safe(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> Option<PodDisruptionBudgetStatus> {
    let old = budget.status.clone().unwrap_or_default();
    let condition = fresh("False", "SyncFailed", why, old.observed_generation, now);
    let status = PodDisruptionBudgetStatus {
        disruptions_allowed: 0,
        conditions: Some(with(old.conditions.clone().unwrap_or_default(), condition)),
        ..old
    };
    Some(status).filter(|n| budget.status.as_ref() != Some(n))
}

fn age(at: &Time, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(at.0)).unwrap_or_default()
}

/// Evictions granted and not seen yet, and the pods whose eviction should have been seen by now.
fn disrupted(
    old: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Vec<Arc<Pod>>) {
    let (mut keep, mut late) = (BTreeMap::new(), Vec::new());
    let granted = old.disrupted_pods.as_ref();
    for pod in pods.iter().filter(|p| !object::deleting(&p.metadata)) {
        let name = object::name(&pod.metadata);
        let Some(at) = granted.and_then(|g| g.get(name)) else { continue };
        if age(at, now) < GRANTED_FOR {
            keep.insert(name.to_owned(), at.clone());
        } else {
            late.push(Arc::clone(pod));
        }
    }
    (keep, late)
}

fn fresh(status: &str, reason: &str, message: &str, generation: Option<i64>, now: Timestamp) -> Condition {
    Condition {
        type_: ALLOWED.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: object::seconds(now),
    }
}

fn with(mut conditions: Vec<Condition>, mut new: Condition) -> Vec<Condition> {
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().expect("time")
    }

    fn pod(name: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "uid": name},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}}))
            .expect("pod"),
        )
    }

    fn decide(
        spec: Value,
        status: Value,
        pods: Vec<Arc<Pod>>,
        replicas: Option<i32>,
    ) -> (i32, i32, i32, i32, BudgetDecision) {
        let scales = match replicas {
            Some(n) => Ok(pods
                .iter()
                .map(|p| (object::uid(&p.metadata).to_owned(), Scale { uid: "rs".into(), replicas: n }))
                .collect()),
            None => Err(ScaleError::NoController("a".to_owned())),
        };
        let budget = Arc::new(
            serde_json::from_value(json!({"metadata": {"generation": 1}, "spec": spec, "status": status}))
                .expect("budget"),
        );
        let d = plan(&Snapshot { budget, pods, scales }, now());
        let s = d.status.clone().unwrap_or_default();
        (s.expected_pods, s.current_healthy, s.desired_healthy, s.disruptions_allowed, d)
    }

    #[test]
    fn allowed_disruptions() {
        let three = || vec![pod("a", true), pod("b", true), pod("c", false)];
        let empty = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        for (name, spec, replicas, want) in [
            ("a number", json!({"minAvailable": 1}), None, (3, 2, 1, 1)),
            ("a share of the scale", json!({"minAvailable": "50%"}), Some(4), (4, 2, 2, 0)),
            ("at most so many", json!({"maxUnavailable": 2}), Some(3), (3, 2, 1, 1)),
            ("at most a share", json!({"maxUnavailable": "34%"}), Some(3), (3, 2, 1, 1)),
        ] {
            let got = decide(spec, empty.clone(), three(), replicas);
            assert_eq!((got.0, got.1, got.2, got.3), want, "{name}");
        }
        let got = decide(json!({"maxUnavailable": 1}), empty.clone(), three(), None);
        let status = got.4.status.expect("status");
        assert_eq!(status.observed_generation, None, "not dealt with");
        assert_eq!(status.conditions.expect("conditions")[0].reason, "SyncFailed");
        assert!(got.4.failure.is_some());
        for (spec, unmanaged) in [
            (json!({"minAvailable": 1}), false),
            (json!({"minAvailable": "50%"}), true),
            (json!({"maxUnavailable": 1}), true),
        ] {
            assert_eq!(decide(spec.clone(), empty.clone(), three(), Some(3)).4.unmanaged, unmanaged, "{spec}");
        }
        let got = decide(json!({"minAvailable": 1}), empty, vec![], None);
        assert_eq!(got.3, 0, "no pods, no disruptions");
    }

    #[test]
    fn who_fails_lets_nothing_be_taken_down() {
        let budget = |allowed: i32, reason: &str| -> PodDisruptionBudget {
            let condition = json!({"type": ALLOWED, "status": "False", "reason": reason, "message": "why",
                "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z"});
            serde_json::from_value(json!({"metadata": {"generation": 4}, "status": {"currentHealthy": 2,
                "desiredHealthy": 1, "disruptionsAllowed": allowed, "expectedPods": 2, "observedGeneration": 3,
                "conditions": [condition]}}))
            .expect("budget")
        };
        for (old, written) in [
            (budget(1, "SufficientPods"), true),
            (budget(1, "SyncFailed"), true),
            (budget(0, "InsufficientPods"), true),
            (budget(0, "SyncFailed"), false),
        ] {
            let status = fail_safe(&old, "why", now());
            assert_eq!(status.is_some(), written, "{old:?}");
            let Some(status) = status else { continue };
            assert_eq!((status.disruptions_allowed, status.current_healthy, status.desired_healthy), (0, 2, 1));
            assert_eq!(status.observed_generation, Some(3), "this generation is not dealt with");
            let told = &status.conditions.as_ref().expect("conditions")[0];
            assert_eq!((told.reason.as_str(), told.message.as_str()), ("SyncFailed", "why"));
        }
    }

    #[test]
    fn several_budgets_of_one_pod() {
        let budget = |name: &str| -> Arc<PodDisruptionBudget> {
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name}})).expect("budget"))
        };
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}})).expect("pod");
        assert_eq!(several(&pod, &[budget("a")]), None);
        let told = several(&pod, &[budget("b"), budget("a")]).expect("text");
        assert_eq!(told, r#"Pod "ns"/"p" matches multiple PodDisruptionBudgets.  Chose "a" arbitrarily."#);
    }

    #[test]
    fn granted_evictions_count_until_seen() {
        let status = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
            "disruptedPods": {"a": "2026-01-01T00:09:00Z", "b": "2026-01-01T00:07:00Z", "gone": "2026-01-01T00:09:59Z"}});
        let got = decide(json!({"minAvailable": 0}), status, vec![pod("a", true), pod("b", true)], None);
        assert_eq!(got.1, 1);
        assert_eq!(
            got.4.status.clone().expect("status").disrupted_pods.expect("pods").into_keys().collect::<Vec<_>>(),
            ["a"]
        );
        assert_eq!(got.4.again, Some(Duration::from_mins(1)));
        let late: Vec<_> = got.4.not_deleted.iter().map(|p| object::name(&p.metadata)).collect();
        assert_eq!(late, ["b"], "what is gone is not late");
    }
}
