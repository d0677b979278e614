//! EndpointSlices as caches hold them and plans make them: packed, since in a large cluster they are most of what changes.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use proto::numbers::core_v1::object_reference;
use proto::numbers::discovery_v1::{endpoint, endpoint_port, endpoint_slice};
use proto::protobuf::write_bytes;

use super::packed::{self, NewMeta, Texts};
use super::packed_of::PackedOf;
use super::services::Port;

/// Label with the controller that manages a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A slice.
pub type Slice = PackedOf<EndpointSlice>;

/// Content of a slice besides its metadata.
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
            write_bytes(endpoint_slice::ENDPOINTS, endpoint, out);
        }
        for port in &self.ports {
            write_bytes(endpoint_slice::PORTS, port, out);
        }
        write_bytes(endpoint_slice::ADDRESS_TYPE, self.family.as_bytes(), out);
    }
}

impl Slice {
    /// One that is to be.
    #[must_use]
    pub fn new(meta: &NewMeta<'_>, content: &Content<'_>) -> Self {
        Self::made(meta, |out| content.write(out))
    }

    /// Returns a copy with other labels, annotations and content.
    #[must_use]
    pub fn with(&self, labels: &Texts<'_>, annotations: &Texts<'_>, content: &Content<'_>) -> Self {
        self.remade(labels, annotations, |out| content.write(out))
    }

    /// IPv4, IPv6 or FQDN.
    #[must_use]
    pub fn address_type(&self) -> &str {
        packed::text(self.rest(), endpoint_slice::ADDRESS_TYPE)
    }

    /// Iterates over the endpoints as they are written.
    pub fn endpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.all(endpoint_slice::ENDPOINTS)
    }

    /// Iterates over the ports as they are written.
    pub fn ports(&self) -> impl Iterator<Item = &[u8]> {
        self.all(endpoint_slice::PORTS)
    }
}

/// The addresses of an endpoint as it is written.
pub fn addresses(endpoint: &[u8]) -> impl Iterator<Item = &[u8]> {
    packed::values(endpoint, endpoint::ADDRESSES)
}

/// The uid of the pod behind an endpoint as it is written; may be empty.
#[must_use]
pub fn target_uid(endpoint: &[u8]) -> &[u8] {
    let target = packed::values(endpoint, endpoint::TARGET_REF).next().unwrap_or_default();
    packed::values(target, object_reference::UID).next().unwrap_or_default()
}

/// A port as it is written.
#[must_use]
pub fn port(written: &[u8]) -> Port<'_> {
    Port {
        name: packed::text(written, endpoint_port::NAME),
        protocol: packed::text(written, endpoint_port::PROTOCOL),
        number: i32::try_from(packed::number(written, endpoint_port::PORT)).unwrap_or_default(),
        app_protocol: packed::text(written, endpoint_port::APP_PROTOCOL),
    }
}
