//! OpenAPI documents of the built-in rows that are served, rendered from the tables when somebody asks.
//!
//! Nothing is kept: a document is written piece by piece and handed over.

mod descriptions;
mod gnostic;
mod gnostic_v3;
mod media;
mod operations;
mod types;
mod v2;
mod v3;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::discovery;
use crate::resources::{self, Resource};

pub use v2::{document as v2, split as v2_split};

/// Content of the documents.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// Served resources.
    pub rows: &'a [&'a Resource],
    /// Enumerations are listed (`OpenAPIEnums`).
    pub enums: bool,
}

impl<'a> From<&'a Vec<&'a Resource>> for Content<'a> {
    fn from(rows: &'a Vec<&'a Resource>) -> Self {
        Self { rows, enums: true }
    }
}

/// Media type of [`v2_protobuf`] as clients ask for it.
pub const V2_PROTOBUF_ACCEPT: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Media type of [`v2_protobuf`] in the answer.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `openapi.v2.Document` in protobuf.
#[must_use]
pub fn v2_protobuf<'a>(content: impl Into<Content<'a>>) -> Vec<u8> {
    gnostic::document(&v2::Parts::new(content.into()))
}

/// The types that the version 2 document defines of all rows that are on by default.
#[must_use]
pub fn v2_definitions() -> std::collections::BTreeSet<String> {
    let rows: Vec<&Resource> = resources::all().iter().collect();
    v2::Parts::new((&rows).into()).into_names()
}

/// Members that follow others in an object of a document, as one of [`v2_split`]: each with a comma before it.
#[must_use]
pub fn members_after_others<'m>(items: impl Iterator<Item = (&'m str, &'m Value)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in items {
        member(name, value, &mut out);
    }
    out
}

/// Paths and definitions in protobuf; appended to [`v2_protobuf`], they are part of it.
#[must_use]
pub fn v2_protobuf_members<'m>(
    paths: impl Iterator<Item = (&'m str, &'m Value)>,
    definitions: impl Iterator<Item = (&'m str, &'m Value)>,
) -> Vec<u8> {
    gnostic::members_of(paths, definitions)
}

/// Appends a member to the object that is being written.
fn member(name: &str, value: &Value, out: &mut Vec<u8>) {
    if !out.ends_with(b"{") {
        out.push(b',');
    }
    crate::json::encode_text(name, out);
    out.push(b':');
    crate::json::encode_any(value, out);
}

/// Appends a member that is itself an object, one member at a time.
fn members<'m>(name: &str, items: impl Iterator<Item = (&'m str, Value)>, out: &mut Vec<u8>) {
    if !out.ends_with(b"{") {
        out.push(b',');
    }
    crate::json::encode_text(name, out);
    out.extend_from_slice(b":{");
    for (name, item) in items {
        member(name, &item, out);
    }
    out.push(b'}');
}

/// Paths under `/openapi/v3/` that have a document.
#[must_use]
pub fn v3_paths(rows: &[&Resource]) -> Vec<String> {
    let mut paths: Vec<String> =
        [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"].map(str::to_owned).into();
    for group in discovery::groups(rows.iter().copied()) {
        if group.name.is_empty() {
            paths.extend(group.versions.iter().map(|v| format!("api/{}", v.name)));
        } else {
            paths.push(format!("apis/{}", group.name));
            paths.extend(group.versions.iter().map(|v| format!("apis/{}/{}", group.name, v.name)));
        }
    }
    paths.sort();
    paths
}

/// Hashes of the documents by their paths under `/openapi/v3/`, as in their addresses and ETags.
#[must_use]
pub fn v3_hashes<'a>(content: impl Into<Content<'a>>) -> BTreeMap<String, String> {
    let content = content.into();
    let hash = |path: String| v3(content, &path).map(|document| (path, fingerprint(&document)));
    v3_paths(content.rows).into_iter().filter_map(hash).collect()
}

/// A hash that names a document: collisions would only cost a client a stale cache entry.
fn fingerprint(bytes: &[u8]) -> String {
    // Two FNV-1a sums with different offsets.
    let sum = |seed: u64| bytes.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{:016X}{:016X}", sum(0xcbf2_9ce4_8422_2325), sum(0x9e37_79b9_7f4a_7c15))
}

/// The document at a path under `/openapi/v3/`, e.g. `apis/apps/v1`.
#[must_use]
pub fn v3<'a>(content: impl Into<Content<'a>>, path: &str) -> Option<Vec<u8>> {
    v3::document(content.into(), path)
}

/// Media type of [`v3_protobuf`] as clients ask for it; they may as well say what the answer says.
pub const V3_PROTOBUF_ACCEPT: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// Media type of [`v3_protobuf`] in the answer.
pub const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// `openapi.v3.Document` in protobuf, from the document in JSON.
#[must_use]
pub fn v3_protobuf(json: &[u8]) -> Option<Vec<u8>> {
    gnostic_v3::document(json)
}

/// The document of a group and version that is on by default.
#[must_use]
pub fn v3_group_version(group: &str, version: &str) -> Option<Vec<u8>> {
    let rows: Vec<&Resource> = resources::all().iter().collect();
    let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
    v3(&rows, &path)
}
