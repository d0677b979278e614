//! Sees to it that claims which ask for more get it. Answers for `persistentvolume-expander`.
//!
//! In: claims and their volumes. Out: events and annotations for those who expand, and the books. [`plan`] decides; of
//! volumes only those are touched whose drivers are programs ([`flex`]).

mod flex;
pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use shared::flex::Drivers;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const WORKERS: usize = 1;

struct Expander {
    executor: Executor,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    drivers: Drivers,
}

/// Wire the expander.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let claims = cx.informer::<PersistentVolumeClaim>();
        let queue: Queue<Key> = Queue::new("volume_expand");
        let this = Arc::new(Expander {
            executor: cx.executor("expand-controller", "volume_expand"),
            claims: claims.store(),
            volumes: cx.informer::<PersistentVolume>().store(),
            drivers: Drivers::new(&cx.settings().flex_folder),
        });
        let wake = queue.clone();
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            let (before, now) = match event {
                Event::Added(claim) => (None, claim),
                Event::Updated { old, new } => (Some(old), new),
                Event::Deleted(_) => return,
            };
            // Said once per request, not with every step of the expansion.
            let request = |c: &PersistentVolumeClaim| c.spec.as_ref().and_then(|s| s.resources.clone());
            if plan::grows(now) && before.is_none_or(|b| request(b) != request(now) || !plan::grows(b)) {
                wake.add(Key::of(&now.metadata));
            }
        });
        worker::run(cx, "volume-expander", WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Expander {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(None) };
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        let Some(volume) = self.volumes.get("", name) else {
            return Err(RestError::other(format!("failed to get persistent volume {name:?}: not found")));
        };
        let flex = match flex::expand(&self.drivers, &claim, &volume).await {
            Ok(by_nodes) => by_nodes,
            Err(error) => {
                let about = object::reference::<PersistentVolumeClaim>(&claim.metadata);
                let text = format!("error expanding pvc {key}: {error}");
                self.executor.events.say(&about, true, "VolumeResizeFailed", text.clone());
                return Err(RestError::other(text));
            }
        };
        for action in plan::plan(&claim, &volume, flex, clock::now()).map_err(RestError::other)? {
            self.executor.one(action).await?;
        }
        Ok(None)
    }
}
