//! From a [`Reply`] or a `Status` to an HTTP response. Answers for upstream's `transformResponseObject`,
//! `ErrorNegotiated`.

use std::io::Write as _;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use actix_web::http::{ConnectionType, StatusCode};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use shared::status::Status;

use crate::audit::Trail;
use crate::connect::is_handed_over;
use crate::flowcontrol::Classified;
use crate::negotiate::{self, Accepted, Format, Media};
use crate::verbs::{Body, COMPRESS_FROM, Reply};

/// Parts of the request that shape the response.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// Media types the server speaks.
    pub media: Media,
    /// `Accept`.
    pub accept: Option<String>,
    /// The client is to have indented JSON.
    pub pretty: bool,
    /// The client takes gzip.
    pub gzip: bool,
    /// `If-None-Match`.
    pub known: Option<String>,
    /// For the `Audit-Id` header.
    pub audit_id: String,
    /// The request is not authenticated.
    pub unauthenticated: bool,
    /// Flow schema and priority level of the request.
    pub classified: Option<Classified>,
}

fn code(n: u16) -> StatusCode {
    StatusCode::from_u16(n).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Headers of every response that the server itself begins.
fn common_headers(shape: &Shape) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let classified = shape.classified.as_ref();
    let said = [
        (HeaderName::from_static("audit-id"), Some(shape.audit_id.as_str())),
        (CACHE_CONTROL, Some("no-cache, private")),
        (HeaderName::from_static("x-kubernetes-pf-flowschema-uid"), classified.map(|c| c.schema_uid.as_str())),
        (HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid"), classified.map(|c| c.level_uid.as_str())),
    ];
    let filled = said.map(|(name, value)| Some((name, HeaderValue::from_str(value.filter(|v| !v.is_empty())?).ok()?)));
    filled.into_iter().flatten()
}

fn start(n: u16, shape: &Shape) -> actix_web::HttpResponseBuilder {
    let mut b = HttpResponse::build(code(n));
    if n == 413 {
        // As Go calls it still.
        b.reason("Request Entity Too Large");
    }
    for header in common_headers(shape) {
        b.insert_header(header);
    }
    b
}

/// Completes an answer: what it says itself holds. `false`: it leaves as it is.
pub(super) fn complete(response: &mut HttpResponse, shape: &Shape) -> bool {
    if is_handed_over(response) {
        return false;
    }
    for (name, value) in common_headers(shape) {
        if !response.headers().contains_key(&name) {
            response.headers_mut().insert(name, value);
        }
    }
    true
}

/// Completes the answer of another server: what it says of these matters comes after what we say.
pub(super) fn relayed(mut response: HttpResponse, shape: &Shape) -> HttpResponse {
    if is_handed_over(&response) {
        return response;
    }
    for (name, value) in common_headers(shape) {
        let headers = response.headers_mut();
        let theirs: Vec<HeaderValue> = headers.get_all(&name).cloned().collect();
        headers.insert(name.clone(), value);
        for value in theirs {
            headers.append(name.clone(), value);
        }
    }
    response
}

/// `299 - "text"`, or nothing for texts no header can hold.
fn warning(text: &str) -> Option<String> {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    (!clean.is_empty()).then(|| format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Characters of all warnings of an answer; where there are more, each is cut.
const MOST_WARNED: usize = 4 << 10;
/// Characters of a warning that is cut.
const CUT_WARNING: usize = 256;

/// One header for each text, equal ones once.
fn warning_headers(warnings: &[String]) -> Vec<String> {
    let mut seen: Vec<&str> = Vec::new();
    for text in warnings {
        if !seen.contains(&text.as_str()) {
            seen.push(text);
        }
    }
    let most = if seen.iter().map(|text| text.chars().count()).sum::<usize>() > MOST_WARNED {
        CUT_WARNING
    } else {
        usize::MAX
    };
    let (mut written, mut headers) = (0, Vec::new());
    for text in seen {
        let cut: String = text.chars().take(most).collect();
        if written < MOST_WARNED
            && let Some(header) = warning(&cut)
        {
            written += cut.chars().count();
            headers.push(header);
        }
    }
    headers
}

/// Adds warnings to a response.
pub(super) fn warned(mut response: HttpResponse, warnings: &[String]) -> HttpResponse {
    for text in warning_headers(warnings) {
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// The answer as it is sent: compressed when the client takes that and it is large.
pub(super) fn packed(mut r: Reply, shape: &Shape) -> Reply {
    if let Body::Full(bytes) = &r.body
        && shape.gzip
        && !r.packed
        && bytes.len() > COMPRESS_FROM
        && let Some(packed) = gzip(bytes)
    {
        r.body = Body::Full(packed);
        r.packed = true;
    }
    r
}

/// An answer.
pub(super) fn reply(r: Reply, shape: &Shape) -> HttpResponse {
    let r = packed(r, shape);
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
        Body::Full(bytes) => b.body(bytes),
    }
}

fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut e = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    e.write_all(bytes).ok()?;
    e.finish().ok().map(Bytes::from)
}

/// Negotiates the media type of an error; tables and partial objects do not apply to one. `None` when nothing
/// acceptable is served.
fn negotiate_error(shape: &Shape) -> Option<Accepted> {
    negotiate::parse_plain(shape.media, shape.accept.as_deref()).ok()
}

/// Writes down an error, where it is said in a form that the client asked for. (Upstream knows the others by their code
/// alone.)
pub(super) fn audit_error(trail: &mut Trail, status: &Status, shape: &Shape) {
    match negotiate_error(shape) {
        Some(_) => trail.failed(status),
        None => trail.answered(status.code),
    }
}

/// An error.
pub(super) fn failure(status: &Status, shape: &Shape) -> HttpResponse {
    // Who takes nothing that there is gets JSON for people.
    let (format, pretty) = negotiate_error(shape).map_or((Format::Json, true), |a| (a.format, a.pretty));
    let pretty = pretty || shape.pretty;
    let mut b = start(status.code, shape);
    if let Some(seconds) = status.retry_after() {
        b.insert_header(("Retry-After", seconds.to_string()));
    }
    b.insert_header(("Content-Type", format.content_type()));
    b.body(negotiate::status(format, pretty, status))
}

/// An answer that took too long; upstream does not say of which kind it is.
pub(super) fn timed_out(status: &Status, shape: &Shape) -> HttpResponse {
    let mut body = status.to_bare_json();
    body.push(b'\n');
    let mut response = start(status.code, shape);
    response.insert_header(("Content-Type", "text/plain; charset=utf-8")).body(body)
}

/// An answer to a request there is no room for: plain text, made without looking at what the client accepts.
pub(super) fn throttled(status: &Status, shape: &Shape) -> HttpResponse {
    let mut response = text(status.code, format!("{}\n", status.message), shape);
    let seconds = HeaderValue::from(status.retry_after().unwrap_or(1));
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

/// Plain text.
pub(super) fn text(n: u16, body: impl Into<String>, shape: &Shape) -> HttpResponse {
    let mut b = start(n, shape);
    b.insert_header(("Content-Type", "text/plain; charset=utf-8"));
    b.insert_header(("X-Content-Type-Options", "nosniff"));
    b.body(body.into())
}

/// Plain text of a page that says nothing of how to read it: its type is what Go finds it to be.
pub(super) fn page_text(body: impl Into<String>, shape: &Shape) -> HttpResponse {
    start(200, shape).insert_header(("Content-Type", "text/plain; charset=utf-8")).body(body.into())
}

/// Builds an empty response with a status code.
pub(super) fn empty(n: u16, shape: &Shape) -> HttpResponse {
    start(n, shape).finish()
}

/// The connection takes nothing more after this answer. Of HTTP/1.1 and HTTP/2 each looks at another sign.
pub(super) fn closing_connection(mut response: HttpResponse) -> HttpResponse {
    response.head_mut().set_connection_type(ConnectionType::Close);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The answer to what is no request at all: it is not looked at any further.
pub(super) fn unread() -> HttpResponse {
    let mut b = HttpResponse::BadRequest();
    closing_connection(b.insert_header(("Content-Type", "text/plain; charset=utf-8")).body("400 Bad Request"))
}

/// The router's answer to a path nobody owns.
pub(super) fn not_found(shape: &Shape) -> HttpResponse {
    text(404, "404 page not found\n", shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn timeout_response_has_no_content_type() {
        let late =
            timed_out(&Status::timeout("request did not complete within the allotted timeout", 0), &Shape::default());
        let body = actix_web::body::to_bytes(late.into_body()).await.expect("a body");
        let want = r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}"#;
        assert_eq!(body, format!("{want}\n"));
    }

    #[test]
    fn answers_of_others_are_completed_and_ours_hold() {
        let shape = Shape { audit_id: "ours".to_owned(), ..Shape::default() };
        let theirs = || {
            let mut response = HttpResponse::Ok();
            response.insert_header(("Audit-Id", "theirs")).insert_header(("Cache-Control", "max-age=5")).finish()
        };
        let said = |response: &HttpResponse| -> Vec<String> {
            let all = ["audit-id", "cache-control"].map(|name| response.headers().get_all(name));
            all.into_iter().flatten().map(|v| v.to_str().expect("text").to_owned()).collect()
        };
        let mut ours = theirs();
        assert!(complete(&mut ours, &shape));
        assert_eq!(said(&ours), ["theirs", "max-age=5"]);
        assert_eq!(said(&relayed(theirs(), &shape)), ["ours", "theirs", "no-cache, private", "max-age=5"]);
        let mut handed_over = crate::connect::handed_over(HttpResponse::NotFound().finish());
        assert!(!complete(&mut handed_over, &shape) && said(&handed_over).is_empty());
        let mut plain = HttpResponse::Ok().finish();
        assert!(complete(&mut plain, &shape));
        assert_eq!(said(&plain), ["ours", "no-cache, private"]);
    }

    #[test]
    fn warnings_fit_into_headers() {
        let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        assert_eq!(warning_headers(&texts(&["a \"b\"", "", "a \"b\""])), ["299 - \"a \\\"b\\\"\""]);
        let long: Vec<String> = (0..40).map(|i| format!("{i:02}{}", "é".repeat(300))).collect();
        let headers = warning_headers(&long);
        assert_eq!(headers.len(), 16);
        assert!(headers.iter().all(|h| h.chars().count() == 256 + "299 - \"\"".len()));
        assert_eq!(warning_headers(&long[..2])[1].chars().count(), 302 + "299 - \"\"".len());
    }
}
