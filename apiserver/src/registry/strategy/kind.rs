//! Fields of a strategy, and what writes do by them. Answers for upstream's `rest.BeforeCreate`, `rest.BeforeUpdate`.

use proto::Value;
use proto::resources::Resource;
use serde_json::Map;
use shared::authn::UserInfo;

use crate::registry::FieldGates;

/// Rule for `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// Counts updates of the specification, starting from none.
    Changes,
    /// Always 1.
    First,
    /// With any change outside `metadata` and `status`.
    Spec,
    /// With any change outside `metadata`: where `status` is written separately, it does not change here.
    All,
    /// With any change outside `status` and the metadata other than annotations.
    SpecAndAnnotations,
    /// With any change outside `status` and the metadata other than labels.
    SpecAndLabels,
}

/// Treatment of `status` in writes of the object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusTreatment {
    /// `status` is dropped on create and kept on update.
    Apart,
    /// `status` is initialized on create.
    AtCreation,
    /// `status` is written like any field.
    Open,
}

/// Facts a strategy function may need.
pub struct StrategyCx<'a> {
    /// User who writes.
    pub user: &'a UserInfo,
    /// Receives warnings for the client.
    pub warnings: &'a mut Vec<String>,
    /// Feature gates.
    pub gated: &'a FieldGates,
}

/// Strategy of a kind.
pub struct Strategy {
    /// See there.
    pub generation: Generation,
    /// PUT on a missing name creates.
    pub create_on_update: bool,
    /// PUT without a resourceVersion replaces whatever is there.
    pub unconditional_update: bool,
    /// See there.
    pub status: StatusTreatment,
    /// A prefix that a name is to be made from gets a suffix.
    pub suffixes: bool,
    /// Metadata that a write of `status` does not change. (Of custom resources it changes none.)
    pub status_restores: &'static [&'static str],
    /// Runs after defaults and mutating admission, before validation.
    pub prepare_create: Option<fn(&mut Value, &mut StrategyCx<'_>)>,
    /// Hook for a PUT or PATCH of the main resource; the second argument is the stored object.
    pub prepare_update: Option<fn(&mut Value, &Value)>,
    /// Hook for a write of `status`; the second argument is the stored object.
    pub prepare_status: Option<fn(&mut Value, &Value)>,
    /// Seconds of grace of a delete that asks for `requested`; `None` when the kind has no grace.
    pub grace: Option<fn(&Value, requested: Option<i64>) -> i64>,
    /// Condition that holds a deleted object besides finalizers, such as a namespace's content.
    pub holds: Option<fn(&Value) -> bool>,
    /// Marks the object when its deletion begins.
    pub on_delete: Option<fn(&mut Value)>,
    /// A delete that does not say what happens to dependents leaves them alone.
    pub orphans_by_default: bool,
    /// Lives in etcd for `--event-ttl` only.
    pub expires: bool,
    /// Count to record once an update (new object, old object) is written.
    pub counts: Option<fn(&Value, &Value) -> Option<Count>>,
}

/// Counts what was written.
pub type Count = Box<dyn FnOnce() + Send>;

/// Metadata fields that clients may write.
pub(in crate::registry) const METADATA: &[&str] =
    &["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"];

impl Strategy {
    /// Drops or sets what a client may not decide at creation.
    pub fn create(&self, resource: &Resource, object: &mut Value, cx: &mut StrategyCx<'_>) {
        let status = has_status(resource);
        if let Some(map) = object.as_object_mut() {
            if status && self.status == StatusTreatment::Apart {
                map.remove("status");
            }
            if let Some(meta) = map.entry("metadata").or_insert_with(|| Value::Object(Map::new())).as_object_mut() {
                meta.remove("generation");
                if !matches!(self.generation, Generation::None | Generation::Changes) {
                    meta.insert("generation".to_owned(), Value::from(1));
                }
            }
        }
        if let Some(f) = self.prepare_create {
            f(object, cx);
        }
    }

    /// Restores what a write of the main resource may not change, and moves the generation.
    pub fn update(&self, resource: &Resource, new: &mut Value, old: &Value) {
        if has_status(resource) && self.status != StatusTreatment::Open {
            restore(new, old, "status");
        }
        if let Some(f) = self.prepare_update {
            f(new, old);
        }
        self.move_generation(new, old);
    }

    /// Counts the generation up when the specification changed.
    pub fn move_generation(&self, new: &mut Value, old: &Value) {
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        let moves = !matches!(self.generation, Generation::None | Generation::First);
        let moved = moves && self.spec_changed(new, old);
        set_generation(new, generation + i64::from(moved));
    }

    /// A write of `status`: everything but status and, of some kinds, metadata is as stored.
    pub fn update_status(&self, new: &mut Value, old: &Value) {
        let Some(old_map) = old.as_object() else { return };
        if let Some(map) = new.as_object_mut() {
            map.retain(|k, _| matches!(k.as_str(), "status" | "metadata") || old_map.contains_key(k));
            for (k, v) in old_map {
                if !matches!(k.as_str(), "status" | "metadata") {
                    map.insert(k.clone(), v.clone());
                }
            }
        }
        set_generation(new, old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0));
        for field in self.status_restores {
            restore(&mut new["metadata"], &old["metadata"], field);
        }
        if let Some(f) = self.prepare_status {
            f(new, old);
        }
    }

    fn spec_changed(&self, new: &Value, old: &Value) -> bool {
        let extra = match self.generation {
            Generation::SpecAndAnnotations => Some("/metadata/annotations"),
            Generation::SpecAndLabels => Some("/metadata/labels"),
            _ => None,
        };
        if extra.is_some_and(|p| new.pointer(p) != old.pointer(p)) {
            return true;
        }
        let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
        let relevant = |k: &&String| match k.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => self.generation == Generation::All,
            _ => true,
        };
        new.keys().chain(old.keys()).filter(relevant).any(|k| new.get(k) != old.get(k))
    }
}

/// True for kinds with a `status` subresource.
pub fn has_status(resource: &Resource) -> bool {
    resource.subresources.iter().any(|s| s.name == "status")
}

/// Puts back a field as stored.
pub fn restore(new: &mut Value, old: &Value, field: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(v) => map.insert(field.to_owned(), v.clone()),
        None => map.remove(field),
    };
}

fn set_generation(object: &mut Value, generation: i64) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if generation == 0 {
            meta.remove("generation");
        } else {
            meta.insert("generation".to_owned(), Value::from(generation));
        }
    }
}
