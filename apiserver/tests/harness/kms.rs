//! A key management service, version 2, whose sealing is a byte added to each byte.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;

use super::free_port;

/// The messages of all calls, by the numbers of their fields.
#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(bytes = "vec", tag = "1")]
    first: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    second: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    third: Vec<u8>,
}

/// Lives as long as the test's runtime.
pub struct Kms {
    socket: PathBuf,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    decrypted: AtomicUsize,
    /// Number of the key that is used now.
    key: AtomicUsize,
    /// Respond with nonsense.
    sick: AtomicBool,
}

fn shifted(bytes: &[u8], by: u8) -> Vec<u8> {
    bytes.iter().map(|b| b.wrapping_add(by)).collect()
}

fn answer(method: &str, question: &Any, state: &State) -> Any {
    if state.sick.load(Ordering::Relaxed) {
        return Any::default();
    }
    let key = || format!("key-{}", 1 + state.key.load(Ordering::Relaxed)).into_bytes();
    match method {
        "/v2.KeyManagementService/Status" => Any { first: b"v2".into(), second: b"ok".into(), third: key() },
        "/v2.KeyManagementService/Encrypt" => {
            Any { first: shifted(&question.first, 1), second: key(), third: Vec::new() }
        }
        _ => {
            state.decrypted.fetch_add(1, Ordering::Relaxed);
            Any { first: shifted(&question.first, 255), ..Any::default() }
        }
    }
}

impl Kms {
    pub async fn start() -> Self {
        let socket = std::env::temp_dir().join(format!("kms-{}-{}.sock", std::process::id(), free_port()));
        let listener = tokio::net::UnixListener::bind(&socket).expect("a socket");
        let state = Arc::new(State::default());
        let own = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = own.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let own = own.clone();
                    async move {
                        let method = request.uri().path().to_owned();
                        let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
                        let question = Any::decode(body.get(5..).unwrap_or_default()).unwrap_or_default();
                        let message = answer(&method, &question, &own).encode_to_vec();
                        let mut frame = vec![0];
                        frame.extend_from_slice(&u32::try_from(message.len()).expect("small").to_be_bytes());
                        frame.extend_from_slice(&message);
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                        let frames = [Frame::data(Bytes::from(frame)), Frame::trailers(trailers)];
                        let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Infallible>)));
                        let answer = Response::builder().header("content-type", "application/grpc");
                        Ok::<_, Infallible>(answer.body(body).expect("a response"))
                    }
                });
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { serving.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        Self { socket, state }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Seals with another key from now on.
    pub fn rotate(&self) {
        self.state.key.fetch_add(1, Ordering::Relaxed);
    }

    pub fn fall_sick(&self, sick: bool) {
        self.state.sick.store(sick, Ordering::Relaxed);
    }

    pub fn decrypted(&self) -> usize {
        self.state.decrypted.load(Ordering::Relaxed)
    }
}

impl Drop for Kms {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.socket);
    }
}
