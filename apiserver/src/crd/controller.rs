//! Follows the definitions: accepts names, publishes rows, deletes the objects of a definition that goes.
//!
//! One task. It looks at a definition whenever it changes, and at those whose names may have become free when one goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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
use crate::registry::meta;
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
    /// Definitions whose objects are still going.
    going: BTreeSet<String>,
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
            going: BTreeSet::new(),
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
                    let going = std::mem::take(&mut self.going);
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
        if let Some(definition) = self.known.remove(name)
            && self.published.remove(name).is_some()
        {
            self.withdraw(&definition);
        }
    }

    fn withdraw(&self, definition: &Value) {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        if let Some(row) = self.engine.rows.storage(group, plural) {
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
        let before = self.engine.rows.storage(group, plural);
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
        self.going.insert(name.to_owned());
        let condition = |status: &'static str, reason: &'static str, message: String| {
            move |object: &mut Value| {
                names::set_condition(object, "Terminating", status, reason, &message, &meta::now());
            }
        };
        self.note(
            name,
            &condition("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned()),
        )
        .await?;
        match self.delete_objects(definition).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                let message = format!("could not list instances: {}", error.message);
                self.note(name, &condition("True", "InstanceDeletionFailed", message)).await?;
                return Err(error);
            }
        }
        let done = condition("False", "InstanceDeletionCompleted", "removed all instances".to_owned());
        let mut last = self.api.get(GROUP, PLURAL, "", name).await?;
        done(&mut last);
        if let Some(list) = tree::list_mut(&mut last, &["metadata", "finalizers"]) {
            list.retain(|f| f != FINALIZER);
        }
        self.api.update(&self.user, GROUP, PLURAL, "status", last).await?;
        self.going.remove(name);
        Ok(())
    }

    async fn note(&self, name: &str, change: &(dyn Fn(&mut Value) + Sync)) -> Result<(), Status> {
        let mut change = |object: &mut Value| -> Result<(), Status> {
            change(object);
            Ok(())
        };
        self.engine.modify(&self.row, "", name, false, &mut change).await.map(|_| ())
    }

    /// Whether all objects are gone.
    async fn delete_objects(&self, definition: &Value) -> Result<bool, Status> {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        if self.engine.rows.storage(group, plural).is_none() {
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
