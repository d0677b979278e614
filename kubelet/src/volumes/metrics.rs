//! Metrics of volumes, under upstream's names: how many are wanted and there, and how long operations on them take.

use k8s_openapi::api::core::v1::Volume;
use parking_lot::Mutex;
use shared::metrics::{counter, gauge, histogram};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

const TOTAL: &str = "volume_manager_total_volumes";
const DESIRED: &str = "desired_state_of_world";
const ACTUAL: &str = "actual_state_of_world";
const BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Operations on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeOperation {
    Mount,
    Unmount,
    UnmountDevice,
    Map,
    Unmap,
    UnmapDevice,
    VerifyAttached,
    Grow,
    GiveToGroup,
}

impl VolumeOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Mount => "volume_mount",
            Self::Unmount => "volume_unmount",
            Self::UnmountDevice => "unmount_device",
            Self::Map => "map_volume",
            Self::Unmap => "unmap_volume",
            Self::UnmapDevice => "unmap_device",
            Self::VerifyAttached => "verify_controller_attached_volume",
            Self::Grow => "volume_fs_resize",
            Self::GiveToGroup => "volume_apply_access_control",
        }
    }
}

/// The plugin of a volume as metrics name it: upstream's `GetFullQualifiedPluginNameForVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plugin {
    pub(crate) name: String,
    /// The volume is of a plugin whose work a driver does today.
    pub(crate) is_migrated: bool,
}

impl Plugin {
    /// A plugin of the kubelet's own, without `kubernetes.io/`.
    pub(crate) fn own(name: &str) -> Self {
        Self { name: format!("kubernetes.io/{name}"), is_migrated: false }
    }

    /// The plugin of a driver's volume.
    pub(crate) fn driver(driver: &str, is_migrated: bool) -> Self {
        Self { name: format!("kubernetes.io/csi:{driver}"), is_migrated }
    }

    /// The plugin of a FlexVolume, which its driver names.
    pub(crate) fn flex(driver: &str) -> Self {
        Self { name: driver.to_owned(), is_migrated: false }
    }

    /// Reports whether it is that of drivers.
    pub(super) fn is_driver(&self) -> bool {
        self.name.starts_with("kubernetes.io/csi:")
    }

    /// The plugin of a volume without a claim; `inline` is the driver's, if it is one.
    pub(super) fn of_volume(volume: &Volume, inline: Option<Self>) -> Self {
        if let Some(inline) = inline {
            return inline;
        }
        if let Some(flex) = &volume.flex_volume {
            return Self::flex(&flex.driver);
        }
        let name = [
            (volume.empty_dir.is_some(), "empty-dir"),
            (volume.host_path.is_some(), "host-path"),
            (volume.secret.is_some(), "secret"),
            (volume.config_map.is_some(), "configmap"),
            (volume.downward_api.is_some(), "downward-api"),
            (volume.projected.is_some(), "projected"),
            (volume.nfs.is_some(), "nfs"),
            (volume.iscsi.is_some(), "iscsi"),
            (volume.fc.is_some(), "fc"),
            (volume.image.is_some(), "image"),
        ];
        let name = name.into_iter().find_map(|(is_it, name)| is_it.then_some(name));
        name.map_or_else(|| Self { name: "N/A".to_owned(), is_migrated: false }, Self::own)
    }
}

/// Counts an operation that has come to an end.
pub(crate) fn ended(plugin: &Plugin, operation: VolumeOperation, begun: Instant, failed: bool) {
    let help = "[ALPHA] Duration of operations on volumes in seconds, by plugin, operation and outcome";
    let labels = ["volume_plugin", "operation_name", "status", "migrated"];
    let operations = histogram("storage_operation_duration_seconds", help, &labels, BUCKETS.to_vec());
    let (status, migrated) = (if failed { "fail-unknown" } else { "success" }, plugin.is_migrated.to_string());
    let values = [plugin.name.as_str(), operation.name(), status, &migrated];
    operations.with_label_values(&values).observe(begun.elapsed().as_secs_f64());
}

/// Counts a look at a volume's numbers, by the manner in which it is done: `statfs`, `du`, `block`, or by a driver.
pub(crate) fn looked(source: &str, begun: Instant) {
    let help = "[ALPHA] Duration of looks at volumes' numbers in seconds, by their source";
    let name = "kubelet_volume_metric_collection_duration_seconds";
    let looks = histogram(name, help, &["metric_source"], shared::metrics::default_buckets());
    looks.with_label_values(&[source]).observe(begun.elapsed().as_secs_f64());
}

/// Plugins of pods' volumes, by the pod's uid and the volume's name.
type PodPlugins = BTreeMap<(String, String), Plugin>;

/// Volumes that pods want, and those that they have: upstream's two states of the world.
#[derive(Default)]
pub(super) struct Worlds(Mutex<[PodPlugins; 2]>);

impl Worlds {
    fn tell(state: &str, known: &PodPlugins, before: BTreeSet<String>) {
        let help = "[ALPHA] Number of volumes that pods want or have, by plugin and state";
        let totals = gauge(TOTAL, help, &["plugin_name", "state"]);
        let mut counts = BTreeMap::<&str, u32>::new();
        for plugin in known.values() {
            *counts.entry(&plugin.name).or_default() += 1;
        }
        for (name, count) in &counts {
            totals.with_label_values(&[name, state]).set(f64::from(*count));
        }
        for name in before.iter().filter(|name| !counts.contains_key(name.as_str())) {
            // A plugin without volumes has no number; one that had none before is not there to be removed.
            totals.remove_label_values(&[name.as_str(), state]).ok();
        }
    }

    fn change<T>(&self, state: &str, change: impl FnOnce(&mut PodPlugins) -> T) -> T {
        let mut worlds = self.0.lock();
        let known = &mut worlds[usize::from(state == ACTUAL)];
        let before = known.values().map(|plugin| plugin.name.clone()).collect();
        let changed = change(known);
        Self::tell(state, known, before);
        changed
    }

    fn key(uid: &str, volume: &str) -> (String, String) {
        (uid.to_owned(), volume.to_owned())
    }

    /// A pod wants a volume.
    pub(super) fn want(&self, uid: &str, volume: &str, plugin: &Plugin) {
        self.change(DESIRED, |known| known.insert(Self::key(uid, volume), plugin.clone()));
    }

    /// A pod has a volume. Reports whether it has it only now.
    pub(super) fn have(&self, uid: &str, volume: &str, plugin: &Plugin) -> bool {
        self.change(ACTUAL, |known| known.insert(Self::key(uid, volume), plugin.clone())).is_none()
    }

    /// A pod wants nothing any more.
    pub(super) fn want_nothing(&self, uid: &str) {
        self.change(DESIRED, |known| known.retain(|(of, _), _| of != uid));
    }

    /// Plugins of the volumes that a pod has.
    pub(super) fn of(&self, uid: &str) -> Vec<Plugin> {
        let worlds = self.0.lock();
        let own = worlds[1].iter().filter(|((of, _), _)| of == uid);
        own.map(|(_, plugin)| plugin.clone()).collect()
    }

    /// A pod has nothing any more.
    pub(super) fn lose(&self, uid: &str) {
        self.change(ACTUAL, |known| known.retain(|(of, _), _| of != uid));
    }
}

/// Counts the volumes that an earlier kubelet left below the folder of pods, of which `unknown` cannot be told.
pub(super) fn reconstructed(pods: &Path, unknown: usize) {
    let below = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let plugins = below(pods).into_iter().flat_map(|pod| below(&pod.join("volumes")));
    let found = u32::try_from(plugins.flat_map(|plugin| below(&plugin)).count()).unwrap_or(u32::MAX);
    let count = |name: &str, help: &str, count: u32| {
        counter(name, help, &[]).with_label_values(&[] as &[&str]).inc_by(f64::from(count));
    };
    let help = "[ALPHA] Number of volumes that were looked for on the disk when the kubelet started";
    count("reconstruct_volume_operations_total", help, found);
    let help = "[ALPHA] Number of volumes on the disk that could not be told when the kubelet started";
    count("reconstruct_volume_operations_errors_total", help, u32::try_from(unknown).unwrap_or(u32::MAX));
    // Shown before anything was counted, as upstream's are.
    cleaned();
}

/// Volumes that were taken down though they could not be told from the disk, and those of them for which that failed.
fn cleaned() -> [shared::metrics::Counter; 2] {
    let counter = |name: &str, help: &str| counter(name, help, &[]).with_label_values(&[] as &[&str]);
    let help = "[ALPHA] Number of volumes that were taken down though they could not be told from the disk";
    let all = counter("force_cleaned_failed_volume_operations_total", help);
    let help = "[ALPHA] Number of failures to take down volumes that could not be told from the disk";
    [all, counter("force_cleaned_failed_volume_operation_errors_total", help)]
}

/// Counts a volume that could not be told and is taken down all the same.
pub(crate) fn force_cleaned(failed: bool) {
    let [all, failures] = cleaned();
    all.inc();
    if failed {
        failures.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volumes_are_counted_by_plugin_until_they_are_gone() {
        let worlds = Worlds::default();
        let (one, two) = (Plugin::driver("worlds.test", false), Plugin::own("worlds-test"));
        worlds.want("u", "v", &one);
        worlds.want("u", "w", &two);
        assert!(worlds.have("u", "v", &one));
        assert!(!worlds.have("u", "v", &one), "it has it already");
        let sample = |plugin: &str, state: &str, count: u32| {
            format!("volume_manager_total_volumes{{plugin_name=\"kubernetes.io/{plugin}\",state=\"{state}\"}} {count}")
        };
        let text = shared::metrics::gather();
        for expected in [
            sample("csi:worlds.test", DESIRED, 1),
            sample("worlds-test", DESIRED, 1),
            sample("csi:worlds.test", ACTUAL, 1),
        ] {
            assert!(text.contains(&expected), "{expected}");
        }
        assert_eq!(worlds.of("u"), [one]);
        worlds.want_nothing("u");
        worlds.lose("u");
        let text = shared::metrics::gather();
        assert!(!text.contains("csi:worlds.test") && !text.contains("worlds-test"), "{text}");
    }

    #[test]
    fn volumes_that_cannot_be_told_are_counted_from_the_start() {
        reconstructed(Path::new("/nonexistent"), 0);
        let counted = |name: &str| -> Option<f64> {
            let text = shared::metrics::gather();
            let mut lines = text.lines();
            lines
                .find_map(|line| line.strip_prefix(&format!("force_cleaned_failed_volume_{name}_total "))?.parse().ok())
        };
        let before = ["operations", "operation_errors"].map(|name| counted(name).expect("shown"));
        force_cleaned(false);
        force_cleaned(true);
        let after = ["operations", "operation_errors"].map(|name| counted(name).expect("shown"));
        assert!(after[0] >= before[0] + 2.0 && after[1] >= before[1] + 1.0, "{before:?} {after:?}");
    }

    #[test]
    fn plugins_have_upstreams_names() {
        let volume = |source: serde_json::Value| -> Volume {
            let mut volume = json!({"name": "v"});
            for (name, value) in source.as_object().expect("an object") {
                volume[name] = value.clone();
            }
            serde_json::from_value(volume).expect("a volume")
        };
        for (source, expected) in [
            (json!({"emptyDir": {}}), "kubernetes.io/empty-dir"),
            (json!({"configMap": {"name": "c"}}), "kubernetes.io/configmap"),
            (json!({"projected": {}}), "kubernetes.io/projected"),
            (json!({"hostPath": {"path": "/x"}}), "kubernetes.io/host-path"),
            (json!({"image": {"reference": "i"}}), "kubernetes.io/image"),
            (json!({}), "N/A"),
        ] {
            assert_eq!(Plugin::of_volume(&volume(source), None).name, expected);
        }
        ended(&Plugin::driver("ended.test", true), VolumeOperation::Map, Instant::now(), true);
        let expected = "storage_operation_duration_seconds_count{migrated=\"true\",operation_name=\"map_volume\",\
                        status=\"fail-unknown\",volume_plugin=\"kubernetes.io/csi:ended.test\"} 1";
        let text = shared::metrics::gather();
        assert!(text.contains(expected), "{text}");
    }
}
