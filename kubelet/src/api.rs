//! What the rooms ask of the API server, answered by it: objects that pods refer to, services, events.

use crate::events::{EventSink, EventType};
use crate::objects::{ObjectError, ObjectSource};
use crate::pods;
use crate::workers::context::ServiceLister;
use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::{
    ConfigMap, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use shared::events::{Kind, Recorder};
use shared::informer::Informer;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an object is used without asking again: long enough for the containers of one pod, short enough that a
/// new pod sees what was written before it.
const FRESH: Duration = Duration::from_secs(3);
/// Nothing on the way to the API server waits longer.
const DEADLINE: Duration = Duration::from_secs(15);

type Kept<K> = Mutex<HashMap<(String, String), (Instant, Arc<K>)>>;

/// Objects by GET, kept for a moment.
pub struct ApiObjects {
    client: kube::Client,
    config_maps: Kept<ConfigMap>,
    secrets: Kept<Secret>,
}

impl ApiObjects {
    /// Through a client.
    pub fn new(client: kube::Client) -> Self {
        Self { client, config_maps: Mutex::default(), secrets: Mutex::default() }
    }
}

async fn timely<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ObjectError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(ObjectError::Other(status.message.clone())),
        Ok(Err(error)) => Err(ObjectError::Other(error.to_string())),
        Err(_) => Err(ObjectError::Other("context deadline exceeded".to_owned())),
    }
}

async fn get<K>(
    kept: &Kept<K>,
    api: Api<K>,
    kind: &'static str,
    namespace: &str,
    name: &str,
) -> Result<Arc<K>, ObjectError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let key = (namespace.to_owned(), name.to_owned());
    if let Some((at, object)) = kept.lock().get(&key)
        && at.elapsed() < FRESH
    {
        return Ok(Arc::clone(object));
    }
    let found = timely(api.get_opt(name)).await?;
    let mut kept = kept.lock();
    kept.retain(|_, (at, _)| at.elapsed() < FRESH);
    let object = Arc::new(found.ok_or_else(|| ObjectError::NotFound { kind, name: name.to_owned() })?);
    kept.insert(key, (Instant::now(), Arc::clone(&object)));
    Ok(object)
}

/// What few pods ask for is not kept.
async fn once<K>(api: Api<K>, kind: &'static str, name: &str) -> Result<Arc<K>, ObjectError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let found = timely(api.get_opt(name)).await?;
    found.map(Arc::new).ok_or_else(|| ObjectError::NotFound { kind, name: name.to_owned() })
}

#[async_trait]
impl ObjectSource for ApiObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        let api = Api::namespaced(self.client.clone(), namespace);
        get(&self.config_maps, api, "configmap", namespace, name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let api = Api::namespaced(self.client.clone(), namespace);
        get(&self.secrets, api, "secret", namespace, name).await
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        once(Api::namespaced(self.client.clone(), namespace), "persistentvolumeclaims", name).await
    }

    async fn persistent_volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        once(Api::all(self.client.clone()), "persistentvolumes", name).await
    }

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        once(Api::all(self.client.clone()), "runtimeclass.node.k8s.io", name).await
    }

    async fn token(&self, pod: &Pod, spec: TokenRequestSpec) -> Result<TokenRequestStatus, ObjectError> {
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).filter(|name| !name.is_empty());
        let account = account.unwrap_or_else(|| "default".to_owned());
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), pods::namespace(pod));
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = timely(api.create_token_request(&account, &PostParams::default(), &request)).await?;
        answer.status.ok_or_else(|| ObjectError::Other("the token request was not answered".to_owned()))
    }
}

/// Services out of an informer.
pub struct InformedServices(pub Informer<Service>);

impl ServiceLister for InformedServices {
    fn services(&self) -> Vec<Arc<Service>> {
        self.0.store().list()
    }
    fn synced(&self) -> bool {
        self.0.has_synced()
    }
}

/// What of a service the environment needs.
pub fn slim_service(service: &mut Service) {
    service.metadata.managed_fields = None;
    service.metadata.annotations = None;
    service.metadata.labels = None;
    service.status = None;
}

/// Events through the shared recorder.
pub struct ApiEvents {
    recorder: Recorder,
    node: ObjectReference,
}

impl ApiEvents {
    /// Events of this node's kubelet.
    pub fn new(recorder: Recorder, node_name: &str) -> Self {
        let node = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node_name.to_owned()),
            // The uid of a node's events is its name: they are written before the node is known.
            uid: Some(node_name.to_owned()),
            ..ObjectReference::default()
        };
        Self { recorder, node }
    }
}

fn kind(kind: EventType) -> Kind {
    match kind {
        EventType::Normal => Kind::Normal,
        EventType::Warning => Kind::Warning,
    }
}

impl EventSink for ApiEvents {
    fn pod(&self, pod: &Pod, field_path: &str, severity: EventType, reason: &str, message: &str) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pods::namespace(pod).to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path: (!field_path.is_empty()).then(|| field_path.to_owned()),
        };
        tracing::info!(object = %format!("{}/{}", pods::namespace(pod), pods::name(pod)), field_path, ?severity, reason, message, "Event occurred");
        self.recorder.event(&about, kind(severity), reason, message);
    }

    fn node(&self, severity: EventType, reason: &str, message: &str) {
        tracing::info!(?severity, reason, message, "Event occurred");
        self.recorder.event(&self.node, kind(severity), reason, message);
    }
}
