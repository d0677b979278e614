//! Mirror pods: the API server's images of static pods. Made, replaced and removed here; their status comes from the
//! status room.
//! Answers for upstream's `pkg/kubelet/pod/mirror_client.go` and `tryReconcileMirrorPods`.

use super::annotations;
use crate::calls::{ApiError, timely};
use crate::pods;
use crate::workers::manager::Manager;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval at which everything is looked at again.
const PERIOD: Duration = Duration::from_secs(20);
/// Wait after something failed.
const RETRY: Duration = Duration::from_secs(3);
/// Nothing waits longer for the API server.
const DEADLINE: Duration = Duration::from_secs(15);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// Make the mirror pod of this static pod.
    Create(Arc<Pod>),
    /// Remove this mirror pod.
    Delete(Arc<Pod>),
}

/// Plans the steps so that every static pod has its mirror and nothing else has one.
pub fn plan(statics: &[Arc<Pod>], mirrors: &[Arc<Pod>]) -> Vec<MirrorAction> {
    let names: HashSet<String> = statics.iter().map(|pod| pods::full_name(pod)).collect();
    let orphans = mirrors.iter().filter(|mirror| !names.contains(&pods::full_name(mirror)));
    let mut steps: Vec<MirrorAction> = orphans.map(|mirror| MirrorAction::Delete(Arc::clone(mirror))).collect();
    for pod in statics {
        let full_name = pods::full_name(pod);
        let hash = pods::annotation(pod, annotations::HASH);
        match mirrors.iter().find(|mirror| pods::full_name(mirror) == full_name) {
            None => steps.push(MirrorAction::Create(Arc::clone(pod))),
            Some(mirror) => {
                let same = pods::annotation(mirror, annotations::MIRROR) == hash;
                if !same || mirror.metadata.deletion_timestamp.is_some() {
                    steps.push(MirrorAction::Delete(Arc::clone(mirror)));
                }
            }
        }
    }
    steps
}

/// The mirror of a static pod, owned by the node.
pub fn mirror(pod: &Pod, node_uid: &str) -> Pod {
    let mut mirror = pod.clone();
    let metadata = &mut mirror.metadata;
    let hash = metadata.annotations.as_ref().and_then(|a| a.get(annotations::HASH)).cloned().unwrap_or_default();
    metadata.annotations.get_or_insert_default().insert(annotations::MIRROR.to_owned(), hash);
    metadata.uid = None;
    metadata.generation = None;
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror.status = None;
    mirror
}

async fn execute(client: &kube::Client, step: MirrorAction, node_uid: &str) -> Result<(), ApiError> {
    let result = match step {
        MirrorAction::Create(pod) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), pods::namespace(&pod));
            let mirror = mirror(&pod, node_uid);
            timely(DEADLINE, api.create(&PostParams::default(), &mirror)).await.map(drop)
        }
        MirrorAction::Delete(pod) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), pods::namespace(&pod));
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
                ..DeleteParams::default()
            };
            timely(DEADLINE, api.delete(pods::name(&pod), &params)).await.map(drop)
        }
    };
    match result {
        Err(ApiError::Refused(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => Ok(()),
        other => other,
    }
}

/// Runs until shutdown. `node_uid` answers once the node is registered, `ready` once every source was heard.
pub async fn run(
    manager: Arc<Manager>,
    client: kube::Client,
    node_uid: impl Fn() -> Option<String>,
    ready: impl Fn() -> bool,
    shutdown: CancellationToken,
) {
    let mut wait = PERIOD;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = manager.mirror_changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
        wait = PERIOD;
        let (statics, mirrors) = manager.mirrors();
        if statics.is_empty() && mirrors.is_empty() {
            continue;
        }
        let (Some(uid), true) = (node_uid(), ready()) else {
            wait = Duration::from_millis(500);
            continue;
        };
        for step in plan(&statics, &mirrors) {
            if let Err(error) = execute(&client, step.clone(), &uid).await {
                let pod = match &step {
                    MirrorAction::Create(pod) | MirrorAction::Delete(pod) => pods::describe(pod),
                };
                tracing::error!(pod, %error, "Failed to bring a mirror pod to the API server");
                wait = RETRY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, marks: serde_json::Value) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name, "namespace": "kube-system", "uid": "u", "annotations": marks}, "spec": {"nodeName": "n", "containers": []}});
        Arc::new(serde_json::from_value(pod).expect("pod"))
    }

    #[test]
    fn every_static_pod_has_the_mirror_of_its_version() {
        let one = pod("one", json!({annotations::HASH: "1", annotations::SOURCE: "file"}));
        let copy = Arc::new(mirror(&one, "node-uid"));
        let old = pod("one", json!({annotations::MIRROR: "0"}));
        let orphan = pod("gone", json!({annotations::MIRROR: "9"}));
        let statics = [one.clone()];
        assert_eq!(plan(&statics, &[]), [MirrorAction::Create(one)]);
        assert_eq!(plan(&statics, std::slice::from_ref(&copy)), []);
        assert_eq!(plan(&statics, std::slice::from_ref(&old)), [MirrorAction::Delete(old.clone())]);
        assert_eq!(plan(&[], std::slice::from_ref(&orphan)), [MirrorAction::Delete(orphan.clone())]);
        let owner = &copy.metadata.owner_references.as_ref().expect("owner")[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "node-uid"));
        assert_eq!(copy.metadata.uid, None);
    }
}
