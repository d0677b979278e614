//! The container runtime interface: messages ([`v1`]), what the kubelet needs of a runtime ([`Runtime`]), and the
//! gRPC client for it. Nothing else in the kubelet knows gRPC.

use async_trait::async_trait;
use std::time::Duration;

/// Messages and stubs of the `runtime.v1` package.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// Why a runtime call failed.
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
    async fn exec_sync(&self, container_id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput, CriError>;
}
