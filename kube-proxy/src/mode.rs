//! The table of proxy modes. A mode is a folder with its [`Backend`], and a line here.

use std::fmt;

use crate::backend::{Backend, Options};
use crate::settings::Settings;
use crate::{iptables, ipvs, nftables, userspace};

/// All modes. The first one is for a configuration that names none.
pub static MODES: [&Mode; 4] = [&iptables::MODE, &ipvs::MODE, &nftables::MODE, &userspace::MODE];

/// A proxy mode.
pub struct Mode {
    /// Value of `mode` and `--proxy-mode`.
    pub name: &'static str,
    /// Upstream does not have it any more: its names of modes do not list it.
    pub is_historic: bool,
    /// Section of the configuration with its sync periods.
    pub periods: &'static str,
    /// Section of the configuration with what is masqueraded, and how it is marked.
    pub masquerading: &'static str,
    /// Node ports answer on loopback where the configuration says so.
    pub localhost_node_ports: bool,
    /// Node ports answer on the node's primary addresses alone where the configuration names none.
    pub primary_node_ports: bool,
    /// Makes the back end of one family.
    pub backend: fn(Options, &Settings) -> Box<dyn Backend>,
}

impl Mode {
    /// The mode of a name; the first one for none.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MODES.into_iter().find(|mode| mode.name == name).or_else(|| name.is_empty().then_some(MODES[0]))
    }

    /// The other modes: what they left in the kernel would go on answering, and with what was there then.
    pub fn others(&self) -> impl Iterator<Item = &'static Self> {
        MODES.into_iter().filter(|mode| mode.name != self.name)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl PartialEq for Mode {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
