//! Reasons of pods that the kubelet ends for others' sake: their conditions name them as disruptions.

/// Reason of pods that go because the node is shut down.
pub(crate) const SHUTDOWN: &str = "Terminated";
/// Reason of pods that go so that a critical one fits.
pub(crate) const PREEMPTED: &str = "Preempting";
