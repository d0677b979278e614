//! The finalizer that keeps a pod until its job has counted it: who has it, who gets it, who loses it. Answers for
//! upstream's `pkg/controller/job/tracking_utils.go` (`uidTrackingExpectations`).

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use serde_json::json;

use super::plan::{finished, managed_elsewhere};
use crate::engine::action::{Action, PatchKind};
use crate::engine::object;
use crate::engine::pod::Pod;

/// Keeps a pod until its end is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Reports whether the pod still carries the finalizer.
#[must_use]
pub fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

/// Take the finalizer off a pod.
#[must_use]
pub fn release(pod: &Pod) -> Action {
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER], "uid": pod.metadata.uid}});
    Action::patch::<Pod>(&pod.metadata, PatchKind::Strategic, patch)
}

/// Reports whether a tracked pod is to lose the finalizer because nobody counts it: it has no controller, or the job
/// that it names is over or not there. Pods of another kind of controller, or of a job of another controller, are
/// theirs.
#[must_use]
pub fn abandoned(pod: &Pod, job: Option<&Job>) -> bool {
    let Some(owner) = object::controller_of(&pod.metadata) else { return true };
    let of_a_job = owner.kind == "Job" && owner.api_version == "batch/v1";
    of_a_job && job.is_none_or(|j| managed_elsewhere(j).is_none() && finished(j))
}

/// A pod of the job as it is once the job has adopted it, which the cache does not show yet: then it is tracked.
#[must_use]
pub fn as_adopted(pod: Arc<Pod>) -> Arc<Pod> {
    if object::controller_of(&pod.metadata).is_some() || tracked(&pod) {
        return pod;
    }
    let mut copy = Pod::clone(&pod);
    let finalizers = copy.metadata.finalizers.iter().flatten().cloned().chain([FINALIZER.to_owned()]);
    copy.metadata.finalizers = Some(finalizers.collect::<Vec<_>>().into());
    Arc::new(copy)
}
