//! OpenAPI v2 and v3: which document in which form.
//!
//! The documents are rendered from the schema tables by `proto::openapi`. Of version 2, which says everything in one
//! document, the part of the compiled-in kinds is kept once somebody asked for it: with custom resources and other
//! servers' groups put in, the whole changes often. Of version 3 the hashes are kept, which are part of the documents'
//! addresses.

mod schemas;
mod v3_of_v2;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use proto::openapi;
use proto::resources::Resource;
use serde_json::json;
use sha2::{Digest, Sha256};
use shared::status::Status;

use crate::crd;
use crate::crd::Pieces;
use crate::machinery::hex::hex;
use crate::negotiate;
use crate::rows::Rows;
pub use schemas::Schemas;
use schemas::merged;

/// A document to send.
pub struct Document {
    /// `Content-Type`.
    pub content_type: &'static str,
    /// `ETag`, with quotes.
    pub etag: String,
    /// Content.
    pub body: Vec<u8>,
}

const V3_JSON: &str = "application/json";

impl Document {
    /// A version 3 document, given in JSON, in the form that somebody accepts: of several the one that comes first. Its
    /// tag says what it says, not how.
    pub fn in_form(self, accept: Option<&str>) -> Result<Self, Status> {
        let types = media(accept);
        let takes = |t: &String| {
            let json = takes_json(std::slice::from_ref(t)).then_some(false);
            json.or(matches!(t.as_str(), openapi::V3_PROTOBUF | openapi::V3_PROTOBUF_ACCEPT).then_some(true))
        };
        let protobuf = if types.is_empty() { Some(false) } else { types.iter().find_map(takes) };
        match protobuf {
            None => Err(negotiate::unavailable(&[V3_JSON, openapi::V3_PROTOBUF, openapi::V3_PROTOBUF_ACCEPT])),
            Some(false) => Ok(self),
            Some(true) => {
                let body =
                    openapi::v3_protobuf(&self.body).ok_or_else(|| Status::internal("the document is no JSON"))?;
                Ok(Self { content_type: openapi::V3_PROTOBUF, body, ..self })
            }
        }
    }
}

fn built_in(rows: &Rows) -> Vec<&'static Resource> {
    rows.types().collect()
}

fn media(accept: Option<&str>) -> Vec<String> {
    let clauses = accept.unwrap_or("").split(',').map(|c| c.split(';').next().unwrap_or("").trim().to_owned());
    clauses.filter(|c| !c.is_empty()).collect()
}

fn takes_json(types: &[String]) -> bool {
    types.is_empty() || types.iter().any(|t| matches!(t.as_str(), "*/*" | "application/*" | "application/json"))
}

fn tag(body: &[u8]) -> String {
    format!("\"{}\"", hex(&Sha256::digest(body)[..16]))
}

/// The documents of a server, as far as they stay the same.
#[derive(Default)]
pub struct Documents {
    /// `OpenAPIEnums` is off: the words that fields may have are not listed.
    plain: bool,
    json: OnceLock<[Vec<u8>; 3]>,
    protobuf: OnceLock<Vec<u8>>,
    hashes: OnceLock<BTreeMap<String, String>>,
    defined: crd::openapi::Documents,
}

impl Documents {
    /// `enums`: the words that fields may have are listed.
    pub fn new(enums: bool) -> Self {
        Self { plain: !enums, ..Self::default() }
    }

    fn content<'a>(&self, rows: &'a [&'a Resource]) -> openapi::Content<'a> {
        openapi::Content { rows, enums: !self.plain }
    }

    /// `/openapi/v2`, with what other servers say of their groups.
    pub fn v2(&self, rows: &Rows, others: &[Arc<Schemas>], accept: Option<&str>) -> Result<Document, Status> {
        let types = media(accept);
        let protobuf = types.iter().any(|t| t == openapi::V2_PROTOBUF_ACCEPT || t == openapi::V2_PROTOBUF);
        let (built_in, defined) = (built_in(rows), rows.defined());
        // What has the path of a kind of our own does not take its place.
        let twin = |row: &Resource| {
            let same = |b: &&&Resource| b.plural == row.plural && b.group == row.group && b.version == row.version;
            built_in.iter().find(same).copied()
        };
        let mut hash = Sha256::new();
        hash.update([u8::from(protobuf)]);
        let own: Vec<&Pieces> = defined
            .iter()
            .filter_map(|row| {
                let (own_hash, pieces) = Pieces::of_row(row, || twin(row))?;
                hash.update(format!("{}/{}/{}", row.group, row.version, row.plural));
                hash.update(own_hash);
                Some(pieces)
            })
            .collect();
        others.iter().for_each(|other| hash.update(&other.etag));
        let others = (!others.is_empty()).then(|| merged(others));
        let pieces: Vec<&Pieces> = own.into_iter().chain(&others).collect();
        let (content_type, body) = match (protobuf, takes_json(&types)) {
            (true, _) => (openapi::V2_PROTOBUF, self.protobuf(rows, &pieces)),
            (false, true) => ("application/json", self.json(rows, &pieces)),
            (false, false) => return Err(negotiate::unavailable(&["application/json", openapi::V2_PROTOBUF])),
        };
        Ok(Document { content_type, etag: format!("\"{}\"", hex(&hash.finalize())), body })
    }

    fn json(&self, rows: &Rows, pieces: &[&Pieces]) -> Vec<u8> {
        let [paths, definitions, end] = self.json.get_or_init(|| openapi::v2_split(self.content(&built_in(rows))));
        let mut parts: Vec<&[u8]> = vec![paths];
        parts.extend(pieces.iter().map(|p| p.paths.as_slice()));
        parts.push(definitions);
        parts.extend(pieces.iter().map(|p| p.definitions.as_slice()));
        parts.push(end);
        parts.concat()
    }

    fn protobuf(&self, rows: &Rows, pieces: &[&Pieces]) -> Vec<u8> {
        let own = self.protobuf.get_or_init(|| openapi::v2_protobuf(self.content(&built_in(rows))));
        let mut parts: Vec<&[u8]> = vec![own];
        parts.extend(pieces.iter().map(|p| p.protobuf.as_slice()));
        parts.concat()
    }

    fn hashes(&self, rows: &Rows) -> &BTreeMap<String, String> {
        self.hashes.get_or_init(|| openapi::v3_hashes(self.content(&built_in(rows))))
    }

    /// `/openapi/v3`: where the documents are, those of other servers by path and address.
    pub fn index(&self, rows: &Rows, others: &[(String, String)]) -> Document {
        let address = |path: &str, hash: &str| format!("/openapi/v3/{path}?hash={hash}");
        let own = self.hashes(rows).iter().map(|(path, hash)| (path.clone(), address(path, hash)));
        let custom = crd::openapi::index(rows).into_iter().map(|(path, hash)| (path.clone(), address(&path, &hash)));
        // Of one path what is said last counts.
        let paths = others.iter().cloned().chain(custom).chain(own);
        let paths: serde_json::Map<_, _> = paths.map(|(path, at)| (path, json!({"serverRelativeURL": at}))).collect();
        let body = serde_json::to_vec(&json!({"paths": paths})).unwrap_or_default();
        Document { content_type: V3_JSON, etag: tag(&body), body }
    }

    /// `/openapi/v3/<path>`; `None` when there is no such document.
    pub fn v3(&self, rows: &Rows, path: &str, accept: Option<&str>) -> Option<Result<Document, Status>> {
        let (hash, body) = match openapi::v3(self.content(&built_in(rows)), path) {
            Some(body) => (self.hashes(rows).get(path).cloned(), body),
            None => {
                let (hash, body) = self.defined.of(rows, path)?;
                (Some(hash), body)
            }
        };
        let etag = hash.map_or_else(|| tag(&body), |hash| format!("\"{hash}\""));
        Some(Document { content_type: V3_JSON, etag, body }.in_form(accept))
    }
}
