//! The aggregated form of discovery, as text. It is read as a whole after each change of a definition, so the text of a
//! group is kept for as long as its rows are the same. Clients that keep what they were told ask by its tag. Answers
//! for upstream's `pkg/endpoints/discovery/aggregated`.

use std::collections::HashMap;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, ETAG, HeaderValue, VARY};
use parking_lot::Mutex;
use proto::discovery::{self, Group};
use proto::resources::Row;
use proto::{Value, json, schema};
use sha2::{Digest as _, Sha512};

use super::answer::{self, Shape};
use super::server::Server;
use crate::aggregate::Directory;
use crate::machinery::hex::hex;
use crate::negotiate::{self, Format};
use crate::verbs::Reply;

/// The text of groups that this server answers alone, by name.
#[derive(Default)]
pub struct Aggregated {
    kept: Mutex<HashMap<String, CachedText>>,
    /// Tags of the last documents, with core groups and without.
    last: Mutex<[String; 2]>,
}

struct CachedText {
    /// In the order of the text.
    rows: Vec<Row>,
    text: GroupText,
}

/// The text of a group, and what tells it from others.
#[derive(Clone)]
struct GroupText {
    bytes: Arc<[u8]>,
    digest: Arc<[u8]>,
}

/// A document, and what tells it from others.
pub struct Document {
    /// Compact JSON.
    pub text: Vec<u8>,
    tag: String,
}

fn text(group: &Value) -> GroupText {
    let mut out = Vec::new();
    if let Some(schema) = schema::message("k8s.io.api.apidiscovery.v2.APIGroupDiscovery") {
        json::encode(schema, group, &mut out);
    }
    GroupText { digest: Arc::from(&Sha512::digest(&out)[..]), bytes: out.into() }
}

fn tag(parts: &[&[u8]]) -> String {
    let digest = parts.iter().fold(Sha512::new(), |hash, part| hash.chain_update(part)).finalize();
    format!("\"{}\"", hex(&digest))
}

/// The answer in the aggregated form, where the client takes that; the version before its only one is gone.
pub(super) fn answer(
    server: &Server,
    rows: &[Row],
    directory: &Directory,
    core: bool,
    shape: &Shape,
) -> Option<HttpResponse> {
    let form = negotiate::parse_aggregated(shape.accept.as_deref())?;
    let mut document = server.discovery.document(rows, directory, core);
    if server.discovery.is_news(&document, core) {
        server.aggregator.count_discovery();
    }
    if let Some(peers) = server.peers.as_ref().filter(|_| !core && !form.alone)
        && let Some(merged) = peers.discovery(&document.text)
    {
        document = Document { tag: tag(&[&merged]), text: merged };
    }
    let content_type = match form.format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Format::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Format::Json | Format::Cbor => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    };
    let known = shape.known.as_deref() == Some(document.tag.as_str());
    let pretty = form.pretty || shape.pretty;
    let body = if known { Vec::new() } else { encoded(document.text, form.format, pretty) };
    let mut response = answer::reply(Reply::new(if known { 304 } else { 200 }, content_type, body), shape);
    let headers = response.headers_mut();
    if known {
        headers.remove(actix_web::http::header::CONTENT_TYPE);
    }
    headers.append(VARY, HeaderValue::from_static("Accept"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(tag) = HeaderValue::from_str(&document.tag) {
        headers.insert(ETAG, tag);
    }
    Some(response)
}

/// The text in another form.
fn encoded(text: Vec<u8>, format: Format, pretty: bool) -> Vec<u8> {
    if format == Format::Json && !pretty {
        return text;
    }
    let Ok(tree) = serde_json::from_slice::<Value>(&text) else { return text };
    negotiate::envelope(format, pretty, schema::kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"), &tree)
}

impl Aggregated {
    /// The `APIGroupDiscoveryList` of `/api` (`core` true) or `/apis`.
    pub fn document(&self, rows: &[Row], directory: &Directory, core: bool) -> Document {
        let own = discovery::groups(rows.iter().filter(|row| row.group.is_empty() == core).map(|row| &**row));
        let (alone, shared): (Vec<_>, Vec<_>) = own.into_iter().partition(|group| core || directory.alone(group.name));
        let mut list = serde_json::json!({"items": shared.iter().map(discovery::aggregated_group).collect::<Value>()});
        if !core {
            directory.merge_aggregated(&mut list);
        }
        let mut items = Vec::with_capacity(alone.len());
        for item in list["items"].as_array().into_iter().flatten() {
            let versions = item["versions"].as_array().into_iter().flatten().filter_map(|v| v["version"].as_str());
            let place = directory.place(item["metadata"]["name"].as_str().unwrap_or(""), versions);
            items.push((place, text(item)));
        }
        for mut group in alone {
            directory.sort_versions(group.name, &mut group.versions, |version| version.name);
            let place = directory.place(group.name, group.versions.iter().map(|version| version.name));
            items.push((place, self.text(&group, rows)));
        }
        items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.evict(items.len());
        let digests: Vec<&[u8]> = items.iter().map(|(_, text)| &*text.digest).collect();
        let texts: Vec<&[u8]> = items.iter().map(|(_, text)| &*text.bytes).collect();
        let head = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":["#;
        Document { tag: tag(&digests), text: [head.as_bytes(), &texts.join(&b","[..]), b"]}\n"].concat() }
    }

    /// Reports whether a document differs from the one seen last, and remembers it.
    fn is_news(&self, document: &Document, core: bool) -> bool {
        let last = &mut self.last.lock()[usize::from(core)];
        let other = *last != document.tag;
        if other {
            last.clone_from(&document.tag);
        }
        other
    }

    fn text(&self, group: &Group<'_>, rows: &[Row]) -> GroupText {
        let resources = || group.versions.iter().flat_map(|version| &version.resources).copied();
        let mut kept = self.kept.lock();
        if let Some(known) = kept.get(group.name)
            && known.rows.len() == resources().count()
            && known.rows.iter().zip(resources()).all(|(row, resource)| std::ptr::eq(&**row, resource))
        {
            return known.text.clone();
        }
        let text = text(&discovery::aggregated_group(group));
        let rows = resources().filter_map(|resource| rows.iter().find(|row| std::ptr::eq(&***row, resource)).cloned());
        kept.insert(group.name.to_owned(), CachedText { rows: rows.collect(), text: text.clone() });
        text
    }

    /// Lets groups go that are there no more, once they outnumber the others.
    fn evict(&self, present: usize) {
        let mut kept = self.kept.lock();
        if kept.len() > 2 * (present + 1) {
            kept.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Rows;

    #[test]
    fn document_text_equals_its_tree() {
        let (directory, aggregated) = (Directory::default(), Aggregated::default());
        let mut rows = Rows::default().all();
        for news in [[true, true], [false, true]] {
            for (core, news) in [true, false].into_iter().zip(news) {
                let document = aggregated.document(&rows, &directory, core);
                assert_eq!([(); 2].map(|()| aggregated.is_news(&document, core)), [news, false]);
                let found = document.text;
                let mut want = discovery::aggregated(&discovery::groups(rows.iter().map(|r| &**r)), core, "v2");
                if !core {
                    directory.merge_aggregated(&mut want);
                }
                let schema = schema::kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList");
                let want = crate::negotiate::envelope(crate::negotiate::Format::Json, false, schema, &want);
                assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&want));
            }
            rows.retain(|row| &*row.plural != "deployments");
        }
    }
}
