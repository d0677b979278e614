//! Deletes the objects of definitions that go, and says how that is getting on. Answers for upstream's
//! `apiextensions-apiserver/pkg/controller/finalizer`.
//!
//! Each definition by itself: one whose objects cannot be listed, because a webhook that converts them does not answer,
//! holds up no other, and is tried again less and less often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::Value;
use proto::resources::Row;
use shared::authn::UserInfo;
use shared::status::Status;

use crate::api::{Api, DeleteArgs};
use crate::backoff::Backoff;
use crate::crd::is_true;
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::apiextensions::custom_resource_definition::CUSTOM_RESOURCE_DEFINITIONS;
use crate::registry::apiextensions::{FINALIZER, set_condition};
use crate::registry::apiregistration::api_service::API_SERVICES;
use crate::rows::builtin;
use crate::verbs::engine::Engine;

/// Time after which it is said that objects of a definition that goes stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rounds of deleting what is left before it is given a rest.
const ROUNDS: usize = 5;
/// Time until a definition whose objects take long to go is looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause after failures, as upstream's queue has it.
const LONGEST: Duration = Duration::from_secs(1000);

/// A definition whose objects are going.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PendingDeletion {
    since: Instant,
    /// Time of the next round; `None` while one runs.
    due: Option<Instant>,
    backoff: Backoff,
    /// The specification it had when it was looked at last, as a hash.
    pub(super) tried: Option<[u8; 32]>,
}

/// Result of a round: an error is already written to the conditions.
pub(super) type RoundResult = Result<Remaining, Status>;

/// Rest after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    /// No objects: the definition can be deleted.
    Nothing,
    /// Some objects.
    Some,
    /// Some objects, for so long that it was said.
    Stuck,
}

impl PendingDeletion {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, due: Some(now), backoff: Backoff::doubling(AGAIN, LONGEST), tried: None }
    }

    /// Time of the next round.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Starts a round that is due; returns the time since which the objects are being deleted.
    pub(super) fn start_round(&mut self, now: Instant) -> Option<Instant> {
        self.due.take_if(|due| *due <= now).map(|_| self.since)
    }

    /// Resets the back-off because the definition changed.
    pub(super) fn changed(&mut self, now: Instant) {
        self.backoff.reset();
        self.due = self.due.map(|due| due.min(now));
    }

    /// Schedules the next round; returns false when there is none.
    pub(super) fn finish_round(&mut self, round: &RoundResult, now: Instant) -> bool {
        let pause = match round {
            Ok(Remaining::Nothing) => return false,
            Ok(_) => {
                self.backoff.reset();
                AGAIN
            }
            Err(_) => self.backoff.pause(),
        };
        if !matches!(round, Ok(Remaining::Some)) {
            self.since = now;
        }
        self.due = Some(now + pause);
        true
    }
}

/// `Terminating` condition of a definition in deletion.
#[derive(Debug, PartialEq, Eq)]
struct Condition {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Condition {
    fn of(status: &'static str, reason: &'static str, message: &str) -> Self {
        Self { status, reason, message: message.to_owned() }
    }

    fn set(&self, object: &mut Value) {
        set_condition(object, "Terminating", self.status, self.reason, &self.message, &meta::now());
    }
}

/// Resources of our own that lie in etcd where a definition of the same name would have its objects.
const OVERLAPPING: [GroupResource<'static>; 2] = [API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS];

/// Condition of a definition whose objects belong to a built-in resource, and therefore stay.
fn overlapping(group: &str, plural: &str) -> Option<Condition> {
    let why = "instances overlap with built-in resources in storage";
    OVERLAPPING
        .contains(&GroupResource::new(group, plural))
        .then(|| Condition::of("False", "OverlappingBuiltInResource", why))
}

/// Condition after deleting objects: all are gone, the deletion failed, or there was nothing to delete because the
/// resource was never established. `None` while objects are still being deleted and little time has passed.
fn condition(outcome: Option<Result<&bool, &str>>, waited: Duration) -> Option<Condition> {
    Some(match outcome {
        None => Condition::of("False", "NeverEstablished", "resource was never established"),
        Some(Ok(true)) => Condition::of("False", "InstanceDeletionCompleted", "removed all instances"),
        Some(Ok(false)) if waited < PATIENCE => return None,
        Some(Ok(false)) => {
            let message = "could not confirm zero CustomResources remaining: context deadline exceeded";
            Condition::of("True", "InstanceDeletionCheck", message)
        }
        Some(Err(why)) => Condition::of("True", "InstanceDeletionFailed", &format!("could not list instances: {why}")),
    })
}

/// Dependencies of a round.
pub(super) struct CrdFinalizer {
    pub(super) engine: Arc<Engine>,
    pub(super) api: Api,
    pub(super) user: UserInfo,
    pub(super) row: Row,
}

impl CrdFinalizer {
    /// One round: deletes the objects of a definition that goes, and when none is left lets it go.
    pub(super) async fn round(&self, definition: &Value, since: Instant) -> RoundResult {
        let name = tree::name(definition);
        let progress = Condition::of("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
        self.record_condition(name, &progress).await?;
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        let overlaps = overlapping(group, plural);
        let outcome = match overlaps.is_none() && is_true(definition, "Established") {
            true => Some(self.delete_objects(definition).await),
            false => None,
        };
        let waited = since.elapsed();
        let said = || condition(outcome.as_ref().map(|o| o.as_ref().map_err(|e| e.message.as_str())), waited);
        match overlaps.or_else(said) {
            None => Ok(Remaining::Some),
            Some(stays) if stays.status == "True" => {
                self.record_condition(name, &stays).await?;
                outcome.map_or(Ok(Remaining::Stuck), |outcome| outcome.map(|_| Remaining::Stuck))
            }
            Some(done) => {
                let mut last = self.api.get(CUSTOM_RESOURCE_DEFINITIONS, "", name).await?;
                done.set(&mut last);
                if let Some(list) = tree::list_mut(&mut last, &["metadata", "finalizers"]) {
                    list.retain(|f| f != FINALIZER);
                }
                self.api.update(&self.user, CUSTOM_RESOURCE_DEFINITIONS, "status", last).await?;
                Ok(Remaining::Nothing)
            }
        }
    }

    async fn record_condition(&self, name: &str, condition: &Condition) -> Result<(), Status> {
        let mut change = |object: &mut Value| -> Result<(), Status> {
            condition.set(object);
            Ok(())
        };
        self.engine.modify(&self.row, "", name, false, &mut change).await.map(|_| ())
    }

    /// Deletes all objects; reports whether all are gone.
    async fn delete_objects(&self, definition: &Value) -> Result<bool, Status> {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        // Nobody can have made objects of a definition in the place of a resource of our own: those there are ours.
        if self.engine.rows.defined_storage(GroupResource::new(group, plural)).is_none()
            || builtin(group, plural).is_some()
        {
            return Ok(true);
        }
        let mut delay = Duration::from_millis(10);
        for _ in 0..ROUNDS {
            let left = self.api.list(GroupResource::new(group, plural), None).await?;
            if left.is_empty() {
                return Ok(true);
            }
            for object in left.iter().filter(|o| !tree::has(o, "/metadata/deletionTimestamp")) {
                let (namespace, name) = (tree::namespace(object), tree::name(object));
                match self
                    .api
                    .delete(&self.user, GroupResource::new(group, plural), namespace, name, DeleteArgs::default())
                    .await
                {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminating_conditions() {
        let (soon, late) = (PATIENCE / 2, PATIENCE);
        for (outcome, waited, want) in [
            (None, soon, Some(("False", "NeverEstablished"))),
            (Some(Ok(&true)), late, Some(("False", "InstanceDeletionCompleted"))),
            (Some(Ok(&false)), soon, None),
            (Some(Ok(&false)), late, Some(("True", "InstanceDeletionCheck"))),
            (Some(Err("no")), soon, Some(("True", "InstanceDeletionFailed"))),
        ] {
            let found = condition(outcome, waited);
            assert_eq!(found.as_ref().map(|c| (c.status, c.reason)), want, "{outcome:?} {waited:?}");
        }
        for (group, plural, reason) in [
            ("apiregistration.k8s.io", "apiservices", Some("OverlappingBuiltInResource")),
            ("apiextensions.k8s.io", "customresourcedefinitions", Some("OverlappingBuiltInResource")),
            ("apps", "deployments", None),
        ] {
            assert_eq!(overlapping(group, plural).map(|c| c.reason), reason, "{plural}.{group}");
        }
        let failed = condition(Some(Err("no")), soon).map(|c| c.message);
        assert_eq!(failed.as_deref(), Some("could not list instances: no"));
    }

    /// Seconds until the rounds that follow these.
    fn pauses(rounds: &[RoundResult]) -> Vec<u64> {
        let mut now = Instant::now();
        let mut going = PendingDeletion::new(now);
        let mut out = Vec::new();
        for round in rounds {
            assert!(going.start_round(now).is_some() && going.start_round(now).is_none(), "one at a time");
            assert!(going.finish_round(round, now));
            let due = going.due().expect("another round");
            out.push((due - now).as_secs());
            assert!(going.start_round(now).is_none(), "not before its time");
            now = due;
        }
        out
    }

    #[test]
    fn a_definition_that_fails_is_tried_less_and_less_often() {
        let failed = || Err(Status::internal("the webhook does not answer"));
        assert_eq!(pauses(&[Ok(Remaining::Some), Ok(Remaining::Stuck), Ok(Remaining::Some)]), [1, 1, 1]);
        let many: Vec<RoundResult> = (0..12).map(|_| failed()).collect();
        assert_eq!(pauses(&many), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        assert_eq!(pauses(&[failed(), failed(), Ok(Remaining::Some), failed(), failed()]), [1, 2, 1, 1, 2]);
        let now = Instant::now();
        let mut going = PendingDeletion::new(now);
        going.start_round(now);
        going.changed(now);
        assert_eq!(going.due(), None, "a round is under way");
        going.finish_round(&failed(), now);
        going.changed(now);
        assert!(going.start_round(now).is_some(), "what failed may work now");
        assert!(!going.finish_round(&Ok(Remaining::Nothing), now));
    }
}
