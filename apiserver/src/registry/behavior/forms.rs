//! Encodings of objects and lists, and the Go types that upstream's texts show.

use proto::Value;
use proto::resources::Resource;
use proto::schema::{self, Message};

use super::built_in::BuiltIn;
use crate::crd::{self, CrdVersion};

/// Encodings of a resource.
pub trait ResourceForms {
    /// Reports whether objects and lists have a protobuf form.
    fn has_protobuf(&self) -> bool;

    /// Reports whether strategic merge patches are served.
    fn has_strategic_merge(&self) -> bool;

    /// Reports whether bodies may hold fields that no type names: they are pruned by a schema and not decoded by a type.
    fn has_open_bodies(&self) -> bool;

    /// Type that bodies and patches are decoded by.
    fn body_schema<'r>(&self, row: &'r Resource) -> Option<&'r Message>;

    /// Type that an object is answered by, which may be of another kind than the row's: that of a subresource.
    fn response_schema<'r>(&self, row: &'r Resource, object: &Value) -> Option<&'r Message>;

    /// Package of the Go type of objects, in upstream's texts; `None` for unstructured ones.
    fn go_package<'r>(&self, row: &'r Resource) -> Option<&'r str>;

    /// Reports whether lists are encoded by a type. Keys of others are sorted, and their elements say their type.
    fn has_typed_lists(&self) -> bool;

    /// Reports whether an object is encoded alike for as long as it is stored, whatever becomes of its definition.
    fn encodes_alike(&self) -> bool;

    /// Reports whether objects are stored in CBOR where the server speaks it.
    fn stores_cbor(&self) -> bool;

    /// Reports whether stored objects say themselves which version they are of, and are kept as they were read.
    fn keeps_trees(&self) -> bool;
}

/// Go packages whose name differs from the first label of their group.
const PACKAGES: [(&str, &str); 2] = [("", "core"), ("internal", "apiserverinternal")];

impl ResourceForms for BuiltIn {
    fn has_protobuf(&self) -> bool {
        true
    }

    fn has_strategic_merge(&self) -> bool {
        true
    }

    fn has_open_bodies(&self) -> bool {
        false
    }

    fn body_schema<'r>(&self, row: &'r Resource) -> Option<&'r Message> {
        row.schema()
    }

    fn response_schema<'r>(&self, _: &'r Resource, object: &Value) -> Option<&'r Message> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("");
        schema::kind_of(text("apiVersion"), text("kind"))
    }

    fn go_package<'r>(&self, row: &'r Resource) -> Option<&'r str> {
        let first = row.group.split('.').next().unwrap_or_default();
        Some(PACKAGES.iter().find(|(group, _)| *group == first).map_or(first, |(_, package)| package))
    }

    fn has_typed_lists(&self) -> bool {
        true
    }

    fn encodes_alike(&self) -> bool {
        true
    }

    fn stores_cbor(&self) -> bool {
        false
    }

    fn keeps_trees(&self) -> bool {
        false
    }
}

impl ResourceForms for CrdVersion {
    fn has_protobuf(&self) -> bool {
        false
    }

    /// Lists of custom objects have no merge keys.
    fn has_strategic_merge(&self) -> bool {
        false
    }

    fn has_open_bodies(&self) -> bool {
        true
    }

    fn body_schema<'r>(&self, _: &'r Resource) -> Option<&'r Message> {
        Some(crd::objects::open())
    }

    fn response_schema<'r>(&self, row: &'r Resource, _: &Value) -> Option<&'r Message> {
        row.schema()
    }

    fn go_package<'r>(&self, _: &'r Resource) -> Option<&'r str> {
        None
    }

    fn has_typed_lists(&self) -> bool {
        false
    }

    /// Never: the same bytes may read differently once the definition has changed.
    fn encodes_alike(&self) -> bool {
        false
    }

    fn stores_cbor(&self) -> bool {
        true
    }

    fn keeps_trees(&self) -> bool {
        true
    }
}
