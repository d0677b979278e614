//! Changing what is there: an object is read, changed, judged and written under a precondition, again and again until
//! nobody else was faster. Answers for upstream's `Store.Update`, `GuaranteedUpdate`.

use std::pin::pin;

use proto::Value;
use proto::resources::{Resource, Row};
use shared::status::Status;
use shared::traces;

use super::super::original::{OriginalState, Retry};
use super::super::outcome::WriteOutcome;
use super::super::preconditions::check_revision;
use super::super::update_meters;
use super::{Change, Engine, Reservation, UPDATE_ROUNDS, WriteTarget, conflict, storage_status};
use crate::crd;
use crate::machinery::meta;
use crate::registry::strategy::{self, Strategy};
use crate::registry::{behavior, owners};
use crate::storage::WriteResult;

/// Conversions of an object that may depend on one another, in the search for who owns what.
const CONVERSION_ROUNDS: usize = 16;

impl Engine {
    /// Reads the state of a key from etcd.
    async fn fetch(&self, key: &str) -> Result<Option<OriginalState>, Status> {
        let (found, _) = self.store.get(key).await.map_err(|e| storage_status(&e))?;
        Ok(found.map(OriginalState::Stored))
    }

    /// Original state of a write: from the watch cache when it has the object, else from etcd.
    async fn original_state(
        &self,
        storage: &Row,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Option<OriginalState>, Status> {
        let cached = self.caches.running(storage).and_then(|cacher| {
            if namespace.is_empty() { cacher.get(name) } else { cacher.get(&format!("{namespace}/{name}")) }
        });
        match cached {
            Some(entry) => Ok(Some(OriginalState::Cached(entry))),
            None => self.fetch(key).await,
        }
    }

    /// Changes an object, or creates it where there is none and the target says so: then the answer is true.
    pub async fn update(
        &self,
        t: &mut WriteTarget<'_>,
        change: &mut Change<'_>,
    ) -> Result<(WriteOutcome, bool), Status> {
        let storage = &behavior(t.row).working_row(t.row);
        let key = self.key(storage, t.namespace, t.name);
        let updating = pin!(async {
            match self.update_in_rounds(t, storage, &key, change).await {
                Err(refused) if t.too_large(&refused) => self.update_in_rounds(t, storage, &key, change).await,
                other => other,
            }
        });
        self.store.updating(storage, &key, updating).await
    }

    async fn update_in_rounds(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        key: &str,
        change: &mut Change<'_>,
    ) -> Result<(WriteOutcome, bool), Status> {
        let mut found = self.original_state(storage, t.namespace, t.name, key).await?;
        traces::step("initial value restored");
        for _ in 0..UPDATE_ROUNDS {
            let Some(original) = found else {
                if t.creation.is_none() {
                    return Err(Status::not_found(&t.row.group, &t.row.plural, t.name));
                }
                let mut new = change(None)?;
                meta::metadata(&mut new).remove("resourceVersion");
                match self.create(t, new).await {
                    // Somebody else created it meanwhile: what is there is changed.
                    Err(refused) if refused.is_already_exists() => found = self.fetch(key).await?,
                    other => return other.map(|created| (created, true)),
                }
                continue;
            };
            found = match self.update_once(t, storage, key, &original, change).await {
                Ok(Ok(outcome)) => return Ok((outcome, false)),
                Ok(Err(Retry::Conflict(there))) => {
                    traces::step("Retry value restored");
                    there.map(OriginalState::Stored)
                }
                Ok(Err(Retry::StaleCache)) => self.fetch(key).await?,
                Ok(Err(Retry::Failed(why))) => return Err(*why),
                Err(refused) if original.is_current() => return Err(refused),
                Err(refused) => {
                    let now = self.fetch(key).await?;
                    if now.as_ref().is_some_and(|now| now.revision() == original.revision()) {
                        return Err(refused);
                    }
                    now
                }
            };
        }
        Err(conflict(t.row, t.name))
    }

    /// Applies a change to an object, and again for as long as it turns out to need the object in further versions.
    async fn convert_and_change(
        &self,
        t: &WriteTarget<'_>,
        old: &Value,
        change: &mut Change<'_>,
    ) -> Result<Value, Status> {
        let Some(conversions) = &t.conversions else { return change(Some(old)) };
        for _ in 0..CONVERSION_ROUNDS {
            let new = change(Some(old));
            let wanted = conversions.wanted();
            if wanted.is_empty() {
                return new;
            }
            for (api_version, object) in wanted {
                let version = api_version.rsplit('/').next().unwrap_or_default();
                let converted = match behavior(t.row).other_version(&self.rows, t.row, (&t.row.group, version)) {
                    Some(row) => crd::convert::between(&*self.caller, &row, vec![object.clone()]).await,
                    None => Err(Status::not_found(&t.row.group, &t.row.plural, t.name)),
                };
                let converted = converted.map(|mut all| all.pop().unwrap_or_default());
                conversions.record(&object, api_version, converted);
            }
        }
        change(Some(old))
    }

    /// One round; the inner error says why there has to be another.
    async fn update_once(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        key: &str,
        original: &OriginalState,
        change: &mut Change<'_>,
    ) -> Result<Result<WriteOutcome, Retry>, Status> {
        let old = self.in_storage_version(storage, original.tree(storage)?).await?;
        let (mut new, mut reservation) = self.apply_change(t, storage, original, &old, change).await?;
        let replaced = match self.validate(t, storage, &mut new, &old).await {
            Ok(()) => self.replace(t, storage, (key, original), new, old, &mut reservation).await,
            Err(refused) => Err(refused),
        };
        reservation.settle().await;
        replaced
    }

    /// The object as its change, admission and its strategy leave it, and what its hook took for it.
    async fn apply_change(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        original: &OriginalState,
        old: &Value,
        change: &mut Change<'_>,
    ) -> Result<(Value, Reservation), Status> {
        let strategy = strategy::strategy_of(t.row);
        let own = behavior(t.row).is_served_as_kept(t.row);
        let new = if own {
            self.convert_and_change(t, old, change).await?
        } else {
            change(Some(&self.to_served(t.row, old.clone())))?
        };
        let mut new = self.to_storage(t.row, new);
        self.admit_change(t, &mut new, old).await?;
        owners::dedup(&mut new, owners::DedupPhase::Admitted, &mut t.warnings);
        if t.drops_managed_fields {
            meta::metadata(&mut new).remove("managedFields");
        }
        check_revision(t, strategy, &new, original.revision())?;
        meta::set_text(&mut new, "namespace", t.namespace);
        meta::set_text(&mut new, "name", t.name);
        meta::carry_over(&mut new, old);
        self.gated.drop_disabled_fields(storage, &mut new, Some(old));
        let (which, dry) = ((&**storage, t.subresource), t.options.dry_run);
        let reservation = match self.hook.begin_update(which, &mut new, old, dry) {
            Some(begin) => begin.await?,
            None => Reservation::default(),
        };
        let whole = self.gated.whole_resize;
        prepare(strategy, (storage, t.subresource), &mut new, old, whole);
        Ok((new, reservation))
    }

    /// Validation, and admission's judgement of what passed it.
    async fn validate(
        &self,
        t: &mut WriteTarget<'_>,
        storage: &Row,
        new: &mut Value,
        old: &Value,
    ) -> Result<(), Status> {
        let mut errors = self.check_admin_access(t, storage, new, Some(old)).await;
        let options = self.gated.relaxed.for_update(storage, old);
        let behavior = behavior(storage);
        errors.extend(match t.subresource {
            "" | "scale" => behavior.validate_update(options, (t.row, storage), (new, old)),
            subresource => behavior.validate_subresource(options, storage, subresource, (new, old)),
        });
        errors.extend(self.gated.validate_gated(storage, t.subresource, new, Some(old)));
        self.refuse(t, storage, new, false, errors)?;
        t.warnings.extend(behavior.warnings(options, storage, t.subresource, new, Some(old)));
        self.validate_change(t, new, old).await
    }

    /// Writes what was approved, if nobody was faster, and does what follows from it. An object that nothing holds any
    /// more is deleted instead.
    async fn replace(
        &self,
        t: &WriteTarget<'_>,
        storage: &Row,
        (key, original): (&str, &OriginalState),
        mut new: Value,
        old: Value,
        reservation: &mut Reservation,
    ) -> Result<Result<WriteOutcome, Retry>, Status> {
        meta::set_text(&mut new, "resourceVersion", meta::text(&old, "resourceVersion"));
        // A write that changes nothing but the times of its owners changes nothing.
        update_meters::keep_timestamps(&mut new, &old);
        meta::metadata(&mut new).remove("resourceVersion");
        let (strategy, dry) = (strategy::strategy_of(t.row), t.options.dry_run);
        let deletable = meta::is_deletable(&new) && !strategy.holds.is_some_and(|f| f(&new));
        let surplus = if dry || deletable { None } else { self.hook.surplus(storage, &new, &old) };
        let count = strategy.counts.filter(|_| !dry).and_then(|counts| counts(&new, &old));
        let pending = self.encode_pending(storage, new).await?;
        let gone = (deletable && !dry).then_some(old);
        let revision = original.revision();
        reservation.sent();
        let written = if dry {
            Ok(WriteResult::Done(revision))
        } else if deletable {
            self.store.delete_if(key, revision).await
        } else if original.holds(storage, pending.bytes()) {
            if !original.is_current() {
                reservation.refused();
                return Ok(Err(Retry::StaleCache));
            }
            Ok(WriteResult::Done(revision))
        } else if strategy.expires {
            self.store.put_if(key, pending.bytes().to_vec(), revision, Some(self.event_ttl)).await
        } else {
            self.store.put_keeping_lease(key, pending.bytes().to_vec(), revision, original.lease()).await
        };
        let revision = match written {
            Ok(WriteResult::Done(revision)) => revision,
            Ok(WriteResult::Lost(there)) => {
                reservation.refused();
                return Ok(Err(Retry::Conflict(there)));
            }
            Err(error) => return Ok(Err(Retry::Failed(Box::new(storage_status(&error))))),
        };
        if let Some(count) = count {
            count();
        }
        if let Some(release) = surplus {
            release.await;
        }
        if let Some(old) = gone {
            // Nor does anybody have what the change was given.
            reservation.refused();
            self.after_delete(storage, &old).await;
        }
        self.finish_traced(pending, storage, revision).await.map(Ok)
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
        let storage = &behavior(row).working_row(row);
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
                WriteResult::Done(revision) => {
                    meta::set_text(&mut object, "resourceVersion", &revision.to_string());
                    return Ok(object);
                }
                WriteResult::Lost(there) => found = there,
            }
        }
        Err(conflict(row, name))
    }
}

/// Runs the strategy's `PrepareForUpdate` of the object or of one of its subresources.
fn prepare(strategy: &Strategy, (row, subresource): (&Resource, &str), new: &mut Value, old: &Value, whole: bool) {
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
            core::pod::resize(new, old, whole);
            strategy.move_generation(new, old);
        }
        _ => strategy.update(row, new, old),
    }
}
