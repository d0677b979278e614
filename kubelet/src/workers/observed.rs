//! State of one pod in the runtime.
//! Answers for `GetPodStatus` of upstream's kuberuntime and `pkg/kubelet/container/cache.go`.

use crate::cri::{CriError, Runtime, labels, v1};
use k8s_openapi::api::core::v1::ResourceRequirements;
use std::collections::HashMap;

/// A sandbox of the pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Ready to take containers.
    pub ready: bool,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Attempt that made the sandbox.
    pub attempt: u32,
    /// Addresses, primary first.
    pub ips: Vec<String>,
    /// Shares the node's network.
    pub host_network: bool,
    /// The runtime handler that runs it, empty for the runtime's default.
    pub handler: String,
}

/// A container's state as the runtime tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// Made, never started.
    #[default]
    Created,
    /// Runs.
    Running,
    /// Ended.
    Exited,
    /// The runtime lost it.
    Unknown,
}

/// A container of the pod, one entry per attempt that the runtime still knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The sandbox it belongs to.
    pub sandbox_id: String,
    /// Name of the container in the pod.
    pub name: String,
    /// State of the container.
    pub state: State,
    /// Nanoseconds since the epoch; 0 when it did not happen.
    pub created_at: i64,
    /// Start time.
    pub started_at: i64,
    /// End time.
    pub finished_at: i64,
    /// Exit code of an ended container.
    pub exit_code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`, …).
    pub reason: String,
    /// The runtime's message, or the termination message.
    pub message: String,
    /// Image as named by the runtime.
    pub image: String,
    /// Image id with digest.
    pub image_ref: String,
    /// Number of the start of the container, from 0.
    pub restart_count: u32,
    /// The spec hash it was made from.
    pub hash: String,
    /// Path of the log.
    pub log_path: String,
    /// Path of the termination message on the host.
    pub termination_file: String,
    /// `FallbackToLogsOnError` or `File`.
    pub termination_policy: String,
    /// User it runs as.
    pub user: Option<v1::LinuxContainerUser>,
    /// The resources it has, as far as the worker knows.
    pub given: Option<ResourceRequirements>,
}

/// Everything the runtime has of one pod, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Sandboxes, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Containers, newest first.
    pub containers: Vec<Container>,
    /// The resources that the pod has as a whole, as far as the worker knows, where those can be resized.
    pub whole: Option<ResourceRequirements>,
}

impl Observed {
    /// Puts the newest attempts first. Attempts are counted on for as long as the runtime knows the one before; the times at
    /// which they were made go back when the node's clock does, and decide between equal numbers alone.
    fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        self.containers.sort_by_key(|c| std::cmp::Reverse((c.restart_count, c.created_at)));
    }

    /// The newest sandbox, if it is ready.
    pub fn active_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// The newest attempt of a container, in any sandbox.
    pub fn latest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest attempt of a container in the given sandbox.
    pub fn latest_in(&self, sandbox: &str, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name && c.sandbox_id == sandbox)
    }

    /// The attempt before the newest one.
    pub fn previous(&self, name: &str) -> Option<&Container> {
        self.containers.iter().filter(|c| c.name == name).nth(1)
    }

    /// Containers that run.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|c| c.state == State::Running)
    }

    /// Nothing of the pod is alive.
    pub fn is_stopped(&self) -> bool {
        self.sandboxes.iter().all(|s| !s.ready)
            && self.containers.iter().all(|c| !matches!(c.state, State::Running | State::Unknown))
    }
}

/// Asks the runtime about one pod and remembers what cannot change any more.
#[derive(Debug, Default)]
pub struct Observer {
    ended: HashMap<String, Container>,
}

impl Observer {
    /// The pod's current state. Containers that vanish between listing and asking are left out.
    pub async fn observe(&mut self, runtime: &dyn Runtime, pod_uid: &str) -> Result<Observed, CriError> {
        let (sandboxes, containers) =
            tokio::try_join!(runtime.list_sandboxes(Some(pod_uid)), runtime.list_containers(Some(pod_uid)))?;
        let mut observed = Observed::default();
        for item in sandboxes {
            if item.state() != v1::PodSandboxState::SandboxReady {
                observed.sandboxes.push(Sandbox {
                    id: item.id,
                    ready: false,
                    created_at: item.created_at,
                    attempt: item.metadata.map(|m| m.attempt).unwrap_or_default(),
                    ..Sandbox::default()
                });
                continue;
            }
            match runtime.sandbox_status(&item.id).await {
                Ok(status) => observed.sandboxes.push(sandbox(status)),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let mut ended = HashMap::new();
        for item in containers {
            if let Some(known) = self.ended.get(&item.id) {
                ended.insert(item.id.clone(), known.clone());
                observed.containers.push(known.clone());
                continue;
            }
            match runtime.container_status(&item.id).await {
                Ok(status) => {
                    let mut container = container(status, item.pod_sandbox_id);
                    if container.state == State::Exited {
                        super::termination::fill(&mut container);
                        ended.insert(container.id.clone(), container.clone());
                    }
                    observed.containers.push(container);
                }
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        self.ended = ended;
        observed.sort();
        Ok(observed)
    }
}

fn sandbox(status: v1::PodSandboxStatus) -> Sandbox {
    let ready = status.state() == v1::PodSandboxState::SandboxReady;
    let mut ips = Vec::new();
    if let Some(network) = status.network {
        if !network.ip.is_empty() {
            ips.push(network.ip);
        }
        ips.extend(network.additional_ips.into_iter().map(|ip| ip.ip).filter(|ip| !ip.is_empty()));
    }
    let network_mode = status.linux.and_then(|l| l.namespaces).and_then(|n| n.options).map(|o| o.network());
    Sandbox {
        id: status.id,
        ready,
        created_at: status.created_at,
        attempt: status.metadata.map(|m| m.attempt).unwrap_or_default(),
        ips,
        host_network: network_mode == Some(v1::NamespaceMode::Node),
        handler: status.runtime_handler,
    }
}

fn container(mut status: v1::ContainerStatus, sandbox_id: String) -> Container {
    let state = match status.state() {
        v1::ContainerState::ContainerCreated => State::Created,
        v1::ContainerState::ContainerRunning => State::Running,
        v1::ContainerState::ContainerExited => State::Exited,
        v1::ContainerState::ContainerUnknown => State::Unknown,
    };
    let mut take = |key: &str| status.annotations.remove(key).unwrap_or_default();
    let hash = take(labels::HASH);
    let restart_count = take(labels::RESTART_COUNT).parse().ok();
    let termination_path = take(labels::TERMINATION_PATH);
    let termination_policy = take(labels::TERMINATION_POLICY);
    let termination_file = status
        .mounts
        .iter()
        .find(|m| !termination_path.is_empty() && m.container_path == termination_path)
        .map(|m| m.host_path.clone())
        .unwrap_or_default();
    let metadata = status.metadata.unwrap_or_default();
    let name = status.labels.remove(labels::CONTAINER_NAME).unwrap_or(metadata.name);
    Container {
        id: status.id,
        sandbox_id,
        name,
        state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image: status
            .image
            .map(|i| if i.user_specified_image.is_empty() { i.image } else { i.user_specified_image })
            .unwrap_or_default(),
        image_ref: if status.image_ref.is_empty() { status.image_id } else { status.image_ref },
        restart_count: restart_count.unwrap_or(metadata.attempt),
        hash,
        log_path: status.log_path,
        termination_file,
        termination_policy,
        user: status.user.and_then(|u| u.linux),
        given: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_attempt_is_known_after_the_clock_was_set_back() {
        let container = |id: &str, restart_count: u32, created_at: i64| Container {
            id: id.into(),
            name: "c".into(),
            sandbox_id: "s1".into(),
            restart_count,
            created_at,
            ..Container::default()
        };
        let sandbox = |id: &str, attempt: u32, created_at: i64| Sandbox {
            id: id.into(),
            ready: id == "s1",
            attempt,
            created_at,
            ..Sandbox::default()
        };
        for times in [[1, 2], [2, 1], [1, 1]] {
            let mut observed = Observed {
                sandboxes: vec![sandbox("s0", 0, times[0]), sandbox("s1", 1, times[1])],
                containers: vec![container("c0", 0, times[0]), container("c1", 1, times[1])],
                ..Observed::default()
            };
            observed.sort();
            let newest = |found: Option<&Container>| found.map(|c| c.id.clone());
            assert_eq!(observed.active_sandbox().map(|s| s.id.as_str()), Some("s1"), "{times:?}");
            assert_eq!(newest(observed.latest("c")).as_deref(), Some("c1"), "{times:?}");
            assert_eq!(newest(observed.previous("c")).as_deref(), Some("c0"), "{times:?}");
        }
    }
}
