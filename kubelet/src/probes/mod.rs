//! Startup, liveness and readiness probes. Answers for upstream's `pkg/kubelet/prober`.
//!
//! One task per container and probe, started and stopped by [`Probes::observe`]; results go out on a bounded
//! channel and are kept for [`Probes::result`]. Reports `Unhealthy` and `ProbeWarning` events; never kills anything
//! itself. `prober_probe_total`, `prober_probe_duration_seconds` are its metrics.

mod check;
pub mod http;
mod manager;
pub mod metrics;
mod result;
mod worker;

pub use manager::Manager;
pub use result::{ProbeKind, ProbeResult, ProbeUpdate, RunningContainer};

use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;

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
