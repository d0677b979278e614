//! Empties namespaces that are being deleted, pods first, and lets them go when nothing is left. Answers for upstream's
//! `pkg/controller/namespace/deletion` (`namespacedResourcesDeleter`).
//!
//! In: namespaces, and what the server has in each. Out: collections deleted, conditions, the finalizer taken off.
//! [`plan`] says what a round has come to; [`waiting`] remembers what is left, so that its going wakes the namespace.

pub mod plan;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use shared::client::path;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::plan::Round;
use self::waiting::Waiting;
use crate::engine::action::{Action, body, join};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::{Served, discover};
use crate::engine::metadata::MetadataChange;
use crate::engine::object::{self, Key};
use crate::engine::paged::Pages;
use crate::engine::registry::Started;
use crate::engine::rest::{BRIEF_LIST, Rest, RestError};
use crate::engine::worker::{self, Synced};

/// Deletion starts a little later, so that the other API servers know of it too.
const GRACE: Duration = Duration::from_millis(500);
/// Resources deleted before all others: what runs must stop before what it depends on goes.
const FIRST: [(&str, &str); 1] = [("", "pods")];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RemainingObject {
    metadata: Remains,
}

/// Fields of an object that is being deleted.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Remains {
    name: String,
    finalizers: Vec<String>,
    deletion_grace_period_seconds: Option<u64>,
}

struct Namespaces {
    rest: Rest,
    store: Store<Namespace>,
    waiting: Mutex<Waiting>,
}

/// Wire the namespace controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let informer = cx.informer::<Namespace>();
        let queue: Queue<Key> = Queue::with_backoff("namespace", Duration::from_secs(1), Duration::from_mins(1));
        let this = Arc::new(Namespaces {
            rest: cx.rest("namespace-controller"),
            store: informer.store(),
            waiting: Mutex::default(),
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        informer.add_handler(move |event: &Event<Namespace>| {
            if let Event::Deleted(gone) = event {
                watcher.waiting.lock().wait(object::name(&gone.metadata), []);
            }
            if plan::is_news(event) {
                wake.add_after(Key::of(&event.object().metadata), GRACE);
            }
        });
        let (wake, watcher) = (queue.clone(), Arc::clone(&this));
        cx.hub().listen(move |served: &Served, change: &MetadataChange<'_>| {
            if let MetadataChange::Deleted(meta) = change
                && watcher.waiting.lock().gone(served, &meta.namespace, &meta.name)
            {
                wake.add(Key { namespace: String::new(), name: meta.namespace.to_string() });
            }
        });
        let (wake, all) = (queue.clone(), informer.store());
        cx.every("namespace", cx.settings().namespace_period, move || {
            for ns in all.list().iter().filter(|ns| object::deleting(&ns.metadata)) {
                wake.add_after(Key::of(&ns.metadata), GRACE);
            }
            std::future::ready(())
        });
        worker::run(cx, "namespace", cx.settings().workers.namespace, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl Namespaces {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(cached) = self.store.get("", &key.name) else { return Ok(None) };
        if !object::deleting(&cached.metadata) {
            return Ok(None);
        }
        // The status is written back whole, so start from what the server has.
        let path = path::join(&path::collection("v1", None, "namespaces"), &key.name);
        let live = match self.rest.get(&path).await {
            Err(e) if e.not_found() => return Ok(None),
            other => other?,
        };
        let mut ns: Namespace = from_tree(&live).map_err(RestError::other)?;
        if ns.metadata.uid != cached.metadata.uid || !object::deleting(&ns.metadata) {
            return Ok(None);
        }
        if ns.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Terminating") {
            ns.status.get_or_insert_default().phase = Some("Terminating".into());
            ns = self.write_status(&ns).await?;
        }
        if !plan::holds(&ns) {
            return Ok(None);
        }
        let mut round = self.empty(&ns).await;
        // Before anything is written: what goes meanwhile is not missed.
        self.waiting.lock().wait(&key.name, std::mem::take(&mut round.left));
        if let Some(conditions) = plan::conditions(&ns, &round, clock::now()) {
            ns.status.get_or_insert_default().conditions = Some(conditions);
            match self.write_status(&ns).await {
                Ok(written) => ns = written,
                // Telling of it is not worth doing all of it again.
                Err(error) => tracing::warn!(namespace = key.name, %error, "the conditions were not written"),
            }
        }
        if !round.failures.is_empty() || !round.discovery.is_empty() {
            let text = [round.discovery, round.failures].concat().join(", ");
            return Err(RestError::other(format!("deletion of namespace {} failed: {text}", key.name)));
        }
        if round.estimate > Duration::ZERO {
            return Ok(Some(Duration::from_secs(round.estimate.as_secs() / 2 + 1)));
        }
        self.finalize(&path, ns).await
    }

    /// Takes the finalizer off, whoever writes to the namespace meanwhile.
    async fn finalize(&self, path: &str, mut ns: Namespace) -> Synced {
        loop {
            match self.rest.put(&format!("{path}/finalize"), &body(&plan::finalized(&ns))).await {
                Err(e) if e.not_found() => return Ok(None),
                Err(e) if e.conflict() => {
                    let live = match self.rest.get(path).await {
                        Err(e) if e.not_found() => return Ok(None),
                        other => other?,
                    };
                    let newer: Namespace = from_tree(&live).map_err(RestError::other)?;
                    if newer.metadata.uid != ns.metadata.uid
                        || newer.metadata.resource_version == ns.metadata.resource_version
                    {
                        return Err(e);
                    }
                    ns = newer;
                }
                other => return other.map(|_| None),
            }
        }
    }

    async fn write_status(&self, ns: &Namespace) -> Result<Namespace, RestError> {
        let Action::Update { path, body } = Action::update_status(ns) else { return Ok(ns.clone()) };
        from_tree(&self.rest.put_whole(&path, &body).await?).map_err(RestError::other)
    }

    /// Delete all content; what is left and how long it may take.
    async fn empty(&self, ns: &Namespace) -> Round {
        let mut round = Round::default();
        let catalogue = match discover(&self.rest).await {
            Ok(c) => c,
            Err(e) => {
                round.broken = Some(e.to_string());
                round.discovery.push(e.to_string());
                return round;
            }
        };
        round.discovery.extend(catalogue.stale.iter().map(|gv| plan::stale(gv)));
        round.discovery.sort();
        let all = catalogue.preferred.iter().filter(|s| s.namespaced && s.can("delete"));
        let (first, rest): (Vec<&Served>, Vec<&Served>) =
            all.partition(|s| FIRST.contains(&(s.group.as_str(), s.plural.as_str())));
        for served in first {
            self.remove_all(ns, served, &mut round).await;
        }
        // Pods that remain may need the rest; a resource that cannot be emptied keeps nothing else.
        if !round.remaining.is_empty() {
            return round;
        }
        for served in rest {
            self.remove_all(ns, served, &mut round).await;
        }
        round
    }

    async fn remove_all(&self, ns: &Namespace, served: &Served, round: &mut Round) {
        let namespace = object::name(&ns.metadata);
        match self.remove_resource(namespace, served).await {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                // Only pods are given time.
                let given = left.iter().filter(|_| FIRST.contains(&(served.group.as_str(), served.plural.as_str())));
                let longest = given.filter_map(|item| item.metadata.deletion_grace_period_seconds).max().unwrap_or(0);
                let grace = plan::grace(longest, ns.metadata.deletion_timestamp.as_ref(), clock::now());
                let finalizers = left.iter().flat_map(|item| item.metadata.finalizers.iter().cloned());
                round.remains(namespace, served, (left.len(), finalizers), grace);
                let thing = |item: RemainingObject| (served.group.clone(), served.plural.clone(), item.metadata.name);
                round.left.extend(left.into_iter().map(thing));
            }
            Err(e) => round.failures.push(e.to_string()),
        }
    }

    /// Requests the deletion of a resource's objects, and returns those that are left.
    async fn remove_resource(&self, namespace: &str, served: &Served) -> Result<Vec<RemainingObject>, RestError> {
        let path = served.path(Some(namespace));
        let before = self.list(&path, served).await?;
        if before.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
        let by_collection = served.can("deletecollection");
        let done = if by_collection {
            match self.rest.delete_collection(&path, &options).await {
                Ok(()) => true,
                Err(e) if e.unsupported() || e.not_found() => false,
                Err(e) => return Err(e),
            }
        } else {
            false
        };
        if !done {
            for item in before.iter().flatten() {
                let name = &item.metadata.name;
                match self.rest.delete(&join(&path, name), &options).await {
                    Err(e) if e.not_found() || e.unsupported() => {}
                    other => drop(other?),
                }
            }
        }
        self.list(&path, served).await.map(Option::unwrap_or_default)
    }

    /// None when the resource cannot be listed.
    async fn list(&self, path: &str, served: &Served) -> Result<Option<Vec<RemainingObject>>, RestError> {
        if !served.can("list") {
            return Ok(None);
        }
        match Pages::of(&self.rest, path, BRIEF_LIST).all().await {
            Ok(items) => Ok(Some(items)),
            Err(e) if e.not_found() || e.unsupported() => Ok(None),
            Err(e) => Err(e),
        }
    }
}
