//! Proxies on unix sockets. Most connect to nothing: they answer HTTP themselves, with the address they were asked for.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::{Buf as _, Bytes, BytesMut};
use futures::StreamExt as _;
use futures::channel::mpsc;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use super::free_port;

/// An address with this port is refused.
pub const REFUSED: &str = ":81";

/// Protocol of a proxy.
#[derive(Clone, Copy)]
pub enum Speaks {
    /// HTTP CONNECT.
    Http,
    /// HTTP CONNECT to where it is asked to.
    Tunnel,
    /// Konnectivity.
    Grpc,
}

/// Lives as long as the test's runtime.
pub struct Proxy {
    socket: PathBuf,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Proxy {
    pub fn start(speaks: Speaks) -> Self {
        let socket = std::env::temp_dir().join(format!("proxy-{}-{}.sock", std::process::id(), free_port()));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let asked = Arc::<Mutex<BTreeSet<String>>>::default();
        let seen = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match speaks {
                    Speaks::Http => drop(tokio::spawn(connect(stream))),
                    Speaks::Tunnel => drop(tokio::spawn(through(stream, seen.clone()))),
                    Speaks::Grpc => drop(tokio::spawn(konnectivity(stream, seen.clone()))),
                }
            }
        });
        Self { socket, asked }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reports whether a tunnel to an address was requested.
    pub fn was_asked_for(&self, address: &str) -> bool {
        self.asked.lock().expect("not poisoned").contains(address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Serves the backend behind every address.
async fn at(address: String, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(move |request: Request<Incoming>| {
        let address = address.clone();
        async move {
            let asked = format!("{} {} at {address}: ", request.method(), request.uri());
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
            if head.uri.path().ends_with("/says") {
                return Ok::<_, Infallible>(told(&body));
            }
            let mut answer = Response::builder().header("Cache-Control", "max-age=5").header("Audit-Id", "theirs");
            answer = answer.header("Access-Control-Allow-Origin", "*");
            // What the proxy in front says of who asks.
            for (name, value) in &head.headers {
                answer = answer.header(format!("x-seen-{name}"), value);
            }
            Ok(answer.body(Full::new(Bytes::from([asked.as_bytes(), &body].concat()))).expect("one"))
        }
    });
    // A connection that breaks is seen by who asked.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The answer that a request spells out.
fn told(spelled: &[u8]) -> Response<Full<Bytes>> {
    let spelled: serde_json::Value = serde_json::from_slice(spelled).expect("JSON");
    let mut answer =
        Response::builder().status(spelled["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(200));
    for (name, value) in spelled["headers"].as_object().into_iter().flatten() {
        answer = answer.header(name, value.as_str().expect("text"));
    }
    let body = spelled["body"].as_str().unwrap_or_default().as_bytes();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(body).expect("packed");
    let packed = spelled["headers"]["content-encoding"] == "gzip";
    let body = if packed { packer.finish().expect("packed") } else { body.to_vec() };
    answer.body(Full::new(Bytes::from(body))).expect("one")
}

/// The address that a client wants to be connected to.
async fn wanted(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text");
    assert!(head.starts_with("CONNECT ") && head.contains("\r\nhost: 127.0.0.1\r\n"), "{head}");
    head.split(' ').nth(1).expect("an address").to_owned()
}

async fn through(mut stream: UnixStream, asked: Arc<Mutex<BTreeSet<String>>>) {
    let address = wanted(&mut stream).await;
    let Ok(mut there) = TcpStream::connect(&address).await else { return };
    asked.lock().expect("not poisoned").insert(address);
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.expect("sent");
    // A connection that breaks is seen by who asked.
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
}

async fn connect(mut stream: UnixStream) {
    let address = wanted(&mut stream).await;
    if address.ends_with(REFUSED) {
        stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").await.expect("sent");
        return;
    }
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.expect("sent");
    at(address, stream).await;
}

/// The messages of the protocol, by the numbers of their fields.
#[derive(Clone, PartialEq, prost::Message)]
struct Packet {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    dial: Option<Dial>,
    #[prost(message, optional, tag = "3")]
    dialed: Option<Dialed>,
    #[prost(message, optional, tag = "4")]
    data: Option<Data>,
    #[prost(message, optional, tag = "5")]
    close: Option<Close>,
    #[prost(message, optional, tag = "6")]
    closed: Option<Closed>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Dial {
    #[prost(string, tag = "1")]
    protocol: String,
    #[prost(string, tag = "2")]
    address: String,
    #[prost(int64, tag = "3")]
    random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Dialed {
    #[prost(string, tag = "1")]
    error: String,
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Data {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Close {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Closed {
    #[prost(string, tag = "1")]
    error: String,
    #[prost(int64, tag = "2")]
    id: i64,
}

const ID: i64 = 7;

async fn konnectivity(stream: UnixStream, seen: Arc<Mutex<BTreeSet<String>>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            assert_eq!(request.uri().path(), "/ProxyService/Proxy");
            let (sender, frames) = mpsc::unbounded();
            tokio::spawn(tunnel(request.into_body(), sender, seen));
            let body = StreamBody::new(frames.map(Ok::<_, Infallible>));
            Ok::<_, Infallible>(
                Response::builder().header("content-type", "application/grpc").body(body).expect("a response"),
            )
        }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // A connection that breaks is seen by who asked.
    let _ = serving.serve_connection(TokioIo::new(stream), service).await;
}

fn framed(packet: &Packet) -> Frame<Bytes> {
    let message = packet.encode_to_vec();
    let length = u32::try_from(message.len()).expect("small").to_be_bytes();
    Frame::data(Bytes::from([&[0], &length[..], &message].concat()))
}

/// Entry for a requested close of a connection.
pub const CLOSED: &str = "closed";

/// Packets come in by `body`, and go out by `sender`.
async fn tunnel(mut body: Incoming, sender: mpsc::UnboundedSender<Frame<Bytes>>, seen: Arc<Mutex<BTreeSet<String>>>) {
    let send = |packet: Packet| sender.unbounded_send(framed(&packet)).is_ok();
    let (mut buffer, mut inside) = (BytesMut::new(), None);
    while let Some(Ok(frame)) = body.frame().await {
        buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d));
        while let Some(length) = buffer.get(1..5).map(|l| u32::from_be_bytes(l.try_into().expect("four")) as usize) {
            if buffer.len() < 5 + length {
                break;
            }
            buffer.advance(5);
            let packet = Packet::decode(buffer.split_to(length)).expect("a packet");
            match packet {
                Packet { kind: 0, dial: Some(dial), .. } => {
                    assert_eq!(dial.protocol, "tcp");
                    let error = if dial.address.ends_with(REFUSED) { "no agent reaches it" } else { "" };
                    let dialed = Dialed { error: error.to_owned(), id: ID, random: dial.random };
                    send(Packet { kind: 1, dialed: Some(dialed), ..Packet::default() });
                    inside = Some(inner(dial.address, sender.clone()));
                }
                Packet { kind: 4, data: Some(data), .. } => {
                    assert_eq!(data.id, ID);
                    inside.as_mut().expect("dialed").write_all(&data.data).await.expect("written");
                }
                Packet { kind: 2, close: Some(close), .. } => {
                    assert_eq!(close.id, ID);
                    send(Packet { kind: 3, closed: Some(Closed { id: ID, ..Closed::default() }), ..Packet::default() });
                    seen.lock().expect("not poisoned").insert(CLOSED.to_owned());
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The connection that a tunnel leads to; what it says is sent on.
fn inner(
    address: String,
    sender: mpsc::UnboundedSender<Frame<Bytes>>,
) -> tokio::io::WriteHalf<tokio::io::DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(1 << 10);
    tokio::spawn(at(address, theirs));
    let (mut said, hears) = tokio::io::split(ours);
    tokio::spawn(async move {
        let mut chunk = [0; 512];
        while let Ok(count @ 1..) = said.read(&mut chunk).await {
            let data = Data { id: ID, data: chunk[..count].to_vec() };
            if sender.unbounded_send(framed(&Packet { kind: 4, data: Some(data), ..Packet::default() })).is_err() {
                break;
            }
        }
    });
    hears
}
