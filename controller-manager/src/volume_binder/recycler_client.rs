//! Runs a recycler pod: starts it, passes on what is said of it, and removes it when it has come to an end. Answers for
//! upstream's recyclerclient. What it comes to is [`super::recycle`]'s to judge.

use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::core::v1::{Event, ObjectReference, Pod};
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use shared::client::path;
use shared::types::from_tree;

use super::recycle::{self, PodFailure, RecycleError};
use crate::engine::action::{Action, body, join};
use crate::engine::executor::Executor;
use crate::engine::object;
use crate::engine::rest::RestError;

/// The server ends a watch after this many seconds; the next one goes on where it ended.
const WATCH_SECONDS: u32 = 290;
/// Before the next watch, so that a server that ends them at once is not asked without end.
const PAUSE: Duration = Duration::from_secs(1);

/// Client that empties volumes by pods.
pub struct RecyclerClient {
    client: Client,
    executor: Executor,
}

/// One resource's objects of a name, followed over as many watches as it takes.
struct Followed<K> {
    api: Api<K>,
    fields: String,
    version: String,
    stream: BoxStream<'static, kube::Result<WatchEvent<K>>>,
}

impl<K> Followed<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    /// Follow what there is and what comes.
    async fn open(api: Api<K>, fields: String) -> kube::Result<Self> {
        let stream = watch(&api, &fields, "").await?;
        Ok(Self { api, fields, version: String::new(), stream })
    }

    /// The next change. May be dropped while it waits.
    async fn next(&mut self) -> WatchEvent<K> {
        loop {
            match self.stream.next().await {
                Some(Ok(WatchEvent::Bookmark(mark))) => self.version = mark.metadata.resource_version,
                Some(Ok(event)) => {
                    self.version = match &event {
                        WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => {
                            o.resource_version().unwrap_or_default()
                        }
                        // The version may be too old: begin again.
                        _ => String::new(),
                    };
                    return event;
                }
                Some(Err(_)) | None => {
                    tokio::time::sleep(PAUSE).await;
                    match watch(&self.api, &self.fields, &self.version).await {
                        Ok(stream) => self.stream = stream,
                        Err(error) => tracing::debug!(%error, "cannot watch a recycler pod"),
                    }
                }
            }
        }
    }
}

async fn watch<K>(
    api: &Api<K>,
    fields: &str,
    version: &str,
) -> kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let params = WatchParams::default().fields(fields).timeout(WATCH_SECONDS);
    Ok(api.watch(&params, version).await?.fuse().boxed())
}

impl RecyclerClient {
    /// Watches with `client`, writes with `executor`.
    #[must_use]
    pub fn new(client: Client, executor: Executor) -> Self {
        Self { client, executor }
    }

    /// Run the pod to its end. What is said of it is told of `volume`.
    ///
    /// # Errors
    /// Why the volume is not empty, in upstream's words.
    pub async fn run(&self, volume: &ObjectReference, pod: &Pod) -> Result<(), RecycleError> {
        let (namespace, name) = (object::namespace(&pod.metadata), object::name(&pod.metadata));
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut pods = Followed::open(pods, format!("metadata.name={name}")).await?;
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let mut events = Followed::open(events, format!("involvedObject.name={name}")).await?;
        let uid = self.create(pod).await?;
        let end = loop {
            tokio::select! {
                change = pods.next() => {
                    let end = match change {
                        WatchEvent::Error(_) => self.look(&uid, pod).await,
                        change => heard(&uid, change),
                    };
                    if let Some(end) = end {
                        break end;
                    }
                }
                change = events.next() => {
                    if let WatchEvent::Added(event) = change {
                        let message = event.message.as_deref().unwrap_or_default();
                        let action = recycle::relayed(volume, event.type_.as_deref().unwrap_or_default(), message);
                        // Telling does not wait and cannot fail.
                        let _ = self.executor.one(action).await;
                    }
                }
            }
        };
        let gone = self.delete(pod).await;
        end.map_err(RecycleError::Pod)?;
        gone.map_err(RecycleError::Delete)
    }

    /// Start the pod. One of this name that is there already may be anybody's: it has to go first.
    async fn create(&self, pod: &Pod) -> Result<String, RecycleError> {
        let (namespace, name) = (object::namespace(&pod.metadata), object::name(&pod.metadata));
        if namespace.is_empty() {
            return Err(RecycleError::NoNamespace);
        }
        match self.executor.rest.post(&collection(namespace), &body(pod)).await {
            Ok(made) => Ok(made.uid),
            Err(e) if e.already_exists() => {
                let gone = self.delete(pod).await;
                let pod = format!("{namespace}/{name}");
                gone.map_err(|source| RecycleError::DeleteOld { pod, source })?;
                Err(RecycleError::Old)
            }
            Err(e) => Err(RecycleError::Create(e)),
        }
    }

    /// Looks up the result of the pod of this uid, when the watch cannot say.
    async fn look(&self, uid: &str, pod: &Pod) -> Option<Result<(), PodFailure>> {
        match self.executor.rest.get(&path(pod)).await.map(|tree| from_tree::<Pod>(&tree)) {
            Ok(Ok(pod)) if object::uid(&pod.metadata) == uid => recycle::verdict(&pod),
            Ok(Ok(_)) => Some(Err(PodFailure::Deleted)),
            Err(e) if e.not_found() => Some(Err(PodFailure::Deleted)),
            _ => Some(Err(PodFailure::Watch)),
        }
    }

    async fn delete(&self, pod: &Pod) -> Result<(), RestError> {
        self.executor.one(Action::Delete { path: path(pod), options: json!({}) }).await
    }
}

fn path(pod: &Pod) -> String {
    join(&collection(object::namespace(&pod.metadata)), object::name(&pod.metadata))
}

fn collection(namespace: &str) -> String {
    path::collection("v1", Some(namespace), "pods")
}

/// Returns what a change means for the recycler pod of this uid; nothing as long as it runs.
fn heard(uid: &str, change: WatchEvent<Pod>) -> Option<Result<(), PodFailure>> {
    let ours = |pod: &Pod| object::uid(&pod.metadata) == uid;
    match change {
        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => recycle::verdict(&pod).filter(|_| ours(&pod)),
        WatchEvent::Deleted(pod) => ours(&pod).then_some(Err(PodFailure::Deleted)),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
    }
}
