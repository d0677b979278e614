//! The engine, and creation. Answers for upstream's generic registry `Store.Create`.

use std::pin::pin;
use std::sync::Arc;

use proto::Value;
use proto::resources::{Resource, Row};
use shared::run::Shutdown;
use shared::status::Status;
use tokio::sync::Semaphore;

use super::super::actions::Actions;
use super::super::closing::WatchTermination;
use super::super::outcome::{PendingWrite, WriteOutcome};
use super::errors::{storage_status, taken};
use super::hook::{Reservation, WriteHook};
use super::target::WriteTarget;
use crate::admission::{Chain, Operation};
use crate::api::{Permits, TokenIssuer, VirtualResources};
use crate::bootstrap::StorageVersions;
use crate::cache::CacheRegistry;
use crate::crd::convert::WebhookClient;
use crate::machinery::meta;
use crate::negotiate::Media;
use crate::registry::strategy::{self, StrategyCx};
use crate::registry::{FieldGates, behavior, owners};
use crate::rows::Rows;
use crate::storage::{Store, Stored, WriteResult};

/// Attempts to find a free generated name.
const NAME_ROUNDS: usize = 8;

/// Behaviour of writes as set by flags and feature gates.
#[derive(Clone, Copy, Debug)]
pub struct WritePolicy {
    /// `--allow-privileged`.
    pub allow_privileged: bool,
    /// Media types the server speaks.
    pub media: Media,
    /// `--delete-collection-workers`: objects of a collection that are deleted at the same time.
    pub delete_workers: usize,
    /// `--enable-garbage-collector`: a delete may ask what becomes of dependents.
    pub collects_garbage: bool,
    /// `--min-request-timeout`: watches whose clients say nothing last this many seconds, up to twice as long. 0: no
    /// end.
    pub shortest_watch: u64,
    /// `WatchList`: watches may begin with the state, and say when they have told it.
    pub watch_lists: bool,
    /// `AllowUnsafeMalformedObjectDeletion`: what cannot be read may be deleted unread.
    pub deletes_corrupt: bool,
}

/// Generic engine behind all verbs: admission, validation, storage and caches of every resource.
pub struct Engine {
    /// Resources that are served now.
    pub rows: Rows,
    /// etcd.
    pub store: Store,
    /// Caches.
    pub caches: Arc<CacheRegistry>,
    /// Lists that are read from etcd and not from a cache, at one time. Those that wait cost nothing; those that run
    /// each hold their objects and share processors and etcd.
    pub etcd_lists: Semaphore,
    /// Work around the writes of some kinds.
    pub hook: Arc<dyn WriteHook>,
    /// Subresources and kinds that are actions.
    pub actions: Arc<dyn Actions>,
    /// Settings of the operator.
    pub policy: WritePolicy,
    /// Fields that writes lose.
    pub gated: FieldGates,
    /// Storage versions that writes wait for, with the feature gate.
    pub versions: Option<Arc<StorageVersions>>,
    /// Seconds events live.
    pub event_ttl: i64,
    /// Admission, which reads and writes through this engine ([`InProcess`](crate::verbs::InProcess)).
    pub admission: Chain,
    /// Answers token requests.
    pub tokens: Arc<dyn TokenIssuer>,
    /// Answers the resources that are computed.
    pub virtuals: Arc<dyn VirtualResources>,
    /// Asks the authorisers about what a request turns out to need besides its own verb.
    pub permits: Arc<dyn Permits>,
    /// Calls conversion webhooks.
    pub caller: Arc<dyn WebhookClient>,
    /// Ends watches when the server goes down.
    pub closing: Arc<WatchTermination>,
    /// Triggered when the last request was answered.
    pub answered: Shutdown,
}

impl Engine {
    /// Makes a thread that serves requests independent of others: it reads and writes etcd over a connection of its
    /// own. To be awaited on that thread, for as long as it serves.
    pub async fn open_thread_connection(self: Arc<Self>) {
        let settled = async {
            match self.store.open_thread_connection().await {
                Ok(()) => self.caches.serve_thread_local().await,
                Err(error) => {
                    tracing::warn!(%error, "Failed to open an etcd connection for this thread, using the shared one")
                }
            }
        };
        self.answered.token().run_until_cancelled(settled).await;
    }

    /// The key of an object.
    pub fn key(&self, row: &Resource, namespace: &str, name: &str) -> String {
        let prefix = self.store.key(&row.etcd_prefix);
        if namespace.is_empty() { format!("{prefix}/{name}") } else { format!("{prefix}/{namespace}/{name}") }
    }

    /// A quorum read; the object is in the storage row's version.
    pub async fn read(&self, row: &Row, namespace: &str, name: &str) -> Result<Option<(Value, Stored)>, Status> {
        let storage = &behavior(row).working_row(row);
        let (found, _) = self.store.get(&self.key(storage, namespace, name)).await.map_err(|e| storage_status(&e))?;
        match found {
            Some(s) => Ok(Some((self.decode(storage, &s).await?, s))),
            None => Ok(None),
        }
    }

    /// Creates `object`, which is decoded, defaulted and in the request's version.
    pub async fn create(&self, t: &mut WriteTarget<'_>, mut object: Value) -> Result<WriteOutcome, Status> {
        let generated = meta::text(&object, "name").is_empty() && !meta::text(&object, "generateName").is_empty();
        let base = meta::text(&object, "generateName").to_owned();
        for round in 1.. {
            let mut attempt =
                if generated && round < NAME_ROUNDS { object.clone() } else { std::mem::take(&mut object) };
            if generated {
                let suffixed = strategy::strategy_of(t.row).suffixes;
                let name = if suffixed { meta::generate_name(&base) } else { base.clone() };
                meta::set_text(&mut attempt, "name", &name);
            }
            match self.create_once(t, attempt).await {
                Err(e) if generated && round < NAME_ROUNDS && e.is_already_exists() => continue,
                // Even where the name was not generated.
                Err(mut e) if !base.is_empty() && e.is_already_exists() => {
                    e.message.push_str(", the server was not able to generate a unique name for the object");
                    e.details.get_or_insert_default().retry_after_seconds = 1;
                    return Err(e);
                }
                other => return other,
            }
        }
        Err(Status::internal("no name was generated"))
    }

    async fn create_once(&self, t: &mut WriteTarget<'_>, object: Value) -> Result<WriteOutcome, Status> {
        let storage = &behavior(t.row).working_row(t.row);
        let strategy = strategy::strategy_of(t.row);
        let mut object = self.to_storage(t.row, object);
        self.admit(t, Operation::Create, Some(&mut object), None).await?;
        owners::dedup(&mut object, owners::DedupPhase::Admitted, &mut t.warnings);
        meta::set_text(&mut object, "namespace", t.namespace);
        meta::fill(&mut object);
        self.gated.drop_disabled_fields(storage, &mut object, None);
        let mut cx = StrategyCx { user: t.user, warnings: &mut t.warnings, gated: &self.gated };
        strategy.create(storage, &mut object, &mut cx);
        // Services are judged with what they were given: there being nothing to give is said first, and alone.
        let mut reservation = match self.hook.begin_create(storage, &mut object, t.options.dry_run) {
            Some(begin) => begin.await?,
            None => Reservation::default(),
        };
        let created = self.create_validated(t, storage, object, &mut reservation).await;
        reservation.settle().await;
        created
    }

    /// Creates an object that is complete, if nothing is wrong with it.
    async fn create_validated(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        mut object: Value,
        reservation: &mut Reservation,
    ) -> Result<WriteOutcome, Status> {
        let mut errors = self.check_admin_access(t, storage, &object, None).await;
        errors.extend(behavior(storage).validate_create(self.gated.relaxed, (t.row, storage), &object));
        errors.extend(self.gated.validate_gated(storage, "", &object, None));
        self.refuse(t, storage, &object, true, errors)?;
        t.warnings.extend(behavior(storage).warnings(self.gated.relaxed, storage, "", &object, None));
        let name = meta::text(&object, "name").to_owned();
        self.validate_creation(t, &mut object).await?;
        let key = self.key(storage, t.namespace, &name);
        let given = meta::metadata(&mut object).remove("resourceVersion").unwrap_or_default();
        let given = given.as_str().unwrap_or_default();
        if !t.options.dry_run && given.parse::<u64>().is_ok_and(|revision| revision != 0) {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
        }
        if t.options.dry_run {
            let pending = PendingWrite::new(storage, self.encode(storage, &object).await?, object);
            let (there, _) = self.store.get(&key).await.map_err(|e| storage_status(&e))?;
            if let Some(there) = there {
                return Err(taken(t.row, storage, &name, Some(&there)));
            }
            let mut object = self.finish(pending, storage, 0).await?.tree(self, t.row)?;
            meta::set_text(&mut object, "resourceVersion", given);
            return Ok(WriteOutcome::Tree(object));
        }
        let stored = {
            let storing = pin!(self.store_new(t, storage, &key, object, reservation));
            self.store.creating(storage, &key, storing).await?
        };
        stored.map_err(|there| taken(t.row, storage, &name, there.as_ref()))
    }

    /// Writes an object where there must be none; the inner error is what is there.
    async fn store_new(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        key: &str,
        object: Value,
        reservation: &mut Reservation,
    ) -> Result<Result<WriteOutcome, Option<Stored>>, Status> {
        let mut pending = self.encode_pending(storage, object).await?;
        let ttl = strategy::strategy_of(t.row).expires.then_some(self.event_ttl);
        reservation.sent();
        let mut written = self.store.create(key, pending.bytes().to_vec(), ttl).await;
        if written.as_ref().is_err_and(|e| t.too_large(&storage_status(e))) {
            reservation.refused();
            pending = self.without_managed_fields(pending, storage).await?;
            reservation.sent();
            written = self.store.create(key, pending.bytes().to_vec(), ttl).await;
        }
        // It may have been written all the same: what nobody has is found later.
        match written.map_err(|e| storage_status(&e))? {
            WriteResult::Done(revision) => self.finish_traced(pending, storage, revision).await.map(Ok),
            WriteResult::Lost(there) => {
                reservation.refused();
                Ok(Err(there))
            }
        }
    }
}
