//! A watch whose client asked for WebSocket: every event is a message, text for JSON and binary for protobuf and CBOR.
//! Answers for upstream's `WatchServer.HandleWS`.

use actix_web::http::header::{AUTHORIZATION, ORIGIN};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Buf as _, Bytes};
use futures::{StreamExt as _, future};
use shared::upgrade;
use shared::url::Url;

use super::frames::{self, MessageType};
use super::handshake::{self, HandshakeError};
use crate::api::RequestInfo;
use crate::authn::TOKEN_PROTOCOL;
use crate::verbs::{Body, Reply};

/// Bytes of the length in front of an event in protobuf; messages have a length of their own.
const LENGTH: usize = 4;

/// Reports whether a request asks for a watch over WebSocket.
pub fn wants_messages(request: &HttpRequest, info: &RequestInfo) -> bool {
    info.verb == "watch" && upgrade::protocol(request).is_some_and(|p| p.eq_ignore_ascii_case("websocket"))
}

fn message(mut frame: Bytes, content_type: &str) -> (MessageType, Bytes) {
    if content_type.starts_with("application/json") {
        return (MessageType::Text, frame);
    }
    if content_type.starts_with("application/vnd.kubernetes.protobuf") {
        frame.advance(LENGTH.min(frame.len()));
    }
    (MessageType::Binary, frame)
}

/// Reports whether the required `Origin` header is a URL.
fn names_origin(request: &HttpRequest) -> bool {
    let origin = request.headers().get(ORIGIN).map(|origin| origin.as_bytes()).unwrap_or_default();
    Url::parse_request(origin).is_ok()
}

/// The protocols that are offered. One that brings a token was taken from them when it was looked at.
fn offered(request: &HttpRequest, mut all: Vec<String>) -> Vec<String> {
    if !request.headers().contains_key(AUTHORIZATION) {
        all.retain(|name| !name.starts_with(TOKEN_PROTOCOL));
    }
    all
}

/// Sends the frames of a reply, each of which is one event, as messages. A client has to say which page asks.
pub fn watch(request: &HttpRequest, payload: web::Payload, reply: Reply) -> HttpResponse {
    let head = handshake::begin(request, |all| {
        if !names_origin(request) {
            return Err(HandshakeError::NotYours);
        }
        match &offered(request, all)[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            // There is none to be chosen.
            _ => Err(HandshakeError::NoChoice),
        }
    });
    let head = match head {
        Ok(head) => head,
        Err(refusal) => return refusal,
    };
    let content_type = reply.content_type;
    let frames = match reply.body {
        Body::Stream(frames) => frames,
        Body::Full(frame) => futures::stream::iter([Ok(frame)]).boxed_local(),
    };
    let (response, client) = upgrade::accept(request, payload, &head);
    let messages = frames
        .take_while(|frame| future::ready(frame.is_ok()))
        .filter_map(move |frame| future::ready(frame.ok().map(|frame| message(frame, &content_type))));
    // Ends with its client or with the watch.
    actix_web::rt::spawn(frames::send_text(client, messages));
    response
}
