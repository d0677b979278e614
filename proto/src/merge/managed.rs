//! `metadata.managedFields`: who owns which fields.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::error::ManagedFieldsError;
use super::fieldset::{Set, StoredFields};
use crate::selector::format::quote;

/// Name of the owner that old update entries are merged into.
const ANCIENT: &str = "ancient-changes";
/// Most update entries of one object.
const MAX_UPDATERS: usize = 10;

/// Manager of fields. Appliers are the same at any version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub applied: bool,
    pub manager: String,
    pub api_version: String,
    pub subresource: String,
}

impl Owner {
    fn is(&self, other: &Self) -> bool {
        self.applied == other.applied
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.applied || self.api_version == other.api_version)
    }

    /// Description in conflicts: `"kubectl" using v1`.
    pub(super) fn describe(&self) -> String {
        let mut text = quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if !self.applied {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// One owner's fields.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub owner: Owner,
    pub set: StoredFields,
    pub time: Option<String>,
}

/// All owners of an object.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Managed(pub Vec<Entry>);

/// Result of decoding managed fields.
pub(super) enum Decoded {
    /// Well-formed and not empty.
    Managed(Managed),
    /// The client asks to forget all owners (`[{}]`).
    Reset,
    /// Absent, empty or malformed.
    Unusable,
}

fn text<'v>(entry: &'v Value, name: &str) -> &'v str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The entries of an object.
pub(super) fn entries(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Takes the entries out of an object.
pub(super) fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

impl Managed {
    /// Reads the entries of an object as it is stored.
    pub(super) fn decode(object: &Value) -> Decoded {
        entries(object).map_or(Decoded::Unusable, |list| Self::read(list.clone(), true))
    }

    /// Reads a list of entries. `stored` ones were written by a server; others are what a client makes of them.
    pub(super) fn read(list: Value, stored: bool) -> Decoded {
        let list = match list {
            Value::Array(list) if !list.is_empty() => list,
            _ => return Decoded::Unusable,
        };
        if let [Value::Object(only)] = list.as_slice()
            && only.values().all(|v| v.is_null() || v.as_str() == Some(""))
        {
            return Decoded::Reset;
        }
        Self::parse(list, stored).map_or(Decoded::Unusable, Decoded::Managed)
    }

    /// Reads entries one by one; the error is upstream's.
    fn parse(list: Vec<Value>, stored: bool) -> Result<Self, ManagedFieldsError> {
        let mut managed = Self::default();
        for (i, mut entry) in list.into_iter().enumerate() {
            let applied = match text(&entry, "operation") {
                "Apply" => true,
                "Update" => false,
                _ => return Err(ManagedFieldsError::Operation),
            };
            let api_version = text(&entry, "apiVersion");
            if api_version.is_empty() {
                return Err(ManagedFieldsError::NoVersion);
            }
            match text(&entry, "fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagedFieldsError::NoFieldsType(i)),
                other => {
                    return Err(ManagedFieldsError::FieldsType { fields_type: other.to_owned(), index: i });
                }
            }
            let owner = Owner {
                applied,
                manager: text(&entry, "manager").to_owned(),
                api_version: api_version.to_owned(),
                subresource: text(&entry, "subresource").to_owned(),
            };
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            let fields = entry.get_mut("fieldsV1").map(Value::take).unwrap_or_default();
            let set = if stored || fields.is_null() {
                StoredFields::stored(fields)
            } else {
                let set = Set::parse(&fields).ok_or_else(|| ManagedFieldsError::Fields(fields.to_string()))?;
                StoredFields::from(set)
            };
            managed.put(Entry { owner, set, time });
        }
        Ok(managed)
    }

    pub(super) fn find(&self, owner: &Owner) -> Option<&Entry> {
        self.0.iter().find(|e| e.owner.is(owner))
    }

    /// Adds or replaces an owner's entry.
    pub(super) fn put(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|e| e.owner.is(&entry.owner)) {
            Some(old) => *old = entry,
            None => self.0.push(entry),
        }
    }

    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|e| !e.set.is_empty());
    }

    /// Merges the oldest update entries when there are too many.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<(Option<String>, Owner)> =
            self.0.iter().filter(|e| !e.owner.applied).map(|e| (e.time.clone(), e.owner.clone())).collect();
        let mut count = updaters.len();
        updaters.sort();
        let mut first_of: Vec<(String, Owner)> = Vec::new();
        for (time, owner) in updaters {
            if count <= MAX_UPDATERS {
                return;
            }
            let version = owner.api_version.clone();
            let bucket = Owner {
                applied: false,
                manager: ANCIENT.into(),
                api_version: version.clone(),
                subresource: String::new(),
            };
            let Some((_, first)) = first_of.iter().find(|(v, _)| *v == version) else {
                first_of.push((version, owner));
                continue;
            };
            let Some(entry) = self.find(&owner).cloned() else { continue };
            let base = self.find(&bucket).or_else(|| self.find(first)).map(|e| e.set.set().clone()).unwrap_or_default();
            let first = first.clone();
            self.0.retain(|e| !(e.owner.is(&first) || e.owner.is(&owner) || e.owner.is(&bucket)));
            self.0.push(Entry { owner: bucket, set: base.union(entry.set.set()).into(), time });
            count -= 1;
        }
    }

    /// Writes the entries into an object, in upstream's order.
    pub(super) fn encode(mut self, object: &mut Value) {
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        if self.0.is_empty() {
            meta.remove("managedFields");
            return;
        }
        // RFC 3339 texts in UTC order as the times do.
        self.0.sort_by(|a, b| {
            (!a.owner.applied, &a.time, &a.owner.manager, &a.owner.api_version, &a.owner.subresource).cmp(&(
                !b.owner.applied,
                &b.time,
                &b.owner.manager,
                &b.owner.api_version,
                &b.owner.subresource,
            ))
        });
        let entries = self.0.into_iter().map(|e| {
            let mut entry = Map::new();
            let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
            if !e.owner.manager.is_empty() {
                put("manager", e.owner.manager.into());
            }
            put("operation", if e.owner.applied { "Apply" } else { "Update" }.into());
            put("apiVersion", e.owner.api_version.into());
            if let Some(time) = e.time {
                put("time", time.into());
            }
            put("fieldsType", "FieldsV1".into());
            put("fieldsV1", e.set.into_value());
            if !e.owner.subresource.is_empty() {
                put("subresource", e.owner.subresource.into());
            }
            Value::Object(entry)
        });
        meta.insert("managedFields".to_owned(), entries.collect());
    }
}

/// Error of an object's managed fields.
#[must_use]
pub fn complaint(object: &Value) -> Option<ManagedFieldsError> {
    let list = entries(object)?.as_array()?.clone();
    Managed::parse(list, false).err()
}

/// Removes the entries from an object.
pub fn strip(object: &mut Value) {
    drop(take(object));
}

/// Result of comparing an object with its old state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Equal but for timestamps of managed fields.
    Equal,
    /// Something beside its owners differs.
    Different,
    /// Only its owners differ.
    OthersOwn,
}

/// Keeps the old timestamps when nothing but timestamps of managed fields changed, so that a write without effect stays
/// without effect.
pub fn keep_timestamps(new: &mut Value, old: &Value) -> Compared {
    if new == old {
        return Compared::Equal;
    }
    if !same_but_owners(new, old) {
        return Compared::Different;
    }
    let bare = |object: &Value| {
        let mut copy = object.clone();
        let entries = copy.get_mut("metadata").and_then(|m| m.get_mut("managedFields")).and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            if let Some(map) = entry.as_object_mut() {
                map.remove("time");
            }
        }
        // Entries are sorted by time, so equal owners may stand in another order.
        if let Some(list) =
            copy.get_mut("metadata").and_then(|m| m.get_mut("managedFields")).and_then(Value::as_array_mut)
        {
            list.sort_by_cached_key(Value::to_string);
        }
        copy
    };
    if bare(new) != bare(old) {
        return Compared::OthersOwn;
    }
    let fields = old.get("metadata").and_then(|m| m.get("managedFields")).cloned();
    if let (Some(fields), Some(meta)) = (fields, new.get_mut("metadata").and_then(Value::as_object_mut)) {
        meta.insert("managedFields".to_owned(), fields);
    }
    Compared::Equal
}

/// Reports whether everything but the managed fields is equal.
fn same_but_owners(a: &Value, b: &Value) -> bool {
    fn same(a: &Value, b: &Value, apart: &str, inside: Option<&str>) -> bool {
        let (Value::Object(a), Value::Object(b)) = (a, b) else { return a == b };
        let others = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(apart));
        others(a) == others(b)
            && a.iter().filter(|(k, _)| *k != apart).all(|(k, v)| b.get(k) == Some(v))
            && inside.is_none_or(|inside| match (a.get(apart), b.get(apart)) {
                (Some(a), Some(b)) => same(a, b, inside, None),
                (a, b) => a == b,
            })
    }
    same(a, b, "metadata", Some("managedFields"))
}

/// The manager of a write: the `fieldManager` parameter, or the first part of the user agent.
#[must_use]
pub fn manager_name(parameter: &str, user_agent: &str) -> String {
    if !parameter.is_empty() {
        return parameter.to_owned();
    }
    let mut name = String::new();
    for c in user_agent.split('/').next().unwrap_or_default().chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() > 128 {
            break;
        }
        name.push(c);
    }
    name
}

/// An object's `namespace/name; group/version, Kind=kind` as error texts have it.
pub(super) fn describe(object: &Value) -> String {
    let meta = object.get("metadata").unwrap_or(&Value::Null);
    format!("{}/{}; {}", text(meta, "namespace"), text(meta, "name"), gvk(object))
}

/// `group/version, Kind=kind`.
pub(super) fn gvk(object: &Value) -> String {
    let api_version = text(object, "apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    format!("{group}/{version}, Kind={}", text(object, "kind"))
}

/// The fields of metadata that nobody owns.
pub(super) fn unowned() -> &'static Set {
    static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
        let mut set = Set::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
        for name in NOBODYS {
            set.extend(&Set::of_fields(&[&["metadata", name]]));
        }
        set
    });
    &UNOWNED
}

const NOBODYS: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Restriction of the fields that a write can own: a field that it cannot change is not owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownable {
    /// All but what is at or below these places.
    Except(Set),
    /// Only fields at, above or below these paths, in which `*` is any element.
    Only(&'static [&'static [&'static str]]),
}

impl Ownable {
    /// Takes out of `set` what cannot be owned.
    pub(super) fn narrow(&self, set: &mut Set) {
        match self {
            Self::Except(fields) => set.prune(fields),
            Self::Only(paths) => set.keep(paths),
        }
    }
}

/// The annotation that client-side apply keeps.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Last configuration of client-side apply (`kubectl.kubernetes.io/last-applied-configuration`).
pub(super) fn last_applied(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str().filter(|s| !s.is_empty())
}

/// Brings the annotation of client-side apply up to what was applied.
pub(super) fn sync_last_applied(object: &mut Value, applied: &Value) {
    let mut copy = applied.clone();
    strip(&mut copy);
    if let Some(annotations) =
        copy.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{copy}\n");
    let slot = object.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(|a| a.get_mut(LAST_APPLIED));
    if let Some(slot) = slot {
        *slot = json!(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_owners_may_differ() {
        let object = |data: i64, label: &str, time: &str| json!({"data": data, "metadata": {"labels": {"a": label}, "managedFields": [{"manager": "m", "time": time}]}});
        let old = object(1, "x", "t1");
        for (new, kept) in [(object(1, "x", "t2"), true), (object(2, "x", "t2"), false), (object(1, "y", "t2"), false)]
        {
            let mut changed = new.clone();
            assert_eq!((keep_timestamps(&mut changed, &old) == Compared::Equal, changed == old), (kept, kept), "{new}");
        }
        let mut more = json!({"data": 1, "extra": 2, "metadata": old["metadata"]});
        assert_ne!(keep_timestamps(&mut more, &old), Compared::Equal);
        let mut bare = json!({"data": 1, "metadata": {"labels": {"a": "x"}}});
        assert_ne!(keep_timestamps(&mut bare, &old), Compared::Equal, "owners that are gone are a change");
    }

    #[test]
    fn manager_names() {
        assert_eq!(manager_name("x", "kubectl/v1"), "x");
        assert_eq!(manager_name("", "kubectl/v1.32 (linux)"), "kubectl");
        assert_eq!(manager_name("", &"a".repeat(200)).len(), 128);
    }

    #[test]
    fn old_updates_are_merged() {
        let entries = (0..13).map(|i| {
            json!({"manager": format!("m{i:02}"), "operation": "Update", "apiVersion": "v1", "time": format!("2026-01-01T00:00:{i:02}Z"),
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{i}"): {}}}})
        });
        let mut object = json!({"metadata": {"managedFields": entries.collect::<Vec<_>>()}});
        let Decoded::Managed(mut managed) = Managed::decode(&object) else { unreachable!("well-formed") };
        managed.cap();
        managed.encode(&mut object);
        let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        assert_eq!(list.len(), 10);
        assert_eq!(list[0]["manager"], ANCIENT);
        assert_eq!(list[0]["fieldsV1"], json!({"f:data": {"f:k0": {}, "f:k1": {}, "f:k2": {}, "f:k3": {}}}));
    }

    #[test]
    fn timestamps_alone_are_no_change() {
        let object =
            |time: &str, v: i64| json!({"metadata": {"managedFields": [{"manager": "a", "time": time}]}, "v": v});
        let old = object("1", 1);
        let mut new = object("2", 1);
        assert_eq!(keep_timestamps(&mut new, &old), Compared::Equal);
        assert_eq!(new, old);
        assert_ne!(keep_timestamps(&mut object("2", 2), &old), Compared::Equal);
    }
}
