//! Request bodies: which kind is in them, and its tree. Answers for upstream's `limitedReadBody`,
//! `NegotiateInputSerializer`.

use std::borrow::Cow;

use proto::json::{self, Strictness};
use proto::resources::Resource;
use proto::schema::group_version;
use proto::schema::{self, Message};
use proto::{Value, cbor, protobuf, yaml};
use shared::status::{Status, field, go_quote};

use super::accept::{Format, Media};
use crate::machinery::query::FieldValidation;
use crate::registry::behavior;
use crate::registry::core::event::EVENTS;
use crate::registry::events::event::EVENTS as EVENTS_V1;

/// A body, and what its sender says it is.
#[derive(Clone, Copy)]
pub struct RequestBody<'a> {
    /// Media types the server reads.
    pub media: Media,
    /// `Content-Type`.
    pub content_type: &'a str,
    /// Content.
    pub body: &'a [u8],
}

impl RequestBody<'_> {
    /// Format of the body, or `415`.
    pub fn format(&self) -> Result<Format, Status> {
        let unknown = || Status::unsupported_media_type(self.media.bodies());
        self.media.body_format(self.content_type).ok_or_else(unknown)
    }
}

/// A body that holds no text of JSON.
#[derive(Debug, thiserror::Error)]
pub enum BodyTextError {
    /// No YAML.
    #[error(transparent)]
    Yaml(#[from] json::DecodeError),
    /// No CBOR.
    #[error("unable to determine group/version/kind: {0}")]
    Cbor(#[from] cbor::Error),
}

/// Findings of strict decoding.
#[derive(Debug, thiserror::Error)]
#[error("strict decoding error: {}", .0.join(", "))]
struct StrictDecodingError(Vec<String>);

/// The JSON text of a body in any format but protobuf, and what is said of keys that YAML has twice. (Of JSON the
/// decoder says so.)
pub fn json_text(format: Format, body: &[u8]) -> Result<(Cow<'_, [u8]>, Vec<String>), BodyTextError> {
    match format {
        Format::Yaml => {
            let (text, repeated) = yaml::to_json_reporting(body)?;
            Ok((Cow::Owned(text), repeated))
        }
        Format::Cbor => Ok((Cow::Owned(cbor::to_json(body)?), Vec::new())),
        _ => Ok((Cow::Borrowed(body), Vec::new())),
    }
}

/// A decoded body.
pub struct Decoded {
    /// The object, canonical, with `apiVersion` and `kind`.
    pub object: Value,
    /// Warnings of lenient decoding.
    pub warnings: Vec<String>,
}

impl From<FieldValidation> for Strictness {
    fn from(v: FieldValidation) -> Self {
        match v {
            FieldValidation::Ignore => Self::Ignore,
            FieldValidation::Warn => Self::Warn,
            FieldValidation::Strict => Self::Strict,
        }
    }
}

/// The kind a body is expected to hold.
pub struct Expected<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> Expected<'a> {
    /// The kind of a resource.
    pub fn of(row: &'a Resource) -> Self {
        Self { group: &row.group, version: &row.version, kind: &row.kind }
    }

    /// Any kind.
    pub fn kind(group: &'a str, version: &'a str, kind: &'a str) -> Self {
        Self { group, version, kind }
    }
}

fn unrecognized(kind: &str, why: &str) -> Status {
    Status::bad_request(&format!("the object provided is unrecognized (must be of type {kind}): {why}"))
}

/// Quotes the start of an unreadable body: as text when it looks like JSON, else in hexadecimal.
fn shown(body: &[u8]) -> String {
    const LIMIT: usize = 30;
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let cut = &body[..body.len().min(LIMIT)];
    let mut text = if body[0] == b'{' {
        String::from_utf8_lossy(cut).into_owned()
    } else {
        cut.iter().map(|b| format!("{b:02x}")).collect()
    };
    if body.len() > LIMIT {
        text.push_str(" ...");
    }
    text
}

fn cannot_be_handled(kind: &str, api_version: &str, expected: &str, why: &str) -> Status {
    let version = api_version.rsplit('/').next().unwrap_or_default();
    Status::bad_request(&format!("{kind} in version {} cannot be handled as a {expected}: {why}", go_quote(version)))
}

/// Upstream's name of the internal package of a group.
fn package(group: &str) -> &str {
    match group {
        "" => "core",
        g => g.split('.').next().unwrap_or(g),
    }
}

/// Reads a body of a declared content type as the expected kind.
pub fn decode(sent: RequestBody<'_>, expected: &Expected<'_>, validation: FieldValidation) -> Result<Decoded, Status> {
    let (format, body) = (sent.format()?, sent.body);
    let schema = |group: &str, version: &str, kind: &str| schema::kind(group, version, kind);
    let Some(target) = schema(expected.group, expected.version, expected.kind) else {
        return Err(Status::internal(&format!("no schema for {}", expected.kind)));
    };
    if format == Format::Protobuf {
        return from_protobuf(body, expected, target);
    }
    let (text, repeated) =
        json_text(format, body).map_err(|e| unrecognized(expected.kind, &format!("{e} ({})", shown(body))))?;
    let (api_version, kind) = json::type_meta(&text).map_err(|e| {
        unrecognized(expected.kind, &format!("couldn't get version/kind; json parse error: {e} ({})", shown(body)))
    })?;
    let (api_version, kind) = named(api_version, kind, expected)?;
    let refused = |why: &str| cannot_be_handled(&kind, &api_version, expected.kind, why);
    // All that is wrong is said at once.
    let lenient = if validation == FieldValidation::Strict { FieldValidation::Warn } else { validation };
    let mut decoded = json::decode(target, &text, lenient.into()).map_err(|e| refused(&e.to_string()))?;
    let warnings = strictly(repeated, decoded.warnings, validation).map_err(|e| refused(&e.to_string()))?;
    name(&mut decoded.value, expected);
    Ok(Decoded { object: decoded.value, warnings })
}

/// Turns findings of strict decoding into warnings or an error, as `fieldValidation` says.
fn strictly(
    repeated: Vec<String>,
    more: Vec<String>,
    validation: FieldValidation,
) -> Result<Vec<String>, StrictDecodingError> {
    match validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok([repeated, more].concat()),
        FieldValidation::Strict => {
            let found: Vec<String> = yaml::complaint(&repeated).into_iter().chain(more).collect();
            if found.is_empty() { Ok(found) } else { Err(StrictDecodingError(found)) }
        }
    }
}

/// Reads a body as an object of a row, and completes it. One that is not decoded by a type may be of another version or
/// kind: the caller looks.
pub fn decode_object(sent: RequestBody<'_>, row: &Resource, validation: FieldValidation) -> Result<Decoded, Status> {
    let behavior = behavior(row);
    let refused = |e: field::Error| Status::bad_request(&e.to_string());
    if behavior.has_open_bodies() {
        return decode_open(sent, row, validation);
    }
    let mut decoded = decode(sent, &Expected::of(row), validation)?;
    behavior.complete_body(row, &mut decoded.object).map_err(refused)?;
    Ok(decoded)
}

/// Reads a body without a type; what its schema does not know is dropped and named.
fn decode_open(sent: RequestBody<'_>, row: &Resource, validation: FieldValidation) -> Result<Decoded, Status> {
    let format = sent.media.body_format(sent.content_type).filter(|f| *f != Format::Protobuf);
    let Some(format) = format else { return Err(Status::unsupported_media_type(sent.media.bodies())) };
    let (kind, body) = (&*row.kind, sent.body);
    let (text, repeated) =
        json_text(format, body).map_err(|e| unrecognized(kind, &format!("{e} ({})", shown(body))))?;
    let (there, own_kind) = json::type_meta(&text).map_err(|e| {
        unrecognized(kind, &format!("couldn't get version/kind; json parse error: {e} ({})", shown(body)))
    })?;
    if own_kind.is_empty() {
        let text = String::from_utf8_lossy(&text);
        return Err(unrecognized(kind, &format!("Object 'Kind' is missing in '{text}' ({})", shown(body))));
    }
    let refused = |why: String| cannot_be_handled(&own_kind, &there, kind, &why);
    if there.is_empty() && json::decode_any(&text).is_ok_and(|tree| tree.get("apiVersion").is_some_and(Value::is_null))
    {
        return Err(refused(".apiVersion accessor error: <nil> is of the type <nil>, expected string".to_owned()));
    }
    let decoded = open(row, &text).map_err(|e| refused(e.to_string()))?;
    let (mut object, mut warnings) = (decoded.value, decoded.warnings);
    let unknown = behavior(row).complete_body(row, &mut object).map_err(|e| refused(e.to_string()))?;
    warnings.extend(unknown.iter().map(|f| format!("unknown field {}", go_quote(f))));
    let warnings = strictly(repeated, warnings, validation).map_err(|e| refused(e.to_string()))?;
    Ok(Decoded { object, warnings })
}

/// An open body that cannot be decoded.
#[derive(Debug, thiserror::Error)]
enum OpenBodyError {
    /// The kind has no schema.
    #[error("no schema for {0}")]
    NoSchema(String),
    /// Other fields than those of an object.
    #[error(transparent)]
    Decode(#[from] json::DecodeError),
}

/// The tree of an open body. Upstream reads its metadata from a tree of its own, which has its keys in order and
/// writes `1.0` as `1`: what is wrong is looked for there.
fn open(row: &Resource, text: &[u8]) -> Result<json::Decoded, OpenBodyError> {
    let schema = behavior(row).body_schema(row).ok_or_else(|| OpenBodyError::NoSchema(row.kind.to_string()))?;
    json::decode(schema, text, Strictness::Warn).or_else(|first| {
        let Ok(tree) = json::decode_any(text) else { return Err(first.into()) };
        let mut ordered = Vec::new();
        json::encode_any(&tree, &mut ordered);
        Ok(json::decode(schema, &ordered, Strictness::Warn)?)
    })
}

/// Fills in missing type metadata and refuses other kinds.
fn named(api_version: String, kind: String, expected: &Expected<'_>) -> Result<(String, String), Status> {
    let want = group_version(expected.group, expected.version);
    let api_version = if api_version.is_empty() { want } else { api_version };
    let kind = if kind.is_empty() { expected.kind.to_owned() } else { kind };
    match other_kind(&api_version, &kind, expected) {
        Some(why) => Err(cannot_be_handled(&kind, &api_version, expected.kind, &why)),
        None => Ok((api_version, kind)),
    }
}

/// Explains why an object is not of the expected kind; `None` when it is.
pub fn other_kind(api_version: &str, kind: &str, expected: &Expected<'_>) -> Option<String> {
    if kind == expected.kind && api_version == group_version(expected.group, expected.version) {
        return None;
    }
    if schema::kind_of(api_version, kind).is_none() {
        return Some(format!(
            "no kind {} is registered for version {} in scheme {}",
            go_quote(kind),
            go_quote(api_version),
            go_quote("pkg/runtime/scheme.go:111")
        ));
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // Another version of the same kind is converted by whoever asked for it.
    if kind == expected.kind && (group == expected.group || (group, expected.group) == (EVENTS.group, EVENTS_V1.group))
    {
        return None;
    }
    Some(format!(
        "converting ({version}.{kind}) to ({}.{}): unknown conversion",
        package(expected.group),
        expected.kind
    ))
}

fn name(object: &mut Value, expected: &Expected<'_>) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(group_version(expected.group, expected.version)));
        map.insert("kind".to_owned(), Value::from(expected.kind));
    }
}

fn from_protobuf(body: &[u8], expected: &Expected<'_>, target: &'static Message) -> Result<Decoded, Status> {
    let envelope = protobuf::unwrap(body).map_err(|_| {
        let why = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
        unrecognized(expected.kind, &format!("{why} ({})", shown(body)))
    })?;
    let (api_version, kind) = named(envelope.api_version.to_string(), envelope.kind.to_string(), expected)?;
    let mut object = protobuf::decode(target, envelope.raw)
        .map_err(|e| cannot_be_handled(&kind, &api_version, expected.kind, &e.to_string()))?;
    name(&mut object, expected);
    Ok(Decoded { object, warnings: Vec::new() })
}

/// Brings a tree into the canonical form of its kind, as if it had been sent. The error is upstream's bare text.
pub fn decode_tree(
    schema: &Message,
    tree: &Value,
    validation: FieldValidation,
) -> Result<json::Decoded, json::DecodeError> {
    let mut bytes = Vec::new();
    json::encode_any(tree, &mut bytes);
    json::decode(schema, &bytes, validation.into())
}

/// The outcome of a patch as a canonical tree; what does not fit is the client's fault. `touched` names what the patch
/// may have changed of a canonical tree (none: anything); `shown` is the patch as an error shows it, `found` what
/// strict reading says of its text.
pub fn decode_patched(
    named: (&str, &str),
    schema: &Message,
    mut tree: Value,
    touched: Option<&Value>,
    shown: &Value,
    mut found: Vec<String>,
    validation: FieldValidation,
) -> Result<Decoded, Status> {
    let touched = touched.unwrap_or(&Value::Null);
    match json::decode_touched(schema, &mut tree, touched, validation.into()) {
        Ok(warnings) | Err(json::DecodeError::Strict(warnings)) => found.extend(warnings),
        Err(e) => return Err(unpatched(schema, &tree, shown, &e.to_string())),
    }
    let found =
        strictly(Vec::new(), found, validation).map_err(|why| unpatched(schema, &tree, shown, &why.to_string()))?;
    // What a custom object calls itself is judged later.
    if let Some(map) = tree.as_object_mut().filter(|_| !schema.is_open()) {
        map.insert("apiVersion".to_owned(), Value::from(named.0));
        map.insert("kind".to_owned(), Value::from(named.1));
    }
    Ok(Decoded { object: tree, warnings: found })
}

/// The answer to a patch whose outcome is no object of the kind; it shows the outcome.
pub fn unpatched(schema: &Message, tree: &Value, patch: &Value, why: &str) -> Status {
    let mut bytes = Vec::new();
    // All keys of a custom object are sorted.
    let schema = Some(schema).filter(|s| !s.is_open());
    patched_text(schema, tree, patch, &mut bytes);
    let shown = String::from_utf8_lossy(&bytes).into_owned();
    let error = shared::status::field::Error::invalid("patch", Value::from(shown), why);
    Status::invalid("", "", "", vec![error])
}

/// Upstream sorts the keys of what a patch touches, and leaves everything else in the order of the schema.
fn patched_text(schema: Option<&Message>, tree: &Value, patch: &Value, out: &mut Vec<u8>) {
    let (Some(tree_map), Some(touched)) = (tree.as_object(), patch.as_object()) else {
        json::encode_any(tree, out);
        return;
    };
    out.push(b'{');
    for (i, (key, value)) in tree_map.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        json::encode_any(&Value::from(key.as_str()), out);
        out.push(b':');
        let field = schema.and_then(|s| s.field(key));
        match (field, touched.get(key)) {
            (Some(field), None) => json::encode_field(field, true, value, out),
            (_, None) => json::encode_any(value, out),
            (field, Some(inner)) => {
                let below = field.and_then(|f| match (&f.kind, f.card) {
                    (schema::ValueKind::Message(m), schema::Card::Single) => Some(&**m),
                    _ => None,
                });
                patched_text(below, value, inner, out);
            }
        }
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::resources;

    #[test]
    fn bodies_that_do_not_fit() {
        let row = resources::find("", "v1", "configmaps").expect("row");
        fn sent<'a>(content_type: &'a str, body: &'a [u8]) -> RequestBody<'a> {
            RequestBody { media: Media::default(), content_type, body }
        }
        let try_json = |body: &str| {
            decode(sent("application/json", body.as_bytes()), &Expected::of(row), FieldValidation::Warn)
                .map(|d| d.object)
                .map_err(|s| s.message)
        };
        assert!(try_json(r#"{"metadata":{"name":"x"}}"#).is_ok_and(|o| o["kind"] == "ConfigMap"));
        assert_eq!(
            try_json(r#"{"apiVersion":"v1","#).expect_err("cut"),
            r#"the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"apiVersion":"v1",)"#
        );
        assert_eq!(
            try_json(r#"{"apiVersion":"v1","kind":"Secret"}"#).expect_err("kind"),
            r#"Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"#
        );
        assert_eq!(
            try_json(r#"{"apiVersion":"v2","kind":"ConfigMap"}"#).expect_err("version"),
            r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/runtime/scheme.go:111""#
        );
        let deployments = resources::find("apps", "v1", "deployments").expect("row");
        let body = br#"{"apiVersion":"apps/v1","kind":"Deployment","spec":1}"#;
        let failed = decode(sent("application/json", body), &Expected::of(deployments), FieldValidation::Warn);
        let said = r#"Deployment in version "v1" cannot be handled as a Deployment: "#;
        assert!(failed.is_err_and(|s| s.message.starts_with(said)));
        let sent = sent("application/vnd.kubernetes.protobuf", b"nope");
        let e = decode(sent, &Expected::of(row), FieldValidation::Warn).map(|_| ()).expect_err("proto");
        assert!(e.message.ends_with("expected prefix [107 56 115 0] (6e6f7065)"), "{}", e.message);
    }

    #[test]
    fn patched_objects_are_sorted_in_touched_parts() {
        let schema = proto::schema::kind("", "v1", "ConfigMap").expect("kind");
        let tree = serde_json::json!({"data": {"b": "1", "a": 2}, "metadata": {"uid": "u", "name": "n"}, "zz": 1});
        for (patch, metadata) in [
            (serde_json::json!({"data": {"a": 2}}), r#"{"name":"n","uid":"u"}"#),
            (serde_json::json!({"metadata": {"uid": "u"}}), r#"{"name":"n","uid":"u"}"#),
        ] {
            let mut out = Vec::new();
            patched_text(Some(schema), &tree, &patch, &mut out);
            let want = format!(r#"{{"data":{{"a":2,"b":"1"}},"metadata":{metadata},"zz":1}}"#);
            assert_eq!(String::from_utf8(out).ok(), Some(want));
        }
        let named = serde_json::json!({"metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"c": "d"}}});
        let mut out = Vec::new();
        patched_text(Some(schema), &named, &serde_json::json!({}), &mut out);
        let want = r#"{"metadata":{"name":"n","labels":{"a":"b"},"annotations":{"c":"d"}}}"#;
        assert_eq!(String::from_utf8(out).ok().as_deref(), Some(want));
    }

    #[test]
    fn other_kinds() {
        let expected = Expected::kind("", "v1", "ConfigMap");
        assert_eq!(other_kind("v1", "ConfigMap", &expected), None);
        assert!(other_kind("v1", "Secret", &expected).is_some_and(|why| why.contains("unknown conversion")));
        assert!(other_kind("v1", "Nope", &expected).is_some_and(|why| why.contains("is registered")));
    }
}
