//! Runs lifecycle hooks.

use super::{HookError, HookTarget, Hooks};
use crate::cri::Exec;
use crate::probes::http;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a failed command's output that its event shows.
const OUTPUT_LIMIT: usize = 1024;

/// The real runner: commands through the runtime, requests over the network.
pub struct Runner {
    exec: Arc<dyn Exec>,
}

impl Runner {
    /// A runner on a runtime.
    pub fn new(exec: Arc<dyn Exec>) -> Self {
        Self { exec }
    }

    async fn exec(&self, action: &ExecAction, target: HookTarget<'_>, timeout: Duration) -> Result<(), HookError> {
        let command = action.command.clone().unwrap_or_default();
        let output = self.exec.exec_sync(target.container_id, &command, timeout).await;
        let output = output.map_err(|error| HookError::Exec(error.to_string()))?;
        if output.exit_code == 0 {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said[..said.len().min(OUTPUT_LIMIT)]).into_owned();
        Err(HookError::Exec(format!("command '{}' exited with {}: {said}", command.join(" "), output.exit_code)))
    }
}

#[async_trait]
impl Hooks for Runner {
    async fn run(
        &self,
        handler: &LifecycleHandler,
        target: HookTarget<'_>,
        timeout: Duration,
    ) -> Result<(), HookError> {
        let work = async {
            if let Some(action) = &handler.exec {
                return self.exec(action, target, timeout).await;
            }
            if let Some(action) = &handler.http_get {
                return get(action, target, timeout).await;
            }
            if let Some(action) = &handler.sleep {
                tokio::time::sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
                return Ok(());
            }
            if handler.tcp_socket.is_some() {
                return Err(HookError::Invalid("tcpSocket is not supported as a lifecycle handler".into()));
            }
            Err(HookError::Invalid("cannot run handler: no action is given".into()))
        };
        tokio::time::timeout(timeout, work).await.unwrap_or(Err(HookError::Timeout(timeout)))
    }
}

async fn get(action: &HTTPGetAction, target: HookTarget<'_>, timeout: Duration) -> Result<(), HookError> {
    let request = http::Request::new(action, target.container, target.pod_ip, "kube-lifecycle/1.35")
        .map_err(HookError::Invalid)?;
    let answer = http::send(&request, timeout).await.map_err(HookError::Http)?;
    if answer.status >= 400 {
        return Err(HookError::Http(format!("HTTP probe failed with statuscode: {}", answer.status)));
    }
    Ok(())
}
