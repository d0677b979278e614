//! Custom resource definitions.

use proto::Value;
use shared::status::go_quote;

use crate::crd::formats;
use crate::rules::options::Warnings;
use crate::rules::tree::{entries, get, list, text};

/// Formats that nobody checks; of those that were there already nothing is said again.
pub(crate) fn formats(new: &Value, old: Option<&Value>, out: &mut Warnings) {
    let before = old.map(unknown).unwrap_or_default();
    let now = unknown(new).into_iter().filter(|format| !before.contains(format));
    out.extend(now.map(|format| format!("unrecognized format {}", go_quote(format))));
}

fn unknown(definition: &Value) -> Vec<&str> {
    let mut out = Vec::new();
    for version in list(get(definition, "spec"), "versions") {
        in_schema(get(get(version, "schema"), "openAPIV3Schema"), &mut out);
    }
    out
}

/// A schema and all within it. Its depth is that of a document, which the decoder bounds.
fn in_schema<'v>(schema: &'v Value, out: &mut Vec<&'v str>) {
    if !schema.is_object() {
        return;
    }
    let format = text(schema, "format");
    if text(schema, "type") == "string" && !format.is_empty() && !formats::is_known(format) {
        out.push(format);
    }
    for key in ["items", "not", "additionalProperties", "additionalItems"] {
        in_schema(get(schema, key), out);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        list(schema, key).iter().for_each(|one| in_schema(one, out));
    }
    for key in ["properties", "patternProperties", "definitions", "dependencies"] {
        entries(schema, key).for_each(|(_, one)| in_schema(one, out));
    }
}
