//! Startup, liveness and readiness probes. Answers for upstream's `pkg/kubelet/prober`.
//!
//! One task per container and probe, started and stopped by [`Probes::observe`]; results go out on a bounded
//! channel and are kept for [`Probes::result`]. Reports `Unhealthy` and `ProbeWarning` events; never kills anything
//! itself. `prober_probe_total`, `prober_probe_duration_seconds` are its metrics.

mod check;
pub mod http;
mod manager;
pub mod metrics;
mod worker;

pub use manager::Manager;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;

/// Kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Gates the other two.
    Startup,
    /// Restarts the container.
    Liveness,
    /// Decides about traffic.
    Readiness,
}

impl ProbeKind {
    /// Upstream's name in events and metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// The state after success and failure thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// Passes.
    Success,
    /// Failed `failureThreshold` times.
    Failure,
    /// Not yet known.
    Unknown,
}

/// A result that changed (or, for liveness and startup, a failure for the given container id).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeUpdate {
    /// Kind of the probe.
    pub kind: ProbeKind,
    /// The pod.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// The runtime's id of the container that was probed.
    pub container_id: String,
    /// The new state.
    pub result: ProbeResult,
}

/// A running container as the prober needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The container's name in the pod.
    pub name: String,
    /// The runtime's id.
    pub container_id: String,
    /// Start time of the container.
    pub started_at: Timestamp,
}

/// The prober's door.
pub trait Probes: Send + Sync {
    /// Tells what runs now; called after every change of the pod or of its containers. Starts tasks for containers
    /// with probes, resets them when the container id changes (readiness and startup begin as failure/unknown,
    /// liveness as success; of a container that ran before this kubelet did, as the pod's status says), stops those whose
    /// container is gone. Startup must succeed before the other two begin.
    fn observe(&self, pod: &Arc<Pod>, pod_ips: &[String], running: &[RunningContainer]);

    /// Stops the probes of a pod's containers that run no more, and begins none.
    fn retain(&self, pod_uid: &str, running: &[RunningContainer]);

    /// Stops the probes of one container, which has ended.
    fn stop(&self, pod_uid: &str, container_id: &str);

    /// Stops liveness and startup probing (pod is being deleted); readiness goes on.
    fn stop_liveness(&self, pod_uid: &str);

    /// Forgets the pod and stops its tasks.
    fn remove(&self, pod_uid: &str);

    /// The last result for this very container, if it has such a probe and was observed.
    fn result(&self, pod_uid: &str, container: &str, kind: ProbeKind, container_id: &str) -> Option<ProbeResult>;
}
