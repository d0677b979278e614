//! Metrics of volumes: how many are wanted and attached, how many pods use, how long operations take. Answers for
//! upstream's `pkg/controller/volume/attachdetach/metrics`.
//!
//! In: what a look at a node wants, what attachments show. Out: numbers. Nothing here is decided upon.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::engine::metrics::{self, float};
use crate::engine::object;

const TOTAL: &str = "attachdetach_controller_total_volumes";
const IN_USE: &str = "storage_count_attachable_volumes_in_use";
const OPERATIONS: &str = "storage_operation_duration_seconds";
const DESIRED: &str = "desired_state_of_world";
const ACTUAL: &str = "actual_state_of_world";

/// Families of the kubelet's reconstruction of volumes, which upstream shows here as well.
const CLEANED: [&str; 2] =
    ["force_cleaned_failed_volume_operations_total", "force_cleaned_failed_volume_operation_errors_total"];

/// Shows the families in which this process counts nothing.
pub(super) fn show_idle_families() {
    CLEANED.iter().for_each(|name| metrics::show_zero(name, &[]));
}

/// Operations on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeOperation {
    /// The volume is attached to a node.
    Attach,
    /// The volume is detached from a node.
    Detach,
}

impl VolumeOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Attach => "volume_attach",
            Self::Detach => "volume_detach",
        }
    }
}

/// A try of the driver that has come to an end.
#[derive(Debug, PartialEq)]
pub struct Ended {
    /// Operation that was tried.
    pub operation: VolumeOperation,
    /// The operation succeeded.
    pub success: bool,
    /// Since when.
    pub since: Instant,
}

#[derive(Debug)]
struct Begun {
    operation: VolumeOperation,
    since: Instant,
    /// Time at which the driver's last try failed.
    failed: Option<Time>,
}

/// Counts an operation that has come to an end, by the name of the plugin.
pub fn ended(operation: VolumeOperation, plugin: &str, success: bool, took: Duration) {
    let status = if success { "success" } else { "fail-unknown" };
    metrics::observe(OPERATIONS, &["false", operation.name(), status, plugin], took.as_secs_f64());
}

/// Volumes by the name of their plugin.
pub type ByDriver = BTreeMap<String, usize>;

/// See the module.
#[derive(Debug, Default)]
pub struct Report {
    /// By node: volumes that are wanted, and uses of them.
    nodes: HashMap<String, (ByDriver, ByDriver)>,
    attached: HashMap<String, String>,
    /// By attachment.
    begun: HashMap<String, Begun>,
}

/// Returns upstream's name of a driver's plugin.
#[must_use]
pub fn plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

impl Report {
    /// A node was looked at: how many volumes it wants, and how often its pods use one.
    pub fn node(&mut self, name: &str, wanted: ByDriver, uses: ByDriver) {
        let (old_wanted, old_uses) = self.nodes.remove(name).unwrap_or_default();
        for (driver, count) in &old_wanted {
            metrics::move_by(TOTAL, &[driver, DESIRED], -float(*count));
        }
        for (driver, count) in &wanted {
            metrics::move_by(TOTAL, &[driver, DESIRED], float(*count));
        }
        for driver in old_uses.keys().filter(|d| !uses.contains_key(*d)) {
            metrics::forget(IN_USE, &[name, driver]);
        }
        for (driver, count) in &uses {
            metrics::set(IN_USE, &[name, driver], float(*count));
        }
        if !wanted.is_empty() {
            self.nodes.insert(name.to_owned(), (wanted, uses));
        }
    }

    /// An operation was asked for.
    pub fn began(&mut self, attachment: &str, operation: VolumeOperation, now: Instant) {
        self.begun.insert(attachment.to_owned(), Begun { operation, since: now, failed: None });
    }

    /// An attachment is as a watch shows it, or is gone.
    pub fn seen(&mut self, attachment: &VolumeAttachment, gone: bool, now: Instant) {
        let (name, driver) = (object::name(&attachment.metadata), attachment.spec.attacher.as_str());
        let attached = !gone && attachment.status.as_ref().is_some_and(|s| s.attached);
        let was = if attached { self.attached.insert(name.into(), driver.into()) } else { self.attached.remove(name) };
        let step = float(usize::from(attached)) - float(usize::from(was.is_some()));
        metrics::move_by(TOTAL, &[&plugin(driver), ACTUAL], step);
        if let Some(found) = self.ended(attachment, gone, now) {
            ended(found.operation, &plugin(driver), found.success, now.saturating_duration_since(found.since));
        }
    }

    /// Returns the operation that ended with this change. A failed try is followed by the next one.
    fn ended(&mut self, attachment: &VolumeAttachment, gone: bool, now: Instant) -> Option<Ended> {
        let name = object::name(&attachment.metadata);
        let begun = self.begun.get_mut(name)?;
        let (operation, since) = (begun.operation, begun.since);
        let status = attachment.status.as_ref();
        let error = match operation {
            VolumeOperation::Attach => status.and_then(|s| s.attach_error.as_ref()),
            VolumeOperation::Detach => status.and_then(|s| s.detach_error.as_ref()),
        };
        let done = match operation {
            VolumeOperation::Attach => !gone && status.is_some_and(|s| s.attached),
            VolumeOperation::Detach => gone,
        };
        if done || gone {
            self.begun.remove(name);
            return done.then_some(Ended { operation, success: true, since });
        }
        let failed = error.and_then(|e| e.time.clone())?;
        if begun.failed.as_ref() == Some(&failed) {
            return None;
        }
        (begun.failed, begun.since) = (Some(failed), now);
        Some(Ended { operation, success: false, since })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn attachment(status: Value) -> VolumeAttachment {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": status,
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}))
        .expect("attachment")
    }

    #[test]
    fn operations_end_well_or_try_again() {
        let (mut report, start) = (Report::default(), Instant::now());
        let at = |second: u64| start + Duration::from_secs(second);
        let error = |key: &str, second: u32| {
            attachment(
                json!({"attached": false, key: {"message": "no", "time": format!("2026-01-01T00:00:0{second}Z")}}),
            )
        };
        let ended = |operation, success, second| Some(Ended { operation, success, since: at(second) });
        let (attach, detach) = (VolumeOperation::Attach, VolumeOperation::Detach);
        assert_eq!(report.ended(&attachment(json!({"attached": true})), false, at(0)), None, "nobody asked for it");
        report.began("a", attach, at(1));
        assert_eq!(report.ended(&attachment(json!({"attached": false})), false, at(2)), None);
        assert_eq!(report.ended(&error("attachError", 1), false, at(3)), ended(attach, false, 1));
        assert_eq!(report.ended(&error("attachError", 1), false, at(4)), None, "the same failure");
        assert_eq!(report.ended(&error("attachError", 2), false, at(5)), ended(attach, false, 3));
        assert_eq!(report.ended(&attachment(json!({"attached": true})), false, at(6)), ended(attach, true, 5));
        report.began("a", detach, at(7));
        assert_eq!(report.ended(&error("detachError", 3), false, at(8)), ended(detach, false, 7));
        assert_eq!(report.ended(&attachment(Value::Null), true, at(9)), ended(detach, true, 8));
        report.began("a", attach, at(10));
        assert_eq!(report.ended(&attachment(Value::Null), true, at(11)), None, "given up");
        assert!(report.begun.is_empty());
    }
}
