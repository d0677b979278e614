//! A log whose client asked for WebSocket: what comes of it is sent in messages, as bytes or in base64.

use std::pin::pin;

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use shared::upgrade;
use tokio::io::{AsyncRead, AsyncWrite};
use tungstenite::Message;

use super::{handshake, websocket};
use crate::authn::TOKEN_PROTOCOL;

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";

/// How a client wants the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Binary,
    Base64,
}

impl Form {
    fn message(self, bytes: Bytes) -> Message {
        match self {
            Self::Binary => Message::Binary(bytes),
            Self::Base64 => Message::Text(STANDARD.encode(bytes).into()),
        }
    }
}

/// The first form offered that is known, and its name; a client that offers none gets bytes.
fn form(offered: &[&String]) -> Option<(Form, &'static str)> {
    if offered.is_empty() {
        return Some((Form::Binary, ""));
    }
    offered.iter().find_map(|name| match name.as_str() {
        BINARY => Some((Form::Binary, BINARY)),
        BASE64 => Some((Form::Base64, BASE64)),
        _ => None,
    })
}

/// Whether a request asks for messages.
pub(super) fn wanted(request: &HttpRequest) -> bool {
    upgrade::protocol(request).is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Sends a response's body in messages, if the client takes one of the forms.
pub(super) fn send(request: &HttpRequest, payload: web::Payload, body: HttpResponse) -> HttpResponse {
    let mut taken = Form::Binary;
    let head = handshake::begin(request, |offered| {
        let offered: Vec<&String> = offered.iter().filter(|name| !name.starts_with(TOKEN_PROTOCOL)).collect();
        let (form, name) = form(&offered)?;
        taken = form;
        Some(Some(name))
    });
    let head = match head {
        Ok(head) => head,
        Err(refusal) => return refusal,
    };
    let (response, client) = upgrade::accept(request, payload, &head);
    // Ends with its client or with the log.
    actix_web::rt::spawn(carry(client, body.into_body(), taken));
    response
}

async fn carry<C>(client: C, body: impl MessageBody, form: Form)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let mut body = pin!(body);
    let (mut sink, mut incoming) = websocket(client).await.split();
    // Upstream's first message is empty: the client sees that the connection stands.
    let mut next = Some(Bytes::new());
    while let Some(bytes) = next {
        if sink.send(form.message(bytes)).await.is_err() {
            return;
        }
        next = loop {
            tokio::select! {
                part = std::future::poll_fn(|cx| body.as_mut().poll_next(cx)) => break part.and_then(Result::ok),
                // What clients say is not listened to, but that they leave is noticed.
                said = incoming.next() => if !matches!(said, Some(Ok(m)) if !m.is_close()) {
                    break None;
                },
            }
        };
    }
    // The client may be gone already.
    sink.close().await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_tungstenite::WebSocketStream;
    use tungstenite::protocol::Role;

    #[test]
    fn the_first_known_form_is_taken() {
        let offered = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            form(&names.iter().collect::<Vec<_>>())
        };
        for (names, expected) in [
            (&[][..], Some((Form::Binary, ""))),
            (&["x", BASE64, BINARY], Some((Form::Base64, BASE64))),
            (&[BINARY], Some((Form::Binary, BINARY))),
            (&["v5.channel.k8s.io"], None),
        ] {
            assert_eq!(offered(names), expected, "{names:?}");
        }
    }

    #[tokio::test]
    async fn a_log_comes_in_messages() {
        for (form, expected) in [
            (Form::Binary, Message::Binary(Bytes::from_static(b"a line\n"))),
            (Form::Base64, Message::Text("YSBsaW5lCg==".into())),
        ] {
            let (client, ours) = tokio::io::duplex(1024);
            let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            let read = async { client.filter_map(|message| async { message.ok() }).collect::<Vec<_>>().await };
            let ((), said) = tokio::join!(carry(ours, Bytes::from_static(b"a line\n"), form), read);
            assert_eq!(said[..2], [form.message(Bytes::new()), expected]);
            assert!(said[2].is_close(), "{said:?}");
        }
    }
}
