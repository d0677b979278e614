//! The container runtime interface: messages ([`v1`]), what the kubelet needs of a runtime ([`Runtime`]), and the
//! gRPC client for it. Nothing else in the kubelet knows gRPC.
//! Answers for upstream's `cri-api` and `cri-client`.

mod client;
mod measured;

use async_trait::async_trait;
use std::time::Duration;

pub use client::Client;

/// Messages and stubs of the `runtime.v1` package.
#[allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the runtime's API"
)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// Failure of a runtime call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CriError {
    /// The runtime answered with an error: `rpc error: code = NotFound desc = …` as upstream prints it.
    #[error("rpc error: code = {code} desc = {message}")]
    Rpc {
        /// gRPC code's name, e.g. `DeadlineExceeded`.
        code: &'static str,
        /// The runtime's words.
        message: String,
    },
}

impl CriError {
    /// The runtime does not know the object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Rpc { code: "NotFound", .. })
    }
    /// The runtime does not know the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Rpc { code: "Unimplemented", .. })
    }
    /// The runtime cannot be reached, or takes too long.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Rpc { code: "Unavailable" | "DeadlineExceeded", .. })
    }
    /// The call ran into its deadline.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Rpc { code: "DeadlineExceeded", .. })
    }
}

/// Output of a command run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The exit code.
    pub exit_code: i32,
}

/// Runs a command in a container: all that probes and hooks need of a runtime.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Runs `command` to its end; `timeout` zero means none.
    async fn exec_sync(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, CriError>;
}

/// Labels and annotations that the kubelet puts on sandboxes and containers; `crictl` and log collectors know
/// them, and a restarted kubelet recognises its pods by them.
pub mod labels {
    /// The pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// The pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// The pod's uid.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// The container's name.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// A hash over what a change of must restart the container.
    pub const HASH: &str = "io.kubernetes.container.hash";
    /// Annotation with the number of restarts of the container.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation with the path of the termination message in the container.
    pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// The container's ports as JSON.
    pub const PORTS: &str = "io.kubernetes.container.ports";
    /// The pod's grace period at the time the container was made.
    pub const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// A runtime and its images: one call, one method. Answers are the wire's messages.
#[async_trait]
pub trait Runtime: Exec {
    /// Name, version and API version.
    async fn version(&self) -> Result<v1::VersionResponse, CriError>;
    /// Conditions, runtime handlers and features.
    async fn status(&self) -> Result<v1::StatusResponse, CriError>;
    /// Settings of the runtime that the kubelet must share.
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, CriError>;
    /// Hands the pod CIDR to the runtime.
    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), CriError>;
    /// Makes and starts a sandbox; returns its id.
    async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String, CriError>;
    /// Stops a sandbox and everything in it.
    async fn stop_sandbox(&self, id: &str) -> Result<(), CriError>;
    /// Removes a stopped sandbox.
    async fn remove_sandbox(&self, id: &str) -> Result<(), CriError>;
    /// One sandbox in detail.
    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, CriError>;
    /// Details of a sandbox in the runtime's own terms, as JSON; empty where it has none.
    async fn sandbox_info(&self, _id: &str) -> Result<String, CriError> {
        Ok(String::new())
    }
    /// All sandboxes, or those of one pod.
    async fn list_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<v1::PodSandbox>, CriError>;
    /// Makes a container; returns its id.
    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String, CriError>;
    /// Starts a container.
    async fn start_container(&self, id: &str) -> Result<(), CriError>;
    /// Stops a container, with force after `grace` seconds.
    async fn stop_container(&self, id: &str, grace: i64) -> Result<(), CriError>;
    /// Gives a running container other resources; what is zero stays as it is.
    async fn update_container(&self, id: &str, resources: v1::LinuxContainerResources) -> Result<(), CriError>;
    /// Removes a container.
    async fn remove_container(&self, id: &str) -> Result<(), CriError>;
    /// All containers, or those of one pod.
    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<v1::Container>, CriError>;
    /// One container in detail.
    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, CriError>;
    /// Opens a new log file after the old one was renamed.
    async fn reopen_log(&self, id: &str) -> Result<(), CriError>;
    /// Writes a container's state to an archive; `timeout` zero is the runtime's usual deadline.
    async fn checkpoint_container(&self, id: &str, location: &str, timeout: Duration) -> Result<(), CriError>;
    /// Prepares a streaming command; returns the URL to talk to.
    async fn exec(&self, request: v1::ExecRequest) -> Result<String, CriError>;
    /// Prepares attaching; returns the URL to talk to.
    async fn attach(&self, request: v1::AttachRequest) -> Result<String, CriError>;
    /// Prepares port forwarding; returns the URL to talk to.
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String, CriError>;
    /// Usage of all containers.
    async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>, CriError>;
    /// All images.
    async fn list_images(&self) -> Result<Vec<v1::Image>, CriError>;
    /// One image, if it is there.
    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>, CriError>;
    /// Pulls an image; returns its reference.
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> Result<String, CriError>;
    /// Removes an image.
    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), CriError>;
    /// Usage of the image file systems.
    async fn image_fs(&self) -> Result<v1::ImageFsInfoResponse, CriError>;
    /// A stream of container events; an error where the runtime offers none.
    async fn events(&self) -> Result<tokio::sync::mpsc::Receiver<v1::ContainerEventResponse>, CriError>;
}
