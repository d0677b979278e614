//! Resource rows: what the API serves, as data. One row per group, version and plural.
//!
//! Rows come from the IDL (option on the root kind); custom resources make rows at run time.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use crate::schema::{self, Message, group_version};

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
    /// Group and version that etcd gets.
    pub storage: (Cow<'static, str>, Cow<'static, str>),
    /// Kind that etcd holds (differs for none so far).
    pub storage_kind: Cow<'static, str>,
    /// etcd holds JSON rather than protobuf.
    pub storage_json: bool,
    /// Key prefix without a trailing slash, e.g. `/registry/services/specs`; empty when nothing is stored.
    pub etcd_prefix: Cow<'static, str>,
    /// Hash of the storage version in legacy discovery, empty when not stored.
    pub storage_version_hash: Cow<'static, str>,
    /// Deleting one object answers with the object rather than with a Status (upstream's `ReturnDeletedObject`).
    pub returns_deleted: bool,
    /// The row in whose version objects are kept, on a row made at run time that is not that row itself.
    pub kept: Option<Arc<Resource>>,
    /// State of a resource defined at run time; `None` for built-in ones.
    pub custom: Option<Custom>,
}

/// State of a resource that was defined at run time.
#[derive(Debug, Clone)]
pub struct Custom {
    /// Type of the resource's objects.
    pub schema: Arc<Message>,
    /// The type of its lists.
    pub list_schema: Arc<Message>,
    /// State that the server keeps with the row; only the server knows its type.
    pub behind: Arc<dyn Any + Send + Sync>,
}

/// A handle on a row that may be kept: rows that are compiled in stay, others go when nobody holds them any more.
#[derive(Debug, Clone)]
pub enum Row {
    /// Compiled in.
    Static(&'static Resource),
    /// Made at run time.
    Shared(Arc<Resource>),
}

impl Deref for Row {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        match self {
            Self::Static(r) => r,
            Self::Shared(r) => r,
        }
    }
}

impl From<&'static Resource> for Row {
    fn from(row: &'static Resource) -> Self {
        Self::Static(row)
    }
}

impl From<Arc<Resource>> for Row {
    fn from(row: Arc<Resource>) -> Self {
        Self::Shared(row)
    }
}

impl Row {
    /// The row in whose version objects are kept: caches hold it, writes work in it, and it is stored unless a server has
    /// to store what an older one can read. A row stored in a version that is not served is its own storage row.
    #[must_use]
    pub fn storage(&self) -> Self {
        match self {
            Self::Static(r) => Self::Static(stored(r).unwrap_or(r)),
            Self::Shared(r) => r.kept.clone().map_or_else(|| self.clone(), Self::Shared),
        }
    }

    /// Reports whether objects are kept in this row's version.
    #[must_use]
    pub fn is_storage(&self) -> bool {
        match self {
            Self::Static(r) => stored(r).is_none_or(|s| std::ptr::eq(s, *r)),
            Self::Shared(r) => r.kept.is_none(),
        }
    }

    /// Reports whether both are the same row, not only rows of the same name.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq::<Resource>(&**self, &**other)
    }
}

/// One subresource of a row.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// Name, e.g. `status`.
    pub name: Cow<'static, str>,
    /// Group of the kind that is exchanged.
    pub group: Cow<'static, str>,
    /// Version of the kind.
    pub version: Cow<'static, str>,
    /// Kind that is exchanged.
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
        group_version(&self.group, &self.version)
    }

    /// `apiVersion` that etcd holds.
    #[must_use]
    pub fn storage_api_version(&self) -> String {
        group_version(&self.storage.0, &self.storage.1)
    }

    /// Reports whether the verb is served.
    #[must_use]
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    /// Subresource by name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The type of its objects.
    #[must_use]
    pub fn schema(&self) -> Option<&Message> {
        match &self.custom {
            Some(custom) => Some(&custom.schema),
            None => schema::kind(&self.group, &self.version, &self.kind),
        }
    }

    /// The type of its lists.
    #[must_use]
    pub fn list_schema(&self) -> Option<&Message> {
        match &self.custom {
            Some(custom) => Some(&custom.list_schema),
            None => schema::kind(&self.group, &self.version, &self.list_kind),
        }
    }

    /// Objects of this resource are stored (reviews and bindings are not).
    #[must_use]
    pub fn is_stored(&self) -> bool {
        !self.etcd_prefix.is_empty()
    }
}

include!(concat!(env!("OUT_DIR"), "/resources.rs"));

/// All built-in rows in discovery order (groups by priority, then plural).
#[must_use]
pub fn all() -> &'static [Resource] {
    RESOURCES
}

/// Rows that are served only where they are asked for, ordered like [`all`]; the other functions do not know them.
#[must_use]
pub fn optional() -> &'static [Resource] {
    OPTIONAL
}

/// The row of the version a row is stored in.
fn stored(row: &'static Resource) -> Option<&'static Resource> {
    let (group, version) = &row.storage;
    if row.group == *group && row.version == *version {
        // Nearly all are their own, and every request asks more than once.
        return Some(row);
    }
    let same = |r: &&Resource| r.plural == row.plural && r.group == *group && r.version == *version;
    RESOURCES.iter().chain(OPTIONAL).find(same)
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
