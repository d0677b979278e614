//! A version 3 document in protobuf (`openapi.v3.Document`), written from its JSON by tables of its messages.

use serde_json::{Map, Value};

use super::gnostic::{Out, any, double, fixed, flag, integer, members, pair, text, texts};
use crate::protobuf::wire::{bytes, nested, number};

/// A message: its members with their numbers, and the number of its extensions (0: it has none).
struct Message {
    fields: &'static [(&'static str, u32, Form)],
    extensions: u32,
}

/// Type of a member.
enum Form {
    Text,
    Texts,
    Flag,
    Integer,
    Double,
    /// Free values travel as YAML text, of which JSON is a part.
    Anys,
    One(&'static Message),
    /// A message that only holds pairs of a name and a message.
    Named(&'static Message),
    /// The message, or a reference to one.
    Ref(&'static Message),
    Refs(&'static Message),
    NamedRefs(&'static Message),
    /// Pairs of a code and a message or a reference, beside a default.
    Responses(&'static Message),
    /// A list's items.
    Items(&'static Message),
    /// Other members: a schema, or whether there may be any.
    Others(&'static Message),
    /// A number, a truth or a text; of anything else there is only that it is there.
    Default,
}

use Form::{
    Anys, Default, Double, Flag, Integer, Items, Named, NamedRefs, One, Others, Ref, Refs, Responses, Text, Texts,
};

static DOCUMENT: Message = Message {
    fields: &[
        ("openapi", 1, Text),
        ("info", 2, One(&INFO)),
        ("paths", 4, Named(&PATH_ITEM)),
        ("components", 5, One(&COMPONENTS)),
    ],
    extensions: 9,
};
static INFO: Message =
    Message { fields: &[("title", 1, Text), ("description", 2, Text), ("version", 6, Text)], extensions: 7 };
static COMPONENTS: Message = Message {
    fields: &[("schemas", 1, NamedRefs(&SCHEMA)), ("securitySchemes", 7, NamedRefs(&SECURITY_SCHEME))],
    extensions: 10,
};
static SECURITY_SCHEME: Message = Message {
    fields: &[("type", 1, Text), ("description", 2, Text), ("name", 3, Text), ("in", 4, Text)],
    extensions: 9,
};
static PATH_ITEM: Message = Message {
    fields: &[
        ("summary", 2, Text),
        ("description", 3, Text),
        ("get", 4, One(&OPERATION)),
        ("put", 5, One(&OPERATION)),
        ("post", 6, One(&OPERATION)),
        ("delete", 7, One(&OPERATION)),
        ("options", 8, One(&OPERATION)),
        ("head", 9, One(&OPERATION)),
        ("patch", 10, One(&OPERATION)),
        ("parameters", 13, Refs(&PARAMETER)),
    ],
    extensions: 14,
};
static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Texts),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, Refs(&PARAMETER)),
        ("requestBody", 7, Ref(&REQUEST_BODY)),
        ("responses", 8, Responses(&RESPONSE)),
        ("deprecated", 10, Flag),
    ],
    extensions: 13,
};
static PARAMETER: Message = Message {
    fields: &[
        ("name", 1, Text),
        ("in", 2, Text),
        ("description", 3, Text),
        ("required", 4, Flag),
        ("schema", 10, Ref(&SCHEMA)),
    ],
    extensions: 14,
};
static REQUEST_BODY: Message = Message {
    fields: &[("description", 1, Text), ("content", 2, Named(&MEDIA_TYPE)), ("required", 3, Flag)],
    extensions: 4,
};
static RESPONSE: Message =
    Message { fields: &[("description", 1, Text), ("content", 3, Named(&MEDIA_TYPE))], extensions: 5 };
static MEDIA_TYPE: Message = Message { fields: &[("schema", 1, Ref(&SCHEMA))], extensions: 5 };
static EXTERNAL_DOCS: Message = Message { fields: &[("description", 1, Text), ("url", 2, Text)], extensions: 3 };
static SCHEMA: Message = Message {
    fields: &[
        ("nullable", 1, Flag),
        ("externalDocs", 6, One(&EXTERNAL_DOCS)),
        ("title", 9, Text),
        ("multipleOf", 10, Double),
        ("maximum", 11, Double),
        ("exclusiveMaximum", 12, Flag),
        ("minimum", 13, Double),
        ("exclusiveMinimum", 14, Flag),
        ("maxLength", 15, Integer),
        ("minLength", 16, Integer),
        ("pattern", 17, Text),
        ("maxItems", 18, Integer),
        ("minItems", 19, Integer),
        ("uniqueItems", 20, Flag),
        ("maxProperties", 21, Integer),
        ("minProperties", 22, Integer),
        ("required", 23, Texts),
        ("enum", 24, Anys),
        ("type", 25, Text),
        ("allOf", 26, Refs(&SCHEMA)),
        ("oneOf", 27, Refs(&SCHEMA)),
        ("anyOf", 28, Refs(&SCHEMA)),
        ("not", 29, One(&SCHEMA)),
        ("items", 30, Items(&SCHEMA)),
        ("properties", 31, NamedRefs(&SCHEMA)),
        ("additionalProperties", 32, Others(&SCHEMA)),
        ("default", 33, Default),
        ("description", 34, Text),
        ("format", 35, Text),
    ],
    extensions: 36,
};

/// The document, given its JSON form; nothing for what is none.
pub(super) fn document(json: &[u8]) -> Option<Out> {
    let tree: Value = serde_json::from_slice(json).ok()?;
    let mut out = Vec::with_capacity(json.len());
    write(&DOCUMENT, tree.as_object()?, &mut out);
    Some(out)
}

fn write(message: &Message, map: &Map<String, Value>, out: &mut Out) {
    for (name, at, form) in message.fields {
        if let Some(value) = map.get(*name) {
            member(*at, form, value, out);
        }
    }
    if message.extensions > 0 {
        for (name, item) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
            pair(message.extensions, name, out, |out| any(item, out));
        }
    }
}

fn member(at: u32, form: &Form, value: &Value, out: &mut Out) {
    match form {
        Text => text(at, Some(value), out),
        Texts => texts(at, Some(value), out),
        Flag => flag(at, Some(value), out),
        Integer => integer(at, Some(value), out),
        Double => double(at, Some(value), out),
        Anys => items(value).for_each(|item| nested(at, out, |out| any(item, out))),
        One(message) => nested(at, out, |out| object(message, value, out)),
        Ref(message) => nested(at, out, |out| referred(message, value, out)),
        Refs(message) => items(value).for_each(|item| nested(at, out, |out| referred(message, item, out))),
        Named(message) => nested(at, out, |out| {
            members(value).for_each(|(name, item)| pair(1, name, out, |out| object(message, item, out)));
        }),
        NamedRefs(message) => nested(at, out, |out| {
            members(value).for_each(|(name, item)| pair(1, name, out, |out| referred(message, item, out)));
        }),
        Responses(message) => nested(at, out, |out| {
            for (code, item) in members(value) {
                match code.as_str() {
                    "default" => nested(1, out, |out| referred(message, item, out)),
                    code => pair(2, code, out, |out| referred(message, item, out)),
                }
            }
        }),
        Items(message) => nested(at, out, |out| nested(1, out, |out| referred(message, value, out))),
        Others(message) => nested(at, out, |out| match value {
            Value::Bool(allowed) => number(2, i64::from(*allowed), out),
            schema => nested(1, out, |out| referred(message, schema, out)),
        }),
        Default => nested(at, out, |out| match value {
            Value::Number(n) => fixed(1, n.as_f64().unwrap_or_default(), out),
            Value::Bool(truth) => number(2, i64::from(*truth), out),
            Value::String(text) => bytes(3, text.as_bytes(), out),
            _ => {}
        }),
    }
}

fn object(message: &Message, value: &Value, out: &mut Out) {
    if let Some(map) = value.as_object() {
        write(message, map, out);
    }
}

/// A message itself (1), or the reference to one (2).
fn referred(message: &Message, value: &Value, out: &mut Out) {
    match value.get("$ref") {
        Some(target) => nested(2, out, |out| text(1, Some(target), out)),
        None => nested(1, out, |out| object(message, value, out)),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The fields of a message, by number, as they come.
    fn fields(mut at: &[u8]) -> Vec<(u64, &[u8])> {
        let mut found = Vec::new();
        while !at.is_empty() {
            let tag = varint(&mut at);
            let length = match tag & 7 {
                0 => {
                    let before = at;
                    varint(&mut at);
                    found.push((tag >> 3, &before[..before.len() - at.len()]));
                    continue;
                }
                1 => 8,
                2 => usize::try_from(varint(&mut at)).expect("a length"),
                other => unreachable!("wire type {other}"),
            };
            let (content, rest) = at.split_at(length);
            found.push((tag >> 3, content));
            at = rest;
        }
        found
    }

    fn varint(at: &mut &[u8]) -> u64 {
        let end = at.iter().position(|b| b & 0x80 == 0).expect("an end") + 1;
        let (number, rest) = at.split_at(end);
        *at = rest;
        number.iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 0x7f))
    }

    /// Returns the bytes at a path of field numbers, each time the first occurrence.
    fn at<'b>(bytes: &'b [u8], path: &[u64]) -> &'b [u8] {
        path.iter().fold(bytes, |at, number| fields(at).into_iter().find(|(n, _)| n == number).expect("a field").1)
    }

    #[test]
    fn every_member_has_its_number() {
        let schema = json!({"type": "object", "description": "D", "required": ["a"], "default": {},
            "properties": {"a": {"type": "string", "default": "x", "enum": ["x", "y"]}, "b": {"allOf": [{"$ref": "#/r"}], "default": 5},
                "c": {"items": {"type": "integer", "format": "int32", "minimum": -1}}, "d": {"additionalProperties": true}},
            "x-kubernetes-group-version-kind": [{"kind": "K"}]});
        let get = json!({"tags": ["t"], "operationId": "o", "responses": {"200": {"description": "OK",
            "content": {"application/json": {"schema": {"$ref": "#/s"}}}}}});
        let parameters =
            json!([{"name": "n", "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}]);
        let body = json!({"required": true, "content": {"*/*": {"schema": {"$ref": "#/s"}}}});
        let tree = json!({"openapi": "3.0.0", "info": {"title": "T", "version": "v1"},
            "paths": {"/p": {"get": get, "post": {"requestBody": body, "deprecated": true}, "parameters": parameters}},
            "components": {"schemas": {"S": schema}, "securitySchemes": {"B": {"type": "apiKey", "in": "header"}}}});
        let bytes = document(tree.to_string().as_bytes()).expect("a document");
        let of_schema = [5, 1, 1, 2, 1];
        let in_schema = |path: &[u64]| [&of_schema[..], path].concat();
        for (path, want) in [
            (vec![1], &b"3.0.0"[..]),
            (vec![2, 6], b"v1"),
            (vec![4, 1, 1], b"/p"),
            (vec![4, 1, 2, 4, 5], b"o"),
            (vec![4, 1, 2, 4, 8, 2, 1], b"200"),
            (vec![4, 1, 2, 4, 8, 2, 2, 1, 3, 1, 1], b"application/json"),
            (vec![4, 1, 2, 4, 8, 2, 2, 1, 3, 1, 2, 1, 2, 1], b"#/s"),
            (vec![4, 1, 2, 6, 7, 1, 2, 1, 1], b"*/*"),
            (vec![4, 1, 2, 6, 7, 1, 3], b"\x01"),
            (vec![4, 1, 2, 6, 10], b"\x01"),
            (vec![4, 1, 2, 13, 1, 10, 1, 20], b"\x01"),
            (vec![5, 7, 1, 2, 1, 4], b"header"),
            (in_schema(&[25]), b"object"),
            (in_schema(&[33]), b""),
            (in_schema(&[31, 1, 1]), b"a"),
            (in_schema(&[31, 1, 2, 1, 33, 3]), b"x"),
            (in_schema(&[31, 1, 2, 1, 24, 2]), b"\"x\"\n"),
            (in_schema(&[36, 1]), b"x-kubernetes-group-version-kind"),
            (in_schema(&[36, 2, 2]), b"[{\"kind\":\"K\"}]\n"),
        ] {
            assert_eq!(at(&bytes, &path), want, "{path:?}");
        }
        let properties: Vec<&[u8]> =
            fields(at(&bytes, &in_schema(&[31]))).into_iter().map(|(_, p)| at(p, &[2, 1])).collect();
        assert_eq!(at(properties[1], &[26, 2, 1]), b"#/r");
        assert_eq!(at(properties[1], &[33, 1]), 5_f64.to_le_bytes());
        assert_eq!(at(properties[2], &[30, 1, 1, 35]), b"int32");
        assert_eq!(at(properties[2], &[30, 1, 1, 13]), (-1_f64).to_le_bytes());
        assert_eq!(at(properties[3], &[32, 2]), b"\x01");
        assert_eq!(document(b"[]"), None);
    }

    /// No member of the server's documents is omitted.
    #[test]
    fn every_member_of_the_documents_is_known() {
        fn check(message: &Message, value: &Value) {
            for (name, item) in members(value).filter(|(name, _)| !name.starts_with("x-") && *name != "$ref") {
                let found = message.fields.iter().find(|(known, ..)| known == name);
                let (.., form) = found.unwrap_or_else(|| unreachable!("{name}"));
                match form {
                    One(message) | Ref(message) | Items(message) | Others(message) => check(message, item),
                    Refs(message) => items(item).for_each(|item| check(message, item)),
                    Named(message) | NamedRefs(message) | Responses(message) => {
                        members(item).for_each(|(_, item)| check(message, item));
                    }
                    _ => {}
                }
            }
        }
        for (group, version) in [("", "v1"), ("apps", "v1"), ("apiextensions.k8s.io", "v1")] {
            let json = super::super::v3_group_version(group, version).expect("a document");
            check(&DOCUMENT, &serde_json::from_slice(&json).expect("JSON"));
        }
    }
}
