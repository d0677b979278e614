//! Endpoints as caches hold them and the plan makes them: packed, since in a large cluster they change as often as slices.

use std::borrow::Cow;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Endpoints;
use kube::Resource as _;
use proto::schema::{self, Message};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use shared::informer::Cached;

use crate::engine::packed::{Meta, NewMeta, Packed, Texts};

/// The version they are read and written in.
const API_VERSION: &str = "v1";
const KIND: &str = "Endpoints";
/// The number of the only field besides metadata.
pub const SUBSETS: u32 = 2;

/// Nothing is known by its name but what the API server has.
static SCHEMA: LazyLock<Option<&'static Message>> = LazyLock::new(|| schema::kind_of(API_VERSION, KIND));

/// An Endpoints object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held(Packed);

impl Held {
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
    /// As [`Held::read`].
    pub fn of_json(object: &Value) -> Result<Self, String> {
        Packed::of_json(SCHEMA.ok_or("no such kind")?, object).map(Self)
    }

    /// One that is to be.
    #[must_use]
    pub fn new(meta: &NewMeta<'_>, subsets: &[u8]) -> Self {
        Self(Packed::made(|out| meta.write(out), |out| out.extend_from_slice(subsets)))
    }

    /// The same with other labels, annotations and subsets.
    #[must_use]
    pub fn with(&self, labels: &Texts<'_>, annotations: &Texts<'_>, subsets: &[u8]) -> Self {
        let meta = |out: &mut Vec<u8>| self.meta().write_with(labels, annotations, out);
        Self(Packed::made(meta, |out| out.extend_from_slice(subsets)))
    }

    /// Its metadata.
    #[must_use]
    pub fn meta(&self) -> Meta<'_> {
        self.0.meta()
    }

    /// Its subsets as they are written, each with its tag.
    #[must_use]
    pub fn subsets(&self) -> &[u8] {
        self.0.rest()
    }

    /// As the API's own type, for those who look at few.
    ///
    /// # Errors
    /// Bytes of another shape.
    pub fn typed(&self) -> Result<Endpoints, String> {
        let tree = self.0.tree(SCHEMA.ok_or("no such kind")?)?;
        serde_json::from_value(tree).map_err(|error| error.to_string())
    }

    /// Its path on the server.
    #[must_use]
    pub fn path(&self) -> String {
        let meta = self.meta();
        ["/api/v1/namespaces/", meta.namespace(), "/endpoints/", meta.name()].concat()
    }

    /// What is sent to write it.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.0.envelope(API_VERSION, KIND)
    }
}

impl Cached for Held {
    fn kind_name() -> Cow<'static, str> {
        KIND.into()
    }

    fn collection_path(namespace: Option<&str>) -> String {
        Endpoints::url_path(&(), namespace)
    }

    fn cache_key(&self) -> (&str, &str) {
        (self.meta().namespace(), self.meta().name())
    }

    fn cache_version(&self) -> Option<&str> {
        Some(self.meta().version()).filter(|version| !version.is_empty())
    }
}

impl<'de> Deserialize<'de> for Held {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_json(&Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
