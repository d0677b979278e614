//! Indices of caches that several controllers ask.

/// Index of objects by the uid of their controller; objects without one are under [`orphans`].
pub const BY_CONTROLLER: &str = "controller";
/// Index of pods by node name.
pub const BY_NODE: &str = "node";
/// Index of pods by the claims that their volumes name or have made, as `namespace/name`.
pub const BY_CLAIM: &str = "claim";
/// Index of slices by `namespace/service`.
pub const BY_SERVICE: &str = "service";

/// The [`BY_CONTROLLER`] entry of the objects of a namespace that nobody controls.
#[must_use]
pub fn orphans(namespace: &str) -> String {
    format!("/{namespace}")
}
