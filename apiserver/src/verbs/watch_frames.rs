//! The frames of a watch: an event with its object, in the form that the client accepts.
//!
//! Hot path: the frame of a change is made once for all watchers that see it alike.

use std::sync::Arc;

use bytes::Bytes;
use proto::resources::Row;
use proto::{Value, cbor, protobuf, schema};
use serde_json::json;
use shared::status::Status;

use super::engine::Engine;
use super::list::put;
use super::table::{self, Include};
use crate::cache::{Entry, EventType, Message, Progress, Raw};
use crate::negotiate::{self, Accepted, Format, ObjectForm};
use crate::registry::behavior;
use crate::storage::codec;

/// Marks the bookmark after the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Turns changes into frames of one watch.
pub(super) struct Framer {
    pub(super) engine: Arc<Engine>,
    pub(super) row: Row,
    pub(super) accepted: Accepted,
    pub(super) include: Include,
    pub(super) headers_sent: bool,
}

impl Framer {
    pub(super) fn progress(&self) -> &Progress {
        self.engine.caches.progress(&self.row.storage())
    }

    fn own(&self) -> bool {
        behavior(&self.row).is_served_as_kept(&self.row)
    }

    fn frame(&self, kind: &str, object: &[u8], out: &mut Vec<u8>) {
        if self.accepted.format == Format::Protobuf {
            let mut raw = Vec::with_capacity(object.len() + 8);
            put(&mut raw, 0x0a, object);
            let mut event = Vec::with_capacity(raw.len() + 24);
            put(&mut event, 0x0a, kind.as_bytes());
            put(&mut event, 0x12, &raw);
            out.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(&event);
            return;
        }
        if self.accepted.format == Format::Cbor {
            out.extend_from_slice(&cbor::event(kind, object));
            return;
        }
        out.extend_from_slice(br#"{"type":""#);
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(br#"","object":"#);
        out.extend_from_slice(object.trim_ascii_end());
        out.extend_from_slice(b"}\n");
    }

    /// Encodes a tree with type metadata, in the client's form.
    fn tree(&mut self, object: &Value) -> Vec<u8> {
        let tree;
        let (schema, value) = match self.accepted.shape {
            // A change is about one object, which has no form as a list: it is sent as it is.
            ObjectForm::Object | ObjectForm::MetadataList(_) => (codec::served_schema(&self.row).ok(), object),
            ObjectForm::Metadata(version) => {
                tree = negotiate::metadata_of(object, version);
                (schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata"), &tree)
            }
            ObjectForm::Table(version) => {
                let meta = json!({"resourceVersion": crate::machinery::meta::text(object, "resourceVersion")});
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                tree = table::tabulate(&self.row, version, std::iter::once(object), self.include, meta, headers);
                if self.accepted.format == Format::Json {
                    return table::of_one(&self.accepted, false, tree).unwrap_or_default();
                }
                (negotiate::table_kind("v1"), &tree)
            }
        };
        negotiate::envelope(self.accepted.format, false, schema, value)
    }

    fn object(&mut self, raw: &Raw) -> Vec<u8> {
        if self.accepted.shape == ObjectForm::Object && self.own() {
            match (self.accepted.format, raw) {
                (Format::Protobuf, Raw::Proto(bytes)) => {
                    return protobuf::wrap(&self.row.api_version(), &self.row.kind, bytes);
                }
                (Format::Json, _) => {
                    let mut out = Vec::with_capacity(raw.size() * 2);
                    if codec::to_json(&self.row, raw, &mut out).is_ok() {
                        return out;
                    }
                }
                _ => {}
            }
        }
        match self.engine.served(&self.row, raw) {
            Ok(tree) => self.tree(&tree),
            // What entered the cache was readable then.
            Err(_) => b"null".to_vec(),
        }
    }

    /// A frame for an entry; `revision` is that of the change it is shown for.
    pub(super) fn entry(&mut self, seen: EventType, entry: &Entry, revision: i64, out: &mut Vec<u8>) {
        if entry.revision != revision {
            let object = self.object(&codec::restamp(&entry.raw, revision));
            return self.frame(seen.as_str(), &object, out);
        }
        let plain = self.accepted.shape == ObjectForm::Object && self.accepted.format == Format::Json && self.own();
        if plain && entry.encoded.json.get().is_some() {
            let mut object = Vec::with_capacity(entry.raw.size() * 2);
            if table::typed_json(&self.row, entry, &mut object).is_ok() {
                return self.frame(seen.as_str(), &object, out);
            }
        }
        let object = self.object(&entry.raw);
        self.frame(seen.as_str(), &object, out);
    }

    /// The frame of a change, made once for all watchers that see it alike.
    pub(super) fn live(&mut self, m: &Message) -> Bytes {
        let change = &m.live.change;
        let shared = match self.accepted.format {
            Format::Json => Some(&m.live.json),
            Format::Protobuf => Some(&m.live.protobuf),
            _ => None,
        };
        let alike =
            self.accepted.shape == ObjectForm::Object && self.own() && change.unfiltered_event() == Some(m.seen);
        let mut make = || {
            let mut out = Vec::with_capacity(m.entry.raw.size() * 2 + 64);
            self.entry(m.seen, &m.entry, change.revision, &mut out);
            Bytes::from(out)
        };
        match shared.filter(|_| alike) {
            Some(slot) => slot.get_or_init(make).clone(),
            None => make(),
        }
    }

    pub(super) fn bookmark(&mut self, revision: i64, initial_end: bool, out: &mut Vec<u8>) {
        let mut meta = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            meta["annotations"] = json!({INITIAL_END: "true"});
        }
        let object = json!({"kind": self.row.kind, "apiVersion": self.row.api_version(), "metadata": meta});
        let bytes = match self.accepted.shape {
            ObjectForm::Table(version) => {
                let headers = !std::mem::replace(&mut self.headers_sent, true);
                let one = initial_end.then_some(&object);
                let tree = table::tabulate(&self.row, version, one.into_iter(), self.include, meta, headers);
                negotiate::envelope(self.accepted.format, false, negotiate::table_kind("v1"), &tree)
            }
            _ => self.tree(&object),
        };
        self.frame("BOOKMARK", &bytes, out);
    }

    pub(super) fn error(&self, status: &Status, out: &mut Vec<u8>) {
        let bytes = negotiate::status(self.accepted.format, false, status);
        self.frame("ERROR", &bytes, out);
    }
}
