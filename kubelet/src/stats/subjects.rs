//! Subjects of statistics: the machine, the cgroups of all pods, of tiers, of each pod, its sandbox and its containers, and of
//! the kubelet itself.

use super::Stats;
use super::cgroup::CgroupReader;
use super::exposition::Labels;
use super::machine;
use crate::cri::{labels, v1};
use crate::pods;
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Most sandboxes whose images are remembered; most names of cgroups beyond those of what runs.
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
    pod_uid: String,
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

    /// Returns pods, each before its running containers, with sandboxes where they are wanted.
    pub(super) async fn subjects_of_pods(&self, sandboxes: bool) -> Vec<MeasuredCgroup> {
        let cx = Arc::clone(self.manager.context());
        let known = self.known(sandboxes).await;
        let mut by_pod: HashMap<&str, Vec<(&String, &RuntimeFacts)>> = HashMap::new();
        for (id, facts) in &known {
            by_pod.entry(&facts.pod_uid).or_default().push((id, facts));
        }
        let mut all = Vec::new();
        let pods = self.manager.pods();
        let names = self.cgroup_names(&pods, &known).await;
        for pod in pods {
            let parent = cx.cgroups.pod_parent(&pod);
            if parent.is_empty() {
                continue;
            }
            let pod_uid = pods::uid(&pod).to_owned();
            let below = by_pod.remove(pod_uid.as_str()).unwrap_or_default();
            let (namespace, name) = (pods::namespace(&pod).to_owned(), pods::name(&pod).to_owned());
            let base = MeasuredCgroup { namespace, pod: name, pod_uid, ..MeasuredCgroup::default() };
            all.push(MeasuredCgroup { id: parent.clone(), ..base.clone() });
            for (id, facts) in below {
                let Some(cgroup) = names.get(id) else { continue };
                all.push(MeasuredCgroup {
                    id: format!("{parent}/{cgroup}"),
                    name: id.clone(),
                    container: facts.container.clone(),
                    image: facts.image.clone(),
                    made: facts.made,
                    has_network: facts.is_sandbox,
                    ..base.clone()
                });
            }
        }
        all
    }

    /// Names of the cgroups of containers and sandboxes, by id. The runtime chooses them: a pod's are listed when one of
    /// its containers is new.
    async fn cgroup_names(&self, pods: &[Arc<Pod>], known: &BTreeMap<String, RuntimeFacts>) -> HashMap<String, String> {
        let mut names = self.cgroup_names.lock().clone();
        if names.len() >= MOST_SANDBOXES {
            names.retain(|id, _| known.contains_key(id));
        }
        let unknown = known.iter().filter(|(id, _)| !names.contains_key(*id));
        let unknown: HashSet<&str> = unknown.map(|(_, facts)| facts.pod_uid.as_str()).collect();
        let cgroups = &self.manager.context().cgroups;
        let parents = pods.iter().filter(|pod| unknown.contains(pods::uid(pod))).map(|pod| cgroups.pod_parent(pod));
        let parents: Vec<String> = parents.filter(|parent| !parent.is_empty()).collect();
        if !parents.is_empty() {
            let listed = tokio::task::spawn_blocking(move || {
                let reader = CgroupReader::of_machine();
                parents.iter().flat_map(|parent| reader.children(parent)).collect::<Vec<_>>()
            });
            let listed = listed.await.unwrap_or_default().into_iter();
            names.extend(
                listed.map(|child| (scoped(&child).to_owned(), child)).filter(|(id, _)| known.contains_key(id)),
            );
        }
        self.cgroup_names.lock().clone_from(&names);
        names
    }

    /// Asks the runtime for what it runs, by id.
    async fn known(&self, sandboxes: bool) -> BTreeMap<String, RuntimeFacts> {
        let runtime = &self.manager.context().runtime;
        let listed = async { if sandboxes { runtime.list_sandboxes(None).await } else { Ok(Vec::new()) } };
        let (containers, sandboxes) = tokio::join!(runtime.list_containers(None), listed);
        let mut known = BTreeMap::new();
        for container in containers.unwrap_or_default() {
            if container.state() != v1::ContainerState::ContainerRunning {
                continue;
            }
            let name = container.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
            let image = container.image.map(|image| image.image).unwrap_or_default();
            let pod_uid = container.labels.get(labels::POD_UID).cloned().unwrap_or_default();
            known.insert(
                container.id,
                RuntimeFacts { pod_uid, container: name, image, made: container.created_at, is_sandbox: false },
            );
        }
        for sandbox in sandboxes.unwrap_or_default() {
            let image = self.sandbox_image(&sandbox.id).await;
            let pod_uid = sandbox.labels.get(labels::POD_UID).cloned().unwrap_or_default();
            known.insert(
                sandbox.id,
                RuntimeFacts { pod_uid, image, made: sandbox.created_at, is_sandbox: true, ..RuntimeFacts::default() },
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
