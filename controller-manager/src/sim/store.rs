//! Store of the simulated server: objects by resource, a revision, and the latest changes for watches.

use std::collections::BTreeMap;

use proto::resources::Resource;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Namespace (empty at cluster scope) and name.
pub(super) type Name = (String, String);

/// One change, as a watch tells it.
#[derive(Clone)]
pub(super) struct WatchEvent {
    pub(super) revision: u64,
    pub(super) kind: &'static str,
    pub(super) resource: (String, String),
    pub(super) object: Value,
}

/// All objects and changes.
pub(super) struct Store {
    pub(super) objects: BTreeMap<(String, String), BTreeMap<Name, Value>>,
    pub(super) changes: Vec<WatchEvent>,
    /// Changes up to this revision are forgotten.
    pub(super) compacted: u64,
    pub(super) revision: u64,
    uids: u64,
    /// Tells the watchers of a resource that there is something new.
    news: BTreeMap<(String, String), watch::Sender<u64>>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            changes: Vec::new(),
            compacted: 0,
            revision: 1,
            uids: 0,
            news: BTreeMap::new(),
        }
    }
}

/// The key of a resource in the store.
pub(super) fn key(row: &Resource) -> (String, String) {
    (row.group.to_string(), row.plural.to_string())
}

/// The name of an object.
pub(super) fn name_of(object: &Value) -> Name {
    let text = |k: &str| object["metadata"][k].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

impl Store {
    pub(super) fn uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012}", self.uids)
    }

    pub(super) fn get(&self, resource: &(String, String), name: &Name) -> Option<&Value> {
        self.objects.get(resource)?.get(name)
    }

    /// The objects of a resource, in a namespace or everywhere.
    pub(super) fn list(&self, resource: &(String, String), namespace: &str) -> Vec<Value> {
        let all = self.objects.get(resource).into_iter().flatten();
        all.filter(|(n, _)| namespace.is_empty() || n.0 == namespace).map(|(_, o)| o.clone()).collect()
    }

    /// Store an object and tell watchers.
    pub(super) fn put(&mut self, resource: &(String, String), mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let name = name_of(&object);
        let before = self.objects.entry(resource.clone()).or_default().insert(name, object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(kind, resource, object.clone());
        object
    }

    /// Drop an object and tell watchers.
    pub(super) fn remove(&mut self, resource: &(String, String), name: &Name) -> Option<Value> {
        let mut object = self.objects.get_mut(resource)?.remove(name)?;
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.tell("DELETED", resource, object.clone());
        Some(object)
    }

    fn tell(&mut self, kind: &'static str, resource: &(String, String), object: Value) {
        self.changes.push(WatchEvent { revision: self.revision, kind, resource: resource.clone(), object });
        if let Some(news) = self.news.get(resource) {
            news.send_replace(self.revision);
        }
    }

    /// Hear of every change of a resource.
    pub(super) fn subscribe(&mut self, resource: &(String, String)) -> watch::Receiver<u64> {
        self.news.entry(resource.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Returns the changes after a revision.
    pub(super) fn since(&self, from: u64) -> &[WatchEvent] {
        &self.changes[self.changes.partition_point(|c| c.revision <= from)..]
    }

    /// Forget all changes: watches from before must list again.
    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
        self.changes.clear();
    }
}
