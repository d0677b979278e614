//! The API server, behind the [`Api`] port.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::Body;
use kube::core::Request;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use shared::client::typed;
use shared::events::{EventKind, Recorder};
use shared::informer::{Cached, Store};

use super::binding::{self, BoundNode, Progress};
use super::stores::SeenNode;
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::model::PodInfo;

/// Interval at which a claim is looked at while its binding is awaited; looks go to the informer's store.
const CLAIM_POLL: Duration = Duration::from_millis(250);

/// A request, if it could be put together.
type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Claims whose written versions are remembered.
const WRITTEN: usize = 4096;

/// Calls over one client.
pub(super) struct KubeApi {
    pub(super) client: kube::Client,
    pub(super) claims: Store<PersistentVolumeClaim>,
    pub(super) volumes: Store<PersistentVolume>,
    pub(super) nodes: Store<SeenNode>,
    pub(super) csi_nodes: Store<CSINode>,
    pub(super) pods: Store<PodInfo>,
    /// Versions of the claims (and volumes, which have no namespace) that were written for bindings under way, by namespace
    /// and name: only what is as new as that tells what became of them.
    pub(super) written: Mutex<HashMap<(String, String), u64>>,
    /// By profile.
    pub(super) recorders: HashMap<Arc<str>, Recorder>,
}

impl KubeApi {
    /// Sends a request of which only the failure is of interest.
    async fn done(&self, request: Built) -> Result<(), ApiError> {
        let response = self.client.send(request.map_err(unbuilt)?.map(Body::from)).await.map_err(failed)?;
        let code = response.status();
        if code.is_success() {
            // Read to its end, or the stream would be broken off; what it says is not looked at.
            let mut body = response.into_body();
            while body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            return Ok(());
        }
        let body = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let message = match serde_json::from_slice::<kube::core::Status>(&body) {
            Ok(status) => status.message,
            Err(_) => code.to_string(),
        };
        Err(ApiError { code: code.as_u16(), message })
    }

    fn remember(&self, namespace: &str, name: &str, written: &ObjectMeta) {
        let mut versions = self.written.lock();
        if versions.len() >= WRITTEN {
            versions.clear();
        }
        versions.insert((namespace.to_owned(), name.to_owned()), binding::version(written));
    }

    fn progress(&self, pod: &PodInfo, awaited: &AwaitedClaim, place: BoundNode<'_>) -> Progress {
        let written =
            |namespace: &str, name: &str| self.written.lock().get(&(namespace.to_owned(), name.to_owned())).copied();
        let Some(claim) = self.claims.get(&pod.namespace, &awaited.name) else {
            return Progress::Failed(format!("failed to get PVC {}/{}", pod.namespace, awaited.name));
        };
        match &awaited.volume {
            Some(name) => {
                binding::of_existing(&claim, name, self.volumes.get("", name).as_deref(), place, written("", name))
            }
            None => {
                let volume = binding::volume_of(&claim).and_then(|name| self.volumes.get("", name));
                let written =
                    written(&pod.namespace, &awaited.name).max(Some(awaited.since).filter(|since| *since > 0));
                binding::of_provisioned(&claim, volume.as_deref(), place, written)
            }
        }
    }

    /// Sends a request about a claim; the claim as it is then.
    async fn changed(&self, request: Built) -> Result<ResourceClaim, ApiError> {
        typed::request(&self.client, request.map_err(unbuilt)?).await.map_err(failed)
    }
}

/// Request path of the pods of this pod's namespace.
fn pods(pod: &PodInfo) -> Request {
    Request::new(<Pod as Cached>::collection_path(Some(&pod.namespace)))
}

/// Request path of a claim, and its name.
fn resource_claims(claim: &ResourceClaim) -> (Request, &str) {
    let meta = &claim.metadata;
    let path = ResourceClaim::collection_path(Some(meta.namespace.as_deref().unwrap_or_default()));
    (Request::new(path), meta.name.as_deref().unwrap_or_default())
}

fn bytes(object: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(object).map_err(|e| ApiError { code: 0, message: e.to_string() })
}

/// HOT: written once per pod, so without a tree.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Binding<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Target<'a>,
    target: Chosen<'a>,
}

#[derive(Serialize)]
struct Target<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
struct Chosen<'a> {
    kind: &'a str,
    name: &'a str,
}

fn unbuilt(error: kube::core::request::Error) -> ApiError {
    ApiError { code: 400, message: error.to_string() }
}

fn failed(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(status) => ApiError { code: status.code, message: status.message.clone() },
        other => ApiError { code: 0, message: other.to_string() },
    }
}

#[async_trait]
impl Api for KubeApi {
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
        let binding = Binding {
            api_version: "v1",
            kind: "Binding",
            metadata: Target { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid },
            target: Chosen { kind: "Node", name: node },
        };
        let body = bytes(&binding)?;
        self.done(pods(pod).create_subresource("binding", &pod.name, &PostParams::default(), body)).await
    }

    async fn node_of(&self, pod: &PodInfo) -> Result<Option<String>, ApiError> {
        let found: Pod = typed::get(&self.client, &pod.namespace, &pod.name).await.map_err(failed)?;
        if found.metadata.uid.as_deref() != Some(&*pod.uid) {
            return Err(ApiError { code: 404, message: format!("pods \"{}\" not found", pod.name) });
        }
        Ok(found.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty()))
    }

    fn event(&self, pod: &PodInfo, reason: &str, note: String) {
        if let Some(recorder) = self.recorders.get(&pod.scheduler_name) {
            recorder.event_v1(&pod.reference(), None, EventKind::Normal, reason, "Scheduling", note);
        }
    }

    async fn patch_status(&self, pod: &PodInfo, mut patch: Value) -> Result<(), ApiError> {
        // A pod of the same name made in between must not be touched.
        patch["metadata"] = json!({"uid": &*pod.uid});
        let patch = Patch::Strategic(patch);
        self.done(pods(pod).patch_subresource("status", &pod.name, &PatchParams::default(), &patch)).await
    }

    async fn delete(&self, pod: &PodInfo) -> Result<(), ApiError> {
        let preconditions = Preconditions { uid: Some(pod.uid.to_string()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.done(pods(pod).delete(&pod.name, &params)).await
    }

    async fn update_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let claims = Request::new(PersistentVolumeClaim::collection_path(Some(namespace)));
        let (name, body) = (meta.name.as_deref().unwrap_or_default(), bytes(claim)?);
        let request = claims.replace(name, &PostParams::default(), body).map_err(unbuilt)?;
        let written: PersistentVolumeClaim = typed::request(&self.client, request).await.map_err(failed)?;
        self.remember(namespace, name, &written.metadata);
        Ok(())
    }

    async fn update_volume(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let volumes = Request::new(PersistentVolume::collection_path(None));
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let request = volumes.replace(name, &PostParams::default(), bytes(volume)?).map_err(unbuilt)?;
        let written: PersistentVolume = typed::request(&self.client, request).await.map_err(failed)?;
        self.remember("", name, &written.metadata);
        Ok(())
    }

    async fn claims_bound(
        &self,
        pod: &PodInfo,
        claims: &[AwaitedClaim],
        node: &str,
        timeout: Duration,
    ) -> Result<(), ApiError> {
        let until = Instant::now() + timeout;
        let fail = |message: String| Err(ApiError { code: 0, message });
        loop {
            if self.pods.get(&pod.namespace, &pod.name).is_none() {
                return fail(format!("pod does not exist any more: pod {pod} not found"));
            }
            let Some(node) = self.nodes.get("", node) else {
                return fail(format!("failed to get node {node:?}: node {node:?} not found"));
            };
            let csi = self.csi_nodes.get("", &node.base.name);
            let place = BoundNode { node: &node.base, csi: csi.as_ref() };
            let mut waiting = None;
            for awaited in claims {
                match self.progress(pod, awaited, place) {
                    Progress::Bound => {}
                    Progress::Waiting => waiting = Some(&awaited.name),
                    Progress::Failed(why) => return fail(why),
                }
            }
            let Some(waiting) = waiting else { return Ok(()) };
            if Instant::now() >= until {
                return fail(format!("timed out waiting for the condition on PVC {}/{waiting}", pod.namespace));
            }
            tokio::time::sleep(CLAIM_POLL).await;
        }
    }

    async fn resource_claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, ApiError> {
        typed::get(&self.client, namespace, name).await.map_err(failed)
    }

    async fn update_resource_claim(&self, claim: &ResourceClaim, status: bool) -> Result<ResourceClaim, ApiError> {
        let (claims, name) = resource_claims(claim);
        let (params, body) = (PostParams::default(), bytes(claim)?);
        let request = match status {
            true => claims.replace_subresource("status", name, &params, body),
            false => claims.replace(name, &params, body),
        };
        self.changed(request).await
    }

    async fn create_resource_claim(&self, claim: &ResourceClaim) -> Result<ResourceClaim, ApiError> {
        let (claims, _) = resource_claims(claim);
        self.changed(claims.create(&PostParams::default(), bytes(claim)?)).await
    }

    async fn delete_resource_claim(&self, claim: &ResourceClaim) -> Result<(), ApiError> {
        let (claims, name) = resource_claims(claim);
        let preconditions = Preconditions { uid: claim.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.done(claims.delete(name, &params)).await
    }

    async fn unreserve_resource_claim(&self, claim: &ResourceClaim, pod: &PodInfo) -> Result<ResourceClaim, ApiError> {
        let (claims, name) = resource_claims(claim);
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": claim.metadata.uid},
            "status": {"reservedFor": [{"$patch": "delete", "uid": &*pod.uid}]},
        }));
        self.changed(claims.patch_subresource("status", name, &PatchParams::default(), &patch)).await
    }
}
