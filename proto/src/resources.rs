//! Resource rows: what the API serves, as data. One row per group, version and plural.
//!
//! Rows come from the IDL (option on the root kind); custom resources make rows at run time.

use std::borrow::Cow;

/// One served resource.
#[derive(Debug, Clone)]
pub struct Resource {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// API version.
    pub version: Cow<'static, str>,
    /// Kind.
    pub kind: Cow<'static, str>,
    /// Kind of the list.
    pub list_kind: Cow<'static, str>,
    /// Plural as in the URL.
    pub plural: Cow<'static, str>,
    /// Singular.
    pub singular: Cow<'static, str>,
    /// Short names.
    pub short_names: Cow<'static, [Cow<'static, str>]>,
    /// Categories (`all`, ...).
    pub categories: Cow<'static, [Cow<'static, str>]>,
    /// Lives in a namespace.
    pub namespaced: bool,
    /// Verbs, sorted.
    pub verbs: Cow<'static, [Cow<'static, str>]>,
    /// Subresources, sorted by name.
    pub subresources: Cow<'static, [Subresource]>,
    /// Group and version that etcd holds.
    pub storage: (Cow<'static, str>, Cow<'static, str>),
    /// Kind that etcd holds (differs for none so far).
    pub storage_kind: Cow<'static, str>,
    /// etcd holds JSON rather than protobuf.
    pub storage_json: bool,
    /// Key prefix without a trailing slash, e.g. `/registry/services/specs`; empty when nothing is stored.
    pub etcd_prefix: Cow<'static, str>,
    /// Hash of the storage version in legacy discovery, empty when not stored.
    pub storage_version_hash: Cow<'static, str>,
}

/// One subresource of a row.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// Name, e.g. `status`.
    pub name: Cow<'static, str>,
    /// Group of the kind that is exchanged.
    pub group: Cow<'static, str>,
    /// Its version.
    pub version: Cow<'static, str>,
    /// Its kind.
    pub kind: Cow<'static, str>,
    /// Verbs, sorted.
    pub verbs: Cow<'static, [Cow<'static, str>]>,
    /// Group of the kind as discovery shows it, may be empty where the kind's group is not.
    pub response_group: Cow<'static, str>,
    /// Version as discovery shows it.
    pub response_version: Cow<'static, str>,
}

impl Resource {
    /// `group/version`, or only the version for core.
    #[must_use]
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `apiVersion` that etcd holds.
    #[must_use]
    pub fn storage_api_version(&self) -> String {
        api_version(&self.storage.0, &self.storage.1)
    }

    /// Whether the verb is served.
    #[must_use]
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    /// Subresource by name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Objects of this resource are stored (reviews and bindings are not).
    #[must_use]
    pub fn is_stored(&self) -> bool {
        !self.etcd_prefix.is_empty()
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

include!(concat!(env!("OUT_DIR"), "/resources.rs"));

/// All built-in rows in discovery order (groups by priority, then plural).
#[must_use]
pub fn all() -> &'static [Resource] {
    RESOURCES
}

/// Built-in row by group, version and plural.
#[must_use]
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|r| r.plural == plural && r.group == group && r.version == version)
}

/// Built-in row by kind.
#[must_use]
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|r| r.kind == kind && r.group == group && r.version == version)
}
