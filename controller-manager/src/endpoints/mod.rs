//! Endpoints objects of services, for clients that do not know slices. Answers for upstream's
//! `pkg/controller/endpoint`.

pub mod plan;
pub mod stale;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Cached as _, Event, Store};
use shared::workqueue::Queue;

use self::plan::{EndpointsWrite, Snapshot};
use self::stale::Replaced;
use crate::engine::action::{Action, join};
use crate::engine::context::Context;
use crate::engine::endpoints::PackedEndpoints;
use crate::engine::executor::Executor;
use crate::engine::object::Key;
use crate::engine::owned;
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::services::{self, Triggers};
use crate::engine::worker::{self, Synced};

/// Marks endpoints that are only there for an election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Endpoints whose newer version the cache does not show yet are looked at again after this long.
const STALE_RETRY: Duration = Duration::from_millis(50);

struct EndpointsController {
    executor: Executor,
    services: Store<Service>,
    pods: Store<Pod>,
    endpoints: Store<PackedEndpoints>,
    triggers: Mutex<Triggers>,
    replaced: Replaced,
}

/// Wire the endpoints controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (services, pods, endpoints) = (cx.informer::<Service>(), cx.pods(), cx.endpoints());
        let queue: Queue<Key> = Queue::new("endpoint");
        let this = Arc::new(EndpointsController {
            executor: cx.executor("endpoint-controller", "endpoint-controller"),
            services: services.store(),
            pods: pods.store(),
            endpoints: endpoints.store(),
            triggers: Mutex::default(),
            replaced: Replaced::default(),
        });
        owned::watch(&services, &queue);
        services::watch_pods(&pods, cx.selectors(), queue.clone(), cx.settings().endpoints_batch);
        let (wake, known) = (queue.clone(), services.store());
        endpoints.add_handler(move |event: &Event<PackedEndpoints>| {
            // Somebody deleted what a service still needs.
            if let Event::Deleted(gone) = event
                && known.get(gone.meta().namespace(), gone.meta().name()).is_some()
            {
                wake.add(Key::new(gone.meta().namespace(), gone.meta().name()));
            }
        });
        let (term, all, wake) = (cx.clone(), endpoints.store(), queue.clone());
        cx.spawn("endpoints-leftovers", async move {
            if term.factory().wait_synced().await {
                // Their services may have gone while nobody looked.
                for left in all.list().iter().filter(|e| e.meta().annotation(LEADER).is_none()) {
                    wake.add(Key::new(left.meta().namespace(), left.meta().name()));
                }
            }
        });
        worker::run(cx, "endpoints", cx.settings().workers.endpoint, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl EndpointsController {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            if self.services.unreadable().contains(&key.namespace, &key.name) {
                // There is a service, and it cannot be read: what it has, it keeps.
                return Ok(None);
            }
            self.triggers.lock().forget(key);
            self.replaced.forget(key);
            // Whoever made them: endpoints go with their service.
            let path = join(&PackedEndpoints::collection_path(Some(&key.namespace)), &key.name);
            // Rare, and larger than all the rest of this.
            Box::pin(self.executor.one(Action::Delete { path, options: json!({}) })).await?;
            return Ok(None);
        };
        if services::selecting(&service).is_none() {
            return Ok(None);
        }
        let current = self.endpoints.get(&key.namespace, &key.name);
        if current.as_ref().is_some_and(|shown| self.replaced.has(key, shown.meta().version())) {
            return Ok(Some(STALE_RETRY));
        }
        let pods = services::behind(&self.pods, &service);
        let trigger = self.triggers.lock().next(key, &service, &pods);
        let snapshot = Snapshot { service, pods, current, trigger };
        let Some(change) = plan::plan(&snapshot) else { return Ok(None) };
        let Err(error) = self.write(key, &change).await else { return Ok(None) };
        if error.namespace_terminating() {
            return Ok(None);
        }
        let (about, reason, what) = plan::complaint(&change, key);
        self.executor.events.say(&about, true, reason, format!("{what}: {error}"));
        Err(error)
    }

    async fn write(&self, key: &Key, change: &EndpointsWrite) -> Result<(), RestError> {
        let rest = &self.executor.rest;
        match change {
            EndpointsWrite::Create(new) => {
                let path = PackedEndpoints::collection_path(Some(new.meta().namespace()));
                rest.send_packed("POST", &path, new.body()).await.map(drop)
            }
            EndpointsWrite::Update(new) => {
                let stored = rest.send_packed("PUT", &new.path(), new.body()).await?;
                self.replaced.note(key, new.meta().version(), &stored.resource_version);
                Ok(())
            }
        }
    }
}
