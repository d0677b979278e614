//! Name of a resource: its group and plural. Answers for upstream's `schema.GroupResource`.

use std::fmt;

use proto::resources::Resource;
use shared::status::Status;

/// Group and plural of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    /// Plural.
    pub plural: &'a str,
}

impl<'a> GroupResource<'a> {
    /// Names a resource.
    pub const fn new(group: &'a str, plural: &'a str) -> Self {
        Self { group, plural }
    }

    /// The name of a row's resource.
    pub fn of(row: &'a Resource) -> Self {
        Self::new(&row.group, &row.plural)
    }

    /// `404`: no object of the resource has this name.
    pub fn not_found(self, name: &str) -> Status {
        Status::not_found(self.group, self.plural, name)
    }

    /// `409`: the object cannot be written as it is.
    pub fn conflict(self, name: &str, why: &str) -> Status {
        Status::conflict(self.group, self.plural, name, why)
    }

    /// `403`: the object must not be written or deleted.
    pub fn forbidden(self, name: &str, why: &str) -> Status {
        Status::forbidden(self.group, self.plural, name, why)
    }
}

/// `pods` or `deployments.apps`.
impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}
