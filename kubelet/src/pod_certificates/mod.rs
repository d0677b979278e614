//! Certificates of pods in projected volumes (`podCertificate`): asked for under a key that never leaves the node, and
//! renewed in time. Answers for upstream's `pkg/kubelet/podcertificate` (`IssuingManager`).
//!
//! In: pods with such volumes, the requests of this node as a watch tells of them. Out: requests, keys with their chains,
//! events. Nothing is kept across a restart of the kubelet: it asks anew.

mod keys;
mod state;

use crate::events::EventSink;
use crate::objects::CertificateError;
use crate::pods;
use crate::workers::manager::Manager;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::api::core::v1::{Pod, PodCertificateProjection, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use shared::informer::{Event, Factory, Informer, Scope};
use shared::workqueue::Queue;
use state::{ABANDONED, Asked, CertificateState, RequestMissing};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// Feature gate.
pub const GATE: &str = "PodCertificateRequest";
/// Deadline of a call.
const DEADLINE: Duration = Duration::from_secs(15);
/// Shortest time between two looks at all certificates; up to as much again is added.
const PASS: Duration = Duration::from_secs(60);
/// Longest jitter of what pods do at a time.
const JITTER_SECONDS: i64 = 5 * 60;

/// Failures of asking for a certificate.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    /// The API server refused a call.
    #[error("while {call}: {cause}")]
    Call {
        call: &'static str,
        #[source]
        cause: kube::Error,
    },
    /// No answer to a call in time.
    #[error("while {0}: context deadline exceeded")]
    Late(&'static str),
    /// The node has not registered yet.
    #[error("while getting node object from local cache: not found")]
    NoNode,
    /// The pod is damaged.
    #[error("the pod has no spec")]
    NoSpec,
    /// No key can be made.
    #[error("while generating keypair: {0}")]
    Key(keys::KeyError),
    /// Making a key panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// The request is not there.
    #[error(transparent)]
    Missing(#[from] RequestMissing),
}

/// A projected certificate: uid of the pod, name of the volume, position among its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProjectionKey {
    pod_uid: String,
    volume: String,
    source: usize,
}

/// Certificates of the node's pods.
pub struct PodCertificates {
    client: kube::Client,
    node_name: String,
    requests: Informer<PodCertificateRequest>,
    states: Mutex<HashMap<ProjectionKey, CertificateState>>,
    /// Uids of pods to look at.
    queue: Queue<String>,
}

/// The projections of certificates that a pod has.
fn projections(pod: &Pod) -> impl Iterator<Item = (ProjectionKey, &PodCertificateProjection)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.flat_map(move |volume| {
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        sources.enumerate().filter_map(move |(source, projection)| {
            let key = ProjectionKey { pod_uid: pods::uid(pod).to_owned(), volume: volume.name.clone(), source };
            Some((key, projection.pod_certificate.as_ref()?))
        })
    })
}

fn jitter() -> SignedDuration {
    SignedDuration::from_secs(rand::random_range(0..JITTER_SECONDS))
}

async fn timely<T>(name: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|cause| RequestError::Call { call: name, cause }),
        Err(_) => Err(RequestError::Late(name)),
    }
}

impl PodCertificates {
    /// Certificates that are asked for through a client; requests are watched by an informer of the factory.
    pub fn new(client: kube::Client, factory: &Factory, node_name: &str) -> Arc<Self> {
        let own = Scope { fields: Some(format!("spec.nodeName={node_name}")), ..Scope::default() };
        let queue = Queue::new("pod_certificates");
        let requests = factory.informer_in::<PodCertificateRequest>(own);
        let changed = queue.clone();
        requests.add_handler(move |event| {
            let (Event::Added(request) | Event::Updated { new: request, .. } | Event::Deleted(request)) = event;
            changed.add(request.spec.pod_uid.clone());
        });
        Arc::new(Self { client, node_name: node_name.to_owned(), requests, states: Mutex::default(), queue })
    }

    /// Private key and chain of certificates of a projection, in PEM. The first question begins the asking.
    ///
    /// # Errors
    /// There is none yet, or it was refused.
    pub fn bundle(&self, pod: &Pod, volume: &str, source: usize) -> Result<(String, String), CertificateError> {
        let key = ProjectionKey { pod_uid: pods::uid(pod).to_owned(), volume: volume.to_owned(), source };
        let mut states = self.states.lock();
        let state = states.entry(key).or_default();
        if *state == CertificateState::Initial {
            self.queue.add(pods::uid(pod).to_owned());
        }
        state.bundle().map(|(key, chain)| (key.to_owned(), chain.to_owned()))
    }

    /// Asks, watches and renews until shutdown. `node_uid` is none until the node is registered.
    pub async fn run(
        self: Arc<Self>,
        manager: Arc<Manager>,
        node_uid: impl Fn() -> Option<String>,
        shutdown: CancellationToken,
    ) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.passes(&manager) => {}
            () = self.work(&manager, &node_uid) => {}
        }
        self.queue.shut_down();
    }

    /// Looks at all certificates again and again, and forgets those of pods that are gone.
    async fn passes(&self, manager: &Manager) {
        loop {
            tokio::time::sleep(PASS.mul_f64(1.0 + rand::random::<f64>())).await;
            let known = manager.uids();
            let mut states = self.states.lock();
            states.retain(|key, _| known.contains(&key.pod_uid));
            states.keys().for_each(|key| self.queue.add(key.pod_uid.clone()));
        }
    }

    async fn work(&self, manager: &Arc<Manager>, node_uid: &impl Fn() -> Option<String>) {
        self.requests.synced().await;
        while let Some(uid) = self.queue.get().await {
            let pod = manager.pods().into_iter().find(|pod| pods::uid(pod) == uid);
            let handled = match &pod {
                Some(pod) => self.handle(pod, manager.context().events.as_ref(), node_uid).await,
                None => {
                    self.states.lock().retain(|key, _| key.pod_uid != uid);
                    Ok(false)
                }
            };
            match handled {
                Ok(changed) => {
                    self.queue.forget(&uid);
                    if changed {
                        // Its volumes have waited for it.
                        manager.poke(&uid);
                    }
                }
                Err(error) => {
                    tracing::error!(pod_uid = uid, %error, "Could not handle podCertificate projected volume source");
                    self.queue.add_rate_limited(uid.clone());
                }
            }
            self.queue.done(&uid);
        }
    }

    /// Brings all certificates of a pod on; true when one is there that was not.
    async fn handle(
        &self,
        pod: &Arc<Pod>,
        events: &dyn EventSink,
        node_uid: &impl Fn() -> Option<String>,
    ) -> Result<bool, RequestError> {
        let (mut changed, mut outcome) = (false, Ok(()));
        for (key, source) in projections(pod) {
            let before = self.states.lock().get(&key).cloned().unwrap_or_default();
            let mut state = before.clone();
            let stepped = self.step(&mut state, pod, source, (events, node_uid)).await;
            changed |= state.bundle().ok() != before.bundle().ok();
            self.states.lock().insert(key, state);
            outcome = outcome.and(stepped);
        }
        outcome.map(|()| changed)
    }

    async fn step(
        &self,
        state: &mut CertificateState,
        pod: &Pod,
        source: &PodCertificateProjection,
        (events, node_uid): (&dyn EventSink, &impl Fn() -> Option<String>),
    ) -> Result<(), RequestError> {
        let now = Timestamp::now();
        let mut told = Vec::new();
        let namespace = pods::namespace(pod);
        let request = state.request().and_then(|name| self.requests.store().get(namespace, name));
        let observed = state.observe(request.as_deref(), now, jitter(), &mut |event| told.push(event));
        state.warn(now, &mut |event| told.push(event));
        for (kind, reason, message) in told {
            events.pod(pod, "", kind, &reason, &message);
        }
        observed?;
        if state.wants_request(now) {
            let node_uid = node_uid().ok_or(RequestError::NoNode)?;
            state.asked(self.ask(pod, source, node_uid).await?);
        }
        Ok(())
    }

    /// Makes a key, and a request for a certificate of it.
    async fn ask(&self, pod: &Pod, source: &PodCertificateProjection, node_uid: String) -> Result<Asked, RequestError> {
        let (namespace, pod_uid) = (pods::namespace(pod), pods::uid(pod).to_owned());
        let spec = pod.spec.as_ref().ok_or(RequestError::NoSpec)?;
        let account = spec.service_account_name.clone().unwrap_or_default();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let account_uid = timely("fetching service account", accounts.get(&account)).await?.metadata.uid;
        let (kind, text) = (source.key_type.clone(), pod_uid.clone());
        // Those of RSA take seconds.
        let made = tokio::task::spawn_blocking(move || keys::generate(&kind, text.as_bytes())).await;
        let made = made?.map_err(RequestError::Key)?;
        let owner = OwnerReference {
            api_version: "core/v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pods::name(pod).to_owned(),
            uid: pod_uid.clone(),
            ..OwnerReference::default()
        };
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                generate_name: Some("req-".to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: source.signer_name.clone(),
                pod_name: pods::name(pod).to_owned(),
                pod_uid,
                service_account_name: account,
                service_account_uid: account_uid.unwrap_or_default(),
                node_name: self.node_name.clone(),
                node_uid,
                max_expiration_seconds: source.max_expiration_seconds,
                pkix_public_key: ByteString(made.public),
                proof_of_possession: ByteString(made.proof),
                unverified_user_annotations: source.user_annotations.clone(),
            },
            status: None,
        };
        let requests: Api<PodCertificateRequest> = Api::namespaced(self.client.clone(), namespace);
        let created = timely("creating on API", requests.create(&PostParams::default(), &request)).await?;
        let at = created.metadata.creation_timestamp.map_or_else(Timestamp::now, |time| time.0);
        Ok(Asked {
            key: made.private,
            request: created.metadata.name.unwrap_or_default(),
            abandon_at: at.saturating_add(ABANDONED + jitter()).unwrap_or(Timestamp::MAX),
        })
    }

    /// Numbers of certificates by signer and state.
    pub fn counts(&self, pods: &[Arc<Pod>]) -> BTreeMap<(String, &'static str), usize> {
        let (states, now) = (self.states.lock(), Timestamp::now());
        let mut counts = BTreeMap::new();
        for (key, source) in pods.iter().flat_map(|pod| projections(pod)) {
            if let Some(state) = states.get(&key) {
                *counts.entry((source.signer_name.clone(), state.metric(now))).or_default() += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::Recorded;
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};
    use shared::run::{Shutdown, TaskGroup};
    use std::convert::Infallible;

    /// An API server that has every service account and takes requests; those that it got.
    fn server() -> (kube::Client, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::<Mutex<Vec<Value>>>::default();
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, is_request) = (Arc::clone(&seen), *request.method() == Method::POST);
            async move {
                let sent = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let answer = if is_request {
                    let mut made: Value = serde_json::from_slice(&sent).expect("JSON");
                    seen.lock().push(made.clone());
                    made["metadata"]["name"] = json!("req-1");
                    made
                } else {
                    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "uid": "of-account"}})
                };
                let answer = Response::builder()
                    .header("content-type", "application/json")
                    .body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.expect("an answer"))
            }
        });
        (kube::Client::new(service, "default"), asked)
    }

    fn pod() -> Arc<Pod> {
        let certificate = json!({"signerName": "s/s", "keyType": "ECDSAP256", "maxExpirationSeconds": 7200,
            "userAnnotations": {"s/k": "v"}, "credentialBundlePath": "bundle.pem"});
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let volumes = json!([{"name": "v", "projected": {"sources": [token, {"podCertificate": certificate}]}}]);
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"serviceAccountName": "a", "containers": [], "volumes": volumes}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[tokio::test]
    async fn request_names_the_pod_its_account_and_its_node_and_is_made_once() {
        let (client, asked) = server();
        let factory = Factory::new(client.clone(), TaskGroup::new(), Shutdown::new());
        let certificates = PodCertificates::new(client, &factory, "node");
        let (pod, events) = (pod(), Recorded::default());
        let missing = || Err(CertificateError::NotIssued);
        assert_eq!(certificates.bundle(&pod, "v", 1), missing());
        assert_eq!(certificates.queue.get().await.as_deref(), Some("u"), "the question is what begins it");
        let unknown = certificates.handle(&pod, &events, &|| None).await;
        assert!(matches!(unknown, Err(RequestError::NoNode)), "{unknown:?}");
        assert!(!certificates.handle(&pod, &events, &|| Some("of-node".to_owned())).await.expect("asked"));
        let unseen = certificates.handle(&pod, &events, &|| Some("of-node".to_owned())).await;
        assert!(matches!(unseen, Err(RequestError::Missing(RequestMissing::NotSeen(_)))), "{unseen:?}");
        assert_eq!(certificates.bundle(&pod, "v", 1), missing());
        let mut made = std::mem::take(&mut *asked.lock());
        let made = made.pop().filter(|_| made.is_empty()).expect("one request");
        let spec = made["spec"].as_object().expect("a spec");
        let told =
            ["signerName", "podName", "podUID", "serviceAccountName", "serviceAccountUID", "nodeName", "nodeUID"];
        let told = told.map(|field| spec[field].as_str().unwrap_or_default());
        assert_eq!(told, ["s/s", "p", "u", "a", "of-account", "node", "of-node"]);
        assert_eq!(
            (&spec["maxExpirationSeconds"], &spec["unverifiedUserAnnotations"]),
            (&json!(7200), &json!({"s/k": "v"}))
        );
        let owner = &made["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["apiVersion"], &owner["uid"]), (&json!("core/v1"), &json!("u")));
        assert_eq!(certificates.counts(&[pod]), [(("s/s".to_owned(), "not_yet_issued"), 1)].into());
    }
}
