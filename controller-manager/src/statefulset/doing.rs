//! Steps for one pod, and the events about them. Answers for upstream's `StatefulPodControl`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::engine::action::Action;
use crate::engine::object;

/// Number of pods that are worked on at once at most, where they do not wait for one another.
const MOST_AT_ONCE: usize = 500;

/// Verbs of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The pod is created.
    Create,
    /// The pod's labels or volumes, or the owners of its claims, are put right.
    Update,
    /// The pod is deleted.
    Delete,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    fn reason(self, well: bool) -> &'static str {
        match (self, well) {
            (Self::Create, true) => "SuccessfulCreate",
            (Self::Create, false) => "FailedCreate",
            (Self::Update, true) => "SuccessfulUpdate",
            (Self::Update, false) => "FailedUpdate",
            (Self::Delete, true) => "SuccessfulDelete",
            (Self::Delete, false) => "FailedDelete",
        }
    }

    /// Reason and message of the event about a pod.
    pub fn of_pod(self, pod: &str, set: &str, error: Option<&str>) -> (&'static str, String) {
        let head = format!("{} Pod {pod} in StatefulSet {set}", self.name());
        let text = error.map_or_else(|| format!("{head} successful"), |e| format!("{head} failed error: {e}"));
        (self.reason(error.is_none()), text)
    }
}

/// Reason and message of the event about a claim that was made.
pub fn of_claim(claim: &str, pod: &str, set: &str, error: Option<&str>) -> (&'static str, String) {
    let text = error.map_or_else(
        || format!("create Claim {claim} Pod {pod} in StatefulSet {set} success"),
        |e| format!("create Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {e}"),
    );
    (Verb::Create.reason(error.is_none()), text)
}

/// One step.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Make these claims, each whatever becomes of the others. None is of use to a pod while one of them is missing or
    /// `dying`; then the round ends for it, and the user is told that this is why it was not made, or updated.
    Claims {
        /// Verb that fails with the claims.
        verb: Option<Verb>,
        /// Claims to make.
        missing: Vec<PersistentVolumeClaim>,
        /// The names of those that are on their way out.
        dying: Vec<String>,
    },
    /// Write the owners of claims. A failure ends the round for the pod; the user is told of it as one to update the pod.
    Owners {
        /// An event tells of it.
        told: bool,
        /// Warnings and updates.
        actions: Vec<Action>,
    },
    /// Write the pod itself.
    Write(Action),
    /// Tell how it went.
    Tell(Verb),
}

/// The steps of one pod.
#[derive(Debug, PartialEq)]
pub struct Task {
    /// Tasks of a batch do not wait for one another. After a failure no later batch begins.
    pub batch: Batch,
    /// Name of the pod.
    pub pod: String,
    /// In order.
    pub steps: Vec<Step>,
}

/// Phase and number.
pub type Batch = (u8, usize);

/// In which batch the pod at a place of a list is, where batches double while all goes well.
#[must_use]
pub fn slow_start(place: usize) -> usize {
    let (mut batch, mut size, mut end) = (0, 1, 1);
    while place >= end {
        size = (size * 2).min(MOST_AT_ONCE);
        (batch, end) = (batch + 1, end + size);
    }
    batch
}

/// The name of a claim.
#[must_use]
pub fn name_of(claim: &PersistentVolumeClaim) -> &str {
    object::name(&claim.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told() {
        for (verb, error, want) in [
            (Verb::Create, None, "SuccessfulCreate: create Pod web-1 in StatefulSet web successful"),
            (Verb::Create, Some("no"), "FailedCreate: create Pod web-1 in StatefulSet web failed error: no"),
            (Verb::Update, None, "SuccessfulUpdate: update Pod web-1 in StatefulSet web successful"),
            (Verb::Update, Some("no"), "FailedUpdate: update Pod web-1 in StatefulSet web failed error: no"),
            (Verb::Delete, None, "SuccessfulDelete: delete Pod web-1 in StatefulSet web successful"),
            (Verb::Delete, Some("no"), "FailedDelete: delete Pod web-1 in StatefulSet web failed error: no"),
        ] {
            let (reason, text) = verb.of_pod("web-1", "web", error);
            assert_eq!(format!("{reason}: {text}"), want);
        }
        for (error, want) in [
            (None, "SuccessfulCreate: create Claim d-web-1 Pod web-1 in StatefulSet web success"),
            (Some("no"), "FailedCreate: create Claim d-web-1 for Pod web-1 in StatefulSet web failed error: no"),
        ] {
            let (reason, text) = of_claim("d-web-1", "web-1", "web", error);
            assert_eq!(format!("{reason}: {text}"), want);
        }
    }

    #[test]
    fn batches_double() {
        for (place, batch) in
            [(0, 0), (1, 1), (2, 1), (3, 2), (6, 2), (7, 3), (510, 8), (511, 9), (1010, 9), (1011, 10)]
        {
            assert_eq!(slow_start(place), batch, "{place}");
        }
    }
}
