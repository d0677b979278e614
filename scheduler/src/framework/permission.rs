//! Answer of the Permit extension point.

use std::sync::Arc;
use std::time::Duration;

use super::status::Status;
use crate::metrics::ExtensionPointResult;

/// Answer of a Permit plugin.
#[derive(Debug, Clone, Default)]
pub struct Permission {
    /// The answer.
    pub status: Status,
    /// With [`super::Code::Wait`]: how long at most.
    pub patience: Duration,
    /// Uids of pods that wait for permission no longer.
    pub allow: Vec<Arc<str>>,
    /// Uids of pods without a node that are to be tried now.
    pub activate: Vec<Arc<str>>,
}

impl From<Status> for Permission {
    fn from(status: Status) -> Self {
        Self { status, ..Self::default() }
    }
}

impl ExtensionPointResult for Permission {
    fn label(&self) -> &'static str {
        self.status.label()
    }
}
