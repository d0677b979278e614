//! Subjects of statistics: the machine, the cgroups of all pods, of tiers, of each pod, its sandbox and its containers, and of
//! the kubelet itself.

use super::Stats;
use super::cgroup::CgroupReader;
use super::exposition::Labels;
use super::machine;
use crate::cri::{labels, v1};
use crate::pods;
use k8s_openapi::api::core::v1::Pod;
use std::collections::HashMap;
use std::sync::Arc;

/// Most sandboxes whose images are remembered.
const MOST_SANDBOXES: usize = 4096;

/// A cgroup with what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MeasuredCgroup {
    /// The cgroup.
    pub(super) id: String,
    pub(super) image: String,
    /// Id of the container or sandbox.
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
    pub(super) container: String,
    /// Nanoseconds since the epoch at which it was made, by the runtime.
    pub(super) made: i64,
    /// The network is that of its processes.
    pub(super) has_network: bool,
}

impl MeasuredCgroup {
    fn of(id: String) -> Self {
        Self { id, ..Self::default() }
    }

    /// Reports whether the runtime has made it.
    pub(super) fn is_container(&self) -> bool {
        !self.name.is_empty()
    }

    pub(super) fn labels(&self) -> Labels {
        Labels::new(&self.container, &self.id, &self.image, &self.name, &self.namespace, &self.pod)
    }
}

/// Facts of the runtime about a container or sandbox.
#[derive(Clone, Debug, Default)]
struct RuntimeFacts {
    container: String,
    image: String,
    made: i64,
    is_sandbox: bool,
}

impl Stats {
    /// Returns all subjects.
    pub(super) async fn subjects(&self) -> Vec<MeasuredCgroup> {
        let cx = self.manager.context();
        let mut all: Vec<MeasuredCgroup> =
            ["/".to_owned()].into_iter().chain(cx.cgroups.tree()).map(MeasuredCgroup::of).collect();
        if let Some(own) = machine::own_cgroup().filter(|own| all.iter().all(|known| known.id != *own)) {
            all.push(MeasuredCgroup::of(own));
        }
        all.extend(self.subjects_of_pods(true).await);
        all
    }

    /// Returns the running containers.
    pub(super) async fn containers_with_cgroups(&self) -> Vec<MeasuredCgroup> {
        let mut found = self.subjects_of_pods(false).await;
        found.retain(|subject| !subject.container.is_empty());
        found
    }

    /// Pods with their containers, and with sandboxes where they are wanted.
    async fn subjects_of_pods(&self, sandboxes: bool) -> Vec<MeasuredCgroup> {
        let cx = Arc::clone(self.manager.context());
        let known = self.known(sandboxes).await;
        let pods = self.manager.pods();
        let below = tokio::task::spawn_blocking(move || {
            let reader = CgroupReader::of_machine();
            let parent = |pod: &Arc<Pod>| (Arc::clone(pod), cx.cgroups.pod_parent(pod));
            let found = pods.iter().map(parent).filter(|(_, parent)| !parent.is_empty());
            found.map(|(pod, parent)| (pod, reader.children(&parent), parent)).collect::<Vec<_>>()
        });
        let mut all = Vec::new();
        for (pod, children, parent) in below.await.unwrap_or_default() {
            let pod_uid = pods::uid(&pod).to_owned();
            let (namespace, name) = (pods::namespace(&pod).to_owned(), pods::name(&pod).to_owned());
            let base = MeasuredCgroup { namespace, pod: name, pod_uid, ..MeasuredCgroup::default() };
            all.push(MeasuredCgroup { id: parent.clone(), ..base.clone() });
            for child in children {
                let Some((name, known)) = known.get_key_value(scoped(&child)) else { continue };
                all.push(MeasuredCgroup {
                    id: format!("{parent}/{child}"),
                    name: name.clone(),
                    container: known.container.clone(),
                    image: known.image.clone(),
                    made: known.made,
                    has_network: known.is_sandbox,
                    ..base.clone()
                });
            }
        }
        all
    }

    /// Asks the runtime for what it runs, by id.
    async fn known(&self, sandboxes: bool) -> HashMap<String, RuntimeFacts> {
        let runtime = &self.manager.context().runtime;
        let listed = async { if sandboxes { runtime.list_sandboxes(None).await } else { Ok(Vec::new()) } };
        let (containers, sandboxes) = tokio::join!(runtime.list_containers(None), listed);
        let mut known = HashMap::new();
        for container in containers.unwrap_or_default() {
            if container.state() != v1::ContainerState::ContainerRunning {
                continue;
            }
            let name = container.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
            let image = container.image.map(|image| image.image).unwrap_or_default();
            known.insert(
                container.id,
                RuntimeFacts { container: name, image, made: container.created_at, is_sandbox: false },
            );
        }
        for sandbox in sandboxes.unwrap_or_default() {
            let image = self.sandbox_image(&sandbox.id).await;
            known.insert(
                sandbox.id,
                RuntimeFacts { container: String::new(), image, made: sandbox.created_at, is_sandbox: true },
            );
        }
        known
    }

    /// The image of a sandbox, which the runtime tells among its own details; empty where it does not.
    async fn sandbox_image(&self, id: &str) -> String {
        if let Some(known) = self.sandbox_images.lock().get(id) {
            return known.clone();
        }
        let Ok(info) = self.manager.context().runtime.sandbox_info(id).await else { return String::new() };
        let image = serde_json::from_str::<SandboxInfo>(&info).map(|info| info.image).unwrap_or_default();
        let mut images = self.sandbox_images.lock();
        if images.len() >= MOST_SANDBOXES {
            images.clear();
        }
        images.insert(id.to_owned(), image.clone());
        image
    }
}

/// The part of a runtime's details of a sandbox that is of interest.
#[derive(serde::Deserialize)]
struct SandboxInfo {
    #[serde(default)]
    image: String,
}

/// The id of a container whose cgroup has this name: `id`, or `cri-containerd-id.scope` where systemd makes them.
fn scoped(cgroup: &str) -> &str {
    let Some(scope) = cgroup.strip_suffix(".scope") else { return cgroup };
    scope.rsplit('-').next().unwrap_or(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_cgroups() {
        for (cgroup, id) in [("abc", "abc"), ("cri-containerd-abc.scope", "abc"), ("crio-abc.scope", "abc")] {
            assert_eq!(scoped(cgroup), id);
        }
    }
}
