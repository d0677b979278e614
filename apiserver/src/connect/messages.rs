//! A log whose client asked for WebSocket: what comes of it is sent in messages, as bytes or in base64.

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use shared::upgrade;

use super::frames::{self, MessageType};
use super::handshake::{self, HandshakeError};

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";
/// Bytes of a log in one message.
const LONGEST: usize = 2 << 10;

/// Encoding of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageEncoding {
    Binary,
    Base64,
}

impl MessageEncoding {
    fn message(self, bytes: &Bytes) -> (MessageType, Bytes) {
        match self {
            Self::Binary => (MessageType::Binary, bytes.clone()),
            Self::Base64 => (MessageType::Text, STANDARD.encode(bytes).into()),
        }
    }
}

/// The first form offered that is known, and its name; a client that offers none gets bytes.
fn form(offered: &[String]) -> Option<(MessageEncoding, &'static str)> {
    if offered.is_empty() {
        return Some((MessageEncoding::Binary, ""));
    }
    offered.iter().find_map(|name| match name.as_str() {
        BINARY => Some((MessageEncoding::Binary, BINARY)),
        BASE64 => Some((MessageEncoding::Base64, BASE64)),
        _ => None,
    })
}

/// Reports whether a request asks for a WebSocket.
pub(super) fn is_requested(request: &HttpRequest) -> bool {
    upgrade::protocol(request).is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Sends a response's body in messages, if the client takes one of the forms.
pub(super) fn send(request: &HttpRequest, payload: web::Payload, body: HttpResponse) -> HttpResponse {
    let mut taken = MessageEncoding::Binary;
    let head = handshake::begin(request, |offered| {
        let (form, name) = form(&offered).ok_or(HandshakeError::NotYours)?;
        taken = form;
        Ok(Some(name.to_owned()))
    });
    let head = match head {
        Ok(head) => head,
        Err(refusal) => return refusal,
    };
    let (response, client) = upgrade::accept(request, payload, &head);
    // Ends with its client or with the log.
    actix_web::rt::spawn(frames::send_text(client, messages(body.into_body(), taken)));
    response
}

/// The messages of a body. Upstream's first one is empty: the client sees that the connection stands.
fn messages(body: impl MessageBody, form: MessageEncoding) -> impl Stream<Item = (MessageType, Bytes)> {
    let mut body = Box::pin(body);
    let parts = futures::stream::poll_fn(move |cx| body.as_mut().poll_next(cx).map(|part| part.and_then(Result::ok)));
    let pieces = parts.flat_map(|mut part| {
        futures::stream::iter(std::iter::from_fn(move || {
            (!part.is_empty()).then(|| part.split_to(part.len().min(LONGEST)))
        }))
    });
    futures::stream::iter([Bytes::new()]).chain(pieces).map(move |bytes| form.message(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_supported_protocol_is_selected() {
        let offered = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            form(&names)
        };
        for (names, expected) in [
            (&[][..], Some((MessageEncoding::Binary, ""))),
            (&["x", BASE64, BINARY], Some((MessageEncoding::Base64, BASE64))),
            (&[BINARY], Some((MessageEncoding::Binary, BINARY))),
            (&["v5.channel.k8s.io"], None),
        ] {
            assert_eq!(offered(names), expected, "{names:?}");
        }
    }

    #[tokio::test]
    async fn log_is_sent_in_messages() {
        let long = Bytes::from(vec![b'a'; LONGEST + 1]);
        for (form, log, want) in [
            (MessageEncoding::Binary, Bytes::from_static(b"a line\n"), vec![(MessageType::Binary, &b"a line\n"[..])]),
            (MessageEncoding::Base64, Bytes::from_static(b"a line\n"), vec![(MessageType::Text, b"YSBsaW5lCg==")]),
            (
                MessageEncoding::Binary,
                long.clone(),
                vec![(MessageType::Binary, &long[..LONGEST]), (MessageType::Binary, b"a")],
            ),
        ] {
            let said: Vec<(MessageType, Bytes)> = messages(log, form).collect().await;
            assert_eq!((said[0].0, said[0].1.len()), (want[0].0, 0));
            let said: Vec<(MessageType, &[u8])> = said[1..].iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
            assert_eq!(said, want);
        }
    }
}
