//! Takes API servers that are gone out of storage versions. Answers for `storageversion-garbage-collector`.
//!
//! In: storage versions, the leases of servers. Out: storage versions without the servers that are gone, or none.
//! [`plan`] decides.

pub mod plan;

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::apiserverinternal::v1alpha1::StorageVersion;
use k8s_openapi::api::coordination::v1::Lease;
use shared::informer::{Event, Scope, Store};
use shared::metrics::Passage;
use shared::workqueue::Queue;

use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAME: &str = "storage-version-garbage-collector";
/// The leases by which API servers say that they live.
const LEASES: &str = "apiserver.kubernetes.io/identity=kube-apiserver";

struct Collector {
    executor: Executor,
    versions: Store<StorageVersion>,
    leases: Store<Lease>,
}

/// Wire the collector.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("APIServerIdentity") || !cx.gate("StorageVersionAPI") {
            return Ok(Started::Skipped);
        }
        let Some(versions) = cx.served::<StorageVersion>().await? else { return Ok(Started::Skipped) };
        let leases = cx.informer_in::<Lease>(Scope {
            namespace: Some("kube-system".into()),
            labels: Some(LEASES.into()),
            ..Scope::default()
        });
        let queue: Queue<Key> = Queue::new("storage_version_garbage_collector_storageversions");
        let this = Arc::new(Collector {
            executor: cx.executor(NAME, NAME),
            versions: versions.store(),
            leases: leases.store(),
        });
        let wake = queue.clone();
        versions.add_handler(move |event: &Event<StorageVersion>| {
            if !matches!(event, Event::Deleted(_)) {
                wake.add(Key::of(&event.object().metadata));
            }
        });
        let (wake, all) = (queue.clone(), versions.store());
        let ended = Passage::new("storage_version_garbage_collector_leases");
        leases.add_handler(move |event: &Event<Lease>| {
            if let Event::Deleted(_) = event {
                let _under_way = ended.begin();
                all.list().iter().for_each(|v| wake.add(Key::of(&v.metadata)));
            }
        });
        worker::run(cx, NAME, 1, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Collector {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(version) = self.versions.get("", &key.name) else { return Ok(None) };
        let alive: HashSet<String> = self.leases.list().iter().map(|l| object::name(&l.metadata).to_owned()).collect();
        match plan::plan(&version, &|id| alive.contains(id), clock::now()) {
            Some(action) => self.executor.one(action).await.map(|()| None),
            None => Ok(None),
        }
    }
}
