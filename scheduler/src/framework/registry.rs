//! Plugins by name. A new plugin is a file in `plugins` and a line here.

use serde_json::Value;

use super::plugin::Plugin;
use super::profile::ConfigError;
use crate::plugins as p;

type Build = fn(&Value) -> Result<Plugin, ConfigError>;

const PLUGINS: &[(&str, Build)] = &[
    (p::scheduling_gates::NAME, p::scheduling_gates::build),
    (p::priority_sort::NAME, p::priority_sort::build),
    (p::node_unschedulable::NAME, p::node_unschedulable::build),
    (p::node_name::NAME, p::node_name::build),
    (p::taint_toleration::NAME, p::taint_toleration::build),
    (p::node_affinity::NAME, p::node_affinity::build),
    (p::node_ports::NAME, p::node_ports::build),
    (p::node_resources::fit::NAME, p::node_resources::fit::build),
    (p::node_resources::balanced::NAME, p::node_resources::balanced::build),
    (p::image_locality::NAME, p::image_locality::build),
    (p::pod_topology_spread::NAME, p::pod_topology_spread::build),
    (p::inter_pod_affinity::NAME, p::inter_pod_affinity::build),
    (p::volume_restrictions::NAME, p::volume_restrictions::build),
    (p::node_volume_limits::NAME, p::node_volume_limits::build),
    (p::volume_zone::NAME, p::volume_zone::build),
    (p::volume_binding::NAME, p::volume_binding::build),
    (p::dynamic_resources::NAME, p::dynamic_resources::build),
    (p::default_preemption::NAME, p::default_preemption::build),
    (p::default_binder::NAME, p::default_binder::build),
];

/// Builds a plugin.
///
/// # Errors
/// [`ConfigError`] for an unknown name or arguments it does not understand.
pub fn build(name: &str, args: &Value) -> Result<Plugin, ConfigError> {
    let (_, build) = PLUGINS.iter().find(|(n, _)| *n == name).ok_or_else(|| ConfigError::Unknown(name.to_owned()))?;
    build(args)
}

/// The static form of a plugin's name, if there is such a plugin.
pub fn known(name: &str) -> Option<&'static str> {
    PLUGINS.iter().map(|(n, _)| *n).find(|n| *n == name)
}
