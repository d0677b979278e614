//! Lists of pods, and finding the container that a request means.
//! Answers for upstream's `getPods`, `getRunningPods` and `encodePods`.

use super::Server;
use super::answer::{Answer, error, json};
use crate::cri::{labels, v1};
use crate::pods;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Server {
    /// Every pod of this node with its newest status.
    pub(super) fn pods(&self) -> Answer {
        let items: Vec<Value> =
            self.manager.pods_with_status().iter().filter_map(|pod| serde_json::to_value(pod).ok()).map(bare).collect();
        json(&list(&items))
    }

    /// Returns the pods that the runtime runs.
    pub(super) async fn running_pods(&self) -> Answer {
        let runtime = &self.manager.context().runtime;
        let containers = match runtime.list_containers(None).await {
            Ok(containers) => containers,
            Err(problem) => return error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()),
        };
        let mut found: BTreeMap<String, Value> = BTreeMap::new();
        for container in containers.iter().filter(|c| c.state() == v1::ContainerState::ContainerRunning) {
            let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let pod = found.entry(label(labels::POD_UID)).or_insert_with(|| {
                json!({
                    "metadata": {"name": label(labels::POD_NAME), "namespace": label(labels::POD_NAMESPACE), "uid": label(labels::POD_UID)},
                    "spec": {"containers": []},
                    "status": {},
                })
            });
            let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
            if let Some(list) = pod["spec"]["containers"].as_array_mut() {
                list.push(json!({"name": label(labels::CONTAINER_NAME), "image": image, "resources": {}}));
            }
        }
        let items: Vec<Value> = found.into_values().collect();
        json(&list(&items))
    }

    /// The pod that a path names.
    #[allow(clippy::result_large_err, reason = "a refusal is an answer like any other")]
    pub(super) fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Pod, Answer> {
        self.manager.find(namespace, name, uid).ok_or_else(|| error(StatusCode::NOT_FOUND, "pod does not exist"))
    }

    /// The id of a container of the pod that runs.
    pub(super) async fn running_container(&self, pod: &Pod, name: &str) -> Result<String, Answer> {
        let runtime = &self.manager.context().runtime;
        let all = runtime.list_containers(Some(pods::uid(pod))).await;
        let all = all.map_err(|problem| error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()))?;
        let mut running: Vec<&v1::Container> = all
            .iter()
            .filter(|c| c.state() == v1::ContainerState::ContainerRunning)
            .filter(|c| c.labels.get(labels::CONTAINER_NAME).is_some_and(|label| label == name))
            .collect();
        running.sort_by_key(|c| c.created_at);
        let newest = running.last().map(|c| c.id.clone());
        newest.ok_or_else(|| error(StatusCode::INTERNAL_SERVER_ERROR, &format!("container not found (\"{name}\")")))
    }
}

fn list(items: &[Value]) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Items of a list carry no kind of their own.
fn bare(mut pod: Value) -> Value {
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("kind");
        pod.remove("apiVersion");
    }
    pod
}
