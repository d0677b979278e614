//! The built-in messages: compiled from the IDL into tables of numbers, made into [`Message`]s when first asked for.
//!
//! The tables hold no addresses. Nothing of them is relocated at start, pages that nobody reads are not resident, and a
//! program that looks at few messages pays for few.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::{Card, Derived, Field, Gvk, ListType, MapType, Message, MessageRef, Patch, Target, ValueKind, WireField};

/// A built-in message by its place in the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Builtin(u16);

/// A range of another table: start and length.
#[derive(Clone, Copy)]
struct Span(u16, u16);

/// A text by its number; 0 is the empty one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Text(u16);

/// Description of a message in the IDL.
struct MessageRow {
    name: Text,
    fields: Span,
    wire: Span,
    /// All empty for a type that is no root kind.
    gvk: (Text, Text, Text),
    atomic: bool,
    has_protobuf: bool,
    unions: Text,
    go_package: Text,
}

/// Description of a field in the IDL.
struct FieldRow {
    json: Text,
    number: u16,
    kind: Kinds,
    card: Card,
    /// The letters below.
    flags: u16,
    list_keys: Span,
    patch_merge_key: Text,
    default: Text,
    enums: Span,
    go_type: Text,
    go_struct: Text,
}

/// One entry of a protobuf layout.
struct WireRow {
    number: u16,
    target: Place,
}

/// [`Target`], by number.
#[derive(Clone, Copy)]
enum Place {
    Field(u16),
    Inline(u16),
}

/// [`ValueKind`] as far as built-in types have it, by number.
#[derive(Clone, Copy)]
enum Kinds {
    Bool,
    Int32,
    Int64,
    Double,
    String,
    Bytes,
    Message(u16),
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    RawExtension,
    FieldsV1,
    Json,
    SchemaOrBool,
    SchemaOrArray,
    SchemaOrStrings,
    StringList,
    Any,
}

/// `pointer`
const P: u16 = 1;
/// `omitempty`
const O: u16 = 1 << 1;
/// `omitzero`
const Z: u16 = 1 << 2;
/// `required`
const R: u16 = 1 << 3;
/// `atomic_map`
const A: u16 = 1 << 4;
/// `patch`: merge
const PM: u16 = 1 << 5;
/// `patch`: retainKeys
const PK: u16 = 1 << 6;
/// `patch`: replace
const PR: u16 = 1 << 7;
/// `unlisted`
const U: u16 = 1 << 8;
/// `granular`
const G: u16 = 1 << 9;
/// `list`: set
const LS: u16 = 1 << 10;
/// `list`: map
const LM: u16 = 1 << 11;

// MESSAGES and KINDS are sorted by name and by group, version and kind.
include!(concat!(env!("OUT_DIR"), "/messages.rs"));

static MADE: [OnceLock<Box<Message>>; MESSAGES.len()] = [const { OnceLock::new() }; MESSAGES.len()];

impl Builtin {
    pub(super) fn get(self) -> &'static Message {
        let at = usize::from(self.0);
        MADE[at].get_or_init(|| Box::new(MESSAGES[at].message()))
    }
}

/// Built-in message by full protobuf name.
#[must_use]
pub fn message(name: &str) -> Option<&'static Message> {
    find(name).map(Builtin::get)
}

/// A built-in message for use in other tables.
#[must_use]
pub fn reference(name: &str) -> Option<MessageRef> {
    find(name).map(MessageRef::Builtin)
}

fn find(name: &str) -> Option<Builtin> {
    let at = MESSAGES.binary_search_by(|row| row.name.get().cmp(name)).ok()?;
    u16::try_from(at).ok().map(Builtin)
}

/// Built-in message of a root kind.
#[must_use]
pub fn kind(group: &str, version: &str, kind: &str) -> Option<&'static Message> {
    let wanted = (group, version, kind);
    let found = KINDS.binary_search_by(|((g, v, k), _)| (g.get(), v.get(), k.get()).cmp(&wanted));
    found.ok().map(|at| Builtin(KINDS[at].1).get()).or_else(|| everywhere(kind))
}

/// The message of Pods.
#[must_use]
pub fn pod() -> &'static Message {
    POD.get()
}

/// Kinds that are registered in every group and version.
fn everywhere(kind: &str) -> Option<&'static Message> {
    let name = match kind {
        "CreateOptions" | "DeleteOptions" | "GetOptions" | "ListOptions" | "PatchOptions" | "UpdateOptions"
        | "WatchEvent" => kind,
        _ => return None,
    };
    message(&format!("k8s.io.apimachinery.pkg.apis.meta.v1.{name}"))
}

/// Built-in message of an `apiVersion` and `kind`.
#[must_use]
pub fn kind_of(api_version: &str, kind_name: &str) -> Option<&'static Message> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    kind(group, version, kind_name)
}

/// All registered kinds: (group, version, kind) and message, sorted.
pub fn kinds() -> impl Iterator<Item = ((&'static str, &'static str, &'static str), &'static Message)> {
    KINDS.iter().map(|((g, v, k), at)| ((g.get(), v.get(), k.get()), Builtin(*at).get()))
}

impl Text {
    fn get(self) -> &'static str {
        let at = usize::from(self.0);
        let start = if at == 0 { 0 } else { ENDS[at - 1] };
        TEXTS.get(start as usize..ENDS[at] as usize).unwrap_or_default()
    }

    fn cow(self) -> Cow<'static, str> {
        Cow::Borrowed(self.get())
    }

    fn some(self) -> Option<Cow<'static, str>> {
        (self.0 != 0).then(|| self.cow())
    }
}

impl Span {
    fn of<T>(self, table: &'static [T]) -> &'static [T] {
        let start = usize::from(self.0);
        table.get(start..start + usize::from(self.1)).unwrap_or_default()
    }

    fn words(self) -> Cow<'static, [Cow<'static, str>]> {
        self.of(&WORDS).iter().map(|t| t.cow()).collect::<Vec<_>>().into()
    }
}

impl MessageRow {
    fn message(&self) -> Message {
        let (group, version, kind) = self.gvk;
        Message {
            name: self.name.cow(),
            fields: self.fields.of(&FIELDS).iter().map(FieldRow::field).collect::<Vec<_>>().into(),
            wire: self.wire.of(&WIRE).iter().map(WireRow::field).collect::<Vec<_>>().into(),
            gvk: kind.some().map(|kind| Gvk { group: group.cow(), version: version.cow(), kind }),
            atomic: self.atomic,
            preserve_unknown: false,
            embedded_resource: false,
            has_protobuf: self.has_protobuf,
            unions: self.unions.get(),
            go_package: self.go_package.get(),
            derived: Derived::new(),
        }
    }
}

impl WireRow {
    fn field(&self) -> WireField {
        let target = match self.target {
            Place::Field(at) => Target::Field(at.into()),
            Place::Inline(message) => Target::Inline(MessageRef::Builtin(Builtin(message))),
        };
        WireField { number: self.number.into(), target }
    }
}

impl FieldRow {
    fn field(&self) -> Field {
        let has = |flag| self.flags & flag != 0;
        let list_type = match (has(LS), has(LM)) {
            (true, _) => ListType::Set,
            (_, true) => ListType::Map(self.list_keys.words()),
            _ => ListType::Atomic,
        };
        Field {
            json: self.json.cow(),
            number: self.number.into(),
            kind: self.kind.into(),
            card: self.card,
            pointer: has(P),
            omit_empty: has(O),
            omit_zero: has(Z),
            list_type,
            map_type: if has(A) { MapType::Atomic } else { MapType::Granular },
            patch: Patch { merge: has(PM), retain_keys: has(PK), replace: has(PR) },
            patch_merge_key: self.patch_merge_key.some(),
            default: self.default.some(),
            required: has(R),
            nullable: false,
            unlisted: has(U),
            granular: has(G),
            enums: self.enums.words(),
            go_type: self.go_type.cow(),
            go_struct: self.go_struct.cow(),
        }
    }
}

impl From<Kinds> for ValueKind {
    fn from(kind: Kinds) -> Self {
        match kind {
            Kinds::Bool => Self::Bool,
            Kinds::Int32 => Self::Int32,
            Kinds::Int64 => Self::Int64,
            Kinds::Double => Self::Double,
            Kinds::String => Self::String,
            Kinds::Bytes => Self::Bytes,
            Kinds::Message(at) => Self::Message(MessageRef::Builtin(Builtin(at))),
            Kinds::Quantity => Self::Quantity,
            Kinds::IntOrString => Self::IntOrString,
            Kinds::Time => Self::Time,
            Kinds::MicroTime => Self::MicroTime,
            Kinds::RawExtension => Self::RawExtension,
            Kinds::FieldsV1 => Self::FieldsV1,
            Kinds::Json => Self::Json,
            Kinds::SchemaOrBool => Self::SchemaOrBool,
            Kinds::SchemaOrArray => Self::SchemaOrArray,
            Kinds::SchemaOrStrings => Self::SchemaOrStrings,
            Kinds::StringList => Self::StringList,
            Kinds::Any => Self::Any,
        }
    }
}
