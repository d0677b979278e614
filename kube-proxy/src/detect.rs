//! How traffic from this cluster's pods is told from other traffic (`--detect-local-mode`).

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
    fn network(&self, family: Family) -> Option<&IpNet> {
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

    /// The same for nftables; `not` turns it around.
    #[must_use]
    pub fn nft(&self, family: Family, not: bool) -> Option<String> {
        let operator = if not { "!= " } else { "" };
        match self {
            Self::None => None,
            Self::Networks(_) => {
                let ip = if family == Family::V4 { "ip" } else { "ip6" };
                self.network(family).map(|network| format!("{ip} saddr {operator}{network}"))
            }
            Self::Bridge(name) => Some(format!("iifname {operator}\"{name}\"")),
            Self::Prefix(prefix) => Some(format!("iifname {operator}\"{prefix}*\"")),
        }
    }
}
