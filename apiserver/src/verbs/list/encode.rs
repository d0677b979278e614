//! Lists in the forms that clients ask for: put together from encoded objects where there are such, else from trees.

use std::borrow::Cow;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use proto::resources::Row;
use proto::{Value, json, protobuf, schema};
use serde_json::{Map, json};
use shared::status::Status;

use super::body::{self, Item, ListParts};
use super::found::ListResult;
use crate::cache::{Entry, Raw};
use crate::negotiate::{self, Accepted, Format, ObjectForm};
use crate::registry::behavior;
use crate::storage::codec;
use crate::verbs::engine::Engine;
use crate::verbs::table::{self, Include};
use crate::verbs::{Reply, VerbRequest};

const LIST_META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta";

fn meta(found: &ListResult) -> Value {
    let mut meta = Map::new();
    meta.insert("resourceVersion".to_owned(), Value::from(found.revision.to_string()));
    if let Some((token, remaining)) = &found.rest {
        meta.insert("continue".to_owned(), Value::from(token.as_str()));
        if let Some(n) = remaining {
            meta.insert("remainingItemCount".to_owned(), Value::from(*n));
        }
    }
    Value::Object(meta)
}

/// Metadata of a list without a type: with `continue`, also when it is empty.
fn untyped_meta(found: &ListResult) -> Value {
    let mut meta = meta(found);
    if let Some(map) = meta.as_object_mut() {
        map.entry("continue").or_insert_with(|| Value::from(""));
    }
    meta
}

/// Encodes a list.
pub fn reply(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    accepted: &Accepted,
    include: Include,
    found: ListResult,
) -> Result<Reply, Status> {
    if let Some(refused) = negotiate::not_of_that_form(accepted.shape, row, &row.list_kind) {
        return Err(refused);
    }
    let parts = match (accepted.shape, accepted.format) {
        _ if !behavior(row).has_protobuf() && accepted.format != Format::Json => Err(found),
        (ObjectForm::Object, Format::Json) => Ok(json_parts(engine, row, found)),
        (ObjectForm::Object, Format::Protobuf) if row.is_storage() && !row.storage_json => protobuf_parts(row, found),
        (ObjectForm::MetadataList(version), Format::Json) => Ok(metadata_parts(engine, row, version, found)),
        (ObjectForm::MetadataList(version), Format::Protobuf) if !row.storage_json => {
            protobuf_metadata_parts(version, found)
        }
        (ObjectForm::Table(version), Format::Json) => Ok(table_parts(engine, row, version, include, found)),
        _ => Err(found),
    };
    match parts {
        Ok(parts) => {
            let parts = ListParts { pretty: accepted.pretty && accepted.format == Format::Json, ..parts };
            Ok(body::reply(&engine.caches, accepted.format.content_type(), r.gzip, parts))
        }
        Err(found) => by_trees(engine, row, accepted, include, &found),
    }
}

/// The tree of an entry in the version of the request's row.
fn served(engine: &Engine, row: &Row, e: &Entry) -> Option<Value> {
    codec::value(&row.storage(), &e.raw).ok().map(|tree| engine.to_served(row, tree))
}

/// The whole list as one tree, for the forms that are rarely asked for.
fn by_trees(
    engine: &Engine,
    row: &Row,
    accepted: &Accepted,
    include: Include,
    found: &ListResult,
) -> Result<Reply, Status> {
    let mut trees: Vec<Value> = found.items.iter().filter_map(|e| served(engine, row, e)).collect();
    let (schema, tree) = match accepted.shape {
        ObjectForm::Table(version) => {
            (negotiate::table_kind("v1"), table::tabulate(row, version, trees.iter(), include, meta(found), true))
        }
        ObjectForm::Metadata(version) | ObjectForm::MetadataList(version) => {
            let items: Vec<Value> = trees.iter().map(|t| negotiate::metadata_of(t, version)).collect();
            let items = if items.is_empty() { Value::Null } else { Value::Array(items) };
            let tree = json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta(found), "items": items});
            (negotiate::partial_list_kind("v1"), tree)
        }
        ObjectForm::Object => {
            let (schema, meta) = match behavior(row).has_typed_lists() {
                true => (row.list_schema(), meta(found)),
                false => (None, untyped_meta(found)),
            };
            // Elements of a typed list do not say what they are.
            if schema.is_some() {
                for map in trees.iter_mut().filter_map(Value::as_object_mut) {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
            }
            let tree =
                json!({"kind": row.list_kind, "apiVersion": row.api_version(), "metadata": meta, "items": trees});
            (schema, tree)
        }
    };
    let body = negotiate::written(accepted.format, accepted.pretty, schema, &tree)?;
    Ok(Reply::new(200, accepted.format.content_type(), Bytes::from(body)))
}

/// The end of a JSON list or table.
const END: &[u8] = b"]}\n";

/// Ways of writing that depend on nothing but the object; each has a number of its own for a row.
fn form_fingerprint(row: &Row, format: &str) -> Option<u64> {
    let mut h = std::hash::DefaultHasher::new();
    (&*row.group, &*row.version, &*row.plural, format).hash(&mut h);
    behavior(row).encodes_alike().then(|| h.finish())
}

/// A list without a type, whose keys are sorted: what is said of the list comes last.
fn untyped_parts(engine: &Arc<Engine>, row: &Row, found: ListResult) -> ListParts {
    let head = format!(r#"{{"apiVersion":"{}","items":["#, row.api_version()).into_bytes();
    let mut tail = format!(r#"],"kind":"{}","metadata":"#, row.list_kind).into_bytes();
    json::encode_any(&untyped_meta(&found), &mut tail);
    tail.extend_from_slice(b"}\n");
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::json_item(&engine, &row, e, out));
    ListParts { head, items: found.items, item, commas: true, tail: Cow::Owned(tail), fixed: None, pretty: false }
}

fn json_parts(engine: &Arc<Engine>, row: &Row, found: ListResult) -> ListParts {
    if !behavior(row).has_typed_lists() {
        return untyped_parts(engine, row, found);
    }
    let mut head =
        format!(r#"{{"kind":"{}","apiVersion":"{}","metadata":"#, row.list_kind, row.api_version()).into_bytes();
    match schema::message(LIST_META) {
        Some(s) => json::encode(s, &meta(&found), &mut head),
        None => json::encode_any(&meta(&found), &mut head),
    }
    head.extend_from_slice(br#","items":["#);
    let fixed = form_fingerprint(row, "json");
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::json_item(&engine, &row, e, out));
    ListParts { head, items: found.items, item, commas: true, tail: Cow::Borrowed(END), fixed, pretty: false }
}

fn metadata_parts(engine: &Arc<Engine>, row: &Row, version: &'static str, found: ListResult) -> ListParts {
    let tree = json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta(&found), "items": []});
    let mut head = negotiate::envelope(Format::Json, false, negotiate::partial_list_kind("v1"), &tree);
    head.truncate(head.len() - END.len());
    let mut tail = END;
    if found.items.is_empty() {
        // Of nothing upstream makes no list.
        head.truncate(head.len() - b"[".len());
        (head, tail) = ([&head[..], b"null"].concat(), &END[b"]".len()..]);
    }
    let fixed = form_fingerprint(row, version);
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::metadata_item(&engine, &row, version, e, out));
    ListParts { head, items: found.items, item, commas: true, tail: Cow::Borrowed(tail), fixed, pretty: false }
}

fn table_parts(
    engine: &Arc<Engine>,
    row: &Row,
    version: &'static str,
    include: Include,
    found: ListResult,
) -> ListParts {
    let tree = table::tabulate(row, version, std::iter::empty(), include, meta(&found), true);
    let mut head = negotiate::envelope(Format::Json, false, negotiate::table_kind("v1"), &tree);
    head.truncate(head.len() - END.len());
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::row_item(&engine, &row, version, include, e, out));
    ListParts { head, items: found.items, item, commas: true, tail: Cow::Borrowed(END), fixed: None, pretty: false }
}

/// A protobuf list (`metadata = 1`, `items = 2`) in its envelope, given each element's bytes.
fn enveloped(
    (api_version, kind): (&str, &str),
    found: ListResult,
    size: impl Fn(&Entry) -> Option<usize>,
    item: Item,
    fixed: Option<u64>,
) -> Result<ListParts, ListResult> {
    let list_meta = schema::message(LIST_META).map(|s| protobuf::encode(s, &meta(&found))).unwrap_or_default();
    let mut body = Vec::new();
    put(&mut body, 0x0a, &list_meta);
    let Some(sizes) = found.items.iter().map(|e| size(e)).sum::<Option<usize>>() else { return Err(found) };
    let (mut head, tail) = protobuf::wrap_around(api_version, kind, body.len() + sizes);
    head.extend_from_slice(&body);
    Ok(ListParts { head, items: found.items, item, commas: false, tail: Cow::Borrowed(tail), fixed, pretty: false })
}

fn protobuf_parts(row: &Row, found: ListResult) -> Result<ListParts, ListResult> {
    let size = |e: &Entry| match &e.raw {
        Raw::Proto(bytes) => Some(put_size(bytes.len())),
        Raw::Json(_) => None,
    };
    let item: Item = Box::new(|e, out| match &e.raw {
        Raw::Proto(bytes) => {
            put(out, 0x12, bytes);
            true
        }
        Raw::Json(_) => false,
    });
    enveloped((&row.api_version(), &row.list_kind), found, size, item, form_fingerprint(row, "protobuf"))
}

fn protobuf_metadata_parts(version: &str, found: ListResult) -> Result<ListParts, ListResult> {
    fn metadata_of(e: &Entry) -> Option<&[u8]> {
        match &e.raw {
            Raw::Proto(bytes) => codec::metadata(bytes),
            Raw::Json(_) => None,
        }
    }
    let size = |e: &Entry| metadata_of(e).map(|m| put_size(put_size(m.len())));
    let item: Item = Box::new(|e, out| {
        let Some(metadata) = metadata_of(e) else { return false };
        out.push(0x12);
        put_length(out, put_size(metadata.len()));
        put(out, 0x0a, metadata);
        true
    });
    enveloped((&format!("meta.k8s.io/{version}"), "PartialObjectMetadataList"), found, size, item, None)
}

/// Appends a length-delimited field.
pub(in crate::verbs) fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits a byte")]
fn put_length(out: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Bytes that [`put`] appends for a content of a length.
fn put_size(length: usize) -> usize {
    let bits = usize::BITS - length.leading_zeros();
    1 + (bits.div_ceil(7).max(1) as usize) + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_sizes_match_written_bytes() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let mut out = Vec::new();
            put(&mut out, 0x12, &vec![0; length]);
            assert_eq!(out.len(), put_size(length));
        }
    }
}
