//! EndpointSlices as caches hold them and plans make them: packed, since in a large cluster they are most of what changes.

use std::borrow::Cow;
use std::sync::LazyLock;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource as _;
use proto::protobuf::write_bytes;
use proto::schema::{self, Message};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use shared::informer::Cached;

use crate::engine::packed::{self, Meta, NewMeta, Packed, Texts};
use crate::engine::services::Port;

/// The version they are read and written in.
const API_VERSION: &str = "discovery.k8s.io/v1";
const KIND: &str = "EndpointSlice";
const ENDPOINTS: u32 = 2;
const PORTS: u32 = 3;
const ADDRESS_TYPE: u32 = 4;
const ADDRESSES: u32 = 1;
const TARGET: u32 = 4;
const TARGET_UID: u32 = 4;
const HINTS: u32 = 8;

/// Nothing is known by its name but what the API server has.
static SCHEMA: LazyLock<Option<&'static Message>> = LazyLock::new(|| schema::kind_of(API_VERSION, KIND));

/// A slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice(Packed);

/// What a slice holds besides its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// IPv4 or IPv6.
    pub family: &'a str,
    /// Each as it is written.
    pub endpoints: Vec<&'a [u8]>,
    /// Each as it is written.
    pub ports: Vec<&'a [u8]>,
}

impl Content<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        for endpoint in &self.endpoints {
            write_bytes(ENDPOINTS, endpoint, out);
        }
        for port in &self.ports {
            write_bytes(PORTS, port, out);
        }
        write_bytes(ADDRESS_TYPE, self.family.as_bytes(), out);
    }
}

impl Slice {
    /// From what the server sent.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn read(raw: &[u8]) -> Result<Self, String> {
        Packed::read(raw).map(Self)
    }

    /// From its JSON.
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn of_json(object: &Value) -> Result<Self, String> {
        Packed::of_json(SCHEMA.ok_or("no such kind")?, object).map(Self)
    }

    /// One that is to be.
    #[must_use]
    pub fn new(meta: &NewMeta<'_>, content: &Content<'_>) -> Self {
        Self(Packed::made(|out| meta.write(out), |out| content.write(out)))
    }

    /// The same with other labels, annotations and content.
    #[must_use]
    pub fn with(&self, labels: &Texts<'_>, annotations: &Texts<'_>, content: &Content<'_>) -> Self {
        let meta = |out: &mut Vec<u8>| self.meta().write_with(labels, annotations, out);
        Self(Packed::made(meta, |out| content.write(out)))
    }

    /// Its metadata.
    #[must_use]
    pub fn meta(&self) -> Meta<'_> {
        self.0.meta()
    }

    /// IPv4, IPv6 or FQDN.
    #[must_use]
    pub fn address_type(&self) -> &str {
        packed::text(self.0.rest(), ADDRESS_TYPE)
    }

    /// Its endpoints as they are written.
    pub fn endpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.0.all(ENDPOINTS)
    }

    /// Its ports as they are written.
    pub fn ports(&self) -> impl Iterator<Item = &[u8]> {
        self.0.all(PORTS)
    }

    /// Whether an endpoint says from where it should be used.
    #[must_use]
    pub fn has_hints(&self) -> bool {
        self.endpoints().any(|endpoint| packed::values(endpoint, HINTS).next().is_some())
    }

    /// Its path on the server.
    #[must_use]
    pub fn path(&self) -> String {
        let meta = self.meta();
        ["/apis/discovery.k8s.io/v1/namespaces/", meta.namespace(), "/endpointslices/", meta.name()].concat()
    }

    /// What is sent to write it.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.0.envelope(API_VERSION, KIND)
    }

    /// As a tree.
    #[cfg(test)]
    pub fn tree(&self) -> Value {
        self.0.tree(SCHEMA.expect("a known kind")).expect("a tree")
    }
}

/// The addresses of an endpoint as it is written.
pub fn addresses(endpoint: &[u8]) -> impl Iterator<Item = &[u8]> {
    packed::values(endpoint, ADDRESSES)
}

/// The uid of the pod behind an endpoint as it is written; may be empty.
#[must_use]
pub fn target_uid(endpoint: &[u8]) -> &[u8] {
    let target = packed::values(endpoint, TARGET).next().unwrap_or_default();
    packed::values(target, TARGET_UID).next().unwrap_or_default()
}

/// A port as it is written.
#[must_use]
pub fn port(written: &[u8]) -> Port<'_> {
    Port {
        name: packed::text(written, 1),
        protocol: packed::text(written, 2),
        number: i32::try_from(packed::number(written, 3)).unwrap_or_default(),
        app_protocol: packed::text(written, 4),
    }
}

impl Cached for Slice {
    fn kind_name() -> Cow<'static, str> {
        KIND.into()
    }

    fn collection_path(namespace: Option<&str>) -> String {
        EndpointSlice::url_path(&(), namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        (self.meta().namespace(), self.meta().name())
    }

    fn cache_version(&self) -> Option<&str> {
        Some(self.meta().version()).filter(|version| !version.is_empty())
    }
}

impl<'de> Deserialize<'de> for Slice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_json(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
