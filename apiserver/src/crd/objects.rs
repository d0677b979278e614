//! Custom objects: what the generic pipeline asks of a kind, answered from a version's schema.
//!
//! Answers for upstream's `registry/customresource`. Pure functions on trees; the pipeline in `verbs` calls them for
//! rows that carry [`CrdVersion`].

use std::sync::OnceLock;

use proto::Value;
use proto::merge::{go_print, go_type};
use proto::resources::Resource;
use proto::schema::{self, Card, Derived, Field, Message, ValueKind};
use shared::status::field::{Error, Path};

use super::embedded::{self, Malformed};
use super::version::{CrdVersion, Scale};
use super::{check, lists, meters, prune, rules};
use crate::machinery::meta;
use crate::machinery::tree;

/// Message that bodies of custom objects are decoded by: metadata is typed, everything else is kept as sent.
pub fn open() -> &'static Message {
    static OPEN: OnceLock<Message> = OnceLock::new();
    OPEN.get_or_init(|| {
        let mut fields = vec![
            Field::new("kind", ValueKind::String, Card::Single),
            Field::new("apiVersion", ValueKind::String, Card::Single),
        ];
        if let Some(meta) = schema::reference("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta") {
            let field = Field::new("metadata", ValueKind::Message(meta), Card::Single);
            fields.push(Field { go_type: "v1.ObjectMeta".into(), ..field });
        }
        Message {
            name: schema::OPEN.into(),
            fields: fields.into(),
            wire: (&[]).into(),
            gvk: None,
            atomic: false,
            preserve_unknown: true,
            embedded_resource: false,
            has_protobuf: false,
            unions: "",
            go_package: "",
            derived: Derived::new(),
        }
    })
}

/// Removes what the schema does not know and fills in defaults. Returns what was removed.
///
/// # Errors
/// An object inside of it has metadata that is none.
pub fn prune_and_default(served: &CrdVersion, object: &mut Value) -> Result<Vec<String>, Error> {
    let mut unknown = prune::prune(object, &served.schema);
    unknown.extend(embedded::coerce(object, &served.schema, Malformed::Refused)?);
    prune::default(object, &served.schema);
    Ok(unknown)
}

/// Prunes and defaults a request body, which may be of another kind or version. Bodies of another kind or an unserved
/// version pass through and are rejected later.
///
/// # Errors
/// As [`prune_and_default`].
pub fn prune_and_default_sent(row: &Resource, served: &CrdVersion, object: &mut Value) -> Result<Vec<String>, Error> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    if group != &*row.group || text("kind") != &*row.kind {
        return Ok(Vec::new());
    }
    if version == &*row.version {
        return prune_and_default(served, object);
    }
    if let Some(schema) = served.schemas.get(version) {
        return Ok(prune::prune(object, schema));
    }
    let Some(map) = object.as_object_mut() else { return Ok(Vec::new()) };
    let gone = |key: &&String| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata");
    let names: Vec<String> = map.keys().filter(gone).cloned().collect();
    map.retain(|key, _| !gone(&key));
    Ok(names)
}

/// Prunes and defaults the result of an apply: its nulls are validated and not dropped.
///
/// # Errors
/// An object inside of it has metadata that is none.
pub fn prune_and_default_applied(served: &CrdVersion, object: &mut Value) -> Result<(), Error> {
    prune::prune(object, &served.schema);
    embedded::coerce(object, &served.schema, Malformed::Refused)?;
    prune::fill(object, &served.schema);
    Ok(())
}

/// Fills in defaults, and does no more.
pub fn default(served: &CrdVersion, object: &mut Value) {
    prune::default(object, &served.schema);
}

/// An object as it is stored, settled by the version it was written in: no other version's defaults are its own.
pub fn read(served: &CrdVersion, object: &mut Value) {
    let version = object["apiVersion"].as_str().and_then(|v| v.rsplit('/').next()).unwrap_or("");
    if let Some(schema) = served.schemas.get(version) {
        prune::prune(object, schema);
        // Nothing is refused here.
        let _ = embedded::coerce(object, schema, Malformed::Dropped);
        prune::default(object, schema);
    }
}

/// An object of another version as one of the row's: what its schema does not know goes.
pub fn present(row: &Resource, served: &CrdVersion, object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(row.api_version()));
        map.insert("kind".to_owned(), Value::from(&*row.kind));
    }
    prune::prune(object, &served.schema);
}

/// Validates a new object, given the errors of its metadata.
pub fn create(row: &Resource, served: &CrdVersion, object: &Value, metadata: Vec<Error>) -> Vec<Error> {
    let mut out = type_meta(row, object);
    if out.is_empty() {
        out.extend(metadata);
        out.extend(check::check(object, None, &served.schema));
        if let Some(scale) = &served.scale {
            replicas(&scale.spec, object, &mut out);
            scale_status(scale, object, &mut out);
        }
    }
    finish(served, object, None, &mut out);
    out
}

/// Validates an updated object, given the errors of its metadata.
pub fn update(
    row: &Resource,
    served: &CrdVersion,
    subresource: &str,
    (new, old): (&Value, &Value),
    metadata: &[Error],
) -> Vec<Error> {
    meters::ratcheted(|| {
        let mut out = type_meta(row, new);
        if out.is_empty() {
            out.extend_from_slice(metadata);
            out.extend(match subresource {
                "status" => status(served, new, old),
                _ => check::check(new, Some(old), &served.schema),
            });
            if let Some(scale) = &served.scale {
                if subresource != "status" {
                    replicas(&scale.spec, new, &mut out);
                }
                scale_status(scale, new, &mut out);
            }
        }
        finish(served, new, Some(old), &mut out);
        out
    })
}

/// Validates the status of a write to the status subresource; error paths start at `status`.
fn status(served: &CrdVersion, new: &Value, old: &Value) -> Vec<Error> {
    let (Some(status), Some(schema)) = (new.get("status"), served.schema.property("status")) else { return Vec::new() };
    let mut wrong = check::check(status, old.get("status"), schema);
    for error in &mut wrong {
        let below = Some(&*error.field).filter(|field| !matches!(*field, "" | "<nil>"));
        error.field = below.map_or_else(|| "status".to_owned(), |below| format!("status.{below}"));
    }
    wrong
}

/// Embedded objects, unique lists, and rules where what is there makes sense so far.
fn finish(served: &CrdVersion, object: &Value, old: Option<&Value>, out: &mut Vec<Error>) {
    use shared::status::field::ErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    embedded::check(object, &served.schema, out);
    let repeated = lists::check(object, &served.schema);
    // What was wrong with its lists before does not keep anybody from writing it.
    if !repeated.is_empty() && old.is_none_or(|old| lists::check(old, &served.schema).is_empty()) {
        out.extend(repeated);
    }
    let blocks = |e: &Error| matches!(e.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid);
    if out.iter().any(blocks) {
        let text = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        if served.schema.has_rules() {
            out.push(Error::invalid(Path::default(), Value::Null, text));
        }
        return;
    }
    out.extend(rules::check(&served.schema, object, old));
}

fn type_meta(row: &Resource, object: &Value) -> Vec<Error> {
    let mut out = Vec::new();
    for (key, want) in [("kind", row.kind.to_string()), ("apiVersion", row.api_version())] {
        let there = object[key].as_str().unwrap_or("");
        if there != want {
            out.push(Error::invalid(Path::new(key), there, &format!("must be {want}")));
        }
    }
    out
}

/// A value at a path of plain names.
pub fn value_at<'v>(object: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(object, |v, step| v.get(step))
}

/// A value that has another type than the subresource `scale` needs, in the words of upstream's accessors.
#[derive(Debug, thiserror::Error)]
#[error(".{} accessor error: {shown} is of the type {found}, expected {wanted}", .path.join("."))]
struct AccessorError {
    path: Vec<String>,
    shown: String,
    found: &'static str,
    wanted: &'static str,
}

/// Returns the value at a path, or an error when a value on the way is no object.
fn nested<'v>(object: &'v Value, path: &[String]) -> Result<Option<&'v Value>, AccessorError> {
    let mut at = object;
    for (i, step) in path.iter().enumerate() {
        match at {
            Value::Object(map) => match map.get(step) {
                Some(inner) => at = inner,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(misfit(&path[..=i], other, "map[string]interface{}")),
        }
    }
    Ok(Some(at))
}

fn misfit(path: &[String], value: &Value, wanted: &'static str) -> AccessorError {
    AccessorError { path: path.to_owned(), shown: go_print(value), found: go_type(value), wanted }
}

fn replicas(path: &[String], object: &Value, out: &mut Vec<Error>) {
    let found = match nested(object, path) {
        Ok(None) => return,
        Ok(Some(value)) => value.as_i64().ok_or_else(|| misfit(path, value, "int64")),
        Err(why) => Err(why),
    };
    let (shown, why) = match found {
        Err(why) => (0, why.to_string()),
        Ok(n) if n < 0 => (n, "should be a non-negative integer".to_owned()),
        Ok(n) if n > i64::from(i32::MAX) => (n, format!("should be less than or equal to {}", i32::MAX)),
        Ok(_) => return,
    };
    out.push(Error::invalid(Path::new(&format!(".{}", path.join("."))), shown, &why));
}

fn scale_status(scale: &Scale, object: &Value, out: &mut Vec<Error>) {
    replicas(&scale.status, object, out);
    let Some(path) = &scale.selector else { return };
    let why = match nested(object, path) {
        Ok(None | Some(Value::String(_))) => return,
        Ok(Some(value)) => misfit(path, value, "string"),
        Err(why) => why,
    };
    out.push(Error::invalid(Path::new(&format!(".{}", path.join("."))), "", &why.to_string()));
}

/// A write of `status` changes that and nothing else but who owns it.
pub fn prepare_status(new: &mut Value, old: &Value) {
    let (status, managed) = (new.get("status").cloned(), new.pointer("/metadata/managedFields").cloned());
    let revision = meta::text(new, "resourceVersion").to_owned();
    *new = old.clone();
    if let Some(map) = new.as_object_mut() {
        match status {
            Some(status) => map.insert("status".to_owned(), status),
            None => map.remove("status"),
        };
    }
    match managed {
        Some(managed) => meta::metadata(new).insert("managedFields".to_owned(), managed),
        None => meta::metadata(new).remove("managedFields"),
    };
    meta::set_text(new, "resourceVersion", &revision);
}

/// The cells of a table row.
pub fn cells(served: &CrdVersion, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let mut out = vec![Value::from(tree::name(object))];
    for (column, path) in served.columns.iter().skip(1).zip(&served.cells) {
        let found = path.find(object);
        out.push(found.first().map_or(Value::Null, |v| cell(v, &column.kind, &found, now)));
    }
    out
}

/// A value as a column of a type shows it; one that does not fit shows nothing.
fn cell(value: &Value, kind: &str, all: &[&Value], now: jiff::Timestamp) -> Value {
    match kind {
        "integer" => match value {
            Value::Number(n) if n.is_i64() || n.is_u64() => value.clone(),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a schema's integer may be written as a float; casts of floats saturate"
            )]
            Value::Number(n) => n.as_f64().map_or(Value::Null, |f| Value::from(f as i64)),
            _ => Value::Null,
        },
        "number" if value.is_number() => value.clone(),
        "boolean" if value.is_boolean() => value.clone(),
        "date" => {
            let Some(text) = value.as_str() else { return Value::Null };
            if matches!(text, "" | "null") {
                return Value::from("<unknown>");
            }
            match text.parse::<jiff::Timestamp>() {
                Ok(_) => Value::from(crate::machinery::table::since(Some(value), now)),
                Err(_) => Value::from("<invalid>"),
            }
        }
        "string" if all.len() > 1 => Value::from(all.iter().map(|v| plain(v)).collect::<Vec<_>>().join(" ")),
        "string" => Value::from(plain(value)),
        _ => Value::Null,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
