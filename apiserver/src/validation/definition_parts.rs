//! Validation of a definition's versions: schemas, subresources, columns, selectable fields.
//!
//! Upstream judges what all versions have in common once, under the path of the whole definition.

use std::collections::BTreeSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::schemas_shown;
use super::tree::{at, flag, get, has, list, text};
use crate::crd::field_path;
use crate::crd::schema_options::SchemaOptions;
use crate::rules::options::FieldErrors;

/// Selectable fields of a version.
const MOST_SELECTABLE: usize = 8;
/// Bytes of what clients of an old version are told.
const WARNING: usize = 256;

/// A part of a version: its name there, and in upstream's internal form of the definition.
const PARTS: [(&str, &str, Validate); 3] = [
    ("schema", "validation", schema),
    ("subresources", "subresources", subresources),
    ("additionalPrinterColumns", "additionalPrinterColumns", columns),
];

type Validate = fn(&Value, (bool, SchemaOptions), &Path, &mut FieldErrors);

/// Invalid values of versions that are allowed because the stored definition has them.
#[derive(Clone, Copy, Default)]
pub(super) struct Before<'o> {
    /// Leniency for schemas.
    pub(super) options: SchemaOptions,
    /// The versions there were.
    pub(super) versions: &'o [Value],
}

impl Before<'_> {
    fn same(&self, version: &Value) -> Option<&Value> {
        self.versions.iter().find(|old| text(old, "name") == text(version, "name"))
    }

    /// Rules of a schema that stays were cheap enough once. What all versions had in common a new one has, too.
    fn options(&self, version: &Value) -> SchemaOptions {
        let had = if common(self.versions, "schema") { self.versions.first() } else { self.same(version) };
        let costs = had.is_some_and(|old| get(old, "schema") == get(version, "schema"));
        SchemaOptions { costs, ..self.options }
    }

    /// Reports whether a version exceeded the limit of selectable fields before and has the same fields now.
    fn has_many(&self, version: &Value) -> bool {
        let fields = |version: &Value| get(version, "selectableFields").clone();
        self.same(version)
            .is_some_and(|old| list(old, "selectableFields").len() > MOST_SELECTABLE && fields(old) == fields(version))
    }
}

fn common(versions: &[Value], part: &str) -> bool {
    versions.windows(2).all(|pair| get(&pair[0], part) == get(&pair[1], part))
}

/// Versions without what they have in common.
pub(super) fn apart(versions: &[Value]) -> Value {
    let mut versions = versions.to_vec();
    for part in ["schema", "subresources", "additionalPrinterColumns", "selectableFields"] {
        if common(&versions, part) {
            versions.iter_mut().filter_map(Value::as_object_mut).for_each(|version| {
                version.remove(part);
            });
        }
    }
    versions.into()
}

fn has_status(version: &Value) -> bool {
    at(version, &["subresources", "status"]).is_object()
}

/// Validates the fields that one version sets for itself.
pub(super) fn of_one(all: &[Value], version: &Value, before: Before<'_>, path: &Path, out: &mut FieldErrors) {
    deprecation(version, path, out);
    for (part, _, judge) in PARTS.into_iter().filter(|(part, ..)| !common(all, part)) {
        judge(get(version, part), (has_status(version), before.options(version)), &path.child(part), out);
    }
    if !common(all, "selectableFields") {
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        let own = !common(all, "schema") && has(get(version, "schema"), "openAPIV3Schema");
        selectable(version, own.then_some(before).ok_or(why), path, out);
    }
}

/// Validates the fields that all versions share.
pub(super) fn of_all(spec: &Value, before: Before<'_>, path: &Path, out: &mut FieldErrors) {
    let all = list(spec, "versions");
    let Some(first) = all.first() else { return };
    for (part, name, judge) in PARTS.into_iter().filter(|(part, ..)| common(all, part)) {
        let (status, options) = (all.iter().any(has_status), before.options(first));
        judge(get(first, part), (status, options), &path.child(name), out);
    }
    if common(all, "selectableFields") {
        let why = "may only be set when validations.schema is included";
        let own = common(all, "schema") && has(first, "schema");
        selectable(first, own.then_some(before).ok_or(why), path, out);
    }
}

fn deprecation(version: &Value, path: &Path, out: &mut FieldErrors) {
    if !has(version, "deprecationWarning") {
        return;
    }
    let (warning, path) = (text(version, "deprecationWarning"), path.child("deprecationWarning"));
    let mut complain = |message: &str| out.push(Error::invalid(&path, warning, message));
    if !flag(version, "deprecated") {
        return complain("can only be set for deprecated versions");
    }
    if warning.len() > WARNING {
        complain("must be <= 256 characters long");
    }
    if warning.is_empty() {
        complain("must not be an empty string");
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        let found = "must only contain printable UTF-8 characters; non-printable character found at index";
        complain(&format!("{found} {i}"));
    }
}

/// A schema says of every place what it holds.
fn schema(holder: &Value, (status, options): (bool, SchemaOptions), path: &Path, out: &mut FieldErrors) {
    let (schema, path) = (get(holder, "openAPIV3Schema"), path.child("openAPIV3Schema"));
    if schema.is_null() {
        return;
    }
    if status {
        root(schema, &path, out);
    }
    if flag(schema, "nullable") {
        out.push(Error::forbidden(path.child("nullable"), "nullable cannot be true at the root"));
    }
    crate::crd::validate::schema(schema, &path, options, out);
}

/// Validates the root of a schema when the status subresource is enabled: only a few keywords are allowed.
fn root(schema: &Value, path: &Path, out: &mut FieldErrors) {
    const GO_NAMES: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
    const BEFORE: [&str; 3] = ["id", "$schema", "$ref"];
    const OTHERS: [&str; 19] = [
        "default",
        "enum",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "dependencies",
        "additionalItems",
        "definitions",
        "allOf",
        "oneOf",
        "anyOf",
        "not",
        "additionalProperties",
        "nullable",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
    ];
    let said = |key: &&str| has(schema, key) && *get(schema, key) != false;
    let kind = text(schema, "type");
    // Upstream says the first thing only.
    if !BEFORE.iter().any(said) && !matches!(kind, "" | "object") {
        let message =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        out.push(Error::invalid(path.child("type"), kind, message));
    } else if BEFORE.iter().chain(&OTHERS).any(said) {
        let message = format!(
            "only {GO_NAMES} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        let shown = Some(schemas_shown::schema(schema));
        out.push(Error { shown, ..Error::invalid(path, schema.clone(), &message) });
    }
}

fn columns(columns: &Value, _: (bool, SchemaOptions), path: &Path, out: &mut FieldErrors) {
    const KINDS: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for (i, column) in columns.as_array().into_iter().flatten().enumerate() {
        let path = path.index(i);
        if text(column, "name").is_empty() {
            out.push(Error::required(path.child("name"), ""));
        }
        let (kind, format) = (text(column, "type"), text(column, "format"));
        let message = format!("must be one of {}", KINDS.join(","));
        if kind.is_empty() {
            out.push(Error::required(path.child("type"), &message));
        } else if !KINDS.contains(&kind) {
            out.push(Error::invalid(path.child("type"), kind, &message));
        }
        if !format.is_empty() && !FORMATS.contains(&format) {
            let message = format!("must be one of {}", FORMATS.join(","));
            out.push(Error::invalid(path.child("format"), format, &message));
        }
        // The name is upstream's internal one.
        simple_path(text(column, "jsonPath"), &path.child("JSONPath"), out);
    }
}

/// Something that begins as a path does. True when it does.
fn simple_path(value: &str, path: &Path, out: &mut FieldErrors) -> bool {
    if value.is_empty() {
        out.push(Error::required(path, ""));
    } else if !value.starts_with('.') {
        out.push(Error::invalid(path, value, "must be a simple json path starting with ."));
    }
    value.starts_with('.')
}

fn subresources(subresources: &Value, _: (bool, SchemaOptions), path: &Path, out: &mut FieldErrors) {
    let scale = get(subresources, "scale");
    if !scale.is_object() {
        return;
    }
    let path = path.child("scale");
    for (key, prefix) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        let (value, path) = (text(scale, key), path.child(key));
        if simple_path(value, &path, out) && !below(value, prefix) {
            out.push(Error::invalid(path, value, &format!("should be a json path under {prefix}")));
        }
    }
    let (selector, path) = (text(scale, "labelSelectorPath"), path.child("labelSelectorPath"));
    if !selector.is_empty()
        && simple_path(selector, &path, out)
        && !below(selector, ".spec")
        && !below(selector, ".status")
    {
        out.push(Error::invalid(path, selector, "should be a json path under either .spec or .status"));
    }
}

fn below(value: &str, prefix: &str) -> bool {
    value.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// Fields that objects are selected by hold a single value. They have to be in common with the schema, or neither.
fn selectable(version: &Value, before: Result<Before<'_>, &str>, path: &Path, out: &mut FieldErrors) {
    let path = path.child("selectableFields");
    let before = match before {
        _ if list(version, "selectableFields").is_empty() => return,
        Err(why) => return out.push(Error::invalid(path, "", why)),
        Ok(before) => before,
    };
    let schema = at(version, &["schema", "openAPIV3Schema"]);
    let mut seen = BTreeSet::new();
    for (i, field) in list(version, "selectableFields").iter().enumerate() {
        let (value, path) = (text(field, "jsonPath"), path.index(i).child("jsonPath"));
        if value.is_empty() {
            out.push(Error::required(path, ""));
            continue;
        }
        let (names, found) = match field_path::follow(value, schema, false) {
            Ok(found) => found,
            Err(why) => {
                out.push(Error::invalid(path, value, &format!("is an invalid path: {why}")));
                continue;
            }
        };
        if names.first().is_some_and(|name| name == "metadata") {
            out.push(Error::invalid(&path, value, "must not point to fields in metadata"));
        }
        if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
            let message = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            out.push(Error::invalid(&path, value, message));
        }
        if !seen.insert(names) {
            out.push(Error::duplicate(path, value));
        }
    }
    if seen.len() > MOST_SELECTABLE && !before.has_many(version) {
        out.push(Error::too_many(path, seen.len(), MOST_SELECTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(change: Value) -> Value {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "properties": {"host": {"type": "string"}, "ports": {"type": "array", "items": {"type": "integer"}}}}}});
        let mut version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        proto::merge::merge_patch::apply(&mut version, change);
        version
    }

    fn said(versions: &[Value]) -> Vec<String> {
        let (mut out, path) = (FieldErrors::default(), Path::new("spec"));
        for (i, version) in versions.iter().enumerate() {
            of_one(versions, version, Before::default(), &path.child("versions").index(i), &mut out);
        }
        of_all(&json!({"versions": versions}), Before::default(), &path, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shared_parts_are_validated_once() {
        let scale = |from: &str| json!({"subresources": {"scale": {"specReplicasPath": from, "statusReplicasPath": ".status.n"}}});
        let under =
            |at: &str| format!("{at}.scale.specReplicasPath: Invalid value: \".x\": should be a json path under .spec");
        assert_eq!(said(&[version(scale(".x"))]), [under("spec.subresources")]);
        assert_eq!(said(&[version(scale(".x")), version(scale(".x"))]), [under("spec.subresources")]);
        assert_eq!(said(&[version(scale(".spec.n")), version(scale(".x"))]), [under("spec.versions[1].subresources")]);
        assert_eq!(
            said(&[version(scale("x"))]),
            [
                "spec.subresources.scale.specReplicasPath: Invalid value: \"x\": must be a simple json path starting with ."
            ]
        );
    }

    #[test]
    fn columns_have_types_and_paths() {
        let columns = json!({"additionalPrinterColumns": [{"name": "a", "type": "date", "jsonPath": ".a"},
            {"type": "text", "format": "x", "jsonPath": "a"}, {"name": "b"}]});
        let kinds = "must be one of boolean,date,integer,number,string";
        assert_eq!(
            said(&[version(columns)]),
            [
                "spec.additionalPrinterColumns[1].name: Required value".to_owned(),
                format!("spec.additionalPrinterColumns[1].type: Invalid value: \"text\": {kinds}"),
                "spec.additionalPrinterColumns[1].format: Invalid value: \"x\": must be one of byte,date,date-time,double,float,int32,int64,password".to_owned(),
                "spec.additionalPrinterColumns[1].JSONPath: Invalid value: \"a\": must be a simple json path starting with .".to_owned(),
                format!("spec.additionalPrinterColumns[2].type: Required value: {kinds}"),
                "spec.additionalPrinterColumns[2].JSONPath: Required value".to_owned(),
            ]
        );
    }

    #[test]
    fn selectable_fields_are_single_values() {
        let fields = |paths: &[&str]| {
            let fields: Vec<Value> = paths.iter().map(|p| json!({"jsonPath": p})).collect();
            said(&[version(json!({"selectableFields": fields}))])
        };
        assert!(fields(&[".spec.host"]).is_empty());
        assert_eq!(
            fields(&[".spec.host", ".spec.host", ".spec.ports", ".spec.none", ""]),
            [
                "spec.selectableFields[1].jsonPath: Duplicate value: \".spec.host\"",
                "spec.selectableFields[2].jsonPath: Invalid value: \".spec.ports\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                "spec.selectableFields[3].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field",
                "spec.selectableFields[4].jsonPath: Required value",
            ]
        );
    }

    #[test]
    fn selectable_fields_follow_the_schemas_path() {
        let other = json!({"openAPIV3Schema": {"description": "another"}});
        let host = json!([{"jsonPath": ".spec.host"}]);
        for (versions, want) in [
            ([json!({"selectableFields": host}), json!({"selectableFields": host})], None),
            ([json!({"selectableFields": host}), json!({"schema": other})], None),
            (
                [json!({"selectableFields": host}), json!({})],
                Some(
                    "spec.versions[0].selectableFields: Invalid value: \"\": may only be set when `version.schema.openAPIV3Schema` is not included",
                ),
            ),
            (
                [json!({"selectableFields": host}), json!({"selectableFields": host, "schema": other})],
                Some("spec.selectableFields: Invalid value: \"\": may only be set when validations.schema is included"),
            ),
        ] {
            let [a, b] = versions.clone().map(version);
            assert_eq!(said(&[a, b]), want.into_iter().collect::<Vec<_>>(), "{versions:?}");
        }
    }

    #[test]
    fn warnings_and_roots() {
        let at = "spec.versions[0].deprecationWarning: Invalid value";
        assert_eq!(
            said(&[version(json!({"deprecationWarning": "w"}))]),
            [format!("{at}: \"w\": can only be set for deprecated versions")]
        );
        assert_eq!(
            said(&[version(json!({"deprecated": true, "deprecationWarning": ""}))]),
            [format!("{at}: \"\": must not be an empty string")]
        );
        let open =
            json!({"subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"nullable": true, "oneOf": []}}});
        let found = said(&[version(open)]);
        assert!(
            found[0].contains("fields are allowed at the root of the schema if the status subresource is enabled"),
            "{found:?}"
        );
        assert_eq!(
            found[1],
            "spec.validation.openAPIV3Schema.nullable: Forbidden: nullable cannot be true at the root"
        );
    }
}
