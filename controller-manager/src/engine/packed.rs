//! Objects as they came, in protobuf: read where somebody looks, compared as bytes, and sent as they are.
//!
//! HOT: for kinds of which there are very many, that change often and are written back whole (held by
//! `e2e/examples/controllers`). The API server writes every object in one way, field by field, so what says the same is
//! the same bytes; whoever makes such objects here must write them in that way. Managed fields are left out.

use std::cell::Cell;
use std::collections::BTreeMap;

use proto::numbers::map_entry;
use proto::numbers::meta_v1::{self, object_meta, owner_reference};
pub use proto::protobuf::values;
use proto::protobuf::{self, Error, Wire, fields, known_fields, write_bytes, write_length, write_nested, write_number};
use proto::schema::Message;
use serde_json::Value;
use shared::typed::ReadError;

/// Labels or annotations.
pub type Texts<'a> = BTreeMap<&'a str, &'a str>;

/// Field of the metadata in every kind of object.
const METADATA: u32 = meta_v1::partial_object_metadata::METADATA;

/// An object: its metadata, and behind that its other fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    bytes: Box<[u8]>,
    /// Offset of the end of the metadata.
    rest: usize,
}

impl Packed {
    /// From what the server sent, without its envelope.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn read(raw: &[u8]) -> Result<Self, ReadError> {
        Ok(Self::strip(raw)?)
    }

    /// From its JSON.
    ///
    /// # Errors
    /// As [`Packed::read`].
    pub fn of_json(schema: &Message, object: &Value) -> Result<Self, ReadError> {
        Self::read(&protobuf::encode(schema, object))
    }

    /// Size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    fn strip(raw: &[u8]) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(raw.len());
        for field in fields(raw) {
            if let (METADATA, value) = field? {
                copy(value.bytes("metadata")?, |number| number != object_meta::MANAGED_FIELDS, &mut bytes)?;
            }
        }
        let rest = bytes.len();
        copy(raw, |number| number != METADATA, &mut bytes)?;
        Ok(Self { bytes: bytes.into_boxed_slice(), rest })
    }

    /// From what `meta` and `rest` write.
    pub fn made(meta: impl FnOnce(&mut Vec<u8>), rest: impl FnOnce(&mut Vec<u8>)) -> Self {
        // One buffer for all that are made, of which each takes as much as it is.
        thread_local! {
            static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        /// A buffer that grew larger than this is not kept.
        const KEPT: usize = 64 << 10;
        let mut buffer = BUFFER.take();
        meta(&mut buffer);
        let end = buffer.len();
        rest(&mut buffer);
        let made = Self { bytes: buffer.as_slice().into(), rest: end };
        buffer.clear();
        BUFFER.set(if buffer.capacity() > KEPT { Vec::new() } else { buffer });
        made
    }

    /// Reads the metadata.
    #[must_use]
    pub fn meta(&self) -> Meta<'_> {
        Meta(&self.bytes[..self.rest])
    }

    /// The fields besides its metadata.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.rest..]
    }

    /// The values of one of those fields.
    pub fn all(&self, number: u32) -> impl Iterator<Item = &[u8]> {
        values(self.rest(), number)
    }

    /// The object in an envelope, to be sent.
    #[must_use]
    pub fn envelope(&self, api_version: &str, kind: &str) -> Vec<u8> {
        let mut head = Vec::new();
        write_length(METADATA, self.rest, &mut head);
        let (mut body, tail) = protobuf::wrap_around(api_version, kind, head.len() + self.bytes.len());
        body.reserve_exact(head.len() + self.bytes.len() + tail.len());
        for part in [&head, &*self.bytes, tail] {
            body.extend_from_slice(part);
        }
        body
    }

    /// The object as a tree.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn tree(&self, schema: &Message) -> Result<Value, ReadError> {
        Ok(protobuf::decode(schema, &self.raw())?)
    }

    fn raw(&self) -> Vec<u8> {
        let mut raw = Vec::new();
        write_length(METADATA, self.rest, &mut raw);
        raw.extend_from_slice(&self.bytes);
        raw
    }
}

/// Copies the fields of a message that are wanted: what lies between two that are not, at once.
fn copy(message: &[u8], wanted: impl Fn(u32) -> bool, out: &mut Vec<u8>) -> Result<(), Error> {
    let mut fields = fields(message);
    let (mut run, mut before) = (message, message);
    while let Some(field) = fields.next() {
        if !wanted(field?.0) {
            out.extend_from_slice(&run[..run.len() - before.len()]);
            run = fields.rest();
        }
        before = fields.rest();
    }
    out.extend_from_slice(run);
    Ok(())
}

/// The text of a field; empty without it.
#[must_use]
pub fn text(message: &[u8], wanted: u32) -> &str {
    values(message, wanted).next().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The number of a field; zero without it.
#[must_use]
pub fn number(message: &[u8], wanted: u32) -> i64 {
    let found = known_fields(message).find_map(|field| match field {
        (number, Wire::Varint(value)) if number == wanted => Some(value.cast_signed()),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The metadata of a packed object.
#[derive(Clone, Copy, Debug)]
pub struct Meta<'a>(&'a [u8]);

impl<'a> Meta<'a> {
    /// Reads the metadata of an object as the server sent it, without its envelope.
    #[must_use]
    pub fn of(raw: &'a [u8]) -> Self {
        Self(values(raw, METADATA).next().unwrap_or_default())
    }

    /// Name, or empty.
    #[must_use]
    pub fn name(self) -> &'a str {
        text(self.0, object_meta::NAME)
    }

    /// Namespace, or empty.
    #[must_use]
    pub fn namespace(self) -> &'a str {
        text(self.0, object_meta::NAMESPACE)
    }

    /// Unique id, or empty.
    #[must_use]
    pub fn uid(self) -> &'a str {
        text(self.0, object_meta::UID)
    }

    /// Version, or empty.
    #[must_use]
    pub fn version(self) -> &'a str {
        text(self.0, object_meta::RESOURCE_VERSION)
    }

    /// Generation, or zero.
    #[must_use]
    pub fn generation(self) -> i64 {
        number(self.0, object_meta::GENERATION)
    }

    /// Reports whether deletion has been requested.
    #[must_use]
    pub fn deleting(self) -> bool {
        values(self.0, object_meta::DELETION_TIMESTAMP).next().is_some()
    }

    /// Reports whether one of its owners is this object.
    #[must_use]
    pub fn has_owner(self, api_version: &str, kind: &str, uid: &str) -> bool {
        values(self.0, object_meta::OWNER_REFERENCES).any(|o| {
            text(o, owner_reference::UID) == uid
                && text(o, owner_reference::KIND) == kind
                && text(o, owner_reference::API_VERSION) == api_version
        })
    }

    /// The first of its owners as apiVersion, kind, name and uid.
    #[must_use]
    pub fn controller(self) -> Option<[&'a str; 4]> {
        values(self.0, object_meta::OWNER_REFERENCES).next().map(|o| {
            use owner_reference::{API_VERSION, KIND, NAME, UID};
            [API_VERSION, KIND, NAME, UID].map(|number| text(o, number))
        })
    }

    /// A label's value.
    #[must_use]
    pub fn label(self, key: &str) -> Option<&'a str> {
        self.entries(object_meta::LABELS).find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// An annotation's value.
    #[must_use]
    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.entries(object_meta::ANNOTATIONS).find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// All labels.
    #[must_use]
    pub fn labels(self) -> Texts<'a> {
        self.entries(object_meta::LABELS).collect()
    }

    /// All annotations.
    #[must_use]
    pub fn annotations(self) -> Texts<'a> {
        self.entries(object_meta::ANNOTATIONS).collect()
    }

    /// Reports whether it has the same labels, as they are written.
    #[must_use]
    pub fn labelled_as(self, other: Meta<'_>) -> bool {
        values(self.0, object_meta::LABELS).eq(values(other.0, object_meta::LABELS))
    }

    /// Reports whether these are all its labels.
    #[must_use]
    pub fn has_labels(self, labels: &Texts<'_>) -> bool {
        // The server writes them in this order.
        if self.entries(object_meta::LABELS).eq(labels.iter().map(|(key, value)| (*key, *value))) {
            return true;
        }
        let same = |(key, value): (&str, &str)| labels.get(key).is_some_and(|wanted| *wanted == value);
        self.entries(object_meta::LABELS).count() == labels.len() && self.entries(object_meta::LABELS).all(same)
    }

    fn entries(self, number: u32) -> impl Iterator<Item = (&'a str, &'a str)> {
        values(self.0, number).map(|entry| (text(entry, map_entry::KEY), text(entry, map_entry::VALUE)))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Reports whether owners, finalizers and deletion are the same as in `other`, another version of the object.
    #[must_use]
    pub fn tied_as(self, other: Meta<'_>) -> bool {
        fn ties(meta: Meta<'_>) -> impl Iterator<Item = (u32, &[u8])> {
            known_fields(meta.0).filter_map(|field| match field {
                (
                    number @ (object_meta::UID
                    | object_meta::DELETION_TIMESTAMP
                    | object_meta::OWNER_REFERENCES
                    | object_meta::FINALIZERS),
                    Wire::Bytes(value),
                ) => Some((number, value)),
                _ => None,
            })
        }
        ties(self).eq(ties(other))
    }

    /// Writes it with other labels and annotations.
    pub fn write_with(self, labels: &Texts<'_>, annotations: &Texts<'_>, out: &mut Vec<u8>) {
        // It was read whole before.
        let _ = copy(self.0, |number| number < object_meta::LABELS, out);
        write_map(object_meta::LABELS, labels, out);
        write_map(object_meta::ANNOTATIONS, annotations, out);
        let _ = copy(self.0, |number| number > object_meta::ANNOTATIONS, out);
    }
}

/// The metadata of an object that is to be.
#[derive(Debug)]
pub struct NewMeta<'a> {
    /// Name of the object, or the beginning of it with `generate`.
    pub name: &'a str,
    /// The server completes the name.
    pub generate: bool,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Labels of the object.
    pub labels: &'a Texts<'a>,
    /// Annotations of the object.
    pub annotations: Texts<'a>,
    /// Controller of the object as apiVersion, kind, name and uid.
    pub owner: Option<[&'a str; 4]>,
}

impl NewMeta<'_> {
    /// Writes it.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_bytes(
            if self.generate { object_meta::GENERATE_NAME } else { object_meta::NAME },
            self.name.as_bytes(),
            out,
        );
        write_bytes(object_meta::NAMESPACE, self.namespace.as_bytes(), out);
        write_map(object_meta::LABELS, self.labels, out);
        write_map(object_meta::ANNOTATIONS, &self.annotations, out);
        let Some([api_version, kind, name, uid]) = self.owner else { return };
        write_nested(object_meta::OWNER_REFERENCES, out, |out| {
            use owner_reference::{API_VERSION, BLOCK_OWNER_DELETION, CONTROLLER, KIND, NAME, UID};
            for (number, text) in [(KIND, kind), (NAME, name), (UID, uid), (API_VERSION, api_version)] {
                write_bytes(number, text.as_bytes(), out);
            }
            for number in [CONTROLLER, BLOCK_OWNER_DELETION] {
                write_number(number, 1, out);
            }
        });
    }
}

fn write_map(number: u32, map: &Texts<'_>, out: &mut Vec<u8>) {
    for (key, value) in map {
        write_nested(number, out, |out| {
            write_bytes(map_entry::KEY, key.as_bytes(), out);
            write_bytes(map_entry::VALUE, value.as_bytes(), out);
        });
    }
}

#[cfg(test)]
mod tests {
    use proto::schema;
    use serde_json::json;

    use super::*;

    fn schema() -> &'static Message {
        schema::kind_of("v1", "Endpoints").expect("a known kind")
    }

    fn full() -> Value {
        json!({"metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
                "generateName": "n-", "creationTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["f"],
                "labels": {"a": "b", "c": ""}, "annotations": {"x": "y"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "o", "controller": true}]},
            "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]})
    }

    #[test]
    fn an_object_is_what_json_says_without_managed_fields() {
        let mut managed = full();
        managed["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Update"}]);
        let object = Packed::of_json(schema(), &managed).expect("an object");
        assert_eq!(object, Packed::of_json(schema(), &full()).expect("an object"));
        assert_eq!(object.raw(), protobuf::encode(schema(), &full()), "byte for byte as the server writes it");
        assert_eq!(object.envelope("v1", "Endpoints"), protobuf::encode_envelope(schema(), &full()));
        let meta = object.meta();
        assert_eq!((meta.name(), meta.namespace(), meta.uid(), meta.version()), ("n", "ns", "u", "7"));
        assert_eq!((meta.generation(), meta.deleting(), meta.label("a"), meta.label("b")), (2, false, Some("b"), None));
        assert_eq!((meta.annotation("x"), meta.annotations().len()), (Some("y"), 1));
        assert!(meta.has_labels(&Texts::from([("a", "b"), ("c", "")])) && !meta.has_labels(&Texts::from([("a", "b")])));
        assert_eq!(meta.controller(), Some(["v1", "X", "x", "o"]));
        assert!(meta.has_owner("v1", "X", "o") && !meta.has_owner("v1", "X", "p") && !meta.has_owner("v1", "Y", "o"));
        assert!(Packed::read(&[0x0a, 0xff]).is_err());
    }

    #[test]
    fn labels_and_annotations_change_and_nothing_else() {
        let mut wanted = full();
        wanted["metadata"]["labels"] = json!({"z": "1"});
        wanted["metadata"]["annotations"] = json!({"t": "now", "x": "y"});
        let old = Packed::of_json(schema(), &full()).expect("an object");
        let annotations = Texts::from([("x", "y"), ("t", "now")]);
        let meta = |out: &mut Vec<u8>| old.meta().write_with(&Texts::from([("z", "1")]), &annotations, out);
        let new = Packed::made(meta, |out| out.extend_from_slice(old.rest()));
        assert_eq!(new, Packed::of_json(schema(), &wanted).expect("an object"));
        assert!(new.meta().tied_as(old.meta()));
        wanted["metadata"]["finalizers"] = json!(["f", "g"]);
        assert!(!Packed::of_json(schema(), &wanted).expect("an object").meta().tied_as(old.meta()));
    }

    #[test]
    fn new_metadata_is_complete() {
        let labels = Texts::from([("a", "b")]);
        let mut meta = NewMeta {
            name: "web-",
            generate: true,
            namespace: "ns",
            labels: &labels,
            annotations: Texts::from([("x", "y")]),
            owner: Some(["v1", "Service", "web", "u"]),
        };
        let tree = |meta: &NewMeta<'_>| {
            Packed::made(|out| meta.write(out), |_| {}).tree(schema()).expect("a tree")["metadata"].clone()
        };
        let owner = json!({"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u", "controller": true,
            "blockOwnerDeletion": true});
        let made = tree(&meta);
        assert_eq!((&made["generateName"], &made["name"]), (&json!("web-"), &Value::Null));
        assert_eq!((&made["labels"], &made["annotations"]), (&json!({"a": "b"}), &json!({"x": "y"})));
        assert_eq!((&made["namespace"], &made["ownerReferences"]), (&json!("ns"), &json!([owner])));
        (meta.generate, meta.owner) = (false, None);
        let made = tree(&meta);
        assert_eq!((&made["name"], &made["ownerReferences"]), (&json!("web-"), &Value::Null));
    }
}
