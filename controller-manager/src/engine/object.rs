//! Small readings of object metadata that every controller needs.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use shared::informer::{Cached, Object};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Metadata that controllers read, however a cache holds it.
pub trait Metadata {
    /// Name.
    fn name(&self) -> Option<&str>;
    /// Namespace.
    fn namespace(&self) -> Option<&str>;
    /// Unique id.
    fn uid(&self) -> Option<&str>;
    /// Version.
    fn resource_version(&self) -> Option<&str>;
    /// Labels.
    fn labels(&self) -> Option<&BTreeMap<String, String>>;
    /// Annotations.
    fn annotations(&self) -> Option<&BTreeMap<String, String>>;
    /// Owners.
    fn owners(&self) -> &[OwnerReference];
    /// Finalizers.
    fn finalizers(&self) -> &[String];
    /// Creation time.
    fn created(&self) -> Option<&Time>;
    /// Time at which the object is to be gone: the deletion was requested, and its grace period is over.
    fn deleted(&self) -> Option<&Time>;

    /// The name, to hold; empty without one.
    fn held_name(&self) -> Arc<str> {
        self.name().unwrap_or_default().into()
    }

    /// The uid, to hold; empty without one.
    fn held_uid(&self) -> Arc<str> {
        self.uid().unwrap_or_default().into()
    }
}

impl Metadata for ObjectMeta {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }

    fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.labels.as_ref()
    }

    fn annotations(&self) -> Option<&BTreeMap<String, String>> {
        self.annotations.as_ref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    fn created(&self) -> Option<&Time> {
        self.creation_timestamp.as_ref()
    }

    fn deleted(&self) -> Option<&Time> {
        self.deletion_timestamp.as_ref()
    }
}

/// Objects that caches hold: the API's types, and those made of them to hold less.
pub trait Held: Cached {
    /// Type of the object on the server.
    type Api: Resource<DynamicType = ()>;
    /// Metadata of the object.
    type Meta: Metadata;
    /// Returns the metadata.
    fn metadata(&self) -> &Self::Meta;
}

impl<K: Object> Held for K {
    type Api = K;
    type Meta = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// Namespace and name, the usual work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// From parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Of an object.
    #[must_use]
    pub fn of(meta: &impl Metadata) -> Self {
        Self::new(namespace(meta), name(meta))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// The name, or the empty string.
#[must_use]
pub fn name(meta: &impl Metadata) -> &str {
    meta.name().unwrap_or_default()
}

/// The namespace, or the empty string.
#[must_use]
pub fn namespace(meta: &impl Metadata) -> &str {
    meta.namespace().unwrap_or_default()
}

/// The uid, or the empty string.
#[must_use]
pub fn uid(meta: &impl Metadata) -> &str {
    meta.uid().unwrap_or_default()
}

/// Reports whether deletion has been requested.
#[must_use]
pub fn deleting(meta: &impl Metadata) -> bool {
    meta.deleted().is_some()
}

/// Returns the creation time; the epoch if unknown.
#[must_use]
pub fn created(meta: &impl Metadata) -> Timestamp {
    meta.created().map_or(Timestamp::UNIX_EPOCH, |t| t.0)
}

/// The owner reference that says who controls the object.
#[must_use]
pub fn controller_of(meta: &impl Metadata) -> Option<&OwnerReference> {
    meta.owners().iter().find(|r| r.controller == Some(true))
}

/// An annotation's value.
#[must_use]
pub fn annotation<'a>(meta: &'a impl Metadata, key: &str) -> Option<&'a str> {
    meta.annotations()?.get(key).map(String::as_str)
}

/// A label's value.
#[must_use]
pub fn label<'a>(meta: &'a impl Metadata, key: &str) -> Option<&'a str> {
    meta.labels()?.get(key).map(String::as_str)
}

/// A controlling owner reference to `owner`.
pub fn controller_ref<K: Held>(owner: &K::Meta) -> OwnerReference {
    OwnerReference {
        api_version: K::Api::api_version(&()).into_owned(),
        kind: K::Api::kind(&()).into_owned(),
        name: name(owner).to_owned(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns the reference of an event's object.
pub fn reference<K: Held>(meta: &K::Meta) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::Api::api_version(&()).into_owned()),
        kind: Some(K::Api::kind(&()).into_owned()),
        name: meta.name().map(str::to_owned),
        namespace: meta.namespace().map(str::to_owned),
        uid: meta.uid().map(str::to_owned),
        resource_version: meta.resource_version().map(str::to_owned),
        field_path: None,
    }
}

/// Reports whether two versions of an object ask for the same: only the status of it differs, if anything.
#[must_use]
pub fn asks_the_same(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    old.generation.is_some()
        && (old.generation, &old.uid, &old.deletion_timestamp) == (new.generation, &new.uid, &new.deletion_timestamp)
        && (&old.labels, &old.annotations) == (&new.labels, &new.annotations)
        && (&old.owner_references, &old.finalizers) == (&new.owner_references, &new.finalizers)
}

/// `now` as the API stores it, to the second.
#[must_use]
pub fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Reports whether `labels` satisfy a map selector. An empty selector selects nothing, as for Services and controllers.
#[must_use]
pub fn matches_map(selector: Option<&BTreeMap<String, String>>, labels: Option<&BTreeMap<String, String>>) -> bool {
    let Some(selector) = selector.filter(|s| !s.is_empty()) else { return false };
    selector.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
}

/// Reports whether `labels` satisfy a label selector. An empty selector selects everything, an invalid one nothing.
#[must_use]
pub fn matches_selector(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let get = |k: &str| labels.and_then(|l| l.get(k));
    selector.match_labels.iter().flatten().all(|(k, v)| get(k) == Some(v))
        && selector.match_expressions.iter().flatten().all(|e| {
            let listed = |v: &String| e.values.as_ref().is_some_and(|vs| vs.contains(v));
            match e.operator.as_str() {
                "In" => get(&e.key).is_some_and(listed),
                "NotIn" => !get(&e.key).is_some_and(listed),
                "Exists" => get(&e.key).is_some(),
                "DoesNotExist" => get(&e.key).is_none(),
                _ => false,
            }
        })
}

/// Reports whether `labels` satisfy the selector of a controller that makes its own objects: an empty one selects
/// nothing.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    !selector_is_empty(selector) && matches_selector(selector, labels)
}

/// Reports whether a label selector has no term at all.
#[must_use]
pub fn selector_is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "1".to_owned())]);
        let cases = [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["web"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
        ];
        for (selector, want) in cases {
            let parsed: LabelSelector = serde_json::from_value(selector.clone()).expect("selector");
            assert_eq!(matches_selector(&parsed, Some(&labels)), want, "{selector}");
        }
        assert!(!matches_map(Some(&BTreeMap::new()), Some(&labels)), "an empty map selects nothing");
    }
}
