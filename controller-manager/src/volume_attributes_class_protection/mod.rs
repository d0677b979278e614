//! Keeps volume attributes classes that claims or volumes name from vanishing. Answers for
//! `volumeattributesclass-protection`.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};
use crate::protection::plan;

const FINALIZER: &str = "kubernetes.io/vac-protection";
const NAME: &str = "volumeattributesclass-protection-controller";

struct Classes {
    executor: Executor,
    classes: Store<VolumeAttributesClass>,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
}

/// Wire the protection of volume attributes classes.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("VolumeAttributesClass") {
            return Ok(Started::Skipped);
        }
        let Some(classes) = cx.served::<VolumeAttributesClass>().await? else { return Ok(Started::Skipped) };
        let (claims, volumes) = (cx.informer::<PersistentVolumeClaim>(), cx.informer::<PersistentVolume>());
        let queue: Queue<Key> = Queue::new("vacprotection");
        let this = Arc::new(Classes {
            executor: cx.executor(NAME, NAME),
            classes: classes.store(),
            claims: claims.store(),
            volumes: volumes.store(),
        });
        owned::watch(&classes, &queue);
        let wake = queue.clone();
        claims.add_handler(move |event: &Event<PersistentVolumeClaim>| {
            released(event, &wake, |c| of_claim(c).into_iter().flatten().map(str::to_owned).collect());
        });
        let wake = queue.clone();
        volumes.add_handler(move |event: &Event<PersistentVolume>| {
            released(event, &wake, |v| of_volume(v).into_iter().map(str::to_owned).collect());
        });
        worker::run(cx, "vac-protection", 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

/// Wake the classes that were named before and are not any more.
fn released<K>(event: &Event<K>, queue: &Queue<Key>, named: impl Fn(&K) -> Vec<String>) {
    let (old, new) = match event {
        Event::Added(_) => return,
        Event::Updated { old, new } => (named(old), named(new)),
        Event::Deleted(old) => (named(old), Vec::new()),
    };
    for class in old.into_iter().filter(|c| !new.contains(c)) {
        queue.add(Key::new("", class));
    }
}

/// The classes a claim asks for, has, and is being moved to.
fn of_claim(claim: &PersistentVolumeClaim) -> [Option<&str>; 3] {
    let status = claim.status.as_ref();
    let moving = status.and_then(|s| s.modify_volume_status.as_ref());
    [
        claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()),
        status.and_then(|s| s.current_volume_attributes_class_name.as_deref()),
        moving.and_then(|m| m.target_volume_attributes_class_name.as_deref()),
    ]
}

fn of_volume(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.volume_attributes_class_name.as_deref()
}

impl Classes {
    fn in_use(&self, class: &str) -> bool {
        self.claims.list().iter().any(|c| of_claim(c).contains(&Some(class)))
            || self.volumes.list().iter().any(|v| of_volume(v) == Some(class))
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(class) = self.classes.get("", &key.name) else { return Ok(None) };
        let in_use = object::deleting(&class.metadata) && self.in_use(&key.name);
        let Some(action) = plan(&*class, FINALIZER, in_use) else { return Ok(None) };
        match self.executor.one(action).await {
            Err(e) if e.not_found() => Ok(None),
            other => other.map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_that_are_named() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver",
                "modifyVolumeStatus": {"status": "InProgress", "targetVolumeAttributesClassName": "gold"}}}))
        .expect("claim");
        assert_eq!(of_claim(&claim), [Some("gold"), Some("silver"), Some("gold")]);
        let queue: Queue<Key> = Queue::new("test_released");
        let named = |c: &PersistentVolumeClaim| of_claim(c).into_iter().flatten().map(str::to_owned).collect();
        let mut moved = claim.clone();
        moved.status = None;
        released(&Event::Updated { old: Arc::new(claim), new: Arc::new(moved.clone()) }, &queue, named);
        assert_eq!(queue.len(), 1, "silver is not named any more");
        released(&Event::Deleted(Arc::new(moved)), &queue, named);
        assert_eq!(queue.len(), 2, "nor is gold");
    }
}
