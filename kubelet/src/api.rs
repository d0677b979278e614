//! Objects that the rooms ask of the API server: what pods refer to, services, events.
//! Answers for upstream's `pkg/kubelet/util/manager` and the clients of `pkg/kubelet/configmap` and
//! `pkg/kubelet/secret`.

use crate::env;
use crate::events::{EventSink, EventType};
use crate::objects::{CertificateError, NO_TRUST_BUNDLES, ObjectError, ObjectSource};
use crate::pod_certificates::PodCertificates;
use crate::pods;
use crate::watched::{FollowedObjects, Key, Watching};
use crate::workers::context::ServiceLister;
use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::Value;
use shared::events::{EventKind, Recorder};
use shared::flags::FeatureGates;
use shared::informer::{Cached, Informer};
use shared::run::{Shutdown, TaskGroup};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which an object is used without asking again: long enough for the containers of one pod, short enough that
/// a new pod sees what was written before it.
const FRESH: Duration = Duration::from_secs(3);
/// Nothing on the way to the API server waits longer.
const DEADLINE: Duration = Duration::from_secs(15);

/// Most objects of a kind that are kept.
const MOST_KEPT: usize = 4096;

/// Reasons why an object was not answered.
enum Failure {
    /// The API server says no.
    Refused(ObjectError),
    /// The API server cannot be asked, or not now.
    Away(ObjectError),
}

impl From<Failure> for ObjectError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) | Failure::Away(error) => error,
        }
    }
}

/// Objects of one kind as they were read last, by namespace and name. While the API server is away they serve containers
/// that are started again, as upstream's watch-backed cache does.
struct LastRead<K>(Mutex<HashMap<Key, (Instant, Arc<K>)>>);

impl<K> Default for LastRead<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K> LastRead<K> {
    async fn get(
        &self,
        kind: &'static str,
        (namespace, name): (&str, &str),
        ask: impl Future<Output = Result<Option<K>, Failure>>,
    ) -> Result<Arc<K>, ObjectError> {
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.0.lock().get(&key).cloned();
        if let Some((at, object)) = &known
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(object));
        }
        let object = match ask.await {
            Ok(Some(object)) => Arc::new(object),
            Ok(None) => {
                self.0.lock().remove(&key);
                return Err(ObjectError::NotFound { kind, name: name.to_owned() });
            }
            Err(Failure::Refused(error)) => return Err(error),
            Err(Failure::Away(error)) => known.map(|(_, object)| object).ok_or(error)?,
        };
        let mut kept = self.0.lock();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if kept.len() < MOST_KEPT {
            kept.insert(key, (Instant::now(), Arc::clone(&object)));
        }
        Ok(object)
    }

    fn retain(&self, used: &HashSet<Key>) {
        self.0.lock().retain(|key, _| used.contains(key));
    }
}

/// The config maps, secrets and runtime classes that pods refer to.
#[derive(Default)]
struct References {
    config_maps: HashSet<Key>,
    secrets: HashSet<Key>,
    runtime_classes: HashSet<Key>,
}

impl References {
    fn add(&mut self, pod: &Pod) {
        let Some(spec) = &pod.spec else { return };
        let key = |name: &str| (pods::namespace(pod).to_owned(), name.to_owned());
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let found = env::references(container);
            self.config_maps.extend(found.config_maps.iter().map(|name| key(name)));
            self.secrets.extend(found.secrets.iter().map(|name| key(name)));
        }
        self.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|secret| key(&secret.name)));
        for volume in spec.volumes.iter().flatten() {
            let sources = volume.projected.iter().flat_map(|projected| &projected.sources).flatten();
            for source in sources {
                self.config_maps.extend(source.config_map.iter().map(|map| key(&map.name)));
                self.secrets.extend(source.secret.iter().map(|secret| key(&secret.name)));
            }
            self.config_maps.extend(volume.config_map.iter().map(|map| key(&map.name)));
            let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.as_deref());
            self.secrets.extend(secret.map(key));
        }
        self.runtime_classes.extend(spec.runtime_class_name.iter().map(|name| (String::new(), name.clone())));
    }
}

/// A strategy that there is not; upstream's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown configmap and secret manager mode: {0}")]
pub struct UnknownStrategy(String);

/// Strategies of noticing changes of config maps and secrets: `configMapAndSecretChangeDetectionStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeDetection {
    /// By a watch of each.
    #[default]
    Watch,
    /// By asking again when what is known has become old.
    Cache,
    /// By asking each time.
    Get,
}

impl ChangeDetection {
    /// From the configuration.
    ///
    /// # Errors
    /// There is no such strategy.
    pub fn parse(text: &str) -> Result<Self, UnknownStrategy> {
        match text {
            "" | "Watch" => Ok(Self::Watch),
            "Cache" => Ok(Self::Cache),
            "Get" => Ok(Self::Get),
            other => Err(UnknownStrategy(other.to_owned())),
        }
    }
}

/// Config maps or secrets, by the strategy.
enum Referred<K> {
    /// Followed, as far as there are places, and else kept.
    Watched(FollowedObjects<K>, LastRead<K>),
    Kept(LastRead<K>),
    Asked,
}

impl<K: Cached> Referred<K> {
    fn new(strategy: ChangeDetection, with: &Watching) -> Self {
        match strategy {
            ChangeDetection::Watch => Self::Watched(FollowedObjects::new(with.clone()), LastRead::default()),
            ChangeDetection::Cache => Self::Kept(LastRead::default()),
            ChangeDetection::Get => Self::Asked,
        }
    }

    async fn get(
        &self,
        kind: &'static str,
        key: (&str, &str),
        ask: impl Future<Output = Result<Option<K>, Failure>>,
    ) -> Result<Arc<K>, ObjectError> {
        match self {
            Self::Watched(watched, kept) => match watched.get(kind, key).await? {
                Some(found) => Ok(found),
                None => kept.get(kind, key, ask).await,
            },
            Self::Kept(kept) => kept.get(kind, key, ask).await,
            Self::Asked => {
                ask.await?.map(Arc::new).ok_or_else(|| ObjectError::NotFound { kind, name: key.1.to_owned() })
            }
        }
    }

    fn retain(&self, used: &HashSet<Key>) {
        match self {
            Self::Watched(watched, kept) => {
                watched.retain(used);
                kept.retain(used);
            }
            Self::Kept(kept) => kept.retain(used),
            Self::Asked => {}
        }
    }
}

/// Objects that pods refer to, followed or kept as long as pods do.
pub struct ApiObjects {
    client: kube::Client,
    /// The client of config maps and secrets, of which pods may name any number.
    referred: kube::Client,
    config_maps: Referred<ConfigMap>,
    secrets: Referred<Secret>,
    runtime_classes: LastRead<RuntimeClass>,
    csi_drivers: LastRead<CSIDriver>,
    /// All of them under one key; none where the feature gate is off.
    trust_bundles: Option<LastRead<Vec<ClusterTrustBundle>>>,
    /// None where the feature gate is off.
    certificates: Option<Arc<PodCertificates>>,
}

impl ApiObjects {
    /// Through a client, with another one for watches, which run among `tasks` until `shutdown`: what pods name takes no
    /// connection from what keeps the node alive. `ClusterTrustBundleProjection` lets pods have trust bundles, and
    /// `certificates` certificates.
    pub fn new(
        (client, watches): (kube::Client, kube::Client),
        (strategy, gates): (ChangeDetection, &FeatureGates),
        certificates: Option<Arc<PodCertificates>>,
        tasks: &TaskGroup,
        shutdown: &Shutdown,
    ) -> Self {
        let with = Watching::new(watches.clone(), tasks, shutdown);
        Self {
            client,
            certificates,
            referred: watches,
            trust_bundles: gates.enabled("ClusterTrustBundleProjection").then(LastRead::default),
            config_maps: Referred::new(strategy, &with),
            secrets: Referred::new(strategy, &with),
            runtime_classes: LastRead::default(),
            csi_drivers: LastRead::default(),
        }
    }
}

async fn timely<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => {
            let error = ObjectError::Other(status.message.clone());
            let away = status.code >= 500 || status.code == 429;
            Err(if away { Failure::Away(error) } else { Failure::Refused(error) })
        }
        Ok(Err(error)) => Err(Failure::Away(ObjectError::Other(error.to_string()))),
        Err(_) => Err(Failure::Away(ObjectError::Other("context deadline exceeded".to_owned()))),
    }
}

/// Reads an object once: those that few pods ask for are not kept.
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
        let api: Api<ConfigMap> = Api::namespaced(self.referred.clone(), namespace);
        self.config_maps.get("configmap", (namespace, name), timely(api.get_opt(name))).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let api: Api<Secret> = Api::namespaced(self.referred.clone(), namespace);
        self.secrets.get("secret", (namespace, name), timely(api.get_opt(name))).await
    }

    async fn claim(&self, namespace: &str, name: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        once(Api::namespaced(self.client.clone(), namespace), "persistentvolumeclaims", name).await
    }

    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        Ok(timely(api.patch_status(name, &params, &patch)).await.map(Arc::new)?)
    }

    async fn persistent_volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        once(Api::all(self.client.clone()), "persistentvolumes", name).await
    }

    async fn csi_driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
        let api: Api<CSIDriver> = Api::all(self.client.clone());
        match self.csi_drivers.get("csidriver.storage.k8s.io", ("", name), timely(api.get_opt(name))).await {
            Ok(driver) => Ok(Some(driver)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn resource_claim(&self, namespace: &str, name: &str) -> Result<Arc<ResourceClaim>, ObjectError> {
        once(Api::namespaced(self.client.clone(), namespace), "resourceclaims.resource.k8s.io", name).await
    }

    async fn trust_bundles(&self) -> Result<Arc<Vec<ClusterTrustBundle>>, ObjectError> {
        let missing = || ObjectError::Other(NO_TRUST_BUNDLES.to_owned());
        let kept = self.trust_bundles.as_ref().ok_or_else(missing)?;
        let ask = async {
            let api: Api<ClusterTrustBundle> = Api::all(self.client.clone());
            let listed = api.list(&ListParams::default()).await;
            match listed {
                Ok(list) => Ok(Some(list.items)),
                // The API is not served.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                Err(error) => Err(error),
            }
        };
        match kept.get("clustertrustbundle", ("", ""), timely(ask)).await {
            Err(ObjectError::NotFound { .. }) => Err(missing()),
            other => other,
        }
    }

    fn pod_certificate(&self, pod: &Pod, volume: &str, source: usize) -> Result<(String, String), CertificateError> {
        let certificates = self.certificates.as_ref().ok_or(CertificateError::Unsupported)?;
        certificates.bundle(pod, volume, source)
    }

    fn pod_certificates(&self, pods: &[Arc<Pod>]) -> BTreeMap<(String, &'static str), usize> {
        self.certificates.as_ref().map(|certificates| certificates.counts(pods)).unwrap_or_default()
    }

    async fn volume_attachment(&self, name: &str) -> Result<Arc<VolumeAttachment>, ObjectError> {
        once(Api::all(self.client.clone()), "volumeattachments.storage.k8s.io", name).await
    }

    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        let api: Api<RuntimeClass> = Api::all(self.client.clone());
        self.runtime_classes.get("runtimeclass.node.k8s.io", ("", name), timely(api.get_opt(name))).await
    }

    async fn service_account(&self, namespace: &str, name: &str) -> Result<Arc<ServiceAccount>, ObjectError> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let missing = || ObjectError::NotFound { kind: "serviceaccounts", name: name.to_owned() };
        timely(api.get_opt(name)).await?.map(Arc::new).ok_or_else(missing)
    }

    fn retain(&self, pods: &[Arc<Pod>]) {
        let mut used = References::default();
        pods.iter().for_each(|pod| used.add(pod));
        self.config_maps.retain(&used.config_maps);
        self.secrets.retain(&used.secrets);
        self.runtime_classes.retain(&used.runtime_classes);
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

/// Drops the fields of a service that the environment does not need.
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

fn kind(kind: EventType) -> EventKind {
    match kind {
        EventType::Normal => EventKind::Normal,
        EventType::Warning => EventKind::Warning,
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

    fn claim(&self, claim: &PersistentVolumeClaim, severity: EventType, reason: &str, message: &str) {
        let metadata = &claim.metadata;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            field_path: None,
        };
        let name = metadata.name.as_deref().unwrap_or_default();
        tracing::info!(namespace = metadata.namespace, claim = name, ?severity, reason, message, "Event occurred");
        self.recorder.event(&about, kind(severity), reason, message);
    }

    fn node(&self, severity: EventType, reason: &str, message: &str) {
        tracing::info!(?severity, reason, message, "Event occurred");
        self.recorder.event(&self.node, kind(severity), reason, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Makes everything that is kept old enough to be asked for again.
    fn age<K>(kept: &LastRead<K>) {
        let old = Instant::now().checked_sub(FRESH * 2).expect("a machine that is up for seconds");
        kept.0.lock().values_mut().for_each(|(at, _)| *at = old);
    }

    #[tokio::test]
    async fn the_last_state_of_an_object_serves_while_the_api_server_is_away() {
        let kept = LastRead::<u32>::default();
        let get = async |answer: Result<Option<u32>, Failure>| {
            age(&kept);
            kept.get("secret", ("ns", "s"), async { answer }).await.map(|value| *value).map_err(|e| e.to_string())
        };
        let away = || Err(Failure::Away(ObjectError::Other("connection refused".to_owned())));
        let refused = || Err(Failure::Refused(ObjectError::Other("forbidden".to_owned())));
        assert_eq!(get(away()).await, Err("connection refused".to_owned()));
        assert_eq!(get(Ok(Some(1))).await, Ok(1));
        assert_eq!(get(away()).await, Ok(1));
        assert_eq!(get(refused()).await, Err("forbidden".to_owned()));
        assert_eq!(get(Ok(Some(2))).await, Ok(2));
        // Gone is gone: what comes after it does not bring it back.
        assert_eq!(get(Ok(None)).await, Err("secret \"s\" not found".to_owned()));
        assert_eq!(get(away()).await, Err("connection refused".to_owned()));
        // Once no pod refers to it, neither.
        assert_eq!(get(Ok(Some(3))).await, Ok(3));
        kept.retain(&HashSet::new());
        assert_eq!(get(away()).await, Err("connection refused".to_owned()));
    }

    #[test]
    fn all_that_a_pod_refers_to_is_kept() {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {
            "runtimeClassName": "class",
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "from"}}]}],
            "containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "map"}},
                {"name": "b", "secret": {"secretName": "file"}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "part"}}, {"secret": {"name": "half"}}]}},
            ],
        }});
        let mut found = References::default();
        found.add(&serde_json::from_value(pod).expect("pod"));
        let names = |keys: &HashSet<Key>| {
            let mut names: Vec<String> = keys.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
            names.sort();
            names
        };
        assert_eq!(names(&found.config_maps), ["ns/from", "ns/map", "ns/part"]);
        assert_eq!(names(&found.secrets), ["ns/file", "ns/half", "ns/key", "ns/pull"]);
        assert_eq!(names(&found.runtime_classes), ["/class"]);
    }
}
