//! The status of a pod: computed from what the runtime has of it and from what was told before, and handed on.

use super::mailbox::KnownPod;
use super::observed::Observed;
use super::plan;
use super::resize::Progress;
use super::status::generate::{Inputs, pod_status};
use super::worker::Worker;
use crate::metrics;
use crate::pods;
use crate::probes::{ProbeKind, ProbeResult, RunningContainer};
use crate::resource_health;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use std::sync::Arc;

impl Worker {
    /// Computes the status and hands it on when it changed; tells the prober what runs.
    pub(super) fn publish(
        &mut self,
        pod: &Arc<Pod>,
        observed: &Observed,
        terminating: bool,
        terminated: bool,
    ) -> PodStatus {
        let cx = Arc::clone(&self.cx);
        let knew = self.told.is_some();
        let pod = &self.as_told(pod);
        let ips = observed.active_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let facts = cx.facts(pod, &ips);
        let running: Vec<RunningContainer> = observed
            .running()
            .filter_map(|c| {
                let started_at = plan::timestamp(c.started_at)?;
                Some(RunningContainer { name: c.name.clone(), container_id: c.id.clone(), started_at })
            })
            .collect();
        // A pod that is being stopped keeps the probes it has left.
        if terminating || terminated {
            cx.probes.retain(&self.uid, &running);
        } else {
            cx.probes.observe(pod, &facts.pod_ips, &running);
        }
        let uid = self.uid.clone();
        // A pod that an earlier kubelet ran and that is being stopped is not probed: what was told of it stays.
        let told = |name: &str, id: &str, of: fn(&ContainerStatus) -> bool| {
            pods::told(pod, name, id).is_some_and(of).then_some(ProbeResult::Success)
        };
        let startup = |name: &str, id: &str| {
            let known = cx.probes.result(&uid, name, ProbeKind::Startup, id);
            known.or_else(|| told(name, id, |status| status.started == Some(true)))
        };
        let readiness = |name: &str, id: &str| {
            let known = cx.probes.result(&uid, name, ProbeKind::Readiness, id);
            known.or_else(|| told(name, id, |status| status.ready))
        };
        let tells_health = cx.settings.gates.enabled(resource_health::GATE);
        let health = |container: &Container| {
            if !tells_health {
                return Vec::new();
            }
            let mut healths = cx.devices.health(&uid, &container.name);
            healths.extend(cx.claims.health(pod, container));
            resource_health::statuses(healths)
        };
        let node = cx.node.load();
        let handler = observed.active_sandbox().map_or("", |sandbox| sandbox.handler.as_str());
        let KnownPod { failure, resize, .. } = self.mailbox.snapshot();
        let stopping = terminating || terminated;
        let resize = if stopping { Progress::default() } else { self.resources.progress(pod, observed, resize) };
        let pending = resize.pending.as_ref().map(|(reason, _)| reason.as_str());
        metrics::resizes::progress(&self.uid, pending, resize.running);
        let previous = self.published.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        // What was published is newer than what the API server has shown so far.
        let mut current = Pod::clone(pod);
        if let Some(published) = &self.published {
            let conditions = current.status.as_ref().and_then(|s| s.conditions.clone());
            current.status = Some(PodStatus { conditions, ..published.clone() });
        }
        let status = pod_status(&Inputs {
            pod: &current,
            observed,
            facts: &facts,
            runtime_name: &node.runtime_name,
            recursive_read_only: node.recursive_read_only.contains(handler),
            waiting: &self.waiting,
            startup: &startup,
            readiness: &readiness,
            health: &health,
            previous: &previous,
            failure: failure.as_ref(),
            resize: &resize,
            terminating,
            terminated,
            seen: self.seen,
            now: Timestamp::now(),
        });
        let phase = self.published.as_ref().or(pod.status.as_ref()).and_then(|before| before.phase.as_deref());
        if status.phase.as_deref() == Some("Running") && matches!(phase, None | Some("Pending")) {
            metrics::pod_runs(pod, self.seen);
        }
        // What waited for the mirror pod to be known is written now, changed or not.
        if self.published.as_ref() != Some(&status) || knew != self.told.is_some() {
            self.cx.statuses.set(pod, &status);
            self.published = Some(status.clone());
        }
        status
    }

    /// A pod as an earlier kubelet has told of it. A static pod's manifest says nothing of that: its mirror pod does, once it
    /// is known.
    fn as_told(&mut self, pod: &Arc<Pod>) -> Arc<Pod> {
        if !pods::is_static(pod) {
            return Arc::clone(pod);
        }
        if self.told.is_none() {
            self.told = self.cx.statuses.mirror(pod).and_then(|mirror| told_of(pod, &mirror));
        }
        match &self.told {
            Some(status) => Arc::new(Pod { status: Some(status.clone()), ..Pod::clone(pod) }),
            None => Arc::clone(pod),
        }
    }
}

/// Status in a mirror pod that goes on for its static pod: that of this very manifest, unless it has ended. A static pod that
/// failed begins anew with the kubelet.
fn told_of(pod: &Pod, mirror: &Pod) -> Option<PodStatus> {
    let status = mirror.status.clone().filter(|status| status.phase.as_deref() == Some("Running"));
    status.filter(|_| pods::is_mirror_of(mirror, pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::annotations;

    #[test]
    fn a_mirror_pod_tells_of_its_own_manifest_alone() {
        let with = |key: &str, hash: &str, phase: Option<&str>| Pod {
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                annotations: Some([(key.to_owned(), hash.to_owned())].into()),
                ..Default::default()
            },
            status: phase.map(|phase| PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }),
            ..Pod::default()
        };
        let pod = with(annotations::HASH, "a", None);
        for (hash, phase, expected) in [
            ("a", Some("Running"), true),
            ("b", Some("Running"), false),
            ("a", Some("Pending"), false),
            ("a", Some("Failed"), false),
            ("a", None, false),
        ] {
            let told = told_of(&pod, &with(annotations::MIRROR, hash, phase));
            assert_eq!(told.is_some(), expected, "{hash} {phase:?}");
        }
    }
}
