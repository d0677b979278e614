//! Static pods that an earlier kubelet has begun. Upstream's gives a static pod another uid than this one for the same
//! manifest: with its own uid the pod would be another one, and all its containers would be started anew. One whose
//! manifest is as old as what runs of it goes on under the uid that it has.
//!
//! In: what the runtime has, asked once, and the age of manifests. Out: uids.

use super::annotations;
use crate::cri::{CriError, Runtime, labels, v1};
use crate::pods;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest wait for the runtime's answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(500);

/// A static pod that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EarlierPod {
    uid: String,
    /// Time when its sandbox was made, in nanoseconds since the epoch.
    created_at: i64,
    /// Hashes of its containers by name.
    containers: BTreeMap<String, String>,
}

/// Hash of a container as its annotation in the runtime has it.
pub type ContainerHash = fn(&Container) -> String;

/// Static pods that ran when the kubelet started; see the module.
#[derive(Debug, Default)]
pub struct EarlierPods {
    by_name: HashMap<String, EarlierPod>,
    /// Uids that pods go on with, by the uid of their manifest.
    taken: Mutex<HashMap<String, String>>,
    hash: Option<ContainerHash>,
}

impl EarlierPods {
    /// Asks the runtime for what runs, until it answers or has not done so for long: without it nothing can be begun anyway.
    pub async fn wait(runtime: &dyn Runtime, hash: ContainerHash) -> Self {
        let asked = async {
            loop {
                match Self::find(runtime, hash).await {
                    Ok(found) => return found,
                    Err(error) => tracing::warn!(%error, "Could not ask the runtime for static pods that run"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.unwrap_or_default()
    }

    async fn find(runtime: &dyn Runtime, hash: ContainerHash) -> Result<Self, CriError> {
        let (sandboxes, containers) = tokio::try_join!(runtime.list_sandboxes(None), runtime.list_containers(None))?;
        Ok(Self { by_name: earlier(&sandboxes, &containers), taken: Mutex::default(), hash: Some(hash) })
    }

    /// Returns the uid that a pod goes on with, whose manifest was written at `modified`; none where it is another one.
    pub fn uid(&self, pod: &Pod, modified: SystemTime) -> Option<String> {
        let own = pods::uid(pod);
        if let Some(uid) = self.taken.lock().get(own) {
            return Some(uid.clone());
        }
        let earlier = self.by_name.get(&pods::full_name(pod)).filter(|earlier| earlier.uid != own)?;
        let made = UNIX_EPOCH + Duration::from_nanos(u64::try_from(earlier.created_at).ok()?);
        if modified > made || !is_same(pod, &earlier.containers, self.hash?) {
            return None;
        }
        tracing::info!(pod = %pods::describe(pod), pod_uid = earlier.uid, "Static pod goes on under the uid that it has");
        self.taken.lock().insert(own.to_owned(), earlier.uid.clone());
        Some(earlier.uid.clone())
    }
}

/// Reports whether all containers that run are the pod's.
fn is_same(pod: &Pod, running: &BTreeMap<String, String>, hash: ContainerHash) -> bool {
    let spec = pod.spec.iter();
    let all = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let hashes: BTreeMap<&str, String> = all.map(|container| (container.name.as_str(), hash(container))).collect();
    !running.is_empty() && running.iter().all(|(name, hash)| hashes.get(name.as_str()) == Some(hash))
}

fn earlier(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> HashMap<String, EarlierPod> {
    let mut found: HashMap<String, EarlierPod> = HashMap::new();
    for sandbox in sandboxes.iter().filter(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady) {
        let label = |key: &str| sandbox.labels.get(key).cloned().unwrap_or_default();
        let source = sandbox.annotations.get(annotations::SOURCE).map(String::as_str);
        // When a URL's answer changed is not known.
        if source != Some("file") {
            continue;
        }
        let own = containers.iter().filter(|container| container.pod_sandbox_id == sandbox.id);
        let running = own.filter(|container| container.state() == v1::ContainerState::ContainerRunning);
        let hashes = running.filter_map(|container| {
            let name = container.labels.get(labels::CONTAINER_NAME)?.clone();
            Some((name, container.annotations.get(labels::HASH).cloned().unwrap_or_default()))
        });
        let pod =
            EarlierPod { uid: label(labels::POD_UID), created_at: sandbox.created_at, containers: hashes.collect() };
        let name = format!("{}_{}", label(labels::POD_NAME), label(labels::POD_NAMESPACE));
        let known = found.entry(name).or_default();
        if pod.created_at >= known.created_at {
            *known = pod;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, image: &str) -> Pod {
        let containers = json!([{"name": "c", "image": image}]);
        serde_json::from_value(json!({"metadata": {"name": "etcd-node", "namespace": "kube-system", "uid": uid},
            "spec": {"containers": containers}}))
        .expect("a pod")
    }

    fn hash_of(container: &Container) -> String {
        format!("hash of {:?}", container.image)
    }

    fn running(source: &str, uid: &str, created_at: i64) -> EarlierPods {
        let labels = |more: &[(&str, &str)]| -> std::collections::BTreeMap<String, String> {
            let own = [(labels::POD_NAME, "etcd-node"), (labels::POD_NAMESPACE, "kube-system"), (labels::POD_UID, uid)];
            own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let sandbox = v1::PodSandbox {
            id: format!("sandbox-{uid}"),
            created_at,
            labels: labels(&[]).into_iter().collect(),
            annotations: [(annotations::SOURCE.to_owned(), source.to_owned())].into(),
            ..v1::PodSandbox::default()
        };
        let hash = hash_of(&pod("", "i:1").spec.expect("a spec").containers[0]);
        let container = v1::Container {
            pod_sandbox_id: sandbox.id.clone(),
            labels: labels(&[(labels::CONTAINER_NAME, "c")]).into_iter().collect(),
            annotations: [(labels::HASH.to_owned(), hash)].into(),
            state: v1::ContainerState::ContainerRunning.into(),
            ..v1::Container::default()
        };
        EarlierPods { by_name: earlier(&[sandbox], &[container]), taken: Mutex::default(), hash: Some(hash_of) }
    }

    #[test]
    fn a_static_pod_goes_on_under_the_uid_that_an_earlier_kubelet_gave_it() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let second = 1_000_000_000;
        for (source, earlier, image, modified, expected) in [
            ("file", "theirs", "i:1", 50, Some("theirs")),
            ("http", "theirs", "i:1", 50, None),
            ("api", "theirs", "i:1", 50, None),
            ("file", "own", "i:1", 50, None),
            ("file", "theirs", "i:2", 50, None),
            ("file", "theirs", "i:1", 150, None),
        ] {
            let earlier = running(source, earlier, 100 * second);
            assert_eq!(
                earlier.uid(&pod("own", image), at(modified)).as_deref(),
                expected,
                "{source} {image} {modified}"
            );
        }
        let earlier = running("file", "theirs", 100 * second);
        assert_eq!(earlier.uid(&pod("own", "i:1"), at(50)).as_deref(), Some("theirs"));
        assert_eq!(earlier.uid(&pod("own", "i:1"), at(500)).as_deref(), Some("theirs"), "touched, and still the same");
        assert_eq!(earlier.uid(&pod("changed", "i:1"), at(500)), None);
    }
}
