//! Detection of traffic from this cluster's pods (`--detect-local-mode`).

use crate::plan::Family;
use ipnet::IpNet;

/// The configured way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalDetector {
    /// No way: nothing counts as local.
    #[default]
    None,
    /// Pods have addresses in these networks (`ClusterCIDR`, `NodeCIDR`).
    Networks(Vec<IpNet>),
    /// Pods are behind this bridge (`BridgeInterface`).
    Bridge(String),
    /// Pods' interfaces have names with this prefix (`InterfaceNamePrefix`).
    Prefix(String),
}

impl LocalDetector {
    /// The network of this cluster's pods.
    #[must_use]
    pub fn network(&self, family: Family) -> Option<&IpNet> {
        match self {
            Self::Networks(networks) => networks.iter().find(|network| family.holds(network.addr())),
            _ => None,
        }
    }

    /// An iptables match for local traffic; none when there is no way to tell.
    #[must_use]
    pub fn local(&self, family: Family) -> Option<String> {
        match self {
            Self::None => None,
            Self::Networks(_) => self.network(family).map(|network| format!("-s {network}")),
            Self::Bridge(name) => Some(format!("-i {name}")),
            Self::Prefix(prefix) => Some(format!("-i {prefix}+")),
        }
    }

    /// The opposite of [`Self::local`].
    #[must_use]
    pub fn not_local(&self, family: Family) -> Option<String> {
        self.local(family).map(|matching| format!("! {matching}"))
    }
}
