//! OpenAPI v2 and v3: which document in which form.
//!
//! The documents are rendered from the schema tables by `proto::openapi`; nothing is kept but their hashes.

use proto::openapi;
use sha2::{Digest, Sha256};
use shared::status::Status;

use crate::crd;
use crate::negotiate;
use crate::registry::Rows;

/// A document to send.
pub struct Document {
    /// `Content-Type`.
    pub content_type: &'static str,
    /// `ETag`, with quotes.
    pub etag: String,
    /// Content.
    pub body: Vec<u8>,
}

/// Media type of version 3 in protobuf, which is not offered.
const V3_JSON: &str = "application/json";

fn media(accept: Option<&str>) -> Vec<String> {
    let clauses = accept.unwrap_or("").split(',').map(|c| c.split(';').next().unwrap_or("").trim().to_owned());
    clauses.filter(|c| !c.is_empty()).collect()
}

fn takes_json(types: &[String]) -> bool {
    types.is_empty() || types.iter().any(|t| matches!(t.as_str(), "*/*" | "application/*" | "application/json"))
}

fn tag(body: &[u8]) -> String {
    let hex: String = Sha256::digest(body).iter().take(16).map(|b| format!("{b:02X}")).collect();
    format!("\"{hex}\"")
}

/// `/openapi/v2`.
pub fn v2(accept: Option<&str>) -> Result<Document, Status> {
    let types = media(accept);
    let protobuf = types.iter().any(|t| t == openapi::V2_PROTOBUF_ACCEPT || t == openapi::V2_PROTOBUF);
    let (content_type, body) = match (protobuf, takes_json(&types)) {
        (true, _) => (openapi::V2_PROTOBUF, openapi::v2_protobuf()),
        (false, true) => ("application/json", openapi::v2()),
        (false, false) => return Err(negotiate::unavailable(&["application/json", openapi::V2_PROTOBUF])),
    };
    Ok(Document { content_type, etag: tag(&body), body })
}

/// `/openapi/v3`: where the documents are.
pub fn index(rows: &Rows) -> Document {
    let mut index = openapi::v3_index();
    for (path, hash) in crd::openapi::index(rows) {
        index["paths"][&path] = serde_json::json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")});
    }
    let body = serde_json::to_vec(&index).unwrap_or_default();
    Document { content_type: V3_JSON, etag: tag(&body), body }
}

/// `/openapi/v3/<path>`; `None` when there is no such document.
pub fn v3(rows: &Rows, path: &str, accept: Option<&str>) -> Option<Result<Document, Status>> {
    let Some(body) = openapi::v3(path) else { return custom(rows, path, accept) };
    if !takes_json(&media(accept)) {
        return Some(Err(negotiate::unavailable(&[V3_JSON])));
    }
    let etag = openapi::v3_hash(path).map_or_else(|| tag(&body), |h| format!("\"{h}\""));
    Some(Ok(Document { content_type: V3_JSON, etag, body }))
}

/// The document of a group version that only custom resources are in.
fn custom(rows: &Rows, path: &str, accept: Option<&str>) -> Option<Result<Document, Status>> {
    let document = crd::openapi::document(rows, path)?;
    if !takes_json(&media(accept)) {
        return Some(Err(negotiate::unavailable(&[V3_JSON])));
    }
    let hash = crd::openapi::index(rows).into_iter().find(|(p, _)| p == path).map(|(_, h)| h).unwrap_or_default();
    let body = serde_json::to_vec(&document).unwrap_or_default();
    Some(Ok(Document { content_type: V3_JSON, etag: format!("\"{hash}\""), body }))
}
