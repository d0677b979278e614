//! Has every object of a resource written anew, so that it is stored in today's version. Answers for
//! `storage-version-migrator`.
//!
//! To apply nothing is such a write; the server stores what differs from what it would store now and nothing else.

pub mod plan;

use std::cmp::Ordering;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use shared::informer::{Event, Store};
use shared::metrics::Passage;
use shared::workqueue::Queue;

use self::plan::MigrationPhase;
use crate::engine::action::{Action, body, join, object_path};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::discovery::{Served, discover};
use crate::engine::executor::Executor;
use crate::engine::metadata;
use crate::engine::object::{self, Key};
use crate::engine::paged::Pages;
use crate::engine::registry::Started;
use crate::engine::rest::{BRIEF_LIST, RestError};
use crate::engine::worker::{self, Synced};

const NAME: &str = "storage-version-migrator-controller";
const WORKERS: usize = 5;
/// A namespace that nobody can have: a list of what is in it says how new it is, and nothing else.
const NOWHERE: &str = "@fake:svm_ns!";
/// Time that a resource to be migrated may take until it is served.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

struct Migrator {
    executor: Executor,
    migrations: Store<StorageVersionMigration>,
    /// Upstream has a controller of its own that looks up what is to be migrated.
    versions: Passage,
}

/// Reasons why a migration does not go on.
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
        if !cx.gate("StorageVersionMigrator") || !cx.gate("InformerResourceVersion") {
            return Ok(Started::Skipped);
        }
        if !cx.settings().garbage_collector {
            return Err(RestError::other("storage version migrator requires garbage collector"));
        }
        if !cx.gate("InOrderInformers") {
            let why = "storage version migrator requires the InOrderInformers feature gate to be enabled";
            return Err(RestError::other(why));
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
        if MigrationPhase::Succeeded.is(&migration) || MigrationPhase::Failed.is(&migration) {
            return Ok(None);
        }
        let Some(resource) = migration.spec.as_ref().map(|s| s.resource.clone()) else { return Ok(None) };
        let catalogue = discover(&self.executor.rest).await?;
        let served = catalogue.preferred.iter().find(|s| s.group == resource.group && s.plural == resource.resource);
        let version = migration.status.as_ref().and_then(|s| s.resource_version.clone()).unwrap_or_default();
        if version.is_empty() {
            return self.note_version(&migration, served.filter(|s| s.can("list") && s.can("patch"))).await;
        }
        let Some(served) = served else {
            let why = "unable to obtain GVR from discovery";
            return self.not_yet(&migration, "resource does not exist in rest mapper", why).await;
        };
        if !metadata::collectable(served) {
            // Upstream finds the objects in the garbage collector's cache, and says so of what is not in there.
            let why = "resource does not exist in GC: %!w(<nil>)";
            return self.not_yet(&migration, "resource does not exist in GC", why).await;
        }
        let running = self.run(&migration).await?;
        match self.migrate(served, &version).await {
            Ok(()) => self.enter(&running, MigrationPhase::Succeeded, "").await,
            Err(Stop::ForGood(e)) => self.fail(&running, e).await,
            Err(Stop::ForNow(e)) => Err(e),
        }
    }

    /// Objects written after this moment are in today's version already.
    async fn note_version(&self, migration: &StorageVersionMigration, served: Option<&Served>) -> Synced {
        let _under_way = self.versions.begin();
        let Some(served) = served else {
            let message = "resource does not exist in cluster or cannot be migrated";
            return self.enter(migration, MigrationPhase::Failed, message).await;
        };
        let path = format!("{}?limit=1", served.path(Some(NOWHERE)));
        let list: Value = self.executor.rest.get_as(&path, BRIEF_LIST).await?;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if let Err(error) = plan::compare(version, version) {
            return self.fail(migration, error).await;
        }
        let mut copy = migration.clone();
        copy.status.get_or_insert_default().resource_version = Some(version.to_owned());
        self.executor.one(Action::update_status(&copy)).await.map(|()| None)
    }

    /// Waits for a resource that may be about to be served.
    async fn not_yet(&self, migration: &StorageVersionMigration, now: &str, at_last: &str) -> Synced {
        if clock::now().duration_since(object::created(&migration.metadata)) < PATIENCE {
            return Err(RestError::other(format!("{now}, requeuing to attempt again")));
        }
        self.fail(migration, at_last).await
    }

    /// Say that it is under way; the migration as the server has it then.
    async fn run(&self, migration: &StorageVersionMigration) -> Result<StorageVersionMigration, RestError> {
        if MigrationPhase::Running.is(migration) {
            return Ok(migration.clone());
        }
        let copy = plan::in_phase(migration, MigrationPhase::Running, "", clock::now());
        let path = format!("{}/status", object_path::<StorageVersionMigration>(&copy.metadata));
        let stored = self.executor.rest.put_whole(&path, &body(&copy)).await?;
        serde_json::from_value(stored).map_err(RestError::other)
    }

    async fn migrate(&self, served: &Served, version: &str) -> Result<(), Stop> {
        let path = served.path(None);
        let mut pages = Pages::of(&self.executor.rest, &path, BRIEF_LIST);
        // The objects of a kind that is not served any more cannot be reached.
        while let Some(page) = pages.next::<Value>().await.map_err(|e| Stop::of(e, RestError::missing))? {
            for item in page.items {
                self.touch(served, &item["metadata"], version).await?;
            }
        }
        Ok(())
    }

    async fn touch(&self, served: &Served, meta: &Value, version: &str) -> Result<(), Stop> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let newer = plan::compare(&text(&meta["resourceVersion"]), version);
        if newer.map_err(|e| Stop::ForGood(RestError::other(e)))? == Ordering::Greater {
            return Ok(());
        }
        let path = join(&served.path(meta["namespace"].as_str()), &text(&meta["name"])) + "?fieldManager=" + NAME;
        let body = json!({"apiVersion": served.api_version(), "kind": served.kind,
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}});
        match self.executor.rest.apply(&path, &body).await {
            // Whoever wrote meanwhile wrote today's version. What is gone is in conflict, too: its uid is asked for.
            Err(e) if e.conflict() => Ok(()),
            other => other.map(drop).map_err(|e| Stop::of(e, plan::hopeless)),
        }
    }

    async fn fail(&self, migration: &StorageVersionMigration, error: impl std::fmt::Display) -> Synced {
        self.enter(migration, MigrationPhase::Failed, &format!("migration encountered unhandled error: {error}")).await
    }

    async fn enter(&self, migration: &StorageVersionMigration, phase: MigrationPhase, message: &str) -> Synced {
        let copy = plan::in_phase(migration, phase, message, clock::now());
        self.executor.one(Action::update_status(&copy)).await.map(|()| None)
    }
}
