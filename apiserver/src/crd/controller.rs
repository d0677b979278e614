//! Follows the definitions: accepts names, publishes rows, deletes the objects of a definition that goes.
//!
//! One task. It looks at a definition whenever it changes, and at those whose names may have become free when one goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proto::Value;
use proto::resources::Row;
use shared::authn::UserInfo;
use shared::status::Status;

use super::definition::{self, is_true};
use super::names;
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
    /// What is known of each definition.
    known: BTreeMap<String, Arc<Value>>,
    /// What its rows were made from.
    published: BTreeMap<String, Value>,
    /// Definitions whose objects are still going.
    going: BTreeSet<String>,
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
        let found: BTreeMap<String, Arc<Value>> = watch
            .initial
            .drain(..)
            .filter_map(|e| Some((e.name().to_owned(), Arc::new(codec::value(&self.row, &e.raw).ok()?))))
            .collect();
        let gone: Vec<String> = self.known.keys().filter(|k| !found.contains_key(*k)).cloned().collect();
        for name in gone {
            self.forget(&name);
        }
        self.known = found;
        // What is established is served at once; then the rest is looked at.
        let all: Vec<Arc<Value>> = self.known.values().cloned().collect();
        for definition in &all {
            self.publish(definition);
        }
        ready();
        for definition in all {
            self.settle(&definition).await;
        }
        loop {
            let message = tokio::select! {
                message = watch.receiver.recv() => message,
                () = tokio::time::sleep(AGAIN), if !self.going.is_empty() => {
                    for name in std::mem::take(&mut self.going) {
                        if let Some(definition) = self.known.get(&name).cloned() {
                            self.settle(&definition).await;
                        }
                    }
                    continue;
                }
            };
            let Some(message) = message else { return };
            let name = message.entry.name().to_owned();
            if message.live.change.after.is_none() {
                self.forget(&name);
                // Names may have become free.
                for definition in self.waiting() {
                    self.settle(&definition).await;
                }
                continue;
            }
            let Ok(value) = codec::value(&self.row, &message.entry.raw) else { continue };
            let value = Arc::new(value);
            self.known.insert(name, value.clone());
            self.settle(&value).await;
        }
    }

    fn waiting(&self) -> Vec<Arc<Value>> {
        self.known.values().filter(|d| !is_true(d, "NamesAccepted")).cloned().collect()
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
        }
    }

    /// What rows are made from: they are made again only when this changes.
    fn source(definition: &Value) -> Value {
        serde_json::json!([
            definition["metadata"]["uid"],
            definition["spec"],
            definition["status"]["acceptedNames"],
            is_true(definition, "Terminating"),
        ])
    }

    /// Serves a definition that is established.
    fn publish(&mut self, definition: &Value) {
        if !is_true(definition, "Established") {
            return;
        }
        let (name, source) = (tree::name(definition).to_owned(), Self::source(definition));
        if self.published.get(&name) == Some(&source) {
            return;
        }
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        let before = self.engine.rows.storage(group, plural);
        let rows = definition::rows(definition);
        self.engine.rows.set(group, plural, &rows);
        // Watches of the old rows end: what they see may look different now. A definition that goes only loses verbs.
        if let Some(before) = before
            && self.published.get(&name).is_none_or(|old| old[1] != source[1])
        {
            self.engine.hub.forget(&before);
        }
        self.published.insert(name, source);
    }

    async fn settle(&mut self, definition: &Arc<Value>) {
        if let Err(error) = self.look_at(definition).await
            && !error.is_not_found()
        {
            tracing::warn!(error = %error.message, definition = tree::name(definition), "custom resource definition");
        }
    }

    async fn look_at(&mut self, definition: &Arc<Value>) -> Result<(), Status> {
        let mut current = (**definition).clone();
        if tree::has(&current, "/metadata/deletionTimestamp") {
            self.publish(&current);
            return self.clean_up(&current).await;
        }
        let others: Vec<Arc<Value>> = self.known.values().cloned().collect();
        let accept = |object: &mut Value| names::accept(object, others.iter().map(|o| &**o), &meta::now());
        if accept(&mut current) {
            let mut change = |object: &mut Value| -> Result<(), Status> {
                accept(object);
                Ok(())
            };
            current = self.engine.modify(&self.row, "", tree::name(definition), false, &mut change).await?;
            self.known.insert(tree::name(definition).to_owned(), Arc::new(current.clone()));
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
