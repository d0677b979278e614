//! Endpoints objects of services, for clients that do not know slices.

pub mod held;
pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use serde_json::json;
use shared::informer::{Cached as _, Event, Store};
use shared::workqueue::Queue;

use self::held::Held;
use self::plan::{Change, Snapshot};
use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::services::{self, Triggers};
use crate::engine::worker::{self, Synced};

struct EndpointsController {
    executor: Executor,
    services: Store<Service>,
    pods: Store<Pod>,
    endpoints: Store<Held>,
    triggers: Mutex<Triggers>,
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
        });
        owned::watch(&services, &queue);
        services::watch_pods(&pods, cx.selectors(), queue.clone(), cx.settings().endpoints_batch);
        let wake = queue.clone();
        endpoints.add_handler(move |event: &Event<Held>| {
            // Somebody deleted it, or it was left over from before: have a look.
            if !matches!(event, Event::Updated { .. }) {
                let meta = event.object().meta();
                wake.add(Key::new(meta.namespace(), meta.name()));
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
        let current = self.endpoints.get(&key.namespace, &key.name);
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            self.triggers.lock().forget(key);
            // Only what this controller made goes with the service.
            if let Some(current) = current.filter(|c| plan::ours(c)) {
                let delete = Action::Delete { path: current.path(), options: json!({}) };
                // Rare, and larger than all the rest of this.
                Box::pin(self.executor.one(delete)).await?;
            }
            return Ok(None);
        };
        if services::selecting(&service).is_none() {
            return Ok(None);
        }
        let pods = services::behind(&self.pods, &service);
        let trigger = self.triggers.lock().next(key, &service, &pods);
        let snapshot = Snapshot { service, pods, current, trigger };
        let Some(change) = plan::plan(&snapshot) else { return Ok(None) };
        let Err(error) = self.write(&change).await else { return Ok(None) };
        if error.namespace_terminating() {
            return Ok(None);
        }
        if !error.conflict() && !error.already_exists() {
            let (reason, verb) = match change {
                Change::Create(_) => ("FailedToCreateEndpoint", "create"),
                Change::Update(_) => ("FailedToUpdateEndpoint", "update"),
            };
            let about = object::reference::<Service>(&snapshot.service.metadata);
            let text = format!("Failed to {verb} endpoint for service {key}: {error}");
            self.executor.events.say(&about, true, reason, text);
        }
        Err(error)
    }

    async fn write(&self, change: &Change) -> Result<(), RestError> {
        let rest = &self.executor.rest;
        match change {
            Change::Create(new) => {
                let path = Held::collection_path(Some(new.meta().namespace()));
                rest.send_packed("POST", &path, new.body()).await.map(drop)
            }
            Change::Update(new) => rest.send_packed("PUT", &new.path(), new.body()).await.map(drop),
        }
    }
}
