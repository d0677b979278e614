//! Differences between ReplicaSets and ReplicationControllers.

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController, ReplicationControllerStatus};
use serde::Serialize;
use serde_json::Value;

use super::plan::Counts;
use crate::engine::action::body;
use crate::engine::object;
use crate::engine::pod::{Labels, Pod};
use crate::engine::selectors::Selecting;

/// A status, independent of the kind. Conditions are plain JSON, as the two kinds have types of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The numbers.
    pub counts: Counts,
    /// The conditions.
    pub conditions: Option<Value>,
    /// The generation this is about.
    pub observed_generation: Option<i64>,
}

/// A kind whose objects keep a number of pods.
pub trait Set: Selecting + Serialize {
    /// The service account its controller writes as.
    const ACCOUNT: &'static str;
    /// The source of its events.
    const COMPONENT: &'static str;

    /// Returns the desired number of pods.
    fn replicas(&self) -> i32;
    /// Returns how long a pod must be ready to count as available.
    fn min_ready_seconds(&self) -> i32;
    /// Returns the template of new pods.
    fn template(&self) -> PodTemplateSpec;
    /// Reports whether the set selects pods of these labels.
    fn selects_labels(&self, labels: Option<&Labels>) -> bool;
    /// Reports whether the set selects a pod.
    fn selects_pod(&self, pod: &Pod) -> bool {
        self.selects_labels(pod.metadata.labels.as_deref())
    }
    /// Returns the reported status.
    fn status(&self) -> Status;
    /// Returns the set with another status.
    fn with_status(&self, status: Status) -> Self;
    /// Drop what this kind's status cannot hold.
    fn normalise(status: &mut Status);
}

fn some(n: i32) -> Option<i32> {
    (n != 0).then_some(n)
}

fn conditions<T: Serialize>(conditions: Option<&Vec<T>>) -> Option<Value> {
    conditions.filter(|c| !c.is_empty()).map(body)
}

fn typed<T: serde::de::DeserializeOwned>(conditions: Option<Value>) -> Option<Vec<T>> {
    conditions.and_then(|c| serde_json::from_value(c).ok())
}

/// Instead of a number of terminating pods where none is reported.
pub(super) const UNTOLD: i32 = -1;

impl Set for ReplicaSet {
    const ACCOUNT: &'static str = "replicaset-controller";
    const COMPONENT: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> PodTemplateSpec {
        self.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default()
    }

    fn selects_labels(&self, labels: Option<&Labels>) -> bool {
        self.spec.as_ref().is_some_and(|s| object::selects(&s.selector, labels))
    }

    fn status(&self) -> Status {
        let s = self.status.clone().unwrap_or_default();
        Status {
            counts: Counts {
                replicas: s.replicas,
                fully_labeled: s.fully_labeled_replicas.unwrap_or(0),
                ready: s.ready_replicas.unwrap_or(0),
                available: s.available_replicas.unwrap_or(0),
                // Never reported is not the same as none.
                terminating: s.terminating_replicas.unwrap_or(UNTOLD),
            },
            conditions: conditions(s.conditions.as_ref()),
            observed_generation: s.observed_generation,
        }
    }

    fn with_status(&self, s: Status) -> Self {
        let status = ReplicaSetStatus {
            replicas: s.counts.replicas,
            fully_labeled_replicas: some(s.counts.fully_labeled),
            ready_replicas: some(s.counts.ready),
            available_replicas: some(s.counts.available),
            terminating_replicas: Some(s.counts.terminating).filter(|n| *n != UNTOLD),
            conditions: typed(s.conditions),
            observed_generation: s.observed_generation,
        };
        Self { status: Some(status), ..self.clone() }
    }

    fn normalise(_: &mut Status) {}
}

impl Set for ReplicationController {
    const ACCOUNT: &'static str = "replication-controller";
    const COMPONENT: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn template(&self) -> PodTemplateSpec {
        self.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default()
    }

    fn selects_labels(&self, labels: Option<&Labels>) -> bool {
        object::matches_map(self.spec.as_ref().and_then(|s| s.selector.as_ref()), labels)
    }

    fn status(&self) -> Status {
        let s = self.status.clone().unwrap_or_default();
        Status {
            counts: Counts {
                replicas: s.replicas,
                fully_labeled: s.fully_labeled_replicas.unwrap_or(0),
                ready: s.ready_replicas.unwrap_or(0),
                available: s.available_replicas.unwrap_or(0),
                terminating: 0,
            },
            conditions: conditions(s.conditions.as_ref()),
            observed_generation: s.observed_generation,
        }
    }

    fn with_status(&self, s: Status) -> Self {
        let status = ReplicationControllerStatus {
            replicas: s.counts.replicas,
            fully_labeled_replicas: some(s.counts.fully_labeled),
            ready_replicas: some(s.counts.ready),
            available_replicas: some(s.counts.available),
            conditions: typed(s.conditions),
            observed_generation: s.observed_generation,
        };
        Self { status: Some(status), ..self.clone() }
    }

    fn normalise(status: &mut Status) {
        status.counts.terminating = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_round_trip() {
        let rs: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"selector": {}}})).expect("set");
        let status = Status {
            counts: Counts { replicas: 2, ready: 1, ..Counts::default() },
            conditions: None,
            observed_generation: Some(3),
        };
        let with = rs.with_status(status.clone());
        assert_eq!(Set::status(&with), status);
        assert_eq!(
            serde_json::to_value(&with.status).expect("json"),
            json!({"observedGeneration": 3, "readyReplicas": 1, "replicas": 2, "terminatingReplicas": 0})
        );
        let counts = Counts { terminating: UNTOLD, ..Counts::default() };
        let untold = rs.with_status(Status { counts, ..Status::default() });
        assert_eq!(untold.status.and_then(|s| s.terminating_replicas), None);
        assert_ne!(Set::status(&rs), Status::default(), "terminating replicas are reported even when there are none");
    }
}
