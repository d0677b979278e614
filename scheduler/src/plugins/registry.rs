//! Plugins by name. A new plugin is a file in `plugins` and a line here. Answers for upstream's `NewInTreeRegistry`.

use serde_json::Value;

use super as p;
use crate::framework::{Features, Plugin, Profile, ProfileConfig, ProfileError};

type Build = fn(&Value, Features) -> Result<Plugin, ProfileError>;

const PLUGINS: &[(&str, Build)] = &[
    (p::scheduling_gates::NAME, |args, _| p::scheduling_gates::build(args)),
    (p::priority_sort::NAME, |args, _| p::priority_sort::build(args)),
    (p::node_unschedulable::NAME, |args, _| p::node_unschedulable::build(args)),
    (p::node_name::NAME, |args, _| p::node_name::build(args)),
    (p::taint_toleration::NAME, p::taint_toleration::build),
    (p::node_affinity::NAME, |args, _| p::node_affinity::build(args)),
    (p::node_ports::NAME, |args, _| p::node_ports::build(args)),
    (p::node_resources::fit::NAME, |args, features| p::node_resources::fit::build(args, features)),
    (p::node_resources::balanced::NAME, |args, _| p::node_resources::balanced::build(args)),
    (p::image_locality::NAME, |args, _| p::image_locality::build(args)),
    (p::pod_topology_spread::NAME, p::pod_topology_spread::build),
    (p::inter_pod_affinity::NAME, |args, _| p::inter_pod_affinity::build(args)),
    (p::volume_restrictions::NAME, |args, _| p::volume_restrictions::build(args)),
    (p::node_volume_limits::NAME, p::node_volume_limits::build),
    (p::volume_zone::NAME, |args, _| p::volume_zone::build(args)),
    (p::volume_binding::NAME, p::volume_binding::build),
    (p::dynamic_resources::NAME, p::dynamic_resources::build),
    (p::node_declared_features::NAME, p::node_declared_features::build),
    (p::gang_scheduling::NAME, |args, _| p::gang_scheduling::build(args)),
    (p::default_preemption::NAME, |args, _| p::default_preemption::build(args)),
    (p::default_binder::NAME, |args, _| p::default_binder::build(args)),
];

impl Profile {
    /// Builds a profile of these plugins from its configuration.
    ///
    /// # Errors
    /// [`ProfileError`] when it names what is not there.
    pub fn build(config: &ProfileConfig) -> Result<Self, ProfileError> {
        Self::with_plugins(config, build)
    }
}

/// Builds a plugin.
///
/// # Errors
/// [`ProfileError`] for an unknown name or arguments it does not understand.
fn build(name: &str, args: &Value, features: Features) -> Result<Plugin, ProfileError> {
    let (_, build) = PLUGINS.iter().find(|(n, _)| *n == name).ok_or_else(|| ProfileError::Unknown(name.to_owned()))?;
    build(args, features)
}

/// The static form of a plugin's name, if there is such a plugin.
pub fn known(name: &str) -> Option<&'static str> {
    PLUGINS.iter().map(|(n, _)| *n).find(|n| *n == name)
}
