//! Empties namespaces that are being deleted, pods first, and lets them go when nothing is left.

pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use serde::Deserialize;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::plan::Round;
use crate::engine::action::{Action, body};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::{Served, discover};
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::{Rest, RestError};
use crate::engine::worker::{self, Synced};

const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Deletion starts a little later, so that the other API servers know of it too.
const GRACE: Duration = Duration::from_millis(500);
/// Resources deleted before all others: what runs must stop before what it depends on goes.
const FIRST: [(&str, &str); 1] = [("", "pods")];

/// What is left of a resource.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Left {
    items: Option<Vec<Item>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    metadata: Remains,
}

/// What matters of an object that is going away.
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
}

/// Wire the namespace controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let informer = cx.informer::<Namespace>();
        let queue: Queue<Key> = Queue::with_backoff("namespace", Duration::from_secs(1), Duration::from_mins(1));
        let this = Arc::new(Namespaces { rest: cx.rest("namespace-controller"), store: informer.store() });
        let wake = queue.clone();
        informer.add_handler(move |event: &Event<Namespace>| {
            let ns = event.object();
            if object::deleting(&ns.metadata) && !matches!(event, Event::Deleted(_)) {
                wake.add_after(Key::of(&ns.metadata), GRACE);
            }
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
        let path = format!("/api/v1/namespaces/{}", key.name);
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
        let (round, estimate) = self.empty(&key.name).await;
        if let Some(conditions) = plan::conditions(&ns, &round, clock::now()) {
            ns.status.get_or_insert_default().conditions = Some(conditions);
            ns = self.write_status(&ns).await?;
        }
        if round.clean() {
            return match self.rest.put(&format!("{path}/finalize"), &body(&plan::finalized(&ns))).await {
                Err(e) if e.not_found() => Ok(None),
                other => other.map(|_| None),
            };
        }
        if round.failures.is_empty() && round.discovery.is_empty() {
            // Only waiting: half of what the slowest was given, to notice an earlier end.
            let wait = estimate.map_or(Duration::from_secs(1), |e| Duration::from_secs(e.as_secs() / 2 + 1));
            return Ok(Some(wait.min(Duration::from_secs(15))));
        }
        let text = [round.discovery, round.failures].concat().join(", ");
        Err(RestError::other(format!("deletion of namespace {} failed: {text}", key.name)))
    }

    async fn write_status(&self, ns: &Namespace) -> Result<Namespace, RestError> {
        let Action::Update { path, body } = Action::update_status(ns) else { return Ok(ns.clone()) };
        from_tree(&self.rest.put_whole(&path, &body).await?).map_err(RestError::other)
    }

    /// Delete all content; what is left and how long it may take.
    async fn empty(&self, namespace: &str) -> (Round, Option<Duration>) {
        let mut round = Round::default();
        let mut estimate = None;
        let catalogue = match discover(&self.rest).await {
            Ok(c) => c,
            Err(e) => {
                round.discovery.push(e.to_string());
                return (round, None);
            }
        };
        round.discovery.extend(catalogue.stale.iter().map(|gv| format!("{gv}: stale GroupVersion discovery")));
        let all = catalogue.preferred.iter().filter(|s| s.namespaced && s.can("delete"));
        let (first, rest): (Vec<&Served>, Vec<&Served>) =
            all.partition(|s| FIRST.contains(&(s.group.as_str(), s.plural.as_str())));
        for served in first {
            self.remove_all(namespace, served, &mut round, &mut estimate).await;
        }
        if !round.remaining.is_empty() || !round.failures.is_empty() {
            return (round, estimate);
        }
        for served in rest {
            self.remove_all(namespace, served, &mut round, &mut estimate).await;
        }
        (round, estimate)
    }

    async fn remove_all(&self, namespace: &str, served: &Served, round: &mut Round, estimate: &mut Option<Duration>) {
        let resource = dotted(served);
        match self.remove_resource(namespace, served).await {
            Ok(left) if left.is_empty() => {}
            Ok(left) => {
                round.remaining.insert(resource, left.len());
                for item in &left {
                    for f in &item.metadata.finalizers {
                        *round.finalizers.entry(f.clone()).or_default() += 1;
                    }
                    let grace = item.metadata.deletion_grace_period_seconds.map(Duration::from_secs);
                    *estimate = (*estimate).max(grace);
                }
            }
            Err(e) => round.failures.push(format!("unexpected error deleting {resource} in {namespace}: {e}")),
        }
    }

    /// What is left of a resource after asking for its deletion.
    async fn remove_resource(&self, namespace: &str, served: &Served) -> Result<Vec<Item>, RestError> {
        let path = served.path(Some(namespace));
        let items = self.list(&path, served).await?;
        if items.is_empty() {
            return Ok(items);
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
            for item in &items {
                let name = &item.metadata.name;
                match self.rest.delete(&format!("{path}/{name}"), &options).await {
                    Err(e) if e.not_found() || e.unsupported() => {}
                    other => drop(other?),
                }
            }
        }
        self.list(&path, served).await
    }

    async fn list(&self, path: &str, served: &Served) -> Result<Vec<Item>, RestError> {
        if !served.can("list") {
            return Ok(Vec::new());
        }
        match self.rest.get_as::<Left>(path, METADATA).await {
            Ok(left) => Ok(left.items.unwrap_or_default()),
            Err(e) if e.not_found() || e.unsupported() => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

/// `pods.` or `deployments.apps`, as the conditions' messages spell resources.
fn dotted(served: &Served) -> String {
    format!("{}.{}", served.plural, served.group)
}
