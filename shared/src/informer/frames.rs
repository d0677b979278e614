//! The frames of a watch, in JSON (a line each) or protobuf (with their length in front). What comes in are the bytes of
//! one response, what goes out are changes with the object still as text. Nothing is decoded here but what is the same
//! for all kinds.
//!
//! HOT: every change of every watched object passes here; the object's text is not copied.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use kube::core::watch::Bookmark;
use proto::numbers::map_entry;
use proto::numbers::meta_v1::{self as numbers, object_meta, partial_object_metadata, watch_event};
use proto::numbers::pkg_runtime::raw_extension;
use proto::protobuf::{self, fields};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::run::Panic;
use crate::typed::{Identity, ReadError};

/// A stream that is silent for longer than its own timeout is dead.
const SILENCE: Duration = Duration::from_secs(320);
/// The longest frame; objects are smaller than 3 MiB in etcd, and JSON may be a few times as long.
const MAX_FRAME: usize = 64 << 20;
/// The longest answer that says why a watch is refused.
const MAX_REFUSAL: usize = 1 << 20;
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Errors of taking in an object of a list or watch.
#[derive(Debug, Error)]
pub enum Broken {
    /// The object cannot be read.
    #[error(transparent)]
    Object(#[from] ReadError),
    /// Protobuf, where no reader of it was set.
    #[error("protobuf was not asked for")]
    Protobuf,
    /// The transform of the informer panicked.
    #[error("observed a panic: {0}")]
    Transform(#[source] Panic),
}

/// An object as it came.
#[derive(Debug, Clone, Copy)]
pub enum Raw<'a> {
    /// The text.
    Json(&'a str),
    /// Without its envelope.
    Protobuf(&'a [u8]),
}

impl Raw<'_> {
    /// Reads the identity of the object, also where the rest of it cannot be read.
    pub fn identity(self) -> Option<Identity> {
        match self {
            Raw::Json(text) => Identity::of_json(text.as_bytes()),
            Raw::Protobuf(raw) => Identity::of_protobuf(raw),
        }
    }
}

/// Reasons for which a watch ends.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server has ended the stream.
    Closed,
    /// The server responded with an error: code and message.
    Status(u16, String),
    /// Something else.
    Failed(String),
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// Event type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameType {
    Put,
    Remove,
    Bookmark,
    Error,
}

/// One event of a watch.
#[derive(Debug)]
pub(super) struct WatchFrame {
    change: FrameType,
    /// Valid UTF-8 where it is JSON.
    object: Bytes,
    protobuf: bool,
}

/// The stream.
pub(super) struct Frames {
    body: Body,
    buffer: BytesMut,
    protobuf: bool,
}

impl Frames {
    /// Begins a watch; `format` is what to ask for, if not the API's own JSON.
    pub(super) async fn open(
        client: &Client,
        request: http::Request<Vec<u8>>,
        format: Option<&'static str>,
    ) -> Result<Self, Refusal> {
        let mut request = request.map(Body::from);
        if let Some(format) = format {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(format));
        }
        let response = client.send(request).await.map_err(failed)?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let protobuf = kind.starts_with(PROTOBUF);
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MAX_REFUSAL).collect().await.map_err(failed)?;
            return Err(said(status.as_u16(), &body.to_bytes(), protobuf));
        }
        Ok(Self { body: response.into_body(), buffer: BytesMut::new(), protobuf })
    }

    /// The next frame.
    pub(super) async fn next(&mut self) -> Result<WatchFrame, Refusal> {
        // How much of the buffer is known to hold no end of a line.
        let mut searched = 0;
        loop {
            if let Some(frame) = self.complete(&mut searched)? {
                if frame.is_empty() {
                    continue;
                }
                return if self.protobuf { from_protobuf(&frame) } else { from_json(&frame) };
            }
            if self.buffer.len() > MAX_FRAME {
                return Err(failed("a frame of the watch is too long"));
            }
            let chunk = match tokio::time::timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Err(failed("the watch stream is silent")),
                Ok(None) if self.protobuf || self.buffer.is_empty() => return Err(Refusal::Closed),
                // The last line may lack its end, or have been cut.
                Ok(None) => {
                    let rest = self.buffer.split().freeze();
                    return from_json(&rest);
                }
                Ok(Some(Err(error))) if is_cut(&error) => return Err(Refusal::Closed),
                Ok(Some(Err(error))) => return Err(failed(error)),
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// Takes the first frame out of the buffer if all of it is there.
    fn complete(&mut self, searched: &mut usize) -> Result<Option<Bytes>, Refusal> {
        if self.protobuf {
            let Some(length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_FRAME {
                return Err(failed("a frame of the watch is too long"));
            }
            if self.buffer.len() < 4 + length {
                return Ok(None);
            }
            self.buffer.advance(4);
            return Ok(Some(self.buffer.split_to(length).freeze()));
        }
        let Some(end) = self.buffer[*searched..].iter().position(|b| *b == b'\n') else {
            *searched = self.buffer.len();
            return Ok(None);
        };
        let line = self.buffer.split_to(*searched + end).freeze();
        self.buffer.advance(1);
        *searched = 0;
        Ok(Some(line))
    }
}

impl WatchFrame {
    /// Event type.
    pub(super) fn change(&self) -> FrameType {
        self.change
    }

    /// To what.
    pub(super) fn object(&self) -> Raw<'_> {
        if self.protobuf {
            return Raw::Protobuf(&self.object);
        }
        Raw::Json(std::str::from_utf8(&self.object).unwrap_or_default())
    }

    /// The revision of a bookmark, and whether it ends the initial list.
    pub(super) fn bookmark(&self) -> Result<(String, bool), Broken> {
        if self.protobuf {
            return protobuf_bookmark(&self.object).map_err(|error| ReadError::from(error).into());
        }
        let mark: Bookmark = serde_json::from_slice(&self.object).map_err(ReadError::from)?;
        let end = mark.metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|v| v == "true");
        Ok((mark.metadata.resource_version, end))
    }

    /// Decodes an error event.
    pub(super) fn refusal(&self) -> Refusal {
        if self.protobuf {
            return status(&self.object).unwrap_or_else(failed);
        }
        match serde_json::from_slice::<Status>(&self.object) {
            Ok(status) => Refusal::Status(status.code, status.message),
            Err(error) => failed(error),
        }
    }
}

fn change(kind: &[u8]) -> FrameType {
    match kind {
        b"ADDED" | b"MODIFIED" => FrameType::Put,
        b"DELETED" => FrameType::Remove,
        b"BOOKMARK" => FrameType::Bookmark,
        _ => FrameType::Error,
    }
}

/// One line of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

fn from_json(line: &Bytes) -> Result<WatchFrame, Refusal> {
    match serde_json::from_slice::<Line<'_>>(line) {
        Ok(Line { kind, object }) => {
            let object = line.slice_ref(object.get().as_bytes());
            Ok(WatchFrame { change: change(kind.as_bytes()), object, protobuf: false })
        }
        // The last line of a connection that was cut.
        Err(error) if error.is_eof() => Err(Refusal::Closed),
        Err(error) => match serde_json::from_slice::<Status>(line) {
            Ok(status) if status.code != 0 => Err(Refusal::Status(status.code, status.message)),
            _ => Err(failed(error)),
        },
    }
}

/// A `WatchEvent`: type, and an object in its envelope.
fn from_protobuf(frame: &Bytes) -> Result<WatchFrame, Refusal> {
    let (mut kind, mut object): (&[u8], &[u8]) = (b"", b"");
    for field in fields(frame) {
        let (number, value) = field.map_err(failed)?;
        match number {
            watch_event::TYPE => kind = value.bytes("type").map_err(failed)?,
            watch_event::OBJECT => {
                for field in fields(value.bytes("object").map_err(failed)?) {
                    if let (raw_extension::RAW, value) = field.map_err(failed)? {
                        object = protobuf::unwrap(value.bytes("raw").map_err(failed)?).map_err(failed)?.raw;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(WatchFrame { change: change(kind), object: frame.slice_ref(object), protobuf: true })
}

fn protobuf_bookmark(object: &[u8]) -> Result<(String, bool), protobuf::Error> {
    let (mut revision, mut end) = (String::new(), false);
    for field in fields(object) {
        let (partial_object_metadata::METADATA, meta) = field? else { continue };
        for field in fields(meta.bytes("metadata")?) {
            match field? {
                (object_meta::RESOURCE_VERSION, value) => revision = value.text("resourceVersion")?,
                (object_meta::ANNOTATIONS, value) => {
                    end |= entry(value.bytes("annotations")?)? == (INITIAL_EVENTS_END.into(), "true".into());
                }
                _ => {}
            }
        }
    }
    Ok((revision, end))
}

/// Key and value of a map.
fn entry(bytes: &[u8]) -> Result<(String, String), protobuf::Error> {
    let mut entry = (String::new(), String::new());
    for field in fields(bytes) {
        match field? {
            (map_entry::KEY, key) => entry.0 = key.text("key")?,
            (map_entry::VALUE, value) => entry.1 = value.text("value")?,
            _ => {}
        }
    }
    Ok(entry)
}

fn status(raw: &[u8]) -> Result<Refusal, protobuf::Error> {
    let (mut code, mut message) = (0, String::new());
    for field in fields(raw) {
        match field? {
            (numbers::status::MESSAGE, value) => message = value.text("message")?,
            (numbers::status::CODE, value) => code = u16::try_from(value.int("code")?).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Refusal::Status(code, message))
}

/// Decodes the error response to a watch that did not start.
fn said(code: u16, body: &[u8], protobuf: bool) -> Refusal {
    let message = if protobuf {
        protobuf::unwrap(body).ok().and_then(|envelope| status(envelope.raw).ok()).and_then(|said| match said {
            Refusal::Status(_, message) => Some(message),
            _ => None,
        })
    } else {
        serde_json::from_slice::<Status>(body).ok().map(|status| status.message)
    };
    Refusal::Status(code, message.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned()))
}

/// A stream that ended without a farewell, as a connection of a server that stops does.
fn is_cut(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(one) = cause {
        if one.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        cause = one.source();
    }
    error.to_string().contains("unexpected EOF")
}
