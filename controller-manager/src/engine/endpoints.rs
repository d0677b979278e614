//! Endpoints as caches hold them and the plan makes them: packed, since in a large cluster they change as often as slices.

use k8s_openapi::api::core::v1::Endpoints;
use shared::typed::ReadError;

use super::packed::{NewMeta, Texts};
use super::packed_of::PackedOf;

/// An Endpoints object.
pub type PackedEndpoints = PackedOf<Endpoints>;

impl PackedEndpoints {
    /// One that is to be.
    #[must_use]
    pub fn new(meta: &NewMeta<'_>, subsets: &[u8]) -> Self {
        Self::made(meta, |out| out.extend_from_slice(subsets))
    }

    /// Returns a copy with other labels, annotations and subsets.
    #[must_use]
    pub fn with(&self, labels: &Texts<'_>, annotations: &Texts<'_>, subsets: &[u8]) -> Self {
        self.remade(labels, annotations, |out| out.extend_from_slice(subsets))
    }

    /// Returns the subsets as they are written, each with its tag.
    #[must_use]
    pub fn subsets(&self) -> &[u8] {
        self.rest()
    }

    /// Decodes the object as the API's own type, for those who look at few.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn typed(&self) -> Result<Endpoints, ReadError> {
        Ok(serde_json::from_value(self.tree()?)?)
    }
}
