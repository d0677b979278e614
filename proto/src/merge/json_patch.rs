//! JSON patch (RFC 6902).
//!
//! Negative array indices count from the end, as upstream's library has it, which replaces and tests the whole document
//! and does nothing else with it. A patch is applied to a copy: on failure the target is untouched.

use serde_json::{Map, Value};

use super::json_type;
use crate::json::MAX_TREE_DEPTH;

/// Most operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Most bytes (about) that `copy` operations of one patch may add.
const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;
/// Most bytes (about) that `move` operations of one patch may be about: each time it is looked how deep they reach.
const MAX_MOVED_BYTES: usize = 1 << 28;

/// Errors of a patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a list of operations: the client's mistake (400).
    #[error("{0}")]
    Decode(String),
    /// Too many operations (413).
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// An operation does not fit the document (422; upstream hides the text from clients).
    #[error("{0}")]
    Apply(String),
    /// A `test` found another value (422 like the others).
    #[error("testing value {0} failed: test failed")]
    Test(String),
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    op: String,
    path: Option<String>,
    from: Option<String>,
    value: Option<Value>,
}

/// Operations and the complaints of strict decoding (`json patch unknown field "[0].x"`).
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// Operations in order.
    pub operations: Vec<Operation>,
    /// Unknown fields; callers report them as errors or warnings.
    pub strict: Vec<String>,
}

impl Patch {
    /// Reads a decoded patch document.
    ///
    /// # Errors
    /// [`Error::Decode`] for a wrong shape, [`Error::TooMany`] for too many operations.
    pub fn decode(document: Value) -> Result<Self, Error> {
        let wrong = |value: &Value, what: &str| {
            let kind = json_type(value);
            Error::Decode(format!("error decoding patch: json: cannot unmarshal {kind} into Go {what}"))
        };
        let list = match document {
            Value::Array(list) => list,
            Value::Null => Vec::new(),
            other => return Err(wrong(&other, "value of type []handlers.jsonPatchOp")),
        };
        let mut patch = Self { operations: Vec::with_capacity(list.len().min(MAX_OPERATIONS)), strict: Vec::new() };
        let count = list.len();
        for (i, item) in list.into_iter().enumerate() {
            let fields = match item {
                Value::Object(fields) => fields,
                Value::Null => Map::new(),
                other => return Err(wrong(&other, "value of type handlers.jsonPatchOp")),
            };
            let mut op = Operation { op: String::new(), path: None, from: None, value: None };
            for (name, value) in fields {
                let text = |value: Value| match value {
                    Value::String(s) => Ok(Some(s)),
                    Value::Null => Ok(None),
                    other => Err(wrong(&other, &format!("struct field jsonPatchOp.{name} of type string"))),
                };
                match name.as_str() {
                    "op" => op.op = text(value)?.unwrap_or_default(),
                    "path" => op.path = text(value)?,
                    "from" => op.from = text(value)?,
                    "value" => op.value = Some(value),
                    other => patch.strict.push(format!("json patch unknown field \"[{i}].{other}\"")),
                }
            }
            patch.operations.push(op);
        }
        if count > MAX_OPERATIONS { Err(Error::TooMany(count)) } else { Ok(patch) }
    }

    /// Applies all operations, or none when one fails.
    ///
    /// # Errors
    /// [`Error::Apply`].
    pub fn apply(&self, target: &mut Value) -> Result<(), Error> {
        let mut document = target.clone();
        let mut work = Work::default();
        for op in &self.operations {
            op.apply(&mut document, &mut work)?;
        }
        *target = document;
        Ok(())
    }
}

fn fail<T>(text: String) -> Result<T, Error> {
    Err(Error::Apply(text))
}

/// Bytes that the operations of a patch have copied and moved so far.
#[derive(Default)]
struct Work {
    copied: usize,
    moved: usize,
}

/// Rough size of a value as JSON, and how many values stand in one another in it.
fn measure(value: &Value) -> (usize, usize) {
    let all = |parts: &mut dyn Iterator<Item = (usize, &Value)>| {
        parts.fold((2, 1), |(size, depth), (more, part)| {
            let (inner, levels) = measure(part);
            (size + more + inner, depth.max(levels + 1))
        })
    };
    match value {
        Value::String(s) => (s.len() + 2, 1),
        Value::Array(list) => all(&mut list.iter().map(|v| (1, v))),
        Value::Object(map) => all(&mut map.iter().map(|(k, v)| (k.len() + 4, v))),
        _ => (4, 1),
    }
}

/// Checks the depth of a value at a path: small patches could build trees deeper than any that is read.
fn fits(path: &[String], depth: usize) -> Result<(), Error> {
    if path.len() + depth > MAX_TREE_DEPTH + 1 { fail("exceeded max depth".to_owned()) } else { Ok(()) }
}

/// The steps of a path that names a part of a document: what comes before its first slash does not count.
fn tokens(path: &str) -> Option<Vec<String>> {
    let (_, steps) = path.split_once('/')?;
    Some(steps.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect())
}

/// Position in a list; negative counts from the end.
fn position(token: &str, len: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let len = i64::try_from(len).ok()?;
    let index = if index < 0 { index.checked_add(len)? } else { index };
    usize::try_from(index).ok().filter(|i| i64::try_from(*i).is_ok_and(|i| i < len))
}

fn find<'a>(document: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(document, |at, token| match at {
        Value::Object(map) => map.get(token),
        Value::Array(list) => position(token, list.len()).and_then(|i| list.get(i)),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(document, |at, token| match at {
        Value::Object(map) => map.get_mut(token),
        Value::Array(list) => position(token, list.len()).and_then(|i| list.get_mut(i)),
        _ => None,
    })
}

/// Reasons for which a value cannot be put into a place, or taken from it.
enum Misfit {
    /// There is nothing to hold it.
    Missing,
    /// The container refuses, with this text.
    Wrong(String),
}

/// Error of an invalid list index.
fn misplaced(token: &str) -> String {
    match token.parse::<i64>() {
        Ok(index) => format!("Unable to access invalid index: {index}: invalid index referenced"),
        Err(_) => format!("strconv.Atoi: parsing {token:?}: invalid syntax"),
    }
}

fn add(document: &mut Value, path: &[String], value: Value) -> Result<(), Misfit> {
    let (last, parents) = path.split_last().ok_or(Misfit::Missing)?;
    match find_mut(document, parents) {
        Some(Value::Object(map)) => {
            map.insert(last.clone(), value);
        }
        Some(Value::Array(list)) if last == "-" => list.push(value),
        Some(Value::Array(list)) => {
            // One past the end is allowed here, and -1 is that place.
            let at = position(last, list.len() + 1).ok_or_else(|| {
                let wrong = misplaced(last);
                Misfit::Wrong(match last.parse::<i64>() {
                    Ok(_) => wrong,
                    Err(_) => format!("value was not a proper array index: '{last}': {wrong}"),
                })
            })?;
            list.insert(at, value);
        }
        _ => return Err(Misfit::Missing),
    }
    Ok(())
}

/// Reports whether a path names a key of an object, present or not.
fn in_object(document: &Value, path: &[String]) -> bool {
    path.split_last().and_then(|(_, parents)| find(document, parents)).is_some_and(Value::is_object)
}

fn remove(document: &mut Value, path: &[String]) -> Result<Value, Misfit> {
    let (last, parents) = path.split_last().ok_or(Misfit::Missing)?;
    match find_mut(document, parents) {
        Some(Value::Object(map)) => map
            .remove(last)
            .ok_or_else(|| Misfit::Wrong(format!("Unable to remove nonexistent key: {last}: missing value"))),
        Some(Value::Array(list)) => match position(last, list.len()) {
            Some(at) => Ok(list.remove(at)),
            None => Err(Misfit::Wrong(misplaced(last))),
        },
        _ => Err(Misfit::Missing),
    }
}

impl Work {
    /// Counts what is moved; how deep it is.
    fn moves(&mut self, value: &Value) -> Result<usize, Error> {
        let (size, depth) = measure(value);
        self.moved += size;
        if self.moved > MAX_MOVED_BYTES {
            return fail("unable to move, too much was moved already".to_owned());
        }
        Ok(depth)
    }

    /// Counts what is copied; how deep it is.
    fn copies(&mut self, value: &Value) -> Result<usize, Error> {
        let (size, depth) = measure(value);
        self.copied += size;
        if self.copied > MAX_COPY_BYTES {
            let all = self.copied;
            return fail(format!("unable to copy, the accumulated size increase of copy operations is {all}"));
        }
        Ok(depth)
    }
}

impl Operation {
    /// Replaces or tests the whole document.
    fn apply_to_all(&self, document: &mut Value) -> Result<(), Error> {
        let value = self.value.as_ref().unwrap_or(&Value::Null);
        if self.op == "test" {
            return if same(document, value) { Ok(()) } else { Err(Error::Test(String::new())) };
        }
        if !value.is_object() && !value.is_array() {
            return fail("replace operation value must be object or array".to_owned());
        }
        fits(&[], measure(value).1)?;
        *document = value.clone();
        Ok(())
    }

    fn apply(&self, document: &mut Value, work: &mut Work) -> Result<(), Error> {
        let op = self.op.as_str();
        if !["add", "remove", "replace", "move", "copy", "test"].contains(&op) {
            return fail(format!("Unexpected kind: {op}"));
        }
        let Some(text) = self.path.as_deref() else {
            return fail(format!("{op} operation failed to decode path: missing value"));
        };
        if text.is_empty() && matches!(op, "replace" | "test") {
            return self.apply_to_all(document);
        }
        let missing = |what: &str| format!("{op} operation does not apply: doc is missing {what}: missing value");
        let path = tokens(text);
        let from_text = self.from.as_deref().unwrap_or_default();
        let from = || tokens(from_text).ok_or_else(|| Error::Apply(missing(&format!("from path: {from_text}"))));
        let target = |shown: String| path.as_deref().ok_or_else(|| Error::Apply(missing(&shown)));
        let destination = format!("destination path: {text}");
        match op {
            "add" => {
                let (shown, value) = (format!("path: \"{text}\""), self.value.clone().unwrap_or_default());
                let path = target(shown.clone())?;
                fits(path, measure(&value).1)?;
                add(document, path, value)
                    .map_err(|why| why.told(&missing(&shown), &format!("error in add for path: '{text}'")))
            }
            "remove" => {
                let shown = format!("path: \"{text}\"");
                let removed = remove(document, target(shown.clone())?);
                let told = |why: Misfit| why.told(&missing(&shown), &format!("error in remove for path: '{text}'"));
                removed.map(drop).map_err(told)
            }
            "replace" => {
                let path = target(format!("path: {text}"))?;
                let value = self.value.clone().unwrap_or_default();
                fits(path, measure(&value).1)?;
                if let Some(old) = find_mut(document, path) {
                    *old = value;
                    return Ok(());
                }
                // Upstream's library does not miss the key of an object.
                if in_object(document, path) {
                    return add(document, path, value).map_err(|why| why.told(&missing("path"), "replace"));
                }
                let holder = path.split_last().and_then(|(_, parents)| find(document, parents));
                let what = if holder.is_some_and(Value::is_array) { "key" } else { "path" };
                fail(missing(&format!("{what}: {text}")))
            }
            "move" => {
                let from = from()?;
                let last = from.last().cloned().unwrap_or_default();
                let told = |why: Misfit| {
                    why.told(&missing(&format!("from path: {from_text}")), &format!("error in move for path: '{last}'"))
                };
                let value = remove(document, &from).map_err(told)?;
                let path = target(destination.clone())?;
                fits(path, work.moves(&value)?)?;
                let told = |why: Misfit| why.told(&missing(&destination), &format!("error in move for path: '{text}'"));
                add(document, path, value).map_err(told)
            }
            "copy" => {
                let from = from()?;
                let value = match find(document, &from) {
                    Some(value) => value,
                    None if in_object(document, &from) => &Value::Null,
                    None => return fail(missing(&format!("from path: {from_text}"))),
                };
                let depth = work.copies(value)?;
                let path = target(destination.clone())?;
                fits(path, depth)?;
                let value = value.clone();
                let told = |why: Misfit| why.told(&missing(&destination), "error while adding value during copy");
                add(document, path, value).map_err(told)
            }
            _ => {
                let wanted = self.value.as_ref().unwrap_or(&Value::Null);
                let (last, parents) = path.as_deref().and_then(<[String]>::split_last).unzip();
                let holder = parents.and_then(|parents| find(document, parents));
                let found = match (holder, last) {
                    (Some(Value::Object(map)), Some(key)) => map.get(key).unwrap_or(&Value::Null),
                    (Some(Value::Array(list)), Some(at)) => match position(at, list.len()) {
                        Some(at) => &list[at],
                        None => return fail(format!("error in test for path: '{text}': {}", misplaced(at))),
                    },
                    _ => return fail(format!("test operation does not apply: is missing path: {text}: missing value")),
                };
                if same(found, wanted) { Ok(()) } else { Err(Error::Test(text.to_owned())) }
            }
        }
    }
}

impl Misfit {
    /// Error in the words of upstream's library: `missing` without a container, else `wrong` with the container's
    /// error.
    fn told(self, missing: &str, wrong: &str) -> Error {
        Error::Apply(match self {
            Self::Missing => missing.to_owned(),
            Self::Wrong(why) => format!("{wrong}: {why}"),
        })
    }
}

/// Equality where `1` and `1.0` are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(target: Value, patch: Value) -> Result<Value, String> {
        let mut target = target;
        let patch = Patch::decode(patch).map_err(|e| e.to_string())?;
        patch.apply(&mut target).map_err(|e| e.to_string())?;
        Ok(target)
    }

    #[test]
    fn operations() {
        let doc = json!({"a": {"b": 1}, "l": [1, 2, 3], "t~/x": 1});
        let table = [
            (
                json!([{"op": "add", "path": "/a/c", "value": 2}]),
                json!({"a": {"b": 1, "c": 2}, "l": [1, 2, 3], "t~/x": 1}),
            ),
            (json!([{"op": "add", "path": "/l/-", "value": 4}]), json!({"a": {"b": 1}, "l": [1, 2, 3, 4], "t~/x": 1})),
            (json!([{"op": "add", "path": "/l/0", "value": 0}]), json!({"a": {"b": 1}, "l": [0, 1, 2, 3], "t~/x": 1})),
            (json!([{"op": "remove", "path": "/l/-1"}]), json!({"a": {"b": 1}, "l": [1, 2], "t~/x": 1})),
            (
                json!([{"op": "replace", "path": "/t~0~1x", "value": null}]),
                json!({"a": {"b": 1}, "l": [1, 2, 3], "t~/x": null}),
            ),
            (
                json!([{"op": "replace", "path": "/a/c", "value": 2}, {"op": "copy", "from": "/none", "path": "/a/d"}]),
                json!({"a": {"b": 1, "c": 2, "d": null}, "l": [1, 2, 3], "t~/x": 1}),
            ),
            (json!([{"op": "move", "from": "/a/b", "path": "/l/1"}]), json!({"a": {}, "l": [1, 1, 2, 3], "t~/x": 1})),
            (json!([{"op": "replace", "path": "", "value": {"x": 1}}]), json!({"x": 1})),
            (
                json!([{"op": "test", "path": "", "value": doc}, {"op": "remove", "path": "passed-over/l"}]),
                json!({"a": {"b": 1}, "t~/x": 1}),
            ),
            (
                json!([{"op": "copy", "from": "/l", "path": "/a/b"}]),
                json!({"a": {"b": [1, 2, 3]}, "l": [1, 2, 3], "t~/x": 1}),
            ),
            (
                json!([{"op": "test", "path": "/a", "value": {"b": 1.0}}, {"op": "test", "path": "/none", "value": null}]),
                doc.clone(),
            ),
        ];
        for (patch, want) in table {
            assert_eq!(run(doc.clone(), patch.clone()), Ok(want), "{patch}");
        }
    }

    #[test]
    fn failures_change_nothing() {
        let doc = json!({"a": {"b": 1}, "l": [1]});
        for op in [
            json!({"op": "remove", "path": "/a/x"}),
            json!({"op": "replace", "path": "/x/y", "value": 1}),
            json!({"op": "replace", "path": "/l/1", "value": 1}),
            json!({"op": "copy", "from": "/x/y", "path": "/a/c"}),
            json!({"op": "move", "from": "/x", "path": "/a/c"}),
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "add", "path": "/l/5", "value": 1}),
            json!({"op": "test", "path": "/a/b", "value": 2}),
            json!({"op": "zap", "path": "/a"}),
            json!({"op": "remove", "path": ""}),
            json!({"op": "add", "path": "", "value": {}}),
            json!({"op": "replace", "path": "", "value": 1}),
            json!({"op": "test", "path": "", "value": {}}),
            json!({"op": "copy", "from": "", "path": "/a/c"}),
            json!({"op": "move", "from": "/a", "path": ""}),
            json!({"op": "add", "path": "a", "value": 1}),
            json!({"op": "add"}),
            json!(null),
        ] {
            let mut target = doc.clone();
            let patch = Patch::decode(json!([{"op": "add", "path": "/new", "value": 1}, op])).unwrap();
            assert!(matches!(patch.apply(&mut target), Err(Error::Apply(_) | Error::Test(_))), "{op}");
            assert_eq!(target, doc);
        }
    }

    #[test]
    fn small_patches_make_no_deep_trees() {
        // Each puts what there is into its innermost object.
        let (mut depth, mut doubling) = (1, Vec::new());
        for _ in 0..17 {
            doubling.push(json!({"op": "copy", "from": "/a", "path": "/a".repeat(depth + 1)}));
            depth *= 2;
        }
        let too_deep = Err("exceeded max depth".to_owned());
        assert_eq!(run(json!({"a": {}}), json!(doubling)), too_deep);
        assert!(run(json!({"a": {}}), json!(doubling[..6])).is_ok());
        let wrap = [
            json!({"op": "add", "path": "/b", "value": {}}),
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let wrapping = |times: usize| json!(vec![wrap.clone(); times].concat());
        assert_eq!(run(json!({"a": {}}), wrapping(3000)), too_deep);
        assert!(run(json!({"a": {}}), wrapping(200)).is_ok());
    }

    #[test]
    fn decoding() {
        let text = |v| Patch::decode(v).map_err(|e| e.to_string());
        assert_eq!(
            text(json!({"op": "x"})),
            Err("error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
                .into())
        );
        assert_eq!(
            text(json!([{"op": "test", "path": "/", "zz": 1}])).map(|p| p.strict),
            Ok(vec!["json patch unknown field \"[0].zz\"".to_owned()])
        );
        assert_eq!(
            text(json!(vec![json!({}); 10_001])),
            Err("The allowed maximum operations in a JSON patch is 10000, got 10001".into())
        );
        let doubling = json!(vec![json!({"op": "copy", "from": "/a", "path": "/a/x"}); 200]);
        let _ = run(json!({"a": {"b": "c"}}), doubling);
        let bomb: Vec<Value> =
            (0..64).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/k{i}")})).collect();
        assert!(run(json!({"a": {"b": "c"}}), json!(bomb)).is_err());
    }
}
