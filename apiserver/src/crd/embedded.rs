//! Objects inside of objects: they say what they are, and their metadata is that of any object.
//!
//! Answers for upstream's `structural-schema` package `objectmeta`. Pure.

use std::sync::OnceLock;

use proto::Value;
use proto::json::{self, DecodeError, Strictness};
use proto::schema::{self, Message};
use serde_json::Map;
use shared::status::field::{Error, Path};

use super::schema::Schema;
use crate::rules;

/// Treatment of embedded metadata that cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The request is refused.
    Refused,
    /// Malformed fields are dropped: they were stored before they were validated.
    Dropped,
}

/// Leaves of the metadata of embedded objects what there is in metadata. Returns the paths of what is unknown.
pub(super) fn coerce(object: &mut Value, schema: &Schema, malformed: Malformed) -> Result<Vec<String>, Error> {
    let mut coercion = Coercion { malformed, unknown: Vec::new() };
    if schema.embeds {
        coercion.value(object, schema, &ObjectPath::default())?;
    }
    Ok(coercion.unknown)
}

struct Coercion {
    malformed: Malformed,
    unknown: Vec<String>,
}

/// Path in an object: upstream formats map keys differently in errors and in warnings.
#[derive(Default)]
struct ObjectPath {
    refused: String,
    warned: String,
}

impl ObjectPath {
    fn is_root(&self) -> bool {
        self.warned.is_empty()
    }

    fn member(&self, key: &str, is_property: bool) -> Self {
        if self.is_root() {
            return Self { refused: key.to_owned(), warned: key.to_owned() };
        }
        let refused = if is_property { format!("{}.{key}", self.refused) } else { format!("{}[{key}]", self.refused) };
        Self { refused, warned: format!("{}.{key}", self.warned) }
    }

    fn item(&self, index: usize) -> Self {
        Self { refused: format!("{}[{index}]", self.refused), warned: format!("{}[{index}]", self.warned) }
    }
}

impl Coercion {
    fn value(&mut self, at: &mut Value, schema: &Schema, place: &ObjectPath) -> Result<(), Error> {
        match at {
            Value::Object(map) => {
                if schema.embedded && !place.is_root() {
                    self.object(map, place)?;
                }
                for (key, inner) in map.iter_mut() {
                    let below = schema.field(key).filter(|s| s.embedded || s.embeds);
                    let Some(below) = below else { continue };
                    self.value(inner, below, &place.member(key, schema.property(key).is_some()))?;
                }
            }
            Value::Array(list) => {
                let items = schema.items.as_deref().filter(|s| s.embedded || s.embeds);
                let Some(items) = items else { return Ok(()) };
                for (i, inner) in list.iter_mut().enumerate() {
                    self.value(inner, items, &place.item(i))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn object(&mut self, map: &mut Map<String, Value>, place: &ObjectPath) -> Result<(), Error> {
        for key in ["apiVersion", "kind"] {
            if map.get(key).is_none_or(Value::is_string) {
                continue;
            }
            match (self.malformed, map.remove(key)) {
                (Malformed::Refused, Some(value)) => {
                    return Err(Error::invalid(Path::new(&place.refused).child(key), value, "must be a string"));
                }
                _ => continue,
            }
        }
        let Some(metadata) = map.get_mut("metadata") else { return Ok(()) };
        match (read(metadata), self.malformed) {
            (Ok((read, unknown)), _) => {
                *metadata = read;
                self.unknown.extend(unknown.iter().map(|field| format!("{}.metadata.{field}", place.warned)));
            }
            (Err(why), Malformed::Refused) => {
                return Err(Error::invalid(
                    Path::new(&place.refused).child("metadata"),
                    metadata.take(),
                    &why.to_string(),
                ));
            }
            (Err(_), Malformed::Dropped) => drop_malformed(metadata),
        }
        Ok(())
    }
}

fn object_meta() -> Option<&'static Message> {
    static META: OnceLock<Option<&'static Message>> = OnceLock::new();
    *META.get_or_init(|| schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"))
}

/// Metadata as it is understood, and the names of what is not known in it.
fn read(metadata: &Value) -> Result<(Value, Vec<String>), DecodeError> {
    let Some(schema) = object_meta() else { return Ok((metadata.clone(), Vec::new())) };
    let text = metadata.to_string();
    let decoded = json::decode(schema, text.as_bytes(), Strictness::Warn)?;
    let name = |warning: &String| {
        warning.strip_prefix("unknown field \"").and_then(|w| w.strip_suffix('"')).map(str::to_owned)
    };
    let unknown = decoded.warnings.iter().filter_map(name).collect();
    Ok((decoded.value, unknown))
}

/// Keeps the fields that can be read one by one.
fn drop_malformed(metadata: &mut Value) {
    let Value::Object(fields) = metadata.take() else { return };
    let mut kept = Map::new();
    for (key, value) in fields {
        let one = Value::Object(Map::from_iter([(key, value)]));
        if let Ok((Value::Object(read), _)) = read(&one) {
            kept.extend(read);
        }
    }
    *metadata = Value::Object(kept);
}

/// Validates the embedded objects in a value at a path; `whole`: the value is one itself. Reduces metadata to known
/// fields.
pub(super) fn validate_embedded(value: &mut Value, schema: &Schema, whole: bool, path: &Path) -> Vec<Error> {
    let mut coercion = Coercion { malformed: Malformed::Refused, unknown: Vec::new() };
    let place = ObjectPath { refused: path.as_str().to_owned(), warned: path.as_str().to_owned() };
    let own = match value {
        Value::Object(map) if whole => coercion.object(map, &place),
        _ => Ok(()),
    };
    let mut out = Vec::new();
    match own.and_then(|()| coercion.value(value, schema, &place)) {
        Ok(()) => walk(value, schema, path, whole, &mut out),
        Err(why) => out.push(why),
    }
    out
}

/// Validates the objects embedded in an object.
pub(super) fn check(value: &Value, schema: &Schema, out: &mut Vec<Error>) {
    if schema.embeds {
        walk(value, schema, &Path::default(), false, out);
    }
}

fn walk(value: &Value, schema: &Schema, path: &Path, whole: bool, out: &mut Vec<Error>) {
    match value {
        Value::Object(map) => {
            if whole {
                check_object(map, path, out);
            }
            for (key, inner) in map {
                match (schema.property(key), schema.field(key)) {
                    (Some(p), _) => walk(inner, p, &path.child(key), p.embedded, out),
                    (None, Some(p)) => walk(inner, p, &path.key(key), p.embedded, out),
                    (None, None) => {}
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (i, inner) in list.iter().enumerate() {
                walk(inner, items, &path.index(i), items.embedded, out);
            }
        }
        _ => {}
    }
}

fn check_object(map: &Map<String, Value>, path: &Path, out: &mut Vec<Error>) {
    for key in ["apiVersion", "kind"] {
        let at = path.child(key);
        match map.get(key).map(Value::as_str) {
            None => out.push(Error::required(at, "")),
            Some(None) => out.push(Error::invalid(at, map[key].clone(), "must be a string")),
            Some(Some("")) => out.push(Error::invalid(at, "", "must not be empty")),
            Some(Some(text)) if key == "kind" => rules::embedded_kind(text, &at, out),
            Some(Some(text)) if text.matches('/').count() > 1 => {
                out.push(Error::invalid(at, text, &format!("unexpected GroupVersion string: {text}")));
            }
            _ => {}
        }
    }
    if let Some(metadata) = map.get("metadata").filter(|m| m.is_object()) {
        rules::embedded_metadata(metadata, &path.child("metadata"), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        let pod = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"inner": {"type": "object", "x-kubernetes-embedded-resource": true}}});
        Schema::compile(&json!({"type": "object", "properties": {
            "pod": pod, "pods": {"type": "array", "items": pod}, "named": {"type": "object", "additionalProperties": pod},
            "plain": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}))
    }

    fn pod(metadata: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    }

    #[test]
    fn metadata_is_that_of_any_object() {
        let odd = json!({"name": "n", "foo": 1, "creationTimestamp": null});
        let nested = json!({"apiVersion": "v1", "kind": "Pod", "inner": pod(odd.clone())});
        let mut object = json!({"pod": nested, "pods": [pod(odd.clone())], "named": {"a": pod(odd.clone())}, "plain": pod(odd.clone())});
        let unknown = coerce(&mut object, &schema(), Malformed::Refused).expect("well-formed");
        let mut sorted = unknown.clone();
        sorted.sort();
        assert_eq!(sorted, ["named.a.metadata.foo", "pod.inner.metadata.foo", "pods[0].metadata.foo"]);
        let good = json!({"name": "n"});
        for place in ["/pod/inner", "/pods/0", "/named/a"] {
            assert_eq!(object.pointer(place).map(|o| &o["metadata"]), Some(&good), "{place}");
        }
        assert_eq!(object["plain"]["metadata"], odd);
    }

    #[test]
    fn malformed_metadata_is_refused_or_dropped() {
        let malformed =
            json!({"pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "labels": {"a": 1}}}});
        let why = coerce(&mut malformed.clone(), &schema(), Malformed::Refused).expect_err("refused").to_string();
        assert_eq!(
            why,
            r#"pod.metadata: Invalid value: {"labels":{"a":1},"name":"n"}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"#
        );
        let mut dropped = malformed;
        dropped["pod"]["kind"] = json!(7);
        let why = coerce(&mut dropped.clone(), &schema(), Malformed::Refused).expect_err("refused").to_string();
        assert_eq!(why, "pod.kind: Invalid value: 7: must be a string");
        let why =
            coerce(&mut json!({"named": {"a": {"kind": 7}}}), &schema(), Malformed::Refused).expect_err("refused");
        assert_eq!(why.to_string(), "named[a].kind: Invalid value: 7: must be a string");
        assert!(coerce(&mut dropped, &schema(), Malformed::Dropped).is_ok());
        assert_eq!(dropped, json!({"pod": {"apiVersion": "v1", "metadata": {"name": "n"}}}));
    }

    #[test]
    fn embedded_objects_need_type_metadata() {
        let said = |pod: Value| {
            let mut out = Vec::new();
            check(&json!({"pod": pod}), &schema(), &mut out);
            out.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            said(json!({"kind": ""})),
            r#"pod.apiVersion: Required value; pod.kind: Invalid value: "": must not be empty"#
        );
        assert_eq!(
            said(json!({"apiVersion": "a/b/c", "kind": "Pod"})),
            r#"pod.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#
        );
        let text = said(
            json!({"apiVersion": "v1", "kind": "%", "metadata": {"name": "..", "namespace": "A", "generation": -1}}),
        );
        for wanted in [
            r#"pod.kind: Invalid value: "%": may have mixed case, but should otherwise match: a DNS-1035 label"#,
            r#"pod.metadata.name: Invalid value: "..": may not be '..'"#,
            r#"pod.metadata.namespace: Invalid value: "A": a lowercase RFC 1123 label"#,
            "pod.metadata.generation: Invalid value: -1: must be greater than or equal to 0",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}
