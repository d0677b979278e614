//! Graceful shutdown of this node: its pods are those of the manager, and logind is the machine's.

use super::agent::Agent;
use super::logind::SystemLogind;
use super::shutdown::{self, MESSAGE, Pods};
use super::shutdown_times::ShutdownTimes;
use crate::config::Config;
use crate::events::EventType;
use crate::pods;
use crate::reasons;
use crate::status::writer::Writer;
use crate::workers::manager::Manager;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The node's own pods.
pub struct NodePods {
    /// All of them.
    pub manager: Arc<Manager>,
    /// Writer of their statuses.
    pub writer: Arc<Writer>,
    /// The node.
    pub agent: Arc<Agent>,
}

/// Watches for shutdowns until the kubelet ends, where the gates let it. Upstream has the metrics of shutdowns behind the
/// gate of priorities.
pub fn watch(
    config: &Config,
    node: NodePods,
    folder: &Path,
    end: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let enabled = config.gates.enabled("GracefulNodeShutdown");
    let periods = if enabled { shutdown::periods(&config.kubelet) } else { Vec::new() };
    let kept = config.gates.enabled("GracefulNodeShutdownBasedOnPodPriority");
    let times = kept.then(|| ShutdownTimes::new(folder));
    shutdown::run(periods, SystemLogind::connect, Arc::new(node), times, end)
}

#[async_trait]
impl Pods for NodePods {
    fn active(&self) -> Vec<Arc<Pod>> {
        self.manager.active()
    }

    fn end(&self, pod: &Pod, grace: i64) {
        self.manager.fail(pods::uid(pod), reasons::SHUTDOWN, MESSAGE, Some(grace));
    }

    async fn ended(&self, pods: &[Arc<Pod>]) {
        self.manager.until_ended(pods).await;
        self.manager.until_given_back(pods).await;
    }

    async fn told(&self, pods: &[Arc<Pod>]) {
        self.writer.until_told(pods).await;
    }

    fn going_down(&self, now: bool) {
        let what = if now { "event" } else { "cancellation" };
        let text = format!("Shutdown manager detected shutdown {what}");
        self.manager.context().events.node(EventType::Normal, "Shutdown", &text);
        self.agent.set_going_down(now);
    }
}
