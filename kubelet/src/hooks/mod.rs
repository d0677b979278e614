//! Lifecycle hooks: `postStart` and `preStop` as exec, httpGet, tcpSocket (accepted, always fails as upstream) or
//! sleep. Answers for upstream's `pkg/kubelet/lifecycle`. Reports no failures: the worker does
//! (`FailedPostStartHook`, `FailedPreStopHook`).

mod runner;

pub use runner::Runner;

use crate::probes::http::{HttpError, RequestError};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use std::time::Duration;

/// Container that a hook runs against.
#[derive(Clone, Copy, Debug)]
pub struct HookTarget<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container's spec.
    pub container: &'a Container,
    /// The runtime's id.
    pub container_id: &'a str,
    /// The pod's primary IP, empty when it has none.
    pub pod_ip: &'a str,
}

/// Failures of a hook; the text goes into the event.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command ended with a non-zero code: `command '…' exited with 1: <output>`.
    #[error("{0}")]
    Exec(String),
    /// The HTTP request was not answered.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The handler describes no HTTP request.
    #[error("invalid handler: {0}")]
    Request(#[from] RequestError),
    /// The handler has no action, or is not valid.
    #[error("invalid handler: {0}")]
    Invalid(String),
    /// Ran into its deadline.
    #[error("hook did not finish within {0:?}")]
    Timeout(Duration),
}

/// The hook room's door.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// Runs one hook to its end, at most for `timeout`.
    async fn run(&self, handler: &LifecycleHandler, target: HookTarget<'_>, timeout: Duration)
    -> Result<(), HookError>;
}
