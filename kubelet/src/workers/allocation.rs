//! Allocation of resources to pods. A pod that asks for other resources than it has gets them if the node has room;
//! else it keeps what it has and is asked about again when room may have come. Answers for upstream's allocation
//! manager.

use super::admission::{self, Refusal};
use super::manager::{Manager, PodWorkers};
use super::resize;
use crate::events::EventType;
use crate::metrics::resizes::{self, RetryTrigger};
use crate::pods;
use crate::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::Pod;
use shared::declared_features;
use shared::types::is_pod_terminal;
use std::cmp::Reverse;
use std::sync::Arc;

impl Manager {
    /// A pod that a worker has, as its source has it now.
    pub(super) fn renew(&self, inner: &mut PodWorkers, pod: Arc<Pod>, trigger: RetryTrigger) {
        let uid = pods::uid(&pod).to_owned();
        let Some(mailbox) = inner.workers.get(&uid).cloned() else { return };
        let held = mailbox.pod();
        let before = inner.desired.remove(&uid).unwrap_or_else(|| Arc::clone(&held));
        self.tell_of_undeclared(&before, &pod);
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
        inner.desired.insert(uid, pod);
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
        admission::refuse_resize((pod, held), &cx.node.load().facts.allocatable, others, cx.settings.exclusive)
    }

    /// Room may have come for pods that wait for it.
    pub(super) fn retry_resizes(&self, inner: &mut PodWorkers, trigger: RetryTrigger) {
        let mut waiting: Vec<Arc<Pod>> = inner.desired.values().cloned().collect();
        waiting.sort_by_key(|pod| {
            let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            (Reverse(priority), qos_class(pod) != QosClass::Guaranteed, pods::full_name(pod))
        });
        for pod in waiting {
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
