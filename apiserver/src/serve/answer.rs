//! From a [`Reply`] or a `Status` to an HTTP response.

use std::io::Write as _;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderValue, RETRY_AFTER, WARNING};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use shared::status::Status;

use crate::flowcontrol::Classified;
use crate::negotiate::{self, Format};
use crate::verbs::{Body, COMPRESS_FROM, Reply};

/// What of the request shapes the answer.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// `Accept`.
    pub accept: Option<String>,
    /// The client takes gzip.
    pub gzip: bool,
    /// `If-None-Match`.
    pub known: Option<String>,
    /// For the `Audit-Id` header.
    pub audit_id: String,
    /// What flow control made of the request.
    pub classified: Option<Classified>,
}

fn code(n: u16) -> StatusCode {
    StatusCode::from_u16(n).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn start(n: u16, shape: &Shape) -> actix_web::HttpResponseBuilder {
    let mut b = HttpResponse::build(code(n));
    b.insert_header(("Cache-Control", "no-cache, private"));
    if !shape.audit_id.is_empty() {
        b.insert_header(("Audit-Id", shape.audit_id.as_str()));
    }
    if let Some(c) = &shape.classified {
        b.insert_header(("X-Kubernetes-PF-FlowSchema-UID", c.schema_uid.as_str()));
        b.insert_header(("X-Kubernetes-PF-PriorityLevel-UID", c.level_uid.as_str()));
    }
    b
}

/// `299 - "text"`, or nothing for texts no header can hold.
fn warning(text: &str) -> Option<String> {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    (!clean.is_empty()).then(|| format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// One header for each text, equal ones once.
fn warning_headers(warnings: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for text in warnings.iter().filter_map(|w| warning(w)) {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

/// Adds warnings to a response.
pub fn warned(mut response: HttpResponse, warnings: &[String]) -> HttpResponse {
    for text in warning_headers(warnings) {
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// An answer.
pub fn reply(r: Reply, shape: &Shape) -> HttpResponse {
    let mut b = start(r.code, shape);
    b.insert_header(("Content-Type", r.content_type));
    for text in warning_headers(&r.warnings) {
        b.append_header(("Warning", text.as_str()));
    }
    if r.packed {
        b.insert_header(("Content-Encoding", "gzip")).insert_header(("Vary", "Accept-Encoding"));
    }
    match r.body {
        Body::Stream(s) => b.streaming(s),
        Body::Full(bytes) if shape.gzip && !r.packed && bytes.len() > COMPRESS_FROM => match gzip(&bytes) {
            Some(packed) => {
                b.insert_header(("Content-Encoding", "gzip")).insert_header(("Vary", "Accept-Encoding"));
                b.body(packed)
            }
            None => b.body(bytes),
        },
        Body::Full(bytes) => b.body(bytes),
    }
}

fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut e = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    e.write_all(bytes).ok()?;
    e.finish().ok().map(Bytes::from)
}

/// An error.
pub fn failure(status: &Status, shape: &Shape) -> HttpResponse {
    let accepted = negotiate::parse(shape.accept.as_deref(), false).ok();
    let (format, pretty) = accepted.map_or((Format::Json, false), |a| (a.format, a.pretty));
    let mut b = start(status.code, shape);
    if let Some(seconds) = status.retry_after() {
        b.insert_header(("Retry-After", seconds.to_string()));
    }
    b.insert_header(("Content-Type", format.content_type()));
    b.body(negotiate::status(format, pretty, status))
}

/// An answer to a request there is no room for: plain text, made without looking at what the client accepts.
pub fn throttled(status: &Status, shape: &Shape) -> HttpResponse {
    let mut response = text(status.code, format!("{}\n", status.message), shape);
    let seconds = HeaderValue::from(status.retry_after().unwrap_or(1));
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// Plain text.
pub fn text(n: u16, body: impl Into<String>, shape: &Shape) -> HttpResponse {
    let mut b = start(n, shape);
    b.insert_header(("Content-Type", "text/plain; charset=utf-8"));
    b.insert_header(("X-Content-Type-Options", "nosniff"));
    b.body(body.into())
}

/// The router's answer to a path nobody owns.
pub fn not_found(shape: &Shape) -> HttpResponse {
    text(404, "404 page not found\n", shape)
}
