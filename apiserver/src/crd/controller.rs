//! Follows the definitions: accepts names, publishes rows, deletes the objects of a definition that goes.
//!
//! One task. It looks at a definition whenever it changes, and at those whose names may have become free when one goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::Value;
use proto::resources::Row;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use shared::authn::UserInfo;
use shared::status::Status;

use super::definition::{self, is_true};
use super::{meters, names};
use crate::access::tree;
use crate::api::{Api, DeleteArgs};
use crate::cache::{Begin, Entry, Start};
use crate::registry::{builtin, meta};
use crate::storage::codec;
use crate::verbs::engine::Engine;

/// The group definitions are in.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Their plural.
pub const PLURAL: &str = "customresourcedefinitions";
/// Keeps a definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// Time after which it is said that objects of a definition that goes stay.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rounds of deleting what is left before other definitions have their turn.
const ROUNDS: usize = 5;
/// Time until a definition whose objects take long to go is looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// The controller.
pub struct Controller {
    engine: Arc<Engine>,
    api: Api,
    user: UserInfo,
    row: Row,
    /// What is known of each definition: its [`outline`].
    known: BTreeMap<String, Value>,
    /// What its rows were made from.
    published: BTreeMap<String, Source>,
    /// Definitions whose objects are still going, and since when.
    going: BTreeMap<String, Instant>,
}

/// What the rows of a definition are made from, as hashes: they are made again only when this changes.
#[derive(PartialEq, Eq)]
struct Source {
    spec: [u8; 32],
    rest: [u8; 32],
}

impl Source {
    fn of(definition: &Value) -> Self {
        let hash = |value: &Value| Sha256::digest(value.to_string()).into();
        let (uid, names) = (&definition["metadata"]["uid"], &definition["status"]["acceptedNames"]);
        let rest = json!([uid, names, is_true(definition, "Terminating")]);
        Self { spec: hash(&definition["spec"]), rest: hash(&rest) }
    }
}

/// What has to be known of a definition to look at others. There are many, and the cache has the rest.
fn outline(definition: &Value) -> Value {
    let (spec, status) = (&definition["spec"], &definition["status"]);
    json!({
        "metadata": {"name": definition["metadata"]["name"]},
        "spec": {"group": spec["group"], "names": {"plural": spec["names"]["plural"]}},
        "status": {"acceptedNames": status["acceptedNames"], "conditions": status["conditions"]},
    })
}

/// What is said of a definition that goes.
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
        names::set_condition(object, "Terminating", self.status, self.reason, &self.message, &meta::now());
    }
}

/// Resources of our own that lie in etcd where a definition of the same name would have its objects.
const OVERLAPPING: [(&str, &str); 2] =
    [("apiregistration.k8s.io", "apiservices"), ("apiextensions.k8s.io", "customresourcedefinitions")];

/// What is said of a definition whose objects are none of its own, and which therefore stay.
fn overlapping(group: &str, plural: &str) -> Option<Condition> {
    let why = "instances overlap with built-in resources in storage";
    OVERLAPPING.contains(&(group, plural)).then(|| Condition::of("False", "OverlappingBuiltInResource", why))
}

/// What is said after deleting objects: whether all are gone, or why it failed; nothing was to delete of what was never
/// established. Nothing new is said while they are going and it has not been for long.
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

impl Controller {
    /// Over the pipeline; `None` when definitions are not served.
    pub fn new(engine: Arc<Engine>, api: Api) -> Option<Self> {
        let row = engine.rows.storage(GROUP, PLURAL)?;
        let user = UserInfo {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        Some(Self {
            engine,
            api,
            user,
            row,
            known: BTreeMap::new(),
            published: BTreeMap::new(),
            going: BTreeMap::new(),
        })
    }

    /// Works until dropped; calls `ready` once all definitions that are there have been seen.
    pub async fn run(mut self, ready: impl Fn()) {
        loop {
            self.follow(&ready).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One watch, from the state there is until it ends.
    async fn follow(&mut self, ready: &impl Fn()) {
        let cacher = self.engine.hub.cacher(&self.row);
        cacher.wait_ready().await;
        let processed = self.engine.hub.progress(&self.row).processed();
        let begin = Begin { scope: "", start: Start::State, at_least: processed, term: None, trigger: None };
        let Ok(mut watch) = cacher.watch(begin, Arc::new(|_: &Entry| true)) else { return };
        let all: Vec<Value> = watch.initial.drain(..).filter_map(|e| codec::value(&self.row, &e.raw).ok()).collect();
        let found: BTreeMap<String, Value> =
            all.iter().map(|definition| (tree::name(definition).to_owned(), outline(definition))).collect();
        let gone: Vec<String> = self.known.keys().filter(|k| !found.contains_key(*k)).cloned().collect();
        for name in gone {
            self.forget(&name);
        }
        self.known = found;
        // What is established is served at once; then the rest is looked at.
        for definition in &all {
            self.publish(definition);
        }
        ready();
        for definition in all {
            self.settle(definition).await;
        }
        loop {
            let message = tokio::select! {
                message = watch.receiver.recv() => message,
                () = tokio::time::sleep(AGAIN), if !self.going.is_empty() => {
                    let going = self.going.keys().cloned().collect();
                    self.settle_again(going).await;
                    continue;
                }
            };
            let Some(message) = message else { return };
            let name = message.entry.name().to_owned();
            if message.live.change.after.is_none() {
                self.forget(&name);
                // Names may have become free.
                let waiting = self.known.iter().filter(|(_, d)| !is_true(d, "NamesAccepted"));
                let waiting = waiting.map(|(name, _)| name.clone()).collect();
                self.settle_again(waiting).await;
                continue;
            }
            let Ok(value) = codec::value(&self.row, &message.entry.raw) else { continue };
            self.known.insert(name, outline(&value));
            self.settle(value).await;
        }
    }

    /// Looks at definitions as they are in the cache now.
    async fn settle_again(&mut self, names: BTreeSet<String>) {
        let cacher = self.engine.hub.cacher(&self.row);
        for name in names {
            let definition = cacher.get(&name).and_then(|entry| codec::value(&self.row, &entry.raw).ok());
            if let Some(definition) = definition {
                self.settle(definition).await;
            }
        }
    }

    fn forget(&mut self, name: &str) {
        self.going.remove(name);
        if let Some(definition) = self.known.remove(name)
            && self.published.remove(name).is_some()
        {
            self.withdraw(&definition);
        }
    }

    fn withdraw(&self, definition: &Value) {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        if let Some(row) = self.engine.rows.custom_storage(group, plural) {
            self.engine.rows.set(group, plural, &[]);
            self.engine.hub.forget(&row);
            meters::regenerated(definition, "remove");
        }
    }

    /// Serves a definition that is established.
    fn publish(&mut self, definition: &Value) {
        if !is_true(definition, "Established") {
            return;
        }
        let (name, source) = (tree::name(definition).to_owned(), Source::of(definition));
        if self.published.get(&name) == Some(&source) {
            return;
        }
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        let before = self.engine.rows.custom_storage(group, plural);
        let rows = definition::rows(definition);
        self.engine.rows.set(group, plural, &rows);
        // Watches of the old rows end: what they see may look different now. A definition that goes only loses verbs.
        if let Some(before) = before
            && self.published.get(&name).is_none_or(|old| old.spec != source.spec)
        {
            self.engine.hub.forget(&before);
        }
        meters::regenerated(definition, if self.published.contains_key(&name) { "update" } else { "add" });
        self.published.insert(name, source);
    }

    async fn settle(&mut self, definition: Value) {
        let name = tree::name(&definition).to_owned();
        if let Err(error) = self.look_at(definition).await
            && !error.is_not_found()
        {
            tracing::warn!(error = %error.message, definition = name, "custom resource definition");
        }
    }

    async fn look_at(&mut self, mut current: Value) -> Result<(), Status> {
        if tree::has(&current, "/metadata/deletionTimestamp") {
            self.publish(&current);
            return self.clean_up(&current).await;
        }
        let same_group = |other: &&Value| other["spec"]["group"] == current["spec"]["group"];
        let others: Vec<Value> = self.known.values().filter(same_group).cloned().collect();
        let accept = |object: &mut Value| names::accept(object, others.iter(), &meta::now());
        if accept(&mut current) {
            let mut change = |object: &mut Value| -> Result<(), Status> {
                accept(object);
                Ok(())
            };
            let name = tree::name(&current).to_owned();
            current = self.engine.modify(&self.row, "", &name, false, &mut change).await?;
            self.known.insert(name, outline(&current));
        }
        self.publish(&current);
        Ok(())
    }

    /// Deletes the objects of a definition that goes, then lets it go.
    async fn clean_up(&mut self, definition: &Value) -> Result<(), Status> {
        if !tree::strings(definition, "/metadata/finalizers").iter().any(|f| f == FINALIZER) {
            return Ok(());
        }
        let name = tree::name(definition);
        let since = *self.going.entry(name.to_owned()).or_insert_with(Instant::now);
        let progress = Condition::of("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
        self.note(name, &progress).await?;
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        let overlaps = overlapping(group, plural);
        let outcome = match overlaps.is_none() && is_true(definition, "Established") {
            true => Some(self.delete_objects(definition).await),
            false => None,
        };
        let waited = since.elapsed();
        let said = || condition(outcome.as_ref().map(|o| o.as_ref().map_err(|e| e.message.as_str())), waited);
        match overlaps.or_else(said) {
            None => return Ok(()),
            Some(stays) if stays.status == "True" => {
                self.going.insert(name.to_owned(), Instant::now());
                self.note(name, &stays).await?;
                return outcome.map_or(Ok(()), |outcome| outcome.map(|_| ()));
            }
            Some(done) => {
                let mut last = self.api.get(GROUP, PLURAL, "", name).await?;
                done.set(&mut last);
                if let Some(list) = tree::list_mut(&mut last, &["metadata", "finalizers"]) {
                    list.retain(|f| f != FINALIZER);
                }
                self.api.update(&self.user, GROUP, PLURAL, "status", last).await?;
            }
        }
        self.going.remove(name);
        Ok(())
    }

    async fn note(&self, name: &str, condition: &Condition) -> Result<(), Status> {
        let mut change = |object: &mut Value| -> Result<(), Status> {
            condition.set(object);
            Ok(())
        };
        self.engine.modify(&self.row, "", name, false, &mut change).await.map(|_| ())
    }

    /// Whether all objects are gone.
    async fn delete_objects(&self, definition: &Value) -> Result<bool, Status> {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        // Nobody can have made objects of a definition in the place of a resource of our own: those there are ours.
        if self.engine.rows.custom_storage(group, plural).is_none() || builtin(group, plural).is_some() {
            return Ok(true);
        }
        let mut delay = Duration::from_millis(10);
        for _ in 0..ROUNDS {
            let left = self.api.list(group, plural, None).await?;
            if left.is_empty() {
                return Ok(true);
            }
            for object in left.iter().filter(|o| !tree::has(o, "/metadata/deletionTimestamp")) {
                let (namespace, name) = (tree::namespace(object), tree::name(object));
                match self.api.delete(&self.user, group, plural, namespace, name, DeleteArgs::default()).await {
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
    fn what_is_said_of_a_definition_that_goes() {
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
}
