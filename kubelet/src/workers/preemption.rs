//! Room for a critical pod: which of the node's pods have to go for it, as few and as unimportant ones as serve. Pure.
//! Answers for upstream's `pkg/kubelet/preemption`.

use super::admission::{Shortage, requests};
use crate::pods;
use crate::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Shortest time that a pod that goes is waited for.
const SHORTEST_WAIT: Duration = Duration::from_secs(10);
/// Reason and message of the event of a pod that was not gone in its time (upstream's `killPodNow`).
pub const EXCEEDED: (&str, &str) =
    ("ExceededGracePeriod", "Container runtime did not kill the pod within specified grace period.");
/// Message of pods that go.
pub const MESSAGE: &str = "Preempted in order to admit critical pod";

/// Amounts that are missing, by resource.
type Missing = BTreeMap<String, i64>;

/// Amounts that are missing after all that could go; upstream's message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{}]",
    .0.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect::<String>()
)]
pub struct Unmet(Missing);

/// Pods that go so that `pod` fits.
///
/// # Errors
/// All that could go are not enough.
pub fn victims(pod: &Pod, others: &[Arc<Pod>], shortages: &[Shortage]) -> Result<Vec<Arc<Pod>>, Unmet> {
    let missing: Missing = shortages.iter().map(|short| (short.resource.clone(), short.missing())).collect();
    let of = |class: QosClass| -> Vec<Arc<Pod>> {
        others.iter().filter(|other| is_preemptable(pod, other) && qos_class(other) == class).cloned().collect()
    };
    let [best_effort, burstable, guaranteed] =
        [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed].map(of);
    let all = [best_effort.as_slice(), &burstable, &guaranteed];
    let unmet = without(&missing, all.into_iter().flatten());
    if !unmet.is_empty() {
        return Err(Unmet(unmet));
    }
    // Of each class only what those below cannot give.
    let first = nearest(guaranteed, without(&missing, best_effort.iter().chain(&burstable)));
    let second = nearest(burstable, without(&missing, best_effort.iter().chain(&first)));
    let third = nearest(best_effort, without(&missing, second.iter().chain(&first)));
    Ok(third.into_iter().chain(second).chain(first).collect())
}

/// Time that a pod has to be gone: half as long again as its grace period, and no less than ten seconds.
fn kill_deadline(pod: &Pod) -> Duration {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    grace.saturating_add(grace / 2).max(SHORTEST_WAIT)
}

/// Waits until pods that go are gone, each in turn and as long as it has; returns those that were not.
pub async fn wait<F: Future<Output = ()>>(victims: &[Arc<Pod>], until_ended: impl Fn(Arc<Pod>) -> F) -> Vec<Arc<Pod>> {
    let mut late = Vec::new();
    for victim in victims {
        let ended = until_ended(Arc::clone(victim));
        if tokio::time::timeout(kill_deadline(victim), ended).await.is_err() {
            late.push(Arc::clone(victim));
        }
    }
    late
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

fn is_preemptable(pod: &Pod, other: &Pod) -> bool {
    (pods::is_critical(pod) && !pods::is_critical(other)) || priority(pod) > priority(other)
}

/// Returns the amount of a resource that a pod gives back.
fn gives(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" { 1 } else { requests(pod).get(resource).copied().unwrap_or(0) }
}

/// Returns what is missing when these pods are gone.
fn without<'a>(missing: &Missing, gone: impl Iterator<Item = &'a Arc<Pod>>) -> Missing {
    let mut left = missing.clone();
    for pod in gone {
        for (name, amount) in &mut left {
            *amount = amount.saturating_sub(gives(pod, name));
        }
    }
    left.retain(|_, amount| *amount > 0);
    left
}

/// Returns how far a pod is from giving what is missing: 0 where it gives all of it.
fn distance(pod: &Pod, missing: &Missing) -> f64 {
    let share = |(name, amount): (&String, &i64)| {
        let left = amount.saturating_sub(gives(pod, name)).max(0);
        #[expect(clippy::cast_precision_loss, reason = "upstream's formula in floats")]
        let share = left as f64 / (*amount).max(1) as f64;
        share * share
    };
    missing.iter().map(share).sum()
}

/// Picks pods until nothing is missing, the one that gives most of it first, of equal ones the smallest.
fn nearest(mut all: Vec<Arc<Pod>>, mut missing: Missing) -> Vec<Arc<Pod>> {
    let mut picked = Vec::new();
    let size = |pod: &Pod| [gives(pod, "memory"), gives(pod, "cpu")];
    while !missing.is_empty() && !all.is_empty() {
        let best = (0..all.len()).min_by(|a, b| {
            let by_distance = distance(&all[*a], &missing).total_cmp(&distance(&all[*b], &missing));
            by_distance.then_with(|| size(&all[*a]).cmp(&size(&all[*b])))
        });
        let Some(best) = best else { break };
        let pod = all.swap_remove(best);
        missing = without(&missing, std::iter::once(&pod));
        picked.push(pod);
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, priority: i32, requests: serde_json::Value, limits: serde_json::Value) -> Arc<Pod> {
        let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let spec = json!({"priority": priority, "containers": [container]});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("pod"))
    }

    fn short(resource: &str, missing: i64) -> Shortage {
        Shortage { resource: resource.to_owned(), requested: missing, used: 10, capacity: 10 }
    }

    fn names(found: Result<Vec<Arc<Pod>>, Unmet>) -> Result<Vec<String>, Unmet> {
        found.map(|pods| pods.iter().map(|pod| pods::name(pod).to_owned()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_go_are_waited_for_in_turn_and_no_longer_than_their_time() {
        let with_grace = |name: &str, grace: i64| {
            let spec = json!({"terminationGracePeriodSeconds": grace, "containers": []});
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("pod"))
        };
        let victims = [with_grace("soon", 30), with_grace("never", 30), with_grace("never-at-all", -1)];
        let began = tokio::time::Instant::now();
        let late = wait(&victims, |pod| async move {
            let takes = if pods::name(&pod) == "soon" { 20 } else { 1_000 };
            tokio::time::sleep(Duration::from_secs(takes)).await;
        });
        assert_eq!(names(Ok(late.await)), Ok(vec!["never".to_owned(), "never-at-all".to_owned()]));
        assert_eq!(began.elapsed().as_secs(), 20 + 45 + 10);
    }

    #[test]
    fn as_few_and_as_unimportant_pods_as_serve_go() {
        let critical = pod("critical", 2_000_000_000, json!({}), json!({}));
        let full = |cpu: &str| json!({"cpu": cpu, "memory": "1Mi"});
        let others = [
            pod("best", 0, json!({}), json!({})),
            pod("small", 0, json!({"cpu": "100m"}), json!({})),
            pod("fitting", 0, json!({"cpu": "300m"}), json!({})),
            pod("large", 0, json!({"cpu": "800m"}), json!({})),
            pod("guaranteed", 0, full("2"), full("2")),
            pod("sacred", 2_000_000_001, json!({"cpu": "8"}), json!({})),
        ];
        let of = |shortages: &[Shortage]| names(victims(&critical, &others, shortages));
        assert_eq!(of(&[short("cpu", 300)]), Ok(vec!["fitting".to_owned()]));
        assert_eq!(of(&[short("cpu", 1000)]), Ok(vec!["large".to_owned(), "fitting".to_owned()]));
        assert_eq!(of(&[short("cpu", 3000)]).map(|found| found.contains(&"guaranteed".to_owned())), Ok(true));
        assert_eq!(of(&[short("pods", 1)]), Ok(vec!["best".to_owned()]));
        let unmet = of(&[short("cpu", 9000)]).expect_err("not enough").to_string();
        assert!(
            unmet.ends_with("no set of running pods found to reclaim resources: [(res: cpu, q: 5800), ]"),
            "{unmet}"
        );
    }
}
