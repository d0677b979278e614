//! Variables and libraries that an expression is compiled with.

use std::collections::BTreeMap;

use super::types::Type;

/// Variables and their types. A name may have dots: `authorizer.requestResource`, `variables.x`.
pub type Declared = BTreeMap<String, Type>;

/// Libraries of an environment beside the common ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// `cel.bind`.
    pub bind: bool,
    /// `Object{}`, `JSONPatch{}` and `jsonpatch.escapeKey`.
    pub patch: bool,
}
