//! Deleting an object, or marking it. Answers for upstream's `Store.Delete`, `BeforeDelete`,
//! `updateForGracefulDeletionAndFinalizers`.

use proto::Value;
use proto::resources::Row;
use shared::status::Status;

use super::super::preconditions::check_preconditions;
use super::{DeleteOptions, Deleted, Engine, UPDATE_ROUNDS, WriteTarget, conflict, storage_status};
use crate::admission::Operation;
use crate::machinery::meta::{self, Deletion, Propagation};
use crate::registry::{behavior, strategy};
use crate::storage::{Stored, WriteResult};

impl Engine {
    /// Deletes an object, or marks it.
    pub async fn delete(&self, t: &mut WriteTarget<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
        let storage = &behavior(t.row).working_row(t.row);
        let strategy = strategy::strategy_of(t.row);
        let key = self.key(storage, t.namespace, t.name);
        let (mut found, _) = self.store.get(&key).await.map_err(|e| self.read_error(&e))?;
        // As it was written to say that it goes.
        let mut last = None;
        for _ in 0..UPDATE_ROUNDS {
            let Some(stored) = found else {
                let gone = |object| Deleted { object, gone: true };
                return last.map(gone).ok_or_else(|| Status::not_found(&t.row.group, &t.row.plural, t.name));
            };
            let mut object = self.decode(storage, &stored).await?;
            check_preconditions(t, options, &object)?;
            // Nobody is asked about a delete that changes nothing.
            if strategy.grace.is_some() && meta::is_waiting(&object, options.grace_period_seconds) {
                return Ok(Deleted { object, gone: false });
            }
            let before = object.clone();
            self.admit_and_validate(t, Operation::Delete, None, Some(&before)).await?;
            let grace = strategy.grace.map(|f| f(&object, options.grace_period_seconds));
            let decided = meta::has_propagation(&object);
            let default =
                if strategy.orphans_by_default && !decided { Propagation::Orphan } else { Propagation::Unset };
            let asked = options.propagation.unwrap_or(default);
            // What expires has no dependents.
            let collected = self.policy.collects_garbage && !strategy.expires;
            let propagation = if collected { asked } else { Propagation::Unset };
            let held = strategy.holds.is_some_and(|f| f(&object));
            let step = meta::mark_deleted(&mut object, grace, options.grace_period_seconds, propagation, held);
            if step == Deletion::Marked
                && let Some(f) = strategy.on_delete
            {
                f(&mut object);
            }
            let mut written = match step {
                Deletion::Pending => return Ok(Deleted { object: before, gone: false }),
                _ if options.dry_run => WriteResult::Done(stored.revision),
                Deletion::Now => self.remove(&key, stored.revision).await?,
                Deletion::Marked | Deletion::MarkedFirst => self.mark(storage, &key, &object, &stored).await?,
            };
            if let (Deletion::MarkedFirst, false, WriteResult::Done(marked)) = (step, options.dry_run, &written) {
                last = Some(object.clone());
                written = self.remove(&key, *marked).await?;
            }
            match written {
                WriteResult::Lost(there) => found = there,
                WriteResult::Done(revision) => {
                    let gone = step != Deletion::Marked;
                    if gone && !options.dry_run {
                        self.after_delete(storage, &before).await;
                    }
                    meta::set_text(&mut object, "resourceVersion", &revision.to_string());
                    return Ok(Deleted { object, gone });
                }
            }
        }
        Err(conflict(t.row, t.name))
    }

    /// Runs what follows from the delete of an object that is gone.
    pub(super) async fn after_delete(&self, storage: &Row, object: &Value) {
        if let Some(following) = self.hook.after_delete(self, storage, object) {
            following.await;
        }
    }

    async fn remove(&self, key: &str, revision: i64) -> Result<WriteResult, Status> {
        self.store.delete_if(key, revision).await.map_err(|e| storage_status(&e))
    }

    async fn mark(&self, storage: &Row, key: &str, object: &Value, stored: &Stored) -> Result<WriteResult, Status> {
        let mut bare = object.clone();
        meta::metadata(&mut bare).remove("resourceVersion");
        let bytes = self.encode(storage, &bare).await?;
        let written = self.store.put_keeping_lease(key, bytes, stored.revision, stored.lease).await;
        written.map_err(|e| storage_status(&e))
    }
}
