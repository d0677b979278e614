//! Has every object of a resource written anew, so that it is stored in today's version. Answers for
//! `storage-version-migrator`.
//!
//! An empty patch is such a write; the server stores what differs from what it would store now and nothing else.

pub mod plan;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use serde_json::{Value, json};
use shared::informer::{Event, Store};
use shared::metrics::Passage;
use shared::workqueue::Queue;

use self::plan::Phase;
use crate::engine::action::{Action, PatchKind};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::{Served, discover};
use crate::engine::executor::Executor;
use crate::engine::object::Key;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

const NAME: &str = "storage-version-migrator-controller";
const WORKERS: usize = 5;
const PAGE: usize = 500;
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

struct Migrator {
    executor: Executor,
    migrations: Store<StorageVersionMigration>,
    /// Upstream has a controller of its own that looks up what is to be migrated.
    versions: Passage,
}

/// Why a migration does not go on.
enum Stop {
    ForNow(RestError),
    ForGood(RestError),
}

impl Stop {
    fn of(error: RestError, for_good: impl Fn(&RestError) -> bool) -> Self {
        if for_good(&error) { Self::ForGood(error) } else { Self::ForNow(error) }
    }
}

/// Wire the migrator.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        if !cx.gate("StorageVersionMigrator") {
            return Ok(Started::Skipped);
        }
        let Some(migrations) = cx.served::<StorageVersionMigration>().await? else { return Ok(Started::Skipped) };
        let queue: Queue<Key> = Queue::new(NAME);
        let this = Arc::new(Migrator {
            executor: cx.executor(NAME, NAME),
            migrations: migrations.store(),
            versions: Passage::new("resource-version-controller"),
        });
        let wake = queue.clone();
        migrations.add_handler(move |event: &Event<StorageVersionMigration>| {
            if !matches!(event, Event::Deleted(_)) {
                wake.add(Key::of(&event.object().metadata));
            }
        });
        worker::run(cx, NAME, WORKERS, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

impl Migrator {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(migration) = self.migrations.get("", &key.name) else { return Ok(None) };
        if Phase::Succeeded.is(&migration) || Phase::Failed.is(&migration) {
            return Ok(None);
        }
        let Some(resource) = migration.spec.as_ref().map(|s| s.resource.clone()) else { return Ok(None) };
        let catalogue = discover(&self.executor.rest).await?;
        let served = catalogue.preferred.iter().find(|s| s.group == resource.group && s.plural == resource.resource);
        let Some(served) = served.filter(|s| s.can("list") && s.can("patch")) else {
            return self
                .enter(&migration, Phase::Failed, "resource does not exist in cluster or cannot be migrated")
                .await;
        };
        let version = migration.status.as_ref().and_then(|s| s.resource_version.clone()).filter(|v| !v.is_empty());
        let Some(version) = version.filter(|_| Phase::Running.is(&migration)) else {
            let _under_way = self.versions.begin();
            // Objects written after this moment are in today's version already.
            let list: Value = self.executor.rest.get_as(&format!("{}?limit=1", served.path(None)), LIST).await?;
            let mut copy = plan::in_phase(&migration, Phase::Running, "", clock::now());
            copy.status.get_or_insert_default().resource_version =
                list["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            return self.write(&copy).await;
        };
        match self.migrate(served, &version).await {
            Ok(()) => self.enter(&migration, Phase::Succeeded, "").await,
            Err(Stop::ForGood(e)) => {
                let message = format!("migration encountered unhandled error: {e}");
                self.enter(&migration, Phase::Failed, &message).await
            }
            Err(Stop::ForNow(e)) => Err(e),
        }
    }

    async fn migrate(&self, served: &Served, version: &str) -> Result<(), Stop> {
        let mut next = String::new();
        loop {
            let more = if next.is_empty() { String::new() } else { format!("&continue={next}") };
            let page = self.executor.rest.get_as(&format!("{}?limit={PAGE}{more}", served.path(None)), LIST).await;
            // The objects of a kind that is not served any more cannot be reached.
            let page: Value = page.map_err(|e| Stop::of(e, RestError::missing))?;
            for item in page["items"].as_array().into_iter().flatten() {
                self.touch(served, &item["metadata"], version).await.map_err(|e| Stop::of(e, plan::hopeless))?;
            }
            next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                return Ok(());
            }
        }
    }

    async fn touch(&self, served: &Served, meta: &Value, version: &str) -> Result<(), RestError> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        if !plan::stale(&text(&meta["resourceVersion"]), version) {
            return Ok(());
        }
        let path = format!("{}/{}", served.path(meta["namespace"].as_str()), text(&meta["name"]));
        let body = json!({"apiVersion": served.api_version(), "kind": served.kind,
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}});
        match self.executor.rest.patch(&path, PatchKind::Merge, &body).await {
            // Whoever wrote meanwhile wrote today's version, and what is gone needs none.
            Err(e) if e.conflict() || e.not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn enter(&self, migration: &StorageVersionMigration, phase: Phase, message: &str) -> Synced {
        self.write(&plan::in_phase(migration, phase, message, clock::now())).await
    }

    async fn write(&self, migration: &StorageVersionMigration) -> Synced {
        self.executor.one(Action::update_status(migration)).await.map(|()| None)
    }
}
