//! Schemas as upstream's messages show them: its internal form, with nothing left out.

use proto::Value;

use super::tree::get;

/// Names in the API and in the internal form, and what stands for nothing.
const FIELDS: [(&str, &str, &str); 44] = [
    ("id", "ID", "\"\""),
    ("$schema", "Schema", "\"\""),
    ("$ref", "Ref", "null"),
    ("description", "Description", "\"\""),
    ("type", "Type", "\"\""),
    ("nullable", "Nullable", "false"),
    ("format", "Format", "\"\""),
    ("title", "Title", "\"\""),
    ("default", "Default", "null"),
    ("maximum", "Maximum", "null"),
    ("exclusiveMaximum", "ExclusiveMaximum", "false"),
    ("minimum", "Minimum", "null"),
    ("exclusiveMinimum", "ExclusiveMinimum", "false"),
    ("maxLength", "MaxLength", "null"),
    ("minLength", "MinLength", "null"),
    ("pattern", "Pattern", "\"\""),
    ("maxItems", "MaxItems", "null"),
    ("minItems", "MinItems", "null"),
    ("uniqueItems", "UniqueItems", "false"),
    ("multipleOf", "MultipleOf", "null"),
    ("enum", "Enum", "null"),
    ("maxProperties", "MaxProperties", "null"),
    ("minProperties", "MinProperties", "null"),
    ("required", "Required", "null"),
    ("items", "Items", "null"),
    ("allOf", "AllOf", "null"),
    ("oneOf", "OneOf", "null"),
    ("anyOf", "AnyOf", "null"),
    ("not", "Not", "null"),
    ("properties", "Properties", "null"),
    ("additionalProperties", "AdditionalProperties", "null"),
    ("patternProperties", "PatternProperties", "null"),
    ("dependencies", "Dependencies", "null"),
    ("additionalItems", "AdditionalItems", "null"),
    ("definitions", "Definitions", "null"),
    ("externalDocs", "ExternalDocs", "null"),
    ("example", "Example", "null"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields", "null"),
    ("x-kubernetes-embedded-resource", "XEmbeddedResource", "false"),
    ("x-kubernetes-int-or-string", "XIntOrString", "false"),
    ("x-kubernetes-list-map-keys", "XListMapKeys", "null"),
    ("x-kubernetes-list-type", "XListType", "null"),
    ("x-kubernetes-map-type", "XMapType", "null"),
    ("x-kubernetes-validations", "XValidations", "null"),
];

/// A schema in its internal form.
pub(super) fn schema(schema: &Value) -> String {
    let fields = FIELDS.map(|(key, name, nothing)| match get(schema, key) {
        Value::Null => format!("\"{name}\":{nothing}"),
        value => format!("\"{name}\":{}", field(key, value)),
    });
    format!("{{{}}}", fields.join(","))
}

fn field(key: &str, value: &Value) -> String {
    match key {
        "items" if value.is_array() => format!("{{\"Schema\":null,\"JSONSchemas\":{}}}", list(value, schema)),
        "items" => format!("{{\"Schema\":{},\"JSONSchemas\":null}}", schema(value)),
        "allOf" | "oneOf" | "anyOf" => list(value, schema),
        "not" => schema(value),
        "properties" | "patternProperties" | "definitions" => map(value),
        "additionalProperties" | "additionalItems" if value.is_object() => {
            format!("{{\"Allows\":true,\"Schema\":{}}}", schema(value))
        }
        "additionalProperties" | "additionalItems" => format!("{{\"Allows\":{value},\"Schema\":null}}"),
        "x-kubernetes-validations" => list(value, crate::crd::validate::rule_shown),
        _ => plain(value),
    }
}

fn plain(value: &Value) -> String {
    let mut text = Vec::new();
    proto::json::encode_any(value, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn list(value: &Value, one: fn(&Value) -> String) -> String {
    let all: Vec<String> = value.as_array().into_iter().flatten().map(one).collect();
    format!("[{}]", all.join(","))
}

fn map(value: &Value) -> String {
    let mut all: Vec<_> = value.as_object().into_iter().flatten().collect();
    all.sort_by_key(|(key, _)| *key);
    let all: Vec<String> =
        all.into_iter().map(|(key, inner)| format!("{}:{}", plain(&key.as_str().into()), schema(inner))).collect();
    format!("{{{}}}", all.join(","))
}
