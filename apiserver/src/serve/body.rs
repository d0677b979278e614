//! Request bodies, and how long responses are sent. Answers for upstream's `WithRequestDeadline`.

use std::convert::Infallible;
use std::task::Poll;

use actix_web::error::PayloadError;
use actix_web::web;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use shared::status::Status;

use super::meters::ResponseMeasurement;
use super::yield_queue::yielding_between_chunks;
use crate::access::Permit;
use crate::flowcontrol::WatchGuard;
use crate::verbs::{Body, CHUNK, Reply};

/// Largest request body.
const MAX_BODY: usize = 3 << 20;

/// Reads a request's body. What is none is told as the connection tells it.
pub(super) async fn read_body(mut payload: web::Payload) -> Result<Bytes, Status> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|e| Status::unknown(&error_text(e)))?;
        if body.len() + chunk.len() > MAX_BODY {
            return Err(Status::too_large(MAX_BODY));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn error_text(error: PayloadError) -> String {
    match error {
        PayloadError::Io(error) => error.to_string(),
        _ => "unexpected EOF".to_owned(),
    }
}

/// Holds the request's seat while a long response is sent, for the memory it takes: a list to its end, a watch until it
/// waits for changes. Long responses yield between chunks. A watch is counted until it ends.
pub(super) fn streamed_with_seat(
    mut reply: Reply,
    permit: Option<Permit>,
    watching: Option<WatchGuard>,
    mut sending: ResponseMeasurement,
) -> Reply {
    let mut stream = match reply.body {
        Body::Full(bytes) if bytes.len() <= CHUNK => {
            sending.add(bytes.len());
            return Reply { body: Body::Full(bytes), ..reply };
        }
        Body::Full(bytes) => in_chunks(bytes).boxed_local(),
        Body::Stream(stream) => stream,
    };
    let mut kept = Some(permit);
    let stream = futures::stream::poll_fn(move |cx| {
        let next = stream.poll_next_unpin(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            sending.add(bytes.len());
        }
        if next.is_pending() && watching.is_some() {
            drop(kept.take());
        }
        next
    });
    reply.body = Body::Stream(yielding_between_chunks(stream.boxed_local()));
    reply
}

fn in_chunks(mut bytes: Bytes) -> impl futures::Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::iter(std::iter::from_fn(move || {
        (!bytes.is_empty()).then(|| Ok(bytes.split_to(bytes.len().min(CHUNK))))
    }))
}
