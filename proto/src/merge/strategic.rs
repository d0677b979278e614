//! Strategic merge patch: a merge patch that knows which lists merge, and by which key.
//!
//! Directives: `$patch` (replace, delete), `$retainKeys`, `$deleteFromPrimitiveList/<list>`,
//! `$setElementOrder/<list>`.

use serde_json::{Map, Value};

use super::{go_print, go_type, json_type};
use crate::schema::{Card, Field, Message, ValueKind};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";
const ORDER_PREFIX: &str = "$setElementOrder/";

/// Errors of a strategic merge patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A `$patch` that is none of the known ones.
    #[error("unknown patch type: {0} in map: {1}")]
    UnknownDirective(String, String),
    /// A list element without its key.
    #[error("map: {0} does not contain declared merge key: {1}")]
    NoMergeKey(String, String),
    /// A list of structs without a declared key.
    #[error("cannot merge lists without merge key for {0}")]
    NoDeclaredKey(String),
    /// `$patch: merge` in a list.
    #[error("merging lists cannot yet be specified in the patch")]
    MergeInList,
    /// A list in a list.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// Elements of a merging list differ in type.
    #[error("list element types are not identical: {0} {1}")]
    MixedList(&'static str, &'static str),
    /// A malformed `$deleteFromPrimitiveList`.
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    /// A malformed `$retainKeys`.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// A malformed `$setElementOrder`.
    #[error("invalid patch format of setElementOrder list")]
    ElementOrder,
    /// The patch is not an object.
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NotAnObject(&'static str),
}

impl Error {
    /// HTTP code with which upstream answers.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::PrimitiveList | Self::RetainKeys | Self::ElementOrder | Self::NotAnObject(_) => 400,
            Self::ListOfLists => 422,
            _ => 500,
        }
    }
}

/// Schema of the merged value.
#[derive(Clone, Copy)]
enum Schema<'a> {
    Struct(&'a Message),
    /// Values of a map with string keys.
    MapOf(&'a Field),
    Unknown,
}

/// Schema and merge strategy of one field.
struct FieldStrategy<'a> {
    schema: Schema<'a>,
    merge: bool,
    replace: bool,
    key: &'a str,
}

impl<'a> Schema<'a> {
    fn of_kind(kind: &'a ValueKind) -> Self {
        match kind {
            ValueKind::Message(m) => Self::Struct(m),
            _ => Self::Unknown,
        }
    }

    fn field(self, name: &str) -> FieldStrategy<'a> {
        let unknown = FieldStrategy { schema: Schema::Unknown, merge: false, replace: false, key: "" };
        match self {
            Self::Struct(message) => match message.field(name) {
                Some(field) => FieldStrategy {
                    schema: if field.card == Card::Map { Self::MapOf(field) } else { Self::of_kind(&field.kind) },
                    merge: field.patch.merge,
                    replace: field.patch.replace,
                    key: field.patch_merge_key.as_deref().unwrap_or_default(),
                },
                None => unknown,
            },
            Self::MapOf(field) => FieldStrategy { schema: Self::of_kind(&field.kind), ..unknown },
            Self::Unknown => unknown,
        }
    }

    fn name(self) -> &'a str {
        match self {
            Self::Struct(m) => m.go_name(),
            _ => "",
        }
    }
}

/// Applies a patch to an object of the given type. On failure the target is left half merged: work on a copy.
///
/// # Errors
/// [`Error`] with upstream's text.
pub fn apply(schema: &Message, target: &mut Value, patch: Value) -> Result<(), Error> {
    let Value::Object(patch) = patch else {
        return Err(Error::NotAnObject(json_type(&patch)));
    };
    let original = match std::mem::take(target) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    *target = Value::Object(merge_map(original, patch, Schema::Struct(schema))?);
    Ok(())
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Schema<'_>,
) -> Result<Map<String, Value>, Error> {
    match patch.get(PATCH) {
        Some(Value::String(d)) if d == "replace" => {
            patch.remove(PATCH);
            return Ok(patch);
        }
        Some(Value::String(d)) if d == "delete" => return Ok(Map::new()),
        Some(other) => return Err(Error::UnknownDirective(go_print(other), go_print(&Value::Object(patch.clone())))),
        None => {}
    }
    retain_keys(&mut original, &mut patch)?;
    reorder(&mut original, &mut patch, schema)?;
    // Deletions first, so that an element that is deleted and added ends up present.
    let (deletions, changes): (Vec<_>, Vec<_>) = patch.into_iter().partition(|(k, _)| k.starts_with(DELETE_PREFIX));
    for (key, value) in deletions {
        let name = key.strip_prefix(DELETE_PREFIX).unwrap_or_default();
        let Value::Array(unwanted) = value else { return Err(Error::PrimitiveList) };
        if let Some(Value::Array(list)) = original.get_mut(name) {
            list.retain(|v| !unwanted.contains(v));
        }
    }
    for (key, value) in changes {
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let known = schema.field(&key);
                if known.replace {
                    clean(Value::Object(new))
                } else {
                    Some(Value::Object(merge_map(old, new, known.schema)?))
                }
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let known = schema.field(&key);
                Some(Value::Array(if known.merge { merge_list(old, new, &known)? } else { new }))
            }
            (_, value) => clean(value),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// A value that is new to the object: nulls and directives go away.
fn clean(value: Value) -> Option<Value> {
    Some(match value {
        Value::Null => return None,
        Value::Object(map) => {
            if map.get(PATCH).and_then(Value::as_str) == Some("delete") {
                return None;
            }
            let kept = map.into_iter().filter(|(k, _)| !is_directive(k));
            Value::Object(kept.filter_map(|(k, v)| Some((k, clean(v)?))).collect())
        }
        Value::Array(list) => {
            let lone = |v: &Value| v.as_object().is_some_and(|m| m.len() == 1 && m.contains_key(PATCH));
            Value::Array(list.into_iter().filter(|v| !lone(v)).filter_map(clean).collect())
        }
        other => other,
    })
}

fn is_directive(key: &str) -> bool {
    key == PATCH || key == RETAIN_KEYS || key.starts_with(DELETE_PREFIX) || key.starts_with(ORDER_PREFIX)
}

fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(list) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(list) = list else { return Err(Error::RetainKeys) };
    let listed = |key: &str| list.iter().any(|v| v.as_str() == Some(key));
    let stray = |(k, v): (&String, &Value)| {
        !v.is_null() && !k.starts_with(DELETE_PREFIX) && !k.starts_with(ORDER_PREFIX) && !listed(k)
    };
    if patch.iter().any(stray) {
        return Err(Error::RetainKeys);
    }
    original.retain(|k, _| listed(k));
    Ok(())
}

/// Handles every `$setElementOrder/<list>`: merges the list and arranges it.
fn reorder(original: &mut Map<String, Value>, patch: &mut Map<String, Value>, schema: Schema<'_>) -> Result<(), Error> {
    let keys: Vec<String> = patch.keys().filter(|k| k.starts_with(ORDER_PREFIX)).cloned().collect();
    for key in keys {
        let Some(Value::Array(order)) = patch.remove(&key) else { return Err(Error::ElementOrder) };
        let name = key.strip_prefix(ORDER_PREFIX).unwrap_or_default();
        let known = schema.field(name);
        let deletions = patch.remove(&format!("{DELETE_PREFIX}{name}"));
        let before = match original.remove(name) {
            Some(Value::Array(list)) => Some(list),
            Some(other) => {
                original.insert(name.to_owned(), other);
                continue;
            }
            None => None,
        };
        let change = match patch.remove(name) {
            Some(Value::Array(list)) => Some(list),
            Some(other) => {
                // A null or a scalar wins over any order; the general pass deals with it.
                patch.insert(name.to_owned(), other);
                if let Some(list) = before {
                    original.insert(name.to_owned(), Value::Array(list));
                }
                continue;
            }
            None => None,
        };
        check_order(change.as_deref().unwrap_or_default(), &order, known.key)?;
        let server_order = before.clone().unwrap_or_default();
        let mut merged = match (before, change) {
            (None, None) => continue,
            (Some(before), Some(change)) if known.merge => merge_list(before, change, &known)?,
            (Some(before), None) => before,
            (_, Some(change)) => change.into_iter().filter_map(clean).collect(),
        };
        match deletions {
            Some(Value::Array(unwanted)) => merged.retain(|v| !unwanted.contains(v)),
            Some(_) => return Err(Error::PrimitiveList),
            None => {}
        }
        original.insert(name.to_owned(), Value::Array(arrange(merged, &order, &server_order, known.key)?));
    }
    Ok(())
}

/// The elements of a patch list must stand in the order list, in the same order.
fn check_order(list: &[Value], order: &[Value], key: &str) -> Result<(), Error> {
    let mut at = 0;
    for item in list.iter().filter(|v| v.get(PATCH).is_none()) {
        let found = order.get(at..).and_then(|rest| rest.iter().position(|o| same_identity(o, item, key)));
        match found {
            Some(i) => at += i + 1,
            None => return Err(Error::ElementOrder),
        }
    }
    Ok(())
}

fn same_identity(a: &Value, b: &Value, key: &str) -> bool {
    if key.is_empty() { a == b } else { a.get(key).is_some_and(|x| b.get(key) == Some(x)) }
}

fn need_key(item: &Value, key: &str) -> Result<(), Error> {
    match item {
        Value::Object(map) if !key.is_empty() && !map.contains_key(key) => {
            Err(Error::NoMergeKey(go_print(item), key.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Elements named by the patch in the patch's order, the others in the server's, interleaved by the server's.
fn arrange(merged: Vec<Value>, patch_order: &[Value], server_order: &[Value], key: &str) -> Result<Vec<Value>, Error> {
    for item in merged.iter().chain(patch_order).chain(server_order) {
        need_key(item, key)?;
    }
    let index = |order: &[Value], v: &Value| order.iter().position(|o| same_identity(o, v, key));
    let (mut named, mut rest): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|v| index(patch_order, v).is_some());
    named.sort_by_key(|v| index(patch_order, v));
    rest.sort_by_key(|v| index(server_order, v));
    let mut out = Vec::with_capacity(named.len() + rest.len());
    let (mut named, mut rest) = (named.into_iter().peekable(), rest.into_iter().peekable());
    loop {
        let server_first = match (rest.peek(), named.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => match (index(server_order, l), index(server_order, r)) {
                (Some(l), Some(r)) => l < r,
                _ => false,
            },
        };
        out.extend(if server_first { rest.next() } else { named.next() });
    }
}

fn element_type(original: &[Value], patch: &[Value]) -> Result<&'static str, Error> {
    let mut first = None;
    for item in original.iter().chain(patch) {
        let this = go_type(item);
        match first {
            _ if item.is_array() => return Err(Error::ListOfLists),
            None => first = Some(this),
            Some(first) if first != this => return Err(Error::MixedList(first, this)),
            _ => {}
        }
    }
    Ok(first.unwrap_or_default())
}

fn merge_list(mut original: Vec<Value>, patch: Vec<Value>, known: &FieldStrategy<'_>) -> Result<Vec<Value>, Error> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    if element_type(&original, &patch)? != "map[string]interface {}" {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(&patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return arrange(merged, &patch, &original, "");
    }
    if known.key.is_empty() {
        return Err(Error::NoDeclaredKey(known.schema.name().to_owned()));
    }
    let mut replace = false;
    let mut changes = Vec::with_capacity(patch.len());
    for item in patch {
        match item.get(PATCH).map(|d| d.as_str().unwrap_or_default()) {
            None => changes.push(item),
            Some("delete") => {
                let Some(wanted) = item.get(known.key) else {
                    return Err(Error::NoMergeKey(go_print(&item), known.key.to_owned()));
                };
                original.retain(|v| v.get(known.key) != Some(wanted));
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(Error::MergeInList),
            Some(other) => return Err(Error::UnknownDirective(other.to_owned(), go_print(&item))),
        }
    }
    if replace {
        return Ok(changes.into_iter().filter_map(clean).collect());
    }
    let server_order = original.clone();
    let patch_order: Vec<Value> = changes.clone();
    for item in changes {
        need_key(&item, known.key)?;
        let at = original.iter().position(|v| same_identity(v, &item, known.key));
        match (at.and_then(|i| original.get_mut(i)), item) {
            (Some(slot), Value::Object(change)) => {
                let old = slot.as_object_mut().map(std::mem::take).unwrap_or_default();
                *slot = Value::Object(merge_map(old, change, known.schema)?);
            }
            (_, item) => original.extend(clean(item)),
        }
    }
    arrange(original, &patch_order, &server_order, known.key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema;

    fn run(kind: &str, target: Value, patch: Value) -> Result<Value, String> {
        let schema = schema::kind("", "v1", kind).or_else(|| schema::kind("apps", "v1", kind)).unwrap();
        let mut target = target;
        apply(schema, &mut target, patch).map(|()| target).map_err(|e| e.to_string())
    }

    fn spec(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn lists_merge_by_key() {
        let pod = spec(json!([{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]));
        let table = [
            (
                json!([{"name": "b", "image": "3"}]),
                json!([{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "3"}]),
            ),
            (
                json!([{"name": "c", "image": "3"}]),
                json!([{"name": "c", "image": "3"}, {"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}]),
            ),
            (
                json!([{"name": "a", "args": ["y"]}]),
                json!([{"name": "a", "image": "1", "args": ["y"]}, {"name": "b", "image": "2"}]),
            ),
            (json!([{"name": "a", "$patch": "delete"}]), json!([{"name": "b", "image": "2"}])),
            (json!([{"$patch": "replace"}, {"name": "z"}]), json!([{"name": "z"}])),
            (json!([{"name": "a", "image": null, "$patch": "replace"}]), json!([])),
        ];
        for (patch, want) in table {
            assert_eq!(run("Pod", pod.clone(), spec(patch.clone())), Ok(spec(want)), "{patch}");
        }
        let ordered = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "9"}]}});
        assert_eq!(
            run("Pod", pod, ordered),
            Ok(spec(json!([{"name": "b", "image": "2"}, {"name": "a", "image": "9", "args": ["x"]}])))
        );
    }

    #[test]
    fn primitive_lists_and_maps() {
        let meta = |v: Value| json!({"metadata": v});
        let target = meta(json!({"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}}));
        let table = [
            (json!({"finalizers": ["c"]}), json!({"finalizers": ["c", "a", "b"], "labels": {"x": "1", "y": "2"}})),
            (
                json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
                json!({"finalizers": ["b"], "labels": {"x": "1", "y": "2"}}),
            ),
            (
                json!({"$setElementOrder/finalizers": ["b", "d"], "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["d"]}),
                json!({"finalizers": ["b", "d"], "labels": {"x": "1", "y": "2"}}),
            ),
            (
                json!({"labels": {"x": null, "z": "3"}}),
                json!({"finalizers": ["a", "b"], "labels": {"y": "2", "z": "3"}}),
            ),
            (
                json!({"labels": {"$patch": "replace", "q": "1"}}),
                json!({"finalizers": ["a", "b"], "labels": {"q": "1"}}),
            ),
            (
                json!({"labels": null, "annotations": {"a": null, "b": "c"}}),
                json!({"finalizers": ["a", "b"], "annotations": {"b": "c"}}),
            ),
        ];
        for (patch, want) in table {
            assert_eq!(run("ConfigMap", target.clone(), meta(patch.clone())), Ok(meta(want)), "{patch}");
        }
    }

    #[test]
    fn retained_keys() {
        let strategy = |v: Value| json!({"spec": {"strategy": v}});
        let target = strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}));
        assert_eq!(
            run("Deployment", target.clone(), strategy(json!({"$retainKeys": ["type"], "type": "Recreate"}))),
            Ok(strategy(json!({"type": "Recreate"})))
        );
        assert_eq!(
            run("Deployment", target, strategy(json!({"$retainKeys": ["x"], "type": "Recreate"}))),
            Err("invalid patch format of retainKeys".into())
        );
    }

    #[test]
    fn complaints() {
        let pod = spec(json!([{"name": "a"}]));
        assert_eq!(
            run("Pod", pod.clone(), spec(json!([{"image": "x"}]))),
            Err("map: map[image:x] does not contain declared merge key: name".into())
        );
        assert_eq!(
            run("ConfigMap", json!({"data": {"a": "b"}}), json!({"data": {"$patch": "zap"}})),
            Err("unknown patch type: zap in map: map[$patch:zap]".into())
        );
        assert_eq!(
            run("Pod", pod, spec(json!([1]))),
            Err("list element types are not identical: map[string]interface {} int64".into())
        );
    }
}
