//! Behaviour of a resource, built in or custom, as the generic rooms ask for it. Answers for what upstream's generic
//! registry and handlers get as a strategy, a `RequestScope` and a storage of `pkg/registry` on the one side, and of
//! `apiextensions-apiserver` on the other.
//!
//! In comes a row, out goes its [`ResourceBehavior`]: five traits, each of them beside both of its implementations, that
//! of [`BuiltIn`] resources and that of a [`CrdVersion`]. Nothing outside asks which of the two a row has.

mod built_in;
mod endpoints;
mod forms;
mod objects;
mod scale;
mod versions;

use proto::resources::Resource;

use crate::crd::{CrdVersion, version_of};

pub use built_in::BuiltIn;
pub use endpoints::ResourceEndpoints;
pub use forms::ResourceForms;
pub use objects::ResourceObjects;
pub use scale::{ResourceScale, ScaleParts};
pub use versions::ResourceVersions;

/// All that is particular about a resource, built in or custom.
pub trait ResourceBehavior:
    ResourceEndpoints + ResourceForms + ResourceObjects + ResourceScale + ResourceVersions
{
}

impl ResourceBehavior for BuiltIn {}

impl ResourceBehavior for CrdVersion {}

/// Returns the behaviour of a row's resource.
pub fn behavior(row: &Resource) -> &dyn ResourceBehavior {
    match version_of(row) {
        Some(custom) => custom,
        None => &BuiltIn,
    }
}
