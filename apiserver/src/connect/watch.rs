//! A watch whose client asked for WebSocket: every event is a message, text for JSON and binary for protobuf and CBOR.

use actix_web::http::header::ORIGIN;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Buf as _, Bytes};
use futures::{SinkExt as _, StreamExt as _};
use shared::upgrade;
use tungstenite::Message;

use super::{handshake, websocket};
use crate::api::RequestInfo;
use crate::verbs::{Body, Reply};

/// Bytes of the length in front of an event in protobuf; messages have a length of their own.
const LENGTH: usize = 4;

/// Whether a request is for such a watch.
pub fn wants_messages(request: &HttpRequest, info: &RequestInfo) -> bool {
    info.verb == "watch" && upgrade::protocol(request).is_some_and(|p| p.eq_ignore_ascii_case("websocket"))
}

fn message(mut frame: Bytes, content_type: &str) -> Option<Message> {
    if content_type.starts_with("application/json") {
        // JSON is text.
        return tungstenite::Utf8Bytes::try_from(frame).ok().map(Message::Text);
    }
    if content_type.starts_with("application/vnd.kubernetes.protobuf") {
        frame.advance(LENGTH.min(frame.len()));
    }
    Some(Message::Binary(frame))
}

/// Sends the frames of a reply, each of which is one event, as messages. A client has to say which page asks.
pub fn watch(request: &HttpRequest, payload: web::Payload, reply: Reply) -> HttpResponse {
    let asked = request.headers().get(ORIGIN).is_some_and(|origin| !origin.is_empty());
    let head = match handshake::begin(request, |_| asked.then_some(None)) {
        Ok(head) => head,
        Err(refusal) => return refusal,
    };
    let content_type = reply.content_type;
    let mut frames = match reply.body {
        Body::Stream(frames) => frames,
        Body::Full(frame) => futures::stream::iter([Ok(frame)]).boxed_local(),
    };
    let (response, client) = upgrade::accept(request, payload, &head);
    // Ends with its client or with the watch.
    actix_web::rt::spawn(async move {
        let (mut sink, mut incoming) = websocket(client).await.split();
        loop {
            tokio::select! {
                frame = frames.next() => {
                    let Some(Ok(frame)) = frame else { break };
                    let Some(message) = message(frame, &content_type) else { break };
                    if sink.send(message).await.is_err() {
                        return;
                    }
                }
                // What clients say is not listened to, but that they leave is noticed.
                said = incoming.next() => if !matches!(said, Some(Ok(m)) if !m.is_close()) {
                    break;
                },
            }
        }
        // The client may be gone already.
        sink.close().await.ok();
    });
    response
}
