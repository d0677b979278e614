//! Schema tables: what the engine knows about a type.
//!
//! A [`Message`] describes one struct: its JSON fields in upstream's order and its protobuf layout. Built-in
//! messages are compiled from the IDL ([`builtin`]); custom resources build the same tables at run time.
//! Nothing here reads or writes objects.

mod builtin;
mod names;
pub(crate) mod zero;

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub use builtin::{Builtin, kind, kind_of, kinds, message, pod, reference};
use zero::Zero;

/// A group, version and kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// API version.
    pub version: Cow<'static, str>,
    /// Kind.
    pub kind: Cow<'static, str>,
}

impl Gvk {
    /// `group/version`, or only the version for core.
    #[must_use]
    pub fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }
}

/// `group/version`, or only the version for core.
#[must_use]
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// The name of what custom objects are read by.
pub const OPEN: &str = "unstructured.Unstructured";

/// One struct type.
#[derive(Debug, Clone)]
pub struct Message {
    /// Full protobuf name, e.g. `k8s.io.api.core.v1.Pod`.
    pub name: Cow<'static, str>,
    /// JSON fields in the order upstream writes them; embedded structs are already spliced in.
    pub fields: Cow<'static, [Field]>,
    /// Protobuf layout in ascending field number.
    pub wire: Cow<'static, [WireField]>,
    /// Set on root kinds (also on list kinds).
    pub gvk: Option<Gvk>,
    /// `x-kubernetes-map-type: atomic` on the type itself.
    pub atomic: bool,
    /// Unknown fields are kept (custom resources).
    pub preserve_unknown: bool,
    /// The object carries its own apiVersion, kind and metadata (custom resources).
    pub embedded_resource: bool,
    /// Upstream has a protobuf form for this type.
    pub has_protobuf: bool,
    /// Published discriminated unions, JSON text, empty when there are none.
    pub unions: &'static str,
    /// Go package name in error texts (`v1`).
    pub go_package: &'static str,
    /// Facts derived on first use.
    pub derived: Derived,
}

/// Facts that follow from a message's tables, found out once. Starts empty.
#[derive(Debug, Clone, Default)]
pub struct Derived {
    shown_unset: OnceLock<Box<[u16]>>,
    defaulted: OnceLock<Box<[u16]>>,
    by_name: OnceLock<Box<[u16]>>,
}

impl Derived {
    /// Creates it without derived facts.
    #[must_use]
    pub const fn new() -> Self {
        Self { shown_unset: OnceLock::new(), defaulted: OnceLock::new(), by_name: OnceLock::new() }
    }
}

/// One JSON field.
#[derive(Debug, Clone)]
pub struct Field {
    /// JSON name.
    pub json: Cow<'static, str>,
    /// Protobuf number; 0 when the field is not in this message on the wire (type meta, spliced fields).
    pub number: u32,
    /// Type of the value, or of each element.
    pub kind: ValueKind,
    /// Single, list or map with string keys.
    pub card: Card,
    /// A Go pointer: absent and zero are different values.
    pub pointer: bool,
    /// Go's `omitempty`.
    pub omit_empty: bool,
    /// Go's `omitzero`.
    pub omit_zero: bool,
    /// Merge strategy of a list.
    pub list_type: ListType,
    /// Merge strategy of a map or struct.
    pub map_type: MapType,
    /// Strategic merge directives.
    pub patch: Patch,
    /// Strategic merge key of list elements.
    pub patch_merge_key: Option<Cow<'static, str>>,
    /// Constant default as JSON text, applied when the field is absent.
    pub default: Option<Cow<'static, str>>,
    /// Listed as required in the published schema.
    pub required: bool,
    /// `null` is a value of its own (custom resources).
    pub nullable: bool,
    /// A list whose list type is not published.
    pub unlisted: bool,
    /// Merged by key here, although the type is [`Message::atomic`].
    pub granular: bool,
    /// Allowed values in the published schema, empty when open.
    pub enums: Cow<'static, [Cow<'static, str>]>,
    /// Go type as upstream names it in error texts, e.g. `[]v1.Container`.
    pub go_type: Cow<'static, str>,
    /// Name of the Go struct that declares the field (differs from the message for spliced fields).
    pub go_struct: Cow<'static, str>,
}

/// One entry of the protobuf layout.
#[derive(Debug, Clone)]
pub struct WireField {
    /// Field number.
    pub number: u32,
    /// Destination of the value.
    pub target: Target,
}

/// Destination of a protobuf field's value in JSON.
#[derive(Debug, Clone)]
pub enum Target {
    /// Index into [`Message::fields`].
    Field(usize),
    /// An embedded struct whose fields are spliced into this object.
    Inline(MessageRef),
}

/// Type of a value.
#[derive(Debug, Clone)]
pub enum ValueKind {
    /// Boolean.
    Bool,
    /// Signed 32 bit.
    Int32,
    /// Signed 64 bit.
    Int64,
    /// IEEE double.
    Double,
    /// UTF-8 text.
    String,
    /// Base64 in JSON.
    Bytes,
    /// A struct.
    Message(MessageRef),
    /// `resource.Quantity`.
    Quantity,
    /// `intstr.IntOrString`.
    IntOrString,
    /// RFC 3339 with seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// `runtime.RawExtension`: any JSON value.
    RawExtension,
    /// `meta/v1.FieldsV1`: any JSON value.
    FieldsV1,
    /// `apiextensions/v1.JSON`: any JSON value.
    Json,
    /// A boolean or a JSON schema.
    SchemaOrBool,
    /// A JSON schema or a list of them.
    SchemaOrArray,
    /// A JSON schema or a list of strings.
    SchemaOrStrings,
    /// A list of strings that is a wrapper message on the wire (`ExtraValue`, `Verbs`).
    StringList,
    /// A list or map inside a list or map (custom resources only).
    Nested(Arc<Field>),
    /// Any JSON value, unchecked (custom resources, table cells).
    Any,
}

/// Cardinality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Card {
    /// One value.
    Single,
    /// A list.
    Repeated,
    /// A map with string keys.
    Map,
}

/// List merge semantics of server-side apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Elements are scalars and unique.
    Set,
    /// Elements are structs identified by these keys.
    Map(Cow<'static, [Cow<'static, str>]>),
}

/// Map and struct merge semantics of server-side apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapType {
    /// Merged by key.
    Granular,
    /// Replaced as a whole.
    Atomic,
}

/// Strategic merge patch directives of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patch {
    /// `merge`: lists merge by key (or as a set for scalars).
    pub merge: bool,
    /// `retainKeys`: `$retainKeys` is honoured.
    pub retain_keys: bool,
    /// `replace`.
    pub replace: bool,
}

/// Reference to another message: by its place for built-ins, counted for custom resources.
#[derive(Clone)]
pub enum MessageRef {
    /// Compiled in.
    Builtin(Builtin),
    /// Built at run time.
    Shared(Arc<Message>),
}

impl Deref for MessageRef {
    type Target = Message;

    fn deref(&self) -> &Message {
        match self {
            Self::Builtin(m) => m.get(),
            Self::Shared(m) => m,
        }
    }
}

impl std::fmt::Debug for MessageRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MessageRef({})", self.name)
    }
}

impl Message {
    /// Reports whether this is the schema that custom objects are decoded with: only their metadata is typed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.name == OPEN
    }

    /// Field by JSON name (case-sensitive).
    #[must_use]
    pub fn field(&self, json: &str) -> Option<&Field> {
        self.fields.get(self.field_index(json)?)
    }

    /// Index of a field by JSON name.
    #[must_use]
    pub fn field_index(&self, json: &str) -> Option<usize> {
        let table = self.derived.by_name.get_or_init(|| names::table(self.fields.iter().map(|f| &*f.json)));
        names::find(table, self.fields.len(), json, |index| self.fields[index].json == json)
    }

    /// Indexes of the fields that Go writes although they are unset, ascending.
    #[must_use]
    pub(crate) fn shown_unset(&self) -> &[u16] {
        self.derived.shown_unset.get_or_init(|| {
            let shown = self.fields.iter().enumerate().filter(|(_, f)| !matches!(zero::of(f), Zero::Omitted));
            shown.filter_map(|(i, _)| u16::try_from(i).ok()).collect()
        })
    }

    /// The fields that have a constant default.
    pub(crate) fn defaulted(&self) -> impl Iterator<Item = &Field> {
        let found = self.derived.defaulted.get_or_init(|| {
            let defaulted = self.fields.iter().enumerate().filter(|(_, f)| f.default.is_some());
            defaulted.filter_map(|(i, _)| u16::try_from(i).ok()).collect()
        });
        found.iter().filter_map(|i| self.fields.get(usize::from(*i)))
    }

    /// Go struct name as it stands in error texts (`PodSpec`).
    #[must_use]
    pub fn go_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

impl Field {
    /// A plain field for tables that are built at run time.
    #[must_use]
    pub fn new(json: impl Into<Cow<'static, str>>, kind: ValueKind, card: Card) -> Self {
        Self {
            json: json.into(),
            number: 0,
            kind,
            card,
            pointer: true,
            omit_empty: true,
            omit_zero: false,
            list_type: ListType::Atomic,
            map_type: MapType::Granular,
            patch: Patch::default(),
            patch_merge_key: None,
            default: None,
            required: false,
            nullable: false,
            unlisted: false,
            granular: false,
            enums: Cow::Borrowed(&[]),
            go_type: Cow::Borrowed(""),
            go_struct: Cow::Borrowed(""),
        }
    }

    /// The struct type of the value or of each element.
    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        match &self.kind {
            ValueKind::Message(m) => Some(m),
            _ => None,
        }
    }
}
