//! Objects that pods refer to, each followed by a watch of its own from the time when a pod needs it until none does, as
//! upstream's `configMapAndSecretChangeDetectionStrategy: Watch` has it. Answers for `pkg/kubelet/util/manager`'s
//! watch-based manager.

use crate::objects::ObjectError;
use parking_lot::Mutex;
use shared::informer::{Cached, Factory, Informer, Scope};
use shared::run::{Shutdown, TaskGroup};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Time that a first answer may take.
const SYNC: Duration = Duration::from_secs(1);
/// Most objects that are followed at the same time, of all kinds together: a pod may name thousands, and each watch takes a
/// stream of one of the client's connections. Further ones are asked for.
const MOST: usize = 1024;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Parts that a watch needs.
#[derive(Clone)]
pub(crate) struct Watching {
    client: kube::Client,
    tasks: TaskGroup,
    shutdown: Shutdown,
    /// Places of watches that there may be yet.
    places: Arc<Semaphore>,
}

impl Watching {
    /// Watches by a client that nothing else goes by, among `tasks` until `shutdown`.
    pub(crate) fn new(client: kube::Client, tasks: &TaskGroup, shutdown: &Shutdown) -> Self {
        Self { client, tasks: tasks.clone(), shutdown: shutdown.clone(), places: Arc::new(Semaphore::new(MOST)) }
    }
}

struct WatchHandle<K> {
    informer: Informer<K>,
    shutdown: Shutdown,
    _place: OwnedSemaphorePermit,
}

impl<K> Drop for WatchHandle<K> {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

/// Followed objects of one kind.
pub(crate) struct FollowedObjects<K> {
    with: Watching,
    watches: Mutex<HashMap<Key, Arc<WatchHandle<K>>>>,
}

impl<K: Cached> FollowedObjects<K> {
    pub(crate) fn new(with: Watching) -> Self {
        Self { with, watches: Mutex::default() }
    }

    /// The object as the watch has it; what is asked for the first time is followed from now on. While the API server is
    /// away this is what it was last. None where so many are followed that it is not.
    ///
    /// # Errors
    /// There is none, or the first answer takes too long.
    pub(crate) async fn get(
        &self,
        kind: &'static str,
        (namespace, name): (&str, &str),
    ) -> Result<Option<Arc<K>>, ObjectError> {
        let Some(watch) = self.watch((namespace.to_owned(), name.to_owned())) else { return Ok(None) };
        if tokio::time::timeout(SYNC, watch.informer.synced()).await.is_err() {
            let text = format!("failed to sync {kind} cache: timed out waiting for the condition");
            return Err(ObjectError::Other(text));
        }
        if let Some(found) = watch.informer.store().get(namespace, name) {
            return Ok(Some(found));
        }
        self.forget((namespace.to_owned(), name.to_owned()), &watch);
        Err(ObjectError::NotFound { kind, name: name.to_owned() })
    }

    /// Has the next request begin a watch of its own: the one that found nothing may be waiting to be let in again, since
    /// the node may only read what its pods refer to.
    fn forget(&self, key: Key, watch: &Arc<WatchHandle<K>>) {
        let mut watches = self.watches.lock();
        if watches.get(&key).is_some_and(|known| Arc::ptr_eq(known, watch)) {
            watches.remove(&key);
        }
    }

    fn watch(&self, key: Key) -> Option<Arc<WatchHandle<K>>> {
        let mut watches = self.watches.lock();
        if let Some(watch) = watches.get(&key) {
            return Some(Arc::clone(watch));
        }
        let Watching { client, tasks, shutdown, places } = self.with.clone();
        let place = places.try_acquire_owned().ok()?;
        let shutdown = shutdown.child();
        let factory = Factory::new(client, tasks, shutdown.clone());
        let (namespace, name) = key.clone();
        let informer = factory.informer_in::<K>(Scope {
            namespace: Some(namespace),
            fields: Some(format!("metadata.name={name}")),
            ..Scope::default()
        });
        informer.set_transform(K::forget_managers);
        factory.start();
        let watch = Arc::new(WatchHandle { informer, shutdown, _place: place });
        watches.insert(key, Arc::clone(&watch));
        Some(watch)
    }

    /// Ends the watches of objects that nobody uses any more.
    pub(crate) fn retain(&self, used: &HashSet<Key>) {
        self.watches.lock().retain(|key, _| used.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;
    use std::convert::Infallible;

    /// An API server that has one config map, `a`, and ends each watch behind the first events.
    fn watched() -> (FollowedObjects<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let line = |verb: &str, object: serde_json::Value| format!("{}\n", json!({"type": verb, "object": object}));
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
                "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"}});
            let end = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}});
            let first = if uri.contains("metadata.name%3Da") { line("ADDED", object) } else { String::new() };
            let is_first = uri.contains("sendInitialEvents=true");
            seen.lock().push(uri);
            async move {
                if !is_first {
                    return std::future::pending::<Result<Response<Body>, Infallible>>().await;
                }
                let body = (first + &line("BOOKMARK", end)).into_bytes();
                Ok(Response::builder()
                    .header("content-type", "application/json")
                    .body(Body::from(body))
                    .expect("answer"))
            }
        });
        let client = kube::Client::new(service, "default");
        (FollowedObjects::new(Watching::new(client, &TaskGroup::new(), &Shutdown::new())), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_asked_for_once_and_followed() {
        let (watched, asked) = watched();
        for _ in 0..3 {
            let found = watched.get("configmap", ("n", "a")).await.expect("there").expect("followed");
            assert_eq!(found.data.as_ref().expect("data")["k"], "v");
        }
        let first = asked.lock().iter().filter(|uri| uri.contains("sendInitialEvents=true")).count();
        assert_eq!(first, 1, "{:?}", asked.lock());
        let missing = watched.get("configmap", ("n", "b")).await.expect_err("not there");
        assert_eq!(missing.to_string(), "configmap \"b\" not found");
        let followed: Vec<Key> = watched.watches.lock().keys().cloned().collect();
        assert_eq!(followed, [("n".to_owned(), "a".to_owned())], "what is missing is asked for anew");
    }

    #[tokio::test(start_paused = true)]
    async fn more_objects_than_there_are_places_are_not_followed() {
        let (watched, asked) = watched();
        let places = Arc::clone(&watched.with.places);
        let others =
            Arc::clone(&places).acquire_many_owned(u32::try_from(MOST - 1).expect("few")).await.expect("places");
        let other = FollowedObjects::<ConfigMap>::new(watched.with.clone());
        watched.get("configmap", ("n", "a")).await.expect("there").expect("followed");
        assert_eq!(other.get("configmap", ("n", "a")).await.expect("asked").map(drop), None, "kinds share the places");
        watched.get("configmap", ("n", "a")).await.expect("there").expect("followed already");
        let streams = asked.lock().len();
        assert!(streams <= 2, "{streams} requests for one object");
        watched.retain(&HashSet::new());
        other.get("configmap", ("n", "a")).await.expect("asked").expect("followed in the place of the other");
        drop(others);
        assert_eq!(places.available_permits(), MOST - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_uses_is_not_followed_any_more() {
        let (watched, _asked) = watched();
        watched.get("configmap", ("n", "a")).await.expect("there");
        let watch = Arc::clone(watched.watches.lock().values().next().expect("a watch"));
        let ended = watch.shutdown.clone();
        drop(watch);
        watched.retain(&HashSet::from([("n".to_owned(), "a".to_owned())]));
        assert!(!ended.is_triggered());
        watched.retain(&HashSet::new());
        assert!(ended.is_triggered());
    }
}
