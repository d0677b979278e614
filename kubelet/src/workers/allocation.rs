//! Allocation of resources to pods. A pod that asks for other resources than it has gets them if the node has room;
//! else it keeps what it has and is asked about again when room may have come. Answers for upstream's allocation
//! manager.

use super::admission::{self, Refusal};
use super::manager::{Manager, PendingResize, PodWorkers};
use super::resize;
use super::restart_all;
use crate::events::EventType;
use crate::metrics::resizes::{self, RetryTrigger};
use crate::pods;
use crate::resources::{self, QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};
use shared::declared_features;
use shared::types::is_pod_terminal;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which resizes that wait are looked at without a cause: upstream's `retryDelay`.
const RETRY_PERIOD: Duration = Duration::from_secs(3 * 60);

/// Place of a resize among those that wait: one that asks for no more than the pod has comes first, then pods of higher
/// priority, Guaranteed ones, and those that have waited longest. Upstream's `sortPendingResizes`.
fn order(pod: &Pod, grows: bool, since: Instant) -> (bool, Reverse<i32>, bool, Instant) {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    (grows, Reverse(priority), qos_class(pod) != QosClass::Guaranteed, since)
}

impl Manager {
    /// Looks at the resizes that wait every now and then, until shutdown.
    pub async fn retry_resizes_periodically(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
            self.retry_resizes(&mut self.inner.lock(), RetryTrigger::Periodic);
        }
    }

    /// A pod that a worker has, as its source has it now.
    pub(super) fn renew(&self, inner: &mut PodWorkers, pod: Arc<Pod>, trigger: RetryTrigger) {
        let uid = pods::uid(&pod).to_owned();
        let Some(mailbox) = inner.workers.get(&uid).cloned() else { return };
        let held = mailbox.pod();
        let before = inner.desired.remove(&uid);
        let since = before.as_ref().map_or_else(Instant::now, |pending| pending.since);
        self.tell_of_undeclared(before.as_ref().map_or(&held, |pending| &pending.pod), &pod);
        let pod = restart_all::honoured(pod, &self.context().settings.gates);
        if !resize::differs(&pod, &held) {
            mailbox.allocate(pod, None);
            return;
        }
        let keeps = resize::with_allocation(&pod, &held);
        if is_pod_terminal(&pod) || pod.metadata.deletion_timestamp.is_some() {
            mailbox.allocate(keeps, None);
            return;
        }
        let others = inner.active(Some(&uid));
        let was_deferred = mailbox.resize().is_some_and(|(reason, _)| reason == "Deferred");
        let Some((reason, text)) = self.refuse_resize((&pod, &held), &others) else {
            if let Err(error) = self.context().records.resized(&uid, &pod) {
                // It is asked about again.
                tracing::error!(pod = %pods::describe(&pod), %error, "Failed to handle pod resources resize");
                mailbox.allocate(keeps, mailbox.resize());
                inner.desired.insert(uid, PendingResize { pod, since });
                return;
            }
            if was_deferred {
                resizes::accepted_late(trigger);
            }
            let message = resize::message("started", &pod, None);
            self.context().events.pod(&pod, "", EventType::Normal, "ResizeStarted", &message);
            mailbox.allocate(pod, None);
            self.retry_resizes(inner, RetryTrigger::PodResized);
            return;
        };
        let refusal = Some((reason.clone(), text.clone()));
        if mailbox.resize() != refusal {
            if let Some(detail) = admission::infeasible_detail(&reason, &text) {
                resizes::infeasible(detail);
            }
            let message = resize::message(&reason, &pod, Some(&text));
            self.context().events.pod(&pod, "", EventType::Warning, &format!("Resize{reason}"), &message);
        }
        mailbox.allocate(keeps, refusal);
        inner.desired.insert(uid, PendingResize { pod, since });
    }

    /// Tells of a change that the node declares no feature for.
    fn tell_of_undeclared(&self, before: &Pod, pod: &Pod) {
        let cx = self.context();
        let Some(declared) = &cx.settings.declared_features else { return };
        let needed = declared_features::needed_to_change(before, pod);
        if let Some(text) = admission::undeclared(&needed, declared) {
            cx.events.pod(pod, "", EventType::Warning, "FailedNodeDeclaredFeaturesCheck", &text);
        }
    }

    fn refuse_resize(&self, (pod, held): (&Pod, &Pod), others: &[Arc<Pod>]) -> Option<Refusal> {
        let cx = self.context();
        let swaps =
            |pod: &Pod, container: &Container| resources::swaps(pod, container, &cx.machine, &cx.settings.resources);
        if !pods::is_static(pod) && resize::resizes_swap(pod, held, swaps) {
            return Some(("Infeasible".to_owned(), admission::SWAP.to_owned()));
        }
        admission::refuse_resize((pod, held), &cx.node.load().facts.allocatable, others, cx.settings.exclusive)
    }

    /// Room may have come for pods that wait for it.
    pub(super) fn retry_resizes(&self, inner: &mut PodWorkers, trigger: RetryTrigger) {
        let held = |pod: &Pod| inner.workers.get(pods::uid(pod)).map(|mailbox| mailbox.pod());
        let waiting = inner.desired.values().map(|pending| {
            let grows = held(&pending.pod).is_some_and(|held| resize::requests_more(&pending.pod, &held));
            (order(&pending.pod, grows, pending.since), Arc::clone(&pending.pod))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(order, _)| *order);
        for (_, pod) in waiting {
            let fits = {
                let others = inner.active(Some(pods::uid(&pod)));
                let held = inner.workers.get(pods::uid(&pod)).map(|mailbox| mailbox.pod());
                self.refuse_resize((&pod, held.as_ref().unwrap_or(&pod)), &others).is_none()
            };
            if fits {
                self.renew(inner, pod, trigger);
                // It went on from there.
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resizes_that_wait_are_looked_at_in_upstreams_order() {
        let begun = Instant::now();
        let pod = |name: &str, priority: i32, guaranteed: bool| -> Pod {
            let amounts = json!({"cpu": "1", "memory": "1Gi"});
            let resources = match guaranteed {
                true => json!({"requests": amounts, "limits": amounts}),
                false => json!({"requests": amounts}),
            };
            let containers = json!([{"name": "c", "resources": resources}]);
            let spec = json!({"priority": priority, "containers": containers});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a pod")
        };
        let mut all = [
            (pod("patient", 0, false), true, 0),
            (pod("late", 0, false), true, 9),
            (pod("guaranteed", 0, true), true, 9),
            (pod("important", 5, false), true, 9),
            (pod("smaller", -5, false), false, 9),
        ];
        all.reverse();
        all.sort_by_key(|(pod, grows, seconds)| order(pod, *grows, begun + Duration::from_secs(*seconds)));
        let names: Vec<&str> = all.iter().map(|(pod, ..)| pods::name(pod)).collect();
        assert_eq!(names, ["smaller", "important", "guaranteed", "patient", "late"]);
    }
}
