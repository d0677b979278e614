//! PrioritySort: higher priority first, then first come, first served. Answers for upstream's
//! `pkg/scheduler/framework/plugins/queuesort`.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::Value;

use crate::framework::ProfileError;
use crate::framework::QueuedPod;
use crate::framework::plugin::{Plugin, QueueSort};

/// Upstream's name.
pub const NAME: &str = "PrioritySort";

struct PrioritySort;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    Ok(Plugin::new(NAME).queue_sort(&Arc::new(PrioritySort)))
}

impl QueueSort for PrioritySort {
    fn compare(&self, a: &QueuedPod, b: &QueuedPod) -> Ordering {
        b.pod.priority.cmp(&a.pod.priority).then(a.queued.cmp(&b.queued))
    }
}
