//! LIST: from the cache when it is as fresh as asked, from etcd when an older revision is.
//!
//! Hot path: with JSON or protobuf of the stored version, the answer is a concatenation of encoded objects.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use proto::resources::Row;
use proto::{Value, json, protobuf, schema};
use serde_json::{Map, json};
use shared::status::{Status, field};

use super::engine::{Engine, storage_status};
use super::list_body::{self, Item, Parts};
use super::list_meters;
use super::list_token::{read_token, token};
use super::query::Query;
use super::select::Selection;
use super::table::{self, Include};
use super::{Reply, Request, accepted, get, namespace_of};
use crate::cache::{CacheError, Cacher, Entry, Raw, Scope};
use crate::negotiate::{self, Accepted, Format, Shape};
use crate::storage::{self, codec};

const LIST_META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Which moment a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Now, agreed with etcd.
    Now,
    /// Whatever is known.
    Any,
    /// This revision or a newer one.
    NotOlder(i64),
    /// Exactly this revision.
    Exact(i64),
}

/// Options of a list, checked.
#[derive(Debug)]
struct Options {
    moment: Moment,
    limit: usize,
    /// Key below the resource's prefix to start at.
    start: String,
    continued: bool,
}

fn forbidden(detail: &str) -> field::Error {
    field::Error::forbidden(field::Path::new("resourceVersionMatch"), detail)
}

/// A watch that says neither where it begins nor how is taken for one that begins with the state.
pub fn begins_with_state(query: &Query) -> bool {
    let text = |k: &str| query.get(k).unwrap_or("");
    query.maybe_flag("sendInitialEvents").is_none()
        && text("resourceVersionMatch").is_empty()
        && matches!(text("resourceVersion"), "" | "0")
}

/// Checks the options both LIST and WATCH have.
pub fn check(query: &Query, watch: bool) -> Result<(), Status> {
    let text = |k: &str| query.get(k).unwrap_or("");
    let (rv, matching, cont) = (text("resourceVersion"), text("resourceVersionMatch"), text("continue"));
    let mut errors = Vec::new();
    let send = query.maybe_flag("sendInitialEvents");
    if watch {
        let begins = begins_with_state(query);
        let (sends, matching) = (send.is_some() || begins, if begins { "NotOlderThan" } else { matching });
        if sends && matching != "NotOlderThan" {
            errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        if !matching.is_empty() {
            if !sends {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(forbidden(why));
            }
            if matching != "NotOlderThan" {
                let path = field::Path::new("resourceVersionMatch");
                errors.push(field::Error::not_supported(path, Value::from(matching), &["NotOlderThan"]));
            }
            if !cont.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
        }
    } else {
        if send.is_some() {
            errors.push(field::Error::forbidden(
                field::Path::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
        if !matching.is_empty() {
            if rv.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if !cont.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                let path = field::Path::new("resourceVersionMatch");
                errors.push(field::Error::not_supported(path, Value::from(matching), &["Exact", "NotOlderThan", ""]));
            }
            if matching == "Exact" && rv == "0" {
                errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", "ListOptions", "", errors)) }
}

fn options(query: &Query, scope: &str) -> Result<Options, Status> {
    check(query, false)?;
    let limit = usize::try_from(query.int("limit")?.unwrap_or(0)).unwrap_or(0);
    query.int("timeoutSeconds")?;
    let text = |k: &str| query.get(k).unwrap_or("");
    let rv = get::revision(text("resourceVersion"))
        .map_err(|e| Status::bad_request(&format!("invalid resource version: {e}")))?;
    if let Some(token) = query.get("continue").filter(|t| !t.is_empty()) {
        let (revision, start) = read_token(token, scope)?;
        if rv.is_some_and(|n| n > 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let moment = if revision > 0 { Moment::Exact(revision) } else { Moment::Now };
        return Ok(Options { moment, limit, start, continued: true });
    }
    let moment = match (rv, text("resourceVersionMatch")) {
        (None, _) => Moment::Now,
        (Some(0), _) => Moment::Any,
        (Some(n), "Exact") => Moment::Exact(n),
        (Some(n), "") if limit > 0 => Moment::Exact(n),
        (Some(n), _) => Moment::NotOlder(n),
    };
    Ok(Options { moment, limit, start: String::new(), continued: false })
}

/// What a list found.
pub struct Found {
    /// Entries in the storage version.
    pub items: Vec<Arc<Entry>>,
    /// Revision they are exact at.
    pub revision: i64,
    /// Token and number of what is left.
    pub rest: Option<(String, Option<i64>)>,
}

fn expired(error: storage::Error, o: &Options, scope: &str, last_start: &str) -> Status {
    if !matches!(error, storage::Error::Compacted) {
        return storage_status(&error);
    }
    if !o.continued {
        return Status::expired("The resourceVersion for the provided list is too old.");
    }
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, \
         or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an \
         inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.metadata.continue_token = token(-1, scope, last_start.trim_end_matches('\0'));
    status
}

/// Beside what was found: how many entries were looked at.
fn from_cache(
    cacher: &Cacher,
    row: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
    at_least: i64,
) -> Result<(Found, usize), CacheError> {
    if o.limit == 0
        && !matches!(o.moment, Moment::Exact(_))
        && let Some(name) = selection.name()
        && (!row.namespaced || !scope.is_empty())
    {
        let there = cacher.get(&format!("{scope}{name}"));
        let fetched = usize::from(there.is_some());
        let items: Vec<_> = there.into_iter().filter(|e| selection.matches(e)).collect();
        return Ok((Found { items, revision: at_least, rest: None }, fetched));
    }
    let plain = selection.is_everything();
    let filter = (!plain).then(|| selection.clone().filter());
    let term = selection.term();
    let wanted = Scope { prefix: scope, start: &o.start, limit: o.limit, filter: filter.as_ref(), term: term.as_ref() };
    let snapshot = match o.moment {
        Moment::Exact(n) => cacher.list_at(&wanted, n)?,
        _ => cacher.list(&wanted, at_least),
    };
    let rest = match (snapshot.more, snapshot.items.last()) {
        (true, Some(last)) => Some((token(snapshot.revision, scope, &last.key), plain.then_some(snapshot.remaining))),
        _ => None,
    };
    Ok((Found { items: snapshot.items, revision: snapshot.revision, rest }, snapshot.fetched))
}

async fn from_etcd(
    engine: &Arc<Engine>,
    storage: &Row,
    scope: &str,
    o: &Options,
    selection: &Selection,
    revision: i64,
) -> Result<Found, storage::Error> {
    const PAGE: i64 = 500;
    let base = format!("{}/", engine.store.key(&storage.etcd_prefix));
    let prefix = format!("{base}{scope}");
    let mut start = if o.start.is_empty() { prefix.clone() } else { format!("{base}{}", o.start) };
    let mut items: Vec<Arc<Entry>> = Vec::new();
    let (mut fetched, mut evaluated) = (0, 0);
    loop {
        let page = engine.store.page(&prefix, &start, PAGE, revision).await?;
        fetched += page.items.len();
        let (mut left, more) = (page.count, page.more);
        for stored in page.items {
            left -= 1;
            evaluated += 1;
            start = format!("{}\0", stored.key);
            match codec::entry(storage, &stored.key[base.len()..], &stored.value, stored.revision) {
                Ok(e) if selection.matches(&e) => {
                    items.push(Arc::new(e));
                    if o.limit > 0 && items.len() == o.limit && left > 0 {
                        let rest = token(revision, scope, &stored.key[base.len()..]);
                        list_meters::read(storage, fetched, evaluated, items.len());
                        return Ok(Found {
                            items,
                            revision,
                            rest: Some((rest, selection.is_everything().then_some(left))),
                        });
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, key = stored.key, "unreadable object in etcd"),
            }
        }
        if !more {
            list_meters::read(storage, fetched, evaluated, items.len());
            return Ok(Found { items, revision, rest: None });
        }
    }
}

/// What keys of a namespace begin with behind their resource's; nothing for all namespaces.
pub fn scope(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!("{namespace}/") }
}

async fn find(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    o: &Options,
    selection: &Selection,
) -> Result<Found, Status> {
    let storage = &row.storage();
    let scope = scope(namespace);
    let cacher = engine.hub.cacher(storage);
    get::ready(&cacher).await?;
    let progress = engine.hub.progress(storage);
    let at_least = match o.moment {
        Moment::Now => {
            let reached = get::catch_up(engine, &cacher, storage).await;
            cacher.reads(storage).consistent(reached.is_ok());
            reached.map_err(|e| storage_status(&e))?
        }
        Moment::Any => progress.processed(),
        Moment::NotOlder(n) | Moment::Exact(n) => {
            get::reach(engine, &cacher, storage, n).await?;
            progress.processed()
        }
    };
    // What etcd has forgotten is not shown either, although the cache may still know it. It is asked only about what has
    // changed since.
    if let Moment::Exact(n) = o.moment {
        let remembered = match progress.has_forgotten(n) {
            true => Err(storage::Error::Compacted),
            false if cacher.unchanged_since(n) => Ok(()),
            false => progress.remembers(n).await,
        };
        remembered.map_err(|e| expired(e, o, &scope, &o.start))?;
    }
    match from_cache(&cacher, row, &scope, o, selection, at_least) {
        Ok((found, fetched)) => {
            cacher.reads(storage).listed(fetched, found.items.len());
            Ok(found)
        }
        Err(CacheError::TooOld { asked, .. }) => {
            let found = from_etcd(engine, storage, &scope, o, selection, asked).await;
            found.map_err(|e| expired(e, o, &scope, &o.start))
        }
    }
}

/// The same in the row's version, judged in it where conversion may change what is selected by.
async fn find_converted(
    engine: &Arc<Engine>,
    row: &Row,
    namespace: &str,
    o: Options,
    selection: &Selection,
) -> Result<Found, Status> {
    if !selection.needs_version(row) {
        let mut found = find(engine, row, namespace, &o, selection).await?;
        found.items = engine.in_version(row, found.items).await?;
        return Ok(found);
    }
    let limit = o.limit;
    let mut found = find(engine, row, namespace, &Options { limit: 0, ..o }, &selection.of_any_version()).await?;
    found.items = engine.in_version(row, found.items).await?;
    found.items.retain(|e| selection.matches(e));
    if limit > 0 && found.items.len() > limit {
        found.items.truncate(limit);
        let scope = scope(namespace);
        found.rest = found.items.last().map(|last| (token(found.revision, &scope, &last.key), None));
    }
    Ok(found)
}

/// The objects that a request for a collection is about, in the row's version.
pub async fn requested(engine: &Arc<Engine>, r: &Request, row: &Row, selection: &Selection) -> Result<Found, Status> {
    let namespace = namespace_of(&r.info, row);
    let scope = scope(namespace);
    find_converted(engine, row, namespace, options(&r.query, &scope)?, selection).await
}

/// All objects of a collection that match, as they are now, in the row's version.
pub async fn collect(engine: &Arc<Engine>, row: &Row, namespace: &str, selection: &Selection) -> Result<Found, Status> {
    let now = Options { moment: Moment::Now, limit: 0, start: String::new(), continued: false };
    find_converted(engine, row, namespace, now, selection).await
}

/// The verb.
pub async fn list(engine: &Arc<Engine>, r: &Request, row: &Row) -> Result<Reply, Status> {
    let accepted = accepted(r, false)?;
    let include = Include::read(&r.query);
    let selection = Selection::read(&r.query, row)?;
    if !row.is_stored() {
        options(&r.query, "")?;
        let empty = Found { items: Vec::new(), revision: engine.hub.progress(row).processed(), rest: None };
        return reply(engine, r, row, &accepted, include.unwrap_or(Include::Metadata), empty);
    }
    let found = requested(engine, r, row, &selection).await?;
    let include = if matches!(accepted.shape, Shape::Table(_)) { include? } else { Include::Metadata };
    reply(engine, r, row, &accepted, include, found)
}

fn meta(found: &Found) -> Value {
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

/// Encodes a list.
pub fn reply(
    engine: &Arc<Engine>,
    r: &Request,
    row: &Row,
    accepted: &Accepted,
    include: Include,
    found: Found,
) -> Result<Reply, Status> {
    if let Some(refused) = negotiate::not_of_that_form(accepted.shape, row, &row.list_kind) {
        return Err(refused);
    }
    let parts = match (accepted.shape, accepted.format) {
        _ if accepted.pretty || row.custom.is_some() && accepted.format != Format::Json => Err(found),
        (Shape::Object, Format::Json) => Ok(json_parts(engine, row, found)),
        (Shape::Object, Format::Protobuf) if row.is_storage() && !row.storage_json => protobuf_parts(row, found),
        (Shape::MetadataList(version), Format::Json) => Ok(metadata_parts(engine, row, version, found)),
        (Shape::MetadataList(version), Format::Protobuf) if !row.storage_json => {
            protobuf_metadata_parts(version, found)
        }
        (Shape::Table(version), Format::Json) => Ok(table_parts(engine, row, version, include, found)),
        _ => Err(found),
    };
    match parts {
        Ok(parts) => Ok(list_body::reply(&engine.hub, accepted.format.content_type(), r.gzip, parts)),
        Err(found) => by_trees(engine, row, accepted, include, &found),
    }
}

/// The tree of an entry in the version of the request's row.
fn served(engine: &Engine, row: &Row, e: &Entry) -> Option<Value> {
    codec::value(&row.storage(), &e.raw).ok().map(|tree| engine.to_served(row, tree))
}

/// The whole list as one tree, for the forms that are rarely asked for.
fn by_trees(engine: &Engine, row: &Row, accepted: &Accepted, include: Include, found: &Found) -> Result<Reply, Status> {
    let mut trees: Vec<Value> = found.items.iter().filter_map(|e| served(engine, row, e)).collect();
    let (schema, tree) = match accepted.shape {
        Shape::Table(version) => {
            (negotiate::table_kind("v1"), table::tabulate(row, version, trees.iter(), include, meta(found), true))
        }
        Shape::Metadata(version) | Shape::MetadataList(version) => {
            let items: Vec<Value> = trees.iter().map(|t| negotiate::metadata_of(t, version)).collect();
            let tree = json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta(found), "items": items});
            (negotiate::partial_list_kind("v1"), tree)
        }
        Shape::Object => {
            // Elements of a typed list do not say what they are.
            if row.custom.is_none() {
                for map in trees.iter_mut().filter_map(Value::as_object_mut) {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
            }
            let tree = json!({"kind": row.list_kind, "apiVersion": row.api_version(), "metadata": meta(found), "items": trees});
            (row.list_schema(), tree)
        }
    };
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema, &tree);
    Ok(Reply::new(200, accepted.format.content_type(), Bytes::from(body)))
}

/// The end of a JSON list or table.
const END: &[u8] = b"]}\n";

/// Ways of writing that depend on nothing but the object; each has a number of its own for a row.
fn way(row: &Row, format: &str) -> Option<u64> {
    let mut h = std::hash::DefaultHasher::new();
    (&*row.group, &*row.version, &*row.plural, format).hash(&mut h);
    // Of a custom resource the same bytes may read differently once its definition has changed.
    row.custom.is_none().then(|| h.finish())
}

fn json_parts(engine: &Arc<Engine>, row: &Row, found: Found) -> Parts {
    let mut head =
        format!(r#"{{"kind":"{}","apiVersion":"{}","metadata":"#, row.list_kind, row.api_version()).into_bytes();
    match schema::message(LIST_META) {
        Some(s) => json::encode(s, &meta(&found), &mut head),
        None => json::encode_any(&meta(&found), &mut head),
    }
    head.extend_from_slice(br#","items":["#);
    let fixed = way(row, "json");
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::json_item(&engine, &row, e, out));
    Parts { head, items: found.items, item, commas: true, tail: END, fixed }
}

fn metadata_parts(engine: &Arc<Engine>, row: &Row, version: &'static str, found: Found) -> Parts {
    let tree = json!({"kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta(&found), "items": []});
    let mut head = negotiate::envelope(Format::Json, false, negotiate::partial_list_kind("v1"), &tree);
    head.truncate(head.len() - END.len());
    let fixed = way(row, version);
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::metadata_item(&engine, &row, version, e, out));
    Parts { head, items: found.items, item, commas: true, tail: END, fixed }
}

fn table_parts(engine: &Arc<Engine>, row: &Row, version: &'static str, include: Include, found: Found) -> Parts {
    let tree = table::tabulate(row, version, std::iter::empty(), include, meta(&found), true);
    let mut head = negotiate::envelope(Format::Json, false, negotiate::table_kind("v1"), &tree);
    head.truncate(head.len() - END.len());
    let (engine, row) = (engine.clone(), row.clone());
    let item: Item = Box::new(move |e, out| table::row_item(&engine, &row, version, include, e, out));
    Parts { head, items: found.items, item, commas: true, tail: END, fixed: None }
}

/// A protobuf list (`metadata = 1`, `items = 2`) in its envelope, given each element's bytes.
fn enveloped(
    (api_version, kind): (&str, &str),
    found: Found,
    size: impl Fn(&Entry) -> Option<usize>,
    item: Item,
    fixed: Option<u64>,
) -> Result<Parts, Found> {
    let list_meta = schema::message(LIST_META).map(|s| protobuf::encode(s, &meta(&found))).unwrap_or_default();
    let mut body = Vec::new();
    put(&mut body, 0x0a, &list_meta);
    let Some(sizes) = found.items.iter().map(|e| size(e)).sum::<Option<usize>>() else { return Err(found) };
    let (mut head, tail) = protobuf::wrap_around(api_version, kind, body.len() + sizes);
    head.extend_from_slice(&body);
    Ok(Parts { head, items: found.items, item, commas: false, tail, fixed })
}

fn protobuf_parts(row: &Row, found: Found) -> Result<Parts, Found> {
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
    enveloped((&row.api_version(), &row.list_kind), found, size, item, way(row, "protobuf"))
}

fn protobuf_metadata_parts(version: &str, found: Found) -> Result<Parts, Found> {
    fn of(e: &Entry) -> Option<&[u8]> {
        match &e.raw {
            Raw::Proto(bytes) => codec::metadata(bytes),
            Raw::Json(_) => None,
        }
    }
    let size = |e: &Entry| of(e).map(|m| put_size(put_size(m.len())));
    let item: Item = Box::new(|e, out| {
        let Some(metadata) = of(e) else { return false };
        out.push(0x12);
        put_length(out, put_size(metadata.len()));
        put(out, 0x0a, metadata);
        true
    });
    enveloped((&format!("meta.k8s.io/{version}"), "PartialObjectMetadataList"), found, size, item, None)
}

/// Appends a length-delimited field.
pub(super) fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

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
    fn sizes_are_what_is_put() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let mut out = Vec::new();
            put(&mut out, 0x12, &vec![0; length]);
            assert_eq!(out.len(), put_size(length));
        }
    }

    #[test]
    fn option_rules() {
        for (query, ok) in [
            ("resourceVersionMatch=Exact", false),
            ("resourceVersionMatch=Foo&resourceVersion=1", false),
            ("resourceVersionMatch=Exact&resourceVersion=0", false),
            ("sendInitialEvents=true", false),
            ("resourceVersionMatch=NotOlderThan&resourceVersion=0&limit=-1", true),
            ("limit=abc", false),
            ("resourceVersion=abc", false),
        ] {
            assert_eq!(options(&Query::parse(query), "").is_ok(), ok, "{query}");
        }
        for (query, causes) in [
            ("", 0),
            ("continue=x", 1),
            ("resourceVersion=5&continue=x", 0),
            ("resourceVersionMatch=Exact", 2),
            ("sendInitialEvents=true&resourceVersionMatch=Exact", 2),
            ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5", 0),
        ] {
            let found = check(&Query::parse(query), true).err().and_then(|s| s.details).map_or(0, |d| d.causes.len());
            assert_eq!(found, causes, "{query}");
        }
        assert_eq!(
            options(&Query::parse("resourceVersion=7&limit=5"), "").map(|o| o.moment).ok(),
            Some(Moment::Exact(7))
        );
    }
}
