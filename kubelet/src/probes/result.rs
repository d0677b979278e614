//! Results of probes, and what is probed.

use jiff::Timestamp;

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
    pub(super) fn name(self) -> &'static str {
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
