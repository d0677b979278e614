//! WebSocket handshake. Upstream uses two libraries with different errors: one takes the connection over first and
//! answers with little more than a code, the other answers as any handler does.

use actix_web::http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse};
use shared::upgrade::{self, ResponseHead};

use super::handed_over;

/// The version of the protocol that there is.
const VERSION: &str = "13";

/// A refused handshake, with the body of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    /// Another method than GET.
    #[error("bad method")]
    Method,
    /// No headers that ask for a WebSocket.
    #[error("not websocket protocol")]
    NotWebSocket,
    /// No key.
    #[error("mismatch challenge/response")]
    NoKey,
    /// Another version of the protocol.
    #[error("missing or bad WebSocket Version")]
    Version,
    /// Forbidden origin, or no supported protocol.
    #[error("")]
    NotYours,
    /// Several protocols are offered where the server selects none.
    #[error("")]
    NoChoice,
}

impl HandshakeError {
    /// Returns the code of the answer.
    fn code(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotYours => StatusCode::FORBIDDEN,
            Self::NotWebSocket | Self::NoKey | Self::Version | Self::NoChoice => StatusCode::BAD_REQUEST,
        }
    }
}

/// The protocols that a client offers, best first.
pub(super) fn offered(request: &HttpRequest) -> Vec<String> {
    let value = first(request.headers(), SEC_WEBSOCKET_PROTOCOL.as_str()).trim();
    if value.is_empty() {
        return Vec::new();
    }
    value.split(',').map(|name| name.trim().to_owned()).collect()
}

fn first<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the error of a malformed handshake.
fn check_handshake(method: &Method, headers: &HeaderMap) -> Option<HandshakeError> {
    let asks = first(headers, CONNECTION.as_str()).to_ascii_lowercase().contains("upgrade");
    let rules = [
        (method == Method::GET, HandshakeError::Method),
        (asks && first(headers, UPGRADE.as_str()).eq_ignore_ascii_case("websocket"), HandshakeError::NotWebSocket),
        (!first(headers, "sec-websocket-key").is_empty(), HandshakeError::NoKey),
        (first(headers, "sec-websocket-version") == VERSION, HandshakeError::Version),
    ];
    rules.into_iter().find(|(kept, _)| !kept).map(|(_, refusal)| refusal)
}

/// The answer that switches, or what takes its place. `choose` takes a protocol of those offered, or none, or refuses.
pub(super) fn begin(
    request: &HttpRequest,
    choose: impl FnOnce(Vec<String>) -> Result<Option<String>, HandshakeError>,
) -> Result<ResponseHead, HttpResponse> {
    if let Some(why) = check_handshake(request.method(), &upgrade::headers(request)) {
        return Err(refused(why));
    }
    let protocol = choose(offered(request)).map_err(refused)?;
    Ok(switching(first(request.headers(), "sec-websocket-key"), protocol.as_deref()))
}

/// The refusal on a connection that is the library's already.
fn refused(why: HandshakeError) -> HttpResponse {
    let mut response = HttpResponse::build(why.code());
    if why == HandshakeError::Version {
        response.insert_header(("Sec-WebSocket-Version", VERSION));
    }
    handed_over(response.force_close().body(why.to_string()))
}

/// Answers the handshake of a tunnel, whose library answers as a handler does.
pub(super) fn begin_tunnel(request: &HttpRequest, protocol: Option<&str>) -> Result<ResponseHead, HttpResponse> {
    if let Some(why) = check_handshake(request.method(), &upgrade::headers(request)) {
        let code = why.code();
        let mut response = HttpResponse::build(code);
        response.insert_header(("Sec-Websocket-Version", VERSION));
        response.insert_header(("Content-Type", "text/plain; charset=utf-8"));
        response.insert_header(("X-Content-Type-Options", "nosniff"));
        return Err(response.body(format!("{}\n", code.canonical_reason().unwrap_or_default())));
    }
    let protocol = protocol.filter(|name| offered(request).iter().any(|offer| offer == name));
    Ok(switching(first(request.headers(), "sec-websocket-key"), protocol))
}

/// The server's half of a handshake (RFC 6455 section 4.2.2).
fn switching(key: &str, protocol: Option<&str>) -> ResponseHead {
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    let mut headers = HeaderMap::new();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    let said =
        [(HeaderName::from_static("sec-websocket-accept"), Some(accept.as_str())), (SEC_WEBSOCKET_PROTOCOL, protocol)];
    for (name, value) in said {
        if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
            headers.insert(name, value);
        }
    }
    ResponseHead { status: StatusCode::SWITCHING_PROTOCOLS, headers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_refused_in_order() {
        let whole = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
        ];
        let asked = |method: Method, changed: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in whole.iter().chain(changed) {
                let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
                headers.insert(name, HeaderValue::from_str(value).expect("a value"));
            }
            check_handshake(&method, &headers).map(|why| (why.code().as_u16(), why.to_string()))
        };
        for (method, changed, want) in [
            (Method::GET, &[][..], None),
            (Method::POST, &[("upgrade", "x")], Some((405, "bad method"))),
            (Method::GET, &[("upgrade", "x"), ("sec-websocket-key", "")], Some((400, "not websocket protocol"))),
            (
                Method::GET,
                &[("sec-websocket-key", ""), ("sec-websocket-version", "12")],
                Some((400, "mismatch challenge/response")),
            ),
            (Method::GET, &[("sec-websocket-version", "12")], Some((400, "missing or bad WebSocket Version"))),
        ] {
            let want = want.map(|(code, body): (u16, &str)| (code, body.to_owned()));
            assert_eq!(asked(method, changed), want, "{changed:?}");
        }
    }
}
