//! Answers: small ones from memory, long ones from a channel.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Serialize;
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tower::BoxError;

/// The body of an answer.
pub type Body = BoxBody<Bytes, Infallible>;
/// An answer.
pub type Answer = Response<Body>;

/// The most of a request's body that is read.
const BODY_LIMIT: usize = 64 << 10;

fn with(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Plain text.
pub fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = with(status, "text/plain; charset=utf-8", Bytes::copy_from_slice(text.as_bytes()));
    answer.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

/// An error as Go writes it: text and a line end.
pub fn error(status: StatusCode, message: &str) -> Answer {
    text(status, &format!("{message}\n"))
}

/// Answers a path that does not exist.
pub fn not_found() -> Answer {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

/// A document.
pub fn json<T: Serialize>(value: &T) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => with(StatusCode::OK, "application/json", body.into()),
        Err(problem) => error(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string()),
    }
}

/// Metrics in the text format.
pub fn metrics(body: String) -> Answer {
    with(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body.into())
}

/// Metrics in the text format, as they come.
pub fn metrics_stream(receiver: mpsc::Receiver<Bytes>) -> Answer {
    let mut answer = stream(receiver);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// Bytes of a given type.
pub fn bytes(kind: &'static str, body: Vec<u8>) -> Answer {
    with(StatusCode::OK, kind, body.into())
}

/// No body at all.
pub fn empty() -> Body {
    Empty::new().boxed()
}

/// A stream: what is sent on the channel, as it comes.
pub fn stream(receiver: mpsc::Receiver<Bytes>) -> Answer {
    let frames = ReceiverStream::new(receiver).map(|chunk| Ok(Frame::data(chunk)));
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

/// A request's body, if it is small.
///
/// # Errors
/// Too long, or cut off.
pub async fn small_body(request: Request<Incoming>) -> Result<String, BoxError> {
    let body = Limited::new(request.into_body(), BODY_LIMIT).collect().await?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}
