//! Objects to bytes in the format the client accepts. Answers for upstream's `pkg/endpoints/handlers/responsewriters`
//! (`WriteObjectNegotiated`).

use proto::schema::{self, Message};
use proto::{Value, cbor, json, protobuf, yaml};
use serde_json::json;
use shared::status::Status;

use super::accept::{Accepted, Format};

/// Encodes a tree that carries `apiVersion`, `kind` and what clients put into it. Without a schema protobuf is not
/// possible.
///
/// # Errors
/// There are texts that YAML has no way to write.
pub fn written(format: Format, pretty: bool, schema: Option<&Message>, value: &Value) -> Result<Vec<u8>, Status> {
    if format != Format::Yaml {
        return Ok(envelope(format, pretty, schema, value));
    }
    let text = schema.map_or_else(|| yaml::encode_any(value), |schema| yaml::encode(schema, value));
    text.map(String::into_bytes).map_err(|refused| Status::unknown(&refused.to_string()))
}

/// Encodes what the server made up by itself.
pub fn envelope(format: Format, pretty: bool, schema: Option<&Message>, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    match (format, schema) {
        (Format::Protobuf, Some(s)) => {
            let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
            return protobuf::wrap(text("apiVersion"), text("kind"), &protobuf::encode(s, value));
        }
        (Format::Cbor, schema) => return cbor::encode(schema, value),
        (Format::Yaml, schema) => match written(format, pretty, schema, value) {
            Ok(text) => return text,
            // An error that quotes such a text; upstream says it without the form.
            Err(refused) => {
                let said = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
                let plain = format!("{}: {}", said("reason"), said("message"));
                return if value.get("message").is_some() { plain } else { refused.message }.into_bytes();
            }
        },
        (_, Some(s)) if pretty => json::encode_pretty(s, value, &mut out),
        (_, Some(s)) => {
            json::encode(s, value, &mut out);
            out.push(b'\n');
        }
        (_, None) => {
            json::encode_any(value, &mut out);
            if pretty {
                let mut indented = Vec::with_capacity(out.len() * 2);
                json::indent(&out, &mut indented);
                return indented;
            }
            out.push(b'\n');
        }
    }
    out
}

/// Encodes an object of a known kind.
pub fn object(accepted: &Accepted, schema: &Message, value: &Value) -> Vec<u8> {
    envelope(accepted.format, accepted.pretty, Some(schema), value)
}

/// Encodes an error or a success report.
pub fn status(format: Format, pretty: bool, status: &Status) -> Vec<u8> {
    if format == Format::Json && !pretty {
        let mut out = status.to_json();
        out.push(b'\n');
        return out;
    }
    let tree = serde_json::to_value(status).unwrap_or_default();
    envelope(format, pretty, schema::kind("", "v1", "Status"), &tree)
}

/// `PartialObjectMetadata` of an object.
pub fn metadata_of(object: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// Schema of lists of metadata.
pub fn partial_list_kind(version: &str) -> Option<&'static Message> {
    schema::kind("meta.k8s.io", version, "PartialObjectMetadataList")
}

/// Schema of tables.
pub fn table_kind(version: &str) -> Option<&'static Message> {
    schema::kind("meta.k8s.io", version, "Table")
}
