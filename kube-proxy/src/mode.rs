//! The table of proxy modes. A mode is a folder with its [`Mode`], and a line here.

use crate::backend::Mode;
use crate::{iptables, ipvs, nftables, userspace};

/// All modes. The first one is for a configuration that names none.
pub static MODES: [&Mode; 4] = [&iptables::MODE, &ipvs::MODE, &nftables::MODE, &userspace::MODE];

/// Returns the mode of a name; the first one for an empty name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Mode> {
    MODES.into_iter().find(|mode| mode.name == name).or_else(|| name.is_empty().then_some(MODES[0]))
}

/// Returns the other modes: rules that they left in the kernel would go on answering with the endpoints of then.
pub fn others(mode: &Mode) -> impl Iterator<Item = &'static Mode> {
    MODES.into_iter().filter(|other| other.name != mode.name)
}
