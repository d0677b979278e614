//! Follows the definitions: accepts names, publishes rows, deletes the objects of a definition that goes. Answers for
//! upstream's `apiextensions-apiserver/pkg/apiserver` (`crdHandler`), pkg/controller/establish.
//!
//! Answers for the controllers of upstream's `apiextensions-apiserver`. In come changes of definitions, out go the rows
//! that `crd` compiles of them, conditions and deletes, through the same pipeline as everybody's. One task. It looks at
//! a definition whenever it changes, and at those whose names may have become free when one goes. Nothing here knows
//! schemas.

mod finalizer;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use proto::Value;
use proto::resources::Row;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use shared::authn::UserInfo;
use shared::status::Status;

use crate::api::Api;
use crate::cache::{Entry, Start, WatchStart};
use crate::crd::{self, is_true};
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::apiextensions::FINALIZER;
use crate::registry::apiextensions::custom_resource_definition::CUSTOM_RESOURCE_DEFINITIONS;
use crate::storage::codec;
use crate::verbs::engine::Engine;
use finalizer::{CrdFinalizer, PendingDeletion, RoundResult};

/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);

/// The controller.
pub struct Controller {
    engine: Arc<Engine>,
    cleaner: Arc<CrdFinalizer>,
    row: Row,
    /// Each definition's [`outline`], by name.
    known: BTreeMap<String, Value>,
    /// Sources of the published rows.
    published: BTreeMap<String, DefinitionHashes>,
    /// Definitions whose objects are still going.
    going: BTreeMap<String, PendingDeletion>,
    /// Rounds of deleting objects that are under way, at most one of each definition.
    rounds: FuturesUnordered<BoxFuture<'static, (String, RoundResult)>>,
}

/// Hashes of the parts of a definition that its rows are made from: rows are rebuilt only when these change.
#[derive(PartialEq, Eq)]
struct DefinitionHashes {
    spec: [u8; 32],
    rest: [u8; 32],
}

impl DefinitionHashes {
    fn of(definition: &Value) -> Self {
        let hash = |value: &Value| Sha256::digest(value.to_string()).into();
        let (uid, names) = (&definition["metadata"]["uid"], &definition["status"]["acceptedNames"]);
        let rest = json!([uid, names, is_true(definition, "Terminating")]);
        Self { spec: hash(&definition["spec"]), rest: hash(&rest) }
    }
}

/// Extracts the parts of a definition that are compared with other definitions. There are many, and the cache has the
/// rest.
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
        let row = engine.rows.storage(CUSTOM_RESOURCE_DEFINITIONS)?;
        let user = UserInfo {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        let cleaner = CrdFinalizer { engine: Arc::clone(&engine), api, user, row: row.clone() };
        Some(Self {
            engine,
            cleaner: Arc::new(cleaner),
            row,
            known: BTreeMap::new(),
            published: BTreeMap::new(),
            going: BTreeMap::new(),
            rounds: FuturesUnordered::new(),
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
        let cacher = self.engine.caches.cacher(&self.row);
        cacher.wait_ready().await;
        let processed = self.engine.caches.progress(&self.row).processed();
        let begin = WatchStart { scope: "", start: Start::State, at_least: processed, term: None, trigger: None };
        let Ok(mut watch) = cacher.watch(begin, Arc::new(|_: &Entry| true)) else { return };
        let all: Vec<Value> = watch.initial.drain(..).filter_map(|e| codec::value(&self.row, &e.raw).ok()).collect();
        let found: BTreeMap<String, Value> =
            all.iter().map(|definition| (tree::name(definition).to_owned(), outline(definition))).collect();
        let gone: Vec<String> = self.known.keys().filter(|k| !found.contains_key(*k)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
        self.known = found;
        // What is established is served at once; then the rest is looked at.
        for definition in &all {
            self.publish(definition);
        }
        ready();
        for definition in all {
            self.reconcile(definition).await;
        }
        loop {
            let due = self.going.values().filter_map(PendingDeletion::due).min();
            let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
            let message = tokio::select! {
                message = watch.receiver.recv() => message,
                Some((name, round)) = self.rounds.next(), if !self.rounds.is_empty() => {
                    self.round_ended(&name, &round);
                    continue;
                }
                () = tokio::time::sleep(wait), if due.is_some() => {
                    self.settle_again(self.due(Instant::now())).await;
                    continue;
                }
            };
            let Some(message) = message else { return };
            let name = message.entry.name().to_owned();
            if message.live.change.after.is_none() {
                self.remove(&name);
                // Names may have become free.
                let waiting = self.known.iter().filter(|(_, d)| !is_true(d, "NamesAccepted"));
                let waiting = waiting.map(|(name, _)| name.clone()).collect();
                self.settle_again(waiting).await;
                continue;
            }
            let Ok(value) = codec::value(&self.row, &message.entry.raw) else { continue };
            self.known.insert(name, outline(&value));
            self.reconcile(value).await;
        }
    }

    /// Looks at definitions as they are in the cache now.
    async fn settle_again(&mut self, names: BTreeSet<String>) {
        let cacher = self.engine.caches.cacher(&self.row);
        for name in names {
            let definition = cacher.get(&name).and_then(|entry| codec::value(&self.row, &entry.raw).ok());
            if let Some(definition) = definition {
                self.reconcile(definition).await;
            }
        }
    }

    fn remove(&mut self, name: &str) {
        self.going.remove(name);
        if let Some(definition) = self.known.remove(name)
            && self.published.remove(name).is_some()
        {
            self.withdraw(&definition);
        }
    }

    fn withdraw(&self, definition: &Value) {
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        if let Some(row) = self.engine.rows.defined_storage(GroupResource::new(group, plural)) {
            self.engine.rows.set(group, plural, &[]);
            self.engine.caches.remove(&row);
            crd::regenerated(definition, "remove");
        }
    }

    /// Serves a definition that is established.
    fn publish(&mut self, definition: &Value) {
        if !is_true(definition, "Established") {
            return;
        }
        let (name, source) = (tree::name(definition).to_owned(), DefinitionHashes::of(definition));
        if self.published.get(&name) == Some(&source) {
            return;
        }
        let (group, plural) = (tree::text(definition, "/spec/group"), tree::text(definition, "/spec/names/plural"));
        let before = self.engine.rows.defined_storage(GroupResource::new(group, plural));
        let rows = crd::rows(definition);
        self.engine.rows.set(group, plural, &rows);
        // Watches of the old rows end: what they see may look different now. A definition that goes only loses verbs.
        if let Some(before) = before
            && self.published.get(&name).is_none_or(|old| old.spec != source.spec)
        {
            self.engine.caches.remove(&before);
        }
        crd::regenerated(definition, if self.published.contains_key(&name) { "update" } else { "add" });
        self.published.insert(name, source);
    }

    async fn reconcile(&mut self, definition: Value) {
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
            self.begin_round(current);
            return Ok(());
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

    /// Has the objects of a definition that goes deleted, unless that is under way or is to wait. What changes in its
    /// conditions meanwhile is our own doing; anything else may help what failed.
    fn begin_round(&mut self, definition: Value) {
        if !tree::strings(&definition, "/metadata/finalizers").iter().any(|f| f == FINALIZER) {
            return;
        }
        let (name, now) = (tree::name(&definition).to_owned(), Instant::now());
        let going = self.going.entry(name.clone()).or_insert_with(|| PendingDeletion::new(now));
        let spec = DefinitionHashes::of(&definition).spec;
        if going.tried.replace(spec).is_some_and(|before| before != spec) {
            going.changed(now);
        }
        let Some(since) = going.start_round(now) else { return };
        let cleaner = Arc::clone(&self.cleaner);
        self.rounds.push(Box::pin(async move {
            let round = cleaner.round(&definition, since).await;
            (name, round)
        }));
    }

    fn round_ended(&mut self, name: &str, round: &RoundResult) {
        if let Err(error) = round
            && !error.is_not_found()
        {
            tracing::warn!(error = %error.message, definition = name, "custom resource definition");
        }
        if self.going.get_mut(name).is_some_and(|going| !going.finish_round(round, Instant::now())) {
            self.going.remove(name);
        }
    }

    /// Definitions that go and are to be looked at now.
    fn due(&self, now: Instant) -> BTreeSet<String> {
        let due = self.going.iter().filter(|(_, going)| going.due().is_some_and(|due| due <= now));
        due.map(|(name, _)| name.clone()).collect()
    }
}
