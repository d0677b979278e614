//! Pages of HTML that come through the proxy subresources: their links are led through the proxy again, as are those of
//! redirects. Upstream's part is apimachinery's `util/proxy`.
//!
//! A page passes as it is read: of a long one only the beginning is held back, so that a page that cannot be read is an
//! error and not half a page.

mod links;
mod markup;
mod packing;
mod tag;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    RANGE,
};
use bytes::{Bytes, BytesMut};
use shared::status::Status;
use shared::url::{Url, joined};

pub(crate) use links::Links;
use markup::Markup;
use packing::{Pack, Packing, Unpack};

/// CORS headers of the backend, which are removed: the API server sets its own.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];
/// Bytes of a response that are read before it starts.
const HELD: usize = 1 << 20;
/// Bytes that are decompressed at a time: they may grow a thousandfold.
const BITE: usize = 4 << 10;
/// Up to here Go's server says how long an answer is.
const MEASURED: usize = 2 << 10;

/// Processing of a response body.
enum Stage {
    /// Removes the compression that only the proxy asked for.
    Transport(Box<Unpack>),
    Page(Box<ProxiedPage>),
}

struct ProxiedPage {
    unpack: Option<Unpack>,
    markup: Markup,
    pack: Option<Pack>,
}

/// Upstream's words, where a page is not packed as its head says.
fn unpackable(unpack: &Unpack, error: io::Error) -> io::Error {
    if unpack.is_headless() { io::Error::other(format!("errorf making gzip reader: {error}")) } else { error }
}

impl ProxiedPage {
    fn push(&mut self, part: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match &mut self.unpack {
            Some(unpack) => {
                let plain = unpack.push(part);
                self.markup.push(&plain.map_err(|error| unpackable(unpack, error))?, &mut out);
            }
            None => self.markup.push(part, &mut out),
        }
        match &mut self.pack {
            Some(pack) => pack.push(&out),
            None => Ok(out),
        }
    }

    fn finish(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        if let Some(unpack) = &mut self.unpack {
            let plain = unpack.finish();
            self.markup.push(&plain.map_err(|error| unpackable(unpack, error))?, &mut out);
        }
        self.markup.finish(&mut out);
        match &mut self.pack {
            Some(pack) => Ok([pack.push(&out)?, pack.finish()?].concat()),
            None => Ok(out),
        }
    }
}

impl Stage {
    fn push(&mut self, part: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Transport(unpack) => unpack.push(part),
            Self::Page(page) => page.push(part),
        }
    }

    fn finish(&mut self) -> io::Result<Vec<u8>> {
        match self {
            // An answer without a body says only how it would be packed.
            Self::Transport(unpack) if unpack.is_untouched() => Ok(Vec::new()),
            Self::Transport(unpack) => unpack.finish(),
            Self::Page(page) => page.finish(),
        }
    }
}

/// A body on its way through a stage.
struct ProcessedBody {
    body: BoxBody,
    /// Came and was not looked at.
    left: Bytes,
    ended: bool,
    stage: Stage,
}

impl ProcessedBody {
    fn new(body: BoxBody, stage: Stage) -> Self {
        Self { body, left: Bytes::new(), ended: false, stage }
    }
}

impl MessageBody for ProcessedBody {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        while !self.ended {
            let out = if self.left.is_empty() {
                match ready!(Pin::new(&mut self.body).poll_next(cx)) {
                    Some(part) => {
                        self.left = part.map_err(|error| io::Error::other(error.to_string()))?;
                        continue;
                    }
                    None => {
                        self.ended = true;
                        self.stage.finish()?
                    }
                }
            } else {
                let bite = BITE.min(self.left.len());
                let bite = self.left.split_to(bite);
                self.stage.push(&bite)?
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(out.into())));
            }
        }
        Poll::Ready(None)
    }
}

fn first(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Reports whether a response is HTML, in any character set.
fn is_page(headers: &HeaderMap) -> bool {
    first(headers, CONTENT_TYPE).split(';').next().unwrap_or_default().trim() == "text/html"
}

/// Prepares the rewriting of a page; `None` for responses that are passed unchanged.
fn page(headers: &HeaderMap, links: Links) -> Option<ProxiedPage> {
    let encoding = first(headers, CONTENT_ENCODING);
    let packing = Packing::named(encoding);
    if packing.is_none() && !encoding.is_empty() {
        tracing::error!(
            encoding,
            "Proxy encountered an encoding for text/html that it cannot read; links stay as they are"
        );
        return None;
    }
    Some(ProxiedPage { unpack: packing.map(Unpack::new), markup: Markup::new(links), pack: packing.map(Pack::new) })
}

/// Tells the other side where it is had; the path is written with its escapes.
pub(crate) fn forward(headers: &mut HeaderMap, links: &Links, path: &[u8]) {
    let said = [
        ("x-forwarded-uri", joined(&links.prefix, path)),
        ("x-forwarded-host", links.host.clone().into_bytes()),
        ("x-forwarded-proto", links.scheme.clone().into_bytes()),
    ];
    for (name, value) in said.into_iter().filter(|(_, value)| !value.is_empty()) {
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Asks for an answer that is packed, as Go's client does where nobody says what he takes; then it is ours to unpack.
pub(crate) fn ask_packed(method: &str, headers: &mut HeaderMap) -> bool {
    let asks = method != "HEAD" && !headers.contains_key(ACCEPT_ENCODING) && !headers.contains_key(RANGE);
    if asks {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    }
    asks
}

/// An answer as it is passed on, `packed` where only we asked for that: redirects and links lead through here again.
pub(crate) async fn led_back(response: HttpResponse, links: Links, packed: bool) -> Result<HttpResponse, Status> {
    let mut response = if packed { unpacked(response) } else { response };
    for name in CORS {
        response.headers_mut().remove(name);
    }
    let Some(to) = response.headers().get(LOCATION).filter(|to| !to.is_empty()) else {
        return read_through(response, links).await;
    };
    let to = Url::parse(to.as_bytes());
    let to = to.map_err(|why| Status::internal(&format!("error trying to parse Location header: {why}")))?;
    if let Ok(to) = HeaderValue::from_bytes(&links.rewritten(to)) {
        response.headers_mut().insert(LOCATION, to);
    }
    Ok(response)
}

/// Unpacks an answer that only we asked to be packed.
fn unpacked(mut response: HttpResponse) -> HttpResponse {
    if !first(response.headers(), CONTENT_ENCODING).eq_ignore_ascii_case("gzip") {
        return response;
    }
    response.headers_mut().remove(CONTENT_ENCODING);
    response.headers_mut().remove(CONTENT_LENGTH);
    response.map_body(|_, body| {
        BoxBody::new(ProcessedBody::new(body, Stage::Transport(Box::new(Unpack::new(Packing::Gzip)))))
    })
}

/// A page with its links led back; other answers stay as they are.
async fn read_through(response: HttpResponse, links: Links) -> Result<HttpResponse, Status> {
    let page = Some(response.headers()).filter(|headers| is_page(headers)).and_then(|headers| page(headers, links));
    let Some(page) = page else { return Ok(response) };
    let (mut response, body) = response.into_parts();
    response.headers_mut().remove(CONTENT_LENGTH);
    let mut staged = ProcessedBody::new(body, Stage::Page(Box::new(page)));
    let mut held = BytesMut::new();
    while held.len() < HELD {
        match std::future::poll_fn(|cx| Pin::new(&mut staged).poll_next(cx)).await {
            Some(Ok(part)) => held.extend_from_slice(&part),
            Some(Err(error)) => return Err(Status::unknown(&error.to_string())),
            None => break,
        }
    }
    let held = held.freeze();
    if staged.ended && held.len() <= MEASURED {
        return Ok(response.set_body(BoxBody::new(held)));
    }
    // What was read is what comes first.
    Ok(response.set_body(BoxBody::new(BufferedBody { held: Some(held), rest: staged })))
}

/// A body of which the beginning was read.
struct BufferedBody {
    held: Option<Bytes>,
    rest: ProcessedBody,
}

impl MessageBody for BufferedBody {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self.held.take() {
            Some(held) => Poll::Ready(Some(Ok(held))),
            None => Pin::new(&mut self.rest).poll_next(cx),
        }
    }
}
