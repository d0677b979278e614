//! The write pipeline: one path for every kind.
//!
//! Create, update and delete run here in upstream's order: admission may change the object, the strategy fixes what
//! clients do not decide, validation and admission judge, storage writes under a precondition. Objects travel in the
//! storage row's version; callers convert at the edges. Nothing here knows HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use proto::Value;
use proto::resources::{Resource, Row};
use shared::authn::UserInfo;
use shared::status::{Status, field};

use super::Noted;
use super::base::{Again, Base};
use super::outcome::{Outcome, Waiting};
use super::preconditions::{check_preconditions, check_revision};
use super::query::WriteOptions;
use crate::admission::{Attributes, Caller, Chain, Operation, Reinvocation};
use crate::api::{Permits, TokenIssuer, Virtual};
use crate::cache::{Entry, Hub, Raw};
use crate::crd;
use crate::negotiate::Media;
use crate::registry::core::service::{Allocation, Services, freed};
use crate::registry::meta::{self, Deletion, Propagation};
use crate::registry::strategy::{self, Strategy, StrategyCx};
use crate::registry::{Rows, conversion, qualified, working};
use crate::storage::{self, Store, Stored, Written, codec};
use crate::validation;

/// Rounds of an update that keeps losing races.
const UPDATE_ROUNDS: usize = 50;
/// Attempts to find a free generated name.
const NAME_ROUNDS: usize = 8;

/// What flags and feature gates say about writes.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `--allow-privileged`.
    pub allow_privileged: bool,
    /// A binding ends the nomination of its pod.
    pub clear_nomination: bool,
    /// Media types the server speaks.
    pub media: Media,
    /// `--delete-collection-workers`: objects of a collection that are deleted at the same time.
    pub delete_workers: usize,
    /// `--enable-garbage-collector`: a delete may ask what becomes of dependents.
    pub collects_garbage: bool,
    /// `--min-request-timeout`: watches whose clients say nothing last this many seconds, up to twice as long. 0: no end.
    pub shortest_watch: u64,
}

/// See the module.
pub struct Engine {
    /// What is served now.
    pub rows: Rows,
    /// etcd.
    pub store: Store,
    /// Caches.
    pub hub: Arc<Hub>,
    /// Service addresses and ports.
    pub services: Services,
    /// What the operator allows.
    pub policy: Policy,
    /// Seconds events live.
    pub event_ttl: i64,
    /// Admission, once it is built (it reads through this engine).
    pub admission: OnceLock<Chain>,
    /// Answers token requests.
    pub tokens: OnceLock<Arc<dyn TokenIssuer>>,
    /// Answers the resources that are computed.
    pub virtuals: OnceLock<Arc<dyn Virtual>>,
    /// Asks the authorisers about what a request turns out to need besides its own verb.
    pub permits: OnceLock<Arc<dyn Permits>>,
    /// Calls conversion webhooks.
    pub caller: OnceLock<Arc<Caller>>,
    /// Cancelled when the server goes down: ends watches.
    pub closing: tokio_util::sync::CancellationToken,
}

/// What a write is about.
pub struct Target<'a> {
    /// The row of the request.
    pub row: &'a Row,
    /// Subresource, or "".
    pub subresource: &'a str,
    /// Namespace, or "".
    pub namespace: &'a str,
    /// Name in the URL; "" on a plain create.
    pub name: &'a str,
    /// Who writes.
    pub user: &'a UserInfo,
    /// Options of the write.
    pub options: &'a WriteOptions,
    /// Options as admission sees them.
    pub options_object: Value,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Where admission's notes for the audit log go.
    pub noted: Noted,
}

/// Options of a delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Nothing is stored.
    pub dry_run: bool,
    /// Seconds of grace.
    pub grace_period_seconds: Option<i64>,
    /// What happens to dependents.
    pub propagation: Option<Propagation>,
    /// `orphanDependents` is given, and false.
    pub cascades: bool,
    /// Precondition.
    pub uid: Option<String>,
    /// Precondition.
    pub resource_version: Option<String>,
}

/// Outcome of a delete.
pub struct Deleted {
    /// The object as last seen, in the storage row's version.
    pub object: Value,
    /// False while it is only marked.
    pub gone: bool,
}

/// Computes the new object from the stored one (`None`: there is none), both in the request's version.
pub type Change<'a> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'a;

impl Engine {
    /// Makes a thread that serves requests independent of others: it reads and writes etcd over a connection of its own.
    /// To be awaited on that thread, for as long as it serves.
    pub async fn settle(self: Arc<Self>) {
        let settled = async {
            match self.store.settle().await {
                Ok(()) => self.hub.answer_here().await,
                Err(error) => tracing::warn!(%error, "this thread shares the connection to etcd"),
            }
        };
        self.closing.run_until_cancelled(settled).await;
    }

    /// The key of an object.
    pub fn key(&self, row: &Resource, namespace: &str, name: &str) -> String {
        let prefix = self.store.key(&row.etcd_prefix);
        if namespace.is_empty() { format!("{prefix}/{name}") } else { format!("{prefix}/{namespace}/{name}") }
    }

    /// A quorum read; the object is in the storage row's version.
    pub async fn read(&self, row: &Row, namespace: &str, name: &str) -> Result<Option<(Value, Stored)>, Status> {
        let storage = &working(row);
        let (found, _) = self.store.get(&self.key(storage, namespace, name)).await.map_err(|e| storage_status(&e))?;
        match found {
            Some(s) => Ok(Some((self.decode(storage, &s).await?, s))),
            None => Ok(None),
        }
    }

    /// Creates `object`, which is decoded, defaulted and in the request's version.
    pub async fn create(&self, t: &mut Target<'_>, mut object: Value) -> Result<Outcome, Status> {
        if !meta::text(&object, "resourceVersion").is_empty() && meta::text(&object, "resourceVersion") != "0" {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
        }
        let generated = meta::text(&object, "name").is_empty() && !meta::text(&object, "generateName").is_empty();
        let base = meta::text(&object, "generateName").to_owned();
        for round in 1.. {
            let mut attempt =
                if generated && round < NAME_ROUNDS { object.clone() } else { std::mem::take(&mut object) };
            if generated {
                meta::set_text(&mut attempt, "name", &meta::generate_name(&base));
            }
            match self.create_once(t, attempt).await {
                Err(e) if generated && round < NAME_ROUNDS && e.is_already_exists() => continue,
                Err(e) if generated && e.is_already_exists() => {
                    let mut e = e;
                    e.message.push_str(", the server was not able to generate a unique name for the object");
                    return Err(e);
                }
                other => return other,
            }
        }
        Err(Status::internal("no name was generated"))
    }

    async fn create_once(&self, t: &mut Target<'_>, object: Value) -> Result<Outcome, Status> {
        let storage = &working(t.row);
        let strategy = strategy::of(t.row);
        let mut object = self.to_storage(t.row, object);
        self.admit(t, Operation::Create, Some(&mut object), None).await?;
        meta::set_text(&mut object, "namespace", t.namespace);
        meta::fill(&mut object);
        strategy.create(storage, &mut object, &StrategyCx { user: t.user });
        let errors = validation::validate_create(t.row, storage, &object);
        self.refuse(t, storage, &object, true, errors)?;
        t.warnings.extend(validation::warnings(storage, &object));
        let name = meta::text(&object, "name").to_owned();
        let allocation = self.services.before_create(self, storage, &mut object, t.options.dry_run).await?;
        if let Err(refused) = self.judge(t, Operation::Create, Some(&mut object), None).await {
            self.services.undo(self, allocation).await;
            return Err(refused);
        }
        let key = self.key(storage, t.namespace, &name);
        let waiting = Waiting::new(storage, self.encode(storage, &object).await?, object);
        if t.options.dry_run {
            let (there, _) = self.store.get(&key).await.map_err(|e| storage_status(&e))?;
            if there.is_some() {
                return Err(Status::already_exists(&t.row.group, &t.row.plural, &name));
            }
            let mut object = waiting.at(storage, 0)?.tree(self, t.row)?;
            meta::set_text(&mut object, "resourceVersion", "");
            return Ok(Outcome::Tree(object));
        }
        let ttl = strategy.expires.then_some(self.event_ttl);
        let refused = match self.store.create(&key, waiting.bytes().to_vec(), ttl).await {
            Ok(Written::Done(revision)) => return waiting.at(storage, revision),
            Ok(Written::Lost(_)) => Status::already_exists(&t.row.group, &t.row.plural, &name),
            Err(e) => storage_status(&e),
        };
        self.services.undo(self, allocation).await;
        Err(refused)
    }

    /// What etcd has at a key.
    async fn fetch(&self, key: &str) -> Result<Option<Base>, Status> {
        let (found, _) = self.store.get(key).await.map_err(|e| storage_status(&e))?;
        Ok(found.map(Base::Stored))
    }

    /// What a write of an object begins with.
    async fn base(&self, storage: &Row, namespace: &str, name: &str, key: &str) -> Result<Option<Base>, Status> {
        let cached = self.hub.running(storage).and_then(|cacher| {
            if namespace.is_empty() { cacher.get(name) } else { cacher.get(&format!("{namespace}/{name}")) }
        });
        match cached {
            Some(entry) => Ok(Some(Base::Cached(entry))),
            None => self.fetch(key).await,
        }
    }

    /// Changes an object. True when it was created instead. `unset_revision_wins` is for patches, whose result always
    /// carries the revision they were computed on.
    pub async fn update(
        &self,
        t: &mut Target<'_>,
        may_create: bool,
        change: &mut Change<'_>,
    ) -> Result<(Outcome, bool), Status> {
        let storage = &working(t.row);
        let key = self.key(storage, t.namespace, t.name);
        let mut found = self.base(storage, t.namespace, t.name, &key).await?;
        for _ in 0..UPDATE_ROUNDS {
            let Some(base) = found else {
                let new = change(None)?;
                if !may_create {
                    return Err(Status::not_found(&t.row.group, &t.row.plural, t.name));
                }
                let mut new = new;
                meta::metadata(&mut new).remove("resourceVersion");
                return Ok((self.create(t, new).await?, true));
            };
            found = match self.update_once(t, storage, &key, &base, change).await {
                Ok(Ok(outcome)) => return Ok((outcome, false)),
                Ok(Err(Again::Lost(there))) => there.map(Base::Stored),
                Ok(Err(Again::Unsure)) => self.fetch(&key).await?,
                Err(refused) if base.is_current() => return Err(refused),
                Err(refused) => {
                    let now = self.fetch(&key).await?;
                    if now.as_ref().is_some_and(|now| now.revision() == base.revision()) {
                        return Err(refused);
                    }
                    now
                }
            };
        }
        Err(conflict(t.row, t.name))
    }

    /// One round; the inner error says why there has to be another.
    async fn update_once(
        &self,
        t: &mut Target<'_>,
        storage: &Row,
        key: &str,
        base: &Base,
        change: &mut Change<'_>,
    ) -> Result<Result<Outcome, Again>, Status> {
        let strategy = strategy::of(t.row);
        let old = self.settled(storage, base.tree(storage)?).await?;
        let own = t.row.custom.is_some() || t.row.is_storage();
        let new = if own { change(Some(&old))? } else { change(Some(&self.to_served(t.row, old.clone())))? };
        let mut new = self.to_storage(t.row, new);
        self.admit(t, Operation::Update, Some(&mut new), Some(&old)).await?;
        check_revision(t, strategy, &new, base.revision())?;
        meta::set_text(&mut new, "namespace", t.namespace);
        meta::set_text(&mut new, "name", t.name);
        meta::carry_over(&mut new, &old);
        prepare(strategy, storage, t.subresource, &mut new, &old);
        let errors = match t.subresource {
            "" | "scale" => validation::validate_update(t.row, storage, &new, &old),
            subresource => validation::validate_subresource(storage, subresource, &new, &old),
        };
        self.refuse(t, storage, &new, false, errors)?;
        if t.subresource.is_empty() {
            t.warnings.extend(validation::warnings(storage, &new));
        }
        let allocation = self.services.before_update(self, storage, &mut new, &old, t.options.dry_run).await?;
        if let Err(refused) = self.judge(t, Operation::Update, Some(&mut new), Some(&old)).await {
            self.services.undo(self, allocation).await;
            return Err(refused);
        }
        meta::set_text(&mut new, "resourceVersion", meta::text(&old, "resourceVersion"));
        // A write that changes nothing but the times of its owners changes nothing.
        proto::merge::apply::keep_timestamps(&mut new, &old);
        meta::metadata(&mut new).remove("resourceVersion");
        let deletable = meta::is_deletable(&new) && !strategy.holds.is_some_and(|f| f(&new));
        let freed = if t.options.dry_run { Allocation::default() } else { freed(storage, &new, &old, deletable) };
        let waiting = Waiting::new(storage, self.encode(storage, &new).await?, new);
        drop(old);
        let revision = base.revision();
        let written = if t.options.dry_run {
            Ok(Written::Done(revision))
        } else if deletable {
            self.store.delete_if(key, revision).await
        } else if base.holds(storage, waiting.bytes()) {
            if !base.is_current() {
                self.services.undo(self, allocation).await;
                return Ok(Err(Again::Unsure));
            }
            Ok(Written::Done(revision))
        } else if strategy.expires {
            self.store.put_if(key, waiting.bytes().to_vec(), revision, Some(self.event_ttl)).await
        } else {
            self.store.put_keeping_lease(key, waiting.bytes().to_vec(), revision, base.lease()).await
        };
        match written.map_err(|e| storage_status(&e))? {
            Written::Done(revision) => {
                self.services.undo(self, freed).await;
                waiting.at(storage, revision).map(Ok)
            }
            Written::Lost(there) => {
                self.services.undo(self, allocation).await;
                Ok(Err(Again::Lost(there)))
            }
        }
    }

    /// Deletes an object, or marks it.
    pub async fn delete(&self, t: &mut Target<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
        let storage = &working(t.row);
        let strategy = strategy::of(t.row);
        let key = self.key(storage, t.namespace, t.name);
        let (mut found, _) = self.store.get(&key).await.map_err(|e| storage_status(&e))?;
        for _ in 0..UPDATE_ROUNDS {
            let Some(stored) = found else { return Err(Status::not_found(&t.row.group, &t.row.plural, t.name)) };
            let mut object = self.decode(storage, &stored).await?;
            check_preconditions(t, options, &object)?;
            let before = object.clone();
            self.admit(t, Operation::Delete, None, Some(&before)).await?;
            self.judge(t, Operation::Delete, None, Some(&before)).await?;
            let grace = strategy.grace.map(|f| f(&object, options.grace_period_seconds));
            let decided = meta::has_propagation(&object);
            let default =
                if strategy.orphans_by_default && !decided { Propagation::Orphan } else { Propagation::Unset };
            let asked = options.propagation.unwrap_or(default);
            let propagation = if self.policy.collects_garbage { asked } else { Propagation::Unset };
            let held = strategy.holds.is_some_and(|f| f(&object));
            let step = meta::mark_deleted(&mut object, grace, options.grace_period_seconds, propagation, held);
            if step == Deletion::Marked
                && let Some(f) = strategy.on_delete
            {
                f(&mut object);
            }
            let written = match step {
                Deletion::Pending => return Ok(Deleted { object: before, gone: false }),
                _ if options.dry_run => Written::Done(stored.revision),
                Deletion::Now => self.store.delete_if(&key, stored.revision).await.map_err(|e| storage_status(&e))?,
                Deletion::Marked => {
                    let mut bare = object.clone();
                    meta::metadata(&mut bare).remove("resourceVersion");
                    let bytes = self.encode(storage, &bare).await?;
                    self.store
                        .put_keeping_lease(&key, bytes, stored.revision, stored.lease)
                        .await
                        .map_err(|e| storage_status(&e))?
                }
            };
            match written {
                Written::Lost(there) => found = there,
                Written::Done(revision) => {
                    let gone = step == Deletion::Now;
                    if gone && !options.dry_run {
                        self.services.after_delete(self, storage, &before).await;
                    }
                    meta::set_text(&mut object, "resourceVersion", &revision.to_string());
                    return Ok(Deleted { object, gone });
                }
            }
        }
        Err(conflict(t.row, t.name))
    }

    /// Changes an object without admission and validation, for subresources that are actions. Returns it as stored.
    pub async fn modify(
        &self,
        row: &Row,
        namespace: &str,
        name: &str,
        dry_run: bool,
        change: &mut (dyn FnMut(&mut Value) -> Result<(), Status> + Send),
    ) -> Result<Value, Status> {
        let storage = &working(row);
        let key = self.key(storage, namespace, name);
        let (mut found, _) = self.store.get(&key).await.map_err(|e| storage_status(&e))?;
        for _ in 0..UPDATE_ROUNDS {
            let Some(stored) = found else { return Err(Status::not_found(&row.group, &row.plural, name)) };
            let mut object = self.decode(storage, &stored).await?;
            change(&mut object)?;
            if dry_run {
                return Ok(object);
            }
            meta::metadata(&mut object).remove("resourceVersion");
            let bytes = self.encode(storage, &object).await?;
            match self
                .store
                .put_keeping_lease(&key, bytes, stored.revision, stored.lease)
                .await
                .map_err(|e| storage_status(&e))?
            {
                Written::Done(revision) => {
                    meta::set_text(&mut object, "resourceVersion", &revision.to_string());
                    return Ok(object);
                }
                Written::Lost(there) => found = there,
            }
        }
        Err(conflict(row, name))
    }

    /// Whether the user of a PUT may also create.
    pub async fn may_create(&self, r: &super::Request, row: &Resource) -> bool {
        let Some(permits) = self.permits.get() else { return true };
        let attributes = shared::authz::Attributes {
            user: r.user.clone(),
            verb: "create".to_owned(),
            namespace: r.info.namespace.clone(),
            api_group: row.group.to_string(),
            api_version: row.version.to_string(),
            resource: row.plural.to_string(),
            name: r.info.name.clone(),
            path: r.info.path.clone(),
            resource_request: true,
            ..shared::authz::Attributes::default()
        };
        permits.allows(&attributes).await
    }

    /// The answer to an object with errors, its own and those of what the operator allows.
    fn refuse(
        &self,
        t: &Target<'_>,
        storage: &Row,
        object: &Value,
        is_new: bool,
        mut errors: Vec<field::Error>,
    ) -> Result<(), Status> {
        // Containers of a pod do not become privileged later; templates are judged again with every change.
        let judged = t.subresource.is_empty() && (is_new || storage.plural != "pods");
        if judged && !self.policy.allow_privileged {
            errors.extend(validation::privileged(storage, object));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let errors = match codec::served_schema(storage) {
            Ok(schema) if storage.custom.is_none() => validation::in_order(schema, errors),
            _ => errors,
        };
        Err(Status::invalid(&t.row.group, &t.row.kind, meta::text(object, "name"), errors))
    }

    /// Reads a stored object in the version writes of the row work in.
    async fn decode(&self, row: &Row, stored: &Stored) -> Result<Value, Status> {
        let object =
            codec::decode(row, &stored.value, stored.revision).map_err(|e| Status::internal(&e.to_string()))?;
        self.settled(row, object).await
    }

    /// An object as read, in the version writes of the row work in.
    async fn settled(&self, row: &Row, object: Value) -> Result<Value, Status> {
        if !crd::changes_version(row) {
            return Ok(object);
        }
        let mut converted = crd::convert::to(self.caller.get(), row, vec![object]).await?;
        Ok(converted.pop().unwrap_or_default())
    }

    /// What etcd is to hold of an object.
    async fn encode(&self, row: &Row, object: &Value) -> Result<Vec<u8>, Status> {
        let failed = |e: codec::CodecError| Status::internal(&e.to_string());
        if !crd::converts(row) {
            return codec::encode(row, object, self.policy.media).map_err(failed);
        }
        let storage = row.storage();
        let converted = crd::convert::to(self.caller.get(), &storage, vec![object.clone()]).await?;
        codec::encode(&storage, converted.first().unwrap_or(object), self.policy.media).map_err(failed)
    }

    /// Entries of a custom resource in a row's version; everything else as it is.
    pub async fn in_version(&self, row: &Row, entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        if !crd::changes_version(row) || entries.is_empty() {
            return Ok(entries);
        }
        let failed = |e: codec::CodecError| Status::internal(&e.to_string());
        let trees = entries.iter().map(|e| codec::value(row, &e.raw)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let converted = crd::convert::to(self.caller.get(), row, trees).await?;
        let entry = |(old, tree): (Arc<Entry>, Value)| {
            let raw = Raw::Json(tree.to_string().into());
            Arc::new(codec::of_tree(row, &old.key, raw, &tree, old.revision))
        };
        Ok(entries.into_iter().zip(converted).map(entry).collect())
    }

    /// From the request's version to the storage row's.
    pub fn to_storage(&self, row: &Row, object: Value) -> Value {
        // Custom resources are converted where they are read and written.
        if row.custom.is_some() || row.is_storage() {
            return object;
        }
        let s = row.storage();
        conversion::convert(object, &row.group, &row.kind, &s.group, &s.version)
    }

    /// From the storage row's version to the request's.
    pub fn to_served(&self, row: &Row, object: Value) -> Value {
        // Custom resources are converted where they are read and written.
        if row.custom.is_some() || row.is_storage() {
            return object;
        }
        let s = row.storage();
        conversion::convert(object, &s.group, &s.kind, &row.group, &row.version)
    }

    /// Mutating admission.
    pub async fn admit(
        &self,
        t: &mut Target<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(chain) = self.admission.get() else { return Ok(()) };
        let mut annotations = BTreeMap::new();
        let outcome = chain.admit(&mut attributes(t, operation, object, old, &mut annotations)).await;
        t.noted.annotate(annotations);
        outcome
    }

    /// Validating admission.
    pub async fn judge(
        &self,
        t: &mut Target<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(chain) = self.admission.get() else { return Ok(()) };
        let mut annotations = BTreeMap::new();
        let outcome = chain.validate(&mut attributes(t, operation, object, old, &mut annotations)).await;
        t.noted.annotate(annotations);
        outcome
    }
}

fn attributes<'a>(
    t: &'a mut Target<'_>,
    operation: Operation,
    object: Option<&'a mut Value>,
    old_object: Option<&'a Value>,
    annotations: &'a mut BTreeMap<String, String>,
) -> Attributes<'a> {
    Attributes {
        resource: t.row,
        subresource: t.subresource,
        namespace: t.namespace,
        name: t.name,
        operation,
        user: t.user,
        object,
        old_object,
        options: &t.options_object,
        dry_run: t.options.dry_run,
        warnings: &mut t.warnings,
        annotations,
        reinvocation: Reinvocation::default(),
    }
}

/// What the strategy does before an update of the object or of one of its subresources.
fn prepare(strategy: &Strategy, row: &Resource, subresource: &str, new: &mut Value, old: &Value) {
    use crate::registry::{certificates, core};
    match subresource {
        "" | "scale" => strategy.update(row, new, old),
        "status" => strategy.update_status(new, old),
        "finalize" => core::namespace::finalize(new, old),
        "approval" => certificates::approval(new, old),
        "ephemeralcontainers" => {
            core::pod::ephemeral_containers(new, old);
            strategy.move_generation(new, old);
        }
        "resize" => {
            core::pod::resize(new, old);
            strategy.move_generation(new, old);
        }
        _ => strategy.update(row, new, old),
    }
}

/// `409`: somebody else wrote first.
pub fn conflict(row: &Resource, name: &str) -> Status {
    Status::conflict(
        &row.group,
        &row.plural,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

/// A storage failure as clients see it.
pub fn storage_status(error: &storage::Error) -> Status {
    match error {
        storage::Error::Compacted => Status::expired("The resourceVersion for the provided list is too old."),
        other => Status::unknown(&other.to_string()),
    }
}

/// The text of a name that does not exist.
pub fn not_found(row: &Resource, name: &str) -> String {
    format!("{} {name:?} not found", qualified(row))
}
