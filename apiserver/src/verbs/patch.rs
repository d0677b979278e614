//! PATCH: JSON patch, merge patch, strategic merge patch and server-side apply. Answers for upstream's `PatchResource`,
//! `patcher.patchResource`.
//!
//! A patch is computed again on what is there now when somebody else wrote in between.

use std::sync::Arc;

use proto::merge::{go_print, json_patch, json_type, merge_patch, strategic};
use proto::resources::Row;
use proto::schema::Message;
use proto::{Value, cbor, json, yaml};
use shared::status::{Status, field};
use shared::traces;

use super::engine::Engine;
use super::managers::WrittenKind;
use super::{Reply, VerbRequest, managers, namespace_of, target, write};
use crate::audit;
use crate::machinery::meta;
use crate::machinery::query::{FieldValidation, OptionsKind, WriteOptions};
use crate::negotiate::{
    BodyTextError, Expected, Format, Media, RequestBody, decode_patched, decode_tree, json_text, other_kind, unpatched,
};
use crate::registry::behavior;
use crate::storage::codec;

/// A patch, read.
pub struct Patch {
    /// Parsed patch.
    pub document: PatchDocument,
    /// Findings of strict decoding: duplicate fields, unknown fields of operations.
    strict: Vec<String>,
}

/// Document of a patch.
pub enum PatchDocument {
    /// A list of operations.
    Json(json_patch::Patch),
    /// RFC 7386.
    Merge(Value),
    /// By merge keys.
    Strategic(Value),
    /// The caller's intent.
    Apply(Value),
    /// A document that cannot be read, which is reported once there is an object to patch.
    Unreadable(Box<Status>),
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY_YAML: &str = "application/apply-patch+yaml";
const APPLY_CBOR: &str = "application/apply-patch+cbor";

/// Patch types that need no merge keys.
fn open_types(media: Media) -> &'static [&'static str] {
    const ALL: [&str; 4] = [JSON, MERGE, APPLY_YAML, APPLY_CBOR];
    if media.cbor { &ALL } else { &ALL[..3] }
}

fn is_known(sent: RequestBody<'_>) -> bool {
    let kind = media(sent.content_type);
    kind == STRATEGIC || open_types(sent.media).contains(&kind)
}

/// Rejects a patch type that is not served (415).
pub(super) fn check_type(r: &VerbRequest, row: &Row) -> Result<(), Status> {
    let types = open_types(r.media);
    if !behavior(row).has_strategic_merge() && !types.contains(&media(&r.content_type)) {
        return Err(Status::unsupported_media_type(types));
    }
    if is_known(r.sent_body()) { Ok(()) } else { Err(unsupported()) }
}

fn media(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or("").trim()
}

fn unsupported() -> Status {
    let mut s = Status::failure(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    s.details = Some(shared::status::Details::default());
    s
}

/// The answer to a patch that does not fit the object; upstream hides why.
fn rejected() -> Status {
    let mut s = Status::failure(422, "Invalid", "the server rejected our request due to an error in our request");
    s.details = Some(shared::status::Details::default());
    s
}

impl Patch {
    /// Reads a body by its content type, which is one of those that [`check_type`] lets pass.
    pub fn read(sent: RequestBody<'_>) -> Result<Self, Status> {
        match Self::parse(sent) {
            Err(why) if !Self::applies(sent.content_type) => {
                Ok(Self { document: PatchDocument::Unreadable(Box::new(why)), strict: Vec::new() })
            }
            other => other,
        }
    }

    fn parse(sent: RequestBody<'_>) -> Result<Self, Status> {
        let bad = |e: String| Status::bad_request(&e);
        let read = |body: &[u8], what: &str| json::decode_any_reporting(body).map_err(|e| bad(format!("{what}{e}")));
        let body = sent.body;
        let (document, strict) = match media(sent.content_type) {
            JSON => {
                let (document, repeated) = read(body, "error decoding patch: ")?;
                let mut patch = json_patch::Patch::decode(document).map_err(|e| match e {
                    json_patch::Error::TooMany(_) => {
                        Status::failure(413, "RequestEntityTooLarge", format!("Request entity too large: {e}"))
                    }
                    e => bad(e.to_string()),
                })?;
                let mut strict = std::mem::take(&mut patch.strict);
                strict.extend(repeated.iter().map(|found| format!("json patch {found}")));
                (PatchDocument::Json(patch), strict)
            }
            MERGE => read(body, "error decoding patch: ").map(|(p, strict)| (PatchDocument::Merge(p), strict))?,
            STRATEGIC => read(body, "").map(|(p, strict)| (PatchDocument::Strategic(p), strict))?,
            APPLY_CBOR => {
                let text = cbor::to_json(body).map_err(|e| bad(format!("error decoding CBOR: {e}")))?;
                read(&text, "error decoding CBOR: ").map(|(p, _)| (PatchDocument::Apply(p), Vec::new()))?
            }
            _ => {
                let (applied, strict) = applied_yaml(body).map_err(|e| bad(e.to_string()))?;
                if !applied.is_object() && !applied.is_null() {
                    let what = format!("error unmarshaling JSON: while decoding JSON: {}", no_map(&applied));
                    return Err(bad(format!("error decoding YAML: {what}")));
                }
                (PatchDocument::Apply(applied), strict)
            }
        };
        Ok(Self { document, strict })
    }

    /// Reports whether a content type is that of server-side apply.
    pub fn applies(content_type: &str) -> bool {
        matches!(media(content_type), APPLY_YAML | APPLY_CBOR)
    }

    fn is_apply(&self) -> bool {
        matches!(self.document, PatchDocument::Apply(_))
    }

    /// Findings of strict decoding of an applied text, reported after all other errors.
    pub fn check_text(&self, validation: FieldValidation) -> Result<Vec<String>, Status> {
        match (validation, yaml::complaint(&self.strict)) {
            (FieldValidation::Ignore, _) => Ok(Vec::new()),
            (FieldValidation::Strict, Some(complaint)) => Err(Status::bad_request(&format!(
                "error strict decoding YAML: error converting YAML to JSON: {complaint}"
            ))),
            _ => Ok(self.strict.clone()),
        }
    }

    /// The patched object of a kind (`apiVersion`, `kind`), canonical, with what lenient decoding found.
    pub fn on_kind(
        &self,
        named: (&str, &str),
        schema: &Message,
        old: &Value,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), Status> {
        let asked = validation != FieldValidation::Ignore;
        let mut found = if asked { self.strict.clone() } else { Vec::new() };
        let mut new = old.clone();
        let (mut touched, mut rest) = (None, validation);
        match &self.document {
            PatchDocument::Json(p) => p.apply(&mut new).map_err(|_| rejected())?,
            PatchDocument::Merge(p) => {
                check_merge(p, asked)?;
                merge_patch::apply(&mut new, p.clone());
                touched = Some(p);
            }
            PatchDocument::Strategic(p) => {
                // The patch alone is checked for unknown fields: the result is built from the schema.
                if asked {
                    let unknown = decode_tree(schema, p, FieldValidation::Warn).map(|d| d.warnings).unwrap_or_default();
                    found.extend(unknown.into_iter().filter(|w| !w.contains('$')));
                    if validation == FieldValidation::Strict && !found.is_empty() {
                        let why = format!("strict decoding error: {}", found.join(", "));
                        let error = field::Error::invalid("patch", Value::from(go_print(p)), &why);
                        return Err(Status::invalid("", "", "", vec![error]));
                    }
                    rest = FieldValidation::Ignore;
                }
                strategic::apply(schema, &mut new, p.clone()).map_err(|e| match e.code() {
                    400 => Status::bad_request(&e.to_string()),
                    422 => rejected(),
                    _ => Status::unknown(&e.to_string()),
                })?;
                touched = Some(p);
            }
            PatchDocument::Unreadable(why) => return Err(Status::clone(why)),
            PatchDocument::Apply(_) => return Err(Status::internal("apply is not a patch of an object")),
        }
        let whole = Value::Object(serde_json::Map::new());
        let shown = if let PatchDocument::Merge(p) = &self.document { p } else { &whole };
        check_kind(named, schema, &new, shown)?;
        let (said, found) = if rest == FieldValidation::Ignore { (found, Vec::new()) } else { (Vec::new(), found) };
        let decoded = decode_patched(named, schema, new, touched, shown, found, rest)?;
        Ok((decoded.object, [said, decoded.warnings].concat()))
    }
}

/// A merge patch is an object; a list takes the place of what is there when nobody asked for strict reading.
fn check_merge(patch: &Value, asked: bool) -> Result<(), Status> {
    match patch {
        Value::Object(_) => Ok(()),
        Value::Array(_) if !asked => Ok(()),
        Value::Null => Err(Status::bad_request("Invalid JSON Patch")),
        _ if !asked => Err(Status::bad_request("Invalid JSON Patch")),
        other => Err(Status::bad_request(&format!("error decoding patch: {}", no_map(other)))),
    }
}

/// Go's text for a value that is not an object.
fn no_map(value: &Value) -> String {
    format!("json: cannot unmarshal {} into Go value of type map[string]interface {{}}", json_type(value))
}

/// Applied text that cannot be read.
#[derive(Debug, thiserror::Error)]
enum AppliedTextError {
    /// No YAML.
    #[error("error decoding YAML: error converting YAML to JSON: {0}")]
    Yaml(#[from] BodyTextError),
    /// Values that JSON has not.
    #[error("error decoding YAML: {0}")]
    Json(#[from] json::DecodeError),
}

/// Reads applied text, with the keys that it has twice.
fn applied_yaml(body: &[u8]) -> Result<(Value, Vec<String>), AppliedTextError> {
    // Most clients send JSON, which is YAML: read as such it costs less.
    if let Ok((object, repeated)) = json::decode_any_reporting(body)
        && repeated.is_empty()
    {
        return Ok((object, repeated));
    }
    let (text, repeated) = json_text(Format::Yaml, body)?;
    Ok((json::decode_any(&text)?, repeated))
}

/// A patch cannot make another kind of an object.
fn check_kind(named: (&str, &str), schema: &Message, new: &Value, touched: &Value) -> Result<(), Status> {
    let text = |key: &str, default| new.get(key).and_then(Value::as_str).filter(|t| !t.is_empty()).unwrap_or(default);
    let (api_version, kind) = (text("apiVersion", named.0), text("kind", named.1));
    let (group, version) = named.0.split_once('/').unwrap_or(("", named.0));
    if schema.is_open() {
        if new.get("kind").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty()) {
            // Validation says what it must be.
            return Ok(());
        }
        let mut text = Vec::new();
        json::encode_any(new, &mut text);
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(&text));
        return Err(unpatched(schema, new, touched, &why));
    }
    let Some(mut why) = other_kind(api_version, kind, &Expected::kind(group, version, named.1)) else { return Ok(()) };
    // What the object claims to be is read first.
    if let Some(claimed) = proto::schema::kind_of(api_version, kind)
        && let Err(e) = decode_tree(claimed, new, FieldValidation::Ignore)
    {
        why = e.to_string();
    }
    Err(unpatched(schema, new, touched, &why))
}

/// Checks the object an apply request sends.
pub fn check_applied(named: (&str, &str), applied: &Value, name: &str, namespace: &str) -> Result<(), Status> {
    let text = |k: &str| applied.get(k).and_then(Value::as_str).unwrap_or("");
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    if (text("apiVersion"), text("kind")) != named {
        return Err(Status::bad_request(&format!("invalid object type: {group}/{version}, Kind={}", text("kind"))));
    }
    if applied.pointer("/metadata/managedFields").is_some_and(|m| !m.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let there = meta::text(applied, "name");
    if !there.is_empty() && there != name {
        return Err(Status::bad_request(&format!(
            "the name of the object ({there}) does not match the name on the URL ({name})"
        )));
    }
    let there = meta::text(applied, "namespace");
    if !there.is_empty() && !namespace.is_empty() && there != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Drops unknown fields of an open body, and reports them as asked, after what was found before.
fn unknown(
    row: &Row,
    object: &mut Value,
    mut found: Vec<String>,
    validation: FieldValidation,
) -> Result<Vec<String>, Status> {
    let shown = object.to_string();
    let refused =
        |why: &str| Status::invalid("", "", "", vec![field::Error::invalid("patch", Value::from(shown.clone()), why)]);
    let unknown = behavior(row).complete_body(row, object).map_err(|e| refused(&e.to_string()))?;
    found.extend(unknown.into_iter().map(|f| format!("unknown field {f:?}")));
    match validation {
        FieldValidation::Strict if !found.is_empty() => {
            Err(refused(&format!("strict decoding error: {}", found.join(", "))))
        }
        FieldValidation::Ignore => Ok(Vec::new()),
        _ => Ok(found),
    }
}

/// Applies a patch to an object; returns unknown fields beside it.
fn changed(
    patch: &Patch,
    row: &Row,
    schema: &Message,
    old: &Value,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Status> {
    let open = behavior(row).has_open_bodies();
    let strict = open && validation == FieldValidation::Strict;
    let first = if strict { FieldValidation::Warn } else { validation };
    let (mut new, warnings) = patch.on_kind((&row.api_version(), &row.kind), schema, old, first)?;
    let unknown = if open { unknown(row, &mut new, warnings, validation)? } else { warnings };
    Ok((new, unknown))
}

/// Rejects an apply with a uid for an object that does not exist.
fn check_uid(row: &Row, name: &str, applied: &Value) -> Result<(), Status> {
    let uid = meta::text(applied, "uid");
    if uid.is_empty() {
        return Ok(());
    }
    let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
    Err(Status::conflict(&row.group, &row.plural, name, &why))
}

/// Keeps a patch for the audit log.
pub fn record_sent(r: &VerbRequest) {
    r.recorder.record_other(|| audit::object(&r.content_type, &r.body));
}

/// The verb, for an object or one of its object-shaped subresources.
pub async fn patch(engine: &Arc<Engine>, r: &VerbRequest, row: &Row, subresource: &str) -> Result<Reply, Status> {
    let is_apply = Patch::applies(&r.content_type);
    let options = WriteOptions::read(&r.query, OptionsKind::Patch(is_apply), &r.user_agent)?;
    record_sent(r);
    let patch = Patch::read(r.sent_body())?;
    let unknown_kind = || Status::internal(&codec::CodecError::UnknownKind(row.kind.to_string()).to_string());
    let schema = behavior(row).body_schema(row).ok_or_else(unknown_kind)?;
    let namespace = namespace_of(&r.info, row);
    let mut t = target(r, row, subresource, &options, "PatchOptions");
    t.applies = is_apply;
    t.creation = (is_apply && subresource.is_empty()).then(|| write::creation(r, row));
    let mut found: Vec<String> = Vec::new();
    let conversions = t.conversions.clone();
    let kind = WrittenKind { rows: &engine.rows, row, conversions: conversions.as_deref() };
    let mut change = |old: Option<&Value>| -> Result<Value, Status> {
        traces::step("About to apply patch");
        let mut new = match (&patch.document, old) {
            (PatchDocument::Apply(applied), old) => {
                check_applied((&row.api_version(), &row.kind), applied, &r.info.name, namespace)?;
                let new = managers::applied(kind, subresource, old, applied, &options)?;
                found = patch.check_text(options.field_validation)?;
                if old.is_none() {
                    check_uid(row, &r.info.name, applied)?;
                }
                new
            }
            (_, None) => return Err(Status::not_found(&row.group, &row.plural, &r.info.name)),
            (_, Some(old)) => {
                let (new, unknown) = changed(&patch, row, schema, old, options.field_validation)?;
                found = unknown;
                new
            }
        };
        write::check_name(&new, &r.info.name)?;
        write::check_namespace(&mut new, namespace)?;
        if patch.is_apply() {
            write::default_applied(row, &mut new)?
        } else {
            write::default(row, &mut new)?
        }
        if let (false, Some(old)) = (patch.is_apply(), old) {
            managers::updated(kind, subresource, old, &mut new, &options.field_manager);
        }
        traces::step("About to check admission control");
        Ok(new)
    };
    traces::step("Recorded the audit event");
    let outcome = engine.update(&mut t, &mut change).await;
    if outcome.is_ok() {
        traces::step("Object stored in database");
    }
    let mut warnings = found;
    warnings.extend(t.warnings);
    let (updated, created) = r.recorder.keep_warnings(outcome, &warnings)?;
    let code = if created { 201 } else { 200 };
    let updated = if is_apply { updated.defaulted(row) } else { updated };
    Ok(updated.reply(engine, r, row, code)?.warn(warnings))
}
