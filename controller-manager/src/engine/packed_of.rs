//! Packed objects of one kind: what caches, requests and plans need to know of it besides its fields.

use std::borrow::Cow;
use std::marker::PhantomData;

use proto::schema::{self, Message};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use shared::informer::Cached;
use shared::typed::ReadError;

use super::packed::{Meta, NewMeta, Packed, Texts};

/// A kind of the API in namespaces, by the API's own type.
pub trait NamespacedKind: k8s_openapi::Resource + Clone + std::fmt::Debug + PartialEq + 'static {}
impl<K: k8s_openapi::Resource + Clone + std::fmt::Debug + PartialEq + 'static> NamespacedKind for K {}

/// An object of a kind, packed.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedOf<K: NamespacedKind> {
    packed: Packed,
    kind: PhantomData<fn() -> K>,
}

impl<K: NamespacedKind> From<Packed> for PackedOf<K> {
    fn from(packed: Packed) -> Self {
        Self { packed, kind: PhantomData }
    }
}

/// Nothing is known by its name but what the API server has.
fn schema<K: NamespacedKind>() -> Result<&'static Message, ReadError> {
    schema::kind_of(K::API_VERSION, K::KIND).ok_or(ReadError::UnknownKind)
}

/// Path of the objects of a namespace, or of all of them.
fn collection<K: NamespacedKind>(namespace: Option<&str>) -> String {
    let root = if K::GROUP.is_empty() { "/api/" } else { "/apis/" };
    match namespace {
        Some(namespace) => [root, K::API_VERSION, "/namespaces/", namespace, "/", K::URL_PATH_SEGMENT].concat(),
        None => [root, K::API_VERSION, "/", K::URL_PATH_SEGMENT].concat(),
    }
}

impl<K: NamespacedKind> PackedOf<K> {
    /// From what the server sent.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn read(raw: &[u8]) -> Result<Self, ReadError> {
        Packed::read(raw).map(Self::from)
    }

    /// From its JSON.
    ///
    /// # Errors
    /// As [`PackedOf::read`].
    pub fn of_json(object: &Value) -> Result<Self, ReadError> {
        Packed::of_json(schema::<K>()?, object).map(Self::from)
    }

    /// Size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.packed.size()
    }

    /// One that is to be, with the fields that `rest` writes.
    pub fn made(meta: &NewMeta<'_>, rest: impl FnOnce(&mut Vec<u8>)) -> Self {
        Packed::made(|out| meta.write(out), rest).into()
    }

    /// Returns a copy with other labels, annotations and fields.
    pub fn remade(&self, labels: &Texts<'_>, annotations: &Texts<'_>, rest: impl FnOnce(&mut Vec<u8>)) -> Self {
        Packed::made(|out| self.meta().write_with(labels, annotations, out), rest).into()
    }

    /// Reads the metadata.
    #[must_use]
    pub fn meta(&self) -> Meta<'_> {
        self.packed.meta()
    }

    /// The fields besides its metadata.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.packed.rest()
    }

    /// The values of one of those fields.
    pub fn all(&self, number: u32) -> impl Iterator<Item = &[u8]> {
        self.packed.all(number)
    }

    /// Path of the object on the server.
    #[must_use]
    pub fn path(&self) -> String {
        let meta = self.meta();
        [&collection::<K>(Some(meta.namespace())), "/", meta.name()].concat()
    }

    /// Returns the body of a write.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.packed.envelope(K::API_VERSION, K::KIND)
    }

    /// Decodes the object as a tree, for those who look at few.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn tree(&self) -> Result<Value, ReadError> {
        self.packed.tree(schema::<K>()?)
    }
}

impl<K: NamespacedKind> Cached for PackedOf<K> {
    fn kind_name() -> Cow<'static, str> {
        K::KIND.into()
    }

    fn collection_path(namespace: Option<&str>) -> String {
        collection::<K>(namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        (self.meta().namespace(), self.meta().name())
    }

    fn cache_version(&self) -> Option<&str> {
        Some(self.meta().version()).filter(|version| !version.is_empty())
    }

    fn schema() -> Option<&'static Message> {
        schema::<K>().ok()
    }
}

impl<'de, K: NamespacedKind> Deserialize<'de> for PackedOf<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_json(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Endpoints;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use kube::Resource as _;

    use super::*;

    #[test]
    fn collections_are_where_other_clients_look_for_them() {
        for namespace in [None, Some("ns")] {
            assert_eq!(collection::<Endpoints>(namespace), Endpoints::url_path(&(), namespace));
            assert_eq!(collection::<EndpointSlice>(namespace), EndpointSlice::url_path(&(), namespace));
        }
    }
}
